//! Whole repositories.

mod damage;
mod disks;
mod faults;
mod memory;
mod sites;

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use secrecy::SecretString;
use serde_json::{Map, Value, json};

use crate::block::BLOCK_SIZE;
use crate::objects::{self, Objects};
use crate::{
    BackupId, DiskId, Error, Extent, Location, MAX_FACTS, MAX_SIZE, NewBackup, Progress, Repository, Result,
    Summary, Verification, VerifyOptions,
};
use disks::{TestDisk, TestSink, TestSource};
use memory::Memory;

const MIB4: u64 = BLOCK_SIZE as u64;
/// Few, for tests that open many repositories.
const ITERATIONS: Option<NonZeroU32> = NonZeroU32::new(10);

fn password() -> SecretString {
    "correct horse".into()
}

fn disk_id(id: &str) -> DiskId {
    DiskId::new(id).expect("valid")
}

fn backup_id(id: &str) -> BackupId {
    BackupId::new(id).expect("valid")
}

fn time() -> Timestamp {
    "2026-11-27T04:00:00Z".parse().expect("a time")
}

fn facts() -> Map<String, Value> {
    json!({"vm": "web-1", "ä": [1, 2]}).as_object().expect("an object").clone()
}

async fn open(objects: &Memory) -> Repository {
    let objects: Arc<dyn Objects> = Arc::new(objects.clone());
    Repository::open_in(objects, &password(), ITERATIONS).await.expect("it opens")
}

/// Makes a backup of disk `a`.
async fn back_up(
    repository: &Repository,
    backup: &str,
    parent: Option<&str>,
    source: &mut TestSource,
) -> Result<Summary> {
    let (disk, backup, parent) = (disk_id("a"), backup_id(backup), parent.map(backup_id));
    let (facts, time) = (facts(), time());
    let new = NewBackup { disk: &disk, backup: &backup, parent: parent.as_ref(), time, facts: &facts };
    repository.back_up(new, source, |_| {}).await
}

/// Restores a backup of disk `a`.
async fn restore(repository: &Repository, backup: &str, size: u64) -> Result<TestDisk> {
    let mut sink = TestSink::new(size);
    repository.restore(&disk_id("a"), &backup_id(backup), &mut sink, |_| {}).await?;
    assert!(sink.flushed);
    Ok(sink.disk)
}

/// Reads a backup of disk `a` back. `base`: one whose blocks are left out.
async fn read_back(repository: &Repository, backup: &str, base: Option<&str>) -> Result<Verification> {
    let base = base.map(backup_id);
    let options = VerifyOptions { base: base.as_ref(), bytes_per_second: None };
    repository.verify(&disk_id("a"), &backup_id(backup), options, |_| {}).await
}

/// Damage is an error.
async fn verify(repository: &Repository, backup: &str) -> Result<()> {
    let found = read_back(repository, backup, None).await?;
    assert_eq!(found.damaged == 0, found.named.is_empty(), "{found:?}");
    match found.named.first() {
        None => Ok(()),
        Some(place) => Err(Error::Damaged { place: place.clone(), detail: "it was read back".to_owned() }),
    }
}

