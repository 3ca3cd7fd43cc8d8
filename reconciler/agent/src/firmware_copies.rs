//! Copies of the firmware variables and of the memory of the TPMs of VMs in the shared pool of their boot disk: if this host is lost, the next host of the
//! VM starts it with them.
//!
//! ```text
//!   it was taken over from another host                         ┐
//!   the guest runs: every two minutes, if something has changed │    <folder>/firmware/<instance>.state, or
//!   its QEMU has ended                                          ├──▶ the image berth-firmware-<instance>.… in Ceph
//!   the VM is given up for a move (final: it is not started     │    (removed with the VM)
//!   here again, and the next host needs no answer of this one)  ┘
//! ```
//!
//! In Ceph, the copy of the latest epoch counts. A host that is declared lost may run on, cut off from the control plane, and not know that: the next
//! host has a copy of its own epoch before it starts the VM, which no copy of an earlier one replaces. By that, and by its boot disk, which
//! is the other host's then, the lost one stops copying.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_api::{Disk, StoragePoolType, VM};
use berth_host::{FirmwareCopy, SystemError};
use kube::ResourceExt;
use sha2::{Digest, Sha256};
use tokio::time::{sleep, timeout};

use crate::context::Context;
use crate::copied_firmware::Copied;
use crate::error::Error;
use crate::index::{Tables, instance_of, volume_of};
use crate::journal::{Journal, epoch_of};
use crate::key::ObjectName;
use crate::pools;
use crate::typed_api::TypedApi;

/// The interval at which changes are copied.
const EVERY: Duration = Duration::from_secs(120);
/// How long a stop waits for its copy, which the next round makes otherwise.
const AFTER_STOP: Duration = Duration::from_secs(10);

/// Copies what has changed, for as long as it is polled.
pub(crate) async fn run(ctx: &Context) {
    loop {
        sleep(EVERY).await;
        if !ctx.is_working.load(Ordering::Relaxed) {
            continue;
        }
        let due: Vec<VM> = {
            let tables = ctx.index.read();
            let vms = tables.vms.all().filter(|(_, vm)| pool_of(&tables, vm).is_some());
            vms.map(|(_, vm)| vm.as_ref().clone()).collect()
        };
        for vm in due {
            if let Err(error) = Box::pin(copy(ctx, &vm, false)).await {
                let name = vm.name_any();
                tracing::warn!(vm = name, error = error.chain(), "the firmware state of a VM is not copied");
            }
        }
    }
}

/// Returns the pool in which the firmware state of a VM is copied: that of its boot disk, if hosts share it.
pub(crate) fn pool_of(tables: &Tables, vm: &VM) -> Option<String> {
    if !vm.has_firmware_state() {
        return None;
    }
    boot_pool(tables, vm).filter(|pool| is_shared(tables, pool))
}

fn boot_disk(tables: &Tables, vm: &VM) -> Option<Arc<Disk>> {
    let boot = vm.spec.disks.iter().find(|disk| disk.boot)?;
    tables.disks.get(&ObjectName::of(vm).beside(boot.name.as_str()))
}

fn boot_pool(tables: &Tables, vm: &VM) -> Option<String> {
    boot_disk(tables, vm).map(|disk| disk.pool().to_string())
}

/// Returns the volume of the boot disk of a VM, if it is in Ceph.
fn boot_volume_in_ceph(tables: &Tables, vm: &VM) -> Option<String> {
    let disk = boot_disk(tables, vm)?;
    let is_in_ceph = pool_type(tables, disk.pool().as_str()) == Some(StoragePoolType::Rbd);
    volume_of(&disk).filter(|_| is_in_ceph).map(str::to_owned)
}

fn is_shared(tables: &Tables, pool: &str) -> bool {
    pool_type(tables, pool).is_some_and(StoragePoolType::is_shared)
}

fn pool_type(tables: &Tables, pool: &str) -> Option<StoragePoolType> {
    tables.pools.get(&ObjectName::new("", pool)).map(|pool| pool.spec.pool_type)
}

