//! The limit on core dumps of this process: its memory has the keys of encrypted disks and the credentials of the host.

use nix::sys::resource::{Resource, setrlimit};
use tracing::warn;

/// Lets the kernel write no memory of this process, and of the programs that it starts, to a file.
pub(super) fn forbid() {
    if let Err(error) = setrlimit(Resource::RLIMIT_CORE, 0, 0) {
        warn!(%error, "core dumps could not be switched off");
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::getrlimit;

    use super::*;

    #[test]
    fn no_core_of_the_process_is_dumped() {
        forbid();
        assert_eq!(getrlimit(Resource::RLIMIT_CORE), Ok((0, 0)));
    }
}