/// Backs up, restores, verifies, lists and deletes two backups.
pub(crate) async fn round_trip(objects: Arc<dyn Objects>) {
    let open = async || Repository::open_in(Arc::clone(&objects), &password(), ITERATIONS).await;
    let (first, second) = tokio::join!(open(), open());
    let (first, second) = (first.expect("it opens"), second.expect("it opens"));
    assert_eq!(first.id(), second.id(), "both open the same one");

    let old = TestDisk::new(5 * MIB4 + 1000, &[1, 0, 2, 2, 3, 4]);
    let summary = back_up(&first, "one", None, &mut old.source()).await.expect("it is made");
    assert_eq!((summary.size, summary.read_bytes, summary.blocks), (old.size, old.size, 5));
    assert!(summary.stored_bytes > MIB4 / 4 && summary.stored_bytes < 2 * MIB4, "{summary:?}");

    let new = TestDisk::new(5 * MIB4 + 1000, &[1, 5, 2, 0, 3, 4]);
    let mut source = new.since(&old);
    let summary = back_up(&second, "two", Some("one"), &mut source).await.expect("it is made");
    assert_eq!((summary.read_bytes, summary.blocks), (MIB4, 5));
    assert_eq!(source.reads, [(MIB4, BLOCK_SIZE)]);

    for (backup, disk) in [("one", &old), ("two", &new)] {
        assert_eq!(restore(&first, backup, disk.size).await.expect("it is restored"), *disk);
        verify(&second, backup).await.expect("it is whole");
    }
    let listed = first.list().await.expect("they are listed");
    let ids: Vec<_> = listed.iter().map(|listed| (listed.disk.as_str(), listed.backup.as_str())).collect();
    assert_eq!(ids, [("a", "one"), ("a", "two")]);
    let found = listed[1].facts.as_ref().expect("not damaged");
    assert_eq!((found.time, &found.facts, found.summary), (time(), &facts(), summary));

    first.delete(&disk_id("a"), &backup_id("one")).await.expect("it is deleted");
    assert_eq!(first.facts(&disk_id("a"), &backup_id("one")).await.expect("read"), None);
    assert_eq!(restore(&first, "two", new.size).await.expect("it is restored"), new);
    first.delete(&disk_id("a"), &backup_id("two")).await.expect("it is deleted");
    assert!(first.list().await.expect("listed").is_empty());
    let mut names = Vec::new();
    let mut visit = |name: &str, _| {
        names.push(name.to_owned());
        Ok(())
    };
    objects.list("disks", &mut visit).await.expect("listed");
    assert_eq!(names, [""; 0]);
}

#[tokio::test]
async fn backups_in_memory_are_restored() {
    let memory = Memory::default();
    round_trip(Arc::new(memory.clone())).await;
    assert_eq!(memory.names(), ["repository.json"]);
    assert!(memory.most_in_flight.load(Ordering::SeqCst) <= 4);
}

#[tokio::test]
async fn backups_in_a_folder_are_restored() {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let location = Location::Folder(temporary.path().join("backups"));
    round_trip(objects::at(&location).expect("valid")).await;
}

/// With the real number of iterations.
#[tokio::test]
async fn a_repository_is_made_once_and_only_if_that_is_wanted() {
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let location = Location::Folder(temporary.path().to_owned());
    let error = Repository::open(&location, &password(), false).await.expect_err("there is none").to_string();
    assert!(error.contains("not mounted") && error.contains(temporary.path().to_str().unwrap()), "{error}");
    let made = Repository::open(&location, &password(), true).await.expect("it is made");
    let file = std::fs::read(temporary.path().join("repository.json")).expect("it is there");
    let opened = Repository::open(&location, &password(), true).await.expect("it is opened");
    assert_eq!(made.id(), opened.id());
    assert_eq!(std::fs::read(temporary.path().join("repository.json")).expect("it is there"), file);
    let json: Value = serde_json::from_slice(&file).expect("JSON");
    assert_eq!((&json["version"], &json["kdf"]["iterations"]), (&json!(1), &json!(600_000)));
    let error = Repository::open(&location, &"wrong".into(), true).await.expect_err("the password is wrong");
    assert!(matches!(error, Error::Password { .. }), "{error}");
    let error = Repository::open(&location, &"".into(), true).await.expect_err("there is no password");
    assert!(matches!(error, Error::NoPassword), "{error}");
}

#[tokio::test]
async fn a_place_with_other_objects_does_not_become_a_repository() {
    let memory = Memory::default();
    memory.objects.lock().unwrap().insert("disks/a/backups/b".to_owned(), vec![1]);
    let objects: Arc<dyn Objects> = Arc::new(memory);
    let error = Repository::open_in(objects, &password(), ITERATIONS).await.expect_err("it is not empty");
    assert!(matches!(&error, Error::NotEmpty { found, .. } if found == "disks/a/backups/b"), "{error}");
}

