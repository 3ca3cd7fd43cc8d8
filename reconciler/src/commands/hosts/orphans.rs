//! `berth host adopt|release`: adopts or releases guests and files on a host that no object owns.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, bail};
use berth_agent::TypedApi;
use berth_api::{
    Disk, DiskEncryption, DiskSpec, FORMER_UID_ANNOTATION, Host, HotswapDiskAttachment, JsonKind, Quantity,
    VM, former_uid,
    host::{Orphan, OrphanOwner},
};
use kube::{
    Client, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use serde_json::json;
use tokio::time::Instant;

use super::LOOK_EVERY;
use crate::commands::resources;

/// How long a host may take to remove released orphans: without an event it checks once a minute.
const ENDED_WITHIN: Duration = Duration::from_secs(120);
/// The maximum number of names in `Host.spec.releasedOrphans`.
const MOST_RELEASED: usize = 256;

/// Annotates the object of each orphan with the uid under which the orphan was created: the object is bound to the
/// host again by that uid. A guest takes along the files of its disks.
pub(super) async fn adopt(client: &Client, host: &str, names: &[String]) -> anyhow::Result<()> {
    let known = host_of(client, host).await?;
    let mut found = find(&known, names)?;
    found.iter().try_for_each(check_owner)?;
    for (orphan, owner) in found.clone() {
        if owner.kind == "VM" {
            add_disks(client, &known, &orphan, &owner, &mut found).await?;
        }
    }
    are_distinct(&found)?;
    // Files come first: a guest that is adopted finds its disks.
    found.sort_by_key(|(_, owner)| owner.kind == "VM");
    // An adopted orphan is no longer released.
    let adopted = |name: &String| found.iter().any(|(orphan, _)| orphan.name == *name);
    keep_released(client, &known, |name| !adopted(name)).await?;
    for (orphan, owner) in &found {
        give(client, orphan, owner).await?;
        let OrphanOwner { kind, namespace, name, .. } = owner;
        notice!("{} {} goes to {kind} {namespace}/{name}.", orphan.kind, orphan.name);
    }
    // A host's claims count only in a recovery. It closes by itself once they are given back.
    super::recover(client, &[host.to_owned()], false).await
}

/// Refuses an owner that no object can be: the host wrote it, and the requests are an administrator's.
fn check_owner((orphan, owner): &(Orphan, OrphanOwner)) -> anyhow::Result<()> {
    let OrphanOwner { namespace, name, .. } = owner;
    if resources::checked(namespace).is_err() || resources::checked(name).is_err() {
        bail!("{} {} was made for {namespace:?}/{name:?}, which is no object", orphan.kind, orphan.name);
    }
    Ok(())
}

/// Adds the volumes that were created for the disks of this instance's VM.
async fn add_disks(
    client: &Client,
    host: &Host,
    instance: &Orphan,
    owner: &OrphanOwner,
    found: &mut Vec<(Orphan, OrphanOwner)>,
) -> anyhow::Result<()> {
    let OrphanOwner { namespace, name, uid, .. } = owner;
    let title = format!("VM {namespace}/{name}");
    let vms: TypedApi<VM> = TypedApi::namespaced(client.clone(), namespace);
    let vm = vms.get_opt(name).await.with_context(|| format!("reading {title}"))?;
    let Some(vm) = vm else {
        bail!(
            "there is no {title} that could adopt {}: create it again with its former spec and, in the same request, with the annotation \
             {FORMER_UID_ANNOTATION}: {} (without the annotation, a new VM starts on empty disks)",
            instance.name,
            uid.as_deref().unwrap_or_default()
        );
    };
    let attachments: TypedApi<HotswapDiskAttachment> = TypedApi::namespaced(client.clone(), namespace);
    let attachments = attachments.list(&ListParams::default()).await.context("listing attachments")?;
    let attached = attachments.iter().filter(|a| a.spec.vm.as_str() == name.as_str());
    let disks: BTreeSet<&str> = vm
        .spec
        .disks
        .iter()
        .map(|disk| disk.name.as_str())
        .chain(attached.map(|a| a.spec.disk.as_str()))
        .collect();
    let api: TypedApi<Disk> = TypedApi::namespaced(client.clone(), namespace);
    for disk in disks {
        let is_its = |of: &OrphanOwner| of.kind == "Disk" && of.namespace == *namespace && of.name == disk;
        if found.iter().any(|(_, owner)| is_its(owner)) {
            continue;
        }
        let object = api.get_opt(disk).await.with_context(|| format!("reading Disk {namespace}/{disk}"))?;
        let former = object.as_ref().and_then(former_uid);
        let volumes: Vec<&Orphan> =
            all(host).iter().filter(|orphan| orphan.owner.as_ref().is_some_and(is_its)).collect();
        let volumes = match former {
            // The Disk's annotation names its file.
            Some(former) => {
                let is_former =
                    |o: &&Orphan| o.owner.as_ref().is_some_and(|o| o.uid.as_deref() == Some(former));
                volumes.into_iter().filter(is_former).collect()
            }
            None => volumes,
        };
        let bound = object.as_ref().and_then(|disk| disk.status.as_ref()?.binding.as_ref());
        match (bound, volumes.as_slice()) {
            (Some(binding), _) if binding.host == host.name_any() => {}
            (Some(binding), _) => {
                bail!(
                    "Disk {namespace}/{disk} of {title} is on host {}: {} cannot be its",
                    binding.host,
                    instance.name
                )
            }
            (None, [volume]) => found.extend(volume.owner.clone().map(|owner| ((*volume).clone(), owner))),
            // The Disk waits for the file that its annotation names.
            (None, []) if former.is_some() => {}
            (None, []) => bail!(
                "host {} lists no volume that was made for Disk {namespace}/{disk}, so that {title} would get an empty disk: \
                 take the disk out of the VM's spec, or give the Disk the annotation {FORMER_UID_ANNOTATION} with the uid \
                 that its file was made for",
                host.name_any()
            ),
            (None, several) => {
                let names: Vec<&str> = several.iter().map(|volume| volume.name.as_str()).collect();
                bail!(
                    "host {} has {} volumes that were made for a Disk {namespace}/{disk} of {title}, {}: name the one that is the disk of the VM, for example: \
                     berth host adopt {} {} {}",
                    host.name_any(),
                    names.len(),
                    names.join(" and "),
                    host.name_any(),
                    instance.name,
                    names[0]
                )
            }
        }
    }
    Ok(())
}

/// Checks that each orphan belongs to a different object, by a known uid.
fn are_distinct(found: &[(Orphan, OrphanOwner)]) -> anyhow::Result<()> {
    for (n, (orphan, owner)) in found.iter().enumerate() {
        if owner.uid.as_deref().unwrap_or_default().is_empty() {
            bail!(
                "{} {} has no record of the object that it was made for, and cannot be adopted: release it with berth host release",
                orphan.kind,
                orphan.name
            );
        }
        let is_same = |(_, of): &&(Orphan, OrphanOwner)| {
            (&of.kind, &of.namespace, &of.name) == (&owner.kind, &owner.namespace, &owner.name)
        };
        if let Some((other, _)) =
            found[..n].iter().find(is_same).filter(|(other, _)| other.name != orphan.name)
        {
            bail!(
                "{} and {} were both made for a {} {}/{}: adopt one of them",
                other.name,
                orphan.name,
                owner.kind,
                owner.namespace,
                owner.name
            );
        }
    }
    Ok(())
}

/// Annotates the orphan's object with the uid under which the orphan was created.
async fn give(client: &Client, orphan: &Orphan, owner: &OrphanOwner) -> anyhow::Result<()> {
    let (namespace, name) = (owner.namespace.as_str(), owner.name.as_str());
    let uid = owner.uid.as_deref().unwrap_or_default();
    if owner.kind == "VM" {
        let is_bound = |vm: &VM| vm.status.as_ref().is_some_and(|s| s.binding.is_some());
        if !annotate::<VM>(client, namespace, name, uid, is_bound).await? {
            bail!("VM {namespace}/{name} is gone: declare it again");
        }
        return Ok(());
    }
    let is_bound = |disk: &Disk| disk.status.as_ref().is_some_and(|s| s.binding.is_some());
    if !annotate::<Disk>(client, namespace, name, uid, is_bound).await? {
        make_disk(client, orphan, owner).await?;
    }
    Ok(())
}

/// Releases orphans on the host, and waits until it has removed them.
pub(super) async fn release(client: &Client, host: &str, names: &[String]) -> anyhow::Result<()> {
    let known = host_of(client, host).await?;
    find(&known, names)?;
    let mut wanted = pending(&known);
    wanted.extend(names.iter().filter(|name| !wanted.contains(name)).cloned().collect::<BTreeSet<_>>());
    if wanted.len() > MOST_RELEASED {
        bail!(
            "host {host} ends at most {MOST_RELEASED} orphans at once, and would have {} to end: release fewer",
            wanted.len()
        );
    }
    super::declare(client, host, &json!({"releasedOrphans": wanted})).await?;
    let begun = Instant::now();
    let (known, left) = loop {
        let known = host_of(client, host).await?;
        let left: Vec<&str> = names.iter().map(String::as_str).filter(|name| has(&known, name)).collect();
        if left.is_empty() || begun.elapsed() > ENDED_WITHIN {
            let left = left.join(", ");
            break (known, left);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    };
    // A finished name is removed from the list, so that it never removes a later orphan.
    keep_released(client, &known, |_| true).await?;
    if !left.is_empty() {
        bail!(
            "host {host} has not ended {left} yet, and continues to try: see `kubectl describe host {host}`"
        );
    }
    notice!("Host {host} has ended {}.", names.join(", "));
    Ok(())
}

fn all(host: &Host) -> &[Orphan] {
    host.status.as_ref().map(|status| status.orphans.as_slice()).unwrap_or_default()
}

fn has(host: &Host, name: &str) -> bool {
    all(host).iter().any(|orphan| orphan.name == name)
}

/// Returns the released names that the host still has: the others are finished.
fn pending(host: &Host) -> Vec<String> {
    host.spec.released_orphans.iter().filter(|name| has(host, name)).cloned().collect()
}

/// Keeps only the released names that are pending and that `keeps` accepts.
async fn keep_released(client: &Client, host: &Host, keeps: impl Fn(&String) -> bool) -> anyhow::Result<()> {
    let kept: Vec<String> = pending(host).into_iter().filter(keeps).collect();
    if kept == host.spec.released_orphans {
        return Ok(());
    }
    super::declare(client, &host.name_any(), &json!({"releasedOrphans": kept})).await
}

async fn host_of(client: &Client, host: &str) -> anyhow::Result<Host> {
    let hosts: TypedApi<Host> = TypedApi::all(client.clone());
    let found = hosts.get_opt(host).await.with_context(|| format!("reading Host {host}"))?;
    found.with_context(|| format!("there is no host {host}: see `berth host list`"))
}

/// Returns the orphans of these names, with the objects they were created for.
fn find(host: &Host, names: &[String]) -> anyhow::Result<Vec<(Orphan, OrphanOwner)>> {
    let mut found: Vec<(Orphan, OrphanOwner)> = Vec::new();
    for name in names {
        let Some(orphan) = all(host).iter().find(|orphan| &orphan.name == name) else {
            let known: Vec<&str> = all(host).iter().map(|orphan| orphan.name.as_str()).collect();
            bail!("host {} has no orphan {name}; it has: {}", host.name_any(), known.join(", "));
        };
        let Some(owner) = &orphan.owner else {
            bail!("{} {name} was not made by berth: stop it on the host itself", orphan.kind);
        };
        if !found.iter().any(|(known, _)| known.name == orphan.name) {
            found.push((orphan.clone(), owner.clone()));
        }
    }
    Ok(found)
}

/// Annotates the object of this name with its former uid. False: there is no such object.
async fn annotate<K>(
    client: &Client,
    namespace: &str,
    name: &str,
    uid: &str,
    is_bound: impl Fn(&K) -> bool,
) -> anyhow::Result<bool>
where
    K: JsonKind + Resource<Scope = NamespaceResourceScope>,
{
    let api: TypedApi<K> = TypedApi::namespaced(client.clone(), namespace);
    let title = format!("{} {namespace}/{name}", K::kind(&()));
    let Some(object) = api.get_opt(name).await.with_context(|| format!("reading {title}"))? else {
        return Ok(false);
    };
    if is_bound(&object) {
        bail!(
            "{title} is bound to a host and has what it needs there: release the orphan, or delete the object first"
        );
    }
    if object.uid().as_deref() == Some(uid) {
        return Ok(true);
    }
    let patch = json!({"metadata": {"uid": object.uid(), "resourceVersion": object.resource_version(),
        "annotations": {FORMER_UID_ANNOTATION: uid}}});
    let params = PatchParams { field_manager: Some("berth".into()), ..PatchParams::default() };
    api.patch(name, &params, &Patch::Merge(patch)).await.with_context(|| format!("changing {title}"))?;
    Ok(true)
}

async fn make_disk(client: &Client, orphan: &Orphan, owner: &OrphanOwner) -> anyhow::Result<()> {
    let size =
        orphan.size.clone().context("the host does not say how large the file is: declare the Disk first")?;
    let mut spec = DiskSpec { size: Some(Quantity(size)), ..DiskSpec::default() };
    spec.image = orphan.image.as_deref().map(Into::into);
    if let Some(pool) = &orphan.pool {
        spec.pool = pool.as_str().into();
    }
    let class = orphan.key_class.as_deref().and_then(|class| class.split_once('/'));
    spec.encryption = class.map(|(_, name)| Box::new(DiskEncryption { key_class: name.into() }));
    let mut disk = Disk::new(&owner.name, spec);
    disk.annotations_mut().insert(FORMER_UID_ANNOTATION.into(), owner.uid.clone().unwrap_or_default());
    let disks: TypedApi<Disk> = TypedApi::namespaced(client.clone(), &owner.namespace);
    let made = disks.create(&PostParams::default(), &disk).await;
    made.with_context(|| format!("making Disk {}/{}", owner.namespace, owner.name))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_a_host_invents_is_refused() {
        let orphan: Orphan = serde_json::from_value(json!({"kind": "Instance", "name": "i-1", "detail": ""}))
            .expect("an orphan");
        let of = |namespace: &str, name: &str| {
            let owner = json!({"kind": "VM", "namespace": namespace, "name": name});
            check_owner(&(orphan.clone(), serde_json::from_value(owner).expect("an owner")))
        };
        assert!(of("shop", "web").is_ok());
        for (namespace, name) in [("..", "web"), ("a/b", "web"), ("shop", "web?x"), ("shop", "")] {
            assert!(of(namespace, name).is_err(), "{namespace}/{name}");
        }
    }
}
