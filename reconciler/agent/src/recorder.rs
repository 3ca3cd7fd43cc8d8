//! Events for people (`kubectl describe`): best effort, one per transition.
//!
//! A full queue or a failed write drops the event: the conditions are authoritative.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::mpsc;

use berth_engine::Clock;

const WAITING: usize = 256;
/// Kubernetes limits a note to 1,024 bytes.
const MAX_NOTE: usize = 1000;

#[derive(Debug)]
pub(crate) struct Recorder {
    sender: mpsc::Sender<Event>,
    clock: Arc<dyn Clock>,
    host: String,
}

impl Recorder {
    /// Returns a recorder, and the receiver that [`publish`] sends events from.
    pub(crate) fn new(host: &str, clock: Arc<dyn Clock>) -> (Self, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self { sender, clock, host: host.to_owned() }, receiver)
    }

    pub(crate) fn record(&self, about: ObjectReference, warning: bool, reason: &str, note: &str) {
        let now = self.clock.now();
        let namespace = about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let name = format!("{}.{:x}", about.name.as_deref().unwrap_or("host"), now.as_nanosecond());
        let note: String = note.chars().take(MAX_NOTE / 4).collect();
        let event = Event {
            metadata: ObjectMeta { name: Some(name), namespace: Some(namespace), ..ObjectMeta::default() },
            event_time: Some(MicroTime(now)),
            action: Some("Reconcile".to_owned()),
            reason: Some(reason.to_owned()),
            note: Some(if note.is_empty() { reason.to_owned() } else { note }),
            type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
            regarding: Some(about),
            reporting_controller: Some("berth.dev/host-agent".to_owned()),
            reporting_instance: Some(self.host.clone()),
            ..Event::default()
        };
        if self.sender.try_send(event).is_err() {
            tracing::debug!(reason, "event dropped");
        }
    }
}

/// Sends the recorded events; ends when the recorder is dropped.
pub(crate) async fn publish(client: Client, mut events: mpsc::Receiver<Event>) {
    while let Some(event) = events.recv().await {
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            tracing::debug!(error = %error, "event lost");
        }
    }
}
