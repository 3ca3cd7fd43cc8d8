//! Thousands of VMs on simulated hosts: the time until all are bound and converged, the cost, and whether any of it grows with
//! the number of existing VMs.
//!
//! ```text
//! hosts ready ▸ a VM each ▸ 100 VMs on an empty site ▸ N VMs at once ▸ 100 more on a full one ▸ idle time
//!                          └─────────── cost of one VM, early and late: their ratio is the growth ┘
//! ```

mod client;
pub mod metrics;
pub mod security_groups;
mod seen;
mod stage;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::cache::Cache;
use crate::proc;
use crate::report::note;
use client::Plane;
use metrics::Counts;
pub use seen::Seen;
use seen::Watching;
use stage::Stage;

/// The number of VMs with which the cost of one is measured.
pub const PROBE: usize = 100;
/// The time limit of a burst.
const BURST: Duration = Duration::from_secs(900);
/// Resources that are written periodically, regardless of the number of VMs.
const HEARTBEATS: &[&str] = &["leases"];
/// The number of lists of all VMs from which the cost of one list is measured.
const LISTS: u32 = 5;
/// The time over which the idle load is measured before a burst beside which it is small.
const IDLE: Duration = Duration::from_secs(3);
/// The interval in which hosts renew their Leases, which is most of the idle load. Hosts that were started together do it together, so that
/// the load of a part of the interval is anything between none and half as much again.
const LEASES: Duration = Duration::from_secs(15);
/// The interval of the other requests that hosts repeat, and of bookmarks.
const REQUESTS: Duration = Duration::from_secs(60);
/// The number of hosts from which those are not small beside [`PROBE`] VMs.
const MANY_HOSTS: u16 = 200;
/// The interval in which the hosts' watches begin anew, and the time that it takes until those of all hosts have.
const WATCHES: Duration = Duration::from_secs(290);
const WATCHES_TAKE: Duration = Duration::from_secs(20);
/// The time limit until writes stop: hosts report the last VMs in Events and their own status some time after these have
/// converged.
const REST: Duration = Duration::from_secs(300);
const GLANCE: Duration = Duration::from_secs(5);
/// The time after which no host has a report left to write: a report of nothing but amounts waits up to 30 s.
const LAST_REPORTS: Duration = Duration::from_secs(40);
/// The number of writes per [`GLANCE`] that counts as idle, on few hosts: a host resyncs now and then.
const NOTHING: u64 = 5;
/// The number of hosts of which one may write in a [`GLANCE`].
const HOSTS_PER_WRITE: u64 = 50;

/// The size of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// The number of VMs created at once, each with a Disk. [`PROBE`] VMs are created before and after them.
    pub vms: usize,
    /// The number of simulated hosts.
    pub hosts: u16,
    /// The length of the idle time that is measured.
    pub steady: Duration,
}

/// The control plane that is measured.
#[derive(Debug)]
pub enum Measured<'a> {
    /// `berth up --no-agent`.
    Embedded {
        /// The program.
        berth: &'a Path,
    },
    /// kube-apiserver and etcd, with `berth controllers`.
    Kubernetes {
        /// The program.
        berth: &'a Path,
        /// The cache with kube-apiserver.
        cache: &'a Cache,
    },
}

impl Measured<'_> {
    fn berth(&self) -> &Path {
        match self {
            Self::Embedded { berth } | Self::Kubernetes { berth, .. } => berth,
        }
    }
}

/// The cost of VMs that were created together.
#[derive(Debug, Clone)]
pub struct Burst {
    /// The number of VMs.
    pub vms: usize,
    /// The time from the first request until the last response.
    pub created: Duration,
    /// The time from the first request until all were bound.
    pub bound: Duration,
    /// The time from the first request until all VMs and disks were ready.
    pub converged: Duration,
    /// The time from the first request until writes had stopped, in whole periods of the idle load.
    pub lasted: Duration,
    /// The processor time of control plane and controllers until writes stopped, without their idle load.
    pub cpu: Duration,
    /// The processor time of all simulated hosts.
    pub hosts_cpu: Duration,
    /// The API server's counts.
    pub counts: Counts,
}

impl Burst {
    /// Objects written per VM, including its Disk and its events.
    pub fn writes_per_vm(&self) -> f64 {
        let writes = self.counts.writes.saturating_sub(self.counts.writes_of(HEARTBEATS));
        ratio(writes, self.vms)
    }

    /// Writes of Host objects.
    pub fn host_writes(&self) -> u64 {
        self.counts.writes_of(&["hosts", "hosts/status"])
    }

    /// The writes per VM by verb and resource, one a line, without heartbeats.
    pub fn table(&self) -> String {
        let writes = self.counts.requests.iter().filter(|((verb, resource), _)| {
            metrics::is_write(verb) && !HEARTBEATS.contains(&resource.as_str())
        });
        let rows: Vec<String> = writes
            .map(|((verb, resource), count)| format!("{:9.2} {verb:7} {resource}", ratio(*count, self.vms)))
            .collect();
        rows.join("\n")
    }

