//! Snapshots on a real file system, with the data in them.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use tempfile::TempDir;

use super::super::super::layout::Layout;
use super::super::super::tests::SmallDisk;
use super::*;
use crate::NewVolume;

pub(in super::super) const MIB: u64 = 1 << 20;
pub(in super::super) const ID: &str = "v-0123456789abcdef";
pub(in super::super) const POOL: &str = "default";

pub(in super::super) struct Fixture {
    pub(in super::super) folder: TempDir,
    pub(in super::super) volumes: LinuxVolumes,
}

impl Fixture {
    /// A volume of 4 MiB.
    pub(in super::super) fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let volumes = LinuxVolumes::new(Layout::new(folder.path()), None);
        volumes.create(&volume(ID, Some(4 * MIB), None), None).expect("made");
        Self { folder, volumes }
    }

    pub(in super::super) fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join("pools/default").join(path)
    }

    pub(in super::super) fn files(&self, folder: &str) -> Vec<String> {
        files::names(&self.at(folder)).expect("list")
    }

    pub(in super::super) fn found(&self, id: &str) -> VolumeFacts {
        self.volumes.volume(POOL, id).expect("read").expect("there")
    }

    pub(in super::super) fn take(&self, id: &str) -> SnapshotFacts {
        self.volumes.begin_snapshot(&snapshot(id)).expect("begun");
        self.volumes.finish_snapshot(POOL, id, &taken()).expect("finished")
    }

    pub(in super::super) fn copy(&self, id: &str, of: &str) -> VolumeFacts {
        self.volumes.create(&volume(id, None, Some(of)), None).expect("copied")
    }

    pub(in super::super) fn purge(&self, id: &str) {
        self.volumes.trash(POOL, id).expect("in the trash");
        assert_eq!(self.volumes.purge(POOL, Duration::ZERO).expect("purged"), [id]);
    }
}

pub(in super::super) fn owner(name: &str) -> VolumeOwner {
    VolumeOwner { namespace: "ns".to_owned(), name: name.to_owned(), uid: None, image: None, source: None }
}

pub(in super::super) fn volume(id: &str, size: Option<u64>, snapshot: Option<&str>) -> NewVolume {
    NewVolume {
        encryption: None,
        pool: POOL.to_owned(),
        id: id.to_owned(),
        size,
        base: None,
        snapshot: snapshot.map(str::to_owned),
        file: None,
        thick: false,
        shared: false,
        owner: owner(id),
    }
}

pub(in super::super) fn snapshot(id: &str) -> NewSnapshot {
    NewSnapshot { pool: POOL.to_owned(), id: id.to_owned(), volume: ID.to_owned(), owner: Some(owner(id)) }
}

pub(in super::super) fn taken() -> Taken {
    Taken { at: Timestamp::UNIX_EPOCH, frozen: false, memory: false }
}

/// Runs QEMU's tool on a file, with the files below it.
pub(in super::super) fn io(path: &Path, command: &str) -> bool {
    let run = Command::new("qemu-io")
        .args(["-f", "qcow2", "-c", command])
        .arg(path)
        .output()
        .expect("qemu-io runs");
    let text = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    assert!(!text.contains("open"), "{text}");
    run.status.success() && !text.contains("verification failed")
}

/// Writes a byte all over the first 64 KiB.
pub(in super::super) fn write(path: &Path, byte: u8) {
    assert!(io(path, &format!("write -P {byte} 0 64k")), "written");
}

pub(in super::super) fn has(path: &Path, byte: u8) -> bool {
    io(path, &format!("read -P {byte} 0 64k"))
}

