//! Plan for the CD-ROM drives of a VM and their media. Pure.
//!
//! A drive is there from a start of the machine on, in the slot of its position in the spec at that time. Its medium is
//! exchanged while the machine runs. A tray that the guest has opened is left open, unless the drive is declared otherwise.

use berth_api::vm::CdromStatus;
use berth_api::{Readiness, Reason};
use berth_qemu::block::ObservedCdrom;
use berth_qemu::machine::{CdromSpec, Format, Medium};

use super::cdroms::DeclaredCdrom;
use super::{MediumChange, Observed, Step};
use crate::converge::Plan;
use crate::journal::{Run, RunCdrom};
use crate::kinds::image::local::{self, Fetch};
use crate::machine::MachineState;

/// Returns the medium that is to be in the drive, or the plan to wait for it.
fn medium(drive: &DeclaredCdrom) -> Result<Option<Medium>, Plan<Step>> {
    let Some((name, image)) = &drive.image else { return Ok(None) };
    let facts = local::ready(name, image, |fetch, source| match fetch {
        Fetch::Pull => Step::Pull(source),
        Fetch::FollowPull => Step::FollowPull(source),
    })?;
    if facts.format != Format::Iso {
        let (drive, format) = (&drive.name, facts.format.name());
        let text = format!(
            "CD-ROM drive {drive}: Image {name} has the format {format}, and a medium has the format iso"
        );
        return Err(Plan::without_steps(Readiness::Stalled(Reason::InvalidSpec, text)));
    }
    Ok(Some(Medium { digest: facts.digest.clone(), file: facts.path.clone() }))
}

/// Returns the drives of a machine to be started, or the plan to wait for the first medium that is missing.
pub(super) fn drives(observed: &Observed) -> Result<Vec<CdromSpec>, Plan<Step>> {
    let spec = |(slot, drive): (u8, &DeclaredCdrom)| {
        let (serial, boot_first) = (drive.name.clone(), drive.boot_first);
        Ok(CdromSpec { slot, serial, boot_first, medium: medium(drive)? })
    };
    (0u8..).zip(&observed.cdroms).map(spec).collect()
}

/// Returns the drives to record for a machine to be started.
pub(super) fn recorded(declared: &[DeclaredCdrom]) -> Vec<RunCdrom> {
    let one = |drive: &DeclaredCdrom| RunCdrom { name: drive.name.clone(), boot_first: drive.boot_first };
    declared.iter().map(one).collect()
}

/// Returns the drives of the running machine.
fn present<'a>(
    run: &'a Run,
    machine: &'a MachineState,
) -> impl Iterator<Item = (&'a RunCdrom, &'a ObservedCdrom)> {
    let drive = |slot: u8| machine.cdroms.iter().find(move |drive| drive.slot == slot);
    (0u8..).zip(&run.cdroms).filter_map(move |(slot, recorded)| Some((recorded, drive(slot)?)))
}

/// Returns the steps that bring the media of a running machine to what is declared, and what the VM waits for.
pub(super) fn changes(observed: &Observed, machine: &MachineState) -> (Vec<Step>, Option<Readiness>) {
    let (mut steps, mut waits) = (Vec::new(), None);
    let Some(run) = &observed.journal.run else { return (steps, waits) };
    for (recorded, drive) in present(run, machine) {
        let declared = observed.cdroms.iter().find(|declared| declared.name == recorded.name);
        let wanted = match declared.map_or(Ok(None), medium) {
            Ok(wanted) => wanted,
            Err(plan) => {
                steps.extend(plan.steps);
                waits.get_or_insert(plan.readiness);
                continue;
            }
        };
        if drive.node == wanted.as_ref().map(|medium| Medium::node(drive.slot, &medium.digest)) {
            let is_kept = declared.is_some_and(|declared| !declared.guest_can_eject);
            steps.extend((is_kept && drive.tray_open).then_some(Step::CloseTray(drive.slot)));
            continue;
        }
        let name = recorded.name.clone();
        if drive.locked {
            let text =
                format!("the guest uses the medium in CD-ROM drive {name}: unmount it there, or stop the VM");
            waits.get_or_insert(Readiness::Reconciling(Reason::GuestBusy, text));
        }
        let (slot, former) = (drive.slot, drive.node.clone());
        steps.push(Step::ChangeMedium(Box::new(MediumChange { name, slot, medium: wanted, former })));
    }
    (steps, waits)
}

/// Returns the names of drives that differ between the running machine and one started now.
pub(super) fn unsynced(run: &Run, declared: &[DeclaredCdrom]) -> Vec<String> {
    let wanted = recorded(declared);
    let differing = run.cdroms.iter().filter(|has| !wanted.contains(has));
    let differing = differing.chain(wanted.iter().filter(|wanted| !run.cdroms.contains(wanted)));
    let names: std::collections::BTreeSet<&str> = differing.map(|drive| drive.name.as_str()).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// Returns the drives of the running machine as read from QEMU.
pub(super) fn status(observed: &Observed) -> Vec<CdromStatus> {
    let (Some(run), Some(machine)) = (&observed.journal.run, &observed.machine) else { return Vec::new() };
    let one = |(recorded, drive): (&RunCdrom, &ObservedCdrom)| CdromStatus {
        name: recorded.name.clone(),
        inserted: drive.node.is_some(),
        tray_open: drive.tray_open,
    };
    present(run, machine).map(one).collect()
}
