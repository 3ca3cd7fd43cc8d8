//! Indices over all objects, updated object by object so that no decision scans them all.

mod allocated;
mod public_addresses;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use berth_api::placement_group::TopologyClaim;
use berth_api::{ConditionType, HotswapDiskAttachment, PlacementGroup, PublicIP, VM, VMSnapshot, condition};
use ipnet::{IpNet, Ipv6Net};
use kube::ResourceExt;

use crate::{
    cache::affinity::Affinities,
    cache::capacity::{Demand, HostCapacity, Members},
    cache::key_set::KeySet,
    cache::names::{NamedAddress, Names, named_addresses_of},
    cache::public_ports::PublicPorts,
    cache::secrets::{NeededSecret, Secrets},
    cache::security_groups::{Membership, SecurityGroups, memberships_of},
    cache::vm_groups::VmGroups,
    key::{Key, ObjectKind},
};
use allocated::{AllocatedAddresses, move_allocated};
use public_addresses::PublicAddresses;

/// A VM's contribution to the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct VmEntry {
    host: Option<String>,
    /// The host that its running guest is being sent to, which keeps the room for it.
    next: Option<String>,
    demand: Demand,
    group: Option<Key>,
    /// Its host has admitted it, and its group may report so.
    admitted: bool,
    /// The reason why it has no host, as its group reports it.
    unplaced: Option<String>,
    disks: Vec<Key>,
    public_ips: Vec<Key>,
    addresses: Vec<(String, Ipv4Addr)>,
    ipv6_addresses: Vec<(String, Ipv6Addr)>,
    macs: Vec<String>,
    /// The Secret its host must read.
    secrets: Vec<NeededSecret>,
    memberships: Vec<Membership>,
    /// The addresses that its name leads to. A list: a tree would allocate room for eleven in each entry.
    named: Box<[NamedAddress]>,
}

/// The index that the module describes.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// The hosts, and their usage by VMs.
    pub(crate) capacity: HostCapacity,
    /// The Secrets hosts must read.
    pub(crate) secrets: Secrets,
    /// The members of security groups.
    pub(crate) security_groups: SecurityGroups,
    /// The VMs with names in networks.
    pub(crate) names: Names,
    /// The ports of public addresses that lead to VMs.
    pub(crate) public_ports: PublicPorts,
    /// The members of VMGroups.
    pub(crate) vm_groups: VmGroups,
    /// The VMs that rules about other VMs select.
    pub(crate) affinities: Affinities,
    vm_entries: HashMap<Key, Box<VmEntry>>,
    by_host: HashMap<String, KeySet>,
    by_group: HashMap<Key, KeySet>,
    group_hosts: HashMap<Key, Members>,
    by_disk: HashMap<Key, KeySet>,
    by_public_ip: HashMap<Key, KeySet>,
    addresses: HashMap<String, AllocatedAddresses<Ipv4Addr>>,
    ipv6_addresses: HashMap<String, AllocatedAddresses<Ipv6Addr>>,
    /// MAC, lower case → the VMs that have it: more than one only where it was allocated twice before that was
    /// refused.
    macs: HashMap<String, KeySet>,
    /// Network (`namespace/name`) → host → the number of its VMs with an interface on it.
    hosts_of_network: HashMap<String, BTreeMap<String, usize>>,
    public_addresses: PublicAddresses,
    /// PublicIP → its host, and the addresses under which that host forwards connections to VMs on other hosts.
    forwarding: HashMap<Key, VmEntry>,
    attachments_by_disk: HashMap<Key, KeySet>,
    attachments_by_vm: HashMap<Key, KeySet>,
    attachment_entries: HashMap<Key, (Key, Key)>,
    /// SnapshotSchedule → the VMSnapshots, DiskSnapshots and Backups that it made; VM → the VMSnapshots that its hook took before stops.
    made: HashMap<Key, KeySet>,
    makers: HashMap<Key, Key>,
    /// VM → the claims that groups have for VMs of that name.
    topology_claims: HashMap<Key, BTreeMap<Key, Vec<TopologyClaim>>>,
    claimants: HashMap<Key, KeySet>,
}

