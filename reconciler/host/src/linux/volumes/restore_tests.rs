//! Restores on a real file system, with the data in them.

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use super::super::super::layout::Layout;
use super::super::super::tests::SmallDisk;
use super::super::snapshots::tests::{has, write};
use super::*;
use crate::{DeclaredRestore, MOST_RESTORES, NewSnapshot, NewVolume, Taken, VolumeOwner};

const MIB: u64 = 1 << 20;
const ID: &str = "v-0123456789abcdef";
const POOL: &str = "default";

struct Fixture {
    folder: TempDir,
    volumes: LinuxVolumes,
}

impl Fixture {
    /// A volume of 4 MiB with the byte 2 in it, and a snapshot of it with the byte 1.
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let fixture = Self { volumes: LinuxVolumes::new(Layout::new(folder.path()), None), folder };
        fixture.volumes.create(&volume(ID), None).expect("made");
        write(&fixture.path(), 1);
        fixture.take("s-1");
        write(&fixture.path(), 2);
        fixture
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join("pools/default").join(path)
    }

    fn files(&self, folder: &str) -> Vec<String> {
        let mut names = files::names(&self.at(folder)).expect("list");
        names.sort();
        names
    }

    fn found(&self) -> VolumeFacts {
        self.volumes.volume(POOL, ID).expect("read").expect("there")
    }

    fn path(&self) -> PathBuf {
        self.found().path
    }

    fn take(&self, id: &str) {
        let new = NewSnapshot { pool: POOL.into(), id: id.into(), volume: ID.into(), owner: Some(owner(id)) };
        self.volumes.begin_snapshot(&new).expect("begun");
        let taken = Taken { at: Timestamp::UNIX_EPOCH, frozen: false, memory: false };
        self.volumes.finish_snapshot(POOL, id, &taken).expect("finished");
    }

    /// Brings the only volume in the trash back, under another name.
    fn undelete(&self) -> VolumeFacts {
        let [item] = &self.volumes.trashed().expect("listed")[..] else { panic!("one is in the trash") };
        assert_eq!(item.volume.owner, owner(ID), "it is known by the name of its disk");
        self.volumes.restore(POOL, &item.volume.id, &owner("former")).expect("brought back")
    }
}

fn owner(name: &str) -> VolumeOwner {
    VolumeOwner { namespace: "ns".into(), name: name.into(), uid: None, image: None, source: None }
}

fn volume(id: &str) -> NewVolume {
    NewVolume {
        encryption: None,
        pool: POOL.into(),
        id: id.into(),
        size: Some(4 * MIB),
        base: None,
        snapshot: None,
        file: None,
        thick: false,
        shared: false,
        owner: owner(id),
    }
}

fn restore(snapshot: &str, token: Option<&str>) -> NewRestore {
    NewRestore {
        pool: POOL.into(),
        volume: ID.into(),
        snapshot: snapshot.into(),
        declared: DeclaredRestore {
            name: format!("named-{snapshot}"),
            token: token.map(str::to_owned),
            vm_snapshot: None,
        },
        size: 4 * MIB,
    }
}

#[test]
fn a_restored_volume_has_the_data_of_the_snapshot_and_its_own_is_in_the_trash() {
    let f = Fixture::new();
    let restored = f.volumes.restore_snapshot(&restore("s-1", None)).expect("restored");
    assert_eq!((restored.size, restored.restores.len(), restored.restoring), (4 * MIB, 1, false));
    assert!(has(&f.path(), 1));
    assert_eq!(f.files("volumes"), [format!("{ID}.2.qcow2"), format!("{ID}.json")]);
    write(&f.path(), 3);
    let former = f.undelete();
    assert!(has(&former.path, 2) && has(&f.path(), 3), "what it had before, and what it has now");
    assert_eq!(former.restores, [], "it was not restored");
    assert!(f.volumes.foreign().expect("looked").is_empty());
    // Snapshots and growth work on as before.
    f.take("s-2");
    write(&f.path(), 4);
    f.volumes.grow(POOL, ID, 8 * MIB).expect("grown");
    f.volumes.restore_snapshot(&restore("s-2", None)).expect("restored");
    assert!(has(&f.path(), 3));
}

