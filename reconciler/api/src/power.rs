//! Power of a VM: the declared power, the observed state, and the table of the changes that are refused.
//!
//! [`REFUSED`] is the only place that decides it: the definition of VM takes its rules from there, Terraform's plan asks
//! [`refusal`], and the page `docs/power.md` shows the same table.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::ValidationRule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a VM should run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Power {
    #[default]
    Running,
    Stopped,
    Paused,
    Suspended,
}

impl Power {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Running, Self::Stopped, Self::Paused, Self::Suspended];

    /// The value of the field.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Stopped => "Stopped",
            Self::Paused => "Paused",
            Self::Suspended => "Suspended",
        }
    }
}

/// Where the memory of a suspended guest is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SuspendMode {
    #[default]
    Disk,
    Memory,
}

/// The state of a VM, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VMState {
    Pending,
    Unschedulable,
    Creating,
    Starting,
    Running,
    /// QEMU runs and the guest's CPUs are stopped: as declared, or for the reason in the condition `Running`, for example an I/O
    /// error of a full disk of the host.
    Paused,
    /// The guest's memory is being saved to a file of its host.
    Suspending,
    /// The guest is suspended: its memory is in a file of its host and there is no QEMU, or the guest has suspended itself to its memory.
    Suspended,
    Stopping,
    Stopped,
    CrashLoop,
    Failed,
    Terminating,
    Unknown,
}

impl VMState {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Pending,
        Self::Unschedulable,
        Self::Creating,
        Self::Starting,
        Self::Running,
        Self::Paused,
        Self::Suspending,
        Self::Suspended,
        Self::Stopping,
        Self::Stopped,
        Self::CrashLoop,
        Self::Failed,
        Self::Terminating,
        Self::Unknown,
    ];

    /// Returns its meaning, for people.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Pending => {
                "It has no host yet: something it names does not exist, or its host has not admitted it."
            }
            Self::Unschedulable => "No host can take it now.",
            Self::Creating => "Its host makes what it needs: image, disks, network.",
            Self::Starting => "QEMU is being started, or has started and the guest does not run yet.",
            Self::Running => "The guest runs.",
            Self::Paused => "QEMU runs and the guest's CPUs are stopped: as declared, or after an I/O error.",
            Self::Suspending => "The guest's memory is being saved to a file of its host.",
            Self::Suspended => {
                "The guest is suspended: its memory is in a file of its host and there is no QEMU, or, with `suspendMode` `Memory`, in the memory of its host."
            }
            Self::Stopping => "The guest was asked to shut down, or is being powered off.",
            Self::Stopped => {
                "There is no QEMU: as declared, or because the guest ended, its host is drained, or a gate holds it back."
            }
            Self::CrashLoop => {
                "The guest has ended by itself several times, and is started again after a delay."
            }
            Self::Failed => "It cannot be made as declared until a person changes something.",
            Self::Terminating => "It is being deleted.",
            Self::Unknown => {
                "Its host does not report: the guest may run or not. It is not started elsewhere."
            }
        }
    }
}

/// A change of a VM's spec that concerns its power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerChange {
    /// Another `power`.
    To(Power),
    /// Another `restartToken`. Removing it requests nothing.
    Restart,
}

/// A row of the table: a change that is refused.
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    /// The change.
    pub change: PowerChange,
    /// The declared power, with the change made, for which it is refused.
    pub declared: &'static [Power],
    /// The observed states in which it is refused. Empty: any, also none yet.
    pub observed: &'static [VMState],
    /// The reason and the remedy.
    pub message: &'static str,
}

const BEING_DELETED: &str = "the VM is being deleted: its power no longer changes";

/// All refused changes. Every other change is allowed.
pub const REFUSED: [Refused; 9] = [
    Refused {
        change: PowerChange::Restart,
        declared: &[Power::Stopped],
        observed: &[],
        message: "restartToken cannot change while power is Stopped: there is no guest to restart. Set power to Running, which starts it",
    },
    Refused {
        change: PowerChange::Restart,
        declared: &[Power::Paused],
        observed: &[],
        message: "restartToken cannot change while power is Paused: a paused guest is not restarted. Set power to Running",
    },
    Refused {
        change: PowerChange::Restart,
        declared: &[Power::Suspended],
        observed: &[],
        message: "restartToken cannot change while power is Suspended: a suspended guest is not restarted. Set power to Running",
    },
    Refused {
        change: PowerChange::To(Power::Stopped),
        declared: &[Power::Stopped],
        observed: &[VMState::Suspended],
        message: "the VM is suspended: what its guest has in memory would be lost. Set power to Running, which resumes it, and then to Stopped",
    },
    Refused {
        change: PowerChange::To(Power::Suspended),
        declared: &[Power::Suspended],
        observed: &[VMState::Stopped, VMState::CrashLoop],
        message: "the VM is off: there is no guest to suspend. Set power to Running first",
    },
    Refused {
        change: PowerChange::Restart,
        declared: &[Power::Running],
        observed: &[VMState::Terminating],
        message: BEING_DELETED,
    },
    Refused {
        change: PowerChange::To(Power::Running),
        declared: &[Power::Running],
        observed: &[VMState::Terminating],
        message: BEING_DELETED,
    },
    Refused {
        change: PowerChange::To(Power::Paused),
        declared: &[Power::Paused],
        observed: &[VMState::Terminating],
        message: BEING_DELETED,
    },
    Refused {
        change: PowerChange::To(Power::Suspended),
        declared: &[Power::Suspended],
        observed: &[VMState::Terminating],
        message: BEING_DELETED,
    },
];

