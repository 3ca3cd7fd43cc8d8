//! The files of mirrors on a real file system: which one counts after an end at any step.

use std::fs::File;

use super::super::snapshots::tests::{Fixture, ID, MIB, POOL, has, write};
use super::*;

const SLOW: &str = "slow";

fn new() -> NewMove {
    NewMove { id: ID.to_owned(), from: POOL.to_owned(), to: SLOW.to_owned() }
}

fn names(f: &Fixture) -> Vec<String> {
    files::names(&f.folder.path().join("pools/slow/volumes")).expect("listed")
}

/// As QEMU has it open.
fn opened(path: &Path) -> ImageLock {
    let file: File = OpenOptions::new().read(true).write(true).open(path).expect("open");
    ImageLock::new(file).expect("locked")
}

#[test]
fn a_volume_is_where_it_was_until_the_file_in_the_other_pool_is_recorded() {
    let f = Fixture::new();
    let before = f.found(ID);
    write(&before.path, 1);
    assert_eq!(f.volumes.prepared_mirror(ID).expect("looked"), None);
    let target = f.volumes.prepare_mirror(&new()).expect("prepared");
    assert_eq!((target.pool.as_str(), target.size, &target.id), (SLOW, 4 * MIB, &before.id));
    assert!(target.path.starts_with(f.folder.path().join("pools/slow/volumes")));
    assert_eq!(f.volumes.prepared_mirror(ID).expect("looked"), Some(new()));
    assert_eq!(f.volumes.volume(SLOW, ID).expect("read"), None, "it is not there yet");
    assert_eq!(f.volumes.volumes().expect("listed"), [f.found(ID)]);
    assert!(f.volumes.foreign().expect("looked").is_empty());
    // QEMU writes the data to it.
    write(&target.path, 1);
    f.volumes.check_mirror(&new()).expect("it can be recorded");
    f.volumes.commit_mirror(&new()).expect("recorded");
    f.volumes.commit_mirror(&new()).expect("it is recorded");
    let after = f.volumes.volume(SLOW, ID).expect("read").expect("there");
    assert!(after.path == target.path && has(&after.path, 1));
    assert_eq!(f.volumes.volume(POOL, ID).expect("read"), None);
    assert!(before.path.exists(), "a QEMU may have it open");
    f.volumes.settle_mirror(&new()).expect("settled");
    f.volumes.settle_mirror(&new()).expect("nothing is left");
    assert!(f.files("volumes").is_empty() && has(&after.path, 1));
    assert_eq!(f.volumes.prepared_mirror(ID).expect("looked"), None);
    f.volumes.commit_mirror(&new()).expect("it is recorded");
}

#[test]
fn a_file_that_a_qemu_has_open_is_not_removed_before_the_record() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    let target = f.volumes.prepare_mirror(&new()).expect("prepared");
    let qemu = opened(&target.path);
    // The agent starts again while QEMU copies.
    f.volumes.forget_moves().expect("settled");
    assert_eq!(f.volumes.settle_mirror(&new()).expect_err("open").variant(), "VolumeBusy");
    assert_eq!(f.volumes.prepare_mirror(&new()).expect_err("open").variant(), "VolumeBusy");
    assert_eq!(names(&f).len(), 2, "the file and its note");
    drop(qemu);
    f.volumes.settle_mirror(&new()).expect("settled");
    assert!(names(&f).is_empty() && has(&f.found(ID).path, 1));
}

#[test]
fn what_a_mirror_that_ended_has_left_is_removed_by_the_next_start_the_next_mirror_or_a_move() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    f.volumes.prepare_mirror(&new()).expect("prepared");
    f.volumes.forget_moves().expect("settled");
    assert!(names(&f).is_empty());
    let target = f.volumes.prepare_mirror(&new()).expect("prepared");
    write(&target.path, 9);
    let again = f.volumes.prepare_mirror(&new()).expect("made anew");
    assert!(!has(&again.path, 9), "it begins empty");
    let begun = f.volumes.begin_move(&new()).expect("begun").expect("it is elsewhere");
    drop(begun);
    assert!(names(&f).is_empty() && has(&f.found(ID).path, 1));
}

#[test]
fn a_copy_is_never_taken_for_a_volume_whose_note_is_gone() {
    let f = Fixture::new();
    f.volumes.prepare_mirror(&new()).expect("prepared");
    fs::remove_file(f.at(&format!("volumes/{ID}.json"))).expect("removed");
    assert_eq!(f.volumes.volume(SLOW, ID).expect("read"), None);
    assert_eq!(f.volumes.pool_of_volume(ID).expect("looked"), None);
}

#[test]
fn a_volume_with_snapshots_or_one_that_has_changed_is_not_mirrored() {
    let f = Fixture::new();
    f.volumes.prepare_mirror(&new()).expect("prepared");
    f.take("s-1");
    assert_eq!(f.volumes.check_mirror(&new()).expect_err("changed").variant(), "VolumeBusy");
    assert_eq!(f.volumes.commit_mirror(&new()).expect_err("changed").variant(), "VolumeBusy");
    assert!(f.volumes.volume(SLOW, ID).expect("read").is_none());
    f.volumes.settle_mirror(&new()).expect("settled");
    assert_eq!(f.volumes.prepare_mirror(&new()).expect_err("snapshots").variant(), "Invalid");
    assert!(names(&f).is_empty());
}
