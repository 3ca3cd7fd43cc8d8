//! The files that machines open, by path; only their sizes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_qemu::fake::ImageFiles;
use berth_qemu::machine::Format;

#[derive(Clone, Debug, Default)]
pub(super) struct FakeFiles {
    sizes: Arc<Mutex<BTreeMap<PathBuf, u64>>>,
}

impl FakeFiles {
    fn sizes(&self) -> MutexGuard<'_, BTreeMap<PathBuf, u64>> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, path: &Path, size: u64) {
        self.sizes().insert(path.to_owned(), size);
    }

    /// The files that hold a saved state.
    pub(super) fn saved_states(&self) -> Vec<String> {
        let sizes = self.sizes();
        let states = sizes.keys().filter(|path| path.ends_with("saved.state"));
        states.map(|path| path.display().to_string()).collect()
    }

    /// The number of files with this name.
    pub(super) fn count(&self, name: &str) -> usize {
        self.sizes().keys().filter(|path| path.ends_with(name)).count()
    }

    pub(super) fn remove(&self, path: &Path) {
        self.sizes().remove(path);
    }

    pub(super) fn size_of(&self, path: &Path) -> Option<u64> {
        self.sizes().get(path).copied()
    }
}

impl ImageFiles for FakeFiles {
    fn size(&self, path: &Path, _: Format) -> io::Result<u64> {
        self.size_of(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn create(&self, path: &Path, bytes: u64) -> io::Result<()> {
        self.put(path, bytes);
        Ok(())
    }

    fn grow(&self, path: &Path, _: Format, bytes: u64) -> io::Result<()> {
        match self.sizes().get_mut(path) {
            Some(size) => {
                *size = bytes.max(*size);
                Ok(())
            }
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}
