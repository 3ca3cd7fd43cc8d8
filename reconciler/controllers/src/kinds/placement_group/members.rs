//! The members in the status of a group: each with its conditions. Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{
    ConditionType, ConditionUpdate, Conditions, PlacementGroup, Reason, Strategy, condition,
    placement_group::{GroupMember, MOST_DESCRIBED_MEMBERS},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};

use super::{Lacks, Member};

/// The longest message about a member, in bytes.
const LONGEST_MESSAGE: usize = 256;

/// The members at each value of the topology key.
type Places<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Returns the members as the status of the group has them; `before`: as it had them.
pub(super) fn report(
    group: &PlacementGroup,
    members: &[Member],
    before: Vec<GroupMember>,
    now: Timestamp,
) -> Vec<GroupMember> {
    let mut before: BTreeMap<String, Conditions> =
        before.into_iter().map(|member| (member.vm, member.conditions)).collect();
    let mut places = Places::new();
    for member in members {
        if let Some(value) = &member.value {
            places.entry(value).or_default().insert(&member.vm);
        }
    }
    let reported = members.iter().enumerate().map(|(number, member)| {
        let former = before.remove(&member.vm).unwrap_or_default();
        let is_described = number < MOST_DESCRIBED_MEMBERS;
        GroupMember {
            vm: member.vm.clone(),
            host: member.host.clone(),
            value: member.value.clone(),
            conditions: if is_described {
                conditions(group, member, &places, former, now)
            } else {
                Conditions::new()
            },
        }
    });
    reported.collect()
}

/// Returns the conditions of a member.
fn conditions(
    group: &PlacementGroup,
    member: &Member,
    places: &Places<'_>,
    former: Conditions,
    now: Timestamp,
) -> Conditions {
    let kind = ConditionType::PlacementSynced;
    let synced = former.into_iter().filter(|condition| condition.type_ == kind.as_str());
    // As the VM has it, with the time since when it is so. A generation of the VM would be read as one of the group.
    let scheduled = member.scheduled.as_ref().map(|scheduled| Condition {
        message: condition::cut(&scheduled.message, LONGEST_MESSAGE).to_owned(),
        observed_generation: None,
        ..scheduled.clone()
    });
    let mut conditions: Conditions = scheduled.into_iter().chain(synced).collect();
    let is_known = member.value.is_some() || member.lacks.is_some();
    if member.host.is_none() || !is_known {
        condition::remove(&mut conditions, kind);
        return conditions;
    }
    let broken = broken_rule(group, member, places);
    let (reason, text) = match &broken {
        Some(text) => (Reason::GroupRuleBroken, condition::cut(text, LONGEST_MESSAGE)),
        None => (Reason::Available, "its host is one that the group allows"),
    };
    let generation = group.metadata.generation.unwrap_or_default();
    let update = ConditionUpdate::from_bool(kind, broken.is_none(), reason, text);
    condition::set(&mut conditions, update, generation, now);
    conditions
}

/// Returns the rule of the group that the place of a member breaks, whatever the enforcement.
fn broken_rule(group: &PlacementGroup, member: &Member, places: &Places<'_>) -> Option<String> {
    if let Some(text) = elsewhere(member) {
        return Some(text);
    }
    let key = &group.spec.topology_key;
    let Some(value) = &member.value else {
        return Some(format!("the host of {} does not have the label {key}", member.vm));
    };
    match group.spec.strategy {
        Strategy::Spread => {
            let other = places.get(value.as_str())?.iter().find(|vm| **vm != member.vm)?;
            Some(format!("{other} and {} are both placed at {value}", member.vm))
        }
        Strategy::Pack => {
            let (elsewhere, others) = places.iter().find(|(other, _)| **other != value.as_str())?;
            let other = others.first()?;
            Some(format!("{other} is placed at {elsewhere} and {} at {value}", member.vm))
        }
    }
}

