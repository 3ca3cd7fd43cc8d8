//! Shared test fixtures, and tests of the whole system without a machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::mount::{MsFlags, mount, umount};
use tempfile::TempDir;

use super::*;
use crate::{
    Credentials, ForeignKind, HostInfo, ImageSource, Images, Machines, NewMove, NewVolume, VolumeOwner,
    Volumes,
};

/// A file system small enough to be filled. Needs root.
#[derive(Debug)]
pub(super) struct SmallDisk(TempDir);

impl SmallDisk {
    pub(super) fn mount(bytes: usize) -> Option<Self> {
        if !Uid::effective().is_root() {
            eprintln!("skipped: only root can mount a small file system to fill");
            return None;
        }
        let folder = tempfile::tempdir().expect("temporary folder");
        let options = format!("size={bytes}");
        match mount(Some("tmpfs"), folder.path(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str())) {
            Ok(()) => Some(Self(folder)),
            Err(error) => {
                eprintln!("skipped: cannot mount a small file system to fill: {error}");
                None
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn grow(&self, bytes: usize) {
        let options = format!("size={bytes}");
        mount(None::<&str>, self.path(), None::<&str>, MsFlags::MS_REMOUNT, Some(options.as_str()))
            .expect("made larger");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = umount(self.0.path()) {
            eprintln!("{} stays mounted: {error}", self.0.path().display());
        }
    }
}

fn system() -> (TempDir, LinuxSystem) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let images = ImageRules { folders: vec![folder.path().to_owned()], ..ImageRules::default() };
    let config = LinuxConfig { qemu_users: None, images, ..LinuxConfig::new(folder.path().join("state")) };
    let system = LinuxSystem::open(config).expect("opened");
    (folder, system)
}

#[test]
fn a_state_directory_that_qemus_user_cannot_reach_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().expect("temporary folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).expect("closed");
    let state = folder.path().join("state");
    let config = LinuxConfig { qemu_users: Some(UidRange::default()), ..LinuxConfig::new(&state) };
    let error = LinuxSystem::open(config.clone()).expect_err("closed to others");
    assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).expect("open");
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).expect("closed");
    LinuxSystem::open(config).expect("the state directory itself is opened by us");
    assert_eq!(std::fs::metadata(&state).expect("there").permissions().mode() & 0o777, 0o711);
}

#[tokio::test]
async fn a_journal_is_read_back_and_goes_with_its_instance() {
    let (_folder, system) = system();
    assert_eq!(system.read_journal("i-0123456789ab").await.expect("read"), None);
    let journal = serde_json::json!({"intent": "start"});
    system.write_journal("i-0123456789ab", &journal).await.expect("written");
    assert_eq!(system.read_journal("i-0123456789ab").await.expect("read"), Some(journal.clone()));
    let instances = system.instances().await.expect("list");
    assert_eq!(instances.len(), 1);
    assert_eq!(instances[0].journal, Some(journal));
    assert_eq!(instances[0].process, None);
    system.remove_instance("i-0123456789ab").await.expect("removed");
    system.remove_instance("i-0123456789ab").await.expect("removed again");
    assert!(system.instances().await.expect("list").is_empty());
}

#[tokio::test]
async fn what_berth_did_not_make_is_reported_and_left_alone() {
    let (folder, system) = system();
    let state = folder.path().join("state");
    let volumes = state.join("pools/default/volumes");
    std::fs::create_dir_all(&volumes).expect("folder");
    let files: Vec<PathBuf> =
        ["mine.qcow2", "v-0123456789abcdef.qcow2", "notes.txt"].map(|n| volumes.join(n)).to_vec();
    files.iter().for_each(|f| std::fs::write(f, b"data").expect("file"));
    std::fs::create_dir(state.join("instances/My VM")).expect("folder");
    let foreign = system.foreign().await.expect("looked");
    let named = |kind| foreign.iter().filter(move |s| s.kind == kind).map(|s| s.name.as_str());
    assert_eq!(
        named(ForeignKind::Volume).collect::<Vec<_>>(),
        ["default/mine.qcow2", "default/notes.txt", "default/v-0123456789abcdef.qcow2"]
    );
    assert_eq!(named(ForeignKind::Instance).collect::<Vec<_>>(), ["My VM"]);
    let owner =
        VolumeOwner { namespace: "n".to_owned(), name: "d".to_owned(), uid: None, image: None, source: None };
    let new = NewVolume {
        encryption: None,
        pool: "default".to_owned(),
        id: "v-0123456789abcdef".to_owned(),
        size: Some(1 << 20),
        base: None,
        snapshot: None,
        file: None,
        thick: false,
        shared: false,
        owner,
    };
    let error = system.create_volume(&new).await.expect_err("somebody's file");
    assert!(matches!(error, SystemError::VolumeDamaged { .. }), "{error:?}");
    system.trash_volume("default", "v-0123456789abcdef").await.expect("nothing to do");
    system.purge_trash("default", Duration::ZERO).await.expect("nothing to do");
    for file in files {
        assert_eq!(std::fs::read(&file).expect("still there"), b"data");
    }
}

