//! The rules of a VM about other VMs (`placement.affinity`), and those of other VMs about it.

use std::collections::BTreeMap;

use berth_api::{Enforcement, Strategy, placement_group::HOSTNAME_LABEL, vm::VMAffinity};

use crate::{
    cache::affinity::{PlacedVms, Repelling},
    cache::capacity::{Candidate, Members},
    scheduler::{Request, Unfit, counts_by_value},
};

/// The number of rules of other VMs that a request has: each VM that waits keeps its request, and a namespace may have thousands of rules.
pub(crate) const NAMED_RULES: usize = 16;

/// A rule of a VM about other VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AffinityRule {
    pub(crate) rule: VMAffinity,
    /// Whether it also selects the VM.
    pub(crate) selects_itself: bool,
}

/// The rule that a host would break, by its position in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Broken {
    /// The host does not have the label that is the topology key.
    Label(usize),
    /// A selected VM is there.
    Spread(usize),
    /// No selected VM is there.
    Pack(usize),
    /// A VM is there whose rule selects this one. The request has the first such rules only.
    Repelled(usize),
}

/// The rules that count for a VM, and where the VMs are that they are about.
pub(super) struct Affinity<'r, 'a> {
    own: Vec<Own<'r, 'a>>,
    repelled: Repelled<'r, 'a>,
}

struct Own<'r, 'a> {
    rule: &'r AffinityRule,
    /// The selected VMs by the value of the topology key.
    at: BTreeMap<&'a str, usize>,
    /// Whether no selected VM has a host.
    is_alone: bool,
}

/// The places with VMs whose rules keep them apart from the VM, each with the position of its first such rule. A namespace may have
/// thousands of rules: a host is looked up here, and compared with none of them.
#[derive(Default)]
struct Repelled<'r, 'a> {
    hosts: BTreeMap<&'r str, usize>,
    /// By topology key, then by its value.
    values: BTreeMap<&'r str, BTreeMap<&'a str, usize>>,
}

impl<'r, 'a> Affinity<'r, 'a> {
    pub(super) fn of(
        request: &'r Request,
        beside: &'r PlacedVms,
        candidates: impl Iterator<Item = &'a Candidate> + Clone,
    ) -> Self {
        let none = Members::new();
        let own = request.affinity.iter().enumerate().map(|(number, rule)| {
            let selected = beside.selected.get(number).unwrap_or(&none);
            let at = counts_by_value(&rule.rule.topology_key, selected, candidates.clone());
            Own { rule, at, is_alone: selected.is_empty() }
        });
        Self { own: own.collect(), repelled: Repelled::of(beside, candidates) }
    }

    /// Whether the required rules allow the VM on this host.
    pub(super) fn allows(&self, candidate: &Candidate) -> Result<(), Unfit> {
        for (number, Own { rule, at, is_alone }) in self.own.iter().enumerate() {
            let AffinityRule { rule, selects_itself } = rule;
            if rule.enforcement != Enforcement::Required {
                continue;
            }
            let Some(value) = candidate.labels.get(&rule.topology_key) else {
                return Err(Unfit::Affinity(Broken::Label(number)));
            };
            match (rule.strategy, at.contains_key(value.as_str())) {
                (Strategy::Spread, true) => return Err(Unfit::Affinity(Broken::Spread(number))),
                // The first of VMs that are to be together.
                (Strategy::Pack, false) if *is_alone && *selects_itself => {}
                (Strategy::Pack, false) => return Err(Unfit::Affinity(Broken::Pack(number))),
                (Strategy::Spread, false) | (Strategy::Pack, true) => {}
            }
        }
        match self.repelled.at(candidate) {
            // Those without a name count together.
            Some(number) => Err(Unfit::Affinity(Broken::Repelled(number.min(NAMED_RULES)))),
            None => Ok(()),
        }
    }

    /// The distance from the preferred rules; lower is better.
    pub(super) fn distance(&self, candidate: &Candidate) -> i64 {
        let preferred = self.own.iter().filter(|own| own.rule.rule.enforcement == Enforcement::Preferred);
        let distance = preferred.map(|Own { rule, at, .. }| {
            let value = candidate.labels.get(&rule.rule.topology_key);
            let there = value.and_then(|value| at.get(value.as_str())).copied().unwrap_or_default();
            let there = i64::try_from(there).unwrap_or(i64::MAX);
            match rule.rule.strategy {
                Strategy::Spread => there,
                Strategy::Pack => -there,
            }
        });
        distance.fold(0, i64::saturating_add)
    }
}

impl<'r, 'a> Repelled<'r, 'a> {
    fn of(beside: &'r PlacedVms, candidates: impl Iterator<Item = &'a Candidate>) -> Self {
        let mut repelled = Self::default();
        if beside.repelling.is_empty() {
            return repelled;
        }
        let by_name: BTreeMap<&str, &'a Candidate> =
            candidates.map(|candidate| (candidate.name.as_str(), candidate)).collect();
        for (number, (rule, members)) in beside.repelling.iter().enumerate() {
            for host in members.keys() {
                // On one host they never are, whatever the topology key: the host itself would refuse that.
                repelled.hosts.entry(host.as_str()).or_insert(number);
                let candidate = by_name.get(host.as_str());
                if let Some(value) = candidate.and_then(|host| host.labels.get(&rule.topology_key)) {
                    let values = repelled.values.entry(rule.topology_key.as_str()).or_default();
                    values.entry(value.as_str()).or_insert(number);
                }
            }
        }
        repelled
    }

    /// The first of the rules that keep the VM away from this host.
    fn at(&self, candidate: &Candidate) -> Option<usize> {
        let here = self.hosts.get(candidate.name.as_str());
        let beside = self.values.iter().filter_map(|(topology_key, values)| {
            let value = candidate.labels.get(*topology_key)?;
            values.get(value.as_str())
        });
        here.into_iter().chain(beside).min().copied()
    }
}

impl Broken {
    /// Describes hosts that break the rule, after `1` or `host kvm-1 is one`.
    pub(super) fn of_hosts(self, request: &Request) -> String {
        let rule =
            |number: usize| request.affinity.get(number).map(|rule| rule.rule.clone()).unwrap_or_default();
        match self {
            Self::Label(number) => {
                let VMAffinity { name, topology_key, .. } = rule(number);
                format!("without the label {topology_key} of affinity {name}")
            }
            Self::Spread(number) => {
                let VMAffinity { name, vm_selector, topology_key, .. } = rule(number);
                let (at, labels) = (place(&topology_key), labels(&vm_selector));
                format!("{at}with a VM with {labels}, from which affinity {name} keeps it apart")
            }
            Self::Pack(number) => {
                let VMAffinity { name, vm_selector, topology_key, .. } = rule(number);
                let (at, labels) = (place(&topology_key), labels(&vm_selector));
                format!("{at}without a VM with {labels}, with which affinity {name} keeps it together")
            }
            Self::Repelled(number) => {
                let Some(Repelling { selector, topology_key }) = request.repelling.iter().nth(number) else {
                    return "beside a VM whose affinity keeps it apart".to_owned();
                };
                let (at, labels) = (place(topology_key), labels(selector));
                format!("{at}with a VM whose affinity keeps it apart from VMs with {labels}")
            }
        }
    }
}

/// Names the larger place that the host belongs to, if a rule is about one.
fn place(topology_key: &str) -> String {
    if topology_key == HOSTNAME_LABEL { String::new() } else { format!("at a {topology_key} ") }
}

fn labels(selector: &BTreeMap<String, String>) -> String {
    selector.iter().map(|(label, value)| format!("{label}={value}")).collect::<Vec<_>>().join(", ")
}
