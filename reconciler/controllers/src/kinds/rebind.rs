//! A VM leaves its host, which is fenced or has given it up: it goes to another host, with its disks. Those in shared pools are taken there.
//! Those in pools of single hosts are copied from the host that has given the VM up, and stay lost with one that is fenced.
//!
//! ```text
//!    bound to OLD, which  each Disk:             each Disk:       the VM: not bound,       placed as a new VM is,     the host's
//!    has lost the VM ───▶ formerHost OLD  ────▶  not bound  ────▶ not admitted      ────▶  with its disks       ────▶ agent takes
//!                                                                                                                    the files
//! ```
//!
//! A Disk loses its host only after its `formerHost` was read back: definitions of an older version would drop it, and with it the place of
//! the file.
//!
//! Before the first step, the VM does not run on OLD, and cannot be started there. Either OLD is fenced: an administrator has said that nothing
//! runs there, no agent of OLD is obeyed after that, and its host stays fenced until all files are taken from its folder. Or OLD lives and has
//! given the VM up (`releasedEpoch`): its agent has recorded on its own disk, before it reported that, that it never starts the VM under
//! this binding again. The steps are taken only with that report in the object, and the next binding has a greater epoch: at every moment, at
//! most one host may run the VM.
//!
//! Each step is one write with the resource version that was read, and is decided from the objects alone, so a crash between two of them loses
//! nothing. Where something has changed since OLD gave the VM up, such as a snapshot of a disk, the VM is bound to OLD again, where its disks
//! are, under a greater epoch.
//!
//! `formerHost` of a Disk, or of a VM with firmware variables or a TPM, names the host that has the data of the disk, or these, until the next host has reported that it has all of it. The disk of a VM that
//! leaves that next host before keeps the mark, so that it is copied from where its data is, or is used there again.

mod copies;
mod firmware;
mod live;

pub(super) use copies::{CopyRemoval, removal as copy_removal};
pub(super) use firmware::takes_none as takes_no_firmware;

use std::sync::Arc;

use berth_api::{
    Binding, ConditionType, ConditionUpdate, Disk, DiskState, DiskStatus, LeaveFacts, Power, Readiness,
    Reason, SYSTEM_NAMESPACE, StoragePoolType, VM, VMState, VMStatus, condition,
    console::COPY_ACCOUNT,
    vm::{HostRefusal, VMOperation, VMOperationName},
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    batch::WriteBatch,
    cache::Cache,
    config::Config,
    key::{Key, ObjectKind},
    kinds::ticket_accounts,
    plan::Outcome,
};

/// Why a VM leaves its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The host is gone for good.
    Lost,
    /// The host has given it up for a move.
    Released,
}

impl Cause {
    const fn reason(self) -> Reason {
        match self {
            Self::Lost => Reason::HostFenced,
            Self::Released => Reason::Moving,
        }
    }
}

/// Rebinds a VM of a host that is fenced or has given it up; `None` if it has not, or if the VM stays lost with its host.
pub(crate) fn vm(cache: &Cache, config: &Config, vm: &VM, batch: &mut WriteBatch) -> Option<Outcome> {
    let status = vm.status.as_ref()?;
    let host = &status.binding.as_ref()?.host;
    if let Some(migration) = status.handed_over().or_else(|| live::of_lost(cache, vm, host)) {
        live::bind(cache, vm, host, migration, config.clock.now(), batch);
        return Some(Outcome::Settled);
    }
    let cause = match cache.is_fenced(host) {
        _ if vm.metadata.deletion_timestamp.is_some() => return None,
        true => Cause::Lost,
        false if status.is_released() => Cause::Released,
        false => return None,
    };
    let now = config.clock.now();
    let disks = match (disks(cache, vm, host), cause) {
        (Ok(disks), _) => disks,
        (Err(_), Cause::Lost) => return None,
        (Err(why), Cause::Released) => {
            go_back(cache, vm, host, &why, now, batch);
            return Some(Outcome::Settled);
        }
    };
    if vm.has_firmware_state() || disks.iter().any(|disk| !is_shared(cache, disk)) {
        ticket_accounts::ensure(cache, SYSTEM_NAMESPACE, &[COPY_ACCOUNT], batch);
    }
    let unmarked: Vec<&Arc<Disk>> = disks.iter().filter(|disk| data_host(disk).is_none()).collect();
    if !unmarked.is_empty() {
        // The Disks enqueue the VM when they have the mark.
        for disk in unmarked {
            batch.status(disk.as_ref(), marked(disk, host));
        }
        return Some(Outcome::Settled);
    }
    let bound: Vec<&Arc<Disk>> = disks.iter().filter(|disk| host_of(disk).is_some()).collect();
    if bound.is_empty() {
        batch.status(vm, firmware::marked(cache, vm, host, unbound(vm, cause, now)));
    }
    for disk in bound {
        batch.status(disk.as_ref(), left(disk, host, cause, now));
    }
    batch.enqueue(Key::of(vm));
    Some(Outcome::Settled)
}

