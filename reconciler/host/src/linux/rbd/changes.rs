//! The parts of a volume that were written between two snapshots of it, by which a backup reads no more than these.
//!
//! Ceph keeps the state of each object of an image (`fast-diff`). Nothing is known if that is not valid, or if the volume was restored in
//! between: a restore writes objects of which the state is that of an earlier snapshot. Libraries of Ceph 16 before 16.2.14 and 17 before
//! 17.2.7 lose the state of objects that are written while a snapshot is taken (tracker 61616): there nothing is known either.
//!
//! The other way of Ceph, which compares the snapshots of each object, would find parts of objects. In Ceph 16 it does not find those that
//! were discarded up to the end of an object (tracker 63770).

use std::ops::Range;
use std::time::Duration;

use super::super::layout::is_name;
use super::client::{Client, PATIENCE, Version};
use super::diff::{DiffReader, Part, Ranges};
use super::note::{Note, header_of};
use super::snapshots::SnapshotNote;
use super::{RbdPool, Result, replies};
use crate::SystemError;

/// How long Ceph may take to compare two snapshots.
const COMPARE: Duration = Duration::from_secs(600);

/// The parts of a disk that were written since a snapshot. They are whole objects of 4 MiB, as the blocks of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Changes {
    /// In order, without overlaps. The last one begins at the end of the disk at that time.
    parts: Vec<Range<u64>>,
    /// The size of the disk at that time.
    size: u64,
}

impl Changes {
    fn new(mut parts: Ranges, size: u64) -> Self {
        parts.add(size..u64::MAX);
        Self { parts: parts.finish(), size }
    }

    /// For tests.
    #[cfg(test)]
    pub(in super::super) fn of_parts(parts: Vec<Range<u64>>) -> Self {
        Self { parts, size: 0 }
    }

    /// The size of the disk at the earlier snapshot, in bytes.
    pub(in super::super) fn size(&self) -> u64 {
        self.size
    }

    /// Divides a part of the disk into those that were written and those that were not: the length of each, and whether it is unchanged.
    pub(in super::super) fn split(&self, at: u64, length: u64) -> Vec<(u64, bool)> {
        let (mut found, mut from, end) = (Vec::new(), at, at.saturating_add(length));
        let first = self.parts.partition_point(|part| part.end <= at);
        for part in self.parts[first..].iter().take_while(|part| part.start < end) {
            let (start, stop) = (part.start.max(from), part.end.min(end));
            found.push((start - from, true));
            found.push((stop - start, false));
            from = stop;
        }
        found.push((end - from, true));
        found.retain(|(length, _)| *length > 0);
        found
    }
}

impl RbdPool {
    /// Returns the parts that were written between two snapshots of one volume of this host. None: it is not known.
    ///
    /// *Errors*: [`SystemError::PoolAway`].
    pub(in super::super) async fn changes(&self, base: &str, id: &str) -> Result<Option<Changes>> {
        if !is_name(base) {
            return Ok(None);
        }
        let (Some(from), Some(to)) = (self.snapshot_note(base).await?, self.snapshot_note(id).await?) else {
            return Ok(None);
        };
        let of = self.note(&to.volume_id).await?;
        if !of.is_some_and(|of| is_continued(&of, &from, &to)) {
            return Ok(None);
        }
        match self.compare(&from, &to).await {
            Err(error @ SystemError::PoolAway { .. }) => Err(error),
            Err(error) => {
                let error = error.chain();
                tracing::warn!(
                    base,
                    snapshot = id,
                    error,
                    "snapshots in Ceph not compared: the whole disk is read"
                );
                Ok(None)
            }
            found => found,
        }
    }

    /// Returns the parts of an encrypted snapshot that were ever written: in the others the cipher reads random data. None: it is not known, or
    /// it is not encrypted.
    ///
    /// *Errors*: [`SystemError::PoolAway`].
    pub(in super::super) async fn written(&self, id: &str) -> Result<Option<Changes>> {
        match self.find_written(id).await {
            Err(error @ SystemError::PoolAway { .. }) => Err(error),
            Err(error) => {
                let error = error.chain();
                tracing::warn!(snapshot = id, error, "written parts of a snapshot in Ceph not known");
                Ok(None)
            }
            found => found,
        }
    }

