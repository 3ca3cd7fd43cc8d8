//! Merges on a real file system, by the real `qemu-img`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::super::super::tests::SmallDisk;
use super::super::snapshots::tests::{Fixture, ID, MIB, POOL, io, snapshot, taken, volume, write};
use super::*;
use crate::NewVolume;

/// Returns all that a file shows, with the files below it as the notes name them.
fn content(file: &Path, below: Option<Backing>) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let back = folder.path().join("back");
    let chain = Backing { file: file.to_owned(), format: Format::Qcow2, backing: below.map(Box::new) };
    let run = Command::new("qemu-img")
        .args(["convert", "-O", "raw", &format!("json:{}", block_node(&chain, "auto"))])
        .arg(&back)
        .output()
        .expect("qemu-img is installed (qemu-utils)");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    fs::read(&back).expect("converted")
}

fn of_volume(volumes: &LinuxVolumes, id: &str) -> Vec<u8> {
    let found = volumes.volume(POOL, id).expect("read").expect("there");
    content(&found.path, found.backing)
}

fn of_snapshot(volumes: &LinuxVolumes, id: &str) -> Vec<u8> {
    let chain = volumes.chain_of_snapshot(POOL, id).expect("taken");
    content(&chain.file, chain.backing.map(|below| *below))
}

async fn merge_one(volumes: &LinuxVolumes, kept: &BTreeSet<String>) -> Option<Merged> {
    let merge = volumes.begin_merge(kept).expect("begun")?;
    merge.run(None).await.expect("committed");
    Some(volumes.finish_merge(&merge).expect("finished"))
}

async fn merge_all(volumes: &LinuxVolumes) -> usize {
    let mut merged = 0;
    while merge_one(volumes, &BTreeSet::new()).await.is_some() {
        merged += 1;
    }
    merged
}

/// The volume, copies and snapshots, with the data of each.
fn everything(f: &Fixture, copies: &[&str], snapshots: &[&str]) -> Vec<Vec<u8>> {
    let volumes = copies.iter().chain([&ID]).map(|id| of_volume(&f.volumes, id));
    volumes.chain(snapshots.iter().map(|id| of_snapshot(&f.volumes, id))).collect()
}

/// A disk of which snapshots `s-1` to `s-5` were taken, each after writes, zeros and discards at other places, and growth.
fn with_history() -> Fixture {
    let f = Fixture::new();
    for number in 1_u64..=5 {
        let path = f.found(ID).path;
        let at = (number * 700) % 3000;
        for command in [
            format!("write -P {number} {at}k 600k"),
            format!("write -P {} {}k 5k", number + 16, at + 900),
            format!("write -z {}k 100k", at + 100),
            format!("discard {}k 256k", (number * 1024) % 3072),
        ] {
            assert!(io(&path, &command), "{command}");
        }
        f.take(&format!("s-{number}"));
        if number % 2 == 0 {
            let size = f.found(ID).size + MIB + 512 * number;
            f.volumes.grow(POOL, ID, size).expect("grown");
        }
    }
    write(&f.found(ID).path, 9);
    f
}

#[tokio::test]
async fn every_snapshot_disk_and_copy_has_its_data_after_merges_in_any_order() {
    let orders: [&[&str]; 4] = [
        &["s-1", "s-2", "s-3", "s-4"],
        &["s-4", "s-2"],
        &["s-3", "s-5", "s-1"],
        &["s-2", "s-1", "s-4", "s-5"],
    ];
    for order in orders {
        let f = with_history();
        f.copy("v-b", "s-3");
        f.copy("v-c", "s-5");
        write(&f.found("v-b").path, 7);
        let mut left = vec!["s-1", "s-2", "s-3", "s-4", "s-5"];
        for deleted in order {
            left.retain(|id| id != deleted);
            let before = everything(&f, &["v-b", "v-c"], &left);
            f.volumes.delete_snapshot(POOL, deleted).expect("deleted");
            merge_all(&f.volumes).await;
            assert!(everything(&f, &["v-b", "v-c"], &left) == before, "{order:?}: {deleted}");
        }
        // One stays for each that exists, one that two files are based on, and one that the disk writes above.
        let based_on: &[&str] = &["s-3", "s-5"];
        let expected: BTreeSet<&str> = left.iter().chain(based_on).copied().collect();
        let snapshots = f.files("snapshots");
        assert_eq!(snapshots.len(), 2 * expected.len(), "{order:?}: {snapshots:?}");
        assert!(f.files("readers").is_empty(), "nothing is left of the merges");
    }
}

