//! Machines: their directories, firmware variables, seeds and QEMU processes.
//!
//! ```text
//!  instances/<id>/journal.json, process.json, user.json             the agent's only
//!                 seed.img, sysprep.img, ignition.json, vars*.fd, serial.log, …  the agent's; QEMU reads or writes only the content
//!                 saved.state                                       the agent's: QEMU gets it as an open descriptor
//!                 images/<sha256>                                   the agent's: hard links to its disks' base images
//!                 tpm/…                                             swtpm's: the memory of the TPM
//!                 tpm.new/…                                         the agent's: the memory of a TPM that comes from another host
//!                 run/…                                             QEMU's: sockets
//!                 qmp.sock, …                                       links into run/, for people
//! ```
//!
//! The states of machines that snapshots keep are in `memory/`, see `kept_states`.
//!
//! Only the instance's own user can traverse its directory. QEMU's user could fill a directory that it owns with links
//! and FIFOs, so the agent opens nothing in `run/` and recreates it at each start.

mod bootstrap_files;
mod cpus;
mod firmware_state;
mod grants;
mod kept_states;
mod logs;
mod scratch;
mod space;
mod state;
mod variables;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth_qemu::console::ConsoleStream;
use berth_qemu::hypervisor::{CpuTime, FoundQemu, Hypervisor, ProcessIdentity};
use berth_qemu::installation::Installation;
use berth_qemu::machine::{
    Confinement, DiskKey, LaunchSpec, MachineFiles, MachinePaths, MachineSpec, Medium, NicSpec, TpmFiles,
    UefiFiles, UsbDeviceSpec, VgpuSpec, serial_log_name,
};
use berth_qemu::nics::LentTap;
use berth_qemu::process::{self, Claims, LaunchError, LocalHypervisor, RunAs};
use berth_qemu::single_flight::SingleFlight;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::OnceCell;

use super::block_devices::BlockDevices;
use super::files::{self, blocking, failed};
use super::host::SWTPM;
use super::layout::{Layout, check_name, is_name};
use super::pool_folders::PoolFolders;
use super::shares::Shares;
use super::users::Users;
use super::vgpus;
use crate::{ForeignKind, ForeignObject, InstanceFacts, LaunchRequest, ProcessFacts, SystemError};
use bootstrap_files::BootstrapFiles;
use cpus::DedicatedPool;
#[cfg(test)]
pub(super) use grants::revoke_departed;

type Result<T> = std::result::Result<T, SystemError>;

/// The device files of IOMMU groups.
const VFIO_GROUPS: &str = "/dev/vfio";
const LAST_WORDS_LINES: usize = 20;
const LAST_WORDS_BYTES: u64 = 4 << 10;

#[derive(Debug)]
pub(super) struct LinuxMachines {
    layout: Layout,
    users: Users,
    /// Initialised at its first use: QEMU may be installed after the agent was started.
    hypervisor: OnceCell<Arc<dyn Hypervisor>>,
    pool: DedicatedPool,
    shares: Shares,
    pool_folders: PoolFolders,
    devices: BlockDevices,
    listed_owners: SingleFlight<BTreeSet<u32>>,
}

/// The most recently started process.
#[derive(Debug, Serialize, Deserialize)]
struct Started {
    identity: ProcessIdentity,
    started_at: Timestamp,
}

impl LinuxMachines {
    /// Opens the machines of a host, of which some may have these CPUs for themselves, and all may have shares.
    pub(super) fn open(
        layout: Layout,
        users: Users,
        dedicated_cpus: BTreeSet<u32>,
        shares: Shares,
    ) -> Result<Self> {
        files::ensure_folder(&layout.instances())?;
        let pool = DedicatedPool::new(dedicated_cpus);
        let (hypervisor, pool_folders) = (OnceCell::new(), PoolFolders::default());
        let (devices, listed_owners) = (BlockDevices::default(), SingleFlight::default());
        Ok(Self { layout, users, hypervisor, pool, shares, pool_folders, devices, listed_owners })
    }