#[test]
fn a_snapshot_has_the_data_of_its_moment_and_so_has_each_copy() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    let first = f.take("s-1");
    assert_eq!((first.size, &first.volume, first.taken.is_some()), (4 * MIB, &ID.to_owned(), true));
    write(&f.found(ID).path, 2);
    f.take("s-2");
    write(&f.found(ID).path, 3);
    let copies = [f.copy("v-a", "s-1"), f.copy("v-b", "s-2"), f.copy("v-c", "s-1")];
    assert!(has(&copies[0].path, 1) && has(&copies[1].path, 2) && has(&copies[2].path, 1));
    write(&copies[0].path, 4);
    assert!(has(&copies[0].path, 4) && has(&copies[2].path, 1) && has(&f.found(ID).path, 3));
    let backing = f.found(ID).backing.expect("on a snapshot");
    assert_eq!(backing.file, f.at("snapshots/s-2.qcow2"));
    assert_eq!(backing.backing.expect("on another").file, f.at("snapshots/s-1.qcow2"));
    assert!(f.volumes.foreign().expect("looked").is_empty());
    assert_eq!(f.volumes.volumes().expect("listed").len(), 4);
    // The second name of the file is gone, and nothing writes to the one that is left.
    assert_eq!(fs::metadata(f.at("snapshots/s-1.qcow2")).expect("there").nlink(), 1);
    assert_eq!(fs::metadata(f.at("snapshots/s-1.qcow2")).expect("there").mode() & 0o777, 0o444);
    assert_eq!(f.take("s-1"), first, "the moment of a snapshot does not change");
    let larger = f.volumes.create(&volume("v-d", Some(8 * MIB), Some("s-1")), None).expect("larger");
    assert_eq!(larger.size, 8 * MIB);
    let error = f.volumes.create(&volume("v-e", Some(MIB), Some("s-1")), None).expect_err("smaller");
    assert_eq!(error.variant(), "SmallerThanImage");
    let error = f.volumes.create(&volume("v-e", None, Some("s-9")), None).expect_err("no such snapshot");
    assert_eq!(error.variant(), "SnapshotLost");
}

#[test]
fn a_snapshot_of_a_running_disk_is_finished_when_nothing_writes_to_its_file_any_more() {
    let f = Fixture::new();
    let open = fs::OpenOptions::new().read(true).write(true).open(f.found(ID).path).expect("open");
    let set = |kind: libc::c_int| {
        let lock = libc::flock {
            l_type: i16::try_from(kind).expect("small"),
            l_whence: i16::try_from(libc::SEEK_SET).expect("small"),
            l_start: 101,
            l_len: 1,
            l_pid: 0,
        };
        nix::fcntl::fcntl(&open, nix::fcntl::FcntlArg::F_OFD_SETLK(&lock)).expect("set");
    };
    // QEMU's lock of a file that it writes to.
    set(libc::F_RDLCK);
    f.volumes.begin_snapshot(&snapshot("s-1")).expect("begun");
    let error = f.volumes.finish_snapshot(POOL, "s-1", &taken()).expect_err("a QEMU writes to it");
    assert_eq!((error.variant().as_str(), error.retry()), ("VolumeBusy", crate::Retry::Backoff));
    let error = f.volumes.create(&volume("v-a", None, Some("s-1")), None).expect_err("not finished");
    assert_eq!(error.variant(), "SnapshotLost");
    let error = f.volumes.begin_snapshot(&snapshot("s-2")).expect_err("one at a time");
    assert_eq!(error.variant(), "VolumeBusy");
    assert_eq!(f.volumes.delete_snapshot(POOL, "s-1").expect_err("finished first").variant(), "VolumeBusy");
    set(libc::F_UNLCK);
    let error = f.volumes.finish_snapshot(POOL, "s-1", &taken()).expect_err("it could be written");
    assert!(error.to_string().contains("open for writing"), "{error}");
    drop(open);
    // A process that another test has just forked has the file open until it runs its program.
    let finished = (0..50).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        f.volumes.finish_snapshot(POOL, "s-1", &taken()).is_ok()
    });
    assert!(finished && f.found(ID).pending_snapshot.is_none());
}

/// The files that a crash leaves after each step, before the volume's note names the overlay and after it.
fn crashed(step: usize) -> Fixture {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    let note =
        Note::read(&f.at(&format!("volumes/{ID}.json"))).expect("read").expect("there").expect("a note");
    files::ensure_private_folder(&f.at("snapshots")).expect("folder");
    SnapshotNote::new(&snapshot("s-1"), &note).write(&f.at("snapshots/s-1.json")).expect("begun");
    if step >= 1 {
        fs::hard_link(f.found(ID).path, f.at("snapshots/s-1.qcow2")).expect("linked");
    }
    if step == 2 {
        fs::write(f.at(&format!("volumes/{ID}.1.qcow2")), b"half").expect("half a file");
    }
    if step >= 3 {
        f.volumes.begin_snapshot(&snapshot("s-1")).expect("begun");
        // The QEMU that was not switched wrote on.
        write(&f.at(&format!("volumes/{ID}.qcow2")), 2);
    }
    if step == 4 {
        fs::remove_file(f.at(&format!("volumes/{ID}.qcow2"))).expect("its first name");
    }
    f
}

