//! Turns a prepared command into an independent process: session, cgroup, network, user, files.
#![allow(unsafe_code, reason = "what happens between fork and exec")]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::landlock::{self, Ruleset};
use super::lent_folder::LentFolder;
use super::vfork::{self, Child, Program};
use super::{LaunchError, RunAs};

/// The whole environment of the process.
const ENVIRONMENT: [&CStr; 2] = [c"PATH=/usr/sbin:/usr/bin:/sbin:/bin", c"LC_ALL=C.UTF-8"];

/// The steps that the child executes before it becomes QEMU. All data is prepared: after fork only system calls are
/// allowed, no allocation and no locks.
struct Child0 {
    cgroup_entrances: Vec<RawFd>,
    /// Descriptors that QEMU inherits, with the same numbers.
    inherited: Vec<RawFd>,
    run_as: Option<RunAs>,
    /// The files that it can open from then on.
    ruleset: Option<RawFd>,
    /// Directories that appear empty to it. Kept alive here: the child only reads the pointers.
    hidden: Vec<CString>,
    groups: Vec<libc::gid_t>,
    limits: Vec<ResourceLimit>,
    cpus: Option<CpuSet>,
    folder: Option<LentFolder>,
    has_network: bool,
}

/// A limit of the process (setrlimit), such as `libc::RLIMIT_DATA`.
pub(super) type ResourceLimit = (libc::__rlimit_resource_t, u64);

/// The user and the restrictions of the process.
#[derive(Clone, Debug)]
pub(super) struct Cell<'a> {
    pub(super) run_as: Option<RunAs>,
    pub(super) ruleset: Option<&'a Ruleset>,
    /// Directories that appear empty to it, because a ruleset does not restrict other objects than files, such as the
    /// sockets of services.
    pub(super) hidden: Vec<CString>,
    /// A supplementary group.
    pub(super) group: Option<u32>,
    /// The process files of the control groups that it enters.
    pub(super) cgroups: &'a [File],
    pub(super) limits: &'a [ResourceLimit],
    /// The CPUs that its threads run on. None: any.
    pub(super) cpus: Option<CpuSet>,
    /// The first argument. None: the path of the program.
    pub(super) name: Option<&'a str>,
    /// The folder of the host that it serves.
    pub(super) folder: Option<&'a LentFolder>,
    /// Whether it stays in the network of the host.
    pub(super) has_network: bool,
}

/// Starts QEMU. Blocks until `exec` has succeeded or failed.
///
/// The user is changed here and not by QEMU's `-runas`: QEMU never runs a single instruction as root, and its own
/// sandbox can forbid the system calls that `-runas` would need.
pub(super) fn spawn(
    binary: &Path,
    args: &[String],
    stderr: File,
    inherited: &[File],
    cell: &Cell<'_>,
) -> Result<Child, LaunchError> {
    let child0 = Child0 {
        cgroup_entrances: cell.cgroups.iter().map(AsRawFd::as_raw_fd).collect(),
        inherited: inherited.iter().map(AsRawFd::as_raw_fd).collect(),
        run_as: cell.run_as,
        ruleset: cell.ruleset.map(Ruleset::as_raw_fd),
        hidden: cell.hidden.clone(),
        groups: cell.group.into_iter().collect(),
        limits: cell.limits.to_vec(),
        cpus: cell.cpus,
        folder: cell.folder.cloned(),
        has_network: cell.has_network,
    };
    let failed = |source: io::Error| LaunchError::Spawn { binary: binary.to_owned(), source };
    let name = cell.name.map_or(binary.as_os_str().as_bytes(), str::as_bytes);
    let arguments = [name].into_iter().chain(args.iter().map(String::as_bytes));
    let program = Program {
        path: CString::new(binary.as_os_str().as_bytes()).map_err(|error| failed(error.into()))?,
        arguments: arguments
            .map(CString::new)
            .collect::<Result<_, _>>()
            .map_err(|error| failed(error.into()))?,
        environment: ENVIRONMENT.map(CString::from).to_vec(),
    };
    // SAFETY: `become_qemu` makes system calls only, on memory that was allocated before.
    let spawned = unsafe { vfork::spawn(&program, &stderr, &|| become_qemu(&child0)) };
    spawned.map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => LaunchError::NoBinary { binary: binary.to_owned() },
        _ => failed(source),
    })
}

