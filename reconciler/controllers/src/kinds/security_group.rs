//! The SecurityGroup controller: publishes the addresses of a group's members, which hosts read when a rule names the group.

use std::net::{Ipv4Addr, Ipv6Addr};

use berth_api::security_group::MOST_RANGES;
use berth_api::{Readiness, Reason, SecurityGroup, SecurityGroupStatus};
use k8s_openapi::jiff::Timestamp;

use crate::{
    batch::WriteBatch,
    cache::Cache,
    config::Config,
    key::{Key, ObjectKind},
    plan::Outcome,
};

/// The inputs of a group's status.
#[derive(Debug, Default)]
struct Observed {
    /// The members' addresses as ranges; empty while no rule names the group.
    ranges: Vec<(Ipv4Addr, Ipv4Addr)>,
    ipv6_ranges: Vec<(Ipv6Addr, Ipv6Addr)>,
    /// Groups that its rules name and that do not exist.
    missing: Vec<String>,
}

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(group) = cache.tables.security_groups.get(key).cloned() else { return Outcome::Settled };
    let observed = observe(cache, key, &group);
    let mut status = status(&group, &observed, &plan(&observed), config.clock.now());
    let users = cache.listed_users(key, &status.used_by);
    status.used_by.clone_from(&users);
    batch.used(group.as_ref(), status, &users, config.clock.now());
    Outcome::Settled
}

fn observe(cache: &Cache, key: &Key, group: &SecurityGroup) -> Observed {
    let groups = &cache.index.security_groups;
    let exists = |name: &str| {
        let key = Key::namespaced(ObjectKind::SecurityGroup, key.namespace(), name);
        cache.tables.security_groups.get(&key).is_some()
    };
    Observed {
        ranges: if groups.is_named(key) { ranges(groups.members(key)) } else { Vec::new() },
        ipv6_ranges: if groups.is_named(key) { ipv6_ranges(groups.ipv6_members(key)) } else { Vec::new() },
        missing: group.spec.named_groups().into_iter().filter(|n| !exists(n)).map(str::to_owned).collect(),
    }
}

/// Joins addresses, in order, into ranges.
fn ranges(addresses: impl Iterator<Item = Ipv4Addr>) -> Vec<(Ipv4Addr, Ipv4Addr)> {
    let mut ranges: Vec<(Ipv4Addr, Ipv4Addr)> = Vec::new();
    for address in addresses {
        match ranges.last_mut() {
            Some((_, last)) if u32::from(*last).checked_add(1) == Some(u32::from(address)) => *last = address,
            _ => ranges.push((address, address)),
        }
    }
    ranges
}

/// Joins addresses, in order, into ranges.
fn ipv6_ranges(addresses: impl Iterator<Item = Ipv6Addr>) -> Vec<(Ipv6Addr, Ipv6Addr)> {
    let mut ranges: Vec<(Ipv6Addr, Ipv6Addr)> = Vec::new();
    for address in addresses {
        match ranges.last_mut() {
            Some((_, last)) if u128::from(*last).checked_add(1) == Some(u128::from(address)) => {
                *last = address;
            }
            _ => ranges.push((address, address)),
        }
    }
    ranges
}

fn plan(observed: &Observed) -> Readiness {
    let most = observed.ranges.len().max(observed.ipv6_ranges.len());
    if most > MOST_RANGES {
        let text = format!(
            "the addresses of its members are {most} ranges, and hosts know the first {MOST_RANGES}: spread the members over several groups"
        );
        return Readiness::Stalled(Reason::InvalidSpec, text);
    }
    let text = match &observed.missing[..] {
        [] => String::new(),
        missing => {
            format!("its rules name groups that do not exist, and have no members: {}", missing.join(", "))
        }
    };
    Readiness::Ready(Reason::Available, text)
}

fn status(
    group: &SecurityGroup,
    observed: &Observed,
    readiness: &Readiness,
    now: Timestamp,
) -> SecurityGroupStatus {
    let mut status = group.status.clone().unwrap_or_default();
    let generation = group.metadata.generation.unwrap_or_default();
    readiness.write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    let text = |(first, last): &(Ipv4Addr, Ipv4Addr)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    status.addresses = observed.ranges.iter().take(MOST_RANGES).map(text).collect();
    let text = |(first, last): &(Ipv6Addr, Ipv6Addr)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    status.ipv6_addresses = observed.ipv6_ranges.iter().take(MOST_RANGES).map(text).collect();
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_members_that_were_made_together_are_one_range() {
        let first = u32::from(Ipv4Addr::new(10, 64, 0, 2));
        let all = ranges((first..first + 10_000).map(Ipv4Addr::from));
        assert_eq!(all, [(Ipv4Addr::new(10, 64, 0, 2), Ipv4Addr::new(10, 64, 39, 17))]);
        let apart = [2, 3, 5].map(|last| Ipv4Addr::new(10, 0, 0, last));
        let group = SecurityGroup::new("web", Default::default());
        let ipv6 = [2, 3, 5].map(|last| Ipv6Addr::new(0xfd00, 0x60, 0, 0, 0, 0, 0, last));
        let observed = Observed {
            ranges: ranges(apart.into_iter()),
            ipv6_ranges: ipv6_ranges(ipv6.into_iter()),
            ..Observed::default()
        };
        let status = status(&group, &observed, &plan(&observed), Timestamp::UNIX_EPOCH);
        assert_eq!(status.addresses, ["10.0.0.2-10.0.0.3", "10.0.0.5"]);
        assert_eq!(status.ipv6_addresses, ["fd00:60::2-fd00:60::3", "fd00:60::5"]);
    }

    #[test]
    fn a_group_whose_rules_name_none_says_so_and_one_with_too_many_members_is_stalled() {
        let missing = Observed { missing: vec!["bastion".into()], ..Observed::default() };
        assert_eq!(
            plan(&missing).message(),
            "its rules name groups that do not exist, and have no members: bastion"
        );
        assert!(matches!(plan(&missing), Readiness::Ready(..)));
        let odd = (0..40_000u32).step_by(2).map(Ipv4Addr::from);
        let many = Observed { ranges: ranges(odd), ..Observed::default() };
        assert!(matches!(plan(&many), Readiness::Stalled(..)));
    }
}
