//! Checks of the machine itself: processor, QEMU, memory, storage.

use berth_host::linux::DoctorFacts;

use super::{Check, Level, gib};

/// The oldest QEMU that berth is tested with.
const OLDEST_QEMU: (u32, u32, u32) = (7, 2, 0);
/// The architecture whose QEMU and firmware are in other packages.
const AARCH64: &str = "aarch64";
/// Less memory than this leaves nothing for a guest beside the host itself.
const LEAST_MEMORY: u64 = 1 << 30;
/// Each VM takes about a dozen files, and each console and download some more.
const LEAST_OPEN_FILES: u64 = 4096;
/// A machine with less free space than this soon stops its guests.
const LEAST_FREE: u64 = 10 << 30;

pub(super) fn user(facts: &DoctorFacts) -> Check {
    match facts.is_root {
        true => Check::ok("user", "root"),
        false => Check::bad(
            "user",
            Level::Failure,
            "not root: networks, QEMU's users and cgroups need root",
            "run `sudo berth doctor`, and berth itself as root",
        ),
    }
}

pub(super) fn kvm(facts: &DoctorFacts) -> Check {
    let kvm = &facts.kvm;
    if kvm.usable {
        return Check::ok("kvm", &kvm.reason);
    }
    let slow = |found: String, fix: &str| {
        Check::bad(
            "kvm",
            Level::Warning,
            format!("{found}: guests are emulated, which is many times slower"),
            fix,
        )
    };
    let device = facts.devices.get("/dev/kvm").cloned().unwrap_or(Ok(()));
    match (kvm.exists, &kvm.flag, device) {
        (false, None, _) if kvm.is_guest => slow(
            "this machine is a guest without virtualisation of its own".into(),
            "enable nested virtualisation for it on its own host (berth, libvirt: the CPU model host)",
        ),
        (false, None, _) => slow(
            "the processor shows neither vmx nor svm".into(),
            "enable Intel VT-x or AMD-V in the firmware's setup",
        ),
        (false, Some(flag), _) => {
            let module = if flag == "svm" { "kvm_amd" } else { "kvm_intel" };
            slow(
                format!("the processor has {flag}, and /dev/kvm does not exist"),
                &format!("modprobe {module}; an error in dmesg means that the firmware's setup disables it"),
            )
        }
        (true, _, Err(error)) => slow(
            format!("/dev/kvm cannot be opened: {error}"),
            "run berth as root; in a container, pass the device into it (--device /dev/kvm)",
        ),
        (true, _, Ok(())) => {
            slow(kvm.reason.clone(), "use a machine, or a kind of cloud instance, with real virtualisation")
        }
    }
}

pub(super) fn nested(facts: &DoctorFacts) -> Check {
    match facts.kvm.nested {
        Some(true) => Check::ok("nested", "guests can run guests of their own"),
        Some(false) => Check::bad(
            "nested",
            Level::Note,
            "guests cannot run guests of their own",
            "if they should: the option nested=1 of the module kvm_intel or kvm_amd",
        ),
        None => Check::ok("nested", "not known: neither kvm_intel nor kvm_amd is loaded"),
    }
}

pub(super) fn qemu(facts: &DoctorFacts) -> Check {
    let install = match facts.architecture.as_str() {
        AARCH64 => {
            "Debian, Ubuntu: apt install qemu-system-arm qemu-utils; Fedora: dnf install qemu-system-aarch64"
        }
        _ => "Debian, Ubuntu: apt install qemu-system-x86 qemu-utils; Fedora: dnf install qemu-system-x86",
    };
    match &facts.qemu {
        Err(error) => Check::bad("qemu", Level::Failure, error, install),
        Ok(qemu) => {
            let (major, minor, micro) = qemu.version;
            let found = format!("{major}.{minor}.{micro}, {}", qemu.binary.display());
            if !qemu.q35 {
                let machine = if facts.architecture == AARCH64 { "virt" } else { "q35" };
                let found = format!("{found} has no machine type {machine}");
                Check::bad("qemu", Level::Failure, found, install)
            } else if qemu.version < OLDEST_QEMU {
                let found = format!("{found} is older than 7.2, with which berth is tested");
                Check::bad("qemu", Level::Warning, found, "upgrade QEMU, or the distribution")
            } else {
                Check::ok("qemu", found)
            }
        }
    }
}

