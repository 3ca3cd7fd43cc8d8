//! Other sites that share a repository, and other repositories in its place.

use super::memory::All;
use super::*;

/// A repository with a backup of disk `a`, and the disk before and after a change.
async fn repository() -> (Memory, Repository, TestDisk, TestDisk) {
    let memory = Memory::default();
    let repository = open(&memory).await;
    let (old, new) = (TestDisk::new(4 * MIB4, &[1, 0, 2, 2]), TestDisk::new(4 * MIB4, &[1, 3, 4, 2]));
    back_up(&repository, "one", None, &mut old.source()).await.expect("made");
    (memory, repository, old, new)
}

/// Another site deletes the backup `one`, and the blocks that no backup has.
fn delete_one(objects: &mut All) {
    if !objects.contains_key("disks/a/backups/two") {
        objects
            .retain(|name, _| !name.starts_with("disks/a/blocks/") && name.as_str() != "disks/a/backups/one");
    }
}

#[tokio::test]
async fn a_backup_is_whole_whenever_another_site_deletes_the_blocks_that_it_relies_on() {
    let (start, repository, old, new) = repository().await;
    let mut last = 0;
    for at in 0.. {
        let memory = start.copy();
        let shared = memory.meanwhile(at..at + 1, delete_one);
        let calls = Arc::clone(&shared.calls);
        let shared = repository.in_store(Arc::new(shared));
        back_up(&shared, "two", Some("one"), &mut new.since(&old)).await.expect("made");
        let restored = restore(&repository.in_store(Arc::new(memory)), "two", new.size).await;
        assert_eq!(restored.expect("restored"), new, "deleted before call {at}");
        if calls.load(Ordering::SeqCst) <= at {
            last = at;
            break;
        }
    }
    assert!(last >= 14, "{last}");
}

#[tokio::test]
async fn a_backup_whose_blocks_are_deleted_again_and_again_does_not_exist_and_says_why() {
    let (memory, repository, old, new) = repository().await;
    let shared = repository.in_store(Arc::new(memory.meanwhile(0..usize::MAX, delete_one)));
    let error = back_up(&shared, "two", Some("one"), &mut new.since(&old)).await.expect_err("lost");
    assert!(matches!(error, Error::BlocksDeleted { .. }) && error.is_transient(), "{error}");
    assert!(error.to_string().contains("another site"), "{error}");
    assert_eq!(memory.names(), ["repository.json"]);
}

#[tokio::test]
async fn a_delete_leaves_the_blocks_of_a_backup_that_another_site_completes_meanwhile() {
    let (memory, repository, old, new) = repository().await;
    let two = {
        let made = memory.copy();
        let repository = repository.in_store(Arc::new(made.clone()));
        back_up(&repository, "two", Some("one"), &mut new.since(&old)).await.expect("made");
        made.objects.lock().unwrap().clone()
    };
    let (disk, one) = (disk_id("a"), backup_id("one"));
    let mut refused = 0;
    for at in 0..7 {
        let memory = memory.copy();
        let two = two.clone();
        let complete = move |objects: &mut All| {
            objects.extend(
                two.iter().filter(|(name, _)| !name.ends_with("/one")).map(|(n, b)| (n.clone(), b.clone())),
            );
        };
        let shared = repository.in_store(Arc::new(memory.meanwhile(at..at + 1, complete)));
        if let Err(error) = shared.delete(&disk, &one).await {
            assert!(error.is_transient(), "{error}");
            refused += 1;
        }
        let after = repository.in_store(Arc::new(memory));
        verify(&after, "two").await.expect("it is whole");
    }
    assert!(refused > 0);
}

#[tokio::test]
async fn nothing_is_complete_or_deleted_in_another_repository_that_took_the_place_of_the_first() {
    let (start, repository, old, new) = repository().await;
    let other = Memory::default();
    open(&other).await;
    let file = other.objects.lock().unwrap()["repository.json"].clone();
    let replace = move |objects: &mut All| drop(objects.insert("repository.json".to_owned(), file.clone()));
    for at in 0.. {
        let memory = start.copy();
        let replaced = repository.in_store(Arc::new(memory.meanwhile(at..at + 1, replace.clone())));
        let made = back_up(&replaced, "two", Some("one"), &mut new.since(&old)).await;
        let Err(error) = made else {
            assert!(at >= 10, "{at}");
            break;
        };
        assert!(matches!(error, Error::Replaced { .. }) && !error.is_transient(), "{at}: {error}");
        assert!(!memory.names().contains(&"disks/a/backups/two".to_owned()), "{at}");
    }
    let before = start.names();
    let replaced = repository.in_store(Arc::new(start.meanwhile(0..1, replace)));
    let error = replaced.delete(&disk_id("a"), &backup_id("one")).await.expect_err("it is another one");
    assert!(matches!(error, Error::Replaced { .. }), "{error}");
    assert_eq!(start.names(), before);
}
