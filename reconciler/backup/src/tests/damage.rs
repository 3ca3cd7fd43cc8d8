//! Repositories that were changed.

use super::*;

/// A repository with two backups of disk `a`, and one of disk `b` with the data of the first. The disks have two blocks.
async fn repository() -> (Memory, Repository, TestDisk, TestDisk) {
    repository_of(TestDisk::new(2 * MIB4, &[1, 2]), TestDisk::new(2 * MIB4, &[1, 3])).await
}

async fn repository_of(old: TestDisk, new: TestDisk) -> (Memory, Repository, TestDisk, TestDisk) {
    let memory = Memory::default();
    let repository = open(&memory).await;
    back_up(&repository, "one", None, &mut old.source()).await.expect("made");
    back_up(&repository, "two", Some("one"), &mut new.since(&old)).await.expect("made");
    let (disk, backup, facts) = (disk_id("b"), backup_id("one"), facts());
    let other = NewBackup { disk: &disk, backup: &backup, parent: None, time: time(), facts: &facts };
    repository.back_up(other, &mut old.source(), |_| {}).await.expect("made");
    (memory, repository, old, new)
}

/// Replaces an object.
fn set(memory: &Memory, name: &str, body: Option<Vec<u8>>) {
    let mut objects = memory.objects.lock().unwrap();
    match body {
        Some(body) => objects.insert(name.to_owned(), body),
        None => objects.remove(name),
    };
}

fn get(memory: &Memory, name: &str) -> Vec<u8> {
    memory.objects.lock().unwrap()[name].clone()
}

/// Neither reports success nor writes other data.
async fn assert_detected(repository: &Repository, old: &TestDisk, new: &TestDisk, what: &str) {
    let mut errors = Vec::new();
    for (backup, disk) in [("one", old), ("two", new)] {
        let verified = verify(repository, backup).await;
        let restored = restore(repository, backup, disk.size).await;
        assert_eq!(verified.is_ok(), restored.is_ok(), "{what}");
        match restored {
            Ok(restored) => assert_eq!(restored, *disk, "{what}"),
            Err(error) => errors.push(error),
        }
    }
    assert!(!errors.is_empty(), "{what} is not detected");
    for error in errors {
        let is_clear =
            matches!(error, Error::Damaged { .. } | Error::MissingBlock { .. } | Error::NoBackup { .. });
        assert!(is_clear && !error.is_transient(), "{what}: {error}");
    }
}

#[tokio::test]
async fn every_change_of_an_object_is_detected() {
    let small = |seed| TestDisk::new(100_000, &[seed]);
    let (memory, repository, old, new) = repository_of(small(1), small(2)).await;
    for name in memory.names().into_iter().filter(|name| name.starts_with("disks/a/")) {
        let whole = get(&memory, &name);
        let mut changes: Vec<Option<Vec<u8>>> = vec![None, Some(Vec::new()), Some(vec![0; whole.len()])];
        for length in [1, 5, 33, 34, whole.len() / 2, whole.len() - 1] {
            changes.push(Some(whole[..length].to_vec()));
        }
        changes.push(Some([whole.as_slice(), &[0]].concat()));
        // Version, compression, length, nonce, data, tag.
        for at in [0, 1, 2, 5, 6, 17, 18, whole.len() / 2, whole.len() - 16, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            changes.push(Some(changed));
        }
        for (number, change) in changes.into_iter().enumerate() {
            set(&memory, &name, change);
            assert_detected(&repository, &old, &new, &format!("change {number} of {name}")).await;
        }
        set(&memory, &name, Some(whole));
    }
    verify(&repository, "one").await.expect("it is whole again");
}

#[tokio::test]
async fn an_object_in_the_place_of_another_is_detected() {
    let (memory, repository, old, new) = repository().await;
    let names: Vec<_> = memory.names().into_iter().filter(|name| name.starts_with("disks/a/")).collect();
    for place in &names {
        let whole = get(&memory, place);
        for other in names.iter().filter(|other| *other != place) {
            set(&memory, place, Some(get(&memory, other)));
            assert_detected(&repository, &old, &new, &format!("{other} at {place}")).await;
        }
        set(&memory, place, Some(whole));
    }
    // The manifest of another disk whose blocks are the same.
    set(&memory, "disks/a/backups/one", Some(get(&memory, "disks/b/backups/one")));
    assert_detected(&repository, &old, &new, "another disk's manifest").await;
}

