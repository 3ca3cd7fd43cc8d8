//! A cgroup for each machine, v1 or v2, where the host permits it.
//!
//! Three purposes: limits; the distribution of CPU time, of which a machine that is being started gets more than a
//! running one, and one that has just started gets less, so that a hundred machines started at once do not wait for
//! each other's guests; and leaving the caller's cgroup, which a service manager would terminate as a whole. Everything
//! here is best effort: a host without (writable) cgroups still runs machines, and [`shared_unit`] shows what that means.
//!
//! systemd is the only writer of its part of the tree, and of the root. It delegates a part to a unit on demand: if the unit
//! [`UNIT`] runs, machines are in its cgroup, and berth writes nowhere else. systemd removes the cgroup of a unit without a process, so
//! that the unit has one, which does nothing. Without the unit, as on a host without systemd, machines are in a directory of berth's at
//! the root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{ProcessError, identity, oom};
use crate::hypervisor::{CpuTime, Limits};

/// berth's directory in every hierarchy, without the unit.
const PARENT: &str = "berth";
/// The cgroup of the unit that systemd delegates to machines, with `Delegate=yes`. It outlives the agent's own unit.
const UNIT: &str = "system.slice/berth-machines.service";
/// The cgroup in that of the unit for the unit's own process. No instance has such a name.
const KEEPER: &str = "_keeper";
/// The cgroup of berth itself, beside [`PARENT`], on a host without systemd.
const OWN: &str = "berth-agent";
/// Its weight: machines wait for berth, but an agent or a control plane with much to do leaves them a quarter of the CPU time. The unit of
/// systemd has the same.
const OWN_WEIGHT: u32 = 300;
/// The cgroup v1 controllers in use, and the hierarchy by which systemd tracks processes.
const V1: [&str; 4] = ["cpu", "memory", "pids", "name=systemd"];
/// The cgroup CPU accounting period, in microseconds.
const PERIOD: u64 = 100_000;
/// The largest weight in cgroup v2.
const MOST_WEIGHT: u32 = 10_000;
/// cgroup v1's number for the default weight, 100.
const V1_SHARES: u64 = 1024;

/// A machine's share of CPU time under contention.
#[derive(Clone, Copy, Debug)]
pub(super) enum Share {
    /// Ten times the machine's share, for the tenth of a second or so that a start takes.
    Starting,
    /// A fiftieth of its share: a guest that has just started waits for those that have not.
    Young,
    /// Its share.
    Running,
}

impl Share {
    fn of(self, weight: u32) -> u32 {
        match self {
            Self::Starting => weight * 10,
            Self::Young => weight / 50,
            Self::Running => weight,
        }
        .clamp(1, MOST_WEIGHT)
    }
}

/// The cgroup hierarchies of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroups {
    hierarchies: Vec<Hierarchy>,
}

/// Instances with new cgroups that are still empty, which the sweep must not remove.
static LAUNCHING: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn launching() -> MutexGuard<'static, BTreeSet<String>> {
    LAUNCHING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Instances whose share is not their own yet, with their own weight.
static YIELDING: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());

fn yielding() -> MutexGuard<'static, BTreeMap<String, u32>> {
    YIELDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The entrances to a machine's cgroups, open until its process has joined them.
#[derive(Debug)]
pub(super) struct Entrances {
    /// A process joins a cgroup by writing "0" to its file.
    pub(super) files: Vec<File>,
    instance: String,
}

