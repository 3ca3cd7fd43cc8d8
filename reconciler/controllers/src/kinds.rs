//! The table of the kinds: which objects of each are watched, and the function that reconciles one.
//!
//! Each kind is a folder with `observe` (reads the cache), `plan` (pure), `status` (pure), and `reconcile`, which adds the
//! writes to the batch: the `apply` of a controller. A kind that is short is one file with these functions.

mod backup;
mod backup_repository;
mod config_map;
mod disk;
mod disk_snapshot;
mod fenced;
mod host;
mod hotswap_disk_attachment;
mod image;
mod ip_pool;
mod key_class;
mod network;
mod placement_group;
mod public_ip;
mod quota;
mod rebind;
mod role;
mod security_group;
mod snapshot_schedule;
mod storage_pool;
mod ticket_accounts;
mod vm;
mod vm_class;
mod vm_group;
mod vm_snapshot;

use berth_api::{
    Backup, BackupRepository, Disk, DiskSnapshot, Host, HotswapDiskAttachment, IPPool, Image, KeyClass,
    Network, PlacementGroup, PublicIP, Quota, SYSTEM_NAMESPACE, SecurityGroup, SnapshotSchedule, StoragePool,
    VM, VMClass, VMGroup, VMSnapshot, host_addresses::HOST_ADDRESSES, manifests::access::HOST_LABEL,
};
use futures::{Stream, stream::BoxStream, stream::select_all};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, ServiceAccount},
    rbac::v1::Role,
};
use kube::Client;

use crate::{
    batch::WriteBatch,
    cache::Cache,
    config::Config,
    key::{Key, ObjectKind, Watched},
    plan::Outcome,
    watch::{self, Change},
};

type Reconcile = fn(&Cache, &Config, &Key, &mut WriteBatch) -> Outcome;

/// A controller: a kind, the watch of its objects, and its reconcile function unless it is only read.
struct Controller {
    kind: ObjectKind,
    watch: fn(Client) -> BoxStream<'static, Change>,
    reconcile: Option<Reconcile>,
}

const fn controller<K: Watched>(
    watch: fn(Client) -> BoxStream<'static, Change>,
    reconcile: Option<Reconcile>,
) -> Controller {
    Controller { kind: K::KIND, watch, reconcile }
}

/// All kinds.
const CONTROLLERS: &[Controller] = &[
    controller::<Host>(watch::all::<Host>, Some(host::reconcile)),
    controller::<Lease>(|client| watch::within::<Lease>(client, SYSTEM_NAMESPACE), None),
    controller::<StoragePool>(watch::all::<StoragePool>, Some(storage_pool::reconcile)),
    controller::<IPPool>(watch::all::<IPPool>, Some(ip_pool::reconcile)),
    controller::<Network>(watch::all::<Network>, Some(network::reconcile)),
    controller::<SecurityGroup>(watch::all::<SecurityGroup>, Some(security_group::reconcile)),
    controller::<VMClass>(watch::all::<VMClass>, Some(vm_class::reconcile)),
    controller::<KeyClass>(watch::all::<KeyClass>, Some(key_class::reconcile)),
    controller::<PlacementGroup>(watch::all::<PlacementGroup>, Some(placement_group::reconcile)),
    controller::<Image>(watch::all::<Image>, Some(image::reconcile)),
    controller::<Disk>(watch::all::<Disk>, Some(disk::reconcile)),
    controller::<DiskSnapshot>(watch::all::<DiskSnapshot>, Some(disk_snapshot::reconcile)),
    controller::<BackupRepository>(watch::all::<BackupRepository>, Some(backup_repository::reconcile)),
    controller::<Backup>(watch::all::<Backup>, Some(backup::reconcile)),
    controller::<PublicIP>(watch::all::<PublicIP>, Some(public_ip::reconcile)),
    controller::<VM>(watch::all::<VM>, Some(vm::reconcile)),
    controller::<VMGroup>(watch::all::<VMGroup>, Some(vm_group::reconcile)),
    controller::<HotswapDiskAttachment>(
        watch::all::<HotswapDiskAttachment>,
        Some(hotswap_disk_attachment::reconcile),
    ),
    controller::<VMSnapshot>(watch::all::<VMSnapshot>, Some(vm_snapshot::reconcile)),
    controller::<SnapshotSchedule>(watch::all::<SnapshotSchedule>, Some(snapshot_schedule::reconcile)),
    controller::<Quota>(watch::all::<Quota>, Some(quota::reconcile)),
    controller::<ServiceAccount>(
        |client| watch::labelled::<ServiceAccount>(client, Some(SYSTEM_NAMESPACE), HOST_LABEL),
        None,
    ),
    controller::<Role>(|client| watch::labelled::<Role>(client, None, HOST_LABEL), Some(role::reconcile)),
    controller::<ConfigMap>(
        |client| watch::named::<ConfigMap>(client, SYSTEM_NAMESPACE, HOST_ADDRESSES),
        Some(config_map::reconcile),
    ),
];

/// Returns one stream of the changes of every kind. It never ends; a broken watch is restarted after a back-off.
pub(crate) fn watch_all(client: &Client) -> impl Stream<Item = Change> + Unpin + Send + use<> {
    select_all(CONTROLLERS.iter().map(|kind| (kind.watch)(client.clone())))
}

/// Reconciles one object: adds the writes to the batch and returns what the object waits for.
pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let reconcile = CONTROLLERS.iter().find(|kind| kind.kind == key.kind).and_then(|kind| kind.reconcile);
    match reconcile {
        Some(reconcile) => reconcile(cache, config, key, batch),
        None => Outcome::Settled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_watched_kind_is_in_the_table_once() {
        let kinds: Vec<ObjectKind> = CONTROLLERS.iter().map(|kind| kind.kind).collect();
        assert_eq!(kinds, ObjectKind::ALL);
    }
}
