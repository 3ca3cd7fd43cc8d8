//! Copies of volumes between two hosts, which are two folders.

use std::fs;

use berth_qemu::machine::Format;
use tempfile::TempDir;

use super::super::super::layout::Layout;
use super::*;
use crate::{NewVolume, VolumeOwner};

const MIB: u64 = 1 << 20;
const ID: &str = "v-0123456789abcdef";
const POOL: &str = "default";

struct Host {
    folder: TempDir,
    volumes: LinuxVolumes,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let volumes = LinuxVolumes::new(Layout::new(folder.path()), None);
        Self { folder, volumes }
    }

    fn image(&self) -> ImageFacts {
        let digest = "ab".repeat(32);
        let path = self.folder.path().join("images").join(&digest);
        files::ensure_folder(path.parent().expect("folder")).expect("folder");
        if !path.exists() {
            qcow2::create(&path, 4 * MIB).expect("image");
        }
        ImageFacts {
            digest,
            format: Format::Qcow2,
            encoding: crate::Encoding::default(),
            virtual_size: 4 * MIB,
            bytes: 0,
            path,
            readers: std::collections::BTreeSet::new(),
            made_for: std::collections::BTreeSet::new(),
        }
    }

    /// Makes a volume on the image, with this byte far behind its tables: as data of a guest would be.
    fn make(&self, byte: u8) {
        let image = self.image();
        let new = NewVolume {
            pool: POOL.to_owned(),
            id: ID.to_owned(),
            size: Some(64 * MIB),
            base: Some(image.digest.clone()),
            snapshot: None,
            file: None,
            thick: false,
            shared: false,
            owner: owner(),
            encryption: None,
        };
        self.volumes.create(&new, Some(&image)).expect("made");
        let file = OpenOptions::new().write(true).open(self.file()).expect("opened");
        file.write_all_at(&[byte; 4096], 9 * MIB).expect("written");
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("pools/default/volumes").join(file_name(ID, 0))
    }

    fn names(&self) -> Vec<String> {
        files::names(&self.folder.path().join("pools/default/volumes")).expect("listed")
    }
}

fn owner() -> VolumeOwner {
    VolumeOwner {
        namespace: "ns".to_owned(),
        name: "root".to_owned(),
        uid: Some("u".to_owned()),
        image: None,
        source: None,
    }
}

fn stay(epoch: i64) -> Arrival {
    Arrival { vm: "vm".to_owned(), epoch }
}

fn wanted(epoch: i64) -> NewFetch {
    NewFetch {
        pool: POOL.to_owned(),
        id: ID.to_owned(),
        from: "a".to_owned(),
        size: 64 * MIB,
        base: Some("ab".repeat(32)),
        thick: false,
        owner: owner(),
        arrival: stay(epoch),
    }
}

/// Receives all parts, and verifies them.
fn received(from: &Host, to: &Host, epoch: i64) -> Fetch {
    let mut fetch = to.volumes.begin_fetch(&wanted(epoch)).expect("begun").expect("not here yet");
    let mut left = from.volumes.open_left(POOL, ID, 0).expect("opened").expect("there");
    fetch.begin(left.about().clone()).expect("begun");
    while let Some(part) = left.read().expect("read") {
        fetch.write(&part).expect("written");
    }
    fetch.verify().expect("the same");
    fetch
}

fn copied(from: &Host, to: &Host, epoch: i64) -> VolumeFacts {
    let fetch = received(from, to, epoch);
    to.volumes.finish_fetch(&fetch, Some(&to.image())).expect("whole")
}

