//! swtpm, the program that emulates the TPM of one machine: started before QEMU, as the same user and in the same cgroup.
//!
//! QEMU is its only client. It ends when QEMU's connection to it is closed, however QEMU ended. The memory of the TPM is in a
//! directory of the machine's, written at each change.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::landlock::{Reach, Ruleset};
use super::launch::{self, Cell};
use super::pidfd::PidFd;
use super::scan::programs;
use super::{LaunchError, ProcessError, ProcessIdentity, RunAs, identity};
use crate::machine::TpmFiles;

/// It has nothing to finish, and ends within a few milliseconds.
const STOP: Duration = Duration::from_secs(5);
/// The configuration of OpenSSL, which libtpms computes with.
const SETTINGS: [&str; 3] = ["/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf", "/etc/crypto-policies"];

/// Prepares the TPM's directory for this user. The user owns what is in it, and may have filled it with links.
pub(super) fn prepare(files: &TpmFiles, user: Option<RunAs>) -> Result<(), LaunchError> {
    let failed = |source| LaunchError::Prepare { path: files.state.clone(), source };
    std::fs::create_dir_all(&files.state).map_err(failed)?;
    std::fs::set_permissions(&files.state, PermissionsExt::from_mode(0o700)).map_err(failed)?;
    let Some(user) = user else { return Ok(()) };
    chown(&files.state, Some(user.uid), Some(user.gid)).map_err(failed)?;
    for entry in std::fs::read_dir(&files.state).map_err(failed)? {
        lchown(entry.map_err(failed)?.path(), Some(user.uid), Some(user.gid)).map_err(failed)?;
    }
    Ok(())
}

/// Allows what it opens beside the files of every program.
pub(super) fn allow(ruleset: &Ruleset, files: &TpmFiles) -> io::Result<()> {
    for path in SETTINGS {
        ruleset.allow(Path::new(path), Reach::Read)?;
    }
    ruleset.allow(&files.state, Reach::Own)
}

/// Starts it with a socket that accepts connections at once. Messages go to `stderr`.
pub(super) fn start(
    files: &TpmFiles,
    socket: &Path,
    stderr: File,
    cell: &Cell<'_>,
) -> Result<Child, LaunchError> {
    let listener = listen(socket, cell.run_as)
        .map_err(|source| LaunchError::Prepare { path: socket.to_owned(), source })?;
    let control = format!("type=unixio,fd={}", listener.as_raw_fd());
    let args = ["socket", "--tpm2", "--terminate", "--tpmstate", &state(&files.state), "--ctrl", &control];
    launch::spawn(&files.program, &args.map(str::to_owned), stderr, &[listener], cell)
}

fn listen(socket: &Path, user: Option<RunAs>) -> io::Result<File> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, PermissionsExt::from_mode(0o600))?;
    if let Some(user) = user {
        chown(socket, Some(user.uid), Some(user.gid))?;
    }
    Ok(File::from(OwnedFd::from(listener)))
}

/// The argument that distinguishes it from every other swtpm.
fn state(directory: &Path) -> String {
    format!("dir={},mode=0600", directory.display())
}

/// Returns the swtpm of this directory, of the user that owns the directory.
fn find(directory: &Path) -> Result<Option<ProcessIdentity>, ProcessError> {
    let owner = match std::fs::metadata(directory) {
        Ok(metadata) => metadata.uid(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ProcessError::Read { path: directory.to_owned(), source }),
    };
    let argument = state(directory);
    let found = programs(|name| name == "swtpm")?;
    let ours = found.into_iter().find(|p| p.uid == owner && p.argv.contains(&argument));
    Ok(ours.map(|program| program.identity))
}

/// Ends the swtpm of this directory, if one runs: QEMU may have been started without success, or not at all.
pub(super) async fn end(directory: &Path) -> Result<(), ProcessError> {
    let directory: PathBuf = directory.to_owned();
    let found = tokio::task::spawn_blocking(move || find(&directory)).await;
    let found = found.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
    let Some(process) = found else { return Ok(()) };
    let Some(fd) = PidFd::open(&process)? else { return Ok(()) };
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        if !fd.signal(process.pid, signal)? {
            break;
        }
        if let Ok(ended) = tokio::time::timeout(STOP, fd.ended(process.pid)).await {
            ended?;
            break;
        }
    }
    match identity::is_alive(&process)? {
        true => Err(ProcessError::Unkillable { pid: process.pid, after: STOP }),
        false => Ok(()),
    }
}

/// Reaps it when it ends. It outlives the caller, and is then reaped by the system.
pub(super) fn reap_later(child: Child) {
    let pid = i32::try_from(child.id()).expect("process numbers are positive ints");
    tokio::spawn(async move {
        if let Ok(Some(process)) = identity::of(pid)
            && let Ok(Some(fd)) = PidFd::open(&process)
        {
            let _ = fd.ended(pid).await;
        }
        identity::reap(pid);
    });
}
