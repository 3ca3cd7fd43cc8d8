//! The hypervisor of this machine.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::Signal;
use nix::unistd::{Uid, User};
use tokio::time::Instant;

use super::cgroup::Share;
use super::pidfd::PidFd;
use super::{
    Cgroups, LaunchError, ProcessError, ProcessIdentity, RunAs, identity, last_lines, launch, list_qemu, tap,
};
use crate::guest_agent::{GuestAgent, GuestAgentError};
use crate::hypervisor::{FoundQemu, Hypervisor, Limits};
use crate::installation::find_binary;
use crate::machine::{Accelerator, Firmware, MachinePaths, MachineSpec, Tap, command_line};
use crate::passes::Passes;
use crate::qmp::{Events, Qmp, QmpError};

/// From the start of the process until its monitor must answer. A hundred at once on two cores need 8 s.
const LAUNCH_LIMIT: Duration = Duration::from_secs(60);
/// From SIGKILL until the process must be gone.
const KILL_LIMIT: Duration = Duration::from_secs(30);
const STDERR_LINES: usize = 20;
const STDERR_BYTES: u64 = 8 << 10;
/// How long a guest that has begun leaves the processors to machines that are being started.
const YOUNG: Duration = Duration::from_secs(10);
/// How often the cgroup of a machine that has just ended is tried to be removed, and how long is waited in between.
const SWEEPS: u32 = 50;
const SWEEP_PAUSE: Duration = Duration::from_millis(20);
/// Users distributions make for QEMU, best first.
const USERS: [&str; 4] = ["berth-qemu", "libvirt-qemu", "qemu", "nobody"];

/// Runs QEMU as processes of this machine.
#[derive(Clone, Debug)]
pub struct LocalHypervisor {
    binary: PathBuf,
    run_as: Option<RunAs>,
    cgroups: Cgroups,
    /// Looks at all processes of the host: whoever starts a hundred machines at once looks for each of them.
    scans: Arc<Passes<Arc<Vec<FoundQemu>>>>,
}

impl RunAs {
    /// The first of the users there are for QEMU; None when we are not root and have no choice.
    pub fn default_user() -> Option<Self> {
        if !Uid::effective().is_root() {
            return None;
        }
        let user = USERS.iter().find_map(|name| User::from_name(name).ok().flatten())?;
        Some(Self { uid: user.uid.as_raw(), gid: user.gid.as_raw() })
    }
}

impl LocalHypervisor {
    /// With the QEMU that is installed, an unprivileged user and the cgroups there are.
    pub fn discover() -> Result<Self, LaunchError> {
        Ok(Self::at(find_binary()?))
    }

    /// [`LocalHypervisor::discover`] for a QEMU elsewhere.
    pub fn at(binary: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            run_as: RunAs::default_user(),
            cgroups: Cgroups::detect(),
            scans: Arc::default(),
        }
    }

    pub fn with_run_as(mut self, run_as: Option<RunAs>) -> Self {
        self.run_as = run_as;
        self
    }

    pub fn with_cgroups(mut self, cgroups: Cgroups) -> Self {
        self.cgroups = cgroups;
        self
    }

    pub fn run_as(&self) -> Option<&RunAs> {
        self.run_as.as_ref()
    }

    /// Directories, ownership, taps: all that has to be there before the process.
    fn prepare(&self, spec: &MachineSpec) -> Result<Prepared, LaunchError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| LaunchError::Prepare { path, source }
        };
        let directory = &spec.paths.directory;
        std::fs::create_dir_all(directory).map_err(failed(directory))?;
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700)).map_err(failed(directory))?;
        if let Some(user) = &self.run_as {
            chown(directory, Some(user.uid), Some(user.gid)).map_err(failed(directory))?;
        }
        for (file, writable) in files(spec) {
            give(file, writable, self.run_as.as_ref()).map_err(failed(file))?;
        }
        // Without O_NOFOLLOW the owner of the directory could have us write anywhere.
        let stderr = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o640)
            .custom_flags(libc::O_NOFOLLOW | libc::O_APPEND)
            .open(&spec.paths.stderr_log)
            .map_err(failed(&spec.paths.stderr_log))?;
        let mut spec = spec.clone();
        let mut taps = Vec::new();
        for nic in &mut spec.nics {
            if let Tap::Name(name) = &nic.tap {
                let tap =
                    tap::open(name).map_err(|source| LaunchError::Tap { name: name.clone(), source })?;
                nic.tap = Tap::Fd(tap.as_raw_fd());
                taps.push(tap);
            }
        }
        Ok(Prepared { spec, stderr, taps })
    }

    fn spawn(&self, spec: &MachineSpec, limits: Limits) -> Result<Child, LaunchError> {
        let Prepared { spec, stderr, taps } = self.prepare(spec)?;
        let entrances = self.cgroups.prepare(&spec.instance, limits);
        let group = match spec.accelerator {
            Accelerator::Kvm => kvm_group(),
            Accelerator::Tcg { .. } => None,
        };
        let args = command_line(&spec);
        launch::spawn(&self.binary, &args, stderr, &taps, &entrances.files, self.run_as.as_ref(), group)
    }

    /// Removes the cgroups of machines that have ended; what stays busy goes with the next that ends.
    async fn sweep(&self) {
        for _ in 0..SWEEPS {
            if !self.cgroups.sweep() {
                return;
            }
            tokio::time::sleep(SWEEP_PAUSE).await;
        }
        tracing::debug!("a cgroup without a process is still busy");
    }

    /// Every QEMU there is, with our instances told from those that only say so.
    async fn scan(&self) -> Result<Arc<Vec<FoundQemu>>, ProcessError> {
        let scan = async {
            let scanned = tokio::task::spawn_blocking(list_qemu).await;
            let mut found = scanned.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
            for qemu in &mut found {
                if !self.is_ours(qemu) {
                    qemu.instance = None;
                }
            }
            Ok(Arc::new(found))
        };
        self.scans.share(scan).await
    }

    fn is_ours(&self, found: &FoundQemu) -> bool {
        // Anybody can write our words on a command line, but not as these users.
        let user = self.run_as.as_ref().map(|u| u.uid);
        found.uid == Uid::effective().as_raw() || Some(found.uid) == user
    }
}