#[test]
fn a_volume_is_copied_with_its_holes_and_then_removed_where_it_was() {
    let (a, b) = (Host::new(), Host::new());
    a.make(7);
    let facts = copied(&a, &b, 2);
    assert_eq!((facts.size, facts.owner.clone()), (64 * MIB, owner()));
    assert_eq!(fs::read(a.file()).expect("there"), fs::read(b.file()).expect("copied"));
    let blocks = |host: &Host| fs::metadata(host.file()).expect("there").blocks() * 512;
    assert!(blocks(&b) < 2 * MIB, "{} bytes of holes are holes", blocks(&b));
    assert_eq!(b.volumes.arrival(POOL, ID).expect("read"), Some(stay(2)));
    assert!(b.volumes.begin_fetch(&wanted(2)).expect("looked").is_none(), "it has arrived");
    let other = a.volumes.remove_left(POOL, ID, Some("other"), None);
    assert!(matches!(other, Err(SystemError::VolumeDamaged { .. })), "{other:?}");
    a.volumes.remove_left(POOL, ID, Some("u"), None).expect("removed");
    a.volumes.remove_left(POOL, ID, Some("u"), None).expect("once more");
    assert!(a.names().is_empty(), "{:?}", a.names());
    assert!(a.volumes.open_left(POOL, ID, 0).expect("looked").is_none());
}

#[test]
fn a_file_with_much_that_nothing_refers_to_is_copied_too() {
    let (a, b) = (Host::new(), Host::new());
    a.make(7);
    // As one that was taken over after a snapshot within it had been deleted.
    let file = OpenOptions::new().write(true).open(a.file()).expect("opened");
    file.set_len(250 * MIB).expect("longer");
    assert_eq!(copied(&a, &b, 2).size, 64 * MIB);
    assert_eq!(fs::metadata(b.file()).expect("copied").len(), 250 * MIB);
}

#[test]
fn before_the_copy_is_whole_nothing_has_arrived_and_nothing_is_lost_wherever_an_agent_stops() {
    let (a, b) = (Host::new(), Host::new());
    a.make(7);
    // The agent of the next host stops while parts come.
    let begun = b.volumes.begin_fetch(&wanted(2)).expect("begun").expect("not here yet");
    std::mem::forget(begun);
    assert_eq!(b.volumes.arrival(POOL, ID).expect("read"), None);
    assert!(b.volumes.volume(POOL, ID).expect("looked").is_none());
    b.volumes.forget_moves().expect("started again");
    assert!(b.names().is_empty(), "{:?}", b.names());
    // It stops after the file was renamed, and before its note was written.
    let whole = copied(&a, &b, 2);
    let note = b.volumes.place(POOL, ID).expect("a place").note;
    let written = Note::read(&note).expect("read").expect("there").expect("a note");
    Note { complete: false, arrived: None, ..written.clone() }.write(&note).expect("as before the last step");
    assert_eq!(b.volumes.arrival(POOL, ID).expect("read"), None);
    assert_eq!(copied(&a, &b, 2), whole);
    // The former host stops between its file and its note.
    fs::remove_file(a.file()).expect("removed");
    a.volumes.remove_left(POOL, ID, Some("u"), None).expect("gone on");
    assert!(a.names().is_empty(), "{:?}", a.names());
}

#[test]
fn a_copy_that_was_given_up_and_ends_after_the_next_one_has_begun_puts_no_file_in_place() {
    let (a, b) = (Host::new(), Host::new());
    a.make(7);
    let given_up = received(&a, &b, 2);
    let next = received(&a, &b, 2);
    let late = b.volumes.finish_fetch(&given_up, Some(&b.image()));
    assert!(late.is_err_and(|error| error.chain().contains("begun since")));
    drop(given_up);
    assert_eq!(b.volumes.arrival(POOL, ID).expect("read"), None);
    b.volumes.finish_fetch(&next, Some(&b.image())).expect("whole");
    drop(next);
    assert_eq!(fs::read(a.file()).expect("there"), fs::read(b.file()).expect("copied"));
}

