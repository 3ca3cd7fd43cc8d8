//! The facts about this machine that decide whether it can run VMs. Reads only; changes nothing.

mod huge_pages;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use berth_qemu::installation::{Installation, find_binary};
use berth_qemu::machine::Architecture;
use berth_qemu::probe;
use berth_qemu::process::has_vhost_vsock;
use nix::unistd::Uid;
use serde::{Deserialize, Serialize};

use super::files::{blocking, space};
use super::filesystems::{MKFS_EXT4, MKFS_XFS};
use super::host::SWTPM;
use super::layout::Layout;
use super::network::{DNSMASQ, NFT, WG, WIREGUARD_GO, foreign_forwarding};
use super::pool_folders;
use super::shares::VIRTIOFSD;
use super::units;
pub use huge_pages::DoctorHugePages;

/// The kernel's modules for bridges, for tunnels between hosts and for their encryption.
const MODULES: [&str; 3] = ["bridge", "vxlan", "wireguard"];
/// Programs that keep the clock right.
const CLOCK_KEEPERS: [&str; 5] = ["systemd-timesyn", "chronyd", "ntpd", "openntpd", "ptp4l"];

/// The facts about a machine. An `Err` has the reason, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DoctorFacts {
    pub is_root: bool,
    pub kvm: DoctorKvm,
    pub qemu: Result<DoctorQemu, String>,
    /// The architecture of its processors.
    #[serde(default)]
    pub architecture: String,
    /// Guests of the other architecture.
    #[serde(default)]
    pub emulation: DoctorEmulation,
    /// Programs that berth runs → the advice if they are missing; the present ones have none.
    pub programs: BTreeMap<String, Option<String>>,
    /// Devices that QEMU opens → whether they can be opened, or why not.
    pub devices: BTreeMap<String, Result<(), String>>,
    /// Modules of the kernel → whether they are loaded, built in, or on the disk.
    pub modules: BTreeMap<String, bool>,
    /// cgroup controllers that machines can be given, of either version.
    pub cgroups: Vec<String>,
    pub ip_forward: bool,
    /// None: nothing drops forwarded packets. Otherwise the obstacle and how to remove it.
    pub firewall: Result<Option<String>, String>,
    pub state_dir: PathBuf,
    /// Total and free bytes of the state directory's file system, or of the nearest folder above it.
    pub storage: Result<(u64, u64), String>,
    /// The pools that have a folder of their own → total and free bytes of its file system.
    #[serde(default)]
    pub pools: BTreeMap<String, Result<(u64, u64), String>>,
    /// The hard limit of open files; None is unlimited.
    pub open_files: Option<u64>,
    pub memory: DoctorMemory,
    /// Sorted by size.
    #[serde(default)]
    pub huge_pages: Vec<DoctorHugePages>,
    /// The program that keeps the clock right, if one runs.
    pub clock: Option<String>,
    /// Whether the kernel moves packets between guests and their network without QEMU.
    pub vhost_net: bool,
    /// Whether it moves those of vsock devices.
    #[serde(default)]
    pub vhost_vsock: bool,
    #[serde(default)]
    pub service: DoctorService,
}

/// Facts about berth as a service of systemd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DoctorService {
    /// Whether systemd runs.
    pub systemd: bool,
    /// Whether the unit for machines is active.
    pub machines: bool,
}

/// Facts about virtualisation by the processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DoctorKvm {
    /// `vmx` or `svm`, if the processor shows it.
    pub flag: Option<String>,
    /// Whether guests run on it fast enough, measured.
    pub usable: bool,
    pub reason: String,
    /// Whether `/dev/kvm` exists.
    pub exists: bool,
    /// Whether guests may run guests of their own; None without the kernel's module.
    pub nested: Option<bool>,
    /// Whether this machine is itself a guest.
    pub is_guest: bool,
}

/// Facts about the installed QEMU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DoctorQemu {
    pub version: (u32, u32, u32),
    pub binary: PathBuf,
    pub q35: bool,
    pub uefi: bool,
    pub secure_boot: bool,
    /// Whether it has the device of a TPM.
    #[serde(default)]
    pub tpm: bool,
}

/// Facts about guests of the other architecture than the processors', which QEMU emulates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DoctorEmulation {
    pub architecture: String,
    /// The parts that are not installed for them, each with the way to install it.
    pub missing: Vec<String>,
}