/// Copies the firmware state of a VM, if it changes the copy. `is_final`: the VM is about to be given up, and its guest is off.
///
/// *Errors*: the pool is away. A VM is given up without the last copy if the next host can fetch the state from this one.
pub(crate) async fn copy(ctx: &Context, vm: &VM, is_final: bool) -> Result<(), Error> {
    let (pool, in_ceph) = {
        let tables = ctx.index.read();
        (pool_of(&tables, vm), boot_volume_in_ceph(&tables, vm))
    };
    let (Some(pool), Some(instance)) = (pool, instance_of(vm)) else { return Ok(()) };
    let _alone = ctx.copied_firmware.writing.lock(instance).await;
    let journal = ctx.system.read_journal(instance).await?.map(Journal::parse).transpose()?;
    if !journal.is_some_and(|journal| has_state(vm, &journal)) {
        return Ok(());
    }
    let archive = ctx.system.firmware_state(instance).await?;
    let copy = FirmwareCopy { uid: vm.uid().unwrap_or_default(), epoch: epoch_of(vm), is_final, archive };
    let new = Copied { digest: digest(&pool, &copy), is_final };
    let last = ctx.copied_firmware.last(instance);
    if copy.archive.is_empty() || last.as_ref().is_some_and(|last| is_written(last, &new)) {
        return Ok(());
    }
    pools::declare(ctx);
    if let Some(volume) = in_ceph.filter(|_| !is_final)
        && ctx.system.volume(&pool, &volume).await?.is_none()
    {
        // Another host has taken it: this one is cut off, and was declared lost.
        return Ok(());
    }
    let serves = ctx.config.console.as_ref().is_some_and(|own| own.is_for_hosts);
    match ctx.system.write_firmware_copy(&pool, instance, &copy).await {
        Err(away @ SystemError::PoolAway { .. }) if is_final && may_be_missing(serves, last.as_ref()) => {
            let error = away.chain();
            tracing::warn!(instance, error, "the VM is given up without a copy of its firmware state");
            return Ok(());
        }
        written => written?,
    }
    ctx.copied_firmware.record(instance, new);
    Ok(())
}

/// Copies the state that was just taken over from another host, before that is recorded here. Of an empty one there is no copy.
pub(crate) async fn keep(ctx: &Context, vm: &VM, instance: &str, archive: Vec<u8>) -> Result<(), Error> {
    let pool = pool_of(&ctx.index.read(), vm);
    let Some(pool) = pool.filter(|_| !archive.is_empty()) else { return Ok(()) };
    let _alone = ctx.copied_firmware.writing.lock(instance).await;
    pools::declare(ctx);
    let (uid, epoch) = (vm.uid().unwrap_or_default(), epoch_of(vm));
    let copy = FirmwareCopy { uid, epoch, is_final: false, archive };
    ctx.system.write_firmware_copy(&pool, instance, &copy).await?;
    ctx.copied_firmware.record(instance, Copied { digest: digest(&pool, &copy), is_final: false });
    Ok(())
}

/// Of all that the copy depends on: the same archive in another pool, or of another stay, is another copy.
fn digest(pool: &str, copy: &FirmwareCopy) -> Vec<u8> {
    let stay = format!("{pool}/{}/{}/", copy.uid, copy.epoch);
    Sha256::new().chain_update(stay).chain_update(&copy.archive).finalize().to_vec()
}

/// Whether the copy that was written last is as good as this one.
fn is_written(last: &Copied, new: &Copied) -> bool {
    last.digest == new.digest && (last.is_final || !new.is_final)
}

/// Whether a VM is given up without its last copy: the next host fetches the state from this one. Not if an earlier attempt to give the VM up
/// has left another copy that says to be the last one.
fn may_be_missing(serves: bool, last: Option<&Copied>) -> bool {
    serves && last.is_none_or(|last| !last.is_final)
}

/// Whether this host has the newest state of a VM: it has not given the VM up, and has fetched the state if another host had it.
fn has_state(vm: &VM, journal: &Journal) -> bool {
    let is_its = Some(&journal.uid) == vm.metadata.uid.as_ref();
    let is_fetched = vm.firmware_state_on().is_none() || journal.firmware == Some(epoch_of(vm));
    is_its && is_fetched && journal.released.is_none() && journal.epoch == epoch_of(vm)
}

/// Copies the firmware state of a VM whose QEMU has just ended.
pub(crate) async fn after_stop(ctx: &Context, vm: &VM) {
    let failed = match timeout(AFTER_STOP, copy(ctx, vm, false)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.chain(),
        Err(_) => "the pool does not answer in time".to_owned(),
    };
    tracing::warn!(vm = vm.name_any(), failed, "the firmware state of a VM is copied later");
}

/// Removes the copies of a VM that is deleted.
///
/// *Errors*: it has firmware state, and the pool of its boot disk is away. In others that are away here, it has no copy. The control plane does not
/// answer.
pub(crate) async fn remove(ctx: &Context, vm: &VM) -> Result<(), Error> {
    let Some(instance) = instance_of(vm) else { return Ok(()) };
    let (shared, boot) = {
        let tables = ctx.index.read();
        (shared_pools(&tables), boot_pool(&tables, vm))
    };
    if shared.is_empty() {
        return Ok(());
    }
    let own = match boot {
        _ if !vm.has_firmware_state() => None,
        // The disk is bound to another host: the VM is bound here only to be deleted.
        None => read_boot_pool(ctx, vm).await?,
        known => known,
    };
    let _alone = ctx.copied_firmware.writing.lock(instance).await;
    pools::declare(ctx);
    for pool in shared {
        match ctx.system.remove_firmware_copy(&pool, instance).await {
            Err(SystemError::PoolAway { .. }) if own.as_ref() != Some(&pool) => {}
            removed => removed?,
        }
    }
    ctx.copied_firmware.forget(instance);
    Ok(())
}

