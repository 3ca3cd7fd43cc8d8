//! Every object, as last seen, and what follows from all of them together.

mod cache;
mod silence;

use std::{collections::BTreeSet, time::Duration};

use berth_api::{
    ConditionType, Disk, Host, HotswapDiskAttachment, IPPool, Image, Network, PlacementGroup, PublicIP,
    StoragePool, VM, VMClass, condition, host::AddressConflict, vm_class::size_taken,
};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ServiceAccount, rbac::v1::Role};
use kube::ResourceExt;
use tokio::time::Instant;

use super::{
    Key, Kind,
    claims::Claims,
    index::Index,
    plan::Need,
    scheduler::Candidate,
    underlay::Underlay,
    users::{self, Users},
    watches::Object,
};
use cache::{Cache, Taken};
use silence::Silence;

/// Why nothing may be placed yet, and what that waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unknown {
    pub(super) text: String,
    pub(super) need: Need,
}

/// Every object the controllers know.
#[derive(Debug)]
pub struct World {
    pub(super) hosts: Cache<Host>,
    pub(super) leases: Cache<Lease>,
    pub(super) storage_pools: Cache<StoragePool>,
    pub(super) ip_pools: Cache<IPPool>,
    pub(super) networks: Cache<Network>,
    pub(super) vm_classes: Cache<VMClass>,
    pub(super) placement_groups: Cache<PlacementGroup>,
    pub(super) images: Cache<Image>,
    pub(super) disks: Cache<Disk>,
    pub(super) public_ips: Cache<PublicIP>,
    pub(super) vms: Cache<VM>,
    pub(super) attachments: Cache<HotswapDiskAttachment>,
    pub(super) accounts: Cache<ServiceAccount>,
    pub(super) roles: Cache<Role>,
    pub(super) index: Index,
    pub(super) underlay: Underlay,
    pub(super) claims: Claims,
    pub(super) users: Users,
    silence: Silence,
}

macro_rules! each_cache {
    ($self:ident, $kind:expr, $cache:ident => $body:expr) => {
        match $kind {
            Kind::Host => {
                let $cache = &mut $self.hosts;
                $body
            }
            Kind::Lease => {
                let $cache = &mut $self.leases;
                $body
            }
            Kind::StoragePool => {
                let $cache = &mut $self.storage_pools;
                $body
            }
            Kind::IPPool => {
                let $cache = &mut $self.ip_pools;
                $body
            }
            Kind::Network => {
                let $cache = &mut $self.networks;
                $body
            }
            Kind::VMClass => {
                let $cache = &mut $self.vm_classes;
                $body
            }
            Kind::PlacementGroup => {
                let $cache = &mut $self.placement_groups;
                $body
            }
            Kind::Image => {
                let $cache = &mut $self.images;
                $body
            }
            Kind::Disk => {
                let $cache = &mut $self.disks;
                $body
            }
            Kind::PublicIP => {
                let $cache = &mut $self.public_ips;
                $body
            }
            Kind::VM => {
                let $cache = &mut $self.vms;
                $body
            }
            Kind::HotswapDiskAttachment => {
                let $cache = &mut $self.attachments;
                $body
            }
            Kind::ServiceAccount => {
                let $cache = &mut $self.accounts;
                $body
            }
            Kind::Role => {
                let $cache = &mut $self.roles;
                $body
            }
        }
    };
}

impl World {
    pub(super) fn new(host_silence: Duration) -> Self {
        Self {
            hosts: Cache::default(),
            leases: Cache::default(),
            storage_pools: Cache::default(),
            ip_pools: Cache::default(),
            networks: Cache::default(),
            vm_classes: Cache::default(),
            placement_groups: Cache::default(),
            images: Cache::default(),
            disks: Cache::default(),
            public_ips: Cache::default(),
            vms: Cache::default(),
            attachments: Cache::default(),
            accounts: Cache::default(),
            roles: Cache::default(),
            index: Index::default(),
            underlay: Underlay::default(),
            claims: Claims::default(),
            users: Users::default(),
            silence: Silence::new(host_silence),
        }
    }

    /// Whether every kind was listed once: nothing is decided before.
    pub(super) fn is_synced(&mut self) -> bool {
        Kind::ALL.iter().all(|kind| each_cache!(self, kind, cache => cache.synced))
    }

