//! Observation of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_api::host::{HeldPublicIP, OrphanOwner};
use berth_api::{Binding, Disk, Host, LISTED_USERS, ObjectUser, StoragePool, VM, former_uid, listed_users};
use berth_host::{
    ForeignObject, Forwarding, HostFacts, HostLinks, ImageFacts, InstanceFacts, TrashedVolume, VolumeFacts,
};
use kube::{ResourceExt, api::ListParams};

use super::cache::{self, Excess};
use super::left::{self, CopiedVolume, Left};
use super::memory;
use crate::context::Context;
use crate::converge::Reconciler;
use crate::error::Error;
use crate::index::{Tables, instance_of, vm_size, volume_of};
use crate::journal::{ForwardedAddress, Journal};
use crate::key::{Key, ObjectName};
use crate::kinds::disk::DiskReconciler;
use crate::kinds::disk_snapshot::SnapshotReconciler;
use crate::kinds::hotswap_disk_attachment::AttachmentReconciler;
use crate::kinds::vm::VmReconciler;
use crate::networking::{CheckedTarget, Health, RefusedAddress, find, host_networks, without_trunk};
use crate::typed_api::TypedApi;

/// How long deleted disks stay in the trash if their pool does not specify it.
const DEFAULT_RETENTION: Duration = Duration::from_secs(86_400);

/// Everything the host's status and housekeeping are made from.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    /// The Host's generation before the observation, which is reported for no later generation.
    pub(super) generation: Option<i64>,
    pub(super) facts: HostFacts,
    /// The most memory that a VM was just measured to take above its guest memory, and the known overhead of the
    /// accelerator.
    pub(super) overhead: Option<(u64, u64)>,
    pub(super) forwarding: Forwarding,
    /// Public addresses of VMs here that are not forwarded, and why.
    pub(super) refused: BTreeMap<IpAddr, RefusedAddress>,
    /// Instances that a stop of the agent's service can end → the service.
    pub(super) in_agents_unit: BTreeMap<String, String>,
    /// Bridged networks of VMs here that have no connection, and why.
    pub(super) disconnected: Vec<String>,
    /// Networks here whose DHCP and DNS servers end again and again, or cannot be started again.
    pub(super) failing_servers: Vec<String>,
    /// Results of the health checks of targets of public addresses.
    pub(super) health: BTreeMap<CheckedTarget, Health>,
    pub(super) foreign: Vec<ForeignObject>,
    pub(super) images: Vec<String>,
    /// Images that an object, a volume or the trash refers to, or that are being downloaded.
    pub(super) images_in_use: BTreeSet<String>,
    /// The images that nothing uses, if the disk is short of room.
    pub(super) excess: Option<Excess>,
    /// The Images whose statuses do not say whether this host serves them.
    pub(super) changed_images: Vec<Key>,
    /// Digests, with namespaces that have downloaded them and no longer declare them.
    pub(super) former_readers: Vec<(String, String)>,
    pub(super) trash: Vec<TrashedVolume>,
    /// The bytes that the files in the trash and the retained ones take, as far as they were measured.
    pub(super) used: BTreeMap<String, u64>,
    pub(super) retention: BTreeMap<String, Duration>,
    /// Volumes that no Disk bound here owns.
    pub(super) orphan_volumes: Vec<VolumeFacts>,
    /// The StoragePools of the site, and the sizes of the volumes in each that has some, in bytes.
    pub(super) pools: BTreeSet<String>,
    /// Those of type Shared or RBD, and their identities.
    pub(super) shared_pools: BTreeMap<String, Option<String>>,
    pub(super) promised: BTreeMap<String, u64>,
    /// Volumes that no Disk owns any more and that are retained as declared.
    pub(super) retained: Vec<VolumeFacts>,
    /// Instances that no VM bound here owns.
    pub(super) orphan_instances: Vec<OrphanInstance>,
    /// Instances of VMs that have moved from here to other hosts.
    pub(super) left_instances: Vec<String>,
    /// The former files of disks that other hosts have copied.
    pub(super) copied_volumes: Vec<CopiedVolume>,
    /// `namespace/name` of the VM of each instance that has PCI or USB devices or vGPUs of the host.
    pub(super) device_users: BTreeMap<String, String>,
    /// Orphans that an administrator has released.
    pub(super) released: BTreeSet<String>,
    /// Lost volumes that a machine has open, or may have.
    pub(super) open_volumes: BTreeSet<String>,
    /// Whether any volume is based on a file that is based on another one.
    pub(super) has_chains: bool,
    /// The identities of the memory of guests that is kept for snapshots which are gone.
    pub(super) lost_memory: Vec<String>,
    pub(super) usage: Usage,
    /// Objects bound here, as listed in the Host's status.
    pub(super) users: Vec<ObjectUser>,
}

