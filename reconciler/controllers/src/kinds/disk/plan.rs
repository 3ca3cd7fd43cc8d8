//! The decision: a pure function of the object and the observed inputs.

use berth_api::{
    ConditionType, Disk, HOST_FINALIZER, Image, ObjectUse, Readiness, Reason, ResourceName, condition,
};
use kube::ResourceExt;

use crate::{
    cache::shared_images::ForeignOriginal,
    key::{Key, ObjectKind},
    placement_hold::awaits_its_host,
    plan::{Dependency, Outcome, Plan, Step},
};

use super::{
    observe::{BackupSource, Observed, Restore, Source},
    pools::needs_file,
};

/// Why an unbound disk cannot be used yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Obstacle {
    pub(crate) text: String,
    pub(crate) dependencies: Vec<Dependency>,
}

pub(super) fn plan(disk: &Disk, observed: &Observed) -> Plan<Option<Readiness>> {
    let is_bound = disk.status.as_ref().is_some_and(|s| s.binding.is_some());
    let is_deleted = disk.metadata.deletion_timestamp.is_some();
    if is_bound && (is_deleted || !observed.abandoned) {
        let mut plan = Plan::settled(None);
        if !is_deleted {
            // Restored after its removal: the disk's host has to release the file first.
            plan.steps.push(Step::AddFinalizer(Key::of(disk), HOST_FINALIZER));
        }
        return plan;
    }
    if let Some((host, volume)) = observed.claim.as_ref().filter(|_| !is_bound) {
        let steps = bind_disk(&Key::of(disk), host, None, volume, Vec::new()).into();
        return Plan { steps, decision: None, outcome: Outcome::Settled };
    }
    if is_deleted {
        let mut plan = Plan::settled(None);
        plan.steps.push(Step::RemoveFinalizer(Key::of(disk), HOST_FINALIZER));
        return plan;
    }
    if let Some(text) = &observed.unconfirmed {
        return Plan::settled(Some(Readiness::Stalled(Reason::WaitingForInventory, text.clone())));
    }
    let plan = plan_new(disk, observed);
    let is_usable = !plan.steps.is_empty() || matches!(plan.decision, Some(Readiness::Ready(..)));
    match &observed.over_quota {
        // Another obstacle is reported first: room in the quota alone would not help.
        Some(excess) if is_usable => Plan {
            steps: Vec::new(),
            decision: Some(Readiness::Reconciling(Reason::QuotaExceeded, excess.text.clone())),
            outcome: plan.outcome.and(excess.dependency.clone()),
        },
        _ => plan,
    }
}

/// Plans a disk that no host has.
fn plan_new(disk: &Disk, observed: &Observed) -> Plan<Option<Readiness>> {
    if let Some(host) = &observed.not_encrypting {
        let text =
            format!("host {host} has an older agent, which does not encrypt disks: upgrade berth there");
        let dependencies = vec![Dependency::Object(Key::cluster(ObjectKind::Host, host))];
        return Plan::blocked(Some(Readiness::Stalled(Reason::NotSupported, text)), dependencies);
    }
    if let Some(restore) = &observed.restore {
        return plan_restore(disk, restore);
    }
    if let Some(text) = awaits_its_host(disk) {
        return Plan::settled(Some(Readiness::Reconciling(Reason::WaitingForInventory, text)));
    }
    if observed.pool_missing {
        let (text, dependency) = missing_pool(disk, &observed.default_pools);
        let readiness = Readiness::Reconciling(Reason::WaitingForPool, text);
        return Plan::blocked(Some(readiness), vec![dependency]);
    }
    if let Some(text) = &observed.misplaced {
        let source = observed.source.iter().map(|source| Dependency::Object(source.key.clone()));
        let dependencies = source.chain([Dependency::Hosts]).collect();
        return Plan::blocked(Some(Readiness::Stalled(Reason::NoSuchHost, text.clone())), dependencies);
    }
    if observed.is_whole {
        let text = "its next VM decides the host".to_owned();
        return Plan::settled(Some(Readiness::Ready(Reason::WaitingForFirstUse, text)));
    }
    let foreign = observed.foreign_original.as_ref();
    if let Some(refused) = foreign.and_then(|original| not_shared(disk, original)) {
        return refused;
    }
    let plan = match (&observed.source, &observed.backup) {
        (Some(source), _) => plan_copy(disk, source, observed),
        (None, Some(backup)) => plan_backup(disk, backup),
        (None, None) => plan_unbound(disk, observed.image.as_deref(), observed.others_may_judge),
    };
    let plan = match &disk.spec.placement {
        // The last host with its labels may lose them.
        Some(_) if plan.steps.is_empty() => Plan { outcome: plan.outcome.and(Dependency::Hosts), ..plan },
        _ => plan,
    };
    match foreign.filter(|_| plan.steps.is_empty()) {
        // It may be shared no more.
        Some(original) => {
            Plan { outcome: plan.outcome.and(Dependency::Object(original.key.clone())), ..plan }
        }
        None => plan,
    }
}