    async fn find_written(&self, id: &str) -> Result<Option<Changes>> {
        let Some(note) = self.snapshot_note(id).await? else { return Ok(None) };
        let Some(luks) = note.luks else { return Ok(None) };
        let spec = self.snapshot_spec(&note.volume_id, id);
        let info = self.must(&["info", "--format", "json", &spec], PATIENCE).await?;
        let is_known = replies::has_fast_diff(&info.stdout).map_err(Self::not_understood)?
            // Those of the snapshot below are not looked for.
            && !replies::has_parent(&info.stdout).map_err(Self::not_understood)?;
        if !is_known || !Client::version().await?.is_some_and(is_exact) {
            return Ok(None);
        }
        let mut parts = Ranges::new();
        let add = |part: Part| {
            if part.has_data {
                parts.add(after(luks.header, &part.range));
            }
        };
        self.diff(&[&spec], add).await?;
        Ok(Some(Changes { parts: parts.finish(), size: 0 }))
    }

    async fn compare(&self, from: &SnapshotNote, to: &SnapshotNote) -> Result<Option<Changes>> {
        let listed = self.snapshots_of_image(&Self::name_of(&to.volume_id)).await?;
        let (Some(first), Some(last)) = (listed.get(&from.id), listed.get(&to.id)) else { return Ok(None) };
        let between = listed.iter().filter(|(_, of)| (first.number..=last.number).contains(&of.number));
        for name in between.map(|(name, _)| name) {
            let spec = self.snapshot_spec(&to.volume_id, name);
            let info = self.must(&["info", "--format", "json", &spec], PATIENCE).await?;
            if !replies::has_fast_diff(&info.stdout).map_err(Self::not_understood)? {
                return Ok(None);
            }
        }
        if first.number >= last.number || !Client::version().await?.is_some_and(is_exact) {
            return Ok(None);
        }
        let spec = self.snapshot_spec(&to.volume_id, &to.id);
        let (mut parts, header) = (Ranges::new(), header_of(to.luks.as_ref()));
        self.diff(&["--from-snap", &from.id, &spec], |part| parts.add(after(header, &part.range))).await?;
        Ok(Some(Changes::new(parts, first.size.saturating_sub(header))))
    }

    /// Returns how many bytes of a snapshot have data, with those of the content that it is a clone of.
    pub(in super::super) async fn data_bytes(&self, volume: &str, id: &str) -> Result<u64> {
        let (spec, mut found) = (self.snapshot_spec(volume, id), 0_u64);
        let add = |part: Part| {
            if part.has_data {
                found = found.saturating_add(part.range.end - part.range.start);
            }
        };
        self.diff(&[&spec], add).await?;
        Ok(found)
    }

    /// Runs `rbd diff` for whole objects, and gives each part to `each` as it is found.
    async fn diff(&self, of: &[&str], mut each: impl FnMut(Part) + Send) -> Result<()> {
        let args = [&["diff", "--whole-object", "--format", "json"][..], of].concat();
        let mut reader = DiffReader::new();
        self.must_stream(&args, COMPARE, |bytes| reader.read(bytes, &mut each)).await?;
        reader.finish().map_err(Self::not_understood)
    }
}

/// Returns the part of the data that a part of an image has, after a header of this size.
fn after(header: u64, part: &Range<u64>) -> Range<u64> {
    part.start.saturating_sub(header)..part.end.saturating_sub(header)
}

/// Whether libraries of this version keep the state of all objects that are written while a snapshot is taken.
fn is_exact(version: Version) -> bool {
    let least = match version[0] {
        16 => [16, 2, 14],
        17 => [17, 2, 7],
        _ => [18, 2, 0],
    };
    version >= least
}