    pub(super) async fn hypervisor(&self) -> std::result::Result<&Arc<dyn Hypervisor>, LaunchError> {
        let find = || async {
            let users = self.users.clone();
            let claims = Claims::new(move |instance, uid| users.may_be(instance, uid));
            let local = LocalHypervisor::discover()?.with_run_as(None).with_claims(claims);
            Ok(Arc::new(local) as Arc<dyn Hypervisor>)
        };
        self.hypervisor.get_or_try_init(find).await
    }

    fn paths(&self, instance: &str) -> MachinePaths {
        let folder = self.layout.instance(instance);
        MachinePaths::in_directory(folder.join("run")).with_logs_in(&folder)
    }

    pub(super) async fn launch(
        &self,
        request: &LaunchRequest,
        qemu: &Installation,
        keys: BTreeMap<String, DiskKey>,
    ) -> Result<ProcessFacts> {
        let instance = &request.machine.instance;
        check_name("instance", instance)?;
        // The hypervisor looks for a process of the instance in any case: the first start does not list all processes twice.
        let directory = self.paths(instance).directory;
        let may_run = move || directory.try_exists().map_err(failed("look for", &directory));
        if blocking(may_run).await?
            && let Some(running) = self.process(instance).await?
        {
            return Ok(running);
        }
        let hypervisor = self.hypervisor().await?;
        let mut spec = self.prepare(request, qemu).await?;
        spec.files.keys = keys;
        let (affinity, _choice) = self.affinity(request).await?;
        spec.affinity = affinity;
        let identity = match hypervisor.launch(&spec, request.limits).await {
            Ok(identity) => identity,
            // Started concurrently, or by a call that was cancelled.
            Err(LaunchError::AlreadyRunning { .. }) => {
                let running = self.process(instance).await?;
                return running.ok_or(SystemError::NotRunning { instance: instance.clone() });
            }
            Err(error) => return Err(error.into()),
        };
        let started_at = Timestamp::now();
        let record = self.layout.instance(instance).join("process.json");
        let started = Started { identity: identity.clone(), started_at };
        // After the next boot there is no such process.
        blocking(move || files::write_json_until_boot(&record, &started, 0o600)).await?;
        tracing::info!(instance, pid = identity.pid, "machine started");
        let dedicated = self.dedicated_cpus(instance).await?;
        Ok(ProcessFacts { identity, started_at, dedicated })
    }

    /// Creates the machine's files and returns its full description.
    async fn prepare(&self, request: &LaunchRequest, qemu: &Installation) -> Result<LaunchSpec> {
        let LaunchRequest { machine, seed, keys, scratch, from_saved_state, .. } = request.clone();
        let folder = self.layout.instance(&machine.instance);
        let mut files = MachineFiles::new(self.paths(&machine.instance));
        let (users, instance) = (self.users.clone(), machine.instance.clone());
        let paths = files.paths.clone();
        let firmware = variables::firmware(qemu, machine.firmware)?;
        let vars = folder.join(variables::file_name(machine.firmware));
        let keys = variables::Keys::of(machine.firmware, keys);
        let data = BootstrapFiles::new(seed, &folder);
        (files.seed, files.sysprep) = (data.seed_file(), data.sysprep_file());
        files.fw_cfg = data.fw_cfg();
        files.uefi = firmware.map(|f| UefiFiles { code: f.code.clone(), vars: vars.clone(), smm: f.smm });
        let template = firmware.map(|f| f.vars_template.clone());
        if machine.tpm {
            let state = self.layout.tpm(&machine.instance);
            files.tpm = Some(TpmFiles { program: SWTPM.find()?, state });
        }
        files.vfio_groups = vfio_groups(&machine).await?;
        files.usb_nodes = machine.usb_devices.iter().map(UsbDeviceSpec::node).collect();
        files.virtiofs = self.shares.files(&machine.shares).await?;
        files.from_saved_state = from_saved_state;
        let state = self.layout.state(&machine.instance);
        // A start lists the files of all pools once: to take back those of the instance's user, or to find a user that has none.
        let is_known = self.is_known(&machine.instance).await?;
        let owners = if is_known { BTreeSet::new() } else { self.owners().await? };
        let user = blocking(move || {
            files::ensure_folder(&folder)?;
            let user = users.assign(&instance, &owners)?;
            files::ensure_folder_for(&folder, user.as_ref())?;
            remove_folder(&paths.directory)?;
            link_names(&folder, &paths)?;
            if let Some(template) = template {
                variables::ensure(&vars, &template, &keys, user.as_ref())?;
            }
            if !from_saved_state {
                files::remove_if_there(&state).map_err(failed("remove", &state))?;
            }
            data.write(user.as_ref())?;
            Ok::<_, SystemError>(user)
        })
        .await?;
        if is_known || user.is_none() {
            // After a crash the instance's user still owns the files of its former disks, including disks that it no longer has.
            self.take_back(&machine.instance).await?;
        }
        files.scratch = self.prepare_scratch(&machine.instance, scratch, from_saved_state, user).await?;
        let machine = self.lend(machine, user).await?;
        let folders = self.opened(&machine.instance, user).await?;
        files.confinement = user.map(|user| Confinement { user, folders });
        Ok(LaunchSpec { machine, files, affinity: Default::default() })
    }