impl Drop for Entrances {
    fn drop(&mut self) {
        launching().remove(&self.instance);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hierarchy {
    V1 { controller: &'static str, mount: PathBuf },
    V2 { mount: PathBuf },
}

impl Cgroups {
    /// Detects the mounted hierarchies.
    pub fn detect() -> Self {
        Self::from_mounts(&std::fs::read_to_string("/proc/self/mounts").unwrap_or_default())
    }

    /// Disables cgroups on any host.
    pub fn none() -> Self {
        Self::default()
    }

    pub(super) fn from_mounts(mounts: &str) -> Self {
        let mut hierarchies = Vec::new();
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, mount, kind, options, ..] = fields[..] else { continue };
            let mount = PathBuf::from(mount);
            match kind {
                "cgroup2" => hierarchies.push(Hierarchy::V2 { mount }),
                "cgroup" => {
                    for controller in V1 {
                        if options.split(',').any(|o| o == controller) {
                            hierarchies.push(Hierarchy::V1 { controller, mount: mount.clone() });
                        }
                    }
                }
                _ => {}
            }
        }
        Self { hierarchies }
    }

    #[cfg(test)]
    pub(super) fn hierarchies(&self) -> &[impl std::fmt::Debug + use<>] {
        &self.hierarchies
    }

    /// Whether systemd has made the cgroup that is for machines alone.
    pub fn has_unit(&self) -> bool {
        self.hierarchies.iter().any(|hierarchy| hierarchy.unit().is_some())
    }

    /// Moves the caller into a cgroup with three times the weight of all machines together, so that the start of a machine does not wait
    /// for the guests of others. A caller in another cgroup than the root stays there: a service manager or a container decides.
    ///
    /// *Errors*: the host does not permit it, or only a part of it.
    pub fn precede_machines(&self) -> io::Result<()> {
        self.precede_from(&std::fs::read_to_string("/proc/self/cgroup")?)
    }

    pub(super) fn precede_from(&self, own: &str) -> io::Result<()> {
        self.hierarchies.iter().filter(|hierarchy| hierarchy.is_at_root(own)).try_for_each(Hierarchy::precede)
    }

    /// Creates the machine's cgroups and opens them.
    pub(super) fn prepare(&self, instance: &str, limits: Limits) -> Entrances {
        // Held while directories are created, so that the sweep does not remove the parent in between.
        let mut launching = launching();
        launching.insert(instance.to_owned());
        if !self.hierarchies.is_empty() {
            yielding().insert(instance.to_owned(), limits.cpu.weight);
        }
        let mut files = Vec::new();
        for hierarchy in &self.hierarchies {
            match hierarchy.prepare(instance, limits) {
                Ok(file) => files.push(file),
                Err(error) => {
                    tracing::warn!(%error, instance, ?hierarchy, "machine runs without this cgroup");
                }
            }
        }
        oom::begin(instance, self.oom_kills_in_cgroups(instance));
        Entrances { files, instance: instance.to_owned() }
    }

    /// Sets the machine's share of CPU time, if it has a cgroup. The share of a machine that another process started is left: its
    /// weight is not known here.
    pub(super) fn give(&self, instance: &str, share: Share) {
        let mut yielding = yielding();
        let Some(weight) = yielding.get(instance).copied() else { return };
        if matches!(share, Share::Running) {
            yielding.remove(instance);
        }
        for hierarchy in &self.hierarchies {
            hierarchy.write(&hierarchy.directory(instance), hierarchy.weight(share.of(weight)));
        }
    }

    /// Returns the machine's CPU time, by default that of a machine without a cgroup.
    pub(super) fn cpu_time(&self, instance: &str) -> Result<CpuTime, ProcessError> {
        let Some(hierarchy) = self.with_cpu(instance) else { return Ok(CpuTime::default()) };
        let time = hierarchy.read_cpu_time(&hierarchy.directory(instance))?;
        let own = yielding().get(instance).copied();
        Ok(CpuTime { weight: own.unwrap_or(time.weight), ..time })
    }

    /// Changes the machine's CPU time.
    pub(super) fn set_cpu_time(&self, instance: &str, time: CpuTime) -> Result<(), ProcessError> {
        let hierarchy = self.with_cpu(instance).ok_or(ProcessError::NoCpuController)?;
        let directory = hierarchy.directory(instance);
        let mut files = hierarchy.limit(time.limit);
        match yielding().get_mut(instance) {
            Some(weight) => *weight = time.weight,
            None => files.extend(hierarchy.weight(time.weight)),
        }
        for (file, value) in files {
            let path = directory.join(file);
            // A kernel without limits has no files for them.
            if time.limit.is_none() && !path.exists() {
                continue;
            }
            std::fs::write(&path, value).map_err(|source| ProcessError::CpuTime { path, source })?;
        }
        Ok(())
    }

    /// Returns the hierarchy in which the machine has CPU time of its own.
    fn with_cpu(&self, instance: &str) -> Option<&Hierarchy> {
        let has = |hierarchy: &&Hierarchy| {
            let file = match hierarchy {
                Hierarchy::V2 { .. } => "cpu.weight",
                Hierarchy::V1 { controller: "cpu", .. } => "cpu.shares",
                Hierarchy::V1 { .. } => return false,
            };
            hierarchy.directory(instance).join(file).exists()
        };
        self.hierarchies.iter().find(has)
    }

    /// Returns how often the kernel's OOM killer has ended a process of the machine that was started last.
    pub(super) fn oom_kills(&self, instance: &str) -> u64 {
        oom::since_its_start(instance, self.oom_kills_in_cgroups(instance))
    }

    fn oom_kills_in_cgroups(&self, instance: &str) -> u64 {
        let of = |hierarchy: &Hierarchy| hierarchy.oom_kills(&hierarchy.directory(instance));
        self.hierarchies.iter().map(of).max().unwrap_or_default()
    }

    /// Returns the contents of the files `cpu.stat` of the machine's cgroups.
    pub fn cpu_statistics(&self, instance: &str) -> Vec<String> {
        let files = self.hierarchies.iter().map(|hierarchy| hierarchy.directory(instance).join("cpu.stat"));
        files.filter_map(|file| std::fs::read_to_string(file).ok()).collect()
    }

    /// Removes the cgroups of all machines with no process left, however it ended. Returns true if an empty one could
    /// not be removed yet: a process leaves its cgroup shortly after it is seen to have ended.
    pub(super) fn sweep(&self) -> bool {
        let launching = launching();
        let mut busy = false;
        for hierarchy in &self.hierarchies {
            for parent in [UNIT, PARENT].map(|parent| hierarchy.mount().join(parent)) {
                busy |= hierarchy.sweep(&parent, &launching);
            }
            // The other one is systemd's.
            let _ = std::fs::remove_dir(hierarchy.mount().join(PARENT));
        }
        busy
    }
}

/// Returns the unit of systemd that contains two processes, which a stop of the unit ends both. None: they are in different ones, or in
/// none. `own`, `other`: the contents of `/proc/PID/cgroup`.
pub fn shared_unit(own: &str, other: &str) -> Option<String> {
    tracked(own).find_map(|path| {
        let (unit, name) = unit_of(path)?;
        let is_in =
            |path: &str| path.strip_prefix(unit).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        tracked(other).any(is_in).then(|| name.to_owned())
    })
}

/// Returns the cgroups of a process in the hierarchies by which systemd tracks processes: its own in version 1, and version 2.
fn tracked(cgroups: &str) -> impl Iterator<Item = &str> {
    cgroups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        matches!(controllers, "" | "name=systemd").then_some(path)
    })
}