#[tokio::test]
async fn changes_of_the_repository_file_are_errors() {
    let (memory, ..) = repository().await;
    let name = "repository.json";
    let whole = get(&memory, name);
    let text = String::from_utf8(whole.clone()).expect("JSON");
    let open = |text: &str| {
        set(&memory, name, Some(text.as_bytes().to_vec()));
        let objects: Arc<dyn Objects> = Arc::new(memory.clone());
        async { Repository::open_in(objects, &password(), ITERATIONS).await }
    };
    open(&text).await.expect("it is whole");
    let newer = open(&text.replace("\"version\": 1", "\"version\": 2")).await.expect_err("newer");
    assert!(
        matches!(newer, Error::Version { version: 2, .. }) && newer.to_string().contains("newer"),
        "{newer}"
    );
    for (from, to) in [("\"iterations\": 10", "\"iterations\": 11"), ("\"id\": \"", "\"id\": \"0")] {
        let error = open(&text.replace(from, to)).await.expect_err(to);
        assert!(matches!(error, Error::Password { .. } | Error::Damaged { .. }), "{error}");
    }
    for wrong in [
        "",
        "{}",
        &text[..text.len() / 2],
        &text.replace("berth-backup", "restic"),
        &text.replace("4194304", "1"),
        &text.replace("\"iterations\": 10", "\"iterations\": 4000000000"),
        &text.replace("\"iterations\": 10", "\"iterations\": 0"),
        &text.replace("SHA256", "MD5"),
        &text.replace("\"version\": 1", "\"version\": \"1\""),
    ] {
        let error = open(wrong).await.expect_err(wrong);
        assert!(matches!(error, Error::Damaged { .. }), "{wrong}: {error}");
    }
    for at in 0..text.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        set(&memory, name, Some(changed.clone()));
        let objects: Arc<dyn Objects> = Arc::new(memory.clone());
        let opened = Repository::open_in(objects, &password(), None).await;
        let is_space = text.as_bytes()[at].is_ascii_whitespace();
        assert!(opened.is_err() || is_space, "{}", String::from_utf8_lossy(&changed));
    }
}

#[tokio::test]
async fn a_backup_stores_what_is_missing_of_its_parent() {
    for damaged in ["disks/a/backups/two", "block", "index"] {
        let (memory, repository, _, new) = repository().await;
        let index = repository.first_index(&disk_id("a"), &backup_id("two")).await.expect("it is stored");
        let is_block = |name: &String| name.starts_with("disks/a/blocks") && !name.contains(&index);
        let is_index = |name: &String| name.starts_with("disks/a/blocks") && name.contains(&index);
        let names: Vec<_> = match damaged {
            "block" => memory.names().into_iter().filter(is_block).collect(),
            "index" => memory.names().into_iter().filter(is_index).collect(),
            other => vec![other.to_owned()],
        };
        for name in names {
            set(&memory, &name, if damaged == "block" { None } else { Some(vec![1; 50]) });
        }
        let mut source = new.since(&new);
        let summary = back_up(&repository, "three", Some("two"), &mut source).await.expect("it is made");
        assert_eq!(summary.read_bytes, new.size, "{damaged}");
        assert_eq!(restore(&repository, "three", new.size).await.expect("restored"), new, "{damaged}");
    }
}

fn notes(memory: &Memory) -> Vec<String> {
    memory.names().into_iter().filter(|name| name.contains("/damaged/")).collect()
}

#[tokio::test]
async fn a_block_that_a_verification_found_damaged_is_stored_anew_by_the_next_backup() {
    let (memory, repository, _, new) = repository().await;
    let is_block = |name: &String| name.starts_with("disks/a/blocks");
    let mut repaired = 0;
    for name in memory.names().into_iter().filter(is_block) {
        let whole = get(&memory, &name);
        let mut damaged = whole.clone();
        damaged[40] ^= 1;
        set(&memory, &name, Some(damaged));
        if read_back(&repository, "two", None).await.expect("it ends").damaged == 0 {
            set(&memory, &name, Some(whole));
            continue;
        }
        assert_eq!(notes(&memory).len(), 1, "{name}");
        // Nothing has changed since the last backup, of which this one has all blocks.
        back_up(&repository, "three", Some("two"), &mut new.since(&new)).await.expect("made");
        assert_eq!(notes(&memory), [""; 0], "{name}");
        for backup in ["two", "three"] {
            verify(&repository, backup).await.expect("it is whole again");
        }
        repository.delete(&disk_id("a"), &backup_id("three")).await.expect("deleted");
        repaired += 1;
    }
    assert_eq!(repaired, 3, "two blocks and an index");
}

