//! The scheduler: which host a VM goes to. A pure function of what is known; callable read-only, so that a plan can
//! say where a VM would fit.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use berth_api::Enforcement;

/// A host as the scheduler sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    /// Its agent reports and says it is ready.
    pub(super) alive: bool,
    pub(super) cordoned: bool,
    /// What VMs may use.
    pub(super) allocatable_cpus: i64,
    pub(super) allocatable_memory: u64,
    /// What the VMs bound to it take, overhead included.
    pub(super) used_cpus: i64,
    pub(super) used_memory: u64,
    /// Memory a VM takes above its guest memory.
    pub(super) overhead: u64,
}

/// What a VM asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) cpus: i64,
    /// Bytes of guest memory.
    pub(super) memory: u64,
    /// The one host it may run on.
    pub(super) host: Option<String>,
    /// Labels the host must have.
    pub(super) selector: BTreeMap<String, String>,
    /// The hosts that have the files of its disks.
    pub(super) disk_hosts: BTreeSet<String>,
    /// Its placement group.
    pub(super) group: Option<Group>,
}

/// A placement group as the scheduler sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) enforcement: Enforcement,
    pub(super) topology_key: String,
    /// The hosts of its members, one entry a member.
    pub(super) member_hosts: Vec<String>,
}

/// Why a host was not taken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Unfit {
    NotTheOne,
    Silent,
    Cordoned,
    DiskElsewhere,
    Labels,
    GroupMember(String),
    TopologyLabel(String),
    Cpus,
    Memory,
}

impl Unfit {
    fn text(&self, count: usize) -> String {
        match self {
            Self::NotTheOne => format!("{count} not the host named in placement.host"),
            Self::Silent => format!("{count} not ready"),
            Self::Cordoned => format!("{count} cordoned"),
            Self::DiskElsewhere => format!("{count} without the files of its disks"),
            Self::Labels => format!("{count} without the labels of placement.host_selector"),
            Self::GroupMember(group) => format!("{count} already with a member of placement group {group}"),
            Self::TopologyLabel(label) => format!("{count} without the label {label} of the placement group"),
            Self::Cpus => format!("{count} with too few free CPUs"),
            Self::Memory => format!("{count} with too little free memory"),
        }
    }
}

/// Chooses the host, or says why there is none.
///
/// *Guarantees:* never over a host's allocatable amounts; never two members of a required group on one topology
/// value; the same input gives the same host, whatever the order of the candidates.
pub(super) fn choose(request: &Request, candidates: &[Candidate]) -> Result<String, String> {
    let mut unfit: BTreeMap<Unfit, usize> = BTreeMap::new();
    let mut fit = Vec::new();
    for candidate in candidates {
        match filter(request, candidate, candidates) {
            Ok(()) => fit.push(candidate),
            Err(reason) => *unfit.entry(reason).or_default() += 1,
        }
    }
    let best = fit.into_iter().min_by_key(|candidate| score(request, candidate, candidates));
    best.map(|candidate| candidate.name.clone()).ok_or_else(|| explain(request, candidates.len(), &unfit))
}

fn filter(request: &Request, candidate: &Candidate, all: &[Candidate]) -> Result<(), Unfit> {
    let check = |holds: bool, unfit: Unfit| if holds { Ok(()) } else { Err(unfit) };
    check(request.host.as_ref().is_none_or(|host| *host == candidate.name), Unfit::NotTheOne)?;
    check(candidate.alive, Unfit::Silent)?;
    check(!candidate.cordoned, Unfit::Cordoned)?;
    check(request.disk_hosts.iter().all(|host| *host == candidate.name), Unfit::DiskElsewhere)?;
    let has = |(key, value): (&String, &String)| candidate.labels.get(key) == Some(value);
    check(request.selector.iter().all(has), Unfit::Labels)?;
    if let Some(group) = &request.group
        && group.enforcement == Enforcement::Required
    {
        let label = || Unfit::TopologyLabel(group.topology_key.clone());
        let mine = candidate.labels.get(&group.topology_key).ok_or_else(label)?;
        check(members_at(group, mine, all) == 0, Unfit::GroupMember(group.name.clone()))?;
    }
    check(candidate.used_cpus + request.cpus <= candidate.allocatable_cpus, Unfit::Cpus)?;
    let needed = candidate.used_memory.saturating_add(request.memory).saturating_add(candidate.overhead);
    check(needed <= candidate.allocatable_memory, Unfit::Memory)
}

/// Lower is better: fewest members of a preferred group, then most memory left, then by name.
fn score<'a>(
    request: &Request,
    candidate: &'a Candidate,
    all: &[Candidate],
) -> (usize, Reverse<u64>, &'a str) {
    let group = request
        .group
        .as_ref()
        .and_then(|group| candidate.labels.get(&group.topology_key).map(|mine| members_at(group, mine, all)));
    let left = candidate.allocatable_memory.saturating_sub(candidate.used_memory);
    (group.unwrap_or_default(), Reverse(left), &candidate.name)
}