/// Returns the path of the innermost unit in the path of a cgroup, and its name.
fn unit_of(path: &str) -> Option<(&str, &str)> {
    let is_unit =
        |name: &str| Path::new(name).extension().is_some_and(|kind| kind == "service" || kind == "scope");
    let mut end = path.len();
    loop {
        let start = path[..end].rfind('/')?;
        let name = &path[start + 1..end];
        if is_unit(name) {
            return Some((&path[..end], name));
        }
        end = start;
    }
}

/// Moves the unit's own process, for which systemd keeps the unit's cgroup, into a cgroup below it: a cgroup with a process cannot give
/// controllers to those below it.
fn vacate(unit: &Path) -> io::Result<()> {
    // A directory that is no cgroup has no such file.
    let listed = std::fs::read_to_string(unit.join("cgroup.procs")).unwrap_or_default();
    if listed.trim().is_empty() {
        return Ok(());
    }
    let keeper = unit.join(KEEPER);
    std::fs::create_dir_all(&keeper)?;
    for pid in listed.lines() {
        match std::fs::write(keeper.join("cgroup.procs"), pid) {
            // It has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            moved => moved?,
        }
    }
    Ok(())
}

/// Enables a controller for the cgroups in this one of version 2, if it can be.
fn enable(cgroup: &Path, controller: &str) {
    let file = cgroup.join("cgroup.subtree_control");
    // A write waits for all cgroups that are being removed, also where it changes nothing.
    let enabled = std::fs::read_to_string(&file).unwrap_or_default();
    if !enabled.split_whitespace().any(|of| of == controller) {
        let _ = std::fs::write(&file, format!("+{controller}"));
    }
}

