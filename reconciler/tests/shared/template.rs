//! The files of a control plane that was set up once, of which others are made.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use berth_apiserver::ServerConfig;
use tempfile::TempDir;

/// The names and the contents of the files.
pub(crate) struct Template(Vec<(OsString, Vec<u8>)>);

impl Template {
    /// Reads the files of a control plane that was shut down.
    pub(crate) fn read(folder: &Path) -> Self {
        let entries = fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable"));
        let files = entries.filter(|entry| entry.path().is_file());
        Self(files.map(|file| (file.file_name(), fs::read(file.path()).expect("readable"))).collect())
    }

    /// Writes them into another folder, which is created if it does not exist.
    pub(crate) fn write(&self, folder: &Path) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).expect("created");
        for (name, bytes) in &self.0 {
            // Keys that others may read are refused.
            let mut file = OpenOptions::new();
            let file = file.write(true).create_new(true).mode(0o600).open(folder.join(name));
            file.and_then(|mut file| file.write_all(bytes)).expect("written");
        }
    }
}

/// A folder in memory where the system has one: the tests crash berth, not the system, and need no durable disk.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder")
}

/// In a directory, but without the writer thread: the clock of a test jumps while a thread works.
pub(crate) fn config(folder: &Path) -> ServerConfig {
    ServerConfig { storage: ServerConfig::in_directory(folder).storage, ..ServerConfig::in_memory() }
}
