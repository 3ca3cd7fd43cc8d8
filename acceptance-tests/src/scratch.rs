//! A temporary folder that programs of other users can get through, gone whatever happens.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Result;
use tempfile::TempDir;

use crate::namespace;
use crate::undo::Undo;

/// The folder. Dropping it removes it.
#[derive(Debug)]
pub struct Scratch {
    folder: TempDir,
    _undo: Undo,
}

impl Scratch {
    /// Makes one.
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(&format!("{}{}-", namespace::PREFIX, std::process::id()))
            .tempdir()?;
        // As /var/lib: QEMU runs as another user and must get through.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let doomed = folder.path().to_owned();
        // A signal runs no destructors.
        let undo = Undo::later(move || {
            let _ = fs::remove_dir_all(doomed);
        });
        Ok(Self { folder, _undo: undo })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}
