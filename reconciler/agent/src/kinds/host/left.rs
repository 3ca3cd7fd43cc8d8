//! Instances and files of VMs that this host has given up, so that they move to others.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{Disk, VM};
use berth_host::{Arrival, InstanceFacts, SystemError, VolumeFacts};

use crate::context::Context;
use crate::error::Error;
use crate::index::volume_of;
use crate::journal::{Journal, Released};
use crate::kinds::disk::is_local_pool;
use crate::typed_api::TypedApi;

/// Instances and files that are no orphans, although nothing that is bound here owns them.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) instances: BTreeSet<String>,
    /// The files that other hosts take from the folders of this one.
    pub(super) volumes: BTreeSet<String>,
    /// Instances of VMs that other hosts have with all disks, or that are gone.
    pub(super) finished: Vec<String>,
    /// The files of single hosts' pools whose data other hosts have by now.
    pub(super) copied: Vec<CopiedVolume>,
}

/// A volume of this Disk, by its uid, that another host has copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CopiedVolume {
    pub(crate) pool: String,
    pub(crate) id: String,
    pub(crate) uid: Option<String>,
    /// The stay that the file was copied here for, as it was before the Disk was read: one that comes later is not the former one.
    pub(crate) seen: Option<Arrival>,
}

/// Looks for the remains of VMs that were given up. `owned`: the instances of VMs that are bound here. `kept`: the volumes of
/// Disks that are bound here, such as one that its VM did not take along. `sees_all`: whether no pool is away,
/// whose files are not among `volumes`.
///
/// *Errors:* the control plane does not answer: it is not known whether a VM is bound to another host.
pub(super) async fn observe(
    ctx: &Context,
    instances: &[InstanceFacts],
    volumes: &[VolumeFacts],
    owned: &BTreeSet<String>,
    kept: &BTreeSet<String>,
    sees_all: bool,
) -> Result<Left, Error> {
    let mut left = Left::default();
    let mut to_be_taken: BTreeSet<&str> =
        volumes.iter().map(|volume| volume.id.as_str()).filter(|id| !kept.contains(*id)).collect();
    for found in instances.iter().filter(|found| found.process.is_none()) {
        let Some(Ok(journal)) = found.journal.clone().map(Journal::parse) else { continue };
        let Some(released) = &journal.released else { continue };
        if !owned.contains(&found.instance) {
            for volume in volumes.iter().filter(|volume| released.volumes.contains(&volume.id)) {
                // A list may have one that another host has taken since, as in a pool in Ceph.
                if is_taken(&ctx.system.volume(&volume.pool, &volume.id).await) {
                    to_be_taken.remove(volume.id.as_str());
                }
            }
            // Read each time: a table has the VMs that are bound here only.
            let vms: TypedApi<VM> = TypedApi::namespaced(ctx.client.clone(), &journal.namespace);
            let vm = vms.get_opt(&journal.name).await.map_err(Error::api("read a VM that was given up"))?;
            let vm = vm.filter(|vm| vm.metadata.uid.as_ref() == Some(&journal.uid));
            let mut is_needed = false;
            if vm.as_ref().is_none_or(|vm| is_elsewhere(vm, &journal.uid, released, ctx.host())) {
                let (copied, has_data) = of_disks(ctx, &journal, vm.as_ref(), released, volumes).await?;
                // Its Disks may outlive it: their only files are no orphans.
                is_needed = vm.is_none() && (has_data || !copied.is_empty());
                left.copied.extend(copied);
            }
            if sees_all
                && !is_needed
                && is_finished(vm.as_ref(), &journal.uid, released, ctx.host(), &to_be_taken)
            {
                left.finished.push(found.instance.clone());
                continue;
            }
        }
        left.instances.insert(found.instance.clone());
        left.volumes.extend(released.volumes.iter().cloned());
    }
    Ok(left)
}

/// Whether a volume that was here is not any more: another host has taken it, or has deleted it since.
fn is_taken(seen: &Result<Option<VolumeFacts>, SystemError>) -> bool {
    matches!(seen, Ok(None) | Err(SystemError::VolumeLost { .. }))
}

/// Whether nothing here is needed for the move of a VM any more. `volumes`: those that are here and that other hosts may take.
fn is_finished(
    vm: Option<&VM>,
    uid: &str,
    released: &Released,
    host: &str,
    volumes: &BTreeSet<&str>,
) -> bool {
    let Some(vm) = vm.filter(|vm| vm.metadata.uid.as_deref() == Some(uid)) else { return true };
    is_elsewhere(vm, uid, released, host)
        && vm.firmware_state_on() != Some(host)
        && !released.volumes.iter().any(|volume| volumes.contains(volume.as_str()))
}

