//! `kill -9` during writes, repeatedly: every acknowledged write is stored, once, and a watch neither misses nor repeats an
//! event.
//!
//! ```text
//! start ─▶ stored objects match the record ─▶ watch from the last revision, write ─▶ kill at a random moment ─▶ start …
//! ```

mod book;
mod client;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::namespace::Namespace;
use crate::process::Daemon;
use crate::scratch::Scratch;
use crate::{undo, wait};
use book::{Book, Seen};
use client::Plane;

/// The number of concurrent writers.
const WRITERS: usize = 6;
/// The longest time before a server is killed.
const CALM: Duration = Duration::from_millis(800);
/// One in this many starts is killed before it is ready.
const EARLY: u64 = 5;
/// The time limit of a start.
const START: Duration = Duration::from_secs(60);
/// The time limit until a watch has delivered all writes.
const CATCH_UP: Duration = Duration::from_secs(60);

/// The size of the run.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// The number of control planes that are killed concurrently.
    pub servers: u16,
    /// The maximum number of rounds per control plane.
    pub rounds: u32,
    /// The time after which the run ends, even with rounds left.
    pub limit: Duration,
    /// The seed of the random moments.
    pub seed: u64,
}

/// The results. Violations are errors and not part of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Findings {
    /// The number of kills during writes.
    pub kills: u32,
    /// The number of kills during a start.
    pub early_kills: u32,
    /// The number of acknowledged writes.
    pub acknowledged: u64,
    /// The number of writes that were in progress at a kill and are stored.
    pub applied: u64,
    /// The number of writes that were in progress at a kill and are not stored.
    pub not_applied: u64,
    /// The number of events that the watches delivered.
    pub delivered: u64,
    /// The longest time from start to readiness.
    pub slowest_start: Duration,
}

impl Findings {
    fn and(self, other: Self) -> Self {
        Self {
            kills: self.kills + other.kills,
            early_kills: self.early_kills + other.early_kills,
            acknowledged: self.acknowledged + other.acknowledged,
            applied: self.applied + other.applied,
            not_applied: self.not_applied + other.not_applied,
            delivered: self.delivered + other.delivered,
            slowest_start: self.slowest_start.max(other.slowest_start),
        }
    }
}

impl std::fmt::Display for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "killed {} times amid writes and {} times while starting; {} writes acknowledged, {} and {} under way when \
             killed that are there and are not; {} events delivered; slowest start {:.1?}",
            self.kills,
            self.early_kills,
            self.acknowledged,
            self.applied,
            self.not_applied,
            self.delivered,
            self.slowest_start
        )
    }
}

/// Runs the crash tests.
///
/// # Errors
/// The first violation: a write that is lost or stored twice, an event that is missed, repeated or without a write.
pub fn run(size: Size, berth: &Path, logs: &Path) -> Result<Findings> {
    std::fs::create_dir_all(logs)?;
    let namespace = Namespace::new()?;
    let end = Instant::now() + size.limit.min(wait::time_left());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size.servers)
            .map(|number| {
                let namespace = Arc::clone(&namespace);
                scope.spawn(move || {
                    let mut test = CrashTest::new(berth, logs, &namespace, number, size.seed)?;
                    test.run(size.rounds, end)
                })
            })
            .collect();
        let ends =
            threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a crash test panicked"))?);
        ends.collect::<Result<Vec<Findings>>>()
            .map(|all| all.into_iter().fold(Findings::default(), Findings::and))
    })
}

struct CrashTest<'a> {
    berth: &'a Path,
    log: std::path::PathBuf,
    folder: Scratch,
    namespace: Arc<Namespace>,
    listen: String,
    random: Random,
    book: Book,
    found: Findings,
}

impl<'a> CrashTest<'a> {
    fn new(berth: &'a Path, logs: &Path, namespace: &Arc<Namespace>, number: u16, seed: u64) -> Result<Self> {
        let log = logs.join(format!("up-{number}.log"));
        // From an earlier run.
        let _ = std::fs::remove_file(&log);
        Ok(Self {
            berth,
            log,
            folder: Scratch::new()?,
            namespace: Arc::clone(namespace),
            listen: format!("127.0.0.1:{}", 7443 + number),
            random: Random(seed ^ (u64::from(number) << 32) | 1),
            book: Book::new(WRITERS),
            found: Findings::default(),
        })
    }

