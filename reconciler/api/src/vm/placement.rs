//! The hosts that a VM may run on.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{MovePolicy, VMAffinity};
use crate::ResourceName;

/// Where a VM may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// Name of a PlacementGroup in the VM's namespace. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<ResourceName>,
    /// Name of the only Host it may run on. Read when the VM is placed: a change does not move a placed VM, not even at
    /// a restart, unless `movePolicy` is `WhenStopped`. While its host does not match, the condition `PlacementSynced` is False.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')").message("must be a name: lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part"))]
    pub host: Option<String>,
    /// Labels a Host must have, in addition to those that its group and its new Disks ask for. Read when the VM is placed: a
    /// change does not move a placed VM, not even at a restart, unless `movePolicy` is `WhenStopped`. While its host does not
    /// match, the condition `PlacementSynced` is False.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    #[schemars(transform = crate::labels::bounded_labels)]
    pub host_selector: std::collections::BTreeMap<String, String>,
    /// Labels a Host should have, in addition to those of its group: of the Hosts that can take the VM, one with the most
    /// matching labels is chosen. Read when the VM is placed: a change does not move a placed VM.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    #[schemars(transform = crate::labels::bounded_labels)]
    pub preferred_host_selector: std::collections::BTreeMap<String, String>,
    /// Rules about the hosts of other VMs of the namespace, which are selected by their labels, keyed by `name`, at most 8. Read when a VM is
    /// placed: neither a change of the rules nor of labels moves a placed VM. While a VM that a required `spread` rule selects is on the same
    /// host, the condition `PlacementSynced` is False; with `movePolicy` `WhenStopped` the VM moves then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 8))]
    pub affinity: Vec<VMAffinity>,
    /// Whether a placed VM moves when its host is not one that its placement, or the `hostSelector` of its group, allows. `Never`;
    /// `WhenStopped`: at its next stop it moves to a host that they allow, with its disks, which must all be plain; those in pools of type
    /// `Local` are copied. Another `restartToken` makes such a stop. While it is to move, the condition `Movable` says whether it can.
    /// Its firmware variables and the memory of its TPM go with it. `Live`: a
    /// running guest whose disks are all in pools of type `Shared` moves without a stop; where it cannot, as with `WhenStopped`. Default `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_policy: Option<MovePolicy>,
}
