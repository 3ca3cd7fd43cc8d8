//! The host's resources and capabilities.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use berth_qemu::installation::{Installation, find_binary};
use berth_qemu::machine::{Accelerator, Architecture};
use berth_qemu::probe::{self, KvmProbe};
use berth_qemu::process::{LaunchError, has_vhost_vsock};
use tokio::sync::{Mutex, OnceCell};

use super::files::{self, blocking, failed};
use super::huge_pages;
use super::process_details::VHOST_NET;
use super::program::Program;
use crate::{DedicatedFacts, EmulatedFacts, HostFacts, HostLinks, KvmFacts, QemuFacts, SystemError};

type Result<T> = std::result::Result<T, SystemError>;

/// Without a limit, QEMU's translation cache took 1,030 MiB for a guest of 512 MiB; with this one, 82 MiB.
const TB_SIZE_MIB: u32 = 32;
/// Memory of QEMU beyond its guest's, measured with Debian 12 guests on QEMU 7.2 (36–42 MiB and 82 MiB), plus a margin.
const OVERHEAD_KVM: u64 = 50 << 20;
const OVERHEAD_TCG: u64 = 90 << 20;

/// Emulates the TPM of a machine.
pub(super) const SWTPM: Program = Program {
    name: "swtpm",
    advice: "VMs with a TPM need it (Debian, Ubuntu: apt install swtpm; Fedora: dnf install swtpm)",
};

#[derive(Debug, Default)]
pub(super) struct LinuxInfo {
    /// The configured address at which other hosts reach this one.
    address: Option<Ipv4Addr>,
    /// Measured once: it does not change while the agent runs.
    kvm: OnceCell<KvmProbe>,
    /// The architecture of other guests than the processors', which QEMU emulates.
    emulated: Option<Architecture>,
    /// Of the QEMU for guests of the host's architecture, and of the one for the other architecture: neither waits for the other.
    installed: [Mutex<Option<Installed>>; 2],
}

/// QEMU's answers, valid while its binary is the same file.
#[derive(Debug)]
struct Installed {
    binary: PathBuf,
    modified: Option<SystemTime>,
    said: Installation,
}

impl LinuxInfo {
    pub(super) fn new(address: Option<Ipv4Addr>, emulated: Option<Architecture>) -> Self {
        let emulated = emulated.filter(|architecture| *architecture != Architecture::of_host());
        Self { address, emulated, ..Self::default() }
    }

    /// Returns the QEMU for guests of the host's architecture.
    pub(super) async fn installation(&self) -> std::result::Result<Installation, LaunchError> {
        self.installation_of(Architecture::of_host()).await
    }

    /// Returns the QEMU for guests of an architecture.
    pub(super) async fn installation_of(
        &self,
        architecture: Architecture,
    ) -> std::result::Result<Installation, LaunchError> {
        let is_own = architecture == Architecture::of_host();
        let kvm = is_own && self.kvm.get_or_init(probe::kvm).await.usable;
        let binary = find_binary(architecture)?;
        let modified = fs::metadata(&binary).and_then(|m| m.modified()).ok();
        let mut installed = self.installed[usize::from(!is_own)].lock().await;
        if let Some(known) = &*installed
            && known.binary == binary
            && known.modified == modified
        {
            return Ok(known.said.clone().with_present_firmware());
        }
        let said = Installation::ask(&binary, architecture, kvm).await?;
        *installed = Some(Installed { binary, modified, said: said.clone() });
        Ok(said)
    }

    /// Returns the facts of guests whose processors are emulated, if there may be some.
    async fn emulated_facts(&self) -> Option<EmulatedFacts> {
        let architecture = self.emulated?;
        let accelerator = Accelerator::Tcg { tb_size_mib: TB_SIZE_MIB };
        let found = self.installation_of(architecture).await;
        let qemu = found.map_err(|e| SystemError::from(e).chain()).and_then(|i| qemu_facts(&i, accelerator));
        Some(EmulatedFacts { architecture, qemu, accelerator, overhead_bytes: OVERHEAD_TCG })
    }

