//! State of the fake host.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use berth_qemu::machine::{Accelerator, Architecture, Backing, DiskKey};
use jiff::Timestamp;
use serde_json::Value;

use super::vaults::FakeVault;
use super::{FakeRepositories, FakeSource};
use crate::keyring::Keyring;
use crate::{
    Arrival, BridgedNetwork, Credentials, DedicatedCpus, DedicatedFacts, ExternalLease, Firewall,
    FirmwareCopy, HostFacts, HostLinks, ImageFacts, KvmFacts, LearnedAddress, NetworkConfig, NewMove,
    QemuFacts, Result, SnapshotFacts, SystemError, TapConfig, Uplink, VolumeFacts, WireguardConfig,
};

#[derive(Debug)]
pub(super) struct State {
    pub(super) sources: BTreeMap<String, FakeSource>,
    /// The bytes of images at URLs, by digest. Others have none, so they cannot be copied.
    pub(super) served: BTreeMap<String, Vec<u8>>,
    /// Content of checksum files, by URL.
    pub(super) checksums: BTreeMap<String, String>,
    /// Those of the last request.
    pub(super) credentials: Credentials,
    /// Virtual size of the image at every other URL, if there is one.
    pub(super) any_image: Option<u64>,
    pub(super) images: BTreeMap<String, ImageFacts>,
    /// The bytes of the images that were made, uploaded, copied or downloaded, by digest.
    pub(super) contents: BTreeMap<String, Vec<u8>>,
    /// The number of images that were copied from other hosts.
    pub(super) copies: u64,
    /// The bytes of uploads that are no images yet, by URL.
    pub(super) uploads: BTreeMap<String, Vec<u8>>,
    pub(super) pulls: u64,
    pub(super) volumes: BTreeMap<String, Volume>,
    /// The volumes and snapshots of which there is a record and no file.
    pub(super) lost: BTreeSet<String>,
    /// The mirrors of volumes that were prepared, by the identity of the volume: with the files that they go to, or have come from.
    pub(super) mirrors: BTreeMap<String, (NewMove, PathBuf)>,
    /// The stays that volumes were copied here for, by id.
    pub(super) arrivals: BTreeMap<String, Arrival>,
    /// The volumes of other hosts whose guests are about to come here.
    pub(super) arriving: BTreeSet<String>,
    pub(super) trash: BTreeMap<String, (Volume, u64, Timestamp)>,
    pub(super) snapshots: BTreeMap<String, Snapshot>,
    /// The keys of encrypted volumes, which the real host forgets with its agent.
    pub(super) keys: Keyring,
    pub(super) repositories: FakeRepositories,
    /// By their addresses.
    pub(super) vaults: BTreeMap<String, FakeVault>,
    /// The first bytes of snapshots and backups, by id; zeros follow.
    pub(super) disk_data: BTreeMap<String, Vec<u8>>,
    pub(super) networks: BTreeMap<String, NetworkConfig>,
    pub(super) bridged: BTreeMap<String, BridgedNetwork>,
    pub(super) wireguard: Option<WireguardConfig>,
    pub(super) taps: BTreeMap<String, TapConfig>,
    pub(super) firewall: Firewall,
    /// Whether every running machine must be filtered.
    pub(super) filters_expected: bool,
    /// Another program has removed the rules, and they are not written again yet.
    pub(super) firewall_lost: bool,
    /// Bridges whose DHCP server does not run.
    pub(super) without_server: BTreeSet<String>,
    /// Bridges whose links cannot be changed.
    pub(super) refused_links: BTreeSet<String>,
    /// Bridges that cannot be removed.
    pub(super) refused_removals: BTreeSet<String>,
    /// Bridges whose DHCP server cannot be started.
    pub(super) refused_servers: BTreeSet<String>,
    /// Those of them that were not reported yet.
    pub(super) ended_servers: VecDeque<String>,
    pub(super) journals: BTreeMap<String, Value>,
    /// The control plane that was obeyed last.
    pub(super) site: Option<Value>,
    /// Start time of each process, by pid.
    pub(super) started: BTreeMap<i32, Timestamp>,
    pub(super) facts: HostFacts,
    /// Memory of the host that programs can still get. None: all of it.
    pub(super) available_memory: Option<u64>,
    /// The CPUs of each instance that has some for itself; they count while it runs.
    pub(super) dedicated: BTreeMap<String, DedicatedCpus>,
    pub(super) uplink: Uplink,
    /// Public addresses that another machine on the segment has, with its MAC address.
    pub(super) occupied: BTreeMap<std::net::IpAddr, String>,
    /// The addresses that guests have sent from, by tap.
    pub(super) seen: BTreeMap<String, BTreeSet<std::net::IpAddr>>,
    /// The leases of the DHCP servers of bridged networks.
    pub(super) leases: Vec<ExternalLease>,
    /// The firmware variables and the memory of the TPM of instances.
    pub(super) firmware: BTreeMap<String, Vec<u8>>,
    /// The copies of them in shared pools, by pool and instance.
    pub(super) firmware_copies: BTreeMap<(String, String), FirmwareCopy>,
    /// The IPv6 addresses that guests of bridged networks have taken.
    pub(super) learned: Vec<LearnedAddress>,
    /// The notes of the states of machines that snapshots keep.
    pub(super) kept_states: BTreeMap<String, Value>,
    /// The files that a machine had open for writing: its guest has written to them.
    pub(super) opened: BTreeSet<PathBuf>,
    /// The bytes that volumes take, by id. Empty: they are not measured.
    pub(super) used: BTreeMap<String, u64>,
    /// As `used`, of the other files of instances.
    pub(super) used_by_instances: BTreeMap<String, u64>,
    pub(super) violations: Vec<String>,
    pub(super) calls: BTreeMap<&'static str, u64>,
}

