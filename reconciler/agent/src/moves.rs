//! Moves of disks to another pool of this host: whether the one that a Disk declares is due. The disk's reconcile starts it; VMs and
//! attachments wait for it before they open the disk.
//!
//! ```text
//!                        no snapshot, copy or image of it in the making        no machine has it open, and room
//!   declared ─▶ Waits ───────────────────────────────────────────────▶ Due ──────────────────────────────────────▶ Done
//!                                                                       │  ▲
//!                                             no room, an error ◀───────┘  └── tried again
//!                                                   Refused: the disk is used where it is meanwhile
//! ```
//!
//! The pool of the file on this host is what counts: a move whose status was lost is not done again. A start of a VM waits for one attempt
//! at most, as a refused move is not due.

use std::time::Duration;

use berth_api::condition::is_true;
use berth_api::{ConditionType, DEFAULT_NAME, Disk};
use berth_host::{NewMove, SystemError, VolumeFacts};
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Error;
use crate::index::{Tables, volume_of};
use crate::key::{Key, ObjectName};
use crate::pulls::{Pull, Wanted, percent};

/// Interval at which an obstacle is looked for again: a pool that is full or away, files that are merged.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The move that a Disk declares, as it is on this host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Move {
    /// Nothing: its file is in the declared pool.
    #[default]
    Done,
    /// Something else is done with its file first; the text is for people.
    Waits { to: String, text: String },
    /// It is not done now, and tried again after this time; the text is for people.
    Refused { text: String, again: Option<Duration> },
    /// It is done once no machine has the disk open, or goes on.
    Due { to: String, wanted: Box<Wanted>, pull: Option<Pull> },
}

impl Move {
    pub(crate) fn is_due(&self) -> bool {
        matches!(self, Self::Due { .. })
    }
}

/// Returns the moves that the Disks of this host declare.
pub(crate) fn wanted(tables: &Tables) -> impl Iterator<Item = Wanted> + '_ {
    tables.disks.all().filter_map(|(_, disk)| declared(disk)).map(|(wanted, _)| wanted)
}

pub(crate) async fn observe(ctx: &Context, disk: &Disk, volume: &VolumeFacts) -> Result<Move, Error> {
    let Some((wanted, new)) = declared(disk).filter(|(_, new)| new.from == volume.pool) else {
        return Ok(Move::Done);
    };
    let to = new.to.clone();
    let pull = ctx.pulls.state(&wanted, &Key::of(disk));
    match &pull {
        Some(Pull::Failed { readiness, again }) => {
            return Ok(Move::Refused { text: readiness.message().to_owned(), again: *again });
        }
        Some(_) => return Ok(Move::Due { to, wanted: Box::new(wanted), pull }),
        None => {}
    }
    {
        let tables = ctx.index.read();
        if !pool_exists(&tables, &to) {
            let text = format!("StoragePool {to} does not exist, or is being deleted");
            return Ok(Move::Refused { text, again: Some(LOOK_AGAIN) });
        }
        if let Some(text) = awaited(&tables, disk, &new.id) {
            return Ok(Move::Waits { to, text });
        }
    }
    Ok(match ctx.system.check_move(&new).await {
        Ok(()) => Move::Due { to, wanted: Box::new(wanted), pull: None },
        Err(error @ SystemError::VolumeBusy { .. }) => Move::Waits { to, text: error.to_string() },
        Err(error) => Move::Refused { text: error.chain(), again: Some(LOOK_AGAIN) },
    })
}

/// Whether a VM, or its attachment, waits for the move before it opens the disk. It does not wait while another machine has the disk open,
/// or may have: a further reader of a disk would not start until the others end.
pub(crate) async fn comes_first(
    ctx: &Context,
    disk: &Disk,
    volume: &VolumeFacts,
    vm_uid: Option<&str>,
) -> Result<bool, Error> {
    let namespace = disk.metadata.namespace.as_ref();
    Ok(match observe(ctx, disk, volume).await? {
        Move::Due { pull: Some(_), .. } => true,
        Move::Due { pull: None, .. } => !ctx.machines.holders(&volume.id).iter().any(|holder| {
            let is_other = holder.vm_uid.as_deref() != vm_uid;
            let is_near = holder.key.as_ref().is_none_or(|vm| Some(&vm.name.namespace) == namespace);
            is_other && (holder.is_certain || is_near)
        }),
        _ => false,
    })
}

/// Returns how much of the move of a Disk is done, in percent.
pub(crate) fn progress(ctx: &Context, disk: &Disk) -> Option<i64> {
    let (wanted, _) = declared(disk)?;
    match ctx.pulls.state(&wanted, &Key::of(disk))? {
        Pull::Running { done, total, .. } => percent(done, total),
        _ => None,
    }
}

/// Returns the move that a Disk declares. Its pool has been reported: before that, nothing is known to be moved.
fn declared(disk: &Disk) -> Option<(Wanted, NewMove)> {
    let from = disk.status.as_ref()?.pool.as_ref().filter(|from| *from != disk.target_pool())?;
    if disk.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let new = NewMove {
        id: volume_of(disk)?.to_owned(),
        from: from.to_string(),
        to: disk.target_pool().to_string(),
    };
    Some((Wanted::Move(disk.namespace().unwrap_or_default(), new.clone()), new))
}

/// Whether there is a StoragePool of this name. The pool `default` is every host's own folder, also without an object.
fn pool_exists(tables: &Tables, pool: &str) -> bool {
    let found = tables.pools.get(&ObjectName::new("", pool));
    pool == DEFAULT_NAME || found.is_some_and(|pool| pool.metadata.deletion_timestamp.is_none())
}

/// Returns the object that takes a snapshot of the disk in its present pool, or is made from one, for people.
fn awaited(tables: &Tables, disk: &Disk, volume: &str) -> Option<String> {
    let name = ObjectName::of(disk);
    let snapshot = tables.disk_snapshots.all().find(|(other, snapshot)| {
        let status = snapshot.status.as_ref();
        let is_bound = status.is_some_and(|status| status.volume_id.as_deref() == Some(volume));
        let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
        other.namespace == name.namespace
            && is_bound
            && status.is_some_and(|status| status.taken_at.is_none())
            && !is_true(conditions, ConditionType::Stalled)
    });
    if let Some((other, _)) = snapshot {
        return Some(format!("DiskSnapshot {} of it is being taken", other.name));
    }
    // One of a namespace that it is shared with no more is not made, and does not hold it up.
    let copy = tables.disks.all().find(|(other, copy)| {
        copy.is_copy_of_disk(&name.namespace, &name.name)
            && disk.is_shared_with(&other.namespace)
            && copy.metadata.deletion_timestamp.is_none()
            && copy.status.as_ref().is_some_and(|status| status.binding.is_some() && status.size.is_none())
    });
    if let Some((other, _)) = copy {
        return Some(format!("Disk {} is being copied from it", other.name));
    }
    let image = tables.images.all().find(|(other, image)| {
        let of_it = image.status.as_ref().is_some_and(|status| status.volume_id.as_deref() == Some(volume));
        of_it
            && disk.is_shared_with(&other.namespace)
            && image.digest().is_none()
            && image.metadata.deletion_timestamp.is_none()
    });
    image.map(|(other, _)| format!("Image {} is being made from it", other.name))
}