fn insert<K: std::hash::Hash + Eq>(map: &mut HashMap<K, KeySet>, at: K, key: &Key) {
    map.entry(at).or_default().insert(key);
}

fn take<K: std::hash::Hash + Eq>(map: &mut HashMap<K, KeySet>, at: &K, key: &Key) {
    if let Some(set) = map.get_mut(at) {
        set.remove(key);
        if set.is_empty() {
            map.remove(at);
        }
    }
}

fn keys<K: std::hash::Hash + Eq>(map: &HashMap<K, KeySet>, at: &K) -> Vec<Key> {
    map.get(at).into_iter().flat_map(KeySet::iter).cloned().collect()
}

/// Collects into memory of the size of the list, which is kept as long as its VM.
fn fitted<T>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut list: Vec<T> = items.collect();
    list.shrink_to_fit();
    list
}

fn entry_of(vm: &VM, demand: Demand) -> VmEntry {
    let namespace = vm.namespace().unwrap_or_default();
    let named = |kind, name: &str| Key::namespaced(kind, &namespace, name);
    let status = vm.status.as_ref();
    let host = status.and_then(|s| s.binding.as_ref()).map(|b| b.host.clone());
    let interfaces = status.map(|s| s.interfaces.as_slice()).unwrap_or_default();
    let address = |i: &berth_api::vm::InterfaceStatus| Some((i.network.clone(), i.address.parse().ok()?));
    let ipv6 = |i: &berth_api::vm::InterfaceStatus| Some((i.network.clone(), i.ipv6_address.parse().ok()?));
    let scheduled = status.and_then(|s| condition::find(&s.conditions, ConditionType::Scheduled.as_str()));
    VmEntry {
        secrets: NeededSecret::of(vm),
        memberships: memberships_of(vm),
        named: named_addresses_of(vm).into_iter().collect(),
        host,
        next: status.and_then(|s| s.live_move()).map(|migration| migration.to.clone()),
        demand,
        group: vm
            .spec
            .placement
            .as_ref()
            .and_then(|p| p.group.as_ref())
            .map(|g| named(ObjectKind::PlacementGroup, g.as_str())),
        admitted: status.is_some_and(berth_api::VMStatus::is_admitted),
        unplaced: scheduled.filter(|c| c.status == "False").map(|c| c.message.clone()),
        disks: vm.spec.disks.iter().map(|d| named(ObjectKind::Disk, d.name.as_str())).collect(),
        public_ips: vm
            .spec
            .network_interfaces
            .iter()
            .flat_map(|i| i.public_ips())
            .map(|ip| named(ObjectKind::PublicIP, ip.as_str()))
            .collect(),
        addresses: fitted(interfaces.iter().filter_map(address)),
        ipv6_addresses: fitted(interfaces.iter().filter_map(ipv6)),
        macs: interfaces.iter().map(|i| i.mac_address.to_ascii_lowercase()).collect(),
    }
}

/// The key of a network (`namespace/name`).
fn network_key(network: &str) -> Option<Key> {
    let (namespace, name) = network.split_once('/')?;
    Some(Key::namespaced(ObjectKind::Network, namespace, name))
}

/// The addresses under which the host of a public address forwards connections.
fn forwarding_of(ip: &PublicIP) -> Option<VmEntry> {
    let status = ip.status.as_ref()?;
    let (mut addresses, mut ipv6_addresses) = (Vec::new(), Vec::new());
    for of in &status.forwarding_addresses {
        match of.address.parse() {
            Ok(IpAddr::V4(address)) => addresses.push((of.network.clone(), address)),
            Ok(IpAddr::V6(address)) => ipv6_addresses.push((of.network.clone(), address)),
            Err(_) => {}
        }
    }
    let host = status.binding.as_ref().map(|binding| binding.host.clone());
    let has_any = !addresses.is_empty() || !ipv6_addresses.is_empty();
    has_any.then(|| VmEntry { host, addresses, ipv6_addresses, ..VmEntry::default() })
}

