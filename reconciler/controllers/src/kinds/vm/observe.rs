//! Reads the inputs of the decision from the cache.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_api::{
    Architecture, Binding, DEFAULT_NAME, Disk, MOST_DISK_READERS, Network, PlacementGroup, PublicIP,
    ResourceName, VM, VMStatus,
    placement_group::TopologyClaim,
    vm::{InterfaceStatus, NetworkInterface, disk_obstacle},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::{
    cache::affinity::PlacedVms,
    cache::architecture::OtherArchitecture,
    cache::capacity::Demand,
    cache::claims::Claim,
    cache::{Cache, shared_images::ForeignOriginal, users},
    config::Config,
    key::{Key, ObjectKind},
    kinds::disk::{self, Obstacle},
    kinds::quota::{self, Excess},
    kinds::rebind::{CopyRemoval, copy_removal},
    placement_hold::{PlacementHold, placement_hold, untrusted},
    scheduler::{NewDisks, PlacementPolicy, PoolChoice},
    topology,
};

use super::addresses;

/// How long a host that refused a VM is not considered again: by then the reason for the refusal has reached the
/// cache.
pub(super) const REFUSAL_COUNTS: SignedDuration = SignedDuration::from_secs(30);

/// The inputs of a VM's decision.
#[derive(Debug)]
pub(super) struct Observed {
    /// The architecture that it declares.
    pub(super) architecture: Architecture,
    /// The image of its boot disk, if that is of another one.
    pub(super) other_architecture: Option<OtherArchitecture>,
    /// The CPU model that it declares.
    pub(super) cpu_model: Option<String>,
    /// Its demand; `None`: its class does not exist, or it has neither a class nor CPUs.
    pub(super) size: Option<Demand>,
    /// The reason why the declared size cannot be used.
    pub(super) invalid_size: Option<String>,
    pub(super) tpm: bool,
    pub(super) disks: Vec<DiskSeen>,
    /// Its unbound disks that no host has, by pool.
    pub(super) new_disks: BTreeMap<String, NewDisks>,
    /// Those among them whose pool is chosen with the host, which are not in `new_disks`.
    pub(super) choices: Vec<(Key, PoolChoice)>,
    /// The pools that are chosen for them on the host of a bound VM.
    pub(super) chosen_pools: BTreeMap<Key, ResourceName>,
    /// The folders with the backups that its unbound disks are made from.
    pub(super) backup_folders: BTreeSet<String>,
    /// The hosts that have the images of its unbound disks, which others copy.
    pub(super) image_hosts: BTreeSet<String>,
    /// The group it names, if that exists.
    pub(super) group: Option<Arc<PlacementGroup>>,
    /// The other VMs that count for its group and its rules.
    pub(super) beside: PlacedVms,
    /// The network of each interface, if it exists.
    pub(super) networks: Vec<Option<Arc<Network>>>,
    /// A security group that it names and that does not exist.
    pub(super) no_security_group: Option<Key>,
    pub(super) policy: PlacementPolicy,
    /// The host it is bound to, or that holds it, is silent.
    pub(super) host_silent: bool,
    /// The host it is bound to, or that holds it, is fenced.
    pub(super) host_fenced: bool,
    /// The claim of a host that already holds the VM: the VM's status was lost.
    pub(super) claim: Option<Claim>,
    /// The reason why it cannot be placed yet.
    pub(super) unknown: Option<PlacementHold>,
    /// The quota that it, or a disk of one of its templates, is beyond.
    pub(super) over_quota: Option<Excess>,
    /// Its host is in a recovery and had not admitted it: another host may have.
    pub(super) recovering: bool,
    /// A host reports that it holds the VM, and the report does not count without a recovery.
    pub(super) unconfirmed: Option<String>,
    /// The values of its group's topology key that other members hold.
    pub(super) taken: BTreeSet<String>,
    /// The claims under which it could still be admitted.
    pub(super) open_claims: Vec<(Key, TopologyClaim)>,
    /// An object that the VM or one of its new disks names and that is being deleted.
    pub(super) deleting: Option<Key>,
    /// The medium of a drive of a VM without a host, and the Image of another namespace whose content that has, if it is not shared.
    pub(super) unshared_medium: Option<(String, ForeignOriginal)>,
    /// A PublicIP that cannot lead to the interface which names it, and why.
    pub(super) misnamed_address: Option<(Key, String)>,
    /// The host that has just refused it, and the reason.
    pub(super) refused_by: Option<(String, String)>,
    /// The removal of the copies of its firmware state, if it is deleted and has no host.
    pub(super) copies: CopyRemoval,
    pub(super) fresh: Fresh,
}

