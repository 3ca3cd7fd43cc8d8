//! Rotation of the key with which Secrets are encrypted.

use std::path::{Path, PathBuf};

use crate::directory::{DATABASE, lock_directory};
use crate::error::OpenError;
use crate::keyring::{KEY_FILE, retired};
use crate::log::Log;

/// The result of a rotation.
#[derive(Debug)]
pub struct Rotated {
    /// The key file, which contains the new key.
    pub key: PathBuf,
    /// The file of the replaced key, which earlier backups need.
    pub retired: PathBuf,
}

/// Encrypts every Secret of a state directory, its history included, under a new key.
///
/// Guarantees: after an interruption at any point the directory opens, because the file contains both keys
/// until every row is encrypted with the new one.
///
/// # Errors
/// A server is running, or the directory cannot be opened; see [`OpenError`].
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
    // Opening the database encrypts every row with the newest key.
    drop(Log::open(directory)?);
    let retired = retired(directory, old.id());
    old.write(&retired).map_err(failed)?;
    both.newest().and_then(|newest| newest.write(&path)).map_err(failed)?;
    Ok(Rotated { key: path, retired })
}