#[test]
fn a_snapshot_that_a_crash_interrupted_anywhere_is_taken_to_its_end() {
    for step in 0..=4 {
        let f = crashed(step);
        f.take("s-1");
        let byte = if step >= 3 { 2 } else { 1 };
        write(&f.found(ID).path, 9);
        assert!(has(&f.copy("v-a", "s-1").path, byte) && has(&f.found(ID).path, 9), "step {step}");
        let mut names = f.files("volumes");
        names.sort();
        assert_eq!(
            names,
            [format!("{ID}.1.qcow2"), format!("{ID}.json"), "v-a.json".into(), "v-a.qcow2".into()]
        );
        assert_eq!(f.found(ID).pending_snapshot, None);
    }
}

#[test]
fn a_snapshot_that_was_only_begun_is_deleted_and_leaves_its_disk_as_it_was() {
    for step in 0..=2 {
        let f = crashed(step);
        f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
        assert!(f.files("snapshots").is_empty(), "step {step}");
        assert_eq!(f.files("volumes"), [format!("{ID}.json"), format!("{ID}.qcow2")]);
        assert!(has(&f.found(ID).path, 1));
    }
    for step in 3..=4 {
        let f = crashed(step);
        assert_eq!(
            f.volumes.delete_snapshot(POOL, "s-1").expect_err("its disk is on it").variant(),
            "VolumeBusy"
        );
        f.take("s-1");
        f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
        assert!(has(&f.found(ID).path, 2), "the disk is on its file");
    }
}

#[test]
fn the_file_of_a_snapshot_stays_as_long_as_anything_is_based_on_it() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    f.take("s-1");
    write(&f.found(ID).path, 2);
    f.take("s-2");
    f.copy("v-a", "s-1");
    for id in ["s-1", "s-2", "s-2"] {
        f.volumes.delete_snapshot(POOL, id).expect("deleted");
    }
    assert!(has(&f.found(ID).path, 2) && has(&f.found("v-a").path, 1));
    f.volumes.trash(POOL, ID).expect("in the trash");
    assert!(f.volumes.purge(POOL, Duration::from_secs(3600)).expect("too early").is_empty());
    f.volumes.restore(POOL, ID, &owner("back")).expect("brought back");
    assert!(has(&f.found(ID).path, 2), "also through the trash");
    f.purge(ID);
    assert_eq!(f.files("snapshots"), ["s-1.json", "s-1.qcow2"], "the copy is on the first one only");
    assert!(has(&f.found("v-a").path, 1));
    f.purge("v-a");
    assert!(f.files("snapshots").is_empty());
}

#[test]
fn a_snapshot_outlives_its_disk() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    f.take("s-1");
    f.purge(ID);
    assert!(has(&f.copy("v-a", "s-1").path, 1));
    f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
    assert!(has(&f.found("v-a").path, 1));
}

#[test]
fn the_unfinished_snapshot_of_a_volume_in_the_trash_stays_below_it() {
    for step in 3..=4 {
        let f = crashed(step);
        f.volumes.trash(POOL, ID).expect("in the trash");
        f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
        f.volumes.restore(POOL, ID, &owner("back")).expect("brought back");
        assert!(has(&f.found(ID).path, 2) && f.found(ID).pending_snapshot.is_none(), "step {step}");
        f.purge(ID);
        assert!(f.files("snapshots").is_empty() && f.files("volumes").is_empty(), "step {step}");
        let f = crashed(step);
        f.volumes.trash(POOL, ID).expect("in the trash");
        f.volumes.restore(POOL, ID, &owner("back")).expect("brought back");
        assert_eq!(f.found(ID).pending_snapshot.as_deref(), Some("s-1"), "it is finished then");
        f.take("s-1");
        assert!(has(&f.copy("v-a", "s-1").path, 2) && f.found(ID).pending_snapshot.is_none());
    }
}

