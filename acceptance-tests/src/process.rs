//! Child processes with a time limit and a process group of their own, which cannot outlive this process unnoticed.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::undo::{self, Undo};
use crate::{report, wait};

/// The interval at which a child is polled.
const POLL: Duration = Duration::from_millis(15);
/// The time limit until a killed process group is gone.
const GONE: Duration = Duration::from_secs(10);
/// The time for which an interrupted process waits for a child that must not be killed.
const AWAITED: Duration = Duration::from_secs(600);
/// The number of bytes of a failed command's output in the error.
const TAIL: usize = 6_000;

/// A finished command, with all of its output.
#[derive(Debug)]
pub struct Finished {
    /// The command line, for messages.
    pub line: String,
    /// The exit status.
    pub status: ExitStatus,
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
}

impl Finished {
    /// The standard output of a command that must have succeeded.
    pub fn success(self) -> Result<String> {
        ensure!(self.status.success(), "{}", self.output());
        Ok(self.stdout)
    }

    /// All output of a command that must have failed.
    pub fn failure(self) -> Result<String> {
        ensure!(!self.status.success(), "was expected to fail: {}", self.output());
        Ok(format!("{}\n{}", self.stdout, self.stderr))
    }

    /// The exit code, or 128 + signal.
    pub fn code(&self) -> i32 {
        self.status.code().or_else(|| self.status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
    }

    /// The command and the end of its output, for an error message.
    pub fn output(&self) -> String {
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

/// The command line as typed in a shell.
pub fn line(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Runs a command to its end, within `limit` and within the remaining time of the current suite.
pub fn run(command: &mut Command, limit: Duration) -> Result<Finished> {
    run_with_input(command, b"", limit)
}

/// Like [`run`]. When this process is interrupted, it waits for the command's end instead of killing it.
pub fn run_to_its_end(command: &mut Command, limit: Duration) -> Result<Finished> {
    run_group(command, b"", limit, Interrupted::Await)
}

/// Like [`run`]. When this process is interrupted, the command gets a SIGTERM and time to clean up.
pub fn run_terminable(command: &mut Command, limit: Duration) -> Result<Finished> {
    run_group(command, b"", limit, Interrupted::Terminate)
}

/// Like [`run`], with standard input.
pub fn run_with_input(command: &mut Command, input: &[u8], limit: Duration) -> Result<Finished> {
    run_group(command, input, limit, Interrupted::Kill)
}

fn run_group(
    command: &mut Command,
    input: &[u8],
    limit: Duration,
    interrupted: Interrupted,
) -> Result<Finished> {
    let line = line(command);
    let limit = limit.min(wait::time_left());
    command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut group = Group::spawn(command, interrupted)?;
    let stdin = group.child.stdin.take();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        if let Some(mut stdin) = stdin {
            // A command that does not read all of its input reports a failure by its exit code.
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
    // The pipe closes with the process, so the writer cannot block.
    let _ = writer.join();
    let Some(status) = status else {
        bail!("`{line}` was still running after {limit:.0?}\n{}", tail(&format!("{stdout}{stderr}"), TAIL));
    };
    Ok(Finished { line, status, stdout, stderr })
}

/// Like [`run`], but prints the lines of standard output that `shows` selects as they arrive.
pub fn run_shown(
    command: &mut Command,
    limit: Duration,
    shows: impl Fn(&str) -> bool + Send + 'static,
) -> Result<Finished> {
    let show = move |line: &str| {
        if shows(line) {
            report::note(&format!("    {line}"));
        }
    };
    run_observed(command, limit, show, |_| {})
}

/// Like [`run`], but calls `out` and `err` with each line of standard output and standard error as it arrives. A carriage
/// return ends a line too: progress bars use it.
pub fn run_observed(
    command: &mut Command,
    limit: Duration,
    out: impl FnMut(&str) + Send + 'static,
    err: impl FnMut(&str) + Send + 'static,
) -> Result<Finished> {
    let line = line(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut group = Group::spawn(command, Interrupted::Kill)?;
    let stdout = drain_lines(group.child.stdout.take(), out);
    let stderr = drain_lines(group.child.stderr.take(), err);
    let status = group.wait(limit.min(wait::time_left()))?;
    if status.is_none() {
        group.kill();
    }
    let (stdout, stderr) = (stdout.collect(), stderr.collect());
    let status =
        status.with_context(|| format!("`{line}` was still running after {limit:.0?}\n{stdout}{stderr}"))?;
    Ok(Finished { line, status, stdout, stderr })
}

/// Runs a command until `found` returns a value for a line of its standard output, and kills it then. Returns `None` when it has ended, or
/// `limit` is over, without one. The time limit until its first line is another one: on a busy machine a program may start slowly.
///
/// # Errors
/// The command fails.
pub fn first_found<T>(
    command: &mut Command,
    first: Duration,
    limit: Duration,
    mut found: impl FnMut(&str) -> Option<T>,
) -> Result<Option<T>> {
    let command_line = line(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut group = Group::spawn(command, Interrupted::Kill)?;
    let (sender, lines) = mpsc::channel();
    // Once a line was found, the others are of no interest.
    let _stdout = drain_lines(group.child.stdout.take(), move |line| drop(sender.send(line.to_owned())));
    let stderr = drain(group.child.stderr.take());
    let mut left = first;
    let mut end = None;
    loop {
        match lines.recv_timeout(left.min(wait::time_left())) {
            Ok(line) => {
                if let Some(value) = found(&line) {
                    return Ok(Some(value));
                }
                let end = *end.get_or_insert_with(|| Instant::now() + limit);
                left = end.saturating_duration_since(Instant::now());
            }
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = group.wait(GONE)?.with_context(|| format!("`{command_line}` has closed its output"))?;
    ensure!(status.success(), "`{command_line}`: {status}\n{}", tail(&stderr.collect(), TAIL));
    Ok(None)
}

/// A pipe that a thread reads into memory.
struct Drain {
    thread: std::thread::JoinHandle<Vec<u8>>,
}

impl Drain {
    fn collect(self) -> String {
        // A grandchild that keeps the pipe open must not block forever.
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
                // Data read before an error is still worth showing.
                let _ = pipe.read_to_end(&mut bytes);
            }
            bytes
        }),
    }
}

fn drain_lines(
    pipe: Option<impl Read + Send + 'static>,
    mut seen: impl FnMut(&str) + Send + 'static,
) -> Drain {
    Drain {
        thread: std::thread::spawn(move || {
            let (mut all, mut from) = (Vec::new(), 0);
            let mut chunk = [0; 8 << 10];
            let Some(mut pipe) = pipe else { return all };
            // Data read before an error is still worth showing.
            while let Ok(length @ 1..) = pipe.read(&mut chunk) {
                all.extend_from_slice(&chunk[..length]);
                while let Some(end) = all[from..].iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
                    seen(&String::from_utf8_lossy(&all[from..from + end]));
                    from += end + 1;
                }
            }
            if from < all.len() {
                seen(&String::from_utf8_lossy(&all[from..]));
            }
            all
        }),
    }
}

/// The handling of a child when this process is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interrupted {
    Kill,
    Await,
    Terminate,
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
    fn spawn(command: &mut Command, interrupted: Interrupted) -> Result<Self> {
        undo::making(|| {
            let child = command
                .process_group(0)
                .spawn()
                .with_context(|| format!("starting {}", command.get_program().to_string_lossy()))?;
            let group = pid(&child);
            let ended = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&ended);
            let line = line(command);
            let undo = Undo::later(move || {
                // Once the leader is reaped, its pid may belong to another process.
                if !seen.load(Ordering::SeqCst) {
                    end_group(group, interrupted, &line);
                }
            });
            Ok(Self { child, ended, undo: Some(undo) })
        })
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
            // It may end between the check and the signal: then there is nothing to do.
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

/// Ends a process group, or waits for its end, before the resources it uses are removed.
fn end_group(group: Pid, interrupted: Interrupted, line: &str) {
    let limit = match interrupted {
        Interrupted::Kill => {
            let _ = killpg(group, Signal::SIGKILL);
            GONE
        }
        Interrupted::Terminate => {
            let _ = nix::sys::signal::kill(group, Signal::SIGTERM);
            AWAITED
        }
        Interrupted::Await => {
            report::note(&format!("waiting for the end of `{line}`, which must not be cut short"));
            AWAITED
        }
    };
    let end = Instant::now() + limit;
    while is_alive(group) && Instant::now() < end {
        std::thread::sleep(POLL);
    }
}

/// Whether a process of a group runs. A zombie does not count.
fn is_alive(group: Pid) -> bool {
    let stats = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        // Processes may end during the search, and other entries have no such file.
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats.into_iter().any(|stat| {
        // The name, in parentheses, may contain any character.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
        matches!(fields[..], [state, _, of, ..] if of == group.to_string() && !matches!(state, "Z" | "X"))
    })
}

/// A process that runs beside the test, with its output in a file.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    log: PathBuf,
    group: Group,
}

impl Daemon {
    /// Starts the process and appends its output to `log`.
    pub fn spawn(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        if let Some(parent) = log.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let file = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let group = Group::spawn(command, Interrupted::Kill)?;
        Ok(Self { name: name.to_owned(), log: log.to_owned(), group })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.group.child.id()
    }

    /// Fails, with the end of the log, when the process has ended.
    pub fn must_run(&mut self) -> Result<()> {
        match self.group.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let output = format!("{} ended: {status}\n{}", self.name, self.log_tail());
                Err(wait::Hopeless(output).into())
            }
        }
    }

    /// The end of the log.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        tail(&text, TAIL).to_owned()
    }

    /// Sends the process a signal, but not its children.
    pub fn signal(&mut self, signal: Signal) {
        self.group.signal(signal);
    }

    /// Sends SIGTERM and waits; an error when the process does not end.
    pub fn terminate(mut self, limit: Duration) -> Result<ExitStatus> {
        self.group.signal(Signal::SIGTERM);
        match self.group.wait(limit)? {
            Some(status) => Ok(status),
            None => bail!("{} did not end within {limit:.0?} of SIGTERM\n{}", self.name, self.log_tail()),
        }
    }

    /// Waits for the process to end by itself.
    pub fn ended(mut self, limit: Duration) -> Result<ExitStatus> {
        match self.group.wait(limit)? {
            Some(status) => Ok(status),
            None => bail!("{} was still running after {limit:.0?}\n{}", self.name, self.log_tail()),
        }
    }

    /// Kills this one process, as in a crash: its children are not notified.
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
    fn a_command_runs_until_a_line_is_found() {
        let limit = Duration::from_secs(60);
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let number = |line: &str| line.parse::<u32>().ok();
        let started = Instant::now();
        let short = Duration::from_millis(200);
        let found = first_found(&mut shell("echo a; echo 7; sleep 60; echo 8"), limit, limit, number);
        assert_eq!(found.expect("found"), Some(7));
        let over = first_found(&mut shell("echo a; sleep 60"), limit, short, number);
        assert_eq!(over.expect("no failure"), None);
        assert_eq!(first_found(&mut shell("sleep 60"), short, limit, number).expect("no failure"), None);
        let slow = first_found(&mut shell("sleep 0.5; echo 7"), limit, short, number);
        assert_eq!(slow.expect("found"), Some(7));
        assert_eq!(first_found(&mut shell("echo a"), limit, limit, number).expect("no failure"), None);
        let failed =
            first_found(&mut shell("echo why >&2; exit 3"), limit, limit, number).expect_err("it fails");
        assert!(failed.to_string().contains("why"), "{failed}");
        assert!(started.elapsed() < limit, "each was killed");
    }

    #[test]
    fn a_command_past_its_limit_is_killed_with_its_children() {
        let error = run(Command::new("sh").args(["-c", "sleep 60 & sleep 60"]), Duration::from_millis(200))
            .expect_err("it sleeps longer than the limit");
        assert!(error.to_string().contains("still running"), "{error}");
    }

    #[test]
    fn a_killed_group_is_gone_with_its_children_before_its_files_are_taken_away() {
        let mut command = Command::new("sh");
        let group =
            Group::spawn(command.args(["-c", "sleep 60 & sleep 60"]), Interrupted::Kill).expect("sh starts");
        let leader = pid(&group.child);
        assert!(is_alive(leader));
        end_group(leader, Interrupted::Kill, "sh");
        assert!(!is_alive(leader));
    }

    #[test]
    fn a_command_that_must_not_be_cut_short_is_awaited() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 0.3; touch whole"]).current_dir(folder.path());
        let group = Group::spawn(&mut command, Interrupted::Await).expect("sh starts");
        end_group(pid(&group.child), Interrupted::Await, "sh");
        assert!(folder.path().join("whole").exists(), "it was killed");
    }

    #[test]
    fn a_carriage_return_ends_a_line_too() {
        let (sender, receiver) = mpsc::channel();
        let mut command = Command::new("printf");
        command.arg(r"one\rtwo\nthree");
        let finished = run_observed(
            &mut command,
            Duration::from_secs(10),
            move |line| {
                sender.send(line.to_owned()).expect("the test listens");
            },
            |_| {},
        )
        .expect("printf starts");
        assert_eq!(receiver.iter().collect::<Vec<_>>(), ["one", "two", "three"]);
        assert_eq!(finished.stdout, "one\rtwo\nthree");
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
