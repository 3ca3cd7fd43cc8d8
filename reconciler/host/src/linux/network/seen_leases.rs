//! The leases of private networks as they were last read: when each was taken.
//!
//! dnsmasq records when a lease ends, and not when it began. A guest that asks for a shorter lease than it is offered gets a shorter one,
//! which seems to have begun earlier than it did. It began after the last read in which it had another end: that is kept, in a file for an
//! agent that starts later.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::Result;
use super::records_file::RecordsFile;
use crate::LeaseTaken;

/// A lease that seems to have begun this long ago is over.
const KEPT: SignedDuration = SignedDuration::from_secs(13 * 3600);

/// The leases by bridge.
#[derive(Debug)]
pub(super) struct SeenLeases {
    file: RecordsFile<Record>,
    seen: Mutex<BTreeMap<String, Seen>>,
}

/// The leases of a bridge.
#[derive(Debug, Default)]
struct Seen {
    /// The last read by this agent.
    read_at: Option<Timestamp>,
    leases: BTreeMap<(String, IpAddr), Begin>,
}

/// When a lease began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Begin {
    /// By its end, if it has the length that it was offered.
    seeming: Timestamp,
    /// At the earliest.
    earliest: Timestamp,
}

/// A lease in the file: of those that began later than they seem to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    bridge: String,
    mac: String,
    address: IpAddr,
    seeming: Timestamp,
    earliest: Timestamp,
}

impl SeenLeases {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            file: RecordsFile::new(path, "the file with the shorter leases of guests"),
            seen: Mutex::default(),
        }
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<String, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the leases of a bridge with the times at which they were taken. `now`: before they were listed.
    pub(super) async fn taken(
        &self,
        bridge: &str,
        listed: Vec<LeaseTaken>,
        now: Timestamp,
    ) -> Result<Vec<LeaseTaken>> {
        self.file.read(|records| self.load(records)).await?;
        let (taken, records) = {
            let mut seen = self.seen();
            let taken = seen.entry(bridge.to_owned()).or_default().read(listed, now);
            (taken, records_of(&seen))
        };
        self.file.write(records).await;
        Ok(taken)
    }

    /// Forgets the leases of a bridge that is removed.
    pub(super) async fn forget(&self, bridge: &str) -> Result<()> {
        self.file.read(|records| self.load(records)).await?;
        let records = {
            let mut seen = self.seen();
            seen.remove(bridge);
            records_of(&seen)
        };
        self.file.write(records).await;
        Ok(())
    }

    fn load(&self, records: &[Record]) {
        let mut seen = self.seen();
        for Record { bridge, mac, address, seeming, earliest } in records {
            let begin = Begin { seeming: *seeming, earliest: *earliest };
            seen.entry(bridge.clone()).or_default().leases.insert((mac.clone(), *address), begin);
        }
    }
}

impl Seen {
    fn read(&mut self, listed: Vec<LeaseTaken>, now: Timestamp) -> Vec<LeaseTaken> {
        // dnsmasq may be writing its file: leases that it lacks may be there again at the next read.
        self.leases.retain(|_, begin| now.duration_since(begin.seeming) < KEPT);
        // dnsmasq records whole seconds.
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let before = self.read_at.replace(now);
        let mut taken = Vec::with_capacity(listed.len());
        for lease in listed {
            let seeming = lease.taken_at;
            let begin = Begin { seeming, earliest: before.map_or(seeming, |before| before.max(seeming)) };
            let known = self.leases.entry((lease.mac.clone(), lease.address)).or_insert(begin);
            if known.seeming != seeming {
                // Of one guest, the lease with another end is the later one, also if it was renewed while no agent ran.
                *known = Begin { earliest: begin.earliest.max(known.earliest), ..begin };
            }
            taken.push(LeaseTaken { taken_at: known.earliest, ..lease });
        }
        taken
    }
}

fn records_of(seen: &BTreeMap<String, Seen>) -> Vec<Record> {
    let mut records = Vec::new();
    for (bridge, of_bridge) in seen {
        for ((mac, address), begin) in &of_bridge.leases {
            if begin.earliest > begin.seeming {
                records.push(Record {
                    bridge: bridge.clone(),
                    mac: mac.clone(),
                    address: *address,
                    seeming: begin.seeming,
                    earliest: begin.earliest,
                });
            }
        }
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIDGE: &str = "bth-00004d";
    const START: i64 = 1_000_000;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    /// A lease that ends at this time, as if it had the length that is offered.
    fn ends(second: i64) -> LeaseTaken {
        let address = IpAddr::from([10, 77, 0, 2]);
        LeaseTaken { mac: "52:54:00:00:00:01".to_owned(), address, taken_at: at(second - 12 * 3600) }
    }

    fn times(taken: &[LeaseTaken]) -> Vec<i64> {
        taken.iter().map(|lease| lease.taken_at.as_second()).collect()
    }

    #[test]
    fn a_lease_that_is_shorter_than_offered_was_taken_after_the_read_before_it() {
        let mut seen = Seen::default();
        assert!(seen.read(Vec::new(), at(START)).is_empty());
        let hour = || vec![ends(START + 5 + 3600)];
        assert_eq!(times(&seen.read(hour(), at(START + 10))), [START]);
        assert_eq!(times(&seen.read(hour(), at(START + 20))), [START], "the same lease");
        assert!(seen.read(Vec::new(), at(START + 30)).is_empty(), "its file is being written");
        assert_eq!(times(&seen.read(hour(), at(START + 40))), [START]);
        let renewed = vec![ends(START + 1800 + 3600)];
        assert_eq!(times(&seen.read(renewed, at(START + 1900))), [START + 40]);
        let full = vec![ends(START + 2000 + 12 * 3600)];
        assert_eq!(times(&seen.read(full, at(START + 2100))), [START + 2000], "as long as offered");
    }

    #[test]
    fn a_lease_that_was_there_at_the_first_read_may_be_that_of_an_earlier_boot() {
        let mut seen = Seen::default();
        let lease = ends(START + 3600);
        let seeming = lease.taken_at.as_second();
        assert_eq!(times(&seen.read(vec![lease.clone()], at(START))), [seeming]);
        assert_eq!(times(&seen.read(vec![lease], at(START + 10))), [seeming]);
    }

    #[tokio::test]
    async fn an_agent_that_starts_later_knows_when_a_short_lease_was_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("seen.json");
        let first = SeenLeases::new(path.clone());
        first.taken(BRIDGE, Vec::new(), at(START)).await.expect("read");
        assert!(!path.exists(), "there is nothing to keep");
        let lease = || vec![ends(START + 3600)];
        assert_eq!(times(&first.taken(BRIDGE, lease(), at(START + 10)).await.expect("read")), [START]);
        let second = SeenLeases::new(path.clone());
        assert_eq!(times(&second.taken(BRIDGE, lease(), at(START + 60)).await.expect("read")), [START]);
        let third = SeenLeases::new(path.clone());
        let renewed = vec![ends(START + 1800 + 3600)];
        let taken = third.taken(BRIDGE, renewed, at(START + 1900)).await.expect("read");
        assert_eq!(times(&taken), [START], "renewed while no agent ran: not before the one that was seen");
        third.forget(BRIDGE).await.expect("forgotten");
        assert!(!path.exists());
    }
}
