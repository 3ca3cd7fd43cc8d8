//! Many watchers of the same objects: each receives every event, once, in order, even if it has to restart its watch.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};

use super::STACK;
use super::writers::{Write, is_ours, revision_of, value_of};
use crate::access::Access;
use crate::api::{Ended, Watch, name};

/// The object that ends a watch.
pub(super) const END: &str = "the-end";
/// The interval at which a sleeping watcher checks whether to wake up.
const SLEEP: Duration = Duration::from_millis(100);
/// The maximum number of watches per watcher: each must deliver an event, or the loop would not end.
const ATTEMPTS: usize = 10_000;

#[derive(Debug)]
struct Seen {
    name: String,
    value: Option<u64>,
    revision: u64,
}

/// The events that one watcher received, and the number of restarts: because of a 410, or of another reason.
#[derive(Debug, Default)]
struct Delivered {
    seen: Vec<Seen>,
    expired: u64,
    broken: u64,
}

/// Watchers that run until they receive [`END`].
#[derive(Debug)]
pub(super) struct Watchers {
    threads: Vec<JoinHandle<Result<Delivered>>>,
    awake: Arc<AtomicBool>,
}

/// Starts `count` watchers, from now on. The first `sleepers` do not read before `Self::wake`.
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

fn follow(access: &Access, path: &str, from: u64, mut watch: Watch) -> Result<Delivered> {
    let (mut delivered, mut last) = (Delivered::default(), from);
    for _ in 0..ATTEMPTS {
        let ended = loop {
            let event = match watch.next_event() {
                Ok(event) => event,
                Err(ended) => break ended,
            };
            let revision = revision_of(&event.object)?;
            ensure!(revision > last, "delivered {revision} after {last}");
            last = revision;
            let name = name(&event.object).to_owned();
            if name == END {
                return Ok(delivered);
            }
            if is_ours(&name) {
                let value = if event.gone { None } else { Some(value_of(&event.object)?) };
                delivered.seen.push(Seen { name, value, revision });
            }
        };
        match ended.downcast_ref::<Ended>() {
            Some(Ended(status)) if status["code"] == 410 => delivered.expired += 1,
            Some(ended) => bail!("{ended}"),
            // The watch or its connection has ended.
            None => delivered.broken += 1,
        }
        // Continues at the last revision.
        watch = access.connect()?.watch_from(path, &last.to_string())?;
    }
    bail!("watched {ATTEMPTS} times and has not seen the end")
}

impl Watchers {
    /// Makes the sleeping watchers read.
    pub(super) fn wake(&self) {
        self.awake.store(true, Ordering::Relaxed);
    }

    /// Compares the events that each watcher received with the writes.
    pub(super) fn check(self, made: &[Write]) -> Result<Totals> {
        let mut wanted: HashMap<&str, Vec<&Write>> = HashMap::new();
        for write in made {
            wanted.entry(&write.name).or_default().push(write);
        }
        let mut output = Totals::default();
        for watcher in self.threads {
            let Delivered { seen, expired, broken } =
                watcher.join().map_err(|_| anyhow!("a watcher panicked"))??;
            ensure!(seen.len() == made.len(), "delivered {} events of {}", seen.len(), made.len());
            let mut next: HashMap<&str, usize> = HashMap::new();
            for event in &seen {
                let at = next.entry(&event.name).or_default();
                let write = wanted.get(event.name.as_str()).and_then(|writes| writes.get(*at));
                let same = write.is_some_and(|write| {
                    write.value == event.value && write.revision.is_none_or(|known| known == event.revision)
                });
                ensure!(same, "delivered {event:?}, written was {write:?}");
                *at += 1;
            }
            output.events += seen.len() as u64;
            output.expired += expired;
            output.broken += broken;
        }
        Ok(output)
    }
}

/// The events that all watchers received together. All of them are correct: anything else is an error.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// The number of events.
    pub events: u64,
    /// The number of watches that ended with 410 and were resumed where they had been.
    pub expired: u64,
    /// The number of watches that ended for another reason.
    pub broken: u64,
}
