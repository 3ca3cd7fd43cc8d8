//! Volumes that have data from the beginning: connects the programs that write it with the volume that it becomes.
//!
//! ```text
//!   partial file ──copy of the image / file system──▶ ● ──note (intent), rename──▶ ○ ──note (complete)──▶ volume
//! ```
//!
//! The data is written to a file of another name, as that of a backup is (see `volumes/restored.rs`): a file with the name of the volume is
//! never formatted and never written here.

use std::path::{Path, PathBuf};

use super::LinuxSystem;
use super::files::{self, blocking};
use super::filesystems::{self, FORMATTED};
use super::volumes::{Begun, LinuxVolumes};
use crate::{Fill, ImageFacts, NewVolume, Result, SystemError, VolumeFacts, Volumes};

use berth_qemu::machine::Backing;

/// A file that becomes a volume. It goes with the work if it does not, also with work that is ended since its Disk is deleted.
#[derive(Debug)]
pub(super) struct Partial(pub(super) PathBuf);

impl Partial {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Best effort: the next attempt removes it too, and the next agent. After the rename there is none.
        let _ = files::remove_if_there(&self.0);
    }
}

impl LinuxSystem {
    /// `base` is the cached image that `new` names.
    pub(super) async fn fill(
        &self,
        new: &NewVolume,
        base: Option<&ImageFacts>,
        fill: &Fill,
    ) -> Result<VolumeFacts> {
        check(new, fill)?;
        let (begun_of, least, user) =
            (new.clone(), base.map_or(0, |base| base.virtual_size), self.tools_user);
        let begin = move |v: &LinuxVolumes| v.begin_restored(&begun_of, least, user.as_ref());
        if let Begun::Partial(partial, making) = self.on_pool(&new.pool, begin).await? {
            let partial = Partial(partial);
            self.write_to(partial.path(), new, base, fill).await?;
            let finished = new.clone();
            let finish = move |v: &LinuxVolumes| {
                let (_making, partial) = (making, partial);
                v.finish_restored(&finished, partial.path())
            };
            self.on_pool(&new.pool, finish).await?;
        }
        let found = Volumes::volume(self, &new.pool, &new.id).await?;
        found.ok_or_else(|| SystemError::VolumeLost { id: new.id.clone() })
    }

    async fn write_to(
        &self,
        partial: &Path,
        new: &NewVolume,
        base: Option<&ImageFacts>,
        fill: &Fill,
    ) -> Result<()> {
        let partial = std::path::absolute(partial).unwrap_or_else(|_| partial.to_owned());
        match (fill, base) {
            (Fill::Snapshot { .. } | Fill::RawFile(_), _) => {
                Err(invalid(new, "it is a copy of a snapshot or a file"))
            }
            (Fill::Image, None) => Err(invalid(new, "it is a copy of an image, and names none")),
            (Fill::Image, Some(base)) => {
                let image = std::path::absolute(&base.path).unwrap_or_else(|_| base.path.clone());
                let (source, target, bytes) = (image.clone(), partial.clone(), base.bytes);
                let is_other_user = self.tools_user.is_some();
                let prepare = move || {
                    files::check_space(&target, bytes)?;
                    if is_other_user { files::freeze(&source) } else { Ok(()) }
                };
                blocking(prepare).await?;
                let size = new.size.unwrap_or(0).max(base.virtual_size);
                let chain = Backing { file: image, format: base.format, backing: None };
                filesystems::copy(&chain, &partial, size, self.tools_user).await
            }
            (Fill::Filesystem(filesystem), _) => {
                let size = new.size.unwrap_or(0).next_multiple_of(berth_qemu::qcow2::SECTOR);
                let name = format!("{}{}{FORMATTED}", files::UNFINISHED, new.id);
                let file = partial.with_file_name(name);
                let formatted = filesystems::format(&file, size, filesystem, self.tools_user).await?;
                filesystems::copy(&formatted.backing(), &partial, size, self.tools_user).await
            }
        }
    }
}

/// Checks that a new volume can have this data.
///
/// *Errors*: [`SystemError::Invalid`].
pub(super) fn check(new: &NewVolume, fill: &Fill) -> Result<()> {
    let is_formatted = matches!(fill, Fill::Filesystem(_));
    let refusals = [
        (
            new.encryption.is_some(),
            "a volume that is formatted, a full copy of an image or a file, or a copy in another pool is not encrypted",
        ),
        (new.shared, "a volume that several VMs write to is blank at first"),
        (new.snapshot.is_some() || new.file.is_some(), "it has the data of a snapshot or a file"),
        (is_formatted && new.base.is_some(), "it has the file systems of its image"),
        (is_formatted && new.size.is_none(), "a volume that is formatted has a size"),
    ];
    match refusals.into_iter().find(|(refuses, _)| *refuses) {
        Some((_, why)) => Err(invalid(new, why)),
        None => Ok(()),
    }
}

pub(super) fn invalid(new: &NewVolume, why: &'static str) -> SystemError {
    SystemError::Invalid { what: "data of volume", value: new.id.clone(), why }
}

#[cfg(test)]
#[path = "filling_tests.rs"]
mod tests;
