//! The audit log: a line for every request that would change something, with user, operation, origin and
//! result. Never a body.
//!
//! ```text
//! request ─▶ bounded queue ─▶ one thread ─▶ FILE, FILE.1 … FILE.5
//! ```
//! No request waits for the file. Lines that find the queue full are dropped and counted, and the count is
//! written to the file. Clients without a valid credential get few lines, so that they cannot push out those of others.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::oneshot;

/// The maximum number of lines that wait to be written.
const QUEUE: usize = 4096;
/// The maximum size of one file in bytes.
const LARGEST: u64 = 64 << 20;
/// The number of files kept besides the current one.
const KEPT: u32 = 5;
/// The number of lines of unauthenticated requests in one [`PERIOD`]; further ones are counted.
const MAX_UNAUTHENTICATED: u32 = 100;
const PERIOD: Duration = Duration::from_secs(60);
/// How long a server that stops waits for the queued lines to be written.
const FLUSH: Duration = Duration::from_secs(5);

/// An element of the queue.
#[derive(Debug)]
enum Queued {
    Line(Value),
    /// All elements before it have been written once this is sent.
    Mark(oneshot::Sender<()>),
}

/// The sending side of the log.
#[derive(Debug)]
pub(crate) struct Audit {
    lines: SyncSender<Queued>,
    pub(crate) dropped: Arc<AtomicU64>,
    unauthenticated: Mutex<Unauthenticated>,
}

/// The lines of unauthenticated requests in a period.
#[derive(Debug)]
struct Unauthenticated {
    since: Instant,
    lines: u32,
    /// The number of requests without a line, since the last line.
    omitted: u64,
}

