//! What a reconcile wants written, as data: in order, with nothing left to choose.

use berth_api::{
    Binding, Disk, DiskState, Host, PlacementGroup, PlacementGroupStatus, Readiness, Reason, SYSTEM_NAMESPACE,
};
use k8s_openapi::jiff::Timestamp;

use super::{Config, Key, Kind, World, apply::WithStatus, plan::Step, users, watches::Object};

/// One write. Each stands for itself and carries the resourceVersion that was read, or that the write of the same
/// object before it was answered with.
#[derive(Clone, Debug)]
pub(super) enum Write {
    /// The finalizers of an object, which is as it was read.
    Finalizers(Object, Vec<String>),
    /// The status of an object, which is as it was read but for that.
    Status(Object),
    /// The Secrets of a namespace that a host may read.
    Allow { role: Key, host: String, secrets: Vec<String> },
    /// No Secret of a namespace any more.
    Disallow(Key),
    /// No write: the Lease of a host that seems silent is read as it is now.
    ReadLease(String),
    /// No write: what follows is written only if the VM with this uid is gone, whatever watches have told.
    EnsureGone { vm: Key, uid: String },
    /// A Host that is gone for good goes, and its Lease.
    EndHost(Box<Host>),
}

impl Write {
    /// The object it is about.
    pub(super) fn key(&self) -> Key {
        match self {
            Self::Finalizers(object, _) | Self::Status(object) => object.key(),
            Self::Allow { role, .. } | Self::Disallow(role) => role.clone(),
            Self::ReadLease(host) => Key::namespaced(Kind::Lease, SYSTEM_NAMESPACE, host),
            Self::EnsureGone { vm, .. } => vm.clone(),
            Self::EndHost(host) => Key::of(host.as_ref()),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Draft {
    writes: Vec<Write>,
    touched: Vec<Key>,
}

impl Draft {
    /// Adds a write.
    pub(super) fn write(&mut self, write: Write) {
        self.writes.push(write);
    }

    /// Has a key looked at once everything is written.
    pub(super) fn touch(&mut self, key: Key) {
        self.touched.push(key);
    }

    /// The status of an object, if it differs from what was read.
    pub(super) fn status<K: WithStatus>(&mut self, object: &K, status: K::Status) {
        if object.status() != Some(&status) {
            let mut object = object.clone();
            object.set_status(status);
            self.write(Write::Status(object.into()));
        }
    }

    /// Changes what is to be said of a group: in the write there is of it, or in one of its own.
    pub(super) fn group_status(
        &mut self,
        group: &PlacementGroup,
        change: impl FnOnce(&mut PlacementGroupStatus),
    ) {
        let key = Key::of(group);
        for write in &mut self.writes {
            if let Write::Status(Object::PlacementGroup(written)) = write
                && Key::of(written.as_ref()) == key
            {
                return change(written.status.get_or_insert_default());
            }
        }
        let mut status = group.status.clone().unwrap_or_default();
        change(&mut status);
        self.status(group, status);
    }

    /// What makes the steps true, in order.
    pub(super) fn steps(&mut self, world: &World, config: &Config, steps: &[Step]) {
        for step in steps {
            match step {
                Step::AddFinalizer(key, finalizer) => self.finalizer(world, key, finalizer, true),
                Step::RemoveFinalizer(key, finalizer) => self.finalizer(world, key, finalizer, false),
                Step::BindDisk { disk, host, volume_id, serial, used_by } => {
                    let Some(object) = world.disks.get(disk) else { continue };
                    users::claim(world, config, users::of_disk(object), self);
                    let mut status = bound(object, host, config.clock.now());
                    status.volume_id = Some(volume_id.clone());
                    status.serial = Some(serial.clone());
                    status.used_by.clone_from(used_by);
                    self.status(object.as_ref(), status);
                }
            }
        }
    }

    fn finalizer(&mut self, world: &World, key: &Key, finalizer: &str, wanted: bool) {
        let Some(object) = world.object(key) else { return };
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

    /// Everything, and the keys to look at in the end.
    pub(super) fn into_parts(self) -> (Vec<Write>, Vec<Key>) {
        (self.writes, self.touched)
    }

    /// The objects it is about.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
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
    let text = format!("bound to host {host}");
    Readiness::Reconciling(Reason::Bound, text).write(&mut status.conditions, generation, now);
    status
}
