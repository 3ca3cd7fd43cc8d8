//! Atomic file operations, and detection of a full disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use berth_qemu::process::RunAs;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::SystemError;

type Result<T> = std::result::Result<T, SystemError>;

/// Files with this prefix are berth's and incomplete: the next writer of the file replaces them.
pub(super) const UNFINISHED: &str = ".";
/// berth's JSON files are small: a larger one is not berth's.
const MAX_JSON: u64 = 1 << 20;

/// Runs blocking file operations off the async threads.
///
/// *Panics*: if the closure panics.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// For `map_err`: adds the attempt, and turns a full disk into `SystemError::NoSpace`.
pub(super) fn failed(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SystemError {
    let path = path.to_owned();
    move |source| {
        if is_full(&source) {
            let free = path.parent().map_or(0, |p| space(p).map_or(0, |s| s.free));
            return SystemError::NoSpace { what: path.display().to_string(), needed: 0, free };
        }
        SystemError::File { attempt, path, source }
    }
}

pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Space of a file system, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub(super) total: u64,
    /// Available to unprivileged users: the blocks reserved for root are not used.
    pub(super) free: u64,
}

pub(super) fn space(path: &Path) -> io::Result<Space> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    let unit = stat.fragment_size();
    Ok(Space { total: stat.blocks() * unit, free: stat.blocks_available() * unit })
}

/// Whether one of two folders, given without symbolic links, is the other, or in it.
pub(super) fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Returns a path without the symbolic links in the part of it that exists.
pub(super) fn real_path(path: &Path) -> PathBuf {
    let real = path.ancestors().find_map(|folder| {
        let rest = path.strip_prefix(folder).ok()?;
        Some(folder.canonicalize().ok()?.join(rest))
    });
    real.unwrap_or_else(|| path.to_owned())
}

/// Whether a user can traverse a folder.
pub(super) fn is_passable(folder: &Path, user: &RunAs) -> Result<bool> {
    let metadata = fs::metadata(folder).map_err(failed("look at", folder))?;
    let mode = metadata.permissions().mode();
    let by_owner = metadata.uid() == user.uid && mode & 0o100 != 0;
    let by_group = metadata.gid() == user.gid && mode & 0o010 != 0;
    Ok(mode & 0o001 != 0 || by_owner || by_group)
}

/// Reserved for the host's notes and for the control plane's database, which may be on the same disk.
const FLOOR: u64 = 8 << 20;

/// Fails early if the data would not fit, or would leave no space for the host itself.
pub(super) fn check_space(what: &Path, needed: u64) -> Result<()> {
    let folder = what.parent().unwrap_or(what);
    let free = space(folder).map_err(failed("read the free space of", folder))?.free;
    let needed = needed.saturating_add(FLOOR);
    if needed > free {
        return Err(SystemError::NoSpace { what: what.display().to_string(), needed, free });
    }
    Ok(())
}

/// Creates a directory, and its parents, that other users can traverse but not list.
pub(super) fn ensure_folder(path: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o711).create(path).map_err(failed("make the folder", path))
}

/// Writes a file atomically; it is on disk when this returns.
pub(super) fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    write_then(path, bytes, mode, |file, unfinished| {
        file.sync_all()?;
        fs::rename(unfinished, path)?;
        sync_parent(path)
    })
}

/// Writes a file atomically that counts only until the next boot: after a crash of the host it may be missing, the former one, or damaged.
/// A crash of the agent changes nothing in it. Waits for no disk.
pub(super) fn write_until_boot(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    write_then(path, bytes, mode, |_, unfinished| fs::rename(unfinished, path))
}

/// Has a file that was written without a sync, and its name, on disk when this returns.
pub(super) fn sync(path: &Path) -> Result<()> {
    let sync = || -> io::Result<()> {
        File::open(path)?.sync_all()?;
        sync_parent(path)
    };
    sync().map_err(failed("write", path))
}

/// Writes the file, and has it take the place of the former one.
fn write_then(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    replace: impl FnOnce(&File, &Path) -> io::Result<()>,
) -> Result<()> {
    let unfinished = unfinished(path);
    let write = || -> io::Result<()> {
        // A leftover with another mode or owner must not pass either on to the new file.
        remove_if_there(&unfinished)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&unfinished)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        replace(&file, &unfinished)
    };
    write().map_err(|error| {
        // Best effort: the file may not exist.
        let _ = fs::remove_file(&unfinished);
        failed("write", path)(error)
    })
}

pub(super) fn unfinished(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(UNFINISHED);
    name.push(path.file_name().unwrap_or_default());
    name.push(".new");
    path.with_file_name(name)
}

pub(super) fn write_json<T: Serialize>(path: &Path, value: &T, mode: u32) -> Result<()> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("our own types are plain JSON");
    bytes.push(b'\n');
    write_atomic(path, &bytes, mode)
}

/// Does the same as [`write_until_boot`] for JSON.
pub(super) fn write_json_until_boot<T: Serialize>(path: &Path, value: &T, mode: u32) -> Result<()> {
    let bytes = serde_json::to_vec(value).expect("our own types are plain JSON");
    write_until_boot(path, &bytes, mode)
}