/// Removes the copies of a VM that does not exist any more, and whose instance is being removed from this host, as of one that was deleted without its
/// finalizer. Its QEMU has ended. In a pool that is away here they stay.
///
/// *Guarantees*: those of a VM that another host had after this one, or may have, stay. It may have the VM still, for a control plane that does not know
/// the VM any more, such as one of a time before.
///
/// *Errors*: the control plane does not answer.
pub(crate) async fn remove_lost(ctx: &Context, instance: &str, journal: &Journal) -> Result<(), Error> {
    if journal.released.is_some() {
        return Ok(());
    }
    let shared = shared_pools(&ctx.index.read());
    if shared.is_empty() {
        return Ok(());
    }
    // Read each time: a table has the VMs that are bound here only. One of this name with another uid may be about to get the instance.
    let vms: TypedApi<VM> = TypedApi::namespaced(ctx.client.clone(), &journal.namespace);
    let vm = vms.get_opt(&journal.name).await.map_err(Error::api("read the VM of an instance"))?;
    if vm.is_some() {
        return Ok(());
    }
    let _alone = ctx.copied_firmware.writing.lock(instance).await;
    pools::declare(ctx);
    for pool in shared {
        let removed = match ctx.system.firmware_copy(&pool, instance, &journal.uid).await {
            Ok(Some(copy)) if copy.epoch > journal.epoch => Ok(()),
            Ok(Some(_)) => ctx.system.remove_firmware_copy(&pool, instance).await,
            found => found.map(drop),
        };
        if let Err(error) = removed {
            let error = error.chain();
            tracing::warn!(instance, pool, error, "a copy of firmware state without a VM may be left");
        }
    }
    ctx.copied_firmware.forget(instance);
    Ok(())
}

fn shared_pools(tables: &Tables) -> Vec<String> {
    let names = tables.pools.all().map(|(name, _)| name.name.clone());
    names.filter(|pool| is_shared(tables, pool)).collect()
}

/// Reads the pool of a boot disk that is not bound here. None: the VM has none, or its Disk is gone.
async fn read_boot_pool(ctx: &Context, vm: &VM) -> Result<Option<String>, Error> {
    let Some(boot) = vm.spec.disks.iter().find(|disk| disk.boot) else { return Ok(None) };
    let namespace = vm.namespace().unwrap_or_default();
    let disks: TypedApi<Disk> = TypedApi::namespaced(ctx.client.clone(), &namespace);
    let disk = disks.get_opt(boot.name.as_str()).await.map_err(Error::api("read the boot disk"))?;
    Ok(disk.map(|disk| disk.pool().to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_copy_is_written_again_in_another_pool_or_under_another_binding() {
        let copy = |epoch: i64| FirmwareCopy {
            uid: "u".to_owned(),
            epoch,
            is_final: false,
            archive: b"state".to_vec(),
        };
        let copied =
            |pool: &str, epoch: i64, is_final: bool| Copied { digest: digest(pool, &copy(epoch)), is_final };
        let last = copied("site", 2, false);
        assert!(is_written(&last, &copied("site", 2, false)));
        assert!(!is_written(&last, &copied("other", 2, false)), "the boot disk has moved there");
        assert!(!is_written(&last, &copied("site", 4, false)), "another host has written its own since");
        assert!(!is_written(&last, &copied("site", 2, true)), "it is not known as the last one");
        assert!(is_written(&copied("site", 2, true), &last));
    }

    #[test]
    fn a_pool_that_is_away_keeps_a_vm_only_on_a_host_from_which_no_other_fetches() {
        let last = |is_final| Copied { digest: Vec::new(), is_final };
        assert!(may_be_missing(true, None) && may_be_missing(true, Some(&last(false))));
        assert!(!may_be_missing(false, None), "the copy is the only way");
        assert!(!may_be_missing(true, Some(&last(true))), "that of an attempt before the guest ran again");
    }

    #[test]
    fn a_host_copies_only_the_state_that_is_the_newest() {
        let vm = |former: Option<&str>| -> VM {
            serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
                "spec": {"disks": [{"name": "root", "boot": true}]},
                "status": {"binding": {"host": "b", "epoch": 2}, "formerHost": former},
            }))
            .expect("a VM")
        };
        let journal = Journal::new(&vm(None));
        assert!(has_state(&vm(None), &journal));
        assert!(!has_state(&vm(Some("a")), &journal), "host a has it still");
        let fetched = Journal { firmware: Some(2), ..journal.clone() };
        assert!(has_state(&vm(Some("a")), &fetched), "it is not reported yet");
        let of_another = Journal { uid: "other".to_owned(), ..journal.clone() };
        let of_earlier_stay = Journal { epoch: 1, ..journal };
        assert!(!has_state(&vm(None), &of_another) && !has_state(&vm(None), &of_earlier_stay));
    }
}
