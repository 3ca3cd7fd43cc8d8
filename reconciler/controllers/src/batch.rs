//! The writes of a reconcile, as data: in order, with no choices left for execution.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use berth_api::{
    Backup, Binding, DEFAULT_NAME, Disk, DiskState, Host, Network, ObjectUser, PlacementGroup,
    PlacementGroupStatus, Readiness, SHARED_NAMESPACE, SYSTEM_NAMESPACE, USED_FINALIZER, condition,
};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::{
    cache::users::Protection,
    cache::{Cache, users},
    key::{Key, ObjectKind},
    object::{Object, WithStatus},
    plan::Step,
};

/// One write. Each is independent and carries the resourceVersion that was read, or that of the response to the
/// previous write of the same object.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    /// The finalizers of an object, which is otherwise as it was read.
    Finalizers(Object, Vec<String>),
    /// The status of an object, which is otherwise as it was read.
    Status(Object),
    /// The Secrets of a namespace that a host may read.
    Allow { role: Key, host: String, secrets: Vec<String> },
    /// A host may no longer read any Secret of a namespace.
    Disallow(Key),
    /// A namespace's ServiceAccount for tickets.
    TicketAccount { namespace: String, account: &'static str },
    /// The list of all hosts' addresses.
    HostAddresses(BTreeMap<String, String>),
    /// Not a write: reads the current Lease of a host that seems silent.
    ReadLease(String),
    /// Not a write: the writes that follow are made only if the VM with this uid is gone, whatever watches have
    /// delivered.
    EnsureGone { vm: Key, uid: String },
    /// A namespace's Network `default` is created.
    CreateNetwork(Box<Network>),
    /// An object of a kind with a status is created for another one: a Disk for the VM that declares it, a DiskSnapshot for its
    /// VMSnapshot, a VMSnapshot for the stop of a VM, a VMSnapshot or a Backup for a SnapshotSchedule.
    Create(Object),
    /// This version of an object is deleted, such as a VMSnapshot or a Backup that its SnapshotSchedule does not keep.
    Delete(Object),
    /// These values of a Disk's spec are changed.
    ChangeDisk(Arc<Disk>, Value),
    /// These labels and annotations of a Disk are changed.
    ChangeMetadata(Arc<Disk>, Value),
    /// The host of a Backup may not read the Secrets of its repository for a client any more.
    EndRead(Arc<Backup>),
    /// Ends a recovery: everything the host holds has been given back, or belongs to no object.
    EndRecovery(Arc<Host>),
    /// Removes a fenced Host, and its Lease.
    EndHost(Box<Host>),
}

impl Write {
    /// Returns the key of the object it writes.
    pub(crate) fn key(&self) -> Key {
        match self {
            Self::Finalizers(object, _)
            | Self::Status(object)
            | Self::Create(object)
            | Self::Delete(object) => object.key(),
            Self::Allow { role, .. } | Self::Disallow(role) => role.clone(),
            Self::TicketAccount { namespace, account } => Key::ticket_account(namespace, account),
            Self::HostAddresses(_) => Key::host_addresses(),
            Self::ReadLease(host) => Key::namespaced(ObjectKind::Lease, SYSTEM_NAMESPACE, host),
            Self::EnsureGone { vm, .. } => vm.clone(),
            // One key for all of them, so that one is in flight at a time: each sees the ranges of those before.
            Self::CreateNetwork(_) => Key::namespaced(ObjectKind::Network, SHARED_NAMESPACE, DEFAULT_NAME),
            Self::ChangeDisk(disk, _) | Self::ChangeMetadata(disk, _) => Key::of(disk.as_ref()),
            Self::EndRead(backup) => Key::of(backup.as_ref()),
            Self::EndRecovery(host) => Key::of(host.as_ref()),
            Self::EndHost(host) => Key::of(host.as_ref()),
        }
    }
}

/// The draft that the module describes.
#[derive(Debug, Default)]
pub(crate) struct WriteBatch {
    writes: Vec<Write>,
    enqueued: Vec<Key>,
}

impl WriteBatch {
    /// Adds a write.
    pub(crate) fn write(&mut self, write: Write) {
        self.writes.push(write);
    }

    /// Enqueues a key once everything is written.
    pub(crate) fn enqueue(&mut self, key: Key) {
        self.enqueued.push(key);
    }

    /// Adds a write of an object's status if it differs from the one that was read.
    pub(crate) fn status<K: WithStatus>(&mut self, object: &K, status: K::Status) {
        if object.status() != Some(&status) {
            let mut object = object.clone();
            *object.status_mut() = Some(status);
            self.write(Write::Status(object.into()));
        }
    }

    /// Adds a write of the status of an object in use, and of the finalizer that holds it.
    pub(crate) fn used<K: WithStatus>(
        &mut self,
        object: &K,
        status: K::Status,
        users: &[ObjectUser],
        now: Timestamp,
    ) {
        let mut status = status;
        match users::protection(object.meta(), users) {
            Protection::None => {}
            Protection::Hold => self.finalizer_of(object.clone().into(), USED_FINALIZER, true),
            Protection::Release => return self.finalizer_of(object.clone().into(), USED_FINALIZER, false),
            Protection::Wait(readiness) => {
                // Compared with the stored status: a `Ready` in between would be a transition, and a write, each
                // time.
                let mut stored = object.status().cloned().unwrap_or_default();
                let stored = K::conditions(&mut stored);
                let conditions = K::conditions(&mut status);
                for kind in ["Ready", "Reconciling", "Stalled"] {
                    conditions.retain(|c| c.type_ != kind);
                    conditions.extend(condition::find(stored, kind).cloned());
                }
                readiness.write(conditions, object.meta().generation.unwrap_or_default(), now);
            }
        }
        self.status(object, status);
    }