#[test]
fn a_restore_is_done_once_for_each_name_and_token_also_after_the_volume_was_in_the_trash() {
    let f = Fixture::new();
    f.take("s-2");
    for (snapshot, token, byte) in [("s-1", None, 1), ("s-2", None, 2), ("s-1", Some("2"), 1)] {
        f.volumes.restore_snapshot(&restore(snapshot, token)).expect("restored");
        assert!(has(&f.path(), byte), "{snapshot}");
        write(&f.path(), 9);
        f.volumes.trash(POOL, ID).expect("in the trash");
        f.volumes.restore(POOL, ID, &owner("again")).expect("brought back");
        for (snapshot, token) in [(snapshot, token), ("s-1", None)] {
            f.volumes.restore_snapshot(&restore(snapshot, token)).expect("nothing to do");
            assert!(has(&f.path(), 9), "{snapshot} is not restored again");
        }
    }
    assert_eq!(f.volumes.trashed().expect("listed").len(), 3, "nothing is lost");
}

#[test]
fn a_restore_is_at_least_as_large_as_declared_and_as_its_snapshot() {
    let f = Fixture::new();
    let larger = f.volumes.restore_snapshot(&NewRestore { size: 8 * MIB, ..restore("s-1", None) });
    assert_eq!(larger.expect("restored").size, 8 * MIB);
    let none = f.volumes.restore_snapshot(&NewRestore { size: 0, ..restore("s-1", Some("2")) });
    assert_eq!(none.expect("restored").size, 4 * MIB);
}

#[test]
fn a_restore_is_refused_from_a_snapshot_of_another_volume_and_while_one_is_being_taken() {
    let f = Fixture::new();
    let before = f.found();
    assert_eq!(
        f.volumes.restore_snapshot(&restore("s-9", None)).expect_err("none").variant(),
        "SnapshotLost"
    );
    f.volumes.create(&volume("v-other"), None).expect("made");
    let other = NewRestore { volume: "v-other".into(), ..restore("s-1", None) };
    let error = f.volumes.restore_snapshot(&other).expect_err("of another volume");
    assert!(error.to_string().contains(ID) || error.chain().contains(ID), "{error}");
    let new =
        NewSnapshot { pool: POOL.into(), id: "s-2".into(), volume: ID.into(), owner: Some(owner("s-2")) };
    f.volumes.begin_snapshot(&new).expect("begun");
    let error = f.volumes.restore_snapshot(&restore("s-1", None)).expect_err("it is being taken");
    assert_eq!((error.variant().as_str(), error.retry()), ("VolumeBusy", crate::Retry::Backoff));
    let taken = Taken { at: Timestamp::UNIX_EPOCH, frozen: false, memory: false };
    f.volumes.finish_snapshot(POOL, "s-2", &taken).expect("finished");
    // A note of a snapshot that a crash left before its volume knew of it.
    let note = fs::read_to_string(f.at("snapshots/s-2.json")).expect("its note");
    let mut begun: serde_json::Value = serde_json::from_str(&note).expect("JSON");
    (begun["taken"], begun["generation"]) = (serde_json::Value::Null, 2.into());
    fs::write(f.at("snapshots/s-3.json"), begun.to_string()).expect("written");
    let error = f.volumes.restore_snapshot(&restore("s-1", None)).expect_err("it is begun");
    assert_eq!(error.variant(), "VolumeBusy");
    assert!(has(&f.path(), 2) && f.found().restores.is_empty(), "{before:?}");
}

#[test]
fn a_volume_that_a_qemu_writes_to_is_not_restored() {
    let f = Fixture::new();
    let open = fs::OpenOptions::new().read(true).write(true).open(f.path()).expect("open");
    let lock = libc::flock {
        l_type: i16::try_from(libc::F_RDLCK).expect("small"),
        l_whence: i16::try_from(libc::SEEK_SET).expect("small"),
        l_start: 101,
        l_len: 1,
        l_pid: 0,
    };
    // QEMU's lock of a file that it writes to.
    nix::fcntl::fcntl(&open, nix::fcntl::FcntlArg::F_OFD_SETLK(&lock)).expect("set");
    let error = f.volumes.restore_snapshot(&restore("s-1", None)).expect_err("in use");
    assert_eq!(error.variant(), "VolumeBusy");
    drop(open);
    f.volumes.restore_snapshot(&restore("s-1", None)).expect("restored");
}