/// Binds a VM that its host gave up there again, whatever its placement is: its disks cannot follow any more.
fn go_back(cache: &Cache, vm: &VM, host: &str, why: &str, now: Timestamp, batch: &mut WriteBatch) {
    let namespace = vm.namespace().unwrap_or_default();
    let disks =
        vm.spec.disks.iter().filter_map(|disk| cache.tables.disks.named(&namespace, disk.name.as_str()));
    let marked = disks.filter(|disk| host_of(disk).is_some_and(|of| of == host) && is_left_on(disk, host));
    for disk in marked {
        let status = DiskStatus { former_host: None, ..disk.status.clone().unwrap_or_default() };
        batch.status(disk.as_ref(), status);
    }
    batch.status(vm, back_on(vm, host, why, now));
}

/// The status of a VM that stays on the host which gave it up: under a greater epoch, that host may start it.
fn back_on(vm: &VM, host: &str, why: &str, now: Timestamp) -> VMStatus {
    let mut status = unbound(vm, Cause::Released, now);
    let generation = vm.metadata.generation.unwrap_or_default();
    let epoch = status.refusal.as_ref().map_or(0, |refusal| refusal.epoch).saturating_add(1);
    status.binding = Some(Binding { host: host.to_owned(), epoch });
    // No other VM has got its place there meanwhile.
    status.admitted_epoch = Some(epoch);
    status.state = Some(VMState::Creating);
    status.operation = None;
    let readiness = Readiness::Reconciling(Reason::Bound, format!("it stays on host {host}: {why}"));
    let (scheduled, text) = (ConditionType::Scheduled, readiness.message());
    let update = ConditionUpdate::from_bool(scheduled, true, Reason::Bound, text);
    condition::set(&mut status.conditions, update, generation, now);
    readiness.write(&mut status.conditions, generation, now);
    status
}

/// Returns the disks of a VM as they are once its host has given it up. The error is why it cannot move.
pub(super) fn left_disks(cache: &Cache, vm: &VM, host: &str, now: Timestamp) -> Result<Vec<Disk>, String> {
    let as_left = |disk: Arc<Disk>| {
        let there = Disk { status: Some(marked(&disk, host)), ..disk.as_ref().clone() };
        Disk { status: Some(left(&there, host, Cause::Released, now)), ..there }
    };
    Ok(disks(cache, vm, host)?.into_iter().map(as_left).collect())
}

/// Returns the status of a VM once its host has given it up.
pub(super) fn released(vm: &VM, now: Timestamp) -> VMStatus {
    unbound(vm, Cause::Released, now)
}

/// Returns why a VM with a disk in a shared pool stays lost with its host.
pub(super) fn why_lost(cache: &Cache, vm: &VM, host: &str) -> Option<String> {
    let namespace = vm.namespace().unwrap_or_default();
    let mut objects =
        vm.spec.disks.iter().filter_map(|disk| cache.tables.disks.named(&namespace, disk.name.as_str()));
    let has_shared = objects.any(|disk| is_shared(cache, disk));
    disks(cache, vm, host).err().filter(|_| has_shared)
}

/// Whether the file of a disk without a host is in the folder of this one.
pub(super) fn is_left_on(disk: &Disk, host: &str) -> bool {
    disk.status.as_ref().is_some_and(|status| status.former_host.as_deref() == Some(host))
}

