//! Reads the inputs of the decision from the cache.

use std::sync::Arc;

use berth_api::{Disk, Image, ObjectUse, RESTORE_ANNOTATION, condition, former_uid};
use kube::ResourceExt;

use crate::{
    cache::{Cache, capacity::Candidate, shared_images::ForeignOriginal},
    key::{Key, ObjectKind},
    kinds::quota::{self, Excess},
    placement_hold::{PlacementHold, placement_hold, untrusted},
    scheduler::has_labels,
};

#[derive(Debug)]
pub(super) struct Observed {
    pub(super) image: Option<Arc<Image>>,
    /// The Image of another namespace whose content that one has.
    pub(super) foreign_original: Option<ForeignOriginal>,
    /// There is no StoragePool of the declared name.
    pub(super) pool_missing: bool,
    /// The quota that an unbound disk is beyond.
    pub(super) over_quota: Option<Excess>,
    /// Some hosts have not judged the image: each verifies it itself before it creates a disk from it.
    pub(super) others_may_judge: bool,
    /// It was bound for a VM that is not bound there (any more), before its file was created or taken there.
    pub(super) abandoned: bool,
    /// A host already has its file, under this volume identity: its status was lost.
    pub(super) claim: Option<(String, String)>,
    /// A host reports that it has its file, and the report does not count without a recovery.
    pub(super) unconfirmed: Option<String>,
    /// The host that it would be on, whose agent does not encrypt disks. Only of an encrypted one.
    pub(super) not_encrypting: Option<String>,
    /// Why no host, or not the one where it would be, has the labels that it asks for.
    pub(super) misplaced: Option<String>,
    /// The source that it is copied from.
    pub(super) source: Option<Source>,
    /// The backup that it is made from.
    pub(super) backup: Option<BackupSource>,
    /// Why an unbound copy cannot be bound yet.
    pub(super) unknown: Option<PlacementHold>,
    /// The identity of a copy's volume.
    pub(super) fresh_volume_id: String,
    /// For a disk to restore: whether that host's trash has it.
    pub(super) restore: Option<Restore>,
}

/// The object that a disk is copied from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) key: Key,
    /// Where its data is. The error is why it is not there yet.
    pub(super) place: Result<SourcePlace, String>,
    /// The host that is waited for, which has it and is away.
    pub(super) away: Option<Key>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourcePlace {
    pub(super) host: String,
    /// The pool that a copy is made in. None: any, the source is an image.
    pub(super) pool: Option<String>,
    /// In bytes, if it is known.
    pub(super) size: Option<u64>,
}

/// The backup that a disk is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BackupSource {
    pub(super) key: Key,
    /// Its size in bytes. The error is why it is not there yet.
    pub(super) size: Result<Option<u64>, String>,
}

#[derive(Debug)]
pub(super) struct Restore {
    pub(super) host: String,
    pub(super) volume_id: String,
    pub(super) found: bool,
}

/// Returns a VM that names the disk while neither has been decided about yet: its decision binds the disk, and the disk's
/// first report would be replaced at once, or it changes the VM, and the disk is reported after that.
pub(super) fn undecided_user(cache: &Cache, disk: &Disk) -> Option<Key> {
    let key = Key::of(disk);
    if !cache.is_unreported(&key) || disk.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let lives =
        |vm: &Key| cache.tables.vms.get(vm).is_some_and(|vm| vm.metadata.deletion_timestamp.is_none());
    cache.index.vms_with_disk(&key).into_iter().find(|vm| cache.is_unreported(vm) && lives(vm))
}

