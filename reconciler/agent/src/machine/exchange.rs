//! Exchanges with a guest's agent for others than the guest task, which has the only connection to it.
//!
//! An exchange is one request and its reply: a shutdown or a question about mounts never waits for a program that runs in the
//! guest. It ends when nothing waits for its outcome any more, and does not begin after that. All replies come from the guest, which
//! may be hostile.

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
        let (mut reply, answer) = oneshot::channel();
        let run = Self(Box::new(move |agent| {
            Box::pin(async move {
                let made = tokio::select! {
                    biased;
                    // Without a caller nothing happens in the guest any more. One that takes a piece of a file byte by byte would also
                    // hold up all other exchanges. The next one synchronises the channel.
                    () = reply.closed() => return true,
                    made = exchange(agent) => made,
                };
                let is_good = matches!(
                    made,
                    Ok(_) | Err(GuestAgentError::Silent { .. } | GuestAgentError::Refused { .. })
                );
                // The caller may have given up at this moment.
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

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_exchange_ends_with_its_caller_and_leaves_the_connection() {
        let (near, _far) = tokio::io::duplex(1 << 10);
        let mut agent = Some(GuestAgent::over(near));
        let (exchange, answer) = Exchange::new(|_| Box::pin(pending::<Result<(), GuestAgentError>>()));
        let run = async {
            exchange.run(&mut agent).await;
        };
        let give_up = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(answer);
        };
        let both = async { tokio::join!(run, give_up) };
        timeout(Duration::from_secs(2), both).await.expect("it does not hold up the others");
        assert!(agent.is_some());
    }

    #[tokio::test]
    async fn an_exchange_whose_caller_has_given_up_does_not_begin() {
        let (near, _far) = tokio::io::duplex(1 << 10);
        let mut agent = Some(GuestAgent::over(near));
        let begun = Arc::new(AtomicBool::new(false));
        let seen = begun.clone();
        let (exchange, answer) = Exchange::new(move |_| {
            Box::pin(async move {
                seen.store(true, Ordering::Relaxed);
                Ok(())
            })
        });
        drop(answer);
        exchange.run(&mut agent).await;
        assert!(!begun.load(Ordering::Relaxed));
    }
}