pub(super) fn firmware(facts: &DoctorFacts) -> Check {
    if facts.architecture == AARCH64 {
        return match &facts.qemu {
            Ok(qemu) if qemu.uefi => Check::ok("firmware", "UEFI"),
            _ => Check::bad(
                "firmware",
                Level::Failure,
                "no UEFI firmware, which every VM of aarch64 needs",
                "Debian, Ubuntu: apt install qemu-efi-aarch64; Fedora: dnf install edk2-aarch64",
            ),
        };
    }
    const INSTALL: &str = "Debian, Ubuntu: apt install ovmf; Fedora: dnf install edk2-ovmf";
    match &facts.qemu {
        Ok(qemu) if qemu.secure_boot => Check::ok("firmware", "UEFI with and without Secure Boot, BIOS"),
        Ok(qemu) if qemu.uefi => {
            Check::bad("firmware", Level::Note, "UEFI and BIOS, but no UEFI with Secure Boot", INSTALL)
        }
        _ => Check::bad(
            "firmware",
            Level::Warning,
            "no UEFI firmware: VMs start only with `firmware = \"BIOS\"`",
            INSTALL,
        ),
    }
}

/// VMs of the other architecture, which an administrator allows by an option of the agent.
pub(super) fn emulation(facts: &DoctorFacts) -> Check {
    let name = &facts.emulation.architecture;
    if facts.emulation.missing.is_empty() {
        return Check::ok("emulation", format!("VMs of {name} can run here with --emulate {name}, emulated"));
    }
    let missing = facts.emulation.missing.join("; ");
    Check::ok(
        "emulation",
        format!("none: VMs of {name} need --emulate {name} and what is missing here: {missing}"),
    )
}

/// VMs with a TPM are placed on hosts with both only.
pub(super) fn tpm(facts: &DoctorFacts) -> Check {
    if let Some(Some(advice)) = facts.programs.get("swtpm") {
        return Check::bad("tpm", Level::Note, "swtpm is not installed: no VM here can have a TPM", advice);
    }
    match &facts.qemu {
        Ok(qemu) if !qemu.tpm => Check::bad(
            "tpm",
            Level::Note,
            "swtpm is installed, and QEMU has no TPM device: no VM here can have a TPM",
            "use a QEMU that is built with TPM support, as those of the distributions are",
        ),
        _ => Check::ok("tpm", "swtpm is installed"),
    }
}

/// VMs with shares are placed on hosts with it only.
pub(super) fn shares(facts: &DoctorFacts) -> Check {
    match facts.programs.get("virtiofsd") {
        Some(Some(advice)) => Check::bad(
            "shares",
            Level::Note,
            "virtiofsd is not installed: no VM here can mount folders of this machine",
            advice,
        ),
        _ => Check::ok("shares", "virtiofsd is installed"),
    }
}

/// Disks are formatted on hosts with these programs only.
pub(super) fn filesystems(facts: &DoctorFacts) -> Check {
    let advice = |program: &str| facts.programs.get(program).and_then(Option::as_deref);
    match (advice("mkfs.ext4"), advice("mkfs.xfs")) {
        (Some(advice), _) => Check::bad(
            "filesystems",
            Level::Note,
            "mkfs.ext4 is not installed: no disk here is formatted with ext4",
            advice,
        ),
        (None, Some(_)) => Check::ok("filesystems", "ext4; mkfs.xfs (package xfsprogs) is not installed"),
        (None, None) => Check::ok("filesystems", "ext4 and xfs"),
    }
}

