//! The firmware variables and the memory of the TPM of a VM that has come from another host.
//!
//! ```text
//!   the former host ──its agent answers──────────────────────────────────────▶ its archive
//!                   └─it does not──▶ the copy in the shared pool of the boot disk: of a lost host, or the last one before the VM was given up
//! ```
//!
//! They are on disk here, and in a shared pool of the boot disk as a copy of this binding, before the journal records that, and that is before
//! `status.formerHost` is removed, by which the former host removes its own. An interruption before the record repeats all of it: the guest has not run here.

use berth_api::{Reason, VM};
use berth_host::{FirmwareCopy, RemoteError};
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Error;
use crate::firmware_copies;
use crate::journal::epoch_of;
use crate::key::ObjectName;
use crate::pools;

/// The firmware state that a VM starts with under a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FirmwareOrigin {
    /// That which this host has: the VM is back before another host has fetched it.
    Here,
    /// None: a person has accepted that it is lost.
    Nowhere,
    /// That of this former host.
    Host(String),
}

/// Puts the state in the place of that which the instance has from an earlier stay.
pub(super) async fn take_over(
    ctx: &Context,
    vm: &VM,
    instance: &str,
    origin: &FirmwareOrigin,
) -> Result<(), Error> {
    let archive = match origin {
        FirmwareOrigin::Here => Vec::new(),
        FirmwareOrigin::Nowhere => return Ok(ctx.system.install_firmware_state(instance, &[]).await?),
        FirmwareOrigin::Host(host) => {
            let archive = fetch(ctx, vm, instance, host).await?;
            ctx.system.install_firmware_state(instance, &archive).await?;
            tracing::info!(instance, host, bytes = archive.len(), "firmware state taken over");
            archive
        }
    };
    let is_needed = vm.had_tpm() && !vm.accepts_firmware_loss();
    if is_needed && !ctx.system.has_tpm_state(instance).await? {
        return Err(lost(vm, "its former host had none, and no other one has it"));
    }
    firmware_copies::keep(ctx, vm, instance, archive).await
}

/// Returns that a VM with a TPM has lost it.
pub(super) fn lost(vm: &VM, why: &str) -> Error {
    Error::FirmwareLost { detail: why.to_owned(), vm: vm.name_any(), epoch: epoch_of(vm) }
}

async fn fetch(ctx: &Context, vm: &VM, instance: &str, host: &str) -> Result<Vec<u8>, Error> {
    let waits = |detail: String| {
        let (host, vm, epoch) = (host.to_owned(), vm.name_any(), epoch_of(vm));
        Error::FormerHost { host, detail, vm, epoch }
    };
    let text = |error: RemoteError| match error {
        RemoteError::Unreachable(text) | RemoteError::Refused(text) => text,
    };
    let is_gone = ctx.copies.is_gone(host).await.map_err(|error| waits(text(error)))?;
    let why = match is_gone {
        true => format!("host {host} is gone for good, and there is no copy in a shared pool"),
        false => match ctx.copies.firmware_state(host, &ObjectName::of(vm), instance).await {
            Ok(archive) => return Ok(archive),
            Err(error) => text(error),
        },
    };
    let copy = match copy(ctx, vm, instance).await {
        Err(error) if error.reason() != Reason::PoolAway => {
            return Err(waits(format!("{why}; the copy in the shared pool: {}", error.chain())));
        }
        read => read?,
    };
    match copy.filter(|copy| is_usable(vm, copy, is_gone)) {
        Some(copy) => Ok(copy.archive),
        None if !is_gone => Err(waits(why)),
        None if vm.had_tpm() => Err(lost(vm, &why)),
        None => {
            tracing::warn!(instance, host, "the firmware variables of a VM were lost with its host");
            Ok(Vec::new())
        }
    }
}

async fn copy(ctx: &Context, vm: &VM, instance: &str) -> Result<Option<FirmwareCopy>, Error> {
    let pool = firmware_copies::pool_of(&ctx.index.read(), vm);
    let Some(pool) = pool else { return Ok(None) };
    pools::declare(ctx);
    Ok(ctx.system.firmware_copy(&pool, instance, &vm.uid().unwrap_or_default()).await?)
}

/// Whether a copy has the last state of a VM. That of a lost host is the newest that there is; of a host that lives it has to be the last one
/// before that gave the VM up. One of the present binding is of an attempt here that was interrupted.
fn is_usable(vm: &VM, copy: &FirmwareCopy, is_gone: bool) -> bool {
    let released = vm.status.as_ref().and_then(|status| status.released_epoch);
    let is_last = copy.is_final && released == Some(copy.epoch);
    let is_own = copy.epoch == epoch_of(vm);
    Some(&copy.uid) == vm.metadata.uid.as_ref() && (is_gone || is_last || is_own)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_copy_stands_in_for_a_lost_host_or_for_one_that_has_given_the_vm_up_since() {
        let vm: VM = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
            "spec": {"disks": [{"name": "root", "boot": true}]},
            "status": {"binding": {"host": "b", "epoch": 3}, "releasedEpoch": 2, "formerHost": "a"},
        }))
        .expect("a VM");
        let copy = |uid: &str, epoch: i64, is_final: bool| FirmwareCopy {
            uid: uid.to_owned(),
            epoch,
            is_final,
            archive: Vec::new(),
        };
        assert!(is_usable(&vm, &copy("u", 2, true), false));
        assert!(is_usable(&vm, &copy("u", 3, false), false), "this host has taken it over before");
        for (other, why) in [
            (copy("u", 1, true), "the guest has run since"),
            (copy("u", 2, false), "the guest may have run since"),
        ] {
            assert!(!is_usable(&vm, &other, false) && is_usable(&vm, &other, true), "{why}");
        }
        for epoch in [2, 3] {
            assert!(!is_usable(&vm, &copy("another", epoch, true), true));
        }
    }
}