fn become_qemu(plan: &Child0) -> io::Result<()> {
    // SAFETY: every call below takes integers or pointers to memory that lives in this frame or in `plan`.
    unsafe {
        // A session of its own: a terminal's Ctrl-C or hang-up must not reach machines.
        check(libc::setsid())?;
        libc::umask(0o077);
        for fd in &plan.cgroup_entrances {
            // Best effort, like all of cgroups.
            let _ = libc::write(*fd, b"0".as_ptr().cast(), 1);
        }
        if let Some(cpus) = &plan.cpus {
            // A system call alone; its error is a number.
            sched_setaffinity(Pid::from_raw(0), cpus)?;
        }
        // A core file of QEMU would write the guest's memory to the host's disk.
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        check(libc::setrlimit(libc::RLIMIT_CORE, &raw const none))?;
        for (resource, value) in &plan.limits {
            let limit = libc::rlimit { rlim_cur: *value, rlim_max: *value };
            check(libc::setrlimit(*resource, &raw const limit))?;
        }
        // Prevents accidental inheritance: libraries do not always set close-on-exec. Before Linux 5.11 the call fails,
        // and descriptors that those libraries left open stay open.
        libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        for fd in &plan.inherited {
            check(libc::fcntl(*fd, libc::F_SETFD, 0))?;
        }
        if let Some(run_as) = &plan.run_as {
            // A network namespace without interfaces: taps are passed as open descriptors, and the sockets in use have
            // paths. The servers of Ceph have addresses.
            if !plan.has_network {
                possible(libc::unshare(libc::CLONE_NEWNET))?;
            }
            hide(&plan.hidden)?;
            // Not by the C library, which would change the caller's other threads, too.
            let (count, groups) = (plan.groups.len(), plan.groups.as_ptr());
            check_long(libc::syscall(libc::SYS_setgroups, count, groups))?;
            check_long(libc::syscall(libc::SYS_setresgid, run_as.gid, run_as.gid, run_as.gid))?;
            check_long(libc::syscall(libc::SYS_setresuid, run_as.uid, run_as.uid, run_as.uid))?;
        }
        if let Some(folder) = &plan.folder {
            folder.mount()?;
        }
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        if let Some(folder) = &plan.folder {
            folder.restrict()?;
        }
    }
    match plan.ruleset {
        Some(ruleset) => landlock::restrict(ruleset),
        None => Ok(()),
    }
}

/// Gives the process its own mount namespace, with an empty file system over each of these directories. Later mounts
/// and unmounts of the host elsewhere stay visible.
///
/// # Safety
///
/// Makes system calls only.
unsafe fn hide(folders: &[CString]) -> io::Result<()> {
    if folders.is_empty() {
        return Ok(());
    }
    let (none, flags) =
        (std::ptr::null(), libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC);
    // SAFETY: all strings are NUL-terminated and outlive the calls.
    unsafe {
        if !possible(libc::unshare(libc::CLONE_NEWNS))? {
            return Ok(());
        }
        if !possible(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_SLAVE, none.cast()))? {
            return Ok(());
        }
        for folder in folders {
            let (tmpfs, mode) = (c"tmpfs".as_ptr(), c"mode=0555".as_ptr());
            check(libc::mount(tmpfs, folder.as_ptr(), tmpfs, flags, mode.cast()))?;
        }
    }
    Ok(())
}

/// Returns false if the call is not permitted although the process is root: in a container.
fn possible(result: libc::c_int) -> io::Result<bool> {
    match check(result) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => Ok(false),
        other => other.map(|()| true),
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    check_long(result.into())
}

fn check_long(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