/// Facts about the memory, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DoctorMemory {
    pub total: u64,
    pub available: u64,
}

/// Gathers the facts. Takes at most some seconds: the processor is measured, QEMU is asked.
pub async fn doctor_facts(state_dir: &Path) -> DoctorFacts {
    let (probe, qemu, emulation) = tokio::join!(probe::kvm(), Installation::discover(), emulation());
    let firewall = match NFT.find() {
        Ok(_) => foreign_forwarding().await.map_err(|error| error.chain()),
        Err(error) => Err(error.chain()),
    };
    let qemu = qemu.map(|found| qemu_of(&found)).map_err(|error| crate::SystemError::from(error).chain());
    let state_dir = state_dir.to_owned();
    blocking(move || DoctorFacts {
        is_root: Uid::effective().is_root(),
        kvm: DoctorKvm { usable: probe.usable, reason: probe.reason, ..kvm() },
        qemu,
        architecture: Architecture::of_host().as_str().to_owned(),
        emulation,
        programs: [NFT, DNSMASQ, SWTPM, VIRTIOFSD, WG, WIREGUARD_GO, MKFS_EXT4, MKFS_XFS]
            .map(|program| {
                let advice = program.find().err().map(|_| program.advice.to_owned());
                (program.name.to_owned(), advice)
            })
            .into(),
        devices: ["/dev/kvm", "/dev/net/tun"].map(|path| (path.to_owned(), openable(path))).into(),
        modules: MODULES.map(|module| (module.to_owned(), has_module(module))).into(),
        cgroups: controllers(&read("/proc/self/mounts"), &read("/sys/fs/cgroup/cgroup.controllers")),
        ip_forward: read("/proc/sys/net/ipv4/ip_forward").trim() == "1",
        firewall,
        storage: nearest(&state_dir).and_then(|at| {
            space(&at).map(|space| (space.total, space.free)).map_err(|error| error.to_string())
        }),
        pools: pool_folders::known(&Layout::new(&state_dir).pools()),
        state_dir,
        open_files: open_files(&read("/proc/self/limits")),
        memory: memory(&read("/proc/meminfo")),
        huge_pages: huge_pages::read(Path::new("/"), kib(&read("/proc/meminfo"), "Hugepagesize")),
        clock: clock_keeper(),
        vhost_net: Path::new("/dev/vhost-net").exists(),
        vhost_vsock: has_vhost_vsock(),
        service: DoctorService { systemd: units::has_systemd(), machines: units::has_machines_unit() },
    })
    .await
}

/// Looks for QEMU and firmware for guests of the other architecture.
async fn emulation() -> DoctorEmulation {
    let other = match Architecture::of_host() {
        Architecture::X86_64 => Architecture::Aarch64,
        Architecture::Aarch64 => Architecture::X86_64,
    };
    let found = match find_binary(other) {
        Ok(binary) => Installation::ask(&binary, other, false).await,
        Err(error) => Err(error),
    };
    let firmware = |found: &Installation| {
        let missing = format!("UEFI firmware (Debian, Ubuntu: apt install {})", other.firmware_package());
        found.uefi.is_empty().then_some(missing)
    };
    let missing = match found {
        Ok(found) => firmware(&found).into_iter().collect(),
        Err(error) => vec![crate::SystemError::from(error).chain()],
    };
    DoctorEmulation { architecture: other.as_str().to_owned(), missing }
}

fn qemu_of(installation: &Installation) -> DoctorQemu {
    let version = &installation.version;
    DoctorQemu {
        version: (version.major, version.minor, version.micro),
        binary: installation.binary.clone(),
        q35: installation.newest_machine_type.is_some(),
        uefi: !installation.uefi.is_empty(),
        secure_boot: installation.uefi.iter().any(|firmware| firmware.secure_boot),
        tpm: installation.tpm,
    }
}

