//! The move of a running VM, as its status has it.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The move of a running VM to another host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct VMMigration {
    /// Another one for each binding and destination. Written by the controllers.
    #[schemars(length(max = 64))]
    pub id: String,
    /// The Host that it goes to. Written by the controllers.
    #[schemars(length(max = 253))]
    pub to: String,
    /// The epoch of the binding that it leaves. Written by the controllers.
    pub epoch: i64,
    /// `Requested`: its host sends the guest. `HandedOver`: the guest runs on the other host. Written by the host that it leaves.
    pub phase: MigrationPhase,
    /// Why the last attempt failed, or none is made, for people. Written by the host that it leaves.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
}

/// How far the move of a running VM is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MigrationPhase {
    #[default]
    Requested,
    HandedOver,
}