    /// Milliseconds of processor time per VM.
    pub fn cpu_per_vm(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e3 / self.vms as f64
    }

    /// Milliseconds of processor time of the simulated hosts per VM.
    pub fn hosts_cpu_per_vm(&self) -> f64 {
        self.hosts_cpu.as_secs_f64() * 1e3 / self.vms as f64
    }
}

fn ratio(a: u64, b: usize) -> f64 {
    a as f64 / b as f64
}

/// The time that is left until a multiple of a period has passed.
fn until_whole(passed: Duration, period: Duration) -> Duration {
    let whole = passed.as_secs() / period.as_secs() + 1;
    Duration::from_secs(whole * period.as_secs()).saturating_sub(passed)
}

/// The time that is left until watches neither begin anew nor do so before this time has passed, so long after the hosts were started.
fn until_quiet(passed: Duration, needed: Duration) -> Duration {
    let since = Duration::from_secs(passed.as_secs() % WATCHES.as_secs());
    if since < WATCHES_TAKE {
        WATCHES_TAKE - since
    } else if since + needed > WATCHES {
        WATCHES + WATCHES_TAKE - since
    } else {
        Duration::ZERO
    }
}

/// The cost of one VM in a list for control plane and client.
#[derive(Debug, Clone, Copy)]
pub struct ListCost {
    /// The number of VMs listed.
    pub vms: usize,
    /// The processor time of the control plane for one list.
    pub cpu: Duration,
    /// The time of one list.
    pub took: Duration,
}

impl ListCost {
    /// Microseconds of processor time per VM.
    pub fn per_vm(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.vms as f64
    }
}

/// A time without requests.
#[derive(Debug, Clone)]
pub struct Steady {
    /// The length.
    pub lasted: Duration,
    /// The processor time of control plane and controllers.
    pub cpu: Duration,
    /// The writes in that time.
    pub counts: Counts,
    /// The memory of control plane and controllers, in MiB.
    pub memory: f64,
    /// The peak memory of control plane and controllers, in MiB.
    pub peak_memory: f64,
    /// The memory of all simulated hosts, in MiB.
    pub hosts_memory: f64,
}

impl Steady {
    /// The percentage of one core.
    pub fn core_percent(&self) -> f64 {
        self.cpu.as_secs_f64() / self.lasted.as_secs_f64() * 100.0
    }

    /// Writes other than heartbeats.
    pub fn idle_writes(&self) -> u64 {
        self.counts.writes.saturating_sub(self.counts.writes_of(HEARTBEATS))
    }
}

/// All results.
#[derive(Debug, Clone)]
pub struct Findings {
    /// The requested size.
    pub size: Size,
    /// The [`PROBE`] VMs on an empty site.
    pub early: Burst,
    /// All VMs at once.
    pub burst: Burst,
    /// The [`PROBE`] VMs created last.
    pub late: Burst,
    /// A list of the early VMs.
    pub short_list: ListCost,
    /// A list of all VMs.
    pub long_list: ListCost,
    /// Afterwards.
    pub steady: Steady,
    /// The placement of the VMs.
    pub seen: Seen,
}

impl Findings {
    /// The number of all VMs of the run.
    pub fn vms(&self) -> usize {
        usize::from(self.size.hosts) + self.early.vms + self.burst.vms + self.late.vms
    }

    /// The growth of the cost of one VM (create, schedule, reconcile) when there are many.
    pub fn growth(&self) -> f64 {
        self.late.cpu_per_vm() / self.early.cpu_per_vm()
    }

    /// The growth of the cost of one VM in a list when there are many.
    pub fn list_growth(&self) -> f64 {
        self.long_list.per_vm() / self.short_list.per_vm()
    }
}

/// Runs the measurement. Logs go to `logs`.
pub fn run(size: Size, measured: &Measured<'_>, logs: &Path) -> Result<Findings> {
    let begun = Instant::now();
    let (stage, plane) = Stage::start(measured, size.hosts, logs, None)?;
    note(&format!("  {} simulated hosts are ready after {:.1?}", size.hosts, begun.elapsed()));
    plane.create_shared()?;
    let watching = Watching::start(&plane);
    let idle_writes = NOTHING + u64::from(size.hosts) / HOSTS_PER_WRITE;
    let period = if size.hosts < MANY_HOSTS { LEASES } else { REQUESTS };
    let mut site = Site { watching, plane, stage, idle_writes, begun, period, vms: 0 };
    // One-time work (the image is verified) is not part of a VM's cost.
    site.burst("first", usize::from(size.hosts), IDLE)?;
    let early = site.probe("early")?;
    let short_list = site.list(LISTS * 20)?;
    let burst = site.burst("vm", size.vms, IDLE)?;
    note(&format!("  {} VMs are converged after {:.1?}", size.vms, burst.converged));
    let late = site.probe("late")?;
    let long_list = site.list(LISTS)?;
    std::thread::sleep(LAST_REPORTS);
    let steady = site.steady(size.steady)?;
    let seen = site.watching.seen();
    Ok(Findings { size, early, burst, late, short_list, long_list, steady, seen })
}

