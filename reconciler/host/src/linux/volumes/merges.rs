//! Merges: the file of a deleted snapshot gets the data of the snapshot above it, and its name.
//!
//! ```text
//!                note of A: merge     qemu-img commit       note of A: complete    renamed           note of B, none of A
//!   A ◀─ B ◀─ C ─────────────────▶ A ─────────────────▶ A+B ◀─ B ◀─ C ──▶ A+B ◀─ B ◀─ C ──▶ A+B as B ◀─ C ──▶ A+B as B ◀─ C
//! ```
//!
//! A is deleted and nothing but B is based on it. The data that B shows never changes, for those that have the files open too: what
//! is allocated in B is not read from A, and the rest of A does not change. The commit can therefore be repeated from its start, and
//! a QEMU reads the right data whichever of the files it has open. Its locks are left alone: they would forbid that another process
//! writes to A, and berth has to know itself that no other one does.
//!
//! For the same reason a file that is smaller grows before, in its header only.
//!
//! From the first note on, A is no snapshot any more that anything can be based on. The file that a disk writes to is never merged.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use berth_qemu::machine::{Backing, DiskKey, Format};
use berth_qemu::process::{FileLock, Filter, FilterError, RunAs};
use berth_qemu::qcow2;
use serde_json::json;

use super::super::files::{self, blocking, failed};
use super::super::layout::{Layout, is_name};
use super::super::qemu_img::{CONVERT_MEMORY, QEMU_IMG, block_node, encrypt, linked, no_space, paths, text};
use super::note::Note;
use super::snapshot_note::{NotedMerge, SnapshotNote};
use super::snapshots::{SnapshotPlace, User};
use super::{LinuxVolumes, Result, exists};
use crate::{Merged, SystemError};

/// The folder of the hard links, among those of the instances.
const LINKS: &str = "merge";
const LOCK: &str = ".merge.lock";
/// The data of a snapshot is at most that of a disk: 64 TiB in a week are 110 MiB a second.
const TIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// Room for tables beside the data.
const MARGIN: u64 = 16 << 20;

/// A merge that is begun.
#[derive(Debug)]
pub(in super::super) struct Merge {
    layout: Layout,
    pool: String,
    /// The deleted snapshot, whose file gets the data.
    lower: String,
    upper: String,
    /// The file of the upper one, with those below it.
    chain: Backing,
    /// The key of encrypted files.
    key: Option<DiskKey>,
    /// Programs that change the file inherit it, and may outlive the agent.
    lock: Arc<FileLock>,
}

/// Two snapshots to merge.
struct Pair {
    lower: SnapshotPlace,
    note: SnapshotNote,
    upper: SnapshotPlace,
}

impl Merge {
    pub(in super::super) fn pool(&self) -> &str {
        &self.pool
    }
}

impl LinuxVolumes {
    /// Begins the merge of one deleted snapshot that is not in `kept`: of those that can be merged, the one whose last attempt is
    /// the longest ago.
    pub(in super::super) fn begin_merge(&self, kept: &BTreeSet<String>) -> Result<Option<Merge>> {
        let Some(lock) = self.merge_lock()? else { return Ok(None) };
        let mut found: Vec<(SystemTime, String, Pair)> = Vec::new();
        for pool in self.pools()? {
            self.settle_done_moves(&pool)?;
            let _chains = self.lock(&[&pool])?;
            self.complete_renamed(&pool)?;
            for pair in self.pairs(&pool, kept)? {
                let changed = fs::metadata(&pair.lower.note).and_then(|about| about.modified());
                found.push((changed.map_err(failed("look at", &pair.lower.note))?, pool.clone(), pair));
            }
        }
        found.sort_by(|a, b| (a.0, &a.1, &a.2.lower.id).cmp(&(b.0, &b.1, &b.2.lower.id)));
        let mut full = None;
        for (_, pool, candidate) in found {
            let _chains = self.lock(&[&pool])?;
            // Another disk may be based on it since.
            let again = self.pairs(&pool, kept)?.into_iter().find(|pair| pair.lower.id == candidate.lower.id);
            let Some(Pair { lower, note, upper }) = again else { continue };
            let about = fs::metadata(&upper.file).map_err(failed("look at", &upper.file))?;
            if let Err(error) = files::check_space(&lower.file, about.blocks() * 512 + MARGIN) {
                full.get_or_insert(error);
                continue;
            }
            let merge = NotedMerge { into: upper.id.clone(), complete: false };
            SnapshotNote { merge: Some(merge), ..note }.write(&lower.note)?;
            let chain = self.chain(&pool, None, Some(&upper.id));
            let (chain, _) =
                chain.map_err(|detail| SystemError::VolumeDamaged { id: upper.id.clone(), detail })?;
            let chain = chain.ok_or_else(|| SystemError::SnapshotLost { id: upper.id.clone() })?;
            let key = self.shared_key_of_snapshot(&upper)?;
            let (layout, lock) = (self.layout.clone(), Arc::new(lock));
            return Ok(Some(Merge { layout, pool, lower: lower.id, upper: upper.id, chain, key, lock }));
        }
        full.map_or(Ok(None), Err)
    }

