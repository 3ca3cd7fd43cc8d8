//! Counts the attempts of a probe. Pure.

use berth_api::probe::Probe;

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    /// Why the last of the attempts failed.
    Failure(String),
}

/// The attempts of a probe since its result last changed.
#[derive(Debug)]
pub(super) struct Count {
    failure_threshold: i64,
    success_threshold: i64,
    has_succeeded: Option<bool>,
    successes: i64,
    failures: i64,
}

impl Count {
    pub(super) fn new(probe: &Probe) -> Self {
        Self {
            failure_threshold: probe.failure_threshold.max(1),
            success_threshold: probe.success_threshold.max(1),
            has_succeeded: None,
            successes: 0,
            failures: 0,
        }
    }

    /// Adds an attempt; returns the result if it is another one than before.
    pub(super) fn add(&mut self, answer: Result<(), String>) -> Option<Outcome> {
        match answer {
            Ok(()) => {
                (self.failures, self.successes) = (0, self.successes.saturating_add(1));
                let changes = self.has_succeeded != Some(true) && self.successes >= self.success_threshold;
                changes.then(|| {
                    self.has_succeeded = Some(true);
                    Outcome::Success
                })
            }
            Err(why) => {
                (self.successes, self.failures) = (0, self.failures.saturating_add(1));
                let changes = self.has_succeeded != Some(false) && self.failures >= self.failure_threshold;
                changes.then(|| {
                    self.has_succeeded = Some(false);
                    Outcome::Failure(why)
                })
            }
        }
    }

    /// Counts from the beginning, and keeps the result.
    pub(super) fn start_again(&mut self) {
        (self.successes, self.failures) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn count(failures: i64, successes: i64) -> Count {
        let probe =
            json!({"tcpSocket": {"port": 1}, "failureThreshold": failures, "successThreshold": successes});
        Count::new(&serde_json::from_value(probe).expect("a probe"))
    }

    /// Returns the results after each attempt: `+` succeeded, `-` failed.
    fn results(count: &mut Count, attempts: &str) -> String {
        let one = |attempt| match count.add(if attempt == '+' { Ok(()) } else { Err("no".to_owned()) }) {
            None => '.',
            Some(Outcome::Success) => 'S',
            Some(Outcome::Failure(_)) => 'F',
        };
        attempts.chars().map(one).collect()
    }

    #[test]
    fn a_result_changes_after_as_many_equal_attempts_in_a_row_as_are_declared() {
        assert_eq!(results(&mut count(3, 1), "+++--+---++---"), "S.......FS...F");
        assert_eq!(results(&mut count(3, 2), "---+-++-+--"), "..F...S....");
        assert_eq!(results(&mut count(1, 1), "-+-+"), "FSFS");
    }

    #[test]
    fn a_reboot_starts_the_count_again_and_keeps_the_result() {
        let mut count = count(2, 1);
        assert_eq!(results(&mut count, "+-"), "S.");
        count.start_again();
        assert_eq!(results(&mut count, "-+--"), "...F");
    }
}
