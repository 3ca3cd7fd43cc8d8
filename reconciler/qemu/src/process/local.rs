//! The hypervisor of this machine.

mod answers;
mod confine;
mod prepare;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use async_trait::async_trait;
use nix::sys::signal::Signal;
use nix::unistd::{Uid, User};

use super::cgroup::Share;
use super::pidfd::PidFd;
use super::scan::{SeenQemu, seen_qemus};
use super::vfork::Child;
use super::{
    Cgroups, LaunchError, ProcessError, ProcessIdentity, RunAs, affinity, helper, identity, key_file, launch,
    log, oom, swtpm, tap, virtiofsd,
};
use crate::console::ConsoleStream;
use crate::guest_agent::{GuestAgent, GuestAgentError};
use crate::hypervisor::{CpuTime, FoundQemu, Hypervisor, LendError, Limits, ProcessState, StateFile};
use crate::installation::find_binary;
use crate::live_move::CHANNEL;
use crate::machine::{Accelerator, Architecture, LaunchSpec, MachinePaths, NicSpec, Tap, command_line};
use crate::nics::{LentTap, tap_files, vhost_files};
use crate::qmp::{Events, Qmp, QmpError};
use crate::saved_state::STATE_FILE;
use crate::single_flight::SingleFlight;
use answers::answers;
pub(super) use confine::{hidden_without, ruleset_of_program};
pub(super) use prepare::locked_memory;
use prepare::{Prepared, give, may_have_vhost};

/// From SIGKILL until the process must have ended.
const KILL_LIMIT: Duration = Duration::from_secs(30);
/// How long a guest that has just started yields the CPUs to machines that are being started.
const YOUNG: Duration = Duration::from_secs(10);
/// How often to retry the removal of an ended machine's cgroup, and the delay in between.
const SWEEPS: u32 = 50;
const SWEEP_PAUSE: Duration = Duration::from_millis(20);
/// The users that distributions create for QEMU, best first.
const USERS: [&str; 4] = ["berth-qemu", "libvirt-qemu", "qemu", "nobody"];

/// Whether a user id is that of an instance's QEMU.
type IsOwner = dyn Fn(&str, u32) -> bool + Send + Sync;

/// Decides whether a process of this user may belong to an instance: a command line alone can claim anything.
#[derive(Clone)]
pub struct Claims(Arc<IsOwner>);

impl Claims {
    pub fn new(are_true: impl Fn(&str, u32) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(are_true))
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Claims")
    }
}

/// Runs QEMU processes on this machine.
#[derive(Clone, Debug)]
pub struct LocalHypervisor {
    binary: PathBuf,
    run_as: Option<RunAs>,
    claims: Option<Claims>,
    cgroups: Cgroups,
    /// Coalesces scans of all processes: launching a hundred machines at once looks for each of them.
    scans: Arc<SingleFlight<Arc<Vec<SeenQemu>>>>,
}

impl RunAs {
    /// Returns the first existing QEMU user; None if the caller is not root and so has no choice.
    pub fn default_user() -> Option<Self> {
        if !Uid::effective().is_root() {
            return None;
        }
        let user = USERS.iter().find_map(|name| User::from_name(name).ok().flatten())?;
        Some(Self { uid: user.uid.as_raw(), gid: user.gid.as_raw() })
    }
}

impl LocalHypervisor {
    /// Uses the installed QEMU, an unprivileged user and the available cgroups.
    pub fn discover() -> Result<Self, LaunchError> {
        Ok(Self::at(find_binary(Architecture::of_host())?))
    }

