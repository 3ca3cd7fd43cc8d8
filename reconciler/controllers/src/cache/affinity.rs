//! The VMs that rules about other VMs select by labels (`placement.affinity`), counted by host as VMs change: a decision reads the counts of
//! the rules that concern it, however many VMs there are.
//!
//! A selector is counted while a VM of its namespace has it in a rule. Its first label leads to it, so that a VM that changes is compared only
//! with selectors that begin with one of its labels.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use berth_api::{Strategy, VM, vm::VMAffinity};
use kube::ResourceExt;

use crate::{cache::capacity::Members, cache::key_set::KeySet, key::Key};

type Labels = BTreeMap<String, String>;

/// The name and the value of a label.
type Label = (String, String);

/// The VMs with a host that count for the placement of a VM, without that VM itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlacedVms {
    /// The members of its group.
    pub(crate) members: Members,
    /// Those that each of its rules selects, in the order of the rules.
    pub(crate) selected: Vec<Members>,
    /// Those that have a required rule which keeps them apart from it.
    pub(crate) repelling: BTreeMap<Repelling, Members>,
}

/// A required rule of other VMs that keeps them apart from a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Repelling {
    pub(crate) selector: Labels,
    pub(crate) topology_key: String,
}

/// The index that the module describes.
#[derive(Debug, Default)]
pub(crate) struct Affinities {
    namespaces: HashMap<Arc<str>, Namespace>,
}

#[derive(Debug, Default)]
struct Namespace {
    /// The VMs with labels or rules.
    vms: HashMap<Key, Arc<VM>>,
    by_label: HashMap<Label, KeySet>,
    /// The counts of each selector that a rule has.
    counts: HashMap<Labels, Counts>,
    /// The selectors by their first label.
    by_first_label: HashMap<Label, BTreeSet<Labels>>,
}

#[derive(Debug, Default)]
struct Counts {
    /// The rules that have the selector, and those of them that pack.
    rules: usize,
    packing: usize,
    /// The selected VMs on each host.
    selected: Members,
    /// The VMs on each host that have a required rule against selected ones, by topology key.
    apart: BTreeMap<String, Members>,
}

fn host_of(vm: &VM) -> Option<&str> {
    Some(vm.status.as_ref()?.binding.as_ref()?.host.as_str())
}

fn is_same(old: &VM, new: &VM) -> bool {
    old.labels() == new.labels() && host_of(old) == host_of(new) && old.affinity() == new.affinity()
}

fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector.iter().all(|(label, value)| labels.get(label) == Some(value))
}

/// Returns the label that leads to a selector. An empty one, which admission refuses, selects no VM.
fn first_label(selector: &Labels) -> Option<Label> {
    selector.first_key_value().map(|(label, value)| (label.clone(), value.clone()))
}

fn enter(members: &mut Members, host: &str) {
    *members.entry(host.to_owned()).or_default() += 1;
}

fn leave(members: &mut Members, host: &str) {
    if let Some(count) = members.get_mut(host) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            members.remove(host);
        }
    }
}

impl Affinities {
    /// Indexes a VM (`None`: gone). Returns whether a VM that waits for a host may have one now.
    pub(crate) fn set_vm(&mut self, key: &Key, vm: Option<&Arc<VM>>) -> bool {
        let vm = vm.filter(|vm| !vm.labels().is_empty() || !vm.affinity().is_empty());
        let Some(name) = &key.namespace else { return false };
        if vm.is_none() && !self.namespaces.contains_key(name) {
            return false;
        }
        let namespace = self.namespaces.entry(name.clone()).or_default();
        let lets_in = namespace.set_vm(key, vm);
        if namespace.vms.is_empty() {
            self.namespaces.remove(name);
        }
        lets_in
    }

    /// Returns the number of VMs that a rule of a VM selects on each host, without the VM itself.
    pub(crate) fn selected(&self, key: &Key, rule: &VMAffinity) -> Members {
        let Some(namespace) = self.namespaces.get(key.namespace()) else { return Members::new() };
        let counts = namespace.counts.get(&rule.vm_selector);
        let mut selected = counts.map(|counts| counts.selected.clone()).unwrap_or_default();
        if let Some(own) = namespace.vms.get(key)
            && rule.selects(own.labels())
            && let Some(host) = host_of(own)
        {
            leave(&mut selected, host);
        }
        selected
    }

