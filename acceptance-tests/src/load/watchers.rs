//! Many watchers of the same objects: each is told everything, once, in order, even if it has to watch again on the way.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};

use super::STACK;
use super::writers::{Write, is_ours, revision_of, value_of};
use crate::access::Access;
use crate::measure::api::{Ended, Watch, name};

/// The object that ends a watch.
pub(super) const END: &str = "the-end";
/// Between two looks whether to wake up.
const SLEEP: Duration = Duration::from_millis(100);
/// How often a watcher may watch again: each time it is told something, or else there is no end.
const ATTEMPTS: usize = 10_000;

#[derive(Debug)]
struct Seen {
    name: String,
    value: Option<u64>,
    revision: u64,
}

/// What one watcher was told, and how often it had to watch again: because of a 410, or of anything else.
#[derive(Debug, Default)]
struct Story {
    seen: Vec<Seen>,
    expired: u64,
    broken: u64,
}

/// They run until they are told of [`END`].
#[derive(Debug)]
pub(super) struct Watchers {
    threads: Vec<JoinHandle<Result<Story>>>,
    awake: Arc<AtomicBool>,
}

/// Starts so many, from now on. The first few do not read before they are woken.
pub(super) fn start(access: &Access, path: &str, count: usize, sleepers: usize) -> Result<Watchers> {
    let list = access.connect()?.read(&format!("{path}?limit=1"))?;
    let from = revision_of(&list)?;
    let awake = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for number in 0..count {
        let (access, path) = (access.clone(), path.to_owned());
        let watch = access.connect()?.watch_from(&path, &from.to_string())?;
        let sleepy = number < sleepers;
        let thread = std::thread::Builder::new().stack_size(STACK);
        let awake = Arc::clone(&awake);
        threads.push(thread.spawn(move || {
            while sleepy && !awake.load(Ordering::Relaxed) {
                std::thread::sleep(SLEEP);
            }
            follow(&access, &path, from, watch)
        })?);
    }
    Ok(Watchers { threads, awake })
}

fn follow(access: &Access, path: &str, from: u64, mut watch: Watch) -> Result<Story> {
    let (mut story, mut last) = (Story::default(), from);
    for _ in 0..ATTEMPTS {
        let ended = loop {
            let event = match watch.next_event() {
                Ok(event) => event,
                Err(ended) => break ended,
            };
            let revision = revision_of(&event.object)?;
            ensure!(revision > last, "told of {revision} after {last}");
            last = revision;
            let name = name(&event.object).to_owned();
            if name == END {
                return Ok(story);
            }
            if is_ours(&name) {
                let value = if event.gone { None } else { Some(value_of(&event.object)?) };
                story.seen.push(Seen { name, value, revision });
            }
        };
        match ended.downcast_ref::<Ended>() {
            Some(Ended(status)) if status["code"] == 410 => story.expired += 1,
            Some(ended) => bail!("{ended}"),
            // The time of a watch was over, or its connection.
            None => story.broken += 1,
        }
        // From where it was.
        watch = access.connect()?.watch_from(path, &last.to_string())?;
    }
    bail!("watched {ATTEMPTS} times and has not seen the end")
}

impl Watchers {
    /// Those that do not read begin to.
    pub(super) fn wake(&self) {
        self.awake.store(true, Ordering::Relaxed);
    }

    /// Compares what each was told with what was made.
    pub(super) fn check(self, made: &[Write]) -> Result<Told> {
        let mut wanted: HashMap<&str, Vec<&Write>> = HashMap::new();
        for write in made {
            wanted.entry(&write.name).or_default().push(write);
        }
        let mut told = Told::default();
        for watcher in self.threads {
            let Story { seen, expired, broken } =
                watcher.join().map_err(|_| anyhow!("a watcher panicked"))??;
            ensure!(seen.len() == made.len(), "told of {} events, {} happened", seen.len(), made.len());
            let mut next: HashMap<&str, usize> = HashMap::new();
            for event in &seen {
                let at = next.entry(&event.name).or_default();
                let write = wanted.get(event.name.as_str()).and_then(|writes| writes.get(*at));
                let same = write.is_some_and(|write| {
                    write.value == event.value && write.revision.is_none_or(|known| known == event.revision)
                });
                ensure!(same, "told {event:?}, made was {write:?}");
                *at += 1;
            }
            told.events += seen.len() as u64;
            told.expired += expired;
            told.broken += broken;
        }
        Ok(told)
    }
}

/// What watchers were told, together. All of it is right: anything else is an error.
#[derive(Debug, Clone, Copy, Default)]
pub struct Told {
    /// Events.
    pub events: u64,
    /// Watches that ended with 410 and were begun again where they had been.
    pub expired: u64,
    /// Those that ended in another way.
    pub broken: u64,
}
