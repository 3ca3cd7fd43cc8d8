//! `berth_placement_group`

use serde_json::Value as Json;
use tfplugin6::Value;

use crate::{
    field::{Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    readiness::Outcome,
};

/// A rule for spreading VMs.
#[derive(Debug)]
pub struct PlacementGroup;

impl ResourceKind for PlacementGroup {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_placement_group",
            kind: "PlacementGroup",
            plural: "placementgroups",
            description: "A rule that keeps its member VMs apart, or together, by host or by any other label of hosts. A VM names its group in `placement.group`. Destroying a group that VMs use is accepted; a finalizer keeps it until no VM uses it.",
            example: include_str!("../../examples/resources/berth_placement_group/resource.tf"),
            shown: "status.members",
            timeouts: [120, 120, 120],
        }
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::spec("strategy", Shape::Text(Form::Any)).default("spread"),
            Field::spec("enforcement", Shape::Text(Form::Any)).default("required"),
            Field::spec("topology_key", Shape::Text(Form::LabelKey))
                .default(berth_api::placement_group::HOSTNAME_LABEL),
        ]
    }

    /// A group with a member that cannot be spread is not ready, but there is nothing to wait for.
    fn outcome(&self, object: &Json, _planned: &Value) -> Outcome {
        crate::vm_class::seen(object)
    }
}
