//! The guests the tests boot, built from Debian packages and cached: no image is downloaded.

pub mod cpio;
pub mod debian;
pub mod disk_image;
pub mod kernel;
pub mod small;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::process;

/// An image ready to be served.
#[derive(Debug, Clone)]
pub struct GuestImage {
    /// The qcow2 file.
    pub path: PathBuf,
    /// Its SHA-256, in lower-case hex.
    pub sha256: String,
}

impl GuestImage {
    /// An image with the SHA-256 of the file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn at(path: PathBuf) -> Result<Self> {
        let sums = process::run(
            std::process::Command::new("sha256sum").arg("--").arg(&path),
            Duration::from_secs(60),
        )?
        .success()?;
        let sha256 = sums.split_whitespace().next().unwrap_or_default().to_owned();
        Ok(Self { path, sha256 })
    }
}
