//! The data of images and snapshots, as QEMU's programs read and write it.
//!
//! They run with the rights of the agent: they have the key of Ceph, and read no format from the data of guests. As other programs of QEMU
//! they can open no other files.

use std::path::{Path, PathBuf};

use berth_qemu::machine::RbdImage;
use berth_qemu::process::TOOL_KEY;
use serde_json::json;

use super::super::files;
use super::super::layout::Layout;
use super::super::qemu_img::DiskNode;
use super::super::work_folders;
use super::{RbdPool, Result, folder_of};
use crate::SnapshotFacts;

/// The beginning of the names of the folders with sockets, beside those of the pools, which have no such names.
const WORK: &str = ".work-";
/// The beginning of the names of those with the socket of an import, one for each pool.
const IMPORT: &str = ".import-";

impl RbdPool {
    /// Returns a snapshot that is taken, and how its data is read. Of an encrypted one the program has the key.
    ///
    /// *Errors*: [`SystemError::SnapshotLost`](crate::SystemError::SnapshotLost), [`SystemError::PoolAway`](crate::SystemError::PoolAway).
    pub(in super::super) async fn snapshot_node(&self, id: &str) -> Result<(SnapshotFacts, DiskNode)> {
        let facts = self.finished(id).await?;
        let node = self.node(&Self::name_of(&facts.volume), Some(id), facts.encryption.is_some());
        Ok((facts, node))
    }

    pub(super) fn node(&self, image: &str, snapshot: Option<&str>, is_encrypted: bool) -> DiskNode {
        let mut file = self.image(image).node();
        if let Some(snapshot) = snapshot {
            file["snapshot"] = json!(snapshot);
        }
        let node = match is_encrypted {
            true => json!({"driver": "luks", "key-secret": TOOL_KEY, "file": file}),
            false => json!({"driver": "raw", "file": file}),
        };
        DiskNode { node, files: vec![self.client.conf(), self.client.keyring()] }
    }

    /// The folder for the socket of imports, beside those of the pools, which only root can traverse.
    pub(super) fn import_folder(pool_folder: &Path) -> PathBuf {
        let pool = pool_folder.file_name().unwrap_or_default().to_string_lossy();
        pool_folder.with_file_name(format!("{IMPORT}{pool}"))
    }

    /// The folder of a work with this name.
    pub(in super::super) fn work_folder(&self, name: &str) -> PathBuf {
        self.sockets.with_file_name(format!("{WORK}{name}"))
    }
}

/// Returns an image as an option of `qemu-img`, which has the key if the data is encrypted.
pub(super) fn options_of(image: &RbdImage, is_encrypted: bool) -> String {
    let driver = match is_encrypted {
        true => format!("luks,key-secret={TOOL_KEY}"),
        false => "raw".to_owned(),
    };
    let namespace = image.namespace.iter().map(|namespace| format!(",file.namespace={namespace}"));
    format!(
        "driver={driver},file.driver=rbd,file.pool={}{},file.image={},file.user={},file.conf={}",
        image.pool,
        namespace.collect::<String>(),
        image.image,
        image.user,
        // A comma ends a value, and two are one.
        image.conf.to_string_lossy().replace(',', ",,")
    )
}

/// Removes the folders of processes that have ended, and ends the programs that they have left: one agent acts on a state directory. The
/// folder of an import stays. Blocking.
pub(super) fn forget_work(layout: &Layout) -> Result<()> {
    let folder = folder_of(layout);
    let folder = std::path::absolute(&folder).unwrap_or(folder);
    for name in files::names(&folder)? {
        // A program that stays has an image open, which cannot be deleted then.
        if name.starts_with(WORK) {
            work_folders::remove(&folder.join(name))?;
        } else if name.starts_with(IMPORT) {
            work_folders::end_programs(&folder.join(name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{CephAccess, RbdPoolMapping};

    #[test]
    fn a_snapshot_is_read_as_raw_data_with_the_key_in_a_file() {
        let mapping: RbdPoolMapping = "fast=vms/site".parse().expect("a mapping");
        let pool = RbdPool::new(&Layout::new("/state"), mapping, CephAccess::default(), None);
        let DiskNode { node, files } = pool.node("berth-v-1", Some("s-1"), false);
        let image = json!({
            "driver": "rbd", "pool": "vms", "namespace": "site", "image": "berth-v-1", "snapshot": "s-1", "user": "berth",
            "conf": "/state/rbd/fast/ceph.conf",
        });
        assert_eq!(node, json!({"driver": "raw", "file": image}));
        let encrypted = pool.node("berth-v-1", Some("s-1"), true).node;
        assert_eq!(encrypted, json!({"driver": "luks", "key-secret": "key", "file": image}));
        let own = ["ceph.conf", "keyring"].map(|name| Path::new("/state/rbd/fast").join(name));
        assert_eq!(files, own);
        assert!(pool.node("berth-v-1", None, false).node["file"]["snapshot"].is_null());
        assert_eq!(pool.work_folder("7-1"), Path::new("/state/rbd/.work-7-1"));
        assert_eq!(pool.sockets, Path::new("/state/rbd/.import-fast"));
    }

    #[test]
    fn the_folders_of_ended_work_are_removed_and_those_of_pools_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let layout = Layout::new(folder.path());
        let place = folder_of(&layout);
        for name in [".work-7-1/nbd", "fast", ".import-fast"] {
            fs::create_dir_all(place.join(name)).expect("made");
        }
        forget_work(&layout).expect("removed");
        let mut left = files::names(&place).expect("listed");
        left.sort();
        assert_eq!(left, [".import-fast", "fast"]);
        forget_work(&Layout::new(folder.path().join("none"))).expect("there is none");
    }
}
