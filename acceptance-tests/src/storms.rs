//! `kill -9` amid writes, over and over: what was acknowledged is there, once, and a watch misses and repeats nothing.
//!
//! ```text
//! start ─▶ what is there is what is known ─▶ watch from the last revision, write ─▶ kill at a random moment ─▶ start …
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

/// Clients that write at the same time.
const WRITERS: usize = 6;
/// The longest a server is left alone.
const CALM: Duration = Duration::from_millis(800);
/// One start in so many is killed before it is ready.
const EARLY: u64 = 5;
/// How long a start may take.
const START: Duration = Duration::from_secs(60);
/// How long a watch may take to tell what was written.
const CATCH_UP: Duration = Duration::from_secs(60);

/// How much of it.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Control planes that are killed at the same time.
    pub servers: u16,
    /// Rounds of each at most.
    pub rounds: u32,
    /// It ends after this even if there are rounds left.
    pub limit: Duration,
    /// Of the random moments.
    pub seed: u64,
}

/// What was seen. Nothing that is wrong is in it: that is an error.
#[derive(Debug, Clone, Copy, Default)]
pub struct Findings {
    /// Times a server was killed while it was written to.
    pub kills: u32,
    /// Times one was killed while it started.
    pub early_kills: u32,
    /// Writes that were acknowledged.
    pub acknowledged: u64,
    /// Writes that were under way when a server was killed, and are there.
    pub applied: u64,
    /// Those that are not.
    pub not_applied: u64,
    /// Events the watches told.
    pub told: u64,
    /// The longest from starting to being ready.
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
            told: self.told + other.told,
            slowest_start: self.slowest_start.max(other.slowest_start),
        }
    }
}

impl std::fmt::Display for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "killed {} times amid writes and {} times while starting; {} writes acknowledged, {} and {} under way when \
             killed that are there and are not; {} events told; slowest start {:.1?}",
            self.kills,
            self.early_kills,
            self.acknowledged,
            self.applied,
            self.not_applied,
            self.told,
            self.slowest_start
        )
    }
}

/// Runs it.
///
/// # Errors
/// The first thing that is wrong: a write that is lost or there twice, an event that is missed, repeated or made up.
pub fn run(size: Size, berth: &Path, logs: &Path) -> Result<Findings> {
    std::fs::create_dir_all(logs)?;
    let namespace = Namespace::new()?;
    let end = Instant::now() + size.limit.min(wait::time_left());
    std::thread::scope(|scope| {
        let storms: Vec<_> = (0..size.servers)
            .map(|number| {
                let namespace = Arc::clone(&namespace);
                scope.spawn(move || {
                    let mut storm = Storm::new(berth, logs, &namespace, number, size.seed)?;
                    storm.rage(size.rounds, end)
                })
            })
            .collect();
        let ends = storms.into_iter().map(|storm| storm.join().map_err(|_| anyhow!("a storm panicked"))?);
        ends.collect::<Result<Vec<Findings>>>()
            .map(|all| all.into_iter().fold(Findings::default(), Findings::and))
    })
}

struct Storm<'a> {
    berth: &'a Path,
    log: std::path::PathBuf,
    folder: Scratch,
    namespace: Arc<Namespace>,
    listen: String,
    random: Random,
    book: Book,
    found: Findings,
}

impl<'a> Storm<'a> {
    fn new(berth: &'a Path, logs: &Path, namespace: &Arc<Namespace>, number: u16, seed: u64) -> Result<Self> {
        let log = logs.join(format!("up-{number}.log"));
        // Of an earlier run.
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

    fn rage(&mut self, rounds: u32, end: Instant) -> Result<Findings> {
        for round in 0..rounds {
            if Instant::now() >= end || undo::interrupted() {
                break;
            }
            self.round().with_context(|| format!("round {round}, {}", self.log.display()))?;
        }
        let (daemon, plane) = self.start()?;
        self.settle(&plane)?;
        let mut watch = plane.watch(self.book.told())?;
        let until = Instant::now() + CATCH_UP;
        while !self.book.is_told() {
            ensure!(Instant::now() < until, "the watch does not tell: {}", self.book.untold());
            let seen = watch.next_seen()?;
            self.book.tell(seen)?;
        }
        drop(watch);
        self.found.told = self.book.check_told()?;
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
        let told = book.told();
        let (seen, outcomes) = std::thread::scope(|scope| -> Result<_> {
            let watcher = scope.spawn(|| -> Result<Vec<Seen>> {
                let mut watch = plane.watch(told)?;
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
        // A watch that was not yet open when the server went has told nothing.
        for one in seen.unwrap_or_default() {
            book.tell(one)?;
        }
        Ok(())
    }

    /// What is there must be what was acknowledged, or what was under way.
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

/// xorshift64: repeatable, and good enough for moments.
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
