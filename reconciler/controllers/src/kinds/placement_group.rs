//! The PlacementGroup controller: reports the members and whether all of them are placed as the rule requires.

mod members;

use std::collections::BTreeMap;

use berth_api::{Enforcement, PlacementGroup, PlacementGroupStatus, Readiness, Reason, Strategy, condition};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use crate::{
    batch::WriteBatch,
    cache::{Cache, capacity::Candidate},
    config::Config,
    key::Key,
    plan::{Dependency, Outcome},
    scheduler::{has_labels, topology_values},
    topology,
};

/// The inputs of a group's status.
#[derive(Clone, Debug, Default, PartialEq)]
struct Observed {
    members: Vec<Member>,
    /// The number of distinct values of the topology key among the hosts that members may run on.
    values: usize,
}

/// A member's current place: its host, or why it has none.
#[derive(Clone, Debug, Default, PartialEq)]
struct Member {
    vm: String,
    host: Option<String>,
    /// The value of the topology key there.
    value: Option<String>,
    /// Its condition `Scheduled`.
    scheduled: Option<Condition>,
    /// The label that its host does not have: one of the group's selector, or else the topology key.
    lacks: Option<Lacks>,
    why_not: Option<String>,
}

/// A label that the host of a member lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lacks {
    /// A label of `hostSelector`, as `label=value`.
    Selected(String),
    TopologyKey,
}

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(group) = cache.tables.placement_groups.get(key).cloned() else { return Outcome::Settled };
    let observed = observe(cache, &group, key);
    let mut status = status(&group, &observed, &plan(&group, &observed), config.clock.now());
    let users = cache.listed_users(key, &status.used_by);
    status.used_by.clone_from(&users);
    let (claims, ensure) = topology::decide(cache, &group);
    status.claims = claims;
    ensure.into_iter().for_each(|first| batch.write(first));
    batch.used(group.as_ref(), status, &users, config.clock.now());
    Outcome::Blocked(vec![Dependency::Hosts])
}

fn observe(cache: &Cache, group: &PlacementGroup, key: &Key) -> Observed {
    let capacity = &cache.index.capacity;
    let topology_key = &group.spec.topology_key;
    let member = |key: &Key| {
        let status = cache.tables.vms.get(key)?.status.as_ref();
        let host = status.and_then(|s| s.binding.as_ref()).map(|b| b.host.clone());
        let candidate = host.as_ref().and_then(|h| capacity.get(h));
        let value = candidate.and_then(|candidate| candidate.labels.get(topology_key).cloned());
        let scheduled = status.and_then(|s| condition::find(&s.conditions, "Scheduled"));
        let why_not = scheduled.filter(|c| c.status == "False").map(|c| c.message.clone());
        let lacks = candidate.and_then(|candidate| lacks(group, candidate));
        Some(Member { vm: key.name.to_string(), host, value, scheduled: scheduled.cloned(), lacks, why_not })
    };
    let hosts = capacity.hosts().filter(|host| has_labels(host, &group.spec.host_selector));
    Observed {
        members: cache.index.members(key).iter().filter_map(member).collect(),
        values: topology_values(topology_key, hosts).len(),
    }
}

fn lacks(group: &PlacementGroup, host: &Candidate) -> Option<Lacks> {
    let mut selector = group.spec.host_selector.iter();
    if let Some((label, value)) = selector.find(|(label, value)| host.labels.get(*label) != Some(*value)) {
        return Some(Lacks::Selected(format!("{label}={value}")));
    }
    (!host.labels.contains_key(&group.spec.topology_key)).then_some(Lacks::TopologyKey)
}

fn plan(group: &PlacementGroup, observed: &Observed) -> Readiness {
    let members = &observed.members;
    let spec = &group.spec;
    let (placed, total) = (members.iter().filter(|m| m.host.is_some()).count(), members.len());
    let required = spec.enforcement == Enforcement::Required;
    if required && let Some(text) = broken(spec.strategy, members) {
        return Readiness::Stalled(Reason::GroupRuleBroken, text);
    }
    if let Some(text) = members.iter().find_map(members::elsewhere) {
        return Readiness::Stalled(Reason::GroupRuleBroken, text);
    }
    let Some(first) = members.iter().find(|m| m.host.is_none()) else {
        return Readiness::Ready(Reason::Available, format!("all {total} members are placed"));
    };
    if required && spec.strategy == Strategy::Spread && observed.values > 0 && total > observed.values {
        let hosts =
            if spec.host_selector.is_empty() { "hosts" } else { "hosts with the labels of hostSelector" };
        let text = format!(
            "{placed} of {total} members are placed: the group keeps its members apart and {hosts} have {} different values of {}; add a host, or take members out",
            observed.values, spec.topology_key
        );
        return Readiness::Stalled(Reason::GroupTooLarge, text);
    }
    let why = first.why_not.clone().unwrap_or_else(|| "not looked at yet".into());
    let text = format!("{placed} of {total} members are placed; {}: {why}", first.vm);
    Readiness::Reconciling(Reason::Unschedulable, text)
}

