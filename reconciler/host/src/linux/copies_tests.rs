//! Copies of snapshots between pools of files, by the real programs, confined as on a real host.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use berth_qemu::machine::Format;
use jiff::Timestamp;
use tempfile::TempDir;

use super::super::LinuxConfig;
use super::*;
use crate::{NewSnapshot, Taken, VolumeOwner};

const SIZE: u64 = 4 << 20;

fn system() -> (TempDir, LinuxSystem) {
    let folder = tempfile::tempdir().expect("a folder");
    // As the users of a host's programs need it.
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).expect("opened");
    let system = LinuxSystem::open(LinuxConfig::new(folder.path().join("state"))).expect("opened");
    (folder, system)
}

/// A system that makes disks of the files in a folder.
fn with_given() -> (TempDir, PathBuf, LinuxSystem) {
    let folder = tempfile::tempdir().expect("a folder");
    let given = folder.path().join("given");
    fs::create_dir(&given).expect("a folder");
    let config =
        LinuxConfig { disk_folders: vec![given.clone()], ..LinuxConfig::new(folder.path().join("state")) };
    let system = LinuxSystem::open(config).expect("opened");
    (folder, given, system)
}

fn new(pool: &str, id: &str, size: Option<u64>) -> NewVolume {
    let (namespace, name) = ("n".to_owned(), id.to_owned());
    NewVolume {
        encryption: None,
        pool: pool.to_owned(),
        id: id.to_owned(),
        size,
        base: None,
        snapshot: None,
        file: None,
        thick: false,
        shared: false,
        owner: VolumeOwner { namespace, name, uid: None, image: None, source: None },
    }
}

fn of_snapshot() -> Fill {
    Fill::Snapshot { pool: "default".to_owned(), id: "s-1".to_owned() }
}

fn write(file: &Path, pattern: &str) {
    let run = Command::new("qemu-io").args(["-f", "qcow2", "-c", pattern]).arg(file).output();
    assert!(run.expect("qemu-io is installed (qemu-utils)").status.success());
}

/// Reads the disk of a qcow2 file.
fn content_of(file: &Path) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let back = folder.path().join("back");
    let run =
        Command::new("qemu-img").args(["convert", "-f", "qcow2", "-O", "raw"]).args([file, &back]).output();
    assert!(run.expect("qemu-img is installed (qemu-utils)").status.success());
    fs::read(&back).expect("converted")
}

/// Makes a volume with data, and a snapshot of it, after which it has other data.
async fn with_snapshot(system: &LinuxSystem) {
    let made = system.create_volume(&new("default", "v-1", Some(SIZE))).await.expect("made");
    write(&made.path, "write -P 7 0 64k");
    let snapshot =
        NewSnapshot { pool: "default".into(), id: "s-1".into(), volume: "v-1".into(), owner: None };
    let now = system.begin_snapshots(&[snapshot]).await.expect("begun").remove(0);
    let taken = Taken { at: Timestamp::UNIX_EPOCH, frozen: false, memory: false };
    system.finish_snapshot("default", "s-1", &taken).await.expect("taken");
    write(&now.path, "write -P 9 0 64k");
}

