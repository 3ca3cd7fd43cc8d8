//! A disk in a pool of single hosts whose data is on the host that its VM has left: it is copied from there.
//!
//! ```text
//!    formerHost OLD: OLD has the data      copied, durable, verified       arrived here for this stay           formerHost removed: this host
//!    (also if a file is here)         ───▶ (no machine starts on it) ───▶ (OLD has the same data still)  ───▶  has the data, OLD removes its file
//! ```

use berth_api::{Disk, Provisioning, Quantity, VM};
use berth_host::{Arrival, NewFetch, VolumeFacts};
use kube::ResourceExt;

use super::source::new_owner;
use crate::context::Context;
use crate::details::Details;
use crate::error::Error;
use crate::index::{Tables, left_on, volume_of};
use crate::key::{Key, ObjectName};
use crate::pulls::{Arriving, Pull, Wanted, percent};
use crate::typed_api::TypedApi;

/// The copy of a disk from the host that has its data.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DiskCopy {
    /// Whether the file that is here is the whole copy, for the present stay of the VM.
    pub(crate) has_arrived: bool,
    /// None: its VM is not admitted here.
    pub(crate) wanted: Option<Box<Wanted>>,
    pub(crate) pull: Option<Pull>,
}

/// Whether the pool of a disk is one that each host has for itself.
pub(crate) fn is_in_local_pool(tables: &Tables, disk: &Disk) -> bool {
    is_local_pool(tables, disk.pool().as_str())
}

/// Whether a pool is one that each host has for itself.
pub(crate) fn is_local_pool(tables: &Tables, pool: &str) -> bool {
    let pool = tables.pools.get(&ObjectName::new("", pool));
    pool.is_none_or(|pool| !pool.spec.pool_type.is_shared())
}

/// Returns the copies that the Disks of this host need.
pub(crate) fn wanted_copies<'a>(tables: &'a Tables, own: &'a str) -> impl Iterator<Item = Wanted> + 'a {
    tables.disks.all().filter_map(move |(_, disk)| wanted_by(tables, disk, own))
}

/// Looks at the copy of a disk. None: this host has its data, or several hosts have its pool.
pub(super) async fn observe(
    ctx: &Context,
    disk: &Disk,
    volume: Option<&VolumeFacts>,
) -> Result<Option<DiskCopy>, Error> {
    let wanted = {
        let tables = ctx.index.read();
        if left_on(disk, ctx.host()).is_none() || !is_in_local_pool(&tables, disk) {
            return Ok(None);
        }
        wanted_by(&tables, disk, ctx.host())
    };
    let has_arrived = match volume {
        Some(volume) => present_arrival(ctx, disk, volume).await?,
        None => false,
    };
    let pull = wanted.as_ref().and_then(|wanted| ctx.pulls.state(wanted, &Key::of(disk)));
    Ok(Some(DiskCopy { has_arrived, wanted: wanted.map(Box::new), pull }))
}

/// Whether a file of a disk that is taken from another host, in a pool that hosts share, is of an earlier stay of its VM here: the disk has
/// changed its pool elsewhere since. In the pool that it is to be in by now, this host may have moved it there and not have reported it.
pub(super) fn is_earlier(disk: &Disk, own: &str, volume: &VolumeFacts) -> bool {
    let pools = [disk.pool(), disk.target_pool()];
    left_on(disk, own).is_some() && pools.iter().all(|pool| pool.as_str() != volume.pool)
}

/// Returns how much of the copy of a Disk is here, in percent.
pub(crate) fn copied_percent(ctx: &Context, disk: &Disk) -> Option<i64> {
    let wanted = wanted_by(&ctx.index.read(), disk, ctx.host())?;
    match ctx.pulls.state(&wanted, &Key::of(disk))? {
        Pull::Running { done, total, .. } => percent(done, total),
        _ => None,
    }
}

/// Returns the copy with the image that it is based on.
pub(super) fn with_base(wanted: Wanted, base: Option<String>) -> Wanted {
    match wanted {
        Wanted::Fetch(arriving, Details(new)) => {
            Wanted::Fetch(arriving, Details(Box::new(NewFetch { base, ..*new })))
        }
        other => other,
    }
}

/// Whether the file that is here was copied for the present stay of the VM. The VM is read from the control plane: this host may not know yet
/// that it has been elsewhere meanwhile.
async fn present_arrival(ctx: &Context, disk: &Disk, volume: &VolumeFacts) -> Result<bool, Error> {
    let Some(arrival) = ctx.system.arrival(&volume.pool, &volume.id).await? else { return Ok(false) };
    let users = disk.status.as_ref().map(|status| status.used_by.as_slice()).unwrap_or_default();
    let Some(user) = users.iter().find(|user| user.vm_uid == arrival.vm) else { return Ok(false) };
    let vms: TypedApi<VM> = TypedApi::namespaced(ctx.client.clone(), &disk.namespace().unwrap_or_default());
    let vm = vms.get_opt(&user.vm).await.map_err(Error::api("read the VM of a disk that was copied"))?;
    Ok(vm.as_ref().and_then(|vm| stay(vm, ctx.host())).as_ref() == Some(&arrival))
}

/// Returns the stay of a VM on this host.
fn stay(vm: &VM, own: &str) -> Option<Arrival> {
    let binding = vm.status.as_ref()?.binding.as_ref().filter(|binding| binding.host == own)?;
    Some(Arrival { vm: vm.uid()?, epoch: binding.epoch })
}

fn wanted_by(tables: &Tables, disk: &Disk, own: &str) -> Option<Wanted> {
    let from = left_on(disk, own)?.to_owned();
    let status = disk.status.as_ref()?;
    let is_here = status.binding.as_ref().is_some_and(|binding| binding.host == own);
    if !is_here || disk.metadata.deletion_timestamp.is_some() || !is_in_local_pool(tables, disk) {
        return None;
    }
    let vm = status.used_by.iter().find_map(|user| {
        let mut vms = tables.vms.all().map(|(_, vm)| vm);
        vms.find(|vm| vm.metadata.uid.as_ref() == Some(&user.vm_uid))
    })?;
    let is_admitted = vm.status.as_ref().is_some_and(|status| status.is_admitted() && !status.is_released());
    let arrival = stay(vm, own).filter(|_| is_admitted)?;
    let (pool, volume) = (disk.pool().to_string(), volume_of(disk)?.to_owned());
    let size = Quantity(status.size.clone()?).bytes().ok()?;
    let new = NewFetch {
        pool: pool.clone(),
        id: volume.clone(),
        from: from.clone(),
        size,
        base: None,
        thick: disk.spec.provisioning == Provisioning::Thick,
        owner: new_owner(disk),
        arrival: arrival.clone(),
    };
    let arriving = Arriving {
        namespace: disk.namespace().unwrap_or_default(),
        disk: disk.name_any(),
        pool,
        volume,
        from,
        arrival,
    };
    Some(Wanted::Fetch(arriving, Details(Box::new(new))))
}