fn ipv4_of(entry: Option<&VmEntry>) -> &[(String, Ipv4Addr)] {
    entry.map(|entry| entry.addresses.as_slice()).unwrap_or_default()
}

fn ipv6_of(entry: Option<&VmEntry>) -> &[(String, Ipv6Addr)] {
    entry.map(|entry| entry.ipv6_addresses.as_slice()).unwrap_or_default()
}

/// The addresses of both families, each with its network.
fn addresses_of(entry: &VmEntry) -> impl Iterator<Item = (&str, IpAddr)> {
    let ipv4 = entry.addresses.iter().map(|(network, address)| (network.as_str(), IpAddr::V4(*address)));
    let ipv6 = entry.ipv6_addresses.iter().map(|(network, address)| (network.as_str(), IpAddr::V6(*address)));
    ipv4.chain(ipv6)
}

/// Whether a VM takes less of its host, or of its networks, than it did.
fn releases(old: Option<&VmEntry>, new: Option<&VmEntry>) -> bool {
    let Some(old) = old else { return false };
    let Some(new) = new else { return true };
    let leaves = (old.host.is_some() && old.host != new.host)
        || (old.next.is_some() && old.next != new.next && old.next != new.host);
    let (was, is) = (&old.demand, &new.demand);
    let has_fewer = was.devices.iter().any(|(name, count)| is.devices.get(name).is_none_or(|is| is < count));
    let shrinks = is.cpus < was.cpus
        || is.memory < was.memory
        || is.reserved < was.reserved
        || is.dedicated_cpus < was.dedicated_cpus
        || was.huge_memory.exceeds(&is.huge_memory).is_some()
        || has_fewer;
    leaves || (old.host.is_some() && shrinks) || has_fewer_addresses(old, new)
}

fn has_fewer_addresses(old: &VmEntry, new: &VmEntry) -> bool {
    old.addresses.iter().any(|a| !new.addresses.contains(a))
        || old.ipv6_addresses.iter().any(|a| !new.ipv6_addresses.contains(a))
        || old.macs.iter().any(|mac| !new.macs.contains(mac))
}

impl Index {
    /// Indexes a VM (`None`: gone); returns the keys its change concerns: its group, public addresses, attachments
    /// and disks, the former ones included, and networks that got their first VM on a host or lost their last one
    /// there, or whose names change.
    pub(crate) fn set_vm(&mut self, key: &Key, vm: Option<&VM>, demand: Demand) -> Vec<Key> {
        let new = vm.map(|vm| Box::new(entry_of(vm, demand)));
        let old = self.vm_entries.remove(key);
        let mut concerned = self.move_networks(old.as_deref(), new.as_deref());
        let needed = |entry: &Option<Box<VmEntry>>| entry.as_ref().map_or(Vec::new(), |e| e.secrets.clone());
        concerned.extend(self.secrets.set(&needed(&old), &needed(&new)));
        let memberships =
            |entry: &Option<Box<VmEntry>>| entry.as_ref().map_or(Vec::new(), |e| e.memberships.clone());
        concerned.extend(self.security_groups.move_members(&memberships(&old), &memberships(&new)));
        let named = |entry: &Option<Box<VmEntry>>| -> BTreeSet<NamedAddress> {
            entry.iter().flat_map(|e| e.named.iter().cloned()).collect()
        };
        concerned.extend(self.names.move_vm(key, &named(&old), &named(&new)));
        for entry in old.iter().chain(&new) {
            concerned.extend(entry.public_ips.iter().cloned());
            // A group has many members: it is enqueued only for changes to what it reports about them.
            if old != new {
                concerned.extend(entry.group.clone());
            }
        }
        // Disks that were bound for it may have to be released, and one that it lists anew, or an attachment names, may not be
        // allowed on its host.
        if old.as_ref().map(|e| (&e.host, &e.disks)) != new.as_ref().map(|e| (&e.host, &e.disks)) {
            concerned.extend(old.iter().chain(&new).flat_map(|entry| entry.disks.iter().cloned()));
            let attached = self.attachments_by_vm.get(key).into_iter().flat_map(KeySet::iter);
            let attached = attached.filter_map(|attachment| self.attachment_entries.get(attachment));
            concerned.extend(attached.map(|(disk, _)| disk.clone()));
        }
        if old != new {
            if releases(old.as_deref(), new.as_deref()) {
                self.capacity.freed();
            }
            move_allocated(&mut self.addresses, ipv4_of(old.as_deref()), ipv4_of(new.as_deref()));
            move_allocated(&mut self.ipv6_addresses, ipv6_of(old.as_deref()), ipv6_of(new.as_deref()));
            if let Some(old) = &old {
                self.subtract(key, old);
            }
            if let Some(new) = &new {
                self.add(key, new);
            }
        }
        if let Some(new) = new {
            self.vm_entries.insert(key.clone(), new);
        }
        concerned.extend(keys(&self.attachments_by_vm, key));
        concerned.into_iter().collect()
    }

