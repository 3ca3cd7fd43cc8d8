//! VMClass: a size and hardware profile.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Conditions, ObjectUser, Quantity};

/// A size and hardware profile that many VMs share.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "VMClass",
    plural = "vmclasses",
    singular = "vmclass",
    shortname = "vmc",
    namespaced,
    status = "VMClassStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "A size and hardware profile of VMs.",
    printcolumn(name = "CPUs", type_ = "integer", json_path = ".spec.cpus"),
    printcolumn(name = "Memory", type_ = "string", json_path = ".spec.memory"),
    printcolumn(name = "Firmware", type_ = "string", json_path = ".spec.firmware"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!isQuantity(self.memory) || quantity(self.memory).compareTo(quantity('16Mi')) >= 0").message("memory must be at least 16Mi: the firmware needs some of it, and no kernel boots with the rest of less").field_path(".memory")
)]
pub struct VMClassSpec {
    /// Virtual CPUs, 1 to 128. A change reaches a VM at its next power cycle.
    #[schemars(range(min = 1, max = 128))]
    pub cpus: i64,
    /// Guest memory, for example `512Mi`. At least 16Mi. A change reaches a VM at its next power cycle.
    pub memory: Quantity,
    /// `UEFI` (default) or `BIOS`. A change reaches a VM at its next power cycle.
    #[serde(default)]
    pub firmware: Firmware,
}

/// The least guest memory of a class, in bytes: the firmware needs some of it, and no kernel boots with the rest of less.
pub const LEAST_MEMORY: u64 = 16 << 20;

/// The firmware a VM boots with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Firmware {
    #[default]
    UEFI,
    BIOS,
}

/// CPUs and bytes of guest memory a VM takes of its host: those it `has` or those its class has `declared`, whichever
/// is more, because it may be started with what its class declares at any time. Of a class that was made larger than
/// all that its host has `offered` nothing counts: it cannot start with that.
pub fn size_taken(
    declared: Option<(i64, u64)>,
    has: Option<(i64, u64)>,
    offered: Option<(i64, u64)>,
) -> Option<(i64, u64)> {
    let fits = |(cpus, memory): (i64, u64)| offered.is_none_or(|o| cpus <= o.0 && memory <= o.1);
    match (declared, has) {
        (Some(declared), has) if !fits(declared) => Some(has.unwrap_or_default()),
        (Some(declared), Some(has)) => Some((declared.0.max(has.0), declared.1.max(has.1))),
        (declared, has) => declared.or(has),
    }
}

/// The observed state of a VMClass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VMClassStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// At most four of the VMs that name it. A deleted VMClass stays until nothing uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}

#[cfg(test)]
mod tests {
    use super::size_taken;

    #[test]
    fn a_vm_takes_what_it_has_or_will_have_whichever_is_more_and_nothing_that_it_never_can_have() {
        let offered = Some((8, 100));
        assert_eq!(size_taken(Some((1, 10)), Some((2, 5)), offered), Some((2, 10)));
        assert_eq!(size_taken(Some((1, 10)), None, offered), Some((1, 10)));
        assert_eq!(size_taken(None, Some((2, 5)), offered), Some((2, 5)), "its class is gone");
        assert_eq!(size_taken(None, None, offered), None);
        assert_eq!(size_taken(Some((1, 1000)), Some((2, 5)), offered), Some((2, 5)), "it never starts so");
        assert_eq!(size_taken(Some((9, 1)), None, offered), Some((0, 0)));
        assert_eq!(size_taken(Some((9, 1000)), None, None), Some((9, 1000)), "it has no host yet");
    }
}
