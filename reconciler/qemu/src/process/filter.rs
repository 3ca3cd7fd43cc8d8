//! Programs that make or change a file from others that nobody trusts: `qemu-img`, decompression.
//!
//! Such a program is confined like a machine. It runs as a user without rights and without network, can open only these
//! files (Landlock), and has limits on memory, processor time and the size of the result.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};

use super::key_file;
use super::landlock::Reach;
use super::launch::{self, Cell};
use super::local::{hidden_without, ruleset_of_program};
use super::pidfd::PidFd;
use super::vfork::Child;
use super::{LaunchError, ProcessError, RunAs};
use crate::machine::DiskKey;

/// The maximum length of the program's output in an error.
const OUTPUT: u64 = 2048;

/// A lock on a file that exists for it. It holds until it is dropped here and every program that inherited it has ended, also if this
/// process ends before.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Returns `None` if another process, or another part of this one, has the lock. Creates the file if it does not exist.
    pub fn try_acquire(path: &Path) -> io::Result<Option<Self>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing is not enough: a process that another thread is just starting has the file open too, until its `exec`. No program
        // that inherited the lock runs any more, because it keeps an `Arc` of it.
        let _ = self.0.unlock();
    }
}

/// A program that reads files and writes another.
#[derive(Clone, Debug)]
pub struct Filter {
    pub program: PathBuf,
    /// All its arguments, with both paths.
    pub args: Vec<String>,
    pub input: PathBuf,
    /// Further files that it reads, such as the backing files of the input.
    pub further: Vec<PathBuf>,
    /// Does not exist yet. Belongs to `user` until the caller changes that.
    pub output: Option<PathBuf>,
    /// Existing files that it changes, which `user` must be able to write.
    pub changed: Vec<PathBuf>,
    /// A lock that it inherits.
    pub lock: Option<Arc<FileLock>>,
    /// The key of the encrypted files among these, which it has as [`TOOL_KEY`](super::TOOL_KEY). Only of QEMU's programs, after the
    /// first of the arguments.
    pub key: Option<DiskKey>,
    /// The user that the program runs as, which must be able to read the input. `None`: the caller's.
    pub user: Option<RunAs>,
    /// The maximum size of a file that it writes, in bytes.
    pub max_bytes: u64,
    /// The maximum size of the program's writable memory, in bytes. Memory that its threads only reserve does not count.
    pub memory: u64,
    pub time: Duration,
}

