//! Moves on a real file system, with the data in the files.

use std::collections::{BTreeMap, BTreeSet};

use tempfile::TempDir;

use super::super::super::layout::{Layout, PoolPlaces};
use super::super::super::reflink::tests::{BTRFS, EXT4, FileSystem, XFS, is_shared, on_file_system};
use super::super::snapshots::tests::{Fixture, ID, MIB, POOL, has, owner, snapshot, taken, volume, write};
use super::*;
use crate::{DeclaredRestore, NewRestore, NewVolume, VolumeFacts};

const SLOW: &str = "slow";

fn there() -> NewMove {
    NewMove { id: ID.to_owned(), from: POOL.to_owned(), to: SLOW.to_owned() }
}

fn back() -> NewMove {
    NewMove { id: ID.to_owned(), from: SLOW.to_owned(), to: POOL.to_owned() }
}

/// Copies all of it, up to the step that counts.
fn copied(volumes: &LinuxVolumes, new: &NewMove) -> Move {
    let mut begun = volumes.begin_move(new).expect("begun").expect("it is elsewhere");
    while begun.step().expect("copied") {}
    begun
}

fn moved(volumes: &LinuxVolumes, new: &NewMove) -> VolumeFacts {
    let begun = copied(volumes, new);
    volumes.finish_move(&begun).expect("moved");
    assert_eq!(volumes.volume(&new.from, &new.id).expect("read"), None, "it is not here any more");
    volumes.volume(&new.to, &new.id).expect("read").expect("there")
}

fn names(f: &Fixture, folder: &str) -> Vec<String> {
    files::names(&f.folder.path().join("pools").join(folder)).expect("listed")
}

#[test]
fn a_moved_volume_has_its_data_in_the_other_pool_and_leaves_nothing() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    let found = moved(&f.volumes, &there());
    assert_eq!((found.pool.as_str(), found.size), (SLOW, 4 * MIB));
    assert!(found.path.starts_with(f.folder.path().join("pools/slow/volumes")) && has(&found.path, 1));
    assert!(f.files("volumes").is_empty(), "{:?}", f.files("volumes"));
    assert_eq!(f.volumes.volumes().expect("listed"), [found]);
    assert_eq!(f.volumes.pool_of_volume(ID).expect("looked").as_deref(), Some(SLOW));
    assert!(f.volumes.begin_move(&there()).expect("looked").is_none(), "it is there already");
    assert!(has(&moved(&f.volumes, &back()).path, 1));
    assert!(names(&f, "slow/volumes").is_empty());
    assert!(f.volumes.foreign().expect("looked").is_empty());
}

/// A copy of a snapshot in the other pool.
fn copy_there(f: &Fixture, id: &str, of: &str) -> VolumeFacts {
    let new = NewVolume { pool: SLOW.to_owned(), ..volume(id, None, Some(of)) };
    f.volumes.create(&new, None).expect("copied")
}

fn pool_of(f: &Fixture, snapshot: &str) -> Option<String> {
    f.volumes.pool_of_snapshot(snapshot).expect("looked")
}

#[test]
fn the_snapshots_of_a_volume_go_with_it_and_a_file_that_a_copy_is_based_on_stays() {
    let f = Fixture::new();
    for byte in [1, 2] {
        write(&f.found(ID).path, byte);
        f.take(&format!("s-{byte}"));
    }
    write(&f.found(ID).path, 3);
    f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
    let copy = f.copy("v-b", "s-2");
    let found = moved(&f.volumes, &there());
    assert!(has(&found.path, 3));
    let below = found.backing.expect("on a snapshot");
    assert!(below.file.starts_with(f.folder.path().join("pools/slow/snapshots")), "{below:?}");
    let own = f.volumes.snapshot(SLOW, "s-2").expect("read").expect("there");
    assert_eq!((own.owner, own.taken), (Some(owner("s-2")), Some(taken())));
    assert_eq!(pool_of(&f, "s-2").as_deref(), Some(SLOW));
    assert!(has(&copy_there(&f, "v-c", "s-2").path, 2));
    let left = f.volumes.snapshot(POOL, "s-2").expect("read").expect("a copy is based on it");
    assert!(left.owner.is_none() && has(&copy.path, 2));
    // Back there it is based on the file that has stayed, and can be restored from it.
    let found = moved(&f.volumes, &back());
    assert!(has(&found.path, 3));
    assert_eq!(found.backing.expect("on a snapshot").file, f.at("snapshots/s-2.qcow2"));
    assert_eq!(pool_of(&f, "s-2").as_deref(), Some(POOL));
    let left = f.volumes.snapshot(SLOW, "s-2").expect("read").expect("a copy is based on it");
    assert!(left.owner.is_none());
}

