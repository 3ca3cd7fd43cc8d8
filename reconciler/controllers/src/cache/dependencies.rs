//! The objects that a decision about another depends on.

use super::{Cache, users};
use crate::key::{Key, ObjectKind};

impl Cache {
    /// Returns the objects that a decision about this one binds to it or depends on: the decision is deferred while
    /// one of them is being written.
    pub(crate) fn depends_on(&self, key: &Key) -> Vec<Key> {
        let mut keys = vec![key.clone()];
        let named = |kind, name: &str| Key::namespaced(kind, key.namespace(), name);
        match key.kind {
            ObjectKind::VM => {
                let Some(vm) = self.tables.vms.get(key) else { return keys };
                let disks: Vec<Key> =
                    vm.spec.disks.iter().map(|d| named(ObjectKind::Disk, d.name.as_str())).collect();
                let of_disks =
                    disks.iter().filter_map(|key| self.tables.disks.get(key)).flat_map(|d| users::of_disk(d));
                // A used object gets its finalizer before the bind. A Host does not, and is written often.
                let used =
                    users::of_vm(vm).into_iter().chain(of_disks).filter(|used| used.kind != ObjectKind::Host);
                keys.extend(used.map(|used| self.resolve(&used)));
                keys.extend(disks);
                keys.extend(self.index.made_for(key));
            }
            ObjectKind::HotswapDiskAttachment => {
                if let Some(attachment) = self.tables.attachments.get(key) {
                    keys.push(named(ObjectKind::VM, attachment.spec.vm.as_str()));
                    keys.push(named(ObjectKind::Disk, attachment.spec.disk.as_str()));
                }
            }
            ObjectKind::DiskSnapshot => {
                if let Some(snapshot) = self.tables.disk_snapshots.get(key) {
                    keys.push(named(ObjectKind::Disk, snapshot.spec.disk.as_str()));
                }
            }
            ObjectKind::Backup => {
                if let Some(backup) = self.tables.backups.get(key) {
                    keys.push(named(ObjectKind::BackupRepository, backup.spec.repository.as_str()));
                    let snapshot = backup.spec.snapshot.as_ref();
                    keys.extend(snapshot.map(|name| named(ObjectKind::DiskSnapshot, name.as_str())));
                }
            }
            ObjectKind::VMSnapshot => {
                if let Some(snapshot) = self.tables.vm_snapshots.get(key) {
                    keys.push(named(ObjectKind::VM, snapshot.spec.vm.as_str()));
                    let disks = snapshot.status.iter().flat_map(|status| &status.disks);
                    keys.extend(disks.map(|disk| named(ObjectKind::DiskSnapshot, disk.snapshot.as_str())));
                }
            }
            // A rule counts a snapshot as taken, and a backup as complete, once the server has confirmed it.
            ObjectKind::SnapshotSchedule => keys.extend(self.index.made_for(key)),
            ObjectKind::Image => {
                if let Some(image) = self.tables.images.get(key) {
                    let disk = image.spec.source.disk.as_ref();
                    let of = image.foreign_data().unwrap_or(key.namespace());
                    keys.extend(disk.map(|disk| Key::namespaced(ObjectKind::Disk, of, disk.as_str())));
                    let original = image.original();
                    keys.extend(original.map(|(namespace, name)| {
                        Key::namespaced(ObjectKind::Image, namespace, name.as_str())
                    }));
                }
            }
            ObjectKind::Disk => {
                let source = self.tables.disks.get(key).and_then(|disk| disk.spec.source.as_ref());
                let of = source.map_or(key.namespace(), |source| source.namespace(key.namespace()));
                let disk = source.and_then(|source| source.disk.as_ref());
                keys.extend(disk.map(|disk| Key::namespaced(ObjectKind::Disk, of, disk.as_str())));
            }
            ObjectKind::PublicIP => keys.extend(self.index.vms_with_public_ip(key)),
            // A recovery ends once everything is given back on the server, not when that is decided: after a crash in
            // between, the reports of the host would not count any more.
            ObjectKind::Host => keys.extend(self.claims.by(&key.name).cloned()),
            // A VM's epochs count only once the server has confirmed them.
            ObjectKind::PlacementGroup => keys.extend(self.index.claimants(key)),
            _ => {}
        }
        keys
    }
}
