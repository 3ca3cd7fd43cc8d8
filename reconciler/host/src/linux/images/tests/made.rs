//! Images that are made from snapshots, by the real `qemu-img`.

use std::process::Command;

use jiff::Timestamp;

use super::super::super::volumes::LinuxVolumes;
use super::*;
use crate::{NewImage, NewSnapshot, NewVolume, Taken, VolumeOwner};

const VOLUME: &str = "v-1";

/// A volume on an image, in the same state directory as a cache.
struct Disk {
    cache: Cache,
    volumes: LinuxVolumes,
    image: Vec<u8>,
}

impl Disk {
    async fn new() -> Self {
        let image = raw(2 * MIB);
        let body = image.clone();
        let server = Server::start(move |_| Reply::file(&body));
        let cache = Cache::new();
        let source = source(server.url("/a.img"), &image, Format::Raw);
        let base = cache.images.pull(&source, &Credentials::default(), &quiet()).await.expect("pulled");
        let volumes = LinuxVolumes::new(Layout::new(cache.folder.path()), None);
        let owner =
            VolumeOwner { namespace: "ns".into(), name: "d".into(), uid: None, image: None, source: None };
        let new = NewVolume {
            encryption: None,
            pool: "default".into(),
            id: VOLUME.into(),
            size: Some(4 * MIB as u64),
            base: Some(base.digest.clone()),
            snapshot: None,
            file: None,
            thick: false,
            shared: false,
            owner,
        };
        volumes.create(&new, Some(&base)).expect("made");
        Self { cache, volumes, image }
    }

    /// Writes this byte all over the third MiB.
    fn write(&self, byte: u8) {
        let path = self.volumes.volume("default", VOLUME).expect("read").expect("there").path;
        let command = format!("write -P {byte} 2M 1M");
        let run = Command::new("qemu-io").args(["-f", "qcow2", "-c", &command]).arg(path).output();
        assert!(run.expect("qemu-io runs").status.success());
    }

    fn take(&self, id: &str) {
        let new = NewSnapshot { pool: "default".into(), id: id.into(), volume: VOLUME.into(), owner: None };
        self.volumes.begin_snapshot(&new).expect("begun");
        let taken = Taken { at: Timestamp::UNIX_EPOCH, frozen: false, memory: false };
        self.volumes.finish_snapshot("default", id, &taken).expect("finished");
    }

    async fn make(&self, images: &Arc<LinuxImages>, uid: &str, snapshot: &str) -> Result<ImageFacts> {
        let new = new(uid, snapshot);
        match images.made(&new).await? {
            Some(facts) => Ok(facts),
            None => {
                let chain = self.volumes.chain_of_snapshot("default", snapshot)?;
                images.make(&new, SnapshotContent::Files(chain)).await
            }
        }
    }

    /// The content of the disk with this byte all over the third MiB.
    fn content(&self, byte: u8) -> Vec<u8> {
        let mut content = self.image.clone();
        content.resize(3 * MIB, byte);
        content.resize(4 * MIB, 0);
        content
    }
}

fn new(uid: &str, snapshot: &str) -> NewImage {
    NewImage {
        namespace: "ns".into(),
        uid: uid.into(),
        former_uid: None,
        shown: format!("DiskSnapshot {snapshot}"),
        pool: "default".into(),
        snapshot: snapshot.into(),
    }
}

/// Reads a qcow2 file, which may be based on no other.
fn content_of(path: &Path) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let back = folder.path().join("back");
    let run = Command::new("qemu-img")
        .args(["convert", "-f", "qcow2", "-O", "raw"])
        .args([path, &back])
        .output()
        .expect("qemu-img is installed (qemu-utils)");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    fs::read(&back).expect("converted")
}

