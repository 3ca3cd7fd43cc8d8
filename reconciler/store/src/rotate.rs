//! Rotation of the key with which Secrets are encrypted.

use std::path::{Path, PathBuf};

use crate::directory::{DATABASE, lock_directory, refuse_unfinished};
use crate::error::OpenError;
use crate::keyring::{KEY_FILE, retire};
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
    rotate_key_reaching(directory, &mut |_| ())
}

/// Reports every step to `reached`, for tests that end there.
pub(crate) fn rotate_key_reaching(
    directory: &Path,
    reached: &mut dyn FnMut(&str),
) -> Result<Rotated, OpenError> {
    let path = directory.join(KEY_FILE);
    let failed = |error: std::io::Error| OpenError::Key { path: path.clone(), detail: error.to_string() };
    if !directory.join(DATABASE).is_file() {
        return Err(failed(std::io::Error::other("there is no database beside it")));
    }
    let _lock = lock_directory(directory)?;
    refuse_unfinished(directory)?;
    // Opening the database encrypts every row with the newest key, also after a rotation that was interrupted. The
    // other keys of the file are needed by backups only: with each interrupted rotation there would be one more.
    let old = Log::open(directory)?.keys();
    let retired = retire(directory, &old).map_err(failed)?;
    reached("retired");
    let both = old.newest().and_then(|newest| newest.with_new()).map_err(failed)?;
    both.write(&path).map_err(failed)?;
    reached("added");
    drop(Log::open(directory)?);
    reached("sealed");
    both.newest().and_then(|newest| newest.write(&path)).map_err(failed)?;
    Ok(Rotated { key: path, retired })
}