#[tokio::test]
async fn a_copy_in_another_pool_has_the_data_of_the_snapshot_and_depends_on_nothing() {
    let (_folder, system) = system();
    with_snapshot(&system).await;
    let volumes = system.layout.volumes("slow");
    files::ensure_folder(&volumes).expect("a folder");
    // The file of an attempt that a crash has ended.
    let partial = volumes.join(format!("{}v-2.restored.qcow2", files::UNFINISHED));
    fs::write(&partial, b"a part").expect("written");
    let seen = Mutex::new(Vec::new());
    let progress = |done: u64, total: Option<u64>| seen.lock().expect("no panic").push((done, total));
    let order = new("slow", "v-2", Some(2 * SIZE));
    let made = system.create_filled_volume(&order, &of_snapshot(), &progress).await.expect("made");
    assert_eq!((made.pool.as_str(), made.size, made.format), ("slow", 2 * SIZE, Format::Qcow2));
    assert_eq!((made.backing, partial.exists()), (None, false));
    let content = content_of(&made.path);
    assert!(content[..64 << 10].iter().all(|byte| *byte == 7), "the data of the snapshot");
    assert!(content[64 << 10..].iter().all(|byte| *byte == 0) && content.len() as u64 == 2 * SIZE);
    assert!(seen.lock().expect("no panic").iter().all(|(done, total)| Some(*done) <= *total));
    let again = system.create_filled_volume(&order, &of_snapshot(), &progress).await.expect("there");
    assert_eq!(again.path, made.path, "it is not copied again");
    let left = files::names(&system.layout.snapshot_readers("default")).expect("listed");
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn the_data_of_a_raw_file_is_copied_while_no_other_program_has_it_and_the_file_stays() {
    let (folder, given, system) = with_given();
    let file = given.join("a.img");
    let mut data = vec![0; 4 << 20];
    data[..64 << 10].fill(7);
    fs::write(&file, &data).expect("written");
    let order = new("default", "v-1", Some(2 * SIZE));
    let make = async |order: &NewVolume, file: &Path| {
        system.create_filled_volume(order, &Fill::RawFile(file.to_owned()), &|_, _| {}).await
    };
    let opened = fs::OpenOptions::new().read(true).write(true).open(&file).expect("opened");
    let lock = berth_qemu::qcow2::ImageLock::new(opened).expect("locked as QEMU does");
    assert_eq!(make(&order, &file).await.expect_err("in use").variant(), "FileAwaited");
    drop(lock);
    let small = NewVolume { size: Some(SIZE / 2), ..order.clone() };
    assert_eq!(make(&small, &file).await.expect_err("refused").variant(), "SmallerThanImage");
    let made = make(&order, &file).await.expect("made");
    assert_eq!((made.size, made.format, made.backing), (2 * SIZE, Format::Qcow2, None));
    let content = content_of(&made.path);
    assert_eq!((content.len() as u64, content.get(..data.len())), (2 * SIZE, Some(&data[..])));
    assert!(content[data.len()..].iter().all(|byte| *byte == 0));
    assert_eq!(fs::read(&file).expect("it stays"), data);
    assert_eq!(fs::metadata(&file).expect("it stays").nlink(), 1, "it has no other name");
    fs::remove_file(&file).expect("removed");
    assert_eq!(make(&order, &file).await.expect("there").path, made.path, "the file is not looked at again");

    let other = new("default", "v-2", None);
    assert_eq!(make(&other, &file).await.expect_err("absent").variant(), "FileAwaited");
    let outside = folder.path().join("outside.img");
    let (odd, qcow2) = (given.join("odd.img"), given.join("web.qcow2"));
    fs::write(&outside, &data).expect("written");
    fs::write(&odd, &data[..1000]).expect("written");
    berth_qemu::qcow2::create(&qcow2, SIZE).expect("made");
    for refused in [outside, odd, qcow2] {
        let error = make(&other, &refused).await.expect_err("refused");
        assert_eq!(error.variant(), "FileRefused", "{}: {}", refused.display(), error.chain());
    }
    let left = files::names(&system.layout.volumes("default")).expect("listed");
    assert!(left.iter().all(|name| name.starts_with("v-1")), "{left:?}");
}

#[tokio::test]
async fn a_raw_file_whose_data_is_being_copied_is_waited_for_although_it_has_a_second_name() {
    let (_folder, given, system) = with_given();
    let file = given.join("a.img");
    fs::write(&file, vec![7; 1 << 20]).expect("written");
    let links = Links(system.layout.snapshot_links("default", "image-copy-v-1"));
    let (path, of) = (file.clone(), links.0.clone());
    let source = system.on_pool("default", move |v| v.raw_source(&path, &of)).await.expect("locked");
    assert_eq!(fs::metadata(&file).expect("there").nlink(), 2);
    let order = new("default", "v-2", None);
    let make = async || system.create_filled_volume(&order, &Fill::RawFile(file.clone()), &|_, _| {}).await;
    assert_eq!(make().await.expect_err("in use").variant(), "FileAwaited");
    drop(source);
    assert_eq!(fs::metadata(&file).expect("there").nlink(), 1, "also if nothing has waited for it");
    assert_eq!(make().await.expect("made").size, 1 << 20);
}

#[tokio::test]
async fn a_copy_of_nothing_and_a_smaller_one_are_refused_and_leave_nothing() {
    let (_folder, system) = system();
    let order = |size| new("slow", "v-2", size);
    let missing = system.create_filled_volume(&order(None), &of_snapshot(), &|_, _| {}).await;
    assert_eq!(missing.expect_err("it is not taken").variant(), "SnapshotLost");
    with_snapshot(&system).await;
    let small = system.create_filled_volume(&order(Some(SIZE / 2)), &of_snapshot(), &|_, _| {}).await;
    assert_eq!(small.expect_err("refused").variant(), "SmallerThanImage");
    let shared = NewVolume { shared: true, ..order(None) };
    let shared = system.create_filled_volume(&shared, &of_snapshot(), &|_, _| {}).await;
    assert_eq!(shared.expect_err("refused").variant(), "Invalid");
    assert!(files::names(&system.layout.volumes("slow")).expect("listed").is_empty());
}
