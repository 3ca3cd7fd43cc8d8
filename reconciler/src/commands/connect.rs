//! Clients of a control plane.

use std::{net::SocketAddr, path::Path};

use anyhow::{Context, ensure};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{api_limits::ApiLimits, cli::Connection, one_connection::client_within};

use super::small_file;

/// The maximum size of a kubeconfig in bytes: one of hundreds of clusters, with all certificates in it, is smaller.
const MAX_KUBECONFIG: u64 = 16 << 20;

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
    let options = KubeConfigOptions { context: connection.context.clone(), ..KubeConfigOptions::default() };
    match &connection.kubeconfig {
        Some(path) => {
            let kubeconfig = kubeconfig(path)?;
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

fn kubeconfig(path: &Path) -> anyhow::Result<Kubeconfig> {
    let reading = || format!("reading kubeconfig {}", path.display());
    let facts = std::fs::metadata(path).with_context(reading)?;
    if !facts.is_file() {
        // Of a pipe, or of a device, which may have no end. No file is relative to it.
        let text = small_file::read(path, MAX_KUBECONFIG)?;
        return Kubeconfig::from_yaml(&text).with_context(reading);
    }
    ensure!(facts.len() <= MAX_KUBECONFIG, "{} has more than {MAX_KUBECONFIG} bytes", path.display());
    Kubeconfig::read_from(path).with_context(reading)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_without_an_end_is_refused() {
        let refused = format!("{:#}", kubeconfig(Path::new("/dev/zero")).expect_err("it has no end"));
        assert!(refused.starts_with("/dev/zero has more than"), "{refused}");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kubeconfig");
        std::fs::write(&path, "apiVersion: v1\nkind: Config\ncurrent-context: here\n").expect("written");
        assert_eq!(kubeconfig(&path).expect("read").current_context.as_deref(), Some("here"));
        std::fs::File::create(&path).and_then(|file| file.set_len(MAX_KUBECONFIG + 1)).expect("grown");
        assert!(kubeconfig(&path).is_err());
    }
}
