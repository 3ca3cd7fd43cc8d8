//! Identifies processes by their entries in `/proc`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::{ProcessError, ProcessIdentity};
use crate::hypervisor::ProcessState;

/// The fields of `/proc/PID/stat` in use.
pub(super) struct Stat {
    pub(super) state: char,
    /// The number of threads that have not ended; the first thread always counts.
    pub(super) threads: u32,
    pub(super) start_time: u64,
}

impl Stat {
    /// The first thread may be a zombie while others, which still hold the files and the cgroup of the process, are
    /// ending.
    pub(super) fn has_ended(&self) -> bool {
        match self.state {
            'Z' => self.threads <= 1,
            state => matches!(state, 'X' | 'x'),
        }
    }
}

/// Returns None if there is no such process.
pub(super) fn stat(pid: i32) -> Result<Option<Stat>, ProcessError> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(source) => Err(ProcessError::Read { path, source }),
    }
}

/// The name in parentheses may contain any character, including parentheses: fields are counted from the last one.
pub(super) fn parse(stat: &str) -> Option<Stat> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let threads = fields.nth(16)?.parse().ok()?;
    Some(Stat { state, threads, start_time: fields.nth(1)?.parse().ok()? })
}

/// A process may end between two reads, which gives one of these two errors.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

pub(super) fn of(pid: i32) -> Result<Option<ProcessIdentity>, ProcessError> {
    let Some(stat) = stat(pid)? else { return Ok(None) };
    Ok(Some(ProcessIdentity { pid, start_time: stat.start_time, boot_id: boot_id()?.to_owned() }))
}

/// Whether the process is running. A zombie that waits for its parent (possibly this process) is not; if it is a child
/// of this process, it is reaped here.
pub(super) fn is_alive(process: &ProcessIdentity) -> Result<bool, ProcessError> {
    if process.boot_id != boot_id()? {
        return Ok(false);
    }
    match stat(process.pid)? {
        Some(stat) if stat.start_time == process.start_time => {
            let ended = stat.has_ended();
            if ended {
                reap(process.pid);
            }
            Ok(!ended)
        }
        _ => Ok(false),
    }
}

/// Reads the state of a process: that of its first thread, which serves QEMU's monitor. None: it has ended.
pub(super) fn state(process: &ProcessIdentity) -> Result<Option<ProcessState>, ProcessError> {
    if !is_alive(process)? {
        return Ok(None);
    }
    Ok(stat(process.pid)?.map(|stat| match stat.state {
        'T' | 't' => ProcessState::Stopped,
        'D' => ProcessState::Blocked,
        _ => ProcessState::Running,
    }))
}

/// An error means that it is not a child of this process, which then does not have to reap it.
pub(super) fn reap(pid: i32) {
    let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
}

fn boot_id() -> Result<&'static str, ProcessError> {
    static BOOT_ID: OnceLock<String> = OnceLock::new();
    if let Some(id) = BOOT_ID.get() {
        return Ok(id);
    }
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path)
        .map_err(|source| ProcessError::Read { path: path.to_owned(), source })?;
    Ok(BOOT_ID.get_or_init(|| text.trim().to_owned()))
}
