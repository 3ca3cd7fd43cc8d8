//! VM: one QEMU on this host, with everything it stands on.
//!
//! ```text
//!            class, disks, networks, addresses, bootstrap there
//!  (bound) ─────────── Note ▸ EnsureNetworks ▸ MakeTap ▸ Launch ▸ Note ───▶ prelaunch ─────Start────▶ running
//!     ▲                                                                                                │ │
//!     │       restart policy, power cycle, another restartToken                  guest ended by itself │ │ stop asked for
//!     └───────────────────────────── stopped ◀── EndProcess ◀── Note (how it ended) ◀──────────────────┘ │
//!                                       ▲                                                                │
//!                                       └──────── EndProcess ◀── guest off, or grace over ◀── PressPowerButton
//!  deleted: stopped ▸ RemoveTap ▸ RemoveInstance ▸ (disks given back) ▸ Release
//! ```

mod admission;
mod apply;
mod journal;
mod observe;
mod plan;
mod seed;
mod status;

use async_trait::async_trait;
use berth_api::{Binding, Conditions, Readiness, VM, VMStatus};
use berth_qemu::block::ObservedDisk;
use berth_qemu::machine::{Cache, DiskSpec};
use jiff::Timestamp;

pub(crate) use admission::Admissions;
pub(crate) use apply::unplug;
pub(crate) use journal::{Journal, PublicNote};
pub(crate) use observe::Observed;

use crate::context::Context;
use crate::converge::{Kind, Plan};
use crate::error::Error;
use crate::machine::Look;
use crate::system::{LaunchConfig, TapConfig, VolumeFacts};

/// One thing to do about a VM.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Writes the journal: what comes after it can be told from what came before, whatever happens.
    Note(Box<Journal>),
    /// Makes the bridges and leases this VM needs real.
    EnsureNetworks,
    MakeTap(TapConfig),
    Launch(Box<LaunchConfig>),
    /// Lets the guest run.
    Start,
    Plug {
        pool: String,
        disk: Box<DiskSpec>,
    },
    Unplug {
        volume: String,
    },
    PressPowerButton,
    AskGuestToShutDown,
    /// Ends QEMU, by its monitor if that answers.
    EndProcess,
    RemoveTap(String),
    RemoveInstance,
    /// Lets go of the object.
    Release,
}

#[derive(Debug)]
pub(crate) struct VmKind;

#[async_trait]
impl Kind for VmKind {
    type Object = VM;
    type Status = VMStatus;
    type Observed = Observed;
    type Step = Step;

    async fn observe(ctx: &Context, vm: &VM) -> Result<Observed, Error> {
        observe::observe(ctx, vm).await
    }

    fn plan(vm: &VM, observed: &Observed) -> Plan<Step> {
        plan::plan(vm, observed)
    }

    async fn apply(ctx: &Context, vm: &VM, step: &Step) -> Result<(), Error> {
        apply::apply(ctx, vm, step).await
    }

    fn status(vm: &VM, observed: &Observed, readiness: &Readiness, now: Timestamp) -> VMStatus {
        status::status(vm, observed, readiness, now)
    }

    fn binding(vm: &VM) -> Option<&Binding> {
        vm.status.as_ref()?.binding.as_ref()
    }

    fn conditions(status: &VMStatus) -> &Conditions {
        &status.conditions
    }
}

/// A volume as QEMU is given it. Device and node are named by the volume's identity.
pub(crate) fn disk_spec(volume: &VolumeFacts, serial: &str, boot: bool, target: Option<u8>) -> DiskSpec {
    DiskSpec {
        id: volume.id.clone(),
        file: volume.path.clone(),
        format: volume.format,
        backing: volume.backing.clone(),
        serial: serial.to_owned(),
        wwn: None,
        boot,
        read_only: false,
        target,
        cache: Cache::default(),
    }
}

/// What QEMU has that neither the VM nor an attachment names. What it booted from stays until it is off.
fn unwanted<'a>(look: &'a Look, observed: &Observed) -> Vec<&'a ObservedDisk> {
    let boot = observed.journal.run.as_ref().map(|run| run.boot_volume.as_str());
    let wanted = |id: &str| {
        Some(id) == boot
            || observed.disks.iter().any(|d| d.volume_id.as_deref() == Some(id))
            || observed.attachments.contains_key(id)
    };
    look.disks.iter().filter(|disk| !wanted(&disk.id)).collect()
}
