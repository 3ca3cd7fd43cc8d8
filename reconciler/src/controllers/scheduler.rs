//! The scheduler: which host a VM goes to. A pure function of what is known; callable read-only, so that a plan can
//! say where a VM would fit.
//!
//! ```text
//! hosts ──filter──▶ those that can take it ──score──▶ the best ── none ──▶ why: too full now, or never with these hosts
//! ```
//!
//! One decision costs one pass over the hosts, however many VMs there are: what VMs take is kept with each host.

mod explain;
#[cfg(test)]
mod tests;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use berth_api::{Enforcement, Strategy};

use super::topology_claims::leaves;
pub(super) use explain::{Unplaced, topology_values};

/// A host as the scheduler sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    /// Its agent reports and says it is ready.
    pub(super) ready: bool,
    pub(super) cordoned: bool,
    /// It has not said yet what it has.
    pub(super) untold: bool,
    /// What VMs may use. Nothing, before its first report.
    pub(super) allocatable_cpus: i64,
    pub(super) allocatable_memory: u64,
    /// Memory a VM takes above its guest memory.
    pub(super) overhead: u64,
    /// What the VMs bound to it take.
    pub(super) used: Usage,
}

/// What VMs take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Virtual CPUs.
    pub(super) cpus: i64,
    /// Bytes of guest memory, without overhead.
    pub(super) memory: u64,
    /// VMs.
    pub(super) vms: u64,
}

/// What a VM asks for. Two VMs with equal requests fit where the other does.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Request {
    pub(super) cpus: i64,
    /// Bytes of guest memory.
    pub(super) memory: u64,
    /// The one host it may run on.
    pub(super) host: Option<String>,
    /// Labels the host must have.
    pub(super) selector: BTreeMap<String, String>,
    /// Labels the host should have.
    pub(super) preferred: BTreeMap<String, String>,
    /// The hosts that have the files of its disks.
    pub(super) disk_hosts: BTreeSet<String>,
    /// The host that has just refused it.
    pub(super) refused_by: Option<String>,
    /// Its placement group.
    pub(super) group: Option<Group>,
}

/// A placement group as the scheduler sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Group {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) strategy: Strategy,
    pub(super) enforcement: Enforcement,
    pub(super) topology_key: String,
    /// The values of the key that others may be let in at.
    pub(super) taken: BTreeSet<String>,
}

/// How many other members of the group each host has.
pub(super) type Members = BTreeMap<String, usize>;

/// Which of several hosts that can take a VM is taken, after rules and wishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Filling {
    /// The one with the largest share left: load is even.
    #[default]
    Balance,
    /// The one with the smallest share left: hosts are filled one after the other.
    Pack,
}

/// Why a host was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unfit {
    NotTheOne,
    NotReady,
    Cordoned,
    DiskElsewhere,
    Labels,
    TopologyLabel,
    GroupMember,
    GroupElsewhere,
    Refused,
    Cpus,
    Memory,
}

/// The group's members by the value of its topology key.
struct Spread<'r, 'a> {
    group: &'r Group,
    at: BTreeMap<&'a str, usize>,
}

/// Chooses the host, or says why there is none.
///
/// *Guarantees:* never over a host's allocatable amounts; never two members of a required spread group on one
/// topology value, nor of a required pack group on two; the same input gives the same host, whatever the order of the candidates.
pub(super) fn choose<'a>(
    request: &Request,
    members: &Members,
    candidates: impl Iterator<Item = &'a Candidate> + Clone,
    filling: Filling,
) -> Result<&'a str, Unplaced> {
    let spread = request.group.as_ref().map(|group| Spread::of(group, members, candidates.clone()));
    let fits = candidates.clone().filter(|c| filter(request, spread.as_ref(), c).is_ok());
    let best = fits.min_by_key(|candidate| score(request, spread.as_ref(), candidate, filling));
    best.map(|candidate| candidate.name.as_str())
        .ok_or_else(|| explain::why(request, spread.as_ref(), members, candidates))
}

impl<'r, 'a> Spread<'r, 'a> {
    fn of(group: &'r Group, members: &Members, candidates: impl Iterator<Item = &'a Candidate>) -> Self {
        let mut at = BTreeMap::new();
        for candidate in candidates {
            if let Some(count) = members.get(&candidate.name)
                && let Some(value) = candidate.labels.get(&group.topology_key)
            {
                *at.entry(value.as_str()).or_default() += count;
            }
        }
        Self { group, at }
    }