struct Site {
    watching: Watching,
    plane: Plane,
    stage: Stage,
    /// The number of writes per [`GLANCE`] that counts as idle.
    idle_writes: u64,
    /// When the hosts were started.
    begun: Instant,
    /// The period of the idle load.
    period: Duration,
    vms: usize,
}

impl Site {
    /// Measures the cost of [`PROBE`] VMs over whole periods of the idle load, which is larger than it.
    fn probe(&mut self, prefix: &str) -> Result<Burst> {
        std::thread::sleep(until_quiet(self.begun.elapsed(), 3 * self.period));
        self.burst(prefix, PROBE, self.period)
    }

    /// Creates VMs at once and waits until they have converged. `period`: that over which the idle load is measured.
    fn burst(&mut self, prefix: &str, count: usize, period: Duration) -> Result<Burst> {
        let idle = self.idle(period)?;
        let names: Vec<String> = (0..count).map(|number| format!("{prefix}-{number:05}")).collect();
        let before = (self.plane.counts()?, self.stage.cpu()?, proc::cpu(self.stage.hosts())?);
        let begun = Instant::now();
        let all = self.vms + count;
        let plane = &self.plane;
        let (created, followed) = std::thread::scope(|scope| {
            let creator = scope.spawn(|| plane.create_vms(&names, &[]).map(|()| begun.elapsed()));
            let followed = self.follow(all, begun);
            (creator.join().map_err(|_| anyhow!("the creator panicked")), followed)
        });
        // The error of the creation is more useful than that of the wait.
        let created = created?.with_context(|| format!("creating {count} VMs at once"))?;
        let (bound, converged) = followed.with_context(|| format!("{count} VMs at once"))?;
        self.vms = all;
        self.rest()?;
        std::thread::sleep(until_whole(begun.elapsed(), period));
        let took = begun.elapsed();
        Ok(Burst {
            vms: count,
            created,
            bound,
            converged,
            lasted: took,
            cpu: self.stage.cpu()?.saturating_sub(before.1).saturating_sub(took.mul_f64(idle)),
            hosts_cpu: proc::cpu(self.stage.hosts())?.saturating_sub(before.2),
            counts: self.plane.counts()?.since(&before.0),
        })
    }

    /// Waits until writes stop.
    fn rest(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            self.stage.must_run()?;
            let before = self.plane.counts()?;
            std::thread::sleep(GLANCE);
            let written = self.plane.counts()?.since(&before);
            let written = written.writes.saturating_sub(written.writes_of(HEARTBEATS));
            if written <= self.idle_writes {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < REST,
                "{written} writes in {GLANCE:?}, {REST:?} after all VMs had converged"
            );
        }
    }

    fn follow(&self, all: usize, begun: Instant) -> Result<(Duration, Duration)> {
        let is_bound = |seen: &Seen| seen.bound.len() == all;
        let bound = self.watching.until("all VMs to be bound", BURST, is_bound)?;
        let is_ready = |seen: &Seen| seen.vms.len() == all && seen.disks.len() == all;
        let converged = self.watching.until("all VMs to be ready", BURST, is_ready)?;
        Ok((bound - begun, converged - begun))
    }

    /// The share of a core that control plane and controllers use when idle.
    fn idle(&self, length: Duration) -> Result<f64> {
        let (begun, before) = (Instant::now(), self.stage.cpu()?);
        std::thread::sleep(length);
        Ok(self.stage.cpu()?.saturating_sub(before).as_secs_f64() / begun.elapsed().as_secs_f64())
    }

    fn list(&self, times: u32) -> Result<ListCost> {
        let before = self.stage.cpu()?;
        let took = self.plane.list_vms(self.vms, times)?;
        Ok(ListCost { vms: self.vms, cpu: self.stage.cpu()?.saturating_sub(before) / times, took })
    }

    fn steady(&self, length: Duration) -> Result<Steady> {
        let (begun, cpu, counts) = (Instant::now(), self.stage.cpu()?, self.plane.counts()?);
        std::thread::sleep(length);
        Ok(Steady {
            lasted: begun.elapsed(),
            cpu: self.stage.cpu()?.saturating_sub(cpu),
            counts: self.plane.counts()?.since(&counts),
            memory: self.stage.memory()?,
            peak_memory: self.stage.peak_memory()?,
            hosts_memory: proc::memory(self.stage.hosts())?.rss,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_measured_over_whole_periods_in_which_no_watches_begin_anew() {
        let seconds = Duration::from_secs;
        assert_eq!(until_whole(Duration::from_millis(12_500), LEASES), Duration::from_millis(2_500));
        assert_eq!(until_whole(seconds(44), LEASES), seconds(1));
        assert_eq!(until_whole(REQUESTS, REQUESTS), REQUESTS);
        assert_eq!(until_quiet(seconds(5), seconds(180)), seconds(15));
        assert_eq!(until_quiet(seconds(100), seconds(180)), Duration::ZERO);
        assert_eq!(until_quiet(seconds(200), seconds(180)), seconds(110));
        assert_eq!(until_quiet(seconds(580 + 20), seconds(180)), Duration::ZERO);
    }
}
