//! From a prepared command to a process of its own: session, cgroup, user.
#![allow(unsafe_code, reason = "what happens between fork and exec")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{LaunchError, RunAs};

/// What the child does to itself before it becomes QEMU. Everything is ready-made: after fork only system calls
/// are allowed, no allocation and no locks.
struct Child0 {
    cgroup_entrances: Vec<RawFd>,
    /// Descriptors QEMU gets, under the numbers they have.
    inherited: Vec<RawFd>,
    run_as: Option<RunAs>,
    groups: Vec<libc::gid_t>,
}

/// Starts QEMU. Blocks until `exec` has worked or failed.
///
/// The user is changed here and not by QEMU's `-runas`: so QEMU never runs a single instruction as root, and its
/// own sandbox can forbid what `-runas` would need.
pub(super) fn spawn(
    binary: &Path,
    args: &[String],
    stderr: File,
    inherited: &[File],
    cgroup_entrances: &[File],
    run_as: Option<&RunAs>,
    group: Option<u32>,
) -> Result<Child, LaunchError> {
    let child0 = Child0 {
        cgroup_entrances: cgroup_entrances.iter().map(AsRawFd::as_raw_fd).collect(),
        inherited: inherited.iter().map(AsRawFd::as_raw_fd).collect(),
        run_as: run_as.cloned(),
        groups: group.into_iter().collect(),
    };
    let mut command = Command::new(binary);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).current_dir("/");
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
    // SAFETY: `become_qemu` makes system calls only, on memory that was allocated before the fork.
    unsafe { command.pre_exec(move || become_qemu(&child0)) };
    command.spawn().map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => LaunchError::NoBinary { binary: binary.to_owned() },
        _ => LaunchError::Spawn { binary: binary.to_owned(), source },
    })
}

fn become_qemu(plan: &Child0) -> io::Result<()> {
    // SAFETY: every call below takes integers or pointers to memory that lives in this frame or in `plan`.
    unsafe {
        // Not in our session: a terminal's Ctrl-C or hang-up is not meant for machines.
        check(libc::setsid())?;
        libc::umask(0o077);
        for fd in &plan.cgroup_entrances {
            // Best effort, as all of cgroups is.
            let _ = libc::write(*fd, b"0".as_ptr().cast(), 1);
        }
        // A core file of QEMU is the guest's memory on the host's disk.
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        check(libc::setrlimit(libc::RLIMIT_CORE, &raw const none))?;
        // No descriptor of ours by accident: libraries do not always set close-on-exec. Before Linux 5.11 the call
        // fails, and what those libraries left open stays open.
        libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        for fd in &plan.inherited {
            check(libc::fcntl(*fd, libc::F_SETFD, 0))?;
        }
        if let Some(run_as) = &plan.run_as {
            check(libc::setgroups(plan.groups.len(), plan.groups.as_ptr()))?;
            check(libc::setresgid(run_as.gid, run_as.gid, run_as.gid))?;
            check(libc::setresuid(run_as.uid, run_as.uid, run_as.uid))?;
        }
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