/// One of the VM's disks.
#[derive(Debug)]
pub(super) struct DiskSeen {
    pub(super) key: Key,
    pub(super) object: Option<Arc<Disk>>,
    /// It has the name of a template of the VM, and was not created for the VM.
    pub(super) foreign: Option<String>,
    /// Another VM that uses it.
    pub(super) user: Option<String>,
    /// The host that has its file, although the disk's status does not name the host (any more).
    pub(super) claimed: Option<String>,
    /// The reason why a disk without a host cannot be bound yet.
    pub(super) unknown: Option<PlacementHold>,
    /// A host reports that it has the disk's file, and the report does not count without a recovery.
    pub(super) unconfirmed: Option<String>,
    /// The reason why a disk without a host, which no host claims, cannot be used yet.
    pub(super) obstacle: Option<Obstacle>,
}

/// Fresh identities and addresses: randomness and the address pool are passed in as data.
#[derive(Debug, Default)]
pub(super) struct Fresh {
    pub(super) instance_id: String,
    /// One for each disk.
    pub(super) volume_ids: Vec<String>,
    /// One for each interface; the text gives the reason for a missing one.
    pub(super) interfaces: Vec<addresses::Fresh>,
}

pub(super) fn observe(cache: &Cache, vm: &VM, config: &Config) -> Observed {
    let (identities, policy) = (&config.identities, config.placement);
    let namespace = vm.namespace().unwrap_or_default();
    let binding = vm.status.as_ref().and_then(|s| s.binding.as_ref());
    let networks: Vec<Option<Arc<Network>>> = vm
        .spec
        .network_interfaces
        .iter()
        .map(|i| cache.tables.networks.lookup(&namespace, i.network.as_str()).cloned())
        .collect();
    let interfaces = addresses::fresh(cache, vm, &networks, identities);
    let disks: Vec<DiskSeen> = vm
        .spec
        .disks
        .iter()
        .map(|disk| {
            let key = Key::namespaced(ObjectKind::Disk, &namespace, disk.name.as_str());
            let object = cache.tables.disks.get(&key).cloned();
            let user = other_user(cache, &key, object.as_deref(), vm);
            let claimed = claim_of(cache, &key, object.as_deref()).map(|claim| claim.host.clone());
            let unbound = object.as_deref().filter(|disk| bound(disk).is_none());
            let made = unbound.and_then(|disk| disk.creation_timestamp()).map(|made| made.0);
            let unknown = unbound.and_then(|_| placement_hold(cache, made));
            let unconfirmed = unbound.and_then(|disk| disk::unconfirmed(cache, disk));
            let unclaimed = unbound.filter(|_| claimed.is_none());
            let obstacle = unclaimed.and_then(|disk| disk::obstacle(cache, disk));
            let foreign = object.as_deref().and_then(|disk| disk_obstacle(disk, vm));
            DiskSeen { key, object, foreign, user, claimed, unknown, unconfirmed, obstacle }
        })
        .collect();
    let volume_id = |disk: &DiskSeen| match claim_of(cache, &disk.key, disk.object.as_deref()) {
        Some(claim) => claim.id.clone(),
        None => left_volume(disk).unwrap_or_else(|| format!("v-{}", identities.hex(16))),
    };
    let volume_ids = disks.iter().map(volume_id).collect();
    let new_disks =
        disks.iter().filter_map(|disk| disk.object.as_deref()).filter(|disk| bound(disk).is_none());
    let backup_folders = new_disks.clone().filter_map(|disk| cache.backup_folder_of(disk)).collect();
    let image_hosts = new_disks.clone().filter_map(|disk| disk::image_host(cache, disk)).collect();
    // One that has left another host keeps what it uses, also while that is to be deleted.
    let is_new = |disk: &&Disk| disk.status.as_ref().is_none_or(|status| status.former_host.is_none());
    let of_disks = new_disks.filter(is_new).flat_map(users::of_disk);
    let unmade = disks.iter().filter(|disk| disk.claimed.is_none());
    let unmade = unmade.filter_map(|disk| disk.object.as_deref()).filter(|disk| bound(disk).is_none());
    let unmade: Vec<&Disk> = unmade.collect();
    let choices = disk::choices(cache, unmade.iter().copied());
    let unmade = disk::by_pool(cache, unmade.into_iter());
    if let Some(binding) = binding {
        let deleting = cache.first_deleted(of_disks);
        return Observed {
            architecture: Architecture::default(),
            other_architecture: None,
            cpu_model: None,
            size: None,
            invalid_size: None,
            tpm: false,
            disks,
            new_disks: BTreeMap::new(),
            chosen_pools: disk::choose(cache, &binding.host, &choices),
            choices: Vec::new(),
            backup_folders: BTreeSet::new(),
            image_hosts: BTreeSet::new(),
            group: None,
            beside: PlacedVms::default(),
            networks,
            no_security_group: None,
            misnamed_address: None,
            policy,
            host_silent: !cache.is_alive(&binding.host)
                && cache.tables.hosts.cluster(&binding.host).is_some(),
            host_fenced: cache.is_fenced(&binding.host),
            claim: None,
            unknown: None,
            over_quota: None,
            recovering: cache.is_to_be_placed_anew(vm),
            unconfirmed: None,
            taken: BTreeSet::new(),
            open_claims: Vec::new(),
            deleting,
            unshared_medium: None,
            refused_by: None,
            copies: CopyRemoval::Nothing,
            fresh: Fresh { interfaces, volume_ids, ..Fresh::default() },
        };
    }
    let name = vm.spec.placement.as_ref().and_then(|p| p.group.as_ref());
    let group = name.and_then(|name| cache.tables.placement_groups.named(&namespace, name.as_str()).cloned());
    let beside = beside(cache, vm, group.as_deref());
    let claimed = group.as_ref().filter(|group| group.is_claimed());
    let taken = claimed.into_iter().flat_map(|group| topology::taken(group, vm).cloned()).collect();
    let fresh = Fresh { instance_id: format!("i-{}", identities.hex(12)), volume_ids, interfaces };
    let claim = cache.claims.of(&Key::of(vm), vm);
    let refusal = vm.status.as_ref().and_then(|s| s.refusal.as_ref());
    let refusal = refusal.filter(|r| r.time.is_some_and(|time| is_recent(time, config.clock.now())));
    let groups = groups_of_networks(vm, &networks);
    let deleting = cache.first_deleted(users::of_vm(vm).into_iter().chain(groups).chain(of_disks));
    Observed {
        deleting,
        architecture: cache.architecture(vm),
        other_architecture: other_architecture(cache, vm, &disks),
        cpu_model: cache.cpu_model(vm),
        size: cache.demand(vm),
        invalid_size: cache.invalid_size(vm).or_else(|| cache.unsupported_part(vm)),
        tpm: cache.declares_tpm(vm),
        new_disks: with_scratch(cache, vm, unmade),
        choices,
        chosen_pools: BTreeMap::new(),
        backup_folders,
        image_hosts,
        disks,
        group,
        beside,
        no_security_group: no_security_group(cache, vm, &networks),
        networks,
        unshared_medium: unshared_medium(cache, vm),
        misnamed_address: misnamed_address(cache, vm),
        policy,
        host_silent: claim.is_some_and(|claim| !cache.is_alive(&claim.host)),
        host_fenced: false,
        claim: claim.cloned(),
        unknown: placement_hold(cache, vm.creation_timestamp().map(|made| made.0)),
        over_quota: quota::excess(cache, &Key::of(vm)),
        recovering: false,
        unconfirmed: unconfirmed(cache, vm),
        taken,
        open_claims: topology::open(cache, vm),
        refused_by: refusal.map(|r| (r.host.clone(), r.message.clone())),
        copies: match vm.metadata.deletion_timestamp {
            Some(_) => copy_removal(cache, vm),
            None => CopyRemoval::Nothing,
        },
        fresh,
    }
}