#[tokio::test]
async fn a_verification_that_finds_damage_writes_notes_and_changes_nothing_else() {
    let (memory, repository, ..) = repository().await;
    let index = repository.first_index(&disk_id("a"), &backup_id("one")).await.expect("it is stored");
    let is_damaged = |name: &String| name.starts_with("disks/a/blocks") && !name.ends_with(index.as_str());
    for name in memory.names().into_iter().filter(is_damaged) {
        set(&memory, &name, Some(vec![1; 50]));
    }
    let before = memory.copy();
    assert_eq!(read_back(&repository, "one", None).await.expect("it ends").damaged, 2);
    let noted = notes(&memory);
    assert_eq!(noted.len(), 2);
    for name in &noted {
        set(&memory, name, None);
    }
    assert!(*memory.objects.lock().unwrap() == *before.objects.lock().unwrap());
}

#[tokio::test]
async fn damage_that_a_restore_or_another_read_finds_is_noted_too() {
    for (damages_index, is_restore) in [(false, false), (false, true), (true, false), (true, true)] {
        let (memory, repository, old, _) = repository().await;
        let index = repository.first_index(&disk_id("a"), &backup_id("one")).await.expect("it is stored");
        let is_damaged = |name: &String| {
            name.starts_with("disks/a/blocks") && (damages_index || !name.ends_with(index.as_str()))
        };
        let mut reader = repository.open_backup(&disk_id("a"), &backup_id("one")).await.expect("opened");
        for name in memory.names().into_iter().filter(is_damaged) {
            set(&memory, &name, Some(vec![1; 50]));
        }
        let error = match is_restore {
            true => restore(&repository, "one", old.size).await.err(),
            false => reader.read_at(0, &mut [0; 10]).await.err(),
        };
        assert!(matches!(error, Some(Error::Damaged { .. })), "{error:?}");
        assert_eq!(notes(&memory).len(), 1);
        assert_eq!(notes(&memory)[0].ends_with(index.as_str()), damages_index);
    }
}

#[tokio::test]
async fn the_note_of_a_damaged_block_goes_with_the_last_backup_that_has_it() {
    let (memory, repository, ..) = repository().await;
    let index = repository.first_index(&disk_id("a"), &backup_id("one")).await.expect("it is stored");
    let name = memory.names().into_iter().find(|name| name.ends_with(&index)).expect("it is there");
    set(&memory, &name, Some(vec![1; 50]));
    read_back(&repository, "one", None).await.expect("it ends");
    repository
        .delete(&disk_id("a"), &backup_id("two"))
        .await
        .expect_err("the blocks of the other are unknown");
    assert_eq!(notes(&memory), [format!("disks/a/damaged/{index}")]);
    repository.delete(&disk_id("a"), &backup_id("one")).await.expect("deleted");
    assert!(memory.names().iter().all(|name| !name.starts_with("disks/a/")));
}

#[tokio::test]
async fn a_backup_whose_manifest_is_damaged_is_made_again() {
    let (memory, repository, _, new) = repository().await;
    set(&memory, "disks/a/backups/two", Some(vec![1; 50]));
    back_up(&repository, "two", Some("one"), &mut new.source()).await.expect("made");
    assert_eq!(restore(&repository, "two", new.size).await.expect("restored"), new);
}

#[tokio::test]
async fn damage_that_cannot_be_noted_is_reported() {
    let (memory, repository, ..) = repository().await;
    for name in memory.names().into_iter().filter(|name| name.starts_with("disks/a/blocks")) {
        set(&memory, &name, Some(vec![1; 50]));
    }
    // The manifest, the index and repository.json are read.
    let read_only = repository.in_store(Arc::new(memory.with(Some(memory::Fault::Before(3)))));
    let found = read_back(&read_only, "one", None).await.expect("it ends");
    assert_eq!((found.damaged, notes(&memory).len()), (1, 0));
}

#[tokio::test]
async fn a_backup_does_not_rely_on_a_block_of_an_impossible_length() {
    for length in [10, 5 << 20] {
        let (memory, repository, _, new) = repository().await;
        for name in memory.names().into_iter().filter(|name| name.starts_with("disks/a/blocks")) {
            set(&memory, &name, Some(vec![1; length]));
        }
        back_up(&repository, "three", Some("two"), &mut new.since(&new)).await.expect("made");
        assert_eq!(restore(&repository, "three", new.size).await.expect("restored"), new, "{length}");
    }
}

