//! Starts a program without a copy of the caller's memory.
//!
//! `fork` copies the page tables of the caller, and every page that one of its threads writes afterwards is copied, too: a control plane
//! with its objects in memory pays that for each machine that it starts. The child here shares the caller's memory until `exec`, on a stack
//! of its own, while the calling thread waits (`CLONE_VM | CLONE_VFORK`), as in `posix_spawn`, which cannot make the steps between the two.
#![allow(unsafe_code, reason = "what happens between fork and exec")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, pthread_sigmask};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The size of the child's stack. Its steps need a few KiB, and the kernel writes signal frames nowhere: signals are blocked.
const STACK: usize = 128 << 10;
/// The exit status of a child that did not become its program.
const FAILED: c_int = 127;
/// Signals have numbers from 1 to this one. The C library keeps two for itself.
const LAST_SIGNAL: c_int = 64;

/// A program to start.
#[derive(Debug)]
pub(super) struct Program {
    /// The path of its file, which is not looked for elsewhere.
    pub(super) path: CString,
    /// The arguments; the first is its name.
    pub(super) arguments: Vec<CString>,
    /// Texts `NAME=VALUE`.
    pub(super) environment: Vec<CString>,
}

/// A process that was started. It runs on if this is dropped.
#[derive(Debug)]
pub(super) struct Child {
    pid: Pid,
    ended: Option<ExitStatus>,
}

impl Child {
    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Kills the process, if it has not been waited for.
    pub(super) fn kill(&self) -> io::Result<()> {
        match self.ended {
            Some(_) => Ok(()),
            None => Ok(kill(self.pid, Signal::SIGKILL)?),
        }
    }

    /// Waits for its end.
    pub(super) fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            match self.look(None) {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns its status, if it has ended.
    pub(super) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.look(Some(WaitPidFlag::WNOHANG))
    }

    fn look(&mut self, flags: Option<WaitPidFlag>) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = match waitpid(self.pid, flags)? {
                WaitStatus::Exited(_, code) => Some(ExitStatus::from_raw(code << 8)),
                WaitStatus::Signaled(_, signal, dumped) => {
                    Some(ExitStatus::from_raw(signal as i32 | if dumped { 0x80 } else { 0 }))
                }
                _ => None,
            };
        }
        Ok(self.ended)
    }
}

/// All that the child needs. It reads these fields and writes the error.
struct Start<'a> {
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    null: RawFd,
    stderr: RawFd,
    prepare: &'a dyn Fn() -> io::Result<()>,
    error: AtomicI32,
}

/// Starts a program in `/`, with nothing to read, and only its errors to write. Blocks until `exec` has succeeded or failed. `prepare` runs
/// in the child before.
///
/// # Safety
///
/// `prepare` shares the memory of the caller, whose other threads run on. It makes system calls only: it neither allocates nor takes locks,
/// and calls nothing of the C library that changes other threads, such as `setuid`.
pub(super) unsafe fn spawn(
    program: &Program,
    stderr: &File,
    prepare: &dyn Fn() -> io::Result<()>,
) -> io::Result<Child> {
    let null = above_the_standard_ones(&OpenOptions::new().read(true).write(true).open("/dev/null")?)?;
    let stderr = above_the_standard_ones(stderr)?;
    let (arguments, environment) = (pointers(&program.arguments), pointers(&program.environment));
    let start = Start {
        path: program.path.as_ptr(),
        arguments: arguments.as_ptr(),
        environment: environment.as_ptr(),
        null: null.as_raw_fd(),
        stderr: stderr.as_raw_fd(),
        prepare,
        error: AtomicI32::new(0),
    };
    let mut stack = vec![0_u128; STACK / size_of::<u128>()];
    let dumpable = dumpable();
    // A handler of this process must not run in the child.
    let mut mask = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut mask))?;
    // SAFETY: the stack grows down from its end, and it and `start` outlive the child's use of them: this thread waits until `exec` or the
    // end of the child.
    let pid = unsafe {
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        libc::clone(run, stack.as_mut_ptr_range().end.cast(), flags, (&raw const start).cast_mut().cast())
    };
    let cloned = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // A change of the user in the child has cleared it.
    // SAFETY: integers only.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, dumpable, 0, 0, 0) };
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?;
    cloned?;
    let mut child = Child { pid: Pid::from_raw(pid), ended: None };
    match start.error.load(Ordering::Relaxed) {
        0 => Ok(child),
        error => {
            child.wait()?;
            Err(io::Error::from_raw_os_error(error))
        }
    }
}

/// Whether this process may be dumped, before any child has cleared it.
fn dumpable() -> c_int {
    static DUMPABLE: OnceLock<c_int> = OnceLock::new();
    // SAFETY: integers only.
    *DUMPABLE.get_or_init(|| unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) })
}

