//! Exchanges with a guest's agent for others than the guest task, which has the only connection to it.
//!
//! An exchange is one request and its reply: a shutdown or a question about mounts never waits for a program that runs in the
//! guest. All replies come from the guest, which may be hostile.

use std::fmt;
use std::time::Duration;

use berth_qemu::guest_agent::{GuestAgent, GuestAgentError};
use futures::future::BoxFuture;
use tokio::sync::oneshot;

/// Makes the exchange, and returns whether the connection is still good.
type Run = dyn for<'a> FnOnce(&'a mut GuestAgent) -> BoxFuture<'a, bool> + Send;

/// An exchange that was asked for.
pub(super) struct Exchange(Box<Run>);

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exchange")
    }
}

impl Exchange {
    /// Returns an exchange, and the receiver of its outcome. It is dropped without one if there is no connection.
    pub(super) fn new<T, F>(exchange: F) -> (Self, oneshot::Receiver<Result<T, GuestAgentError>>)
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut GuestAgent) -> BoxFuture<'a, Result<T, GuestAgentError>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let run = Self(Box::new(move |agent| {
            Box::pin(async move {
                let made = exchange(agent).await;
                let is_good = matches!(
                    made,
                    Ok(_) | Err(GuestAgentError::Silent { .. } | GuestAgentError::Refused { .. })
                );
                // The asker may have given up.
                let _ = reply.send(made);
                is_good
            })
        }));
        (run, answer)
    }

    /// Runs it. The connection is closed after a failure that leaves replies in it.
    pub(super) async fn run(self, agent: &mut Option<GuestAgent>) {
        if let Some(connected) = agent
            && !(self.0)(connected).await
        {
            *agent = None;
        }
    }
}

/// Why a guest did not do something, for the person that wanted it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestError {
    #[error("no guest agent runs in the VM: install and start qemu-guest-agent in it")]
    NoAgent,
    #[error("the VM no longer runs")]
    Gone,
    #[error("the guest agent is busy: try again in a moment")]
    Busy,
    #[error("the program did not end within {} seconds; it may still run in the guest", after.as_secs())]
    StillRuns { after: Duration },
    #[error(transparent)]
    Agent(#[from] GuestAgentError),
}
