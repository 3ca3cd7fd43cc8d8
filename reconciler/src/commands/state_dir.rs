//! The state directory: what berth keeps on this machine, and where.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// The administrator's kubeconfig, in the state directory.
pub(super) const KUBECONFIG: &str = "admin.kubeconfig";
/// The control plane's own folder, in the state directory.
pub(super) const CONTROL_PLANE: &str = "control-plane";

/// The bits of a directory such as /tmp: all users write to it.
const OF_ALL_USERS: u32 = 0o1002;

/// Creates the state directory. QEMU's user must be able to pass through it, but not to list it.
///
/// *Errors:* it cannot be created; it is a directory of all users, which could not use it any more.
pub(super) fn prepare(state_dir: &Path) -> anyhow::Result<PathBuf> {
    let what = || format!("making the state directory {}", state_dir.display());
    if let Some(parent) = state_dir.parent() {
        fs::create_dir_all(parent).with_context(what)?;
    }
    // A new one is that of all users at no time, whatever the umask.
    DirBuilder::new().recursive(true).mode(0o711).create(state_dir).with_context(what)?;
    let path = state_dir.canonicalize().with_context(what)?;
    let mode = fs::metadata(&path).with_context(what)?.permissions().mode();
    ensure!(
        mode & OF_ALL_USERS == 0 && path.parent().is_some(),
        "{} is not only for berth, and others could not use it any more: give a directory of its own with --state-dir",
        path.display()
    );
    fs::set_permissions(&path, Permissions::from_mode(0o711)).with_context(what)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_all_users_stays_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
        let own = folder.path().join("var/berth");
        assert_eq!(prepare(&own).expect("made"), own.canonicalize().expect("there"));
        assert_eq!((mode(&own), prepare(&own).is_ok()), (0o711, true));
        for shared in [0o1777, 0o777] {
            fs::set_permissions(&own, Permissions::from_mode(shared)).expect("a mode");
            let refused = prepare(&own).expect_err("shared").to_string();
            assert!(refused.contains("--state-dir"), "{refused}");
            assert_eq!(mode(&own), shared);
        }
    }
}
