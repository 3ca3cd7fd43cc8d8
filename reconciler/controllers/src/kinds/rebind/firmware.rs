//! The firmware variables and the memory of the TPM of a VM that leaves its host: whether the next one gets them.
//!
//! From a host that lives, its agent gives them to the next one. Those of a VM whose boot disk is in a shared pool, a folder or Ceph, are copied there, so
//! that they outlive a host that is lost.

use berth_api::{HostStatus, VM, VMStatus};
use kube::ResourceExt;

use crate::cache::Cache;

use super::{is_served, lives};

/// Returns why a VM with a TPM or Secure Boot does not leave this host.
pub(super) fn obstacle(cache: &Cache, vm: &VM, host: &str) -> Option<&'static str> {
    let has_tpm = vm.had_tpm() || cache.declares_tpm(vm);
    if !(has_tpm || has_secure_boot(vm)) || follows(cache, vm, host) {
        return None;
    }
    Some(match has_tpm {
        true => {
            "its TPM was on that host: another one gets it only from an agent that gives it away (status.firmwareMoves and status.server of the \
             Host), or from the copy in the pool of its boot disk, of type Shared or RBD"
        }
        false => {
            "its firmware variables, with the keys of Secure Boot, were on that host: another one gets them only from an agent that gives them away \
             (status.firmwareMoves and status.server of the Host), or from the copy in the pool of its boot disk, of type Shared or RBD"
        }
    })
}

/// Returns the status of a VM that has left this host with the mark that its firmware state is there, if the next one gets it.
pub(super) fn marked(cache: &Cache, vm: &VM, host: &str, mut status: VMStatus) -> VMStatus {
    if vm.has_firmware_state() && follows(cache, vm, host) {
        // One that has another mark was not fetched here.
        status.former_host.get_or_insert_with(|| host.to_owned());
    }
    status
}

/// Returns why a VM with a TPM or Secure Boot cannot go to this host: an older agent there would start it without.
pub(in super::super) fn takes_none(cache: &Cache, vm: &VM, host: &str) -> Option<String> {
    ((vm.had_tpm() || has_secure_boot(vm)) && !moves_firmware(cache, host)).then(|| {
        format!(
            "it would go to host {host}, whose agent does not fetch firmware variables and TPMs (status.firmwareMoves)"
        )
    })
}

fn has_secure_boot(vm: &VM) -> bool {
    let hardware = vm.status.as_ref().and_then(|status| status.hardware.as_ref());
    hardware.is_some_and(|hardware| hardware.firmware == "UEFISecureBoot")
}

fn follows(cache: &Cache, vm: &VM, host: &str) -> bool {
    let holder = vm.firmware_state_on().unwrap_or(host);
    let is_deleted = cache.tables.hosts.cluster(holder).is_none();
    let gives = lives(cache, holder) && is_served(cache, holder);
    (is_deleted || moves_firmware(cache, holder)) && (gives || is_copied(cache, vm))
}

pub(super) fn moves_firmware(cache: &Cache, host: &str) -> bool {
    let host = cache.tables.hosts.cluster(host);
    let status: Option<&HostStatus> = host.and_then(|host| host.status.as_ref());
    status.and_then(|status| status.firmware_moves).unwrap_or_default()
}

/// Whether hosts copy the firmware state of a VM into a shared pool: that of its boot disk.
fn is_copied(cache: &Cache, vm: &VM) -> bool {
    let Some(boot) = vm.spec.disks.iter().find(|disk| disk.boot) else { return false };
    let disk = cache.tables.disks.named(&vm.namespace().unwrap_or_default(), boot.name.as_str());
    let pool = disk.and_then(|disk| cache.tables.storage_pools.cluster(disk.pool().as_str()));
    pool.is_some_and(|pool| pool.spec.pool_type.is_shared())
}
