//! HotswapDiskAttachment: joins a Disk to a running VM.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Binding, Conditions, ResourceName};

/// Joins a Disk to a VM while it runs. Deleting it detaches the disk.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "HotswapDiskAttachment",
    plural = "hotswapdiskattachments",
    singular = "hotswapdiskattachment",
    shortname = "hda",
    namespaced,
    status = "HotswapDiskAttachmentStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "Joins a Disk to a running VM.",
    selectable = ".status.binding.host",
    selectable = ".spec.vm",
    selectable = ".spec.disk",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "VM", type_ = "string", json_path = ".spec.vm"),
    printcolumn(name = "Disk", type_ = "string", json_path = ".spec.disk"),
    printcolumn(name = "Device", type_ = "string", json_path = ".status.device"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$')").message("metadata.name must be lower-case letters, digits, '-' and '.'")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.vm == oldSelf.vm").message("vm cannot change: create another attachment").field_path(".vm"),
    validation = Rule::new("self.disk == oldSelf.disk").message("disk cannot change: create another attachment").field_path(".disk")
)]
pub struct HotswapDiskAttachmentSpec {
    /// Name of the VM. Cannot change.
    pub vm: ResourceName,
    /// Name of the Disk. Cannot change.
    pub disk: ResourceName,
    /// Detach even if the guest still has a filesystem of the disk mounted, or runs no qemu-guest-agent that reports
    /// its mounts. Otherwise such a disk stays attached until the VM is off. Default false. Applied live.
    #[serde(default)]
    pub force: bool,
}

/// The observed state of an attachment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HotswapDiskAttachmentStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`, `Reconciling`, `Stalled`, `Attached`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// One word for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<AttachmentState>,
    /// The VM's host. Written by the scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// The serial number of the disk in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The device in the guest, as reported by the guest agent, or else the stable path by serial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// The state of an attachment, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AttachmentState {
    Requested,
    Attached,
    Detaching,
    Released,
    Failed,
}
