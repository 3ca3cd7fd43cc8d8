//! Images of Ceph that have data of their own from the beginning. The note of the volume is not complete before that: an interrupted call is done
//! again, and to everything else there is no volume yet.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use berth_qemu::machine::DiskKey;
use berth_qemu::process::RunAs;

use super::super::files::{self, blocking};
use super::super::filesystems::{self, COPY_TIME, FORMATTED, Formatted};
use super::super::images::Input;
use super::super::qemu_img::{DiskNode, text};
use super::client::{Client, LONG};
use super::images::{Target, nbd_source, serve_disk};
use super::{RbdPool, Result, replies};
use crate::{NewFilesystem, Progress};

/// The number of the next folder of a work: the path of a socket is short.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// The data that a new image gets.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Data<'a> {
    /// That of the Image that it is a clone of, or, if it is encrypted, that it was written from.
    Image,
    Filesystem(&'a NewFilesystem),
    /// That of a snapshot in a pool of files.
    Files(&'a Input),
    /// That of a snapshot in another pool of Ceph.
    Ceph(&'a DiskNode),
}

/// The folder of a file system or a header that is being made, or of a socket, which goes with the work, however it ends.
#[derive(Debug)]
pub(super) struct Folder(pub(super) PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // One that stays is removed when the next agent starts.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl RbdPool {
    /// Gives the image of a volume that is being made its data. `key`: that of the data. The progress is that of a copy of a snapshot.
    pub(super) async fn fill(
        &self,
        id: &str,
        size: u64,
        (data, progress): (Data<'_>, Progress<'_>),
        key: Option<&DiskKey>,
    ) -> Result<()> {
        let name = Self::name_of(id);
        let target = Target { name: &name, key };
        match data {
            Data::Image if key.is_some() => Ok(()),
            Data::Image => self.flatten(id).await,
            Data::Filesystem(filesystem) => self.format(id, size, filesystem, target).await,
            Data::Files(from) => {
                Box::pin(self.copy_files(&from.disk, from.user, target, (size, progress))).await
            }
            // It is raw.
            Data::Ceph(from) => {
                let source = format!("json:{}", from.node);
                self.convert(&[&source], target, COPY_TIME, (size, progress)).await
            }
        }
    }

    /// Copies the data of files. QEMUs of guests have written their headers: a confined program reads them, and the one that has the key of
    /// Ceph gets the data alone, by a socket.
    pub(super) async fn copy_files(
        &self,
        from: &DiskNode,
        user: Option<RunAs>,
        target: Target<'_>,
        progress: (u64, Progress<'_>),
    ) -> Result<()> {
        let folder = self.numbered_folder("copy");
        let (server, socket) = serve_disk(from, user, &folder.0).await?;
        let written = self.convert(&[&nbd_source(&socket)], target, COPY_TIME, progress).await;
        drop((server, folder));
        written
    }

    /// Returns a folder that no other work of this process has, also if that was given up and goes on for a moment.
    pub(super) fn numbered_folder(&self, kind: &str) -> Folder {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Folder(self.work_folder(&format!("{kind}-{number}")))
    }

    /// Copies the data of the image that the volume is a clone of.
    async fn flatten(&self, id: &str) -> Result<()> {
        let spec = self.spec(&Self::name_of(id));
        let found = self.rbd(&["info", "--format", "json", &spec]).await?;
        if !found.ok {
            return Err(Client::failed(&found));
        }
        match replies::has_parent(&found.stdout).map_err(Self::not_understood)? {
            true => self.must(&["flatten", "--no-progress", &spec], LONG).await.map(drop),
            false => Ok(()),
        }
    }

    /// Makes a file system in a file of this host, and copies it to the image, whose former data is overwritten.
    async fn format(
        &self,
        id: &str,
        size: u64,
        filesystem: &NewFilesystem,
        target: Target<'_>,
    ) -> Result<()> {
        let (formatted, folder) = self.formatted(id, size, filesystem).await?;
        let source = format!("file:{}", text(&formatted.backing().file));
        let written = self.convert(&["-f", "raw", &source], target, LONG, (size, &|_, _| {})).await;
        drop((formatted, folder));
        written
    }

    /// Makes a file system in a file. Its folder is beside those of the pools, which the user of the program cannot traverse.
    async fn formatted(
        &self,
        id: &str,
        size: u64,
        filesystem: &NewFilesystem,
    ) -> Result<(Formatted, Folder)> {
        let folder = Folder(self.work_folder(&format!("format-{id}")));
        let file = folder.0.join(format!("{id}{FORMATTED}"));
        let folder = blocking(move || files::ensure_folder(&folder.0).map(|()| folder)).await?;
        let formatted = filesystems::format(&file, size, filesystem, self.tools_user).await?;
        Ok((formatted, folder))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::super::layout::Layout;
    use super::super::folder_of;
    use super::*;
    use crate::{CephAccess, FilesystemKind, RbdPoolMapping};

    #[tokio::test]
    async fn a_file_system_is_made_where_the_user_of_its_program_can_reach_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(folder.path());
        let mapping: RbdPoolMapping = "fast=vms".parse().expect("a mapping");
        let pool = RbdPool::new(&layout, mapping, CephAccess::default(), None);
        files::ensure_private_folder(&folder_of(&layout).join("fast")).expect("made");
        let filesystem = NewFilesystem { kind: FilesystemKind::Ext4, label: None };
        let made = pool.formatted("v-1", 32 << 20, &filesystem).await.expect("formatted");
        let file = made.0.backing().file;
        let content = fs::read(&file).expect("read");
        assert_eq!(content.get(1024 + 56..1024 + 58), Some(&[0x53, 0xEF][..]), "it has the file system");
        for above in file.ancestors().skip(1).take_while(|above| *above != folder.path()) {
            let mode = fs::metadata(above).expect("a folder").permissions().mode();
            assert_eq!(mode & 0o001, 0o001, "{}: {mode:o}", above.display());
        }
        drop(made);
        assert_eq!(files::names(&folder_of(&layout)).expect("listed"), ["fast"]);
    }
}