#[derive(Clone, Debug)]
pub(crate) struct OrphanInstance {
    pub(super) instance: String,
    /// `namespace/name` of its VM.
    pub(super) vm: Option<String>,
    /// The VM it was created for, according to its journal.
    pub(super) owner: Option<OrphanOwner>,
    pub(super) pid: Option<i32>,
    /// Whether this agent was deleting its VM.
    pub(super) deleting: bool,
    /// Whether an agent without the control plane would restart its guest.
    pub(super) restarts_offline: bool,
}

/// Resources requested by the VMs bound here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(super) vms: i64,
    pub(super) cpus: i64,
    /// Guest memory in ordinary pages, in bytes, without overhead.
    pub(super) memory: u64,
}

pub(super) async fn observe(ctx: &Context) -> Result<Observed, Error> {
    let host = own_host(ctx);
    let recovering = host.as_ref().is_some_and(|host| host.spec.recovery.is_some());
    let system = &ctx.system;
    // Before the folders are looked at: of a pool that is declared meanwhile, the folder was seen as one of this host alone.
    let shared_pools = shared_pools(&ctx.index.read());
    crate::pools::declare(ctx);
    let forwarding = system.forwarding().await?;
    let foreign = system.foreign().await?;
    let images = system.images().await?;
    let volumes = system.volumes().await?;
    let promised = promised(&volumes);
    let trash = system.trash().await?;
    let mut chains = volumes.iter().chain(trash.iter().map(|t| &t.volume)).filter_map(|v| v.backing.as_ref());
    let has_chains = chains.any(|backing| backing.files() > 1);
    let instances = system.instances().await?;
    let overhead = measured_overhead(ctx, &instances).await?;
    let in_agents_unit = in_agents_unit(ctx, &instances).await?;
    let facts = ctx.system.facts().await?;
    let overhead = overhead.map(|most| (most, facts.overhead_bytes));
    let facts = HostFacts { overhead_bytes: ctx.overhead.figure(facts.overhead_bytes), ..facts };
    let disconnected = disconnected(&ctx.index.read(), &facts.links);
    let lost_memory = memory::lost(ctx).await?;
    let owned = owned(ctx).await?;
    let sees_all = facts.pool_folders.iter().all(|folder| folder.problem.is_none());
    let left = match recovering {
        // All that is here counts.
        true => Left::default(),
        false => left::observe(ctx, &instances, &volumes, &owned.instances, &owned.volumes, sees_all).await?,
    };
    let orphan_volumes = orphan_volumes(&owned, &left, volumes.clone());
    let open_volumes =
        orphan_volumes.iter().filter(|v| ctx.machines.is_open(&v.id)).map(|v| v.id.clone()).collect();
    let tables = ctx.index.read();
    let declared: BTreeSet<(String, String)> = tables
        .images
        .all()
        .filter_map(|(name, image)| Some((image.stored_digest()?, name.namespace.clone())))
        .collect();
    let mut images_in_use: BTreeSet<String> = declared.iter().map(|(digest, _)| digest.clone()).collect();
    let bases = volumes.iter().chain(trash.iter().map(|t| &t.volume)).filter_map(|v| v.base.clone());
    let bases: BTreeSet<String> = bases.collect();
    images_in_use.extend(bases.iter().cloned());
    let unused = cache::unused(&tables, &images, &bases);
    let excess = cache::excess(unused, facts.storage_total_bytes, facts.storage_free_bytes);
    let serves = ctx.config.console.as_ref().is_some_and(|own| own.is_for_hosts);
    let changed_images = if serves { cache::changed(&tables, ctx.host(), &images) } else { Vec::new() };
    // Also before its checksum is in the status of its Image.
    let uids: BTreeSet<String> = tables
        .images
        .all()
        .filter(|(_, image)| image.is_local())
        .flat_map(|(_, image)| {
            let uids = image.uid().into_iter().chain(former_uid(image.as_ref()).map(str::to_owned));
            uids.map(|uid| image.content_id(&uid)).collect::<Vec<String>>()
        })
        .collect();
    let is_made_here = |image: &&ImageFacts| {
        // In a recovery, its Image may be about to come back.
        !image.made_for.is_empty() && (recovering || image.made_for.iter().any(|uid| uids.contains(uid)))
    };
    images_in_use.extend(images.iter().filter(is_made_here).map(|image| image.digest.clone()));
    let readers = images
        .iter()
        .filter(|image| !is_made_here(image))
        .flat_map(|i| i.readers.iter().map(|reader| (i.digest.clone(), reader.clone())));
    let former_readers = readers.filter(|reader| !declared.contains(reader)).collect();
    let retained = orphan_volumes.iter().filter(|volume| volume.retained).cloned().collect();
    Ok(Observed {
        generation: host.and_then(|host| host.metadata.generation),
        facts,
        overhead,
        forwarding,
        refused: ctx.networks.all_refused(),
        in_agents_unit,
        disconnected,
        failing_servers: ctx.networks.failing_servers(),
        health: ctx.networks.checks.all(),
        foreign,
        images: images.into_iter().map(|image| image.digest).collect(),
        images_in_use,
        excess,
        changed_images,
        former_readers,
        retention: retention(&tables, &trash),
        pools: tables.pools.all().map(|(name, _)| name.name.clone()).collect(),
        shared_pools,
        promised,
        // In a recovery, a deleted Disk with a retained file may be back.
        orphan_volumes: orphan_volumes.into_iter().filter(|volume| recovering || !volume.retained).collect(),
        retained,
        open_volumes,
        has_chains,
        lost_memory,
        released: released(&tables, ctx.host()),
        device_users: device_users(&instances),
        orphan_instances: orphan_instances(&owned, &left, instances),
        left_instances: left.finished,
        copied_volumes: left.copied,
        usage: usage(&tables),
        users: users(&tables, ctx.host()),
        trash,
        used: BTreeMap::new(),
    })
}

