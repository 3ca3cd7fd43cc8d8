//! Events for people (`kubectl describe`): one for each transition that a person may have to act on and that no host
//! reports. Best effort: the conditions are authoritative.

use std::time::Duration;

use berth_api::{Conditions, VMState, condition};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use tokio::{sync::mpsc, time::Instant};

use crate::object::{Object, StatusVisitor, WithStatus};

/// The name under which the controllers report.
const CONTROLLER: &str = "berth.dev/controllers";
/// Kubernetes limits a note to 1,024 bytes.
const MAX_NOTE: usize = 1000;
/// The maximum number of transitions that wait to be published; further ones have no event.
const MAX_WAITING: usize = 64;
/// The least time between two events, so that ten thousand VMs without a host do not become as many writes at once. It
/// also limits the number of events whose repetitions the recorder counts.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// A transition that a person may have to act on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Transition {
    about: ObjectReference,
    reason: String,
    note: String,
}

impl Transition {
    /// Returns the transition of an object's status from `before` to `now`, if it became stalled or no host can take it,
    /// or if the reason for that is another one now.
    pub(crate) fn between(before: Option<&Object>, now: &Object) -> Option<Self> {
        let (about, conditions) = now.visit(Conditioned)?;
        let is_unschedulable = matches!(now, Object::VM(vm)
            if vm.status.as_ref().is_some_and(|status| status.state == Some(VMState::Unschedulable)));
        let is_stalled = condition::find(&conditions, "Stalled").is_some();
        let ready = condition::find(&conditions, "Ready").filter(|_| is_unschedulable || is_stalled)?;
        let before = before.and_then(|before| before.visit(Conditioned));
        let is_same = before
            .as_ref()
            .and_then(|(_, conditions)| condition::find(conditions, "Ready"))
            .is_some_and(|before| before.reason == ready.reason);
        let note = condition::cut(&ready.message, MAX_NOTE).to_owned();
        (!is_same).then(|| Self { about, reason: ready.reason.clone(), note })
    }
}

/// Reads the conditions of an object of any kind.
struct Conditioned;

impl StatusVisitor for Conditioned {
    type Output = (ObjectReference, Conditions);

    fn visit<K: WithStatus>(self, object: &K) -> Self::Output {
        let mut status = object.status().cloned().unwrap_or_default();
        (object.object_ref(&()), std::mem::take(K::conditions(&mut status)))
    }
}

/// Where transitions wait to be published.
#[derive(Clone, Debug)]
pub(crate) struct Events(mpsc::Sender<Transition>);

impl Events {
    /// Returns the sender, and the receiver that [`publish`] reads.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Transition>) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self(sender), receiver)
    }

    /// Adds a transition, unless too many wait.
    pub(crate) fn send(&self, transition: Transition) {
        if let Err(error) = self.0.try_send(transition) {
            tracing::debug!(%error, "event dropped");
        }
    }
}

/// Publishes an event for each transition; ends when the sender is dropped. The recorder counts repetitions in the series of
/// the first event.
pub(crate) async fn publish(client: Client, mut transitions: mpsc::Receiver<Transition>) {
    let recorder = Recorder::new(client, Reporter { controller: CONTROLLER.to_owned(), instance: None });
    while let Some(Transition { about, reason, note }) = transitions.recv().await {
        let next = Instant::now() + MIN_INTERVAL;
        let event = Event {
            type_: EventType::Warning,
            reason,
            note: Some(note),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, &about).await {
            tracing::debug!(%error, "event lost");
        }
        tokio::time::sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::VM;

    fn vm(state: &str, reason: &str, conditions: &[(&str, &str)]) -> Object {
        let conditions: Vec<_> = conditions
            .iter()
            .map(|(kind, status)| {
                serde_json::json!({"type": kind, "status": status, "reason": reason, "message": "why",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        let vm: VM = serde_json::from_value(serde_json::json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": "a", "namespace": "n", "uid": "u"},
            "spec": {"class": "s", "disks": [{"name": "d", "boot": true}]},
            "status": {"state": state, "conditions": conditions},
        }))
        .expect("a VM");
        vm.into()
    }

    #[test]
    fn a_vm_that_cannot_be_placed_has_one_event_for_each_reason() {
        let placed = vm("Creating", "Bound", &[("Ready", "False")]);
        let full = vm("Unschedulable", "Unschedulable", &[("Ready", "False")]);
        let no_address = vm("Pending", "AddressUnavailable", &[("Ready", "False"), ("Stalled", "True")]);
        let reason =
            |before: Option<&Object>, now: &Object| Transition::between(before, now).map(|t| t.reason);
        assert_eq!(reason(None, &placed), None, "ordinary progress");
        assert_eq!(reason(None, &full).as_deref(), Some("Unschedulable"));
        assert_eq!(reason(Some(&full), &full), None, "nothing new");
        assert_eq!(reason(Some(&full), &no_address).as_deref(), Some("AddressUnavailable"));
        assert_eq!(reason(Some(&full), &placed), None, "it was placed");
        let transition = Transition::between(None, &full).expect("it is new");
        assert_eq!((transition.about.name.as_deref(), transition.note.as_str()), (Some("a"), "why"));
    }
}
