//! The move of a VM that has a host to another one.
//!
//! ```text
//!  controllers: status.moveEpoch = N     agent, once the guest is off: status.releasedEpoch = N      controllers: not bound, then bound
//!  (the VM is to leave binding N)   ──▶  (its host never starts it again under binding N)       ──▶  under an epoch above N
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{VM, VMStatus};

/// On a VM: `N` or `N/HOST`: it leaves its host at its next stop if the epoch of its binding is N, for that Host, or for one that the
/// scheduler chooses. Written by `berth move`.
pub const MOVE_ANNOTATION: &str = "berth.dev/move";

/// Whether a VM that has a host moves to another one, when its placement does not allow the one that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MovePolicy {
    #[default]
    Never,
    WhenStopped,
}

/// A move that a person has requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedMove {
    /// The epoch of the binding that the VM leaves.
    pub epoch: i64,
    /// Where it goes. None: the scheduler chooses.
    pub host: Option<String>,
}

impl RequestedMove {
    /// Returns the value of [`MOVE_ANNOTATION`].
    #[must_use]
    pub fn to_text(&self) -> String {
        match &self.host {
            Some(host) => format!("{}/{host}", self.epoch),
            None => self.epoch.to_string(),
        }
    }
}

impl VM {
    /// Whether it declares that it moves when its placement does not allow its host.
    #[must_use]
    pub fn moves_when_stopped(&self) -> bool {
        let policy = self.spec.placement.as_ref().and_then(|placement| placement.move_policy);
        policy == Some(MovePolicy::WhenStopped)
    }

    /// Returns the move that is requested of it. None also for a text that is no request.
    #[must_use]
    pub fn requested_move(&self) -> Option<RequestedMove> {
        let text = self.metadata.annotations.as_ref()?.get(MOVE_ANNOTATION)?;
        let (epoch, host) =
            text.split_once('/').map_or((text.as_str(), None), |(epoch, host)| (epoch, Some(host)));
        let host = host.filter(|host| !host.is_empty() && host.len() <= 253).map(str::to_owned);
        Some(RequestedMove { epoch: epoch.parse::<i64>().ok().filter(|epoch| *epoch > 0)?, host })
    }
}

impl VMStatus {
    /// Whether the controllers have its host give it up once its guest is off.
    #[must_use]
    pub fn is_to_move(&self) -> bool {
        self.binding.as_ref().is_some_and(|binding| self.move_epoch == Some(binding.epoch))
    }

    /// Whether the host that it is bound to has given it up: it is never started there again under this binding.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.binding.as_ref().is_some_and(|binding| self.released_epoch == Some(binding.epoch))
    }

    /// Whether it has no host, after the one that it had gave it up.
    #[must_use]
    pub fn is_between_hosts(&self) -> bool {
        self.binding.is_none() && self.released_epoch.is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vm(annotation: Option<&str>, placement: Value) -> VM {
        let annotations: Option<Value> = annotation.map(|text| json!({MOVE_ANNOTATION: text}));
        serde_json::from_value(json!({
            "metadata": {"name": "web", "annotations": annotations},
            "spec": {"disks": [{"name": "root", "boot": true}], "placement": placement},
        }))
        .expect("a VM")
    }

    #[test]
    fn a_request_names_the_binding_and_may_name_the_host() {
        let requested = |text: &str| vm(Some(text), json!(null)).requested_move();
        for (epoch, host) in [(3, None), (12, Some("kvm-2".to_owned()))] {
            let wanted = RequestedMove { epoch, host };
            assert_eq!(requested(&wanted.to_text()), Some(wanted));
        }
        assert_eq!(requested("3/"), Some(RequestedMove { epoch: 3, host: None }));
        for text in ["", "/kvm-2", "kvm-2", "0", "-3", "99999999999999999999/a"] {
            assert_eq!(requested(text), None, "{text}");
        }
        assert_eq!(vm(None, json!(null)).requested_move(), None);
    }

    #[test]
    fn only_the_present_binding_is_left_and_given_up() {
        let status = |binding: Value| -> VMStatus {
            serde_json::from_value(json!({"binding": binding, "moveEpoch": 3, "releasedEpoch": 3}))
                .expect("a status")
        };
        let [left, next, none] =
            [json!({"host": "a", "epoch": 3}), json!({"host": "b", "epoch": 4}), json!(null)].map(status);
        assert!(left.is_to_move() && left.is_released());
        assert!(!next.is_to_move() && !next.is_released());
        assert!(!none.is_to_move() && !none.is_released());
        assert!(none.is_between_hosts() && !left.is_between_hosts());
    }

    #[test]
    fn a_vm_moves_only_where_it_declares_that() {
        for (placement, moves) in [
            (json!(null), false),
            (json!({"host": "a"}), false),
            (json!({"movePolicy": "Never"}), false),
            (json!({"movePolicy": "WhenStopped"}), true),
        ] {
            assert_eq!(vm(None, placement).moves_when_stopped(), moves);
        }
    }
}