#[tokio::test]
async fn zero_and_unchanged_extents_are_not_read() {
    let repository = open(&Memory::default()).await;
    let disk = TestDisk::new(3 * MIB4, &[1, 2, 3]);
    back_up(&repository, "one", None, &mut disk.source()).await.expect("made");
    let extent = |length, is_unchanged, is_zero| Extent { length, is_unchanged, is_zero };
    // In the middle block, a part is unchanged and a part is zeros: the rest of it is read.
    let mut source = disk.source();
    source.extents = vec![
        extent(MIB4 + 4096, true, false),
        extent(1024, true, true),
        extent(1024, false, true),
        extent(MIB4 - 6144, false, false),
        extent(MIB4, false, true),
    ];
    let summary = back_up(&repository, "two", Some("one"), &mut source).await.expect("made");
    let rest = BLOCK_SIZE - 6144;
    assert_eq!(source.reads, [(MIB4, 4096), (MIB4 + 6144, rest)]);
    assert_eq!((summary.read_bytes, summary.blocks), (4096 + rest as u64, 2));
    let restored = restore(&repository, "two", disk.size).await.expect("restored");
    assert_ne!(restored, disk, "extents are believed");
    // Without the parent, everything but zeros is read.
    source.reads.clear();
    let summary = back_up(&repository, "three", Some("absent"), &mut source).await.expect("made");
    assert_eq!(summary.read_bytes, MIB4 + 4096 + rest as u64);
    assert_eq!(restore(&repository, "three", disk.size).await.expect("restored"), restored);
}

#[tokio::test]
async fn a_backup_of_an_unchanged_disk_reads_no_data_and_makes_few_calls_whatever_its_size() {
    let mut calls = Vec::new();
    for blocks in [1, 12] {
        let memory = Memory::default();
        let repository = open(&memory).await;
        let disk = TestDisk::new(blocks * MIB4, &(1..=blocks).collect::<Vec<_>>());
        back_up(&repository, "one", None, &mut disk.source()).await.expect("made");
        let (before, mut source) = (memory.calls.load(Ordering::SeqCst), disk.since(&disk));
        back_up(&repository, "two", Some("one"), &mut source).await.expect("made");
        assert!(source.reads.is_empty(), "{:?}", source.reads);
        calls.push(memory.calls.load(Ordering::SeqCst) - before);
    }
    assert!(calls[0] == calls[1] && calls[0] <= 12, "{calls:?}");
}

#[tokio::test]
async fn a_backup_that_is_there_stays_as_it_is() {
    let memory = Memory::default();
    let repository = open(&memory).await;
    let old = TestDisk::new(MIB4, &[1]);
    let summary = back_up(&repository, "one", None, &mut old.source()).await.expect("made");
    let mut other = TestDisk::new(MIB4, &[2]).source();
    assert_eq!(back_up(&repository, "one", None, &mut other).await.expect("it is there"), summary);
    assert_eq!((other.reads.len(), restore(&repository, "one", MIB4).await.expect("restored")), (0, old));
}

#[tokio::test]
async fn a_disk_may_have_another_size_than_its_parent() {
    let repository = open(&Memory::default()).await;
    let small = TestDisk::new(MIB4 + 512, &[1, 2]);
    back_up(&repository, "small", None, &mut small.source()).await.expect("made");
    let mut large = TestDisk::new(3 * MIB4, &[1, 0, 3]);
    large.set(1, 7);
    for (backup, parent, disk) in [("large", "small", &large), ("small-again", "large", &small)] {
        // The guest wrote nothing, as far as the extents say.
        let mut source = disk.source();
        source.extents[0].is_unchanged = true;
        back_up(&repository, backup, Some(parent), &mut source).await.expect("made");
        assert_eq!(restore(&repository, backup, disk.size).await.expect("restored"), *disk, "{backup}");
        assert!(source.reads.iter().all(|(offset, _)| *offset > 0), "the first block has the same length");
    }
}

