//! Encrypted images: a LUKS header, and after it the data, which machines and the programs that write it encrypt.
//!
//! ```text
//!   header in a file of this host ──copied──▶ new image ──data, by a program that has the key──▶ volume
//!   snapshot of an encrypted image ──cloned, with its header──────────────────────────────────▶ volume
//! ```
//!
//! The program that makes a header has the key and no way to Ceph. An image has the size that its guest sees and that of its header. Parts
//! that were never written are no zeros: they are what the cipher makes of those.

use std::collections::BTreeMap;
use std::path::PathBuf;

use berth_qemu::machine::{DiskKey, DiskSpec, Format};

use super::super::files::{self, blocking};
use super::super::qemu_img::text;
use super::super::volumes::create_header;
use super::client::PATIENCE;
use super::filled::Folder;
use super::images::Target;
use super::note::{Luks, Note};
use super::snapshots::SnapshotNote;
use super::volumes::damaged;
use super::{RbdPool, RbdPools, Result};
use crate::keyring::Keyring;
use crate::{NewVolume, SealedKey, SystemError};

/// Returns an encryption with another form of the same key. None: it has another key, or there is none.
fn rewrapped(of: Option<&Luks>, sealed: &SealedKey) -> Option<Luks> {
    let of = of.filter(|of| of.key.id == sealed.id)?;
    Some(Luks { key: sealed.clone(), header: of.header })
}

/// A new header in a file, which goes with the work.
#[derive(Debug)]
pub(super) struct Header {
    file: PathBuf,
    /// Its size.
    bytes: u64,
    _folder: Folder,
}

impl RbdPools {
    /// Returns the keys of the encrypted disks among these that are in Ceph, by their ids.
    ///
    /// *Errors*: [`SystemError::KeyMissing`], [`SystemError::VolumeLost`].
    pub(in super::super) async fn keys_of(
        &self,
        disks: &[DiskSpec],
        keys: &Keyring,
    ) -> Result<BTreeMap<String, DiskKey>> {
        let mut found = BTreeMap::new();
        for disk in disks.iter().filter(|disk| disk.format == Format::Luks) {
            let mut luks = None;
            for pool in self.all() {
                let note = pool.note(&disk.id).await?.filter(Note::is_there);
                luks = luks.or(note.and_then(|note| note.luks));
            }
            let key = keys.key_of(&disk.id, luks.as_ref().map(|luks| &luks.key))?;
            let key = key.ok_or_else(|| SystemError::VolumeLost { id: disk.id.clone() })?;
            found.insert(disk.id.clone(), key);
        }
        Ok(found)
    }
}

impl RbdPool {
    /// Makes the header of an image, which this key opens.
    pub(super) async fn make_header(&self, key: &DiskKey) -> Result<Header> {
        let folder = self.numbered_folder("luks");
        let key = key.clone();
        let make = move || {
            files::ensure_private_folder(&folder.0)?;
            let file = folder.0.join("header");
            let bytes = create_header(&file, &key)?;
            Ok::<_, SystemError>(Header { file, bytes, _folder: folder })
        };
        blocking(make).await
    }

    /// Writes a header to the beginning of an image.
    pub(super) async fn write_header(&self, id: &str, header: &Header) -> Result<()> {
        let source = format!("file:{}", text(&header.file));
        let name = Self::name_of(id);
        self.convert(
            &["-f", "raw", &source],
            Target { name: &name, key: None },
            PATIENCE * 4,
            (0, &|_, _| {}),
        )
        .await
    }

    /// Returns the encryption of a new volume: with this header of its own, or with that of the snapshot that it is a clone of.
    pub(super) async fn luks_of(&self, new: &NewVolume, own: Option<&Header>) -> Result<Option<Luks>> {
        let Some(key) = new.encryption.as_deref().cloned() else { return Ok(None) };
        let header = match (own, &new.snapshot) {
            (Some(own), _) => Some(own.bytes),
            (None, Some(snapshot)) => {
                let luks = self.snapshot_note(snapshot).await?.and_then(|note| note.luks);
                luks.map(|luks| luks.header)
            }
            (None, None) => None,
        };
        // With another size of it, the guest would see another size of the disk.
        let header = header.ok_or_else(|| damaged(&new.id, "the size of its LUKS header is not known"))?;
        Ok(Some(Luks { key, header }))
    }

    /// Writes another form of its key into the notes of a volume and its snapshots. The image does not change.
    pub(in super::super) async fn rewrap(&self, id: &str, sealed: &SealedKey) -> Result<()> {
        self.ensure_there().await?;
        let lost = || SystemError::VolumeLost { id: id.to_owned() };
        let _alone = self.trashing.lock().await;
        let note = self.note(id).await?.ok_or_else(lost)?;
        if !self.owns_now(&note).await? {
            return Err(lost());
        }
        let Some(luks) = rewrapped(note.luks.as_ref(), sealed) else {
            return Err(damaged(id, "it has another key than the one that is wrapped"));
        };
        // The volume comes last: after a crash all of it is done again.
        for note in self.snapshot_notes().await?.into_iter().filter(|note| note.volume_id == id) {
            if let Some(luks) = rewrapped(note.luks.as_ref(), sealed) {
                self.write_snapshot_note(&SnapshotNote { luks: Some(luks), ..note }).await?;
            }
        }
        let note = Note { luks: Some(luks), ..note };
        self.set_meta(&Self::name_of(id), &note.text()).await?;
        self.write_note(&note).await?;
        tracing::info!(volume = id, wrapped_by = sealed.wrapped_by, "key of a volume in Ceph wrapped again");
        Ok(())
    }
}

#[cfg(test)]
#[path = "luks_tests.rs"]
mod tests;