/// Returns which pool a disk lacks, and what changes that. `defaults`: the pools that are the default of its namespace.
fn missing_pool(disk: &Disk, defaults: &[String]) -> (String, Dependency) {
    match defaults {
        [] => {}
        [pool] => {
            let text = format!(
                "StoragePool {pool}, the default pool of the namespace, is of type RBD, which has no thick or ReadWriteMany disks and none from a file: set pool to another one"
            );
            return (text, Dependency::StoragePools);
        }
        several => {
            let text = format!(
                "the StoragePools {} are all the default pool of the namespace: set pool to one of them, or leave the namespace in defaultForNamespaces of one only",
                several.join(", ")
            );
            return (text, Dependency::StoragePools);
        }
    }
    if !disk.awaits_pool() {
        let pool = disk.target_pool().as_str();
        let dependency = Dependency::Object(Key::cluster(ObjectKind::StoragePool, pool));
        return (format!("StoragePool {pool} does not exist"), dependency);
    }
    let text = if disk.spec.pools.is_empty() {
        let labels = disk.spec.pool_selector.iter().map(|(label, value)| format!("{label}={value}"));
        let labels: Vec<String> = labels.collect();
        format!("no StoragePool has the labels {} of its poolSelector", labels.join(", "))
    } else {
        let names: Vec<&str> = disk.spec.pools.iter().map(ResourceName::as_str).collect();
        format!("none of the StoragePools {} exists", names.join(", "))
    };
    if needs_file(disk) {
        let text =
            format!("{text}, apart from those of type RBD, which have no thick disks and none from a file");
        return (text, Dependency::StoragePools);
    }
    (text, Dependency::StoragePools)
}

/// Refuses a new disk of an image with the content of one that another namespace does not share (any more).
fn not_shared(disk: &Disk, original: &ForeignOriginal) -> Option<Plan<Option<Readiness>>> {
    let (text, image) = (original.refusal.clone()?, disk.spec.image.as_ref()?);
    let mut dependencies = of_image(disk, image);
    dependencies.push(Dependency::Object(original.key.clone()));
    let readiness = Readiness::Stalled(Reason::ImageNotShared, format!("Image {image}: {text}"));
    Some(Plan::blocked(Some(readiness), dependencies))
}

/// Returns the places of the image that a disk names.
fn of_image(disk: &Disk, name: &ResourceName) -> Vec<Dependency> {
    let namespace = disk.namespace().unwrap_or_default();
    [namespace.as_str(), berth_api::SHARED_NAMESPACE]
        .map(|ns| Dependency::Object(Key::namespaced(ObjectKind::Image, ns, name.as_str())))
        .into()
}

