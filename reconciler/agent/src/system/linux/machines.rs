//! Machines: their folders, their firmware variables and seeds, and their QEMU.
//!
//! ```text
//!  instances/<id>/journal.json, process.json, seed.img, vars.fd     ours; QEMU may read (or write) the content only
//!                 run/…                                             QEMU's own: sockets and logs
//!                 serial.log, qmp.sock, …                           links into run/, for people
//! ```
//!
//! What QEMU's user owns as a folder it could fill with links, so nothing in `run/` is written by us.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth_qemu::hypervisor::{FoundQemu, Hypervisor, ProcessIdentity};
use berth_qemu::installation::Installation;
use berth_qemu::machine::{Firmware, MachinePaths, MachineSpec};
use berth_qemu::process::{self, LaunchError, LocalHypervisor, RunAs};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::OnceCell;

use super::files::{self, blocking, failed};
use super::layout::{Layout, check_name, is_name};
use super::seed;
use crate::system::{
    FirmwareKind, InstanceFacts, LaunchConfig, ProcessFacts, Stranger, StrangerKind, SystemError,
};

type Result<T> = std::result::Result<T, SystemError>;

const LAST_WORDS_LINES: usize = 20;
const LAST_WORDS_BYTES: u64 = 4 << 10;

#[derive(Debug)]
pub(super) struct Machines {
    layout: Layout,
    run_as: Option<RunAs>,
    /// Found at its first use: QEMU may be installed after the agent was started.
    hypervisor: OnceCell<Arc<dyn Hypervisor>>,
}

/// The process that was started last.
#[derive(Debug, Serialize, Deserialize)]
struct Started {
    identity: ProcessIdentity,
    started_at: Timestamp,
}

impl Machines {
    pub(super) fn open(layout: Layout, run_as: Option<RunAs>) -> Result<Self> {
        files::ensure_folder(&layout.instances())?;
        Ok(Self { layout, run_as, hypervisor: OnceCell::new() })
    }

    /// In place of the real one.
    pub(super) fn set_hypervisor(&mut self, hypervisor: Arc<dyn Hypervisor>) {
        self.hypervisor = OnceCell::new_with(Some(hypervisor));
    }

    async fn hypervisor(&self) -> std::result::Result<&Arc<dyn Hypervisor>, LaunchError> {
        let find = || async {
            let local = LocalHypervisor::discover()?.with_run_as(self.run_as.clone());
            Ok(Arc::new(local) as Arc<dyn Hypervisor>)
        };
        self.hypervisor.get_or_try_init(find).await
    }

    fn paths(&self, instance: &str) -> MachinePaths {
        MachinePaths::in_directory(self.layout.instance(instance).join("run"))
    }

    pub(super) async fn launch(&self, config: &LaunchConfig, qemu: &Installation) -> Result<ProcessFacts> {
        check_name("instance", &config.instance)?;
        if let Some(running) = self.process(&config.instance).await? {
            return Ok(running);
        }
        let hypervisor = self.hypervisor().await?;
        let spec = self.prepare(config, qemu).await?;
        let identity = match hypervisor.launch(&spec, config.limits).await {
            Ok(identity) => identity,
            // Started meanwhile, or by a call that was given up.
            Err(LaunchError::AlreadyRunning { .. }) => {
                let running = self.process(&config.instance).await?;
                return running.ok_or(SystemError::NotRunning { instance: config.instance.clone() });
            }
            Err(error) => return Err(error.into()),
        };
        let started_at = Timestamp::now();
        let record = self.layout.instance(&config.instance).join("process.json");
        let started = Started { identity: identity.clone(), started_at };
        blocking(move || files::write_json(&record, &started, 0o600)).await?;
        tracing::info!(instance = config.instance, pid = identity.pid, "machine started");
        Ok(ProcessFacts { identity, started_at })
    }

