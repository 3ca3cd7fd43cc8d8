//! The long-running operation of a VM, and the facts about its QEMU process.

use k8s_openapi::jiff::Timestamp;
use kube::KubeSchema;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

/// The greatest number of facts.
pub const MOST_FACTS: usize = 32;
/// The greatest length of a fact.
pub const LONGEST_FACT: usize = 256;

/// A long-running operation of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VMOperation {
    /// The operation.
    pub name: VMOperationName,
    /// The time of its beginning, or else the time at which its host first reported it.
    #[schemars(with = "k8s_openapi::apimachinery::pkg::apis::meta::v1::Time")]
    pub started_at: Timestamp,
    /// Its progress in percent, in steps of 10. Absent where it is not known, and before the operation has taken ten seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub percent: Option<i64>,
}

/// The name of a long-running operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VMOperationName {
    /// QEMU is launched, and the guest is let run.
    Start,
    /// The guest is shut down: it is to be off, restarted or deleted.
    Stop,
    /// The guest's memory is saved to a file of its host.
    Suspend,
    /// The guest's saved memory is loaded.
    Resume,
    /// The guest is paused while its memory is saved for a snapshot.
    Snapshot,
    /// Its disks are restored from a snapshot while it is off.
    Restore,
    /// One of its disks is moved to another pool before it starts, or the VM to another host.
    Move,
    /// The image of a disk or of a CD-ROM drive is downloaded, or copied from another host.
    Download,
}

/// As many facts as a host reports, and as long ones.
pub(super) fn bounded_facts(schema: &mut Schema) {
    schema.insert("maxProperties".into(), MOST_FACTS.into());
    let values = serde_json::json!({"type": "string", "maxLength": LONGEST_FACT});
    schema.insert("additionalProperties".into(), values);
}