/// A volume; its size is stored with the file.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) facts: VolumeFacts,
}

/// A snapshot, with the file that it is.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) facts: SnapshotFacts,
    pub(super) backing: Backing,
    /// The digest of the image that it is based on.
    pub(super) base: Option<String>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            sources: BTreeMap::new(),
            served: BTreeMap::new(),
            checksums: BTreeMap::new(),
            credentials: Credentials::default(),
            any_image: None,
            images: BTreeMap::new(),
            contents: BTreeMap::new(),
            copies: 0,
            uploads: BTreeMap::new(),
            pulls: 0,
            volumes: BTreeMap::new(),
            lost: BTreeSet::new(),
            arriving: BTreeSet::new(),
            arrivals: BTreeMap::new(),
            mirrors: BTreeMap::new(),
            trash: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            keys: Keyring::default(),
            repositories: FakeRepositories::default(),
            vaults: BTreeMap::new(),
            disk_data: BTreeMap::new(),
            networks: BTreeMap::new(),
            bridged: BTreeMap::new(),
            wireguard: None,
            taps: BTreeMap::new(),
            firewall: Firewall::default(),
            filters_expected: false,
            firewall_lost: false,
            without_server: BTreeSet::new(),
            refused_links: BTreeSet::new(),
            refused_removals: BTreeSet::new(),
            refused_servers: BTreeSet::new(),
            ended_servers: VecDeque::new(),
            journals: BTreeMap::new(),
            site: None,
            started: BTreeMap::new(),
            facts: facts(),
            available_memory: None,
            dedicated: BTreeMap::new(),
            uplink: Uplink {
                interface: Ok("eth0".to_owned()),
                ipv6_obstacle: None,
                own: BTreeSet::new(),
                public: BTreeSet::new(),
            },
            occupied: BTreeMap::new(),
            seen: BTreeMap::new(),
            leases: Vec::new(),
            firmware: BTreeMap::new(),
            firmware_copies: BTreeMap::new(),
            learned: Vec::new(),
            kept_states: BTreeMap::new(),
            opened: BTreeSet::new(),
            used: BTreeMap::new(),
            used_by_instances: BTreeMap::new(),
            violations: Vec::new(),
            calls: BTreeMap::new(),
        }
    }
}

impl State {
    /// Checks that a pool is not away, as the facts of the host have it.
    pub(super) fn ensure_there(&self, pool: &str) -> Result<()> {
        let away =
            self.facts.pool_folders.iter().filter(|of| of.pool == pool).find_map(|of| of.problem.clone());
        match away {
            Some(detail) => Err(SystemError::PoolAway { pool: pool.to_owned(), detail }),
            None => Ok(()),
        }
    }

