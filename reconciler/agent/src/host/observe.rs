//! What is so about this host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use berth_api::host::{HeldPublicIP, OrphanOwner};
use berth_api::{Binding, Disk, LISTED_USERS, ObjectUser, VM, listed_users};
use jiff::Timestamp;
use kube::{Api, api::ListParams};

use crate::context::Context;
use crate::converge::Kind;
use crate::disk::{DiskKind, volume_of};
use crate::error::Error;
use crate::hotswap_disk_attachment::AttachmentKind;
use crate::index::{Tables, instance_of, vm_size};
use crate::network::Refused;
use crate::queue::ObjectName;
use crate::system::{Forwarding, HostFacts, InstanceFacts, Stranger, TrashedVolume, VolumeFacts};
use crate::vm::{Journal, PublicNote, VmKind};

/// How long deleted disks rest when their pool does not say.
const DEFAULT_RETENTION: Duration = Duration::from_secs(86_400);

/// Everything the host's status and housekeeping are made from.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(super) now: Timestamp,
    pub(super) facts: HostFacts,
    pub(super) forwarding: Forwarding,
    /// Public addresses of VMs here that lead to none, and why.
    pub(super) refused: BTreeMap<Ipv4Addr, Refused>,
    pub(super) strangers: Vec<Stranger>,
    pub(super) images: Vec<String>,
    /// Images that an object, a volume or the trash refers to, or that are being downloaded.
    pub(super) images_in_use: BTreeSet<String>,
    pub(super) trash: Vec<TrashedVolume>,
    pub(super) retention: BTreeMap<String, Duration>,
    /// Volumes no Disk bound here has.
    pub(super) lost_volumes: Vec<VolumeFacts>,
    /// Instances no VM bound here has.
    pub(super) lost_instances: Vec<LostInstance>,
    pub(super) usage: Usage,
    /// What is bound here, as the Host lists it.
    pub(super) users: Vec<ObjectUser>,
}

#[derive(Clone, Debug)]
pub(crate) struct LostInstance {
    pub(super) instance: String,
    /// `namespace/name` of the VM it was.
    pub(super) vm: Option<String>,
    /// The VM it was made for, as its journal has it.
    pub(super) owner: Option<OrphanOwner>,
    pub(super) pid: Option<i32>,
    /// Its VM was being deleted by us.
    pub(super) deleting: bool,
}

/// What the VMs bound here ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(super) vms: i64,
    pub(super) cpus: i64,
    /// Guests' memory, without overhead.
    pub(super) memory: u64,
}

pub(super) async fn observe(ctx: &Context) -> Result<Observed, Error> {
    let system = &ctx.system;
    let forwarding = system.forwarding().await?;
    let strangers = system.strangers().await?;
    let images: Vec<String> = system.images().await?.into_iter().map(|image| image.sha256).collect();
    let volumes = system.volumes().await?;
    let trash = system.trash().await?;
    let instances = system.instances().await?;
    measure_overhead(ctx, &instances).await?;
    let facts = ctx.facts().await?;
    let owned = owned(ctx).await?;
    let tables = ctx.index.read();
    let mut images_in_use: BTreeSet<String> =
        tables.images.all().map(|(_, image)| image.spec.source.sha256.clone()).collect();
    images_in_use.extend(volumes.iter().filter_map(|v| v.base.clone()));
    images_in_use.extend(trash.iter().filter_map(|t| t.volume.base.clone()));
    images_in_use.extend(images.iter().filter(|sha256| ctx.pulls.is_running(sha256)).cloned());
    Ok(Observed {
        now: ctx.now(),
        facts,
        forwarding,
        refused: ctx.network.all_refused(),
        strangers,
        images,
        images_in_use,
        retention: retention(&tables, &trash),
        lost_volumes: lost_volumes(&owned, volumes),
        lost_instances: lost_instances(&owned, instances),
        usage: usage(&tables),
        users: users(&tables, ctx.host()),
        trash,
    })
}

fn retention(tables: &Tables, trash: &[TrashedVolume]) -> BTreeMap<String, Duration> {
    let of = |pool: &str| {
        let pool = tables.pools.get(&ObjectName::new("", pool));
        pool.and_then(|pool| u64::try_from(pool.spec.trash_retention_seconds).ok())
            .map_or(DEFAULT_RETENTION, Duration::from_secs)
    };
    trash.iter().map(|t| (t.volume.pool.clone(), of(&t.volume.pool))).collect()
}