/// Whether a refusal of this time counts. One of a later time does not for as long as the clock was set back.
fn is_recent(refused_at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(refused_at).abs() < REFUSAL_COUNTS
}

/// Returns the other VMs that count for the placement of a VM without a host.
fn beside(cache: &Cache, vm: &VM, group: Option<&PlacementGroup>) -> PlacedVms {
    let (key, affinities) = (Key::of(vm), &cache.index.affinities);
    PlacedVms {
        // The VM itself has no host: every member counted is another VM.
        members: group.map(|group| cache.index.group_hosts(&Key::of(group))).unwrap_or_default(),
        selected: vm.affinity().iter().map(|rule| affinities.selected(&key, rule)).collect(),
        repelling: affinities.repelling(&key, vm.labels()),
    }
}

/// Returns the host that a person has requested for a VM that has just left another one. Later it is placed wherever it can be: it is off.
pub(super) fn destination(vm: &VM, observed: &Observed) -> Option<String> {
    observed.refused_by.as_ref()?;
    let left = vm.status.as_ref()?.refusal.as_ref()?.epoch;
    vm.requested_move().filter(|requested| requested.epoch == left)?.host
}

/// Returns the identity of a disk whose file is in the folder of a host that its VM has left: it stays the same.
fn left_volume(disk: &DiskSeen) -> Option<String> {
    let status = disk.object.as_ref()?.status.as_ref()?;
    status.former_host.as_ref().and(status.volume_id.clone())
}