/// A disk of a backup is bound with its first VM, as one of an image: any host that reaches the repository can make it.
fn plan_backup(disk: &Disk, backup: &BackupSource) -> Plan<Option<Readiness>> {
    let name = &backup.key.name;
    let readiness = match backup.size {
        Err(ref text) => Readiness::Reconciling(Reason::WaitingForBackup, text.clone()),
        Ok(least) => {
            let size = disk.spec.size.as_ref().and_then(|size| size.bytes().ok());
            match (size, least) {
                (Some(size), Some(least)) if size < least => {
                    let least = berth_api::Quantity::from_bytes(least);
                    let text = format!("size is smaller than Backup {name}: set size to {least} or more");
                    Readiness::Stalled(Reason::DiskSmallerThanImage, text)
                }
                _ => Readiness::Ready(Reason::WaitingForFirstUse, "its first VM decides the host".into()),
            }
        }
    };
    Plan::blocked(Some(readiness), vec![Dependency::Object(backup.key.clone())])
}

/// A copy, or a disk of an image that no other host can copy, is bound before any VM uses it: its data is on one host.
fn plan_copy(disk: &Disk, source: &Source, observed: &Observed) -> Plan<Option<Readiness>> {
    let (kind, name) = (source.key.kind.as_str(), &source.key.name);
    let dependencies = || std::iter::once(&source.key).chain(&source.away).cloned().map(Dependency::Object);
    let blocked = |readiness| Plan::blocked(Some(readiness), dependencies().collect());
    // Before anything else: the other texts would show that there is such an object.
    if let Some((reason, text)) = &source.refusal {
        return blocked(Readiness::Stalled(*reason, text.clone()));
    }
    let place = match &source.place {
        Ok(place) => place,
        Err(text) => {
            let reason = match source.key.kind {
                ObjectKind::DiskSnapshot => Reason::WaitingForSnapshot,
                ObjectKind::Image => Reason::WaitingForImage,
                _ => Reason::WaitingForDisk,
            };
            return blocked(Readiness::Reconciling(reason, text.clone()));
        }
    };
    if let Some(Err(text)) = &observed.chosen_pool {
        return blocked(Readiness::Stalled(Reason::InvalidSpec, text.clone()));
    }
    let is_chosen = disk.awaits_pool() || observed.chosen_pool.is_some();
    let is_another = |pool: &&str| !is_chosen && *pool != disk.target_pool().as_str();
    let is_encrypted = place.is_encrypted || disk.spec.encryption.is_some();
    // Others have a full copy of the data there.
    if let Some(pool) = place.pool.as_deref().filter(is_another).filter(|_| is_encrypted) {
        let text = format!(
            "pool is {}, and {kind} {name} is in the pool {pool}: an encrypted copy is made in the pool of its source. Set pool to {pool}",
            disk.target_pool()
        );
        return blocked(Readiness::Stalled(Reason::NotSupported, text));
    }
    let size = disk.spec.size.as_ref().and_then(|size| size.bytes().ok());
    if let (Some(size), Some(least)) = (size, place.size)
        && size < least
    {
        let least = berth_api::Quantity::from_bytes(least);
        let text = format!("size is smaller than {kind} {name}: set size to {least} or more");
        return blocked(Readiness::Stalled(Reason::DiskSmallerThanImage, text));
    }
    if let Some(unknown) = &observed.unknown {
        let readiness = Readiness::Reconciling(Reason::WaitingForInventory, unknown.text.clone());
        return Plan::blocked(Some(readiness), vec![unknown.dependency.clone()]);
    }
    let pool = observed.chosen_pool.clone().and_then(Result::ok);
    let steps = bind_disk(&Key::of(disk), &place.host, pool, &observed.fresh_volume_id, Vec::new()).into();
    Plan { steps, decision: None, outcome: Outcome::Settled }
}

pub(super) fn plan_restore(disk: &Disk, restore: &Restore) -> Plan<Option<Readiness>> {
    if restore.found {
        let steps = bind_disk(&Key::of(disk), &restore.host, None, &restore.volume_id, Vec::new()).into();
        return Plan { steps, decision: None, outcome: Outcome::Settled };
    }
    let text = format!(
        "host {} has no file {} of a deleted disk of this namespace, in its trash or retained",
        restore.host, restore.volume_id
    );
    let dependency = Dependency::Object(Key::cluster(ObjectKind::Host, &restore.host));
    Plan::blocked(Some(Readiness::Stalled(Reason::DiskLost, text)), vec![dependency])
}

