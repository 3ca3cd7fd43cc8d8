//! Volumes that are copied here from the host that their VM has left.
//!
//! ```text
//!            written, durable, read back   header checked     note (intent), if there is none    renamed       note (complete, arrived)
//!    partial ──────────────────────────▶ ○ ──────────────▶ ○ ─────────────────────────────▶ ○ ───────────▶ ○ ─────────────────▶ volume
//! ```
//!
//! A volume has arrived with its note, which names the stay of the VM that it was copied for; before that, the host where it was has the data.
//! A file that is here without that, such as one from an earlier stay, is replaced by the copy, and by nothing else. The bytes are another
//! host's: the file below is the one that the Disk's image is, whatever the header names.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use berth_qemu::qcow2::{self, InspectError};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use sha2::{Digest, Sha256};

use super::super::files::{self, failed};
use super::left::check_closed;
use super::moves::FETCHED;
use super::note::{Base, Note};
use super::space::most_copied;
use super::{LinuxVolumes, Place, Result, exists, file_name};
use crate::{Arrival, COPY_BLOCK, CopiedFile, CopiedPart, ImageFacts, NewFetch, SystemError, VolumeFacts};

/// The bytes of which none are written if all are zero.
const CHUNK: usize = 64 << 10;

/// A copy that is begun. Dropping it removes what is not whole.
#[derive(Debug)]
pub(in super::super) struct Fetch {
    new: NewFetch,
    path: PathBuf,
    file: File,
    about: Option<CopiedFile>,
    /// The end of the last whole part.
    at: u64,
    written: Vec<Written>,
    done: u64,
    /// None: no part was read back yet.
    total: Option<u64>,
}

/// A part that is in the file.
#[derive(Debug)]
struct Written {
    offset: u64,
    length: usize,
    sha256: [u8; 32],
}

