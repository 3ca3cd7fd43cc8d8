//! The hypervisor of this machine.

use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::Signal;
use nix::unistd::{Uid, User};
use tokio::time::Instant;

use super::cgroup::Share;
use super::key_file::{self, key_file};
use super::landlock::{Reach, Ruleset};
use super::pidfd::PidFd;
use super::vfork::Child;
use super::{
    Cgroups, LaunchError, ProcessError, ProcessIdentity, RunAs, affinity, helper, identity, last_lines,
    launch, list_qemu, log, oom, swtpm, tap, virtiofsd, vsock,
};
use crate::console::ConsoleStream;
use crate::guest_agent::{GuestAgent, GuestAgentError};
use crate::hypervisor::{CpuTime, FoundQemu, Hypervisor, LendError, Limits, ProcessState, StateFile};
use crate::installation::find_binary;
use crate::machine::{
    Accelerator, LaunchSpec, MachinePaths, NicModel, NicSpec, RbdImage, Tap, UefiFiles, command_line,
};
use crate::nics::{LentTap, tap_files, vhost_files};
use crate::qmp::{Events, Qmp, QmpError};
use crate::saved_state::STATE_FILE;
use crate::single_flight::SingleFlight;

/// From the start of the process until its monitor must reply. A hundred at once on two cores need 8 s.
const LAUNCH_LIMIT: Duration = Duration::from_secs(60);
/// Between two attempts to connect to the monitor of a QEMU that has just been started.
const SHORTEST_PAUSE: Duration = Duration::from_millis(4);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// From SIGKILL until the process must have ended.
const KILL_LIMIT: Duration = Duration::from_secs(30);
const STDERR_LINES: usize = 20;
const STDERR_BYTES: u64 = 8 << 10;
/// How long a guest that has just started yields the CPUs to machines that are being started.
const YOUNG: Duration = Duration::from_secs(10);
/// How often to retry the removal of an ended machine's cgroup, and the delay in between.
const SWEEPS: u32 = 50;
const SWEEP_PAUSE: Duration = Duration::from_millis(20);
/// The users that distributions create for QEMU, best first.
const USERS: [&str; 4] = ["berth-qemu", "libvirt-qemu", "qemu", "nobody"];

/// The host directories that every QEMU needs: programs, libraries and firmware.
const PROGRAMS: [&str; 5] = ["/usr", "/lib", "/lib32", "/lib64", "/bin"];
/// Files read by the dynamic linker, the C library, the TLS libraries, and QEMU before it maps memory without a reservation.
const SETTINGS: [&str; 5] = [
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/proc/sys/crypto",
    "/proc/sys/vm/overcommit_memory",
    "/sys/kernel/mm",
];
const DEVICES: [&str; 4] = ["/dev/null", "/dev/kvm", "/dev/random", "/dev/urandom"];

/// The memory that a QEMU with PCI devices of the host may lock besides its guest's, in bytes.
const LOCKED_BESIDE_THE_GUEST: u64 = 1 << 30;

