//! The amounts of each object that counts.

use berth_api::{
    ADDRESS_FINALIZER, Backup, Disk, DiskSnapshot, DiskSpec, HOST_FINALIZER, Image, PublicIP, Quantity,
    QuotaAmounts, RESTORE_ANNOTATION, ResourceName, VM, VMStatus,
    host::{MOST_CPUS, MOST_MEMORY},
    storage_pool::space,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    cache::{Cache, Tables, table::Table},
    key::{Key, ObjectKind, Watched},
};

/// An object that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Whether it has its host or its address.
    pub(crate) is_placed: bool,
    pub(crate) since: Option<Timestamp>,
    pub(crate) amounts: QuotaAmounts,
    /// A disk whose size is that of a source, which is not known yet. It counts as none.
    pub(crate) is_size_unknown: bool,
    /// Whether its amounts come from another object.
    pub(crate) is_derived: bool,
}

impl Counted {
    fn new(object: &impl Watched, is_placed: bool, amounts: QuotaAmounts) -> Self {
        let since = object.creation_timestamp().map(|made| made.0);
        Self { is_placed, since, amounts, is_size_unknown: false, is_derived: false }
    }
}

/// Returns the amounts of an object; `None` if it does not exist, or its kind does not count.
pub(super) fn of(tables: &Tables, key: &Key) -> Option<Counted> {
    match key.kind {
        ObjectKind::VM => tables.vms.get(key).map(|vm| of_vm(tables, vm)),
        ObjectKind::Disk => tables.disks.get(key).map(|disk| of_disk(tables, disk)),
        ObjectKind::DiskSnapshot => {
            tables.disk_snapshots.get(key).map(|snapshot| of_snapshot(tables, snapshot))
        }
        ObjectKind::Image => tables.images.get(key).map(|image| of_image(image)),
        ObjectKind::Backup => tables.backups.get(key).map(|backup| of_backup(backup)),
        ObjectKind::PublicIP => tables.public_ips.get(key).map(|ip| of_public_ip(ip)),
        _ => None,
    }
}

/// Returns the keys of the objects of a namespace that count.
pub(super) fn keys(tables: &Tables, namespace: &str) -> Vec<Key> {
    let mut keys = keys_in(&tables.vms, namespace);
    keys.extend(keys_in(&tables.disks, namespace));
    keys.extend(keys_in(&tables.disk_snapshots, namespace));
    keys.extend(keys_in(&tables.images, namespace));
    keys.extend(keys_in(&tables.backups, namespace));
    keys.extend(keys_in(&tables.public_ips, namespace));
    keys
}

fn keys_in<K: Watched>(table: &Table<K>, namespace: &str) -> Vec<Key> {
    let here = table.all().filter(|object| object.meta().namespace.as_deref() == Some(namespace));
    here.map(|object| Key::of(object.as_ref())).collect()
}

fn of_vm(tables: &Tables, vm: &VM) -> Counted {
    let class = vm.spec.class.as_ref();
    let found = class.and_then(|class| tables.vm_classes.lookup(&vm.namespace()?, class.as_str()));
    // A VM without a usable size is not placed.
    let class_values = vm.class_values(found.map(|class| &class.spec));
    let declared = vm.spec.size(class_values.as_deref()).ok();
    let (cpus, memory) = declared.map_or((0, 0), |size| (size.cpus, size.memory));
    let bound = vm.status.as_ref().filter(|status| status.binding.is_some());
    // It keeps its hardware until its next start. Reported by the host, so it is limited.
    let hardware = bound.and_then(|status| status.hardware.as_ref());
    let has_cpus = hardware.map_or(0, |hardware| hardware.cpus.clamp(0, MOST_CPUS));
    let has_memory = hardware.and_then(|hardware| bytes(Some(&hardware.memory))).unwrap_or_default();
    let amounts = QuotaAmounts {
        vms: 1,
        cpus: cpus.max(has_cpus),
        memory: memory.max(has_memory.min(MOST_MEMORY)),
        disk_size: vm.scratch_bytes(class_values.as_deref()),
        used_storage: bound.map(files_of_vm).unwrap_or_default(),
        ..QuotaAmounts::default()
    };
    // One that moves keeps what it had: no other object gets it meanwhile.
    let is_moving = vm.status.as_ref().is_some_and(VMStatus::is_between_hosts);
    Counted { is_derived: class.is_some(), ..Counted::new(vm, bound.is_some() || is_moving, amounts) }
}