/// A process that has ended stays listed for a moment, finally as pid 0.
pub(super) fn holds_nothing_alive(cgroup: &Path) -> bool {
    let alive = |pid: i32| identity::stat(pid).is_ok_and(|stat| stat.is_some_and(|stat| !stat.has_ended()));
    let listed = std::fs::read_to_string(cgroup.join("cgroup.procs"));
    listed.is_ok_and(|listed| !listed.lines().filter_map(|line| line.trim().parse().ok()).any(alive))
}

impl Hierarchy {
    fn mount(&self) -> &Path {
        match self {
            Self::V1 { mount, .. } | Self::V2 { mount } => mount,
        }
    }

    /// Whether the hierarchy divides CPU time, and a process is at its root. `own`: the contents of `/proc/PID/cgroup`.
    fn is_at_root(&self, own: &str) -> bool {
        let divides = |controllers: &str| match self {
            Self::V1 { controller, .. } => {
                *controller == "cpu" && controllers.split(',').any(|of| of == "cpu")
            }
            Self::V2 { .. } => controllers.is_empty(),
        };
        own.lines()
            .filter_map(|line| line.split_once(':')?.1.split_once(':'))
            .any(|(controllers, path)| divides(controllers) && path == "/")
    }

    fn precede(&self) -> io::Result<()> {
        let directory = self.mount().join(OWN);
        std::fs::create_dir_all(&directory)?;
        if let Self::V2 { mount } = self {
            enable(mount, "cpu");
        }
        if let Some((file, value)) = self.weight(OWN_WEIGHT) {
            let path = directory.join(file);
            // Version 2 beside version 1, which has the controller: the cgroup divides nothing.
            if !path.exists() {
                return std::fs::remove_dir(&directory);
            }
            std::fs::write(path, value)?;
        }
        std::fs::write(directory.join("cgroup.procs"), "0")
    }

    /// Returns the unit's cgroup, if there is one.
    fn unit(&self) -> Option<PathBuf> {
        Some(self.mount().join(UNIT)).filter(|unit| unit.is_dir())
    }

    fn directory(&self, instance: &str) -> PathBuf {
        let outside = self.mount().join(PARENT).join(instance);
        match self.unit() {
            // A machine that was started before there was the unit stays where it is.
            Some(unit) if !outside.is_dir() => unit.join(instance),
            _ => outside,
        }
    }

    fn prepare(&self, instance: &str, limits: Limits) -> io::Result<File> {
        let unit = self.unit();
        if unit.is_some() {
            // Of an earlier process of this instance, before there was the unit.
            let _ = std::fs::remove_dir(self.mount().join(PARENT).join(instance));
        }
        let directory = self.directory(instance);
        // The counters of an earlier machine are not those of this one. A process that is ending may still be in it.
        let _ = std::fs::remove_dir(&directory);
        std::fs::create_dir_all(&directory)?;
        if let Self::V2 { mount } = self {
            // Controllers have to be enabled level by level; this fails if another manager owns the root. Those above the unit are
            // systemd's.
            let levels = match unit {
                Some(unit) => {
                    if let Err(error) = vacate(&unit) {
                        tracing::warn!(%error, instance, "machine runs without limits");
                    }
                    vec![unit]
                }
                None => vec![mount.clone(), mount.join(PARENT)],
            };
            for level in levels {
                ["cpu", "memory", "pids"].into_iter().for_each(|controller| enable(&level, controller));
            }
        }
        self.write(&directory, self.memory(limits.memory_max));
        self.write(&directory, self.limit(limits.cpu.limit));
        self.write(&directory, self.weight(Share::Starting.of(limits.cpu.weight)));
        OpenOptions::new().write(true).open(directory.join("cgroup.procs"))
    }

