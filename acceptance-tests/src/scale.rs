//! Thousands of VMs on simulated hosts: how long until all are bound and converged, what that takes, and whether any
//! of it grows with how many there are already.
//!
//! ```text
//! hosts ready ▸ a VM each ▸ 100 VMs on an empty site ▸ N VMs at once ▸ 100 more on a full one ▸ nothing, for a while
//!                          └─────────── cost of one VM, early and late: their ratio is the growth ┘
//! ```

mod client;
pub mod metrics;
mod seen;
mod stage;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::measure::proc;
use crate::report::note;
use client::Plane;
use metrics::Counts;
pub use seen::Seen;
use seen::Watching;
use stage::Stage;

/// How many VMs the cost of one is measured with.
pub const PROBE: usize = 100;
/// No burst may take longer.
const BURST: Duration = Duration::from_secs(900);
/// Written of its own accord, however many VMs there are.
const HEARTBEATS: &[&str] = &["leases"];
/// Times all VMs are listed to measure one list.
const LISTS: u32 = 5;
/// How long it is watched what happens when nobody asks for anything, before each burst.
const IDLE: Duration = Duration::from_secs(3);
/// Hosts tell of the last VMs in Events and their own status a while after these have converged: until it stops.
const REST: Duration = Duration::from_secs(300);
const GLANCE: Duration = Duration::from_secs(5);
/// As many writes in [`GLANCE`] are nothing: a host looks itself over now and then.
const NOTHING: u64 = 5;

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// VMs created at once, each with a Disk. [`PROBE`] come before and after them.
    pub vms: usize,
    /// Simulated hosts.
    pub hosts: u16,
    /// How long nothing is done, to see what that costs.
    pub steady: Duration,
}

/// What VMs that were created together took.
#[derive(Debug, Clone)]
pub struct Burst {
    /// How many.
    pub vms: usize,
    /// From the first request until the last was answered.
    pub created: Duration,
    /// From the first request until all were bound.
    pub bound: Duration,
    /// From the first request until all were ready, and their disks.
    pub converged: Duration,
    /// Processor time of control plane and controllers until nothing was written any more, without what they take when
    /// nothing happens.
    pub cpu: Duration,
    /// Processor time of all simulated hosts.
    pub hosts_cpu: Duration,
    /// What the API server did.
    pub counts: Counts,
}

impl Burst {
    /// Objects written for each VM, its Disk and its events included.
    pub fn writes_per_vm(&self) -> f64 {
        let writes = self.counts.writes.saturating_sub(self.counts.writes_of(HEARTBEATS));
        ratio(writes, self.vms)
    }

    /// Writes of Host objects.
    pub fn host_writes(&self) -> u64 {
        self.counts.writes_of(&["hosts", "hosts/status"])
    }

    /// Milliseconds of processor time for each VM.
    pub fn cpu_per_vm(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e3 / self.vms as f64
    }
}

fn ratio(a: u64, b: usize) -> f64 {
    a as f64 / b as f64
}

/// What one VM of a list costs control plane and client.
#[derive(Debug, Clone, Copy)]
pub struct ListCost {
    /// VMs listed.
    pub vms: usize,
    /// Processor time of the control plane for one list.
    pub cpu: Duration,
    /// Time one list takes.
    pub took: Duration,
}

impl ListCost {
    /// Microseconds of processor time for each VM.
    pub fn per_vm(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.vms as f64
    }
}

/// A while in which nobody asks for anything.
#[derive(Debug, Clone)]
pub struct Steady {
    /// Its length.
    pub lasted: Duration,
    /// Processor time of control plane and controllers.
    pub cpu: Duration,
    /// What was written all the same.
    pub counts: Counts,
    /// Their memory, in MiB.
    pub memory: f64,
    /// The most they ever had, in MiB.
    pub peak_memory: f64,
    /// The memory of all simulated hosts, in MiB.
    pub hosts_memory: f64,
}

impl Steady {
    /// Percent of one core.
    pub fn core_percent(&self) -> f64 {
        self.cpu.as_secs_f64() / self.lasted.as_secs_f64() * 100.0
    }

    /// Writes that are no sign of life.
    pub fn idle_writes(&self) -> u64 {
        self.counts.writes.saturating_sub(self.counts.writes_of(HEARTBEATS))
    }
}

/// Everything that was measured.
#[derive(Debug, Clone)]
pub struct Findings {
    /// What was asked for.
    pub size: Size,
    /// [`PROBE`] VMs on an empty site.
    pub early: Burst,
    /// All VMs at once.
    pub burst: Burst,
    /// [`PROBE`] VMs more.
    pub late: Burst,
    /// A list of the early VMs.
    pub short_list: ListCost,
    /// A list of all VMs.
    pub long_list: ListCost,
    /// Afterwards.
    pub steady: Steady,
    /// Where the VMs are.
    pub seen: Seen,
}

