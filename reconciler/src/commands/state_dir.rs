//! The state directory: what berth keeps on this machine, and where.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::{machine, this_machine};
use crate::credential;

/// The administrator's kubeconfig, in the state directory.
pub(super) const KUBECONFIG: &str = "admin.kubeconfig";
/// The control plane's own folder, in the state directory.
pub(super) const CONTROL_PLANE: &str = "control-plane";

/// The bits of a directory such as /tmp: all users write to it.
const OF_ALL_USERS: u32 = 0o1002;

/// The first entries of a state directory, whichever command makes them: a later start finds at least one of them.
const OWN: [&str; 6] = [
    CONTROL_PLANE,
    KUBECONFIG,
    credential::TOKEN,
    credential::KUBECONFIG,
    this_machine::IDENTITY,
    machine::LOCK,
];
/// Entries that may be there before the first start: those of a file system of its own, and the folder in which one for a pool is mounted.
const BEFOREHAND: [&str; 5] = ["lost+found", ".snapshot", ".snapshots", ".zfs", "pools"];
/// The extension of a file that is not complete, as after a first start that broke off on a full disk.
const STAGED: &str = "new";

/// Creates the state directory. QEMU's user must be able to pass through it, but not to list it.
///
/// *Errors:* it cannot be created; it is a directory of all users or of other programs, which could not use it any more.
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
    ensure!(
        belongs_to_berth(&path).with_context(what)?,
        "{} has files, and none of berth: give a new or empty directory with --state-dir, or the one that berth has used before",
        path.display()
    );
    fs::set_permissions(&path, Permissions::from_mode(0o711)).with_context(what)?;
    Ok(path)
}

/// Whether a directory is empty or one of berth: any other one, as `/etc` or a home directory, would become unreadable for its users.
fn belongs_to_berth(path: &Path) -> io::Result<bool> {
    if OWN.iter().any(|name| fs::symlink_metadata(path.join(name)).is_ok()) {
        return Ok(true);
    }
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        let is_staged = Path::new(&name).extension().is_some_and(|extension| extension == STAGED);
        if !is_staged && BEFOREHAND.iter().all(|known| name != *known) {
            return Ok(false);
        }
    }
    Ok(true)
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

    #[test]
    fn a_directory_of_other_programs_stays_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
        let make = |name: &str, entries: &[&str]| {
            let path = folder.path().join(name);
            fs::create_dir(&path).expect("made");
            fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("a mode");
            entries.iter().for_each(|entry| fs::write(path.join(entry), "").expect("written"));
            path
        };
        for (name, entries) in [("home", &[".bashrc"][..]), ("libvirt", &["images", "lost+found"][..])] {
            let path = make(name, entries);
            let refused = prepare(&path).expect_err(name).to_string();
            assert!(refused.contains("none of berth") && refused.contains("--state-dir"), "{refused}");
            assert_eq!(mode(&path), 0o755, "{name}");
        }
        let own = OWN.map(|name| (name, vec![name, "notes.txt"]));
        let empty = [
            ("empty", Vec::new()),
            ("new-file-system", vec!["lost+found"]),
            ("with-a-file-system-for-pools", vec![".snapshots", "pools"]),
            ("first-start-broke-off", vec!["agent-id.new", "host.4711.new"]),
        ];
        for (name, entries) in own.into_iter().chain(empty) {
            let path = make(name, &entries);
            prepare(&path).expect(name);
            assert_eq!(mode(&path), 0o711, "{name}");
        }
    }
}
