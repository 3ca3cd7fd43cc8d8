//! The file of a download, and those beside it until it is complete.
//!
//! ```text
//!  FILE.part      the bytes that have come, locked by the command
//!  FILE.part-id   by which the same command finds the Image that was made for this file
//!  FILE.part-raw  the raw file that is made of FILE.part
//! ```

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use berth_console_client::PartFile;
use nix::fcntl::OFlag;

use super::raw::{self, RawError};
use crate::cli::DownloadOptions;

/// The hexadecimal digits by which the Images of downloads of one object differ.
const ID_DIGITS: usize = 8;

/// Refuses a file that exists, unless it is to be replaced.
pub(super) fn check(file: &Path, force: bool) -> anyhow::Result<()> {
    let folder = folder_of(file);
    // Without a slash or a dot behind it.
    let is_named =
        file.file_name().is_some_and(|name| file.as_os_str().as_bytes().ends_with(name.as_bytes()));
    let found = fs::symlink_metadata(file);
    match found {
        Ok(found) if found.is_dir() => bail!("{} is a folder: name a file in it", file.display()),
        _ if !is_named => bail!("{} is not the name of a file", file.display()),
        Ok(_) if !force => bail!("{} exists: name another file, or replace it with --force", file.display()),
        _ if !folder.is_dir() => bail!("there is no folder {}", folder.display()),
        _ => Ok(()),
    }
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Opens and locks the file for the bytes.
pub(super) fn part_of(file: &Path) -> anyhow::Result<PartFile> {
    Ok(PartFile::open(&beside(file, ".part"))?)
}

/// Returns the random identity of the download to this file, which is locked: the one that is kept beside it, or a new one.
pub(super) fn id_of(file: &Path) -> anyhow::Result<String> {
    let path = beside(file, ".part-id");
    if let Some(kept) = kept_id(&path) {
        return Ok(kept);
    }
    let id = format!("{:08x}", rand::random::<u32>());
    let written = created(&path).and_then(|mut kept| {
        kept.write_all(id.as_bytes())?;
        kept.sync_all()
    });
    written.with_context(|| format!("writing {}", path.display()))?;
    Ok(id)
}

fn kept_id(path: &Path) -> Option<String> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let mut text = String::new();
    file.take(1 + ID_DIGITS as u64).read_to_string(&mut text).ok()?;
    let is_id = text.len() == ID_DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    is_id.then_some(text)
}

/// Removes the identity of a download that is complete.
fn forget_id(file: &Path) {
    let _ = fs::remove_file(beside(file, ".part-id"));
}

/// Creates a file that only its owner reads. A file or a link of its name is removed.
fn created(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Gives the bytes, which are complete, the name of the file. They are locked until then.
pub(super) fn finish(part: PartFile, options: &DownloadOptions) -> anyhow::Result<()> {
    rename(part.path(), options)?;
    drop(part);
    Ok(())
}

/// Makes a raw file of the bytes, which are a complete qcow2 file with a disk of this size, and removes them.
pub(super) async fn finish_raw(
    part: PartFile,
    size: Option<u64>,
    options: &DownloadOptions,
) -> anyhow::Result<()> {
    let path = beside(&options.file, ".part-raw");
    let (from, to) = (part.path().to_owned(), path.clone());
    let made = tokio::task::spawn_blocking(move || {
        let target = created(&to).map_err(RawError::Write)?;
        let converted = raw::convert(part.file(), &target, size);
        if converted.is_err() {
            // The error of the conversion is the one to report.
            let _ = fs::remove_file(&to);
        }
        converted.map(|()| part)
    });
    let made = made.await.context("making the raw file")?;
    let part = made.with_context(|| format!("making {} raw", from.display()))?;
    rename(&path, options)?;
    fs::remove_file(part.path()).with_context(|| format!("removing {}", from.display()))
}

/// Returns once the file has its name on the medium.
fn rename(from: &Path, options: &DownloadOptions) -> anyhow::Result<()> {
    let file = &options.file;
    // Another program may have made the file meanwhile.
    check(file, options.force)?;
    // While the bytes are locked: the next download to this file must not find the Image of this one, which is deleted.
    forget_id(file);
    fs::rename(from, file).with_context(|| format!("renaming {} to {}", from.display(), file.display()))?;
    let folder = folder_of(file);
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // A file system that does this for files only.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Ok(())
        }
        synced => synced.with_context(|| format!("writing folder {} to the medium", folder.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_only_by_force_and_a_folder_never() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("disk.qcow2");
        assert!(check(&file, false).is_ok());
        fs::write(&file, "abc").expect("written");
        let refused = check(&file, false).expect_err("it exists").to_string();
        assert!(refused.contains("--force"), "{refused}");
        assert!(check(&file, true).is_ok());
        for wrong in ["", "none/disk.qcow2", "new/", "new/.", "..", "disk.qcow2/"] {
            let wrong = folder.path().join(wrong);
            assert!(check(&wrong, true).is_err(), "{}", wrong.display());
        }
        for wrong in ["/", "..", "", "new/"] {
            assert!(check(Path::new(wrong), true).is_err(), "{wrong}");
        }
        assert!(check(Path::new("a-file-that-is-not-here.qcow2"), false).is_ok());
        assert_eq!(beside(Path::new("a/b.qcow2"), ".part"), Path::new("a/b.qcow2.part"));
    }

    #[test]
    fn each_file_has_an_identity_of_its_own_until_it_is_complete() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, other) = (folder.path().join("a"), folder.path().join("b"));
        let id = id_of(&file).expect("made");
        assert_eq!(id_of(&file).expect("kept"), id);
        assert!(id_of(&other).expect("made") != id, "it is random");
        forget_id(&file);
        assert!(!beside(&file, ".part-id").exists());
        // Not followed, and not read.
        for wrong in ["", "0123456", "0123456789", "../../xx"] {
            fs::write(beside(&other, ".part-id"), wrong).expect("written");
            assert_eq!(id_of(&other).expect("made anew").len(), ID_DIGITS, "{wrong}");
        }
        let target = folder.path().join("target");
        fs::write(&target, &id).expect("written");
        std::os::unix::fs::symlink(&target, beside(&file, ".part-id")).expect("a link");
        assert!(id_of(&file).expect("made anew") != id);
        assert_eq!(fs::read_to_string(&target).expect("there"), id, "nothing is written through a link");
    }

    #[test]
    fn a_created_file_replaces_a_link_and_is_read_by_its_owner_only() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().expect("a folder");
        let (path, target) = (folder.path().join("a.part-raw"), folder.path().join("target"));
        fs::write(&target, "kept").expect("written");
        std::os::unix::fs::symlink(&target, &path).expect("a link");
        let made = created(&path).expect("created");
        assert_eq!(made.metadata().expect("read").mode() & 0o777, 0o600);
        assert_eq!(fs::read(&target).expect("there"), b"kept");
    }
}
