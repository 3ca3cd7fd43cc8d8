//! A client of a control plane.

use anyhow::Context;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::cli::Connection;

/// The client the options name.
///
/// *Errors:* no usable kubeconfig.
pub(super) async fn client(connection: &Connection) -> anyhow::Result<Client> {
    let options = KubeConfigOptions { context: connection.context.clone(), ..KubeConfigOptions::default() };
    let config = match &connection.kubeconfig {
        Some(path) => {
            let kubeconfig = Kubeconfig::read_from(path)
                .with_context(|| format!("reading kubeconfig {}", path.display()))?;
            Config::from_custom_kubeconfig(kubeconfig, &options).await.context("using the kubeconfig")?
        }
        None if connection.context.is_some() => {
            Config::from_kubeconfig(&options).await.context("using the kubeconfig")?
        }
        None => Config::infer().await.context("finding a control plane: set --kubeconfig")?,
    };
    Client::try_from(config).context("making a client")
}
