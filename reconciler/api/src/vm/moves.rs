//! The move of a VM that has a host to another one.
//!
//! ```text
//!  controllers: status.moveEpoch = N     agent, once the guest is off: status.releasedEpoch = N      controllers: not bound, then bound
//!  (the VM is to leave binding N)   ──▶  (its host never starts it again under binding N)       ──▶  under an epoch above N
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{MigrationPhase, VM, VMMigration, VMStatus};

/// On a VM: `N` or `N/HOST`: it leaves its host at its next stop if the epoch of its binding is N, for that Host, or for one that the
/// scheduler chooses. `N//live` or `N/HOST/live`: at once, while it runs. Written by `berth move`.
pub const MOVE_ANNOTATION: &str = "berth.dev/move";

/// Whether a VM that has a host moves to another one, when its placement does not allow the one that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MovePolicy {
    #[default]
    Never,
    WhenStopped,
    /// While it runs, if it can, and else as with `WhenStopped`.
    Live,
}

/// The last part of a request for a move of a running VM.
const LIVE: &str = "live";

/// A move that a person has requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedMove {
    /// The epoch of the binding that the VM leaves.
    pub epoch: i64,
    /// Where it goes. None: the scheduler chooses.
    pub host: Option<String>,
    /// Whether it moves while it runs.
    pub live: bool,
}

impl RequestedMove {
    /// Returns the value of [`MOVE_ANNOTATION`].
    #[must_use]
    pub fn to_text(&self) -> String {
        let host = self.host.as_deref().unwrap_or_default();
        match (self.live, host) {
            (true, host) => format!("{}/{host}/{LIVE}", self.epoch),
            (false, "") => self.epoch.to_string(),
            (false, host) => format!("{}/{host}", self.epoch),
        }
    }
}

impl VM {
    /// Whether it declares that it moves when its placement does not allow its host.
    #[must_use]
    pub fn moves_when_stopped(&self) -> bool {
        let policy = self.spec.placement.as_ref().and_then(|placement| placement.move_policy);
        matches!(policy, Some(MovePolicy::WhenStopped | MovePolicy::Live))
    }

    /// Whether it moves while it runs, if it moves out of this binding and can do so.
    #[must_use]
    pub fn moves_live(&self, epoch: i64) -> bool {
        let policy = self.spec.placement.as_ref().and_then(|placement| placement.move_policy);
        let requested = self.requested_move().filter(|requested| requested.epoch == epoch);
        policy == Some(MovePolicy::Live) || requested.is_some_and(|requested| requested.live)
    }

    /// Returns the move that is requested of it. None also for a text that is no request.
    #[must_use]
    pub fn requested_move(&self) -> Option<RequestedMove> {
        let text = self.metadata.annotations.as_ref()?.get(MOVE_ANNOTATION)?;
        let (epoch, host) =
            text.split_once('/').map_or((text.as_str(), None), |(epoch, host)| (epoch, Some(host)));
        let (host, live) = match host.and_then(|rest| rest.split_once('/')) {
            Some((host, LIVE)) => (Some(host), true),
            _ => (host, false),
        };
        let host = host.filter(|host| !host.is_empty() && host.len() <= 253).map(str::to_owned);
        Some(RequestedMove { epoch: epoch.parse::<i64>().ok().filter(|epoch| *epoch > 0)?, host, live })
    }
}

impl VMStatus {
    /// Returns the move of the running VM out of its present binding, if there is one.
    #[must_use]
    pub fn live_move(&self) -> Option<&VMMigration> {
        let epoch = self.binding.as_ref()?.epoch;
        self.migration.as_deref().filter(|migration| migration.epoch == epoch)
    }

    /// Returns the move whose guest runs on the other host, before the VM is bound there.
    #[must_use]
    pub fn handed_over(&self) -> Option<&VMMigration> {
        let is_over = |migration: &&VMMigration| migration.phase == MigrationPhase::HandedOver;
        self.live_move().filter(is_over).filter(|_| self.is_released())
    }

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
            for live in [false, true] {
                let wanted = RequestedMove { epoch, host: host.clone(), live };
                assert_eq!(requested(&wanted.to_text()), Some(wanted));
            }
        }
        assert_eq!(requested("3/"), Some(RequestedMove { epoch: 3, host: None, live: false }));
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
    fn a_guest_is_handed_over_only_with_the_release_of_that_binding() {
        let handed_over = |phase: &str, released: i64, epoch: i64| {
            let migration = json!({"id": "m-1", "to": "b", "epoch": epoch, "phase": phase});
            let status = json!({"binding": {"host": "a", "epoch": 3}, "releasedEpoch": released, "migration": migration});
            let status: VMStatus = serde_json::from_value(status).expect("a status");
            status.handed_over().is_some()
        };
        assert!(handed_over("HandedOver", 3, 3));
        assert!(!handed_over("Requested", 3, 3), "it was given up while it was off");
        assert!(!handed_over("HandedOver", 2, 3) && !handed_over("HandedOver", 3, 2));
    }

    #[test]
    fn a_vm_moves_only_where_it_declares_that() {
        for (placement, moves) in [
            (json!(null), false),
            (json!({"host": "a"}), false),
            (json!({"movePolicy": "Never"}), false),
            (json!({"movePolicy": "WhenStopped"}), true),
            (json!({"movePolicy": "Live"}), true),
        ] {
            assert_eq!(vm(None, placement).moves_when_stopped(), moves);
        }
    }
}
