//! The StoragePool of a Disk: the one that it names, the default pool of its namespace, or one that is chosen among several.

use std::collections::BTreeMap;

use super::{Disk, DiskSpec};
use crate::{DEFAULT_NAME, ResourceName};

impl DiskSpec {
    /// Whether the scheduler chooses its pool.
    #[must_use]
    pub fn has_pool_choice(&self) -> bool {
        !self.pools.is_empty() || !self.pool_selector.is_empty()
    }

    /// Whether it is for the default pool of its namespace, if there is one. A block device is not: a pool has berth's note about it alone.
    #[must_use]
    pub fn names_no_pool(&self) -> bool {
        let is_device = self.source.as_ref().is_some_and(|source| source.device.is_some());
        !self.has_pool_choice() && !is_device && self.pool.as_str() == DEFAULT_NAME
    }

    /// Whether it may be in this StoragePool, which has these labels.
    #[must_use]
    pub fn accepts_pool(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        if !self.has_pool_choice() {
            return self.pool.as_str() == name;
        }
        match self.pools.is_empty() {
            true => self.pool_selector.iter().all(|(label, value)| labels.get(label) == Some(value)),
            false => self.pools.iter().any(|pool| pool.as_str() == name),
        }
    }
}

impl Disk {
    /// Returns the StoragePool where its file belongs: `pool`, or the chosen one, which is not known before that.
    pub fn target_pool(&self) -> &ResourceName {
        let default = self.status.as_ref().and_then(|status| status.default_pool.as_ref());
        match default.filter(|_| self.spec.names_no_pool()) {
            _ if self.spec.has_pool_choice() => self.pool(),
            Some(default) => default,
            None => &self.spec.pool,
        }
    }

    /// Whether the default pool of its namespace counts, which it takes once with its host.
    pub fn awaits_default_pool(&self) -> bool {
        let is_placed = self.status.as_ref().is_some_and(|s| s.binding.is_some() || s.pool.is_some());
        self.spec.names_no_pool() && !is_placed
    }

    /// Whether its pool is still to be chosen.
    pub fn awaits_pool(&self) -> bool {
        self.spec.has_pool_choice() && self.status.as_ref().is_none_or(|status| status.pool.is_none())
    }

    /// Returns the StoragePool that has its file, or is to have it.
    pub fn pool(&self) -> &ResourceName {
        self.status.as_ref().and_then(|status| status.pool.as_ref()).unwrap_or(&self.spec.pool)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_pool_of_a_disk_is_the_declared_one_or_the_chosen_one() {
        let disk = |spec: serde_json::Value, status: serde_json::Value| -> Disk {
            serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec, "status": status}))
                .expect("a Disk")
        };
        let moved = disk(json!({"pool": "slow"}), json!({"pool": "fast"}));
        assert_eq!((moved.target_pool().as_str(), moved.pool().as_str()), ("slow", "fast"));
        assert!(!moved.awaits_pool());
        let choice = json!({"pools": ["a", "b"]});
        assert!(disk(choice.clone(), json!(null)).awaits_pool());
        let chosen = disk(choice, json!({"pool": "b"}));
        assert_eq!((chosen.target_pool().as_str(), chosen.awaits_pool()), ("b", false));
        let ssd = BTreeMap::from([("media".to_owned(), "ssd".to_owned())]);
        assert!(chosen.spec.accepts_pool("a", &BTreeMap::new()) && !chosen.spec.accepts_pool("c", &ssd));
        let unnamed = disk(json!({}), json!({"pool": "fast", "defaultPool": "fast"}));
        assert_eq!((unnamed.target_pool().as_str(), unnamed.awaits_default_pool()), ("fast", false));
        let named = disk(json!({"pool": "slow"}), json!({"pool": "fast", "defaultPool": "fast"}));
        assert_eq!(named.target_pool().as_str(), "slow");
        assert!(disk(json!({}), json!(null)).awaits_default_pool());
        assert!(!disk(json!({"source": {"device": "nvme"}}), json!(null)).awaits_default_pool());
        let by_labels = disk(json!({"poolSelector": {"media": "ssd"}}), json!(null));
        assert!(
            by_labels.spec.accepts_pool("c", &ssd) && !by_labels.spec.accepts_pool("c", &BTreeMap::new())
        );
        assert!(by_labels.awaits_pool());
    }
}
