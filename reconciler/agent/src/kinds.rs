//! The table of the kinds: which objects of each are watched, and the function that reconciles one.
//!
//! A kind that this agent makes real has a folder with the same four parts: `observe` (the only reader), `plan` (pure),
//! `apply` (the only writer) and `status` (pure). The module of each kind states which objects a change of it concerns.

pub(crate) mod backup;
pub(crate) mod backup_repository;
pub(crate) mod disk;
pub(crate) mod disk_snapshot;
pub(crate) mod host;
pub(crate) mod hotswap_disk_attachment;
pub(crate) mod image;
mod key_class;
pub(crate) mod network;
mod placement_group;
pub(crate) mod public_ip;
pub(crate) mod security_group;
pub(crate) mod storage_pool;
pub(crate) mod vm;
pub(crate) mod vm_class;
mod vm_group;

use std::borrow::Cow;
use std::sync::Arc;

use berth_api::{
    Backup, BackupRepository, Disk, DiskSnapshot, Host, HotswapDiskAttachment, Image, KeyClass, Network,
    PlacementGroup, PublicIP, SecurityGroup, StoragePool, VM, VMClass, VMGroup,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Resource;

use crate::context::Context;
use crate::converge::{Requeue, converge_named};
use crate::error::Error;
use crate::key::{self, Key, ObjectName};
use crate::watch::{self, Watch};
use backup::BackupReconciler;
use hotswap_disk_attachment::AttachmentReconciler;
use image::ImageReconciler;

type Reconcile = for<'a> fn(&'a Context, &'a ObjectName) -> BoxFuture<'a, Result<Requeue, Error>>;

/// A controller: a kind, the watch of its objects, and its reconcile function unless it is only read.
struct Controller {
    kind: fn() -> Cow<'static, str>,
    watch: fn(&Arc<Context>) -> Watch,
    reconcile: Option<Reconcile>,
}

const fn controller<K: Resource<DynamicType = ()>>(
    watch: fn(&Arc<Context>) -> Watch,
    reconcile: Option<Reconcile>,
) -> Controller {
    Controller { kind: key::kind::<K>, watch, reconcile }
}

/// All kinds.
const CONTROLLERS: &[Controller] = &[
    controller::<VM>(watch::bound::<VM>, Some(|ctx, name| vm::reconcile(ctx, name).boxed())),
    controller::<Disk>(watch::bound::<Disk>, Some(|ctx, name| disk::reconcile(ctx, name).boxed())),
    // A control plane of an earlier version does not have the kind.
    controller::<DiskSnapshot>(
        watch::bound_if_served::<DiskSnapshot>,
        Some(|ctx, name| disk_snapshot::reconcile(ctx, name).boxed()),
    ),
    // A control plane of an earlier version does not have these kinds. Disks are made from backups of other hosts too.
    controller::<Backup>(
        watch::all_if_served::<Backup>,
        Some(|ctx, name| converge_named::<BackupReconciler>(ctx, name).boxed()),
    ),
    controller::<BackupRepository>(watch::all_if_served::<BackupRepository>, None),
    controller::<HotswapDiskAttachment>(
        watch::bound::<HotswapDiskAttachment>,
        Some(|ctx, name| converge_named::<AttachmentReconciler>(ctx, name).boxed()),
    ),
    controller::<PublicIP>(watch::bound::<PublicIP>, None),
    controller::<Image>(
        watch::all::<Image>,
        Some(|ctx, name| converge_named::<ImageReconciler>(ctx, name).boxed()),
    ),
    controller::<VMClass>(watch::all::<VMClass>, None),
    // A control plane of an earlier version does not have the kind.
    controller::<KeyClass>(watch::all_if_served::<KeyClass>, None),
    controller::<Network>(watch::all::<Network>, Some(|ctx, _| network::reconcile(ctx).boxed())),
    // A control plane of an earlier version does not have the kind.
    controller::<SecurityGroup>(
        watch::all_if_served::<SecurityGroup>,
        Some(|ctx, _| network::refilter(ctx).boxed()),
    ),
    controller::<PlacementGroup>(watch::all::<PlacementGroup>, None),
    // A control plane of an earlier version does not have the kind.
    controller::<VMGroup>(watch::all_if_served::<VMGroup>, None),
    controller::<StoragePool>(watch::all::<StoragePool>, None),
    controller::<Host>(watch::own::<Host>, Some(|ctx, _| host::reconcile(ctx).boxed())),
    controller::<ConfigMap>(watch::host_addresses, None),
];

/// Returns all watches of an agent.
pub(crate) fn watch_all(ctx: &Arc<Context>) -> impl Iterator<Item = Watch> {
    CONTROLLERS.iter().map(|kind| (kind.watch)(ctx))
}

pub(crate) fn span(key: &Key) -> tracing::Span {
    let Key { kind, name } = key;
    if *name == ObjectName::default() {
        return tracing::info_span!("reconcile", kind = kind.as_ref());
    }
    tracing::info_span!("reconcile", kind = kind.as_ref(), namespace = name.namespace, name = name.name)
}

/// Reconciles one object.
pub(crate) async fn reconcile(ctx: &Context, key: &Key) -> Result<Requeue, Error> {
    let found = CONTROLLERS.iter().find(|controller| (controller.kind)() == key.kind);
    match found.and_then(|controller| controller.reconcile) {
        Some(reconcile) => reconcile(ctx, &key.name).await,
        None => Ok(Requeue::OnChange),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::index::Tables;

    #[test]
    fn each_table_has_one_watch() {
        let watched: BTreeSet<_> = CONTROLLERS.iter().map(|controller| (controller.kind)()).collect();
        assert_eq!(watched.len(), CONTROLLERS.len(), "a kind is in the list once: {watched:?}");
        assert_eq!(watched.len(), Tables::default().synced().len());
    }
}