#[tokio::test]
async fn a_disk_with_a_schedule_is_on_as_many_files_as_snapshots_exist() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    for number in 0..crate::MOST_SNAPSHOTS + 8 {
        f.take(&format!("s-{number}"));
        if number >= 3 {
            f.volumes.delete_snapshot(POOL, &format!("s-{}", number - 3)).expect("deleted");
        }
        let merged = merge_all(&f.volumes).await;
        assert_eq!(merged, usize::from(number >= 3));
        let files = f.found(ID).backing.expect("on snapshots").files();
        assert_eq!(files, 3.min(number as u64 + 1));
    }
    assert!(super::super::snapshots::tests::has(&f.found(ID).path, 1));
}

#[tokio::test]
async fn what_is_not_only_below_one_snapshot_is_not_merged() {
    let f = Fixture::new();
    for id in ["s-1", "s-2"] {
        write(&f.found(ID).path, 1);
        f.take(id);
    }
    assert!(f.volumes.begin_merge(&BTreeSet::new()).expect("looked").is_none(), "both exist");
    f.volumes.delete_snapshot(POOL, "s-2").expect("deleted");
    assert!(f.volumes.begin_merge(&BTreeSet::new()).expect("looked").is_none(), "the disk writes above it");
    f.copy("v-b", "s-1");
    f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
    assert!(f.volumes.begin_merge(&BTreeSet::new()).expect("looked").is_none(), "a copy is based on it");
    f.volumes.trash(POOL, "v-b").expect("in the trash");
    assert!(f.volumes.begin_merge(&BTreeSet::new()).expect("looked").is_none(), "the trash too");
    assert_eq!(f.volumes.purge(POOL, Duration::ZERO).expect("purged"), ["v-b"]);
    let kept = BTreeSet::from(["s-1".to_owned()]);
    assert!(f.volumes.begin_merge(&kept).expect("looked").is_none(), "an image is made from it");
    let new = snapshot("s-3");
    f.volumes.begin_snapshot(&new).expect("begun");
    assert_eq!(merge_one(&f.volumes, &BTreeSet::new()).await, Some(Merged { volumes: vec![ID.to_owned()] }));
    // The third is not taken yet: its file may still be written.
    assert!(f.volumes.begin_merge(&BTreeSet::new()).expect("looked").is_none());
    f.volumes.finish_snapshot(POOL, "s-3", &taken()).expect("finished");
    fs::write(f.at("trash/v-x.json"), "{").expect("damage");
    assert!(f.volumes.begin_merge(&BTreeSet::new()).expect("looked").is_none(), "it may name any");
    fs::remove_file(f.at("trash/v-x.json")).expect("removed");
    assert_eq!(merge_all(&f.volumes).await, 1);
    assert_eq!(f.found(ID).backing.expect("on it").files(), 1);
}

