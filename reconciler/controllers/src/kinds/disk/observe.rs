//! Reads the inputs of the decision from the cache.

use std::sync::Arc;

use berth_api::{
    Disk, DiskSnapshot, Image, ObjectUse, RESTORE_ANNOTATION, Reason, ResourceName, condition, former_uid,
};
use kube::ResourceExt;

use crate::{
    cache::{
        Cache,
        capacity::Candidate,
        shared_images::{ForeignOriginal, not_shared},
        storage::device_of,
    },
    key::{Key, ObjectKind},
    kinds::{
        quota::{self, Excess},
        rebind,
    },
    placement_hold::{PlacementHold, placement_hold, untrusted},
    scheduler::{self, has_labels},
};

use super::pools;

#[derive(Debug)]
pub(super) struct Observed {
    pub(super) image: Option<Arc<Image>>,
    /// The Image of another namespace whose content that one has.
    pub(super) foreign_original: Option<ForeignOriginal>,
    /// There is no StoragePool of the declared name, or none of those that it may be in.
    pub(super) pool_missing: bool,
    /// The pools that are the default of its namespace, while that is to be its pool. One, unless several name the namespace.
    pub(super) default_pools: Vec<String>,
    /// The pool of a copy that may be in several, on the host of its source. The error is why there is none.
    pub(super) chosen_pool: Option<Result<ResourceName, String>>,
    /// The quota that an unbound disk is beyond.
    pub(super) over_quota: Option<Excess>,
    /// Some hosts have not judged the image: each verifies it itself before it creates a disk from it.
    pub(super) others_may_judge: bool,
    /// It was bound for a VM that is not bound there (any more), before its file was created or taken there.
    pub(super) abandoned: bool,
    /// Its VM has left the host with its file, which is based on no image: it is made of nothing any more.
    pub(super) is_whole: bool,
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
    /// Why no copy of it can be made in this namespace.
    pub(super) refusal: Option<(Reason, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourcePlace {
    pub(super) host: String,
    /// Its pool. None: the source is an image.
    pub(super) pool: Option<String>,
    pub(super) is_encrypted: bool,
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
    let pool = disk.target_pool().as_str();
    let pool_missing = match pools::is_open(cache, disk) {
        true => pools::candidates(cache, disk).is_empty(),
        // The pool `default` is every host's own folder, also without an object.
        false => pool != berth_api::DEFAULT_NAME && cache.tables.storage_pools.cluster(pool).is_none(),
    };
    let abandoned = is_abandoned(cache, disk, &namespace);
    // One whose VM moves keeps what it had.
    let has_file = disk.status.as_ref().is_some_and(|status| status.former_host.is_some());
    let is_whole = has_file && disk.image_below(rebind::is_in_ceph(cache, disk)).is_none();
    let source = match is_whole {
        true => None,
        false => source(cache, disk, &namespace).or_else(|| local_image(cache, image.as_deref()?, has_file)),
    };
    let created = disk.creation_timestamp().map(|made| made.0);
    let unknown = source.as_ref().and_then(|_| placement_hold(cache, created));
    let fresh_volume_id = String::new();
    let is_bound = disk.status.as_ref().is_some_and(|status| status.binding.is_some());
    let made_at = source.as_ref().and_then(|source| source.place.as_ref().ok()).map(|place| &place.host);
    let misplaced = misplaced(cache, disk, made_at.cloned()).or_else(|| without_device(cache, disk));
    let made_at = made_at.or(restore.as_ref().map(|restore| &restore.host)).cloned();
    let not_encrypting = not_encrypting(cache, disk, made_at);
    let over_quota = if is_bound || has_file { None } else { quota::excess(cache, &Key::of(disk)) };
    let chosen_pool = chosen_pool(cache, disk, source.as_ref());
    let foreign_original = image.as_ref().and_then(|image| cache.foreign_original(image));
    Observed {
        image,
        foreign_original,
        pool_missing,
        default_pools: pools::defaults(cache, disk),
        chosen_pool,
        over_quota,
        others_may_judge,
        restore,
        claim,
        unconfirmed,
        abandoned,
        is_whole,
        not_encrypting,
        misplaced,
        source,
        backup: backup(cache, disk, &namespace),
        unknown,
        fresh_volume_id,
    }
}

/// Returns the pool of a copy that may be in several, or for which the default pool of the namespace counts: that of its source, or the
/// one with the most room on the host of its image.
fn chosen_pool(cache: &Cache, disk: &Disk, source: Option<&Source>) -> Option<Result<ResourceName, String>> {
    let source = source.filter(|_| pools::is_open(cache, disk))?;
    let place = source.place.as_ref().ok()?;
    let Some(pool) = &place.pool else { return pools::choose_one(cache, &place.host, disk).map(Ok) };
    // The source may be older than the default pool of the namespace.
    let is_named = !disk.awaits_pool() && pool == disk.spec.pool.as_str();
    if is_named || pools::candidates(cache, disk).contains(pool) {
        return Some(Ok(pool.as_str().into()));
    }
    let (kind, name) = (source.key.kind.as_str(), &source.key.name);
    if !disk.awaits_pool() {
        let default = pools::defaults(cache, disk).join(", ");
        return Some(Err(format!(
            "the default pool of the namespace is {default}, and {kind} {name} is in the pool {pool}: a copy is made in the pool of its source, set pool to {pool}"
        )));
    }
    Some(Err(format!(
        "{kind} {name} is in the pool {pool}, which the disk may not be in: a copy is made in the pool of its source"
    )))
}

/// Returns a host that an encrypted disk would be on, and that would make a file without encryption for it.
fn not_encrypting(cache: &Cache, disk: &Disk, made_at: Option<String>) -> Option<String> {
    disk.spec.encryption.as_ref()?;
    places(cache, disk, made_at).into_iter().find(|host| !cache.encrypts_disks(host))
}

/// Returns why the host that a disk without a host would be on has no block device for it. Whether another Disk is that device, the host
/// decides.
fn without_device(cache: &Cache, disk: &Disk) -> Option<String> {
    let device = device_of(disk)?;
    let is_lacking = |host: &String| {
        cache.index.capacity.get(host).is_some_and(|host| scheduler::usable(host, &device) == 0)
    };
    let host = places(cache, disk, None).into_iter().find(is_lacking)?;
    let name = &device.name;
    Some(format!(
        "host {host}, where it would be, offers no block device {name} (status.blockDevices of the Host)"
    ))
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
/// of. `None`: the image is downloaded, or any host can copy it from the one that has it. `has_file`: the disk has its file, with which the
/// image goes to the next host also while it is being deleted.
fn local_image(cache: &Cache, image: &Image, has_file: bool) -> Option<Source> {
    if !image.is_local() {
        return None;
    }
    let (name, status) = (image.name_any(), image.status.as_ref());
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    let stalled = condition::find(conditions, "Stalled").filter(|stalled| stalled.status == "True");
    let mut away = None;
    let binding = status.and_then(|status| status.binding.as_ref());
    let place = match (binding, status.and_then(|status| status.virtual_size.clone())) {
        _ if image.metadata.deletion_timestamp.is_some() && !has_file => {
            Err(format!("Image {name} is being deleted"))
        }
        _ if image.is_outdated() => Err(format!("Image {name} is made anew")),
        (Some(binding), Some(size)) if stalled.is_none() => match image.copied_from() {
            Some((host, _)) if cache.is_alive(host) => return None,
            Some((host, _)) => {
                away = Some(Key::cluster(ObjectKind::Host, host));
                Err(format!("Image {name} is on host {host}, which is away: other hosts copy it from there"))
            }
            // Bound there, it would get another identity than its file has.
            None if has_file => {
                Err(format!("Image {name} is on host {}, which serves it to no other host", binding.host))
            }
            None => Ok(SourcePlace {
                host: binding.host.clone(),
                pool: None,
                is_encrypted: false,
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
    Some(Source { key: Key::of(image), place, away, refusal: None })
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

/// Returns why a disk or a snapshot of another namespace is not copied into this one. Encrypted data would take its key along, which
/// a class of that namespace protects.
fn refusal(key: &Key, namespace: &str, is_shared: bool, is_encrypted: bool) -> Option<(Reason, String)> {
    let text = format!("{} {} is encrypted, and of another namespace", key.kind.as_str(), key.name);
    let not_shared = (!is_shared).then(|| (Reason::SourceNotShared, not_shared(key, namespace)));
    not_shared.or_else(|| is_encrypted.then_some((Reason::NotSupported, text)))
}

/// Returns why no disk is ever copied from this one, if none is.
fn without_copies(disk: &Disk) -> Option<(Reason, String)> {
    let why = disk.without_snapshots()?;
    Some((Reason::NotSupported, format!("Disk {} {why}: no copy is made of it", disk.name_any())))
}

/// Returns what a disk is copied from.
fn source(cache: &Cache, disk: &Disk, namespace: &str) -> Option<Source> {
    let declared = disk.spec.source.as_ref()?;
    let from = declared.namespace(namespace);
    let (key, place, is_shared, is_encrypted) = match (&declared.snapshot, &declared.disk) {
        (Some(name), _) => {
            let key = Key::namespaced(ObjectKind::DiskSnapshot, from, name.as_str());
            let found = cache.tables.disk_snapshots.get(&key);
            let is_shared = found.is_some_and(|snapshot| snapshot.is_shared_with(namespace));
            let status = found.and_then(|snapshot| snapshot.status.as_ref());
            let is_encrypted = status.is_some_and(|status| status.encryption.is_some());
            let place = snapshot_place(found.map(AsRef::as_ref), name.as_str());
            (key, place, is_shared, is_encrypted)
        }
        (None, Some(name)) => {
            let key = Key::namespaced(ObjectKind::Disk, from, name.as_str());
            let found = cache.tables.disks.get(&key);
            let is_shared = found.is_some_and(|other| other.is_shared_with(namespace));
            let status = found.and_then(|other| other.status.as_ref());
            // A copy of an encrypted disk is encrypted too, whatever it declares.
            let is_encrypted = found.is_some_and(|other| other.spec.encryption.is_some())
                || status.is_some_and(|status| status.encryption.is_some());
            let place = disk_place(found.map(AsRef::as_ref), name.as_str());
            (key, place, is_shared, is_encrypted)
        }
        (None, None) => return None,
    };
    let refusal = match from == namespace {
        true => None,
        false => refusal(&key, namespace, is_shared, is_encrypted),
    };
    let refusal = refusal.or_else(|| without_copies(cache.tables.disks.get(&key)?));
    // Nothing else is decided from an object that is not shared: it would show that there is one.
    let place = match &refusal {
        Some((_, text)) => Err(text.clone()),
        None => place,
    };
    Some(Source { key, place, away: None, refusal })
}

fn snapshot_place(snapshot: Option<&DiskSnapshot>, name: &str) -> Result<SourcePlace, String> {
    let Some(snapshot) = snapshot else { return Err(format!("DiskSnapshot {name} does not exist")) };
    if snapshot.metadata.deletion_timestamp.is_some() {
        return Err(format!("DiskSnapshot {name} is being deleted"));
    }
    let status = snapshot.status.clone().unwrap_or_default();
    match (status.binding, status.pool, status.taken_at) {
        (Some(binding), Some(pool), Some(_)) => {
            let is_encrypted = status.encryption.is_some();
            Ok(SourcePlace {
                host: binding.host,
                pool: Some(pool.to_string()),
                is_encrypted,
                size: bytes(status.size),
            })
        }
        _ => Err(format!("DiskSnapshot {name} is not taken yet")),
    }
}

fn disk_place(disk: Option<&Disk>, name: &str) -> Result<SourcePlace, String> {
    let Some(disk) = disk else { return Err(format!("Disk {name} does not exist")) };
    if disk.metadata.deletion_timestamp.is_some() {
        return Err(format!("Disk {name} is being deleted"));
    }
    let status = disk.status.clone().unwrap_or_default();
    let host = status.binding.as_ref().map(|binding| &binding.host);
    if status.former_host.as_ref().is_some_and(|former| host != Some(former)) {
        return Err(format!("Disk {name} goes to another host with its VM"));
    }
    match (status.binding, status.size) {
        (Some(binding), Some(size)) => Ok(SourcePlace {
            host: binding.host,
            pool: Some(disk.pool().to_string()),
            is_encrypted: disk.spec.encryption.is_some() || status.encryption.is_some(),
            size: bytes(Some(size)),
        }),
        _ => Err(format!("Disk {name} has no file yet: its first VM decides the host")),
    }
}

fn bytes(size: Option<String>) -> Option<u64> {
    size.and_then(|size| berth_api::Quantity(size).bytes().ok())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;

    fn disk(namespace: &str, name: &str, spec: &Value, status: &Value) -> Disk {
        let metadata = json!({"name": name, "namespace": namespace, "uid": name});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).expect("a disk")
    }

    #[tokio::test]
    async fn a_copy_of_a_disk_of_another_namespace_needs_the_grant_and_shows_nothing_without_it() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let source = json!({"disk": "root", "diskNamespace": "golden"});
        let copy = disk("team", "copy", &json!({"source": source}), &Value::Null);
        let missing = source_of(&cache, &copy);
        let reason = missing.refusal.as_ref().map(|(reason, _)| *reason);
        assert_eq!(reason, Some(Reason::SourceNotShared));
        assert_eq!(missing.key, Key::namespaced(ObjectKind::Disk, "golden", "root"));
        let status = json!({"binding": {"host": "h1", "epoch": 1}, "size": "1Gi"});
        let mut root = disk("golden", "root", &json!({"size": "1Gi"}), &status);
        cache.put(root.clone(), Instant::now());
        assert_eq!(source_of(&cache, &copy), missing, "whether it exists is not shown");
        root.spec.shared_with = vec!["team".to_owned()];
        cache.replace(root.clone().into(), Instant::now());
        let found = source_of(&cache, &copy);
        let place = SourcePlace {
            host: "h1".into(),
            pool: Some("default".into()),
            is_encrypted: false,
            size: Some(1 << 30),
        };
        assert_eq!((found.refusal, found.place), (None, Ok(place)));
        root.spec.encryption = Some(Box::default());
        cache.replace(root.into(), Instant::now());
        let encrypted = source_of(&cache, &copy).refusal.map(|(reason, _)| reason);
        assert_eq!(encrypted, Some(Reason::NotSupported));
        let own = disk("golden", "copy", &json!({"source": {"disk": "root"}}), &Value::Null);
        assert_eq!(source_of(&cache, &own).refusal, None, "of the same namespace");
    }

    #[tokio::test]
    async fn a_copy_of_a_disk_that_has_no_snapshots_is_refused_before_it_is_bound() {
        let mut cache = Cache::new(Duration::from_secs(40));
        let status = json!({"binding": {"host": "h1", "epoch": 1}, "size": "1Gi"});
        cache.put(disk("ns", "nvme", &json!({"source": {"device": "nvme"}}), &status), Instant::now());
        let shared = json!({"size": "1Gi", "access": "ReadWriteMany"});
        cache.put(disk("ns", "shared", &shared, &Value::Null), Instant::now());
        for (name, why) in [("nvme", "block device"), ("shared", "ReadWriteMany")] {
            let copy = disk("ns", "copy", &json!({"source": {"disk": name}}), &Value::Null);
            let Some((Reason::NotSupported, text)) = source_of(&cache, &copy).refusal else {
                panic!("{name} is refused")
            };
            assert!(text.contains(why) && text.contains("no copy is made of it"), "{text}");
        }
    }

    fn source_of(cache: &Cache, disk: &Disk) -> Source {
        source(cache, disk, disk.metadata.namespace.as_deref().unwrap_or_default()).expect("it is a copy")
    }
}