    /// Returns None while another merge of this host goes on, also one of an agent that has ended.
    fn merge_lock(&self) -> Result<Option<FileLock>> {
        let path = self.layout.root().join(LOCK);
        FileLock::try_acquire(&path).map_err(failed("lock", &path))
    }

    /// Returns the snapshots of a pool that can be merged with the one above them.
    fn pairs(&self, pool: &str, kept: &BTreeSet<String>) -> Result<Vec<Pair>> {
        let Some(users) = self.snapshot_users(pool)? else {
            tracing::warn!(pool, "a note is unreadable: no file of a snapshot is merged");
            return Ok(Vec::new());
        };
        let mut pairs = Vec::new();
        for (id, users) in users.iter().filter(|(id, _)| is_name(id) && !kept.contains(*id)) {
            let [User::Snapshot(above_id)] = users.as_slice() else { continue };
            if self.copying.contains(id) || self.copying.contains(above_id) {
                continue;
            }
            let (lower, upper) = (self.snapshot_place(pool, id)?, self.snapshot_place(pool, above_id)?);
            let (Some(note), Some(above)) = (lower.read()?, upper.read()?) else { continue };
            let is_finished = note.taken.is_some() && above.taken.is_some();
            // An encrypted file is merged once its key is known.
            let has_key = self.keys.shared_key_of(above_id, above.encryption.as_ref()).is_ok();
            if note.owner.is_none() && is_finished && has_key && is_fit(&lower.file, &upper.file)? {
                pairs.push(Pair { lower, note, upper });
            }
        }
        Ok(pairs)
    }

    /// Gives the file, which has all the data now, the name of the upper snapshot. Does nothing if that one went meanwhile.
    pub(in super::super) fn finish_merge(&self, merge: &Merge) -> Result<Merged> {
        let _chains = self.lock(&[&merge.pool])?;
        let (lower, upper) = (
            self.snapshot_place(&merge.pool, &merge.lower)?,
            self.snapshot_place(&merge.pool, &merge.upper)?,
        );
        let (Some(note), Some(above)) = (lower.read()?, upper.read()?) else { return Ok(Merged::default()) };
        let is_same = note.merge.as_ref().is_some_and(|noted| noted.into == merge.upper)
            && above.snapshot.as_ref() == Some(&merge.lower);
        if !is_same || !exists(&lower.file)? || !exists(&upper.file)? {
            return Ok(Merged::default());
        }
        files::freeze(&lower.file)?;
        File::open(&lower.file).and_then(|file| file.sync_all()).map_err(failed("write", &lower.file))?;
        let noted = NotedMerge { into: merge.upper.clone(), complete: true };
        let note = SnapshotNote { merge: Some(noted), ..note };
        note.write(&lower.note)?;
        fs::rename(&lower.file, &upper.file).map_err(failed("rename", &lower.file))?;
        files::sync_parent(&upper.file).map_err(failed("write", &upper.file))?;
        self.complete(&lower, note, &upper)?;
        Ok(Merged { volumes: self.volumes_on(&merge.pool, &upper)? })
    }

    /// Finishes a merge that a crash interrupted after the file was renamed.
    fn complete_renamed(&self, pool: &str) -> Result<()> {
        for id in self.snapshot_ids(pool)? {
            let lower = self.snapshot_place(pool, &id)?;
            let Some(note) = lower.read()? else { continue };
            if note.is_renamed(&lower.file)?
                && let Some(merge) = &note.merge
            {
                let upper = self.snapshot_place(pool, &merge.into)?;
                self.complete(&lower, note, &upper)?;
            }
        }
        Ok(())
    }

    fn complete(&self, lower: &SnapshotPlace, note: SnapshotNote, upper: &SnapshotPlace) -> Result<()> {
        if let Some(above) = upper.read()?.filter(|above| above.snapshot.as_ref() == Some(&lower.id)) {
            SnapshotNote { base: note.base, snapshot: note.snapshot, ..above }.write(&upper.note)?;
        }
        files::remove_if_there(&lower.note).map_err(failed("remove", &lower.note))?;
        tracing::info!(snapshot = lower.id, into = upper.id, "file of a deleted snapshot merged");
        Ok(())
    }

    /// Returns the volumes of a pool that are based on this snapshot, also through others.
    fn volumes_on(&self, pool: &str, snapshot: &SnapshotPlace) -> Result<Vec<String>> {
        let mut volumes = Vec::new();
        for name in files::names(&self.layout.volumes(pool))? {
            let Some(id) = name.strip_suffix(".json").filter(|id| is_name(id)) else { continue };
            let Some(Ok(note)) = Note::read(&self.place(pool, id)?.note)? else { continue };
            let chain = self.chain(pool, None, note.snapshot.as_deref()).ok().and_then(|(chain, _)| chain);
            if chain.is_some_and(|chain| paths(&chain).contains(&snapshot.file)) {
                volumes.push(id.to_owned());
            }
        }
        Ok(volumes)
    }
}

