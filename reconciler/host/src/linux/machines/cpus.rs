//! The CPUs of machines that have some for themselves. What a machine has is in a file beside its journal, which counts while its
//! process is alive.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use berth_qemu::machine::Affinity;
use berth_qemu::process::cpus_of_thread;
use tokio::sync::{Mutex, MutexGuard};

use super::{LinuxMachines, Result};
use crate::dedicated_cpus::{GuestCpus, choose, parse_cpu_list};
use crate::linux::files::{self, blocking, failed};
use crate::{DedicatedCpus, DedicatedFacts, LaunchRequest, SystemError};

/// The file of an instance's CPUs.
const RECORD: &str = "cpus.json";

/// The CPUs that may be given to single machines.
#[derive(Debug, Default)]
pub(super) struct DedicatedPool {
    cpus: BTreeSet<u32>,
    /// Held while a machine that gets some is started.
    choice: Mutex<()>,
}

impl DedicatedPool {
    pub(super) fn new(cpus: BTreeSet<u32>) -> Self {
        Self { cpus, choice: Mutex::default() }
    }

    /// Returns the CPUs that all other machines, and QEMU's own threads, share. Empty: any.
    fn shared(&self) -> Result<Vec<u32>> {
        if self.cpus.is_empty() {
            return Ok(Vec::new());
        }
        let path = Path::new("/proc/self");
        let own = cpus_of_thread(0).map_err(failed("read the CPUs of", path))?;
        Ok(own.into_iter().filter(|cpu| !self.cpus.contains(cpu)).collect())
    }
}

impl LinuxMachines {
    /// Chooses the CPUs of a machine that is about to be started, and records them. They stay its own once it runs; until then nothing
    /// else may choose, while the guard is held.
    ///
    /// *Errors*: [`SystemError::NoDedicatedCpus`] if too few are free.
    pub(super) async fn affinity(
        &self,
        request: &LaunchRequest,
    ) -> Result<(Affinity, Option<MutexGuard<'_, ()>>)> {
        let instance = &request.machine.instance;
        let shared = self.pool.shared()?;
        let Some(wanted) = request.dedicated else {
            self.release_cpus(instance).await?;
            return Ok((Affinity { emulator: shared, ..Affinity::default() }, None));
        };
        let guard = self.pool.choice.lock().await;
        let free = self.free_cpus().await?;
        let nodes = nodes(Path::new("/sys"));
        let guest = GuestCpus::of(&request.machine);
        let Some(chosen) = choose(&free, &nodes, guest, wanted) else {
            let needed = guest.vcpus + usize::from(wanted.isolate_emulator_thread);
            return Err(SystemError::NoDedicatedCpus { needed, free: free.len() });
        };
        let path = self.layout.instance(instance).join(RECORD);
        let record = chosen.clone();
        blocking(move || files::write_json_until_boot(&path, &record, 0o600)).await?;
        // Without a choice of nodes there is nothing to prefer.
        let usable = if nodes.len() > 1 {
            memory_nodes(Path::new("/sys"), Path::new("/proc"))
        } else {
            BTreeSet::new()
        };
        let is_usable = |node: &u32| usable.contains(node);
        let memory_nodes = chosen.host_nodes().into_iter().map(|node| node.filter(is_usable)).collect();
        let emulator = chosen.emulator.map_or(shared, |cpu| vec![cpu]);
        let affinity = Affinity { emulator, vcpus: chosen.vcpus, memory_nodes };
        Ok((affinity, Some(guard)))
    }

    /// Returns the CPUs that an instance has for itself while its process is alive.
    pub(super) async fn dedicated_cpus(&self, instance: &str) -> Result<Option<DedicatedCpus>> {
        let path = self.layout.instance(instance).join(RECORD);
        Ok(blocking(move || files::read_json(&path)).await?.and_then(std::result::Result::ok))
    }

    pub(super) async fn release_cpus(&self, instance: &str) -> Result<()> {
        let path = self.layout.instance(instance).join(RECORD);
        blocking(move || files::remove_if_there(&path).map_err(failed("remove", &path))).await
    }

