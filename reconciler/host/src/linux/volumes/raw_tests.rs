//! Raw volumes on a real file system.

use std::time::Duration;

use berth_qemu::machine::Cache;
use tempfile::TempDir;

use super::super::super::layout::Layout;
use super::super::LinuxVolumes;
use super::super::snapshots::tests::volume;
use super::*;
use crate::{NewMove, NewSnapshot};

const MIB: u64 = 1 << 20;
const ID: &str = "v-0123456789abcdef";
const POOL: &str = "default";

fn volumes() -> (TempDir, LinuxVolumes) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let volumes = LinuxVolumes::new(Layout::new(folder.path()), None);
    (folder, volumes)
}

fn new(size: u64) -> NewVolume {
    NewVolume { pool: POOL.to_owned(), shared: true, ..volume(ID, Some(size), None) }
}

/// Writes the header of a qcow2 file with another size, as a guest can.
fn write_header(file: &Path) {
    let other = file.with_file_name("other");
    qcow2::create(&other, 64 * MIB).expect("made");
    let header = fs::read(&other).expect("read");
    fs::remove_file(&other).expect("removed");
    let written =
        OpenOptions::new().write(true).open(file).map(|mut file| io::Write::write_all(&mut file, &header));
    written.expect("open").expect("written");
}

#[test]
fn a_shared_volume_is_raw_whatever_a_guest_writes_to_it() {
    let (_folder, volumes) = volumes();
    let made = volumes.create(&new(8 * MIB), None).expect("made");
    assert_eq!((made.size, made.format, made.cache), (8 * MIB, Format::Raw, Cache::default()));
    assert!(made.is_shared() && made.path.ends_with(format!("{ID}.raw")), "{made:?}");
    write_header(&made.path);
    assert_eq!(volumes.volume(POOL, ID).expect("read"), Some(made.clone()));
    assert_eq!(volumes.create(&new(8 * MIB), None).expect("made already"), made);
    assert_eq!(volumes.grow(POOL, ID, 16 * MIB).expect("grown").size, 16 * MIB);
    assert_eq!(volumes.volumes().expect("list").len(), 1);
    assert!(volumes.foreign().expect("list").is_empty());
    assert!(volumes.used_bytes().expect("measured").contains_key(ID));
    let note = fs::read_to_string(made.path.with_extension("json")).expect("a note");
    assert!(
        note.contains("rawVolumeID") && !note.contains("\"volumeID\""),
        "an older agent leaves it alone: {note}"
    );
}

#[test]
fn a_shared_volume_that_is_open_does_not_grow() {
    let (_folder, volumes) = volumes();
    let made = volumes.create(&new(8 * MIB), None).expect("made");
    let open = OpenOptions::new().read(true).write(true).open(&made.path).expect("open");
    let lock = ImageLock::new(open).expect("locked");
    let error = volumes.grow(POOL, ID, 16 * MIB).expect_err("open");
    assert!(matches!(error, SystemError::VolumeBusy { .. }), "{error:?}");
    drop(lock);
    let error = volumes.grow(POOL, ID, MIB).expect_err("smaller");
    assert!(matches!(error, SystemError::Shrink { .. }), "{error:?}");
}

#[test]
fn a_deleted_shared_volume_comes_back_and_is_purged_as_others_are() {
    let (_folder, volumes) = volumes();
    let made = volumes.create(&new(8 * MIB), None).expect("made");
    volumes.trash(POOL, ID).expect("trashed");
    let trashed = volumes.trashed().expect("list");
    assert_eq!((trashed[0].volume.size, trashed[0].volume.is_shared()), (8 * MIB, true));
    assert_eq!(volumes.restore(POOL, ID, &made.owner).expect("restored"), made);
    volumes.trash(POOL, ID).expect("trashed");
    assert_eq!(volumes.purge(POOL, Duration::ZERO).expect("purged"), [ID]);
    assert_eq!(volumes.volume(POOL, ID).expect("read"), None);
}

#[test]
fn the_space_of_a_thick_shared_volume_is_reserved() {
    let (_folder, volumes) = volumes();
    let made = volumes.create(&NewVolume { thick: true, ..new(8 * MIB) }, None).expect("made");
    let used = volumes.used_bytes().expect("measured")[ID];
    assert_eq!((made.size, made.reserved), (8 * MIB, Some(8 * MIB)));
    assert!(used >= 8 * MIB, "{used}");
}

#[test]
fn a_shared_volume_has_no_data_at_first_no_snapshots_and_stays_in_its_pool() {
    let (_folder, volumes) = volumes();
    let filled = NewVolume { file: Some("/srv/disk.raw".into()), ..new(MIB) };
    let error = volumes.create(&filled, None).expect_err("filled");
    assert!(error.to_string().contains("blank at first"), "{error}");
    volumes.create(&new(MIB), None).expect("made");
    let snapshot =
        NewSnapshot { pool: POOL.to_owned(), id: "s-1".to_owned(), volume: ID.to_owned(), owner: None };
    let error = volumes.check_snapshots(&[snapshot]).expect_err("no snapshot");
    assert!(matches!(error, SystemError::Invalid { .. }), "{error:?}");
    let moved = NewMove { id: ID.to_owned(), from: POOL.to_owned(), to: "fast".to_owned() };
    let error = volumes.check_move(&moved).expect_err("no move");
    assert!(matches!(error, SystemError::Invalid { .. }), "{error:?}");
}
