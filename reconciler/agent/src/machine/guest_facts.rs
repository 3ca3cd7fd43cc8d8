//! The facts that a guest's agent reports, reduced to those in use. Pure, and bounded: all of it comes from the guest.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_api::Quantity;
use berth_api::vm::{GuestFilesystem, GuestInterface};
use berth_qemu::guest_agent::{Filesystem, Interface, OsInfo};

/// Limits of the lists that are kept: a guest may send lists of any length.
const MAX_ADDRESSES: usize = 16;
const MAX_INTERFACES: usize = 16;
const MAX_FILESYSTEMS: usize = 16;
/// As many disks as a machine has.
const MAX_DEVICES: usize = 256;
/// The change of a file system's use, in percent, that is worth a write of the status.
const USE_STEP: i64 = 5;
/// The change of its size that is worth one, as a divisor: the size of some file systems is an estimate that changes with
/// their use.
const SIZE_STEP: u64 = 50;

/// The latest facts reported by a guest.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GuestFacts {
    /// Whether its agent answers.
    pub(crate) agent: bool,
    /// Whether its file systems stay frozen, after a snapshot that is over.
    pub(crate) frozen: bool,
    pub(crate) hostname: Option<String>,
    pub(crate) os: Option<String>,
    pub(crate) os_id: Option<String>,
    pub(crate) os_version: Option<String>,
    pub(crate) kernel: Option<String>,
    pub(crate) addresses: Vec<String>,
    pub(crate) interfaces: Vec<GuestInterface>,
    pub(crate) filesystems: Vec<GuestFilesystem>,
    /// Serial number of a disk → name of its device in the guest, for disks with a mounted file system.
    pub(crate) devices: BTreeMap<String, String>,
}

impl GuestFacts {
    /// Returns the facts with the operating system's.
    pub(super) fn with_os(mut self, os: OsInfo) -> Self {
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        self.os = given(os.pretty_name);
        self.os_id = given(os.id);
        self.os_version = given(os.version_id);
        self.kernel = given(os.kernel_release);
        self
    }

    /// Returns the facts with these interfaces. Those without an address of their own are left out: the containers of a guest
    /// make and remove such interfaces all the time.
    pub(super) fn with_interfaces(mut self, interfaces: &[Interface]) -> Self {
        let own = |interface: &&Interface| interface.addresses.iter().any(|(address, _)| is_own(address));
        let addresses = interfaces.iter().flat_map(|interface| &interface.addresses);
        let addresses = addresses.map(|(address, _)| address).filter(|address| is_own(address));
        self.addresses = addresses.map(ToString::to_string).take(MAX_ADDRESSES).collect();
        let listed = interfaces.iter().filter(own).take(MAX_INTERFACES).map(|interface| GuestInterface {
            name: interface.name.clone(),
            mac_address: interface.mac.clone(),
            addresses: interface
                .addresses
                .iter()
                .filter(|(address, _)| !address.is_loopback())
                .map(|(address, prefix)| format!("{address}/{prefix}"))
                .take(MAX_ADDRESSES)
                .collect(),
        });
        self.interfaces = listed.collect();
        self
    }

    /// Returns the facts with these file systems: each block device once, without those of loop devices, which are files of
    /// other file systems.
    pub(super) fn with_filesystems(mut self, filesystems: &[Filesystem]) -> Self {
        let mut seen = BTreeSet::new();
        let listed = filesystems
            .iter()
            .filter(|filesystem| !filesystem.device.starts_with("loop"))
            .filter(|filesystem| seen.insert(filesystem.device.clone()))
            .take(MAX_FILESYSTEMS);
        self.filesystems = listed.map(listed_filesystem).collect();
        for disk in filesystems.iter().flat_map(|filesystem| &filesystem.disks) {
            if let (Some(serial), Some(dev)) = (&disk.serial, &disk.dev) {
                let own = serial.rsplit('_').next().unwrap_or(serial);
                if self.devices.len() < MAX_DEVICES {
                    self.devices.insert(own.to_owned(), dev.clone());
                }
            }
        }
        self
    }
}