/// Returns the label of the group's selector that the host of a member lacks.
pub(super) fn elsewhere(member: &Member) -> Option<String> {
    let (Some(Lacks::Selected(label)), Some(host)) = (&member.lacks, &member.host) else { return None };
    Some(format!("hostSelector asks for {label}, which host {host} of {} does not have", member.vm))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn group(spec: serde_json::Value) -> PlacementGroup {
        serde_json::from_value(json!({"metadata": {"name": "g", "generation": 2}, "spec": spec}))
            .expect("a group")
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn placed(vm: &str, value: &str) -> Member {
        Member {
            vm: vm.into(),
            host: Some(format!("h-{vm}")),
            value: Some(value.into()),
            ..Member::default()
        }
    }

    /// The status and the message of `PlacementSynced` of each member.
    fn synced(spec: serde_json::Value, members: &[Member]) -> Vec<Option<(String, String)>> {
        let reported = report(&group(spec), members, Vec::new(), at(1));
        let of_one = |member: &GroupMember| {
            let synced = condition::find(&member.conditions, "PlacementSynced")?;
            Some((synced.status.clone(), synced.message.clone()))
        };
        reported.iter().map(of_one).collect()
    }

    #[test]
    fn a_member_that_breaks_the_rule_is_reported_with_the_other_one_also_if_the_rule_is_preferred() {
        let members = [placed("a", "1"), placed("b", "1"), placed("c", "2")];
        let found = synced(json!({"enforcement": "preferred"}), &members);
        let broken = |text: &str| Some(("False".to_owned(), text.to_owned()));
        let allowed = Some(("True".to_owned(), "its host is one that the group allows".to_owned()));
        assert_eq!(found[0], broken("b and a are both placed at 1"));
        assert_eq!(found[1], broken("a and b are both placed at 1"));
        assert_eq!(found[2], allowed);
        let found = synced(json!({"strategy": "pack"}), &members);
        assert_eq!(found[2], broken("a is placed at 1 and c at 2"));
        assert_eq!(synced(json!({"strategy": "pack"}), &members[..2]), [allowed.clone(), allowed]);
    }

    #[test]
    fn a_member_whose_host_lacks_a_label_is_reported_with_that_label() {
        let lacks = |lacks: Lacks| Member { lacks: Some(lacks), ..placed("a", "1") };
        let selected = lacks(Lacks::Selected("zone=b".into()));
        let found = synced(json!({"hostSelector": {"zone": "b"}}), &[selected]);
        let text = "hostSelector asks for zone=b, which host h-a of a does not have";
        assert_eq!(found, [Some(("False".to_owned(), text.to_owned()))]);
        let keyless = Member { value: None, ..lacks(Lacks::TopologyKey) };
        let found = synced(json!({"topologyKey": "rack"}), &[keyless]);
        assert_eq!(
            found,
            [Some(("False".to_owned(), "the host of a does not have the label rack".to_owned()))]
        );
        let unknown = Member { value: None, ..placed("a", "1") };
        assert_eq!(synced(json!({}), &[unknown]), [None], "a host without an object");
    }

    #[test]
    fn a_member_without_a_host_has_the_reason_of_its_vm_and_a_time_stays_while_a_status_does() {
        let scheduled = Condition {
            type_: "Scheduled".into(),
            status: "False".into(),
            reason: "Unschedulable".into(),
            message: "no room ".repeat(100),
            observed_generation: Some(7),
            ..serde_json::from_value(json!({"type": "", "status": "", "reason": "", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}))
            .expect("a condition")
        };
        let waits = Member { vm: "a".into(), scheduled: Some(scheduled), ..Member::default() };
        let reported = report(&group(json!({})), &[waits], Vec::new(), at(1));
        let [condition] = reported[0].conditions.as_slice() else { panic!("{reported:?}") };
        assert_eq!((condition.reason.as_str(), condition.message.len()), ("Unschedulable", LONGEST_MESSAGE));
        assert_eq!(condition.observed_generation, None, "that of the VM");
        let members = [placed("a", "1")];
        let first = report(&group(json!({})), &members, reported, at(2));
        assert_eq!(report(&group(json!({})), &members, first.clone(), at(3)), first);
    }

    #[test]
    fn a_large_group_has_the_conditions_of_its_first_members() {
        let members: Vec<Member> =
            (0..300).map(|number| placed(&format!("vm-{number:03}"), &number.to_string())).collect();
        let reported = report(&group(json!({})), &members, Vec::new(), at(1));
        let described = reported.iter().filter(|member| !member.conditions.is_empty()).count();
        assert_eq!((reported.len(), described), (300, MOST_DESCRIBED_MEMBERS));
    }
}