/// Returns the bytes that the files in the trash and the retained ones take, after a measurement: each report has them, also the first one
/// after a start.
pub(super) fn used(ctx: &Context, observed: &Observed) -> BTreeMap<String, u64> {
    let deleted = observed.retained.iter().chain(observed.trash.iter().map(|t| &t.volume));
    deleted.filter_map(|volume| Some((volume.id.clone(), ctx.disk_use.of(&volume.id)?))).collect()
}

/// Returns the bridged networks of VMs here that have no connection to the host's network, or not their trunk, and why; in order.
fn disconnected(tables: &Tables, links: &HostLinks) -> Vec<String> {
    let interfaces = tables.vms.all().flat_map(|(_, vm)| vm.status.iter().flat_map(|s| &s.interfaces));
    let named: BTreeSet<&String> = interfaces.map(|interface| &interface.network).collect();
    let networks = host_networks(links);
    let text = |name: &String| {
        let network = find(tables, name)?;
        let bridge = network.host_bridge()?;
        let why = bridge.disconnected_on(&networks, links.vlans).or_else(|| without_trunk(bridge, links))?;
        Some(format!("Network {name}: this host {why}"))
    };
    named.into_iter().filter_map(text).collect()
}

/// Returns the sizes of the volumes in each pool together.
fn promised(volumes: &[VolumeFacts]) -> BTreeMap<String, u64> {
    let mut promised: BTreeMap<String, u64> = BTreeMap::new();
    for volume in volumes {
        let of_pool = promised.entry(volume.pool.clone()).or_default();
        *of_pool = of_pool.saturating_add(volume.size);
    }
    promised
}

fn shared_pools(tables: &Tables) -> BTreeMap<String, Option<String>> {
    let shared = tables.pools.all().filter(|(_, pool)| pool.spec.pool_type.is_shared());
    let id = |pool: &StoragePool| Some(pool.status.as_ref()?.shared.as_ref()?.id.clone());
    shared.map(|(name, pool)| (name.name.clone(), id(pool))).collect()
}

fn released(tables: &Tables, host: &str) -> BTreeSet<String> {
    let host = tables.hosts.get(&ObjectName::new("", host));
    // In a recovery, a listed orphan may be about to be adopted.
    let host = host.filter(|host| host.spec.recovery.is_none());
    host.map(|host| host.spec.released_orphans.iter().cloned().collect()).unwrap_or_default()
}

