//! Signals and waiting through pidfds: a pidfd always refers to the process that it was opened for.
#![allow(
    unsafe_code,
    reason = "pidfd_open and pidfd_send_signal have no safe wrapper among our dependencies"
)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::sys::signal::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::vfork::Child;
use super::{ProcessError, ProcessIdentity, identity};

#[derive(Debug)]
pub(super) struct PidFd(OwnedFd);

impl PidFd {
    /// Returns None if the process has ended.
    pub(super) fn open(process: &ProcessIdentity) -> Result<Option<Self>, ProcessError> {
        if !identity::is_alive(process)? {
            return Ok(None);
        }
        let Some(fd) = Self::of_pid(process.pid)? else { return Ok(None) };
        // The pid may have been reused before the open: from here on it cannot be.
        Ok(identity::is_alive(process)?.then_some(fd))
    }

    /// Opens a child that nobody has waited for: its pid is not reused until then, also if it has ended.
    pub(super) fn of_child(child: &Child) -> Result<Self, ProcessError> {
        let pid = child.pid();
        let gone = || ProcessError::Open { pid, source: io::Error::from_raw_os_error(libc::ESRCH) };
        Self::of_pid(pid)?.ok_or_else(gone)
    }

    fn of_pid(pid: i32) -> Result<Option<Self>, ProcessError> {
        // SAFETY: takes two integers and no pointer; a negative result is handled below.
        let number = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if number < 0 {
            let source = io::Error::last_os_error();
            if source.raw_os_error() == Some(libc::ESRCH) {
                return Ok(None);
            }
            return Err(ProcessError::Open { pid, source });
        }
        let number = i32::try_from(number).expect("descriptors are ints");
        // SAFETY: the kernel has just created this descriptor; it has no other owner.
        Ok(Some(Self(unsafe { OwnedFd::from_raw_fd(number) })))
    }

    /// Returns false if the process has ended.
    pub(super) fn signal(&self, pid: i32, signal: Signal) -> Result<bool, ProcessError> {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open for as long as self; a null siginfo means "as kill(2)".
        let result = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal as i32, no_info, 0)
        };
        if result == 0 {
            return Ok(true);
        }
        let source = io::Error::last_os_error();
        if source.raw_os_error() == Some(libc::ESRCH) {
            return Ok(false);
        }
        Err(ProcessError::Signal { pid, source })
    }

    /// Waits until the process has ended. Cancel safe.
    pub(super) async fn ended(&self, pid: i32) -> Result<(), ProcessError> {
        let failed = |source| ProcessError::Open { pid, source };
        let own = self.0.try_clone().map_err(failed)?;
        // SAFETY: the descriptor is owned by the AsyncFd, which deregisters it before it is closed.
        let registered = unsafe { AsyncFd::register_with_interest(own, Interest::READABLE) };
        let fd = registered.map_err(|e| failed(e.into()))?;
        fd.readable().await.map(|_| ()).map_err(failed)
    }
}
