//! Waiting for a state, never for a time, and never past the lane's end.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::undo;

static DEADLINE: Mutex<Option<Instant>> = Mutex::new(None);

/// Sets when the current lane must have ended.
pub fn set_deadline(at: Option<Instant>) {
    *DEADLINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = at;
}

/// How long the current lane may still run.
pub fn time_left() -> Duration {
    let deadline = *DEADLINE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    deadline.map_or(Duration::from_secs(24 * 3600), |at| at.saturating_duration_since(Instant::now()))
}

/// An error that waiting cannot heal: [`until`] ends at once with it.
#[derive(Debug)]
pub struct Hopeless(pub String);

impl std::fmt::Display for Hopeless {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Hopeless {}

/// Asks `probe` until it is content, at most for `limit`; the error tells what it said last.
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
