//! A cgroup for each machine, v1 or v2, where the host permits it.
//!
//! Three purposes: limits; the distribution of CPU time, of which a machine that is being started gets more than a
//! running one, and one that has just started gets less, so that a hundred machines started at once do not wait for
//! each other's guests; and leaving the caller's cgroup, which a service manager would terminate as a whole. Everything
//! here is best effort: a host without (writable) cgroups still runs machines.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::identity;
use crate::hypervisor::Limits;

/// berth's directory in every hierarchy.
const PARENT: &str = "berth";
/// The cgroup v1 controllers in use, and the hierarchy by which systemd tracks processes.
const V1: [&str; 4] = ["cpu", "memory", "pids", "name=systemd"];
/// The cgroup CPU accounting period, in microseconds.
const PERIOD: u64 = 100_000;

/// A machine's share of CPU time under contention.
#[derive(Clone, Copy, Debug)]
pub(super) enum Share {
    /// Ten times a normal share, for the tenth of a second or so that a start takes.
    Starting,
    /// A fiftieth of a normal share: a guest that has just started waits for those that have not.
    Young,
    /// The kernel's default.
    Running,
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

    /// Creates the machine's cgroups and opens them.
    pub(super) fn prepare(&self, instance: &str, limits: Limits) -> Entrances {
        // Held while directories are created, so that the sweep does not remove the parent in between.
        let mut launching = launching();
        launching.insert(instance.to_owned());
        let mut files = Vec::new();
        for hierarchy in &self.hierarchies {
            match hierarchy.prepare(instance, limits) {
                Ok(file) => files.push(file),
                Err(error) => {
                    tracing::debug!(%error, instance, ?hierarchy, "machine runs without this cgroup");
                }
            }
        }
        Entrances { files, instance: instance.to_owned() }
    }

    /// Sets the machine's share of CPU time, if it has a cgroup.
    pub(super) fn give(&self, instance: &str, share: Share) {
        for hierarchy in &self.hierarchies {
            hierarchy.write(&hierarchy.directory(instance), hierarchy.share(share));
        }
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
            let parent = hierarchy.mount().join(PARENT);
            for entry in std::fs::read_dir(&parent).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if launching.contains(&name) {
                    continue;
                }
                // Fails while a process is in it, and for the files in the parent directory.
                let removed = std::fs::remove_dir(entry.path());
                busy |= removed.is_err_and(|e| e.kind() == io::ErrorKind::ResourceBusy)
                    && holds_nothing_alive(&entry.path());
            }
            let _ = std::fs::remove_dir(&parent);
        }
        busy
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

    fn directory(&self, instance: &str) -> PathBuf {
        self.mount().join(PARENT).join(instance)
    }

    fn prepare(&self, instance: &str, limits: Limits) -> io::Result<File> {
        let directory = self.directory(instance);
        std::fs::create_dir_all(&directory)?;
        if let Self::V2 { mount } = self {
            // Controllers have to be enabled level by level; this fails if another manager owns the root.
            for level in [mount.clone(), mount.join(PARENT)] {
                for controller in ["+cpu", "+memory", "+pids"] {
                    let _ = std::fs::write(level.join("cgroup.subtree_control"), controller);
                }
            }
        }
        self.write(&directory, self.limits(limits));
        self.write(&directory, self.share(Share::Starting));
        OpenOptions::new().write(true).open(directory.join("cgroup.procs"))
    }

    fn write(&self, directory: &Path, settings: impl IntoIterator<Item = (&'static str, String)>) {
        for (file, value) in settings {
            if let Err(error) = std::fs::write(directory.join(file), value) {
                tracing::debug!(%error, directory = %directory.display(), file, "limit not set");
            }
        }
    }

    fn share(&self, share: Share) -> Option<(&'static str, String)> {
        let (times, parts) = match share {
            Share::Starting => (10, 1),
            Share::Young => (1, 50),
            Share::Running => (1, 1),
        };
        match self {
            Self::V2 { .. } => Some(("cpu.weight", (100 * times / parts).to_string())),
            Self::V1 { controller: "cpu", .. } => Some(("cpu.shares", (1024 * times / parts).to_string())),
            Self::V1 { .. } => None,
        }
    }

    fn limits(&self, limits: Limits) -> Vec<(&'static str, String)> {
        let quota = limits.cpu_max_percent.map(|percent| u64::from(percent) * PERIOD / 100);
        let mut files = Vec::new();
        match self {
            Self::V2 { .. } => {
                files.extend(limits.memory_max.map(|bytes| ("memory.max", bytes.to_string())));
                files.extend(quota.map(|q| ("cpu.max", format!("{q} {PERIOD}"))));
            }
            Self::V1 { controller: "memory", .. } => {
                files.extend(limits.memory_max.map(|bytes| ("memory.limit_in_bytes", bytes.to_string())));
            }
            Self::V1 { controller: "cpu", .. } => {
                files.extend(quota.map(|_| ("cpu.cfs_period_us", PERIOD.to_string())));
                files.extend(quota.map(|q| ("cpu.cfs_quota_us", q.to_string())));
            }
            Self::V1 { .. } => {}
        }
        files
    }
}