    /// Whether the given VM takes fewer resources than the indexed one.
    pub(crate) fn releases(&self, key: &Key, vm: &VM, demand: Demand) -> bool {
        releases(self.vm_entries.get(key).map(AsRef::as_ref), Some(&entry_of(vm, demand)))
    }

    /// Whether the given PublicIP takes fewer addresses of networks than the indexed one. Another host releases nothing, and may come together
    /// with further addresses.
    pub(crate) fn releases_forwarding(&self, key: &Key, ip: &PublicIP) -> bool {
        let Some(old) = self.forwarding.get(key) else { return false };
        forwarding_of(ip).is_none_or(|new| has_fewer_addresses(old, &new))
    }

    /// Moves the counts of a VM's networks from its former host to its current one; returns the networks with a
    /// changed set of hosts.
    fn move_networks(&mut self, old: Option<&VmEntry>, new: Option<&VmEntry>) -> BTreeSet<Key> {
        let places = |entry: Option<&VmEntry>| -> BTreeSet<(String, String)> {
            let host = entry.and_then(|e| e.host.clone());
            // A VM of a network without IPv4 has an IPv6 address only.
            let ipv6 = ipv6_of(entry).iter().map(|(network, _)| network);
            let networks = ipv4_of(entry).iter().map(|(network, _)| network).chain(ipv6);
            networks.filter_map(|network| Some((network.clone(), host.clone()?))).collect()
        };
        let (before, after) = (places(old), places(new));
        let mut changed = BTreeSet::new();
        for (network, host) in after.difference(&before) {
            let count =
                self.hosts_of_network.entry(network.clone()).or_default().entry(host.clone()).or_default();
            *count += 1;
            if *count == 1 {
                changed.insert(network.clone());
            }
        }
        for (network, host) in before.difference(&after) {
            let Some(hosts) = self.hosts_of_network.get_mut(network) else { continue };
            let Some(count) = hosts.get_mut(host) else { continue };
            *count -= 1;
            if *count == 0 {
                hosts.remove(host);
                changed.insert(network.clone());
            }
            if hosts.is_empty() {
                self.hosts_of_network.remove(network);
            }
        }
        let key = |name: &String| {
            let (namespace, name) = name.split_once('/')?;
            Some(Key::namespaced(ObjectKind::Network, namespace, name))
        };
        changed.iter().filter_map(key).collect()
    }