impl Drop for Fetch {
    fn drop(&mut self) {
        // Best effort: it has another name once it is the volume, and the next start of the agent removes it too.
        if self.has_path().unwrap_or_default() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl LinuxVolumes {
    /// Returns the stay that a volume was copied here for.
    pub(in super::super) fn arrival(&self, pool: &str, id: &str) -> Result<Option<Arrival>> {
        let place = self.place(pool, id)?;
        let Some(Ok(note)) = Note::read(&place.note)? else { return Ok(None) };
        let is_there = note.complete && exists(&place.file)?;
        Ok(note.arrived.filter(|_| is_there))
    }

    /// None: the volume has arrived.
    pub(in super::super) fn begin_fetch(&self, new: &NewFetch) -> Result<Option<Fetch>> {
        let _chains = self.lock(&[&new.pool])?;
        let place = self.place(&new.pool, &new.id)?;
        if self.arrival(&new.pool, &new.id)?.as_ref() == Some(&new.arrival) {
            self.finish(&place)?;
            return Ok(None);
        }
        check_replaceable(&place, new)?;
        files::ensure_folder(&self.layout.volumes(&new.pool))?;
        let name = format!("{}{}{FETCHED}", files::UNFINISHED, new.id);
        self.remove_partial(&new.pool, &name)?;
        let path = self.layout.volumes(&new.pool).join(name);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(failed("create", &path))?;
        let (new, written) = (new.clone(), Vec::new());
        Ok(Some(Fetch { new, path, file, about: None, at: 0, written, done: 0, total: None }))
    }

    /// Makes the copy the volume. `base` is the cached image that it is based on.
    pub(in super::super) fn finish_fetch(
        &self,
        fetch: &Fetch,
        base: Option<&ImageFacts>,
    ) -> Result<VolumeFacts> {
        let new = &fetch.new;
        let _chains = self.lock(&[&new.pool])?;
        let place = self.place(&new.pool, &new.id)?;
        check_replaceable(&place, new)?;
        if !fetch.has_path().map_err(failed("look at", &fetch.path))? {
            return Err(fetch.refused("another copy of it has begun since"));
        }
        let below = base.map(|base| self.path_to_image(&new.pool, &base.digest));
        fetch.check_header(below.as_deref().and_then(|path| path.to_str()))?;
        fetch.file.sync_all().map_err(failed("write", &fetch.path))?;
        files::give(&fetch.path, self.owner.as_ref())?;
        let note = Note {
            volume_id: new.id.clone(),
            owner: new.owner.clone(),
            base: base.map(|base| Base { digest: base.digest.clone(), format: base.format }),
            snapshot: None,
            generation: 0,
            pending_snapshot: None,
            restores: Vec::new(),
            former: None,
            raw: false,
            device: None,
            complete: false,
            deleted_at: None,
            deleted_after: None,
            retained: false,
            reserved: new.thick.then_some(0),
            encryption: None,
            moved_to: None,
            moved_from: None,
            mirrored: false,
            arriving_from: None,
            arrived: None,
        };
        // A file without a note would be foreign. A former note stays until the file is replaced: it names no arrival, or another one.
        if !exists(&place.note)? {
            note.write(&place.note)?;
        }
        let file = self.layout.volumes(&new.pool).join(file_name(&new.id, 0));
        fs::rename(&fetch.path, &file).map_err(failed("rename", &fetch.path))?;
        files::sync_parent(&file).map_err(failed("write", &file))?;
        Note { complete: true, arrived: Some(new.arrival.clone()), ..note }.write(&place.note)?;
        tracing::info!(volume = new.id, host = new.from, "volume copied from another host");
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        self.volume(&new.pool, &new.id)?.ok_or_else(lost)
    }
}

impl Fetch {
    /// Whether the file at its path is this one: a copy that was given up may end after the next one has begun, whose file has the same path.
    fn has_path(&self) -> io::Result<bool> {
        let (own, found) = (self.file.metadata()?, fs::symlink_metadata(&self.path)?);
        Ok((own.dev(), own.ino()) == (found.dev(), found.ino()))
    }

    /// Where the next part begins at the earliest.
    pub(in super::super) fn offset(&self) -> u64 {
        self.at
    }

    /// Begins with the file that the other host has, or continues it if that is the same still.
    pub(in super::super) fn begin(&mut self, about: CopiedFile) -> Result<()> {
        if about.base != self.new.base {
            return Err(self.refused("it is based on another image than that of its Disk"));
        }
        let (length, most) = (about.length, most_copied(self.new.size));
        if length == 0 || length > most {
            let size = self.new.size;
            let why =
                format!("its file has {length} bytes, and that of a disk of {size} bytes has 1 to {most}");
            return Err(self.refused(&why));
        }
        let is_same = self.about.as_ref().is_none_or(|before| {
            (before.length, &before.tag, &before.base) == (about.length, &about.tag, &about.base)
        });
        if !is_same {
            return Err(self.refused("it has changed while it was copied"));
        }
        files::check_space(&self.path, about.taken.min(about.length))?;
        self.file.set_len(about.length).map_err(failed("write", &self.path))?;
        let rest = about.taken.min(about.length);
        self.total = Some(self.done.saturating_add(rest));
        self.about = Some(about);
        Ok(())
    }

    /// Writes a part, without the zeros in it.
    pub(in super::super) fn write(&mut self, part: &CopiedPart) -> Result<()> {
        let length = self.about.as_ref().map_or(0, |about| about.length);
        let count = u64::try_from(part.bytes.len()).unwrap_or(u64::MAX);
        let end = part.offset.checked_add(count).filter(|end| *end <= length);
        let block = part.offset / COPY_BLOCK;
        let is_in_block = end.is_some_and(|end| end > part.offset && (end - 1) / COPY_BLOCK == block);
        if !is_in_block || part.offset < self.at {
            return Err(self.refused("it sends bytes that are no part of the file"));
        }
        for (index, chunk) in part.bytes.chunks(CHUNK).enumerate() {
            if chunk.iter().any(|byte| *byte != 0) {
                let at = part.offset + u64::try_from(index * CHUNK).unwrap_or_default();
                self.file.write_all_at(chunk, at).map_err(failed("write", &self.path))?;
            }
        }
        let sha256 = Sha256::digest(&part.bytes).into();
        self.written.push(Written { offset: part.offset, length: part.bytes.len(), sha256 });
        // One part in a block: there are not more of them than blocks.
        self.at = (block + 1) * COPY_BLOCK;
        self.done = self.done.saturating_add(count);
        Ok(())
    }

    /// Makes the file durable, and compares it with the parts that came.
    pub(in super::super) fn verify(&self) -> Result<()> {
        self.file.sync_all().map_err(failed("write", &self.path))?;
        // Best effort: the bytes are then read from the medium.
        let _ = posix_fadvise(&self.file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        let mut bytes = Vec::new();
        for part in &self.written {
            bytes.resize(part.length, 0);
            self.file.read_exact_at(&mut bytes, part.offset).map_err(failed("read", &self.path))?;
            let found: [u8; 32] = Sha256::digest(&bytes).into();
            if found != part.sha256 {
                let detail = "the copy that was written differs from the bytes that came".to_owned();
                return Err(SystemError::VolumeDamaged { id: self.new.id.clone(), detail });
            }
        }
        Ok(())
    }

    /// Returns the bytes that have come, and those of the whole.
    pub(in super::super) fn progress(&self) -> (u64, Option<u64>) {
        (self.done, self.total.map(|total| total.max(self.done)))
    }

    /// Has the header name the file below that this host has for the image, and checks it.
    fn check_header(&self, below: Option<&str>) -> Result<()> {
        let unfit = |error: InspectError| self.refused(&error.to_string());
        let name = qcow2::name_below(&self.file).map_err(unfit)?;
        if name.is_some()
            && name.as_deref() != below
            && let Some(below) = below
        {
            qcow2::rename_below(&self.file, below).map_err(failed("write", &self.path))?;
        }
        let size = qcow2::inspect_volume(&mut &self.file, below).map_err(unfit)?;
        if size < self.new.size {
            return Err(self.refused(&format!("its disk has {size} bytes, not {}", self.new.size)));
        }
        Ok(())
    }

    /// The error for something that the other host sends, which is tried again.
    pub(in super::super) fn refused(&self, detail: &str) -> SystemError {
        let url = format!("volume {} from host {}", self.new.id, self.new.from);
        SystemError::Download { url, detail: detail.to_owned() }
    }
}

/// Checks that nothing else than a former file of this very volume is in the place of the copy.
fn check_replaceable(place: &Place, new: &NewFetch) -> Result<()> {
    if exists(&place.trashed_file)? {
        return Err(place.damaged("it is in the trash: it has to be restored, not copied from a host"));
    }
    let Some(note) = Note::read(&place.note)? else {
        return match exists(&place.file)? {
            true => Err(place.damaged("a file of this name is there, which berth did not make")),
            false => Ok(()),
        };
    };
    let note = note.map_err(|detail| place.damaged(&detail))?;
    let is_other = note.volume_id != new.id || note.owner.uid != new.owner.uid;
    let has_more = note.generation > 0 || note.snapshots().next().is_some() || note.former.is_some();
    if is_other
        || has_more
        || note.encryption.is_some()
        || note.moved_to.is_some()
        || note.moved_from.is_some()
    {
        return Err(place.damaged("a file that is here is none that a copy of it from another host replaces"));
    }
    match exists(&place.file)? {
        true => check_closed(place),
        false => Ok(()),
    }
}

#[cfg(test)]
#[path = "fetch_tests.rs"]
mod tests;