/// Why a change is refused for a VM with this declared power, the change made, in this observed state; `None` if it is allowed.
#[must_use]
pub fn refusal(change: PowerChange, declared: Power, observed: Option<VMState>) -> Option<&'static str> {
    let is_refused = |row: &&Refused| {
        let in_state =
            row.observed.is_empty() || observed.is_some_and(|observed| row.observed.contains(&observed));
        row.change == change && row.declared.contains(&declared) && in_state
    };
    REFUSED.iter().find(is_refused).map(|row| row.message)
}

/// The rules of the table for the definition of VM.
pub(crate) fn rules() -> Vec<ValidationRule> {
    REFUSED.iter().map(rule).collect()
}

fn rule(row: &Refused) -> ValidationRule {
    let (field, changed) = match row.change {
        PowerChange::Restart => (
            "restartToken",
            "has(self.spec.restartToken) && (!has(oldSelf.spec.restartToken) || self.spec.restartToken != oldSelf.spec.restartToken)"
                .to_owned(),
        ),
        PowerChange::To(power) => ("power", format!("oldSelf.spec.power != '{}'", power.as_str())),
    };
    let declared: Vec<String> = row.declared.iter().map(|power| format!("'{}'", power.as_str())).collect();
    let mut refused = format!("{changed} && self.spec.power in [{}]", declared.join(", "));
    if !row.observed.is_empty() {
        let states: Vec<String> = row.observed.iter().map(|state| format!("'{state:?}'")).collect();
        refused += &format!(
            " && has(oldSelf.status) && has(oldSelf.status.state) && oldSelf.status.state in [{}]",
            states.join(", ")
        );
    }
    ValidationRule {
        rule: format!("!({refused})"),
        message: Some(row.message.to_owned()),
        field_path: Some(format!(".spec.{field}")),
        ..ValidationRule::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/power.md");
    const STATES: &str = include_str!("../../../docs/states.md");

    #[test]
    fn the_page_explains_each_state() {
        for state in VMState::ALL {
            let row = format!("| `{state:?}` | {} |", state.meaning());
            assert!(STATES.lines().any(|line| line.starts_with(&row)), "docs/states.md has no line {row}");
        }
    }

    /// The names of the states in the definition: the rules and the page use the same.
    #[test]
    fn a_state_is_named_in_the_rules_as_in_the_status() {
        for state in REFUSED.iter().flat_map(|row| row.observed) {
            assert_eq!(serde_json::to_value(state).expect("a word"), format!("{state:?}"));
        }
        for power in Power::ALL {
            assert_eq!(serde_json::to_value(power).expect("a word"), power.as_str());
        }
    }

    #[test]
    fn the_page_shows_the_table() {
        for row in &REFUSED {
            let change = match row.change {
                PowerChange::Restart => "another `restartToken`".to_owned(),
                PowerChange::To(power) => format!("`power` becomes `{}`", power.as_str()),
            };
            let declared: Vec<String> =
                row.declared.iter().map(|power| format!("`{}`", power.as_str())).collect();
            let observed: Vec<String> = row.observed.iter().map(|state| format!("`{state:?}`")).collect();
            let observed = if observed.is_empty() { "any".to_owned() } else { observed.join(", ") };
            let line = format!("| {change} | {} | {observed} | {} |", declared.join(", "), row.message);
            assert!(PAGE.lines().any(|of_page| of_page == line), "docs/power.md has no line {line}");
        }
        let lines = PAGE.lines().filter(|line| {
            line.starts_with("| another `restartToken`") || line.starts_with("| `power` becomes")
        });
        assert_eq!(lines.count(), REFUSED.len(), "docs/power.md has a line that is not in the table");
    }

    #[test]
    fn a_token_restarts_what_is_declared_to_run_and_nothing_else() {
        let restart = |declared, observed| refusal(PowerChange::Restart, declared, observed);
        assert_eq!(restart(Power::Running, None), None);
        assert_eq!(
            restart(Power::Running, Some(VMState::Stopped)),
            None,
            "its guest has ended: it is started"
        );
        for observed in [None, Some(VMState::Running), Some(VMState::Stopped)] {
            assert!(restart(Power::Stopped, observed).is_some_and(|why| why.contains("Stopped")));
            assert!(restart(Power::Paused, observed).is_some_and(|why| why.contains("Paused")));
        }
    }
}
