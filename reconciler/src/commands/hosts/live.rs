//! Running guests that leave their host before it is drained, without a stop.

use std::time::{Duration, Instant};

use anyhow::Context;
use berth_agent::TypedApi;
use berth_api::{
    ConditionType, VM, condition,
    vm::{MOVE_ANNOTATION, MovePolicy, RequestedMove},
};
use kube::{
    Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{commands::outage::Outage, requests::has_code};

/// The manager of the fields that this program writes.
const MANAGER: &str = "berth";
/// How long the controllers may take to decide about a VM.
const DECIDED_WITHIN: Duration = Duration::from_secs(15);

/// Whether a VM moves while it runs, before its host is drained.
fn leaves(vm: &VM) -> bool {
    let policy = vm.spec.placement.as_ref().and_then(|placement| placement.move_policy);
    let runs = vm.status.as_ref().is_some_and(|status| status.process.is_some());
    policy == Some(MovePolicy::Live) && runs && vm.metadata.deletion_timestamp.is_none()
}

/// Whether there is nothing to wait for any more: the VM has left the binding, or does not leave it while it runs. `asked`: since when.
fn is_settled(vm: &VM, epoch: i64, asked: Duration) -> bool {
    let Some(status) = &vm.status else { return true };
    if !leaves(vm) || status.binding.as_ref().is_none_or(|binding| binding.epoch != epoch) {
        return true;
    }
    let movable = condition::find(&status.conditions, ConditionType::Movable.as_str());
    match status.live_move() {
        Some(migration) => !migration.message.is_empty(),
        None => movable.is_some_and(|movable| movable.status == "False") || asked >= DECIDED_WITHIN,
    }
}

/// Has those of these VMs of a cordoned host move that do so while they run, and waits until they have, or cannot, or the time is over.
pub(super) async fn move_away(client: &Client, vms: &[VM], until: Instant) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut waiting = Vec::new();
    for vm in vms.iter().filter(|vm| leaves(vm)) {
        let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
        let binding = vm.status.as_ref().and_then(|status| status.binding.as_ref());
        let Some(epoch) = binding.map(|binding| binding.epoch) else { continue };
        let requested = RequestedMove { epoch, host: None, live: true };
        let change = json!({"metadata": {"annotations": {MOVE_ANNOTATION: requested.to_text()}}});
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let api: TypedApi<VM> = TypedApi::namespaced(client.clone(), &namespace);
        match api.patch(&name, &params, &Patch::Merge(change)).await {
            Ok(_) => waiting.push((namespace, name, epoch)),
            // It was deleted meanwhile, and is no reason not to drain the host.
            Err(error) if has_code(&error, 404) => {}
            Err(error) => return Err(error).with_context(|| format!("changing VM {namespace}/{name}")),
        }
    }
    if !waiting.is_empty() {
        notice!("{} VMs move to other hosts while they run", waiting.len());
    }
    let outage = Outage::default();
    while !waiting.is_empty() && Instant::now() < until {
        tokio::time::sleep(super::LOOK_EVERY).await;
        let mut left = Vec::new();
        for (namespace, name, epoch) in waiting {
            let api: TypedApi<VM> = TypedApi::namespaced(client.clone(), &namespace);
            let read = api.get_opt(&name).await.with_context(|| format!("reading VM {namespace}/{name}"));
            let is_left = match outage.answer(read)? {
                Some(found) => found.is_some_and(|vm| !is_settled(&vm, epoch, begun.elapsed())),
                None => true,
            };
            if is_left {
                left.push((namespace, name, epoch));
            }
        }
        waiting = left;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::commands::fake::control_plane;

    #[tokio::test]
    async fn a_vm_that_was_deleted_meanwhile_does_not_keep_a_host_from_being_drained() {
        let process = json!({"pid": 1, "startedAt": "2026-01-01T00:00:00Z"});
        let gone = vm("Live", json!({"binding": {"host": "a", "epoch": 3}, "process": process}));
        let (client, changes) = control_plane(Vec::new());
        move_away(&client, &[gone], Instant::now() + DECIDED_WITHIN).await.expect("nothing to wait for");
        assert_eq!(changes.all().len(), 1, "it was to move");
    }

    fn vm(policy: &str, status: Value) -> VM {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns"},
            "spec": {"disks": [{"name": "root", "boot": true}], "placement": {"movePolicy": policy}},
            "status": status,
        }))
        .expect("a VM")
    }

    #[test]
    fn a_drain_waits_for_a_guest_that_is_sent_and_for_no_other() {
        let process = json!({"pid": 1, "startedAt": "2026-01-01T00:00:00Z"});
        let bound = |epoch: i64, migration: Value| {
            vm(
                "Live",
                json!({"binding": {"host": "a", "epoch": epoch}, "process": process, "migration": migration}),
            )
        };
        let sent = |message: &str| json!({"id": "m1", "to": "b", "epoch": 3, "phase": "Requested", "message": message});
        let settled = |vm: &VM, asked: u64| is_settled(vm, 3, Duration::from_secs(asked));
        assert!(!settled(&bound(3, sent("")), 100), "it is being sent");
        assert!(settled(&bound(3, sent("no room")), 1), "it could not be sent");
        assert!(settled(&bound(4, json!(null)), 1), "it is on another host");
        assert!(!settled(&bound(3, json!(null)), 1), "nothing is decided yet");
        assert!(settled(&bound(3, json!(null)), 60), "it moves at its next stop");
        assert!(leaves(&bound(3, json!(null))));
        assert!(!leaves(&vm("WhenStopped", json!({"process": process}))) && !leaves(&vm("Live", json!({}))));
    }
}
