//! Files of the host that become volumes.

use std::os::unix::fs::symlink;

use berth_qemu::qcow2::ImageLock;

use super::*;

/// A fixture whose folder `given` is the administrator's.
fn fixture() -> (Fixture, PathBuf) {
    let mut f = Fixture::new();
    let given = f.folder.path().join("given");
    fs::create_dir(&given).expect("a folder");
    let state = f.folder.path().join("state");
    fs::create_dir(&state).expect("a folder");
    f.volumes = LinuxVolumes::new(Layout::new(&state), None).with_adoptable(vec![given.clone()]);
    (f, given)
}

fn from(file: &Path) -> NewVolume {
    NewVolume { file: Some(file.to_owned()), ..new(None, None) }
}

fn refusal(f: &Fixture, new: &NewVolume) -> String {
    let error = f.volumes.create(new, None).expect_err("refused");
    let text = error.chain();
    assert_eq!(f.volumes.volume(POOL, ID).expect("read"), None, "{text}");
    assert_eq!(f.volumes.volumes().expect("list"), [], "{text}");
    format!("{}: {text}", error.variant())
}

#[test]
fn a_file_becomes_a_volume_and_keeps_its_data() {
    let (f, given) = fixture();
    let file = given.join("web.qcow2");
    qcow2::create(&file, 4 * MIB).expect("a file");
    let (before, inode) = (fs::read(&file).expect("read"), inode(&file));
    let made = f.volumes.create(&from(&file), None).expect("taken over");
    assert_eq!((made.size, made.base.as_ref(), made.owner.name.as_str()), (4 * MIB, None, "web"));
    assert_eq!((fs::read(&made.path).expect("read"), self::inode(&made.path)), (before, inode));
    assert!(!file.exists());
    // Again, also when another file has its name.
    qcow2::create(&file, MIB).expect("another file");
    assert_eq!(f.volumes.create(&from(&file), None).expect("as it is"), made);
    assert!(file.exists());
    let larger = NewVolume { size: Some(8 * MIB), ..from(&file) };
    assert_eq!(f.volumes.create(&larger, None).expect("grown").size, 8 * MIB);
}

#[test]
fn it_is_as_large_as_declared_and_never_smaller_than_it_was() {
    let (f, given) = fixture();
    let file = given.join("web.qcow2");
    qcow2::create(&file, 4 * MIB).expect("a file");
    let smaller = NewVolume { size: Some(MIB), ..from(&file) };
    assert!(refusal(&f, &smaller).starts_with("SmallerThanImage"));
    assert!(file.exists());
    let larger = NewVolume { size: Some(8 * MIB), ..from(&file) };
    assert_eq!(f.volumes.create(&larger, None).expect("taken over").size, 8 * MIB);
}

#[test]
fn a_file_that_no_other_host_would_copy_is_refused() {
    let (f, given) = fixture();
    let file = given.join("web.qcow2");
    qcow2::create(&file, 4 * MIB).expect("a file");
    let length = |bytes: u64| {
        fs::OpenOptions::new().write(true).open(&file).and_then(|file| file.set_len(bytes)).expect("as long");
    };
    length(100 * MIB);
    let refused = refusal(&f, &from(&file));
    assert!(refused.starts_with("FileRefused") && refused.contains("qemu-img convert"), "{refused}");
    assert!(file.exists());
    length(80 * MIB);
    assert_eq!(f.volumes.create(&from(&file), None).expect("taken over").size, 4 * MIB);
}

#[test]
fn a_crash_at_any_moment_leaves_the_file_or_the_volume() {
    let (f, given) = fixture();
    let file = given.join("web.qcow2");
    qcow2::create(&file, 4 * MIB).expect("a file");
    let place = f.volumes.place(POOL, ID).expect("a place");
    files::ensure_folder(&f.volumes.layout.volumes(POOL)).expect("a folder");
    let intent = || Note::new(&from(&file), None).write(&place.note).expect("a note");
    intent();
    assert_eq!(f.volumes.volume(POOL, ID).expect("read"), None);
    fs::rename(&file, &place.file).expect("moved");
    assert_eq!(f.volumes.volume(POOL, ID).expect("read").expect("there").size, 4 * MIB);
    assert_eq!(f.volumes.create(&from(&file), None).expect("finished").size, 4 * MIB);
    let note = Note::read(&place.note).expect("read").expect("there").expect("readable");
    assert!(note.complete);
}

