//! Files of an earlier stay of a VM that is back on this host: its disks have been elsewhere meanwhile.

use std::collections::BTreeSet;

use berth_api::{Disk, VM};
use berth_host::Arrival;
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Error;
use crate::index::{left_on, volume_of};
use crate::journal::epoch_of;
use crate::kinds::disk::is_local_pool;
use crate::typed_api::TypedApi;

/// Removes those of the volumes that the VM gave up here before, whose data another host has now. The Disks are read from the control plane:
/// they were bound before the VM was, and this host may know them as they were before it gave them up.
pub(super) async fn remove(ctx: &Context, vm: &VM, volumes: &BTreeSet<String>) -> Result<(), Error> {
    let disks: TypedApi<Disk> = TypedApi::namespaced(ctx.client.clone(), &vm.namespace().unwrap_or_default());
    let kept = Arrival { vm: vm.uid().unwrap_or_default(), epoch: epoch_of(vm) };
    for named in &vm.spec.disks {
        let disk = disks.get_opt(named.name.as_str()).await;
        let Some(disk) = disk.map_err(Error::api("read a disk of a VM that is back"))? else { continue };
        let Some(id) = volume_of(&disk).filter(|id| volumes.contains(*id)) else { continue };
        if left_on(&disk, ctx.host()).is_none() {
            continue;
        }
        // Its pool is that of the host which has the data, and may have changed there. Another pool that is away holds up no VM.
        let here = ctx.system.pool_of_volume(id).await.ok().flatten();
        let pool = here.as_deref().unwrap_or(disk.pool().as_str());
        let is_stale = is_local_pool(&ctx.index.read(), pool);
        if is_stale {
            let uid = disk.uid();
            let seen = ctx.system.arrival(pool, id).await?;
            if seen.as_ref().is_none_or(|seen| !seen.is_since(&kept)) {
                ctx.system.remove_left_volume(pool, id, uid.as_deref(), seen.as_ref()).await?;
            }
        }
    }
    Ok(())
}