#[test]
fn a_snapshot_that_a_restored_volume_is_not_based_on_any_more_goes_with_it() {
    let f = Fixture::new();
    for byte in [1, 2] {
        write(&f.found(ID).path, byte);
        f.take(&format!("s-{byte}"));
    }
    let declared = DeclaredRestore { name: "first".to_owned(), ..DeclaredRestore::default() };
    let (pool, id, snapshot) = (POOL.to_owned(), ID.to_owned(), "s-1".to_owned());
    let restore = NewRestore { pool, volume: id, snapshot, declared, size: 4 * MIB };
    f.volumes.restore_snapshot(&restore).expect("restored");
    let found = moved(&f.volumes, &there());
    assert!(has(&found.path, 1));
    for id in ["s-1", "s-2"] {
        assert_eq!(pool_of(&f, id).as_deref(), Some(SLOW), "{id}");
    }
    assert!(has(&copy_there(&f, "v-b", "s-2").path, 2));
    // The data from before the restore is in the trash of the former pool, based on a file that stays there.
    assert!(f.files("snapshots").contains(&"s-2.qcow2".to_owned()), "{:?}", f.files("snapshots"));
}

#[test]
fn the_files_of_snapshots_are_part_of_a_move_and_one_that_is_lost_stops_it() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    f.take("s-1");
    let files = f.volumes.movable(&there()).expect("movable").snapshots;
    assert_eq!((files.ids(), files.copied.len()), (vec!["s-1".to_owned()], 1));
    fs::remove_file(f.at("snapshots/s-1.qcow2")).expect("removed");
    let refused = f.volumes.check_move(&there()).expect_err("its file is lost");
    assert!(refused.to_string().contains("delete the DiskSnapshot"), "{refused}");
    assert!(f.volumes.begin_move(&there()).is_err());
}

#[test]
fn a_move_that_ends_before_the_step_that_counts_leaves_the_volume_where_it_was() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    f.take("s-1");
    write(&f.found(ID).path, 2);
    let before = f.found(ID);
    drop(f.volumes.begin_move(&there()).expect("begun"));
    assert!(names(&f, "slow/volumes").is_empty() && names(&f, "slow/snapshots").is_empty());
    // The crash comes after the note and the files in the target.
    let begun = copied(&f.volumes, &there());
    let place = f.volumes.place(POOL, ID).expect("a place");
    let note = Note::read(&place.note).expect("read").expect("there").expect("a note");
    f.volumes.commit(&begun, note.clone(), &place).expect("committed");
    note.write(&place.note).expect("taken back");
    assert_eq!(f.volumes.volume(SLOW, ID).expect("read"), None, "it is not there yet");
    assert_eq!(f.volumes.volumes().expect("listed").len(), 1);
    assert_eq!(pool_of(&f, "s-1").as_deref(), Some(POOL), "nor is its snapshot");
    drop(begun);
    f.volumes.forget_moves().expect("settled");
    assert!(names(&f, "slow/volumes").is_empty() && names(&f, "slow/snapshots").is_empty());
    assert_eq!(f.found(ID), before);
    assert_eq!(pool_of(&f, "s-1").as_deref(), Some(POOL));
    assert!(has(&before.path, 2));
}