    /// A list of a kind begins.
    pub(super) fn begin_list(&mut self, kind: Kind) {
        each_cache!(self, kind, cache => cache.listing = Some(BTreeSet::new()));
    }

    /// The list that runs names this object.
    pub(super) fn list(&mut self, key: &Key) {
        each_cache!(self, key.kind, cache => if let Some(listing) = &mut cache.listing {
            listing.insert(key.clone());
        });
    }

    /// The list of a kind is complete; returns what it did not name.
    pub(super) fn end_list(&mut self, kind: Kind) -> Vec<Key> {
        each_cache!(self, kind, cache => {
            cache.synced = true;
            let listed = cache.listing.take().unwrap_or_default();
            cache.objects.keys().filter(|key| !listed.contains(*key)).cloned().collect()
        })
    }

    /// An object as it is known.
    pub(super) fn known(&mut self, key: &Key) -> Option<Object> {
        each_cache!(self, key.kind, cache => cache.objects.get(key).map(|object| object.as_ref().clone().into()))
    }

    /// An object of a kind that gets finalizers.
    pub(super) fn object(&self, key: &Key) -> Option<Object> {
        match key.kind {
            Kind::VM => self.vms.get(key).map(|object| object.as_ref().clone().into()),
            Kind::Disk => self.disks.get(key).map(|object| object.as_ref().clone().into()),
            Kind::HotswapDiskAttachment => {
                self.attachments.get(key).map(|object| object.as_ref().clone().into())
            }
            Kind::PublicIP => self.public_ips.get(key).map(|object| object.as_ref().clone().into()),
            _ => None,
        }
    }

    /// The objects that a decision about this one binds it to, or takes at their word: not to be decided while one of
    /// them is being written.
    pub(super) fn rests_on(&self, key: &Key) -> Vec<Key> {
        let mut keys = vec![key.clone()];
        let named = |kind, name: &str| Key::namespaced(kind, key.namespace(), name);
        match key.kind {
            Kind::VM => {
                let Some(vm) = self.vms.get(key) else { return keys };
                let disks: Vec<Key> =
                    vm.spec.disks.iter().map(|d| named(Kind::Disk, d.name.as_str())).collect();
                let of_disks =
                    disks.iter().filter_map(|key| self.disks.get(key)).flat_map(|d| users::of_disk(d));
                // What it uses says so before it is bound. A host does not, and is written often.
                let used =
                    users::of_vm(vm).into_iter().chain(of_disks).filter(|used| used.kind != Kind::Host);
                keys.extend(used.map(|used| self.meant(&used)));
                keys.extend(disks);
            }
            Kind::HotswapDiskAttachment => {
                if let Some(attachment) = self.attachments.get(key) {
                    keys.push(named(Kind::VM, attachment.spec.vm.as_str()));
                    keys.push(named(Kind::Disk, attachment.spec.disk.as_str()));
                }
            }
            Kind::PublicIP => keys.extend(self.index.vms_with_public_ip(key)),
            // What a VM says of its epochs counts once the server has said so.
            Kind::PlacementGroup => keys.extend(self.index.claimants(key)),
            _ => {}
        }
        keys
    }

    /// Whether the object as given takes less than it does as it is known.
    pub(super) fn gives_back(&self, object: &Object) -> bool {
        let Object::VM(vm) = object else { return false };
        let (cpus, memory) = self.vm_size(vm).unwrap_or((0, 0));
        self.index.gives_back(&object.key(), vm, cpus, memory)
    }

    /// Takes an object, from a watch or from the answer to a write, unless a newer one is known; returns the keys it
    /// concerns.
    pub(super) fn put(&mut self, object: impl Into<Object>, now: Instant) -> Vec<Key> {
        self.insert(object.into(), now, Taken::IfNewer)
    }

    /// Takes an object whatever is known of it.
    pub(super) fn replace(&mut self, object: Object, now: Instant) -> Vec<Key> {
        self.insert(object, now, Taken::Always)
    }

