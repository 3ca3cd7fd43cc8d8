//! Snapshots of one moment of volumes in files and of others in Ceph.
//!
//! A snapshot in Ceph does not show with which files it was taken. Whether an interrupted call had taken them is seen by the files:
//!
//! | the files | the snapshots in Ceph |
//! |---|---|
//! | the machine continues in the new ones, which it opened while it ran | were taken in the same transaction |
//! | the machine has the former ones open | are taken anew |
//! | no machine writes to them, and the new ones are empty | are taken anew: the data of the files is still the same |
//! | the machine was started on the new ones, or they have data | may be of another moment, and are removed: [`SystemError::NotOneMoment`] |

use berth_host::{SystemError, VolumeFacts};
use berth_qemu::block::ObservedDisk;
use berth_qemu::machine::{DiskSpec, RbdImage};

use super::{Part, Writer, prepare_in_ceph};
use crate::context::Context;
use crate::error::Error;

/// Whether an interrupted call has taken these snapshots, none of which is finished. False if all are in Ceph, or none is.
///
/// *Errors:* [`SystemError::NotOneMoment`] if that is not known, and the files were written since.
pub(super) async fn were_taken(
    ctx: &Context,
    writer: Option<&Writer>,
    parts: &[&Part<'_>],
) -> Result<bool, Error> {
    let found = look(ctx, writer, parts).await;
    if matches!(&found, Err(Error::System(SystemError::NotOneMoment { .. }))) {
        // A disk whose snapshot is refused is finished by itself: what is in Ceph must not count as of that moment.
        prepare_in_ceph(ctx, parts, false).await?;
    }
    found
}

async fn look(ctx: &Context, writer: Option<&Writer>, parts: &[&Part<'_>]) -> Result<bool, Error> {
    let (images, files): (Vec<&Part<'_>>, Vec<_>) =
        parts.iter().copied().partition(|(_, volume)| RbdImage::is_rbd(&volume.path));
    if images.is_empty() || files.is_empty() {
        return Ok(false);
    }
    let is_open = |volume: &VolumeFacts| writer.is_some_and(|writer| writer.volumes.contains(&volume.id));
    if let Some(writer) = writer {
        let open = files.iter().map(|(_, volume)| volume).filter(|volume| is_open(volume));
        let overlays = writer.overlays(ctx, &open.collect::<Vec<_>>()).await?;
        if was_switched(&writer.state.disks, &overlays)? {
            return Ok(true);
        }
    }
    let closed: Vec<&Part<'_>> = files.into_iter().filter(|(_, volume)| !is_open(volume)).collect();
    ensure_unwritten(ctx, &closed).await?;
    Ok(false)
}

/// Checks that nothing was written to those of these volumes that are in files since their snapshots were begun.
///
/// *Errors:* [`SystemError::NotOneMoment`].
pub(super) async fn ensure_unwritten(ctx: &Context, closed: &[&Part<'_>]) -> Result<(), Error> {
    for (new, _) in closed.iter().filter(|(_, volume)| !RbdImage::is_rbd(&volume.path)) {
        if !ctx.system.is_as_in_snapshot(&new.pool, &new.volume, &new.id).await? {
            return Err(SystemError::NotOneMoment { id: new.volume.clone() }.into());
        }
    }
    Ok(())
}

/// Whether a machine was switched to these files while it ran.
///
/// *Errors:* [`SystemError::NotOneMoment`] if it was started on one of them, or the disk was plugged in with it.
pub(super) fn was_switched(disks: &[ObservedDisk], overlays: &[DiskSpec]) -> Result<bool, SystemError> {
    let mut is_switched = false;
    for overlay in overlays {
        let is_on_it =
            |disk: &&ObservedDisk| disk.id == overlay.id && disk.file.as_ref() == Some(&overlay.file);
        let Some(disk) = disks.iter().find(is_on_it) else { continue };
        // The first file of a disk is the node that has the name of the disk.
        if disk.node.as_ref() == Some(&disk.id) {
            return Err(SystemError::NotOneMoment { id: disk.id.clone() });
        }
        is_switched = true;
    }
    Ok(is_switched)
}

#[cfg(test)]
mod tests {
    use berth_qemu::block::IoLimits;
    use berth_qemu::machine::{Bus, Cache, Format};

    use super::*;

    fn overlay(id: &str, file: &str) -> DiskSpec {
        DiskSpec {
            id: id.to_owned(),
            file: file.into(),
            format: Format::Qcow2,
            backing: None,
            serial: id.to_owned(),
            wwn: None,
            boot: false,
            read_only: false,
            target: None,
            cache: Cache::Writeback,
            bus: Bus::VirtioScsi,
            keeps_space: false,
            shared: false,
        }
    }

    fn disk(id: &str, node: &str, file: &str) -> ObservedDisk {
        ObservedDisk {
            id: id.to_owned(),
            node: Some(node.to_owned()),
            serial: id.to_owned(),
            file: Some(file.into()),
            size: 1 << 20,
            read_only: false,
            bus: Bus::VirtioScsi,
            target: None,
            limits: IoLimits::default(),
            is_direct: false,
            files_below: 1,
            is_encrypted: false,
            io_error: false,
        }
    }

    #[test]
    fn a_machine_shows_whether_it_was_switched_to_new_files_or_started_on_them() {
        let new = [overlay("a", "/a.1.qcow2"), overlay("b", "/b.1.qcow2")];
        let former = [disk("a", "a", "/a.qcow2"), disk("b", "b", "/b.qcow2")];
        assert!(!was_switched(&former, &new).expect("known"), "the call ended before the transaction");
        let switched = [disk("a", "a.1", "/a.1.qcow2"), disk("b", "b.1", "/b.1.qcow2")];
        assert!(was_switched(&switched, &new).expect("known"), "it ended after the transaction");
        let started = [disk("a", "a", "/a.1.qcow2"), disk("b", "b", "/b.1.qcow2")];
        let error = was_switched(&started, &new).expect_err("the guest has written to its disks since");
        assert!(matches!(error, SystemError::NotOneMoment { id } if id == "a"));
        // After an earlier snapshot the former file is a node of another name, too.
        let next = [overlay("a", "/a.2.qcow2"), overlay("b", "/b.2.qcow2")];
        assert!(!was_switched(&switched, &next).expect("known"));
        assert!(!was_switched(&[], &next).expect("known"), "the machine has none of them open");
    }
}
