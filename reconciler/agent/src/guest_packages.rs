//! The package of the guest agent in the guests that run here: a task for each VM that declares what is done with it.
//!
//! ```text
//!   reconcile ──keep(plan)──▶ task: start the script in the guest ▸ read its result ▸ wait
//!       ▲                      │
//!       └──────── queue ◀──────┘
//! ```
//!
//! The guest's package manager stops or restarts the agent by which it is started: the script therefore runs outside of the
//! agent's service, and leaves its result in a file. A guest that does not answer, or not the truth, holds up itself only.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::vm::PackagePolicy;
use berth_api::{Reason, VM};
use berth_engine::{Clock, Queue};
use berth_qemu::guest_agent::{GuestAgentError, GuestCommand};
use berth_qemu::hypervisor::ProcessIdentity;
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::key::{Key, ObjectName};
use crate::machine::{GuestError, Machine};

const START: &str = include_str!("guest_packages/start.sh");
const CHANGE: &str = include_str!("guest_packages/change.sh");
/// Prints the result of the run with the identity $2, once there is one.
const RESULT: &str = r#"cat "/run/berth-guest-agent-$2""#;
/// The first argument of the scripts.
const NAME: &str = "berth-guest-agent";
/// The result of a guest without a package manager that the script knows.
const NO_PACKAGE_MANAGER: u8 = 64;

/// How often the package is upgraded while the guest runs.
const UPGRADE_EVERY: Duration = Duration::from_secs(24 * 3600);
/// The time until a change that has failed is tried again.
const RETRY_EVERY: Duration = Duration::from_secs(600);
/// How often a guest without an agent is looked at.
const CHECK_EVERY: Duration = Duration::from_secs(300);
/// A guest that has no agent for this long is not about to start one.
const BOOT_TIME: Duration = Duration::from_secs(60);
/// The time for the start of the script, for reading its result, between two reads, and for all of it.
const START_TIME: Duration = Duration::from_secs(60);
const READ_TIME: Duration = Duration::from_secs(10);
const READ_EVERY: Duration = Duration::from_secs(5);
const CHANGE_TIME: Duration = Duration::from_secs(1200);

/// The change of the agent's package in a running guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackagePlan {
    pub(crate) process: ProcessIdentity,
    pub(crate) policy: PackagePolicy,
    /// The last upgrade since the start of the process, as the VM's status has it.
    pub(crate) upgraded: Option<Timestamp>,
}

impl PackagePlan {
    fn is_for(&self, process: &ProcessIdentity, policy: PackagePolicy) -> bool {
        (&self.process, self.policy) == (process, policy)
    }
}

/// The package as it was last found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PackageFound {
    /// It was the newest of the guest's package sources at this time.
    Upgraded(Timestamp),
    /// The guest has no agent.
    Removed,
    Differs(PackageProblem),
}

/// The package of a VM's guest, and what follows from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedPackage {
    /// None: it is not known yet, or the guest does not run.
    pub(crate) found: Option<PackageFound>,
    /// The change that is wanted, if others are made first.
    pub(crate) watch: Option<Option<Box<PackagePlan>>>,
}

/// Why the package is not as declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PackageProblem {
    NoAgent,
    Refused(&'static str),
    /// The agent's answers cannot be used.
    Unusable,
    /// The script did not start in the guest.
    NotStarted,
    NoPackageManager,
    /// The package manager failed with this exit code.
    Failed(u8),
    /// There was no result in time.
    NoResult,
}

impl PackageProblem {
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::NoAgent => Reason::NoGuestAgent,
            Self::Refused(_) | Self::Unusable => Reason::GuestAgentRefused,
            Self::NotStarted | Self::NoPackageManager | Self::Failed(_) | Self::NoResult => {
                Reason::GuestPackageFailed
            }
        }
    }
}

impl fmt::Display for PackageProblem {
    /// The text has nothing that the guest wrote.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAgent => f.write_str("no guest agent has answered"),
            Self::Refused(command) => {
                write!(f, "the guest agent refused {command}: its configuration may forbid it")
            }
            Self::Unusable => f.write_str("the guest agent gave no usable answer"),
            Self::NotStarted => f.write_str("the guest could not start the script"),
            Self::NoPackageManager => f.write_str(
                "the guest has none of the package managers apt-get, dnf, yum, zypper, apk and pacman",
            ),
            Self::Failed(code) => write!(
                f,
                "the package manager in the guest failed with exit code {code}: \
                 /var/log/berth-guest-agent.log there has the cause"
            ),
            Self::NoResult => {
                write!(f, "the guest had no result within {} minutes", CHANGE_TIME.as_secs() / 60)
            }
        }
    }
}