    /// Changes a group's status: in the write that the draft already has for it, or in a new one.
    pub(crate) fn group_status(
        &mut self,
        group: &PlacementGroup,
        change: impl FnOnce(&mut PlacementGroupStatus),
    ) {
        let key = Key::of(group);
        for write in &mut self.writes {
            if let Write::Status(Object::PlacementGroup(written)) = write
                && Key::of(written.as_ref()) == key
            {
                return change(Arc::make_mut(written).status.get_or_insert_default());
            }
        }
        let mut status = group.status.clone().unwrap_or_default();
        change(&mut status);
        self.status(group, status);
    }

    /// Adds the finalizer of used objects to each of these that lacks it, before anything that names it is bound.
    ///
    /// *Guarantees:* on success each object that exists has the finalizer by a write that found it there and not
    /// deleted.
    pub(crate) fn hold(&mut self, cache: &Cache, used: impl IntoIterator<Item = Key>) {
        for key in used {
            let key = cache.resolve(&key);
            // A Host has it from the start.
            let lacks_it = key.kind != ObjectKind::Host && cache.is_held(&key) == Some(false);
            if lacks_it && !cache.is_deleted(&key) && !self.keys().any(|written| written == key) {
                self.finalizer(cache, &key, USED_FINALIZER, true);
            }
        }
    }

    /// Permits a host to read these Secrets of the namespace of one of its Roles too, and those that the draft permits already. Written before
    /// the host knows of the object that needs them, so that it never looks for them in vain. A host without an account of its own needs
    /// no permission.
    pub(crate) fn allow(&mut self, cache: &Cache, host: &str, role: Key, needed: Vec<String>) {
        let known = cache.secrets_of(host, role.namespace());
        if !cache.has_account(host) || needed.iter().all(|secret| known.contains(secret)) {
            return;
        }
        let mut all: BTreeSet<String> = known.into_iter().chain(needed).collect();
        for write in &mut self.writes {
            if let Write::Allow { role: written, secrets, .. } = write
                && *written == role
            {
                all.extend(secrets.drain(..));
                secrets.extend(all);
                return;
            }
        }
        self.write(Write::Allow { role, host: host.to_owned(), secrets: all.into_iter().collect() });
    }

    /// Adds the writes for the steps, in order.
    pub(crate) fn steps(&mut self, cache: &Cache, now: Timestamp, steps: &[Step]) {
        for step in steps {
            match step {
                Step::AddFinalizer(key, finalizer) => self.finalizer(cache, key, finalizer, true),
                Step::RemoveFinalizer(key, finalizer) => self.finalizer(cache, key, finalizer, false),
                Step::BindDisk { disk, host, pool, volume_id, serial, used_by } => {
                    let Some(object) = cache.tables.disks.get(disk) else { continue };
                    let chosen =
                        pool.as_ref().map(|pool| Key::cluster(ObjectKind::StoragePool, pool.as_str()));
                    self.hold(cache, users::of_disk(object).into_iter().chain(chosen));
                    if let Some((namespace, secrets)) = cache.key_secrets_of(object) {
                        self.allow(cache, host, Key::secrets_role(host, &namespace), secrets);
                    }
                    let mut status = bound(object, host, now);
                    if pool.is_some() {
                        if object.awaits_default_pool() {
                            // It stays there when the namespace gets another default pool.
                            status.default_pool = pool.clone().filter(|pool| pool.as_str() != DEFAULT_NAME);
                        }
                        status.pool.clone_from(pool);
                    }
                    // Its file is where it was.
                    status.former_host = status.former_host.filter(|former| former != host);
                    status.volume_id = Some(volume_id.clone());
                    status.serial = Some(serial.clone());
                    status.used_by.clone_from(used_by);
                    self.status(object.as_ref(), status);
                }
            }
        }
    }

    fn finalizer(&mut self, cache: &Cache, key: &Key, finalizer: &str, wanted: bool) {
        if let Some(object) = cache.object(key) {
            self.finalizer_of(object, finalizer, wanted);
        }
    }

    pub(crate) fn finalizer_of(&mut self, object: Object, finalizer: &str, wanted: bool) {
        let mut finalizers = object.meta().finalizers.clone().unwrap_or_default();
        if finalizers.iter().any(|f| f == finalizer) == wanted {
            return;
        }
        if wanted {
            finalizers.push(finalizer.to_owned());
        } else {
            finalizers.retain(|f| f != finalizer);
        }
        self.write(Write::Finalizers(object, finalizers));
    }

    /// Returns all writes, and the keys to enqueue afterwards.
    pub(crate) fn into_parts(self) -> (Vec<Write>, Vec<Key>) {
        (self.writes, self.enqueued)
    }

    /// Returns the keys of the objects it writes.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.writes.iter().map(Write::key)
    }
}

fn bound(disk: &Disk, host: &str, now: Timestamp) -> berth_api::DiskStatus {
    let mut status = disk.status.clone().unwrap_or_default();
    let epoch = status.binding.as_ref().map_or(1, |b| b.epoch + 1);
    status.binding = Some(Binding { host: host.to_owned(), epoch });
    status.state = Some(DiskState::Creating);
    let generation = disk.metadata.generation.unwrap_or_default();
    status.observed_generation = generation;
    Readiness::bound_to(host).write(&mut status.conditions, generation, now);
    status
}
