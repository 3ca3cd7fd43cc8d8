//! The hosts as the scheduler sees them, kept up to date host by host and VM by VM, so that a decision reads them and
//! sums up nothing.

use std::collections::{BTreeMap, HashMap};

use super::scheduler::{Candidate, Usage};

/// Every host with what VMs take of it.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    hosts: BTreeMap<String, Candidate>,
    /// Also of hosts whose object is not there (yet).
    usage: HashMap<String, Usage>,
    news: News,
}

/// What has changed since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// There may be room where there was none, or a private address.
    pub(super) freed: bool,
    /// A host came, went, or is another than it was, but for what VMs take.
    pub(super) hosts: bool,
}

impl Fleet {
    pub(super) fn hosts(&self) -> impl Iterator<Item = &Candidate> + Clone {
        self.hosts.values()
    }

    pub(super) fn get(&self, host: &str) -> Option<&Candidate> {
        self.hosts.get(host)
    }

    pub(super) fn usage(&self, host: &str) -> Usage {
        self.usage.get(host).copied().unwrap_or_default()
    }

    /// Notes a host as it is now; what VMs take of it is known here.
    pub(super) fn set_host(&mut self, host: Candidate) {
        let host = Candidate { used: self.usage(&host.name), ..host };
        if self.hosts.get(&host.name) != Some(&host) {
            // Whether it offers more than before is not worth telling apart: hosts seldom change.
            self.news = News { freed: true, hosts: true };
            self.hosts.insert(host.name.clone(), host);
        }
    }

    pub(super) fn remove_host(&mut self, name: &str) {
        self.news.hosts |= self.hosts.remove(name).is_some();
    }

    /// A VM takes something of a host.
    pub(super) fn take(&mut self, host: &str, cpus: i64, memory: u64) {
        self.change(host, |usage| {
            usage.cpus += cpus;
            usage.memory = usage.memory.saturating_add(memory);
            usage.vms += 1;
        });
    }

    /// A VM gives it back.
    pub(super) fn give_back(&mut self, host: &str, cpus: i64, memory: u64) {
        self.change(host, |usage| {
            usage.cpus -= cpus;
            usage.memory = usage.memory.saturating_sub(memory);
            usage.vms = usage.vms.saturating_sub(1);
        });
    }

    fn change(&mut self, host: &str, change: impl FnOnce(&mut Usage)) {
        let usage = self.usage.entry(host.to_owned()).or_default();
        change(usage);
        if let Some(candidate) = self.hosts.get_mut(host) {
            candidate.used = *usage;
        }
        if *usage == Usage::default() {
            self.usage.remove(host);
        }
    }

    /// Some VM takes less than it did.
    pub(super) fn freed(&mut self) {
        self.news.freed = true;
    }

    /// What has changed since the last call.
    pub(super) fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Candidate {
        Candidate { name: name.into(), ..Candidate::default() }
    }

    #[test]
    fn what_vms_take_of_a_host_is_known_before_and_after_the_host_itself() {
        let mut fleet = Fleet::default();
        fleet.take("a", 2, 100);
        fleet.set_host(host("a"));
        fleet.take("a", 1, 50);
        assert_eq!(fleet.get("a").map(|h| h.used), Some(Usage { cpus: 3, memory: 150, vms: 2 }));
        fleet.give_back("a", 2, 100);
        assert_eq!(fleet.get("a").map(|h| h.used), Some(Usage { cpus: 1, memory: 50, vms: 1 }));
        fleet.remove_host("a");
        assert_eq!(fleet.usage("a").vms, 1);
    }

    #[test]
    fn a_host_that_says_the_same_again_is_no_news() {
        let mut fleet = Fleet::default();
        fleet.set_host(host("a"));
        assert_eq!(fleet.take_news(), News { freed: true, hosts: true });
        fleet.take("a", 1, 1);
        fleet.set_host(host("a"));
        assert_eq!(fleet.take_news(), News::default(), "a VM that takes room frees none");
    }
}
