//! The package of the guest agent, after the first boot of the guest.

use k8s_openapi::jiff::Timestamp;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The guest agent (qemu-guest-agent) of a running guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestAgent {
    /// What the VM's host does with the package in the running guest, through the agent itself and the guest's package manager (`apt-get`,
    /// `dnf`, `yum`, `zypper`, `apk` or `pacman`): `Keep`: nothing; `Upgrade`: it is upgraded to the newest version of the guest's package
    /// sources after each start of the VM, and every 24 hours while the VM runs; `Remove`: it is removed, whenever an agent
    /// answers. Linux guests only. Applied live.
    pub policy: PackagePolicy,
}

/// The policy for the package of the guest agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PackagePolicy {
    #[default]
    Keep,
    Upgrade,
    Remove,
}

/// The package of the guest agent, as the VM's host last left it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestAgentStatus {
    /// The policy that was carried out, or is tried.
    pub policy: PackagePolicy,
    /// The end of the last upgrade that succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>")]
    pub time: Option<Timestamp>,
}