fn retention(tables: &Tables, trash: &[TrashedVolume]) -> BTreeMap<String, Duration> {
    let of = |pool: &str| {
        let pool = tables.pools.get(&ObjectName::new("", pool));
        pool.and_then(|pool| u64::try_from(pool.spec.trash_retention_seconds).ok())
            .map_or(DEFAULT_RETENTION, Duration::from_secs)
    };
    trash.iter().map(|t| (t.volume.pool.clone(), of(&t.volume.pool))).collect()
}

/// Returns the most memory that a running VM takes above its guest memory, if a measurement is due.
async fn measured_overhead(ctx: &Context, instances: &[InstanceFacts]) -> Result<Option<u64>, Error> {
    if !ctx.overhead.is_due(ctx.now()) {
        return Ok(None);
    }
    let mut most = None;
    for found in instances {
        let run = found.journal.clone().and_then(|value| Journal::parse(value).ok()).and_then(|j| j.run);
        let (Some(process), Some(run)) = (&found.process, run) else { continue };
        most = most.max(ctx.system.overhead(&process.identity, run.memory_bytes).await?);
    }
    Ok(most)
}

/// Returns the instances that are in the agent's unit of systemd, under the names of their VMs, with the unit.
async fn in_agents_unit(
    ctx: &Context,
    instances: &[InstanceFacts],
) -> Result<BTreeMap<String, String>, Error> {
    let mut found = BTreeMap::new();
    for instance in instances {
        let Some(process) = &instance.process else { continue };
        let Some(unit) = ctx.system.shared_unit(&process.identity).await? else { continue };
        let journal = instance.journal.clone().and_then(|value| Journal::parse(value).ok());
        let name = journal.map_or(instance.instance.clone(), |j| format!("{}/{}", j.namespace, j.name));
        found.insert(name, unit);
    }
    Ok(found)
}

/// The volumes and instances owned by objects bound here.
struct Owned {
    volumes: BTreeSet<String>,
    instances: BTreeSet<String>,
}

fn own_host(ctx: &Context) -> Option<Arc<Host>> {
    ctx.index.read().hosts.get(&ObjectName::new("", ctx.host()))
}

/// Returns what objects bound here own. Before the first inventory is reported, and in a recovery, this is read from
/// the control plane: after a restore the tables may still hold the state from before.
async fn owned(ctx: &Context) -> Result<Owned, Error> {
    let volume = |disk: &Disk| volume_of(disk).map(str::to_owned);
    let instance = |vm: &VM| instance_of(vm).map(str::to_owned);
    {
        let tables = ctx.index.read();
        let host = tables.hosts.get(&ObjectName::new("", ctx.host()));
        let has_looked = |host: &Host| host.status.as_ref().is_some_and(|s| s.inventory.is_some());
        if host.is_some_and(|host| has_looked(&host) && host.spec.recovery.is_none()) {
            // An object deleted without its finalizer is brought down under its own key.
            let disks = tables.disks.all().map(|(_, disk)| disk).chain(tables.departed_disks.all());
            let vms = tables.vms.all().map(|(_, vm)| vm).chain(tables.departed_vms.all());
            return Ok(Owned {
                volumes: disks.filter_map(|disk| volume(disk)).collect(),
                instances: vms.filter_map(|vm| instance(vm)).collect(),
            });
        }
    }
    let here = ListParams::default().fields(&format!("status.binding.host={}", ctx.host()));
    let disks: TypedApi<Disk> = TypedApi::all(ctx.client.clone());
    let vms: TypedApi<VM> = TypedApi::all(ctx.client.clone());
    let disks = disks.list(&here).await.map_err(Error::api("list the Disks bound here"))?;
    let vms = vms.list(&here).await.map_err(Error::api("list the VMs bound here"))?;
    let tables = ctx.index.read();
    let departed_disks = tables.departed_disks.all().filter_map(|disk| volume(disk));
    let departed_vms = tables.departed_vms.all().filter_map(|vm| instance(vm));
    Ok(Owned {
        volumes: disks.iter().filter_map(volume).chain(departed_disks).collect(),
        instances: vms.iter().filter_map(instance).chain(departed_vms).collect(),
    })
}

fn orphan_volumes(owned: &Owned, left: &Left, volumes: Vec<VolumeFacts>) -> Vec<VolumeFacts> {
    let is_known = |id: &String| owned.volumes.contains(id) || left.volumes.contains(id);
    volumes.into_iter().filter(|volume| !is_known(&volume.id)).collect()
}