/// Reads a JSON file; None if it does not exist. The inner error is for people: the file exists but cannot be parsed.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<std::result::Result<T, String>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path)(error)),
    };
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, MAX_JSON), &mut bytes).map_err(failed("read", path))?;
    Ok(Some(serde_json::from_slice(&bytes).map_err(|e| e.to_string())))
}

pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

pub(super) fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Lists the names in a directory that are UTF-8, sorted; empty if the directory does not exist.
pub(super) fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("list", folder)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed("list", folder))?.file_name();
        names.extend(name.into_string());
    }
    names.sort();
    Ok(names)
}

/// Makes root the only owner of a file again.
pub(super) fn revoke(path: &Path) -> Result<()> {
    chown(path, Some((0, 0)), 0o600)
}

/// Makes the agent's own user the owner of a file again.
pub(super) fn take_back(path: &Path) -> Result<()> {
    let own = (nix::unistd::Uid::effective().as_raw(), nix::unistd::Gid::effective().as_raw());
    std::os::unix::fs::chown(path, Some(own.0), Some(own.1)).map_err(failed("change the owner of", path))
}

/// Makes a file that is only read from now on readable by every user with a path to it.
pub(super) fn freeze(path: &Path) -> Result<()> {
    let root = nix::unistd::Uid::effective().is_root().then_some((0, 0));
    chown(path, root, 0o444)
}

/// Lets this user change a file that every user with a path to it reads.
pub(super) fn lend(path: &Path, user: Option<&RunAs>) -> Result<()> {
    chown(path, user.map(|u| (u.uid, u.gid)), 0o644)
}

/// Creates a directory, and its parents, that only the agent can traverse.
pub(super) fn ensure_private_folder(path: &Path) -> Result<()> {
    ensure_folder(path)?;
    chown(path, None, 0o700)
}

/// Creates a directory, and its parents, that only this group can traverse.
pub(super) fn ensure_folder_for(path: &Path, group: Option<&RunAs>) -> Result<()> {
    ensure_folder(path)?;
    match group {
        Some(group) => chown(path, Some((0, group.gid)), 0o710),
        None => Ok(()),
    }
}

/// Lets only QEMU's user read and write a file.
pub(super) fn give(path: &Path, owner: Option<&RunAs>) -> Result<()> {
    chown(path, owner.map(|o| (o.uid, o.gid)), 0o600)
}

/// Lets QEMU's group read a file, beside the user of another host's QEMU, which owns it and writes to it.
pub(super) fn share(path: &Path, reader: Option<&RunAs>) -> Result<()> {
    let Some(reader) = reader else { return Ok(()) };
    std::os::unix::fs::chown(path, None, Some(reader.gid)).map_err(failed("change the owner of", path))?;
    chown(path, None, 0o640)
}

/// Lets QEMU's group read a file. QEMU's user does not own it, so it cannot make it writable.
pub(super) fn grant(path: &Path, reader: Option<&RunAs>) -> Result<()> {
    chown(path, reader.map(|r| (0, r.gid)), 0o440)
}

fn chown(path: &Path, owner: Option<(u32, u32)>, mode: u32) -> Result<()> {
    if let Some((uid, gid)) = owner {
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).map_err(failed("change the owner of", path))?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(failed("change the mode of", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_in_one_step_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("a.json");
        // The leftover of a crash in the middle of an earlier write.
        fs::write(unfinished(&path), b"half").expect("leftover");
        write_json(&path, &serde_json::json!({"n": 1}), 0o600).expect("first");
        write_json(&path, &serde_json::json!({"n": 2}), 0o600).expect("second");
        let value: serde_json::Value = read_json(&path).expect("read").expect("there").expect("JSON");
        assert_eq!(value["n"], 2);
        assert_eq!(names(folder.path()).expect("list"), ["a.json"]);
        assert_eq!(fs::metadata(&path).expect("metadata").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_until_the_next_boot_is_replaced_in_one_step_too() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("a.json");
        fs::write(unfinished(&path), b"half").expect("leftover");
        for n in [1, 2] {
            write_json_until_boot(&path, &serde_json::json!({"n": n}), 0o600).expect("written");
        }
        let value: serde_json::Value = read_json(&path).expect("read").expect("there").expect("JSON");
        assert_eq!(value["n"], 2);
        assert_eq!(names(folder.path()).expect("list"), ["a.json"]);
        assert_eq!(fs::metadata(&path).expect("metadata").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_file_is_told_apart_from_a_missing_one() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("a.json");
        assert!(read_json::<serde_json::Value>(&path).expect("read").is_none());
        fs::write(&path, b"{").expect("damage");
        assert!(read_json::<serde_json::Value>(&path).expect("read").expect("there").is_err());
    }

    #[test]
    fn a_folder_behind_a_link_overlaps_with_those_that_do_not_exist_yet() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::create_dir(&real).expect("a folder");
        std::os::unix::fs::symlink(&real, &link).expect("a link");
        let overlap = |one: &Path, other: &Path| overlap(&real_path(one), &real_path(other));
        assert!(overlap(&link.join("a/b"), &real.join("a")) && overlap(&real, &link.join("a")));
        assert!(!overlap(&link.join("a"), &real.join("ab")), "another name");
        assert!(!overlap(&real, &folder.path().join("other")));
    }
}