/// Whether the file of the lower snapshot can get the data of the upper one while others read both.
fn is_fit(lower: &Path, upper: &Path) -> Result<bool> {
    if !exists(lower)? || !exists(upper)? {
        return Ok(false);
    }
    let cluster = |path: &Path| {
        let mut file = File::open(path).map_err(failed("open", path))?;
        // An unreadable header is found by those that use the disk.
        Ok::<_, SystemError>(qcow2::cluster_size(&mut file).ok())
    };
    // A cluster of the lower file that has data of the upper one as well as its own could be moved, when it is compressed.
    Ok(match (cluster(lower)?, cluster(upper)?) {
        (Some(lower), Some(upper)) => lower <= upper,
        _ => false,
    })
}

impl Merge {
    /// Writes the data of the upper file into the lower one, as this user. The upper file is opened for reading only.
    pub(in super::super) async fn run(&self, user: Option<RunAs>) -> Result<()> {
        let links = self.layout.snapshot_links(&self.pool, LINKS);
        let (layout, chain, folder) = (self.layout.clone(), self.chain.clone(), links.clone());
        let prepared = blocking(move || prepare(&layout, &folder, &chain, user.as_ref())).await;
        let done = match prepared {
            Ok(prepared) => self.commit(prepared, user).await,
            Err(error) => Err(error),
        };
        // Leftovers are removed by the next merge.
        let _ = blocking(move || fs::remove_dir_all(&links)).await;
        done
    }

    async fn commit(
        &self,
        Prepared { chain, lower, scratch, max_bytes }: Prepared,
        user: Option<RunAs>,
    ) -> Result<()> {
        // `qemu-img` opens the file at the top for writing, and does not write to it: the scratch file would get the bytes.
        let file = |path: &Path, locking: &str| json!({"driver": "file", "filename": text(path), "locking": locking});
        let upper = json!({"driver": "raw", "read-only": true, "file": file(&chain.file, "off")});
        let mut node = json!({
            "driver": "qcow2",
            "file": {"driver": "qcow2", "file": file(&scratch, "auto"), "backing": upper},
            "backing": block_node(&lower, "off"),
        });
        if chain.format.is_encrypted() {
            node["encrypt"] = encrypt();
        }
        let mut inputs = paths(&chain);
        let filter = Filter {
            program: QEMU_IMG.find()?,
            args: ["commit", "-q", "-d", &format!("json:{node}")].map(str::to_owned).to_vec(),
            input: inputs.remove(0),
            further: inputs,
            output: None,
            changed: vec![lower.file.clone(), scratch],
            lock: Some(self.lock.clone()),
            key: self.key.clone(),
            user,
            max_bytes,
            memory: CONVERT_MEMORY,
            time: TIME,
        };
        filter.run().await.map_err(|error| explain(&lower.file, error))
    }
}

/// The files as the program gets them.
struct Prepared {
    /// The upper file with those below it.
    chain: Backing,
    lower: Backing,
    scratch: PathBuf,
    max_bytes: u64,
}

fn prepare(layout: &Layout, links: &Path, chain: &Backing, user: Option<&RunAs>) -> Result<Prepared> {
    if exists(links)? {
        fs::remove_dir_all(links).map_err(failed("remove", links))?;
    }
    files::ensure_folder_for(links, user)?;
    let own = match user {
        Some(user) => linked(layout, links, chain, user)?,
        None => chain.clone(),
    };
    let lower = own.backing.as_deref().cloned();
    let lower = lower.ok_or_else(|| SystemError::SnapshotLost { id: text(&chain.file) })?;
    files::lend(&lower.file, user)?;
    let damaged = |detail: String| SystemError::VolumeDamaged { id: text(&chain.file), detail };
    // By `qemu-img` its table would move, which a QEMU that is just opening the file may be about to read.
    let size = super::size_of(&chain.file).map_err(damaged)?;
    if super::size_of(&lower.file).map_err(damaged)? < size {
        qcow2::grow_below(&lower.file, size).map_err(|error| damaged(error.to_string()))?;
    }
    let length = |path: &Path| fs::metadata(path).map(|about| about.len()).map_err(failed("look at", path));
    let (upper_length, lower_length) = (length(&own.file)?, length(&lower.file)?);
    let scratch = links.join("scratch");
    let raw = Backing { file: own.file.clone(), format: Format::Raw, backing: None };
    let size = upper_length.next_multiple_of(qcow2::SECTOR);
    qcow2::create_overlay(&scratch, size, &raw).map_err(|error| damaged(error.to_string()))?;
    files::give(&scratch, user)?;
    let max_bytes = upper_length.saturating_add(lower_length).saturating_add(MARGIN);
    Ok(Prepared { chain: own, lower, scratch, max_bytes })
}

fn explain(lower: &Path, error: FilterError) -> SystemError {
    match error {
        FilterError::Failed { said, .. } if said.contains("No space left") => no_space(lower),
        FilterError::File { path, source } => SystemError::File { attempt: "use", path, source },
        FilterError::Launch(error) => SystemError::Launch(error),
        FilterError::Process(error) => SystemError::Process(error),
        other => QEMU_IMG.failed(format!("{}: {other}", text(lower))),
    }
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