    fn add(&mut self, key: &Key, entry: &VmEntry) {
        entry.host.iter().for_each(|host| insert(&mut self.by_host, host.clone(), key));
        entry.host.iter().chain(&entry.next).for_each(|host| self.capacity.take(host, &entry.demand));
        if let Some(group) = &entry.group {
            insert(&mut self.by_group, group.clone(), key);
            if let Some(host) = &entry.host {
                let hosts = self.group_hosts.entry(group.clone()).or_default();
                *hosts.entry(host.clone()).or_default() += 1;
            }
        }
        for disk in &entry.disks {
            insert(&mut self.by_disk, disk.clone(), key);
        }
        for ip in &entry.public_ips {
            insert(&mut self.by_public_ip, ip.clone(), key);
        }
        for mac in &entry.macs {
            insert(&mut self.macs, mac.clone(), key);
        }
    }

    fn subtract(&mut self, key: &Key, entry: &VmEntry) {
        entry.host.iter().for_each(|host| take(&mut self.by_host, host, key));
        entry.host.iter().chain(&entry.next).for_each(|host| self.capacity.give_back(host, &entry.demand));
        if let Some(group) = &entry.group {
            take(&mut self.by_group, group, key);
            if let Some(host) = &entry.host {
                self.leave_group(group, host);
            }
        }
        for disk in &entry.disks {
            take(&mut self.by_disk, disk, key);
        }
        for ip in &entry.public_ips {
            take(&mut self.by_public_ip, ip, key);
        }
        for mac in &entry.macs {
            take(&mut self.macs, mac, key);
        }
    }

    fn leave_group(&mut self, group: &Key, host: &str) {
        let Some(hosts) = self.group_hosts.get_mut(group) else { return };
        if let Some(members) = hosts.get_mut(host) {
            *members -= 1;
            if *members == 0 {
                hosts.remove(host);
            }
        }
        if hosts.is_empty() {
            self.group_hosts.remove(group);
        }
    }

    /// Indexes a public address (`None`: gone); returns the keys its change concerns: its pool, the networks in which its host
    /// got an address or lost one, and the VMs that other ports lead to than before.
    pub(crate) fn set_public_ip(&mut self, key: &Key, ip: Option<&PublicIP>) -> Vec<Key> {
        let pools = self.public_addresses.set(key, ip);
        let mut concerned = self.set_forwarding(key, ip.and_then(forwarding_of));
        concerned.extend(self.public_ports.set(key, ip));
        concerned.extend(pools);
        concerned.into_iter().collect()
    }

    /// Returns the addresses under which hosts forward connections in a network (`namespace/name`).
    pub(crate) fn forwarding_in(&self, network: &str) -> BTreeSet<IpAddr> {
        let all = self.forwarding.values().flat_map(addresses_of);
        all.filter(|(of, _)| *of == network).map(|(_, address)| address).collect()
    }

    /// Indexes the addresses under which a PublicIP's host forwards connections, like those of a VM on that host; returns the networks
    /// with a changed set of hosts or of these addresses.
    fn set_forwarding(&mut self, key: &Key, new: Option<VmEntry>) -> BTreeSet<Key> {
        let old = self.forwarding.remove(key);
        let mut changed = self.move_networks(old.as_ref(), new.as_ref());
        // An isolated network lists these addresses.
        let [before, after]: [BTreeSet<(&str, IpAddr)>; 2] =
            [&old, &new].map(|entry| entry.iter().flat_map(addresses_of).collect());
        changed.extend(before.symmetric_difference(&after).filter_map(|(network, _)| network_key(network)));
        move_allocated(&mut self.addresses, ipv4_of(old.as_ref()), ipv4_of(new.as_ref()));
        move_allocated(&mut self.ipv6_addresses, ipv6_of(old.as_ref()), ipv6_of(new.as_ref()));
        self.forwarding.extend(new.map(|entry| (key.clone(), entry)));
        changed
    }