    /// Adds why a volume that is a block device cannot be opened.
    pub(super) fn with_device(&self, volume: VolumeFacts) -> VolumeFacts {
        if !volume.is_device() {
            return volume;
        }
        let device = self.facts.block_devices.iter().find(|device| device.path == volume.path);
        match device {
            Some(device) => VolumeFacts { size: device.size, problem: device.problem.clone(), ..volume },
            None => {
                VolumeFacts { size: 0, problem: Some("this host does not offer it".to_owned()), ..volume }
            }
        }
    }

    /// Frees a block device, with its data.
    pub(super) fn give_up_device(&mut self, path: &Path) {
        let devices = self.facts.block_devices.iter_mut().filter(|device| device.path == path);
        devices.for_each(|device| device.held_by = None);
    }

    /// Returns the key of a disk, if it is encrypted.
    pub(super) fn key_of_disk(&self, id: &str) -> Result<Option<DiskKey>> {
        let volume = self.volumes.get(id);
        self.keys.key_of(id, volume.and_then(|volume| volume.facts.encryption.as_deref()))
    }

    /// Frees the devices of an instance.
    pub(super) fn give_back(&mut self, instance: &str) {
        let pci = self.facts.pci_devices.iter_mut().map(|facts| &mut facts.held_by);
        let usb = self.facts.usb_devices.iter_mut().map(|facts| &mut facts.held_by);
        let its = pci.chain(usb).filter(|held_by| held_by.as_deref() == Some(instance));
        its.for_each(|held_by| *held_by = None);
        for facts in &mut self.facts.vgpus {
            facts.held_by.retain(|_, holder| holder.as_str() != instance);
            facts.made.retain(|uuid| facts.held_by.contains_key(uuid));
        }
    }

    /// Returns the CPUs for single machines that no running instance has.
    pub(super) fn free_cpus(&self, runs: impl Fn(&String) -> bool) -> BTreeSet<u32> {
        let mut free = self.facts.dedicated.cpus.clone();
        for (_, cpus) in self.dedicated.iter().filter(|(instance, _)| runs(instance)) {
            for cpu in cpus.all() {
                free.remove(&cpu);
            }
        }
        free
    }
}

fn facts() -> HostFacts {
    HostFacts {
        block_devices: Vec::new(),
        cpus: 8,
        memory_bytes: 32 << 30,
        storage_total_bytes: 1 << 40,
        storage_free_bytes: 1 << 40,
        architecture: Architecture::X86_64,
        emulated: None,
        qemu: Ok(QemuFacts {
            version: "7.2.0".to_owned(),
            machine_type: "pc-q35-7.2".to_owned(),
            machine_types: vec!["pc-q35-7.1".to_owned(), "pc-q35-7.2".to_owned()],
            cpu_model: "max".to_owned(),
            uefi: true,
            secure_boot: true,
            cpu_models: vec!["Westmere".to_owned(), "x86-64-v2".to_owned()],
            boot_roms: true,
            io_uring: true,
            tpm: true,
            vsock: true,
        }),
        kvm: KvmFacts { usable: false, reason: "/dev/kvm does not exist".to_owned(), mips: None },
        accelerator: Accelerator::Tcg { tb_size_mib: 32 },
        vhost_net: false,
        address: None,
        mtu: None,
        ranges: Vec::new(),
        ipv6_addresses: Vec::new(),
        links: HostLinks::default(),
        wireguard: Err("wireguard-tools is not installed".to_owned()),
        pci_devices: Vec::new(),
        usb_devices: Vec::new(),
        vgpus: Vec::new(),
        shares: Vec::new(),
        backup_folders: Vec::new(),
        pool_folders: Vec::new(),
        huge_pages: Vec::new(),
        dedicated: DedicatedFacts::default(),
        overhead_bytes: 80 << 20,
        boot_id: String::new(),
    }
}

pub(super) fn image_path(digest: &str) -> PathBuf {
    PathBuf::from("/fake/images").join(digest)
}

pub(super) fn volume_path(pool: &str, id: &str) -> PathBuf {
    PathBuf::from("/fake/pools").join(pool).join("volumes").join(format!("{id}.qcow2"))
}

pub(super) fn saved_state_path(instance: &str) -> PathBuf {
    instance_path(instance).join("saved.state")
}

pub(super) fn kept_state_path(id: &str) -> PathBuf {
    PathBuf::from("/fake/memory").join(format!("{id}.state"))
}

pub(super) fn instance_path(instance: &str) -> PathBuf {
    PathBuf::from("/fake/instances").join(instance)
}
