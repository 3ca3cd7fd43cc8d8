//! The files that an import extracts: all of them, or none.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// New files in a folder. They are removed unless the import is complete.
pub(super) struct Extraction {
    folder: PathBuf,
    /// Whether the folder is new too.
    is_new: bool,
    files: Vec<PathBuf>,
    is_complete: bool,
}

impl Extraction {
    /// Makes the folder, which has to have room for this many bytes.
    pub(super) fn begin(folder: &Path, size: u64) -> anyhow::Result<Self> {
        let is_new = !folder.exists();
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let extraction = Self { folder: folder.to_owned(), is_new, files: Vec::new(), is_complete: false };
        let about = || format!("looking at the space of {}", folder.display());
        let stat = nix::sys::statvfs::statvfs(folder).with_context(about)?;
        let free = stat.blocks_available().saturating_mul(stat.fragment_size());
        ensure!(
            size <= free,
            "the disks of the appliance have {} MiB, and {} has {} MiB free: give a folder elsewhere with --out",
            size.div_ceil(1 << 20),
            folder.display(),
            free >> 20
        );
        Ok(extraction)
    }

    /// Makes a file of this name, which has no folder.
    pub(super) fn create(&mut self, name: &str) -> anyhow::Result<File> {
        let path = self.folder.join(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.with_context(|| format!("creating {}", path.display()))?;
        self.files.push(path);
        Ok(file)
    }

    /// Keeps the files.
    pub(super) fn complete(mut self) {
        self.is_complete = true;
    }
}

impl Drop for Extraction {
    fn drop(&mut self) {
        if self.is_complete {
            return;
        }
        for file in &self.files {
            if let Err(error) = fs::remove_file(file) {
                tracing::warn!(%error, file = %file.display(), "a file of an import that failed remains");
            }
        }
        if self.is_new {
            // It stays if it has something else by now.
            let _ = fs::remove_dir(&self.folder);
        }
    }
}