struct Prepared {
    spec: MachineSpec,
    stderr: File,
    taps: Vec<File>,
}

/// Every file the machine opens, and whether it writes to it.
fn files(spec: &MachineSpec) -> Vec<(&Path, bool)> {
    let mut files = Vec::new();
    for disk in &spec.disks {
        files.extend(disk.backing.as_ref().map(|b| (b.file.as_path(), false)));
        files.push((disk.file.as_path(), !disk.read_only));
    }
    files.extend(spec.seed.as_deref().map(|s| (s, false)));
    files.extend(spec.fw_cfg.iter().map(|f| (f.file.as_path(), false)));
    if let Firmware::Uefi { vars, .. } = &spec.firmware {
        files.push((vars, true));
    }
    files
}

/// Written: belongs to QEMU's user alone. Read: stays ours, QEMU's group may read it.
fn give(file: &Path, writable: bool, user: Option<&RunAs>) -> io::Result<()> {
    let metadata = std::fs::symlink_metadata(file)?;
    if metadata.file_type().is_symlink() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a symbolic link, which is not followed"));
    }
    let Some(user) = user else { return Ok(()) };
    let mode = metadata.mode() & 0o777;
    let (owner, wanted) = if writable { (Some(user.uid), mode | 0o600) } else { (None, mode | 0o440) };
    // World-readable files (a system's firmware, say) are nobody's to change.
    if !writable && mode & 0o004 != 0 {
        return Ok(());
    }
    chown(file, owner, Some(user.gid))?;
    std::fs::set_permissions(file, PermissionsExt::from_mode(wanted))
}

/// The group that may use KVM, unless that is root's.
fn kvm_group() -> Option<u32> {
    std::fs::metadata("/dev/kvm").ok().map(|m| m.gid()).filter(|gid| *gid != 0)
}

#[async_trait]
impl Hypervisor for LocalHypervisor {
    async fn launch(&self, spec: &MachineSpec, limits: Limits) -> Result<ProcessIdentity, LaunchError> {
        spec.validate()?;
        if let Ok(Some(other)) = self.find(&spec.instance).await {
            return Err(LaunchError::AlreadyRunning { instance: spec.instance.clone(), pid: other.pid });
        }
        let (this, owned) = (self.clone(), spec.clone());
        let spawned = tokio::task::spawn_blocking(move || this.spawn(&owned, limits)).await;
        let mut child =
            spawned.map_err(|e| LaunchError::Spawn { binary: self.binary.clone(), source: e.into() })??;
        match answers(&mut child, spec).await {
            Ok(identity) => Ok(identity),
            Err(error) => {
                // Ended already, or about to.
                let _ = child.kill();
                let _ = tokio::task::spawn_blocking(move || child.wait()).await;
                self.sweep().await;
                Err(error)
            }
        }
    }

    async fn has_started(&self, instance: &str, just_now: bool) {
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

    async fn grant(&self, file: &Path, writable: bool) -> Result<(), ProcessError> {
        give(file, writable, self.run_as.as_ref())
            .map_err(|source| ProcessError::Grant { path: file.to_owned(), source })
    }
}

/// Waits until the monitor answers, or QEMU has given up.
async fn answers(child: &mut Child, spec: &MachineSpec) -> Result<ProcessIdentity, LaunchError> {
    let pid = i32::try_from(child.id()).expect("process numbers are positive ints");
    let deadline = Instant::now() + LAUNCH_LIMIT;
    let mut pause = Duration::from_millis(4);
    let words = || last_lines(&spec.paths.stderr_log, STDERR_LINES, STDERR_BYTES).unwrap_or_default();
    loop {
        let attempt = async {
            let stream = tokio::net::UnixStream::connect(&spec.paths.qmp).await.ok()?;
            Some(Qmp::over_within(stream, deadline - Instant::now()).await)
        };
        // A monitor that was opened and then never served ends with its process.
        let outcome = attempt.await;
        if let Ok(Some(status)) = child.try_wait() {
            return Err(LaunchError::Exited { status: status.to_string(), stderr: words() });
        }
        match outcome {
            Some(Ok(_)) => break,
            _ if Instant::now() >= deadline => {
                return Err(LaunchError::Unresponsive { after: LAUNCH_LIMIT, stderr: words() });
            }
            _ => {}
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    match identity::of(pid) {
        Ok(Some(identity)) => Ok(identity),
        _ => Err(LaunchError::Exited { status: "just after its start".to_owned(), stderr: words() }),
    }
}