/// Directories with the sockets of services and with other files of people and programs. Hidden from QEMU, unless they
/// contain a file it needs.
const HIDDEN: [&str; 5] = ["/run", "/tmp", "/var/tmp", "/home", "/root"];

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
    scans: Arc<SingleFlight<Arc<Vec<FoundQemu>>>>,
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
        Ok(Self::at(find_binary()?))
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

    /// Prepares directories, ownership and taps before the process starts.
    fn prepare(&self, spec: &LaunchSpec) -> Result<Prepared, LaunchError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| LaunchError::Prepare { path, source }
        };
        let directory = &spec.files.paths.directory;
        std::fs::create_dir_all(directory).map_err(failed(directory))?;
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700)).map_err(failed(directory))?;
        let user = self.user_of(spec);
        if let Some(user) = user {
            chown(directory, Some(user.uid), Some(user.gid)).map_err(failed(directory))?;
        }
        for (file, writable) in files(spec) {
            give(file, writable, user.as_ref()).map_err(failed(file))?;
        }
        let stderr =
            log::open_log(&spec.files.paths.stderr_log).map_err(failed(&spec.files.paths.stderr_log))?;
        stderr.set_len(0).map_err(failed(&spec.files.paths.stderr_log))?;
        for path in serial_logs(spec) {
            let serial = log::open_log(&path).map_err(failed(&path))?;
            if let Some(user) = user {
                // Owned by root, with append access for QEMU: an owner could write anywhere in the file, and rename it.
                let owner = Uid::effective().as_raw();
                fchown(&serial, Some(owner), Some(user.gid)).map_err(failed(&path))?;
                let mode = std::fs::Permissions::from_mode(0o620);
                serial.set_permissions(mode).map_err(failed(&path))?;
            }
        }
        for node in spec.files.vfio_groups.iter().chain(&spec.files.usb_nodes) {
            give(node, true, user.as_ref()).map_err(failed(node))?;
        }
        let (mut ruleset, mut tpm_ruleset) = (None, None);
        if let Some(tpm) = &spec.files.tpm {
            swtpm::prepare(tpm, user)?;
        }
        if spec.files.confinement.is_some() {
            ruleset = self.ruleset(spec).map_err(LaunchError::Confine)?;
            tpm_ruleset = tpm_ruleset_of(spec).map_err(LaunchError::Confine)?;
        }
        let mut spec = spec.clone();
        let (mut inherited, mut keys) = (Vec::new(), Vec::new());
        for nic in &mut spec.machine.nics {
            if let Tap::Name(name) = &nic.tap {
                let queues = tap::open(name, nic.queues)
                    .map_err(|source| LaunchError::Tap { name: name.clone(), source })?;
                // Only virtio has it. It notifies by KVM's event descriptors: emulated guests gain nothing.
                let has_vhost = may_have_vhost(nic) && spec.machine.accelerator == Accelerator::Kvm;
                let vhosts = if has_vhost { tap::open_vhosts(nic.queues) } else { Vec::new() };
                let numbers = |files: &[File]| files.iter().map(AsRawFd::as_raw_fd).collect();
                nic.tap = Tap::Open { taps: numbers(&queues), vhosts: numbers(&vhosts) };
                inherited.extend(queues);
                inherited.extend(vhosts);
            }
        }
        if let Some(cid) = spec.machine.extras.vsock_cid {
            let device = vsock::open_with(cid).map_err(|source| LaunchError::Vsock { cid, source })?;
            spec.files.vsock_file = Some(device.as_raw_fd());
            inherited.push(device);
        }
        for (disk, key) in std::mem::take(&mut spec.files.keys) {
            let file = key_file(&key).map_err(failed(Path::new("memory")))?;
            let lent = file.try_clone().map_err(failed(Path::new("memory")))?;
            spec.files.key_files.insert(disk, lent.as_raw_fd());
            inherited.push(lent);
            keys.push(file);
        }
        Ok(Prepared { spec, stderr, inherited, keys, ruleset, tpm_ruleset })
    }

    fn user_of(&self, spec: &LaunchSpec) -> Option<RunAs> {
        spec.files.confinement.as_ref().map(|confinement| confinement.user).or(self.run_as)
    }

    /// The files that the machine's QEMU can open: programs, its own directories, and files passed by name.
    fn ruleset(&self, spec: &LaunchSpec) -> io::Result<Option<Ruleset>> {
        let Some(ruleset) = ruleset_of_program(&self.binary)? else { return Ok(None) };
        ruleset.allow(&spec.files.paths.directory, Reach::Own)?;
        for log in serial_logs(spec) {
            ruleset.allow(&log, Reach::Write)?;
        }
        for folder in spec.files.confinement.iter().flat_map(|confinement| &confinement.folders) {
            ruleset.allow(folder, Reach::Write)?;
        }
        for (file, writable) in files(spec) {
            ruleset.allow(file, if writable { Reach::Write } else { Reach::Read })?;
        }
        if let Some(UefiFiles { code, .. }) = &spec.files.uefi {
            ruleset.allow(code, Reach::Read)?;
        }
        for group in &spec.files.vfio_groups {
            ruleset.allow(group, Reach::Write)?;
            // The container of all groups is beside them.
            ruleset.allow(&group.with_file_name("vfio"), Reach::Write)?;
        }
        for node in &spec.files.usb_nodes {
            ruleset.allow(node, Reach::Write)?;
        }
        Ok(Some(ruleset))
    }

    fn hidden(&self, spec: &LaunchSpec) -> Vec<CString> {
        let mut needed = vec![self.binary.as_path(), &spec.files.paths.directory];
        needed.extend(spec.files.confinement.iter().flat_map(|c| &c.folders).map(PathBuf::as_path));
        needed.extend(files(spec).into_iter().map(|(file, _)| file));
        needed.extend(spec.files.tpm.iter().flat_map(|tpm| [tpm.program.as_path(), &tpm.state]));
        if let Some(UefiFiles { code, .. }) = &spec.files.uefi {
            needed.push(code);
        }
        hidden_without(&needed)
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

    /// Lists every QEMU, with `instance` cleared for processes that only claim to be berth's.
    async fn scan(&self) -> Result<Arc<Vec<FoundQemu>>, ProcessError> {
        let scan = async {
            let this = self.clone();
            let scanned = tokio::task::spawn_blocking(move || {
                let mut found = list_qemu()?;
                for qemu in &mut found {
                    if !this.is_ours(qemu) {
                        qemu.instance = None;
                    }
                }
                Ok(found)
            });
            let found =
                scanned.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
            Ok(Arc::new(found))
        };
        self.scans.share(scan).await
    }

    fn is_ours(&self, found: &FoundQemu) -> bool {
        // Any user can imitate a command line, but not run as these users.
        match (&self.claims, &found.instance) {
            (Some(claims), Some(instance)) => (claims.0)(instance, found.uid),
            (Some(_), None) => false,
            (None, _) => {
                let user = self.run_as.as_ref().map(|u| u.uid);
                found.uid == Uid::effective().as_raw() || Some(found.uid) == user
            }
        }
    }
}