/// Adds the scratch disk of a VM, which is in the pool `default` of its host, to its new disks.
pub(super) fn with_scratch(
    cache: &Cache,
    vm: &VM,
    mut disks: BTreeMap<String, NewDisks>,
) -> BTreeMap<String, NewDisks> {
    let demand = cache.demand(vm).map(|demand| demand.scratch_space()).unwrap_or_default();
    if demand.size > 0 {
        let one = disk::in_default_pool(cache, demand);
        let before = disks.get(DEFAULT_NAME).map(|before| before.demand).unwrap_or_default();
        disks.insert(DEFAULT_NAME.to_owned(), NewDisks { demand: before.plus(demand), ..one });
    }
    disks
}

/// Returns the image of the VM's boot disk, if that is of another architecture than the VM.
fn other_architecture(cache: &Cache, vm: &VM, disks: &[DiskSeen]) -> Option<OtherArchitecture> {
    let boot = vm.spec.disks.iter().find(|disk| disk.boot)?;
    let seen = disks.iter().find(|seen| &*seen.key.name == boot.name.as_str())?;
    cache.other_architecture(vm, seen.object.as_deref()?)
}

/// Returns the first inserted medium with the content of an Image of another namespace that is not shared (any more).
fn unshared_medium(cache: &Cache, vm: &VM) -> Option<(String, ForeignOriginal)> {
    let namespace = vm.namespace().unwrap_or_default();
    vm.spec.cdroms.iter().filter_map(|drive| drive.wanted_image()).find_map(|name| {
        let image = cache.tables.images.lookup(&namespace, name)?;
        let original = cache.foreign_original(image).filter(|original| original.refusal.is_some())?;
        Some((name.to_owned(), original))
    })
}