#[tokio::test]
async fn nothing_is_made_of_a_snapshot_whose_file_is_being_merged() {
    let f = with_history();
    f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
    let merge = f.volumes.begin_merge(&BTreeSet::new()).expect("begun").expect("one");
    assert!(f.volumes.begin_merge(&BTreeSet::new()).expect("looked").is_none(), "one at a time");
    let copy = NewVolume { ..volume("v-b", None, Some("s-1")) };
    assert_eq!(f.volumes.create(&copy, None).expect_err("merged").variant(), "SnapshotLost");
    assert_eq!(f.volumes.chain_of_snapshot(POOL, "s-1").expect_err("merged").variant(), "SnapshotLost");
    let owner = f.found(ID).owner;
    let error = f.volumes.hand_over_snapshot(POOL, "s-1", &owner).expect_err("merged");
    assert_eq!(error.variant(), "SnapshotLost");
    assert_eq!(f.volumes.begin_snapshot(&snapshot("s-1")).expect_err("merged").variant(), "VolumeBusy");
    assert_eq!(f.volumes.snapshot(POOL, "s-1").expect("read"), None);
    // Copies of the one above are made meanwhile, and have its data.
    let before = of_snapshot(&f.volumes, "s-2");
    f.copy("v-c", "s-2");
    merge.run(None).await.expect("committed");
    assert!(of_volume(&f.volumes, "v-c") == before);
    f.volumes.finish_merge(&merge).expect("finished");
    assert!(of_volume(&f.volumes, "v-c") == before && of_snapshot(&f.volumes, "s-2") == before);
    drop(merge);
    f.take("s-1");
    assert_eq!(f.volumes.snapshot(POOL, "s-1").expect("read").map(|s| s.volume), Some(ID.to_owned()));
}

/// Does the first steps of a merge of `s-1`, as a crash leaves them.
async fn interrupted(f: &Fixture, steps: usize) {
    let merge = f.volumes.begin_merge(&BTreeSet::new()).expect("begun").expect("one");
    if steps > 1 {
        merge.run(None).await.expect("committed");
    }
    let place = |id: &str| f.volumes.snapshot_place(POOL, id).expect("a name");
    let (lower, upper) = (place("s-1"), place("s-2"));
    let note = lower.read().expect("read").expect("there");
    if steps > 2 {
        let noted = NotedMerge { into: "s-2".to_owned(), complete: true };
        SnapshotNote { merge: Some(noted), ..note.clone() }.write(&lower.note).expect("noted");
    }
    if steps > 3 {
        fs::rename(&lower.file, &upper.file).expect("renamed");
    }
    if steps > 4 {
        let above = upper.read().expect("read").expect("there");
        SnapshotNote { base: note.base, snapshot: note.snapshot, ..above }.write(&upper.note).expect("noted");
    }
}

#[tokio::test]
async fn a_merge_that_a_crash_interrupted_anywhere_is_finished_and_no_data_changes_meanwhile() {
    for steps in 1..=5 {
        for deletes_upper in [false, true] {
            let f = with_history();
            f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
            let left = ["s-3", "s-4", "s-5"];
            let before = everything(&f, &[], &left);
            interrupted(&f, steps).await;
            assert!(everything(&f, &[], &left) == before, "step {steps}: between");
            if deletes_upper {
                f.volumes.delete_snapshot(POOL, "s-2").expect("deleted");
            }
            merge_all(&f.volumes).await;
            assert!(everything(&f, &[], &left) == before, "step {steps}: after");
            let files = if deletes_upper { 3 } else { 4 };
            assert_eq!(f.files("snapshots").len(), 2 * files, "step {steps}: {:?}", f.files("snapshots"));
        }
    }
}

#[tokio::test]
async fn a_snapshot_that_goes_while_the_file_below_it_is_merged_leaves_nothing() {
    let f = with_history();
    f.copy("v-b", "s-2");
    f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
    let merge = f.volumes.begin_merge(&BTreeSet::new()).expect("begun").expect("one");
    for id in ["s-2", "s-3", "s-4", "s-5"] {
        f.volumes.delete_snapshot(POOL, id).expect("deleted");
    }
    f.purge("v-b");
    f.purge(ID);
    merge.run(None).await.expect_err("its files are gone");
    assert_eq!(f.volumes.finish_merge(&merge).expect("nothing to do"), Merged::default());
    assert!(f.files("snapshots").is_empty(), "{:?}", f.files("snapshots"));
}

