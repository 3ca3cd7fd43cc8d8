//! Operations that fail at each call of the store, and are repeated.

use super::memory::Fault;
use super::*;

/// Both kinds of faults at each call, until the operation succeeds.
fn faults() -> impl Iterator<Item = Fault> {
    (0..1000).flat_map(|at| [Fault::Before(at), Fault::After(at)])
}

#[tokio::test]
async fn an_interrupted_backup_does_not_exist_and_can_be_repeated() {
    let start = Memory::default();
    let old = TestDisk::new(4 * MIB4, &[1, 0, 2, 2]);
    back_up(&open(&start).await, "one", None, &mut old.source()).await.expect("made");
    let new = TestDisk::new(4 * MIB4, &[1, 3, 4, 2]);
    let mut interrupted = 0;
    for fault in faults() {
        let memory = start.copy();
        let repository = open(&memory).await;
        let failing = open(&memory).await;
        let failing = {
            let objects: Arc<dyn Objects> = Arc::new(memory.with(Some(fault)));
            // The calls of the open are not among those that fail.
            failing.in_store(objects)
        };
        let result = back_up(&failing, "two", Some("one"), &mut new.since(&old)).await;
        if repository.facts(&disk_id("a"), &backup_id("two")).await.expect("read").is_some() {
            verify(&repository, "two").await.expect("what exists is whole");
        } else {
            assert!(result.is_err(), "{fault:?}");
        }
        let is_done = result.is_ok();
        interrupted += usize::from(!is_done);
        let repeated = memory.with(None);
        let uploaded = memory.names();
        let repository = repository.in_store(Arc::new(repeated.clone()));
        back_up(&repository, "two", Some("one"), &mut new.since(&old)).await.expect("it succeeds");
        let puts = repeated.puts.lock().unwrap().clone();
        let again: Vec<_> = puts.iter().filter(|name| uploaded.contains(name)).collect();
        assert_eq!(again, [""; 0], "{fault:?}: nothing is uploaded twice");
        for (backup, disk) in [("one", &old), ("two", &new)] {
            assert_eq!(restore(&repository, backup, disk.size).await.expect("restored"), *disk, "{fault:?}");
        }
        if is_done {
            break;
        }
    }
    assert!(interrupted >= 16, "{interrupted}");
}

#[tokio::test]
async fn an_interrupted_delete_harms_no_other_backup_and_can_be_repeated() {
    let start = Memory::default();
    let (old, new) = (TestDisk::new(4 * MIB4, &[1, 0, 2, 2]), TestDisk::new(4 * MIB4, &[1, 3, 4, 2]));
    let repository = open(&start).await;
    back_up(&repository, "two", None, &mut new.source()).await.expect("made");
    let only_new = start.names();
    back_up(&repository, "one", None, &mut old.source()).await.expect("made");
    assert!(start.names().len() > only_new.len() + 1);
    let mut interrupted = 0;
    for fault in faults() {
        let memory = start.copy();
        let repository = repository.in_store(Arc::new(memory.clone()));
        let failing = repository.in_store(Arc::new(memory.with(Some(fault))));
        let is_done = failing.delete(&disk_id("a"), &backup_id("one")).await.is_ok();
        interrupted += usize::from(!is_done);
        if repository.facts(&disk_id("a"), &backup_id("one")).await.expect("read").is_some() {
            verify(&repository, "one").await.expect("what exists is whole");
        }
        verify(&repository, "two").await.expect("the other one is whole");
        repository.delete(&disk_id("a"), &backup_id("one")).await.expect("it succeeds");
        assert_eq!(memory.names(), only_new, "{fault:?}: nothing is left");
        assert_eq!(restore(&repository, "two", new.size).await.expect("restored"), new);
        if is_done {
            break;
        }
    }
    assert!(interrupted >= 14, "{interrupted}");
}

#[tokio::test]
async fn a_delete_leaves_the_blocks_of_a_backup_that_the_store_lists_and_does_not_have_for_a_moment() {
    let memory = Memory::default();
    let repository = open(&memory).await;
    let (old, new) = (TestDisk::new(4 * MIB4, &[1, 0, 2, 2]), TestDisk::new(4 * MIB4, &[1, 3, 4, 2]));
    back_up(&repository, "one", None, &mut old.source()).await.expect("made");
    back_up(&repository, "two", Some("one"), &mut new.since(&old)).await.expect("made");
    let (disk, one) = (disk_id("a"), backup_id("one"));
    let behind = repository.in_store(Arc::new(memory.behind("disks/a/backups/two")));
    let error = behind.delete(&disk, &one).await.expect_err("its blocks are not known");
    assert!(error.is_transient(), "{error}");
    verify(&repository, "two").await.expect("it is whole");
    // The list may still have the deleted one.
    let behind = repository.in_store(Arc::new(memory.behind("disks/a/backups/one")));
    behind.delete(&disk, &one).await.expect("it is repeated");
    verify(&repository, "two").await.expect("it is whole");
}

#[tokio::test]
async fn a_backup_whose_manifest_is_written_after_its_deletion_is_deleted_again() {
    let memory = Memory::default();
    let repository = open(&memory).await;
    let disk = TestDisk::new(4 * MIB4, &[1, 0, 2, 2]);
    back_up(&repository, "one", None, &mut disk.source()).await.expect("made");
    let (a, one) = (disk_id("a"), backup_id("one"));
    let late = repository.in_store(Arc::new(memory.with_late("disks/a/backups/one")));
    let error = late.delete(&a, &one).await.expect_err("it is there again");
    assert!(error.is_transient(), "{error}");
    verify(&repository, "one").await.expect("what exists is whole");
    late.delete(&a, &one).await.expect("it is repeated");
    assert_eq!(memory.names(), ["repository.json"]);
}

#[tokio::test]
async fn a_delete_removes_what_an_interrupted_backup_left() {
    let memory = Memory::default();
    let repository = open(&memory).await;
    let failing = repository.in_store(Arc::new(memory.with(Some(Fault::Before(8)))));
    let disk = TestDisk::new(4 * MIB4, &[1, 2, 3, 4]);
    back_up(&failing, "one", None, &mut disk.source()).await.expect_err("it is interrupted");
    assert!(memory.names().len() > 1);
    repository.delete(&disk_id("a"), &backup_id("one")).await.expect("it is deleted");
    assert_eq!(memory.names(), ["repository.json"]);
}

#[tokio::test]
async fn an_open_that_fails_at_any_call_can_be_repeated() {
    for fault in faults() {
        let memory = Memory::default();
        let objects: Arc<dyn Objects> = Arc::new(memory.with(Some(fault)));
        let opened = Repository::open_in(objects, &password(), ITERATIONS).await;
        let is_done = opened.is_ok();
        let repository = open(&memory).await;
        assert!(opened.is_err() || opened.is_ok_and(|opened| opened.id() == repository.id()));
        if is_done {
            return;
        }
    }
}

/// A backup relies on blocks that no manifest names yet, and a delete removes those.
#[tokio::test]
async fn a_delete_waits_for_a_backup_of_the_same_disk() {
    let memory = Memory::default();
    let (first, second) = (open(&memory).await, open(&memory).await);
    let disk = TestDisk::new(4 * MIB4, &[1, 2, 3, 4]);
    let (a, one) = (disk_id("a"), backup_id("one"));
    let mut source = disk.source();
    let (made, deleted) = tokio::join!(back_up(&first, "two", None, &mut source), second.delete(&a, &one));
    made.expect("made");
    deleted.expect("deleted");
    verify(&first, "two").await.expect("it is whole");
}
