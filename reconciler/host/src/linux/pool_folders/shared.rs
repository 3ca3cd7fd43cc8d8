//! Folders that several hosts mount. All of them know the marker by the identity of the pool, which the control plane has decided; one
//! of them writes it. Each host has its files in a folder of its own, so that no two agents change the same files.
//!
//! ```text
//!  <folder>/berth-pool.json      the marker
//!           firmware/<id>.state  the firmware variables and the TPM of a VM, for a host that takes it over from a lost one
//!           hosts/<host>/…       the files of one host, as in the folder of a pool that is not shared
//! ```

use std::fs;
use std::io;
use std::path::PathBuf;

use berth_engine::Identities;

use super::super::files;
use super::{Declared, Marker, PoolFolder, Record, Result, VOLUMES, locked};
use crate::SharedPool;

const HOSTS: &str = "hosts";
/// The folders with files of disks.
const KEPT: [&str; 3] = [VOLUMES, "snapshots", "trash"];

/// The consequence of a record and a marker in a shared folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    There,
    /// It has the marker, which is to be recorded.
    Marked,
    /// It has no marker, and this host has never seen one in it.
    New,
    NoMarker,
    OtherMarker,
}

/// Judges a folder of the shared pool with this identity, which this host knows under the name `host`.
pub(super) fn judge(id: &str, host: &str, record: Option<&Record>, marker: Option<&Marker>) -> Finding {
    let is_its_own =
        |known: &Record| known.id == id && known.is_marked && known.host.as_deref() == Some(host);
    match (record.is_some_and(is_its_own), marker) {
        (_, Some(marker)) if !marker.shared || marker.id != id => Finding::OtherMarker,
        (true, Some(_)) => Finding::There,
        (false, Some(_)) => Finding::Marked,
        (true, None) => Finding::NoMarker,
        (false, None) => Finding::New,
    }
}

impl PoolFolder {
    /// The folder with this host's files.
    pub(super) fn folder_of(&self, host: &str) -> PathBuf {
        self.path.join(HOSTS).join(host)
    }

    /// Returns how the folder is shared, as the pool is declared, or as this host has used it before it knows that.
    pub(super) fn shared(&self, record: Option<&Record>) -> std::result::Result<Option<SharedPool>, String> {
        let used = |known: &Record| {
            let host = known.host.clone()?;
            Some(SharedPool { id: Some(known.id.clone()), host, marks: false, is_rbd: false })
        };
        let used = record.and_then(used);
        match &*locked(&self.declared) {
            None => Ok(used),
            Some(Declared::Shared(shared)) => Ok(Some(shared.clone())),
            Some(Declared::Local) if used.is_some() => Err(format!(
                "its folder {} is that of a former pool of this name and of type Shared: stop this agent, remove {}, and start it with \
                 another folder",
                self.path.display(),
                self.record_path.display()
            )),
            Some(Declared::Local) => Ok(None),
        }
    }

    /// The error is why the pool is away, for people.
    pub(super) fn ensure_shared(
        &self,
        record: &mut Option<Record>,
        shared: &SharedPool,
    ) -> std::result::Result<(), String> {
        if shared.is_rbd {
            return Err(format!(
                "it is of type RBD, and this host names a folder for it: --rbd-pool {}=CEPHPOOL, not --pool-folder",
                self.pool
            ));
        }
        let Some(id) = &shared.id else {
            return Err("it is new, and has no identity yet".to_owned());
        };
        let marker = self.read_marker()?;
        let marker = self.without_local_marker(record.as_ref(), marker)?;
        match judge(id, &shared.host, record.as_ref(), marker.as_ref()) {
            Finding::There => {
                self.note_path(record);
                Ok(())
            }
            Finding::Marked => self.take_shared(record, shared, id),
            Finding::New if shared.marks => {
                self.ensure_usable()?;
                self.mark_shared(id).map_err(|error| error.chain())?;
                // Another host may have been first.
                match self.read_marker()? {
                    Some(marker) if marker.shared && marker.id == *id => self.take_shared(record, shared, id),
                    _ => Err(self.other_marker()),
                }
            }
            Finding::New => Err(format!(
                "{} is not there: is its file system mounted at {}? The first host of the pool writes it, see status.shared of the \
                 StoragePool",
                self.marker_path().display(),
                self.path.display()
            )),
            Finding::NoMarker => Err(self.no_marker()),
            Finding::OtherMarker => Err(self.other_marker()),
        }
    }

    /// Removes the marker that this host wrote before the pool was declared, unless there are files of disks.
    fn without_local_marker(
        &self,
        record: Option<&Record>,
        marker: Option<Marker>,
    ) -> std::result::Result<Option<Marker>, String> {
        let is_own = |marker: &Marker| {
            !marker.shared && record.is_some_and(|known| known.host.is_none() && known.id == marker.id)
        };
        if !marker.as_ref().is_some_and(is_own) || self.has_files()? {
            return Ok(marker);
        }
        let path = self.marker_path();
        files::remove_if_there(&path)
            .map_err(|error| format!("{} cannot be removed: {error}", path.display()))?;
        Ok(None)
    }

    fn has_files(&self) -> std::result::Result<bool, String> {
        for folder in KEPT {
            let names = files::names(&self.path.join(folder)).map_err(|error| error.chain())?;
            if !names.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the marker, unless there is one. It is never there in part.
    fn mark_shared(&self, id: &str) -> Result<()> {
        let marker = Marker { pool: self.pool.clone(), id: id.to_owned(), shared: true };
        let path = self.marker_path();
        // Another host may do the same now, in the same folder.
        let fresh = self.path.join(format!("{}{}", files::UNFINISHED, Identities::random().hex(16)));
        files::write_json(&fresh, &marker, 0o644)?;
        let linked = fs::hard_link(&fresh, &path);
        files::remove_if_there(&fresh).map_err(files::failed("remove", &fresh))?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(files::failed("write", &path)(error))
            }
            _ => {
                files::sync_parent(&path).map_err(files::failed("write", &path))?;
                tracing::info!(pool = self.pool, folder = %self.path.display(), "folder of a shared pool marked");
                Ok(())
            }
        }
    }

    /// Makes this host's folder, and records that the marker was seen.
    fn take_shared(
        &self,
        record: &mut Option<Record>,
        shared: &SharedPool,
        id: &str,
    ) -> std::result::Result<(), String> {
        self.ensure_usable()?;
        let host = &shared.host;
        if host.is_empty() || host.starts_with('.') || host.contains('/') {
            return Err(format!("{host:?} cannot be the name of a folder"));
        }
        files::ensure_folder(&self.folder_of(host).join(VOLUMES)).map_err(|error| error.chain())?;
        let now = Record {
            id: id.to_owned(),
            folder: self.path.clone(),
            is_marked: true,
            host: Some(host.clone()),
        };
        self.write_record(record, now)
    }
}
