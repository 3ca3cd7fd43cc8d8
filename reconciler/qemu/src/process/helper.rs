//! Processes that serve one machine beside QEMU: each listens at a socket for QEMU, its only client, and ends when QEMU has ended.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::pidfd::PidFd;
use super::vfork::Child;
use super::{ProcessError, ProcessIdentity, RunAs, identity};

/// Each has nothing to finish, and ends within a few milliseconds.
const STOP: Duration = Duration::from_secs(5);

/// Opens the socket, to which this user alone can connect.
pub(super) fn listen(socket: &Path, user: Option<RunAs>) -> io::Result<File> {
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

/// Ends the processes that `find` finds: QEMU may have been started without success, or not at all.
pub(super) async fn end(
    find: impl FnOnce() -> Result<Vec<ProcessIdentity>, ProcessError> + Send + 'static,
) -> Result<(), ProcessError> {
    let found = tokio::task::spawn_blocking(find).await;
    let found = found.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
    for process in found {
        end_one(&process).await?;
    }
    Ok(())
}

async fn end_one(process: &ProcessIdentity) -> Result<(), ProcessError> {
    let Some(fd) = PidFd::open(process)? else { return Ok(()) };
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        if !fd.signal(process.pid, signal)? {
            break;
        }
        if let Ok(ended) = tokio::time::timeout(STOP, fd.ended(process.pid)).await {
            ended?;
            break;
        }
    }
    match identity::is_alive(process)? {
        true => Err(ProcessError::Unkillable { pid: process.pid, after: STOP }),
        false => Ok(()),
    }
}

/// Reaps it when it ends. It outlives the caller, and is then reaped by the system.
pub(super) fn reap_later(child: Child) {
    let pid = child.pid();
    tokio::spawn(async move {
        if let Ok(Some(process)) = identity::of(pid)
            && let Ok(Some(fd)) = PidFd::open(&process)
        {
            let _ = fd.ended(pid).await;
        }
        identity::reap(pid);
    });
}

/// Ends processes of which the machine has not come into being.
pub(super) fn end_now(children: Vec<Child>) {
    for mut child in children {
        let _ = child.kill();
        let _ = child.wait();
    }
}