    /// Indexes an attachment (`None`: gone); returns the disk that it names, and the former one, if they change.
    pub(crate) fn set_attachment(
        &mut self,
        key: &Key,
        attachment: Option<&HotswapDiskAttachment>,
    ) -> Vec<Key> {
        let former = self.attachment_entries.remove(key);
        if let Some((disk, vm)) = &former {
            take(&mut self.attachments_by_disk, disk, key);
            take(&mut self.attachments_by_vm, vm, key);
        }
        if let Some(attachment) = attachment {
            let namespace = attachment.namespace().unwrap_or_default();
            let disk = Key::namespaced(ObjectKind::Disk, &namespace, attachment.spec.disk.as_str());
            let vm = Key::namespaced(ObjectKind::VM, &namespace, attachment.spec.vm.as_str());
            insert(&mut self.attachments_by_disk, disk.clone(), key);
            insert(&mut self.attachments_by_vm, vm.clone(), key);
            self.attachment_entries.insert(key.clone(), (disk, vm));
        }
        let current = self.attachment_entries.get(key);
        if former.as_ref() == current {
            return Vec::new();
        }
        // A disk that no host has may not be allowed on the host of the VM.
        former.iter().chain(current).map(|(disk, _)| disk.clone()).collect()
    }

    /// Indexes the schedule, or the VM, that a VMSnapshot, a DiskSnapshot or a Backup was made for (`None`: for none, or it is gone); returns it, and the
    /// former one.
    pub(crate) fn set_maker(&mut self, key: &Key, maker: Option<Key>) -> Vec<Key> {
        let former = self.makers.remove(key);
        if let Some(former) = &former {
            take(&mut self.made, former, key);
        }
        if let Some(maker) = &maker {
            insert(&mut self.made, maker.clone(), key);
            self.makers.insert(key.clone(), maker.clone());
        }
        let other = former.filter(|former| Some(former) != maker.as_ref());
        maker.into_iter().chain(other).collect()
    }

    /// Indexes the claims of a group (`None`: it is gone); returns the unbound VMs that have one: each is bound
    /// with it, or spends it.
    pub(crate) fn set_group(&mut self, key: &Key, group: Option<&PlacementGroup>) -> Vec<Key> {
        for vm in self.claimants.remove(key).unwrap_or_default() {
            if let Some(of_vm) = self.topology_claims.get_mut(&vm) {
                of_vm.remove(key);
                if of_vm.is_empty() {
                    self.topology_claims.remove(&vm);
                }
            }
        }
        for claim in group.and_then(|g| g.status.as_ref()).into_iter().flat_map(|s| &s.claims) {
            let vm = Key::namespaced(ObjectKind::VM, key.namespace(), &claim.vm);
            let of_vm = self.topology_claims.entry(vm.clone()).or_default();
            of_vm.entry(key.clone()).or_default().push(claim.clone());
            insert(&mut self.claimants, key.clone(), &vm);
        }
        let unbound = |vm: &Key| self.vm_entries.get(vm).is_some_and(|entry| entry.host.is_none());
        keys(&self.claimants, key).into_iter().filter(unbound).collect()
    }

    /// Returns the claims that groups have for VMs of this name.
    pub(crate) fn claims_of(&self, vm: &Key) -> Vec<(Key, TopologyClaim)> {
        let groups = self.topology_claims.get(vm).into_iter().flatten();
        groups.flat_map(|(group, claims)| claims.iter().map(|c| (group.clone(), c.clone()))).collect()
    }

    /// Returns the VMs a group has claims for.
    pub(crate) fn claimants(&self, group: &Key) -> Vec<Key> {
        keys(&self.claimants, group)
    }

    pub(crate) fn vms_on(&self, host: &str) -> Vec<Key> {
        keys(&self.by_host, &host.to_owned())
    }

    /// Returns the hosts with VMs on this network (`namespace/name`), in order.
    pub(crate) fn hosts_of(&self, network: &str) -> impl Iterator<Item = &str> {
        self.hosts_of_network.get(network).into_iter().flat_map(BTreeMap::keys).map(String::as_str)
    }

