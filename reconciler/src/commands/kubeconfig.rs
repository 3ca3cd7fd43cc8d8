//! `berth kubeconfig`: prints the kubeconfig of this machine's `berth up` for users that may read the file.

use std::io::Write;

use anyhow::Context;

use crate::cli::KubeconfigOptions;

pub(super) fn run(options: &KubeconfigOptions) -> anyhow::Result<()> {
    let path = options.state.state_dir.join(super::state_dir::KUBECONFIG);
    let text = std::fs::read(&path).with_context(|| {
        format!("reading {} (is `berth up` running here? may you read it? try sudo)", path.display())
    })?;
    std::io::stdout().write_all(&text).context("printing")
}