struct Prepared {
    spec: LaunchSpec,
    stderr: File,
    /// The taps of its network cards, its vsock device, and the keys of its disks.
    inherited: Vec<File>,
    /// The same files in memory with the keys.
    keys: Vec<File>,
    ruleset: Option<Ruleset>,
    tpm_ruleset: Option<Ruleset>,
}

/// A QEMU that was started.
struct Spawned {
    qemu: Child,
    helpers: Vec<Child>,
    /// The files in memory that it reads the keys of its disks from.
    keys: Vec<File>,
}

/// Returns the directories to hide from a program that needs these files.
pub(super) fn hidden_without(needed: &[&Path]) -> Vec<CString> {
    // A symbolic link may lead into one of them.
    let needed: Vec<PathBuf> = needed
        .iter()
        .flat_map(|path| [Some(path.to_path_buf()), path.canonicalize().ok()])
        .flatten()
        .collect();
    let mut hidden = Vec::new();
    for folder in HIDDEN.map(Path::new) {
        // A symbolic link, such as /var/run, points to another directory.
        let is_folder = std::fs::symlink_metadata(folder).is_ok_and(|m| m.is_dir());
        if is_folder && !needed.iter().any(|path| path.starts_with(folder)) {
            hidden.extend(CString::new(folder.as_os_str().as_encoded_bytes()));
        }
    }
    hidden
}

