//! Calls of guests at their start and before a stop: a task for each that runs.
//!
//! A call belongs to one process of one VM and to one cause, and is made once for it. An agent that restarts makes a
//! call again that had not ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::{Hook, HookFailurePolicy, VM};
use berth_engine::Queue;
use berth_host::System;
use berth_qemu::hypervisor::ProcessIdentity;
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::key::{Key, ObjectName};
use crate::machine::Machine;
use crate::probes::{Asker, GuestAddress, Outcome, Ports};

/// The time between two attempts to reach a guest that boots.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The cause of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HookCause {
    PostStart,
    /// A stop that was begun at this time.
    PreStop(Timestamp),
}

/// A call of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HookCall {
    pub(crate) process: ProcessIdentity,
    pub(crate) cause: HookCause,
    pub(crate) hook: Hook,
    pub(crate) address: Option<GuestAddress>,
    /// The time that it has.
    pub(crate) time: Duration,
}

/// A hook that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DueHook {
    Call(Box<DueCall>),
    Snapshot(DueSnapshot),
}

/// A call that is to be made, runs, or has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DueCall {
    pub(crate) call: HookCall,
    pub(crate) progress: HookProgress,
}

/// A snapshot of the VM that is to be taken before the guest is asked to shut down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DueSnapshot {
    pub(crate) name: String,
    /// When the stop began.
    pub(crate) since: Timestamp,
    pub(crate) is_taken: bool,
    /// Why it is not taken, as one of its parts reports it, and whether that needs a person.
    pub(crate) obstacle: Option<(String, bool)>,
    /// The time that it has, and what is left of it.
    pub(crate) time: Duration,
    pub(crate) left: Duration,
    pub(crate) policy: HookFailurePolicy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HookProgress {
    Due,
    Running,
    Ended(Outcome),
}

/// The calls that run or have ended; one for each VM.
#[derive(Debug)]
pub(crate) struct HookCalls {
    system: Arc<dyn System>,
    queue: Arc<Queue<Key>>,
    calls: Mutex<BTreeMap<ObjectName, Begun>>,
}

#[derive(Debug)]
struct Begun {
    process: ProcessIdentity,
    cause: HookCause,
    outcome: Arc<Mutex<Option<Outcome>>>,
    task: JoinHandle<()>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HookCalls {
    pub(crate) fn new(system: Arc<dyn System>, queue: Arc<Queue<Key>>) -> Self {
        Self { system, queue, calls: Mutex::default() }
    }

    fn calls(&self) -> MutexGuard<'_, BTreeMap<ObjectName, Begun>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the progress of the call of this process for this cause.
    pub(crate) fn progress(&self, vm: &ObjectName, call: &HookCall) -> HookProgress {
        let calls = self.calls();
        let of_call =
            calls.get(vm).filter(|begun| begun.process == call.process && begun.cause == call.cause);
        let Some(begun) = of_call else { return HookProgress::Due };
        let outcome = begun.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone();
        outcome.map_or(HookProgress::Running, HookProgress::Ended)
    }

    /// Ends the call of a VM that no cause is left for.
    pub(crate) fn forget(&self, vm: &ObjectName) {
        self.calls().remove(vm);
    }

    /// Begins a call, in the place of an earlier one.
    pub(crate) fn start(&self, vm: &ObjectName, call: HookCall, machine: Machine) {
        let outcome = Arc::new(Mutex::new(None));
        let HookCall { process, cause, .. } = call.clone();
        let ports = Ports { system: self.system.clone(), address: call.address.clone() };
        let (queue, key, result) = (self.queue.clone(), Key::new::<VM>(vm.clone()), outcome.clone());
        let task = tokio::spawn(async move {
            let ended = match make(&call, ports, machine).await {
                Ok(()) => Outcome::Success,
                Err(why) => Outcome::Failure(why),
            };
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
            queue.add(key);
        });
        self.calls().insert(vm.clone(), Begun { process, cause, outcome, task });
    }
}

/// Makes one call. A guest that has just started is waited for until it can be reached.
async fn make(call: &HookCall, ports: Ports, machine: Machine) -> Result<(), String> {
    let end = Instant::now() + call.time;
    let question = call.hook.question().ok_or("the hook has no call")?;
    let is_new = call.cause == HookCause::PostStart;
    let mut asker = Asker::new(ports.clone(), machine.clone());
    let mut last = format!("no answer within {} s", call.time.as_secs());
    let calls = async {
        loop {
            let is_up = machine.guest().agent || call.hook.exec.is_none();
            if !is_new || is_up {
                // The program is not waited for longer than the whole call.
                match asker.ask(question, call.time).await {
                    Err(why) if is_new && call.hook.exec.is_none() => last = why,
                    ended => return ended,
                }
            } else {
                last = "no guest agent runs in the VM: install and start qemu-guest-agent in it".to_owned();
            }
            sleep(TRY_AGAIN).await;
        }
    };
    match timeout_at(end, calls).await {
        Ok(ended) => ended,
        Err(_) => Err(last),
    }
}
