//! vGPUs for a VM: of which devices of the host it gets them.

use berth_api::{DeviceBus, DeviceName, Readiness, Reason};
use berth_host::VgpuFacts;
use berth_qemu::machine::VgpuSpec;

use crate::hardware::uuid_from;
use crate::journal::Held;

/// The number of devices that a message names.
const NAMED: usize = 4;
/// Why a device has room for no vGPU of a type, although VMs have none of that type of it.
const NO_MORE: &str =
    "its driver makes no more of this type now: other programs have them, or there are some of another type";

/// The UUID of a vGPU of an instance: always the same for the same place in its list, so that one that was made before an interruption is
/// found again.
fn uuid_of(instance: &str, place: usize) -> String {
    uuid_from(&format!("{instance} vgpu {place}"))
}

/// Returns the number of vGPUs that an instance can have of a device, with those that it has. Of others only those
/// that exist take room: after a boot of the host there are records without vGPUs, whose VMs would keep each other from starting.
fn room(facts: &VgpuFacts, instance: &str) -> usize {
    let is_of_another =
        |(uuid, holder): &(&String, &String)| *holder != instance && facts.made.contains(*uuid);
    let others = facts.held_by.iter().filter(is_of_another).count();
    let usable = if facts.problem.is_none() { facts.usable } else { 0 };
    usize::try_from(usable).unwrap_or(usize::MAX).saturating_sub(others)
}

/// Chooses the devices of the vGPUs of one name. `first`: the place of the first of them in the list of all vGPUs of the VM. Those that it
/// has already come first, so that a start that was interrupted goes on with them. The others are of the first devices with room, which
/// leaves the last ones to VMs that need several, or whole devices. The error: the VM's readiness, while it cannot have them.
pub(super) fn of_name(
    name: &DeviceName,
    (first, count): (usize, usize),
    all: &[VgpuFacts],
    instance: &str,
) -> Result<Vec<Held<VgpuSpec>>, Readiness> {
    let offered: Vec<&VgpuFacts> = all.iter().filter(|facts| facts.name == name.name).collect();
    let uuids: Vec<String> = (first..first + count).map(|place| uuid_of(instance, place)).collect();
    let mut rooms: Vec<(&VgpuFacts, usize)> =
        offered.iter().map(|facts| (*facts, room(facts, instance))).collect();
    let has =
        |facts: &VgpuFacts, uuid: &String| facts.held_by.get(uuid).is_some_and(|holder| holder == instance);
    let mut parents: Vec<Option<&VgpuFacts>> = Vec::new();
    for uuid in &uuids {
        let kept = rooms.iter_mut().find(|(facts, left)| *left > 0 && has(facts, uuid));
        parents.push(kept.map(|(facts, left)| {
            *left -= 1;
            *facts
        }));
    }
    for parent in parents.iter_mut().filter(|parent| parent.is_none()) {
        if let Some((facts, left)) = rooms.iter_mut().find(|(_, left)| *left > 0) {
            *left -= 1;
            *parent = Some(*facts);
        }
    }
    let held = |(uuid, parent): (&String, Option<&VgpuFacts>)| {
        let facts = parent?;
        let (parent, mdev_type) = (facts.parent.clone(), facts.mdev_type.clone());
        let device = VgpuSpec { uuid: uuid.clone(), parent, mdev_type };
        Some(Held { name: name.name.clone(), device })
    };
    let chosen: Option<Vec<Held<VgpuSpec>>> = uuids.iter().zip(parents).map(held).collect();
    chosen.ok_or_else(|| {
        Readiness::Stalled(Reason::DeviceUnavailable, too_few(name, count, &offered, instance))
    })
}

fn too_few(name: &DeviceName, count: usize, offered: &[&VgpuFacts], instance: &str) -> String {
    if offered.is_empty() {
        let option = DeviceBus::Mdev.option();
        return format!("this host offers no {name}: its administrator does with {option}");
    }
    let obstacle = |facts: &&VgpuFacts| {
        let in_use = || match facts.usable {
            0 => NO_MORE.to_owned(),
            usable => format!("other VMs have all {usable} of it"),
        };
        let is_full = room(facts, instance) == 0;
        let obstacle = facts.problem.clone().or_else(|| is_full.then(in_use))?;
        Some(format!("{}: {obstacle}", facts.parent))
    };
    let obstacles: Vec<String> = offered.iter().filter_map(obstacle).take(NAMED).collect();
    let usable: usize = offered.iter().map(|facts| room(facts, instance)).sum();
    let offers = format!("the VM needs {count} {name} and this host has {usable} for it");
    if obstacles.is_empty() { offers } else { format!("{offers} ({})", obstacles.join("; ")) }
}
