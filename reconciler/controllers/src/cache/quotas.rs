//! The usage of each namespace that has a Quota, kept object by object so that no decision counts them all. Without any Quota nothing is
//! kept.

pub(crate) mod count;
mod sum;

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{QuotaAmounts, SHARED_NAMESPACE};
use k8s_openapi::jiff::Timestamp;

use super::{Cache, Tables};
use crate::key::{Key, ObjectKind};
use count::Counted;
use sum::Sum;

/// The usage of each namespace that has a Quota.
#[derive(Debug, Default)]
pub(crate) struct Usages(BTreeMap<String, Usage>);

/// The usage of one namespace.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    quotas: BTreeSet<Key>,
    /// Whether one of them limits the space that files take. Otherwise those of deleted disks are not counted.
    counts_deleted: bool,
    counted: BTreeMap<Key, Counted>,
    placed: Sum,
    total: Sum,
    /// In the order in which they get what is left.
    unplaced: BTreeSet<(Option<Timestamp>, Key)>,
    /// The VMs with amounts that come from a class.
    of_classes: BTreeSet<Key>,
    /// The other objects with amounts that come from other objects: those whose size is not known yet.
    of_sources: BTreeSet<Key>,
}

impl Usages {
    pub(crate) fn of(&self, namespace: &str) -> Option<&Usage> {
        self.0.get(namespace)
    }
}

impl Usage {
    fn of(tables: &Tables, namespace: &str) -> Self {
        let mut usage = Self::default();
        for key in count::keys(tables, namespace) {
            usage.set(&key, count::of(tables, &key));
        }
        usage
    }

    /// The Quotas of the namespace.
    pub(crate) fn quotas(&self) -> &BTreeSet<Key> {
        &self.quotas
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Counted> {
        self.counted.get(key)
    }

    /// The sum of the objects that are placed.
    pub(crate) fn placed(&self) -> QuotaAmounts {
        self.placed.amounts()
    }

    /// The sum of all objects.
    pub(crate) fn total(&self) -> QuotaAmounts {
        self.total.amounts()
    }

    /// The objects that are not placed, in the order in which they get what is left.
    pub(crate) fn unplaced(&self) -> impl Iterator<Item = (&Key, &Counted)> {
        self.unplaced.iter().filter_map(move |(_, key)| Some((key, self.counted.get(key)?)))
    }

    /// Counts an object of this namespace and those that may get their amounts from it; returns whether any has changed.
    fn recount(&mut self, tables: &Tables, namespace: &str, key: &Key) -> bool {
        let mut keys: Vec<Key> = match key.kind {
            ObjectKind::VMClass => self.of_classes.iter().cloned().collect(),
            ObjectKind::Image
            | ObjectKind::Disk
            | ObjectKind::DiskSnapshot
            | ObjectKind::Backup
            | ObjectKind::Host => self.of_sources.iter().cloned().collect(),
            _ => Vec::new(),
        };
        if key.namespace() == namespace {
            keys.push(key.clone());
        }
        let mut has_changed = false;
        if key.kind == ObjectKind::Host && self.counts_deleted {
            has_changed |= self.set(key, count::of_deleted(tables, key, namespace));
        }
        for key in keys {
            has_changed |= self.set(&key, count::of(tables, &key));
        }
        has_changed
    }

    /// Begins or ends to count the files of deleted disks.
    fn count_deleted(&mut self, tables: &Tables, namespace: &str) {
        let is_limited =
            |key: &Key| tables.quotas.get(key).is_some_and(|quota| quota.spec.hard.used_storage.is_some());
        let counts = self.quotas.iter().any(is_limited);
        if counts == self.counts_deleted {
            return;
        }
        self.counts_deleted = counts;
        for host in tables.hosts.all() {
            let key = Key::of(host.as_ref());
            let counted = count::of_deleted(tables, &key, namespace).filter(|_| counts);
            self.set(&key, counted);
        }
    }

    /// Returns whether it counts otherwise than before.
    fn set(&mut self, key: &Key, counted: Option<Counted>) -> bool {
        if self.counted.get(key) == counted.as_ref() {
            return false;
        }
        let derived = if key.kind == ObjectKind::VM { &mut self.of_classes } else { &mut self.of_sources };
        if let Some(before) = self.counted.remove(key) {
            self.total.take(before.amounts);
            if before.is_placed {
                self.placed.take(before.amounts);
            }
            self.unplaced.remove(&(before.since, key.clone()));
            derived.remove(key);
        }
        if let Some(counted) = counted {
            self.total.add(counted.amounts);
            if counted.is_placed {
                self.placed.add(counted.amounts);
            } else {
                self.unplaced.insert((counted.since, key.clone()));
            }
            if counted.is_derived {
                derived.insert(key.clone());
            }
            self.counted.insert(key.clone(), counted);
        }
        true
    }
}

impl Cache {
    /// Counts an object after it was cached or removed; returns the Quotas whose counts it has changed.
    pub(super) fn count_usage(&mut self, key: &Key) -> Vec<Key> {
        if key.kind == ObjectKind::Quota {
            return self.count_for(key);
        }
        let counts = matches!(
            key.kind,
            ObjectKind::VM
                | ObjectKind::Disk
                | ObjectKind::DiskSnapshot
                | ObjectKind::Image
                | ObjectKind::PublicIP
                | ObjectKind::VMClass
                | ObjectKind::Backup
                | ObjectKind::Host
        );
        if !counts || self.usages.0.is_empty() {
            return Vec::new();
        }
        let (tables, usages) = (&self.tables, &mut self.usages.0);
        let mut quotas = Vec::new();
        let mut count = |namespace: &str, usage: &mut Usage| {
            if usage.recount(tables, namespace, key) {
                quotas.extend(usage.quotas.iter().cloned());
            }
        };
        if key.kind == ObjectKind::Host || key.namespace() == SHARED_NAMESPACE {
            usages.iter_mut().for_each(|(namespace, usage)| count(namespace, usage));
        } else if let Some(usage) = usages.get_mut(key.namespace()) {
            count(key.namespace(), usage);
        }
        quotas
    }

    /// Begins or ends to count for a Quota; returns the others of its namespace: the objects that fit have to fit all of them.
    fn count_for(&mut self, quota: &Key) -> Vec<Key> {
        let namespace = quota.namespace();
        let (tables, usages) = (&self.tables, &mut self.usages.0);
        if tables.quotas.get(quota).is_some() {
            let usage = usages.entry(namespace.to_owned()).or_insert_with(|| Usage::of(tables, namespace));
            usage.quotas.insert(quota.clone());
            usage.count_deleted(tables, namespace);
        } else if let Some(usage) = usages.get_mut(namespace) {
            usage.quotas.remove(quota);
            if usage.quotas.is_empty() {
                usages.remove(namespace);
            } else {
                usage.count_deleted(tables, namespace);
            }
        }
        let others = usages.get(namespace).into_iter().flat_map(|usage| &usage.quotas);
        others.filter(|other| *other != quota).cloned().collect()
    }
}
