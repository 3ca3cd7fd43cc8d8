//! The end of a VM's guest: how it is stopped, and the action when it ends by itself.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The action when the guest ends by itself. `OnFailure` starts it again after a crash but not after an orderly
/// power-off; `Always` after both; `Never` after neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestartPolicy {
    Always,
    #[default]
    OnFailure,
    Never,
}

/// How a VM is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stop {
    /// `Graceful` asks the guest to shut down and powers it off after the grace period; `Soft` asks it and does not power it
    /// off, except for a deletion or a drained host, which are `Graceful` then; `Hard` powers it off immediately. Default
    /// `Graceful`.
    #[serde(default)]
    pub mode: StopMode,
    /// The time for a graceful shutdown, in seconds. Default 60.
    #[serde(default = "default_grace")]
    #[schemars(range(min = 0, max = 3600))]
    pub grace_period_seconds: i64,
}

impl Default for Stop {
    fn default() -> Self {
        Self { mode: StopMode::Graceful, grace_period_seconds: default_grace() }
    }
}

fn default_grace() -> i64 {
    60
}

/// Whether the guest shuts down before it is powered off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StopMode {
    #[default]
    Graceful,
    Soft,
    Hard,
}
