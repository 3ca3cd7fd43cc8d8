//! How many files and sockets this process may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// Raises the limit to what the administrator allows: a control plane holds a connection for every host, and the
/// usual 1,024 are kept for programs that use `select`, which this is none of.
pub(super) fn raise_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        warn!(%error, "the limit of open files could not be raised");
    }
}