fn members_at(group: &Group, value: &str, all: &[Candidate]) -> usize {
    let is_there = |host: &&String| {
        all.iter()
            .find(|c| c.name == **host)
            .and_then(|c| c.labels.get(&group.topology_key))
            .is_some_and(|v| v == value)
    };
    group.member_hosts.iter().filter(is_there).count()
}

fn explain(request: &Request, hosts: usize, unfit: &BTreeMap<Unfit, usize>) -> String {
    if hosts == 0 {
        return "there is no host yet".into();
    }
    let mut text = format!("0 of {hosts} hosts can take it: ");
    let reasons: Vec<String> = unfit.iter().map(|(reason, count)| reason.text(*count)).collect();
    text.push_str(&reasons.join(", "));
    let _ = write!(text, " (it needs {} CPUs and {} MiB)", request.cpus, request.memory >> 20);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::placement_group::HOSTNAME_LABEL;
    use proptest::prelude::*;

    fn host(name: &str, memory: u64) -> Candidate {
        Candidate {
            name: name.into(),
            labels: [(HOSTNAME_LABEL.to_owned(), name.to_owned())].into(),
            alive: true,
            allocatable_cpus: 8,
            allocatable_memory: memory,
            overhead: 10,
            ..Candidate::default()
        }
    }

    fn request(memory: u64) -> Request {
        Request { cpus: 1, memory, ..Request::default() }
    }

    fn group(hosts: &[&str], enforcement: Enforcement) -> Option<Group> {
        Some(Group {
            name: "web".into(),
            enforcement,
            topology_key: HOSTNAME_LABEL.into(),
            member_hosts: hosts.iter().map(|h| (*h).to_owned()).collect(),
        })
    }

    #[test]
    fn the_host_with_most_memory_left_is_taken() {
        assert_eq!(choose(&request(100), &[host("a", 500), host("b", 900)]), Ok("b".into()));
    }

    #[test]
    fn overhead_counts() {
        assert!(choose(&request(100), &[host("a", 109)]).is_err());
        assert!(choose(&request(100), &[host("a", 110)]).is_ok());
    }

    #[test]
    fn every_reason_is_told_with_its_count() {
        let mut silent = host("s", 900);
        silent.alive = false;
        let mut cordoned = host("c", 900);
        cordoned.cordoned = true;
        insta::assert_snapshot!(
            choose(&request(800), &[silent, cordoned, host("a", 500), host("b", 600)]).unwrap_err(),
            @"0 of 4 hosts can take it: 1 not ready, 1 cordoned, 2 with too little free memory (it needs 1 CPUs and 0 MiB)"
        );
        insta::assert_snapshot!(choose(&request(800), &[]).unwrap_err(), @"there is no host yet");
    }

    #[test]
    fn a_required_group_never_shares_a_host_and_a_preferred_one_only_when_it_must() {
        let hosts = [host("a", 900), host("b", 500)];
        let mut wish = request(100);
        wish.group = group(&["a"], Enforcement::Required);
        assert_eq!(choose(&wish, &hosts), Ok("b".into()));
        wish.group = group(&["a", "b"], Enforcement::Required);
        assert!(
            choose(&wish, &hosts).unwrap_err().contains("2 already with a member of placement group web")
        );
        wish.group = group(&["a"], Enforcement::Preferred);
        assert_eq!(choose(&wish, &hosts), Ok("b".into()));
        wish.group = group(&["a", "b"], Enforcement::Preferred);
        assert_eq!(choose(&wish, &hosts), Ok("a".into()));
    }

    #[test]
    fn a_vm_goes_where_its_disks_are() {
        let mut wish = request(100);
        wish.disk_hosts = ["a".to_owned()].into();
        assert_eq!(choose(&wish, &[host("a", 500), host("b", 900)]), Ok("a".into()));
    }

    proptest! {
        #[test]
        fn never_over_capacity_never_two_of_a_group_and_whatever_the_order(
            memories in prop::collection::vec(100u64..1000, 1..6),
            wishes in prop::collection::vec((1i64..4, 1u64..400), 1..20),
        ) {
            let mut hosts: Vec<Candidate> = memories.iter().enumerate().map(|(i, m)| host(&format!("h{i}"), *m)).collect();
            let mut members = Vec::new();
            for (cpus, memory) in wishes {
                let mut wish = Request { cpus, memory, ..Request::default() };
                wish.group = Some(Group {
                    name: "g".into(), enforcement: Enforcement::Required,
                    topology_key: HOSTNAME_LABEL.into(), member_hosts: members.clone(),
                });
                let chosen = choose(&wish, &hosts);
                let mut reversed = hosts.clone();
                reversed.reverse();
                prop_assert_eq!(&chosen.clone().ok(), &choose(&wish, &reversed).ok());
                if let Ok(name) = chosen {
                    prop_assert!(!members.contains(&name));
                    let host = hosts.iter_mut().find(|h| h.name == name).expect("it was a candidate");
                    host.used_cpus += cpus;
                    host.used_memory += memory + host.overhead;
                    prop_assert!(host.used_cpus <= host.allocatable_cpus);
                    prop_assert!(host.used_memory <= host.allocatable_memory);
                    members.push(name);
                }
            }
        }
    }
}
