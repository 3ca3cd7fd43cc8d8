//! Waits for states, never for fixed times, and never past the suite's end.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::undo;

static DEADLINE: Mutex<Option<Instant>> = Mutex::new(None);

/// Sets the time by which the current suite must have ended.
pub fn set_deadline(at: Option<Instant>) {
    *DEADLINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = at;
}

/// The remaining time of the current suite.
pub fn time_left() -> Duration {
    let deadline = *DEADLINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    deadline.map_or(Duration::from_secs(24 * 3600), |at| at.saturating_duration_since(Instant::now()))
}

/// An error that waiting cannot resolve: [`until`] returns it at once.
#[derive(Debug)]
pub struct Hopeless(pub String);

impl std::fmt::Display for Hopeless {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Hopeless {}

/// Calls `probe` until it succeeds, for at most `limit`; the error contains its last error.
pub fn until<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Result<T>) -> Result<T> {
    let limit = limit.min(time_left());
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(20);
    loop {
        let last = match probe() {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if last.is::<Hopeless>() {
            return Err(last.context(format!("waiting for {what}")));
        }
        if undo::interrupted() {
            bail!("interrupted while waiting for {what}");
        }
        if Instant::now() >= end {
            return Err(last.context(format!("waited {limit:.0?} for {what}")));
        }
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(300));
    }
}
