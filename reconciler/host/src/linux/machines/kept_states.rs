//! The states of machines that snapshots keep: a file and a note beside it, in a directory that only the agent can traverse.
//!
//! ```text
//!   instances/<id>/saved.state ──keep──▶ memory/<snapshot>.state, .json ──lay──▶ instances/<id>/saved.state      (one file)
//! ```
//!
//! The note is on disk before the file has its name, and is removed after it: QEMU has completed a file with this name. After a crash of
//! the host it may lack data, unless it was sealed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::files::{self, blocking, failed};
use super::super::layout::check_name;
use super::{LinuxMachines, Result};

impl LinuxMachines {
    pub(in super::super) async fn keep_state(&self, instance: &str, id: &str, note: &Value) -> Result<()> {
        check_name("instance", instance)?;
        check_name("snapshot", id)?;
        let (folder, saved) = (self.layout.kept_states(), self.layout.state(instance));
        let (kept, beside, note) = (self.layout.kept_state(id), self.layout.kept_note(id), note.clone());
        blocking(move || {
            files::ensure_private_folder(&folder)?;
            remove(&kept)?;
            files::write_json(&beside, &note, 0o600)?;
            fs::hard_link(&saved, &kept).map_err(failed("link", &saved))?;
            files::sync_parent(&kept).map_err(failed("write the folder of", &kept))
        })
        .await
    }

    pub(in super::super) async fn seal_kept_state(&self, id: &str) -> Result<()> {
        check_name("snapshot", id)?;
        let kept = self.layout.kept_state(id);
        blocking(move || {
            File::open(&kept).and_then(|file| file.sync_all()).map_err(failed("write", &kept))?;
            files::sync_parent(&kept).map_err(failed("write the folder of", &kept))
        })
        .await
    }

    pub(in super::super) async fn kept_states(&self) -> Result<Vec<String>> {
        let folder = self.layout.kept_states();
        blocking(move || {
            let entries = match fs::read_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
                entries => entries.map_err(failed("list", &folder))?,
            };
            let mut ids = BTreeSet::new();
            for entry in entries {
                let name = entry.map_err(failed("list", &folder))?.file_name();
                let name = name.to_string_lossy();
                // A note without its file is of a state that was being kept or removed.
                let id = name.strip_suffix(".state").or_else(|| name.strip_suffix(".json"));
                ids.extend(id.filter(|id| check_name("snapshot", id).is_ok()).map(str::to_owned));
            }
            Ok(ids.into_iter().collect())
        })
        .await
    }

    /// Returns the bytes that the files take, by the identity of the snapshot.
    pub(in super::super) async fn kept_state_bytes(&self) -> Result<BTreeMap<String, u64>> {
        let layout = self.layout.clone();
        let ids = self.kept_states().await?;
        blocking(move || {
            // A file that was removed since takes none.
            let size =
                |id: &String| fs::symlink_metadata(layout.kept_state(id)).map_or(0, |about| about.blocks());
            Ok(ids.iter().map(|id| (id.clone(), size(id).saturating_mul(512))).collect())
        })
        .await
    }

    pub(in super::super) async fn kept_state(&self, id: &str) -> Result<Option<Value>> {
        check_name("snapshot", id)?;
        let (kept, note) = (self.layout.kept_state(id), self.layout.kept_note(id));
        blocking(move || match exists(&kept)? {
            // One that cannot be read describes no machine.
            true => Ok(files::read_json::<Value>(&note)?.and_then(std::result::Result::ok)),
            false => Ok(None),
        })
        .await
    }

    pub(in super::super) async fn lay_state(&self, instance: &str, id: &str) -> Result<()> {
        check_name("instance", instance)?;
        check_name("snapshot", id)?;
        let (kept, saved) = (self.layout.kept_state(id), self.layout.state(instance));
        blocking(move || {
            files::remove_if_there(&saved).map_err(failed("remove", &saved))?;
            fs::hard_link(&kept, &saved).map_err(failed("link", &kept))?;
            files::sync_parent(&saved).map_err(failed("write the folder of", &saved))
        })
        .await
    }

    pub(in super::super) async fn remove_kept_state(&self, id: &str) -> Result<()> {
        check_name("snapshot", id)?;
        let files: [PathBuf; 2] = [self.layout.kept_state(id), self.layout.kept_note(id)];
        blocking(move || files.iter().try_for_each(|file| remove(file))).await
    }
}

fn exists(path: &Path) -> Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("look at", path)(error)),
    }
}

/// Removes a file durably, if it is there.
fn remove(path: &Path) -> Result<()> {
    if !exists(path)? {
        return Ok(());
    }
    files::remove_if_there(path).map_err(failed("remove", path))?;
    files::sync_parent(path).map_err(failed("write the folder of", path))
}

#[cfg(test)]
#[path = "kept_states_tests.rs"]
mod tests;