impl From<GuestError> for PackageProblem {
    fn from(error: GuestError) -> Self {
        match error {
            GuestError::NoAgent | GuestError::Gone | GuestError::Busy => Self::NoAgent,
            GuestError::StillRuns { .. } => Self::NotStarted,
            GuestError::Agent(GuestAgentError::Refused { command, .. }) => Self::Refused(command),
            GuestError::Agent(GuestAgentError::Silent { .. } | GuestAgentError::Connect { .. }) => {
                Self::NoAgent
            }
            GuestError::Agent(_) => Self::Unusable,
        }
    }
}

/// The packages that are kept as declared.
#[derive(Debug)]
pub(crate) struct GuestPackages {
    queue: Arc<Queue<Key>>,
    clock: Arc<dyn Clock>,
    kept: Mutex<BTreeMap<ObjectName, Kept>>,
}

#[derive(Debug)]
struct Kept {
    plan: PackagePlan,
    machine: Machine,
    found: Arc<Mutex<Option<PackageFound>>>,
    task: JoinHandle<()>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl GuestPackages {
    pub(crate) fn new(queue: Arc<Queue<Key>>, clock: Arc<dyn Clock>) -> Self {
        Self { queue, clock, kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<ObjectName, Kept>> {
        lock(&self.kept)
    }

    /// Whether exactly this is done, on a machine that is connected.
    pub(crate) fn is_keeping(&self, vm: &ObjectName, plan: Option<&PackagePlan>) -> bool {
        match (self.kept().get(vm), plan) {
            (None, None) => true,
            (Some(has), Some(plan)) => {
                has.plan.is_for(&plan.process, plan.policy) && !has.machine.is_closed()
            }
            _ => false,
        }
    }

    /// Does exactly this with the package of a VM's guest from now on.
    pub(crate) fn keep(&self, vm: &ObjectName, plan: PackagePlan, machine: Machine) {
        let found = Arc::new(Mutex::new(None));
        let (queue, key, clock) = (self.queue.clone(), Key::new::<VM>(vm.clone()), self.clock.clone());
        let (guest, report, wanted) = (machine.clone(), found.clone(), plan.clone());
        let task = tokio::spawn(async move {
            let mut upgraded = wanted.upgraded;
            while !guest.is_closed() {
                let seen = guest.agent_starts();
                let latest = match wanted.policy {
                    PackagePolicy::Keep => return,
                    PackagePolicy::Upgrade => upgrade(&guest, &mut upgraded, clock.as_ref()).await,
                    PackagePolicy::Remove => remove(&guest, clock.now()).await,
                };
                let before = lock(&report).replace(latest.clone());
                if before.as_ref() != Some(&latest) {
                    queue.add(key.clone());
                }
                wait(&guest, seen, &latest, clock.now()).await;
            }
        });
        self.kept().insert(vm.clone(), Kept { plan, machine, found, task });
    }

    /// Leaves the package of a VM's guest as it is.
    pub(crate) fn forget(&self, vm: &ObjectName) {
        self.kept().remove(vm);
    }

    /// Returns the package as it was last found in this process; None before that, and if another policy is kept.
    pub(crate) fn found(
        &self,
        vm: &ObjectName,
        process: &ProcessIdentity,
        policy: PackagePolicy,
    ) -> Option<PackageFound> {
        let kept = self.kept();
        let kept = kept.get(vm).filter(|kept| kept.plan.is_for(process, policy))?;
        lock(&kept.found).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the package is to be looked at again. An upgrade restarts the agent, which is no cause for another one.
async fn wait(guest: &Machine, seen: u64, found: &PackageFound, now: Timestamp) {
    match found {
        PackageFound::Upgraded(time) => sleep(time_left(*time, now).unwrap_or(RETRY_EVERY)).await,
        PackageFound::Differs(problem) if *problem != PackageProblem::NoAgent => sleep(RETRY_EVERY).await,
        PackageFound::Differs(_) | PackageFound::Removed => {
            tokio::select! {
                () = guest.next_agent_start(seen) => {}
                () = sleep(CHECK_EVERY) => {}
            }
        }
    }
}

/// Returns the time until the next upgrade; None if it is due. A clock that was set back makes it due.
fn time_left(upgraded: Timestamp, now: Timestamp) -> Option<Duration> {
    let passed = Duration::try_from(now.duration_since(upgraded)).ok()?;
    UPGRADE_EVERY.checked_sub(passed).filter(|left| !left.is_zero())
}

/// Upgrades the package, unless it was upgraded lately.
async fn upgrade(guest: &Machine, last: &mut Option<Timestamp>, clock: &dyn Clock) -> PackageFound {
    let now = clock.now();
    if let Some(time) = last.filter(|time| time_left(*time, now).is_some()) {
        return PackageFound::Upgraded(time);
    }
    let run = identity(now);
    let outcome = match start(guest, "upgrade", &run).await {
        Ok(()) => result(guest, &run, false).await,
        Err(problem) => Err(problem),
    };
    match outcome {
        Ok(()) => {
            let now = clock.now();
            *last = Some(now);
            PackageFound::Upgraded(now)
        }
        Err(problem) => PackageFound::Differs(problem),
    }
}

/// Removes the package, unless the guest has no agent.
async fn remove(guest: &Machine, now: Timestamp) -> PackageFound {
    let seen = guest.agent_starts();
    if !guest.guest_listens().await {
        tokio::select! {
            () = guest.next_agent_start(seen) => {}
            () = sleep(BOOT_TIME) => {}
        }
        if !guest.guest_listens().await {
            return PackageFound::Removed;
        }
    }
    let run = identity(now);
    let outcome = match start(guest, "remove", &run).await {
        Err(problem @ (PackageProblem::Refused(_) | PackageProblem::NotStarted)) => Err(problem),
        // The agent may be gone before it has answered.
        Ok(()) | Err(_) => result(guest, &run, true).await,
    };
    match outcome {
        Ok(()) => PackageFound::Removed,
        Err(problem) => PackageFound::Differs(problem),
    }
}

/// Names a run of the script.
fn identity(now: Timestamp) -> String {
    now.as_millisecond().to_string()
}

fn shell(args: &[&str]) -> GuestCommand {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    GuestCommand { program: "/bin/sh".to_owned(), args, ..GuestCommand::default() }
}

async fn start(guest: &Machine, action: &str, run: &str) -> Result<(), PackageProblem> {
    let command = shell(&["-c", START, NAME, CHANGE, action, run]);
    let exit = guest.run_in_guest(command, START_TIME).await?;
    if exit.code == Some(0) { Ok(()) } else { Err(PackageProblem::NotStarted) }
}

/// Waits for the result of a run, or for the end of the agent if that is the aim.
async fn result(guest: &Machine, run: &str, removes: bool) -> Result<(), PackageProblem> {
    let end = Instant::now() + CHANGE_TIME;
    let mut absences = 0;
    while Instant::now() < end && !guest.is_closed() {
        sleep(READ_EVERY).await;
        let command = shell(&["-c", RESULT, NAME, "result", run]);
        match guest.run_in_guest(command, READ_TIME).await {
            Ok(exit) if exit.code == Some(0) => return outcome(&exit.stdout),
            Err(GuestError::NoAgent) => absences += 1,
            // There is no result yet, or the agent is being restarted.
            Ok(_) | Err(_) => absences = 0,
        }
        if removes && absences == 2 {
            return Ok(());
        }
    }
    Err(PackageProblem::NoResult)
}

/// Reads the exit code that the script has written.
fn outcome(stdout: &[u8]) -> Result<(), PackageProblem> {
    let start = &stdout[..stdout.len().min(8)];
    let code = std::str::from_utf8(start).ok().and_then(|text| text.trim().parse::<u8>().ok());
    match code {
        Some(0) => Ok(()),
        Some(NO_PACKAGE_MANAGER) => Err(PackageProblem::NoPackageManager),
        Some(code) => Err(PackageProblem::Failed(code)),
        None => Err(PackageProblem::Unusable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_an_exit_code_and_nothing_else_of_the_guest() {
        assert_eq!(outcome(b"0\n"), Ok(()));
        assert_eq!(outcome(b"64\n"), Err(PackageProblem::NoPackageManager));
        assert_eq!(outcome(b"100\n"), Err(PackageProblem::Failed(100)));
        for wrong in [&b""[..], b"-1\n", b"1000\n", b"0 canary", b"\xff", &[b'x'; 1 << 20]] {
            assert_eq!(outcome(wrong), Err(PackageProblem::Unusable), "{} bytes", wrong.len());
        }
    }

    #[test]
    fn dpkg_keeps_a_changed_configuration_file_without_a_question() {
        let (_, command) = CHANGE.split_once("apt-get -q update &&").expect("a command for Debian");
        let (options, _) = command.split_once("install --only-upgrade").expect("an upgrade");
        for option in ["--force-confdef", "--force-confold"] {
            assert!(options.contains(&format!("-o Dpkg::Options::={option} ")), "{options}");
        }
    }

    #[test]
    fn an_upgrade_is_due_after_a_day_and_after_a_clock_that_was_set_back() {
        let at = |second: i64| Timestamp::from_second(second).expect("a time");
        let day = 24 * 3600;
        assert_eq!(time_left(at(1000), at(1000)), Some(UPGRADE_EVERY));
        assert_eq!(time_left(at(1000), at(1000 + day - 1)), Some(Duration::from_secs(1)));
        assert_eq!(time_left(at(1000), at(1000 + day)), None);
        assert_eq!(time_left(at(1000), at(999)), None);
    }
}