/// Whether a VM has gone on to another host since this one gave it up.
fn is_elsewhere(vm: &VM, uid: &str, released: &Released, host: &str) -> bool {
    let binding = vm.status.as_ref().and_then(|status| status.binding.as_ref());
    vm.metadata.uid.as_deref() == Some(uid)
        && binding.is_some_and(|binding| binding.epoch > released.epoch && binding.host != host)
}

/// Returns those of the volumes of a VM that has gone on, or is gone, whose data other hosts have, and whether this host has the data of
/// others still. Each Disk is read: a table has those that are bound here only.
///
/// *Errors*: the control plane does not answer.
async fn of_disks(
    ctx: &Context,
    journal: &Journal,
    vm: Option<&VM>,
    released: &Released,
    volumes: &[VolumeFacts],
) -> Result<(Vec<CopiedVolume>, bool), Error> {
    let declared = vm.iter().flat_map(|vm| &vm.spec.disks).map(|disk| disk.name.to_string());
    let here = volumes.iter().filter(|volume| released.volumes.contains(&volume.id));
    // Before the Disks: a file that another stay brings after this is not the one that they say is elsewhere.
    let mut seen: BTreeMap<&str, Arrival> = BTreeMap::new();
    for volume in here.clone() {
        if let Some(arrival) = ctx.system.arrival(&volume.pool, &volume.id).await? {
            seen.insert(&volume.id, arrival);
        }
    }
    let here = here.filter(|volume| volume.owner.namespace == journal.namespace);
    let names: BTreeSet<String> = declared.chain(here.map(|volume| volume.owner.name.clone())).collect();
    let disks: TypedApi<Disk> = TypedApi::namespaced(ctx.client.clone(), &journal.namespace);
    let (mut copied, mut has_data) = (Vec::new(), false);
    for name in names {
        let disk = disks.get_opt(&name).await.map_err(Error::api("read a disk of a VM that was given up"))?;
        let Some(disk) = disk else { continue };
        let Some(id) = volume_of(&disk).filter(|id| released.volumes.contains(*id)) else { continue };
        has_data |= is_left_here(&disk, ctx.host());
        let pool = pool_here(&disk, id, volumes);
        if has_gone(&disk, ctx.host()) && is_local_pool(&ctx.index.read(), pool) {
            let (pool, id) = (pool.to_owned(), id.to_owned());
            let seen = seen.get(id.as_str()).cloned();
            copied.push(CopiedVolume { pool, id, uid: disk.metadata.uid.clone(), seen });
        }
    }
    Ok((copied, has_data))
}

/// Returns the pool of the file of a disk on this host. The disk may be in another one by now, on the host that has copied it.
fn pool_here<'a>(disk: &'a Disk, id: &str, volumes: &'a [VolumeFacts]) -> &'a str {
    let here = volumes.iter().find(|volume| volume.id == id);
    here.map_or_else(|| disk.pool().as_str(), |volume| volume.pool.as_str())
}

/// Whether this host has the data of a disk that goes to another one.
fn is_left_here(disk: &Disk, host: &str) -> bool {
    disk.status.as_ref().is_some_and(|status| status.former_host.as_deref() == Some(host))
}

/// Whether the data of a disk is on another host: that one has reported its copy, after which no host takes it from here.
fn has_gone(disk: &Disk, host: &str) -> bool {
    let Some(status) = &disk.status else { return false };
    let bound = status.binding.as_ref().map(|binding| binding.host.as_str());
    match status.former_host.as_deref() {
        Some(former) => former != host && bound != Some(host),
        None => bound.is_some_and(|bound| bound != host),
    }
}

