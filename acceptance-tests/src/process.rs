//! Child processes with a time limit, a process group of their own and no way to outlive this one unnoticed.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::undo::{self, Undo};
use crate::{report, wait};

/// How often a child is asked whether it has ended.
const POLL: Duration = Duration::from_millis(15);
/// How much of a failed command's output goes into the error.
const TAIL: usize = 6_000;

/// A command that ended, with all it printed.
#[derive(Debug)]
pub struct Finished {
    /// The command line, for messages.
    pub line: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Finished {
    /// The standard output of a command that must have succeeded.
    pub fn success(self) -> Result<String> {
        ensure!(self.status.success(), "{}", self.told());
        Ok(self.stdout)
    }

    /// All it printed, of a command that must have failed.
    pub fn failure(self) -> Result<String> {
        ensure!(!self.status.success(), "was expected to fail: {}", self.told());
        Ok(format!("{}\n{}", self.stdout, self.stderr))
    }

    /// The exit code, or 128 + signal.
    pub fn code(&self) -> i32 {
        self.status.code().or_else(|| self.status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
    }

    /// The command and the end of its output, for an error message.
    pub fn told(&self) -> String {
        let output = format!("{}{}", self.stdout, self.stderr);
        format!("`{}`: {}\n{}", self.line, self.status, tail(&output, TAIL))
    }
}

/// The last `limit` bytes of a text, cut at a line.
pub fn tail(text: &str, limit: usize) -> &str {
    if text.len() <= limit {
        return text;
    }
    let mut from = text.len() - limit;
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let cut = &text[from..];
    cut.split_once('\n').map_or(cut, |(_, rest)| rest)
}

/// The command line as a person would type it.
pub fn line(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Runs a command to its end, within `limit` and within the time the current lane has left.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished> {
    run_with_input(command, b"", limit)
}

/// As [`run`], with something on its standard input.
pub fn run_with_input(command: &mut Command, input: &[u8], limit: Duration) -> Result<Finished> {
    let line = line(command);
    let limit = limit.min(wait::time_left());
    command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut group = Group::spawn(command)?;
    let stdin = group.child.stdin.take();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        if let Some(mut stdin) = stdin {
            // A command that does not read all its input says so by its exit code.
            let _ = std::io::Write::write_all(&mut stdin, &input);
        }
    });
    let stdout = drain(group.child.stdout.take());
    let stderr = drain(group.child.stderr.take());
    let status = group.wait(limit)?;
    if status.is_none() {
        group.kill();
    }
    let (stdout, stderr) = (stdout.collect(), stderr.collect());
    // A reader gone with its process cannot block the writer.
    let _ = writer.join();
    let Some(status) = status else {
        bail!("`{line}` was still running after {limit:.0?}\n{}", tail(&format!("{stdout}{stderr}"), TAIL));
    };
    Ok(Finished { line, status, stdout, stderr })
}

/// As [`run`], showing the lines `shows` picks as they come.
pub fn run_shown(
    command: &mut Command,
    limit: Duration,
    shows: impl Fn(&str) -> bool + Send + 'static,
) -> Result<Finished> {
    let line = line(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut group = Group::spawn(command)?;
    let stderr = drain(group.child.stderr.take());
    let stdout = group.child.stdout.take();
    let stdout = Drain {
        thread: std::thread::spawn(move || {
            let mut all = Vec::new();
            for line in stdout.into_iter().flat_map(|pipe| BufReader::new(pipe).lines()).map_while(Result::ok)
            {
                if shows(&line) {
                    report::note(&format!("    {line}"));
                }
                all.extend_from_slice(line.as_bytes());
                all.push(b'\n');
            }
            all
        }),
    };
    let status = group.wait(limit.min(wait::time_left()))?;
    if status.is_none() {
        group.kill();
    }
    let (stdout, stderr) = (stdout.collect(), stderr.collect());
    let status =
        status.with_context(|| format!("`{line}` was still running after {limit:.0?}\n{stdout}{stderr}"))?;
    Ok(Finished { line, status, stdout, stderr })
}

/// A pipe being read into memory by a thread.
struct Drain {
    thread: std::thread::JoinHandle<Vec<u8>>,
}

impl Drain {
    fn collect(self) -> String {
        // A grandchild that kept the pipe open must not hold us for ever.
        let until = Instant::now() + Duration::from_secs(2);
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(POLL);
        }
        if !self.thread.is_finished() {
            return String::from("[output still open]\n");
        }
        String::from_utf8_lossy(&self.thread.join().unwrap_or_default()).into_owned()
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> Drain {
    Drain {
        thread: std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                // What was read before an error is still worth showing.
                let _ = pipe.read_to_end(&mut bytes);
            }
            bytes
        }),
    }
}