    pub(super) async fn facts(&self, state: &Path) -> Result<HostFacts> {
        let (kvm, qemu, emulated) =
            tokio::join!(self.kvm.get_or_init(probe::kvm), self.installation(), self.emulated_facts());
        let kvm = kvm.clone();
        let (accelerator, overhead_bytes) = match kvm.usable {
            true => (Accelerator::Kvm, OVERHEAD_KVM),
            false => (Accelerator::Tcg { tb_size_mib: TB_SIZE_MIB }, OVERHEAD_TCG),
        };
        let path = state.to_owned();
        let (memory_bytes, huge_pages, space, boot_id) = blocking(move || {
            let space = files::space(&path).map_err(failed("read the free space of", &path))?;
            Ok::<_, SystemError>((memory()?, huge_pages::read(Path::new("/sys")), space, boot_id()?))
        })
        .await?;
        Ok(HostFacts {
            block_devices: Vec::new(),
            cpus: std::thread::available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
            memory_bytes,
            storage_total_bytes: space.total,
            storage_free_bytes: space.free,
            architecture: Architecture::of_host(),
            emulated,
            qemu: qemu.map_err(|e| SystemError::from(e).chain()).and_then(|i| qemu_facts(&i, accelerator)),
            kvm: KvmFacts { usable: kvm.usable, reason: kvm.reason, mips: kvm.mips },
            accelerator,
            vhost_net: Path::new(VHOST_NET).exists(),
            address: self.address.or_else(address),
            // Filled in by the network code, which knows the interfaces.
            mtu: None,
            ranges: Vec::new(),
            ipv6_addresses: Vec::new(),
            links: HostLinks::default(),
            wireguard: Err("not examined".to_owned()),
            pci_devices: Vec::new(),
            usb_devices: Vec::new(),
            vgpus: Vec::new(),
            shares: Vec::new(),
            backup_folders: Vec::new(),
            pool_folders: Vec::new(),
            huge_pages,
            // Filled in by the machines, which have them.
            dedicated: DedicatedFacts::default(),
            overhead_bytes,
            boot_id,
        })
    }
}

fn qemu_facts(
    installation: &Installation,
    accelerator: Accelerator,
) -> std::result::Result<QemuFacts, String> {
    let version = &installation.version;
    let machine_type = installation.newest_machine_type.clone().ok_or_else(|| {
        let (program, name) = (installation.binary.display(), installation.architecture.as_str());
        format!("{program} has no machine that berth uses: is it built for guests of {name}?")
    })?;
    // Both are the maximum that the accelerator supports. `host` is not the same on another host: with KVM it is for VMs that ask for it, and
    // where the processor has none of the levels.
    let cpu_model = match accelerator {
        Accelerator::Kvm => "host",
        Accelerator::Tcg { .. } => "max",
    };
    Ok(QemuFacts {
        version: format!("{}.{}.{}", version.major, version.minor, version.micro),
        machine_type,
        machine_types: installation.machine_types.clone(),
        cpu_model: cpu_model.to_owned(),
        uefi: !installation.uefi.is_empty(),
        secure_boot: installation.uefi.iter().any(|firmware| firmware.secure_boot),
        cpu_models: installation.cpu_models.clone(),
        io_uring: installation.io_uring,
        boot_roms: installation.boot_roms,
        tpm: installation.tpm && SWTPM.find().is_ok(),
        vsock: installation.vsock && has_vhost_vsock(),
    })
}

/// Total memory, or the limit of the container.
fn memory() -> Result<u64> {
    let path = Path::new("/proc/meminfo");
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    let total = parse_meminfo(&text).ok_or_else(|| SystemError::File {
        attempt: "understand",
        path: path.to_owned(),
        source: std::io::Error::from(std::io::ErrorKind::InvalidData),
    })?;
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    // The file is missing, or contains "max", if there is no limit.
    let limits = limits.iter().filter_map(|f| fs::read_to_string(f).ok()?.trim().parse().ok());
    Ok(limits.fold(total, u64::min))
}

fn boot_id() -> Result<String> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(failed("read", path))?;
    Ok(text.trim().to_owned())
}

fn parse_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The source address of packets on the default route. Reads the routing table; sends nothing.
fn address() -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // A documentation address (TEST-NET-1): only a default route leads there.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    match socket.local_addr().ok()?.ip() {
        IpAddr::V4(address) if !address.is_unspecified() => Some(address),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_the_kernel_says_in_kibibytes() {
        assert_eq!(parse_meminfo("MemTotal:       24684144 kB\nMemFree: 1 kB\n"), Some(24_684_144 * 1024));
        assert_eq!(parse_meminfo("MemFree: 1 kB\n"), None);
    }

    #[tokio::test]
    async fn a_host_tells_what_it_has() {
        let host = LinuxInfo::default();
        let facts = host.facts(Path::new("/")).await.expect("facts");
        assert!(facts.cpus >= 1 && facts.memory_bytes > 64 << 20, "{facts:?}");
        assert!(facts.storage_total_bytes >= facts.storage_free_bytes);
        let tcg = matches!(facts.accelerator, Accelerator::Tcg { tb_size_mib: 1..=64 });
        assert!(facts.kvm.usable != tcg, "the accelerator follows from the measurement: {facts:?}");
        assert!(!facts.kvm.reason.is_empty());
        assert_eq!(facts.boot_id.len(), 36, "a UUID: {:?}", facts.boot_id);
    }
}