    fn insert(&mut self, object: Object, now: Instant, how: Taken) -> Vec<Key> {
        let key = object.key();
        let mut keys = vec![key.clone()];
        let before = self.uses_of(&key);
        let taken = match object {
            Object::Host(object) => {
                let conflicts = object.status.clone().map(|s| s.address_conflicts).unwrap_or_default();
                let old = self.hosts.get(&key).cloned();
                let taken = self.hosts.put(*object, how);
                if taken {
                    keys.extend(self.conflicts_changed(old.as_deref(), &conflicts));
                    self.fleet_host(&key.name);
                    keys.extend(self.index_host(&key));
                    let host = self.hosts.get(&key).cloned();
                    keys.extend(self.claims.set(&key.name, host.as_deref()));
                }
                taken
            }
            Object::Lease(object) => {
                let host = object.name_any();
                let taken = self.leases.put(*object, how);
                keys = if taken { self.spoke(&host, now) } else { Vec::new() };
                taken
            }
            Object::StoragePool(object) => self.storage_pools.put(*object, how),
            Object::IPPool(object) => self.ip_pools.put(*object, how),
            Object::Network(object) => self.networks.put(*object, how),
            Object::VMClass(object) => {
                let old = self.vm_classes.get(&key).cloned();
                let spec = object.spec.clone();
                let taken = self.vm_classes.put(*object, how);
                if taken && old.is_none_or(|old| old.spec != spec) {
                    keys.extend(self.resize_vms(&key));
                }
                taken
            }
            Object::PlacementGroup(object) => {
                let taken = self.placement_groups.put(*object, how);
                if taken {
                    let group = self.placement_groups.get(&key).cloned();
                    keys.extend(self.index.set_group(&key, group.as_deref()));
                }
                taken
            }
            Object::Image(object) => self.images.put(*object, how),
            Object::Disk(object) => self.disks.put(*object, how),
            Object::PublicIP(object) => {
                let taken = self.public_ips.put(*object, how);
                if taken {
                    let ip = self.public_ips.get(&key).cloned();
                    keys.extend(self.index.set_public_ip(&key, ip.as_deref()));
                }
                taken
            }
            Object::VM(object) => {
                let taken = self.vms.put(*object, how);
                if taken {
                    keys.extend(self.index_vm(&key));
                }
                taken
            }
            Object::HotswapDiskAttachment(object) => {
                let taken = self.attachments.put(*object, how);
                if taken {
                    let attachment = self.attachments.get(&key).cloned();
                    keys.extend(self.index.set_attachment(&key, attachment.as_deref()));
                }
                taken
            }
            Object::ServiceAccount(object) => {
                keys.extend(self.index.secrets.keys_of_account(&key));
                self.accounts.put(*object, how)
            }
            Object::Role(object) => self.roles.put(*object, how),
        };
        if !taken {
            return Vec::new();
        }
        self.users_follow(&key, before);
        keys
    }

    /// Forgets an object; returns the keys that concerns.
    pub(super) fn remove(&mut self, key: &Key) -> Vec<Key> {
        let before = self.uses_of(key);
        each_cache!(self, key.kind, cache => { cache.objects.remove(key); });
        self.users_follow(key, before);
        let mut keys = vec![key.clone()];
        match key.kind {
            Kind::VM => keys.extend(self.index.set_vm(key, None, 0, 0)),
            Kind::PublicIP => keys.extend(self.index.set_public_ip(key, None)),
            Kind::PlacementGroup => keys.extend(self.index.set_group(key, None)),
            Kind::HotswapDiskAttachment => keys.extend(self.index.set_attachment(key, None)),
            Kind::Host => {
                self.index.fleet.remove_host(&key.name);
                keys.extend(self.index_host(key));
                keys.extend(self.claims.set(&key.name, None));
            }
            Kind::VMClass => keys.extend(self.resize_vms(key)),
            Kind::ServiceAccount => keys.extend(self.index.secrets.keys_of_account(key)),
            Kind::Lease => {
                self.silence.forget(&key.name);
                self.fleet_host(&key.name);
            }
            _ => {}
        }
        keys
    }