/// Allows the files that every program opens: itself, libraries, settings and devices.
pub(super) fn ruleset_of_program(binary: &Path) -> io::Result<Option<Ruleset>> {
    let Some(ruleset) = Ruleset::new()? else {
        tracing::debug!("this kernel has no Landlock: QEMU is confined by users and modes of files alone");
        return Ok(None);
    };
    for path in PROGRAMS {
        ruleset.allow(Path::new(path), Reach::Run)?;
    }
    // If programs are installed elsewhere, their libraries are next to them. The path of a running program can be gone:
    // its file was replaced.
    let binary = binary.canonicalize().or_else(|_| std::fs::read_link(binary))?;
    let top: PathBuf = binary.components().take(2).collect();
    ruleset.allow(if top == binary { &binary } else { &top }, Reach::Run)?;
    for path in SETTINGS {
        ruleset.allow(Path::new(path), Reach::Read)?;
    }
    for path in DEVICES {
        ruleset.allow(Path::new(path), Reach::Write)?;
    }
    Ok(Some(ruleset))
}

fn tpm_ruleset_of(spec: &LaunchSpec) -> io::Result<Option<Ruleset>> {
    let Some(files) = &spec.files.tpm else { return Ok(None) };
    let Some(ruleset) = ruleset_of_program(&files.program)? else { return Ok(None) };
    swtpm::allow(&ruleset, files)?;
    Ok(Some(ruleset))
}

/// The logs of the machine's serial ports.
fn serial_logs(spec: &LaunchSpec) -> Vec<PathBuf> {
    spec.machine.serial_ports().map(|number| spec.files.paths.serial_port(number).1).collect()
}

/// Lists the files that the machine opens, and whether it writes to them.
fn files(spec: &LaunchSpec) -> Vec<(&Path, bool)> {
    let mut files = Vec::new();
    for disk in &spec.machine.disks {
        files.extend(disk.backing.as_ref().map(|b| (b.file.as_path(), false)));
        // An image of Ceph is no file; those by which it is reached are in the folder of the instance.
        if !RbdImage::is_rbd(&disk.file) {
            files.push((disk.file.as_path(), !disk.read_only));
        }
    }
    let media = spec.machine.cdroms.iter().flat_map(|cdrom| &cdrom.medium);
    files.extend(media.map(|medium| (medium.file.as_path(), false)));
    let volumes = [&spec.files.seed, &spec.files.sysprep];
    files.extend(volumes.into_iter().flatten().map(|volume| (volume.as_path(), false)));
    files.extend(spec.files.fw_cfg.iter().map(|f| (f.file.as_path(), false)));
    if let Some(UefiFiles { vars, .. }) = &spec.files.uefi {
        files.push((vars, true));
    }
    files
}

/// The memory that QEMU locks for PCI devices of the host, which reach all of the guest's memory, in bytes: the most that the guest can
/// have, and room for the firmware and the memory of devices. None: it locks none.
pub(super) fn locked_memory(spec: &LaunchSpec) -> Option<u64> {
    let machine = &spec.machine;
    let most = machine.max_memory_bytes.unwrap_or(machine.memory_bytes);
    (!spec.files.vfio_groups.is_empty()).then(|| most.saturating_add(LOCKED_BESIDE_THE_GUEST))
}

/// Writable: QEMU's user becomes the owner. Read-only: the owner stays, QEMU's group may read it.
fn give(file: &Path, writable: bool, user: Option<&RunAs>) -> io::Result<()> {
    let metadata = std::fs::symlink_metadata(file)?;
    if metadata.file_type().is_symlink() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a symbolic link, which is not followed"));
    }
    let Some(user) = user else { return Ok(()) };
    let mode = metadata.mode() & 0o777;
    let (owner, wanted) = if writable { (Some(user.uid), mode | 0o600) } else { (None, mode | 0o440) };
    // World-readable files (a system's firmware, for example) are left unchanged.
    if !writable && mode & 0o004 != 0 {
        return Ok(());
    }
    chown(file, owner, Some(user.gid))?;
    std::fs::set_permissions(file, PermissionsExt::from_mode(wanted))
}