    fn run(&mut self, rounds: u32, end: Instant) -> Result<Findings> {
        for round in 0..rounds {
            if Instant::now() >= end || undo::interrupted() {
                break;
            }
            self.round().with_context(|| format!("round {round}, {}", self.log.display()))?;
        }
        let (daemon, plane) = self.start()?;
        self.settle(&plane)?;
        let mut watch = plane.watch(self.book.delivered())?;
        let until = Instant::now() + CATCH_UP;
        while !self.book.is_delivered() {
            ensure!(Instant::now() < until, "the watch has not delivered: {}", self.book.undelivered());
            let seen = watch.next_seen()?;
            self.book.add_seen(seen)?;
        }
        drop(watch);
        self.found.delivered = self.book.check_delivered()?;
        daemon.crash()?;
        Ok(self.found)
    }

    fn round(&mut self) -> Result<()> {
        if self.random.next().is_multiple_of(EARLY) {
            let daemon = self.spawn()?;
            std::thread::sleep(self.random.below(CALM));
            daemon.crash()?;
            self.found.early_kills += 1;
        }
        let (daemon, plane) = self.start()?;
        self.settle(&plane)?;
        let calm = self.random.below(CALM);
        let mut daemon = Some(daemon);
        let (book, found) = (&mut self.book, &mut self.found);
        let delivered = book.delivered();
        let (seen, outcomes) = std::thread::scope(|scope| -> Result<_> {
            let watcher = scope.spawn(|| -> Result<Vec<Seen>> {
                let mut watch = plane.watch(delivered)?;
                let mut all = Vec::new();
                // Until the server is gone.
                while let Ok(seen) = watch.next_seen() {
                    all.push(seen);
                }
                Ok(all)
            });
            let plane = &plane;
            let writers: Vec<_> =
                book.writers().map(|writer| scope.spawn(move || plane.write_until_gone(writer))).collect();
            std::thread::sleep(calm);
            daemon.take().context("it was started")?.crash()?;
            let joined =
                writers.into_iter().map(|one| one.join().map_err(|_| anyhow!("a writer panicked"))?);
            let outcomes = joined.collect::<Result<Vec<_>>>()?;
            Ok((watcher.join().map_err(|_| anyhow!("the watcher panicked"))?, outcomes))
        })?;
        found.kills += 1;
        found.acknowledged += outcomes.iter().sum::<u64>();
        // A watch that was not open yet when the server ended has delivered nothing.
        for one in seen.unwrap_or_default() {
            book.add_seen(one)?;
        }
        Ok(())
    }

    /// Checks that the stored objects match the writes that were acknowledged or in progress.
    fn settle(&mut self, plane: &Plane) -> Result<()> {
        let (revision, objects) = plane.list()?;
        let (applied, not_applied) = self.book.settle(revision, &objects)?;
        self.found.applied += applied;
        self.found.not_applied += not_applied;
        Ok(())
    }

    fn spawn(&self) -> Result<Daemon> {
        let mut up = self.namespace.command(self.berth);
        up.args(["up", "--no-agent", "--listen", &self.listen, "--state-dir"]).arg(self.folder.path());
        up.env("BERTH_LOG", "warn");
        Daemon::spawn("berth up --no-agent", &mut up, &self.log)
    }

    fn start(&mut self) -> Result<(Daemon, Plane)> {
        let begun = Instant::now();
        let mut daemon = self.spawn()?;
        let kubeconfig = self.folder.path().join("admin.kubeconfig");
        let plane = wait::until("the control plane", START, || {
            daemon.must_run()?;
            Plane::open(&kubeconfig, &self.namespace)
        })?;
        self.found.slowest_start = self.found.slowest_start.max(begun.elapsed());
        Ok((daemon, plane))
    }
}

/// xorshift64: repeatable, and random enough for this purpose.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: Duration) -> Duration {
        limit.mul_f64((self.next() % 1000) as f64 / 1000.0)
    }
}