#[test]
fn a_move_that_a_crash_interrupted_after_the_step_that_counts_is_done() {
    let f = Fixture::new();
    for id in ["s-1", "s-2"] {
        f.take(id);
    }
    write(&f.found(ID).path, 1);
    let begun = copied(&f.volumes, &there());
    let place = f.volumes.place(POOL, ID).expect("a place");
    let note = Note::read(&place.note).expect("read").expect("there").expect("a note");
    f.volumes.commit(&begun, note, &place).expect("committed");
    drop(begun);
    assert_eq!(pool_of(&f, "s-1").as_deref(), Some(POOL), "its snapshots are not settled");
    f.volumes.delete_snapshot(POOL, "s-2").expect("deleted");
    assert_eq!(f.volumes.volume(POOL, ID).expect("read"), None);
    assert_eq!(f.volumes.volumes().expect("listed").len(), 1, "one of the two files counts");
    assert!(has(&f.volumes.volume(SLOW, ID).expect("read").expect("there").path, 1));
    f.volumes.forget_moves().expect("settled");
    assert!(f.files("volumes").is_empty() && f.files("snapshots").is_empty());
    let own = |id: &str| f.volumes.snapshot(SLOW, id).expect("read").expect("there").owner;
    assert_eq!((own("s-1"), own("s-2")), (Some(owner("s-1")), None), "one was deleted meanwhile");
    let found = f.volumes.volume(SLOW, ID).expect("read").expect("there");
    let note = f.volumes.place(SLOW, ID).expect("a place").note;
    let note = Note::read(&note).expect("read").expect("there").expect("a note");
    assert!(note.moved_from.is_none() && has(&found.path, 1));
}

#[test]
fn a_snapshot_whose_note_a_crash_left_in_both_pools_is_that_of_the_new_one_and_is_deleted_once() {
    for is_deleted in [false, true] {
        let f = Fixture::new();
        f.take("s-1");
        let begun = copied(&f.volumes, &there());
        let place = f.volumes.place(POOL, ID).expect("a place");
        let note = Note::read(&place.note).expect("read").expect("there").expect("a note");
        f.volumes.commit(&begun, note, &place).expect("committed");
        drop(begun);
        let at = f.volumes.snapshot_place(SLOW, "s-1").expect("a place");
        let arriving = at.read().expect("read").expect("there");
        SnapshotNote { moved_from: None, ..arriving }.write(&at.note).expect("written");
        if is_deleted {
            for pool in [POOL, SLOW] {
                f.volumes.delete_snapshot(pool, "s-1").expect("deleted");
            }
        }
        f.volumes.forget_moves().expect("settled");
        assert_eq!(pool_of(&f, "s-1").as_deref(), (!is_deleted).then_some(SLOW));
        assert!(f.files("snapshots").is_empty(), "{:?}", f.files("snapshots"));
        assert!(f.volumes.volume(SLOW, ID).expect("read").expect("there").backing.is_some());
    }
}

/// The note of the volume in its first pool, and its place.
fn noted(f: &Fixture) -> (Note, Place) {
    let place = f.volumes.place(POOL, ID).expect("a place");
    (Note::read(&place.note).expect("read").expect("there").expect("a note"), place)
}

#[test]
fn the_snapshots_of_a_volume_are_settled_with_its_arrival_and_move_on_with_it() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    f.take("s-1");
    let begun = copied(&f.volumes, &there());
    let (note, place) = noted(&f);
    f.volumes.commit(&begun, note, &place).expect("committed");
    drop(begun);
    // As the purge of the new pool does after a crash.
    f.volumes.settle_moves(SLOW).expect("settled");
    assert_eq!(pool_of(&f, "s-1").as_deref(), Some(SLOW));
    assert!(f.files("volumes").is_empty() && f.files("snapshots").is_empty());
    let on = NewMove { id: ID.to_owned(), from: SLOW.to_owned(), to: "third".to_owned() };
    assert!(has(&moved(&f.volumes, &on).path, 1));
    assert_eq!(pool_of(&f, "s-1").as_deref(), Some("third"));
    assert!(names(&f, "slow/volumes").is_empty() && names(&f, "slow/snapshots").is_empty());
}