    fn write(&self, directory: &Path, settings: impl IntoIterator<Item = (&'static str, String)>) {
        for (file, value) in settings {
            if let Err(error) = std::fs::write(directory.join(file), value) {
                tracing::debug!(%error, directory = %directory.display(), file, "limit not set");
            }
        }
    }

    fn weight(&self, weight: u32) -> Option<(&'static str, String)> {
        match self {
            Self::V2 { .. } => Some(("cpu.weight", weight.to_string())),
            Self::V1 { controller: "cpu", .. } => {
                Some(("cpu.shares", (u64::from(weight) * V1_SHARES / 100).to_string()))
            }
            Self::V1 { .. } => None,
        }
    }

    fn memory(&self, most: Option<u64>) -> Option<(&'static str, String)> {
        match self {
            Self::V2 { .. } => Some(("memory.max", most?.to_string())),
            Self::V1 { controller: "memory", .. } => Some(("memory.limit_in_bytes", most?.to_string())),
            Self::V1 { .. } => None,
        }
    }

    /// Removes the cgroups in this directory that have no process. Returns true if an empty one could not be removed yet.
    fn sweep(&self, parent: &Path, launching: &BTreeSet<String>) -> bool {
        let mut busy = false;
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if launching.contains(&name) {
                continue;
            }
            let kills = self.oom_kills(&entry.path());
            // Fails while a process is in it, and for the files in the parent directory.
            let removed = std::fs::remove_dir(entry.path());
            if removed.is_ok() {
                oom::remember(&name, kills);
                yielding().remove(&name);
            }
            busy |= removed.is_err_and(|e| e.kind() == io::ErrorKind::ResourceBusy)
                && holds_nothing_alive(&entry.path());
        }
        busy
    }

    fn oom_kills(&self, directory: &Path) -> u64 {
        match self {
            Self::V2 { .. } => oom::kills(&directory.join("memory.events")),
            Self::V1 { controller: "memory", .. } => oom::kills(&directory.join("memory.oom_control")),
            Self::V1 { .. } => 0,
        }
    }

    fn limit(&self, millis: Option<u32>) -> Vec<(&'static str, String)> {
        let quota = millis.map(|millis| u64::from(millis) * PERIOD / 1000);
        match self {
            Self::V2 { .. } => {
                let quota = quota.map_or("max".to_owned(), |quota| quota.to_string());
                vec![("cpu.max", format!("{quota} {PERIOD}"))]
            }
            Self::V1 { controller: "cpu", .. } => vec![
                ("cpu.cfs_period_us", PERIOD.to_string()),
                ("cpu.cfs_quota_us", quota.map_or("-1".to_owned(), |quota| quota.to_string())),
            ],
            Self::V1 { .. } => Vec::new(),
        }
    }

    /// Reads a limit in thousandths of a CPU, and a weight.
    fn read_cpu_time(&self, directory: &Path) -> Result<CpuTime, ProcessError> {
        let read = |file: &str| {
            let path = directory.join(file);
            match std::fs::read_to_string(&path) {
                // A kernel without limits has no files for them.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
                read => read.map_err(|source| ProcessError::Read { path, source }),
            }
        };
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let (quota, period, weight) = match self {
            Self::V2 { .. } => {
                let limit = read("cpu.max")?;
                let (quota, period) = limit.trim().split_once(' ').unwrap_or((limit.trim(), ""));
                (number(quota), number(period), number(&read("cpu.weight")?))
            }
            Self::V1 { .. } => {
                let shares = number(&read("cpu.shares")?);
                let weight = shares.map(|shares| (shares * 100).div_ceil(V1_SHARES));
                (number(&read("cpu.cfs_quota_us")?), number(&read("cpu.cfs_period_us")?), weight)
            }
        };
        let millis = |quota: u64| quota * 1000 / period.unwrap_or(PERIOD).max(1);
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Ok(CpuTime { limit: quota.map(millis).map(small), weight: weight.map_or(100, small) })
    }
}
