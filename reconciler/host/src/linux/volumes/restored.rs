//! Volumes that are made from backups, and others that have data from the beginning.
//!
//! ```text
//!                 note (intent)        renamed         note (complete)
//!   partial file ───────────────▶ ○ ───────────▶ ○ ──────────────────▶ volume
//! ```
//!
//! The data is written to a file of another name, which is no volume: one of an interrupted call is removed, and the work begins anew. Two
//! works on one volume, as after a change of the Secrets of a repository, would have the same file: the second one waits for the end of the first.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use berth_qemu::process::RunAs;
use berth_qemu::qcow2;

use super::super::files::{self, failed};
use super::super::filesystems::FORMATTED;
use super::super::layout::IMAGE_LINKS;
use super::super::work_folders;
use super::encryption::NewFile;
use super::making::Making;
use super::note::Note;
use super::{LinuxVolumes, Result, exists, wanted_size};
use crate::{NewVolume, SystemError, VolumeFacts};

const PARTIAL: &str = ".restored.qcow2";
const MADE: &str = "other work makes it";
/// The beginning of the names of folders with a socket and hard links to snapshots, among those of the instances.
pub(in super::super) const BACKUPS: &str = "backup-";

/// The state of a volume that is to be made from a backup, or filled.
#[derive(Debug)]
pub(in super::super) enum Begun {
    There(Box<VolumeFacts>),
    /// The file for the data, empty and of the volume's size, which the user can write. No other work makes the volume until the second
    /// value is dropped, after the file became the volume.
    Partial(PathBuf, Making),
}

impl LinuxVolumes {
    /// `least` is the size of the data.
    ///
    /// *Errors*: [`SystemError::VolumeBusy`] while other work makes the volume.
    pub(in super::super) fn begin_restored(
        &self,
        new: &NewVolume,
        least: u64,
        user: Option<&RunAs>,
    ) -> Result<Begun> {
        let busy = || SystemError::VolumeBusy { id: new.id.clone(), detail: MADE };
        let making = self.makers.begin(&new.id).ok_or_else(busy)?;
        let place = self.place(&new.pool, &new.id)?;
        let size = wanted_size(new, Some(least.next_multiple_of(qcow2::SECTOR)))?;
        if let Some(found) = self.volume(&new.pool, &new.id)? {
            self.finish(&place)?;
            return Ok(Begun::There(Box::new(found)));
        }
        if exists(&place.trashed_file)? {
            return Err(place.damaged("it is in the trash: it has to be restored, not made again"));
        }
        let volumes = self.layout.volumes(&new.pool);
        files::ensure_folder(&volumes)?;
        let partial = volumes.join(format!("{}{}{PARTIAL}", files::UNFINISHED, new.id));
        files::remove_if_there(&partial).map_err(failed("remove", &partial))?;
        files::check_space(&partial, if new.thick { size } else { 0 })?;
        let encryption = new.encryption.as_deref();
        self.create_file(&place, &partial, NewFile { size, backing: None, encryption })?;
        files::give(&partial, user)?;
        Ok(Begun::Partial(partial, making))
    }

    /// Makes the file the volume. All its data is on the medium already.
    pub(in super::super) fn finish_restored(&self, new: &NewVolume, partial: &Path) -> Result<VolumeFacts> {
        let _chains = self.lock(&[&new.pool])?;
        let place = self.place(&new.pool, &new.id)?;
        let lost = || SystemError::VolumeLost { id: new.id.clone() };
        if self.volume(&new.pool, &new.id)?.is_none() {
            files::take_back(partial)?;
            File::open(partial).and_then(|file| file.sync_all()).map_err(failed("write", partial))?;
            Note::new(new, None).write(&place.note)?;
            fs::rename(partial, &place.file).map_err(failed("rename", partial))?;
            files::sync_parent(&place.file).map_err(failed("write", &place.file))?;
            if new.thick {
                let size = place.read_size()?;
                self.reserve_space(&new.pool, &new.id, size).inspect_err(|_| {
                    let _ = fs::remove_file(&place.file).and_then(|()| fs::remove_file(&place.note));
                })?;
            }
            tracing::info!(volume = place.id, "volume made with its data");
        }
        self.finish(&place)?;
        self.volume(&new.pool, &new.id)?.ok_or_else(lost)
    }