#[test]
fn nothing_is_removed_while_a_note_cannot_be_read() {
    let f = Fixture::new();
    f.take("s-1");
    f.copy("v-a", "s-1");
    let (note, kept) = (f.at("volumes/v-a.json"), f.at("volumes/v-a.json.kept"));
    fs::copy(&note, &kept).expect("copied");
    fs::write(&note, b"{").expect("damaged");
    f.purge(ID);
    f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
    assert_eq!(f.files("snapshots"), ["s-1.json", "s-1.qcow2"]);
    fs::rename(&kept, &note).expect("repaired");
    assert!(has(&f.found("v-a").path, 0));
}

#[test]
fn an_image_stays_as_long_as_a_snapshot_is_based_on_it() {
    let f = Fixture::new();
    let digest = "ab".repeat(32);
    let path = f.folder.path().join("images").join(&digest);
    files::ensure_folder(path.parent().expect("folder")).expect("folder");
    qcow2::create(&path, 4 * MIB).expect("image");
    let image = crate::ImageFacts {
        digest: digest.clone(),
        format: Format::Qcow2,
        encoding: crate::Encoding::default(),
        virtual_size: 4 * MIB,
        bytes: 0,
        path,
        readers: BTreeSet::new(),
        made_for: BTreeSet::new(),
    };
    f.purge(ID);
    let new = NewVolume { base: Some(digest.clone()), ..volume(ID, None, None) };
    f.volumes.create(&new, Some(&image)).expect("made");
    f.take("s-1");
    assert_eq!(f.found(ID).base.as_ref(), Some(&digest), "it is below the snapshot");
    f.purge(ID);
    assert_eq!(f.volumes.based_on(&digest).expect("looked").as_deref(), Some("default/s-1"));
    assert!(has(&f.copy("v-a", "s-1").path, 0));
    f.purge("v-a");
    f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
    assert_eq!(f.volumes.based_on(&digest).expect("looked"), None);
}

#[test]
fn a_disk_that_grew_while_its_snapshot_was_taken_has_its_whole_size() {
    let f = Fixture::new();
    f.volumes.begin_snapshot(&snapshot("s-1")).expect("begun");
    qcow2::grow(&f.at(&format!("volumes/{ID}.qcow2")), 8 * MIB)
        .expect("as the QEMU that still has it open does");
    assert_eq!(f.volumes.begin_snapshot(&snapshot("s-1")).expect("continued").size, 8 * MIB);
    assert_eq!(f.volumes.finish_snapshot(POOL, "s-1", &taken()).expect("finished").size, 8 * MIB);
    f.volumes.grow(POOL, ID, 16 * MIB).expect("grown");
    assert_eq!((f.found(ID).size, f.take("s-1").size), (16 * MIB, 8 * MIB));
}

#[test]
fn nothing_else_changes_a_volume_while_a_snapshot_of_it_is_begun() {
    let f = Fixture::new();
    let works: [fn(&LinuxVolumes) -> Result<()>; 4] = [
        |volumes| volumes.reserve(POOL, ID, 4 * MIB),
        |volumes| volumes.hand_over(POOL, ID, &owner("later")),
        |volumes| volumes.grow(POOL, ID, 8 * MIB).map(drop),
        |volumes| volumes.retain(POOL, ID),
    ];
    for work in works {
        let begins = f.volumes.lock(&[POOL]).expect("locked");
        let (done, ended) = std::sync::mpsc::channel();
        let volumes = f.volumes.clone();
        let worker = std::thread::spawn(move || {
            let worked = work(&volumes);
            done.send(()).expect("it is awaited");
            worked
        });
        assert!(ended.recv_timeout(Duration::from_millis(50)).is_err(), "the note would be one from before");
        drop(begins);
        worker.join().expect("it ends").expect("done");
    }
    let found = f.found(ID);
    assert_eq!((found.reserved, found.size, found.retained), (Some(4 * MIB), 8 * MIB, true));
}

#[test]
fn a_disk_is_on_a_bounded_number_of_snapshots() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    for number in 0..MOST_SNAPSHOTS {
        f.take(&format!("s-{number}"));
    }
    let error = f.volumes.begin_snapshot(&snapshot("s-last")).expect_err("too many");
    assert_eq!((error.variant().as_str(), error.retry()), ("TooManySnapshots", crate::Retry::WaitForChange));
    assert!(error.to_string().contains("on 32 snapshots"), "{error}");
    assert!(has(&f.found(ID).path, 1));
    assert_eq!(f.volumes.snapshot(POOL, "s-last").expect("read"), None);
}

