//! Clients of a control plane.

mod kubeconfig_file;

use std::{env, net::SocketAddr, path::Path};

use anyhow::Context;
use kube::{Client, Config, config::KubeConfigOptions};

use crate::{api_limits::ApiLimits, cli::Connection, one_connection::client_within};

/// Returns the client the options name, with these limits.
///
/// *Errors:* no usable kubeconfig.
pub(super) async fn client(connection: &Connection, limits: &ApiLimits) -> anyhow::Result<Client> {
    client_within(config(connection).await?, limits)
}

/// Returns the addresses of a configuration's control plane; none if its name cannot be resolved.
pub(super) async fn addresses(config: &Config) -> Vec<SocketAddr> {
    let url = &config.cluster_url;
    let Some(host) = url.host() else { return Vec::new() };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let found = tokio::net::lookup_host((host, url.port_u16().unwrap_or(443))).await;
    found.map(Iterator::collect).unwrap_or_default()
}

/// Returns the configuration the options name.
///
/// *Errors:* no usable kubeconfig.
pub(super) async fn config(connection: &Connection) -> anyhow::Result<Config> {
    if connection.kubeconfig.is_none() {
        check_variable()?;
    }
    let options = KubeConfigOptions { context: connection.context.clone(), ..KubeConfigOptions::default() };
    match &connection.kubeconfig {
        Some(path) => {
            let kubeconfig = kubeconfig_file::read(path)?;
            Config::from_custom_kubeconfig(kubeconfig, &options).await.context("using the kubeconfig")
        }
        None if connection.context.is_some() => {
            Config::from_kubeconfig(&options).await.context("using the kubeconfig")
        }
        None => Config::infer().await.context(
            "finding a control plane: set --kubeconfig or BERTH_KUBECONFIG, or run berth up on this machine",
        ),
    }
}

/// Checks the files of the variable `KUBECONFIG`, which kube reads as a whole.
///
/// *Errors:* one of them is no file that a kubeconfig can be in.
fn check_variable() -> anyhow::Result<()> {
    let Some(value) = env::var_os("KUBECONFIG") else { return Ok(()) };
    // Those that are missing, and the usual way to name none, are kube's matter.
    for path in env::split_paths(&value).filter(|path| path.exists() && path != Path::new("/dev/null")) {
        kubeconfig_file::kind_of(&path)
            .with_context(|| format!("the variable KUBECONFIG names {}", path.display()))?;
    }
    Ok(())
}

/// Returns an administrator's configuration: the one the options name, else that of this machine's `berth up` if this user can read it,
/// else the user's own.
///
/// *Errors:* no usable kubeconfig.
pub(super) async fn admin(connection: &Connection, state_dir: &Path) -> anyhow::Result<Config> {
    let local = state_dir.join(super::state_dir::KUBECONFIG);
    if !is_named(connection) && std::fs::File::open(&local).is_ok() {
        return config(&Connection { kubeconfig: Some(local), context: None }).await;
    }
    config(connection).await
}

/// Whether the options name a control plane, rather than leave it to the defaults.
pub(super) fn is_named(connection: &Connection) -> bool {
    connection.kubeconfig.is_some() || connection.context.is_some()
}
