//! The architectures of guests, and all that differs between their machines. Pure.
//!
//! The machine type determines the architecture: `pc-q35-7.2` is x86-64, `virt-7.2` is aarch64.

use std::env;
use std::path::Path;
use std::str::FromStr;

use super::validate::check;
use super::{Accelerator, Bus, Firmware, MachineSpec, SpecError};

/// The architecture of a guest's processors, by the names of `uname -m` and of QEMU's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Architecture {
    X86_64,
    Aarch64,
}

/// UEFI firmware in files: code and a template of its variables, whether that contains keys, and whether the code needs system management
/// mode.
pub(crate) type FirmwareFiles = (&'static str, &'static str, bool, bool);

/// Best first: Debian and Ubuntu, Fedora, Arch. A build with Secure Boot whose variables contain no keys starts everything.
const OVMF: [FirmwareFiles; 9] = [
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd", false, false),
    ("/usr/share/OVMF/OVMF_CODE_4M.ms.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd", true, true),
    ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd", false, false),
    ("/usr/share/OVMF/OVMF_CODE.ms.fd", "/usr/share/OVMF/OVMF_VARS.ms.fd", true, true),
    ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd", false, false),
    ("/usr/share/edk2/ovmf/OVMF_CODE.secboot.fd", "/usr/share/edk2/ovmf/OVMF_VARS.secboot.fd", true, true),
    ("/usr/share/edk2/ovmf/OVMF_CODE.secboot.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd", false, true),
    ("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd", false, false),
    ("/usr/share/edk2/x64/OVMF_CODE.secboot.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd", false, true),
];

/// Files of 64 MiB, the size of the flash memory of the machine: Debian and Ubuntu, Fedora, Arch.
const AAVMF: [FirmwareFiles; 4] = [
    ("/usr/share/AAVMF/AAVMF_CODE.no-secboot.fd", "/usr/share/AAVMF/AAVMF_VARS.fd", false, false),
    ("/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd", false, false),
    (
        "/usr/share/edk2/aarch64/QEMU_EFI-pflash.raw",
        "/usr/share/edk2/aarch64/vars-template-pflash.raw",
        false,
        false,
    ),
    ("/usr/share/edk2/aarch64/QEMU_CODE.fd", "/usr/share/edk2/aarch64/QEMU_VARS.fd", false, false),
];

impl Architecture {
    pub const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// The architecture of this program, and so of its host.
    #[must_use]
    pub fn of_host() -> Self {
        if env::consts::ARCH == Self::Aarch64.as_str() { Self::Aarch64 } else { Self::X86_64 }
    }

    /// The architecture that a machine of this type has.
    #[must_use]
    pub fn of_machine_type(machine_type: &str) -> Self {
        if machine_type.starts_with("virt-") { Self::Aarch64 } else { Self::X86_64 }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// The name of QEMU's program for such guests. A host's own may have another one, see [`crate::installation::find_binary`].
    pub(crate) const fn program(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86_64",
            Self::Aarch64 => "qemu-system-aarch64",
        }
    }

    /// The architecture of guests of a QEMU with this name. One without an architecture in its name is the host's own.
    pub(crate) fn of_program(binary: &Path) -> Self {
        let is_of =
            |architecture: &Self| binary.file_name().is_some_and(|name| name == architecture.program());
        Self::ALL.into_iter().find(is_of).unwrap_or_else(Self::of_host)
    }

    /// Returns the option that lets a guest suspend itself to its memory (ACPI S3), which is QEMU's default and not that of the machine
    /// types of some distributions. None with system management mode, whose firmware requires that it cannot, and for other
    /// architectures, which have no such state.
    pub(super) fn suspension(self, smm: bool) -> Vec<String> {
        if smm || self != Self::X86_64 {
            return Vec::new();
        }
        vec!["-global".to_owned(), "driver=ICH9-LPC,property=disable_s3,value=0".to_owned()]
    }

