//! A record of the writes, and of the events that a watch has delivered for them. No I/O.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

/// The number of objects per writer, used in turn.
const NAMES: usize = 8;

/// The stored state of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) revision: u64,
    pub(super) value: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Put { value: u64 },
    Gone,
}

/// A write that was made. The response to a deletion does not contain its revision.
#[derive(Debug, Clone, Copy)]
struct Made {
    change: Change,
    revision: Option<u64>,
}

/// An event of a watch.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) revision: u64,
    pub(super) change: Change,
}

/// The record of one writer, which is the only one to write its objects.
#[derive(Debug)]
pub(super) struct Writer {
    names: Vec<String>,
    next: usize,
    value: u64,
    stored: BTreeMap<String, Stored>,
    made: BTreeMap<String, Vec<Made>>,
    under_way: Option<(String, Change)>,
}

impl Writer {
    /// The next write: an object is created, changed a few times, deleted.
    pub(super) fn begin(&mut self) -> (String, Option<Stored>, Change) {
        let name = self.names[self.next % NAMES].clone();
        self.next += 1;
        self.value += 1;
        let stored = self.stored.get(&name).copied();
        let change = match stored {
            Some(_) if (self.next / NAMES).is_multiple_of(4) => Change::Gone,
            _ => Change::Put { value: self.value },
        };
        self.under_way = Some((name.clone(), change));
        (name, stored, change)
    }

    /// Records an acknowledged write: a new state with its revision.
    pub(super) fn acknowledged(&mut self, revision: Option<u64>) -> Result<()> {
        let (name, change) = self.under_way.take().context("nothing was under way")?;
        self.made(name, change, revision)
    }

    fn made(&mut self, name: String, change: Change, revision: Option<u64>) -> Result<()> {
        match change {
            Change::Gone => drop(self.stored.remove(&name)),
            Change::Put { value } => {
                let revision = revision.context("a write without a revision")?;
                self.stored.insert(name.clone(), Stored { revision, value });
            }
        }
        self.made.entry(name).or_default().push(Made { change, revision });
        Ok(())
    }
}

/// The record of one control plane.
#[derive(Debug)]
pub(super) struct Book {
    writers: Vec<Writer>,
    /// The last revision that the watch delivered, or its first one.
    delivered: Option<u64>,
    seen: BTreeMap<String, Vec<Seen>>,
}

impl Book {
    pub(super) fn new(writers: usize) -> Self {
        let writer = |number| Writer {
            names: (0..NAMES).map(|name| format!("w{number}-{name}")).collect(),
            next: 0,
            value: 0,
            stored: BTreeMap::new(),
            made: BTreeMap::new(),
            under_way: None,
        };
        Self { writers: (0..writers).map(writer).collect(), delivered: None, seen: BTreeMap::new() }
    }

    pub(super) fn writers(&mut self) -> impl Iterator<Item = &mut Writer> {
        self.writers.iter_mut()
    }