    /// Returns the required rules of other VMs with a host that keep these apart from a VM with these labels, and the number of such VMs on
    /// each host.
    pub(crate) fn repelling(&self, key: &Key, labels: &Labels) -> BTreeMap<Repelling, Members> {
        let mut found = BTreeMap::new();
        let Some(namespace) = self.namespaces.get(key.namespace()) else { return found };
        let own = namespace.vms.get(key);
        for selector in namespace.selectors_of(labels) {
            let apart = namespace.counts.get(selector).into_iter().flat_map(|counts| &counts.apart);
            for (topology_key, members) in apart {
                let mut members = members.clone();
                let is_counted = |rule: &&VMAffinity| {
                    rule.requires_apart()
                        && rule.vm_selector == *selector
                        && rule.topology_key == *topology_key
                };
                if let Some(own) = own
                    && let Some(host) = host_of(own)
                {
                    own.affinity().iter().filter(is_counted).for_each(|_| leave(&mut members, host));
                }
                if !members.is_empty() {
                    let rule = Repelling { selector: selector.clone(), topology_key: topology_key.clone() };
                    found.insert(rule, members);
                }
            }
        }
        found
    }
}

impl Namespace {
    fn set_vm(&mut self, key: &Key, vm: Option<&Arc<VM>>) -> bool {
        let old = self.vms.remove(key);
        if let Some(vm) = vm {
            self.vms.insert(key.clone(), vm.clone());
        }
        if let (Some(old), Some(vm)) = (&old, vm)
            && is_same(old, vm)
        {
            return false;
        }
        let lets_in = old.is_some_and(|old| self.subtract(key, &old));
        let lets_others_in = vm.is_some_and(|vm| self.add(key, vm));
        lets_in || lets_others_in
    }

    /// Returns the selectors of rules that select a VM with these labels.
    fn selectors_of<'a>(&'a self, labels: &'a Labels) -> impl Iterator<Item = &'a Labels> {
        let led_to = labels.iter().filter_map(move |(label, value)| {
            let first: Label = (label.clone(), value.clone());
            self.by_first_label.get(&first)
        });
        led_to.flatten().filter(move |selector| selects(selector, labels))
    }

    fn add(&mut self, key: &Key, vm: &VM) -> bool {
        let mut lets_in = false;
        if let Some(host) = host_of(vm) {
            let selectors: Vec<Labels> = self.selectors_of(vm.labels()).cloned().collect();
            for selector in selectors {
                if let Some(counts) = self.counts.get_mut(&selector) {
                    enter(&mut counts.selected, host);
                    lets_in |= counts.packing > 0;
                }
            }
        }
        for (label, value) in vm.labels() {
            self.by_label.entry((label.clone(), value.clone())).or_default().insert(key);
        }
        for rule in vm.affinity() {
            self.add_rule(rule, host_of(vm));
        }
        lets_in
    }

    fn subtract(&mut self, key: &Key, vm: &VM) -> bool {
        let mut lets_in = false;
        if let Some(host) = host_of(vm) {
            let selectors: Vec<Labels> = self.selectors_of(vm.labels()).cloned().collect();
            for selector in selectors {
                if let Some(counts) = self.counts.get_mut(&selector) {
                    leave(&mut counts.selected, host);
                    lets_in = true;
                }
            }
        }
        for (label, value) in vm.labels() {
            let label = (label.clone(), value.clone());
            if let Some(vms) = self.by_label.get_mut(&label) {
                vms.remove(key);
                if vms.is_empty() {
                    self.by_label.remove(&label);
                }
            }
        }
        for rule in vm.affinity() {
            lets_in |= self.remove_rule(rule, host_of(vm));
        }
        lets_in
    }

    fn add_rule(&mut self, rule: &VMAffinity, host: Option<&str>) {
        self.count_from_now_on(&rule.vm_selector);
        let Some(counts) = self.counts.get_mut(&rule.vm_selector) else { return };
        counts.rules += 1;
        counts.packing += usize::from(rule.strategy == Strategy::Pack);
        if let Some(host) = host
            && rule.requires_apart()
        {
            enter(counts.apart.entry(rule.topology_key.clone()).or_default(), host);
        }
    }

