//! PlacementGroup: says who its members are and whether all of them are placed as the rule says.

use berth_api::{
    ConditionType, PlacementGroup, PlacementGroupStatus, Readiness, Reason, condition,
    placement_group::GroupMember,
};
use k8s_openapi::jiff::Timestamp;

use super::{
    Key, World,
    apply::{WriteError, Writer},
    plan::Outcome,
};

/// A member as it is: its host, or why it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    vm: String,
    host: Option<String>,
    why_not: Option<String>,
}

pub(super) async fn reconcile(
    world: &mut World,
    writer: &Writer,
    key: &Key,
    touched: &mut Vec<Key>,
) -> Result<Outcome, WriteError> {
    let Some(group) = world.placement_groups.get(key).cloned() else { return Ok(Outcome::Settled) };
    let members = observe(world, key);
    let status = status(&group, &members, &plan(&members), writer.now());
    writer.status(world, group.as_ref(), status, touched).await?;
    Ok(Outcome::Settled)
}

fn observe(world: &World, group: &Key) -> Vec<Member> {
    let member = |key: &Key| {
        let status = world.vms.get(key)?.status.clone().unwrap_or_default();
        let scheduled = condition::find(&status.conditions, ConditionType::Scheduled.as_str());
        let why_not = scheduled.filter(|c| c.status == "False").map(|c| c.message.clone());
        Some(Member { vm: key.name.clone(), host: status.binding.map(|b| b.host), why_not })
    };
    world.index.members(group).iter().filter_map(member).collect()
}

fn plan(members: &[Member]) -> Readiness {
    let unplaced: Vec<&Member> = members.iter().filter(|m| m.host.is_none()).collect();
    let Some(first) = unplaced.first() else {
        return Readiness::Ready(Reason::Available, format!("all {} members are placed", members.len()));
    };
    let why = first.why_not.clone().unwrap_or_else(|| "not looked at yet".into());
    let text = format!("{} of {} members are not placed; {}: {why}", unplaced.len(), members.len(), first.vm);
    Readiness::Reconciling(Reason::Unschedulable, text)
}

fn status(
    group: &PlacementGroup,
    members: &[Member],
    readiness: &Readiness,
    now: Timestamp,
) -> PlacementGroupStatus {
    let mut status = group.status.clone().unwrap_or_default();
    let generation = group.metadata.generation.unwrap_or_default();
    readiness.write(&mut status.conditions, generation, now);
    status.members = members.iter().map(|m| GroupMember { vm: m.vm.clone(), host: m.host.clone() }).collect();
    status.observed_generation = generation;
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_ready_when_every_member_is_placed_and_else_says_who_is_not() {
        let placed = Member { vm: "a".into(), host: Some("h".into()), why_not: None };
        let unplaced = Member { vm: "b".into(), host: None, why_not: Some("no room".into()) };
        assert!(matches!(plan(&[]), Readiness::Ready(..)));
        assert!(matches!(plan(std::slice::from_ref(&placed)), Readiness::Ready(..)));
        let readiness = plan(&[placed, unplaced]);
        assert_eq!(readiness.message(), "1 of 2 members are not placed; b: no room");
    }
}
