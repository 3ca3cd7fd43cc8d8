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
/// The time between two attempts while the guest's file systems are frozen.
const FROZEN_WAIT: Duration = Duration::from_millis(250);
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

    /// Runs a program in the guest to its end. While the guest's file systems are frozen its agent runs none, which is waited for.
    ///
    /// *Errors*: [`GuestError::StillRuns`] after `limit`: an agent cannot end a program.
    pub(crate) async fn run_in_guest(
        &self,
        command: GuestCommand,
        limit: Duration,
    ) -> Result<GuestExit, GuestError> {
        let start = Instant::now();
        let pid = loop {
            let (ended_freezes, command) = (self.ended_freezes(), command.clone());
            let started = self
                .exchange(move |agent| Box::pin(async move { agent.start_command(&command).await }))
                .await;
            match started {
                Err(error) if self.is_of_freeze(&error, ended_freezes) && start.elapsed() < limit => {
                    sleep(FROZEN_WAIT).await;
                }
                started => break started?,
            }
        };
        let mut wait = FIRST_WAIT;
        loop {
            let ended_freezes = self.ended_freezes();
            let exit = match self.exchange(move |agent| Box::pin(agent.command_exit(pid))).await {
                // The program goes on.
                Err(error) if self.is_of_freeze(&error, ended_freezes) => None,
                exit => exit?,
            };
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

    /// Whether the guest's agent may have refused something because file systems were frozen since this number of freezes was read.
    fn is_of_freeze(&self, error: &GuestError, ended_freezes: u64) -> bool {
        let is_refused = matches!(error, GuestError::Agent(GuestAgentError::Refused { .. }));
        is_refused && (self.was_frozen_since(ended_freezes) || self.guest().frozen)
    }
}