#[test]
fn a_file_of_an_earlier_stay_is_not_what_has_arrived_and_is_replaced_by_a_whole_copy_only() {
    let (a, b) = (Host::new(), Host::new());
    a.make(7);
    copied(&a, &b, 2);
    let earlier = fs::read(b.file()).expect("read");
    // The guest has run on the other host since.
    let file = OpenOptions::new().write(true).open(a.file()).expect("opened");
    file.write_all_at(&[8; 4096], 9 * MIB).expect("written");
    assert_eq!(b.volumes.arrival(POOL, ID).expect("read"), Some(stay(2)), "of another stay than 4");
    let fetch = received(&a, &b, 4);
    assert_eq!(fs::read(b.file()).expect("read"), earlier, "not before it is whole");
    b.volumes.finish_fetch(&fetch, Some(&b.image())).expect("whole");
    drop(fetch);
    assert_eq!(fs::read(b.file()).expect("read"), fs::read(a.file()).expect("read"));
    assert_eq!(b.volumes.arrival(POOL, ID).expect("read"), Some(stay(4)));
    let of_other_vm = Arrival { vm: "other".to_owned(), epoch: 4 };
    for seen in [None, Some(stay(2)), Some(stay(5)), Some(of_other_vm)] {
        b.volumes.remove_left(POOL, ID, Some("u"), seen.as_ref()).expect("kept");
        assert!(b.file().exists(), "it has come since {seen:?} was seen");
    }
    b.volumes.remove_left(POOL, ID, Some("u"), Some(&stay(4))).expect("removed");
    assert!(!b.file().exists(), "it is the one that was seen");
}

#[test]
fn bytes_of_another_host_refer_to_no_other_file_and_stay_within_the_disk() {
    let (a, b) = (Host::new(), Host::new());
    a.make(7);
    let image = b.image();
    let refused = |change: &dyn Fn(&mut Fetch)| {
        let mut fetch = received(&a, &b, 2);
        change(&mut fetch);
        let why = b.volumes.finish_fetch(&fetch, Some(&image)).expect_err("refused").chain();
        assert!(!b.file().exists(), "{why}");
        why
    };
    // Whatever it names below it becomes the image of the Disk; an incompatible feature stays one.
    let damaged = refused(&|fetch| fetch.file.write_all_at(&[0xff], 72).expect("written"));
    assert!(damaged.contains("qcow2 features"), "{damaged}");
    let blank = refused(&|fetch| fetch.file.write_all_at(&[0; 8], 8).expect("written"));
    assert!(blank.contains("second file"), "{blank}");
    let small = refused(&|fetch| fetch.file.write_all_at(&MIB.to_be_bytes(), 24).expect("written"));
    assert!(small.contains("bytes, not"), "{small}");
    let mut fetch = b.volumes.begin_fetch(&wanted(2)).expect("begun").expect("not here");
    let about = a.volumes.open_left(POOL, ID, 0).expect("opened").expect("there").about().clone();
    for wrong in [
        CopiedFile { length: 1 << 50, ..about.clone() },
        CopiedFile { length: 0, ..about.clone() },
        CopiedFile { base: None, ..about.clone() },
    ] {
        assert!(fetch.begin(wrong.clone()).is_err(), "{wrong:?}");
    }
    let full = fetch.begin(CopiedFile { taken: u64::MAX, ..about.clone() });
    assert!(full.is_ok(), "it takes no more than its length");
    for (offset, length) in [(about.length, 1), (u64::MAX, 1), (COPY_BLOCK - 1, 2), (0, 0)] {
        let part = CopiedPart { offset, bytes: vec![1; length] };
        assert!(fetch.write(&part).is_err(), "{offset} {length}");
    }
    fetch.write(&CopiedPart { offset: 0, bytes: vec![1] }).expect("a part");
    assert!(fetch.write(&CopiedPart { offset: 1, bytes: vec![1] }).is_err(), "one in a block");
    assert!(fetch.begin(CopiedFile { tag: "other".to_owned(), ..about }).is_err(), "it has changed");
}
