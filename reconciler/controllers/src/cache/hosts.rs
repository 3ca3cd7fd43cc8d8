//! The hosts in the cache: the keys that their changes concern, their capacity for the scheduler, their silence and their recovery.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::host::{AddressConflict, MOST_CPUS, MOST_MEMORY, MOST_OVERHEAD};
use berth_api::{ConditionType, Host, HostStatus, Image, VM, condition};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use tokio::time::Instant;

use super::capacity::{Architectures, Candidate, HostNetworks};
use super::recovery::RecoveryState;
use super::storage::{HostStorage, changed_pools};
use super::{Cache, recovery};
use crate::key::{Key, ObjectKind};

impl Cache {
    /// Returns the PublicIPs with an address conflict on a host's segment that began or ended.
    fn conflicts_changed(&self, old: Option<&Host>, new: &[AddressConflict]) -> Vec<Key> {
        let old = old.and_then(|host| host.status.as_ref()).map(|s| s.address_conflicts.as_slice());
        let old = old.unwrap_or_default();
        let came = new.iter().filter(|conflict| !old.contains(conflict));
        let changed = old.iter().filter(|conflict| !new.contains(conflict)).chain(came);
        let addresses = changed.filter_map(|conflict| conflict.address.parse().ok());
        addresses.filter_map(|address| self.index.public_ip_with(address).cloned()).collect()
    }

    /// Indexes a host; returns the keys that its change concerns.
    pub(super) fn index_host(&mut self, key: &Key, old: Option<&Host>, now: Instant) -> Vec<Key> {
        let host = self.tables.hosts.get(key).cloned();
        let mut keys = Vec::new();
        match host.as_deref() {
            Some(host) => {
                let conflicts = host.status.as_ref().map(|s| s.address_conflicts.as_slice());
                keys.extend(self.conflicts_changed(old, conflicts.unwrap_or_default()));
                if old.and_then(recovery::since) != recovery::since(host) {
                    keys.extend(self.index.vms_on(&key.name));
                }
                self.recoveries.set(&key.name, Some(host), now);
                self.update_capacity(&key.name);
            }
            None => {
                self.recoveries.set(&key.name, None, now);
                self.index.capacity.remove_host(&key.name);
            }
        }
        keys.extend(changed_pools(old, host.as_deref()));
        keys.extend(self.index_underlay(key, host.as_deref()));
        keys.extend(self.claims.set(&key.name, host.as_deref()));
        keys.extend(self.images_changed(old, host.as_deref()));
        keys
    }

    /// Returns the Images whose file a host has from now on, or has no more.
    fn images_changed(&self, old: Option<&Host>, new: Option<&Host>) -> Vec<Key> {
        fn images(host: Option<&Host>) -> &[String] {
            let status = host.and_then(|host| host.status.as_ref());
            status.map(|status| status.images.as_slice()).unwrap_or_default()
        }
        let (old, new) = (images(old), images(new));
        if old == new {
            return Vec::new();
        }
        let (old, new): (BTreeSet<&String>, BTreeSet<&String>) = (old.iter().collect(), new.iter().collect());
        let changed: BTreeSet<&str> = old.symmetric_difference(&new).map(|digest| digest.as_str()).collect();
        let is_changed =
            |image: &Image| image.stored_digest().is_some_and(|digest| changed.contains(digest.as_str()));
        self.tables
            .images
            .all()
            .filter(|image| is_changed(image))
            .map(|image| Key::of(image.as_ref()))
            .collect()
    }

    /// Indexes a host's address; returns the keys that concerns: its networks, pools that may contain the address.
    fn index_underlay(&mut self, key: &Key, host: Option<&Host>) -> Vec<Key> {
        let changed = self.underlay.set(&key.name, host);
        let mut keys = Vec::new();
        // Each Network's status depends on which ranges are free.
        if changed.fits || changed.address || changed.ranges {
            keys.extend(self.tables.networks.all().map(|network| Key::of(network.as_ref())));
        }
        if changed.wireguard {
            let encrypted = self.tables.networks.all().filter(|network| network.is_encrypted());
            keys.extend(encrypted.map(|network| Key::of(network.as_ref())));
        }
        if changed.address || changed.ipv6 || changed.segments {
            keys.extend(self.tables.ip_pools.all().map(|pool| Key::of(pool.as_ref())));
        }
        if changed.address || changed.ipv6 {
            keys.push(Key::host_addresses());
        }
        keys
    }