/// Returns two members that are placed against the rule: they are not moved, so the conflict must be reported. A
/// host can get another label, and a rule can change, after members were placed.
fn broken(strategy: Strategy, members: &[Member]) -> Option<String> {
    let mut at: BTreeMap<&str, &str> = BTreeMap::new();
    for member in members {
        let Some(value) = &member.value else { continue };
        match strategy {
            Strategy::Spread => {
                if let Some(other) = at.insert(value, &member.vm) {
                    return Some(format!("{other} and {} are both placed at {value}", member.vm));
                }
            }
            Strategy::Pack => {
                if let Some((elsewhere, other)) = at.iter().find(|(v, _)| **v != value.as_str()) {
                    return Some(format!("{other} is placed at {elsewhere} and {} at {value}", member.vm));
                }
                at.insert(value, &member.vm);
            }
        }
    }
    None
}

fn status(
    group: &PlacementGroup,
    observed: &Observed,
    readiness: &Readiness,
    now: Timestamp,
) -> PlacementGroupStatus {
    let mut status = group.status.clone().unwrap_or_default();
    let generation = group.metadata.generation.unwrap_or_default();
    readiness.write(&mut status.conditions, generation, now);
    status.members = members::report(group, &observed.members, status.members, now);
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    status.placed = count(observed.members.iter().filter(|m| m.host.is_some()).count());
    status.total = count(observed.members.len());
    status.observed_generation = generation;
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn group(spec: serde_json::Value) -> PlacementGroup {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "PlacementGroup", "metadata": {"name": "g"}, "spec": spec});
        serde_json::from_value(object).expect("a group")
    }

    fn member(vm: &str, host: Option<&str>) -> Member {
        let host = host.map(str::to_owned);
        let why_not = host.is_none().then(|| "no room".into());
        Member { vm: vm.into(), value: host.clone(), why_not, host, ..Member::default() }
    }

    fn says(spec: serde_json::Value, members: &[Member], values: usize) -> Readiness {
        plan(&group(spec), &Observed { members: members.to_vec(), values })
    }

    #[test]
    fn a_group_is_ready_when_every_member_is_placed_and_else_says_how_many_are_and_who_is_not() {
        let members = [member("a", Some("h")), member("b", None)];
        assert!(matches!(says(json!({}), &[], 0), Readiness::Ready(..)));
        assert!(matches!(says(json!({}), &members[..1], 1), Readiness::Ready(..)));
        let readiness = says(json!({}), &members, 2);
        assert!(matches!(readiness, Readiness::Reconciling(..)));
        assert_eq!(readiness.message(), "1 of 2 members are placed; b: no room");
    }

    #[test]
    fn a_group_too_large_for_the_hosts_says_so_with_both_counts() {
        let members = [member("a", Some("h")), member("b", None)];
        let readiness = says(json!({}), &members, 1);
        assert!(matches!(readiness, Readiness::Stalled(Reason::GroupTooLarge, _)));
        insta::assert_snapshot!(readiness.message(), @"1 of 2 members are placed: the group keeps its members apart and hosts have 1 different values of kubernetes.io/hostname; add a host, or take members out");
        let preferred = says(json!({"enforcement": "preferred"}), &members, 1);
        assert!(matches!(preferred, Readiness::Reconciling(..)), "{preferred:?}");
        let zoned = says(json!({"hostSelector": {"zone": "b"}}), &members, 1);
        let words = "hosts with the labels of hostSelector have 1 different values";
        assert!(zoned.message().contains(words), "{}", zoned.message());
    }

    #[test]
    fn a_group_with_a_member_on_a_host_without_its_labels_is_not_ready_also_if_the_strategy_is_preferred() {
        let lacks = Some(Lacks::Selected("zone=b".into()));
        let members = [Member { lacks, ..member("a", Some("h")) }];
        let readiness = says(json!({"enforcement": "preferred", "hostSelector": {"zone": "b"}}), &members, 1);
        assert!(matches!(readiness, Readiness::Stalled(Reason::GroupRuleBroken, _)), "{readiness:?}");
        assert_eq!(readiness.message(), "hostSelector asks for zone=b, which host h of a does not have");
        let keyless = [Member { lacks: Some(Lacks::TopologyKey), ..member("a", Some("h")) }];
        assert!(matches!(says(json!({}), &keyless, 1), Readiness::Ready(..)));
    }

    #[test]
    fn members_placed_against_a_required_rule_are_named() {
        let together = [member("a", Some("h")), member("b", Some("h"))];
        let apart = [member("a", Some("h")), member("b", Some("i"))];
        assert_eq!(says(json!({}), &together, 2).message(), "a and b are both placed at h");
        assert_eq!(says(json!({"strategy": "pack"}), &apart, 2).message(), "a is placed at h and b at i");
        assert!(matches!(says(json!({"strategy": "pack"}), &together, 2), Readiness::Ready(..)));
        assert!(matches!(says(json!({"enforcement": "preferred"}), &together, 2), Readiness::Ready(..)));
    }
}