pub(super) fn plan_unbound(
    disk: &Disk,
    image: Option<&Image>,
    others_may_judge: bool,
) -> Plan<Option<Readiness>> {
    let ready = Readiness::Ready(Reason::WaitingForFirstUse, "its first VM decides the host".into());
    let Some(name) = &disk.spec.image else { return Plan::settled(Some(ready)) };
    let namespace = disk.namespace().unwrap_or_default();
    let dependencies = of_image(disk, name);
    let Some(image) = image else {
        let text = format!("Image {name} does not exist in namespace {namespace} or berth-shared");
        return Plan::blocked(Some(Readiness::Reconciling(Reason::WaitingForImage, text)), dependencies);
    };
    let is_made = disk.status.as_ref().is_some_and(|status| status.former_host.is_some());
    // The image that is below a file which is there already stays until the next host has that file.
    if image.metadata.deletion_timestamp.is_some() && !is_made {
        let text = format!("Image {name} is being deleted");
        return Plan::blocked(Some(Readiness::Reconciling(Reason::WaitingForImage, text)), dependencies);
    }
    if others_may_judge {
        return Plan::blocked(Some(ready), dependencies);
    }
    // Not copied: it names all hosts that have the image.
    let status = image.status.as_ref();
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    if condition::is_true(conditions, ConditionType::Stalled) {
        let why = condition::find(conditions, "Stalled").map(|c| c.message.as_str()).unwrap_or_default();
        let text = format!("Image {name}: {why}");
        return Plan::blocked(Some(Readiness::Reconciling(Reason::WaitingForImage, text)), dependencies);
    }
    let bytes = |text: &str| berth_api::Quantity(text.to_owned()).bytes().ok();
    let image_size = status.and_then(|status| status.virtual_size.as_deref()).and_then(bytes);
    // That file has its size, also if content of the image that was made anew since is larger.
    let disk_size = disk.spec.size.as_ref().filter(|_| !is_made).and_then(|size| size.bytes().ok());
    if let (Some(image_size), Some(disk_size)) = (image_size, disk_size)
        && disk_size < image_size
    {
        let least = berth_api::Quantity::from_bytes(image_size);
        let text = format!("size is smaller than Image {name}: set size to {least} or more");
        return Plan::blocked(Some(Readiness::Stalled(Reason::DiskSmallerThanImage, text)), dependencies);
    }
    Plan::blocked(Some(ready), dependencies)
}

/// Returns why nothing must be bound with this unbound disk yet, and what that waits for.
///
/// Decided from the inputs and not read from the disk's status: a disk that is used at once is bound in its first status.
pub(super) fn obstacle(disk: &Disk, observed: &Observed) -> Option<Obstacle> {
    let plan = plan(disk, observed);
    let dependencies = match plan.outcome {
        Outcome::Settled => Vec::new(),
        Outcome::Blocked(dependencies) => dependencies,
    };
    match plan.decision {
        Some(Readiness::Ready(..)) => None,
        Some(readiness) => Some(Obstacle { text: readiness.message().to_owned(), dependencies }),
        None => Some(Obstacle { text: "it is being bound or deleted".to_owned(), dependencies }),
    }
}

/// Returns the steps that bind a disk to a host, and to the pool that was chosen, if it does not name one.
pub(crate) fn bind_disk(
    disk: &Key,
    host: &str,
    pool: Option<ResourceName>,
    volume_id: &str,
    used_by: Vec<ObjectUse>,
) -> [Step; 2] {
    // A SCSI serial number has at most 20 characters; QEMU's by-id links carry it.
    let serial: String = volume_id.chars().filter(|c| *c != '-').take(20).collect();
    [
        Step::AddFinalizer(disk.clone(), HOST_FINALIZER),
        Step::BindDisk {
            disk: disk.clone(),
            host: host.to_owned(),
            pool,
            volume_id: volume_id.to_owned(),
            serial,
            used_by,
        },
    ]
}