/// Whether a later snapshot is of the same data as an earlier one and what was written since. `of`: the note of the volume.
fn is_continued(of: &Note, from: &SnapshotNote, to: &SnapshotNote) -> bool {
    let are_taken = from.taken.is_some() && to.taken.is_some();
    let was_restored = of.restores.iter().any(|restored| restored.at >= from.begun);
    from.id != to.id
        && from.volume_id == to.volume_id
        && are_taken
        // The clock may have been set back.
        && from.restored == to.restored
        && !was_restored
        && of.restoring.is_none()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{DeclaredRestore, NewVolume, Restored, Taken, VolumeOwner};

    const MIB: u64 = 1 << 20;

    #[test]
    fn unknown_parts_are_changed_and_the_others_are_not() {
        let mut parts = Ranges::new();
        for start in [8, 0, 4] {
            parts.add(start * MIB..(start + 4) * MIB);
        }
        let changes = Changes::new(parts, 64 * MIB);
        assert_eq!(changes.size(), 64 * MIB);
        assert_eq!(changes.split(0, 64 * MIB), [(12 * MIB, false), (52 * MIB, true)]);
        assert_eq!(changes.split(11 * MIB, 2 * MIB), [(MIB, false), (MIB, true)]);
        assert_eq!(changes.split(12 * MIB, MIB), [(MIB, true)]);
        assert_eq!(changes.split(60 * MIB, 8 * MIB), [(4 * MIB, true), (4 * MIB, false)], "it has grown");
        assert_eq!(changes.split(64 * MIB, MIB), [(MIB, false)]);
        assert!(changes.split(MIB, 0).is_empty());
        let nothing = Changes::new(Ranges::new(), MIB);
        assert_eq!(nothing.split(0, MIB), [(MIB, true)]);
    }

    #[test]
    fn the_parts_of_encrypted_data_are_behind_its_header() {
        let header = 2 * MIB;
        let mut parts = Ranges::new();
        for start in [0, 8] {
            parts.add(after(header, &(start * MIB..(start + 4) * MIB)));
        }
        parts.add(after(header, &(0..MIB)));
        let changes = Changes::new(parts, 62 * MIB);
        let split = changes.split(0, 62 * MIB);
        assert_eq!(split, [(2 * MIB, false), (4 * MIB, true), (4 * MIB, false), (52 * MIB, true)]);
    }

    #[test]
    fn libraries_that_lose_writes_during_a_snapshot_tell_nothing() {
        for version in [[16, 2, 14], [17, 2, 7], [18, 2, 0], [20, 1, 0]] {
            assert!(is_exact(version), "{version:?}");
        }
        for version in [[15, 2, 17], [16, 2, 13], [17, 2, 6], [18, 1, 3]] {
            assert!(!is_exact(version), "{version:?}");
        }
    }

    fn note(restores: Vec<Restored>) -> Note {
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
        Note { restores, complete: true, ..Note::new(&new, "a".to_owned()) }
    }

    fn snapshot(id: &str, begun: i64) -> SnapshotNote {
        let begun = Timestamp::from_second(begun).expect("a moment");
        SnapshotNote {
            id: id.to_owned(),
            volume_id: "v-1".to_owned(),
            owner: None,
            begun,
            taken: Some(Taken { at: begun, frozen: false, memory: false }),
            restored: None,
            luks: None,
        }
    }

    #[test]
    fn after_a_restore_the_changes_since_an_earlier_snapshot_are_not_known() {
        let restored = |at| Restored {
            declared: DeclaredRestore { name: "before".to_owned(), token: None, vm_snapshot: None },
            snapshot: "s-1".to_owned(),
            at: Timestamp::from_second(at).expect("a moment"),
        };
        let (first, second) = (snapshot("s-1", 10), snapshot("s-2", 20));
        assert!(is_continued(&note(Vec::new()), &first, &second));
        assert!(is_continued(&note(vec![restored(9)]), &first, &second));
        assert!(!is_continued(&note(vec![restored(15)]), &first, &second));
        let after = SnapshotNote { restored: Some(restored(5)), ..second.clone() };
        assert!(!is_continued(&note(vec![restored(5)]), &first, &after), "the clock was set back");
        assert!(!is_continued(&note(Vec::new()), &first, &first));
        let other = SnapshotNote { volume_id: "v-2".to_owned(), ..first.clone() };
        assert!(!is_continued(&note(Vec::new()), &other, &second));
        let begun = SnapshotNote { taken: None, ..first };
        assert!(!is_continued(&note(Vec::new()), &begun, &second));
    }
}
