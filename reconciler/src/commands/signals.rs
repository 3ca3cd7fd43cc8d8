//! Cancellation by SIGTERM or SIGINT; a second signal ends the process at once.

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Returns a token that the first SIGTERM or SIGINT cancels.
///
/// *Errors:* the handlers cannot be installed.
pub(super) fn cancel_on_signal() -> anyhow::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("installing the SIGTERM handler")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("installing the SIGINT handler")?;
    let cancel = CancellationToken::new();
    let token = cancel.clone();
    tokio::spawn(async move {
        for first in [true, false] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if first {
                info!("stopping; VMs keep running");
                token.cancel();
            } else {
                // Every write is durable when it is acknowledged, so ending here loses nothing.
                std::process::exit(130);
            }
        }
    });
    Ok(cancel)
}
