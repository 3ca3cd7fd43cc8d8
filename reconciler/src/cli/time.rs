//! Lengths of time on the command line.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// A length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSpan(pub Duration);

/// The longest time, which can be added to any clock.
const LONGEST: u64 = 36_500 * 24 * 3600;

/// Parses `90m`, `24h`, `7d`.
pub(crate) fn time(text: &str) -> Result<TimeSpan, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| format!("{text:?} is no time: 90m, 24h, 7d"))?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return Err(format!("{text:?} is no time: 90m, 24h, 7d")),
    };
    match number.saturating_mul(seconds) {
        long if long > LONGEST => Err("is too long: at most 36500d".to_owned()),
        seconds => Ok(TimeSpan(Duration::from_secs(seconds))),
    }
}

/// Parses a token's lifetime: Kubernetes issues none shorter than ten minutes.
pub(super) fn token_life(text: &str) -> Result<TimeSpan, String> {
    let TimeSpan(life) = time(text)?;
    let shortest = Duration::from_secs(600);
    let longest = Duration::from_secs(365 * 24 * 3600);
    if life < shortest || life > longest {
        return Err("must be at least 10m and at most 365d".into());
    }
    // Rejects a lifetime that overflows the clock here, rather than when a response needs it.
    let end = SignedDuration::try_from(life).ok().and_then(|life| Timestamp::now().checked_add(life).ok());
    end.map(|_| TimeSpan(life)).ok_or_else(|| "is too long".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_a_token_a_least_life() {
        assert_eq!(time("90m"), Ok(TimeSpan(Duration::from_secs(5400))));
        assert_eq!(token_life("7d"), Ok(TimeSpan(Duration::from_secs(7 * 24 * 3600))));
        for wrong in ["", "5", "m", "1w", "-1h", "9m", "366d"] {
            assert!(token_life(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_that_would_overflow_a_clock_is_refused() {
        assert!(
            time("36500d").is_ok_and(|TimeSpan(time)| std::time::Instant::now().checked_add(time).is_some())
        );
        for long in ["36501d", "99999999999999999d", "18446744073709551615s"] {
            assert!(time(long).is_err(), "{long}");
        }
    }
}
