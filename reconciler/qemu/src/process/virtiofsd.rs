//! virtiofsd, the program that serves a folder of the host to one machine: one process for each share, started before QEMU and in the
//! same cgroup.
//!
//! QEMU is its only client. It ends when QEMU's connection to it is closed, however QEMU ended; a machine that has lost it does not get
//! another one. It runs as root, held back by [`LentFolder`] and by its own sandbox: namespaces of processes, mounts and network, with
//! the folder as its root directory, few capabilities and a filter of system calls.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use super::launch::{self, Cell};
use super::lent_folder::LentFolder;
use super::scan::programs;
use super::vfork::Child;
use super::{LaunchError, ProcessError, ProcessIdentity, RunAs, helper};
use crate::machine::{MachinePaths, SharedFolder, VirtiofsFiles};

/// The file name in the first argument of every such process.
const NAME: &str = "virtiofsd";
/// The options that QEMU's own program and its successor have in common. Without these capabilities no device files and no files
/// with capabilities can be created, and a write to a set-user-ID file clears the bit.
const OPTIONS: &str = "sandbox=namespace,cache=auto,announce_submounts,modcaps=-mknod:-setfcap:-fsetid";

/// Starts one for each folder, with sockets that accept connections of this user at once. Messages go to `stderr`.
///
/// *Errors*: none is left behind.
pub(super) fn start(
    files: &VirtiofsFiles,
    paths: &MachinePaths,
    user: Option<RunAs>,
    stderr: &File,
    cell: &Cell<'_>,
) -> Result<Vec<Child>, LaunchError> {
    let mut started = Vec::new();
    for (number, folder) in files.folders.iter().enumerate() {
        match start_one(&files.program, folder, (&paths.share(number), user), stderr, (paths, cell)) {
            Ok(child) => started.push(child),
            Err(error) => {
                helper::end_now(started);
                return Err(error);
            }
        }
    }
    Ok(started)
}

fn start_one(
    program: &Path,
    folder: &SharedFolder,
    (socket, user): (&Path, Option<RunAs>),
    stderr: &File,
    (paths, cell): (&MachinePaths, &Cell<'_>),
) -> Result<Child, LaunchError> {
    // A missing folder would look like a missing program.
    std::fs::metadata(&folder.path)
        .map_err(|source| LaunchError::Prepare { path: folder.path.clone(), source })?;
    let failed = |source| LaunchError::Prepare { path: socket.to_owned(), source };
    let listener = helper::listen(socket, user).map_err(failed)?;
    let lent = LentFolder::new(&folder.path, folder.read_only).map_err(failed)?;
    let options = format!("source={},{OPTIONS}", folder.path.display());
    let args = [format!("--fd={}", listener.as_raw_fd()), "-o".to_owned(), options];
    let name = name_in(&paths.directory);
    let cell = Cell { name: Some(&name), folder: Some(&lent), hidden: Vec::new(), ..cell.clone() };
    let stderr = stderr.try_clone().map_err(failed)?;
    launch::spawn(program, &args, stderr, &[listener], &cell)
}

/// The first argument, which distinguishes those of one machine from every other: a program that gets an open socket has no argument
/// with a path of the machine.
fn name_in(directory: &Path) -> String {
    directory.join(NAME).to_string_lossy().into_owned()
}

/// Returns the processes that serve the machine with this directory. Each consists of two, of which one waits for the other.
fn find(directory: &Path) -> Result<Vec<ProcessIdentity>, ProcessError> {
    let name = name_in(directory);
    let found = programs(|program| program == NAME)?;
    // Another user can only imitate the argument.
    let ours = found
        .into_iter()
        .filter(|program| program.uid == Uid::effective().as_raw() && program.argv.first() == Some(&name));
    Ok(ours.map(|program| program.identity).collect())
}

/// Ends those of the machine with this directory, if some run.
pub(super) async fn end(directory: &Path) -> Result<(), ProcessError> {
    let directory: PathBuf = directory.to_owned();
    helper::end(move || find(&directory)).await
}