#[tokio::test]
async fn an_image_stays_as_long_as_a_volume_needs_it() {
    let (folder, system) = system();
    let path = folder.path().join("a.qcow2");
    berth_qemu::qcow2::create(&path, 1 << 20).expect("image");
    let sha256 = {
        use sha2::{Digest, Sha256};
        let bytes = std::fs::read(&path).expect("read");
        Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect::<String>()
    };
    let source = ImageSource {
        namespace: "n".to_owned(),
        shared: false,
        url: format!("file://{}", path.display()),
        shown: "the image".to_owned(),
        digest: sha256.clone(),
        format: berth_qemu::machine::Format::Qcow2,
        encoding: crate::Encoding::default(),
        secret: None,
        host: None,
        limits: crate::DownloadLimits::default(),
    };
    let owner = VolumeOwner {
        namespace: "n".to_owned(),
        name: "d".to_owned(),
        uid: None,
        image: Some("a".to_owned()),
        source: None,
    };
    let new = NewVolume {
        encryption: None,
        pool: "default".to_owned(),
        id: "v-0123456789abcdef".to_owned(),
        size: None,
        base: Some(sha256.clone()),
        snapshot: None,
        file: None,
        thick: false,
        shared: false,
        owner,
    };
    let error = system.create_volume(&new).await.expect_err("not there yet");
    assert_eq!(error.variant(), "ImageNotCached");
    system.pull(&source, &Credentials::default(), &|_, _| ()).await.expect("pulled");
    assert_eq!(system.create_volume(&new).await.expect("made").size, 1 << 20);
    for step in ["in the pool", "in the trash"] {
        let error = system.remove_image(&sha256).await.expect_err("needed");
        assert!(matches!(error, SystemError::ImageInUse { .. }), "{step}: {error:?}");
        system.trash_volume("default", &new.id).await.expect("trashed");
    }
    system.purge_trash("default", Duration::ZERO).await.expect("purged");
    system.remove_image(&sha256).await.expect("nobody needs it any more");
    assert!(system.images().await.expect("list").is_empty());
}

#[tokio::test]
async fn a_volume_that_was_moved_since_its_disk_was_looked_at_is_deleted_or_retained_in_its_new_pool() {
    let (_folder, system) = system();
    for id in ["v-1", "v-2"] {
        let (namespace, name) = ("n".to_owned(), id.to_owned());
        let new = NewVolume {
            encryption: None,
            pool: "default".to_owned(),
            id: id.to_owned(),
            size: Some(1 << 20),
            base: None,
            snapshot: None,
            file: None,
            thick: false,
            shared: false,
            owner: VolumeOwner { namespace, name, uid: None, image: None, source: None },
        };
        system.create_volume(&new).await.expect("made");
        let new = NewMove { id: id.to_owned(), from: "default".to_owned(), to: "slow".to_owned() };
        system.move_volume(&new, &|_, _| ()).await.expect("moved");
    }
    system.trash_volume("default", "v-1").await.expect("trashed");
    system.retain_volume("default", "v-2").await.expect("retained");
    let trashed = system.trash().await.expect("listed");
    let trashed: Vec<_> = trashed.iter().map(|of| (of.volume.id.as_str(), of.volume.pool.as_str())).collect();
    assert_eq!(trashed, [("v-1", "slow")]);
    let left = Volumes::volumes(&system).await.expect("listed");
    let left: Vec<_> = left.iter().map(|of| (of.id.as_str(), of.retained)).collect();
    assert_eq!(left, [("v-2", true)], "it is no file of a Disk that nothing names");
}