fn is_own(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

fn listed_filesystem(filesystem: &Filesystem) -> GuestFilesystem {
    let used = filesystem.used_bytes.zip(filesystem.total_bytes.filter(|total| *total > 0));
    let percent = used.map(|(used, total)| i64::try_from(u128::from(used) * 100 / u128::from(total)));
    GuestFilesystem {
        mountpoint: filesystem.mountpoint.clone(),
        filesystem_type: filesystem.kind.clone(),
        device: filesystem.device.clone(),
        size: filesystem.total_bytes.map(|bytes| Quantity::from_bytes(bytes).0),
        used_percent: percent.map(|percent| percent.unwrap_or(100).min(100)),
    }
}

/// Returns the file systems with the use and the size that are stored for each, unless these have changed by their steps: they
/// change all the time, and not every change is worth a write.
pub(crate) fn with_stored_use(
    filesystems: &[GuestFilesystem],
    stored: &[GuestFilesystem],
) -> Vec<GuestFilesystem> {
    let with_stored = |filesystem: &GuestFilesystem| {
        let is_same = |old: &&GuestFilesystem| {
            old.mountpoint == filesystem.mountpoint && old.device == filesystem.device
        };
        let before = stored.iter().find(is_same).and_then(|old| old.used_percent);
        let used_percent = match (before, filesystem.used_percent) {
            (Some(before), Some(now)) if (now - before).abs() < USE_STEP => Some(before),
            (_, now) => now,
        };
        let old_size = stored.iter().find(is_same).and_then(|old| old.size.clone());
        let size = match (&old_size, &filesystem.size) {
            (Some(old), Some(now)) if is_about(old, now) => old_size,
            (_, now) => now.clone(),
        };
        GuestFilesystem { used_percent, size, ..filesystem.clone() }
    };
    filesystems.iter().map(with_stored).collect()
}

fn is_about(old: &str, now: &str) -> bool {
    let bytes = |text: &str| Quantity(text.to_owned()).bytes().unwrap_or_default();
    bytes(now).abs_diff(bytes(old)) < bytes(old) / SIZE_STEP
}

#[cfg(test)]
mod tests {
    use berth_qemu::guest_agent::FilesystemDisk;

    use super::*;

    fn filesystem(device: &str, used: u64) -> Filesystem {
        Filesystem {
            mountpoint: format!("/mnt/{device}"),
            kind: "ext4".into(),
            device: device.into(),
            total_bytes: Some(10 << 30),
            used_bytes: Some(used),
            disks: Vec::new(),
        }
    }

    #[test]
    fn interfaces_with_an_address_of_their_own_are_listed_with_all_their_addresses() {
        let interface = |name: &str, addresses: &[(&str, u8)]| Interface {
            name: name.into(),
            mac: Some("52:54:00:00:00:01".into()),
            addresses: addresses.iter().map(|(a, p)| (a.parse().expect("an address"), *p)).collect(),
        };
        let facts = GuestFacts::default().with_interfaces(&[
            interface("lo", &[("127.0.0.1", 8), ("::1", 128)]),
            interface("enp0s16", &[("10.128.0.2", 20), ("2001:db8::2", 64), ("fe80::1", 64)]),
            interface("veth12ab", &[("fe80::2", 64)]),
        ]);
        assert_eq!(facts.addresses, ["10.128.0.2", "2001:db8::2"]);
        assert_eq!(facts.interfaces.len(), 1);
        assert_eq!(facts.interfaces[0].addresses, ["10.128.0.2/20", "2001:db8::2/64", "fe80::1/64"]);
    }

    #[test]
    fn a_device_is_listed_once_and_a_loop_device_is_not() {
        let all = [filesystem("sda1", 4 << 30), filesystem("loop3", 1), filesystem("sda1", 4 << 30)];
        let facts = GuestFacts::default().with_filesystems(&all);
        assert_eq!(facts.filesystems.len(), 1);
        assert_eq!(facts.filesystems[0].size.as_deref(), Some("10Gi"));
        assert_eq!(facts.filesystems[0].used_percent, Some(40));
    }

    #[test]
    fn lists_of_any_length_are_cut_and_absurd_numbers_are_bounded() {
        let many: Vec<Filesystem> = (0..200).map(|n| filesystem(&format!("sd{n}"), u64::MAX)).collect();
        let facts = GuestFacts::default().with_filesystems(&many);
        assert_eq!(facts.filesystems.len(), MAX_FILESYSTEMS);
        assert_eq!(facts.filesystems[0].used_percent, Some(100));
        let disk = |n: usize| FilesystemDisk {
            serial: Some(format!("v-{n}")),
            dev: Some("/dev/sda".into()),
            ..FilesystemDisk::default()
        };
        let of_disks = Filesystem { disks: (0..1000).map(disk).collect(), ..filesystem("sda1", 1) };
        let facts = GuestFacts::default().with_filesystems(&[of_disks]);
        assert_eq!(facts.devices.len(), MAX_DEVICES);
        let empty = Filesystem { total_bytes: Some(0), ..filesystem("sda1", 1) };
        assert_eq!(listed_filesystem(&empty).used_percent, None);
    }

    #[test]
    fn the_use_of_a_file_system_is_written_when_it_has_changed_enough() {
        let at = |percent| GuestFilesystem {
            mountpoint: "/".into(),
            device: "sda1".into(),
            used_percent: Some(percent),
            ..GuestFilesystem::default()
        };
        assert_eq!(with_stored_use(&[at(44)], &[at(40)]), [at(40)]);
        assert_eq!(with_stored_use(&[at(45)], &[at(40)]), [at(45)]);
        assert_eq!(with_stored_use(&[at(35)], &[at(40)]), [at(35)]);
        assert_eq!(with_stored_use(&[at(44)], &[]), [at(44)]);
        let sized = |size: &str| GuestFilesystem { size: Some(size.into()), ..at(40) };
        assert_eq!(with_stored_use(&[sized("1005Mi")], &[sized("1000Mi")]), [sized("1000Mi")]);
        assert_eq!(with_stored_use(&[sized("2Gi")], &[sized("1Gi")]), [sized("2Gi")]);
    }
}
