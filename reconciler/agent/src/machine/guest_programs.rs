//! Exchanges with a guest's agent, and programs in the guest, for a machine's users.

use std::time::Duration;

use berth_qemu::guest_agent::{GuestAgent, GuestAgentError, GuestCommand, GuestExit};
use futures::future::BoxFuture;
use tokio::time::{Instant, sleep, timeout};

use super::Machine;
use super::exchange::{Exchange, GuestError};
use super::guest::GuestRequest;

/// The first and the longest time between two questions whether a program has ended.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The time for an exchange, with those of others before it.
const TURN: Duration = Duration::from_secs(60);

impl Machine {
    /// Makes one exchange with the guest's agent.
    pub(crate) async fn exchange<T, F>(&self, exchange: F) -> Result<T, GuestError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a mut GuestAgent) -> BoxFuture<'a, Result<T, GuestAgentError>> + Send + 'static,
    {
        if !self.guest_listens().await {
            return Err(GuestError::NoAgent);
        }
        let (exchange, answer) = Exchange::new(exchange);
        let asked = async {
            self.requests.send(GuestRequest::Exchange(exchange)).await.map_err(|_| GuestError::Gone)?;
            // Without a connection the exchange is dropped.
            answer.await.map_err(|_| GuestError::NoAgent)
        };
        Ok(timeout(TURN, asked).await.map_err(|_| GuestError::Busy)???)
    }

    /// Runs a program in the guest to its end.
    ///
    /// *Errors*: [`GuestError::StillRuns`] after `limit`: an agent cannot end a program.
    pub(crate) async fn run_in_guest(
        &self,
        command: GuestCommand,
        limit: Duration,
    ) -> Result<GuestExit, GuestError> {
        let start = Instant::now();
        let pid =
            self.exchange(move |agent| Box::pin(async move { agent.start_command(&command).await })).await?;
        let mut wait = FIRST_WAIT;
        loop {
            let exit = self.exchange(move |agent| Box::pin(agent.command_exit(pid))).await?;
            if let Some(exit) = exit {
                return Ok(exit);
            }
            if start.elapsed() >= limit {
                return Err(GuestError::StillRuns { after: limit });
            }
            sleep(wait.min(limit.saturating_sub(start.elapsed()))).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }
}
