//! A whole host in memory: its disk, its networks, and machines that speak real QMP. It uses no thread, socket or file,
//! so whole agents run on it in one runtime with paused time.
//!
//! The host's state outlives the agent: a test drops an agent and starts another on the same [`FakeSystem`]. Each call
//! can be made to fail, or never to return, before or after its effect: see [`Faults`]. The fake is at least as strict
//! as a real host: a harmful call that a real host would allow is recorded as a violation.

mod backups;
mod calls;
mod devices;
mod faults;
mod fetches;
mod files;
mod firmware_state;
mod images;
mod info;
mod kept_states;
mod machines;
mod made_volumes;
mod mirrors;
mod moves;
mod networks;
mod snapshots;
mod state;
mod vaults;
mod volumes;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_engine::Clock;
use berth_qemu::fake::FakeHypervisor;
use berth_qemu::machine::Format;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::{
    BridgedNetwork, Credentials, ExternalLease, Filters, Firewall, HostBridge, HostFacts, HostInterface,
    LearnedAddress, NetworkConfig, PoolFolderFacts, Uplink,
};
pub use backups::FakeRepositories;
pub use faults::{FaultAction, Faults, NoFaults, When};
use files::FakeFiles;
use state::State;

/// A source that an image can be downloaded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FakeSource {
    /// Actual checksum of the bytes (SHA-256 or SHA-512).
    pub sha256: String,
    pub format: Format,
    pub virtual_size: u64,
    pub bytes: u64,
    /// Why the content is not a usable image, if it is not.
    pub refused: Option<String>,
}

/// Everything berth created on a host and has not removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    pub processes: Vec<String>,
    pub instances: Vec<String>,
    pub taps: Vec<String>,
    pub bridges: Vec<String>,
    pub firewall: Firewall,
    pub volumes: Vec<String>,
    pub snapshots: Vec<String>,
    pub images: Vec<String>,
    pub saved_states: Vec<String>,
    pub kept_states: Vec<String>,
}

