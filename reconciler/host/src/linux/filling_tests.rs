//! Formatted volumes and full copies of images, by the real programs, confined as on a real host.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use berth_qemu::machine::Format;
use tempfile::TempDir;

use super::super::{ImageRules, LinuxConfig};
use super::*;
use crate::{Credentials, FilesystemKind, ImageSource, Images, NewFilesystem, VolumeOwner};

const ID: &str = "v-0123456789abcdef";
const SIZE: u64 = 64 << 20;

fn system() -> (TempDir, LinuxSystem) {
    let folder = tempfile::tempdir().expect("a folder");
    // As the users of a host's programs need it.
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).expect("opened");
    let images = ImageRules { folders: vec![folder.path().to_owned()], ..ImageRules::default() };
    let config = LinuxConfig { images, ..LinuxConfig::new(folder.path().join("state")) };
    let system = LinuxSystem::open(config).expect("opened");
    (folder, system)
}

fn new(size: Option<u64>) -> NewVolume {
    NewVolume {
        encryption: None,
        pool: "default".to_owned(),
        id: ID.to_owned(),
        size,
        base: None,
        snapshot: None,
        file: None,
        thick: false,
        shared: false,
        owner: VolumeOwner {
            namespace: "n".to_owned(),
            name: "d".to_owned(),
            uid: None,
            image: None,
            source: None,
        },
    }
}

fn ext4() -> Fill {
    Fill::Filesystem(NewFilesystem { kind: FilesystemKind::Ext4, label: Some("data".to_owned()) })
}

/// Reads the disk of a qcow2 file that is based on no other.
fn content_of(path: &Path) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let back = folder.path().join("back");
    let run = Command::new("qemu-img")
        .args(["convert", "-f", "qcow2", "-O", "raw"])
        .args([path, &back])
        .output()
        .expect("qemu-img is installed (qemu-utils)");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    fs::read(&back).expect("converted")
}

fn has_ext4(content: &[u8]) -> bool {
    // The magic number and the label of the superblock, which begins at 1024.
    content.get(1024 + 56..1024 + 58) == Some(&[0x53, 0xEF][..])
        && content.get(1024 + 120..1024 + 124) == Some(&b"data"[..])
}

fn names(system: &LinuxSystem) -> Vec<String> {
    files::names(&system.layout.volumes("default")).expect("listed")
}

#[tokio::test]
async fn a_formatted_volume_has_its_file_system_and_one_that_is_used_is_never_formatted() {
    let (_folder, system) = system();
    let made = system.create_filled_volume(&new(Some(SIZE)), &ext4(), &|_, _| {}).await.expect("made");
    assert_eq!((made.size, made.format, made.backing), (SIZE, Format::Qcow2, None));
    let content = content_of(&made.path);
    assert!(has_ext4(&content) && content.len() as u64 == SIZE);
    assert!(names(&system).iter().all(|name| !name.starts_with(files::UNFINISHED)), "nothing else is left");
    // A guest writes, and the agent stops before it has reported that the volume is there.
    let run =
        Command::new("qemu-io").args(["-f", "qcow2", "-c", "write -P 7 0 64k"]).arg(&made.path).output();
    assert!(run.expect("qemu-io runs").status.success());
    system.create_filled_volume(&new(Some(SIZE)), &ext4(), &|_, _| {}).await.expect("there");
    assert!(content_of(&made.path)[..64 << 10].iter().all(|byte| *byte == 7), "it is as the guest left it");
}

