//! PlacementGroup: how VMs are spread.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Conditions, ObjectUser};

/// A rule that keeps its member VMs apart, or together, over hosts (or zones).
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "PlacementGroup",
    plural = "placementgroups",
    singular = "placementgroup",
    shortname = "pg",
    namespaced,
    status = "PlacementGroupStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "How VMs are placed beside each other.",
    printcolumn(name = "Strategy", type_ = "string", json_path = ".spec.strategy"),
    printcolumn(name = "Enforcement", type_ = "string", json_path = ".spec.enforcement"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Placed", type_ = "integer", json_path = ".status.placed"),
    printcolumn(name = "Total", type_ = "integer", json_path = ".status.total"),
    printcolumn(name = "Members", type_ = "string", json_path = ".status.members[*].vm"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
pub struct PlacementGroupSpec {
    /// `spread` (default): no two members share a `topologyKey` value. `pack`: all members share one. A change does not
    /// move a placed VM.
    #[serde(default)]
    pub strategy: Strategy,
    /// `required` (default): a member that cannot be placed according to the strategy stays unscheduled. `preferred`:
    /// it is placed anyway, as close to the strategy as possible. A change does not move a placed VM.
    #[serde(default)]
    pub enforcement: Enforcement,
    /// The Host label that must differ (`spread`) or be the same (`pack`). Default `kubernetes.io/hostname`: the host itself.
    #[serde(default = "default_topology_key")]
    #[schemars(
        length(min = 1, max = 317),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
        )
    )]
    pub topology_key: String,
    /// Labels the Host of each member must have, in addition to `placement.hostSelector` of the member. Also with
    /// `enforcement: preferred`. Read when a member is placed: a change does not move a placed VM. While its Host does not
    /// match, the condition `PlacementSynced` of the member is False. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = crate::labels::bounded_labels)]
    pub host_selector: BTreeMap<String, String>,
    /// Labels the Host of each member should have, in addition to `placement.preferredHostSelector` of the member, whose
    /// value of a label comes first: of the Hosts that can take a member, one with the most matching labels is chosen, after
    /// the strategy. Read when a member is placed: a change does not move a placed VM. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = crate::labels::bounded_labels)]
    pub preferred_host_selector: BTreeMap<String, String>,
}

/// The label every Host has with its own name.
pub const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";

pub(crate) fn default_topology_key() -> String {
    HOSTNAME_LABEL.into()
}

/// How members are placed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    #[default]
    Spread,
    Pack,
}

/// Whether a rule may be broken.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    #[default]
    Required,
    Preferred,
}

/// The observed state of a PlacementGroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlacementGroupStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`: every member is placed by the rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// The number of members that have a host.
    #[serde(default)]
    pub placed: i64,
    /// The number of members.
    #[serde(default)]
    pub total: i64,
    /// The VMs that name this group, sorted by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<GroupMember>,
    /// The claims of a required group: each admits one member at one value of `topologyKey`. A group that spreads over single
    /// hosts needs none, since a host sees its own members. The scheduler writes a claim before it binds the member, and the
    /// host reads it before it admits the member: however many schedulers there are, no two members are admitted at one value
    /// (`spread`), or at two values (`pack`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<TopologyClaim>,
    /// At most four of the VMs that name it. A deleted PlacementGroup stays until nothing uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}

/// The right of one member to be admitted at a value of the topology key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyClaim {
    /// The value.
    pub value: String,
    /// The `topologyKey` it is a value of.
    pub key: String,
    /// The VM's name.
    pub vm: String,
    /// The VM's uid.
    pub vm_uid: String,
    /// The epoch of the binding it is for.
    pub epoch: i64,
    /// The host of that binding.
    pub host: String,
}

impl PlacementGroup {
    /// Whether its members are admitted by claim. A host sees by itself that two members are on it.
    pub fn is_claimed(&self) -> bool {
        let PlacementGroupSpec { strategy, enforcement, topology_key, .. } = &self.spec;
        let is_seen_by_the_host = *strategy == Strategy::Spread && topology_key == HOSTNAME_LABEL;
        *enforcement == Enforcement::Required && !is_seen_by_the_host
    }

    /// Whether this VM may be admitted at this value under this epoch.
    pub fn allows(&self, vm_uid: &str, epoch: i64, value: &str) -> bool {
        let claims = self.status.iter().flat_map(|s| &s.claims);
        let mut here = claims.filter(|c| c.key == self.spec.topology_key && c.value == value);
        here.any(|c| c.vm_uid == vm_uid && c.epoch == epoch)
    }
}

/// The number of members whose conditions are in the status of a group.
pub const MOST_DESCRIBED_MEMBERS: usize = 256;

/// A member of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupMember {
    /// The VM's name.
    pub vm: String,
    /// The host it is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The value of `topologyKey` there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// `Scheduled`: the member has a host; `False` with the reason why it has none. `PlacementSynced`, once it has a host:
    /// that host is one that the strategy and `hostSelector` of the group allow, whatever the enforcement; `False` with the
    /// rule that it breaks. Messages are cut at 256 bytes. Of the first 256 members only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
}
