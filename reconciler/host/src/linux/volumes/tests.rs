//! Volumes on a real file system.

mod adoption;
mod history;

use berth_qemu::machine::Format;
use std::time::Duration;
use tempfile::TempDir;

use super::super::tests::SmallDisk;
use super::*;
use crate::VolumeOwner;

const MIB: u64 = 1 << 20;
const ID: &str = "v-0123456789abcdef";
const POOL: &str = "default";

struct Fixture {
    folder: TempDir,
    volumes: LinuxVolumes,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let volumes = LinuxVolumes::new(Layout::new(folder.path()), None);
        Self { folder, volumes }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join("pools/default").join(path)
    }

    /// A cached image of 4 MiB.
    fn image(&self) -> ImageFacts {
        let digest = "ab".repeat(32);
        let path = self.folder.path().join("images").join(&digest);
        files::ensure_folder(path.parent().expect("folder")).expect("folder");
        qcow2::create(&path, 4 * MIB).expect("image");
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
}

fn owner(name: &str) -> VolumeOwner {
    VolumeOwner {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: None,
        image: None,
        source: None,
    }
}

fn new(size: Option<u64>, base: Option<&ImageFacts>) -> NewVolume {
    NewVolume {
        encryption: None,
        pool: POOL.to_owned(),
        id: ID.to_owned(),
        size,
        base: base.map(|b| b.digest.clone()),
        snapshot: None,
        file: None,
        thick: false,
        shared: false,
        owner: owner("web"),
    }
}

#[test]
fn a_volume_takes_the_space_of_what_is_in_it_and_a_thick_one_its_whole_size() {
    let f = Fixture::new();
    f.volumes.create(&new(Some(64 * MIB), None), None).expect("made");
    let used = f.volumes.used_bytes().expect("measured")[ID];
    assert!(used < 4 * MIB, "{used}");
    f.volumes.reserve(POOL, ID, 64 * MIB).expect("reserved");
    let used = f.volumes.used_bytes().expect("measured")[ID];
    assert!(used >= 64 * MIB, "{used}");
    f.volumes.trash(POOL, ID).expect("trashed");
    let used = f.volumes.used_bytes().expect("measured")[ID];
    assert!(used >= 64 * MIB, "it takes as much in the trash: {used}");
}

#[test]
fn a_blank_volume_is_made_once_and_grows() {
    let f = Fixture::new();
    assert_eq!(f.volumes.volume(POOL, ID).expect("read"), None);
    let made = f.volumes.create(&new(Some(8 * MIB), None), None).expect("made");
    assert_eq!((made.size, made.base.as_ref(), made.format), (8 * MIB, None, Format::Qcow2));
    assert_eq!(f.volumes.create(&new(Some(8 * MIB), None), None).expect("made already"), made);
    assert_eq!(f.volumes.create(&new(Some(16 * MIB), None), None).expect("grown").size, 16 * MIB);
    assert_eq!(f.volumes.grow(POOL, ID, 32 * MIB).expect("grown").size, 32 * MIB);
    assert_eq!(f.volumes.grow(POOL, ID, 32 * MIB).expect("no change").size, 32 * MIB);
    let error = f.volumes.grow(POOL, ID, MIB).expect_err("smaller");
    assert!(
        matches!(error, SystemError::Shrink { from, to, .. } if (from, to) == (32 * MIB, MIB)),
        "{error:?}"
    );
    assert_eq!(f.volumes.volumes().expect("list").len(), 1);
}

#[test]
fn a_size_that_is_no_whole_number_of_sectors_is_rounded_up() {
    let f = Fixture::new();
    assert_eq!(f.volumes.create(&new(Some(MIB + 1), None), None).expect("made").size, MIB + 512);
    for bad in [None, Some(0), Some(u64::MAX)] {
        let error = f.volumes.create(&new(bad, None), None).expect_err("no size");
        assert_eq!(error.variant(), "Invalid", "{bad:?}");
    }
}

#[test]
fn an_overlay_is_as_large_as_its_image_unless_more_is_asked_for() {
    let f = Fixture::new();
    let image = f.image();
    let made = f.volumes.create(&new(None, Some(&image)), Some(&image)).expect("made");
    assert_eq!(made.size, 4 * MIB);
    assert_eq!(made.base.as_deref(), Some(image.digest.as_str()));
    assert_eq!(
        made.backing,
        Some(Backing { file: image.path.clone(), format: Format::Qcow2, backing: None })
    );
    // The header refers to the image by a path relative to the volume.
    assert!(f.at("volumes").join(relative_to_volumes(&image.digest)).exists());
}

