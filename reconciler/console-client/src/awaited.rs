//! The state of an image whose file is uploaded, as its client sees it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use berth_api::condition::{self, Conditions};
use berth_api::{Image, vm::ConsoleAddress};
use tokio::time::Instant;

/// How long an image must be stalled to count as failed: its status may be the one from before an upload.
const STALLED_FOR: Duration = Duration::from_secs(5);

/// The obstacle on the way to a verified image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing: it is verified.
    Ready,
    /// Its host takes the file at this address.
    Upload(ConsoleAddress),
    /// Something that comes by itself.
    Wait,
}

/// Waits for an image, for a limited time.
#[derive(Debug)]
pub struct Awaited {
    until: Instant,
    /// Whether the file is uploaded, and verified next.
    is_sent: bool,
    stalled: Mutex<Option<Instant>>,
}

impl Awaited {
    /// Waits for a host that takes the file.
    #[must_use]
    pub fn host(until: Instant) -> Self {
        Self { until, is_sent: false, stalled: Mutex::default() }
    }

    /// Waits until the host has verified the file.
    #[must_use]
    pub fn verified(until: Instant) -> Self {
        Self { is_sent: true, ..Self::host(until) }
    }

    /// Looks at the image.
    ///
    /// # Errors
    /// It is stalled, or the time is over: why, for people.
    pub fn look(&self, image: &Image) -> Result<Seen, String> {
        let status = image.status.clone().unwrap_or_default();
        if condition::find(&status.conditions, "Ready").is_some_and(|ready| ready.status == "True") {
            return Ok(Seen::Ready);
        }
        if let Some(server) = status.upload.filter(|_| !self.is_sent) {
            return Ok(Seen::Upload(server));
        }
        let mut since = self.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        if condition::find(&status.conditions, "Stalled").is_some_and(|stalled| stalled.status == "True") {
            if since.get_or_insert_with(Instant::now).elapsed() >= STALLED_FOR {
                return Err(why(&status.conditions));
            }
        } else {
            *since = None;
        }
        if Instant::now() >= self.until {
            return Err(format!("it is not ready in time: {}", why(&status.conditions)));
        }
        Ok(Seen::Wait)
    }
}

fn why(conditions: &Conditions) -> String {
    condition::find(conditions, "Ready").map_or_else(
        || "no controller has seen it yet".to_owned(),
        |ready| format!("{} ({})", ready.message, ready.reason),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(status: &str) -> Image {
        let text = format!(
            r#"{{"metadata": {{"name": "a"}}, "spec": {{"source": {{"upload": {{"size": 1}}, "sha256": "ab"}}}}, "status": {status}}}"#
        );
        serde_json::from_str(&text).expect("an image")
    }

    fn condition(kind: &str, status: &str) -> String {
        format!(
            r#"{{"type": "{kind}", "status": "{status}", "reason": "ChecksumMismatch", "message": "other bytes",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}}"#
        )
    }

    #[tokio::test(start_paused = true)]
    async fn an_image_counts_as_failed_once_it_is_stalled_for_a_while() {
        let failed = format!("[{}, {}]", condition("Ready", "False"), condition("Stalled", "True"));
        let server = r#"{"address": "192.0.2.1:7444", "certificateSha256": "00"}"#;
        let again = image(&format!(r#"{{"conditions": {failed}, "upload": {server}}}"#));
        let until = Instant::now() + Duration::from_secs(60);
        let seen = Awaited::host(until).look(&again).expect("it can be repeated");
        assert!(matches!(&seen, Seen::Upload(found) if found.address == "192.0.2.1:7444"), "{seen:?}");
        let verified = Awaited::verified(until);
        assert_eq!(verified.look(&again), Ok(Seen::Wait), "the status may be an old one");
        tokio::time::advance(STALLED_FOR).await;
        assert_eq!(verified.look(&again), Err("other bytes (ChecksumMismatch)".to_owned()));
        let ready = image(&format!(r#"{{"conditions": [{}]}}"#, condition("Ready", "True")));
        assert_eq!(verified.look(&ready), Ok(Seen::Ready));
        assert_eq!(verified.look(&image("{}")), Ok(Seen::Wait));
        tokio::time::advance(Duration::from_secs(60)).await;
        let late = verified.look(&image("{}")).expect_err("late");
        assert_eq!(late, "it is not ready in time: no controller has seen it yet");
    }
}
