//! Folders of work that serves a disk at a socket: a backup, a restore, reads of single files, an import into Ceph.
//!
//! The program at the socket ends with its client. One whose caller was killed before it had connected waits for good, with the files of
//! the disk open: the next agent ends it. The kernel cannot do that by a signal at the death of the parent, which is that of the thread that
//! started the program.

use std::fs;
use std::path::Path;

use berth_qemu::process::end_nbd_servers;

use super::files::failed;
use crate::Result;

/// Removes the folder of a process that has ended, and ends the programs that serve in it. Blocking.
pub(super) fn remove(folder: &Path) -> Result<()> {
    end_programs(folder);
    fs::remove_dir_all(folder).map_err(failed("remove", folder))
}

/// Ends the programs that serve in a folder. Blocking.
pub(super) fn end_programs(folder: &Path) {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    if let Err(error) = end_nbd_servers(&folder) {
        tracing::warn!(folder = %folder.display(), %error, "programs of ended work not looked for");
    }
}