/// The group that may use KVM, unless it is root's.
fn kvm_group() -> Option<u32> {
    std::fs::metadata("/dev/kvm").ok().map(|m| m.gid()).filter(|gid| *gid != 0)
}

#[async_trait]
impl Hypervisor for LocalHypervisor {
    async fn launch(&self, spec: &LaunchSpec, limits: Limits) -> Result<ProcessIdentity, LaunchError> {
        spec.validate()?;
        if let Ok(Some(other)) = self.find(&spec.machine.instance).await {
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
        let (this, owned) = (self.clone(), spec.clone());
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

    async fn list(&self) -> Result<Vec<FoundQemu>, ProcessError> {
        Ok(self.scan().await?.to_vec())
    }

    async fn find(&self, instance: &str) -> Result<Option<ProcessIdentity>, ProcessError> {
        let all = self.scan().await?;
        Ok(all.iter().find(|q| q.instance.as_deref() == Some(instance)).map(|q| q.identity.clone()))
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

/// Whether the host's kernel can move the packets of the card, and may.
fn may_have_vhost(nic: &NicSpec) -> bool {
    nic.model == NicModel::Virtio && !nic.no_vhost
}

/// QEMU's end at its start. It cannot map memory for which there are no pages, or has a fault when it writes to them.
fn exited(spec: &LaunchSpec, status: String, stderr: String) -> LaunchError {
    let is_memory = ["backing store for guest RAM", "preallocat", "hugetlb", "memfd"]
        .iter()
        .any(|part| stderr.contains(part));
    match spec.machine.huge_page_bytes {
        Some(page) if is_memory => LaunchError::HugePages { page, stderr },
        _ => LaunchError::Exited { status, stderr },
    }
}

/// Returns the pause before the next attempt to connect: an eighth of the time that has passed, so that a monitor is found soon after it is
/// there, and a hundred that take seconds cost few attempts.
fn pause_after(passed: Duration) -> Duration {
    (passed / 8).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// Waits until the monitor replies, or QEMU has failed.
async fn answers(child: &mut Child, spec: &LaunchSpec) -> Result<ProcessIdentity, LaunchError> {
    let pid = child.pid();
    let begun = Instant::now();
    let deadline = begun + LAUNCH_LIMIT;
    let words = || last_lines(&spec.files.paths.stderr_log, STDERR_LINES, STDERR_BYTES).unwrap_or_default();
    loop {
        let attempt = async {
            let stream = tokio::net::UnixStream::connect(&spec.files.paths.qmp).await.ok()?;
            Some(Qmp::over_within(stream, deadline - Instant::now()).await)
        };
        // If QEMU ends before it serves an accepted connection, the attempt ends with it.
        let outcome = attempt.await;
        if let Ok(Some(status)) = child.try_wait() {
            return Err(exited(spec, status.to_string(), words()));
        }
        match outcome {
            Some(Ok(_)) => break,
            _ if Instant::now() >= deadline => {
                return Err(LaunchError::Unresponsive { after: LAUNCH_LIMIT, stderr: words() });
            }
            _ => {}
        }
        tokio::time::sleep(pause_after(begun.elapsed())).await;
    }
    match identity::of(pid) {
        Ok(Some(identity)) => Ok(identity),
        _ => Err(LaunchError::Exited { status: "just after its start".to_owned(), stderr: words() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_attempts_find_a_monitor_soon_after_it_is_there() {
        let (mut passed, mut attempts) = (Duration::ZERO, 0);
        while passed < Duration::from_secs(4) {
            let pause = pause_after(passed);
            assert!(pause <= (passed / 8).max(SHORTEST_PAUSE), "{passed:?}");
            passed += pause;
            attempts += 1;
        }
        assert!(attempts < 120, "{attempts}");
    }
}
