//! VMGroup: VMs that are started and stopped together, in an order.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ConditionType, Conditions, ObjectUser, Reason, ResourceName, VMState};

/// The greatest number of members of a VMGroup.
pub const MOST_VM_GROUP_MEMBERS: usize = 256;
/// The greatest number of groups above each other, the outermost one included.
pub const DEEPEST_VM_GROUP: usize = 8;

/// VMs that are started and stopped together and in an order, also on different hosts. A VM names its group in `vmGroup`; a group that is a
/// member of another group names that one in `parent`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "VMGroup",
    plural = "vmgroups",
    singular = "vmgroup",
    shortname = "vmg",
    namespaced,
    status = "VMGroupStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "VMs that are started and stopped together, in an order.",
    printcolumn(name = "Power", type_ = "string", json_path = ".spec.power"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Running", type_ = "integer", json_path = ".status.running"),
    printcolumn(name = "Stopped", type_ = "integer", json_path = ".status.stopped"),
    printcolumn(name = "Total", type_ = "integer", json_path = ".status.total"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Parent", type_ = "string", priority = 1, json_path = ".spec.parent"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters"),
    validation = Rule::new("!has(self.spec.parent) || self.spec.parent != self.metadata.name").message("a group cannot be its own parent").field_path(".spec.parent")
)]
#[serde(rename_all = "camelCase")]
pub struct VMGroupSpec {
    /// `Running` (default): the members are started, in the order of `bootOrder`. `Stopped`: they are stopped, in the reverse order, each as
    /// its `stop` declares. A member whose own `power` is not `Running` keeps that. Applied live.
    #[serde(default)]
    pub power: GroupPower,
    /// The steps of a start, in their order, at most 32. The members of a step are started once all members of the steps before are ready.
    /// Members that no step names are started last, and stopped first. Default: none, all members are started together. A change applies to
    /// members that are not started yet. Applied live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    #[schemars(length(max = 32))]
    pub boot_order: Vec<BootStep>,
    /// Name of a VMGroup of the same namespace that this one is a member of: its members run only while that group lets this one run.
    /// Groups can be nested at most 8 deep. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ResourceName>,
}

/// Whether the members of a group should run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GroupPower {
    #[default]
    Running,
    Stopped,
}

/// Members that are started together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.vms) && self.vms.size() > 0) || (has(self.groups) && self.groups.size() > 0)").message("a step must name at least one VM or group").field_path(".vms")
)]
pub struct BootStep {
    /// Name of the step within its list, for people.
    pub name: ResourceName,
    /// Names of VMs, at most 64. One that does not exist, or does not name the group, is waited for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub vms: Vec<ResourceName>,
    /// Names of VMGroups, at most 64. A group is ready once all of its members are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub groups: Vec<ResourceName>,
    /// The time from the moment when the members of the steps before are ready to the start of these, in seconds, at most 3600. Default 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = 3600))]
    pub power_on_delay_seconds: i64,
}

/// The decision of a group about a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MemberPower {
    /// It is not started yet. If it runs, it runs on.
    #[default]
    Waiting,
    /// It is to run.
    Running,
    /// It is to be stopped.
    Stopped,
    /// It declares a `power` other than `Running`, and keeps that.
    Own,
}

/// The kind of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum MemberKind {
    #[default]
    VM,
    VMGroup,
}

/// A member of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VMGroupMember {
    /// `VM` or `VMGroup`.
    pub kind: MemberKind,
    /// Its name.
    pub name: String,
    /// `Running`: it is to run. `Waiting`: it is not started yet. `Stopped`: it is to be stopped. `Own`: it declares a `power` other than
    /// `Running`, and keeps that.
    pub power: MemberPower,
    /// The state of a VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<VMState>,
    /// Whether it has the power that it is to have: a VM that is to run is ready.
    #[serde(default)]
    pub synced: bool,
}

/// The observed state of a VMGroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VMGroupStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`: every member has the power that it is to have. `Reconciling`, `Stalled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// The power of the group: `Running`, `Stopped`, or `Waiting` while the group that it is a member of does not start it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<MemberPower>,
    /// The VMs and groups that name this group, VMs first, sorted by name, at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MOST_VM_GROUP_MEMBERS))]
    pub members: Vec<VMGroupMember>,
    /// The number of its VMs that run, without those of its groups.
    #[serde(default)]
    pub running: i64,
    /// The number of its VMs that do not run, without those of its groups.
    #[serde(default)]
    pub stopped: i64,
    /// The number of members, groups included.
    #[serde(default)]
    pub total: i64,
    /// When the next step begins, while its `powerOnDelaySeconds` is waited for, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40))]
    pub next_step_time: Option<String>,
    /// At most four of the objects that name it. A deleted VMGroup stays until nothing uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}

impl VMGroup {
    /// Returns the decision of the group about a member; `None`: there is none yet.
    #[must_use]
    pub fn power_of(&self, kind: MemberKind, name: &str) -> Option<MemberPower> {
        let members = &self.status.as_ref()?.members;
        members.iter().find(|member| member.kind == kind && member.name == name).map(|member| member.power)
    }

    /// Whether it waits for a VM or a group that does not exist, or does not name it.
    #[must_use]
    pub fn waits_for_absent(&self) -> bool {
        let Some(status) = &self.status else { return false };
        let ready = crate::condition::find(&status.conditions, ConditionType::Ready.as_str());
        ready.is_some_and(|ready| {
            ready.reason == Reason::WaitingForVM.as_str() || ready.reason == Reason::WaitingForGroup.as_str()
        })
    }
}