    /// Updates the scheduler's view of a host.
    pub(super) fn update_capacity(&mut self, name: &str) {
        let Some(host) = self.tables.hosts.cluster(name) else { return };
        let bytes = |text: &str| berth_api::Quantity(text.to_owned()).bytes().unwrap_or_default();
        let status = host.status.as_ref();
        let ready = status.is_some_and(|s| condition::is_true(&s.conditions, ConditionType::Ready));
        let allocatable = status.and_then(|s| s.allocatable.as_ref());
        // Without a complete inventory, the host may already run the VM that is about to be placed there.
        let reported = status.and_then(|s| s.inventory.as_ref()).is_some_and(|inventory| inventory.complete);
        let recovery = self.recoveries.state(host, self.is_alive(name)).zip(recovery::since(host));
        let real =
            status.and_then(|s| s.capacity.as_ref()).map_or(0, |capacity| capacity.cpus.clamp(0, MOST_CPUS));
        let dedicated_cpus = status.map_or(0, HostStatus::dedicated_cpu_count);
        let kept = host.spec.reserved.as_ref().and_then(|reserved| reserved.cpus).unwrap_or_default();
        let candidate = Candidate {
            name: name.to_owned(),
            labels: host.labels().clone(),
            ready: ready && reported && recovery.is_none() && self.is_alive(name),
            recovery,
            cordoned: host.spec.cordoned
                || host.spec.draining
                || host.spec.fenced
                || host.metadata.deletion_timestamp.is_some(),
            namespaces: Arc::new(host.spec.namespaces.iter().cloned().collect()),
            tpm: status.and_then(|s| s.tpm).unwrap_or_default(),
            vsock: status.and_then(|s| s.vsock).unwrap_or_default(),
            wireguard: status.and_then(|s| s.wireguard.as_ref()?.usable()).is_some(),
            disk_encryption: self.encrypts_disks(name),
            allocatable_cpus: allocatable.map_or(0, |a| a.cpus.clamp(0, MOST_CPUS)),
            allocatable_memory: allocatable.map_or(0, |a| bytes(&a.memory).min(MOST_MEMORY)),
            huge_memory: status.map(HostStatus::huge_memory).unwrap_or_default(),
            dedicated_cpus,
            reservable: u32::try_from(real.saturating_sub(kept).saturating_sub(dedicated_cpus).max(0) * 1000)
                .unwrap_or(u32::MAX),
            architectures: status.map(Architectures::of).unwrap_or_default(),
            cpu_models: Arc::new(status.iter().flat_map(|s| &s.cpu_models).cloned().collect()),
            machine_types: Arc::new(status.iter().flat_map(|s| &s.machine_types).cloned().collect()),
            cpu_levels: status
                .filter(|_| !host.spec.fenced && host.metadata.deletion_timestamp.is_none())
                .map(HostStatus::cpu_levels)
                .unwrap_or_default(),
            devices: Arc::new(status.map(HostStatus::offered_devices).unwrap_or_default()),
            shares: Arc::new(status.map(HostStatus::offered_shares).unwrap_or_default()),
            backup_folders: Arc::new(status.map(HostStatus::offered_backup_folders).unwrap_or_default()),
            networks: Arc::new(HostNetworks {
                networks: status.map(|s| s.networks.clone()).unwrap_or_default(),
                vlans: status.and_then(|s| s.vlans).unwrap_or_default(),
            }),
            storage: status.and_then(HostStorage::of),
            overhead: status.and_then(|s| s.vm_overhead.as_deref()).map_or(0, bytes).min(MOST_OVERHEAD),
            ..Candidate::default()
        };
        self.index.capacity.set_host(candidate);
    }

    /// Whether encrypted disks can be on a host: an older agent would make their files without encryption.
    pub(crate) fn encrypts_disks(&self, host: &str) -> bool {
        let status = self.tables.hosts.cluster(host).and_then(|host| host.status.as_ref());
        status.and_then(|status| status.disk_encryption).unwrap_or_default()
    }

