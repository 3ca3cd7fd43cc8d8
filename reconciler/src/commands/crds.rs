//! `berth crds`: prints the objects that a Kubernetes control plane needs to serve berth's kinds.

use std::io::Write;

use anyhow::Context;
use berth_api::manifests;

use crate::cli::CrdsOptions;

pub(super) fn run(options: &CrdsOptions) -> anyhow::Result<()> {
    let mut objects = manifests::all();
    if let Some(public) = options.defaults {
        objects.extend(manifests::defaults(&public.to_string()));
    }
    let mut out = std::io::stdout().lock();
    for object in objects {
        let text = serde_saphyr::to_string(&object).context("writing YAML")?;
        writeln!(out, "---\n{}", text.trim_end()).context("printing")?;
    }
    Ok(())
}