    /// Files the machine needs, and its full description.
    async fn prepare(&self, config: &LaunchConfig, qemu: &Installation) -> Result<MachineSpec> {
        let folder = self.layout.instance(&config.instance);
        let (run_as, seed, link_from) =
            (self.run_as.clone(), config.seed.clone(), self.paths(&config.instance));
        let template = match config.firmware {
            FirmwareKind::Bios => None,
            FirmwareKind::Uefi => Some(uefi(qemu)?),
        };
        let (vars, seed_file) = (folder.join("vars.fd"), folder.join("seed.img"));
        let firmware = match &template {
            None => Firmware::Bios,
            Some((code, _)) => Firmware::Uefi { code: code.clone(), vars: vars.clone() },
        };
        let seed_path = config.seed.is_some().then(|| seed_file.clone());
        blocking(move || {
            files::ensure_folder(&folder)?;
            link_names(&folder, &link_from)?;
            if let Some((_, template)) = template {
                ensure_vars(&vars, &template, run_as.as_ref())?;
            }
            match seed {
                None => files::remove_if_there(&seed_file).map_err(failed("remove", &seed_file)),
                Some(seed) => {
                    files::write_atomic(&seed_file, &seed::volume(&seed)?, 0o600)?;
                    files::lend(&seed_file, run_as.as_ref())
                }
            }
        })
        .await?;
        Ok(MachineSpec {
            instance: config.instance.clone(),
            name: config.name.clone(),
            uuid: config.uuid.clone(),
            cpus: config.cpus,
            memory_bytes: config.memory_bytes,
            accelerator: config.accelerator,
            firmware,
            machine_type: config.machine_type.clone(),
            cpu_model: config.cpu_model.clone(),
            disks: config.disks.clone(),
            nics: config.nics.clone(),
            seed: seed_path,
            fw_cfg: Vec::new(),
            paths: self.paths(&config.instance),
            vnc_socket: None,
        })
    }