/// Returns the host that has the data of a disk, if it is marked.
fn data_host(disk: &Disk) -> Option<&String> {
    disk.status.as_ref()?.former_host.as_ref()
}

/// Enqueues the VMs of a disk that is marked as left on its host: the next step is theirs. For a disk without a host that is deleted,
/// enqueues the one that has its file, which may be removed now.
pub(super) fn after_marking(cache: &Cache, disk: &Disk, batch: &mut WriteBatch) {
    if host_of(disk).is_some_and(|host| is_left_on(disk, host)) {
        cache.index.vms_with_disk(&Key::of(disk)).into_iter().for_each(|vm| batch.enqueue(vm));
    }
    let former = disk.status.as_ref().and_then(|status| status.former_host.as_ref());
    if let Some(former) =
        former.filter(|_| disk.metadata.deletion_timestamp.is_some() && host_of(disk).is_none())
    {
        batch.enqueue(Key::cluster(ObjectKind::Host, former));
    }
}

/// Returns the status of a disk that is unbound only until a VM is placed with it, without users that are gone: nothing else is decided
/// about it.
pub(super) fn between_hosts(cache: &Cache, disk: &Disk) -> Option<DiskStatus> {
    let status = disk.status.as_ref().filter(|status| status.binding.is_none())?;
    if status.former_host.is_none() || disk.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let namespace = disk.namespace().unwrap_or_default();
    let mut status = status.clone();
    status.used_by.retain(|user| {
        let vm = cache.tables.vms.named(&namespace, &user.vm);
        vm.is_some_and(|vm| vm.uid().as_deref() == Some(user.vm_uid.as_str()))
    });
    Some(status)
}

/// Returns the status of a disk whose VM does not leave its host any more, such as one that was deleted meanwhile, without the mark.
pub(super) fn without_mark(cache: &Cache, disk: &Disk) -> Option<DiskStatus> {
    let host = host_of(disk).filter(|host| is_left_on(disk, host) && !cache.is_fenced(host))?;
    let leaves = |key: &Key| {
        let vm = cache.tables.vms.get(key);
        let is_deleted = vm.is_some_and(|vm| vm.metadata.deletion_timestamp.is_some());
        let status = vm.and_then(|vm| vm.status.as_ref());
        // The guest of a deleted one may run on another host, which is to delete it.
        let status =
            status.filter(|status| status.is_released() && (!is_deleted || status.handed_over().is_some()));
        status.and_then(|status| status.binding.as_ref()).is_some_and(|binding| binding.host == *host)
    };
    if cache.index.vms_with_disk(&Key::of(disk)).iter().any(leaves) {
        return None;
    }
    Some(DiskStatus { former_host: None, ..disk.status.clone().unwrap_or_default() })
}

/// Returns the host that deletes the file of a disk which no host has, or which the next one has not copied or taken: the one that has its
/// data, unless that is gone for good.
pub(super) fn deletes_left(cache: &Cache, disk: &Disk) -> Option<String> {
    let status = disk.status.as_ref()?;
    let host = data_host(disk).filter(|_| disk.metadata.deletion_timestamp.is_some())?;
    let is_free = match host_of(disk) {
        None => true,
        // It was to be copied or taken there.
        Some(of) => of != host && status.used_by.is_empty(),
    };
    (is_free && lives(cache, host)).then(|| host.clone())
}

/// Returns the status of a deleted disk whose former host is gone for good before the next one had copied or taken it: that one waits for
/// nothing.
pub(super) fn without_lost_data(cache: &Cache, disk: &Disk) -> Option<DiskStatus> {
    let former = data_host(disk).filter(|_| disk.metadata.deletion_timestamp.is_some())?;
    let was_coming = host_of(disk).is_some_and(|of| of != former);
    (was_coming && !lives(cache, former))
        .then(|| DiskStatus { former_host: None, ..disk.status.clone().unwrap_or_default() })
}

fn lives(cache: &Cache, host: &str) -> bool {
    cache.tables.hosts.cluster(host).is_some() && !cache.is_fenced(host)
}

