//! The limit on this process's open files and sockets.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// Raises the soft limit to the hard one: a control plane holds a connection for every host, and the usual 1,024
/// exist for programs that use `select`, which this one does not.
pub(super) fn raise_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        warn!(%error, "the limit of open files could not be raised");
    }
}