pub(super) fn observe(cache: &Cache, disk: &Disk) -> Observed {
    let namespace = disk.namespace().unwrap_or_default();
    let image = disk
        .spec
        .image
        .as_ref()
        .and_then(|name| cache.tables.images.lookup(&namespace, name.as_str()).cloned());
    let restore = disk.annotations().get(RESTORE_ANNOTATION).and_then(|text| text.split_once('/')).map(
        |(host, volume)| {
            let status = cache.tables.hosts.cluster(host).and_then(|h| h.status.as_ref());
            let found = status.is_some_and(|status| status.deleted_volume(&namespace, volume).is_some());
            Restore { host: host.to_owned(), volume_id: volume.to_owned(), found }
        },
    );
    let claim = cache.claims.of(&Key::of(disk), disk).map(|claim| (claim.host.clone(), claim.id.clone()));
    let unconfirmed = unconfirmed(cache, disk);
    let judge =
        image.as_ref().and_then(|i| i.status.as_ref()).and_then(|s| s.binding.as_ref()).map(|b| &b.host);
    let other = |name: String| Some(&name) != judge && cache.is_alive(&name);
    let is_local = image.as_ref().is_some_and(|image| image.is_local());
    let others_may_judge =
        !is_local && judge.is_some() && cache.tables.hosts.all().any(|host| other(host.name_any()));
    let pool = disk.spec.pool.as_str();
    // The pool `default` is every host's own folder, also without an object.
    let pool_missing = pool != berth_api::DEFAULT_NAME && cache.tables.storage_pools.cluster(pool).is_none();
    let abandoned = is_abandoned(cache, disk, &namespace);
    let source = source(cache, disk, &namespace).or_else(|| local_image(cache, image.as_deref()?));
    let created = disk.creation_timestamp().map(|made| made.0);
    let unknown = source.as_ref().and_then(|_| placement_hold(cache, created));
    let fresh_volume_id = String::new();
    let is_bound = disk.status.as_ref().is_some_and(|status| status.binding.is_some());
    let made_at = source.as_ref().and_then(|source| source.place.as_ref().ok()).map(|place| &place.host);
    let misplaced = misplaced(cache, disk, made_at.cloned());
    let made_at = made_at.or(restore.as_ref().map(|restore| &restore.host)).cloned();
    let not_encrypting = not_encrypting(cache, disk, made_at);
    // One whose VM moves keeps what it had.
    let has_file = disk.status.as_ref().is_some_and(|status| status.former_host.is_some());
    let over_quota = if is_bound || has_file { None } else { quota::excess(cache, &Key::of(disk)) };
    let foreign_original = image.as_ref().and_then(|image| cache.foreign_original(image));
    Observed {
        image,
        foreign_original,
        pool_missing,
        over_quota,
        others_may_judge,
        restore,
        claim,
        unconfirmed,
        abandoned,
        not_encrypting,
        misplaced,
        source,
        backup: backup(cache, disk, &namespace),
        unknown,
        fresh_volume_id,
    }
}

/// Returns a host that an encrypted disk would be on, and that would make a file without encryption for it.
fn not_encrypting(cache: &Cache, disk: &Disk, made_at: Option<String>) -> Option<String> {
    disk.spec.encryption.as_ref()?;
    places(cache, disk, made_at).into_iter().find(|host| !cache.encrypts_disks(host))
}

/// Returns why no host, or not the one that a disk without a host would be on, has the labels that it asks for.
fn misplaced(cache: &Cache, disk: &Disk, made_at: Option<String>) -> Option<String> {
    let wanted = disk.spec.placement.as_ref().map(|placement| &placement.host_selector)?;
    let capacity = &cache.index.capacity;
    let lacked = |host: &Candidate| {
        let (label, value) = wanted.iter().find(|(label, value)| host.labels.get(*label) != Some(*value))?;
        Some(format!(
            "host {}, where it would be, does not have the label {label}={value} of its hostSelector",
            host.name
        ))
    };
    if let Some(text) = places(cache, disk, made_at).into_iter().find_map(|host| lacked(capacity.get(&host)?))
    {
        return Some(text);
    }
    let hosts: Vec<&Candidate> = capacity.hosts().collect();
    // Before the first host has joined, no label is wrong.
    if hosts.is_empty() || hosts.iter().any(|host| has_labels(host, wanted)) {
        return None;
    }
    let labels: Vec<String> = wanted.iter().map(|(label, value)| format!("{label}={value}")).collect();
    Some(format!("none of {} hosts has the labels {} of its hostSelector", hosts.len(), labels.join(", ")))
}

/// Returns the hosts that a disk without a host would be on: the one where it is made, and those of the VMs that name it.
fn places(cache: &Cache, disk: &Disk, made_at: Option<String>) -> Vec<String> {
    let key = Key::of(disk);
    let attachments = cache.index.attachments_of_disk(&key);
    let attached = attachments.iter().filter_map(|attachment| cache.tables.attachments.get(attachment));
    let attached = attached.map(|a| Key::namespaced(ObjectKind::VM, key.namespace(), a.spec.vm.as_str()));
    let vms = cache.index.vms_with_disk(&key).into_iter().chain(attached);
    let host_of = |vm: Key| {
        let status = cache.tables.vms.get(&vm)?.status.as_ref()?;
        status.binding.as_ref().map(|binding| binding.host.clone())
    };
    made_at.into_iter().chain(vms.filter_map(host_of)).collect()
}

