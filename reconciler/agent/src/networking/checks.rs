//! Health checks of the targets of public addresses that this host has: a task for each, so that a guest that does not answer holds
//! up nothing.
//!
//! ```text
//!   networks' reconcile ──ensure(checks)──▶ task: attempt, wait, attempt …
//!            ▲                                │ the result changes
//!            └────────── queue ◀──────────────┘
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::probe::HttpGet;
use berth_api::public_ip::{HealthCheck, PortProtocol};
use berth_engine::Queue;
use berth_host::System;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::key::Key;
use crate::probes::{GuestAddress, Ports};

/// Delay over which changed results are collected before the host reports them.
const REPORT_AFTER: Duration = Duration::from_millis(250);

/// A target of a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CheckedTarget {
    pub(crate) public: IpAddr,
    pub(crate) port: u16,
    pub(crate) protocol: PortProtocol,
    /// The name of the VM.
    pub(crate) vm: String,
}

/// The question to a target, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    /// The interface of this host by which the guest is reached, and the guest's address.
    pub(crate) place: GuestAddress,
    pub(crate) port: u16,
    pub(crate) health_check: HealthCheck,
}

/// The result of a check. `Err` has the cause, for people.
pub(crate) type Health = Result<(), String>;

/// The checks that run.
#[derive(Debug)]
pub(crate) struct Checks {
    system: Arc<dyn System>,
    queue: Arc<Queue<Key>>,
    running: Mutex<Running>,
}

#[derive(Debug, Default)]
struct Running {
    tasks: BTreeMap<CheckedTarget, Task>,
    /// Whether checks were declared before, since this agent started.
    has_begun: bool,
}

#[derive(Debug)]
struct Task {
    check: Check,
    health: Arc<Mutex<Health>>,
    handle: JoinHandle<()>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

impl Checks {
    pub(super) fn new(system: Arc<dyn System>, queue: Arc<Queue<Key>>) -> Self {
        Self { system, queue, running: Mutex::default() }
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the latest results.
    pub(crate) fn all(&self) -> BTreeMap<CheckedTarget, Health> {
        let health = |task: &Task| lock(&task.health).clone();
        self.running().tasks.iter().map(|(target, task)| (target.clone(), health(task))).collect()
    }

    /// Whether checks have run since this agent started.
    pub(crate) fn has_begun(&self) -> bool {
        self.running().has_begun
    }

    /// Runs exactly these checks from now on. A target counts as unhealthy until its check has succeeded, unless it is among
    /// `trusted`: a check that begins anew because this agent has started, or because its declaration has changed, interrupts nothing.
    pub(crate) fn ensure(&self, wanted: &BTreeMap<CheckedTarget, Check>, trusted: &[CheckedTarget]) {
        let mut running = self.running();
        running.has_begun = true;
        let before = running.tasks.len();
        running.tasks.retain(|target, _| wanted.contains_key(target));
        let mut has_changed = running.tasks.len() != before;
        for (target, check) in wanted {
            let former = running.tasks.get(target);
            if former.is_some_and(|task| task.check == *check) {
                continue;
            }
            let same_guest = former.filter(|task| task.check.place == check.place);
            let health = match same_guest {
                Some(task) => lock(&task.health).clone(),
                None if trusted.contains(target) => Ok(()),
                None => Err("not checked yet".to_owned()),
            };
            let health = Arc::new(Mutex::new(health));
            let handle = tokio::spawn(repeat(
                check.clone(),
                Ports { system: self.system.clone(), address: Some(check.place.clone()) },
                health.clone(),
                self.queue.clone(),
            ));
            running.tasks.insert(target.clone(), Task { check: check.clone(), health, handle });
            has_changed = true;
        }
        if has_changed {
            self.queue.add_after(Key::host(), REPORT_AFTER);
        }
    }
}

fn lock(health: &Mutex<Health>) -> MutexGuard<'_, Health> {
    health.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes attempts until the task is aborted.
async fn repeat(check: Check, ports: Ports, health: Arc<Mutex<Health>>, queue: Arc<Queue<Key>>) {
    let mut count = Count { is_healthy: lock(&health).is_ok(), in_a_row: 0 };
    loop {
        let next = Instant::now() + check.health_check.interval();
        let answer = attempt(&check, &ports).await;
        let is_healthy = count.add(answer.is_ok(), &check.health_check);
        let too_few = || Err("it has not succeeded often enough yet".to_owned());
        let latest = match answer {
            _ if is_healthy => Ok(()),
            Err(why) => Err(why),
            Ok(()) => too_few(),
        };
        let has_changed = {
            let mut health = lock(&health);
            let changed = *health != latest;
            *health = latest;
            changed
        };
        if has_changed {
            queue.add(Key::networks());
            queue.add_after(Key::host(), REPORT_AFTER);
        }
        sleep_until(next).await;
    }
}

async fn attempt(check: &Check, ports: &Ports) -> Health {
    let limit = check.health_check.timeout();
    let port = i64::from(check.port);
    let asked = async {
        match check.health_check.http_path() {
            Some(path) => ports.get(&HttpGet { port, path: path.to_owned() }).await,
            None => ports.connect(port).await.map(drop),
        }
    };
    timeout(limit, asked).await.unwrap_or_else(|_| Err(format!("no answer within {} s", limit.as_secs())))
}

/// The attempts in a row with the same result.
#[derive(Debug)]
struct Count {
    is_healthy: bool,
    in_a_row: i64,
}

impl Count {
    /// Counts an attempt; returns whether the target is healthy.
    fn add(&mut self, succeeded: bool, declared: &HealthCheck) -> bool {
        if succeeded == self.is_healthy {
            self.in_a_row = 0;
        } else {
            self.in_a_row += 1;
            let threshold = if succeeded { declared.healthy_threshold } else { declared.unhealthy_threshold };
            if self.in_a_row >= threshold {
                self.is_healthy = succeeded;
                self.in_a_row = 0;
            }
        }
        self.is_healthy
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use berth_engine::RuntimeClock;
    use berth_host::fake::FakeSystem;
    use jiff::Timestamp;
    use rand::{SeedableRng, rngs::StdRng};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// Returns the port of a guest that accepts connections, answers each with this, and leaves it open; and the number of its
    /// connections.
    async fn guest(answer: &'static str) -> (u16, Arc<AtomicUsize>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let accepted = Arc::new(AtomicUsize::new(0));
        let counter = accepted.clone();
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::Relaxed);
                // The other end may have closed.
                if !answer.is_empty() && stream.read(&mut [0; 4096]).await.unwrap_or(0) > 0 {
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
                open.push(stream);
            }
        });
        (port, accepted)
    }