#[tokio::test]
async fn an_image_has_the_data_of_its_snapshot_whatever_becomes_of_the_disk() {
    let disk = Disk::new().await;
    disk.write(1);
    disk.take("s-1");
    disk.write(2);
    disk.take("s-2");
    disk.write(3);
    let images = disk.cache.images.clone();
    let first = disk.make(&images, "u1", "s-1").await.expect("made");
    let second = disk.make(&images, "u2", "s-2").await.expect("made");
    assert_eq!((first.format, first.virtual_size), (Format::Qcow2, 4 * MIB as u64));
    assert_eq!(first.digest, sha256(&fs::read(&first.path).expect("read")));
    assert_ne!(first.digest, second.digest);
    disk.volumes.trash("default", VOLUME).expect("in the trash");
    disk.volumes.purge("default", Duration::ZERO).expect("purged");
    assert!(disk.volumes.chain_of_snapshot("default", "s-1").is_err(), "gone with the disk");
    assert!(content_of(&first.path) == disk.content(1) && content_of(&second.path) == disk.content(2));
    let own = source("", &fs::read(&first.path).expect("read"), Format::Qcow2);
    assert!(images.image(&own).await.expect("asked").is_some(), "its namespace has it");
    let other = ImageSource { namespace: "other".into(), ..own };
    assert_eq!(images.image(&other).await.expect("asked"), None, "no other has");
}

#[tokio::test]
async fn an_image_is_made_once_for_its_object_and_the_same_bytes_are_stored_once() {
    let disk = Disk::new().await;
    disk.write(1);
    disk.take("s-1");
    let images = disk.cache.images.clone();
    let made = disk.make(&images, "u1", "s-1").await.expect("made");
    let stored = disk.cache.files();
    let twin = disk.make(&images, "u2", "s-1").await.expect("made");
    assert_eq!((twin.digest.as_str(), twin.made_for.len()), (made.digest.as_str(), 2));
    assert_eq!(disk.cache.files(), stored, "nothing unfinished is left");
    let anew = NewImage { former_uid: Some("u1".into()), ..new("u3", "s-gone") };
    let found = disk.cache.restarted().made(&anew).await.expect("asked").expect("under its former uid");
    assert_eq!(found.digest, made.digest);
}

#[tokio::test]
async fn what_an_interrupted_process_left_is_removed_and_is_no_image() {
    let disk = Disk::new().await;
    let images = disk.cache.images.clone();
    let error = disk.make(&images, "u1", "s-1").await.expect_err("it is not taken");
    assert!(matches!(error, SystemError::SnapshotLost { .. }), "{error:?}");
    let left = disk.cache.folder.path().join("images/u1.making-0123456789abcdef");
    fs::write(&left, b"half").expect("written");
    assert_eq!(images.images().await.expect("listed").len(), 1, "the image below the disk");
    images.forget_downloads(&BTreeSet::new()).await.expect("forgotten");
    assert!(!left.exists());
}

#[tokio::test]
async fn a_snapshot_whose_header_names_another_file_does_not_bring_that_file_into_the_image() {
    let disk = Disk::new().await;
    disk.write(1);
    disk.take("s-1");
    let secret = disk.cache.folder.path().join("secret");
    fs::write(&secret, vec![7; 4 * MIB]).expect("written");
    let file = disk.cache.folder.path().join("pools/default/snapshots/s-1.qcow2");
    let run = Command::new("qemu-img")
        .args(["rebase", "-u", "-f", "qcow2", "-F", "raw", "-b"])
        .args([&secret, &file])
        .output()
        .expect("qemu-img is installed (qemu-utils)");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let made = disk.make(&disk.cache.images, "u1", "s-1").await.expect("made");
    assert!(content_of(&made.path) == disk.content(1), "the note beside the file decides");
}

#[tokio::test]
async fn an_image_that_is_larger_than_allowed_is_refused_and_leaves_nothing() {
    let disk = Disk::new().await;
    disk.write(1);
    disk.take("s-1");
    let before = disk.cache.files();
    let small = open(disk.cache.folder.path(), MIB as u64);
    let error = disk.make(&small, "u1", "s-1").await.expect_err("too large");
    assert!(matches!(error, SystemError::ImageTooLarge { .. }), "{error:?}");
    assert_eq!(disk.cache.files(), before);
}