impl Leftovers {
    /// Whether nothing is left except possibly files in the trash.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The fake host.
#[derive(Debug)]
pub struct FakeSystem {
    hypervisor: FakeHypervisor,
    files: FakeFiles,
    state: Mutex<State>,
    faults: Mutex<Arc<dyn Faults>>,
    firewall_removed: Notify,
    server_ended: Notify,
    leases_changed: Notify,
    clock: Arc<dyn Clock>,
}

impl FakeSystem {
    /// Returns an empty host: 8 CPUs, 32 GiB of memory, 1 TiB of disk, emulation only.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let files = FakeFiles::default();
        Self {
            hypervisor: FakeHypervisor::with_files(Arc::new(files.clone())),
            files,
            state: Mutex::default(),
            faults: Mutex::new(Arc::new(NoFaults)),
            firewall_removed: Notify::new(),
            server_ended: Notify::new(),
            leases_changed: Notify::new(),
            clock,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the faults, which are consulted before and after every call from now on.
    pub fn set_faults(&self, faults: Arc<dyn Faults>) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// Returns the hypervisor, to inspect machines and to make guests misbehave.
    pub fn hypervisor(&self) -> &FakeHypervisor {
        &self.hypervisor
    }

    /// Makes a source available at a URL.
    pub fn add_source(&self, url: &str, source: FakeSource) {
        self.state().sources.insert(url.to_owned(), source);
    }

    /// Makes a qcow2 image of these bytes available at a URL; other hosts can copy it once it is downloaded.
    pub fn serve_image(&self, url: &str, bytes: &[u8]) {
        let sha256: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let source = FakeSource {
            sha256: sha256.clone(),
            format: Format::Qcow2,
            virtual_size: 1 << 30,
            bytes: bytes.len() as u64,
            refused: None,
        };
        let mut state = self.state();
        state.sources.insert(url.to_owned(), source);
        state.served.insert(sha256, bytes.to_vec());
    }

    /// Makes a checksum file available at a URL. It lists this digest for any image.
    pub fn add_checksum(&self, url: &str, digest: &str) {
        self.state().checksums.insert(url.to_owned(), digest.to_owned());
    }

    /// Makes an image of this virtual size available at every other URL, with any requested checksum.
    pub fn serve_any_image(&self, virtual_size: u64) {
        self.state().any_image = Some(virtual_size);
    }

    /// Has these bytes uploaded for the Image with this uid, as a client of the agent does.
    pub fn put_upload(&self, uid: &str, bytes: &[u8]) {
        self.state().uploads.insert(crate::upload_url(uid), bytes.to_vec());
    }

    /// Returns the number of bytes of uploads that are no images yet.
    pub fn uploads_now(&self) -> u64 {
        self.state().uploads.values().map(|bytes| bytes.len() as u64).sum()
    }

    /// Returns the number of images that were copied from other hosts.
    pub fn copies(&self) -> u64 {
        self.state().copies
    }

    /// Damages an image's file without berth being involved.
    pub fn damage_image(&self, digest: &str) {
        if let Some(byte) = self.state().contents.get_mut(digest).and_then(|bytes| bytes.last_mut()) {
            *byte ^= 1;
        }
    }

    /// Deletes an image's file without berth being involved.
    pub fn lose_image(&self, digest: &str) {
        if let Some(facts) = self.state().images.remove(digest) {
            self.files.remove(&facts.path);
        }
    }

    /// Removes the source at this URL.
    pub fn remove_source(&self, url: &str) {
        self.state().sources.remove(url);
    }

    /// Returns the credentials of the last download or resolution.
    pub fn credentials(&self) -> Credentials {
        self.state().credentials.clone()
    }

    /// Returns how many downloads were started.
    pub fn pulls(&self) -> u64 {
        self.state().pulls
    }

    /// Changes the facts the host reports.
    pub fn change_facts(&self, change: impl FnOnce(&mut HostFacts)) {
        change(&mut self.state().facts);
    }

    /// Sets how much memory of the host programs can still get.
    pub fn set_available_memory(&self, bytes: u64) {
        self.state().available_memory = Some(bytes);
    }

    /// Gives a pool a folder of its own, which is there if there is no problem, and away otherwise.
    pub fn set_pool_folder(&self, pool: &str, problem: Option<&str>) {
        let bytes = if problem.is_some() { 0 } else { 1 << 40 };
        let folder = PoolFolderFacts {
            pool: pool.to_owned(),
            path: format!("/mnt/{pool}").into(),
            total_bytes: bytes,
            free_bytes: bytes,
            problem: problem.map(str::to_owned),
        };
        self.change_facts(|facts| {
            facts.pool_folders.retain(|of| of.pool != pool);
            facts.pool_folders.push(folder);
        });
    }

    /// Sets the bytes that a volume takes.
    pub fn set_used_bytes(&self, volume: &str, bytes: u64) {
        self.state().used.insert(volume.to_owned(), bytes);
    }

    /// Sets the bytes that the files of an instance take.
    pub fn set_instance_bytes(&self, instance: &str, bytes: u64) {
        self.state().used_by_instances.insert(instance.to_owned(), bytes);
    }

    /// Returns the current size of each volume's file, by volume id.
    pub fn volumes_now(&self) -> BTreeMap<String, u64> {
        let state = self.state();
        let size = |volume: &state::Volume| self.files.size_of(&volume.facts.path).unwrap_or(0);
        state.volumes.iter().map(|(id, volume)| (id.clone(), size(volume))).collect()
    }

    /// Returns the volumes with all that is recorded of them.
    pub fn volume_facts_now(&self) -> Vec<crate::VolumeFacts> {
        self.state().volumes.values().map(|volume| volume.facts.clone()).collect()
    }

    /// Returns the snapshots, with all that is recorded of them.
    pub fn snapshots_now(&self) -> Vec<crate::SnapshotFacts> {
        self.state().snapshots.values().map(|snapshot| snapshot.facts.clone()).collect()
    }

    /// Returns the volumes in the trash.
    pub fn trash_now(&self) -> Vec<String> {
        self.state().trash.keys().cloned().collect()
    }

    /// Deletes a volume's file without berth being involved.
    pub fn lose_volume(&self, id: &str) {
        let mut state = self.state();
        if let Some(volume) = state.volumes.remove(id) {
            self.files.remove(&volume.facts.path);
            state.lost.insert(id.to_owned());
        }
    }

    /// Deletes a snapshot's file without berth being involved.
    pub fn lose_snapshot(&self, id: &str) {
        self.state().lost.insert(id.to_owned());
    }

    /// Changes the bridges that the host has itself.
    pub fn change_bridges(&self, bridges: &[HostBridge]) {
        self.state().facts.links.bridges = bridges.to_vec();
    }

    /// Changes the interfaces that the host has itself.
    pub fn change_interfaces(&self, interfaces: &[HostInterface]) {
        self.state().facts.links.interfaces = interfaces.to_vec();
    }

    /// Returns the parts of bridged networks on this host.
    pub fn bridged_networks(&self) -> Vec<BridgedNetwork> {
        self.state().bridged.values().cloned().collect()
    }

    /// Changes the uplink on which public addresses can be announced.
    pub fn change_uplink(&self, change: impl FnOnce(&mut Uplink)) {
        change(&mut self.state().uplink);
    }

    /// Has another machine on the segment take an address, or give it up.
    pub fn occupy(&self, address: IpAddr, mac: Option<&str>) {
        let mut state = self.state();
        match mac {
            Some(mac) => state.occupied.insert(address, mac.to_owned()),
            None => state.occupied.remove(&address),
        };
    }

    /// Has the guest behind a tap send from an address.
    pub fn send_from(&self, tap: &str, address: IpAddr) {
        self.state().seen.entry(tap.to_owned()).or_default().insert(address);
    }

    /// Has the DHCP server of a bridged network lease an address to a guest, or take it back.
    pub fn lease(&self, bridge: &str, mac: &str, address: Option<Ipv4Addr>) {
        let mut state = self.state();
        state.leases.retain(|lease| lease.bridge != bridge || lease.mac != mac);
        let (bridge, mac) = (bridge.to_owned(), mac.to_owned());
        state.leases.extend(address.map(|address| ExternalLease { bridge, mac, address }));
        drop(state);
        self.leases_changed.notify_one();
    }

    /// Has a guest of a bridged network take an IPv6 address that no other machine has.
    pub fn learn(&self, bridge: &str, mac: &str, address: Ipv6Addr) {
        let (bridge, mac) = (bridge.to_owned(), mac.to_owned());
        self.state().learned.push(LearnedAddress { bridge, mac, address });
        self.leases_changed.notify_one();
    }

    /// Returns the private networks as last applied.
    pub fn networks_now(&self) -> Vec<NetworkConfig> {
        self.state().networks.values().cloned().collect()
    }

    /// Returns the interface of WireGuard as last applied, if it is there.
    pub fn wireguard_now(&self) -> Option<crate::WireguardConfig> {
        self.state().wireguard.clone()
    }

    /// Takes the interface of WireGuard away, as another program may.
    pub fn lose_wireguard(&self) {
        self.state().wireguard = None;
        self.firewall_removed.notify_one();
    }

    /// Returns the firewall as last applied.
    pub fn firewall_now(&self) -> Firewall {
        self.state().firewall.clone()
    }

    /// Returns the names of all taps.
    pub fn taps_now(&self) -> Vec<String> {
        self.state().taps.keys().cloned().collect()
    }

    /// Puts a file of this virtual size there, which berth did not make.
    pub fn put_file(&self, path: &str, size: u64) {
        self.files.put(std::path::Path::new(path), size);
    }

    /// Returns the files with the saved state of a machine.
    pub fn saved_states_now(&self) -> Vec<String> {
        self.files.saved_states()
    }

    /// Returns the number of temporary disks of machines.
    pub fn scratch_disks_now(&self) -> usize {
        self.files.count(machines::SCRATCH)
    }

    /// Returns everything berth created here that still exists.
    pub fn leftovers(&self) -> Leftovers {
        let processes = self.hypervisor.instances();
        let state = self.state();
        Leftovers {
            processes,
            instances: state.journals.keys().cloned().collect(),
            taps: state.taps.keys().cloned().collect(),
            bridges: state.networks.keys().chain(state.bridged.keys()).cloned().collect(),
            firewall: state.firewall.clone(),
            volumes: state.volumes.keys().cloned().collect(),
            snapshots: state.snapshots.keys().cloned().collect(),
            images: state.images.keys().cloned().collect(),
            saved_states: self.files.saved_states(),
            kept_states: state.kept_states.keys().cloned().collect(),
        }
    }

    /// Removes all rules of the firewall, as another program may.
    pub fn lose_firewall(&self) {
        let mut state = self.state();
        state.firewall = Firewall::default();
        state.firewall_lost = true;
        drop(state);
        self.firewall_removed.notify_one();
    }

    /// Another program removes the bridge of a network, also from below taps, which stay without one.
    pub fn lose_network(&self, bridge: &str) {
        let mut state = self.state();
        state.networks.remove(bridge);
        state.taps.values_mut().filter(|tap| tap.bridge == bridge).for_each(|tap| tap.bridge.clear());
    }

    /// Returns the names of the taps on a bridge.
    pub fn taps_on(&self, bridge: &str) -> Vec<String> {
        let state = self.state();
        let on_it = state.taps.values().filter(|tap| tap.bridge == bridge);
        on_it.map(|tap| tap.name.clone()).collect()
    }

    /// Another program removes a tap, also from below a machine.
    pub fn lose_tap(&self, name: &str) {
        self.state().taps.remove(name);
    }

    /// Ends the DHCP server of a network, as a crash does. It runs again once the network is ensured.
    pub fn end_network_server(&self, bridge: &str) {
        let mut state = self.state();
        state.without_server.insert(bridge.to_owned());
        state.ended_servers.push_back(bridge.to_owned());
        drop(state);
        self.server_ended.notify_one();
    }

    /// From now on the links of a network cannot be changed, or can be again.
    pub fn refuse_network_links(&self, bridge: &str, refused: bool) {
        let links = &mut self.state().refused_links;
        if refused {
            links.insert(bridge.to_owned());
        } else {
            links.remove(bridge);
        }
    }

    /// From now on a network cannot be removed, or can be again.
    pub fn refuse_network_removal(&self, bridge: &str, refused: bool) {
        let removals = &mut self.state().refused_removals;
        if refused {
            removals.insert(bridge.to_owned());
        } else {
            removals.remove(bridge);
        }
    }

    /// From now on the DHCP server of a network cannot be started, or can be again.
    pub fn refuse_network_server(&self, bridge: &str, refused: bool) {
        let servers = &mut self.state().refused_servers;
        if refused {
            servers.insert(bridge.to_owned());
        } else {
            servers.remove(bridge);
        }
    }

    /// Whether the DHCP server of a network runs.
    pub fn has_network_server(&self, bridge: &str) -> bool {
        let state = self.state();
        state.networks.contains_key(bridge) && !state.without_server.contains(bridge)
    }

    /// From now on a machine with an interface that nothing filters is a violation.
    pub fn expect_filters(&self) {
        self.state().filters_expected = true;
    }

    /// Returns the filters that are in force.
    pub fn filters(&self) -> Arc<Filters> {
        self.state().firewall.filters.clone()
    }

    /// Returns calls that must never be made to a host but were, such as moving away the file of an open disk.
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// Returns how many calls were made, by name, in alphabetical order.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.state().calls.clone()
    }
}