/// A child that leads a process group of its own.
struct Group {
    child: Child,
    ended: Arc<AtomicBool>,
    undo: Option<Undo>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Group").field("pid", &self.child.id()).finish()
    }
}

impl Group {
    fn spawn(command: &mut Command) -> Result<Self> {
        ensure!(!undo::interrupted(), "interrupted");
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().to_string_lossy()))?;
        let group = pid(&child);
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let undo = Undo::later(move || {
            // Once the leader is reaped its number may belong to somebody else.
            if !seen.load(Ordering::SeqCst) {
                let _ = killpg(group, Signal::SIGKILL);
            }
        });
        Ok(Self { child, ended, undo: Some(undo) })
    }

    fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait().context("waiting for a child")?;
        if status.is_some() {
            self.ended.store(true, Ordering::SeqCst);
        }
        Ok(status)
    }

    fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            std::thread::sleep(POLL);
        }
    }

    fn signal(&mut self, signal: Signal) {
        if matches!(self.try_wait(), Ok(None)) {
            // It may end between the question and the signal: then there is nothing to do.
            let _ = nix::sys::signal::kill(pid(&self.child), signal);
        }
    }

    fn kill(&mut self) {
        if !self.ended.load(Ordering::SeqCst) {
            let _ = killpg(pid(&self.child), Signal::SIGKILL);
        }
        let _ = self.child.wait();
        self.ended.store(true, Ordering::SeqCst);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        if let Some(undo) = self.undo.take() {
            undo.forget();
        }
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("a pid fits in pid_t"))
}

/// A process that runs beside the test, its output in a file.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    log: PathBuf,
    group: Group,
}

impl Daemon {
    /// Starts it, appending what it prints to `log`.
    pub fn spawn(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        if let Some(parent) = log.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let file = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let group = Group::spawn(command)?;
        Ok(Self { name: name.to_owned(), log: log.to_owned(), group })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.group.child.id()
    }

    /// Fails, with the end of its log, when it has ended.
    pub fn must_run(&mut self) -> Result<()> {
        match self.group.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let told = format!("{} ended: {status}\n{}", self.name, self.log_tail());
                Err(wait::Hopeless(told).into())
            }
        }
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        tail(&text, TAIL).to_owned()
    }

    /// Asks it to end (SIGTERM) and waits; an error when it does not.
    pub fn terminate(mut self, limit: Duration) -> Result<ExitStatus> {
        self.group.signal(Signal::SIGTERM);
        match self.group.wait(limit)? {
            Some(status) => Ok(status),
            None => bail!("{} did not end within {limit:.0?} of SIGTERM\n{}", self.name, self.log_tail()),
        }
    }

    /// Waits for it to end by itself.
    pub fn ended(mut self, limit: Duration) -> Result<ExitStatus> {
        match self.group.wait(limit)? {
            Some(status) => Ok(status),
            None => bail!("{} was still running after {limit:.0?}\n{}", self.name, self.log_tail()),
        }
    }

    /// Kills this one process, as a crash would: nothing it started is told.
    pub fn crash(mut self) -> Result<()> {
        self.group.signal(Signal::SIGKILL);
        self.group.wait(Duration::from_secs(10))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_past_its_limit_is_killed_with_its_children() {
        let started = Instant::now();
        let error = run(Command::new("sh").args(["-c", "sleep 60 & sleep 60"]), Duration::from_millis(200))
            .expect_err("it sleeps longer than the limit");
        assert!(error.to_string().contains("still running"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn input_output_and_exit_code_arrive() {
        let finished =
            run_with_input(Command::new("sh").args(["-c", "cat; exit 3"]), b"hello", Duration::from_secs(10))
                .expect("sh starts");
        assert_eq!((finished.stdout.as_str(), finished.code()), ("hello", 3));
    }

    #[test]
    fn a_tail_starts_at_a_line() {
        assert_eq!(tail("one\ntwo\nthree", 7), "three");
        assert_eq!(tail("short", 100), "short");
    }
}
