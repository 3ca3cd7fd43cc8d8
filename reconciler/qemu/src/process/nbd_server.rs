//! qemu-nbd: serves the data of a disk at a socket, for berth to read or to write.
//!
//! It is confined as a [`Filter`](super::Filter) is, and ends when its only client has closed the connection, or with the caller.

use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::filter::{FilterError, Running, failed, output_file, said};
use super::key_file;
use super::landlock::Reach;
use super::launch::{self, Cell};
use super::local::{hidden_without, ruleset_of_program};
use super::pidfd::PidFd;
use super::scan::programs;
use super::{LaunchError, ProcessError, RunAs};
use crate::machine::DiskKey;

const PROGRAM: &str = "qemu-nbd";
/// How long it may take to close the files, which are on the medium already.
const END: Duration = Duration::from_secs(60);

/// A disk to serve.
#[derive(Clone, Debug)]
pub struct NbdExport {
    pub program: PathBuf,
    /// The disk, as `json:` with all its files: no format is probed.
    pub source: String,
    /// The files that it only reads.
    pub inputs: Vec<PathBuf>,
    /// The file that it writes, which `user` must be able to write. `None`: it writes to no file.
    pub output: Option<PathBuf>,
    /// Whether the disk is only read.
    pub read_only: bool,
    /// The path of the socket, in a folder that is for it alone and belongs to `user`.
    pub socket: PathBuf,
    /// The user that the program runs as, without a network. `None`: the caller's, with the network of the caller.
    pub user: Option<RunAs>,
    /// The maximum size of the file that it writes, in bytes.
    pub max_bytes: u64,
    /// The maximum size of the program's writable memory, in bytes.
    pub memory: u64,
    /// The key of the encrypted files among these, which it has as [`TOOL_KEY`](super::TOOL_KEY).
    pub key: Option<DiskKey>,
}

/// A running program. It is killed when this is dropped.
pub struct NbdServer {
    running: Running,
    output: File,
    program: PathBuf,
}

impl fmt::Debug for NbdServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NbdServer").field("pid", &self.running.child.pid()).finish_non_exhaustive()
    }
}

impl NbdExport {
    /// Starts the program. Its socket accepts one connection, as soon as it has opened the files.
    pub async fn serve(&self) -> Result<NbdServer, FilterError> {
        let output = output_file()?;
        let (own, inherited) =
            (self.clone(), output.try_clone().map_err(|e| failed(Path::new("memory"), e))?);
        let started = tokio::task::spawn_blocking(move || own.start(inherited)).await;
        let running = started.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
        Ok(NbdServer { running, output, program: self.program.clone() })
    }

    fn start(&self, stderr: File) -> Result<Running, FilterError> {
        let folder = self.socket.parent().unwrap_or(Path::new("/"));
        let ruleset = ruleset_of_program(&self.program).map_err(LaunchError::Confine)?;
        if let Some(ruleset) = &ruleset {
            let inputs = self.inputs.iter().map(|input| (input.as_path(), Reach::Read));
            let output = self.output.iter().map(|output| (output.as_path(), Reach::Write));
            for (path, reach) in inputs.chain(output).chain([(folder, Reach::Own)]) {
                ruleset.allow(path, reach).map_err(LaunchError::Confine)?;
            }
        }
        let opened = self.inputs.iter().chain(&self.output).chain([&self.program, &self.socket]);
        let opened: Vec<&Path> = opened.map(PathBuf::as_path).collect();
        let limits = [(libc::RLIMIT_DATA, self.memory), (libc::RLIMIT_FSIZE, self.max_bytes)];
        let cell = Cell {
            run_as: self.user,
            ruleset: ruleset.as_ref(),
            hidden: hidden_without(&opened),
            group: None,
            cgroups: &[],
            limits: &limits,
            cpus: None,
            name: None,
            folder: None,
            has_network: false,
        };
        let mut args = vec![format!("--socket={}", self.socket.display())];
        match self.read_only {
            false => args.push("--discard=unmap".to_owned()),
            true => args.extend(["--read-only", "--allocation-depth"].map(str::to_owned)),
        }
        let mut inherited = Vec::new();
        if let Some(key) = &self.key {
            let file = key_file::key_file(key).map_err(|source| failed(Path::new("memory"), source))?;
            args.extend(key_file::arguments(file.as_raw_fd()));
            inherited.push(file);
        }
        args.push(self.source.clone());
        let child = launch::spawn(&self.program, &args, stderr, &inherited, &cell)?;
        Ok(Running::new(child))
    }
}

/// Ends the programs that serve at sockets in this folder. One whose caller has ended before it had connected would wait for good. Blocking.
pub fn end_nbd_servers(folder: &Path) -> Result<(), ProcessError> {
    let beginning = format!("--socket={}/", folder.display());
    for found in programs(|name| name == PROGRAM)? {
        if found.argv.iter().any(|argument| argument.starts_with(&beginning))
            && let Some(process) = PidFd::open(&found.identity)?
        {
            process.signal(found.identity.pid, Signal::SIGKILL)?;
        }
    }
    Ok(())
}

impl NbdServer {
    /// *Errors*: the program has ended; the error has its words.
    pub fn check(&mut self) -> Result<(), FilterError> {
        match self.running.child.try_wait().map_err(|source| failed(&self.program, source))? {
            Some(status) => {
                Err(FilterError::Failed { status: status.to_string(), said: said(&mut self.output) })
            }
            None => Ok(()),
        }
    }

    /// Waits until the program has closed its files and ended. The connection must have been closed.
    pub async fn ended(mut self) -> Result<(), FilterError> {
        let pid = self.running.child.pid();
        match tokio::time::timeout(END, PidFd::of_child(&self.running.child)?.ended(pid)).await {
            Ok(ended) => ended?,
            Err(_) => return Err(FilterError::TooSlow { after: END }),
        }
        let status = self.running.child.wait().map_err(|source| failed(&self.program, source))?;
        match status.success() {
            true => Ok(()),
            false => Err(FilterError::Failed { status: status.to_string(), said: said(&mut self.output) }),
        }
    }
}