#[tokio::test]
async fn an_interrupted_format_leaves_no_volume_and_is_done_again() {
    let (_folder, system) = system();
    let volumes = system.layout.volumes("default");
    files::ensure_folder(&volumes).expect("a folder");
    // The files of an attempt that a crash has ended.
    let partial = volumes.join(format!("{}{ID}.restored.qcow2", files::UNFINISHED));
    let raw = volumes.join(format!("{}{ID}{FORMATTED}", files::UNFINISHED));
    for left in [&partial, &raw] {
        fs::write(left, b"a part").expect("written");
    }
    assert_eq!(Volumes::volume(&system, "default", ID).await.expect("read"), None);
    let made = system.create_filled_volume(&new(Some(SIZE)), &ext4(), &|_, _| {}).await.expect("made");
    assert!(has_ext4(&content_of(&made.path)));
    assert!(!partial.exists() && !raw.exists());
    for left in [&partial, &raw] {
        fs::write(left, b"a part").expect("written");
    }
    system.volumes.forget_partial().expect("removed");
    assert!(!partial.exists() && !raw.exists(), "the next agent removes those of disks that are gone");
}

#[tokio::test]
async fn work_that_is_ended_leaves_no_part_of_a_volume() {
    let (_folder, system) = system();
    let volumes = system.layout.volumes("default");
    let partial = volumes.join(format!("{}{ID}.restored.qcow2", files::UNFINISHED));
    let raw = volumes.join(format!("{}{ID}{FORMATTED}", files::UNFINISHED));
    {
        let (order, data, progress) = (new(Some(SIZE)), ext4(), |_: u64, _: Option<u64>| {});
        let mut work = Box::pin(system.create_filled_volume(&order, &data, &progress));
        // The file of the volume is made first.
        while !raw.exists() {
            tokio::select! {
                made = &mut work => panic!("it ended before it was looked at: {made:?}"),
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
        }
        assert!(partial.exists());
    }
    assert!(!partial.exists() && !raw.exists(), "its disk is deleted, and no other attempt removes them");
    assert_eq!(Volumes::volume(&system, "default", ID).await.expect("read"), None);
}

#[tokio::test]
async fn a_full_copy_has_the_data_of_its_image_which_can_go() {
    let (folder, system) = system();
    let (path, size) = (folder.path().join("a.img"), 2 << 20);
    let content: Vec<u8> = (0..size).map(|i: usize| u8::try_from(i % 251).unwrap_or(0)).collect();
    fs::write(&path, &content).expect("an image");
    let digest = {
        use sha2::{Digest, Sha256};
        Sha256::digest(&content).iter().map(|b| format!("{b:02x}")).collect::<String>()
    };
    let source = ImageSource {
        namespace: "n".to_owned(),
        shared: false,
        url: format!("file://{}", path.display()),
        shown: "the image".to_owned(),
        digest: digest.clone(),
        format: Format::Raw,
        encoding: crate::Encoding::default(),
        secret: None,
        host: None,
        limits: crate::DownloadLimits::default(),
    };
    let order = NewVolume { base: Some(digest.clone()), ..new(Some(4 << 20)) };
    let error =
        system.create_filled_volume(&order, &Fill::Image, &|_, _| {}).await.expect_err("not there yet");
    assert_eq!(error.variant(), "ImageNotCached");
    system.pull(&source, &Credentials::default(), &|_, _| ()).await.expect("pulled");
    let made = system.create_filled_volume(&order, &Fill::Image, &|_, _| {}).await.expect("made");
    assert_eq!((made.size, made.base, made.backing), (4 << 20, None, None));
    system.remove_image(&digest).await.expect("nothing is based on it");
    let copied = content_of(&made.path);
    assert!(copied[..size] == content[..] && copied[size..].iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn data_that_a_volume_cannot_have_is_refused() {
    let (_folder, system) = system();
    let shared = NewVolume { shared: true, ..new(Some(SIZE)) };
    for (order, fill) in [(shared, ext4()), (new(None), ext4()), (new(Some(SIZE)), Fill::Image)] {
        let error = system.create_filled_volume(&order, &fill, &|_, _| {}).await.expect_err("refused");
        assert!(matches!(error, SystemError::Invalid { .. }), "{error:?}");
    }
    assert!(names(&system).is_empty());
}
