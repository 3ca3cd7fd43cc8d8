//! `berth start vmgroup/NAME` and `berth stop vmgroup/NAME`.

use std::time::Instant;

use anyhow::{Context, bail};
use berth_agent::TypedApi;
use berth_api::{ConditionType, GroupPower, VMGroup, condition};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{LOOK_EVERY, MANAGER, Verb, declared_by};
use crate::commands::{outage::Outage, resources};

/// The beginning of the name of a VMGroup among those of VMs.
pub(super) const PREFIX: &str = "vmgroup/";

/// Returns a group, and the power that it is to have.
///
/// *Errors:* the group does not exist; it has no such power.
pub(super) async fn find(
    groups: &TypedApi<VMGroup>,
    verb: Verb,
    name: &str,
) -> anyhow::Result<(VMGroup, GroupPower)> {
    let Some(power) = power(verb) else {
        bail!("VMGroup {name} can only be started and stopped: name its VMs instead");
    };
    resources::checked(name)?;
    let found = groups.get_opt(name).await.with_context(|| format!("reading VMGroup {name}"))?;
    let Some(group) = found else { bail!("there is no VMGroup {name} in the namespace") };
    Ok((group, power))
}

/// Declares the power of a group.
///
/// *Errors:* the control plane refuses the change.
pub(super) async fn declare(
    groups: &TypedApi<VMGroup>,
    group: &VMGroup,
    power: GroupPower,
) -> anyhow::Result<()> {
    let name = group.name_any();
    if group.spec.power == power {
        return Ok(());
    }
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({"spec": {"power": power}}));
    groups.patch(&name, &params, &patch).await.with_context(|| format!("changing VMGroup {name}"))?;
    if let Some(manager) = declared_by(group) {
        notice!("VMGroup {name}: {manager} declares its power, and changes it back when it is applied again");
    }
    Ok(())
}

fn power(verb: Verb) -> Option<GroupPower> {
    match verb {
        Verb::Start => Some(GroupPower::Running),
        Verb::Stop => Some(GroupPower::Stopped),
        Verb::Restart | Verb::Pause | Verb::Suspend => None,
    }
}

/// Waits until all members of a group have its power.
///
/// *Errors:* the group is deleted or stalled, or does not come to it in time.
pub(super) async fn wait(groups: &TypedApi<VMGroup>, name: &str, end: Instant) -> anyhow::Result<()> {
    let (mut shown, outage) = (String::new(), Outage::default());
    loop {
        let read = groups.get_opt(name).await.with_context(|| format!("reading VMGroup {name}"));
        let group = match outage.answer(read)? {
            Some(None) => bail!("VMGroup {name} was deleted"),
            answered => answered.flatten(),
        };
        let status =
            group.as_ref().and_then(|group| Some((group.status.as_ref()?, group.metadata.generation)));
        let current =
            status.filter(|(s, generation)| Some(s.observed_generation) == *generation).map(|(s, _)| s);
        let ready = current.and_then(|s| condition::find(&s.conditions, ConditionType::Ready.as_str()));
        if let Some(ready) = ready {
            if shown != ready.message {
                notice!("VMGroup {name}: {}", ready.message);
                shown.clone_from(&ready.message);
            }
            if ready.status == "True" {
                return Ok(());
            }
            let is_stalled =
                current.is_some_and(|s| condition::is_true(&s.conditions, ConditionType::Stalled));
            if is_stalled {
                bail!("VMGroup {name} is stalled: {} ({})", ready.message, ready.reason);
            }
        }
        if Instant::now() >= end {
            bail!(
                "VMGroup {name} has not reached the state in time: `berth why vmgroup/{name}` says what it waits for"
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::fake::control_plane;

    #[tokio::test]
    async fn a_name_that_no_group_has_is_refused_before_a_request() {
        let (client, _) = control_plane(Vec::new());
        let groups: TypedApi<VMGroup> = TypedApi::namespaced(client, "default");
        let refused = find(&groups, Verb::Stop, "a/../b").await.expect_err("refused").to_string();
        assert!(refused.contains("is not the name of an object"), "{refused}");
    }

    #[test]
    fn a_group_is_started_and_stopped_and_nothing_else() {
        assert_eq!(power(Verb::Start), Some(GroupPower::Running));
        assert_eq!(power(Verb::Stop), Some(GroupPower::Stopped));
        assert_eq!([Verb::Restart, Verb::Pause, Verb::Suspend].map(power), [None; 3]);
    }
}
