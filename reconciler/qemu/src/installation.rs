//! The installed QEMU: its path, version, machine types and firmware.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::cpu_models;
use crate::hypervisor::LaunchError;
use crate::machine::{Architecture, NicModel};
use crate::qmp::{Qmp, Version};

/// The name of a host's own QEMU at Red Hat.
const QEMU_KVM: &str = "qemu-kvm";
/// Red Hat installs it outside of PATH.
const FURTHER_DIRECTORIES: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/usr/libexec"];
const LIMIT: Duration = Duration::from_secs(20);

/// The folders in which QEMU looks for the ROMs of network cards: Debian and Ubuntu, Fedora, builds from source.
const ROMS: [&str; 5] = [
    "/usr/lib/ipxe/qemu",
    "/usr/share/qemu",
    "/usr/share/ipxe/qemu",
    "/usr/share/qemu-kvm",
    "/usr/local/share/qemu",
];

/// The installed QEMU. Queried once; query again after an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    pub binary: PathBuf,
    /// The architecture of its guests.
    pub architecture: Architecture,
    pub version: Version,
    /// Versioned machine types, also deprecated ones: older machines have those.
    pub machine_types: Vec<String>,
    /// The machine type that the name without a version (`q35`, `virt`) stands for.
    pub newest_machine_type: Option<String>,
    /// UEFI firmware, best first.
    pub uefi: Vec<UefiFirmware>,
    /// The CPU models and levels that a guest can have with the accelerator that was asked for, see [`cpu_models`].
    pub cpu_models: Vec<String>,
    /// Whether QEMU and this kernel have io_uring for the I/O of disks.
    pub io_uring: bool,
    /// Whether it has the TPM device and can connect it to an emulator.
    pub tpm: bool,
    /// Whether it has vsock devices.
    pub vsock: bool,
    /// Whether it has the ROMs (iPXE) by which network cards boot.
    pub boot_roms: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UefiFirmware {
    pub code: PathBuf,
    /// A template: every machine writes to its own copy.
    pub vars_template: PathBuf,
    /// Whether the template contains Microsoft's keys: only what they signed is started.
    pub secure_boot: bool,
    /// Whether the code needs system management mode, which protects the variables from the guest.
    pub smm: bool,
}

/// Finds the QEMU binary for guests of an architecture.
pub fn find_binary(architecture: Architecture) -> Result<PathBuf, LaunchError> {
    let own = (architecture == Architecture::of_host()).then_some(QEMU_KVM);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(FURTHER_DIRECTORIES.iter().map(PathBuf::from));
    let names = || [architecture.program()].into_iter().chain(own);
    let mut candidates = directories.flat_map(|d| names().map(move |name| d.join(name)));
    candidates
        .find(|c| c.is_file())
        .ok_or_else(|| LaunchError::NoBinary { binary: PathBuf::from(architecture.program()) })
}

impl Installation {
    /// Finds the QEMU for guests of the host's architecture and queries its capabilities.
    pub async fn discover() -> Result<Self, LaunchError> {
        let architecture = Architecture::of_host();
        Self::ask(&find_binary(architecture)?, architecture, false).await
    }

    /// Looks for UEFI firmware if there was none: it is a package of its own, which may have been installed since.
    #[must_use]
    pub fn with_present_firmware(mut self) -> Self {
        if self.uefi.is_empty() {
            self.uefi = find_uefi(self.architecture);
        }
        self
    }