    fn target(vm: &str) -> CheckedTarget {
        let public = Ipv4Addr::new(198, 51, 100, 1).into();
        CheckedTarget { public, port: 80, protocol: PortProtocol::Tcp, vm: vm.to_owned() }
    }

    fn check(port: u16, path: Option<&str>) -> Check {
        let health_check = HealthCheck {
            path: path.map(str::to_owned),
            interval: "1s".to_owned(),
            timeout: "1s".to_owned(),
            unhealthy_threshold: 1,
            ..HealthCheck::default()
        };
        let place = GuestAddress { bridge: "bth-1".to_owned(), address: Ipv4Addr::new(10, 0, 0, 2).into() };
        Check { place, port, health_check }
    }

    async fn until(fact: &str, holds: impl Fn() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < SOON, "{fact}: not within {SOON:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[tokio::test]
    async fn a_target_that_accepts_and_does_not_answer_is_unhealthy_after_its_time_and_delays_no_other() {
        let system = Arc::new(FakeSystem::new(Arc::new(RuntimeClock::starting_at(Timestamp::UNIX_EPOCH))));
        let queue = Arc::new(Queue::new(Duration::from_secs(1), StdRng::seed_from_u64(1)));
        let checks = Checks::new(system, queue);
        let (silent, tried) = guest("").await;
        let (answering, asked) = guest("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        let wanted = BTreeMap::from([
            (target("answers"), check(answering, Some("/"))),
            (target("connects"), check(silent, None)),
            (target("silent"), check(silent, Some("/"))),
        ]);
        // It was healthy before.
        checks.ensure(&wanted, &[target("silent")]);
        let health = |vm: &str| checks.all().remove(&target(vm)).expect("it is checked");
        until("the silent one is unhealthy", || health("silent").is_err()).await;
        assert_eq!(health("silent"), Err("no answer within 1 s".to_owned()));
        until("the others are healthy", || health("answers").is_ok() && health("connects").is_ok()).await;
        let seen = || (asked.load(Ordering::Relaxed), tried.load(Ordering::Relaxed));
        let before = seen();
        until("both are asked again", || seen().0 > before.0 + 1 && seen().1 > before.1 + 2).await;
        assert!(health("silent").is_err() && health("answers").is_ok() && health("connects").is_ok());
    }

    #[test]
    fn a_target_changes_its_state_after_so_many_attempts_in_a_row() {
        let declared = HealthCheck { healthy_threshold: 2, unhealthy_threshold: 3, ..HealthCheck::default() };
        let mut count = Count { is_healthy: false, in_a_row: 0 };
        let mut states = |answers: &[bool]| -> Vec<bool> {
            answers.iter().map(|answer| count.add(*answer, &declared)).collect()
        };
        assert_eq!(states(&[true, false, true, true]), [false, false, false, true]);
        assert_eq!(states(&[false, false, true, false, false, false]), [true, true, true, true, true, false]);
    }
}