/// Returns an image that was made from a disk or a snapshot, or was uploaded, and that the disk has to wait for or is bound to the host
/// of. `None`: the image is downloaded, or any host can copy it from the one that has it.
fn local_image(cache: &Cache, image: &Image) -> Option<Source> {
    if !image.is_local() {
        return None;
    }
    let (name, status) = (image.name_any(), image.status.as_ref());
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let stalled = condition::find(conditions, "Stalled").filter(|stalled| stalled.status == "True");
    let mut away = None;
    let binding = status.and_then(|status| status.binding.as_ref());
    let place = match (binding, status.and_then(|status| status.virtual_size.clone())) {
        _ if image.metadata.deletion_timestamp.is_some() => Err(format!("Image {name} is being deleted")),
        (Some(binding), Some(size)) if stalled.is_none() => match image.copied_from() {
            Some((host, _)) if cache.is_alive(host) => return None,
            Some((host, _)) => {
                away = Some(Key::cluster(ObjectKind::Host, host));
                Err(format!("Image {name} is on host {host}, which is away: other hosts copy it from there"))
            }
            None => Ok(SourcePlace {
                host: binding.host.clone(),
                pool: None,
                size: berth_api::Quantity(size).bytes().ok(),
            }),
        },
        _ => Err(stalled.map_or_else(
            || {
                let awaited = if image.spec.source.upload.is_some() { "uploaded" } else { "made" };
                format!("Image {name} is not {awaited} yet")
            },
            |stalled| format!("Image {name}: {}", stalled.message),
        )),
    };
    Some(Source { key: Key::of(image), place, away })
}

/// Returns the host that has the image of an unbound disk, if that was made or uploaded: a disk there needs no copy.
pub(crate) fn image_host(cache: &Cache, disk: &Disk) -> Option<String> {
    let name = disk.spec.image.as_ref()?;
    let image = cache.tables.images.lookup(&disk.namespace().unwrap_or_default(), name.as_str())?;
    image.copied_from().filter(|_| image.is_local()).map(|(host, _)| host.to_owned())
}

/// Returns the backup that a disk is made from.
fn backup(cache: &Cache, disk: &Disk, namespace: &str) -> Option<BackupSource> {
    let name = disk.spec.source.as_ref()?.backup.as_ref()?;
    let key = Key::namespaced(ObjectKind::Backup, namespace, name.as_str());
    let size = match cache.tables.backups.get(&key) {
        None => Err(format!("Backup {name} does not exist")),
        Some(backup) if backup.metadata.deletion_timestamp.is_some() => {
            Err(format!("Backup {name} is being deleted"))
        }
        Some(backup) if !backup.is_complete() => Err(format!("Backup {name} is not complete yet")),
        Some(backup) => {
            let size = backup.status.as_ref().and_then(|status| status.size.clone());
            Ok(size.and_then(|size| berth_api::Quantity(size).bytes().ok()))
        }
    };
    Some(BackupSource { key, size })
}

/// Returns what a disk is copied from.
fn source(cache: &Cache, disk: &Disk, namespace: &str) -> Option<Source> {
    let declared = disk.spec.source.as_ref()?;
    let bytes = |size: Option<String>| size.and_then(|size| berth_api::Quantity(size).bytes().ok());
    if let Some(name) = &declared.snapshot {
        let key = Key::namespaced(ObjectKind::DiskSnapshot, namespace, name.as_str());
        let place = match cache.tables.disk_snapshots.get(&key) {
            None => Err(format!("DiskSnapshot {name} does not exist")),
            Some(snapshot) if snapshot.metadata.deletion_timestamp.is_some() => {
                Err(format!("DiskSnapshot {name} is being deleted"))
            }
            Some(snapshot) => {
                let status = snapshot.status.clone().unwrap_or_default();
                match (status.binding, status.pool, status.taken_at) {
                    (Some(binding), Some(pool), Some(_)) => Ok(SourcePlace {
                        host: binding.host,
                        pool: Some(pool.to_string()),
                        size: bytes(status.size),
                    }),
                    _ => Err(format!("DiskSnapshot {name} is not taken yet")),
                }
            }
        };
        return Some(Source { key, place, away: None });
    }
    let name = declared.disk.as_ref()?;
    let key = Key::namespaced(ObjectKind::Disk, namespace, name.as_str());
    let place = match cache.tables.disks.get(&key) {
        None => Err(format!("Disk {name} does not exist")),
        Some(other) if other.metadata.deletion_timestamp.is_some() => {
            Err(format!("Disk {name} is being deleted"))
        }
        Some(other) => {
            let status = other.status.clone().unwrap_or_default();
            match (status.binding, status.size) {
                (Some(binding), Some(size)) => Ok(SourcePlace {
                    host: binding.host,
                    pool: Some(other.pool().to_string()),
                    size: bytes(Some(size)),
                }),
                _ => Err(format!("Disk {name} has no file yet: its first VM decides the host")),
            }
        }
    };
    Some(Source { key, place, away: None })
}