#[test]
fn a_snapshot_for_which_there_is_no_space_leaves_the_disk_as_it_is() {
    let Some(disk) = SmallDisk::mount(1 << 20) else { return };
    let volumes = LinuxVolumes::new(Layout::new(disk.path()), None);
    let made = volumes.create(&volume(ID, Some(4 * MIB), None), None).expect("made");
    write(&made.path, 1);
    let ballast = disk.path().join("ballast");
    let mut size = 1 << 20;
    while size > 4096 && fs::write(&ballast, vec![0_u8; size]).is_err() {
        size -= 4096;
    }
    let error = volumes.begin_snapshot(&snapshot("s-1")).expect_err("full");
    assert_eq!(error.variant(), "NoSpace", "{}", error.chain());
    assert_eq!(volumes.volume(POOL, ID).expect("read"), Some(made.clone()), "as it was");
    fs::remove_file(&ballast).expect("space again");
    volumes.delete_snapshot(POOL, "s-1").expect("what is there of it is removed");
    volumes.begin_snapshot(&snapshot("s-1")).expect("begun");
    volumes.finish_snapshot(POOL, "s-1", &taken()).expect("finished");
    assert!(has(&volumes.volume(POOL, ID).expect("read").expect("there").path, 1));
}

/// A second volume beside that of the fixture, each with a byte of its own.
fn two_volumes() -> (Fixture, [NewSnapshot; 2]) {
    let f = Fixture::new();
    f.volumes.create(&volume("v-b", Some(4 * MIB), None), None).expect("made");
    write(&f.found(ID).path, 1);
    write(&f.found("v-b").path, 2);
    (f, [snapshot("s-1"), NewSnapshot { volume: "v-b".to_owned(), ..snapshot("s-2") }])
}

#[test]
fn snapshots_of_several_disks_are_begun_and_finished_together() {
    let (f, both) = two_volumes();
    let volumes = f.volumes.begin_snapshots(&both).expect("begun");
    let pending: Vec<_> = volumes.iter().map(|volume| volume.pending_snapshot.as_deref()).collect();
    assert_eq!(pending, [Some("s-1"), Some("s-2")]);
    for (new, byte) in both.iter().zip([1, 2]) {
        f.volumes.finish_snapshot(POOL, &new.id, &taken()).expect("finished");
        write(&f.found(&new.volume).path, 9);
        let copy = f.copy(&format!("{}-copy", new.volume), &new.id);
        assert!(has(&copy.path, byte) && has(&f.found(&new.volume).path, 9), "{new:?}");
    }
    let again = f.volumes.begin_snapshots(&both).expect("taken before");
    assert!(again.iter().all(|volume| volume.pending_snapshot.is_none()), "{again:?}");
}

#[test]
fn no_snapshot_is_begun_if_that_of_another_disk_cannot_be() {
    let (f, [first, second]) = two_volumes();
    let files = || {
        let mut names = [f.files("volumes"), f.files("snapshots")].concat();
        names.sort();
        names
    };
    let before = files();
    let lost = NewSnapshot { volume: "v-none".to_owned(), ..second.clone() };
    let error = f.volumes.begin_snapshots(&[first.clone(), lost]).expect_err("no such volume");
    assert_eq!(error.variant(), "VolumeLost");
    assert_eq!(files(), before);
    f.volumes.begin_snapshot(&NewSnapshot { id: "s-3".to_owned(), ..second.clone() }).expect("begun");
    let error = f.volumes.begin_snapshots(&[first.clone(), second.clone()]).expect_err("another one is");
    assert_eq!(error.variant(), "VolumeBusy");
    assert_eq!(f.volumes.snapshot(POOL, "s-1").expect("read"), None);
    f.volumes.finish_snapshot(POOL, "s-3", &taken()).expect("finished");
    // Its overlay cannot be made: a folder has the name.
    fs::create_dir(f.at("volumes/v-b.2.qcow2")).expect("a folder");
    f.volumes.begin_snapshots(&[first.clone(), second.clone()]).expect_err("a folder in the way");
    assert_eq!((f.found(ID).pending_snapshot, f.found("v-b").pending_snapshot), (None, None));
    fs::remove_dir(f.at("volumes/v-b.2.qcow2")).expect("removed");
    f.volumes.begin_snapshots(&[first, second]).expect("begun");
}

