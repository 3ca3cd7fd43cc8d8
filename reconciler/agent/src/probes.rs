//! The probes of the guests that run here: a task for each VM that declares some.
//!
//! ```text
//!   reconcile ──watch(plan)──▶ task: attempt, wait, attempt …
//!       ▲                        │ the result changes
//!       └──────── queue ◀────────┘
//! ```
//!
//! A result belongs to one process of one VM. Tasks are not waited for: a guest that does not answer holds up its own
//! results only.

mod attempt;
mod count;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::VM;
use berth_api::probe::Probe;
use berth_engine::Queue;
use berth_host::System;
use berth_qemu::hypervisor::ProcessIdentity;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::key::{Key, ObjectName};
use crate::machine::Machine;
pub(crate) use attempt::{Asker, GuestAddress, Ports};
use count::Count;
pub(crate) use count::Outcome;

/// The probes of a running guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbePlan {
    pub(crate) process: ProcessIdentity,
    pub(crate) address: Option<GuestAddress>,
    pub(crate) readiness: Option<Box<Probe>>,
    pub(crate) liveness: Option<Box<Probe>>,
}

/// The results of the probes of a VM; None before the first one, and without a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProbeResults {
    pub(crate) readiness: Option<Outcome>,
    pub(crate) liveness: Option<Outcome>,
}

/// The probes that run.
#[derive(Debug)]
pub(crate) struct Probes {
    system: Arc<dyn System>,
    queue: Arc<Queue<Key>>,
    watched: Mutex<BTreeMap<ObjectName, Watched>>,
}

#[derive(Debug)]
struct Watched {
    plan: ProbePlan,
    machine: Machine,
    results: Arc<Mutex<ProbeResults>>,
    task: JoinHandle<()>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Probes {
    pub(crate) fn new(system: Arc<dyn System>, queue: Arc<Queue<Key>>) -> Self {
        Self { system, queue, watched: Mutex::default() }
    }

    fn watched(&self) -> MutexGuard<'_, BTreeMap<ObjectName, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether exactly these probes run, on a machine that is connected.
    pub(crate) fn is_watching(&self, vm: &ObjectName, plan: Option<&ProbePlan>) -> bool {
        let watched = self.watched();
        match (watched.get(vm), plan) {
            (None, None) => true,
            (Some(has), Some(plan)) => has.plan == *plan && !has.machine.is_closed(),
            _ => false,
        }
    }

    /// Runs exactly these probes of a VM from now on.
    pub(crate) fn watch(&self, vm: &ObjectName, plan: ProbePlan, machine: Machine) {
        let results = Arc::new(Mutex::new(ProbeResults::default()));
        let ports = Ports { system: self.system.clone(), address: plan.address.clone() };
        let of_guest = machine.clone();
        let reporter = Reporter { results: results.clone(), queue: self.queue.clone(), vm: vm.clone() };
        let (readiness, liveness) = (plan.readiness.clone(), plan.liveness.clone());
        let task = tokio::spawn(async move {
            let asker = || Asker::new(ports.clone(), of_guest.clone());
            let ready = repeat(readiness, &of_guest, asker(), |outcome| {
                reporter.set(|results| &mut results.readiness, outcome);
            });
            let live = repeat(liveness, &of_guest, asker(), |outcome| {
                reporter.set(|results| &mut results.liveness, outcome);
            });
            tokio::join!(ready, live);
        });
        self.watched().insert(vm.clone(), Watched { plan, machine, results, task });
    }

    /// Ends the probes of a VM.
    pub(crate) fn forget(&self, vm: &ObjectName) {
        self.watched().remove(vm);
    }

    /// Returns the results of the probes of this process; without that of another liveness probe than this one.
    pub(crate) fn results(
        &self,
        vm: &ObjectName,
        process: &ProcessIdentity,
        liveness: Option<&Probe>,
    ) -> ProbeResults {
        let watched = self.watched();
        let of_process = watched.get(vm).filter(|watched| watched.plan.process == *process);
        let Some(watched) = of_process else { return ProbeResults::default() };
        let mut results = lock(&watched.results).clone();
        if watched.plan.liveness.as_deref() != liveness {
            results.liveness = None;
        }
        results
    }
}

fn lock(results: &Mutex<ProbeResults>) -> MutexGuard<'_, ProbeResults> {
    results.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stores the results of a VM's probes, and enqueues the VM when one changes.
struct Reporter {
    results: Arc<Mutex<ProbeResults>>,
    queue: Arc<Queue<Key>>,
    vm: ObjectName,
}

impl Reporter {
    fn set(&self, of: impl Fn(&mut ProbeResults) -> &mut Option<Outcome>, outcome: Outcome) {
        *of(&mut lock(&self.results)) = Some(outcome);
        self.queue.add(Key::new::<VM>(self.vm.clone()));
    }
}

/// Makes attempts for as long as it is polled. `report` gets each result that differs from the one before.
async fn repeat(probe: Option<Box<Probe>>, guest: &Machine, mut asker: Asker, report: impl Fn(Outcome)) {
    let Some((probe, question)) = probe.as_ref().and_then(|probe| Some((probe, probe.question()?))) else {
        return;
    };
    let delay = seconds(probe.initial_delay_seconds);
    let mut count = Count::new(probe);
    let mut boot = guest.booted_at();
    sleep_until(boot + delay).await;
    loop {
        let next = Instant::now() + seconds(probe.period_seconds);
        let ended_freezes = guest.ended_freezes();
        let answer = asker.ask(question, seconds(probe.timeout_seconds)).await;
        let latest = guest.booted_at();
        if latest == boot {
            // A guest whose file systems are frozen for a snapshot may not answer, which is no failure of it.
            let is_excused = answer.is_err() && guest.was_frozen_since(ended_freezes);
            if !is_excused && let Some(outcome) = count.add(answer) {
                report(outcome);
            }
            sleep_until(next).await;
        } else {
            // The guest has rebooted meanwhile.
            boot = latest;
            count.start_again();
            sleep_until(boot + delay).await;
            // A guest that reboots without end is not asked without end.
            sleep(Duration::from_secs(1)).await;
        }
    }
}

fn seconds(number: i64) -> Duration {
    Duration::from_secs(u64::try_from(number).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use berth_engine::RuntimeClock;
    use berth_host::fake::FakeSystem;
    use jiff::Timestamp;
    use serde_json::json;
    use tokio::time::timeout;

    use super::*;

    const LOOK: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_is_frozen_for_a_snapshot_fails_no_probe() {
        let probe = json!({"tcpSocket": {"port": 1}, "periodSeconds": 1, "failureThreshold": 2});
        let probe: Probe = serde_json::from_value(probe).expect("a probe");
        let system = FakeSystem::new(Arc::new(RuntimeClock::starting_at(Timestamp::UNIX_EPOCH)));
        let machine = Machine::unconnected();
        // No attempt reaches a guest without an address.
        let asker = Asker::new(Ports { system: Arc::new(system), address: None }, machine.clone());
        let reported = RefCell::new(Vec::new());
        let report = |outcome: Outcome| reported.borrow_mut().push(outcome);
        let mut repeated = std::pin::pin!(repeat(Some(Box::new(probe)), &machine, asker, report));
        let freezing = machine.freezing();
        assert!(timeout(LOOK, &mut repeated).await.is_err(), "it is repeated without end");
        assert!(reported.borrow().is_empty());
        drop(freezing);
        assert!(timeout(LOOK, &mut repeated).await.is_err(), "it is repeated without end");
        assert!(matches!(reported.borrow().as_slice(), [Outcome::Failure(_)]));
    }
}
