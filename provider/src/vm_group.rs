//! `berth_vm_group`

use berth_api::Reason;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    field::{Field, Presence, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    readiness::{Outcome, Readiness},
    references::VM_GROUP,
};

/// VMs that are started and stopped together.
#[derive(Debug)]
pub struct VmGroup;

impl ResourceKind for VmGroup {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_vm_group",
            kind: "VMGroup",
            plural: "vmgroups",
            description: "VMs that are started and stopped together and in an order, also on different hosts. A `berth_vm` names its group in `vm_group`, and follows it while its own `power` is `Running`. Write the names of VMs in `boot_order` as texts, not as references: a group that refers to its VMs is created after them, and they wait for it.\n\nAn apply waits until all members have the declared power. It does not wait for members that wait for a VM which does not exist yet. Destroying a group that VMs use is accepted; a finalizer keeps it until no VM uses it.",
            example: include_str!("../../examples/resources/berth_vm_group/resource.tf"),
            shown: "status.members",
            timeouts: [120, 900, 300],
        }
    }

    fn fields(&self) -> Vec<Field> {
        let step = vec![
            Field::spec("name", Shape::Text(Form::Name)).presence(Presence::Numbered("step")).text(
                "Name of the step within its list, for people. Default `step0`, `step1`, … by position.",
            ),
            Field::spec("vms", Shape::TextList(Form::Name)),
            Field::spec("groups", Shape::TextList(Form::Name)),
            Field::spec("power_on_delay_seconds", Shape::Integer).default(0),
        ];
        vec![
            Field::spec("power", Shape::Text(Form::Any)).default("Running"),
            Field::spec("boot_order", Shape::Keyed(step)),
            Field::spec("parent", Shape::Text(Form::Name)).refers(VM_GROUP),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let steps = config.get("boot_order").elements().iter().enumerate();
        steps.filter_map(|(number, step)| check_step(number, step)).chain(check_parent(config)).collect()
    }

    /// A member may wait for a VM that the same apply creates after the group.
    fn outcome(&self, object: &Json, _planned: &Value) -> Outcome {
        let readiness = Readiness::of(object);
        let has_reason =
            |reason: Reason| readiness.ready.as_ref().is_some_and(|r| r.reason == reason.as_str());
        let is_changing = has_reason(Reason::Starting) || has_reason(Reason::Stopping);
        if readiness.current && is_changing { readiness.outcome() } else { crate::vm_class::seen(object) }
    }
}

fn check_step(number: usize, step: &Value) -> Option<Diagnostic> {
    let is_empty = |name: &str| !step.get(name).is_unknown() && step.get(name).elements().is_empty();
    if step.is_unknown() || !is_empty("vms") || !is_empty("groups") {
        return None;
    }
    let at = AttributePath::root("boot_order").index(number).attribute("vms");
    let detail = format!("{at}: name at least one VM in `vms`, or one group in `groups`.");
    Some(Diagnostic::error("A step without members", detail).at(at))
}

fn check_parent(config: &Value) -> Option<Diagnostic> {
    let parent = config.get("parent").as_str()?;
    if config.get("name").as_str() != Some(parent) {
        return None;
    }
    let at = AttributePath::root("parent");
    let detail = format!("{at}: {parent:?} is this group. Name another one, or leave it out.");
    Some(Diagnostic::error("A group in itself", detail).at(at))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_apply_waits_for_members_that_start_and_stop_and_for_no_vm_that_it_has_not_created_yet() {
        let outcome = |reason: &str| {
            let ready = json!({"type": "Ready", "status": "False", "reason": reason, "message": ""});
            let object = json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "conditions": [ready]}});
            VmGroup.outcome(&object, &Value::Null)
        };
        assert!(matches!(outcome("Starting"), Outcome::Waiting(_)));
        assert!(matches!(outcome("Stopping"), Outcome::Waiting(_)));
        assert_eq!(outcome("WaitingForVM"), Outcome::Done);
        assert_eq!(outcome("StartOrderHeld"), Outcome::Done);
    }
}
