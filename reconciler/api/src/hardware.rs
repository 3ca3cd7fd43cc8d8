//! Types of the hardware that VMs and VMClasses declare.

mod network_card;
mod screen;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use network_card::NicModel;
pub use screen::{KeyboardLayout, Resolution, UnknownValue};
pub(crate) use screen::{keyboard_layout_schema, resolution_schema};

/// The least guest memory, in bytes: the firmware needs some of it, and no kernel boots with the rest of less.
pub const LEAST_MEMORY: u64 = 16 << 20;

/// The levels of the x86-64 architecture that a VM can have, the lowest first: each has the features of those before it.
pub const CPU_LEVELS: [&str; 4] = ["x86-64-v2", "x86-64-v2-AES", "x86-64-v3", "x86-64-v4"];

/// The firmware a VM boots with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Firmware {
    #[default]
    UEFI,
    /// UEFI with Secure Boot: only boot loaders signed by Microsoft, or with keys of the VM, are started.
    UEFISecureBoot,
    BIOS,
}

impl Firmware {
    /// The value of the attribute.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UEFI => "UEFI",
            Self::UEFISecureBoot => "UEFISecureBoot",
            Self::BIOS => "BIOS",
        }
    }
}

/// Whether the text is a UUID: 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12.
#[must_use]
pub fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    let is_group = |group: &str, length: usize| {
        group.len() == length && group.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    groups.len() == 5 && groups.iter().zip([8, 4, 4, 4, 12]).all(|(group, length)| is_group(group, length))
}

/// Whether the text is a machine type with a version, of QEMU's q35 machine, such as `pc-q35-9.2`, or of its `virt` machine, such as
/// `virt-9.2`.
#[must_use]
pub fn is_machine_type(text: &str) -> bool {
    let version = ["pc-q35-", "virt-"].into_iter().find_map(|prefix| text.strip_prefix(prefix));
    let Some(version) = version else { return false };
    let numbers = version.trim_start_matches(|letter: char| letter.is_ascii_lowercase());
    let is_number = |part: &str| matches!(part.len(), 1..=3) && part.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = numbers.split('.').collect();
    version.len() - numbers.len() <= 16 && matches!(parts.len(), 2..=3) && parts.into_iter().all(is_number)
}

/// The screen of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Graphics {
    #[default]
    None,
    /// A VGA card, which every guest has a driver for, and a pointer with absolute positions.
    VGA,
}

/// Devices that a VM boots from: the disk with `boot: true`, the CD-ROM drives in their order, or the network cards in the order of
/// their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BootSource {
    Disk,
    Cdrom,
    Network,
}

/// The family of the guest's operating system, as far as the hardware depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GuestOS {
    /// Linux, BSD and all others that have a clock in UTC.
    #[default]
    Linux,
    Windows,
}

impl GuestOS {
    /// The value of the attribute.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Linux => "Linux",
            Self::Windows => "Windows",
        }
    }
}

/// The pages of the host's memory that a guest's memory consists of.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum HugePages {
    /// Ordinary pages.
    #[default]
    None,
    /// Pages of 2 MiB, which the host reserves.
    #[serde(rename = "2Mi")]
    TwoMebibytes,
    /// Pages of 1 GiB, which the host reserves.
    #[serde(rename = "1Gi")]
    OneGibibyte,
}

impl HugePages {
    /// The sizes of which a host has a number each.
    pub const SIZES: [Self; 2] = [Self::TwoMebibytes, Self::OneGibibyte];

    /// The value of the attribute.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::TwoMebibytes => "2Mi",
            Self::OneGibibyte => "1Gi",
        }
    }

    /// The huge pages of this many bytes.
    #[must_use]
    pub fn of_bytes(bytes: u64) -> Option<Self> {
        Self::SIZES.into_iter().find(|size| size.bytes() == Some(bytes))
    }

    /// The bytes of a page; none for ordinary pages.
    #[must_use]
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::TwoMebibytes => Some(2 << 20),
            Self::OneGibibyte => Some(1 << 30),
        }
    }
}

/// The threads of QEMU that serve the disks of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum IoThreadsPolicy {
    /// One thread serves all disks on `virtio-scsi` and `virtio-blk`.
    #[default]
    Shared,
    /// Each disk on `virtio-blk` has a thread of its own. One serves all disks on `virtio-scsi`.
    PerDisk,
}

/// The action when the guest does not reset its watchdog timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Watchdog {
    /// The guest is reset at once.
    Reset,
    /// The VM ends as after a crash: its restart policy counts.
    PowerOff,
}

/// The arrangement of the virtual CPUs that the guest sees. Their number is `sockets` × `cores` × `threads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.sockets * self.cores * self.threads <= 128").message("sockets * cores * threads must be at most 128, the largest number of CPUs"))]
pub struct CpuTopology {
    /// Sockets, 1 to 128. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 128))]
    pub sockets: i64,
    /// Cores of each socket, 1 to 128. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 128))]
    pub cores: i64,
    /// Threads of each core, 1 to 128. Default 1.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 128))]
    pub threads: i64,
}

fn one() -> i64 {
    1
}

impl CpuTopology {
    /// One socket with this number of cores, which have one thread each: the topology where none is declared.
    #[must_use]
    pub const fn of_cores(cores: i64) -> Self {
        Self { sockets: 1, cores, threads: 1 }
    }

    /// The number of CPUs.
    #[must_use]
    pub const fn cpus(self) -> i64 {
        self.sockets.saturating_mul(self.cores).saturating_mul(self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_type_has_a_version() {
        for good in ["pc-q35-7.2", "virt-7.2", "pc-q35-10.0", "pc-q35-rhel9.4.0", "pc-q35-2.12"] {
            assert!(is_machine_type(good), "{good}");
        }
        for wrong in [
            "",
            "q35",
            "virt",
            "virt-7",
            "pc",
            "pc-q35-",
            "pc-q35-7",
            "pc-q35-7.",
            "pc-i440fx-7.2",
            "pc-q35-7.2,usb=on",
            "pc-q35-7.2.1.0",
        ] {
            assert!(!is_machine_type(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_uuid_has_five_groups_of_hexadecimal_digits() {
        for good in ["7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c", "7F2F6D5E-5C1F-4C39-9D3A-0D8C5F1B2A3C"] {
            assert!(is_uuid(good), "{good}");
        }
        for wrong in [
            "",
            "7f2f6d5e5c1f4c399d3a0d8c5f1b2a3c",
            "7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3",
            "g".repeat(36).as_str(),
        ] {
            assert!(!is_uuid(wrong), "{wrong}");
        }
    }
}
