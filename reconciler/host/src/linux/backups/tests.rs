//! Backups by the real `qemu-nbd`, confined as on a real host.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use berth_qemu::machine::DiskKey;
use berth_qemu::process::NbdExport;
use jiff::Timestamp;
use rand::Rng as _;
use tempfile::TempDir;

use super::super::LinuxConfig;
use super::super::program::Program;
use super::super::tests::SmallDisk;
use super::*;
use crate::{
    BackupFolderMapping, NewSnapshot, RepositoryPlace, RepositoryProblem, SealedKey, VolumeOwner, Volumes,
};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 24 * MIB;

struct Host {
    folder: TempDir,
    system: LinuxSystem,
}

impl Host {
    fn new() -> Self {
        Self::with(None)
    }

    /// With a folder for backups that is outside its own.
    fn with(nas: Option<&Path>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // As the users of a host's programs need it.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).expect("opened");
        let own = folder.path().join("nas");
        std::fs::create_dir(&own).expect("a folder");
        let nas = nas.map_or(own, Path::to_owned);
        let config = LinuxConfig {
            backup_folders: vec![BackupFolderMapping { name: "nas".into(), path: nas }],
            ..LinuxConfig::new(folder.path().join("state"))
        };
        let system = LinuxSystem::open(config).expect("opened");
        Self { folder, system }
    }

    async fn make(&self, volume: &str) {
        self.system.create_volume(&new(volume, Some(SIZE))).await.expect("made");
    }

    /// Writes this byte all over one MiB of a volume.
    async fn write(&self, volume: &str, byte: u8, at: u64) {
        self.run(volume, &format!("write -P {byte} {at}M 1M")).await;
    }

    /// Writes data that cannot be compressed to the first 3 MiB of a volume.
    async fn write_random(&self, volume: &str) {
        let random = self.folder.path().join("random");
        let mut data = vec![0; 3 << 20];
        rand::rng().fill_bytes(&mut data);
        std::fs::write(&random, data).expect("written");
        self.run(volume, &format!("write -s {} 0 3M", random.display())).await;
    }

    async fn run(&self, volume: &str, command: &str) {
        let path = self.system.volume("default", volume).await.expect("read").expect("there").path;
        let run = Command::new("qemu-io").args(["-f", "qcow2", "-c", command]).arg(path).output();
        assert!(run.expect("qemu-io runs").status.success());
    }

    async fn take(&self, volume: &str, id: &str) {
        let new = NewSnapshot {
            pool: "default".into(),
            id: id.into(),
            volume: volume.into(),
            owner: Some(owner()),
        };
        self.system.begin_snapshots(&[new]).await.expect("begun");
        let taken = Taken { at: Timestamp::UNIX_EPOCH, frozen: true, memory: false };
        self.system.finish_snapshot("default", id, &taken).await.expect("finished");
    }

