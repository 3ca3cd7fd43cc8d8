//! The readiness of an object, from its conditions, as Kubernetes tools read them (kstatus).
//!
//! Pure.

use berth_api::Reason;
use serde_json::Value as Json;

/// The conditions of an object that matter for its readiness.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Whether the conditions belong to the current generation.
    pub current: bool,
    /// `Ready`.
    pub ready: Option<Condition>,
    /// `Stalled`, while it is true.
    pub stalled: Option<Condition>,
}

/// One condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A word for programs.
    pub reason: String,
    /// A text for people.
    pub message: String,
}

/// The state of a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The object has reached the declared state.
    Done,
    /// In progress, with the reason it is not done yet.
    Waiting(String),
    /// Done except for values that follow soon, such as an address: worth only a short wait.
    Soon(String),
    /// A person must change something.
    Stalled(Condition),
}

impl Condition {
    /// Whether another object causes the condition and may resolve it soon.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        let reasons = [
            Reason::DiskInUse,
            Reason::DiskOnOtherHost,
            Reason::NoFreeAddress,
            Reason::AddressUnavailable,
            Reason::GuestBusy,
            Reason::MountsUnknown,
            Reason::GroupTooLarge,
            Reason::NoHostLargeEnough,
            Reason::NoSuchHost,
        ];
        reasons.iter().any(|reason| reason.as_str() == self.reason)
    }

    /// `reason: message`
    #[must_use]
    pub fn text(&self) -> String {
        if self.message.is_empty() {
            self.reason.clone()
        } else {
            format!("{}: {}", self.reason, self.message)
        }
    }
}

impl Readiness {
    /// The readiness of an object.
    #[must_use]
    pub fn of(object: &Json) -> Self {
        let generation = object.pointer("/metadata/generation").and_then(Json::as_i64).unwrap_or(0);
        let observed = object.pointer("/status/observedGeneration").and_then(Json::as_i64).unwrap_or(-1);
        Self {
            current: observed >= generation.max(0),
            ready: condition(object, "Ready"),
            stalled: condition(object, "Stalled").filter(|condition| condition.status == "True"),
        }
    }

    /// Ready is done, stalled is stalled, everything else is waiting.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        let Some(ready) = self.ready.as_ref().filter(|_| self.current) else {
            return Outcome::Waiting("not observed yet".into());
        };
        match &self.stalled {
            _ if ready.status == "True" => Outcome::Done,
            Some(stalled) => Outcome::Stalled(stalled.clone()),
            None => Outcome::Waiting(ready.text()),
        }
    }
}

/// The condition of a type.
#[must_use]
pub fn condition(object: &Json, kind: &str) -> Option<Condition> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    let found =
        conditions.iter().find(|condition| condition.get("type").and_then(Json::as_str) == Some(kind))?;
    let text = |key: &str| found.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
    Some(Condition { status: text("status"), reason: text("reason"), message: text("message") })
}

/// Whether the condition of a type is true.
#[must_use]
pub fn is_true(object: &Json, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(generation: i64, observed: i64, conditions: &[(&str, &str)]) -> Json {
        let conditions: Vec<Json> = conditions
            .iter()
            .map(|(kind, status)| json!({"type": kind, "status": status, "reason": "R", "message": "m"}))
            .collect();
        json!({"metadata": {"generation": generation}, "status": {"observedGeneration": observed, "conditions": conditions}})
    }

    #[test]
    fn conditions_of_an_older_generation_do_not_count() {
        for conditions in [&[("Ready", "True")][..], &[("Ready", "False"), ("Stalled", "True")]] {
            assert!(matches!(Readiness::of(&object(2, 1, conditions)).outcome(), Outcome::Waiting(_)));
        }
        assert!(matches!(Readiness::of(&json!({"metadata": {}})).outcome(), Outcome::Waiting(_)));
    }

    #[test]
    fn ready_is_done_and_stalled_is_for_a_person() {
        assert_eq!(Readiness::of(&object(2, 2, &[("Ready", "True")])).outcome(), Outcome::Done);
        let stalled = Readiness::of(&object(1, 1, &[("Ready", "False"), ("Stalled", "True")])).outcome();
        assert!(matches!(stalled, Outcome::Stalled(condition) if condition.text() == "R: m"));
        let waiting = Readiness::of(&object(1, 1, &[("Ready", "Unknown")])).outcome();
        assert_eq!(waiting, Outcome::Waiting("R: m".into()));
    }
}
