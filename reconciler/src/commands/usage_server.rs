//! The sockets on which this machine's agent serves metrics.

use std::{os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use anyhow::Context;
use berth_agent::UsageServer;
use tokio::net::{TcpListener, UnixListener};
use tracing::warn;

use crate::cli::AgentOptions;

/// The socket for `berth top` on this machine, in the state directory.
pub(super) const SOCKET: &str = "usage.sock";

/// Listens on the socket of the state directory and on --metrics. A socket that cannot be made is no reason to run no VMs.
///
/// *Errors:* --metrics cannot be used.
pub(super) async fn listen(options: &AgentOptions, state_dir: &Path) -> anyhow::Result<Arc<UsageServer>> {
    let local = match local(&state_dir.join(SOCKET)) {
        Ok(listener) => Some(listener),
        Err(error) => {
            warn!(%error, "`berth top` does not work on this machine");
            None
        }
    };
    let tcp = match options.metrics {
        Some(at) => {
            let bound = TcpListener::bind(at).await;
            Some(bound.with_context(|| format!("listening for metrics on {at} (--metrics)"))?)
        }
        None => None,
    };
    Ok(Arc::new(UsageServer { local, tcp }))
}

/// Makes the socket, which only its owner can open.
fn local(path: &Path) -> std::io::Result<UnixListener> {
    // One of an earlier agent. This one has claimed the state directory.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