/// Enqueues the fenced hosts once a disk of a shared pool is not in their folders (any more): one of them may be removed now.
pub(super) fn after_taking(cache: &Cache, disk: &Disk, batch: &mut WriteBatch) {
    let is_taken = disk.status.as_ref().is_some_and(|status| status.former_host.is_none());
    if !is_taken || !is_shared(cache, disk) || host_of(disk).is_none_or(|host| cache.is_fenced(host)) {
        return;
    }
    let fenced = cache.tables.hosts.all().filter(|host| host.spec.fenced);
    fenced.for_each(|host| batch.enqueue(Key::cluster(ObjectKind::Host, &host.name_any())));
}

fn is_shared(cache: &Cache, disk: &Disk) -> bool {
    let pool = cache.tables.storage_pools.cluster(disk.pool().as_str());
    pool.is_some_and(|pool| pool.spec.pool_type.is_shared())
}

pub(super) fn is_in_ceph(cache: &Cache, disk: &Disk) -> bool {
    let pool = cache.tables.storage_pools.cluster(disk.pool().as_str());
    pool.is_some_and(|pool| pool.spec.pool_type == StoragePoolType::Rbd)
}

fn host_of(disk: &Disk) -> Option<&String> {
    disk.status.as_ref()?.binding.as_ref().map(|binding| &binding.host)
}

/// Returns the disks of a VM that can go to another host. The error is why it cannot.
fn disks(cache: &Cache, vm: &VM, host: &str) -> Result<Vec<Arc<Disk>>, String> {
    let namespace = vm.namespace().unwrap_or_default();
    let has_attachments = cache.tables.attachments.all().any(|attachment| {
        attachment.metadata.namespace == vm.metadata.namespace && attachment.spec.vm.as_str() == vm.name_any()
    });
    let refusals = [
        (vm.spec.disks.is_empty(), "it has no disk"),
        (vm.spec.power == Power::Suspended, "the memory of its suspended guest was on that host"),
        (vm.spec.restore.is_some(), "it declares a restore"),
        (has_attachments, "it has a disk of a HotswapDiskAttachment"),
    ];
    if let Some((_, why)) = refusals.iter().find(|(refuses, _)| *refuses) {
        return Err((*why).to_owned());
    }
    if let Some(why) = firmware::obstacle(cache, vm, host) {
        return Err(why.to_owned());
    }
    let mut disks = Vec::new();
    for named in &vm.spec.disks {
        let name = named.name.as_str();
        let disk = cache.tables.disks.named(&namespace, name);
        let disk = disk.ok_or_else(|| format!("Disk {name} does not exist"))?;
        if let Some(why) = refusal(cache, vm, disk, host) {
            return Err(format!("Disk {name} {why}"));
        }
        disks.push(disk.clone());
    }
    Ok(disks)
}

/// Returns why a disk cannot go to another host, if it cannot.
fn refusal(cache: &Cache, vm: &VM, disk: &Disk, host: &str) -> Option<&'static str> {
    let status = disk.status.clone().unwrap_or_default();
    let uid = vm.uid().unwrap_or_default();
    let is_shared = is_shared(cache, disk);
    // The VM leaves the next host again, before that has copied the disk.
    let is_on_the_way = !is_shared && data_host(disk).is_some_and(|former| former != host);
    let is_whole = match host_of(disk) {
        Some(of) => of == host && (data_host(disk).is_none_or(|former| former == host) || is_on_the_way),
        None => data_host(disk).is_some_and(|former| former == host) || is_on_the_way,
    };
    let holder = data_host(disk).map_or(host, String::as_str);
    let refusals = [
        (
            !is_shared && !lives(cache, holder),
            "is in no pool of type Shared or RBD, and its data is on a host that is gone for good",
        ),
        (
            !is_shared && !is_served(cache, holder),
            "is in no pool of type Shared or RBD, and the host that has its data reports no server that other hosts copy it from",
        ),
        (disk.metadata.deletion_timestamp.is_some(), "is being deleted"),
        (!is_whole || status.volume_id.is_none(), "has its file on another host, or in the folder of one"),
    ];
    let of_others = [
        // Of a lost host it is tried: the content may be the same still.
        (
            !cache.is_fenced(host) && has_image_for_token(cache, disk),
            "is made from an image with a token: other hosts get its present content only",
        ),
        (status.used_by.iter().any(|user| user.vm_uid != uid), "is used by another VM"),
        // On a lost host, no copy and no image is being made.
        (
            !cache.is_fenced(host) && is_to_be_copied(cache, disk),
            "is the source of a Disk that is not made yet",
        ),
        (
            !cache.is_fenced(host) && is_to_be_image(cache, disk),
            "is the source of an Image that is not made yet",
        ),
    ];
    let first = |refusals: &[(bool, &'static str)]| {
        refusals.iter().find_map(|(refuses, why)| refuses.then_some(*why))
    };
    first(&refusals).or_else(|| disk.stays(&leave_facts(cache, disk))).or_else(|| first(&of_others))
}