    /// Does the same as [`LocalHypervisor::discover`] for a QEMU elsewhere.
    pub fn at(binary: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            run_as: RunAs::default_user(),
            claims: None,
            cgroups: Cgroups::detect(),
            scans: Arc::default(),
        }
    }

    /// Sets the user that QEMU runs as if a machine's description specifies none.
    pub fn with_run_as(mut self, run_as: Option<RunAs>) -> Self {
        self.run_as = run_as;
        self
    }

    /// Sets the check of which user's processes may belong to which instance. Default: the caller's user and the
    /// default user.
    pub fn with_claims(mut self, claims: Claims) -> Self {
        self.claims = Some(claims);
        self
    }

    pub fn with_cgroups(mut self, cgroups: Cgroups) -> Self {
        self.cgroups = cgroups;
        self
    }

    pub fn run_as(&self) -> Option<&RunAs> {
        self.run_as.as_ref()
    }

    /// Returns the QEMU for a machine: the one of this hypervisor, or that for guests of another architecture.
    fn binary_for(&self, spec: &LaunchSpec) -> Result<PathBuf, LaunchError> {
        let architecture = spec.machine.architecture();
        if architecture == Architecture::of_host() {
            Ok(self.binary.clone())
        } else {
            find_binary(architecture)
        }
    }

    fn user_of(&self, spec: &LaunchSpec) -> Option<RunAs> {
        spec.files.confinement.as_ref().map(|confinement| confinement.user).or(self.run_as)
    }

    /// Starts QEMU, and before it the emulator of its TPM and the servers of its shares, if it has some.
    fn spawn(&self, spec: &LaunchSpec, limits: Limits) -> Result<Spawned, LaunchError> {
        let Prepared { spec, stderr, inherited, keys, ruleset, tpm_ruleset } = self.prepare(spec)?;
        let entrances = self.cgroups.prepare(&spec.machine.instance, limits);
        let group = match spec.machine.accelerator {
            Accelerator::Kvm => kvm_group(),
            Accelerator::Tcg { .. } => None,
        };
        let args = command_line(&spec);
        let hidden = if spec.files.confinement.is_some() { self.hidden(&spec) } else { Vec::new() };
        let locked = locked_memory(&spec).map(|bytes| (libc::RLIMIT_MEMLOCK, bytes));
        let cgroups = &entrances.files;
        let cell = launch::Cell {
            run_as: self.user_of(&spec),
            ruleset: ruleset.as_ref(),
            hidden,
            group,
            cgroups,
            limits: locked.as_slice(),
            cpus: affinity::emulator(&spec.affinity).map_err(LaunchError::Affinity)?,
            name: None,
            folder: None,
            has_network: spec.machine.needs_network(),
        };
        let mut helpers = Vec::new();
        if let Some(files) = &spec.files.tpm {
            let ruleset = tpm_ruleset.as_ref();
            let cell = launch::Cell { ruleset, group: None, limits: &[], has_network: false, ..cell.clone() };
            let log = &spec.files.paths.stderr_log;
            let stderr =
                stderr.try_clone().map_err(|source| LaunchError::Prepare { path: log.clone(), source })?;
            helpers.push(swtpm::start(files, &spec.files.paths.tpm, stderr, &cell)?);
        }
        if let Some(files) = &spec.files.virtiofs {
            // Only root reads and writes files of all owners.
            let cell = launch::Cell { run_as: None, ruleset: None, group: None, limits: &[], ..cell.clone() };
            match virtiofsd::start(files, &spec.files.paths, self.user_of(&spec), &stderr, &cell) {
                Ok(servers) => helpers.extend(servers),
                Err(error) => {
                    helper::end_now(helpers);
                    return Err(error);
                }
            }
        }
        match launch::spawn(&self.binary, &args, stderr, &inherited, &cell) {
            Ok(qemu) => Ok(Spawned { qemu, helpers, keys }),
            Err(error) => {
                helper::end_now(helpers);
                Err(match (error, locked) {
                    (LaunchError::Spawn { source, .. }, Some((_, bytes)))
                        if source.kind() == io::ErrorKind::PermissionDenied =>
                    {
                        LaunchError::LockMemory { bytes, source }
                    }
                    (error, _) => error,
                })
            }
        }
    }

    /// Removes the cgroups of ended machines. One that stays busy is removed after the next machine ends.
    async fn sweep(&self) {
        for _ in 0..SWEEPS {
            if !self.cgroups.sweep() {
                return;
            }
            tokio::time::sleep(SWEEP_PAUSE).await;
        }
        tracing::debug!("a cgroup without a process is still busy");
    }

    /// Lists every QEMU. The instance of each is only its claim: to verify those of all takes longer than the list.
    async fn scan(&self) -> Result<Arc<Vec<SeenQemu>>, ProcessError> {
        let scan = async { Ok(Arc::new(off_the_async_threads(seen_qemus).await?)) };
        self.scans.share(scan).await
    }

    /// Whether a process of this user may be of the instance that it claims.
    fn is_ours(&self, claimed: Option<&str>, uid: u32) -> bool {
        // Any user can imitate a command line, but not run as these users.
        match (&self.claims, claimed) {
            (Some(claims), Some(instance)) => (claims.0)(instance, uid),
            (Some(_), None) => false,
            (None, _) => {
                let user = self.run_as.as_ref().map(|u| u.uid);
                uid == Uid::effective().as_raw() || Some(uid) == user
            }
        }
    }
}

/// *Panics*: if the closure panics.
async fn off_the_async_threads<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// A QEMU that was started.
struct Spawned {
    qemu: Child,
    helpers: Vec<Child>,
    /// The files in memory that it reads the keys of its disks from.
    keys: Vec<File>,
}