    /// Removes the files of interrupted restores, backups and images of processes that have ended, and ends the programs that they have
    /// left: one agent acts on a state directory.
    pub(in super::super) fn forget_partial(&self) -> Result<()> {
        for pool in self.pools()? {
            let readers = self.layout.snapshot_readers(&pool);
            let is_of_work = |name: &&String| name.starts_with(BACKUPS) || name.starts_with(IMAGE_LINKS);
            for name in files::names(&readers)?.iter().filter(is_of_work) {
                work_folders::remove(&readers.join(name))?;
            }
            let volumes = self.layout.volumes(&pool);
            for name in files::names(&volumes)?
                .iter()
                .filter(|name| name.ends_with(PARTIAL) || name.ends_with(FORMATTED))
            {
                let path = volumes.join(name);
                files::remove_if_there(&path).map_err(failed("remove", &path))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::Layout;
    use super::*;
    use crate::VolumeOwner;

    fn new(size: Option<u64>) -> NewVolume {
        let (namespace, name) = ("ns".to_owned(), "data".to_owned());
        let owner = VolumeOwner { namespace, name, uid: None, image: None, source: None };
        let (base, snapshot, file) = (None, None, None);
        NewVolume {
            encryption: None,
            pool: "p".into(),
            id: "v-1".into(),
            size,
            base,
            snapshot,
            file,
            thick: false,
            shared: false,
            owner,
        }
    }

    #[test]
    fn two_works_never_write_the_file_of_one_volume() {
        let folder = tempfile::tempdir().expect("a folder");
        let volumes = LinuxVolumes::new(Layout::new(folder.path()), None);
        let begin = || volumes.begin_restored(&new(None), 1 << 20, None);
        let Begun::Partial(partial, making) = begin().expect("begun") else { panic!("it is there") };
        fs::write(&partial, b"data").expect("written");
        let refused = begin();
        assert!(matches!(refused, Err(SystemError::VolumeBusy { .. })), "{refused:?}");
        assert_eq!(fs::read(&partial).expect("there"), b"data", "it is the file of the first one still");
        assert!(volumes.is_making("v-1") && !volumes.is_making("v-2"));
        let other = volumes.begin_restored(&NewVolume { id: "v-2".into(), ..new(None) }, 1 << 20, None);
        assert!(matches!(other, Ok(Begun::Partial(..))), "{other:?}");
        drop(making);
        assert!(!volumes.is_making("v-1"));
        assert!(matches!(begin(), Ok(Begun::Partial(..))), "the first one has ended");
    }

    #[test]
    fn a_volume_is_there_once_it_is_whole_and_an_interrupted_one_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let volumes = LinuxVolumes::new(Layout::new(folder.path()), None);
        let begin = || match volumes.begin_restored(&new(None), 1 << 20, None).expect("begun") {
            Begun::Partial(partial, _) => partial,
            Begun::There(facts) => panic!("{facts:?}"),
        };
        begin();
        assert_eq!(volumes.volume("p", "v-1").expect("read"), None, "it is not whole");
        assert!(volumes.foreign().expect("listed").is_empty(), "it is berth's");
        volumes.forget_partial().expect("removed");
        assert!(files::names(&folder.path().join("pools/p/volumes")).expect("listed").is_empty());
        let partial = begin();
        assert_eq!(begin(), partial, "it begins anew");
        // The crash comes before the file gets its name.
        let place = volumes.place("p", "v-1").expect("a place");
        Note::new(&new(None), None).write(&place.note).expect("written");
        assert_eq!(volumes.volume("p", "v-1").expect("read"), None);
        let made = volumes.finish_restored(&new(None), &partial).expect("made");
        assert_eq!((made.size, made.backing), (1 << 20, None));
        assert!(Note::read(&place.note).expect("read").expect("there").expect("a note").complete);
        let again = volumes.begin_restored(&new(None), 1 << 20, None).expect("begun");
        assert!(matches!(again, Begun::There(_)), "{again:?}");
        let small = volumes.begin_restored(&NewVolume { id: "v-2".into(), ..new(Some(4096)) }, 1 << 20, None);
        assert!(matches!(small, Err(SystemError::SmallerThanImage { .. })), "{small:?}");
    }
}