/// Returns why an unbound disk is not created again: a host reports that it has the disk's file. Outside of a
/// recovery the report does not count, but must not be ignored either. This applies to a disk that may have been
/// bound once, and to a disk of a VM that was adopted on that host.
pub(crate) fn unconfirmed(cache: &Cache, disk: &Disk) -> Option<String> {
    let bound = disk.status.as_ref().is_some_and(|s| s.binding.is_some());
    if bound || disk.metadata.deletion_timestamp.is_some() {
        return None;
    }
    if let Some(text) = left_behind(cache, disk) {
        return Some(text);
    }
    let key = Key::of(disk);
    if !cache.was_bound(&key, disk) || is_of_a_refused_vm(cache, disk) {
        return None;
    }
    let former = disk.status.as_ref().and_then(|status| status.former_host.as_deref());
    cache.claims.untrusted(&key, disk).filter(|host| former != Some(*host)).map(untrusted)
}

/// Returns why a disk of an adopted VM is not created again: the VM's host has a volume of a Disk of this name that
/// was not adopted with it.
pub(super) fn left_behind(cache: &Cache, disk: &Disk) -> Option<String> {
    let key = Key::of(disk);
    if cache.claims.of(&key, disk).is_some() {
        return None;
    }
    let attachments = cache.index.attachments_of_disk(&key);
    let attached = attachments.iter().filter_map(|attachment| cache.tables.attachments.get(attachment));
    let attached = attached.map(|a| Key::namespaced(ObjectKind::VM, key.namespace(), a.spec.vm.as_str()));
    let vms = cache.index.vms_with_disk(&key).into_iter().chain(attached);
    let hosts = vms.filter_map(|vm_key| {
        let vm = cache.tables.vms.get(&vm_key)?;
        former_uid(vm.as_ref())?;
        let binding = vm.status.as_ref().and_then(|s| s.binding.as_ref()).map(|b| b.host.clone());
        binding.or_else(|| cache.claims.of(&vm_key, vm.as_ref()).map(|claim| claim.host.clone()))
    });
    hosts.into_iter().find_map(|host| {
        let volume = cache.claims.of_namesake(&host, &key, disk)?;
        Some(format!(
            "its VM was adopted on host {host}, which has volume {volume} of a Disk of this name: \"berth host adopt {host} \
             {volume}\" makes it this disk's, \"berth host release {host} {volume}\" moves it to the trash"
        ))
    })
}

/// Whether a VM that lists the disk is bound or was refused: a host was asked to admit it. If the host did not, its report
/// about the VM's disks does not count: none of them was created there.
pub(super) fn is_of_a_refused_vm(cache: &Cache, disk: &Disk) -> bool {
    let refused = |key: &Key| {
        let vm = cache.tables.vms.get(key);
        vm.and_then(|vm| vm.status.as_ref()).is_some_and(|s| s.refusal.is_some() || s.binding.is_some())
    };
    cache.index.vms_with_disk(&Key::of(disk)).iter().any(refused)
}

/// Whether the disk was bound for a VM that is not bound there: a disk is not created before the host has admitted
/// the VM it is bound for.
pub(super) fn is_abandoned(cache: &Cache, disk: &Disk, namespace: &str) -> bool {
    let Some(status) = &disk.status else { return false };
    let Some(binding) = &status.binding else { return false };
    // A host takes a file from another one only for a VM that it has admitted.
    let is_untaken = status.former_host.as_ref().is_some_and(|former| *former != binding.host);
    if status.size.is_some() && !is_untaken {
        return false;
    }
    if disk.annotations().contains_key(RESTORE_ANNOTATION) {
        return false;
    }
    let is_there = |user: &ObjectUse| {
        let vm = cache.tables.vms.named(namespace, &user.vm);
        let vm = vm.filter(|vm| vm.uid().as_ref() == Some(&user.vm_uid));
        let host = vm.and_then(|vm| vm.status.as_ref()).and_then(|s| s.binding.as_ref()).map(|b| &b.host);
        // A VM that its host holds without being bound is about to be bound there again.
        let held = vm.and_then(|vm| cache.claims.of(&Key::of(vm.as_ref()), vm.as_ref()));
        host.or(held.map(|claim| &claim.host)) == Some(&binding.host)
    };
    !status.used_by.is_empty() && !status.used_by.iter().any(is_there)
}
