//! The context id of a VM's vsock device. The kernel of the host decides which ids are free; a guest that runs keeps the one of its launch.

use berth_api::VM;
use berth_qemu::machine::{Extras, FIRST_CID, LAST_CID, MachineSpec};
use sha2::{Digest, Sha256};

use crate::context::Context;
use crate::error::Error;
use crate::journal::Journal;

/// Chooses the context id of a machine that is to be launched: that of the suspended machine, if it is free, and otherwise one that is
/// nearly always the same for the same instance. None: it has no vsock device, or the host has none.
pub(super) async fn choose(
    ctx: &Context,
    vm: &VM,
    instance: &str,
    journal: &Journal,
) -> Result<Option<u32>, Error> {
    let wanted = match &journal.suspension {
        Some(suspension) => suspension.machine.extras.vsock_cid,
        None => vm.spec.vsock.then(|| usual(instance)),
    };
    match wanted {
        Some(wanted) => Ok(ctx.system.free_vsock_cid(wanted).await?),
        None => Ok(None),
    }
}

/// Returns the machine of a launch before with a context id that is free now.
pub(super) async fn chosen_again(ctx: &Context, machine: MachineSpec) -> Result<MachineSpec, Error> {
    let Some(had) = machine.extras.vsock_cid else { return Ok(machine) };
    let free = ctx.system.free_vsock_cid(had).await?;
    Ok(with_cid(machine, free.unwrap_or(had)))
}

/// Returns the machine with this context id.
pub(super) fn with_cid(machine: MachineSpec, cid: u32) -> MachineSpec {
    let extras = Extras { vsock_cid: Some(cid), ..machine.extras };
    MachineSpec { extras, ..machine }
}

/// Why a machine with a vsock device cannot be launched here, for people.
pub(super) const NO_DEVICE: &str = "this host has no vsock devices, and the VM has one: load the module there (modprobe vhost_vsock), use a QEMU with \
                                    vhost-vsock-pci, or leave vsock out";

/// The context id that an instance has unless another device of its host has it.
fn usual(instance: &str) -> u32 {
    let digest = Sha256::digest(instance.as_bytes());
    let number = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
    FIRST_CID + number % (LAST_CID - FIRST_CID + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_has_the_same_context_id_and_another_one_another() {
        let (one, other) = (usual("i-0123456789ab"), usual("i-0123456789ac"));
        assert_eq!(one, usual("i-0123456789ab"));
        assert_ne!(one, other);
        assert!([one, other].iter().all(|cid| (FIRST_CID..=LAST_CID).contains(cid)));
    }
}
