//! The files that an import extracts: all of them, or none.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::unistd::linkat;

/// New files in a folder. They have no names before all are whole, so that an import that is killed leaves none, and they are
/// removed unless the import is complete.
pub(super) struct Extraction {
    folder: PathBuf,
    /// Whether the folder is new too.
    is_new: bool,
    unnamed: Vec<(File, PathBuf)>,
    named: Vec<PathBuf>,
    is_complete: bool,
}

impl Extraction {
    /// Makes the folder, which has to have room for this many bytes, and no files of these names.
    pub(super) fn begin(folder: &Path, size: u64, names: &[&str]) -> anyhow::Result<Self> {
        for path in names.iter().map(|name| folder.join(name)) {
            ensure!(
                fs::symlink_metadata(&path).is_err(),
                "{} exists: remove it, or give another folder with --out",
                path.display()
            );
        }
        let is_new = !folder.exists();
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let (folder, unnamed, named) = (folder.to_owned(), Vec::new(), Vec::new());
        let extraction = Self { folder, is_new, unnamed, named, is_complete: false };
        let folder = extraction.folder.display();
        let stat = nix::sys::statvfs::statvfs(&extraction.folder)
            .with_context(|| format!("looking at the space of {folder}"))?;
        let free = stat.blocks_available().saturating_mul(stat.fragment_size());
        ensure!(
            size <= free,
            "the disks of the appliance have {} MiB, and {folder} has {} MiB free: give a folder elsewhere with --out",
            size.div_ceil(1 << 20),
            free >> 20
        );
        Ok(extraction)
    }

    /// Makes the file that gets this name, which has no folder.
    pub(super) fn create(&mut self, name: &str) -> anyhow::Result<File> {
        let path = self.folder.join(name);
        let about = || format!("creating {}", path.display());
        let mut options = OpenOptions::new();
        options.write(true);
        match options.clone().custom_flags(OFlag::O_TMPFILE.bits()).open(&self.folder) {
            Ok(file) => {
                let kept = file.try_clone().with_context(about)?;
                self.unnamed.push((kept, path));
                Ok(file)
            }
            // Some file systems (NFS) have no files without names.
            Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => {
                let file = options.create_new(true).open(&path).with_context(about)?;
                self.named.push(path);
                Ok(file)
            }
            Err(error) => Err(error).with_context(about),
        }
    }

    /// Gives the files their names, which no other file may have by now.
    pub(super) fn name_files(&mut self) -> anyhow::Result<()> {
        for (file, path) in self.unnamed.drain(..) {
            let link = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(AT_FDCWD, link.as_str(), AT_FDCWD, &path, AtFlags::AT_SYMLINK_FOLLOW)
                .with_context(|| format!("creating {}", path.display()))?;
            self.named.push(path);
        }
        Ok(())
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
        for file in &self.named {
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