#[test]
fn the_rest_of_a_move_that_did_not_happen_is_not_the_volume_after_it_moved_to_a_third_pool() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    f.take("s-1");
    let begun = copied(&f.volumes, &there());
    let (note, place) = noted(&f);
    f.volumes.commit(&begun, note.clone(), &place).expect("committed");
    // The last step failed, and the target was away when that was to be settled.
    note.write(&place.note).expect("taken back");
    drop(begun);
    let found = moved(&f.volumes, &NewMove { to: "third".to_owned(), ..there() });
    assert_eq!(f.volumes.volume(SLOW, ID).expect("read"), None);
    assert_eq!(f.volumes.volumes().expect("listed"), std::slice::from_ref(&found));
    assert_eq!(f.volumes.pool_of_volume(ID).expect("looked").as_deref(), Some("third"));
    f.volumes.forget_moves().expect("settled");
    assert!(names(&f, "slow/volumes").is_empty() && names(&f, "slow/snapshots").is_empty());
    assert_eq!(pool_of(&f, "s-1").as_deref(), Some("third"));
    assert!(has(&found.path, 1));
}

#[test]
fn a_volume_that_has_moved_keeps_its_snapshots_when_its_former_pool_is_given_up_before_they_are_settled() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    f.take("s-1");
    let begun = copied(&f.volumes, &there());
    let (note, place) = noted(&f);
    f.volumes.commit(&begun, note, &place).expect("committed");
    drop(begun);
    fs::remove_dir_all(f.at("")).expect("given up");
    f.volumes.settle_moves(SLOW).expect("settled");
    assert_eq!(pool_of(&f, "s-1").as_deref(), Some(SLOW));
    assert!(has(&f.volumes.volume(SLOW, ID).expect("read").expect("there").path, 1));
}

#[test]
fn what_a_move_that_is_done_has_left_goes_with_the_next_look_for_merges() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    f.take("s-1");
    let begun = copied(&f.volumes, &there());
    let (note, place) = noted(&f);
    f.volumes.commit(&begun, note, &place).expect("committed");
    drop(begun);
    assert!(f.volumes.begin_merge(&BTreeSet::new()).expect("looked").is_none());
    assert!(f.files("volumes").is_empty() && f.files("snapshots").is_empty());
    assert_eq!(pool_of(&f, "s-1").as_deref(), Some(SLOW));
    assert!(has(&f.volumes.volume(SLOW, ID).expect("read").expect("there").path, 1));
}

#[test]
fn what_a_move_has_left_does_not_hold_up_the_next_one() {
    for to in [POOL, "third"] {
        let f = Fixture::new();
        write(&f.found(ID).path, 1);
        f.take("s-1");
        let begun = copied(&f.volumes, &there());
        let (note, place) = noted(&f);
        f.volumes.commit(&begun, note, &place).expect("committed");
        drop(begun);
        let next = NewMove { to: to.to_owned(), ..back() };
        f.volumes.check_move(&next).expect("it can be moved");
        assert!(has(&moved(&f.volumes, &next).path, 1));
        assert_eq!(pool_of(&f, "s-1").as_deref(), Some(to));
        assert!(names(&f, "slow/volumes").is_empty() && names(&f, "slow/snapshots").is_empty());
    }
}

#[test]
fn a_volume_is_not_moved_onto_the_note_of_a_snapshot_without_its_file() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    f.take("s-1");
    let begun = copied(&f.volumes, &there());
    // The move of another volume on it has failed between the two.
    let note = f.volumes.snapshot_place(POOL, "s-1").expect("a place").read().expect("read").expect("there");
    let at = f.volumes.snapshot_place(SLOW, "s-1").expect("a place");
    SnapshotNote { owner: None, ..note }.write(&at.note).expect("written");
    assert_eq!(f.volumes.finish_move(&begun).expect_err("no file").variant(), "SnapshotLost");
    drop(begun);
    assert!(has(&f.found(ID).path, 1));
    assert_eq!(pool_of(&f, "s-1").as_deref(), Some(POOL));
}

#[test]
fn a_volume_that_is_open_or_has_an_unfinished_snapshot_is_not_moved() {
    let f = Fixture::new();
    let open = OpenOptions::new().read(true).write(true).open(f.found(ID).path).expect("open");
    let lock = ImageLock::new(open).expect("locked");
    assert_eq!(f.volumes.begin_move(&there()).expect_err("open").variant(), "VolumeBusy");
    drop(lock);
    f.volumes.begin_snapshot(&snapshot("s-1")).expect("begun");
    assert_eq!(f.volumes.check_move(&there()).expect_err("a snapshot").variant(), "VolumeBusy");
    let nowhere = NewMove { id: "v-9".to_owned(), ..there() };
    assert_eq!(f.volumes.check_move(&nowhere).expect_err("no volume").variant(), "VolumeLost");
}

