//! A copy that is not complete: beside its target, with a name that nothing else has.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

const LONGEST_NAME: usize = 200;

/// The place of a copy until it is complete: `.NAME.berth-NUMBER`. The number is random: a process of another host that shares the folder, or
/// one that was killed, may have had the same process id.
pub(in crate::commands) struct Part(PathBuf);

impl Part {
    pub(in crate::commands) fn beside(target: &Path) -> anyhow::Result<Self> {
        let name = target.file_name().with_context(|| format!("{} names no copy", target.display()))?;
        let mut part = OsString::from(".");
        // A longer name has no room for what follows.
        if name.len() <= LONGEST_NAME {
            part.push(name);
        }
        part.push(format!(".berth-{:016x}", rand::random::<u64>()));
        Ok(Self(target.with_file_name(part)))
    }

    pub(in crate::commands) fn path(&self) -> &Path {
        &self.0
    }

    /// Gives the copy its name. Without `force` it replaces nothing, also nothing that has appeared meanwhile.
    pub(in crate::commands) fn becomes(&self, target: &Path, force: bool) -> anyhow::Result<()> {
        let naming = || format!("naming {}", target.display());
        if force {
            return fs::rename(&self.0, target).with_context(naming);
        }
        match renameat2(AT_FDCWD, &self.0, AT_FDCWD, target, RenameFlags::RENAME_NOREPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::EEXIST) => bail!(
                "{} was created by another program during the copy: repeat it, or replace the file with --force",
                target.display()
            ),
            // Some file systems, such as NFS, cannot.
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => {
                if fs::symlink_metadata(target).is_ok() {
                    bail!(
                        "{} was created by another program during the copy: repeat it, or replace the file with --force",
                        target.display()
                    );
                }
                fs::rename(&self.0, target).with_context(naming)
            }
            Err(error) => Err(io::Error::from(error)).with_context(naming),
        }
    }
}

#[test]
fn what_a_killed_copy_left_is_in_the_way_of_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("motd");
    let parts = [Part::beside(&target).expect("a name"), Part::beside(&target).expect("a name")];
    assert_ne!(parts[0].path(), parts[1].path());
}

#[test]
fn a_copy_replaces_nothing_that_has_appeared_meanwhile() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("motd");
    let part = Part::beside(&target).expect("a name");
    fs::write(part.path(), "new").expect("written");
    fs::write(&target, "old").expect("written");
    let error = part.becomes(&target, false).expect_err("refused").to_string();
    assert!(error.contains("was created by another program"), "{error}");
    assert_eq!(fs::read_to_string(&target).expect("there"), "old");
    part.becomes(&target, true).expect("replaced");
    assert_eq!(fs::read_to_string(&target).expect("there"), "new");
    assert!(!part.path().exists());
}