/// Returns the space that the files of a VM take beside its disks: each Disk counts for itself.
fn files_of_vm(status: &VMStatus) -> u64 {
    let Some(storage) = &status.storage else { return 0 };
    space(&storage.snapshots).saturating_add(space(&storage.files))
}

/// Returns the space that the files of deleted disks of a namespace take on a host; `None` if there are none.
pub(super) fn of_deleted(tables: &Tables, host: &Key, namespace: &str) -> Option<Counted> {
    let status = tables.hosts.get(host)?.status.as_ref()?;
    let trash = status.trash.iter().map(|file| (&file.namespace, &file.used));
    let retained = status.retained_volumes.iter().map(|file| (&file.namespace, &file.used));
    let here = trash.chain(retained).filter(|(of, _)| *of == namespace);
    let used_storage = here.filter_map(|(_, used)| used.as_deref().map(space)).fold(0, u64::saturating_add);
    let amounts = QuotaAmounts { used_storage, ..QuotaAmounts::default() };
    let counted =
        Counted { is_placed: true, since: None, amounts, is_size_unknown: false, is_derived: false };
    (used_storage > 0).then_some(counted)
}

fn of_disk(tables: &Tables, disk: &Disk) -> Counted {
    let size = size(tables, disk);
    let status = disk.status.as_ref();
    let amounts = QuotaAmounts {
        disks: 1,
        disk_size: size.unwrap_or_default(),
        used_storage: status.and_then(|status| status.used.as_deref()).map_or(0, space),
        ..QuotaAmounts::default()
    };
    // One whose VM moves keeps what it had.
    let is_placed = status.is_some_and(|status| status.binding.is_some() || status.former_host.is_some());
    let has_size = status.is_some_and(|status| status.size.is_some());
    let is_restored = disk.annotations().contains_key(RESTORE_ANNOTATION);
    Counted {
        is_size_unknown: size.is_none(),
        is_derived: !has_size && (disk.spec.size.is_none() || is_restored),
        ..Counted::new(disk, is_placed, amounts)
    }
}

fn of_snapshot(tables: &Tables, snapshot: &DiskSnapshot) -> Counted {
    let namespace = snapshot.namespace().unwrap_or_default();
    let status = snapshot.status.as_ref();
    // Its disk may have grown since, or be another one of that name.
    let own = status.and_then(|status| bytes(status.size.as_deref()));
    let of_disk = || size(tables, tables.disks.named(&namespace, snapshot.spec.disk.as_str())?);
    let disk_size = own.or_else(of_disk).unwrap_or_default();
    let amounts = QuotaAmounts { snapshots: 1, disk_size, ..QuotaAmounts::default() };
    // One that has lost its status is known by its finalizer. The parts of a VMSnapshot have that from the start.
    let was_bound = snapshot.finalizers().iter().any(|finalizer| finalizer == HOST_FINALIZER)
        && snapshot.part_of().is_none();
    let is_placed = was_bound || status.is_some_and(|status| status.binding.is_some());
    Counted { is_derived: own.is_none(), ..Counted::new(snapshot, is_placed, amounts) }
}

fn of_image(image: &Image) -> Counted {
    let status = image.status.as_ref();
    // Until a host has the file, that of an upload is known by its declaration.
    let bytes = status.and_then(|status| status.bytes).or(image.spec.source.upload.map(|upload| upload.size));
    let image_storage = bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default();
    let amounts = QuotaAmounts { images: 1, image_storage, ..QuotaAmounts::default() };
    // Its finalizer does not say that it has a host: disks that name one hold it while it waits, too.
    let has_host = status.is_some_and(|status| status.binding.is_some() || status.virtual_size.is_some());
    Counted::new(image, has_host, amounts)
}