    pub(super) async fn mark_started(&self, instance: &str, just_now: bool) {
        // Without a hypervisor no machine has started.
        if let Ok(hypervisor) = self.hypervisor().await {
            hypervisor.mark_started(instance, just_now).await;
        }
    }

    pub(super) async fn cpu_time(&self, instance: &str) -> Result<CpuTime> {
        check_name("instance", instance)?;
        Ok(self.hypervisor().await?.cpu_time(instance).await?)
    }

    pub(super) async fn oom_kills(&self, instance: &str) -> Result<u64> {
        check_name("instance", instance)?;
        Ok(self.hypervisor().await?.oom_kills(instance).await)
    }

    pub(super) async fn set_cpu_time(&self, instance: &str, time: CpuTime) -> Result<()> {
        check_name("instance", instance)?;
        self.hypervisor().await?.set_cpu_time(instance, time).await?;
        tracing::info!(instance, limit = time.limit, weight = time.weight, "CPU time changed");
        Ok(())
    }

    pub(super) async fn process(&self, instance: &str) -> Result<Option<ProcessFacts>> {
        check_name("instance", instance)?;
        let hypervisor = match self.hypervisor().await {
            Ok(hypervisor) => hypervisor,
            Err(error) => return without_qemu(instance, error),
        };
        let started = self.started(instance).await?;
        if let Some(started) = &started
            && hypervisor.is_alive(&started.identity).await?
        {
            let dedicated = self.dedicated_cpus(instance).await?;
            return Ok(Some(ProcessFacts { dedicated, ..started.facts() }));
        }
        // The recorded process is not alive. A process without a record is found by the list of all processes.
        let Some(identity) = hypervisor.find(instance).await? else { return Ok(None) };
        let dedicated = self.dedicated_cpus(instance).await?;
        Ok(Some(ProcessFacts { dedicated, ..facts(identity, started) }))
    }

    async fn started(&self, instance: &str) -> Result<Option<Started>> {
        let record = self.layout.instance(instance).join("process.json");
        // A damaged record counts as none: the process is then searched for.
        Ok(blocking(move || files::read_json(&record)).await?.and_then(std::result::Result::ok))
    }

    pub(super) async fn exited(&self, process: &ProcessIdentity) -> Result<()> {
        Ok(self.hypervisor().await?.exited(process).await?)
    }

    pub(super) async fn connect(
        &self,
        instance: &str,
    ) -> Result<(berth_qemu::qmp::Qmp, berth_qemu::qmp::Events)> {
        check_name("instance", instance)?;
        Ok(self.hypervisor().await?.connect(&self.paths(instance)).await?)
    }