#[test]
fn snapshots_that_a_crash_interrupted_between_two_disks_are_taken_only_if_neither_was_written_since() {
    let interrupted = || {
        let (f, both) = two_volumes();
        // The note of the first volume names its overlay, that of the second does not.
        f.volumes.begin_snapshot(&both[0]).expect("begun");
        (f, both)
    };
    let (f, both) = interrupted();
    f.volumes.begin_snapshots(&both).expect("continued");
    for (new, byte) in both.iter().zip([1, 2]) {
        f.volumes.finish_snapshot(POOL, &new.id, &taken()).expect("finished");
        assert!(has(&f.copy(&format!("{}-copy", new.volume), &new.id).path, byte), "{new:?}");
    }
    let (f, both) = interrupted();
    write(&f.found(ID).path, 9);
    let error = f.volumes.begin_snapshots(&both).expect_err("it was written");
    assert_eq!((error.variant().as_str(), error.retry()), ("NotOneMoment", crate::Retry::WaitForChange));
    assert!(f.found("v-b").pending_snapshot.is_none());
    let (f, both) = interrupted();
    f.volumes.finish_snapshot(POOL, "s-1", &taken()).expect("finished");
    let error = f.volumes.begin_snapshots(&both).expect_err("the first is taken");
    assert_eq!(error.variant(), "NotOneMoment");
}

#[test]
fn a_thick_disk_has_to_have_its_space_reserved_again_after_a_snapshot() {
    let f = Fixture::new();
    f.purge(ID);
    f.volumes.create(&NewVolume { thick: true, ..volume(ID, Some(4 * MIB), None) }, None).expect("made");
    f.take("s-1");
    assert_eq!(f.found(ID).reserved, Some(0));
    f.volumes.reserve(POOL, ID, 4 * MIB).expect("reserved");
    let blocks = fs::metadata(f.found(ID).path).expect("there").blocks() * 512;
    assert!(blocks >= 4 * MIB, "{blocks}");
}

#[test]
fn a_snapshot_is_handed_over_to_another_object_and_one_that_is_lost_is_told_from_one_that_never_was() {
    let f = Fixture::new();
    f.take("s-1");
    f.volumes.hand_over_snapshot(POOL, "s-1", &owner("later")).expect("handed over");
    let found = f.volumes.snapshot(POOL, "s-1").expect("read").expect("there");
    assert_eq!(found.owner, Some(owner("later")));
    // Its disk is still based on it. It was deleted, or has moved to another pool meanwhile.
    f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
    let error = f.volumes.hand_over_snapshot(POOL, "s-1", &owner("later")).expect_err("no owner");
    assert_eq!(error.variant(), "SnapshotLost");
    fs::remove_file(f.at("snapshots/s-1.qcow2")).expect("somebody deletes it");
    assert_eq!(f.volumes.snapshot(POOL, "s-1").expect_err("lost").variant(), "SnapshotLost");
    assert_eq!(f.volumes.snapshot(POOL, "s-2").expect("read"), None);
}

#[test]
fn a_snapshot_for_a_copy_that_is_left_begun_holds_up_nothing() {
    let f = Fixture::new();
    write(&f.found(ID).path, 1);
    let new = NewSnapshot { owner: None, ..snapshot("c-v-2") };
    let is_being_taken = || f.volumes.is_being_taken(POOL, ID).expect("looked");
    // The note of the volume cannot be written.
    let unfinished = f.at(&format!("volumes/.{ID}.json.new"));
    fs::create_dir(&unfinished).expect("made");
    f.volumes.begin_snapshot(&new).expect_err("refused");
    fs::remove_dir(&unfinished).expect("removed");
    assert!(!is_being_taken(), "its disk could be neither restored nor moved");
    // A crash comes before that note, and the copy is deleted.
    f.volumes.prepare(&f.volumes.part(&new).expect("looked")).expect("prepared");
    assert!(is_being_taken());
    f.volumes.forget_begun().expect("looked");
    assert!(!is_being_taken() && f.files("snapshots").is_empty());
    assert_eq!(f.files("volumes"), [format!("{ID}.json"), format!("{ID}.qcow2")]);
    f.volumes.begin_snapshot(&new).expect("begun");
    f.volumes.forget_begun().expect("looked");
    f.volumes.finish_snapshot(POOL, "c-v-2", &taken()).expect("it was left to the disk");
    assert!(has(&f.found(ID).path, 1));
}