    async fn back_up(&self, snapshot: &str, parents: &[&str]) -> Result<BackupFacts> {
        let parents =
            parents.iter().map(|id| BackupParent { backup: format!("b-{id}"), snapshot: (*id).to_owned() });
        let new = NewBackup {
            id: id(snapshot),
            pool: "default".into(),
            snapshot: snapshot.into(),
            parents: parents.collect(),
            declaration: Some(r#"{"vm": "web"}"#.to_owned()),
        };
        self.system.back_up(&access("canary"), &new, &|_, _| {}).await
    }

    /// Makes a volume from a backup, and returns its content.
    async fn restore(&self, snapshot: &str, volume: &str) -> Result<Vec<u8>> {
        let (access, id, new) = (access("canary"), id(snapshot), new(volume, None));
        let made = self.system.create_from_backup(&access, &id, &new, &|_, _| {}).await?;
        Ok(content(&made.path))
    }

    fn leftovers(&self) -> Vec<String> {
        let pool = self.folder.path().join("state/pools/default");
        let names = |folder: &str| super::super::files::names(&pool.join(folder)).expect("listed");
        names("readers")
            .into_iter()
            .chain(names("volumes").into_iter().filter(|n| n.starts_with('.')))
            .collect()
    }
}

fn owner() -> VolumeOwner {
    VolumeOwner { namespace: "ns".into(), name: "d".into(), uid: None, image: None, source: None }
}

fn new(volume: &str, size: Option<u64>) -> NewVolume {
    let (base, snapshot, file) = (None, None, None);
    NewVolume {
        encryption: None,
        pool: "default".into(),
        id: volume.into(),
        size,
        base,
        snapshot,
        file,
        thick: false,
        shared: false,
        owner: owner(),
    }
}

fn id(snapshot: &str) -> BackupId {
    BackupId { disk: "v-1".into(), backup: format!("b-{snapshot}") }
}

fn access(password: &str) -> RepositoryAccess {
    RepositoryAccess {
        shown: "BackupRepository r".into(),
        place: RepositoryPlace::Folder { name: "nas".into(), namespace: "ns".into(), repository: "r".into() },
        password: password.into(),
        s3: None,
        id: None,
    }
}

fn content(volume: &Path) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = folder.path().join("raw");
    let run =
        Command::new("qemu-img").args(["convert", "-f", "qcow2", "-O", "raw"]).args([volume, &raw]).output();
    let run = run.expect("qemu-img runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    std::fs::read(&raw).expect("converted")
}

fn disk(parts: &[(u64, u8)]) -> Vec<u8> {
    let mut content = vec![0; SIZE as usize];
    for (at, byte) in parts {
        content[(at * MIB) as usize..((at + 1) * MIB) as usize].fill(*byte);
    }
    content
}

#[tokio::test]
async fn a_backup_has_the_data_of_its_snapshot_and_reads_only_what_has_changed() {
    let host = Host::new();
    host.make("v-1").await;
    host.write("v-1", 1, 0).await;
    host.write("v-1", 2, 20).await;
    host.take("v-1", "s-1").await;
    host.write("v-1", 3, 9).await;
    host.take("v-1", "s-2").await;
    host.write("v-1", 4, 0).await;
    let first = host.back_up("s-1", &[]).await.expect("backed up");
    assert_eq!((first.size, first.parent.as_deref()), (SIZE, None));
    assert_eq!(first.taken, Some(Taken { at: Timestamp::UNIX_EPOCH, frozen: true, memory: false }));
    let second = host.back_up("s-2", &["s-gone", "s-1"]).await.expect("backed up");
    assert_eq!(second.parent.as_deref(), Some("b-s-1"));
    assert!(
        first.read_bytes > second.read_bytes && second.read_bytes <= Some(4 * MIB),
        "{first:?} {second:?}"
    );
    let again = host.back_up("s-2", &[]).await.expect("there");
    assert_eq!((again.parent.as_deref(), again.read_bytes), (Some("b-s-1"), None));
    assert!(host.restore("s-1", "v-2").await.expect("restored") == disk(&[(0, 1), (20, 2)]));
    assert!(host.restore("s-2", "v-3").await.expect("restored") == disk(&[(0, 1), (9, 3), (20, 2)]));
    host.system.delete_backup(&access("canary"), &id("s-1")).await.expect("deleted");
    let lost = host.restore("s-1", "v-4").await;
    assert!(matches!(lost, Err(SystemError::BackupLost { .. })), "{lost:?}");
    assert_eq!(host.system.volume("default", "v-4").await.expect("read"), None);
    assert!(host.restore("s-2", "v-5").await.expect("restored") == disk(&[(0, 1), (9, 3), (20, 2)]));
    assert_eq!(host.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn a_damaged_backup_holds_up_no_later_one() {
    let host = Host::new();
    host.make("v-1").await;
    host.write("v-1", 1, 0).await;
    host.take("v-1", "s-1").await;
    host.back_up("s-1", &[]).await.expect("backed up");
    host.take("v-1", "s-2").await;
    host.back_up("s-2", &["s-1"]).await.expect("backed up");
    let backups = host.folder.path().join("nas/ns/r/disks/v-1/backups");
    std::fs::write(backups.join("b-s-2"), [1; 50]).expect("damaged");
    host.write("v-1", 2, 9).await;
    host.take("v-1", "s-3").await;
    let third = host.back_up("s-3", &["s-2", "s-1"]).await.expect("backed up");
    assert_eq!(third.parent.as_deref(), Some("b-s-1"), "the one before it is whole");
    assert!(host.restore("s-3", "v-2").await.expect("restored") == disk(&[(0, 1), (9, 2)]));
}

#[tokio::test]
async fn a_repository_that_cannot_be_opened_says_why() {
    let host = Host::new();
    host.make("v-1").await;
    host.take("v-1", "s-1").await;
    let facts = host.back_up("s-1", &[]).await.expect("backed up");
    let problem = async |access: &RepositoryAccess| match host.system.backup(access, &id("s-1")).await {
        Err(SystemError::Repository { problem, detail, .. }) => {
            assert!(!detail.contains("canary"), "{detail}");
            problem
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(problem(&access("canary-2")).await, RepositoryProblem::WrongPassword);
    let known = RepositoryAccess { id: Some(facts.repository), ..access("canary") };
    assert!(host.system.backup(&known, &id("s-1")).await.is_ok());
    let other = RepositoryAccess { id: Some("other".into()), ..access("canary") };
    assert_eq!(problem(&other).await, RepositoryProblem::Replaced);
    let of_another = RepositoryAccess { id: Some("other".into()), ..access("canary-2") };
    assert_eq!(problem(&of_another).await, RepositoryProblem::Replaced, "its password is another one too");
    // As an empty mount point.
    std::fs::remove_dir_all(host.folder.path().join("nas/ns")).expect("removed");
    assert_eq!(problem(&known).await, RepositoryProblem::NoRepository);
    assert!(host.system.delete_backup(&access("canary"), &id("s-1")).await.is_ok(), "there is nothing");
    let place =
        RepositoryPlace::Folder { name: "usb".into(), namespace: "ns".into(), repository: "r".into() };
    let elsewhere = host.system.backup(&RepositoryAccess { place, ..access("canary") }, &id("s-1")).await;
    assert!(matches!(elsewhere, Err(SystemError::BackupFolder { .. })), "{elsewhere:?}");
    let gone = host.back_up("s-9", &[]).await;
    assert!(matches!(gone, Err(SystemError::SnapshotLost { .. })), "{gone:?}");
}

#[tokio::test]
async fn a_full_backup_folder_is_called_so_and_has_no_half_backup_and_goes_on_with_room() {
    let Some(disk) = SmallDisk::mount(2 << 20) else { return };
    let host = Host::with(Some(disk.path()));
    host.make("v-1").await;
    host.write_random("v-1").await;
    host.take("v-1", "s-1").await;
    let full = host.back_up("s-1", &[]).await.expect_err("full");
    assert_eq!(full.variant(), "NoSpace", "{}", full.chain());
    let text = full.chain();
    assert!(text.contains(&disk.path().display().to_string()) && text.contains("bytes are free"), "{text}");
    let absent = host.system.backup(&access("canary"), &id("s-1")).await;
    assert!(matches!(absent, Err(SystemError::BackupLost { .. })), "{absent:?}");
    assert_eq!(host.leftovers(), Vec::<String>::new());
    disk.grow(16 << 20);
    host.back_up("s-1", &[]).await.expect("backed up");
    let restored = host.restore("s-1", "v-2").await.expect("restored");
    assert!(restored[..3 << 20] == std::fs::read(host.folder.path().join("random")).expect("read"));
}

#[tokio::test]
async fn a_backup_is_read_back_and_damage_is_named_but_an_empty_mount_point_is_none() {
    let host = Host::new();
    host.make("v-1").await;
    host.write("v-1", 7, 5).await;
    host.take("v-1", "s-1").await;
    let facts = host.back_up("s-1", &[]).await.expect("backed up");
    let known = RepositoryAccess { id: Some(facts.repository), ..access("canary") };
    let wanted = BackupToVerify { id: id("s-1"), base: None, bytes_per_second: 1 << 30 };
    let whole = host.system.verify_backup(&known, &wanted, &|_, _| {}).await.expect("read");
    assert_eq!(whole, VerifiedBackup { read_bytes: 4 * MIB, ..VerifiedBackup::default() });
    let namespace = host.folder.path().join("nas/ns");
    std::fs::remove_dir_all(namespace.join("r/disks/v-1/blocks")).expect("removed");
    let damaged = host.system.verify_backup(&known, &wanted, &|_, _| {}).await.expect("read");
    assert_eq!((damaged.damaged, damaged.read_bytes), (1, 0), "the list of the blocks is missing");
    assert!(damaged.named[0].starts_with("disks/v-1/blocks/"), "{damaged:?}");
    std::fs::remove_dir_all(namespace).expect("removed");
    let unknown = host.system.verify_backup(&known, &wanted, &|_, _| {}).await;
    assert!(matches!(unknown, Err(SystemError::Repository { .. })), "{unknown:?}");
}

#[tokio::test]
async fn a_repository_is_listed_with_its_place_and_password_alone() {
    let host = Host::new();
    host.make("v-1").await;
    host.take("v-1", "s-1").await;
    host.back_up("s-1", &[]).await.expect("backed up");
    let folder = host.folder.path().join("nas/ns/r");
    let reader = RepositoryReader::in_folder(folder.clone(), "canary".to_owned());
    assert!(!format!("{reader:?}").contains("canary"), "{reader:?}");
    let facts = EntryFacts {
        taken_at: Timestamp::UNIX_EPOCH,
        size: SIZE,
        declaration: Some(r#"{"vm":"web"}"#.to_owned()),
    };
    let whole = RepositoryEntry { disk: "v-1".into(), backup: "b-s-1".into(), facts: Ok(facts) };
    assert_eq!(reader.list().await.expect("listed"), [whole]);
    std::fs::write(folder.join("disks/v-1/backups/b-s-1"), [1; 50]).expect("damaged");
    let damaged = reader.list().await.expect("listed");
    assert!(damaged[0].facts.as_ref().is_err_and(|detail| detail.contains("damaged")), "{damaged:?}");
    let wrong = RepositoryReader::in_folder(folder, "wrong".to_owned()).list().await;
    assert!(wrong.is_err_and(|detail| detail.contains("password")));
    let none = RepositoryReader::in_folder(host.folder.path().join("nas"), "canary".to_owned()).list().await;
    assert!(none.is_err_and(|detail| detail.contains("there is no repository")));
}

#[tokio::test]
async fn parts_of_a_snapshot_and_of_its_backup_are_read_while_the_disk_changes() {
    let host = Host::new();
    host.make("v-1").await;
    host.write("v-1", 7, 5).await;
    host.take("v-1", "s-1").await;
    host.back_up("s-1", &[]).await.expect("backed up");
    let of_snapshot = host.system.open_snapshot("default", "s-1").await.expect("opened");
    let of_backup = host.system.open_backup(&access("canary"), &id("s-1")).await.expect("opened");
    assert_eq!(of_backup.declaration().as_deref(), Some(r#"{"vm":"web"}"#));
    assert_eq!(of_snapshot.declaration(), None);
    host.write("v-1", 8, 5).await;
    for mut reader in [of_snapshot, of_backup] {
        assert_eq!(reader.size(), SIZE);
        let mut found = vec![1; 2048];
        reader.read_at(5 * MIB - 1024, &mut found).await.expect("read");
        assert!(found[..1024].iter().all(|byte| *byte == 0) && found[1024..].iter().all(|byte| *byte == 7));
        assert!(reader.read_at(SIZE - 1, &mut found).await.is_err(), "beyond the end");
    }
    let error = host.system.open_snapshot("default", "s-2").await.map(drop).expect_err("not taken");
    assert_eq!(error.variant(), "SnapshotLost");
    let error = host.system.open_backup(&access("canary"), &id("s-2")).await.map(drop).expect_err("not made");
    assert_eq!(error.variant(), "BackupLost");
    assert_eq!(host.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn an_encrypted_snapshot_is_backed_up_and_read_with_its_key_only() {
    let host = Host::new();
    host.make("v-1").await;
    host.write("v-1", 7, 5).await;
    host.take("v-1", "s-1").await;
    host.back_up("s-1", &[]).await.expect("backed up");
    for holder in ["v-e", "s-e"] {
        host.system.unlock("k-1", holder, DiskKey::new([9; 32]));
    }
    let sealed = SealedKey {
        id: "k-1".into(),
        provider: "Secret".into(),
        wrapped_by: "ns/default".into(),
        wrapping_key_id: "w-1".into(),
        generation: 1,
        sealed: "AAAA".into(),
    };
    let encrypted = NewVolume { encryption: Some(Box::new(sealed)), ..new("v-e", None) };
    let made = host.system.create_from_backup(&access("canary"), &id("s-1"), &encrypted, &|_, _| {}).await;
    let file = std::fs::read(made.expect("made").path).expect("read");
    assert!(!file.windows(1024).any(|part| part.iter().all(|byte| *byte == 7)), "its file is not plain");
    host.take("v-e", "s-e").await;
    host.back_up("s-e", &[]).await.expect("backed up");
    let of_snapshot = host.system.open_snapshot("default", "s-e").await.expect("opened");
    let of_backup = host.system.open_backup(&access("canary"), &id("s-e")).await.expect("opened");
    for mut reader in [of_snapshot, of_backup] {
        let mut found = vec![1; 2048];
        reader.read_at(5 * MIB - 1024, &mut found).await.expect("read");
        assert!(found[..1024].iter().all(|byte| *byte == 0) && found[1024..].iter().all(|byte| *byte == 7));
    }
    host.system.lock("k-1", "s-e");
    let error = host.system.open_snapshot("default", "s-e").await.map(drop).expect_err("its key is not held");
    assert_eq!(error.variant(), "KeyMissing");
}

#[tokio::test]
async fn a_program_that_an_ended_agent_has_left_at_its_socket_ends_when_the_next_agent_starts() {
    let host = Host::new();
    let state = host.folder.path().join("state");
    let disk = host.folder.path().join("disk.raw");
    std::fs::write(&disk, [0; 4096]).expect("written");
    let serve = async |folder: &str| {
        let folder = state.join(folder);
        std::fs::create_dir_all(&folder).expect("made");
        let export = NbdExport {
            program: Program { name: "qemu-nbd", advice: "" }.find().expect("qemu-utils is installed"),
            source: format!(
                r#"json:{{"driver": "raw", "file": {{"driver": "file", "filename": {disk:?}}}}}"#
            ),
            inputs: vec![disk.clone()],
            output: None,
            read_only: true,
            socket: folder.join("socket"),
            user: None,
            max_bytes: MIB,
            memory: 2 << 30,
            key: None,
        };
        let mut server = export.serve().await.expect("started");
        while !export.socket.exists() {
            server.check().expect("it runs");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        server
    };
    let mut left = Vec::new();
    for folder in ["pools/default/readers/backup-9-1/nbd", "rbd/.work-9-1/nbd", "rbd/.import-fast"] {
        left.push(serve(folder).await);
    }
    let mut other = serve("elsewhere").await;
    // As after a kill: no destructor has run, and no client has connected.
    let next = LinuxSystem::open(LinuxConfig::new(&state)).expect("opened");
    let begun = std::time::Instant::now();
    for server in &mut left {
        while server.check().is_ok() {
            assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{server:?} is still there");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
    assert!(other.check().is_ok(), "it serves no such work");
    assert_eq!(host.leftovers(), Vec::<String>::new());
    assert_eq!(super::super::files::names(&state.join("rbd")).expect("listed"), [".import-fast"]);
    drop(next);
}
