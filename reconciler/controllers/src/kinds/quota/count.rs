//! What each object of a namespace uses.

use std::sync::Arc;

use berth_api::{Disk, DiskSnapshot, DiskSpec, Quantity, QuotaAmounts, ResourceName, VM};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{cache::Cache, key::Key};

use super::is_in;

/// An object that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) key: Key,
    /// Whether it has its host or its address; an Image counts as placed.
    pub(super) is_placed: bool,
    pub(super) since: Option<Timestamp>,
    pub(super) amounts: QuotaAmounts,
    /// A disk whose size is that of a source, which is not known yet. It counts as none.
    pub(super) is_size_unknown: bool,
}

impl Counted {
    fn new(object: &impl crate::key::Watched, is_placed: bool, amounts: QuotaAmounts) -> Self {
        let since = object.creation_timestamp().map(|made| made.0);
        Self { key: Key::of(object), is_placed, since, amounts, is_size_unknown: false }
    }

    /// The order in which objects get what is left.
    pub(super) fn position(&self) -> (Option<Timestamp>, &Key) {
        (self.since, &self.key)
    }
}

/// Returns the objects of a namespace that count.
pub(super) fn counted(cache: &Cache, namespace: &str) -> Vec<Counted> {
    let tables = &cache.tables;
    let vms = tables.vms.all().filter(|vm| is_in(&vm.metadata, namespace)).map(|vm| of_vm(cache, vm));
    let disks = tables.disks.all().filter(|disk| is_in(&disk.metadata, namespace));
    let disks = disks.map(|disk| of_disk(cache, disk));
    let snapshots = tables.disk_snapshots.all().filter(|snapshot| is_in(&snapshot.metadata, namespace));
    let snapshots = snapshots.map(|snapshot| of_snapshot(cache, snapshot));
    let images = tables.images.all().filter(|image| is_in(&image.metadata, namespace));
    let images = images.map(|image| {
        Counted::new(image.as_ref(), true, QuotaAmounts { images: 1, ..QuotaAmounts::default() })
    });
    let ips = tables.public_ips.all().filter(|ip| is_in(&ip.metadata, namespace));
    let ips = ips.map(|ip| {
        let has_address = ip.status.as_ref().is_some_and(|status| status.address.is_some());
        Counted::new(ip.as_ref(), has_address, QuotaAmounts { public_ips: 1, ..QuotaAmounts::default() })
    });
    vms.chain(disks).chain(snapshots).chain(images).chain(ips).collect()
}

fn of_vm(cache: &Cache, vm: &Arc<VM>) -> Counted {
    let class = vm.spec.class.as_ref();
    let class = class.and_then(|class| cache.tables.vm_classes.lookup(&vm.namespace()?, class.as_str()));
    // A VM without a usable size is not placed.
    let (cpus, memory) =
        vm.spec.size(class.map(|class| &class.spec)).map_or((0, 0), |size| (size.cpus, size.memory));
    let is_placed = vm.status.as_ref().is_some_and(|status| status.binding.is_some());
    Counted::new(vm.as_ref(), is_placed, QuotaAmounts { vms: 1, cpus, memory, ..QuotaAmounts::default() })
}

fn of_disk(cache: &Cache, disk: &Arc<Disk>) -> Counted {
    let size = size(cache, disk);
    let amounts = QuotaAmounts { disks: 1, disk_size: size.unwrap_or_default(), ..QuotaAmounts::default() };
    let is_placed = disk.status.as_ref().is_some_and(|status| status.binding.is_some());
    Counted { is_size_unknown: size.is_none(), ..Counted::new(disk.as_ref(), is_placed, amounts) }
}

fn of_snapshot(cache: &Cache, snapshot: &Arc<DiskSnapshot>) -> Counted {
    let namespace = snapshot.namespace().unwrap_or_default();
    let disk = cache.tables.disks.named(&namespace, snapshot.spec.disk.as_str());
    let own = snapshot.status.as_ref().and_then(|status| bytes(status.size.as_deref()));
    let disk_size = disk.and_then(|disk| size(cache, disk)).or(own).unwrap_or_default();
    let amounts = QuotaAmounts { snapshots: 1, disk_size, ..QuotaAmounts::default() };
    let is_placed = snapshot.status.as_ref().is_some_and(|status| status.binding.is_some());
    Counted::new(snapshot.as_ref(), is_placed, amounts)
}

fn bytes(size: Option<&str>) -> Option<u64> {
    size.and_then(|size| Quantity(size.to_owned()).bytes().ok())
}

/// The full size of a disk, in bytes.
fn size(cache: &Cache, disk: &Disk) -> Option<u64> {
    let has = bytes(disk.status.as_ref().and_then(|status| status.size.as_deref()));
    let declared = declared(cache, &disk.namespace().unwrap_or_default(), &disk.spec);
    has.max(declared)
}

/// The size that a new disk gets, as far as it is known.
fn declared(cache: &Cache, namespace: &str, spec: &DiskSpec) -> Option<u64> {
    let tables = &cache.tables;
    if let Some(size) = &spec.size {
        return size.bytes().ok();
    }
    if let Some(image) = &spec.image {
        let image = tables.images.lookup(namespace, image.as_str())?;
        return bytes(image.status.as_ref()?.virtual_size.as_deref());
    }
    let source = spec.source.as_ref()?;
    if let Some(disk) = &source.disk {
        return bytes(tables.disks.named(namespace, disk.as_str())?.status.as_ref()?.size.as_deref());
    }
    if let Some(snapshot) = &source.snapshot {
        let snapshot = tables.disk_snapshots.named(namespace, snapshot.as_str())?;
        return bytes(snapshot.status.as_ref()?.size.as_deref());
    }
    let backup = tables.backups.named(namespace, source.backup.as_ref()?.as_str())?;
    bytes(backup.status.as_ref()?.size.as_deref())
}

/// Returns the amounts of new disks, as far as their sizes are known.
pub(crate) fn of_disks<'a>(
    cache: &Cache,
    namespace: &str,
    specs: impl Iterator<Item = &'a DiskSpec>,
) -> QuotaAmounts {
    specs.fold(QuotaAmounts::default(), |sum, spec| {
        let disk_size = declared(cache, namespace, spec).unwrap_or_default();
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
        let disk_size = disk.and_then(|disk| size(cache, disk)).unwrap_or_default();
        sum.plus(QuotaAmounts { snapshots: 1, disk_size, ..QuotaAmounts::default() })
    })
}