#[test]
fn the_files_that_a_move_copies_are_not_merged_meanwhile_and_a_changed_volume_is_not_moved() {
    let f = Fixture::new();
    for id in ["s-1", "s-2"] {
        write(&f.found(ID).path, 1);
        f.take(id);
    }
    f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
    let begun = copied(&f.volumes, &there());
    assert!(f.volumes.begin_merge(&BTreeSet::new()).expect("looked").is_none());
    // QEMU's tools wait for the lock of the move.
    let open = OpenOptions::new().write(true).open(f.found(ID).path).expect("open");
    open.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("changed");
    assert_eq!(f.volumes.finish_move(&begun).expect_err("changed").variant(), "VolumeBusy");
    drop(begun);
    assert!(has(&f.found(ID).path, 1));
    assert!(f.volumes.begin_merge(&BTreeSet::new()).expect("looked").is_some(), "afterwards they are");
    assert_eq!(f.volumes.check_move(&there()).expect_err("a merge").variant(), "VolumeBusy");
}

/// A state directory, and a pool on another file system. None: this machine has no other one.
fn on_two_file_systems() -> Option<(TempDir, TempDir, LinuxVolumes)> {
    let state = tempfile::tempdir().expect("temporary folder");
    let other = tempfile::tempdir_in("/dev/shm").ok()?;
    let device = |folder: &TempDir| fs::metadata(folder.path()).expect("there").dev();
    if device(&state) == device(&other) {
        return None;
    }
    let folders = BTreeMap::from([(SLOW.to_owned(), other.path().to_owned())]);
    let volumes =
        LinuxVolumes::new(Layout::new(state.path()).with_pool_places(PoolPlaces::new(folders)), None);
    volumes.create(&volume(ID, Some(64 * MIB), None), None).expect("made");
    Some((state, other, volumes))
}

#[test]
fn a_volume_on_another_file_system_is_copied_with_its_holes_and_compared() {
    let Some((state, other, volumes)) = on_two_file_systems() else {
        println!("skipped: no other file system at /dev/shm");
        return;
    };
    let path = volumes.volume(POOL, ID).expect("read").expect("there").path;
    write(&path, 7);
    let blocks = |path: &Path| fs::metadata(path).expect("there").blocks();
    let (before, bytes) = (blocks(&path), fs::read(&path).expect("read"));
    let begun = copied(&volumes, &there());
    let (done, total) = begun.progress();
    assert!(done > 0 && done <= total);
    volumes.finish_move(&begun).expect("moved");
    drop(begun);
    let found = volumes.volume(SLOW, ID).expect("read").expect("there");
    assert!(found.path.starts_with(other.path()));
    assert!(fs::read(&found.path).expect("read") == bytes, "all of its bytes");
    assert!(blocks(&found.path) <= before + 64, "a hole stays one");
    assert!(files::names(&state.path().join("pools/default/volumes")).expect("listed").is_empty());
}

#[test]
fn a_copy_that_differs_is_not_taken_for_the_volume() {
    let Some((_state, other, volumes)) = on_two_file_systems() else {
        println!("skipped: no other file system at /dev/shm");
        return;
    };
    write(&volumes.volume(POOL, ID).expect("read").expect("there").path, 7);
    let mut begun = volumes.begin_move(&there()).expect("begun").expect("it is elsewhere");
    while !begun.compares {
        let part = &begun.parts[0];
        let Some((start, end)) = next_data(&part.source, begun.at).expect("read") else {
            (begun.compares, begun.at) = (true, 0);
            break;
        };
        part.transfer(part.copy.as_ref().expect("a copy"), (start, end - start), false).expect("copied");
        begun.at = end;
    }
    begun.parts[0].copy.as_ref().expect("a copy").write_all_at(b"other", 0).expect("written");
    assert_eq!(begun.step().expect_err("another byte").variant(), "VolumeDamaged");
    drop(begun);
    assert!(files::names(&other.path().join("volumes")).expect("listed").is_empty());
    assert!(volumes.volume(POOL, ID).expect("read").is_some());
}