    /// Queries a QEMU without a machine, which replies and ends within a few dozen milliseconds. `kvm`: whether its guests run on
    /// KVM.
    pub async fn ask(binary: &Path, architecture: Architecture, kvm: bool) -> Result<Self, LaunchError> {
        let spawn = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => LaunchError::NoBinary { binary: binary.to_owned() },
            _ => LaunchError::Spawn { binary: binary.to_owned(), source },
        };
        let mut child = Command::new(binary)
            .args([
                "-machine",
                "none",
                "-accel",
                if kvm { "kvm" } else { "tcg" },
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-S",
                "-qmp",
                "stdio",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(spawn)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stream = tokio::io::join(stdout.expect("piped above"), stdin.expect("piped above"));
        let (qmp, _events) = Qmp::over_within(stream, LIMIT).await.map_err(LaunchError::Monitor)?;
        let machines =
            qmp.execute_within("query-machines", Value::Null, LIMIT).await.map_err(LaunchError::Monitor)?;
        let cpu_models = match architecture {
            Architecture::X86_64 => cpu_models(&qmp).await,
            Architecture::Aarch64 => aarch64_models(&qmp, kvm).await,
        };
        let io_uring = has_io_uring(&qmp, binary).await;
        let tpm = has_tpm(&qmp, architecture).await;
        let vsock = has_vsock(&qmp).await;
        // If it takes longer, it is killed on drop.
        let _ = qmp.execute_within("quit", Value::Null, Duration::from_secs(1)).await;
        let _ = tokio::time::timeout(Duration::from_secs(1), child.wait()).await;
        let (machine_types, newest_machine_type) = machine_types(&machines, architecture);
        let version = qmp.version().clone();
        Ok(Self {
            binary: binary.to_owned(),
            architecture,
            version,
            machine_types,
            newest_machine_type,
            uefi: find_uefi(architecture),
            cpu_models,
            io_uring,
            tpm,
            vsock,
            boot_roms: ROMS
                .iter()
                .any(|folder| Path::new(folder).join(NicModel::default().boot_rom()).is_file()),
        })
    }
}

/// An answer that fails is one without models: no class can then ask for one, and all others start.
async fn cpu_models(qmp: &Qmp) -> Vec<String> {
    let max = json!({"type": "full", "model": {"name": "max"}});
    let definitions = qmp.execute_within("query-cpu-definitions", Value::Null, LIMIT).await;
    let max = qmp.execute_within("query-cpu-model-expansion", max, LIMIT).await;
    cpu_models::runnable(&definitions.unwrap_or_default(), &max.unwrap_or_default())
}

/// The models for guests of aarch64, whose definitions have no list of features.
async fn aarch64_models(qmp: &Qmp, kvm: bool) -> Vec<String> {
    let definitions = qmp.execute_within("query-cpu-definitions", Value::Null, LIMIT).await;
    cpu_models::of_aarch64(&definitions.unwrap_or_default(), kvm)
}

/// Whether QEMU opens a file with io_uring, also as another user than root.
async fn has_io_uring(qmp: &Qmp, file: &Path) -> bool {
    // 1: only for some users, 2: for none. Kernels before 6.6 do not have the file, and allow it.
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    if !matches!(disabled.trim(), "" | "0") {
        return false;
    }
    let node = json!({"driver": "file", "node-name": "io-uring", "filename": file.to_string_lossy(), "read-only": true,
        "aio": "io_uring", "locking": "off"});
    qmp.execute_within("blockdev-add", node, LIMIT).await.is_ok()
}

/// A build without TPM support does not have these commands.
async fn has_tpm(qmp: &Qmp, architecture: Architecture) -> bool {
    for (command, wanted) in [("query-tpm-models", architecture.tpm_model()), ("query-tpm-types", "emulator")]
    {
        let listed = qmp.execute_within(command, Value::Null, LIMIT).await;
        if !listed.is_ok_and(|l| l.as_array().is_some_and(|l| l.iter().any(|name| name == wanted))) {
            return false;
        }
    }
    true
}

/// A build without vhost does not have the device.
async fn has_vsock(qmp: &Qmp) -> bool {
    let device = json!({"typename": "vhost-vsock-pci"});
    qmp.execute_within("device-list-properties", device, LIMIT).await.is_ok()
}

fn machine_types(machines: &Value, architecture: Architecture) -> (Vec<String>, Option<String>) {
    let (mut types, mut newest) = (Vec::new(), None);
    for machine in machines.as_array().into_iter().flatten() {
        let Some(name) = machine["name"].as_str() else { continue };
        if machine["alias"] == architecture.machine_alias() {
            newest = Some(name.to_owned());
        }
        let versioned = name.rsplit('-').next().is_some_and(|v| v.contains('.'));
        if versioned {
            types.push(name.to_owned());
        }
    }
    types.sort();
    (types, newest)
}

fn find_uefi(architecture: Architecture) -> Vec<UefiFirmware> {
    architecture
        .firmware()
        .iter()
        .filter(|(code, vars, ..)| Path::new(code).is_file() && Path::new(vars).is_file())
        .map(|(code, vars, secure_boot, smm)| UefiFirmware {
            code: PathBuf::from(code),
            vars_template: PathBuf::from(vars),
            secure_boot: *secure_boot,
            smm: *smm,
        })
        .collect()
}