/// Whether other hosts can copy disks from this one.
fn is_served(cache: &Cache, host: &str) -> bool {
    let host = cache.tables.hosts.cluster(host);
    host.and_then(|host| host.status.as_ref()).is_some_and(|status| status.server.is_some())
}

/// Returns why disks in pools of single hosts cannot go to this host: an older agent there would copy none.
pub(super) fn copies_none(cache: &Cache, disks: &[Arc<Disk>], host: &str) -> Option<String> {
    let has_local = disks.iter().any(|disk| !is_shared(cache, disk));
    (has_local && !is_served(cache, host)).then(|| {
        format!(
            "it would go to host {host}, which reports no server (status.server): disks that are in no pool of type Shared or RBD are not \
             copied there"
        )
    })
}

/// Returns the facts about other objects by which a disk can leave its host, which reports the same in its status.
fn leave_facts(cache: &Cache, disk: &Disk) -> LeaveFacts {
    let namespace = disk.namespace().unwrap_or_default();
    let name = disk.image_below(is_in_ceph(cache, disk));
    let image = name.and_then(|name| cache.tables.images.lookup(&namespace, name.as_str()));
    LeaveFacts {
        is_in_shared_pool: is_shared(cache, disk),
        is_in_ceph: is_in_ceph(cache, disk),
        has_image_of_one_host: image.is_some_and(|image| image.is_of_one_host()),
        has_snapshots: cache.tables.disk_snapshots.all().any(|snapshot| snapshot.is_of(disk)),
    }
}

/// Whether the content that a disk is based on may be another one than its image has now.
fn has_image_for_token(cache: &Cache, disk: &Disk) -> bool {
    let namespace = disk.namespace().unwrap_or_default();
    let name = disk.image_below(is_in_ceph(cache, disk));
    let image = name.and_then(|name| cache.tables.images.lookup(&namespace, name.as_str()));
    image.is_some_and(|image| {
        let made_for = image.status.as_ref().and_then(|status| status.token.as_ref());
        made_for.is_some() || image.spec.source.token.is_some()
    })
}

/// Whether a Disk, also of a namespace that this one is shared with, is to be a copy of it. One that gets no access holds up nothing, nor does
/// one that waits for something else before it has a host: it is made wherever the disk is by then.
fn is_to_be_copied(cache: &Cache, disk: &Disk) -> bool {
    let (name, namespace) = (disk.name_any(), disk.namespace().unwrap_or_default());
    cache.tables.disks.all().any(|other| {
        let status = other.status.as_ref();
        let is_made = status.is_some_and(|status| status.size.is_some());
        let waits = status.is_some_and(|status| status.binding.is_none() && !status.conditions.is_empty());
        !is_made
            && !waits
            && other.is_copy_of_disk(&namespace, &name)
            && other.metadata.deletion_timestamp.is_none()
            && disk.is_shared_with(&other.namespace().unwrap_or_default())
    })
}

/// Whether an Image, also of a namespace that the disk is shared with, is being made of it on its host.
fn is_to_be_image(cache: &Cache, disk: &Disk) -> bool {
    let volume = disk.status.as_ref().and_then(|status| status.volume_id.as_ref());
    let Some(volume) = volume else { return false };
    cache.tables.images.all().any(|image| {
        let of_volume = image.status.as_ref().and_then(|status| status.volume_id.as_ref());
        of_volume == Some(volume)
            && image.digest().is_none()
            && image.metadata.deletion_timestamp.is_none()
            && disk.is_shared_with(&image.namespace().unwrap_or_default())
    })
}