    pub(super) async fn guest_agent(&self, instance: &str) -> Result<berth_qemu::guest_agent::GuestAgent> {
        check_name("instance", instance)?;
        Ok(self.hypervisor().await?.guest_agent(&self.paths(instance)).await?)
    }

    pub(super) async fn kill(&self, instance: &str, grace: Duration) -> Result<()> {
        if let Some(process) = self.process(instance).await? {
            self.hypervisor().await?.kill(&process.identity, grace).await?;
            tracing::info!(instance, pid = process.identity.pid, "machine ended");
        }
        self.end_helpers(instance).await?;
        self.release_cpus(instance).await?;
        self.discard_scratch(instance).await?;
        // Hard links keep the images' bytes allocated; the next start creates them again.
        self.take_back(instance).await
    }

    pub(super) async fn remove(&self, instance: &str) -> Result<()> {
        if let Some(process) = self.process(instance).await? {
            let (instance, pid) = (instance.to_owned(), process.identity.pid);
            return Err(SystemError::StillRunning { instance, pid });
        }
        self.end_helpers(instance).await?;
        let folder = self.layout.instance(instance);
        self.take_back(instance).await?;
        let (users, instance) = (self.users.clone(), instance.to_owned());
        blocking(move || {
            users.forget(&instance)?;
            remove_folder(&folder)
        })
        .await
    }

    /// Ends the emulator of the instance's TPM and the servers of its shares, which its QEMU may have left behind.
    async fn end_helpers(&self, instance: &str) -> Result<()> {
        // They end with their QEMU; without QEMU nothing has started them.
        let Ok(hypervisor) = self.hypervisor().await else { return Ok(()) };
        hypervisor.end_shares(&self.paths(instance).directory).await?;
        let state = self.layout.tpm(instance);
        let folder = state.clone();
        if !blocking(move || folder.try_exists().map_err(failed("look for", &folder))).await? {
            return Ok(());
        }
        Ok(hypervisor.end_tpm(&state).await?)
    }

