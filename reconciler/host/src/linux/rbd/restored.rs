//! Volumes that are made from backups.
//!
//! ```text
//!             note (intent)     blank image, metadata      data, through qemu-nbd      note (complete)
//!    nothing ────────────▶ ○ ──────────────────────▶ ○ ───────────────────────▶ ○ ───────────────▶ volume
//! ```
//!
//! The image of an interrupted call has a part of the data: a later call, or the removal of unfinished volumes, deletes it.

use berth_qemu::machine::DiskKey;
use berth_qemu::qcow2;

use super::super::layout::check_name;
use super::super::qemu_img::DiskNode;
use super::super::volumes::wanted_size;
use super::client::PATIENCE;
use super::images::{FEATURES, bytes};
use super::note::Note;
use super::unfinished::Alone;
use super::volumes::{being_made, check_plain, damaged};
use super::{RbdPool, Result};
use crate::{NewVolume, SystemError, VolumeFacts};

/// The state of a volume that is to be made from a backup.
#[derive(Debug)]
pub(in super::super) enum Begun<'a> {
    There(Box<VolumeFacts>),
    Blank(Box<Blank<'a>>),
}

/// A new image of zeros, or one whose data is still undefined if it is encrypted. Nothing else makes or removes it meanwhile.
#[derive(Debug)]
pub(in super::super) struct Blank<'a> {
    note: Note,
    node: DiskNode,
    _alone: Alone<'a>,
}

impl Blank<'_> {
    pub(in super::super) fn node(&self) -> DiskNode {
        self.node.clone()
    }
}

impl RbdPool {
    /// `least` is the size of the backup, and `key` that of an encrypted volume.
    pub(in super::super) async fn begin_restored(
        &self,
        new: &NewVolume,
        least: u64,
        key: Option<&DiskKey>,
    ) -> Result<Begun<'_>> {
        check_name("volume", &new.id)?;
        check_plain(new)?;
        self.ensure_there().await?;
        let size = wanted_size(new, Some(least.next_multiple_of(qcow2::SECTOR)))?;
        let alone = self.alone(&new.id).ok_or_else(|| being_made(&new.id))?;
        match self.note(&new.id).await? {
            Some(note) if note.deleted_at.is_some() => {
                return Err(damaged(&new.id, "it is in the trash: it has to be restored, not made again"));
            }
            Some(note) if note.complete => {
                let found = self.volume(&new.id).await?;
                let found = found.ok_or_else(|| SystemError::VolumeLost { id: new.id.clone() })?;
                return Ok(Begun::There(Box::new(found)));
            }
            _ => {}
        }
        let header = match key {
            Some(key) => Some(self.make_header(key).await?),
            None => None,
        };
        let mut note = Note::new(new, self.host());
        note.luks = self.luks_of(new, header.as_ref()).await?;
        let image = Self::name_of(&new.id);
        if self.size(&image).await?.is_some() {
            if !self.is_made_for(&note).await? {
                let detail = "an image of its name is in Ceph, which this host did not make";
                return Err(damaged(&new.id, detail));
            }
            self.remove(&new.id).await?;
        }
        self.write_note(&note).await?;
        let (spec, wanted) = (self.spec(&image), bytes(size.saturating_add(note.header())));
        self.must(&["create", "--size", &wanted, "--image-feature", FEATURES, &spec], PATIENCE * 4).await?;
        self.set_meta(&image, &note.text()).await?;
        if let Some(header) = &header {
            self.write_header(&new.id, header).await?;
        }
        let node = self.node(&image, None, key.is_some());
        Ok(Begun::Blank(Box::new(Blank { note, node, _alone: alone })))
    }

    /// Makes the image the volume. All its data is in Ceph already.
    pub(in super::super) async fn finish_restored(&self, made: Blank<'_>) -> Result<VolumeFacts> {
        let Blank { note, node: _, _alone } = made;
        let id = note.volume_id.clone();
        self.write_note(&Note { complete: true, ..note }).await?;
        tracing::info!(volume = id, "volume made in Ceph from a backup");
        self.volume(&id).await?.ok_or(SystemError::VolumeLost { id })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::Layout;
    use super::*;
    use crate::{CephAccess, RbdPoolMapping, VolumeOwner};

    #[tokio::test]
    async fn nothing_is_made_from_a_backup_while_the_pool_is_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let mapping: RbdPoolMapping = "fast=vms".parse().expect("a mapping");
        let pool = RbdPool::new(&Layout::new(folder.path()), mapping, CephAccess::default(), None);
        let (namespace, name) = ("n".to_owned(), "d".to_owned());
        let owner = VolumeOwner { namespace, name, uid: None, image: None, source: None };
        let new = NewVolume {
            pool: "fast".to_owned(),
            id: "v-1".to_owned(),
            size: None,
            base: None,
            snapshot: None,
            file: None,
            thick: false,
            shared: false,
            owner,
            encryption: None,
        };
        let begun = pool.begin_restored(&new, 1 << 20, None).await.map(drop);
        assert!(matches!(begun, Err(SystemError::PoolAway { .. })), "{begun:?}");
        let thick = NewVolume { thick: true, ..new };
        let begun = pool.begin_restored(&thick, 1 << 20, None).await.map(drop);
        assert!(matches!(begun, Err(SystemError::Invalid { .. })), "{begun:?}");
        assert!(pool.notes().await.expect("listed").is_empty(), "nothing is left to remove");
    }
}
