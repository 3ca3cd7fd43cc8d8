//! Copies of snapshots into another pool of this host: connects the data of the one pool with a new volume in the other.
//!
//! ```text
//!                                                     to a pool of files:   partial file ──rename──▶ volume           (`filling`)
//!   files below a snapshot, or snapshot in Ceph ──▶ {
//!                                                     to a pool of Ceph:    image, note ──note (complete)──▶ volume   (`rbd/filled`)
//! ```
//!
//! QEMUs of guests have written the headers of files: a confined program gets the whole chain by name, and can open no other file.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::LinuxSystem;
use super::files::{self, blocking};
use super::filesystems;
use super::filling::{Partial, check, invalid};
use super::images::{Input, SnapshotContent};
use super::layout::IMAGE_LINKS;
use super::rbd::Data;
use super::volumes::{Begun, LinuxVolumes, wanted_size};
use crate::{Fill, NewVolume, Progress, Result, SystemError, VolumeFacts, Volumes};

/// How often the progress of a copy is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The paths of a user to files of snapshots, which go with the work.
#[derive(Debug)]
struct Links(PathBuf);

impl Drop for Links {
    fn drop(&mut self) {
        // Best effort: the next agent removes those that stay.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl LinuxSystem {
    /// Makes a volume with the data of this snapshot in another pool.
    pub(super) async fn copy_snapshot(
        &self,
        new: &NewVolume,
        (pool, id): (&str, &str),
        progress: Progress<'_>,
    ) -> Result<VolumeFacts> {
        check(new, &Fill::Snapshot { pool: pool.to_owned(), id: id.to_owned() })?;
        let found = Volumes::snapshot(self, pool, id).await?.filter(|facts| facts.taken.is_some());
        let facts = found.ok_or_else(|| SystemError::SnapshotLost { id: id.to_owned() })?;
        if facts.encryption.is_some() {
            return Err(invalid(new, "a copy of an encrypted snapshot is in the pool of the snapshot"));
        }
        let new = &NewVolume { size: Some(wanted_size(new, Some(facts.size))?), ..new.clone() };
        let target = self.rbd.get(&new.pool);
        if let Some(source) = self.rbd.get(pool) {
            let (_, disk) = source.snapshot_node(id).await?;
            let made = if let Some(rbd) = target {
                Box::pin(rbd.create(new, None, Some((Data::Ceph(&disk), progress)), None)).await?
            } else {
                let bytes = source.data_bytes(&facts.volume, id).await?;
                self.copy_to_file(new, SnapshotContent::Raw { disk, bytes }, None, progress).await?
            };
            source.remove_used(id).await;
            return Ok(made);
        }
        let (of_pool, of) = (facts.pool.clone(), id.to_owned());
        let chain = self.on_pool(&facts.pool, move |v| v.chain_of_snapshot(&of_pool, &of)).await?;
        let links = Links(self.layout.snapshot_links(&facts.pool, &format!("{IMAGE_LINKS}copy-{}", new.id)));
        let content = SnapshotContent::Files(chain);
        let Some(rbd) = target else {
            return self.copy_to_file(new, content, Some(links), progress).await;
        };
        let (layout, folder, user) = (self.layout.clone(), links.0.clone(), self.tools_user);
        let input = blocking(move || content.into_input(&layout, &folder, user)).await?;
        let made = Box::pin(rbd.create(new, None, Some((Data::Files(&input), progress)), None)).await;
        drop(links);
        made
    }

    /// Makes a volume with the data of this raw file of the host, which stays.
    pub(super) async fn copy_raw_file(
        &self,
        new: &NewVolume,
        file: &Path,
        progress: Progress<'_>,
    ) -> Result<VolumeFacts> {
        check(new, &Fill::RawFile(file.to_owned()))?;
        if let Some(found) = Volumes::volume(self, &new.pool, &new.id).await? {
            // Without a look at the file. An interrupted call may have made it.
            let made = NewVolume { size: Some(found.size), ..new.clone() };
            self.on_pool(&new.pool, move |v| v.begin_restored(&made, 0, None).map(drop)).await?;
            return Ok(found);
        }
        let links = Links(self.layout.snapshot_links(&new.pool, &format!("{IMAGE_LINKS}copy-{}", new.id)));
        let (path, folder) = (file.to_owned(), links.0.clone());
        let source = self.on_pool(&new.pool, move |v| v.raw_source(&path, &folder)).await?;
        let new = &NewVolume { size: Some(wanted_size(new, Some(source.size))?), ..new.clone() };
        let content = SnapshotContent::Raw { disk: source.disk(), bytes: source.bytes };
        let made = self.copy_to_file(new, content, None, progress).await;
        // Until here no other program could open the file as a disk.
        drop((source, links));
        made
    }

    /// Makes a volume in a pool of files. The program has the rights that the data needs.
    async fn copy_to_file(
        &self,
        new: &NewVolume,
        content: SnapshotContent,
        links: Option<Links>,
        progress: Progress<'_>,
    ) -> Result<VolumeFacts> {
        let user = self.tools_user.filter(|_| links.is_some());
        let begun_of = new.clone();
        let begin = move |v: &LinuxVolumes| v.begin_restored(&begun_of, 0, user.as_ref());
        if let Begun::Partial(partial, making) = self.on_pool(&new.pool, begin).await? {
            let partial = Partial(partial);
            let target = std::path::absolute(partial.path()).unwrap_or_else(|_| partial.path().to_owned());
            let (layout, file) = (self.layout.clone(), target.clone());
            let folder = links.as_ref().map(|links| links.0.clone()).unwrap_or_default();
            let prepare = move || {
                let bytes = content.bytes()?;
                files::check_space(&file, bytes)?;
                Ok::<_, SystemError>((content.into_input(&layout, &folder, user)?, bytes))
            };
            let (input, bytes) = blocking(prepare).await?;
            copy(input, (target, bytes), new.size.unwrap_or(0), progress).await?;
            let finished = new.clone();
            let finish = move |v: &LinuxVolumes| {
                let (_making, partial) = (making, partial);
                v.finish_restored(&finished, partial.path())
            };
            self.on_pool(&new.pool, finish).await?;
        }
        drop(links);
        let found = Volumes::volume(self, &new.pool, &new.id).await?;
        found.ok_or_else(|| SystemError::VolumeLost { id: new.id.clone() })
    }
}

/// Copies data to a file. Its progress is the space that the file takes, of that of the data.
async fn copy(from: Input, (target, total): (PathBuf, u64), size: u64, progress: Progress<'_>) -> Result<()> {
    let mut work = Box::pin(filesystems::copy_data(from, &target, size));
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let file = target.clone();
        let taken =
            blocking(move || fs::metadata(file).map(|metadata| metadata.blocks().saturating_mul(512))).await;
        progress(taken.unwrap_or_default().min(total), Some(total));
    }
}

#[cfg(test)]
#[path = "copies_tests.rs"]
mod tests;