/// The child. Never returns.
extern "C" fn run(start: *mut c_void) -> c_int {
    // SAFETY: it is a `Start` that outlives this process's use of it.
    let start = unsafe { &*start.cast::<Start<'_>>() };
    let Err(error) = begin(start);
    start.error.store(error.raw_os_error().unwrap_or(libc::EINVAL), Ordering::Relaxed);
    // SAFETY: ends this process at once: its exit handlers are those of the caller.
    unsafe { libc::_exit(FAILED) }
}

fn begin(start: &Start<'_>) -> io::Result<std::convert::Infallible> {
    // SAFETY: system calls on integers and on prepared memory. `sigaction` changes a table of the kernel that is the child's own.
    unsafe {
        for signal in 1..=LAST_SIGNAL {
            let mut action: libc::sigaction = std::mem::zeroed();
            let is_known = libc::sigaction(signal, ptr::null(), &raw mut action) == 0;
            // Rust ignores SIGPIPE, which programs do not expect.
            let is_kept = action.sa_sigaction == libc::SIG_DFL
                || action.sa_sigaction == libc::SIG_IGN && signal != libc::SIGPIPE;
            if is_known && !is_kept {
                action = std::mem::zeroed();
                libc::sigaction(signal, &raw const action, ptr::null_mut());
            }
        }
        for (from, to) in [(start.null, 0), (start.null, 1), (start.stderr, 2)] {
            if libc::dup2(from, to) < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        if libc::chdir(c"/".as_ptr()) < 0 {
            return Err(io::Error::last_os_error());
        }
        (start.prepare)()?;
        let none: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        libc::execve(start.path, start.arguments, start.environment);
    }
    Err(io::Error::last_os_error())
}

/// Returns the same file under a number above those of input, output and errors.
fn above_the_standard_ones(file: &File) -> io::Result<File> {
    use std::os::fd::FromRawFd;
    // SAFETY: integers only; the new number is owned by the result alone.
    unsafe {
        let number = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3);
        if number < 0 { Err(io::Error::last_os_error()) } else { Ok(File::from_raw_fd(number)) }
    }
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    fn shell(script: &str) -> Program {
        let text = |text: &str| CString::new(text).expect("no NUL");
        Program {
            path: text("/bin/sh"),
            arguments: vec![text("a-name"), text("-c"), text(script)],
            environment: vec![text("GREETING=hello")],
        }
    }

    fn outcome(program: &Program, prepare: &dyn Fn() -> io::Result<()>) -> io::Result<(ExitStatus, String)> {
        let mut output = tempfile::tempfile().expect("a file");
        // SAFETY: these steps make system calls at most.
        let mut child = unsafe { spawn(program, &output, prepare) }?;
        let status = child.wait().expect("it ends");
        assert_eq!(child.try_wait().expect("known"), Some(status));
        let mut text = String::new();
        output.rewind().expect("rewound");
        output.read_to_string(&mut text).expect("text");
        Ok((status, text))
    }

    #[test]
    fn the_program_has_its_arguments_environment_folder_and_files_and_no_signals_blocked_or_caught() {
        let script = "echo $0 $GREETING $(pwd) >&2; cat; echo unseen; cat /proc/self/status >&2; exit 3";
        let (status, text) = outcome(&shell(script), &|| Ok(())).expect("started");
        assert_eq!(status.code(), Some(3), "{text}");
        assert!(text.starts_with("a-name hello /\n") && !text.contains("unseen"), "{text}");
        let signals = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).expect(name);
            u64::from_str_radix(line.trim(), 16).expect("hexadecimal")
        };
        assert_eq!((signals("SigBlk:"), signals("SigCgt:")), (0, 0));
        let broken_pipe = 1 << (libc::SIGPIPE - 1);
        assert_eq!(signals("SigIgn:") & broken_pipe, 0);
    }

    #[test]
    fn an_error_of_a_step_or_of_the_program_is_returned_and_leaves_no_process() {
        let refused = || Err(io::Error::from_raw_os_error(libc::EPERM));
        let error = outcome(&shell("exit 0"), &refused).expect_err("refused");
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        let missing = Program { path: CString::new("/does/not/exist").expect("text"), ..shell("") };
        assert_eq!(outcome(&missing, &|| Ok(())).expect_err("missing").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_process_that_is_killed_says_so() {
        let program = shell("sleep 60");
        let output = tempfile::tempfile().expect("a file");
        // SAFETY: the step does nothing.
        let mut child = unsafe { spawn(&program, &output, &|| Ok(())) }.expect("started");
        assert_eq!(child.try_wait().expect("looked"), None);
        child.kill().expect("killed");
        assert_eq!(child.wait().expect("ended").signal(), Some(libc::SIGKILL));
        child.kill().expect("nothing to do");
    }

    #[test]
    fn many_threads_start_programs_at_once_while_others_write_memory() {
        std::thread::scope(|scope| {
            for number in 0..8 {
                scope.spawn(move || {
                    for round in 0..25 {
                        let code = (number * 25 + round) % 100;
                        let (status, _) =
                            outcome(&shell(&format!("exit {code}")), &|| Ok(())).expect("started");
                        assert_eq!(status.code(), Some(code));
                    }
                });
            }
            scope.spawn(|| {
                let mut sum = 0_usize;
                for size in 0..20_000 {
                    sum += vec![1_u8; size % 4096].len();
                }
                assert!(sum > 0);
            });
        });
    }
}
