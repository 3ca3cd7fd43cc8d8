//! A temporary folder that programs of other users can traverse, removed in every case.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::undo::{self, Undo};
use crate::{namespace, report};

/// The number of attempts to remove a folder that another process still writes to.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// The folder. Dropping it removes it.
#[derive(Debug)]
pub struct Scratch {
    folder: TempDir,
    undo: Undo,
}

impl Scratch {
    /// Creates a folder among this machine's temporary files.
    pub fn new() -> Result<Self> {
        Self::within(&std::env::temp_dir(), &format!("{}{}-", namespace::PREFIX, std::process::id()))
    }

    /// Creates a folder in `parent`, with a name that begins with `prefix`.
    pub fn within(parent: &Path, prefix: &str) -> Result<Self> {
        undo::making(|| {
            let folder = tempfile::Builder::new()
                .prefix(prefix)
                .tempdir_in(parent)
                .with_context(|| format!("making a folder in {}", parent.display()))?;
            let doomed = folder.path().to_owned();
            // A signal runs no destructors.
            let undo = Undo::later(move || remove(&doomed));
            // Like /var/lib: QEMU runs as another user and must be able to traverse it.
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
            Ok(Self { folder, undo })
        })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Keeps the folder.
    pub fn keep(self) -> PathBuf {
        self.undo.forget();
        self.folder.keep()
    }
}

/// Removes a folder. A process or thread that is ending may still write to it.
fn remove(folder: &Path) {
    let mut last = None;
    for _ in 0..TRIES {
        match fs::remove_dir_all(folder) {
            Ok(()) => return,
            Err(error) if error.kind() == ErrorKind::NotFound && !folder.exists() => return,
            Err(error) => last = Some(error),
        }
        std::thread::sleep(PAUSE);
    }
    if let Some(error) = last {
        report::note(&format!("removing {}: {error}", folder.display()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_folder_goes_although_something_still_writes_to_it() {
        let scratch = Scratch::new().expect("a folder");
        let path = scratch.keep();
        let (written, over) = (path.clone(), Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&over);
        let writer = std::thread::spawn(move || {
            for number in 0..300 {
                let _ = fs::create_dir_all(written.join(format!("{number}/deep")));
                std::thread::sleep(Duration::from_millis(1));
            }
            ends.store(true, Ordering::SeqCst);
        });
        while !over.load(Ordering::SeqCst) {
            remove(&path);
        }
        writer.join().expect("it ends");
        remove(&path);
        assert!(!path.exists());
    }
}
