//! The disks of backups, which qemu-nbd serves.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use berth_backup::{DiskError, Extent, Sink, Source};
use berth_qemu::machine::{Backing, DiskKey, Format};
use berth_qemu::nbd::{self, Client, NbdError};
use berth_qemu::process::{FilterError, NbdExport, NbdServer, RunAs};
use tokio::time::Instant;

use super::super::files::{self, blocking, failed, is_full};
use super::super::layout::Layout;
use super::super::program::Program;
use super::super::qemu_img::{DiskNode, block_node, linked, no_space, paths};
use super::super::rbd::{Changes, RbdPool};
use super::super::volumes::BACKUPS;
use crate::{NewVolume, Result, SystemError};

const QEMU_NBD: Program = Program {
    name: "qemu-nbd",
    advice: "backups need it (Debian, Ubuntu: apt install qemu-utils; Fedora: dnf install qemu-img)",
};
const SOCKET: &str = "socket";
/// The memory of `qemu-nbd`: the tables of the files, up to 64 threads with stacks of 8 MiB.
const MEMORY: u64 = 2 << 30;
/// The same with the threads and caches of Ceph's library.
const MEMORY_FOR_CEPH: u64 = 4 << 30;
/// A program that only reads writes messages at most.
const MESSAGES: u64 = 1 << 20;
/// Room for tables beside the data.
const TABLES: u64 = 64 << 20;
/// How long `qemu-nbd` may take until it accepts its connection, and how often that is tried.
const START: Duration = Duration::from_secs(30);
const TRY_EVERY: Duration = Duration::from_millis(20);
/// Distinguishes the work of this process.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// The folder with the socket and the hard links, which goes with the work, however it ends.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new(layout: &Layout, pool: &str) -> Self {
        Self(layout.snapshot_links(pool, &format!("{BACKUPS}{}", work_name())))
    }

    fn in_ceph(rbd: &RbdPool) -> Self {
        Self(rbd.work_folder(&work_name()))
    }

    fn sockets(&self) -> PathBuf {
        self.0.join("nbd")
    }

    /// Makes the folder that the program has for its socket.
    fn make(&self, user: Option<&RunAs>) -> Result<()> {
        files::ensure_folder_for(&self.0, user)?;
        let sockets = self.sockets();
        files::ensure_folder(&sockets)?;
        if let Some(user) = user {
            std::os::unix::fs::chown(&sockets, Some(user.uid), Some(user.gid))
                .map_err(failed("change the owner of", &sockets))?;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // One that stays is removed when the next agent starts.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a name that no other work of this process has.
fn work_name() -> String {
    format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// The connection to a running qemu-nbd. Dropped in the order of its fields.
struct Served {
    client: Client,
    server: NbdServer,
    _folder: Folder,
}

impl Served {
    async fn new(export: NbdExport, folder: Folder) -> Result<Self> {
        let mut server = export.serve().await.map_err(explain)?;
        let begun = Instant::now();
        loop {
            match Client::connect(&export.socket, "").await {
                Ok(client) => return Ok(Self { client, server, _folder: folder }),
                Err(error) => {
                    server.check().map_err(explain)?;
                    if begun.elapsed() > START {
                        return Err(QEMU_NBD.failed(berth_engine::ErrorChain(&error).to_string()));
                    }
                }
            }
            tokio::time::sleep(TRY_EVERY).await;
        }
    }

    /// Serves an image or a snapshot in Ceph.
    async fn in_ceph(
        rbd: &RbdPool,
        (disk, key): (DiskNode, Option<DiskKey>),
        read_only: bool,
    ) -> Result<Self> {
        let folder = Folder::in_ceph(rbd);
        let folder = blocking(move || folder.make(None).map(|()| folder)).await?;
        let export = NbdExport {
            program: QEMU_NBD.find()?,
            source: format!("json:{}", disk.node),
            inputs: disk.files,
            output: None,
            read_only,
            socket: folder.sockets().join(SOCKET),
            user: None,
            max_bytes: MESSAGES,
            memory: MEMORY_FOR_CEPH,
            key,
        };
        Self::new(export, folder).await
    }

    /// Returns once the program has closed what it has written, and ended.
    async fn ended(self) -> Result<()> {
        let Self { client, server, _folder } = self;
        let closed = client.disconnect().await;
        closed.map_err(|error| QEMU_NBD.failed(berth_engine::ErrorChain(&error).to_string()))?;
        server.ended().await.map_err(explain)
    }
}

fn explain(error: FilterError) -> SystemError {
    match error {
        FilterError::File { path, source } => SystemError::File { attempt: "use", path, source },
        FilterError::Launch(error) => SystemError::Launch(error),
        FilterError::Process(error) => SystemError::Process(error),
        other => QEMU_NBD.failed(other.to_string()),
    }
}

/// The disk of a snapshot, to read.
pub(super) struct SnapshotDisk {
    served: Served,
    /// Of a chain of files.
    parent: Option<Parent>,
    /// In Ceph: what was written since the snapshot of that backup.
    changes: Option<Changes>,
    /// In Ceph, of an encrypted one: what was ever written. The rest counts as zeros.
    written: Option<Changes>,
}

/// The snapshot of the backup whose unchanged data is not read again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parent {
    /// The place of its file in the chain, counted from 1. The data in it and below has not changed since.
    pub(super) depth: u32,
    /// The size of the disk at that time.
    pub(super) size: u64,
}

/// Returns the extents of a part of the disk that begins here. A part that no file has is zeros, as it was for the parent; beyond the
/// end of the parent, the disk has grown.
fn extents_of(part: nbd::Extent, at: u64, parent: Option<Parent>) -> Vec<Extent> {
    let extent = |length, is_unchanged| Extent { length, is_unchanged, is_zero: part.is_zero };
    let Some(parent) = parent else { return vec![extent(part.length, false)] };
    if part.depth > 0 {
        return vec![extent(part.length, part.depth >= parent.depth)];
    }
    let within = parent.size.saturating_sub(at).min(part.length);
    let both = [extent(within, true), extent(part.length - within, false)];
    both.into_iter().filter(|extent| extent.length > 0).collect()
}

/// Returns the same for a disk in Ceph, which tells what was written since the parent.
fn extents_since(part: nbd::Extent, at: u64, changes: &Changes) -> Vec<Extent> {
    let extent = |(length, is_unchanged)| Extent { length, is_unchanged, is_zero: part.is_zero };
    changes.split(at, part.length).into_iter().map(extent).collect()
}

/// Divides an extent that begins here: the parts of an encrypted disk that were never written count as zeros.
fn divided(extent: Extent, at: u64, written: &Changes) -> impl Iterator<Item = Extent> {
    let Extent { length, is_unchanged, is_zero } = extent;
    written.split(at, length).into_iter().map(move |(length, is_unwritten)| Extent {
        length,
        is_unchanged,
        is_zero: is_zero || is_unwritten,
    })
}

impl SnapshotDisk {
    pub(super) async fn open(
        layout: &Layout,
        user: Option<RunAs>,
        pool: &str,
        (chain, key): (Backing, Option<DiskKey>),
        parent: Option<Parent>,
    ) -> Result<Self> {
        let (layout, pool) = (layout.clone(), pool.to_owned());
        let (folder, chain) = blocking(move || {
            let folder = Folder::new(&layout, &pool);
            folder.make(user.as_ref())?;
            let chain = match &user {
                Some(user) => linked(&layout, &folder.0, &chain, user)?,
                None => chain,
            };
            Ok::<_, SystemError>((folder, chain))
        })
        .await?;
        let export = NbdExport {
            program: QEMU_NBD.find()?,
            source: format!("json:{}", block_node(&chain, "auto")),
            inputs: paths(&chain),
            output: None,
            read_only: true,
            socket: folder.sockets().join(SOCKET),
            user,
            max_bytes: MESSAGES,
            memory: MEMORY,
            key,
        };
        Ok(Self { served: Served::new(export, folder).await?, parent, changes: None, written: None })
    }

    /// Opens a snapshot in Ceph, with its key.
    pub(super) async fn open_in_ceph(
        rbd: &RbdPool,
        snapshot: (DiskNode, Option<DiskKey>),
        changes: Option<Changes>,
        written: Option<Changes>,
    ) -> Result<Self> {
        Ok(Self { served: Served::in_ceph(rbd, snapshot, true).await?, parent: None, changes, written })
    }

    pub(super) async fn close(self) {
        let Served { client, server, _folder } = self.served;
        // The data was read: how the program ends changes nothing.
        let _ = client.disconnect().await;
        drop(server);
    }
}

#[async_trait]
impl Source for SnapshotDisk {
    fn size(&self) -> u64 {
        self.served.client.size()
    }

    async fn extents(&mut self, offset: u64, length: u64) -> std::result::Result<Vec<Extent>, DiskError> {
        let parts = self.served.client.extents(offset, length).await?;
        let (mut at, mut found) = (offset, Vec::new());
        for part in parts {
            let extents = match &self.changes {
                Some(changes) => extents_since(part, at, changes),
                None => extents_of(part, at, self.parent),
            };
            for extent in extents {
                let length = extent.length;
                match &self.written {
                    Some(written) => found.extend(divided(extent, at, written)),
                    None => found.push(extent),
                }
                at += length;
            }
        }
        Ok(found)
    }

    async fn read_at(&mut self, offset: u64, into: &mut [u8]) -> std::result::Result<(), DiskError> {
        Ok(self.served.client.read_at(offset, into).await?)
    }
}

/// A file that becomes a volume. It is removed if it does not.
#[derive(Debug)]
pub(super) struct Partial(PathBuf);

impl Partial {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // One that stays is removed by the next attempt.
        let _ = files::remove_if_there(&self.0);
    }
}

/// The disk of a new volume, to write. It consists of zeros.
pub(super) struct VolumeDisk {
    served: Served,
    partial: Partial,
}

impl VolumeDisk {
    pub(super) async fn open(
        layout: &Layout,
        user: Option<RunAs>,
        new: &NewVolume,
        partial: PathBuf,
        key: Option<DiskKey>,
    ) -> Result<Self> {
        let partial = Partial(partial);
        let (layout, pool) = (layout.clone(), new.pool.clone());
        let folder = blocking(move || {
            let folder = Folder::new(&layout, &pool);
            folder.make(user.as_ref()).map(|()| folder)
        })
        .await?;
        let format = if key.is_some() { Format::EncryptedQcow2 } else { Format::Qcow2 };
        let file = Backing { file: partial.path().to_owned(), format, backing: None };
        let size = new.size.unwrap_or(u64::MAX / 4);
        let export = NbdExport {
            program: QEMU_NBD.find()?,
            source: format!("json:{}", block_node(&file, "auto")),
            inputs: Vec::new(),
            output: Some(partial.path().to_owned()),
            read_only: false,
            socket: folder.sockets().join(SOCKET),
            user,
            max_bytes: size.saturating_add(size / 1024).saturating_add(TABLES),
            memory: MEMORY,
            key,
        };
        Ok(Self { served: Served::new(export, folder).await?, partial })
    }

    /// Returns the file once the program has closed it.
    pub(super) async fn close(self) -> Result<Partial> {
        self.served.ended().await?;
        Ok(self.partial)
    }

    fn explain(&self, error: NbdError) -> DiskError {
        match &error {
            NbdError::Failed { source, .. } if is_full(source) => Box::new(no_space(self.partial.path())),
            _ => Box::new(error),
        }
    }
}

#[async_trait]
impl Sink for VolumeDisk {
    fn size(&self) -> u64 {
        self.served.client.size()
    }

    async fn write_at(&mut self, offset: u64, data: &[u8]) -> std::result::Result<(), DiskError> {
        let written = self.served.client.write_at(offset, data).await;
        written.map_err(|error| self.explain(error))
    }

    async fn write_zeroes(&mut self, _: u64, _: u64) -> std::result::Result<(), DiskError> {
        // The file is new.
        Ok(())
    }

    async fn flush(&mut self) -> std::result::Result<(), DiskError> {
        let flushed = self.served.client.flush().await;
        flushed.map_err(|error| self.explain(error))
    }
}

/// The disk of a new volume in Ceph, to write. It consists of zeros, unless it is encrypted.
pub(super) struct ImageDisk {
    served: Served,
    is_encrypted: bool,
}

impl ImageDisk {
    pub(super) async fn open(rbd: &RbdPool, image: DiskNode, key: Option<DiskKey>) -> Result<Self> {
        let is_encrypted = key.is_some();
        let served = Served::in_ceph(rbd, (image, key), false).await?;
        Ok(Self { served, is_encrypted })
    }

    /// Returns once the program has closed the image.
    pub(super) async fn close(self) -> Result<()> {
        self.served.ended().await
    }

    fn explain(error: NbdError) -> DiskError {
        match &error {
            NbdError::Failed { source, .. } if is_full(source) => {
                Box::new(SystemError::NoSpace { what: "the pool of Ceph".to_owned(), needed: 0, free: 0 })
            }
            _ => Box::new(error),
        }
    }
}

#[async_trait]
impl Sink for ImageDisk {
    fn size(&self) -> u64 {
        self.served.client.size()
    }

    async fn write_at(&mut self, offset: u64, data: &[u8]) -> std::result::Result<(), DiskError> {
        self.served.client.write_at(offset, data).await.map_err(Self::explain)
    }

    async fn write_zeroes(&mut self, offset: u64, length: u64) -> std::result::Result<(), DiskError> {
        // The image is new. Encrypted, zeros are data.
        match self.is_encrypted {
            true => self.served.client.write_zeroes(offset, length).await.map_err(Self::explain),
            false => Ok(()),
        }
    }

    async fn flush(&mut self) -> std::result::Result<(), DiskError> {
        self.served.client.flush().await.map_err(Self::explain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_encrypted_disk_that_were_never_written_are_zeros() {
        let written = Changes::of_parts(vec![4..8, 12..20]);
        let extent = Extent { length: 16, is_unchanged: false, is_zero: false };
        let found: Vec<(u64, bool)> = divided(extent, 2, &written).map(|e| (e.length, e.is_zero)).collect();
        assert_eq!(found, [(2, true), (4, false), (4, true), (6, false)]);
    }

    #[test]
    fn data_below_the_parents_file_and_zeros_within_its_size_are_unchanged() {
        let part = |depth| nbd::Extent { length: 10, depth, is_zero: depth == 0, is_hole: depth == 0 };
        let unchanged = |depth, at, parent| -> Vec<(u64, bool)> {
            extents_of(part(depth), at, parent).iter().map(|e| (e.length, e.is_unchanged)).collect()
        };
        let parent = Some(Parent { depth: 2, size: 105 });
        assert_eq!(unchanged(1, 0, parent), [(10, false)]);
        assert_eq!(unchanged(2, 0, parent), [(10, true)]);
        assert_eq!(unchanged(3, 200, parent), [(10, true)]);
        assert_eq!(unchanged(0, 0, parent), [(10, true)]);
        assert_eq!(unchanged(0, 100, parent), [(5, true), (5, false)]);
        assert_eq!(unchanged(0, 200, parent), [(10, false)]);
        assert_eq!(unchanged(2, 0, None), [(10, false)]);
    }
}