    pub(super) async fn instances(&self) -> Result<Vec<InstanceFacts>> {
        let hypervisor = match self.hypervisor().await {
            Ok(hypervisor) => Some(hypervisor),
            Err(LaunchError::NoBinary { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        let found = match hypervisor {
            Some(hypervisor) => hypervisor.list().await?,
            None => Vec::new(),
        };
        let folder = self.layout.instances();
        let names = blocking(move || files::names(&folder)).await?;
        let mut instances = Vec::new();
        for instance in names.into_iter().filter(|n| is_name(n)) {
            let started = self.started(&instance).await?;
            let process = match found.iter().find(|q| q.instance.as_ref() == Some(&instance)) {
                Some(qemu) => Some(facts(qemu.identity.clone(), started)),
                // An older version of berth has started it as a user that is not the instance's, or a guest has taken it over and written
                // another command line.
                None => match (started, hypervisor) {
                    (Some(started), Some(hypervisor)) => {
                        hypervisor.is_alive(&started.identity).await?.then(|| started.facts())
                    }
                    _ => None,
                },
            };
            let path = self.journal_file(&instance);
            let journal = blocking(move || files::read_json(&path)).await?.and_then(std::result::Result::ok);
            instances.push(InstanceFacts { instance, journal, process });
        }
        Ok(instances)
    }

    pub(super) async fn read_journal(&self, instance: &str) -> Result<Option<Value>> {
        check_name("instance", instance)?;
        let path = self.journal_file(instance);
        let file = path.clone();
        match blocking(move || files::read_json(&file)).await? {
            None => Ok(None),
            Some(Ok(journal)) => Ok(Some(journal)),
            Some(Err(detail)) => {
                let source = io::Error::new(io::ErrorKind::InvalidData, detail);
                Err(SystemError::File { attempt: "understand", path, source })
            }
        }
    }

    pub(super) async fn write_journal(&self, instance: &str, journal: &Value) -> Result<()> {
        check_name("instance", instance)?;
        let (folder, path, journal) =
            (self.layout.instance(instance), self.journal_file(instance), journal.clone());
        blocking(move || {
            files::ensure_folder(&folder)?;
            files::write_json(&path, &journal, 0o600)
        })
        .await
    }

    fn journal_file(&self, instance: &str) -> PathBuf {
        self.layout.instance(instance).join("journal.json")
    }

    pub(super) async fn stderr_tail(&self, instance: &str) -> Result<String> {
        check_name("instance", instance)?;
        let folder = self.layout.instance(instance);
        blocking(move || {
            let log = logs::place(&folder, "qemu.log");
            process::last_lines(&log, LAST_WORDS_LINES, LAST_WORDS_BYTES).map_err(failed("read", &log))
        })
        .await
    }

    pub(super) async fn serial(&self, instance: &str, port: u8) -> Result<Option<ConsoleStream>> {
        check_name("instance", instance)?;
        let paths = self.paths(instance).with_serial_port(port);
        match self.hypervisor().await?.serial(&paths).await {
            // The socket of an earlier machine may be left.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                Ok(None)
            }
            connected => {
                Ok(Some(connected.map_err(failed("open the serial console", &paths.serial_socket))?))
            }
        }
    }

    pub(super) async fn vnc(&self, instance: &str) -> Result<Option<ConsoleStream>> {
        check_name("instance", instance)?;
        let paths = self.paths(instance);
        match self.hypervisor().await?.vnc(&paths).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            connected => Ok(Some(connected.map_err(failed("open the VNC server", &paths.vnc))?)),
        }
    }

    pub(super) async fn serial_log(&self, instance: &str, port: u8, max_bytes: u64) -> Result<Vec<u8>> {
        check_name("instance", instance)?;
        let folder = self.layout.instance(instance);
        blocking(move || logs::tail(&folder, &serial_log_name(port), max_bytes)).await
    }

    pub(super) async fn grant_medium(&self, instance: &str, medium: &Medium) -> Result<Medium> {
        let user = self.runs_as(instance).await?;
        let (layout, instance, medium) = (self.layout.clone(), instance.to_owned(), medium.clone());
        blocking(move || grants::medium(&layout, &instance, &medium, user.as_ref())).await
    }

    pub(super) async fn revoke_medium(&self, instance: &str, digest: &str) -> Result<()> {
        check_name("instance", instance)?;
        let (folder, digest) = (self.layout.bases(instance), digest.to_owned());
        blocking(move || {
            let names = files::names(&folder)?;
            // A file that is still open in another drive stays open.
            let ours = names.iter().filter(|name| digest.len() >= 20 && name.starts_with(&digest));
            ours.map(|name| folder.join(name))
                .try_for_each(|name| files::remove_if_there(&name).map_err(failed("remove", &name)))
        })
        .await
    }

    pub(super) async fn lend_tap(
        &self,
        instance: &str,
        qmp: &berth_qemu::qmp::Qmp,
        nic: &NicSpec,
    ) -> Result<LentTap> {
        check_name("instance", instance)?;
        Ok(self.hypervisor().await?.lend_tap(qmp, &self.paths(instance), nic).await?)
    }

    /// The user that the instance's QEMU runs as now: an older version of berth may have started it. None: the agent's
    /// own user.
    async fn runs_as(&self, instance: &str) -> Result<Option<RunAs>> {
        let process = self.process(instance).await?;
        let (users, instance) = (self.users.clone(), instance.to_owned());
        blocking(move || match process {
            Some(process) => grants::owner(process.identity.pid),
            None => Ok(users.of(&instance)),
        })
        .await
    }

    /// Limits the size of the logs. Runs for as long as it is polled.
    pub(super) async fn rotate_logs(&self) {
        logs::rotate(&self.layout).await;
    }

    pub(super) async fn foreign(&self) -> Result<Vec<ForeignObject>> {
        let found = match self.hypervisor().await {
            Ok(hypervisor) => hypervisor.list().await?,
            Err(_) => Vec::new(),
        };
        let folder = self.layout.instances();
        let names = blocking(move || files::names(&folder)).await?;
        let foreign = found.iter().filter(|q| !q.instance.as_ref().is_some_and(|i| names.contains(i)));
        let mut foreign: Vec<ForeignObject> = foreign.map(foreign_process).collect();
        foreign.extend(names.iter().filter(|n| !is_name(n)).map(|name| ForeignObject {
            kind: ForeignKind::Instance,
            name: name.clone(),
            detail: "a folder among the instances that berth did not make".to_owned(),
        }));
        Ok(foreign)
    }
}

impl Started {
    fn facts(&self) -> ProcessFacts {
        ProcessFacts { identity: self.identity.clone(), started_at: self.started_at, dedicated: None }
    }
}

/// Prefers the recorded time, which does not move with the clock, to the kernel's.
fn facts(identity: ProcessIdentity, started: Option<Started>) -> ProcessFacts {
    match started {
        Some(started) if started.identity == identity => started.facts(),
        _ => ProcessFacts { started_at: start_of(&identity), identity, dedicated: None },
    }
}

/// The boot time plus the process's start time, which counts in ticks of 10 ms on all Linux systems.
fn start_of(identity: &ProcessIdentity) -> Timestamp {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let boot = stat.lines().find_map(|l| l.strip_prefix("btime ")?.trim().parse::<i64>().ok());
    let Some(boot) = boot.and_then(|b| Timestamp::from_second(b).ok()) else {
        return Timestamp::now();
    };
    let since = i64::try_from(identity.start_time / 100).unwrap_or(0);
    boot.checked_add(SignedDuration::from_secs(since)).unwrap_or(boot)
}

/// The device files of the IOMMU groups of the machine's PCI devices and vGPUs.
async fn vfio_groups(machine: &MachineSpec) -> Result<Vec<PathBuf>> {
    let mut groups: Vec<u32> = machine.pci_devices.iter().flat_map(|device| device.groups.clone()).collect();
    // A vGPU is in another group each time it is made.
    let mediated = machine.vgpus.clone();
    let group_of = |vgpu: &VgpuSpec| vgpus::group_of(Path::new("/"), vgpu);
    groups.extend(blocking(move || mediated.iter().map(group_of).collect::<Result<Vec<u32>>>()).await?);
    Ok(groups.into_iter().map(|group| Path::new(VFIO_GROUPS).join(group.to_string())).collect())
}

/// The result when QEMU is not installed: a process from before its removal may still be running.
fn without_qemu(instance: &str, error: LaunchError) -> Result<Option<ProcessFacts>> {
    let running = process::list_qemu()?;
    if running.iter().any(|q| q.instance.as_deref() == Some(instance)) {
        return Err(error.into());
    }
    Ok(None)
}

fn foreign_process(qemu: &FoundQemu) -> ForeignObject {
    let name = qemu.name.as_deref().unwrap_or("QEMU");
    let program = qemu.argv.first().map_or("?", String::as_str);
    let detail = match &qemu.instance {
        Some(instance) => {
            format!("{program}, berth instance {instance} of another state directory")
        }
        None => format!("{program}, not started by berth"),
    };
    let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    ForeignObject { kind: ForeignKind::Process, name: format!("{} {name}", qemu.identity.pid), detail }
}

/// Symbolic links in the directory are removed, not followed.
fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", folder)(error)),
        _ => Ok(()),
    }
}

fn link_names(folder: &Path, paths: &MachinePaths) -> Result<()> {
    let targets = [&paths.qmp, &paths.rescue, &paths.guest_agent, &paths.serial_socket];
    for target in targets {
        let (Some(name), Ok(relative)) = (target.file_name(), target.strip_prefix(folder)) else {
            continue;
        };
        let link = folder.join(name);
        match symlink(relative, &link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("make the link", &link)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