impl Audit {
    /// Opens the file for appending, readable by its owner only.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::with_limit(path, LARGEST)
    }

    fn with_limit(path: &Path, largest: u64) -> io::Result<Self> {
        let mut log = Log { path: path.to_owned(), largest, file: None, size: 0 };
        log.open()?;
        let (lines, queued) = sync_channel(QUEUE);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        std::thread::Builder::new().name("audit".into()).spawn(move || log.run(&queued, &counted))?;
        let unauthenticated = Unauthenticated { since: Instant::now(), lines: 0, omitted: 0 };
        Ok(Self { lines, dropped, unauthenticated: Mutex::new(unauthenticated) })
    }

    /// Queues a line.
    pub(crate) fn tell(&self, line: Value) {
        if self.lines.try_send(Queued::Line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Queues the line of an unauthenticated request, unless there were many.
    pub(crate) fn tell_unauthenticated(&self, mut line: Value) {
        let mut recent = self.unauthenticated.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.since.elapsed() >= PERIOD {
            (recent.since, recent.lines) = (Instant::now(), 0);
        }
        if recent.lines >= MAX_UNAUTHENTICATED {
            recent.omitted += 1;
            return;
        }
        recent.lines += 1;
        let omitted = std::mem::take(&mut recent.omitted);
        drop(recent);
        if omitted > 0 {
            line["omitted"] = omitted.into();
        }
        self.tell(line);
    }

    /// Waits, for a limited time, until the lines queued so far are written: the process may end after that.
    pub(crate) async fn flush(&self) {
        let (mark, written) = oneshot::channel();
        let flushed = async {
            let mut mark = Queued::Mark(mark);
            while let Err(TrySendError::Full(back)) = self.lines.try_send(mark) {
                mark = back;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // An error only means that there is no thread to wait for.
            let _ = written.await;
        };
        if tokio::time::timeout(FLUSH, flushed).await.is_err() {
            tracing::warn!("the audit log could not be written to its end");
        }
    }
}

struct Log {
    path: PathBuf,
    largest: u64,
    file: Option<File>,
    size: u64,
}

impl Log {
    fn run(mut self, queue: &Receiver<Queued>, dropped: &AtomicU64) {
        let (mut reported, mut failing) = (0, false);
        while let Ok(queued) = queue.recv() {
            let line = match queued {
                Queued::Line(line) => line,
                Queued::Mark(mark) => {
                    // An error only means that the wait has ended.
                    let _ = mark.send(());
                    continue;
                }
            };
            let lost = dropped.load(Ordering::Relaxed);
            let mut text = String::new();
            if lost > reported {
                text = format!("{}\n", json!({"dropped": lost - reported}));
            }
            text.push_str(&format!("{line}\n"));
            match self.append(text.as_bytes()) {
                Ok(()) => (reported, failing) = (lost, false),
                Err(error) => {
                    dropped.fetch_add(1, Ordering::Relaxed);
                    // Logged once, not for every line.
                    if !std::mem::replace(&mut failing, true) {
                        tracing::error!(path = %self.path.display(), %error, "writing the audit log failed");
                    }
                }
            }
        }
    }

    fn open(&mut self) -> io::Result<&mut File> {
        let file = File::options().create(true).append(true).mode(0o600).open(&self.path)?;
        self.size = file.metadata()?.len();
        Ok(self.file.insert(file))
    }

    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        if self.file.is_some() && self.size + text.len() as u64 > self.largest {
            self.file = None;
            self.rotate()?;
        }
        let written = match &mut self.file {
            Some(file) => file.write_all(text),
            None => self.open()?.write_all(text),
        };
        match written {
            Ok(()) => self.size += text.len() as u64,
            // The next line opens the file anew, whatever the error was. On a full disk a part of this one may have been written, to
            // which the next one would be joined.
            Err(_) => self.cut(),
        }
        written
    }

    /// Closes the file and removes what follows its last whole line.
    fn cut(&mut self) {
        if let Some(file) = self.file.take() {
            // Where this fails too, two lines are joined.
            let _ = file.set_len(self.size);
        }
    }

    /// Moves the file away, and only then those before it: as long as it cannot be moved, none of them is lost.
    fn rotate(&self) -> io::Result<()> {
        let moved = self.beside("new");
        // Left by a rotation that was not finished.
        if moved.exists() {
            self.shift(&moved)?;
        }
        match fs::rename(&self.path, &moved) {
            // Something else has moved or removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(()) => self.shift(&moved),
        }
    }

    /// Makes a file the newest of the kept ones, of which the oldest is removed.
    fn shift(&self, newest: &Path) -> io::Result<()> {
        let numbered = |number: u32| self.beside(&number.to_string());
        for number in (1..KEPT).rev() {
            match fs::rename(numbered(number), numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(newest, numbered(1))
    }

    /// Returns the path with one more extension.
    fn beside(&self, extension: &str) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(format!(".{extension}"));
        PathBuf::from(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_queued_is_written_before_the_server_stops() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = Audit::open(&path).unwrap();
        for n in 0..2_000 {
            audit.tell(json!({"n": n}));
        }
        audit.flush().await;
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2_000);
    }

    #[tokio::test]
    async fn unauthenticated_requests_do_not_push_out_the_lines_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = Audit::open(&path).unwrap();
        (0..1_000).for_each(|n| audit.tell_unauthenticated(json!({"n": n})));
        audit.tell(json!({"n": "known"}));
        audit.unauthenticated.lock().unwrap().lines = 0;
        audit.tell_unauthenticated(json!({"n": "later"}));
        audit.flush().await;
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), MAX_UNAUTHENTICATED as usize + 2);
        assert_eq!(lines[lines.len() - 2], json!({"n": "known"}));
        assert_eq!(lines[lines.len() - 1], json!({"n": "later", "omitted": 900}));
    }

    #[test]
    fn a_part_of_a_line_that_could_not_be_written_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        fs::write(&path, "{}\n{\"par").unwrap();
        let mut log = Log { path: path.clone(), largest: 1000, file: None, size: 0 };
        log.open().unwrap();
        // As after a write on a full disk, which wrote a part of the line.
        log.size = 3;
        log.cut();
        log.append(b"{\"next\":1}\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}\n{\"next\":1}\n");
    }

    #[test]
    fn a_file_that_cannot_be_moved_away_costs_none_of_those_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log { path: folder.path().join("audit.log"), largest: 1000, file: None, size: 0 };
        let kept = |number: u32| fs::read_to_string(log.beside(&number.to_string())).ok();
        fs::write(log.beside("1"), "older").unwrap();
        log.rotate().unwrap();
        assert_eq!((kept(1).as_deref(), kept(2)), (Some("older"), None), "there is nothing to move");
        fs::write(log.beside("new"), "left").unwrap();
        log.rotate().unwrap();
        assert_eq!((kept(1).as_deref(), kept(2).as_deref()), (Some("left"), Some("older")));
    }

    #[test]
    fn the_log_is_rotated_bounded_and_loses_no_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = Audit::with_limit(&path, 1000).unwrap();
        let lines = |path: &Path| -> Vec<u64> {
            let text = fs::read_to_string(path).unwrap_or_default();
            text.lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap()["n"].as_u64().unwrap())
                .collect()
        };
        let written = |last: u64| {
            let end = Instant::now() + Duration::from_secs(60);
            while lines(&path).last() != Some(&last) {
                assert!(Instant::now() < end, "line {last} is not written");
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        for n in 0..400_u64 {
            audit.tell(json!({"n": n, "pad": "x".repeat(20)}));
            if n % 100 == 99 {
                written(n);
            }
        }
        let all: Vec<PathBuf> =
            (1..=KEPT).rev().map(|n| folder.path().join(format!("audit.log.{n}"))).collect();
        let kept: Vec<u64> = all.iter().chain([&path]).flat_map(|path| lines(path)).collect();
        assert_eq!(kept, (400 - kept.len() as u64..400).collect::<Vec<_>>(), "the newest, without a gap");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), KEPT as usize + 1);
        for file in all {
            assert!(fs::metadata(file).unwrap().len() <= 1000);
        }
    }
}