#[test]
fn a_disk_smaller_than_its_image_is_refused_and_leaves_nothing() {
    let f = Fixture::new();
    let image = f.image();
    let error = f.volumes.create(&new(Some(MIB), Some(&image)), Some(&image)).expect_err("too small");
    assert_eq!(error.variant(), "SmallerThanImage");
    assert!(files::names(&f.at("volumes")).expect("list").is_empty());
}

#[test]
fn a_deleted_volume_rests_in_the_trash_and_comes_back() {
    let f = Fixture::new();
    let made = f.volumes.create(&new(Some(MIB), None), None).expect("made");
    f.volumes.trash(POOL, ID).expect("trashed");
    f.volumes.trash(POOL, ID).expect("trashed already");
    assert_eq!(f.volumes.volume(POOL, ID).expect("read"), None);
    let trash = f.volumes.trashed().expect("list");
    assert_eq!((trash.len(), trash[0].volume.size, &trash[0].volume.owner), (1, MIB, &owner("web")));
    assert!(f.volumes.purge(POOL, Duration::from_secs(3600)).expect("nothing is that old").is_empty());
    let error = f.volumes.create(&new(Some(MIB), None), None).expect_err("it is in the trash");
    assert!(error.to_string().contains("restored"), "{error}");
    let back = f.volumes.restore(POOL, ID, &owner("web-2")).expect("restored");
    assert_eq!(back, VolumeFacts { owner: owner("web-2"), ..made });
    assert_eq!(f.volumes.restore(POOL, ID, &owner("web-2")).expect("restored already"), back);
    assert!(f.volumes.trashed().expect("list").is_empty());
    f.volumes.trash(POOL, ID).expect("trashed");
    let note = f.at("trash").join(format!("{ID}.json"));
    let text = fs::read_to_string(&note).expect("its note");
    let year = jiff::Timestamp::now().strftime("%Y").to_string();
    fs::write(&note, text.replace(&format!("\"{year}-"), "\"1999-"))
        .expect("as a clock far ahead would see it");
    assert!(f.volumes.purge(POOL, Duration::from_secs(3600)).expect("read").is_empty(), "by no time of day");
    assert_eq!(f.volumes.purge(POOL, Duration::ZERO).expect("purged"), [ID]);
    assert!(files::names(&f.at("trash")).expect("list").is_empty());
    let error = f.volumes.restore(POOL, ID, &owner("web")).expect_err("gone for good");
    assert_eq!(error.variant(), "VolumeLost");
}

#[test]
fn a_volume_that_is_handed_over_is_the_same_file_with_another_owner_in_its_note() {
    let f = Fixture::new();
    let made = f.volumes.create(&new(Some(MIB), None), None).expect("made");
    let later = VolumeOwner { uid: Some("u2".to_owned()), ..owner("web") };
    for _ in 0..2 {
        f.volumes.hand_over(POOL, ID, &later).expect("handed over");
        let now = f.volumes.volume(POOL, ID).expect("read").expect("there");
        assert_eq!(now, VolumeFacts { owner: later.clone(), ..made.clone() });
    }
    let error = f.volumes.hand_over(POOL, "v-other", &later).expect_err("there is none");
    assert_eq!(error.variant(), "VolumeLost");
}

#[test]
fn a_lost_disk_is_never_replaced_by_an_empty_one() {
    let f = Fixture::new();
    f.volumes.create(&new(Some(MIB), None), None).expect("made");
    fs::remove_file(f.at("volumes").join(format!("{ID}.qcow2"))).expect("somebody deletes it");
    for error in [
        f.volumes.volume(POOL, ID).map(|_| ()),
        f.volumes.create(&new(Some(MIB), None), None).map(|_| ()),
        f.volumes.grow(POOL, ID, 2 * MIB).map(|_| ()),
    ] {
        assert_eq!(error.expect_err("lost").variant(), "VolumeLost");
    }
    f.volumes.trash(POOL, ID).expect("its Disk may be deleted");
    assert_eq!(f.volumes.volume(POOL, ID).expect("forgotten"), None);
}

#[test]
fn what_a_crash_left_of_a_creation_is_finished() {
    let f = Fixture::new();
    files::ensure_folder(&f.at("volumes")).expect("folder");
    // A crash after the note, in the middle of the file.
    Note::new(&new(Some(MIB), None), None).write(&f.at("volumes").join(format!("{ID}.json"))).expect("note");
    fs::write(f.at("volumes").join(format!(".{ID}.qcow2.new")), b"half").expect("half a file");
    assert_eq!(f.volumes.volume(POOL, ID).expect("not yet"), None);
    assert!(f.volumes.foreign().expect("look").is_empty(), "our own leftovers are no foreign");
    assert_eq!(f.volumes.create(&new(Some(MIB), None), None).expect("made").size, MIB);
    assert_eq!(files::names(&f.at("volumes")).expect("list").len(), 2, "the file and its note");
}

