//! Events for people (`kubectl describe`): best effort, one for each transition that a person may have to act on, and for few others.
//!
//! A repetition is counted in the series of the event before, as Kubernetes' recorders do. A full queue or a failed write
//! drops the event: the conditions are authoritative.

use std::collections::HashMap;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use berth_engine::Clock;

const WAITING: usize = 256;
/// Kubernetes limits a note to 1,024 bytes.
const MAX_NOTE: usize = 1000;
/// How long after its last occurrence an event is repeated and not new, as in Kubernetes' recorders.
const SERIES_ENDS_AFTER: Duration = Duration::from_secs(360);
/// Maximum number of events whose repetitions are counted.
const MAX_SERIES: usize = 1024;

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventType {
    Normal,
    Warning,
}

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

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

    /// Records a transition that a person may have to act on.
    pub(crate) fn warn(&self, about: ObjectReference, reason: &str, note: &str) {
        self.record(about, EventType::Warning, reason, note);
    }

    pub(crate) fn record(&self, about: ObjectReference, event_type: EventType, reason: &str, note: &str) {
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
            type_: Some(event_type.as_str().to_owned()),
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

/// What makes two events the same, as in Kubernetes' recorders: everything but the note and the times.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SeriesKey {
    kind: String,
    namespace: String,
    name: String,
    uid: String,
    event_type: String,
    reason: String,
}

impl SeriesKey {
    fn of(event: &Event) -> Self {
        let about = event.regarding.clone().unwrap_or_default();
        Self {
            kind: about.kind.unwrap_or_default(),
            namespace: about.namespace.unwrap_or_default(),
            name: about.name.unwrap_or_default(),
            uid: about.uid.unwrap_or_default(),
            event_type: event.type_.clone().unwrap_or_default(),
            reason: event.reason.clone().unwrap_or_default(),
        }
    }
}

/// An event that was created, and its occurrences since.
#[derive(Debug)]
struct Series {
    event: String,
    count: i32,
    last: Instant,
}

/// Sends the recorded events; ends when the recorder is dropped.
pub(crate) async fn publish(client: Client, mut events: mpsc::Receiver<Event>) {
    let mut known: HashMap<SeriesKey, Series> = HashMap::new();
    while let Some(event) = events.recv().await {
        let now = Instant::now();
        known.retain(|_, series| now.duration_since(series.last) < SERIES_ENDS_AFTER);
        let api: Api<Event> = Api::namespaced(client.clone(), &event.namespace().unwrap_or_default());
        let key = SeriesKey::of(&event);
        if let Some(series) = known.get_mut(&key) {
            series.last = now;
            series.count = series.count.saturating_add(1);
            let last_observed_time =
                event.event_time.clone().unwrap_or_else(|| MicroTime(Default::default()));
            let patch = json!({"series": EventSeries { count: series.count, last_observed_time }});
            match api.patch(&series.event, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => continue,
                Err(error) => tracing::debug!(error = %error, "event not counted"),
            }
        }
        match api.create(&PostParams::default(), &event).await {
            Ok(_) if known.len() < MAX_SERIES || known.contains_key(&key) => {
                known.insert(key, Series { event: event.name_any(), count: 1, last: now });
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(error = %error, "event lost"),
        }
    }
}
