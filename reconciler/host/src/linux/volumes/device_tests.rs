//! Volumes that are block devices, of which none is there.

use std::fs;
use std::time::Duration;

use tempfile::TempDir;

use super::super::super::block_devices::BlockDevices;
use super::super::super::layout::Layout;
use super::super::snapshots::tests::owner;
use super::*;
use crate::{BlockDeviceMapping, NewMove};

const ID: &str = "v-0123456789abcdef";
const POOL: &str = "default";

fn volumes() -> (TempDir, LinuxVolumes) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let gone = BlockDeviceMapping { name: "nvme".to_owned(), path: "/dev/berth-test-gone".into() };
    let volumes =
        LinuxVolumes::new(Layout::new(folder.path()), None).with_block_devices(BlockDevices::new(vec![gone]));
    (folder, volumes)
}

fn new(id: &str) -> NewDevice {
    NewDevice {
        pool: POOL.to_owned(),
        id: id.to_owned(),
        device: "nvme".to_owned(),
        size: None,
        owner: owner("data"),
    }
}

/// Records a volume as if its device had been there.
fn record(volumes: &LinuxVolumes) {
    let folder = volumes.layout.volumes(POOL);
    files::ensure_folder(&folder).expect("a folder");
    let note = serde_json::json!({
        "rawVolumeID": ID, "owner": owner("data"), "base": null, "complete": true, "deletedAt": null, "raw": true, "device": "nvme",
    });
    fs::write(folder.join(format!("{ID}.json")), note.to_string()).expect("written");
}

#[test]
fn a_device_that_is_not_there_becomes_no_volume() {
    let (_folder, volumes) = volumes();
    let error = volumes.use_device(&new(ID)).expect_err("refused");
    assert!(matches!(&error, SystemError::BlockDevice { name, .. } if name == "nvme"), "{error}");
    assert!(error.to_string().contains("/dev/berth-test-gone"), "{error}");
    assert_eq!(volumes.volume(POOL, ID).expect("read"), None);

    let folder = volumes.layout.volumes(POOL);
    files::ensure_folder(&folder).expect("a folder");
    fs::write(folder.join("v-damaged.json"), "{").expect("written");
    let error = volumes.use_device(&new(ID)).expect_err("it may be that volume").to_string();
    assert!(error.contains("v-damaged.json"), "{error}");
}

#[test]
fn a_volume_whose_device_is_gone_says_so_and_is_given_up_without_a_trace() {
    let (_folder, volumes) = volumes();
    record(&volumes);
    let found = volumes.use_device(&new(ID)).expect("it is recorded");
    assert!(found.is_device() && !found.is_shared(), "{found:?}");
    assert!(found.problem.as_ref().is_some_and(|why| why.contains("no device")), "{found:?}");
    assert_eq!(volumes.volumes().expect("list"), [found]);
    assert!(volumes.foreign().expect("list").is_empty());
    let facts = volumes.block_devices().expect("looked at");
    assert_eq!(facts[0].held_by.as_ref(), Some(&owner("data")));
    assert_eq!(volumes.device_of(ID).expect("read").as_deref(), Some("nvme"));

    let other = volumes.use_device(&new("v-other")).expect_err("one volume at most").to_string();
    assert!(other.contains("Disk ns/data has it"), "{other}");
    let new = NewMove { id: ID.to_owned(), from: POOL.to_owned(), to: "fast".to_owned() };
    let moved = volumes.check_move(&new).expect_err("refused").to_string();
    assert!(moved.contains("block device"), "{moved}");

    volumes.trash(POOL, ID).expect("given up");
    assert_eq!(volumes.volume(POOL, ID).expect("read"), None);
    assert!(volumes.trashed().expect("list").is_empty());
    assert!(volumes.purge(POOL, Duration::ZERO).expect("purged").is_empty());
    assert_eq!(volumes.block_devices().expect("looked at")[0].held_by, None);
    volumes.trash(POOL, ID).expect("once more");
}