#[test]
fn a_volume_a_running_qemu_has_open_is_not_grown_behind_its_back() {
    let f = Fixture::new();
    let made = f.volumes.create(&new(Some(MIB), None), None).expect("made");
    let open = fs::OpenOptions::new().read(true).write(true).open(&made.path).expect("open");
    // QEMU's lock: byte 201 means that writing by others is not shared.
    let set = |kind: libc::c_int| {
        let lock = libc::flock {
            l_type: i16::try_from(kind).expect("small"),
            l_whence: i16::try_from(libc::SEEK_SET).expect("small"),
            l_start: 201,
            l_len: 1,
            l_pid: 0,
        };
        nix::fcntl::fcntl(&open, nix::fcntl::FcntlArg::F_OFD_SETLK(&lock)).expect("set");
    };
    set(libc::F_RDLCK);
    let error = f.volumes.grow(POOL, ID, 2 * MIB).expect_err("in use");
    assert!(error.chain().contains("running QEMU"), "{}", error.chain());
    assert_eq!(error.retry(), crate::Retry::Backoff);
    // Closing the file is not enough: a process that another test forks would hold the lock a moment longer.
    set(libc::F_UNLCK);
    f.volumes.grow(POOL, ID, 2 * MIB).expect("free again");
}

#[test]
fn a_full_disk_leaves_nothing_half_made() {
    let Some(disk) = SmallDisk::mount(64 << 10) else { return };
    let volumes = LinuxVolumes::new(Layout::new(disk.path()), None);
    fs::create_dir_all(disk.path().join("pools/default/volumes")).expect("folder");
    fs::write(disk.path().join("ballast"), vec![0; 52 << 10]).expect("fits");
    let error = volumes.create(&new(Some(MIB), None), None).expect_err("full");
    assert_eq!(error.variant(), "NoSpace", "{}", error.chain());
    assert!(files::names(&disk.path().join("pools/default/volumes")).expect("list").is_empty());
    fs::remove_file(disk.path().join("ballast")).expect("space again");
    volumes.create(&new(Some(MIB), None), None).expect("made");
}

#[test]
fn the_space_of_a_thick_volume_is_reserved_at_once_and_again_when_it_grows() {
    use std::os::unix::fs::MetadataExt;
    let f = Fixture::new();
    let made = f.volumes.create(&NewVolume { thick: true, ..new(Some(8 * MIB), None) }, None).expect("made");
    let blocks = || fs::metadata(&made.path).expect("there").blocks() * 512;
    assert_eq!((made.size, made.reserved), (8 * MIB, Some(8 * MIB)));
    assert!(blocks() >= 8 * MIB, "{}", blocks());
    f.volumes.reserve(POOL, ID, 4 * MIB).expect("it has more");
    for _ in 0..2 {
        f.volumes.reserve(POOL, ID, 16 * MIB).expect("reserved");
    }
    assert!(blocks() >= 16 * MIB, "{}", blocks());
    f.volumes.grow(POOL, ID, 16 * MIB).expect("grown");
    let now = f.volumes.volume(POOL, ID).expect("read").expect("there");
    assert_eq!((now.size, now.reserved), (16 * MIB, Some(16 * MIB)));
}

#[test]
fn a_thick_volume_that_does_not_fit_is_not_made_and_takes_no_space() {
    let Some(disk) = SmallDisk::mount(32 << 20) else { return };
    let volumes = LinuxVolumes::new(Layout::new(disk.path()), None);
    let thick = |size| NewVolume { thick: true, ..new(Some(size), None) };
    let error = volumes.create(&thick(64 * MIB), None).expect_err("too large");
    assert_eq!(error.variant(), "NoSpace", "{}", error.chain());
    assert!(files::names(&disk.path().join("pools/default/volumes")).expect("list").is_empty());
    let made = volumes.create(&thick(4 * MIB), None).expect("made");
    let error = volumes.reserve(POOL, ID, 64 * MIB).expect_err("too large");
    assert_eq!(error.variant(), "NoSpace", "{}", error.chain());
    assert_eq!(volumes.volume(POOL, ID).expect("read"), Some(made), "as it was");
}

#[test]
fn a_volume_with_a_damaged_header_is_listed_and_not_used() {
    let f = Fixture::new();
    let image = f.image();
    let made = f.volumes.create(&new(None, Some(&image)), Some(&image)).expect("made");
    fs::write(&made.path, b"not qcow2 any more").expect("damage");
    assert!(matches!(f.volumes.volume(POOL, ID), Err(SystemError::VolumeDamaged { .. })));
    let listed = f.volumes.volumes().expect("list");
    assert_eq!(listed[0].base, made.base, "its image must not be dropped: somebody may repair the file");
}