    fn remove_rule(&mut self, rule: &VMAffinity, host: Option<&str>) -> bool {
        let Some(counts) = self.counts.get_mut(&rule.vm_selector) else { return false };
        counts.rules -= 1;
        counts.packing -= usize::from(rule.strategy == Strategy::Pack);
        let mut lets_in = false;
        if let Some(host) = host
            && rule.requires_apart()
            && let Some(members) = counts.apart.get_mut(&rule.topology_key)
        {
            leave(members, host);
            lets_in = true;
            if members.is_empty() {
                counts.apart.remove(&rule.topology_key);
            }
        }
        if counts.rules == 0 {
            self.counts.remove(&rule.vm_selector);
            self.forget(&rule.vm_selector);
        }
        lets_in
    }

    /// Begins to count the VMs of a selector, if they are not counted yet: reads the VMs with its first label once.
    fn count_from_now_on(&mut self, selector: &Labels) {
        if self.counts.contains_key(selector) {
            return;
        }
        let Some(first) = first_label(selector) else { return };
        let mut selected = Members::new();
        for key in self.by_label.get(&first).into_iter().flat_map(KeySet::iter) {
            if let Some(vm) = self.vms.get(key).filter(|vm| selects(selector, vm.labels()))
                && let Some(host) = host_of(vm)
            {
                enter(&mut selected, host);
            }
        }
        self.counts.insert(selector.clone(), Counts { selected, ..Counts::default() });
        self.by_first_label.entry(first).or_default().insert(selector.clone());
    }

