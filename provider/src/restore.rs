//! Restores of disks and VMs from their snapshots: what a plan says about the data.

use berth_api::Power;
use tfplugin6::{AttributePath, Diagnostic};

use crate::{change::PlannedChange, field::declared_power};

/// Whether another restore is declared than before. Removing it changes nothing.
pub(crate) fn is_requested(change: &PlannedChange<'_>) -> bool {
    let (was, is) = (change.prior.get("restore"), change.planned.get("restore"));
    !is.is_null() && is != was && !is_done(change)
}

/// Whether the last restore is the one that is declared.
fn is_done(change: &PlannedChange<'_>) -> bool {
    let (done, is) = (change.prior.get("restored_from"), change.planned.get("restore"));
    !done.is_null() && ["snapshot", "token"].into_iter().all(|part| done.get(part) == is.get(part))
}

/// The object whose data is replaced.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Restored {
    Disk,
    Vm,
}

fn when_restored(power: Power) -> &'static str {
    match power {
        Power::Stopped => "All of its disks that the snapshot has get it together, while it is off.",
        _ => {
            "All of its disks that the snapshot has get it together, at its next power cycle: stop it (power = \"Stopped\"), or set \
             allow_reboot = true."
        }
    }
}

/// Warns that the data of the disk, or of the disks of the VM, is replaced, or that this restore is done already.
pub(crate) fn announce(change: &PlannedChange<'_>, of: Restored) -> Option<Diagnostic> {
    let (was, is) = (change.prior.get("restore"), change.planned.get("restore"));
    if !change.is_update() || change.is_applied || is.is_null() || is.is_unknown() || is == was {
        return None;
    }
    let name = is.get("snapshot").as_str().unwrap_or("(known after apply)");
    let (of, kind, when) = match of {
        Restored::Disk => (
            "disk",
            "DiskSnapshot",
            "This waits until no VM has the disk open: stop its VM (power = \"Stopped\") or restart it.",
        ),
        Restored::Vm => ("VM", "VMSnapshot", when_restored(declared_power(&change.planned))),
    };
    let (summary, detail) = if is_done(change) {
        let at = change.prior.get("restored_from").get("restored_at");
        let at = at.as_str().unwrap_or("an earlier time");
        let text = format!(
            "The {of} was restored from {kind} {name} with this token at {at}, and is not restored again. Set another \
             restore.token to restore it once more."
        );
        ("Nothing is restored".to_owned(), text)
    } else {
        let text = format!(
            "The {of} gets the data of {kind} {name}. {when} The data from before stays in the pool's trash for 24 hours (berth undelete \
             --as)."
        );
        (format!("The data of the {of} will be replaced"), text)
    };
    Some(Diagnostic::warning(summary, detail).at(AttributePath::root("restore")))
}

/// Returns whether this is a part of the attribute.
pub(crate) fn is_part(path: &AttributePath) -> bool {
    crate::planning::root(path) == Some("restore")
}