#[tokio::test]
async fn a_large_disk_has_several_indexes_and_unchanged_ones_are_shared() {
    let memory = Memory::default();
    let repository = open(&memory).await;
    let mut disk = TestDisk::new(200 << 30, &[]);
    disk.set(0, 1);
    disk.set(20_000, 2);
    let mut source = disk.since(&disk);
    back_up(&repository, "one", None, &mut source).await.expect("made");
    let mut new = disk.clone();
    new.set(51_199, 3);
    let progress = Mutex::new(Vec::new());
    let (id, backup, parent, facts) = (disk_id("a"), backup_id("two"), backup_id("one"), facts());
    let new_backup =
        NewBackup { disk: &id, backup: &backup, parent: Some(&parent), time: time(), facts: &facts };
    let mut source = new.since(&disk);
    let watch = |at: Progress| progress.lock().unwrap().push(at);
    let summary = repository.back_up(new_backup, &mut source, watch).await.expect("made");
    assert_eq!((summary.blocks, source.reads.len()), (3, 1));
    // Two blocks and two indexes of the first; one block and one index of the second.
    assert_eq!(memory.names().iter().filter(|name| name.contains("/blocks/")).count(), 6);
    assert_eq!(restore(&repository, "one", disk.size).await.expect("restored"), disk);
    assert_eq!(restore(&repository, "two", disk.size).await.expect("restored"), new);
    let progress = progress.into_inner().unwrap();
    assert!(progress.is_sorted_by_key(|at| at.done) && progress.iter().all(|at| at.total == disk.size));
    assert_eq!(progress.last().map(|at| at.done), Some(disk.size));
}

#[tokio::test]
async fn an_empty_disk_has_a_backup() {
    let repository = open(&Memory::default()).await;
    let disk = TestDisk::new(0, &[]);
    let summary = back_up(&repository, "one", None, &mut disk.source()).await.expect("made");
    assert_eq!(summary, Summary { size: 0, read_bytes: 0, stored_bytes: 0, blocks: 0 });
    assert_eq!(restore(&repository, "one", 0).await.expect("restored"), disk);
}

#[tokio::test]
async fn what_does_not_fit_is_refused() {
    let repository = open(&Memory::default()).await;
    let mut source = TestDisk::new(MIB4, &[1]).source();
    source.disk.size = MAX_SIZE + 1;
    let error = back_up(&repository, "one", None, &mut source).await.expect_err("too large");
    assert!(matches!(error, Error::DiskTooLarge { .. }), "{error}");
    source.disk.size = MIB4 + 1;
    let error = back_up(&repository, "one", None, &mut source).await.expect_err("extents");
    assert!(matches!(error, Error::Extents { offset: 0, covered: MIB4, .. }), "{error}");
    source.disk.size = MIB4;
    source.fails_at = Some(5);
    let error = back_up(&repository, "one", None, &mut source).await.expect_err("it cannot be read");
    assert!(matches!(error, Error::Source { offset: 0, .. }) && error.is_transient(), "{error}");

    let large = [("a".to_owned(), json!("x".repeat(MAX_FACTS)))].into_iter().collect();
    let (disk, backup) = (disk_id("a"), backup_id("one"));
    let new = NewBackup { disk: &disk, backup: &backup, parent: None, time: time(), facts: &large };
    let error = repository.back_up(new, &mut source, |_| {}).await.expect_err("facts");
    assert!(matches!(error, Error::FactsTooLarge { .. }), "{error}");
    assert_eq!(repository.facts(&disk, &backup).await.expect("read"), None);

    source.fails_at = None;
    back_up(&repository, "one", None, &mut source).await.expect("made");
    let error = restore(&repository, "one", MIB4 - 1).await.expect_err("too small");
    assert!(matches!(error, Error::DiskTooSmall { needed: MIB4, .. }), "{error}");
    let mut sink = TestSink { fails_at: Some(7), ..TestSink::new(MIB4) };
    let error =
        repository.restore(&disk, &backup, &mut sink, |_| {}).await.expect_err("it cannot be written");
    assert!(matches!(error, Error::Sink { offset: 0, .. }) && !sink.flushed, "{error}");
    let error = restore(&repository, "two", MIB4).await.expect_err("there is none");
    assert!(matches!(error, Error::NoBackup { .. }), "{error}");
    let found = read_back(&repository, "two", None).await.expect("it ends");
    assert_eq!((found.damaged, found.named), (1, vec!["disks/a/backups/two: it is missing".to_owned()]));
}