/// Returns a PublicIP that cannot lead to the interface which names it, and why: it has ports, or is of the other family.
fn misnamed_address(cache: &Cache, vm: &VM) -> Option<(Key, String)> {
    let namespace = vm.namespace().unwrap_or_default();
    let named = |interface: &NetworkInterface| {
        let ipv4 = interface.public_ip.clone().map(|name| (name, "publicIP", "IPv6", "publicIPv6"));
        let ipv6 = interface.public_ipv6.clone().map(|name| (name, "publicIPv6", "IPv4", "publicIP"));
        let interface = interface.name.clone();
        ipv4.into_iter().chain(ipv6).map(move |named| (interface.clone(), named))
    };
    let mut all = vm.spec.network_interfaces.iter().flat_map(named);
    all.find_map(|(interface, (name, field, other_family, other_field))| {
        let key = Key::namespaced(ObjectKind::PublicIP, &namespace, name.as_str());
        let ip = cache.tables.public_ips.get(&key)?;
        if !ip.spec.ports.is_empty() {
            let text = format!(
                "interface {interface}: PublicIP {name} has ports, so that it is not the whole address of a VM: take {field} out of the \
                 interface and name the VM in targets of the ports, or take ports out of the PublicIP"
            );
            return Some((key, text));
        }
        let is_other = is_ipv6(cache, ip)? == (other_family == "IPv6");
        is_other.then(|| {
            let text =
                format!("interface {interface}: PublicIP {name} is of {other_family}: name it in {other_field}");
            (key, text)
        })
    })
}

/// Whether a PublicIP is of IPv6, by its address or by its pool; None if neither is known.
fn is_ipv6(cache: &Cache, ip: &PublicIP) -> Option<bool> {
    match ip.status.as_ref().and_then(|status| status.address.as_ref()) {
        Some(address) => Some(address.contains(':')),
        None => Some(cache.tables.ip_pools.cluster(ip.spec.pool.as_str())?.spec.is_ipv6()),
    }
}

fn no_security_group(cache: &Cache, vm: &VM, networks: &[Option<Arc<Network>>]) -> Option<Key> {
    let used = users::of_vm(vm).into_iter().chain(groups_of_networks(vm, networks));
    let mut used = used.filter(|key| key.kind == ObjectKind::SecurityGroup);
    used.find(|key| cache.tables.security_groups.get(key).is_none())
}

/// Returns the security groups that interfaces have of their Networks.
fn groups_of_networks(vm: &VM, networks: &[Option<Arc<Network>>]) -> BTreeSet<Key> {
    let namespace = vm.namespace().unwrap_or_default();
    let without =
        vm.spec.network_interfaces.iter().zip(networks).filter(|(i, _)| i.security_groups.is_empty());
    let groups = without.flat_map(|(_, network)| network.iter().flat_map(|n| &n.spec.security_groups));
    groups.map(|group| Key::namespaced(ObjectKind::SecurityGroup, &namespace, group.as_str())).collect()
}

/// Returns why a VM that may have been bound once, without a record of that in its status, is not placed again: a host
/// reports that it holds the VM. Outside of a recovery the report does not count, but must not be ignored either.
pub(super) fn unconfirmed(cache: &Cache, vm: &VM) -> Option<String> {
    let refused = vm.status.as_ref().is_some_and(|s| s.refusal.is_some());
    let key = Key::of(vm);
    let host = cache.claims.untrusted(&key, vm).filter(|_| !refused && cache.was_bound(&key, vm));
    host.map(untrusted)
}