    /// Whether a host in a recovery has reported, and everything that it or another host holds has been given back:
    /// then no object that is bound now, or placed later, can exist on another host.
    pub(crate) fn is_recovery_over(&self, host: &Host) -> bool {
        let is_reported = |standing| standing == Some(RecoveryState::Reported);
        let name = host.name_any();
        if !is_reported(self.recoveries.state(host, self.is_alive(&name))) {
            return false;
        }
        let awaited = |host: &Candidate| matches!(host.recovery, Some((RecoveryState::Awaited, _)));
        let not_taken_on =
            |key: &Key| self.tables.vms.get(key).is_some_and(|vm| self.is_to_be_placed_anew(vm));
        // An object bound elsewhere but not realized there is bound here once that binding is withdrawn.
        let is_lost = |key: &Key| match key.kind {
            ObjectKind::VM => self.tables.vms.get(key).is_some_and(|vm| {
                let settled = vm.status.as_ref().is_some_and(berth_api::VMStatus::is_admitted);
                !settled && self.claims.of(key, vm.as_ref()).is_some()
            }),
            _ => self.tables.disks.get(key).is_some_and(|disk| {
                let made = |s: &berth_api::DiskStatus| {
                    s.binding.as_ref().is_some_and(|b| b.host == name || s.size.is_some())
                };
                !disk.status.as_ref().is_some_and(made) && self.claims.of(key, disk.as_ref()).is_some()
            }),
        };
        !self.index.capacity.hosts().any(awaited)
            && !self.index.vms_on(&name).iter().any(not_taken_on)
            && !self.claims.by(&name).any(is_lost)
    }

    /// Whether restored status binds the VM to a recovering host that had not admitted it: another host may have.
    pub(crate) fn is_to_be_placed_anew(&self, vm: &VM) -> bool {
        let Some(status) = vm.status.as_ref().filter(|s| !s.is_admitted()) else { return false };
        let host = status.binding.as_ref().and_then(|b| self.tables.hosts.cluster(&b.host));
        let since = host.and_then(|host| recovery::since(host));
        since.is_some_and(|since| vm.creation_timestamp().is_none_or(|made| made.0 <= since))
    }

    /// Whether an administrator has marked the host as fenced.
    pub(crate) fn is_fenced(&self, host: &str) -> bool {
        self.tables.hosts.cluster(host).is_some_and(|host| host.spec.fenced)
    }

    /// Whether the host is fenced or removed: nothing comes back from it.
    pub(crate) fn is_gone(&self, host: &str) -> bool {
        self.tables.hosts.cluster(host).is_none_or(|host| host.spec.fenced)
    }

    /// Whether the host is being deleted: it goes with the last object that is bound to it.
    pub(crate) fn is_leaving(&self, host: &str) -> bool {
        self.is_deleted(&Key::cluster(ObjectKind::Host, host))
    }

    /// Whether the host's agent renews its Lease.
    pub(crate) fn is_alive(&self, host: &str) -> bool {
        self.silence.is_alive(host)
    }

    /// Whether a direct read of the Lease a moment ago confirmed the host's silence: with a lagging watch, we would
    /// otherwise report as unknown, again and again, what a living agent reports.
    pub(crate) fn is_silence_confirmed(&self, host: &str, now: Instant) -> bool {
        self.silence.is_confirmed(host, now)
    }

    /// Records a host's Lease from a direct read; returns the keys that concerns.
    pub(crate) fn read_lease(&mut self, host: &str, lease: Option<Box<Lease>>, now: Instant) -> Vec<Key> {
        let mut keys = lease.map(|lease| self.put(*lease, now)).unwrap_or_default();
        self.silence.was_read(host, now);
        keys.push(Key::cluster(ObjectKind::Host, host));
        keys
    }

    /// Records that a host's agent renewed its Lease; returns the keys that concerns: none, unless it was silent
    /// before. Leases are the most frequent writes, so this visits no other host.
    pub(super) fn renewed(&mut self, host: &str, now: Instant) -> Vec<Key> {
        if self.silence.renewed(host, now) { self.liveness_changed(host) } else { Vec::new() }
    }

    /// Records which hosts fell silent or came back; returns their keys and those of the VMs on them.
    pub(crate) fn silence_changes(&mut self, now: Instant) -> Vec<Key> {
        let mut changed = self.silence.changes(self.tables.hosts.all().map(|host| host.name_any()), now);
        changed.extend(self.recoveries.changes(now));
        changed.iter().flat_map(|host| self.liveness_changed(host)).collect()
    }

    /// Updates the fleet after a host fell silent or came back; returns its key and those of the VMs on it.
    fn liveness_changed(&mut self, host: &str) -> Vec<Key> {
        self.update_capacity(host);
        let mut keys = vec![Key::cluster(ObjectKind::Host, host)];
        keys.extend(self.index.vms_on(host));
        keys.extend(self.recovering());
        keys
    }
}