fn orphan_instances(owned: &Owned, left: &Left, instances: Vec<InstanceFacts>) -> Vec<OrphanInstance> {
    let is_left = |id: &String| left.instances.contains(id) || left.finished.contains(id);
    let is_known = |id: &String| owned.instances.contains(id) || is_left(id);
    let lost = instances.into_iter().filter(|found| !is_known(&found.instance));
    lost.filter_map(|found| {
        let journal = found.journal.and_then(|value| Journal::parse(value).ok());
        // Its guest comes from another host, to which the VM is bound still.
        if journal.as_ref().is_some_and(|journal| journal.arrival.is_some()) {
            return None;
        }
        Some(OrphanInstance {
            vm: journal.as_ref().map(|j| format!("{}/{}", j.namespace, j.name)),
            deleting: journal.as_ref().is_some_and(|j| j.deleting),
            restarts_offline: journal.as_ref().is_some_and(|j| j.offline.is_some()),
            owner: journal.filter(|j| !j.deleting).map(|j| OrphanOwner {
                kind: "VM".to_owned(),
                namespace: j.namespace,
                name: j.name,
                uid: Some(j.uid).filter(|uid| !uid.is_empty()),
                epoch: j.epoch,
                interfaces: j.interfaces,
                public_ips: j.public.into_iter().chain(j.public_ipv6).map(held).collect(),
            }),
            pid: found.process.map(|p| p.identity.pid),
            instance: found.instance,
        })
    })
    .collect()
}

fn device_users(instances: &[InstanceFacts]) -> BTreeMap<String, String> {
    let user = |found: &InstanceFacts| {
        let journal = Journal::parse(found.journal.clone()?).ok()?;
        journal
            .has_devices()
            .then(|| (found.instance.clone(), format!("{}/{}", journal.namespace, journal.name)))
    };
    instances.iter().filter_map(user).collect()
}

fn held(public: ForwardedAddress) -> HeldPublicIP {
    let prefix_length = public.prefix_length.map(i64::from);
    HeldPublicIP { name: public.name, address: public.address.to_string(), prefix_length }
}

/// Returns the objects to list in the Host's status: a limited selection of those bound here.
fn users(tables: &Tables, host: &str) -> Vec<ObjectUser> {
    let here = |binding: Option<&Binding>| binding.is_some_and(|b| b.host == host);
    let user = |kind: &str, name: &ObjectName| ObjectUser {
        kind: kind.to_owned(),
        namespace: name.namespace.clone(),
        name: name.name.clone(),
    };
    let is_user = |user: &ObjectUser| {
        let name = ObjectName::new(&user.namespace, &user.name);
        match user.kind.as_str() {
            "VM" => here(tables.vms.get(&name).as_deref().and_then(VmReconciler::binding)),
            "Disk" => here(tables.disks.get(&name).as_deref().and_then(DiskReconciler::binding)),
            "DiskSnapshot" => {
                here(tables.disk_snapshots.get(&name).as_deref().and_then(SnapshotReconciler::binding))
            }
            _ => here(tables.attachments.get(&name).as_deref().and_then(AttachmentReconciler::binding)),
        }
    };
    let vms =
        tables.vms.all().filter(|(_, vm)| here(VmReconciler::binding(vm))).map(|(name, _)| user("VM", name));
    let disks = tables.disks.all().filter(|(_, disk)| here(DiskReconciler::binding(disk)));
    let disks = disks.map(|(name, _)| user("Disk", name));
    let attachments = tables.attachments.all().filter(|(_, a)| here(AttachmentReconciler::binding(a)));
    let attachments = attachments.map(|(name, _)| user("HotswapDiskAttachment", name));
    let snapshots = tables.disk_snapshots.all().filter(|(_, s)| here(SnapshotReconciler::binding(s)));
    let snapshots = snapshots.map(|(name, _)| user("DiskSnapshot", name));
    let before = tables.hosts.get(&ObjectName::new("", host)).and_then(|host| host.status.clone());
    let before = before.map(|status| status.used_by).unwrap_or_default();
    listed_users(
        &before,
        is_user,
        vms.chain(disks).chain(attachments).chain(snapshots).take(LISTED_USERS * 2),
    )
}

fn usage(tables: &Tables) -> Usage {
    let mut usage = Usage::default();
    for (name, vm) in tables.vms.all() {
        usage.vms += 1;
        let taken = vm_size(tables, name, vm).unwrap_or_default();
        usage.cpus += taken.cpus;
        usage.memory = usage.memory.saturating_add(taken.memory);
    }
    usage
}