#[test]
fn a_file_that_is_not_there_yet_or_in_use_is_waited_for() {
    let (f, given) = fixture();
    let file = given.join("sub/web.qcow2");
    assert!(refusal(&f, &from(&file)).starts_with("FileAwaited"));
    fs::create_dir(given.join("sub")).expect("a folder");
    assert!(refusal(&f, &from(&file)).starts_with("FileAwaited"));
    qcow2::create(&file, 4 * MIB).expect("a file");
    let open = fs::OpenOptions::new().read(true).write(true).open(&file).expect("open");
    let lock = ImageLock::new(open).expect("locked as QEMU does");
    assert!(refusal(&f, &from(&file)).contains("another program has it open as a disk"));
    drop(lock);
    assert_eq!(f.volumes.create(&from(&file), None).expect("taken over").size, 4 * MIB);
}

#[test]
fn only_whole_qcow2_files_of_the_given_folders_are_taken_over() {
    let (f, given) = fixture();
    let outside = f.folder.path().join("outside.qcow2");
    qcow2::create(&outside, 4 * MIB).expect("a file");
    let file = |name: &str, bytes: &[u8]| {
        let path = given.join(name);
        fs::write(&path, bytes).expect("a file");
        path
    };
    let raw = file("raw.img", &[0; 4096]);
    let vmdk = file("disk.vmdk", &[b"KDMV".as_slice(), &[0; 4092]].concat());
    let short = file("short.qcow2", b"QFI\xfb");
    let overlay = given.join("overlay.qcow2");
    qcow2::create(&given.join("base.qcow2"), MIB).expect("a base");
    let base = Backing { file: "base.qcow2".into(), format: Format::Qcow2, backing: None };
    qcow2::create_overlay(&overlay, 4 * MIB, &base).expect("an overlay");
    let whole = given.join("whole.qcow2");
    qcow2::create(&whole, 4 * MIB).expect("a file");
    fs::hard_link(&whole, given.join("second.qcow2")).expect("a link");
    symlink(&outside, given.join("link.qcow2")).expect("a link");
    symlink(f.folder.path(), given.join("folder")).expect("a link");
    nix::unistd::mkfifo(&given.join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let cases = [
        (outside.clone(), "--disk-dir"),
        (given.join("../outside.qcow2"), "--disk-dir"),
        (given.join("link.qcow2"), "--disk-dir"),
        (given.join("folder/outside.qcow2"), "--disk-dir"),
        (given.join("pipe"), "no regular file"),
        (given.clone(), "no regular file"),
        (raw, "qemu-img convert -f raw -O qcow2 "),
        (vmdk, "qemu-img convert -O qcow2 "),
        (short, "cut off"),
        (overlay, "needs a second file"),
        (whole, "hard links"),
    ];
    for (path, expected) in cases {
        let is_there = path.symlink_metadata().is_ok();
        let text = refusal(&f, &from(&path));
        assert!(text.starts_with("FileRefused") && text.contains(expected), "{}: {text}", path.display());
        assert_eq!(path.symlink_metadata().is_ok(), is_there, "{}", path.display());
    }
    // No folder at all, and one that contains the state directory.
    let none = Fixture::new();
    assert!(refusal(&none, &from(&outside)).contains("--disk-dir"));
    let mut all = Fixture::new();
    all.volumes = all.volumes.with_adoptable(vec![all.folder.path().to_owned()]);
    let other = NewVolume { id: "v-other".to_owned(), ..new(Some(MIB), None) };
    let other = all.volumes.create(&other, None).expect("made");
    let error = all.volumes.create(&from(&other.path), None).expect_err("another's volume");
    assert!(error.chain().contains("a file of berth's own"), "{error:?}");
    assert!(other.path.exists());
}

fn inode(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).expect("there"))
}