    fn members_at(&self, value: &str) -> usize {
        self.at.get(value).copied().unwrap_or_default()
    }

    /// Whether a required rule allows another member here.
    fn allows(&self, candidate: &Candidate) -> Result<(), Unfit> {
        if self.group.enforcement != Enforcement::Required {
            return Ok(());
        }
        let value = candidate.labels.get(&self.group.topology_key).ok_or(Unfit::TopologyLabel)?;
        let free = leaves(self.group.strategy, &self.group.taken, value);
        match (self.group.strategy, self.members_at(value)) {
            (Strategy::Spread, 0) if free => Ok(()),
            (Strategy::Spread, _) => Err(Unfit::GroupMember),
            (Strategy::Pack, 0) if !self.at.is_empty() => Err(Unfit::GroupElsewhere),
            (Strategy::Pack, _) if free => Ok(()),
            (Strategy::Pack, _) => Err(Unfit::GroupElsewhere),
        }
    }

    /// How far from what the group wishes for; lower is better.
    fn distance(&self, candidate: &Candidate) -> i64 {
        let value = candidate.labels.get(&self.group.topology_key);
        let members = value.map_or(0, |value| i64::try_from(self.members_at(value)).unwrap_or(i64::MAX));
        match self.group.strategy {
            Strategy::Spread => members,
            Strategy::Pack => -members,
        }
    }
}

fn has_labels(candidate: &Candidate, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| candidate.labels.get(key) == Some(value))
}

fn filter(request: &Request, spread: Option<&Spread<'_, '_>>, candidate: &Candidate) -> Result<(), Unfit> {
    let check = |holds: bool, unfit: Unfit| if holds { Ok(()) } else { Err(unfit) };
    check(request.host.as_ref().is_none_or(|host| *host == candidate.name), Unfit::NotTheOne)?;
    check(request.disk_hosts.iter().all(|host| *host == candidate.name), Unfit::DiskElsewhere)?;
    check(has_labels(candidate, &request.selector), Unfit::Labels)?;
    check(candidate.ready, Unfit::NotReady)?;
    check(!candidate.cordoned, Unfit::Cordoned)?;
    if let Some(spread) = spread {
        spread.allows(candidate)?;
    }
    check(request.refused_by.as_ref() != Some(&candidate.name), Unfit::Refused)?;
    check(candidate.used.cpus + request.cpus <= candidate.allocatable_cpus, Unfit::Cpus)?;
    check(memory_with(request, candidate) <= candidate.allocatable_memory, Unfit::Memory)
}

/// Memory in use on the host once it has the VM too, overhead included.
fn memory_with(request: &Request, candidate: &Candidate) -> u64 {
    let overhead = (candidate.used.vms + 1).saturating_mul(candidate.overhead);
    candidate.used.memory.saturating_add(request.memory).saturating_add(overhead)
}

/// Lower is better: what the group wishes, then the labels the VM wishes, then how full the host is, then its name.
fn score<'a>(
    request: &Request,
    spread: Option<&Spread<'_, '_>>,
    candidate: &'a Candidate,
    filling: Filling,
) -> (i64, Reverse<usize>, i128, &'a str) {
    let has = |(key, value): &(&String, &String)| candidate.labels.get(*key) == Some(*value);
    let wishes = request.preferred.iter().filter(has).count();
    let left = share_left(request, candidate);
    let fullness = match filling {
        Filling::Balance => -left,
        Filling::Pack => left,
    };
    (spread.map_or(0, |s| s.distance(candidate)), Reverse(wishes), fullness, &candidate.name)
}

/// What the host has left of what is scarcer, CPUs or memory, once it has the VM too: in parts of a whole of 2^32.
fn share_left(request: &Request, candidate: &Candidate) -> i128 {
    let share = |used: i128, of: i128| if of > 0 { ((of - used) << 32) / of } else { 0 };
    let cpus = share((candidate.used.cpus + request.cpus).into(), candidate.allocatable_cpus.into());
    let memory = share(memory_with(request, candidate).into(), candidate.allocatable_memory.into());
    cpus.min(memory)
}