    /// What the object uses, as it is known; `None` where there is no such object.
    fn uses_of(&self, key: &Key) -> Option<BTreeSet<Key>> {
        match key.kind {
            Kind::VM => self.vms.get(key).map(|vm| users::of_vm(vm)),
            Kind::Disk => self.disks.get(key).map(|disk| users::of_disk(disk)),
            Kind::PublicIP => self.public_ips.get(key).map(|ip| users::of_public_ip(ip)),
            Kind::HotswapDiskAttachment => self.attachments.get(key).map(|a| users::of_attachment(a)),
            Kind::VMClass => self.vm_classes.get(key).map(|_| BTreeSet::new()),
            Kind::Network => self.networks.get(key).map(|_| BTreeSet::new()),
            Kind::Image => self.images.get(key).map(|_| BTreeSet::new()),
            _ => None,
        }
    }

    /// Notes what an object that changed uses now, and whether it came or went.
    fn users_follow(&mut self, key: &Key, before: Option<BTreeSet<Key>>) {
        let now = self.uses_of(key);
        if before.is_some() != now.is_some() {
            self.users.appeared_or_went(key);
        }
        self.users.change(key, &before.unwrap_or_default(), &now.unwrap_or_default());
    }

    /// The public addresses that somebody else had on a host's segment, or has now, and not both.
    fn conflicts_changed(&self, old: Option<&Host>, new: &[AddressConflict]) -> Vec<Key> {
        let old = old.and_then(|host| host.status.as_ref()).map(|s| s.address_conflicts.as_slice());
        let old = old.unwrap_or_default();
        let came = new.iter().filter(|conflict| !old.contains(conflict));
        let changed = old.iter().filter(|conflict| !new.contains(conflict)).chain(came);
        let addresses = changed.filter_map(|conflict| conflict.address.parse().ok());
        addresses.filter_map(|address| self.index.public_ip_with(address).cloned()).collect()
    }

    /// Notes where a host is reached; returns the keys that concerns: networks on it, pools that may hold its address.
    fn index_host(&mut self, key: &Key) -> Vec<Key> {
        let host = self.hosts.get(key).cloned();
        let changed = self.underlay.set(&key.name, host.as_deref());
        let mut keys = Vec::new();
        if changed.fits {
            keys.extend(self.networks.all().map(|network| Key::of(network.as_ref())));
        } else if changed.address {
            keys.extend(self.index.networks_on(&key.name));
        }
        if changed.address {
            keys.extend(self.ip_pools.all().map(|pool| Key::of(pool.as_ref())));
        }
        keys
    }

    /// Counts anew what the VMs of a class take of their hosts: it is another size than it was, or there was none.
    fn resize_vms(&mut self, class: &Key) -> Vec<Key> {
        let vms = self.users_of(class);
        vms.iter().flat_map(|vm| self.index_vm(vm)).collect()
    }

    fn index_vm(&mut self, key: &Key) -> Vec<Key> {
        let Some(vm) = self.vms.get(key).cloned() else { return Vec::new() };
        let (cpus, memory) = self.vm_size(&vm).unwrap_or((0, 0));
        self.index.set_vm(key, Some(&vm), cpus, memory)
    }

    /// Tells the fleet how a host is now.
    fn fleet_host(&mut self, name: &str) {
        let Some(host) = self.hosts.cluster(name) else { return };
        let bytes = |text: &str| berth_api::Quantity(text.to_owned()).bytes().unwrap_or_default();
        let status = host.status.as_ref();
        let ready = status.is_some_and(|s| condition::is_true(&s.conditions, ConditionType::Ready));
        let allocatable = status.and_then(|s| s.allocatable.as_ref());
        let candidate = Candidate {
            name: name.to_owned(),
            labels: host.labels().clone(),
            ready: ready && self.is_alive(name),
            untold: !host.spec.fenced
                && match status.and_then(|s| s.inventory.as_ref()) {
                    // What it has is in no status: it may run what is about to be placed, also while it is silent.
                    None => true,
                    Some(inventory) => self.is_alive(name) && !inventory.complete,
                },
            cordoned: host.spec.cordoned || host.spec.draining || host.spec.fenced,
            allocatable_cpus: allocatable.map_or(0, |a| a.cpus),
            allocatable_memory: allocatable.map_or(0, |a| bytes(&a.memory)),
            overhead: status.and_then(|s| s.vm_overhead.as_deref()).map_or(0, bytes),
            ..Candidate::default()
        };
        self.index.fleet.set_host(candidate);
    }