fn kvm() -> DoctorKvm {
    let cpu = read("/proc/cpuinfo");
    let flags: Vec<&str> = cpu
        .lines()
        .find_map(|line| line.strip_prefix("flags"))
        .map(|flags| flags.split_whitespace().collect())
        .unwrap_or_default();
    let has = |flag: &str| flags.contains(&flag);
    let nested = ["kvm_intel", "kvm_amd"].into_iter().find_map(|module| {
        let value = fs::read_to_string(format!("/sys/module/{module}/parameters/nested")).ok()?;
        Some(matches!(value.trim(), "Y" | "1"))
    });
    DoctorKvm {
        flag: ["vmx", "svm"].into_iter().find(|flag| has(flag)).map(str::to_owned),
        exists: Path::new("/dev/kvm").exists(),
        nested,
        is_guest: has("hypervisor"),
        ..DoctorKvm::default()
    }
}

fn openable(path: &str) -> Result<(), String> {
    let opened = fs::File::options().read(true).write(true).open(path);
    opened.map(drop).map_err(|error| error.to_string())
}

/// Whether the kernel has a module, as far as its files show.
fn has_module(name: &str) -> bool {
    if Path::new("/sys/module").join(name).exists() {
        return true;
    }
    let release = read("/proc/sys/kernel/osrelease");
    let folder = Path::new("/lib/modules").join(release.trim());
    let is_listed = |file: &str| {
        let list = fs::read_to_string(folder.join(file)).unwrap_or_default();
        list.lines().any(|line| line.contains(&format!("/{name}.ko")))
    };
    is_listed("modules.builtin") || is_listed("modules.dep")
}

/// Returns the controllers in use: those of version 2, else those mounted as version 1.
fn controllers(mounts: &str, version_2: &str) -> Vec<String> {
    const USED: [&str; 3] = ["cpu", "memory", "pids"];
    let mut found: Vec<String> = version_2.split_whitespace().map(str::to_owned).collect();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if let [_, _, "cgroup", options, ..] = fields[..] {
            found.extend(options.split(',').map(str::to_owned));
        }
    }
    USED.iter().filter(|used| found.iter().any(|one| one == *used)).map(|used| (*used).to_owned()).collect()
}

/// Returns the path, or the nearest folder above it that exists.
fn nearest(path: &Path) -> Result<PathBuf, String> {
    let found = path.ancestors().find(|folder| folder.is_dir()).map(Path::to_owned);
    found.ok_or_else(|| format!("{} does not exist", path.display()))
}

/// Returns the hard limit of open files.
fn open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn memory(meminfo: &str) -> DoctorMemory {
    DoctorMemory { total: kib(meminfo, "MemTotal"), available: kib(meminfo, "MemAvailable") }
}

/// Returns the bytes of a line of `/proc/meminfo`; 0 without it.
fn kib(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number: u64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default();
    number.saturating_mul(1024)
}

fn clock_keeper() -> Option<String> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let names = processes.filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    let mut names = names.map(|name| name.trim().to_owned());
    names.find(|name| CLOCK_KEEPERS.contains(&name.as_str()))
}

/// Reads a file of the kernel; one that cannot be read is empty.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_of_both_versions_are_found() {
        assert_eq!(controllers("", "cpuset cpu io memory pids"), ["cpu", "memory", "pids"]);
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu,cpuacct 0 0\ncgroup /m cgroup rw,memory 0 0\n";
        assert_eq!(controllers(mounts, ""), ["cpu", "memory"]);
        assert!(controllers("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", "").is_empty());
    }

    #[test]
    fn limits_and_memory_are_read_from_the_kernels_files() {
        let limits = "Limit  Soft Limit Hard Limit Units\nMax open files            1024                 524288               files\n";
        assert_eq!(open_files(limits), Some(524_288));
        assert_eq!(open_files("Max open files  unlimited  unlimited  files\n"), None);
        let meminfo = "MemTotal:  1000 kB\nMemAvailable: 10 kB\nHugePages_Total:  2\nHugepagesize: 2048 kB\n";
        let found = memory(meminfo);
        assert_eq!((found.total, found.available), (1_024_000, 10_240));
        assert_eq!((kib(meminfo, "Hugepagesize"), kib(meminfo, "Absent")), (2 << 20, 0));
    }

    #[tokio::test]
    async fn this_machine_is_examined_without_being_changed() {
        let folder = tempfile::tempdir().expect("a folder");
        let facts = doctor_facts(&folder.path().join("not/there/yet")).await;
        assert!(facts.memory.total > 64 << 20 && facts.storage.is_ok(), "{facts:?}");
        assert!(!facts.kvm.reason.is_empty() && facts.programs.len() == 8);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing was created");
    }
}
