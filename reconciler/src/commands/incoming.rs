//! A file that a command writes: whole, or not at all.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{ErrorKind, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::Context;

use super::files::Part;

/// Writes a file, or replaces its content. When that fails, as on a full disk, a file that was there is as before.
///
/// *Errors:* it cannot be written.
pub(super) fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let write = || {
        let mut incoming = Incoming::begin(path)?;
        incoming.file.write_all(content)?;
        incoming.complete()
    };
    write().with_context(|| format!("writing {}", path.display()))
}

/// A file that is written. A regular one is written beside its target until it is complete: a copy that breaks off leaves the
/// target as it was.
pub(super) struct Incoming {
    pub(super) file: File,
    /// The part, and the file that it becomes. None: the target is no regular file, and is written as it is.
    part: Option<(Part, PathBuf)>,
}

impl Incoming {
    pub(super) fn begin(to: &Path) -> anyhow::Result<Self> {
        let found = match fs::metadata(to) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            found => Some(found?),
        };
        // The standard output may be a regular file, which its other writers have open.
        if to.starts_with("/dev") || found.as_ref().is_some_and(|found| !found.is_file()) {
            return Ok(Self { file: File::create(to)?, part: None });
        }
        // Of a link, the file that it leads to.
        let target = if found.is_some() { fs::canonicalize(to)? } else { to.to_owned() };
        let part = Part::beside(&target)?;
        let file = OpenOptions::new().write(true).create_new(true).open(part.path())?;
        let incoming = Self { file, part: Some((part, target)) };
        if let Some(found) = found {
            let mode = found.permissions().mode() & 0o777;
            incoming.file.set_permissions(Permissions::from_mode(mode))?;
        }
        Ok(incoming)
    }

    pub(super) fn complete(mut self) -> anyhow::Result<()> {
        self.file.sync_all().or_else(unsupported)?;
        if let Some((part, target)) = &self.part {
            part.becomes(target, true)?;
        }
        self.part = None;
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some((part, _)) = &self.part {
            // The error of the copy is the one to report.
            let _ = fs::remove_file(part.path());
        }
    }
}

/// Pipes and devices, such as /dev/stdout, have nothing to synchronise.
fn unsupported(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == ErrorKind::InvalidInput { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_replaces_a_file_once_it_is_complete_and_one_that_breaks_off_leaves_it_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let (target, link, new) =
            (folder.path().join("motd"), folder.path().join("link"), folder.path().join("new"));
        fs::write(&target, "old").expect("written");
        fs::set_permissions(&target, Permissions::from_mode(0o600)).expect("a mode");
        std::os::unix::fs::symlink(&target, &link).expect("a link");
        let receive = |to: &Path| {
            let mut copy = Incoming::begin(to).expect("begun");
            copy.file.write_all(b"copied").expect("written");
            copy
        };
        let names = || fs::read_dir(folder.path()).expect("a folder").count();
        for to in [&target, &link, &new] {
            drop(receive(to));
            assert_eq!((fs::read_to_string(&target).expect("there").as_str(), names()), ("old", 2));
        }
        receive(&link).complete().expect("complete");
        receive(&new).complete().expect("complete");
        assert_eq!((fs::read_to_string(&target).expect("there").as_str(), names()), ("copied", 3));
        assert_eq!(fs::metadata(&target).expect("there").permissions().mode() & 0o777, 0o600);
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(fs::read_to_string(&new).expect("there"), "copied");
        Incoming::begin(Path::new("/dev/null")).expect("a device").complete().expect("written as it is");
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let (target, open) = (folder.path().join("web.png"), folder.path().join("open"));
        write(&target, b"old").expect("written");
        // As a reader has it, which a file that is emptied first would disturb.
        fs::hard_link(&target, &open).expect("a link");
        write(&target, b"new").expect("written");
        assert_eq!(fs::read(&target).expect("there"), b"new");
        assert_eq!(fs::read(&open).expect("there"), b"old", "nothing is written over what was there");
        let refused = write(&folder.path().join("none/web.png"), b"new").expect_err("no folder");
        assert!(refused.to_string().starts_with("writing "), "{refused}");
    }
}