    /// How to install that program.
    #[must_use]
    pub const fn qemu_packages(self) -> &'static str {
        match self {
            Self::X86_64 => "Debian, Ubuntu: apt install qemu-system-x86; Fedora: dnf install qemu-kvm",
            Self::Aarch64 => {
                "Debian, Ubuntu: apt install qemu-system-arm; Fedora: dnf install qemu-system-aarch64"
            }
        }
    }

    /// The package of UEFI firmware in Debian and Ubuntu.
    #[must_use]
    pub const fn firmware_package(self) -> &'static str {
        match self {
            Self::X86_64 => "ovmf",
            Self::Aarch64 => "qemu-efi-aarch64",
        }
    }

    /// QEMU's name of the newest version of the machine.
    pub(crate) const fn machine_alias(self) -> &'static str {
        match self {
            Self::X86_64 => "q35",
            Self::Aarch64 => "virt",
        }
    }

    /// Where distributions have the firmware, best first.
    pub(crate) const fn firmware(self) -> &'static [FirmwareFiles] {
        match self {
            Self::X86_64 => &OVMF,
            Self::Aarch64 => &AAVMF,
        }
    }

    /// QEMU's name of the TPM's interface.
    pub(crate) const fn tpm_model(self) -> &'static str {
        match self {
            Self::X86_64 => "tpm-crb",
            Self::Aarch64 => "tpm-tis",
        }
    }

    /// QEMU's name of the device of a TPM.
    pub(super) const fn tpm(self) -> &'static str {
        match self {
            Self::X86_64 => "tpm-crb",
            Self::Aarch64 => "tpm-tis-device",
        }
    }

    /// Properties of the machine beside those of every one.
    pub(super) const fn machine_properties(self, accelerator: Accelerator) -> &'static str {
        match (self, accelerator) {
            (Self::X86_64, _) => "",
            // The host's processor decides it.
            (Self::Aarch64, Accelerator::Kvm) => ",gic-version=max",
            // Version 2 has no more than 8 CPUs. `max` would be another one in another version of QEMU.
            (Self::Aarch64, Accelerator::Tcg { .. }) => ",gic-version=3",
        }
    }

    /// What follows the base of `-rtc`: only a PC's clock has ticks that a guest can lose.
    pub(super) const fn clock(self) -> &'static str {
        match self {
            Self::X86_64 => ",driftfix=slew",
            Self::Aarch64 => "",
        }
    }
}

/// A text that names none of the architectures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write x86_64 or aarch64")]
pub struct UnknownArchitecture;

impl FromStr for Architecture {
    type Err = UnknownArchitecture;

    fn from_str(text: &str) -> Result<Self, UnknownArchitecture> {
        match text {
            "x86_64" | "amd64" => Ok(Self::X86_64),
            "aarch64" | "arm64" => Ok(Self::Aarch64),
            _ => Err(UnknownArchitecture),
        }
    }
}

impl MachineSpec {
    /// The architecture of its processors.
    #[must_use]
    pub fn architecture(&self) -> Architecture {
        Architecture::of_machine_type(&self.machine_type)
    }

    /// Checks for parts that the machines of its architecture do not have.
    pub(super) fn validate_architecture(&self) -> Result<(), SpecError> {
        if self.architecture() == Architecture::X86_64 {
            return Ok(());
        }
        let firmware = format!("{:?}", self.firmware);
        check(
            "firmware",
            &firmware,
            self.firmware == Firmware::Uefi,
            "aarch64 has UEFI without Secure Boot",
        )?;
        check("guest OS", "Windows", !self.extras.windows, "on x86_64 only")?;
        let ports = self.extras.further_serial_ports;
        check("serial ports", &ports.to_string(), ports == 0, "aarch64 has one")?;
        let grows = self.topology.cpus() != u32::from(self.cpus);
        check("topology", &self.topology.cpus().to_string(), !grows, "aarch64 plugs no CPUs in")?;
        let has_sata = self.disks.iter().any(|disk| disk.bus == Bus::Sata);
        check("bus", "sata", !has_sata, "aarch64 has no SATA controller")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_type_determines_the_architecture() {
        for (machine_type, architecture) in [
            ("pc-q35-7.2", Architecture::X86_64),
            ("pc-q35-rhel9.4.0", Architecture::X86_64),
            ("virt-7.2", Architecture::Aarch64),
            ("virt-rhel9.4.0", Architecture::Aarch64),
        ] {
            assert_eq!(Architecture::of_machine_type(machine_type), architecture, "{machine_type}");
        }
    }

    #[test]
    fn an_architecture_is_read_by_its_names() {
        assert_eq!("arm64".parse(), Ok(Architecture::Aarch64));
        assert_eq!("x86_64".parse(), Ok(Architecture::X86_64));
        assert_eq!("riscv64".parse::<Architecture>(), Err(UnknownArchitecture));
    }

    #[test]
    fn each_architecture_has_a_program_and_firmware_of_its_own() {
        for architecture in Architecture::ALL {
            assert!(architecture.program().ends_with(architecture.as_str()), "{architecture:?}");
            assert!(!architecture.firmware().is_empty() && !architecture.qemu_packages().is_empty());
        }
        let of = |name: &str| Architecture::of_program(Path::new(name));
        assert_eq!(of("/usr/bin/qemu-system-aarch64"), Architecture::Aarch64);
        assert_eq!(of("/usr/libexec/qemu-kvm"), Architecture::of_host());
        assert!(Architecture::Aarch64.firmware().iter().all(|(.., keys, smm)| !keys && !smm));
    }
}