    /// The revision from which the watch continues.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered.unwrap_or_default()
    }

    /// Compares the stored objects with the record. Returns how many writes in progress were made and how many were not.
    pub(super) fn settle(&mut self, revision: u64, there: &BTreeMap<String, Stored>) -> Result<(u64, u64)> {
        self.delivered.get_or_insert(revision);
        ensure!(revision >= self.delivered(), "revision {revision} after {} was delivered", self.delivered());
        let mut revisions: Vec<u64> = there.values().map(|stored| stored.revision).collect();
        revisions.sort_unstable();
        ensure!(
            revisions.windows(2).all(|pair| pair[0] < pair[1]),
            "a revision was given out twice: {there:?}"
        );
        let (mut applied, mut not_applied) = (0, 0);
        for writer in &mut self.writers {
            if let Some((name, change)) = writer.under_way.take() {
                let now = there.get(&name);
                let made = match change {
                    Change::Gone => now.is_none(),
                    Change::Put { value } => now.is_some_and(|now| now.value == value),
                };
                if made {
                    writer.made(name, change, now.map(|now| now.revision))?;
                    applied += 1;
                } else {
                    not_applied += 1;
                }
            }
            for name in &writer.names {
                let (known, found) = (writer.stored.get(name), there.get(name));
                ensure!(known == found, "{name}: acknowledged was {known:?}, there is {found:?}");
            }
        }
        Ok((applied, not_applied))
    }

    /// Records an event of the watch.
    pub(super) fn add_seen(&mut self, seen: Seen) -> Result<()> {
        ensure!(seen.revision > self.delivered(), "delivered after {}: {seen:?}", self.delivered());
        self.delivered = Some(seen.revision);
        self.seen.entry(seen.name.clone()).or_default().push(seen);
        Ok(())
    }

    fn made(&self) -> impl Iterator<Item = (&String, &Vec<Made>)> {
        self.writers.iter().flat_map(|writer| &writer.made)
    }

    /// Whether the watch has delivered as many events as there were writes.
    pub(super) fn is_delivered(&self) -> bool {
        self.made().all(|(name, made)| self.seen.get(name).map_or(0, Vec::len) >= made.len())
    }

    pub(super) fn undelivered(&self) -> String {
        let undelivered =
            self.made().find(|(name, made)| self.seen.get(*name).map_or(0, Vec::len) < made.len());
        undelivered.map_or_else(String::new, |(name, made)| format!("{name}, written {} times", made.len()))
    }

    /// Checks that every write was delivered once, in order, unchanged, and nothing else. Returns the number of events.
    pub(super) fn check_delivered(&self) -> Result<u64> {
        let mut events = 0;
        let made: BTreeMap<&String, &Vec<Made>> = self.made().collect();
        for (name, seen) in &self.seen {
            let Some(made) = made.get(name) else { bail!("{name} was never written: {seen:?}") };
            ensure!(
                seen.len() == made.len(),
                "{name}: written {} times, delivered {} times",
                made.len(),
                seen.len()
            );
            for (made, seen) in made.iter().zip(seen) {
                let same = made.change == seen.change && made.revision.is_none_or(|at| at == seen.revision);
                ensure!(same, "{made:?} was delivered as {seen:?}");
                events += 1;
            }
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(book: &mut Book, revision: u64) -> String {
        let writer = book.writers().next().expect("a writer");
        let (name, _, _) = writer.begin();
        writer.acknowledged(Some(revision)).expect("it was under way");
        name
    }

    fn there(name: &str, revision: u64, value: u64) -> BTreeMap<String, Stored> {
        [(name.to_owned(), Stored { revision, value })].into()
    }

    fn put(name: &str, revision: u64, value: u64) -> Seen {
        Seen { name: name.into(), revision, change: Change::Put { value } }
    }

    #[test]
    fn a_lost_write_is_noticed_and_so_is_an_old_state() {
        let mut book = Book::new(1);
        book.settle(5, &BTreeMap::new()).expect("nothing was written");
        let name = written(&mut book, 6);
        assert!(book.settle(6, &BTreeMap::new()).is_err(), "lost");
        assert!(book.settle(6, &there(&name, 7, 1)).is_err(), "under another revision");
        assert_eq!(book.settle(6, &there(&name, 6, 1)).expect("it is there"), (0, 0));
    }

    #[test]
    fn a_write_that_was_under_way_may_be_there_or_not() {
        let mut book = Book::new(1);
        let begin = |book: &mut Book| book.writers().next().expect("a writer").begin().0;
        let name = begin(&mut book);
        assert_eq!(book.settle(7, &there(&name, 7, 1)).expect("it may"), (1, 0));
        begin(&mut book);
        assert_eq!(book.settle(7, &there(&name, 7, 1)).expect("it may not"), (0, 1));
    }

    #[test]
    fn an_event_that_is_missed_repeated_or_made_up_is_noticed() {
        let mut book = Book::new(1);
        book.settle(5, &BTreeMap::new()).expect("nothing was written");
        let name = written(&mut book, 6);
        assert!(!book.is_delivered());
        book.add_seen(put(&name, 6, 1)).expect("the first time");
        assert!(book.is_delivered());
        assert_eq!(book.check_delivered().expect("all is delivered"), 1);
        assert!(book.add_seen(put(&name, 6, 1)).is_err(), "repeated");
        book.add_seen(put("other", 8, 1)).expect("a later one");
        assert!(book.check_delivered().is_err(), "made up");
    }
}