#[test]
fn a_copy_that_shares_its_data_is_the_volume_without_being_compared() {
    let Some((_state, other, volumes)) = on_two_file_systems() else {
        println!("skipped: no other file system at /dev/shm");
        return;
    };
    let path = volumes.volume(POOL, ID).expect("read").expect("there").path;
    write(&path, 7);
    let bytes = fs::read(&path).expect("read");
    let mut begun = volumes.begin_move(&there()).expect("begun").expect("it is elsewhere");
    // As on a file system that clones.
    let part = &mut begun.parts[0];
    assert!(!part.is_clone, "these file systems do not");
    part.copy.as_ref().expect("a copy").write_all_at(&bytes, 0).expect("written");
    part.is_clone = true;
    assert!(!begun.step().expect("nothing is left to copy"));
    assert_eq!((begun.at, begun.done), (0, 0));
    volumes.finish_move(&begun).expect("moved");
    drop(begun);
    let found = volumes.volume(SLOW, ID).expect("read").expect("there");
    assert!(found.path.starts_with(other.path()) && fs::read(&found.path).expect("read") == bytes);
}

/// A volume above a snapshot, and a pool in another folder of the file system: of Btrfs in another subvolume.
fn on_one_file_system(kind: FileSystem, disk: &Path) -> Fixture {
    let other = disk.join("other");
    kind.make_folder(&other);
    let folder = tempfile::tempdir_in(disk).expect("temporary folder");
    let places = PoolPlaces::new(BTreeMap::from([(SLOW.to_owned(), other)]));
    let volumes = LinuxVolumes::new(Layout::new(folder.path()).with_pool_places(places), None);
    volumes.create(&volume(ID, Some(4 * MIB), None), None).expect("made");
    let f = Fixture { folder, volumes };
    write(&f.found(ID).path, 1);
    f.take("s-1");
    write(&f.found(ID).path, 2);
    f
}

#[test]
fn a_move_within_a_file_system_renames_the_volume_or_shares_its_data_and_copies_only_where_neither_is_possible()
 {
    for (kind, is_renamed) in [(XFS, true), (BTRFS, false), (EXT4, true)] {
        on_file_system(kind, |disk| {
            let f = on_one_file_system(kind, disk);
            let begun = copied(&f.volumes, &there());
            let [below, own] = begun.parts.as_slice() else { panic!("{:?}", begun.parts) };
            assert_eq!((below.is_clone, is_shared(&below.partial)), (kind.shares, kind.shares), "{kind:?}");
            assert_eq!((own.copy.is_none(), is_shared(&own.partial)), (is_renamed, !is_renamed), "{kind:?}");
            assert_eq!(begun.progress().0 == 0, kind.shares, "{kind:?}: {:?}", begun.progress());
            f.volumes.finish_move(&begun).expect("moved");
            drop(begun);
            let found = f.volumes.volume(SLOW, ID).expect("read").expect("there");
            assert!(has(&found.path, 2), "{kind:?}");
            let copy = &found.backing.as_ref().expect("on a snapshot").file;
            assert!(copy.starts_with(disk.join("other/snapshots")), "{kind:?}: {}", copy.display());
            write(&found.path, 3);
            assert!(has(&copy_there(&f, "v-b", "s-1").path, 1), "{kind:?}");
        });
    }
}

#[test]
fn a_volume_with_reserved_space_has_its_own_also_in_another_subvolume() {
    on_file_system(BTRFS, |disk| {
        let f = on_one_file_system(BTRFS, disk);
        f.volumes.reserve(POOL, ID, 4 * MIB).expect("reserved");
        let begun = copied(&f.volumes, &there());
        let own = begun.parts.last().expect("the volume");
        assert!(own.copy.is_some() && !own.is_clone && !is_shared(&own.partial), "{own:?}");
        assert!(fs::metadata(&own.partial).expect("there").blocks() * 512 >= 4 * MIB);
        f.volumes.finish_move(&begun).expect("moved");
        assert!(has(&f.volumes.volume(SLOW, ID).expect("read").expect("there").path, 2));
    });
}
