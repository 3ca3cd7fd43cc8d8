//! The identity of a snapshot, and the parts of a VMSnapshot on this host.

use std::sync::Arc;

use berth_api::DiskSnapshot;
use berth_host::{NewSnapshot, VolumeOwner};
use kube::ResourceExt;

use crate::context::Context;
use crate::error::Error;
use crate::index::Tables;
use crate::key::ObjectName;

/// The parts that a snapshot is taken with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Those on this host, itself included, in the order of their names. None of them is being deleted.
    pub(crate) here: Vec<NewSnapshot>,
    /// The number of all parts.
    pub(crate) total: usize,
    /// Whether the memory of the guest is saved with them.
    pub(crate) memory: bool,
    /// The name of another one that takes all of them: the first that is not taken.
    pub(crate) taken_by: Option<String>,
}

/// Returns the parts of the VMSnapshot that this snapshot is a part of, without itself.
pub(super) fn beside<'a>(
    name: &'a ObjectName,
    snapshot: &'a DiskSnapshot,
    tables: &'a Tables,
) -> impl Iterator<Item = (&'a ObjectName, &'a Arc<DiskSnapshot>)> {
    let whole = snapshot.part_of();
    tables.disk_snapshots.all().filter(move |(other, part)| {
        whole.is_some()
            && part.part_of().map(|of| of.name) == whole.map(|of| of.name)
            && other.namespace == name.namespace
            && other.name != name.name
    })
}

/// Returns the parts that a snapshot is taken with. `None`: it is no part.
pub(super) async fn observe(ctx: &Context, snapshot: &DiskSnapshot) -> Result<Option<Parts>, Error> {
    let Some(whole) = snapshot.part_of() else { return Ok(None) };
    let name = ObjectName::of(snapshot);
    let mut here: Vec<NewSnapshot> = {
        let tables = ctx.index.read();
        let lives = |part: &DiskSnapshot| part.metadata.deletion_timestamp.is_none();
        let others = beside(&name, snapshot, &tables).filter(|(_, part)| lives(part));
        others.filter_map(|(_, part)| identity(part)).chain(identity(snapshot)).collect()
    };
    let name_of = |new: &NewSnapshot| new.owner.as_ref().map(|owner| owner.name.clone());
    here.sort_by_key(name_of);
    let mut taken_by = None;
    for before in here.iter().take_while(|new| name_of(new).is_some_and(|other| other < name.name)) {
        let found = ctx.system.snapshot(&before.pool, &before.id).await?;
        if found.is_none_or(|facts| facts.taken.is_none()) {
            taken_by = name_of(before);
            break;
        }
    }
    Ok(Some(Parts { here, total: whole.parts, memory: whole.memory, taken_by }))
}

/// Returns the snapshot as the controllers decided it.
pub(super) fn identity(snapshot: &DiskSnapshot) -> Option<NewSnapshot> {
    let status = snapshot.status.as_ref()?;
    let owner = VolumeOwner {
        namespace: snapshot.namespace().unwrap_or_default(),
        name: snapshot.name_any(),
        uid: snapshot.uid(),
        image: None,
        source: None,
    };
    Some(NewSnapshot {
        pool: status.pool.as_ref()?.to_string(),
        id: status.snapshot_id.clone()?,
        volume: status.volume_id.clone()?,
        owner: Some(owner),
    })
}