fn of_backup(backup: &Backup) -> Counted {
    let status = backup.status.as_ref();
    let stored = status.and_then(|status| status.stored_bytes);
    let backup_storage = stored.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default();
    let amounts = QuotaAmounts { backups: 1, backup_storage, ..QuotaAmounts::default() };
    // One that has lost its status is known by its finalizer.
    let had_host = backup.finalizers().iter().any(|finalizer| finalizer == HOST_FINALIZER);
    let has_host = status.is_some_and(|status| status.binding.is_some());
    Counted::new(backup, had_host || has_host || backup.is_complete(), amounts)
}

fn of_public_ip(ip: &PublicIP) -> Counted {
    // One that has lost its status is known by its finalizer.
    let had_address = ip.finalizers().iter().any(|finalizer| finalizer == ADDRESS_FINALIZER);
    let has_address = ip.status.as_ref().is_some_and(|status| status.address.is_some());
    let amounts = QuotaAmounts { public_ips: 1, ..QuotaAmounts::default() };
    Counted::new(ip, had_address || has_address, amounts)
}

fn bytes(size: Option<&str>) -> Option<u64> {
    size.and_then(|size| Quantity(size.to_owned()).bytes().ok())
}

/// The full size of a disk, in bytes.
pub(crate) fn size(tables: &Tables, disk: &Disk) -> Option<u64> {
    let has = bytes(disk.status.as_ref().and_then(|status| status.size.as_deref()));
    if has.is_some() {
        return has.max(disk.spec.size.as_ref().and_then(|size| size.bytes().ok()));
    }
    let declared = declared(tables, &disk.namespace().unwrap_or_default(), &disk.spec);
    declared.max(trashed(tables, disk))
}

/// The size of the file of a deleted disk that a disk gets.
fn trashed(tables: &Tables, disk: &Disk) -> Option<u64> {
    let (host, volume) = disk.annotations().get(RESTORE_ANNOTATION)?.split_once('/')?;
    let namespace = disk.namespace()?;
    bytes(tables.hosts.cluster(host)?.status.as_ref()?.deleted_volume(&namespace, volume))
}

/// The size that a new disk gets, as far as it is known.
fn declared(tables: &Tables, namespace: &str, spec: &DiskSpec) -> Option<u64> {
    if let Some(size) = &spec.size {
        return size.bytes().ok();
    }
    if let Some(image) = &spec.image {
        let image = tables.images.lookup(namespace, image.as_str())?;
        return bytes(image.status.as_ref()?.virtual_size.as_deref());
    }
    let source = spec.source.as_ref()?;
    let of = source.namespace(namespace);
    if let Some(disk) = &source.disk {
        let disk = tables.disks.named(of, disk.as_str()).filter(|disk| disk.is_shared_with(namespace))?;
        return bytes(disk.status.as_ref()?.size.as_deref());
    }
    if let Some(snapshot) = &source.snapshot {
        let snapshot = tables.disk_snapshots.named(of, snapshot.as_str());
        let snapshot = snapshot.filter(|snapshot| snapshot.is_shared_with(namespace))?;
        return bytes(snapshot.status.as_ref()?.size.as_deref());
    }
    let backup = tables.backups.named(namespace, source.backup.as_ref()?.as_str())?;
    bytes(backup.status.as_ref()?.size.as_deref())
}

/// Returns the amounts of new disks. One of unknown size counts as one byte: it needs room, and admission refuses it without any.
pub(crate) fn of_disks<'a>(
    cache: &Cache,
    namespace: &str,
    specs: impl Iterator<Item = &'a DiskSpec>,
) -> QuotaAmounts {
    specs.fold(QuotaAmounts::default(), |sum, spec| {
        let disk_size = declared(&cache.tables, namespace, spec).unwrap_or(1);
        sum.plus(QuotaAmounts { disks: 1, disk_size, ..QuotaAmounts::default() })
    })
}

/// Returns the amounts of new snapshots of these disks.
pub(crate) fn of_snapshots<'a>(
    cache: &Cache,
    namespace: &str,
    disks: impl Iterator<Item = &'a ResourceName>,
) -> QuotaAmounts {
    disks.fold(QuotaAmounts::default(), |sum, name| {
        let disk = cache.tables.disks.named(namespace, name.as_str());
        let disk_size = disk.and_then(|disk| size(&cache.tables, disk)).unwrap_or(1);
        sum.plus(QuotaAmounts { snapshots: 1, disk_size, ..QuotaAmounts::default() })
    })
}