    fn forget(&mut self, selector: &Labels) {
        let Some(first) = first_label(selector) else { return };
        if let Some(selectors) = self.by_first_label.get_mut(&first) {
            selectors.remove(selector);
            if selectors.is_empty() {
                self.by_first_label.remove(&first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_api::placement_group::HOSTNAME_LABEL;
    use proptest::{prelude::prop, prop_assert, prop_assert_eq, proptest};
    use serde_json::{Value, json};

    use super::*;
    use crate::key::ObjectKind;

    fn key(name: &str) -> Key {
        Key::namespaced(ObjectKind::VM, "ns", name)
    }

    fn vm(name: &str, labels: &Value, rules: &Value, host: Option<&str>) -> Arc<VM> {
        let status = host.map(|host| json!({"binding": {"host": host, "epoch": 1}}));
        let object = json!({
            "metadata": {"name": name, "namespace": "ns", "labels": labels},
            "spec": {"disks": [], "placement": {"affinity": rules}}, "status": status,
        });
        Arc::new(serde_json::from_value(object).expect("a VM"))
    }

    fn rule(labels: &Value, strategy: &str) -> Value {
        json!({"name": "rule", "vmSelector": labels, "strategy": strategy})
    }

    fn members(hosts: &[(&str, usize)]) -> Members {
        hosts.iter().map(|(host, count)| ((*host).to_owned(), *count)).collect()
    }

    #[test]
    fn a_rule_counts_the_vms_that_were_there_before_and_those_that_come_later() {
        let mut index = Affinities::default();
        let web = json!({"app": "web"});
        let apart = vm("a", &json!({}), &json!([rule(&web, "spread")]), None);
        let counted = |index: &Affinities| index.selected(&key("a"), &apart.affinity()[0]);
        assert!(!index.set_vm(&key("w1"), Some(&vm("w1", &web, &json!([]), Some("h1")))));
        assert!(!index.set_vm(&key("a"), Some(&apart)));
        assert_eq!(counted(&index), members(&[("h1", 1)]));
        let both = json!({"app": "web", "tier": "front"});
        assert!(!index.set_vm(&key("w2"), Some(&vm("w2", &both, &json!([]), Some("h1")))), "one more");
        assert!(!index.set_vm(&key("o"), Some(&vm("o", &json!({"app": "other"}), &json!([]), Some("h2")))));
        assert_eq!(counted(&index), members(&[("h1", 2)]));
        assert!(index.set_vm(&key("w2"), Some(&vm("w2", &json!({"app": "db"}), &json!([]), Some("h1")))));
        assert!(index.set_vm(&key("w1"), None));
        assert_eq!(counted(&index), Members::new());
        index.set_vm(&key("w2"), None);
        index.set_vm(&key("o"), None);
        index.set_vm(&key("a"), None);
        assert!(index.namespaces.is_empty());
    }

    #[test]
    fn a_vm_does_not_count_for_itself_and_its_rule_concerns_those_that_it_selects() {
        let mut index = Affinities::default();
        let web = json!({"app": "web"});
        let rules = json!([rule(&web, "spread")]);
        for (name, host) in [("w1", "h1"), ("w2", "h2")] {
            index.set_vm(&key(name), Some(&vm(name, &web, &rules, Some(host))));
        }
        let first = vm("w1", &web, &rules, Some("h1"));
        assert_eq!(index.selected(&key("w1"), &first.affinity()[0]), members(&[("h2", 1)]));
        let labels = Labels::from([("app".to_owned(), "web".to_owned())]);
        let against = Repelling { selector: labels.clone(), topology_key: HOSTNAME_LABEL.to_owned() };
        let expected = [(against.clone(), members(&[("h2", 1)]))];
        assert_eq!(index.repelling(&key("w1"), &labels), expected.into());
        let expected = [(against, members(&[("h1", 1), ("h2", 1)]))];
        assert_eq!(index.repelling(&key("new"), &labels), expected.into());
        assert!(index.repelling(&key("new"), &Labels::new()).is_empty());
        let elsewhere = Key::namespaced(ObjectKind::VM, "other", "new");
        assert!(index.repelling(&elsewhere, &labels).is_empty(), "another namespace");
    }

    #[test]
    fn a_vm_with_a_host_is_news_for_those_that_wait_to_be_beside_it() {
        let mut index = Affinities::default();
        let web = json!({"app": "web"});
        index.set_vm(&key("a"), Some(&vm("a", &json!({}), &json!([rule(&web, "pack")]), None)));
        assert!(!index.set_vm(&key("w"), Some(&vm("w", &web, &json!([]), None))));
        assert!(index.set_vm(&key("w"), Some(&vm("w", &web, &json!([]), Some("h")))));
        assert!(!index.set_vm(&key("w"), Some(&vm("w", &web, &json!([]), Some("h")))), "nothing has changed");
    }

    proptest! {
        /// The counts are those of a pass over all VMs, after any sequence of changes.
        #[test]
        fn the_counts_are_those_of_all_vms(changes in prop::collection::vec((0..5usize, 0..6usize, 0..4usize, 0..4usize), 1..40)) {
            let labels = [json!({}), json!({"a": "1"}), json!({"b": "1"}), json!({"a": "1", "b": "1"}), json!({"a": "2", "b": "1"})];
            let selectors = [json!({"a": "1"}), json!({"b": "1"}), json!({"a": "1", "b": "1"})];
            let mut index = Affinities::default();
            let mut all: BTreeMap<String, Arc<VM>> = BTreeMap::new();
            for (which, label, selector, host) in changes {
                let name = format!("vm-{which}");
                let Some(labels) = labels.get(label) else {
                    index.set_vm(&key(&name), None);
                    all.remove(&name);
                    continue;
                };
                let rules: Vec<Value> = selectors.get(selector).iter().map(|of| rule(of, "spread")).collect();
                let host = (host > 0).then(|| format!("h{host}"));
                let new = vm(&name, labels, &json!(rules), host.as_deref());
                index.set_vm(&key(&name), Some(&new));
                all.insert(name, new);
            }
            for (name, one) in &all {
                let others = || all.iter().filter(move |(other, _)| *other != name).map(|(_, other)| other);
                for rule in one.affinity() {
                    let mut expected = Members::new();
                    others().filter(|other| rule.selects(other.labels())).filter_map(|other| host_of(other)).for_each(|host| enter(&mut expected, host));
                    prop_assert_eq!(index.selected(&key(name), rule), expected);
                }
                let found = index.repelling(&key(name), one.labels());
                let mut expected = Members::new();
                others().filter(|other| other.kept_apart_from(one).is_some()).filter_map(|other| host_of(other)).for_each(|host| enter(&mut expected, host));
                let mut sum = Members::new();
                for (host, count) in found.into_values().flatten() {
                    *sum.entry(host).or_default() += count;
                }
                prop_assert_eq!(sum, expected);
            }
            prop_assert!(index.namespaces.len() <= 1);
        }
    }
}