    pub(crate) fn members(&self, group: &Key) -> Vec<Key> {
        keys(&self.by_group, group)
    }

    /// Returns the number of the group's members on each host.
    pub(crate) fn group_hosts(&self, group: &Key) -> Members {
        self.group_hosts.get(group).cloned().unwrap_or_default()
    }

    pub(crate) fn vms_with_disk(&self, disk: &Key) -> Vec<Key> {
        keys(&self.by_disk, disk)
    }

    pub(crate) fn vms_with_public_ip(&self, ip: &Key) -> Vec<Key> {
        keys(&self.by_public_ip, ip)
    }

    pub(crate) fn attachments_of_disk(&self, disk: &Key) -> Vec<Key> {
        keys(&self.attachments_by_disk, disk)
    }

    pub(crate) fn attachments_of_vm(&self, vm: &Key) -> Vec<Key> {
        keys(&self.attachments_by_vm, vm)
    }

    /// Returns the snapshots and Backups that were made for a schedule, or the VMSnapshots of the stops of a VM.
    pub(crate) fn made_for(&self, maker: &Key) -> Vec<Key> {
        keys(&self.made, maker)
    }

    pub(crate) fn is_address_used(&self, network: &str, address: Ipv4Addr) -> bool {
        self.addresses.get(network).is_some_and(|taken| taken.addresses.contains(&address))
    }

    pub(crate) fn is_ipv6_address_used(&self, network: &str, address: Ipv6Addr) -> bool {
        self.ipv6_addresses.get(network).is_some_and(|taken| taken.addresses.contains(&address))
    }

    /// Returns where to start the search for a free address of a network with the lowest address `from`.
    pub(crate) fn lowest_free(&self, network: &str, from: Ipv4Addr) -> Ipv4Addr {
        self.addresses.get(network).map_or(from, |taken| taken.lowest_free(from))
    }

    /// Returns where to start the search for a free IPv6 address of a network with the lowest address `from`.
    pub(crate) fn lowest_free_ipv6(&self, network: &str, from: Ipv6Addr) -> Ipv6Addr {
        self.ipv6_addresses.get(network).map_or(from, |taken| taken.lowest_free(from))
    }

    pub(crate) fn is_mac_used(&self, mac: &str) -> bool {
        self.macs.contains_key(&mac.to_ascii_lowercase())
    }

    /// Returns a VM that has this MAC (lower case).
    pub(crate) fn vm_with_mac(&self, mac: &str) -> Option<&Key> {
        self.macs.get(mac)?.first()
    }

    pub(crate) fn public_ip_with(&self, address: IpAddr) -> Option<&Key> {
        self.public_addresses.holder(address.into())
    }

    /// Returns the first PublicIP that has an address of this range.
    pub(crate) fn public_ip_within(&self, range: IpNet) -> Option<&Key> {
        self.public_addresses.holder(range)
    }

    /// Returns the last of the public addresses in a row from one of this prefix on. None: no PublicIP has an address of it.
    pub(crate) fn public_until(&self, prefix: Ipv6Net) -> Option<Ipv6Addr> {
        self.public_addresses.taken_until(prefix)
    }

    /// Returns the number of allocated addresses of the pool, those of prefixes included.
    pub(crate) fn allocated_in(&self, pool: &Key) -> u128 {
        self.public_addresses.count(pool)
    }
}

/// Returns the schedule, or the VM, that a VMSnapshot was made for.
pub(crate) fn maker_of(snapshot: &VMSnapshot) -> Option<Key> {
    let namespace = snapshot.namespace().unwrap_or_default();
    match snapshot.scheduled() {
        Some((schedule, _)) => Some(Key::namespaced(ObjectKind::SnapshotSchedule, &namespace, schedule)),
        None if snapshot.is_of_stop() => {
            Some(Key::namespaced(ObjectKind::VM, &namespace, snapshot.spec.vm.as_str()))
        }
        None => None,
    }
}