/// The group that may use KVM, unless it is root's.
fn kvm_group() -> Option<u32> {
    std::fs::metadata("/dev/kvm").ok().map(|m| m.gid()).filter(|gid| *gid != 0)
}

#[async_trait]
impl Hypervisor for LocalHypervisor {
    async fn launch(&self, spec: &LaunchSpec, limits: Limits) -> Result<ProcessIdentity, LaunchError> {
        spec.validate()?;
        // As long as that is not known, it may run: no second one is started.
        let unknown = |error: ProcessError| {
            let source = io::Error::other(error);
            LaunchError::Prepare { path: spec.files.paths.directory.clone(), source }
        };
        if let Some(other) = self.find(&spec.machine.instance).await.map_err(unknown)? {
            return Err(LaunchError::AlreadyRunning {
                instance: spec.machine.instance.clone(),
                pid: other.pid,
            });
        }
        if let Some(tpm) = &spec.files.tpm {
            // Two of them must not write one TPM's memory.
            let failed =
                |error| LaunchError::Prepare { path: tpm.state.clone(), source: io::Error::other(error) };
            swtpm::end(&tpm.state).await.map_err(failed)?;
        }
        if spec.files.virtiofs.is_some() {
            let directory = &spec.files.paths.directory;
            let failed =
                |error| LaunchError::Prepare { path: directory.clone(), source: io::Error::other(error) };
            virtiofsd::end(directory).await.map_err(failed)?;
        }
        let this = Self { binary: self.binary_for(spec)?, ..self.clone() };
        let owned = spec.clone();
        let spawned = tokio::task::spawn_blocking(move || this.spawn(&owned, limits)).await;
        let Spawned { qemu: mut child, helpers, keys } =
            spawned.map_err(|e| LaunchError::Spawn { binary: self.binary.clone(), source: e.into() })??;
        let answered = answers(&mut child, spec).await;
        // It has read the keys, and keeps the descriptors: they are empty before a disk is unplugged.
        key_file::empty(&keys);
        let bound = answered.and_then(|identity| {
            let bound = affinity::bind_vcpus(identity.pid, &spec.affinity.vcpus);
            bound.map(|()| identity).map_err(LaunchError::Affinity)
        });
        match bound {
            Ok(identity) => {
                helpers.into_iter().for_each(helper::reap_later);
                Ok(identity)
            }
            Err(error) => {
                // It has ended already, or is about to.
                let _ = child.kill();
                let ended = move || {
                    let _ = child.wait();
                    helper::end_now(helpers);
                };
                let _ = tokio::task::spawn_blocking(ended).await;
                self.sweep().await;
                Err(error)
            }
        }
    }

    async fn cpu_time(&self, instance: &str) -> Result<CpuTime, ProcessError> {
        self.cgroups.cpu_time(instance)
    }

    async fn set_cpu_time(&self, instance: &str, time: CpuTime) -> Result<(), ProcessError> {
        self.cgroups.set_cpu_time(instance, time)
    }

    async fn oom_kills(&self, instance: &str) -> u64 {
        self.cgroups.oom_kills(instance)
    }

    async fn set_oom_preference(
        &self,
        process: &ProcessIdentity,
        preference: u16,
    ) -> Result<(), ProcessError> {
        if !identity::is_alive(process)? {
            return Ok(());
        }
        let pid = process.pid;
        oom::prefer(pid, preference).map_err(|source| ProcessError::OomPreference { pid, source })
    }

