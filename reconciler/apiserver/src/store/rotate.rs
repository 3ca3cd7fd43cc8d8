//! Replacing the key Secrets are encrypted with.

use std::path::{Path, PathBuf};

use super::keyring::{KEY_FILE, retired};
use super::log::Log;
use super::{DATABASE, OpenError, lock_directory};

/// What a rotation did.
#[derive(Debug)]
pub struct Rotated {
    /// The key file, which holds the new key.
    pub key: PathBuf,
    /// The replaced key: backups made before need it.
    pub retired: PathBuf,
}

/// Encrypts every Secret of a state directory, its history included, under a new key.
///
/// Guarantees: interrupted at any point, the directory opens: until every row is under the new key, the file holds both.
///
/// # Errors
/// A running server, and everything a server would not open; see [`OpenError`].
pub fn rotate_key(directory: &Path) -> Result<Rotated, OpenError> {
    let path = directory.join(KEY_FILE);
    let failed = |error: std::io::Error| OpenError::Key { path: path.clone(), detail: error.to_string() };
    if !directory.join(DATABASE).is_file() {
        return Err(failed(std::io::Error::other("there is no database beside it")));
    }
    let _lock = lock_directory(directory)?;
    let old = Log::open(directory)?.keys();
    let both = old.with_new().map_err(failed)?;
    both.write(&path).map_err(failed)?;
    // Opening puts every row under the newest key.
    drop(Log::open(directory)?);
    let retired = retired(directory, old.id());
    old.write(&retired).map_err(failed)?;
    both.newest().and_then(|newest| newest.write(&path)).map_err(failed)?;
    Ok(Rotated { key: path, retired })
}