/// The status of a disk with the mark of the host that has its file: one that has another mark was not copied here.
fn marked(disk: &Disk, host: &str) -> DiskStatus {
    let mut status = disk.status.clone().unwrap_or_default();
    status.former_host.get_or_insert_with(|| host.to_owned());
    status
}

/// The status of a disk whose file stays in the folder of its host until the next one takes it.
fn left(disk: &Disk, host: &str, cause: Cause, now: Timestamp) -> DiskStatus {
    let mut status = disk.status.clone().unwrap_or_default();
    let generation = disk.metadata.generation.unwrap_or_default();
    let why = match cause {
        Cause::Lost => format!("host {host} is gone for good"),
        Cause::Released => format!("its VM moves from host {host}"),
    };
    let from = data_host(disk).map_or(host, String::as_str);
    let text = format!(
        "{why}: the next host of its VM takes its file from the shared pool, or copies it from host {from}"
    );
    Readiness::Reconciling(cause.reason(), text).write(&mut status.conditions, generation, now);
    status.binding = None;
    status.state = Some(DiskState::Pending);
    status.observed_generation = generation;
    status
}

/// The status of a deleted VM that was lost with its host, before another host removes the copies of its firmware state.
pub(super) fn lost_and_deleted(vm: &VM, now: Timestamp) -> VMStatus {
    unbound(vm, Cause::Lost, now)
}

/// The status of a VM that nothing runs of any more, and that is placed again, unless it is deleted.
fn unbound(vm: &VM, cause: Cause, now: Timestamp) -> VMStatus {
    let mut status = vm.status.clone().unwrap_or_default();
    let generation = vm.metadata.generation.unwrap_or_default();
    let host = status.binding.as_ref().map(|binding| binding.host.clone()).unwrap_or_default();
    let why = match cause {
        Cause::Lost => format!("host {host} is gone for good"),
        Cause::Released => format!("host {host} has given it up"),
    };
    let next = match vm.metadata.deletion_timestamp {
        None => "it is placed on another host, with its disks",
        Some(_) => "another host removes the copies of its firmware state",
    };
    let text = format!("{why}: {next}");
    if let Some(Binding { host, epoch }) = status.binding.take() {
        // Every later binding has a greater epoch.
        let refusal = HostRefusal { host, epoch, message: text.clone(), time: Some(now) };
        status.refusal = Some(Box::new(refusal));
    }
    let reason = cause.reason();
    for kind in [ConditionType::Scheduled, ConditionType::Running, ConditionType::GuestReady] {
        let update = ConditionUpdate::from_bool(kind, false, reason, &text);
        condition::set(&mut status.conditions, update, generation, now);
    }
    condition::remove(&mut status.conditions, ConditionType::GuestFrozen);
    // Its next host decides these anew.
    [ConditionType::Movable, ConditionType::PlacementSynced]
        .into_iter()
        .for_each(|kind| condition::remove(&mut status.conditions, kind));
    Readiness::Reconciling(reason, text).write(&mut status.conditions, generation, now);
    status.state = Some(VMState::Pending);
    status.admitted_epoch = None;
    status.host_address = None;
    status.process = None;
    status.facts.clear();
    // The operation began when the host reported it.
    let moves = status.operation.take().filter(|operation| operation.name == VMOperationName::Move);
    let moves = || moves.unwrap_or_else(|| Box::new(moves_since(now)));
    status.operation = (cause == Cause::Released).then(moves);
    status.move_epoch = None;
    status.migration = None;
    status.guest = None;
    status.cpu_time = None;
    status.dedicated_cpus = None;
    status.storage = None;
    status.observed_addresses = Vec::new();
    status.pending_power_cycle = Vec::new();
    status.cdroms = Vec::new();
    status.pci_devices = Vec::new();
    status.usb_devices = Vec::new();
    status.vgpus = Vec::new();
    status.observed_generation = generation;
    status
}

fn moves_since(now: Timestamp) -> VMOperation {
    let started_at = Timestamp::from_second(now.as_second()).unwrap_or(now);
    VMOperation { name: VMOperationName::Move, started_at, percent: None }
}

#[cfg(test)]
mod tests;