#[cfg(test)]
mod tests {
    use berth_host::VolumeOwner;
    use berth_qemu::machine::{Cache, Format};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_instance_stays_until_another_host_has_the_vm_and_all_its_files() {
        let vm = |uid: &str, binding: Value| -> VM {
            serde_json::from_value(json!({
                "metadata": {"name": "web", "uid": uid},
                "spec": {"disks": [{"name": "root", "boot": true}]}, "status": {"binding": binding},
            }))
            .expect("a VM")
        };
        let released = Released { epoch: 3, volumes: BTreeSet::from(["v-1".to_owned()]) };
        let finished = |vm: Option<&VM>| is_finished(vm, "u1", &released, "a", &BTreeSet::new());
        assert!(finished(None) && finished(Some(&vm("u2", json!(null)))), "the VM is gone");
        for (binding, expected) in [
            (json!(null), false),
            (json!({"host": "a", "epoch": 3}), false),
            (json!({"host": "a", "epoch": 4}), false),
            (json!({"host": "b", "epoch": 4}), true),
        ] {
            assert_eq!(finished(Some(&vm("u1", binding.clone()))), expected, "{binding}");
        }
        let elsewhere = vm("u1", json!({"host": "b", "epoch": 4}));
        let has_firmware = |host: &str| {
            let mut vm = elsewhere.clone();
            vm.status.as_mut().expect("a status").former_host = Some(host.to_owned());
            !finished(Some(&vm))
        };
        assert!(has_firmware("a") && !has_firmware("c"), "the next host has not fetched the firmware state");
        assert!(
            !is_finished(Some(&elsewhere), "u1", &released, "a", &BTreeSet::from(["v-1"])),
            "to be taken"
        );
        assert!(is_finished(Some(&elsewhere), "u1", &released, "a", &BTreeSet::from(["v-2"])));
    }

    #[test]
    fn a_volume_is_removed_only_once_another_host_has_reported_its_copy() {
        let gone = |status: Value| {
            let object = json!({"metadata": {"name": "root"}, "spec": {"size": "1Gi"}, "status": status});
            has_gone(&serde_json::from_value(object).expect("a Disk"), "a")
        };
        let on = |host: &str| json!({"host": host, "epoch": 1});
        for (status, expected, why) in [
            (json!(null), false, "its status is lost"),
            (json!({"binding": on("a")}), false, "it is here"),
            (json!({"binding": on("a"), "formerHost": "a"}), false, "it is about to leave"),
            (json!({"formerHost": "a"}), false, "it has no host yet"),
            (json!({"binding": on("b"), "formerHost": "a"}), false, "it is not copied yet"),
            (json!({"binding": on("b")}), true, "the copy is reported"),
            (json!({"formerHost": "b"}), true, "it has left the next host too"),
            (
                json!({"binding": on("c"), "formerHost": "b"}),
                true,
                "a third host copies it from the next one",
            ),
            (json!({"binding": on("a"), "formerHost": "b"}), false, "it comes back: the copy replaces it"),
        ] {
            assert_eq!(gone(status), expected, "{why}");
        }
    }

    #[test]
    fn the_former_file_of_a_disk_is_removed_from_its_pool_here_wherever_the_disk_is_by_now() {
        let disk: Disk = serde_json::from_value(json!({
            "metadata": {"name": "root"}, "spec": {"size": "1Gi", "pool": "site"}, "status": {"pool": "site"},
        }))
        .expect("a Disk");
        let owner = VolumeOwner {
            namespace: "ns".to_owned(),
            name: "root".to_owned(),
            uid: None,
            image: None,
            source: None,
        };
        let here = VolumeFacts {
            problem: None,
            encryption: None,
            retained: false,
            pending_snapshot: None,
            restores: Vec::new(),
            restoring: false,
            reserved: None,
            pool: "fast".to_owned(),
            id: "v-1".to_owned(),
            size: 1 << 30,
            base: None,
            owner,
            path: "/v-1.qcow2".into(),
            format: Format::Qcow2,
            cache: Cache::default(),
            backing: None,
        };
        assert_eq!(pool_here(&disk, "v-1", std::slice::from_ref(&here)), "fast");
        assert_eq!(pool_here(&disk, "v-2", &[here]), "site");
    }

    #[test]
    fn a_volume_that_cannot_be_seen_may_be_here() {
        let away = SystemError::PoolAway { pool: "rbd".to_owned(), detail: "no answer".to_owned() };
        assert!(!is_taken(&Err(away)));
        assert!(is_taken(&Ok(None)) && is_taken(&Err(SystemError::VolumeLost { id: "v-1".to_owned() })));
    }

    #[test]
    fn the_file_of_a_disk_is_needed_as_long_as_the_disk_names_this_host_whatever_became_of_its_vm() {
        let needed = |status: Value| {
            let object = json!({"metadata": {"name": "root"}, "spec": {"size": "1Gi"}, "status": status});
            is_left_here(&serde_json::from_value(object).expect("a Disk"), "a")
        };
        let on_b = json!({"host": "b", "epoch": 1});
        assert!(needed(json!({"formerHost": "a"})) && needed(json!({"binding": on_b, "formerHost": "a"})));
        assert!(
            !needed(json!(null)) && !needed(json!({"binding": on_b})) && !needed(json!({"formerHost": "b"}))
        );
    }
}