    pub(super) async fn has_started(&self, instance: &str, just_now: bool) {
        // Without a hypervisor nothing has.
        if let Ok(hypervisor) = self.hypervisor().await {
            hypervisor.has_started(instance, just_now).await;
        }
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
            return Ok(Some(started.facts()));
        }
        // Not the one that was written down. One whose start was never written down shows among all processes.
        let found = hypervisor.find(instance).await?;
        Ok(found.map(|identity| facts(identity, started)))
    }

    async fn started(&self, instance: &str) -> Result<Option<Started>> {
        let record = self.layout.instance(instance).join("process.json");
        // A damaged record is as good as none: the process is searched for.
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
        let Some(process) = self.process(instance).await? else {
            return Ok(());
        };
        self.hypervisor().await?.kill(&process.identity, grace).await?;
        tracing::info!(instance, pid = process.identity.pid, "machine ended");
        Ok(())
    }

    pub(super) async fn remove(&self, instance: &str) -> Result<()> {
        if let Some(process) = self.process(instance).await? {
            let (instance, pid) = (instance.to_owned(), process.identity.pid);
            return Err(SystemError::StillRunning { instance, pid });
        }
        let folder = self.layout.instance(instance);
        blocking(move || match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &folder)(error)),
            _ => Ok(()),
        })
        .await
    }

    pub(super) async fn instances(&self) -> Result<Vec<InstanceFacts>> {
        let found = match self.hypervisor().await {
            Ok(hypervisor) => hypervisor.list().await?,
            Err(LaunchError::NoBinary { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let folder = self.layout.instances();
        let names = blocking(move || files::names(&folder)).await?;
        let mut instances = Vec::new();
        for instance in names.into_iter().filter(|n| is_name(n)) {
            let process = match found.iter().find(|q| q.instance.as_ref() == Some(&instance)) {
                Some(qemu) => Some(facts(qemu.identity.clone(), self.started(&instance).await?)),
                None => None,
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

    pub(super) async fn last_words(&self, instance: &str) -> Result<String> {
        check_name("instance", instance)?;
        let log = self.paths(instance).stderr_log;
        blocking(move || {
            process::last_lines(&log, LAST_WORDS_LINES, LAST_WORDS_BYTES).map_err(failed("read", &log))
        })
        .await
    }

    pub(super) async fn strangers(&self) -> Result<Vec<Stranger>> {
        let found = match self.hypervisor().await {
            Ok(hypervisor) => hypervisor.list().await?,
            Err(_) => Vec::new(),
        };
        let folder = self.layout.instances();
        let names = blocking(move || files::names(&folder)).await?;
        let foreign = found.iter().filter(|q| !q.instance.as_ref().is_some_and(|i| names.contains(i)));
        let mut strangers: Vec<Stranger> = foreign.map(foreign_process).collect();
        strangers.extend(names.iter().filter(|n| !is_name(n)).map(|name| Stranger {
            kind: StrangerKind::Instance,
            name: name.clone(),
            detail: "a folder among the instances that berth did not make".to_owned(),
        }));
        Ok(strangers)
    }
}

impl Started {
    fn facts(&self) -> ProcessFacts {
        ProcessFacts { identity: self.identity.clone(), started_at: self.started_at }
    }
}

/// The time that was written down, so that it does not move with the clock; else what the kernel says.
fn facts(identity: ProcessIdentity, started: Option<Started>) -> ProcessFacts {
    match started {
        Some(started) if started.identity == identity => started.facts(),
        _ => ProcessFacts { started_at: start_of(&identity), identity },
    }
}

/// Boot time plus the process's start, which counts in ticks of 10 ms on every Linux there is.
fn start_of(identity: &ProcessIdentity) -> Timestamp {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let boot = stat.lines().find_map(|l| l.strip_prefix("btime ")?.trim().parse::<i64>().ok());
    let Some(boot) = boot.and_then(|b| Timestamp::from_second(b).ok()) else {
        return Timestamp::now();
    };
    let since = i64::try_from(identity.start_time / 100).unwrap_or(0);
    boot.checked_add(SignedDuration::from_secs(since)).unwrap_or(boot)
}

/// What is known of a process when QEMU is not installed: there may be one from before it was removed.
fn without_qemu(instance: &str, error: LaunchError) -> Result<Option<ProcessFacts>> {
    let running = process::list_qemu()?;
    if running.iter().any(|q| q.instance.as_deref() == Some(instance)) {
        return Err(error.into());
    }
    Ok(None)
}

fn foreign_process(qemu: &FoundQemu) -> Stranger {
    let name = qemu.name.as_deref().unwrap_or("QEMU");
    let program = qemu.argv.first().map_or("?", String::as_str);
    let detail = match &qemu.instance {
        Some(instance) => {
            format!("{program}, berth instance {instance} of another state directory")
        }
        None => format!("{program}, not started by berth"),
    };
    let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    Stranger { kind: StrangerKind::Process, name: format!("{} {name}", qemu.identity.pid), detail }
}

/// Code and a template for variables, without Secure Boot if there is a choice: guests are whatever people bring.
fn uefi(qemu: &Installation) -> Result<(PathBuf, PathBuf)> {
    let firmware = qemu.uefi.iter().find(|f| !f.secure_boot).or(qemu.uefi.first());
    firmware.map(|f| (f.code.clone(), f.vars_template.clone())).ok_or(SystemError::ProgramMissing {
        program: "UEFI firmware",
        advice: "VMs with firmware UEFI need it (Debian, Ubuntu: apt install ovmf; Fedora: dnf install edk2-ovmf)",
    })
}

/// Boot entries a guest wrote stay over restarts.
fn ensure_vars(vars: &Path, template: &Path, owner: Option<&RunAs>) -> Result<()> {
    if !vars.try_exists().map_err(failed("look for", vars))? {
        let bytes = fs::read(template).map_err(failed("read", template))?;
        files::write_atomic(vars, &bytes, 0o600)?;
    }
    files::give(vars, owner)
}

fn link_names(folder: &Path, paths: &MachinePaths) -> Result<()> {
    let targets = [
        &paths.qmp,
        &paths.rescue,
        &paths.guest_agent,
        &paths.serial_socket,
        &paths.serial_log,
        &paths.stderr_log,
    ];
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