#[tokio::test]
async fn a_verification_names_the_damaged_blocks_and_goes_on() {
    let (old, new) = (TestDisk::new(3 * MIB4, &[1, 2, 3]), TestDisk::new(20 * MIB4, &[1; 20]));
    let (memory, repository, ..) = repository_of(old, new).await;
    let index = repository.first_index(&disk_id("a"), &backup_id("one")).await.expect("it is stored");
    let is_block = |name: &String| name.starts_with("disks/a/blocks") && !name.contains(&index);
    let whole = read_back(&repository, "one", None).await.expect("read");
    assert_eq!((whole.damaged, whole.blocks, whole.read_bytes), (0, 3, 3 * MIB4));
    let equal = read_back(&repository, "two", None).await.expect("read");
    assert_eq!((equal.damaged, equal.blocks), (0, 1), "equal blocks are read once");
    // The index of the other backup is among them, and is not read.
    let names: Vec<_> = memory.names().into_iter().filter(is_block).collect();
    for (at, name) in names.iter().enumerate() {
        set(&memory, name, (at > 0).then(|| vec![1; 50]));
    }
    let found = read_back(&repository, "one", None).await.expect("it goes on");
    assert_eq!((found.damaged, found.blocks, found.read_bytes), (3, 0, 0), "{found:?}");
    assert_eq!(found.named.len(), 3);
    let named = |text: &str| found.named.iter().any(|named| named.contains(text));
    assert!(named("at byte 0 of the disk") && named("at byte 8388608 of the disk"), "{found:?}");
    assert!(found.named.iter().all(|named| names.iter().any(|name| named.starts_with(name.as_str()))));
}

#[tokio::test]
async fn a_verification_leaves_out_the_blocks_of_its_base() {
    let (memory, repository, ..) = repository().await;
    let found = read_back(&repository, "two", Some("one")).await.expect("read");
    assert_eq!((found.has_base, found.damaged, found.blocks), (true, 0, 1), "one block is new");
    let found = read_back(&repository, "two", Some("two")).await.expect("read");
    assert_eq!((found.has_base, found.blocks), (false, 2), "it is no base of itself");
    let found = read_back(&repository, "two", Some("absent")).await.expect("read");
    assert_eq!((found.has_base, found.blocks), (false, 2));
    let index = repository.first_index(&disk_id("a"), &backup_id("one")).await.expect("it is stored");
    let name = memory.names().into_iter().find(|name| name.contains(&index)).expect("it is there");
    set(&memory, &name, None);
    let found = read_back(&repository, "two", Some("one")).await.expect("read");
    assert_eq!((found.has_base, found.blocks), (true, 2), "its blocks are not known");
    set(&memory, "disks/a/backups/one", Some(vec![1; 50]));
    let found = read_back(&repository, "two", Some("one")).await.expect("read");
    assert_eq!((found.has_base, found.damaged, found.blocks), (false, 0, 2));
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_no_damage() {
    let (memory, repository, ..) = repository().await;
    for at in 0..4 {
        let failing = Arc::new(memory.with(Some(memory::Fault::Before(at))));
        let error = read_back(&repository.in_store(failing), "one", None).await.expect_err("it is unknown");
        assert!(error.is_transient(), "{error}");
    }
}

#[tokio::test]
async fn a_repository_that_went_away_is_no_damage() {
    let (memory, repository, ..) = repository().await;
    memory.objects.lock().unwrap().clear();
    let error = read_back(&repository, "one", None).await.expect_err("it is unknown");
    assert!(matches!(error, Error::NoRepository { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_verification_keeps_its_rate_and_changes_nothing() {
    let (memory, repository, ..) = repository().await;
    let begun = tokio::time::Instant::now();
    let options = VerifyOptions { base: None, bytes_per_second: Some(MIB4 / 10) };
    let (disk, backup, before) = (disk_id("a"), backup_id("one"), memory.names());
    let found = repository.verify(&disk, &backup, options, |_| {}).await.expect("read");
    assert_eq!(found.blocks, 2);
    assert!(begun.elapsed() >= std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(memory.names(), before);
}

#[tokio::test]
async fn blocks_stay_while_those_of_another_backup_are_unknown() {
    let (memory, repository, _, new) = repository().await;
    let whole = get(&memory, "disks/a/backups/two");
    set(&memory, "disks/a/backups/two", Some(vec![1; 50]));
    let listed = repository.list().await.expect("listed");
    let damaged: Vec<_> = listed.iter().filter(|listed| listed.facts.is_err()).collect();
    assert_eq!((listed.len(), damaged.len(), damaged[0].backup.as_str()), (3, 1, "two"));
    let blocks = memory.names().iter().filter(|name| name.starts_with("disks/a/blocks")).count();
    let error = repository.delete(&disk_id("a"), &backup_id("one")).await.expect_err("unknown");
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
    assert_eq!(memory.names().iter().filter(|name| name.starts_with("disks/a/blocks")).count(), blocks);
    set(&memory, "disks/a/backups/two", Some(whole));
    assert_eq!(restore(&repository, "two", new.size).await.expect("restored"), new);
    set(&memory, "disks/a/backups/two", Some(vec![1; 50]));
    repository.delete(&disk_id("a"), &backup_id("two")).await.expect("a damaged one can be deleted");
    assert!(memory.names().iter().all(|name| !name.starts_with("disks/a/")));
}
