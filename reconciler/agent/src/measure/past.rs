//! Keeps the use of the last hour, for `berth top --history`.

use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::sleep;

use super::usage;
use crate::context::Context;
use crate::usage::History;

/// The time between two readings.
const EVERY: Duration = Duration::from_secs(60);

/// Reads the use every minute, for as long as it is polled. An agent without a listener, of which nothing is read, keeps none.
pub(crate) async fn remember(ctx: &Context) {
    if ctx.config.usage.is_none() {
        return std::future::pending().await;
    }
    loop {
        let read = usage(ctx).await;
        ctx.history.lock().unwrap_or_else(PoisonError::into_inner).add(&read);
        sleep(EVERY).await;
    }
}

/// Returns what is kept.
pub(super) fn history(ctx: &Context) -> History {
    ctx.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
