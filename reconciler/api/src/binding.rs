//! The host that an object is bound to, and the users of an object.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The host that an object is bound to. Written by the scheduler only, together with the object's uid and resourceVersion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// The Host that makes this object real.
    pub host: String,
    /// Counts the bindings of this object, from 1. An agent acts only on the newest it has seen.
    #[serde(default)]
    pub epoch: i64,
}

/// How an object is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum UseKind {
    Fixed,
    Hotswap,
    Address,
}

/// One user of a Disk or PublicIP. While there is one, a deleted object stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectUse {
    /// `Fixed`: listed in the VM's `disks`. `Hotswap`: through a HotswapDiskAttachment. `Address`: a public address.
    #[serde(rename = "use")]
    pub use_kind: UseKind,
    /// The VM, in the same namespace.
    pub vm: String,
    /// The VM's uid: a later VM of the same name is another user.
    pub vm_uid: String,
    /// The HotswapDiskAttachment, when used through one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<String>,
}
