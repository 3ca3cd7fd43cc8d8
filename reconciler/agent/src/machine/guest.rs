//! Guest facts, polled from the guest agent: frequently until the agent has answered, rarely afterwards, and at once
//! when QEMU reports that the agent's port was opened.
//!
//! All of it comes from the guest, which may be hostile: it is shown to the VM's owner and decides only whether a disk
//! of this same VM may be unplugged.

use std::sync::Arc;
use std::time::Duration;

use berth_qemu::guest_agent::{Filesystem, GuestAgent, GuestAgentError, GuestPart, ShutdownMode, mounts_of};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

use super::exchange::Exchange;
use super::guest_facts::GuestFacts;
use crate::key::Key;
use berth_engine::{Clock, Queue};

const FIRST_POLL: Duration = Duration::from_secs(1);
const POLL_EVERY: Duration = Duration::from_secs(30);
/// How often, and at which interval, CPUs and memory that were plugged in are looked for in the guest, and how often in vain.
const ONLINE_ATTEMPTS: usize = 60;
const ONLINE_IDLE: usize = 6;
const ONLINE_WAIT: Duration = Duration::from_millis(500);
/// How long that may take with an agent that answers slowly: other requests wait meanwhile.
const ONLINE_LIMIT: Duration = Duration::from_secs(60);
/// How many requests may go before a poll that is due.
const MOST_AHEAD: usize = 8;

/// How long file systems may be frozen: a snapshot takes less.
const FROZEN_LIMIT: Duration = Duration::from_secs(25);

/// Whether the guest's file systems are frozen, as far as it is known. Only berth has the guest's agent freeze them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Freeze {
    /// The guest was not asked yet: what is frozen then was frozen for a snapshot of a former agent.
    #[default]
    Unknown,
    None,
    /// They were seen frozen then, as they are during a snapshot.
    Since(Instant),
    /// They were frozen for too long, or were not thawed after a snapshot.
    Overdue,
}

impl Freeze {
    /// Returns the state after the file systems were seen frozen.
    fn seen(self, now: Instant) -> Self {
        match self {
            Self::Unknown => Self::Overdue,
            Self::None => Self::Since(now),
            Self::Since(at) if now.duration_since(at) >= FROZEN_LIMIT => Self::Overdue,
            other => other,
        }
    }

    fn is_overdue(self) -> bool {
        self == Self::Overdue
    }
}

#[derive(Debug)]
pub(super) enum GuestRequest {
    /// Mount points of the disk with this serial at this SCSI target; replies None if there is no agent.
    Mounts {
        serial: String,
        target: Option<u8>,
        reply: oneshot::Sender<Option<Vec<String>>>,
    },
    Shutdown(oneshot::Sender<bool>),
    /// Suspends the guest to its memory; replies why it refuses that. Ends when nothing waits for the reply any more.
    Suspend(oneshot::Sender<Option<String>>),
    Exchange(Exchange),
    /// Sets the CPUs and the memory online that the kernel knows and does not use.
    SetOnline,
    /// Sets the guest's clock to the host's.
    SetClock,
    /// A snapshot begins to freeze the file systems (`None`), or could not thaw them.
    Frozen(Freeze),
}

pub(super) struct GuestTask {
    pub(super) system: Arc<dyn berth_host::Machines>,
    pub(super) instance: String,
    pub(super) requests: mpsc::Receiver<GuestRequest>,
    pub(super) poll_now: Arc<Notify>,
    pub(super) facts: watch::Sender<GuestFacts>,
    pub(super) queue: Arc<Queue<Key>>,
    pub(super) wake: Option<Key>,
    pub(super) clock: Arc<dyn Clock>,
}

impl GuestTask {
    pub(super) async fn run(mut self) {
        let mut agent = None;
        // Requests do not delay a poll: programs in a guest are asked for several times a second.
        let (mut wait, mut next) = (FIRST_POLL, Instant::now() + FIRST_POLL);
        let mut freeze = Freeze::default();
        let mut ahead = 0;
        loop {
            tokio::select! {
                biased;
                request = self.requests.recv(), if ahead < MOST_AHEAD => match request {
                    Some(GuestRequest::Frozen(now)) => {
                        freeze = now;
                        if now.is_overdue() {
                            (wait, next) = (Duration::ZERO, Instant::now());
                        }
                        continue;
                    }
                    Some(request) => {
                        ahead = if Instant::now() >= next { ahead + 1 } else { 0 };
                        self.answer(&mut agent, request).await;
                        continue;
                    }
                    None => return,
                },
                () = self.poll_now.notified() => wait = FIRST_POLL,
                () = tokio::time::sleep_until(next) => {}
            }
            ahead = 0;
            let facts = tokio::select! {
                facts = self.look(&mut agent, &mut freeze) => facts,
                // The agent has just started: the poll under way began before, and would wait for its whole timeout.
                () = self.poll_now.notified() => {
                    agent = None;
                    (wait, next) = (Duration::ZERO, Instant::now());
                    continue;
                }
            };
            wait = if facts.agent { POLL_EVERY } else { (wait * 2).clamp(FIRST_POLL, POLL_EVERY) };
            next = Instant::now() + wait;
            let news = self.facts.send_if_modified(|old| {
                let differs = *old != facts;
                *old = facts;
                differs
            });
            if news && let Some(key) = &self.wake {
                self.queue.add(key.clone());
            }
        }
    }