/// Compiles only if tasks can use a repository.
#[test]
fn the_futures_can_be_sent_between_threads() {
    fn assert_send<T: Send>(_: impl FnOnce(Repository, TestSource, TestSink, DiskId, BackupId) -> T) {}
    assert_send(
        async |repository: Repository,
               mut source: TestSource,
               mut sink: TestSink,
               disk: DiskId,
               backup: BackupId| {
            let facts = Map::new();
            let new = NewBackup {
                disk: &disk,
                backup: &backup,
                parent: Some(&backup),
                time: time(),
                facts: &facts,
            };
            repository.back_up(new, &mut source, |_| {}).await?;
            repository.restore(&disk, &backup, &mut sink, |_| {}).await?;
            repository.verify(&disk, &backup, VerifyOptions::default(), |_| {}).await?;
            repository.facts(&disk, &backup).await?;
            repository.delete(&disk, &backup).await?;
            repository.list().await
        },
    );
    let location = Location::Folder("/backups".into());
    assert_send(move |_, _, _, _, _| async move { Repository::open(&location, &password(), false).await });
}

#[tokio::test]
async fn parts_of_a_backup_are_read_at_any_place_with_the_blocks_that_they_need_only() {
    let objects = Memory::default();
    let repository = open(&objects).await;
    let disk = TestDisk::new(5 * MIB4 + 1000, &[1, 0, 2, 2, 3, 4]);
    back_up(&repository, "one", None, &mut disk.source()).await.expect("it is made");
    let whole = whole(&disk).await;
    let mut reader = repository.open_backup(&disk_id("a"), &backup_id("one")).await.expect("it is opened");
    assert_eq!((reader.size(), reader.facts()), (disk.size, &facts()));
    let before = objects.calls.load(Ordering::SeqCst);
    for offset in [5, 2000, 0] {
        reader.read_at(offset, &mut [0; 100]).await.expect("read");
    }
    assert_eq!(objects.calls.load(Ordering::SeqCst) - before, 2, "the index and one block");
    let end = disk.size as usize;
    for (offset, length) in [
        (0, 1),
        (BLOCK_SIZE - 3, 6),
        (BLOCK_SIZE, BLOCK_SIZE),
        (2 * BLOCK_SIZE - 1, 2 * BLOCK_SIZE + 2),
        (end - 1001, 1001),
        (end, 0),
        (7, 100),
    ] {
        let mut found = vec![9; length];
        reader.read_at(offset as u64, &mut found).await.expect("read");
        assert!(found == whole[offset..offset + length], "{offset} {length}");
    }
    for (offset, length) in [(disk.size, 1), (disk.size - 1, 2), (u64::MAX, 1)] {
        let error = reader.read_at(offset, &mut vec![0; length]).await.expect_err("not there");
        assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    }
    let error = repository.open_backup(&disk_id("a"), &backup_id("two")).await.expect_err("none");
    assert!(matches!(error, Error::NoBackup { .. }), "{error}");
}

/// Returns all data of a disk.
async fn whole(disk: &TestDisk) -> Vec<u8> {
    use crate::Source as _;
    let (mut data, mut source) = (vec![0; disk.size as usize], disk.source());
    for (at, block) in data.chunks_mut(BLOCK_SIZE).enumerate() {
        source.read_at(at as u64 * MIB4, block).await.expect("read");
    }
    data
}