/// Why there is no output.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("cannot start the program")]
    Launch(#[from] LaunchError),
    #[error("cannot wait for the program")]
    Process(#[from] ProcessError),
    #[error("cannot use {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("it took longer than {after:?}")]
    TooSlow { after: Duration },
    #[error("the result has more than {max_bytes} bytes")]
    TooLarge { max_bytes: u64 },
    /// The words are the program's.
    #[error("{said} ({status})")]
    Failed { status: String, said: String },
}

/// Kills the program if the caller stops waiting for it.
pub(super) struct Running {
    pub(super) child: Child,
    _lock: Option<Arc<FileLock>>,
}

impl Running {
    pub(super) fn new(child: Child) -> Self {
        Self { child, _lock: None }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Filter {
    /// Runs the program until it ends. The program is killed when the future is dropped; the output may be left then.
    pub async fn run(&self) -> Result<(), FilterError> {
        let mut output = output_file()?;
        let own = self.clone();
        let inherited = output.try_clone().map_err(|source| failed(Path::new("memory"), source))?;
        let started = tokio::task::spawn_blocking(move || own.start(inherited)).await;
        let mut running = started.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        let pid = running.child.pid();
        match tokio::time::timeout(self.time, PidFd::of_child(&running.child)?.ended(pid)).await {
            Ok(ended) => ended?,
            Err(_) => return Err(FilterError::TooSlow { after: self.time }),
        }
        let status = running.child.wait().map_err(|source| failed(&self.program, source))?;
        if status.success() {
            return Ok(());
        }
        if status.signal() == Some(libc::SIGXFSZ) {
            return Err(FilterError::TooLarge { max_bytes: self.max_bytes });
        }
        let said = said(&mut output);
        if said.contains("File too large") {
            return Err(FilterError::TooLarge { max_bytes: self.max_bytes });
        }
        Err(FilterError::Failed { status: status.to_string(), said })
    }

    fn inputs(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.input).chain(&self.further)
    }

    fn written(&self) -> impl Iterator<Item = &PathBuf> {
        self.output.iter().chain(&self.changed)
    }

    fn start(&self, stderr: File) -> Result<Running, FilterError> {
        if let Some(output) = &self.output {
            let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(output);
            created.map_err(|source| failed(output, source))?;
            if let Some(user) = &self.user {
                chown(output, Some(user.uid), Some(user.gid)).map_err(|source| failed(output, source))?;
            }
        }
        let ruleset = ruleset_of_program(&self.program).map_err(LaunchError::Confine)?;
        if let Some(ruleset) = &ruleset {
            for input in self.inputs() {
                ruleset.allow(input, Reach::Read).map_err(LaunchError::Confine)?;
            }
            for written in self.written() {
                ruleset.allow(written, Reach::Write).map_err(LaunchError::Confine)?;
            }
        }
        let opened: Vec<&Path> =
            self.inputs().chain(self.written()).chain([&self.program]).map(PathBuf::as_path).collect();
        let hidden = hidden_without(&opened);
        let limits = [
            (libc::RLIMIT_DATA, self.memory),
            (libc::RLIMIT_FSIZE, self.max_bytes),
            (libc::RLIMIT_CPU, self.time.as_secs().max(1)),
        ];
        let cell = Cell {
            run_as: self.user,
            ruleset: ruleset.as_ref(),
            hidden,
            group: None,
            cgroups: &[],
            limits: &limits,
            cpus: None,
            name: None,
            folder: None,
            has_network: false,
        };
        let inherited = self.lock.iter().map(|lock| lock.0.try_clone()).collect::<io::Result<Vec<File>>>();
        let mut inherited = inherited.map_err(|source| failed(&self.program, source))?;
        let mut args = self.args.clone();
        if let Some(key) = &self.key {
            let file = key_file::key_file(key).map_err(|source| failed(Path::new("memory"), source))?;
            let at = args.len().min(1);
            args.splice(at..at, key_file::arguments(file.as_raw_fd()));
            inherited.push(file);
        }
        let child = launch::spawn(&self.program, &args, stderr, &inherited, &cell)?;
        Ok(Running { child, _lock: self.lock.clone() })
    }
}

pub(super) fn failed(path: &Path, source: io::Error) -> FilterError {
    FilterError::File { path: path.to_owned(), source }
}

pub(super) fn output_file() -> Result<File, FilterError> {
    let fd = memfd_create(c"output", MFdFlags::MFD_CLOEXEC);
    fd.map(File::from).map_err(|error| failed(Path::new("memory"), error.into()))
}

/// Returns the end of the program's output.
pub(super) fn said(output: &mut File) -> String {
    let length = output.seek(SeekFrom::End(0)).unwrap_or(0);
    let mut text = Vec::new();
    // The words are for people only.
    let _ = output.seek(SeekFrom::Start(length.saturating_sub(OUTPUT)));
    let _ = io::Read::read_to_end(&mut io::Read::take(output, OUTPUT), &mut text);
    let text = String::from_utf8_lossy(&text);
    text.chars().filter(|c| *c == '\n' || !c.is_control()).collect::<String>().trim().replace('\n', "; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_free_once_it_is_dropped_although_a_process_that_is_being_started_has_the_file_open() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("lock");
        let lock = FileLock::try_acquire(&path).expect("opened").expect("free");
        assert!(FileLock::try_acquire(&path).expect("opened").is_none(), "it is held");
        // As a fork does.
        let _copy = lock.0.try_clone().expect("copied");
        drop(lock);
        assert!(FileLock::try_acquire(&path).expect("opened").is_some());
    }
}