    async fn connected<'a>(&self, agent: &'a mut Option<GuestAgent>) -> Option<&'a mut GuestAgent> {
        if agent.is_none() {
            *agent = self.system.guest_agent(&self.instance).await.ok();
        }
        agent.as_mut()
    }

    async fn look(&self, agent: &mut Option<GuestAgent>, freeze: &mut Freeze) -> GuestFacts {
        let silent = |freeze: Freeze| GuestFacts { frozen: freeze.is_overdue(), ..GuestFacts::default() };
        let Some(connected) = self.connected(agent).await else { return silent(*freeze) };
        let before = self.facts.borrow().clone();
        match facts(connected, before, freeze).await {
            Ok(facts) => facts,
            Err(error) => {
                tracing::debug!(error = %error, "the guest's agent does not answer");
                if !matches!(error, GuestAgentError::Silent { .. }) {
                    *agent = None;
                }
                silent(*freeze)
            }
        }
    }

    async fn answer(&self, agent: &mut Option<GuestAgent>, request: GuestRequest) {
        let connected = self.connected(agent).await;
        match request {
            GuestRequest::Exchange(exchange) => exchange.run(agent).await,
            // It needs no agent: see `run`.
            GuestRequest::Frozen(_) => {}
            // Its caller does not wait any more.
            GuestRequest::Mounts { reply, .. } if reply.is_closed() => {}
            GuestRequest::Shutdown(reply) if reply.is_closed() => {}
            GuestRequest::Suspend(reply) if reply.is_closed() => {}
            GuestRequest::Mounts { serial, target, reply } => {
                let mounts = match connected {
                    Some(agent) => agent.filesystems().await.ok(),
                    None => None,
                };
                let points = |all: Vec<Filesystem>| {
                    mounts_of(&all, &serial, target).into_iter().map(|f| f.mountpoint.clone()).collect()
                };
                let _ = reply.send(mounts.map(points));
            }
            GuestRequest::SetOnline => {
                let Some(agent) = connected else { return };
                match timeout(ONLINE_LIMIT, set_online(agent)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "the guest's agent did not set CPUs and memory online");
                    }
                    Err(_) => tracing::debug!("the guest's agent takes long to set CPUs and memory online"),
                }
            }
            GuestRequest::SetClock => {
                let Some(agent) = connected else { return };
                if let Err(error) = agent.set_time(self.clock.now().as_nanosecond()).await {
                    tracing::debug!(%error, "the guest's agent did not set its clock");
                }
            }
            GuestRequest::Suspend(mut reply) => {
                let refusal = match connected {
                    Some(agent) => tokio::select! {
                        asked = agent.suspend_to_memory() => asked.err().map(|error| error.to_string()),
                        () = reply.closed() => return,
                    },
                    None => Some("the guest agent's channel cannot be opened".to_owned()),
                };
                let _ = reply.send(refusal);
            }
            GuestRequest::Shutdown(reply) => {
                let heard = match connected {
                    Some(agent) => agent.shutdown(ShutdownMode::Powerdown).await.is_ok(),
                    None => false,
                };
                let _ = reply.send(heard);
            }
        }
    }
}

/// The kernel learns of CPUs and memory a moment after they were plugged in, of much memory piece by piece.
async fn set_online(agent: &mut GuestAgent) -> Result<(), GuestAgentError> {
    let mut idle = 0;
    for _ in 0..ONLINE_ATTEMPTS {
        let cpus = offline(&agent.cpus().await?);
        if !cpus.is_empty() {
            agent.set_cpus_online(&cpus).await?;
        }
        // Not every kernel can plug memory in.
        let blocks = offline(&agent.memory_blocks().await.unwrap_or_default());
        if !blocks.is_empty() {
            agent.set_memory_online(&blocks).await?;
        }
        idle = if cpus.is_empty() && blocks.is_empty() { idle + 1 } else { 0 };
        if idle == ONLINE_IDLE {
            break;
        }
        tokio::time::sleep(ONLINE_WAIT).await;
    }
    Ok(())
}

fn offline(parts: &[GuestPart]) -> Vec<u64> {
    parts.iter().filter(|part| !part.online && part.can_change).map(|part| part.id).collect()
}