    async fn mark_started(&self, instance: &str, just_now: bool) {
        if !just_now {
            return self.cgroups.give(instance, Share::Running);
        }
        self.cgroups.give(instance, Share::Young);
        let (cgroups, instance) = (self.cgroups.clone(), instance.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(YOUNG).await;
            cgroups.give(&instance, Share::Running);
        });
    }

    /// Lists every QEMU, with `instance` cleared for processes that only claim to be berth's.
    async fn list(&self) -> Result<Vec<FoundQemu>, ProcessError> {
        let (this, seen) = (self.clone(), self.scan().await?);
        let verify = move || {
            let mut all = Vec::new();
            for seen in seen.iter() {
                let Some(mut found) = seen.found()? else { continue };
                if !this.is_ours(found.instance.as_deref(), found.uid) {
                    found.instance = None;
                }
                all.push(found);
            }
            Ok::<_, ProcessError>(all)
        };
        off_the_async_threads(verify).await
    }

    async fn find(&self, instance: &str) -> Result<Option<ProcessIdentity>, ProcessError> {
        let seen = self.scan().await?;
        for qemu in seen.iter().filter(|qemu| qemu.instance.as_deref() == Some(instance)) {
            if self.is_ours(Some(instance), qemu.uid())
                && let Some(identity) = qemu.identity()?
            {
                return Ok(Some(identity));
            }
        }
        Ok(None)
    }

    async fn is_alive(&self, process: &ProcessIdentity) -> Result<bool, ProcessError> {
        identity::is_alive(process)
    }

    async fn process_state(&self, process: &ProcessIdentity) -> Result<Option<ProcessState>, ProcessError> {
        identity::state(process)
    }

    async fn exited(&self, process: &ProcessIdentity) -> Result<(), ProcessError> {
        if let Some(fd) = PidFd::open(process)? {
            fd.ended(process.pid).await?;
            identity::reap(process.pid);
        }
        self.sweep().await;
        Ok(())
    }

    async fn kill(&self, process: &ProcessIdentity, grace: Duration) -> Result<(), ProcessError> {
        let Some(fd) = PidFd::open(process)? else {
            self.sweep().await;
            return Ok(());
        };
        for (signal, limit) in [(Signal::SIGTERM, grace), (Signal::SIGKILL, KILL_LIMIT)] {
            if !fd.signal(process.pid, signal)? {
                break;
            }
            if let Ok(ended) = tokio::time::timeout(limit, fd.ended(process.pid)).await {
                ended?;
                break;
            }
        }
        if identity::is_alive(process)? {
            return Err(ProcessError::Unkillable { pid: process.pid, after: KILL_LIMIT });
        }
        self.sweep().await;
        Ok(())
    }

    async fn connect(&self, paths: &MachinePaths) -> Result<(Qmp, Events), QmpError> {
        Qmp::connect(&paths.qmp).await
    }

    async fn guest_agent(&self, paths: &MachinePaths) -> Result<GuestAgent, GuestAgentError> {
        GuestAgent::connect(&paths.guest_agent).await
    }

    async fn serial(&self, paths: &MachinePaths) -> io::Result<ConsoleStream> {
        ConsoleStream::connect(&paths.serial_socket).await
    }

    async fn vnc(&self, paths: &MachinePaths) -> io::Result<ConsoleStream> {
        ConsoleStream::connect(&paths.vnc).await
    }

    async fn end_tpm(&self, state: &Path) -> Result<(), ProcessError> {
        swtpm::end(state).await
    }

    async fn end_shares(&self, directory: &Path) -> Result<(), ProcessError> {
        virtiofsd::end(directory).await
    }

    async fn lend_state(&self, qmp: &Qmp, _: &MachinePaths, file: StateFile<'_>) -> Result<(), LendError> {
        let opened = match file {
            StateFile::Empty(path) => log::open_state(path),
            StateFile::Saved(path) => log::open_saved(path),
        };
        let path = file.path().to_owned();
        let opened = opened.map_err(|source| LendError::Open { path, source })?;
        qmp.give_file(STATE_FILE, opened.into()).await.map_err(LendError::Pass)
    }

    async fn lend_channel(&self, qmp: &Qmp, _: &MachinePaths) -> Result<ConsoleStream, LendError> {
        let (ours, of_qemu) = std::os::unix::net::UnixStream::pair().map_err(LendError::Channel)?;
        ours.set_nonblocking(true).map_err(LendError::Channel)?;
        let ours = tokio::net::UnixStream::from_std(ours).map_err(LendError::Channel)?;
        qmp.give_file(CHANNEL, of_qemu.into()).await.map_err(LendError::Pass)?;
        Ok(ConsoleStream::over(ours))
    }

    async fn lend_tap(&self, qmp: &Qmp, _: &MachinePaths, nic: &NicSpec) -> Result<LentTap, LendError> {
        let Tap::Name(name) = &nic.tap else { return Ok(LentTap { vhost: false }) };
        let taps =
            tap::open(name, nic.queues).map_err(|source| LendError::Tap { name: name.clone(), source })?;
        let accelerator = qmp.execute("query-kvm", serde_json::Value::Null).await.map_err(LendError::Pass)?;
        // As for the cards of the start.
        let has_vhost = may_have_vhost(nic) && accelerator["enabled"] == true;
        let vhosts = if has_vhost { tap::open_vhosts(nic.queues) } else { Vec::new() };
        let lent = LentTap { vhost: !vhosts.is_empty() };
        let taps = tap_files(&nic.id, nic.queues).zip(taps);
        for (name, file) in taps.chain(vhost_files(&nic.id, nic.queues).zip(vhosts)) {
            qmp.give_file(&name, file.into()).await.map_err(LendError::Pass)?;
        }
        Ok(lent)
    }

    async fn grant(&self, file: &Path, writable: bool) -> Result<(), ProcessError> {
        give(file, writable, self.run_as.as_ref())
            .map_err(|source| ProcessError::Grant { path: file.to_owned(), source })
    }
}