/// The files that a crash leaves after each step.
fn crashed(step: usize) -> Fixture {
    let f = Fixture::new();
    let note = Note::read(&f.at(&format!("volumes/{ID}.json"))).expect("read").expect("there");
    let note = note.expect("a note");
    if step == 1 {
        fs::write(f.at(&format!("volumes/{ID}.2.qcow2")), b"half").expect("half a file");
    }
    if step >= 2 {
        let place = f.volumes.place(POOL, ID).expect("a place");
        let note = f.volumes.continue_on_snapshot(&place, note, &restore("s-1", None)).expect("begun");
        if step >= 3 {
            // In the trash, and the note of the volume says it is not.
            f.volumes.set_aside(&place, note.clone()).expect("moved");
            note.write(&place.note).expect("as before");
        }
        if step == 4 {
            // The note in the trash, and not yet the file.
            let aside = former_id(ID, 1);
            fs::rename(f.at(&format!("trash/{aside}.qcow2")), f.at(&format!("volumes/{ID}.1.qcow2")))
                .expect("moved back");
        }
    }
    f
}

#[test]
fn a_restore_that_a_crash_interrupted_anywhere_is_done_once_and_loses_nothing() {
    for step in 0..=4 {
        for finishes in [true, false] {
            let f = crashed(step);
            assert_eq!(f.found().restoring, step >= 2, "step {step}");
            if step >= 2 {
                // The disk is used at once.
                write(&f.path(), 9);
            }
            // Nothing that either file is based on goes meanwhile.
            f.volumes.delete_snapshot(POOL, "s-1").expect("let go");
            assert!(f.volumes.purge(POOL, Duration::from_secs(3600)).expect("too early").is_empty());
            if finishes && step >= 2 {
                f.volumes.finish_restore(POOL, ID).expect("finished");
                f.volumes.finish_restore(POOL, ID).expect("nothing to do");
            } else {
                f.volumes.restore_snapshot(&restore("s-1", None)).expect("restored");
            }
            let found = f.found();
            assert_eq!((found.restores.len(), found.restoring), (1, false), "step {step}");
            assert!(has(&found.path, if step >= 2 { 9 } else { 1 }), "step {step}");
            assert_eq!(f.files("volumes"), [format!("{ID}.2.qcow2"), format!("{ID}.json")], "step {step}");
            assert!(has(&f.undelete().path, 2), "step {step}");
        }
    }
}

#[test]
fn a_volume_that_is_deleted_after_an_interrupted_restore_leaves_both_files_in_the_trash() {
    for step in 2..=4 {
        let f = crashed(step);
        f.volumes.trash(POOL, ID).expect("in the trash");
        assert!(f.files("volumes").is_empty(), "step {step}");
        assert_eq!(f.volumes.trashed().expect("listed").len(), 2, "step {step}");
        f.volumes.restore(POOL, ID, &owner("back")).expect("brought back");
        assert!(has(&f.path(), 1));
        assert!(has(&f.undelete().path, 2), "step {step}");
    }
}

#[test]
fn the_file_of_a_snapshot_goes_with_the_last_of_the_disk_and_its_data_from_before() {
    let f = Fixture::new();
    f.take("s-2");
    write(&f.path(), 3);
    f.volumes.restore_snapshot(&restore("s-1", None)).expect("restored");
    for id in ["s-1", "s-2"] {
        f.volumes.delete_snapshot(POOL, id).expect("deleted");
    }
    assert_eq!(f.files("snapshots").len(), 4, "the data from before is based on both");
    assert_eq!(f.volumes.purge(POOL, Duration::ZERO).expect("purged"), [former_id(ID, 2)]);
    assert_eq!(f.files("snapshots"), ["s-1.json", "s-1.qcow2"], "the disk is on the first");
    assert!(has(&f.path(), 1));
    f.volumes.trash(POOL, ID).expect("in the trash");
    f.volumes.purge(POOL, Duration::ZERO).expect("purged");
    assert!(f.files("snapshots").is_empty());
}