/// Thaws file systems that stay frozen. Returns whether they are frozen.
async fn thaw_if_overdue(agent: &mut GuestAgent, freeze: &mut Freeze) -> bool {
    // An agent without this command is asked to thaw them until it says that it has.
    if !agent.frozen().await.unwrap_or(freeze.is_overdue()) {
        *freeze = Freeze::None;
        return false;
    }
    *freeze = freeze.seen(Instant::now());
    if !freeze.is_overdue() {
        return true;
    }
    let thawed = agent.thaw().await;
    if let Err(error) = &thawed {
        tracing::debug!(%error, "the guest's file systems stay frozen");
    }
    let is_frozen = agent.frozen().await.unwrap_or(thawed.is_err());
    if !is_frozen {
        tracing::info!("the guest's file systems, which stayed frozen, are thawed");
        *freeze = Freeze::None;
    }
    is_frozen
}

/// Reads the facts. While the file systems are frozen they are those from `before`, since the agent then refuses everything else.
async fn facts(
    agent: &mut GuestAgent,
    before: GuestFacts,
    freeze: &mut Freeze,
) -> Result<GuestFacts, GuestAgentError> {
    agent.ping().await?;
    if thaw_if_overdue(agent, freeze).await {
        return Ok(GuestFacts { agent: true, frozen: freeze.is_overdue(), ..before });
    }
    // An agent may not support every command, and an administrator may forbid some: missing answers are tolerated.
    let hostname = agent.host_name().await.ok();
    let os = agent.os_info().await.unwrap_or_default();
    let interfaces = agent.interfaces().await.unwrap_or_default();
    let filesystems = agent.filesystems().await.unwrap_or_default();
    let facts = GuestFacts { agent: true, hostname, ..GuestFacts::default() };
    Ok(facts.with_os(os).with_interfaces(&interfaces).with_filesystems(&filesystems))
}

#[cfg(test)]
mod tests {
    use berth_engine::RuntimeClock;
    use berth_host::fake::FakeSystem;
    use jiff::Timestamp;
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn some_requests_go_before_a_poll_that_is_due_and_not_any_number() {
        let clock: Arc<dyn Clock> = Arc::new(RuntimeClock::starting_at(Timestamp::UNIX_EPOCH));
        let (sender, requests) = mpsc::channel(1000);
        let (facts, seen) = watch::channel(GuestFacts::default());
        let task = GuestTask {
            system: Arc::new(FakeSystem::new(clock.clone())),
            instance: "i-1".to_owned(),
            requests,
            poll_now: Arc::default(),
            facts,
            queue: Arc::new(Queue::new(Duration::from_secs(1), StdRng::seed_from_u64(1))),
            wake: None,
            clock,
        };
        // A poll is due from now on, and shows this.
        sender.try_send(GuestRequest::Frozen(Freeze::Overdue)).expect("there is room");
        let ask = |_| {
            let (reply, answer) = oneshot::channel();
            let request = GuestRequest::Mounts { serial: String::new(), target: None, reply };
            sender.try_send(request).expect("there is room");
            answer
        };
        let answers: Vec<_> = (0..900).map(ask).collect();
        let running = tokio::spawn(task.run());
        for answer in answers.into_iter().take(MOST_AHEAD + 1) {
            assert_eq!(answer.await.expect("answered"), None);
        }
        assert!(seen.borrow().frozen);
        running.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_is_not_suspended_by_a_request_that_was_given_up_while_it_waited() {
        let clock = Arc::new(RuntimeClock::starting_at(Timestamp::UNIX_EPOCH));
        let task = GuestTask {
            system: Arc::new(FakeSystem::new(clock.clone())),
            instance: "i-1".to_owned(),
            requests: mpsc::channel(1).1,
            poll_now: Arc::default(),
            facts: watch::channel(GuestFacts::default()).0,
            queue: Arc::new(Queue::new(Duration::from_secs(1), StdRng::seed_from_u64(1))),
            wake: None,
            clock,
        };
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let mut agent = Some(GuestAgent::over(near));
        // Which of the two that it would wait for comes first is random.
        for _ in 0..32 {
            let (reply, answer) = oneshot::channel();
            drop(answer);
            task.answer(&mut agent, GuestRequest::Suspend(reply)).await;
        }
        drop(agent);
        let mut asked = Vec::new();
        far.read_to_end(&mut asked).await.expect("the channel is closed");
        assert!(asked.is_empty(), "{}", String::from_utf8_lossy(&asked));
    }

    #[tokio::test(start_paused = true)]
    async fn file_systems_that_are_frozen_for_longer_than_a_snapshot_takes_are_overdue() {
        let begun = Instant::now();
        let seen = Freeze::None.seen(begun);
        assert!(!seen.is_overdue() && !seen.seen(begun + Duration::from_secs(1)).is_overdue());
        let overdue = seen.seen(begun + FROZEN_LIMIT);
        assert!(overdue.is_overdue() && overdue.seen(begun).is_overdue());
        assert!(Freeze::default().seen(begun).is_overdue(), "another agent had them frozen");
    }
}
