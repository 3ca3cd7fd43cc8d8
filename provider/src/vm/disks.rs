//! The disks of a VM: what a plan checks.

use std::collections::BTreeSet;

use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    change::PlannedChange,
    disk,
    field::{Effect, declared_power},
};

/// Refuses buses that cannot have the disks.
pub(super) fn check_buses(config: &Value) -> Vec<Diagnostic> {
    let disks = config.get("disks").elements();
    let sata = |disk: &Value| disk.get("bus").as_str() == Some("sata");
    let mut found = Vec::new();
    for (i, disk) in disks.iter().enumerate() {
        if sata(disk) && disk.get("read_only").as_bool() == Some(true) {
            let path = AttributePath::root("disks").index(i).attribute("read_only");
            let detail =
                format!("{path}: a disk on sata cannot be read-only. Use virtio-scsi or virtio-blk.");
            found.push(Diagnostic::error("A disk on sata cannot be read-only", detail).at(path));
        }
    }
    if let Some((seventh, _)) = disks.iter().enumerate().filter(|(_, disk)| sata(disk)).nth(6) {
        let path = AttributePath::root("disks").index(seventh).attribute("bus");
        found
            .push(Diagnostic::error("More than 6 disks on sata", "At most 6 disks can be on sata.").at(path));
    }
    found
}

pub(super) fn check_templates(config: &Value) -> Vec<Diagnostic> {
    let disks = config.get("disks").elements().iter().enumerate();
    let templates = disks.filter_map(|(i, element)| {
        let template = element.get("template");
        let path = AttributePath::root("disks").index(i).attribute("template");
        template.is_set().then(|| disk::check_declared(template, &path)).flatten()
    });
    templates.collect()
}

/// Refuses templates with a smaller size than before.
pub(super) fn refuse_smaller_templates(change: &mut PlannedChange<'_>) {
    let mut refused = Vec::new();
    for (i, planned) in change.planned.get("disks").elements().iter().enumerate() {
        let same_name = |prior: &&Value| prior.get("name") == planned.get("name");
        let Some(prior) = change.prior.get("disks").elements().iter().find(same_name) else { continue };
        if let Some(detail) = disk::shrinks(prior.get("template"), planned.get("template")) {
            refused.push((
                detail,
                AttributePath::root("disks").index(i).attribute("template").attribute("size"),
            ));
        }
    }
    for (detail, path) in refused {
        change.refuse("A disk cannot shrink", detail, path);
    }
}

pub(super) fn check_disks(config: &Value) -> Vec<Diagnostic> {
    let disks = config.get("disks");
    let boots: Vec<&Value> = disks.elements().iter().map(|disk| disk.get("boot")).collect();
    if disks.is_unknown() || boots.iter().any(|boot| boot.is_unknown()) {
        return Vec::new();
    }
    let booting: Vec<usize> =
        boots.iter().enumerate().filter(|(_, boot)| boot.as_bool() == Some(true)).map(|(i, _)| i).collect();
    match booting.as_slice() {
        [_] => Vec::new(),
        [] if disks.is_null() => Vec::new(),
        [] => {
            let detail = "Exactly one disk must have boot = true: the VM starts from it.";
            vec![Diagnostic::error("No boot disk", detail).at("disks")]
        }
        [_, second, ..] => {
            let detail = format!(
                "{} disks have boot = true; exactly one may. Remove it from the others.",
                booting.len()
            );
            let path = AttributePath::root("disks").index(*second).attribute("boot");
            vec![Diagnostic::error("More than one boot disk", detail).at(path)]
        }
    }
}

/// The names of the disks that a running VM cannot get or lose.
fn fixed_disks(state: &Value) -> BTreeSet<&str> {
    let disks = state.get("disks").elements().iter();
    let fixed = disks.filter(|disk| disk.get("bus").as_str().is_some_and(|bus| bus != "virtio-scsi"));
    fixed.filter_map(|disk| disk.get("name").as_str()).collect()
}

/// Delays a change of the boot disk: a running VM keeps the disk it booted from until it is off. Disks on another bus than
/// virtio-scsi come and go at the next power cycle too.
pub(super) fn wait_with_another_boot_disk(change: &mut PlannedChange<'_>) {
    let boot = |state: &Value| {
        let disks = state.get("disks").elements();
        disks
            .iter()
            .find(|disk| disk.get("boot").as_bool() == Some(true))?
            .get("name")
            .as_str()
            .map(str::to_owned)
    };
    let (Some(was), Some(is)) = (boot(change.prior), boot(&change.planned)) else { return };
    let disks = AttributePath::root("disks");
    let effect = Effect::PowerCycle.with_power(declared_power(change.prior));
    let differs = was != is || fixed_disks(change.prior) != fixed_disks(&change.planned);
    for change in change.changes.iter_mut().filter(|change| differs && change.path == disks) {
        change.effect = effect;
    }
}