pub(super) fn cgroups(facts: &DoctorFacts) -> Check {
    let missing: Vec<&str> = ["cpu", "memory", "pids"]
        .into_iter()
        .filter(|one| !facts.cgroups.iter().any(|has| has == one))
        .collect();
    match missing.as_slice() {
        [] => Check::ok("cgroups", "cpu, memory and pids"),
        missing => Check::bad(
            "cgroups",
            Level::Warning,
            format!("without {}: these of a VM are neither limited nor shared fairly", missing.join(", ")),
            "mount them (`mount -t cgroup2 none /sys/fs/cgroup`), or boot with systemd",
        ),
    }
}

pub(super) fn service(facts: &DoctorFacts) -> Check {
    let service = &facts.service;
    match (service.systemd, service.machines) {
        (false, _) => Check::ok("service", "systemd does not run here"),
        (true, true) => Check::ok("service", "machines are in berth-machines.service"),
        (true, false) => Check::bad(
            "service",
            Level::Note,
            "berth-machines.service is not active: a shutdown of this machine ends guests without asking them",
            "`berth service install`",
        ),
    }
}

pub(super) fn memory(facts: &DoctorFacts) -> Check {
    let memory = &facts.memory;
    let found = format!("{}, of which {} are available", gib(memory.total), gib(memory.available));
    if memory.available < LEAST_MEMORY {
        let fix = "end other programs, or add memory";
        return Check::bad("memory", Level::Warning, format!("{found}: too little for a guest"), fix);
    }
    Check::ok("memory", found)
}

pub(super) fn storage(facts: &DoctorFacts) -> Check {
    let at = facts.state_dir.display();
    match &facts.storage {
        Err(error) => Check::bad(
            "storage",
            Level::Failure,
            format!("{at}: {error}"),
            "create it, or name another with --state-dir",
        ),
        Ok((total, free)) => {
            let found = format!("{at}: {} of {} are free", gib(*free), gib(*total));
            let is_low = *free < LEAST_FREE || *free < total / 20;
            match is_low {
                false => Check::ok("storage", found),
                true => Check::bad(
                    "storage",
                    Level::Warning,
                    format!("{found}: a full file system pauses the guests that write"),
                    "free space, or move the state directory to a larger file system (--state-dir)",
                ),
            }
        }
    }
}

pub(super) fn pools(facts: &DoctorFacts) -> Check {
    if facts.pools.is_empty() {
        return Check::ok("pools", "in the state directory: none has a folder of its own");
    }
    let found = facts.pools.iter().map(|(pool, space)| match space {
        Ok((total, free)) => format!("{pool}: {} of {} are free", gib(*free), gib(*total)),
        Err(why) => format!("{pool} is away: {why}"),
    });
    let found = found.collect::<Vec<_>>().join("; ");
    let is_low = |(total, free): &(u64, u64)| *free < LEAST_FREE.min(total / 2) || *free < total / 20;
    if facts.pools.values().any(Result::is_err) {
        return Check::bad(
            "pools",
            Level::Warning,
            found,
            "mount its file system: the disks in it cannot be used, and are not lost",
        );
    }
    match facts.pools.values().flatten().any(is_low) {
        false => Check::ok("pools", found),
        true => Check::bad(
            "pools",
            Level::Warning,
            format!("{found}: a full file system pauses the guests that write"),
            "free space, or enlarge the file system",
        ),
    }
}

pub(super) fn open_files(facts: &DoctorFacts) -> Check {
    match facts.open_files {
        Some(limit) if limit < LEAST_OPEN_FILES => Check::bad(
            "open files",
            Level::Warning,
            format!("at most {limit} files can be open: too few for many VMs"),
            "LimitNOFILE=1048576 in the service's unit, or `ulimit -Hn 1048576`",
        ),
        Some(limit) => Check::ok("open files", format!("at most {limit}")),
        None => Check::ok("open files", "no limit"),
    }
}

pub(super) fn clock(facts: &DoctorFacts) -> Check {
    match &facts.clock {
        Some(keeper) => Check::ok("clock", format!("kept right by {keeper}")),
        None => Check::bad(
            "clock",
            Level::Warning,
            "no program that keeps it right was found: certificates, tickets and leases need a right clock",
            "Debian, Ubuntu: apt install systemd-timesyncd, or chrony; Fedora: dnf install chrony",
        ),
    }
}
