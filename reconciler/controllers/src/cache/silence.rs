//! Tracks which hosts' agents are silent.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

/// How long a host counts as silent after its Lease was read.
const CONFIRMED_FOR: Duration = Duration::from_secs(2);

/// When each host last renewed its Lease, by the local clock, so that a host's clock may be wrong.
#[derive(Debug)]
pub(crate) struct Silence {
    /// The time without a renewal after which a host is silent.
    after: Duration,
    /// When each host's Lease was last seen to change.
    renewed: HashMap<String, Instant>,
    silent: BTreeSet<String>,
    /// When the Lease of a silent host was last read, and was no newer.
    confirmed: HashMap<String, Instant>,
}

impl Silence {
    pub(crate) fn new(after: Duration) -> Self {
        Self { after, renewed: HashMap::new(), silent: BTreeSet::new(), confirmed: HashMap::new() }
    }

    pub(crate) fn is_alive(&self, host: &str) -> bool {
        self.renewed.contains_key(host) && !self.silent.contains(host)
    }

    /// Whether a direct read of the Lease a moment ago confirmed the host's silence.
    pub(crate) fn is_confirmed(&self, host: &str, now: Instant) -> bool {
        let read = self.confirmed.get(host).filter(|at| now.duration_since(**at) < CONFIRMED_FOR);
        !self.is_alive(host) && read.is_some()
    }

    /// Records a direct read of the host's Lease.
    pub(crate) fn was_read(&mut self, host: &str, now: Instant) {
        if !self.is_alive(host) {
            self.confirmed.insert(host.to_owned(), now);
        }
    }

    /// Records a renewal of the host's Lease; returns whether the host was silent before, or unknown.
    pub(crate) fn renewed(&mut self, host: &str, now: Instant) -> bool {
        self.confirmed.remove(host);
        let is_new = self.renewed.insert(host.to_owned(), now).is_none();
        self.silent.remove(host) || is_new
    }

    /// Records that the host has no Lease any more.
    pub(crate) fn forget(&mut self, host: &str) {
        self.renewed.remove(host);
    }

    /// Returns which of all these hosts fell silent, or came back.
    pub(crate) fn changes(&mut self, hosts: impl Iterator<Item = String>, now: Instant) -> Vec<String> {
        let is_silent =
            |host: &String| self.renewed.get(host).is_none_or(|at| now.duration_since(*at) > self.after);
        let silent: BTreeSet<String> = hosts.filter(is_silent).collect();
        let changed = silent.symmetric_difference(&self.silent).cloned().collect();
        self.silent = silent;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_alive_from_its_first_word_until_it_was_silent_for_too_long() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let hosts = || ["a".to_owned(), "b".to_owned()].into_iter();
        let mut silence = Silence::new(10 * second);
        assert!(!silence.is_alive("a") && silence.renewed("a", start) && silence.is_alive("a"));
        assert!(!silence.renewed("a", start + second), "nothing new");
        assert_eq!(silence.changes(hosts(), start + 11 * second), ["b"], "never heard of");
        assert_eq!(silence.changes(hosts(), start + 12 * second), ["a"]);
        assert!(!silence.is_confirmed("a", start + 12 * second), "its Lease has not been read");
        silence.was_read("a", start + 12 * second);
        assert!(silence.is_confirmed("a", start + 13 * second));
        assert!(!silence.is_confirmed("a", start + 14 * second), "that was a while ago");
        assert!(silence.renewed("a", start + 15 * second) && silence.is_alive("a"));
        assert!(!silence.is_confirmed("a", start + 15 * second));
    }
}
