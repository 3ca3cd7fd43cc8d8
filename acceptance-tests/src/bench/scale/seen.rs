//! The progress of VMs and disks, from two watches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::Value;

use super::client::Plane;
use crate::api::{self, Kind};
use crate::{undo, wait};

/// The interval at which a wait checks other reasons to end.
const GLANCE: Duration = Duration::from_millis(500);

/// The last observed state.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// VM → its host.
    pub bound: BTreeMap<String, String>,
    /// VMs that are `Ready`.
    pub vms: BTreeSet<String>,
    /// Disks that are `Ready` and in use.
    pub disks: BTreeSet<String>,
    /// The last reason of a VM for not being ready, for the error when there is no progress.
    pub last_word: String,
}

impl Seen {
    /// The number of VMs per host, fewest and most.
    pub fn spread(&self) -> (usize, usize) {
        let mut hosts: BTreeMap<&str, usize> = BTreeMap::new();
        for host in self.bound.values() {
            *hosts.entry(host).or_default() += 1;
        }
        (hosts.values().min().copied().unwrap_or(0), hosts.values().max().copied().unwrap_or(0))
    }

    /// The number of hosts with a VM.
    pub fn hosts(&self) -> usize {
        self.bound.values().collect::<BTreeSet<_>>().len()
    }

    fn vm(&mut self, vm: &Value) {
        let name = api::name(vm).to_owned();
        if let Some(host) = vm["status"]["binding"]["host"].as_str() {
            self.bound.insert(name.clone(), host.to_owned());
        }
        match ready(vm) {
            Some(("True", _)) => {
                self.vms.insert(name);
            }
            other => {
                self.vms.remove(&name);
                self.last_word = format!("{name}: {}", other.map_or("it was not observed", |(_, why)| why));
            }
        }
    }

    fn disk(&mut self, disk: &Value) {
        let used = disk["status"]["usedBy"].as_array().is_some_and(|users| !users.is_empty());
        if used && ready(disk).is_some_and(|(status, _)| status == "True") {
            self.disks.insert(api::name(disk).to_owned());
        } else {
            self.disks.remove(api::name(disk));
        }
    }
}

fn ready(object: &Value) -> Option<(&str, &str)> {
    let conditions = object["status"]["conditions"].as_array()?;
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
    let why = ready["message"].as_str().filter(|text| !text.is_empty()).or(ready["reason"].as_str());
    Some((ready["status"].as_str()?, why.unwrap_or_default()))
}

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Seen>,
    news: Condvar,
    over: AtomicBool,
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a kind until the end. A watch that ends is restarted, with all existing objects.
    fn follow(&self, plane: &Plane, kind: Kind, take: fn(&mut Seen, &Value)) {
        while !self.over.load(Ordering::Relaxed) {
            let Ok(mut watch) = plane.connect().and_then(|api| api.watch(kind)) else {
                std::thread::sleep(GLANCE);
                continue;
            };
            while let Ok(event) = watch.next_event() {
                take(&mut self.seen(), &event.object);
                self.news.notify_all();
            }
        }
    }
}

/// Keeps [`Seen`] up to date until it is dropped.
#[derive(Debug)]
pub(super) struct Watching {
    shared: Arc<Shared>,
}

/// Records an object.
type Take = fn(&mut Seen, &Value);

impl Drop for Watching {
    fn drop(&mut self) {
        // The threads end when their connections do.
        self.shared.over.store(true, Ordering::Relaxed);
    }
}

impl Watching {
    /// Watches all VMs and all disks.
    pub(super) fn start(plane: &Plane) -> Self {
        let shared = Arc::new(Shared::default());
        let takers: [(Kind, Take); 2] = [(api::VM, Seen::vm), (api::DISK, Seen::disk)];
        for (kind, take) in takers {
            let (shared, plane) = (Arc::clone(&shared), plane.clone());
            std::thread::spawn(move || shared.follow(&plane, kind, take));
        }
        Self { shared }
    }

    /// Waits until `holds` is true of the observed state, for at most `limit`. Returns the time at which it was.
    pub(super) fn until(
        &self,
        what: &str,
        limit: Duration,
        holds: impl Fn(&Seen) -> bool,
    ) -> Result<Instant> {
        let end = Instant::now() + limit.min(wait::time_left());
        let mut seen = self.shared.seen();
        loop {
            if holds(&seen) {
                return Ok(Instant::now());
            }
            if undo::interrupted() {
                bail!("interrupted while waiting for {what}");
            }
            if Instant::now() >= end {
                let (bound, vms, disks) = (seen.bound.len(), seen.vms.len(), seen.disks.len());
                let word = &seen.last_word;
                bail!(
                    "waited {limit:.0?} for {what}: {bound} VMs bound, {vms} VMs and {disks} disks ready; {word}"
                );
            }
            let news = self.shared.news.wait_timeout(seen, GLANCE);
            seen = news.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The last observed state.
    pub(super) fn seen(&self) -> Seen {
        self.shared.seen().clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(kind: &str, name: &str, status: &Value) -> Value {
        json!({"kind": kind, "metadata": {"name": name}, "status": status})
    }

    #[test]
    fn a_vm_counts_when_it_is_bound_and_when_it_is_ready() {
        let mut seen = Seen::default();
        let condition = |status: &str| json!([{"type": "Ready", "status": status, "reason": "Bound"}]);
        seen.vm(&object("VM", "a", &json!({"binding": {"host": "h1"}, "conditions": condition("False")})));
        assert_eq!((seen.bound.len(), seen.vms.len(), seen.last_word.as_str()), (1, 0, "a: Bound"));
        seen.vm(&object("VM", "a", &json!({"binding": {"host": "h1"}, "conditions": condition("True")})));
        seen.vm(&object("VM", "b", &json!({"binding": {"host": "h1"}, "conditions": condition("True")})));
        assert_eq!((seen.vms.len(), seen.spread(), seen.hosts()), (2, (2, 2), 1));
    }

    #[test]
    fn a_disk_counts_when_it_is_ready_in_use() {
        let mut seen = Seen::default();
        let condition = json!([{"type": "Ready", "status": "True", "reason": "x"}]);
        seen.disk(&object("Disk", "a", &json!({"conditions": condition})));
        assert!(seen.disks.is_empty(), "it waits for its first VM");
        seen.disk(&object("Disk", "a", &json!({"conditions": condition, "usedBy": [{"vm": "a"}]})));
        assert_eq!(seen.disks.len(), 1);
    }
}