/// Returns a host's claim to a disk that is unbound according to its status.
pub(super) fn claim_of<'a>(cache: &'a Cache, key: &Key, disk: Option<&Disk>) -> Option<&'a Claim> {
    let disk = disk.filter(|disk| bound(disk).is_none())?;
    cache.claims.of(key, disk)
}

/// Returns a VM that lost its status with the interfaces under which its host holds it, except for interfaces that
/// have since been given to another VM.
pub(super) fn with_claimed_interfaces(cache: &Cache, vm: Arc<VM>) -> Arc<VM> {
    let has_its_own = |status: &VMStatus| status.binding.is_some() || !status.interfaces.is_empty();
    if vm.status.as_ref().is_some_and(has_its_own) {
        return vm;
    }
    let Some(claim) = cache.claims.of(&Key::of(vm.as_ref()), vm.as_ref()) else { return vm };
    let is_free = |i: &&InterfaceStatus| {
        // An interface without an address takes none from others.
        let address = i.address.is_empty()
            || i.address.parse().is_ok_and(|address| !cache.index.is_address_used(&i.network, address));
        let ipv6 = i.ipv6_address.is_empty()
            || i.ipv6_address
                .parse()
                .is_ok_and(|address| !cache.index.is_ipv6_address_used(&i.network, address));
        address && ipv6 && !cache.index.is_mac_used(&i.mac_address)
    };
    let is_wanted =
        |i: &&InterfaceStatus| vm.spec.network_interfaces.iter().any(|w| w.name.as_str() == i.name);
    let interfaces = claim.interfaces.iter().filter(is_wanted).filter(is_free);
    let interfaces = interfaces
        .map(|i| InterfaceStatus {
            public_address: None,
            public_ipv6_address: None,
            public_ipv6_prefix: None,
            ..i.clone()
        })
        .collect();
    let mut vm = vm.as_ref().clone();
    vm.status = Some(VMStatus { interfaces, ..vm.status.unwrap_or_default() });
    Arc::new(vm)
}

pub(super) fn host_of(cache: &Cache, key: &Key) -> Option<String> {
    cache.tables.vms.get(key)?.status.as_ref()?.binding.as_ref().map(|b| b.host.clone())
}

/// Returns the other user of the disk: one named in its status, a bound VM that lists it, or a bound attachment. Of a disk for several
/// VMs, one of them if it has no room for this one.
pub(super) fn other_user(cache: &Cache, key: &Key, disk: Option<&Disk>, vm: &VM) -> Option<String> {
    let uid = vm.uid().unwrap_or_default();
    if let Some(disk) = disk.filter(|disk| disk.is_for_many()) {
        let users = disk.status.as_ref().map(|status| status.used_by.as_slice()).unwrap_or_default();
        let is_full = users.len() >= MOST_DISK_READERS && users.iter().all(|user| user.vm_uid != uid);
        return users.first().filter(|_| is_full).map(|user| user.vm.clone());
    }
    let named = disk.and_then(|d| d.status.as_ref()).and_then(|s| s.used_by.iter().find(|u| u.vm_uid != uid));
    if let Some(user) = named {
        return Some(user.vm.clone());
    }
    let is_other = |other: &Key| *other.name != *vm.name_any() && host_of(cache, other).is_some();
    cache.index.vms_with_disk(key).into_iter().find(is_other).map(|other| other.name.to_string())
}

pub(super) fn bound(disk: &Disk) -> Option<&Binding> {
    disk.status.as_ref()?.binding.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_counts_for_half_a_minute_also_after_the_clock_was_set_back() {
        let at = |second: i64| Timestamp::from_second(second).expect("small");
        assert!(is_recent(at(7200), at(7200)) && is_recent(at(7200), at(7229)));
        assert!(!is_recent(at(7200), at(7230)));
        assert!(!is_recent(at(7200), at(3600)), "the clock was set back");
    }
}