    /// CPUs and bytes of guest memory a VM takes of its host, see [`size_taken`].
    pub(super) fn vm_size(&self, vm: &VM) -> Option<(i64, u64)> {
        let class = self.vm_classes.lookup(&vm.namespace()?, vm.spec.class.as_str());
        let declared = class.and_then(|c| Some((c.spec.cpus, c.spec.memory.bytes().ok()?)));
        let hardware = vm.status.as_ref().and_then(|s| s.hardware.as_ref());
        let has = hardware.and_then(|h| Some((h.cpus, berth_api::Quantity(h.memory.clone()).bytes().ok()?)));
        let host = vm.status.as_ref().and_then(|s| s.binding.as_ref()).map(|b| &b.host);
        let host = host.and_then(|host| self.index.fleet.get(host)).filter(|h| h.allocatable_memory > 0);
        size_taken(declared, has, host.map(|h| (h.allocatable_cpus, h.allocatable_memory)))
    }

    /// Why nothing may be placed that was not placed before: what runs or lies on hosts is not known, or belongs to VMs
    /// that are to be given their hosts again first.
    pub(super) fn why_not_place(&self) -> Option<Unknown> {
        if let Some(host) = self.index.fleet.hosts().find(|host| host.untold) {
            let silent = match self.is_alive(&host.name) {
                true => String::new(),
                false => format!(
                    " and is silent: start its agent or, if the machine is gone for good, \"berth host forget {} --lost\"",
                    host.name
                ),
            };
            let text = format!("host {} has not said yet what runs and lies there{silent}", host.name);
            return Some(Unknown { text, need: Need::Hosts });
        }
        let is_lost = |key: &&Key| {
            let vm = self.vms.get(key);
            vm.is_some_and(|vm| {
                let bound = vm.status.as_ref().is_some_and(|s| s.binding.is_some());
                !bound && self.claims.of(key, vm.as_ref()).is_some()
            })
        };
        let lost = self.claims.vms().find(is_lost)?;
        let text = format!("VM {}/{} is given back to its host first", lost.namespace(), lost.name);
        Some(Unknown { text, need: Need::Object(lost.clone()) })
    }

    /// Whether somebody said that the host is gone for good.
    pub(super) fn is_fenced(&self, host: &str) -> bool {
        self.hosts.cluster(host).is_some_and(|host| host.spec.fenced)
    }

    /// Whether the host's agent renews its Lease.
    pub(super) fn is_alive(&self, host: &str) -> bool {
        self.silence.is_alive(host)
    }

    /// Whether the host is silent by its Lease as it was read a moment ago: a watch that lags must not have us call
    /// unknown, again and again, what a living agent reports.
    pub(super) fn is_silence_confirmed(&self, host: &str, now: Instant) -> bool {
        self.silence.is_confirmed(host, now)
    }

    /// Notes the Lease of a host as it is now; returns the keys that concerns.
    pub(super) fn read_lease(&mut self, host: &str, lease: Option<Box<Lease>>, now: Instant) -> Vec<Key> {
        let mut keys = lease.map(|lease| self.put(*lease, now)).unwrap_or_default();
        self.silence.was_read(host, now);
        keys.push(Key::cluster(Kind::Host, host));
        keys
    }

    /// Notes that a host's agent renewed its Lease; returns what that concerns: nothing, unless it was silent before.
    /// Leases are the most frequent writes there are, so this looks at no other host.
    fn spoke(&mut self, host: &str, now: Instant) -> Vec<Key> {
        if self.silence.spoke(host, now) { self.tell_fleet(host) } else { Vec::new() }
    }

    /// Notes which hosts fell silent or spoke again; returns their keys and those of the VMs on them.
    pub(super) fn silence_changes(&mut self, now: Instant) -> Vec<Key> {
        let changed = self.silence.changes(self.hosts.all().map(|host| host.name_any()), now);
        changed.iter().flat_map(|host| self.tell_fleet(host)).collect()
    }

    /// Tells the fleet of a host that fell silent or spoke again; its key and those of the VMs on it.
    fn tell_fleet(&mut self, host: &str) -> Vec<Key> {
        self.fleet_host(host);
        let mut keys = vec![Key::cluster(Kind::Host, host)];
        keys.extend(self.index.vms_on(host));
        keys
    }
}