#[test]
fn an_image_stays_while_the_data_from_before_an_interrupted_restore_is_based_on_it() {
    let digest = "ab".repeat(32);
    let base =
        super::super::note::Base { digest: digest.clone(), format: berth_qemu::machine::Format::Qcow2 };
    let f = crashed(2);
    let path = f.at(&format!("volumes/{ID}.json"));
    let mut note = Note::read(&path).expect("read").expect("there").expect("a note");
    assert_eq!(f.volumes.based_on(&digest).expect("looked"), None);
    note.former.as_mut().expect("interrupted").base = Some(base);
    note.write(&path).expect("written");
    assert_eq!(f.volumes.based_on(&digest).expect("looked"), Some(format!("{POOL}/{ID}")));
}

#[test]
fn the_note_lists_a_bounded_number_of_restores() {
    let many = (0..MOST_RESTORES + 3).fold(Vec::new(), |restores, n| {
        restore("s-1", Some(&n.to_string())).added_to(restores, Timestamp::UNIX_EPOCH)
    });
    assert_eq!(many.len(), MOST_RESTORES);
    assert!(!restore("s-1", Some("2")).is_done(&many) && restore("s-1", Some("3")).is_done(&many));
}

#[test]
fn the_last_restore_of_a_disk_is_known_after_any_number_of_restores_of_its_vm() {
    let own = restore("s-1", None);
    let mut restores = own.added_to(Vec::new(), Timestamp::UNIX_EPOCH);
    for n in 0..MOST_RESTORES + 3 {
        let mut of_vm = restore("s-1", Some(&n.to_string()));
        of_vm.declared.vm_snapshot = Some("nightly".to_owned());
        restores = of_vm.added_to(restores, Timestamp::UNIX_EPOCH);
    }
    assert_eq!(restores.len(), MOST_RESTORES);
    assert!(own.is_done(&restores), "it would be done once more");
    assert_eq!(restores.last().and_then(|last| last.declared.token.as_deref()), Some("258"));
}

#[test]
fn a_restore_for_which_there_is_no_space_leaves_the_disk_as_it_is() {
    let Some(disk) = SmallDisk::mount(1 << 20) else { return };
    let volumes = LinuxVolumes::new(Layout::new(disk.path()), None);
    volumes.create(&volume(ID), None).expect("made");
    let new = NewSnapshot { pool: POOL.into(), id: "s-1".into(), volume: ID.into(), owner: Some(owner("s")) };
    volumes.begin_snapshot(&new).expect("begun");
    let taken = Taken { at: Timestamp::UNIX_EPOCH, frozen: false, memory: false };
    volumes.finish_snapshot(POOL, "s-1", &taken).expect("finished");
    let before = volumes.volume(POOL, ID).expect("read").expect("there");
    write(&before.path, 2);
    let ballast = disk.path().join("ballast");
    let mut size = 1 << 20;
    while size > 4096 && fs::write(&ballast, vec![0_u8; size]).is_err() {
        size -= 4096;
    }
    let error = volumes.restore_snapshot(&restore("s-1", None)).expect_err("full");
    assert_eq!(error.variant(), "NoSpace", "{}", error.chain());
    assert_eq!(volumes.volume(POOL, ID).expect("read"), Some(before.clone()), "as it was");
    assert!(has(&before.path, 2));
    fs::remove_file(&ballast).expect("space again");
    // The file system frees the blocks of a removed file a little later.
    let restored = (0..50).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        volumes.restore_snapshot(&restore("s-1", None)).is_ok()
    });
    assert!(restored);
}

#[test]
fn a_thick_disk_has_to_have_its_space_reserved_again_after_a_restore() {
    let f = Fixture::new();
    f.volumes.reserve(POOL, ID, 4 * MIB).expect("reserved");
    let restored = f.volumes.restore_snapshot(&restore("s-1", None)).expect("restored");
    assert_eq!(restored.reserved, Some(0));
    assert_eq!(f.undelete().reserved, Some(4 * MIB));
}
