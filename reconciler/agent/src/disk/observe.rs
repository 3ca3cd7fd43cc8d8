//! What is so about a disk.

use berth_api::{Disk, Image, ImageFormat, ObjectUse, UseKind, VM, former_uid};
use berth_qemu::machine::Format;
use jiff::Timestamp;
use kube::{Resource, ResourceExt};

use super::claims::{self, Wish};
use super::volume_of;
use crate::context::Context;
use crate::error::Error;
use crate::index::Tables;
use crate::pulls::Pull;
use crate::queue::ObjectName;
use crate::system::{ImageFacts, ImageSource, VolumeFacts};

/// Everything a plan for a disk is made from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(crate) volume: Option<VolumeFacts>,
    /// The size the running machine that has it open sees.
    pub(crate) open_size: Option<u64>,
    pub(crate) image: ImageSeen,
    /// Whether the file rests in the trash; only looked at for a disk that is to be restored.
    pub(crate) in_trash: bool,
    pub(crate) users: Vec<ObjectUse>,
    /// The VM it is made for was not taken on by this host yet.
    pub(crate) user_waits: bool,
}

/// The image a disk without a file is to be made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum ImageSeen {
    /// A blank disk, or one that has its file already.
    #[default]
    NotNeeded,
    Missing,
    Absent(ImageSource),
    Pulling(ImageSource, Pull),
    Cached(ImageFacts),
}

pub(super) async fn observe(ctx: &Context, disk: &Disk) -> Result<Observed, Error> {
    let Some(id) = volume_of(disk).map(str::to_owned) else { return Ok(Observed::default()) };
    let pool = disk.spec.pool.as_str();
    let volume = ctx.system.volume(pool, &id).await?;
    let restores = disk.annotations().contains_key(berth_api::RESTORE_ANNOTATION);
    let in_trash = volume.is_none()
        && restores
        && ctx.system.trash().await?.iter().any(|t| t.volume.id == id && t.volume.pool == pool);
    let open_size = match ctx.machines.holder(&id) {
        Some(machine) => {
            machine.look().await.ok().and_then(|look| look.disks.iter().find(|d| d.id == id).map(|d| d.size))
        }
        None => None,
    };
    let image = match &volume {
        Some(_) => ImageSeen::NotNeeded,
        None => image(ctx, disk).await?,
    };
    let users = users(ctx, disk, &id);
    let user_waits = volume.is_none() && !restores && users.iter().any(|user| !is_admitted(ctx, user));
    Ok(Observed { volume, open_size, image, in_trash, users, user_waits })
}

async fn image(ctx: &Context, disk: &Disk) -> Result<ImageSeen, Error> {
    let Some(name) = &disk.spec.image else { return Ok(ImageSeen::NotNeeded) };
    let namespace = disk.namespace().unwrap_or_default();
    let found = ctx.index.read().images.find(&namespace, name.as_str());
    let Some(image) = found else { return Ok(ImageSeen::Missing) };
    let source = source_of(&image);
    if let Some(facts) = ctx.system.image(&source.sha256).await? {
        return Ok(ImageSeen::Cached(facts));
    }
    Ok(match ctx.pulls.state(&source) {
        Some(pull) => ImageSeen::Pulling(source, pull),
        None => ImageSeen::Absent(source),
    })
}

/// An Image as the system wants it.
pub(crate) fn source_of(image: &Image) -> ImageSource {
    let format = match image.spec.format {
        ImageFormat::Qcow2 => Format::Qcow2,
        ImageFormat::Raw => Format::Raw,
    };
    let source = &image.spec.source;
    ImageSource { url: source.url.clone(), sha256: source.sha256.clone(), format }
}

pub(super) fn users(ctx: &Context, disk: &Disk, volume: &str) -> Vec<ObjectUse> {
    let name = ObjectName::new(disk.namespace().unwrap_or_default(), disk.name_any());
    let wishes = wishes(&ctx.index.read(), &name);
    let have = disk.status.as_ref().map(|s| s.used_by.clone()).unwrap_or_default();
    // The scheduler gives a disk its host before it binds the VM it is for; nothing was made yet, and it takes the
    // disk back if that VM does not come.
    let unmade = disk.status.as_ref().is_some_and(|s| s.size.is_none());
    if unmade && !leaves(disk) && have.iter().any(|user| !is_here(ctx, user)) {
        return have;
    }
    // A machine is known by the uid its journal has, until the VM that has another one now has taken it over.
    let former = |user: &ObjectUse| {
        let tables = ctx.index.read();
        let vm = tables.vms.all().map(|(_, vm)| vm).find(|vm| vm.metadata.uid.as_ref() == Some(&user.vm_uid));
        vm.and_then(|vm| former_uid(vm.as_ref()).map(str::to_owned))
    };
    claims::users(&have, &wishes, |user| {
        ctx.machines.holds(&user.vm_uid, volume)
            || former(user).is_some_and(|uid| ctx.machines.holds(&uid, volume))
    })
}

fn is_here(ctx: &Context, user: &ObjectUse) -> bool {
    ctx.index.read().vms.all().any(|(_, vm)| vm.metadata.uid.as_ref() == Some(&user.vm_uid))
}

fn is_admitted(ctx: &Context, user: &ObjectUse) -> bool {
    let tables = ctx.index.read();
    let vm = tables.vms.all().map(|(_, vm)| vm).find(|vm| vm.metadata.uid.as_ref() == Some(&user.vm_uid));
    vm.and_then(|vm| vm.status.as_ref()).is_some_and(berth_api::VMStatus::is_admitted)
}

/// Every VM and attachment bound to this host that names the disk.
fn wishes(tables: &Tables, disk: &ObjectName) -> Vec<Wish> {
    let here = |name: &ObjectName| name.namespace == disk.namespace;
    let mut wishes = Vec::new();
    for (name, vm) in tables.vms.all().filter(|(name, _)| here(name)) {
        if vm.spec.disks.iter().any(|d| d.name.as_str() == disk.name) {
            let by = used(UseKind::Fixed, name, vm, None);
            wishes.push(Wish { by, since: created(vm.as_ref()), leaving: leaves(vm.as_ref()) });
        }
    }
    for (name, attachment) in tables.attachments.all().filter(|(name, _)| here(name)) {
        if attachment.spec.disk.as_str() != disk.name {
            continue;
        }
        let vm_name = name.beside(attachment.spec.vm.as_str());
        let Some(vm) = tables.vms.get(&vm_name) else { continue };
        let by = used(UseKind::Hotswap, &vm_name, &vm, Some(name.name.clone()));
        let leaving = leaves(attachment.as_ref()) || leaves(vm.as_ref());
        wishes.push(Wish { by, since: created(attachment.as_ref()), leaving });
    }
    wishes
}

fn used(use_kind: UseKind, name: &ObjectName, vm: &VM, attachment: Option<String>) -> ObjectUse {
    ObjectUse { use_kind, vm: name.name.clone(), vm_uid: vm.uid().unwrap_or_default(), attachment }
}

fn created(object: &impl ResourceExt) -> Option<Timestamp> {
    object.creation_timestamp().map(|time| time.0)
}

fn leaves(object: &impl Resource) -> bool {
    object.meta().deletion_timestamp.is_some()
}