    pub(in crate::linux) async fn dedicated_facts(&self) -> Result<DedicatedFacts> {
        let cpus = self.pool.cpus.clone();
        let free = if cpus.is_empty() { BTreeSet::new() } else { self.free_cpus().await? };
        Ok(DedicatedFacts { cpus, free })
    }

    async fn free_cpus(&self) -> Result<BTreeSet<u32>> {
        let running = match self.hypervisor().await {
            Ok(hypervisor) => hypervisor.list().await?,
            // Without QEMU nothing runs.
            Err(_) => Vec::new(),
        };
        let mut free = self.pool.cpus.clone();
        for instance in running.into_iter().filter_map(|found| found.instance) {
            for cpu in self.dedicated_cpus(&instance).await?.iter().flat_map(DedicatedCpus::all) {
                free.remove(&cpu);
            }
        }
        Ok(free)
    }
}

/// Reads the CPUs of each NUMA node of a machine whose `/sys` is this folder. Nodes without CPUs are left out.
fn nodes(sys: &Path) -> BTreeMap<u32, BTreeSet<u32>> {
    let Ok(folders) = fs::read_dir(sys.join("devices/system/node")) else { return BTreeMap::new() };
    let node = |folder: fs::DirEntry| {
        let number = folder.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let cpus = parse_cpu_list(&fs::read_to_string(folder.path().join("cpulist")).ok()?)?;
        (!cpus.is_empty()).then_some((number, cpus))
    };
    folders.flatten().filter_map(node).collect()
}

/// Reads the NUMA nodes that memory of this process, and of those that it starts, can come from. The kernel refuses a preference for any other
/// one, with which QEMU would not start: a node may have CPUs only, or the process's control group may exclude it.
fn memory_nodes(sys: &Path, proc: &Path) -> BTreeSet<u32> {
    let with_memory = fs::read_to_string(sys.join("devices/system/node/has_memory"));
    let status = fs::read_to_string(proc.join("self/status"));
    let (Ok(with_memory), Ok(status)) = (with_memory, status) else { return BTreeSet::new() };
    let allowed = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    match (parse_cpu_list(&with_memory), allowed.and_then(parse_cpu_list)) {
        (Some(with_memory), Some(allowed)) => with_memory.intersection(&allowed).copied().collect(),
        _ => BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpus_of_numa_nodes_are_those_that_the_kernel_lists() {
        let sys = tempfile::tempdir().expect("a directory");
        assert_eq!(nodes(sys.path()), BTreeMap::new(), "a kernel without NUMA");
        for (node, list) in
            [("node0", "0-3,8-11\n"), ("node1", "4-7,12-15\n"), ("node2", "\n"), ("possible", "0-2\n")]
        {
            let folder = sys.path().join("devices/system/node").join(node);
            fs::create_dir_all(&folder).expect("a directory");
            fs::write(folder.join("cpulist"), list).expect("a file");
        }
        let of = |list: &str| parse_cpu_list(list).expect("a list");
        assert_eq!(
            nodes(sys.path()),
            BTreeMap::from([(0, of("0-3,8-11")), (1, of("4-7,12-15"))]),
            "node 2 has memory only"
        );
    }

    #[test]
    fn memory_comes_from_nodes_that_have_some_and_that_the_process_may_use() {
        let root = tempfile::tempdir().expect("a directory");
        let found = || memory_nodes(&root.path().join("sys"), &root.path().join("proc"));
        assert_eq!(found(), BTreeSet::new(), "a kernel without NUMA");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        write("sys/devices/system/node/has_memory", "0-1,3\n");
        write("proc/self/status", "Name:\tberth\nMems_allowed:\t0000000e\nMems_allowed_list:\t1-3\n");
        assert_eq!(found(), BTreeSet::from([1, 3]));
        write("proc/self/status", "Name:\tberth\n");
        assert_eq!(found(), BTreeSet::new());
    }
}