impl Findings {
    /// All VMs of the run.
    pub fn vms(&self) -> usize {
        usize::from(self.size.hosts) + self.early.vms + self.burst.vms + self.late.vms
    }

    /// How much more one VM costs (create, schedule, reconcile) when there are many.
    pub fn growth(&self) -> f64 {
        self.late.cpu_per_vm() / self.early.cpu_per_vm()
    }

    /// How much more one VM of a list costs when there are many.
    pub fn list_growth(&self) -> f64 {
        self.long_list.per_vm() / self.short_list.per_vm()
    }
}

/// Measures. `berth` is the program; logs go to `logs`.
pub fn run(size: Size, berth: &Path, logs: &Path) -> Result<Findings> {
    let begun = Instant::now();
    let (stage, plane) = Stage::start(berth, size.hosts, logs)?;
    note(&format!("  {} simulated hosts are ready after {:.1?}", size.hosts, begun.elapsed()));
    plane.create_shared()?;
    let watching = Watching::start(&plane);
    let mut site = Site { watching, plane, stage, vms: 0 };
    // What happens once (the image is verified) is not a VM's cost.
    site.burst("first", usize::from(size.hosts))?;
    let early = site.burst("early", PROBE)?;
    let short_list = site.list(LISTS * 20)?;
    let burst = site.burst("vm", size.vms)?;
    note(&format!("  {} VMs are converged after {:.1?}", size.vms, burst.converged));
    let late = site.burst("late", PROBE)?;
    let long_list = site.list(LISTS)?;
    let steady = site.steady(size.steady)?;
    let seen = site.watching.seen();
    Ok(Findings { size, early, burst, late, short_list, long_list, steady, seen })
}

struct Site {
    watching: Watching,
    plane: Plane,
    stage: Stage,
    vms: usize,
}

impl Site {
    /// Creates VMs at once and waits until they have converged.
    fn burst(&mut self, prefix: &str, count: usize) -> Result<Burst> {
        let idle = self.idle()?;
        let names: Vec<String> = (0..count).map(|number| format!("{prefix}-{number:05}")).collect();
        let (up, hosts) = (self.stage.up(), self.stage.hosts());
        let before = (self.plane.counts()?, proc::cpu(up)?, proc::cpu(hosts)?);
        let begun = Instant::now();
        let all = self.vms + count;
        let plane = &self.plane;
        let (created, followed) = std::thread::scope(|scope| {
            let creator = scope.spawn(|| plane.create_vms(&names).map(|()| begun.elapsed()));
            let followed = self.follow(all, begun);
            (creator.join().map_err(|_| anyhow!("the creator panicked")), followed)
        });
        // Why they were not created tells more than that they were not seen.
        let created = created?.with_context(|| format!("creating {count} VMs at once"))?;
        let (bound, converged) = followed.with_context(|| format!("{count} VMs at once"))?;
        self.vms = all;
        self.rest()?;
        let took = begun.elapsed();
        Ok(Burst {
            vms: count,
            created,
            bound,
            converged,
            cpu: proc::cpu(up)?.saturating_sub(before.1).saturating_sub(took.mul_f64(idle)),
            hosts_cpu: proc::cpu(hosts)?.saturating_sub(before.2),
            counts: self.plane.counts()?.since(&before.0),
        })
    }

    /// Waits until nothing is written any more.
    fn rest(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            self.stage.must_run()?;
            let before = self.plane.counts()?;
            std::thread::sleep(GLANCE);
            let written = self.plane.counts()?.since(&before);
            let written = written.writes.saturating_sub(written.writes_of(HEARTBEATS));
            if written <= NOTHING {
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

    /// The share of a core that control plane and controllers take when nobody asks for anything.
    fn idle(&self) -> Result<f64> {
        let (begun, before) = (Instant::now(), proc::cpu(self.stage.up())?);
        std::thread::sleep(IDLE);
        Ok(proc::cpu(self.stage.up())?.saturating_sub(before).as_secs_f64() / begun.elapsed().as_secs_f64())
    }

    fn list(&self, times: u32) -> Result<ListCost> {
        let before = proc::cpu(self.stage.up())?;
        let took = self.plane.list_vms(self.vms, times)?;
        Ok(ListCost { vms: self.vms, cpu: proc::cpu(self.stage.up())?.saturating_sub(before) / times, took })
    }

    fn steady(&self, length: Duration) -> Result<Steady> {
        let up = self.stage.up();
        let (begun, cpu, counts) = (Instant::now(), proc::cpu(up)?, self.plane.counts()?);
        std::thread::sleep(length);
        Ok(Steady {
            lasted: begun.elapsed(),
            cpu: proc::cpu(up)?.saturating_sub(cpu),
            counts: self.plane.counts()?.since(&counts),
            memory: proc::memory(up)?.rss,
            peak_memory: proc::peak(up)?,
            hosts_memory: proc::memory(self.stage.hosts())?.rss,
        })
    }
}