/// Measures, now and then, what running VMs take above their guests' memory.
async fn measure_overhead(ctx: &Context, instances: &[InstanceFacts]) -> Result<(), Error> {
    if !ctx.overhead.is_due(ctx.now()) {
        return Ok(());
    }
    let mut most = None;
    for found in instances {
        let run = found.journal.clone().and_then(|value| Journal::parse(value).ok()).and_then(|j| j.run);
        let (Some(process), Some(run)) = (&found.process, run) else { continue };
        most = most.max(ctx.system.overhead(&process.identity, run.memory_bytes).await?);
    }
    if let Some(most) = most {
        ctx.overhead.measured(most, ctx.system.facts().await?.overhead_bytes, ctx.now());
    }
    Ok(())
}

/// The volumes and instances that objects bound here have.
struct Owned {
    volumes: BTreeSet<String>,
    instances: BTreeSet<String>,
}

/// What objects bound here have. Before it is said for the first time what none has, the control plane is asked: after
/// a restore the tables may still hold what it had before.
async fn owned(ctx: &Context) -> Result<Owned, Error> {
    let volume = |disk: &Disk| volume_of(disk).map(str::to_owned);
    let instance = |vm: &VM| instance_of(vm).map(str::to_owned);
    {
        let tables = ctx.index.read();
        let host = tables.hosts.get(&ObjectName::new("", ctx.host()));
        if host.is_some_and(|host| host.status.as_ref().is_some_and(|s| s.inventory.is_some())) {
            return Ok(Owned {
                volumes: tables.disks.all().filter_map(|(_, disk)| volume(disk)).collect(),
                instances: tables.vms.all().filter_map(|(_, vm)| instance(vm)).collect(),
            });
        }
    }
    let here = ListParams::default().fields(&format!("status.binding.host={}", ctx.host()));
    let disks: Api<Disk> = Api::all(ctx.client.clone());
    let vms: Api<VM> = Api::all(ctx.client.clone());
    let disks = disks.list(&here).await.map_err(Error::api("list the Disks bound here"))?;
    let vms = vms.list(&here).await.map_err(Error::api("list the VMs bound here"))?;
    Ok(Owned {
        volumes: disks.iter().filter_map(volume).collect(),
        instances: vms.iter().filter_map(instance).collect(),
    })
}

fn lost_volumes(owned: &Owned, volumes: Vec<VolumeFacts>) -> Vec<VolumeFacts> {
    volumes.into_iter().filter(|volume| !owned.volumes.contains(&volume.id)).collect()
}

fn lost_instances(owned: &Owned, instances: Vec<InstanceFacts>) -> Vec<LostInstance> {
    let lost = instances.into_iter().filter(|found| !owned.instances.contains(&found.instance));
    lost.map(|found| {
        let journal = found.journal.and_then(|value| Journal::parse(value).ok());
        LostInstance {
            vm: journal.as_ref().map(|j| format!("{}/{}", j.namespace, j.name)),
            deleting: journal.as_ref().is_some_and(|j| j.deleting),
            owner: journal.filter(|j| !j.deleting).map(|j| OrphanOwner {
                kind: "VM".to_owned(),
                namespace: j.namespace,
                name: j.name,
                uid: Some(j.uid).filter(|uid| !uid.is_empty()),
                epoch: j.epoch,
                interfaces: j.interfaces,
                public_ips: j.public.into_iter().map(held).collect(),
            }),
            pid: found.process.map(|p| p.identity.pid),
            instance: found.instance,
        }
    })
    .collect()
}

fn held(public: PublicNote) -> HeldPublicIP {
    HeldPublicIP { name: public.name, address: public.address.to_string() }
}

/// Whom the Host is to list: some of what is bound here.
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
            "VM" => here(tables.vms.get(&name).as_deref().and_then(VmKind::binding)),
            "Disk" => here(tables.disks.get(&name).as_deref().and_then(DiskKind::binding)),
            _ => here(tables.attachments.get(&name).as_deref().and_then(AttachmentKind::binding)),
        }
    };
    let vms = tables.vms.all().filter(|(_, vm)| here(VmKind::binding(vm))).map(|(name, _)| user("VM", name));
    let disks = tables.disks.all().filter(|(_, disk)| here(DiskKind::binding(disk)));
    let disks = disks.map(|(name, _)| user("Disk", name));
    let attachments = tables.attachments.all().filter(|(_, a)| here(AttachmentKind::binding(a)));
    let attachments = attachments.map(|(name, _)| user("HotswapDiskAttachment", name));
    let before = tables.hosts.get(&ObjectName::new("", host)).and_then(|host| host.status.clone());
    let before = before.map(|status| status.used_by).unwrap_or_default();
    listed_users(&before, is_user, vms.chain(disks).chain(attachments).take(LISTED_USERS * 2))
}

fn usage(tables: &Tables) -> Usage {
    let mut usage = Usage::default();
    for (name, vm) in tables.vms.all() {
        usage.vms += 1;
        let (cpus, memory) = vm_size(tables, name, vm).unwrap_or_default();
        usage.cpus += cpus;
        usage.memory = usage.memory.saturating_add(memory);
    }
    usage
}
