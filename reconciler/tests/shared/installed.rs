//! Control planes for tests that need hundreds of them: each is a copy of one in which the definitions were installed
//! once. Opening a copy takes a tenth of the time.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use berth_apiserver::{Server, ServerConfig};
use berth_engine::RuntimeClock;
use kube::Client;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::setup;

/// The files of the original.
static INSTALLED: OnceCell<Vec<(OsString, Vec<u8>)>> = OnceCell::const_new();

/// A control plane with berth's definitions.
pub(crate) struct Copy {
    pub(crate) server: Server,
    /// A client of its administrator.
    pub(crate) admin: Client,
    /// The clock that all components share.
    pub(crate) clock: Arc<RuntimeClock>,
    /// Its database.
    pub(crate) folder: TempDir,
}

/// Opens the next copy.
pub(crate) async fn copy() -> Copy {
    let files = INSTALLED.get_or_init(make_original).await;
    let (folder, clock) = (folder(), setup::clock());
    for (name, bytes) in files {
        // Keys that others may read are refused.
        let mut file = OpenOptions::new();
        let file = file.write(true).create_new(true).mode(0o600).open(folder.path().join(name));
        file.and_then(|mut file| file.write_all(bytes)).expect("written");
    }
    // Another seed than the installation's, whose first uids are taken.
    let config = ServerConfig { clock: clock.clone(), seed: Some(2), ..config(&folder) };
    let server = Server::open(config).await.expect("the copy opens");
    let admin = Client::new(server.service(), "default");
    Copy { server, admin, clock, folder }
}

async fn make_original() -> Vec<(OsString, Vec<u8>)> {
    let folder = folder();
    let (server, _) = setup::install(config(&folder)).await;
    server.shutdown().await;
    let entries = std::fs::read_dir(folder.path()).expect("readable").map(|entry| entry.expect("readable"));
    let files = entries.filter(|entry| entry.path().is_file());
    files.map(|file| (file.file_name(), std::fs::read(file.path()).expect("readable"))).collect()
}

/// A folder in memory where the system has one: the tests crash berth, not the system, and need no durable disk.
fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary folder")
}

/// In a directory, but without the writer thread: the clock of a test jumps while a thread works.
fn config(folder: &TempDir) -> ServerConfig {
    ServerConfig { storage: ServerConfig::in_directory(folder.path()).storage, ..ServerConfig::in_memory() }
}
