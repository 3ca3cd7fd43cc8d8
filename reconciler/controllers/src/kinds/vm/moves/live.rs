//! Whether a VM that moves does so while it runs, and to which host.
//!
//! ```text
//!   it moves, it is to move live, it runs ──▶ nothing keeps its guest here, and a host fits: status.migration ──▶ its host sends the guest
//!                                         └─▶ else: it moves at its next stop, and Movable says why not before
//! ```
//!
//! The decision is written once for a binding. Its host alone removes it, with the record that it does not hand the guest over.

use berth_api::{HostStatus, Power, StoragePoolType, VM, VMStatus, vm::VMMigration};
use kube::ResourceExt;

use crate::{cache::Cache, config::Config};

use super::chosen;

/// The decision about a VM that moves live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Live {
    Moves(Box<VMMigration>),
    /// It moves at its next stop, for this reason.
    Refused(String),
}

/// Decides about a VM that can move. None: it does not move while it runs, or does not run.
pub(in super::super) fn decide(cache: &Cache, config: &Config, vm: &VM) -> Option<Live> {
    let status = vm.status.as_ref()?;
    let binding = status.binding.as_ref()?;
    if let Some(known) = status.live_move() {
        return Some(Live::Moves(Box::new(known.clone())));
    }
    let runs = status.process.is_some() && vm.spec.power == Power::Running;
    if !runs || !vm.moves_live(binding.epoch) {
        return None;
    }
    let decided = obstacle(cache, vm, status, &binding.host).map_or(Ok(()), Err);
    let decided = decided.and_then(|()| {
        let to = chosen(cache, config, vm, &binding.host)?;
        match unfit(cache, status, &to) {
            Some(why) => Err(format!("it would go to host {to}, {why}")),
            None => Ok(to),
        }
    });
    Some(match decided {
        Ok(to) => {
            let id = format!("m{}", config.identities.hex(12));
            let migration = VMMigration { id, to, epoch: binding.epoch, ..VMMigration::default() };
            Live::Moves(Box::new(migration))
        }
        Err(why) => Live::Refused(why),
    })
}

/// Returns why the guest stays on its host as long as it runs.
fn obstacle(cache: &Cache, vm: &VM, status: &VMStatus, host: &str) -> Option<String> {
    let has_devices =
        !status.pci_devices.is_empty() || !status.usb_devices.is_empty() || !status.vgpus.is_empty();
    let is_member = vm.spec.placement.as_ref().is_some_and(|placement| placement.group.is_some());
    let has_model_of_host = status.hardware.as_ref().is_some_and(|hardware| hardware.cpu_model == "host");
    let has_secure_boot =
        status.hardware.as_ref().is_some_and(|hardware| hardware.firmware == "UEFISecureBoot");
    let refusals = [
        (vm.had_tpm(), "its TPM moves while it is off"),
        (has_secure_boot, "its firmware variables, with the keys of Secure Boot, move while it is off"),
        (!moves_guests(cache, host), "its host has an agent that does not send running guests"),
        (has_devices, "it has devices of its host"),
        (!vm.spec.shares.is_empty(), "it has shared folders of its host"),
        (is_member, "it is a member of a placement group"),
        (has_model_of_host, "its CPU model is that of its host: declare cpuModel"),
    ];
    if let Some((_, why)) = refusals.iter().find(|(refuses, _)| *refuses) {
        return Some((*why).to_owned());
    }
    let namespace = vm.namespace().unwrap_or_default();
    vm.spec.disks.iter().find_map(|named| {
        let disk = cache.tables.disks.named(&namespace, named.name.as_str())?;
        let pool = cache.tables.storage_pools.cluster(disk.pool().as_str());
        let is_shared = pool.is_some_and(|pool| pool.spec.pool_type == StoragePoolType::Shared);
        (!is_shared).then(|| format!("Disk {} is in no pool of type Shared", named.name))
    })
}

/// Returns why a running guest cannot come to a host, as the end of a sentence about it.
fn unfit(cache: &Cache, status: &VMStatus, to: &str) -> Option<&'static str> {
    let accelerator = status.hardware.as_ref().map(|hardware| hardware.accelerator.as_str());
    let of_host = host_status(cache, to).and_then(|host| host.accelerator.as_deref());
    if !moves_guests(cache, to) {
        return Some("whose agent takes no running guests");
    }
    (accelerator != of_host).then_some("which has another accelerator (KVM, or emulation)")
}

fn moves_guests(cache: &Cache, host: &str) -> bool {
    host_status(cache, host).and_then(|status| status.live_migration).unwrap_or_default()
}

fn host_status<'a>(cache: &'a Cache, host: &str) -> Option<&'a HostStatus> {
    cache.tables.hosts.cluster(host)?.status.as_ref()
}