#[tokio::test]
async fn a_merge_for_which_there_is_no_space_leaves_all_data_and_is_done_when_there_is() {
    let Some(disk) = SmallDisk::mount(64 << 20) else { return };
    let volumes = LinuxVolumes::new(Layout::new(disk.path()), None);
    let made = volumes.create(&volume(ID, Some(16 * MIB), None), None).expect("made");
    write(&made.path, 1);
    for id in ["s-1", "s-2"] {
        volumes.begin_snapshot(&snapshot(id)).expect("begun");
        volumes.finish_snapshot(POOL, id, &taken()).expect("finished");
        let path = volumes.volume(POOL, ID).expect("read").expect("there").path;
        assert!(io(&path, "write -P 2 1M 8M"));
    }
    volumes.delete_snapshot(POOL, "s-1").expect("deleted");
    let before = (of_volume(&volumes, ID), of_snapshot(&volumes, "s-2"));
    let is_same = || (of_volume(&volumes, ID), of_snapshot(&volumes, "s-2")) == before;
    let ballast = |free: u64| {
        let now = files::space(disk.path()).expect("asked").free;
        let bytes = usize::try_from(now.saturating_sub(free)).expect("64 MiB");
        fs::write(disk.path().join("ballast"), vec![1_u8; bytes]).expect("filled");
    };
    // The file system frees the blocks of a removed file a little later.
    let drop_ballast = || {
        let before = files::space(disk.path()).expect("asked").free;
        fs::remove_file(disk.path().join("ballast")).expect("removed");
        let is_freed = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(100));
            files::space(disk.path()).expect("asked").free > before
        });
        assert!(is_freed);
    };
    ballast(16 << 20);
    let error = volumes.begin_merge(&BTreeSet::new()).expect_err("no space");
    assert_eq!(error.variant(), "NoSpace", "{}", error.chain());
    assert!(volumes.snapshot(POOL, "s-1").expect("read").is_some(), "it is not begun");
    drop_ballast();
    let merge = volumes.begin_merge(&BTreeSet::new()).expect("begun").expect("one");
    ballast(2 << 20);
    let error = merge.run(None).await.expect_err("full");
    assert_eq!(error.variant(), "NoSpace", "{}", error.chain());
    drop(merge);
    assert!(is_same());
    drop_ballast();
    assert_eq!(merge_all(&volumes).await, 1);
    assert!(is_same());
}

#[tokio::test]
async fn a_program_that_has_the_files_open_reads_the_same_data_during_merges_and_after_them() {
    let f = with_history();
    let found = f.found(ID);
    let chain = Backing { file: found.path, format: Format::Qcow2, backing: found.backing.map(Box::new) };
    let mut reader = Command::new("qemu-io")
        .args(["-r", &format!("json:{}", block_node(&chain, "on"))])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("qemu-io runs");
    let (mut commands, output) =
        (reader.stdin.take().expect("piped"), BufReader::new(reader.stdout.take().expect("piped")));
    let mut lines = output.lines();
    let mut read = || {
        let mut text = Vec::new();
        for at in (0..3500).step_by(50) {
            writeln!(commands, "read -v {at}k 512").expect("asked");
            // Time and rate follow, in a line of their own.
            let dump = lines.by_ref().map(|line| line.expect("text"));
            let dump: Vec<String> = dump.take_while(|line| !line.contains("ops;")).collect();
            assert!(dump.len() >= 32, "{dump:?}");
            text.extend(dump);
        }
        text
    };
    let before = read();
    for id in ["s-2", "s-1", "s-4", "s-3"] {
        f.volumes.delete_snapshot(POOL, id).expect("deleted");
        let merge = f.volumes.begin_merge(&BTreeSet::new()).expect("begun").expect("one");
        merge.run(None).await.expect("committed");
        assert!(read() == before, "{id}: the files have their former names");
        f.volumes.finish_merge(&merge).expect("finished");
        assert!(read() == before, "{id}");
    }
    assert_eq!(f.found(ID).backing.expect("on a snapshot").files(), 1);
    drop(commands);
    assert!(reader.wait().expect("ended").success());
}
