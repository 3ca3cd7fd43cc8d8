//! A running dnsmasq of one bridge: found by its pid file and its command line, signalled through a pidfd, so that a
//! signal never reaches a process that has reused the pid.
#![allow(
    unsafe_code,
    reason = "pidfd_open and pidfd_send_signal have no safe wrapper among our dependencies"
)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::super::Result;
use super::{DNSMASQ, read};

/// dnsmasq has nothing to finish and ends within a few milliseconds.
const STOP: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Daemon(OwnedFd);

/// The argument that distinguishes it from every other dnsmasq.
pub(super) fn argument(conf: &Path) -> String {
    format!("--conf-file={}", conf.display())
}

impl Daemon {
    /// Returns the one with this configuration, which has written its process id to this file.
    pub(super) fn find(conf: &Path, pid_file: &Path) -> Result<Option<Self>> {
        let Ok(pid) = read(pid_file)?.trim().parse::<i32>() else {
            return Ok(None);
        };
        if pid <= 1 {
            return Ok(None);
        }
        // SAFETY: takes two integers and no pointer.
        let number = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let Ok(number) = i32::try_from(number) else {
            return Ok(None);
        };
        if number < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ESRCH) => Ok(None),
                _ => Err(DNSMASQ.failed(format!("cannot open process {pid}: {error}"))),
            };
        }
        // SAFETY: the kernel has just created this descriptor; it has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        // Read after the pidfd was opened: from then on the pid cannot be reused.
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let ours = command.split(|b| *b == 0).any(|a| a == argument(conf).as_bytes());
        Ok(ours.then_some(Self(fd)))
    }

    /// Returns the pidfd, which is readable once the process has ended.
    pub(super) fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Makes dnsmasq read its hosts or its names again.
    pub(super) fn reload(&self) -> Result<()> {
        self.signal(Signal::SIGHUP)
    }

    /// Terminates dnsmasq, and returns when it has ended.
    pub(super) fn stop(self) -> Result<()> {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            self.signal(signal)?;
            let timeout = PollTimeout::try_from(STOP).expect("seconds fit milliseconds in an int");
            let mut ended = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            if poll(&mut ended, timeout).is_ok_and(|n| n > 0) {
                return Ok(());
            }
        }
        Err(DNSMASQ.failed("it does not end"))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open for as long as self; a null siginfo means "as kill(2)".
        let result = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal as i32, no_info, 0)
        };
        let error = io::Error::last_os_error();
        if result == 0 || error.raw_os_error() == Some(libc::ESRCH) {
            return Ok(());
        }
        Err(DNSMASQ.failed(format!("cannot signal it: {error}")))
    }
}
