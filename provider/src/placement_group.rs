//! `berth_placement_group`

use async_trait::async_trait;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Value};

use crate::{
    api::Api,
    change::PlannedChange,
    field::{Field, Shape},
    form::Form,
    host_labels,
    kind::{KindInfo, ResourceKind},
    readiness::Outcome,
};

/// A rule for spreading VMs.
#[derive(Debug)]
pub struct PlacementGroup;

#[async_trait]
impl ResourceKind for PlacementGroup {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_placement_group",
            kind: "PlacementGroup",
            plural: "placementgroups",
            description: "A rule that keeps its member VMs apart, or together, by host or by any other label of hosts, and on hosts with the labels of `host_selector`. A VM names its group in `placement.group`. Destroying a group that VMs use is accepted; a finalizer keeps it until no VM uses it.",
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
            Field::spec("host_selector", Shape::TextMap),
            Field::spec("preferred_host_selector", Shape::TextMap),
        ]
    }

    /// Warns of a selector that no host fits.
    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        let selector = change.planned.get("host_selector").clone();
        let is_new = change.is_create() || change.prior.get("host_selector") != &selector;
        if change.is_applied || !is_new || !selector.is_wholly_known() || selector.is_null() {
            return;
        }
        let run = change.run.clone();
        let Some(hosts) = run.hosts(api).await else { return };
        let ends = "Members without a host wait until one has.";
        let path = AttributePath::root("host_selector");
        change.diagnostics.extend(host_labels::warning(hosts, &selector, path, ends));
    }

    /// A group with a member that cannot be spread is not ready, but there is nothing to wait for.
    fn outcome(&self, object: &Json, _planned: &Value) -> Outcome {
        crate::vm_class::seen(object)
    }
}
