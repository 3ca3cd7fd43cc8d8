//! Backup and restore: during writes, and aborted at every step.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use super::sealing::{files_with, store_text};
use super::*;
use crate::backup::{CredentialFiles, backup_reaching};
use crate::restore::restore_reaching;

/// Set for the process that aborts: the step at which it aborts, and its directory.
const STEP: &str = "APISERVER_TEST_END_AT";
const WHERE: &str = "APISERVER_TEST_END_IN";

const FILES: CredentialFiles = CredentialFiles { kept: &["ca.key"], derived: &["server.crt"] };

fn backup(directory: &Path, target: &Path, with_keys: bool) -> Result<Backup, BackupError> {
    crate::backup(directory, target, with_keys.then_some(&FILES))
}

fn restore(file: &Path, directory: &Path, options: &RestoreOptions) -> Result<Restored, RestoreError> {
    crate::restore(file, directory, options, &FILES)
}

fn names(store: &Store, plural: &str) -> Vec<String> {
    store.state().list_all(plural).map(|entry| entry.key.name.to_string()).collect()
}

fn options(replace: bool) -> RestoreOptions {
    RestoreOptions { replace, key: None }
}

#[test]
fn a_backup_taken_under_writes_is_one_revision_of_everything() {
    let (directory, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = on_disk(directory.path(), WriterMode::Thread).unwrap();
    let boats = resource("toys.example/boats");
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (store, boats, stop) = (Arc::clone(&store), Arc::clone(&boats), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut written = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let key = Key::new(&boats, "", &format!("w{writer}-{written:06}"));
                    block_on(store.submit(put(&key, Expect::Absent, written))).unwrap();
                    written += 1;
                }
                written
            })
        })
        .collect();
    let mut made = Vec::new();
    for at in 0..5 {
        let before = store.state().revision;
        let one = backup(directory.path(), &target.path().join(format!("b{at}.db")), false).unwrap();
        assert!(one.revision >= before, "what was acknowledged before it began is in it");
        assert_eq!(one.rows, one.revision, "no revision is missing");
        made.push(one);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let written: u32 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
    assert!(u64::from(written) > made[0].revision, "it was written to meanwhile");
    drop(store);
    for one in made {
        let into = tempfile::tempdir().unwrap();
        std::fs::copy(directory.path().join("secrets.key"), into.path().join("secrets.key")).unwrap();
        restore(&one.file, into.path(), &options(false)).unwrap();
        let restored = on_disk(into.path(), WriterMode::Inline).unwrap();
        assert_eq!(restored.state().count(&boats) as u64, one.revision);
        let listed = names(&restored, &boats);
        for writer in 0..4 {
            let of_one: Vec<_> = listed.iter().filter(|n| n.starts_with(&format!("w{writer}-"))).collect();
            let last = of_one.last().map(|name| name[3..].parse::<usize>().unwrap() + 1);
            assert_eq!(last.unwrap_or(0), of_one.len(), "a writer's first writes, without a gap");
        }
    }
}

#[test]
fn a_target_that_hangs_holds_no_part_of_the_log() {
    let (directory, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let mut steps = Vec::new();
    let mut checkpoint = |step: &str| {
        store_text(&store, "/configmaps", step, "x", Expect::Absent);
        let db = rusqlite::Connection::open(directory.path().join(DATABASE)).unwrap();
        db.busy_timeout(std::time::Duration::ZERO).unwrap();
        let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
        let is_busy: i64 = db.query_row(sql, [], |row| row.get(0)).unwrap();
        assert_eq!(is_busy, 0, "{step}");
        steps.push(step.to_owned());
    };
    let made = backup_reaching(directory.path(), target.path(), None, &mut checkpoint).unwrap();
    assert_eq!(steps, ["made", "copied", "described", "verified", "synced"]);
    assert_eq!(made.revision, 1, "what was written before it was copied is in it");
    assert!(made.file.to_string_lossy().ends_with("-r1.db"), "{}", made.file.display());
}

#[test]
fn a_backup_holds_no_secret_and_no_key_unless_that_is_wished() {
    let (directory, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    store_text(&store, "/secrets", "s", "canary-4711", Expect::Absent);
    let key = std::fs::read_to_string(directory.path().join("secrets.key")).unwrap().trim().to_owned();
    let without = backup(directory.path(), target.path(), false).unwrap();
    assert_eq!(files_with(target.path(), "canary-4711"), Vec::<String>::new());
    assert_eq!(files_with(target.path(), &key), Vec::<String>::new());
    let with = backup(directory.path(), &target.path().join("with.db"), true).unwrap();
    assert_eq!(files_with(target.path(), "canary-4711"), Vec::<String>::new());
    assert_eq!(files_with(target.path(), &key), ["with.db"]);
    drop(store);
    let into = tempfile::tempdir().unwrap();
    let refused = restore(&without.file, into.path(), &options(false));
    assert!(matches!(refused, Err(RestoreError::NoKey { .. })), "{refused:?}");
    let given = RestoreOptions { replace: false, key: Some(directory.path().join("secrets.key")) };
    restore(&without.file, into.path(), &given).unwrap();
    assert_eq!(on_disk(into.path(), WriterMode::Inline).unwrap().state().count("/secrets"), 1);
    let into = tempfile::tempdir().unwrap();
    assert!(restore(&with.file, into.path(), &options(false)).unwrap().with_keys);
    assert_eq!(on_disk(into.path(), WriterMode::Inline).unwrap().state().count("/secrets"), 1);
    assert_eq!(files_with(into.path(), &key), ["secrets.key"], "the key does not stay in the database");
}

/// Returns a backup after these statements.
fn changed(backup: &[u8], sql: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.db");
    std::fs::write(&path, backup).unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn a_backup_from_before_a_rotation_is_restored_with_the_key_that_was_kept() {
    let (directory, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    store_text(&store, "/secrets", "s", "canary", Expect::Absent);
    let made = backup(directory.path(), target.path(), false).unwrap();
    drop(store);
    let key = directory.path().join("secrets.key");
    let first = std::fs::read_to_string(&key).unwrap();
    rotate_key(directory.path()).unwrap();
    let second = std::fs::read_to_string(&key).unwrap();
    restore(&made.file, directory.path(), &options(true)).unwrap();
    assert_eq!(on_disk(directory.path(), WriterMode::Inline).unwrap().state().count("/secrets"), 1);
    assert_eq!(std::fs::read_to_string(&key).unwrap(), first);
    let kept = files_with(directory.path(), second.trim());
    assert_eq!(kept.len(), 1, "the replaced database needs it: {kept:?}");
    // One that cannot be used as it is may be the only copy.
    std::fs::write(&key, &second).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    for file in kept {
        std::fs::remove_file(directory.path().join(file)).unwrap();
    }
    restore(&made.file, directory.path(), &options(true)).unwrap();
    assert_eq!(files_with(directory.path(), second.trim()).len(), 1);
}

#[test]
fn a_backup_with_keys_has_those_that_it_needs() {
    let (directory, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    store_text(&store, "/secrets", "s", "canary", Expect::Absent);
    drop(store);
    // As while the key is rotated.
    std::fs::write(directory.path().join("secrets.key"), format!("{}\n", "5a".repeat(32))).unwrap();
    let refused = backup(directory.path(), target.path(), true);
    assert!(matches!(refused, Err(BackupError::Unsound { .. })), "{refused:?}");
    assert_eq!(backups_in(target.path()).unwrap().len(), 0);
    backup(directory.path(), target.path(), false).unwrap();
    std::fs::write(directory.path().join("restore.unfinished"), "").unwrap();
    let refused = backup(directory.path(), target.path(), false);
    let half = matches!(refused, Err(BackupError::Database(OpenError::HalfRestored { .. })));
    assert!(half, "its keys may be of another database: {refused:?}");
    assert!(matches!(rotate_key(directory.path()), Err(OpenError::HalfRestored { .. })));
}

#[test]
fn a_restore_that_is_repeated_leaves_no_certificate_of_another_authority() {
    let (directory, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(on_disk(directory.path(), WriterMode::Inline).unwrap());
    let [key, certificate] = ["ca.key", "server.crt"].map(|name| directory.path().join(name));
    std::fs::write(&key, "restored").unwrap();
    let file = backup(directory.path(), &target.path().join("with.db"), true).unwrap().file;
    std::fs::write(&key, "other").unwrap();
    // It cannot be removed yet.
    std::fs::create_dir(&certificate).unwrap();
    assert!(restore(&file, directory.path(), &options(true)).is_err());
    std::fs::remove_dir(&certificate).unwrap();
    std::fs::write(&certificate, "of the other").unwrap();
    restore(&file, directory.path(), &options(true)).unwrap();
    assert_eq!(std::fs::read_to_string(&key).unwrap(), "restored");
    assert!(!certificate.exists());
    assert_eq!(files_with(directory.path(), "other").len(), 1, "what was replaced is kept");
}

#[test]
fn a_restore_refuses_what_it_cannot_trust_and_changes_nothing() {
    let (directory, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    for at in 0..100 {
        store_text(&store, "/configmaps", &format!("m{at}"), &"x".repeat(500), Expect::Absent);
    }
    let sound = backup(directory.path(), &target.path().join("sound.db"), false).unwrap().file;
    assert!(matches!(backup(directory.path(), &sound, false), Err(BackupError::Exists(_))));
    assert!(matches!(
        restore(&sound, directory.path(), &options(true)),
        Err(RestoreError::Directory(OpenError::Locked { .. }))
    ));
    drop(store);
    assert!(matches!(restore(&sound, directory.path(), &options(false)), Err(RestoreError::Exists(_))));
    let bytes = std::fs::read(&sound).unwrap();
    let before = std::fs::read(directory.path().join(DATABASE)).unwrap();
    let refused = |content: &[u8]| {
        let bad = target.path().join("bad.db");
        std::fs::write(&bad, content).unwrap();
        let error = restore(&bad, directory.path(), &options(true)).expect_err("it is refused");
        assert_eq!(std::fs::read(directory.path().join(DATABASE)).unwrap(), before);
        error
    };
    let mut flipped = bytes.clone();
    // All occurrences: some are in unused space of the file.
    let values =
        bytes.windows(9).enumerate().filter(|(_, text)| *text == b"\"value\":\"").map(|(at, _)| at + 9);
    values.for_each(|at| flipped[at] ^= 1);
    assert!(matches!(refused(&flipped), RestoreError::File(OpenError::Damaged { .. })));
    assert!(matches!(refused(&bytes[..bytes.len() / 2]), RestoreError::File(OpenError::Damaged { .. })));
    assert!(matches!(refused(&[9; 5000]), RestoreError::File(OpenError::Damaged { .. })));
    let mut newer = bytes.clone();
    newer[60..64].copy_from_slice(&99_u32.to_be_bytes());
    assert!(matches!(refused(&newer), RestoreError::File(OpenError::Format { found: 99, .. })));
    for device in [Path::new("/dev/zero"), target.path()] {
        let refused = restore(device, directory.path(), &options(true));
        assert!(matches!(refused, Err(RestoreError::NotABackup(_))), "{refused:?}");
    }
    let missing = restore(&target.path().join("none.db"), directory.path(), &options(true));
    assert!(matches!(missing, Err(RestoreError::File(_))), "{missing:?}");
    let highest = i64::MAX;
    let last = refused(&changed(
        &bytes,
        &format!(
            "INSERT OR REPLACE INTO state VALUES ('floor', {highest}); \
             UPDATE backup SET value = {highest} WHERE name = 'revision'"
        ),
    ));
    assert!(
        matches!(last, RestoreError::File(OpenError::Damaged { .. })),
        "no revision would be left: {last}"
    );
    for sql in [
        "CREATE TRIGGER forget AFTER INSERT ON log BEGIN DELETE FROM log; END",
        "CREATE VIEW everything AS SELECT * FROM log",
    ] {
        assert!(matches!(refused(&changed(&bytes, sql)), RestoreError::NotABackup(_)), "{sql}");
    }
    let huge = changed(&bytes, "INSERT INTO credentials VALUES ('ca.key', zeroblob(5000000))");
    assert!(matches!(refused(&huge), RestoreError::File(OpenError::Damaged { .. })));
    let other = target.path().join("other.db");
    rusqlite::Connection::open(&other).unwrap().execute_batch("CREATE TABLE other (x)").unwrap();
    let other = restore(&other, directory.path(), &options(true));
    assert!(matches!(other, Err(RestoreError::File(OpenError::Foreign { .. }))), "{other:?}");
}

#[test]
fn a_backup_that_changes_while_it_is_restored_replaces_nothing() {
    let (directory, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    for at in 0..100 {
        store_text(&store, "/configmaps", &format!("m{at}"), &"x".repeat(500), Expect::Absent);
    }
    drop(store);
    let file = backup(directory.path(), &target.path().join("sound.db"), false).unwrap().file;
    let length = std::fs::metadata(&file).unwrap().len();
    let mut truncate = |at: &str| {
        if at == "checked" {
            File::options().write(true).open(&file).unwrap().set_len(length / 2).unwrap();
        }
    };
    let refused = restore_reaching(&file, directory.path(), &options(true), &FILES, &mut truncate);
    assert!(matches!(refused, Err(RestoreError::File(OpenError::Damaged { .. }))), "{refused:?}");
    assert!(!directory.path().join("berth.db.restoring").exists(), "it takes no room");
    assert_eq!(on_disk(directory.path(), WriterMode::Inline).unwrap().state().count("/configmaps"), 100);
}

#[test]
fn a_restore_copies_keys_into_a_file_that_others_cannot_read_and_keeps_each_database() {
    let (directory, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    store_text(&store, "/configmaps", "m", "x", Expect::Absent);
    drop(store);
    let file = backup(directory.path(), &target.path().join("with.db"), true).unwrap().file;
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let aside: std::collections::BTreeSet<PathBuf> = (0..3)
        .map(|_| restore(&file, directory.path(), &options(true)).unwrap().aside.unwrap())
        .filter(|aside| aside.exists())
        .collect();
    assert_eq!(aside.len(), 3, "{aside:?}");
    let database = directory.path().join(DATABASE);
    assert_eq!(std::fs::metadata(database).unwrap().permissions().mode() & 0o777, 0o600);
    let existing = directory.path().join("existing");
    write_private(&existing, b"").unwrap();
    restore::copy_into(&file, &existing).unwrap();
    assert_eq!(std::fs::metadata(&existing).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read(&existing).unwrap(), std::fs::read(&file).unwrap());
}

#[test]
fn a_damaged_database_leaves_revisions_to_the_one_that_replaces_it() {
    let (directory, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(on_disk(directory.path(), WriterMode::Inline).unwrap());
    let file = backup(directory.path(), target.path(), false).unwrap().file;
    let damage = format!("INSERT OR REPLACE INTO state VALUES ('floor', {})", i64::MAX);
    let db = rusqlite::Connection::open(directory.path().join(DATABASE)).unwrap();
    db.execute_batch(&damage).unwrap();
    drop(db);
    let restored = restore(&file, directory.path(), &options(true)).unwrap();
    assert!(restored.goes_on_from < i64::MAX.unsigned_abs() / 2, "{}", restored.goes_on_from);
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    assert_eq!(store_text(&store, "/configmaps", "m", "x", Expect::Absent), restored.goes_on_from + 1);
}

#[test]
fn after_a_restore_revisions_go_on_beyond_all_that_were_given_out() {
    let (directory, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let first = store_text(&store, "/configmaps", "m", "in the backup", Expect::Absent);
    let made = backup(directory.path(), target.path(), false).unwrap();
    let lost = store_text(&store, "/configmaps", "m", "not in the backup", Expect::Revision(first));
    let later = store_text(&store, "/configmaps", "lost", "x", Expect::Absent);
    drop(store);
    let restored = restore(&made.file, directory.path(), &options(true)).unwrap();
    assert!(restored.goes_on_from > later);
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let maps = resource("/configmaps");
    assert_eq!(names(&store, &maps), ["m"]);
    for seen in [first, lost, later, later + 1000] {
        let watched = block_on(store.subscribe(&maps, Interest::Resource, Some(seen), |_| ()));
        assert!(matches!(watched, Err(ReadError::Compacted { .. })), "a watch from {seen} lists again");
    }
    assert!(
        store.state().changed(&maps) > later,
        "a list at a lost revision is not one of the present objects"
    );
    let now = store.state().revision;
    let fresh = block_on(store.subscribe(&maps, Interest::Resource, Some(now), |_| ()));
    assert_eq!(fresh.unwrap().1.backlog.len(), 0);
    // A client that read a lost revision cannot overwrite the current object.
    let stale = put(&Key::new(&maps, "ns", "m"), Expect::Revision(lost), 1);
    assert!(matches!(block_on(store.submit(stale)), Err(WriteError::Conflict)));
    assert_eq!(store_text(&store, "/configmaps", "new", "x", Expect::Absent), restored.goes_on_from + 1);
    block_on(store.compact(Keep { written_since_ms: i64::MAX, ..back_to(0) })).unwrap();
    drop(store);
    assert_eq!(
        on_disk(directory.path(), WriterMode::Inline).unwrap().state().revision,
        restored.goes_on_from + 1
    );
    // The replaced database is complete.
    let aside = tempfile::tempdir().unwrap();
    std::fs::copy(restored.aside.unwrap(), aside.path().join(DATABASE)).unwrap();
    std::fs::copy(directory.path().join("secrets.key"), aside.path().join("secrets.key")).unwrap();
    assert_eq!(names(&on_disk(aside.path(), WriterMode::Inline).unwrap(), &maps), ["lost", "m"]);
}

/// Not a test of its own: the code of the process that aborts.
#[test]
fn victim_ends_at_a_step() {
    let (Some(step), Some(place)) = (std::env::var_os(STEP), std::env::var_os(WHERE)) else { return };
    let (step, place) = (step.to_string_lossy().into_owned(), PathBuf::from(place));
    // Like `kill -9`: nothing is cleaned up.
    let mut reached = |at: &str| {
        if step.ends_with(&format!(":{at}")) {
            std::process::abort();
        }
    };
    if step.starts_with("backup:") {
        let _ = backup_reaching(&place.join("state"), &place.join("backups"), Some(&FILES), &mut reached);
    } else {
        let file = place.join("backup.db");
        let _ = restore_reaching(&file, &place.join("state"), &options(true), &FILES, &mut reached);
    }
    eprintln!("step {step} was not reached");
}

fn end_at(step: &str, place: &Path) {
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::tests::backup::victim_ends_at_a_step", "--nocapture"])
        .env(STEP, step)
        .env(WHERE, place)
        .output()
        .unwrap();
    assert!(!ended.status.success(), "{step}: {}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn a_backup_that_was_killed_leaves_no_file_with_a_backups_name() {
    for step in ["made", "copied", "described", "verified", "synced"] {
        let place = tempfile::tempdir().unwrap();
        let (state, backups) = (place.path().join("state"), place.path().join("backups"));
        std::fs::create_dir(&backups).unwrap();
        let store = on_disk(&state, WriterMode::Inline).unwrap();
        store_text(&store, "/configmaps", "m", "x", Expect::Absent);
        end_at(&format!("backup:{step}"), place.path());
        assert_eq!(backups_in(&backups).unwrap().len(), 0, "{step}");
        // Its leftovers do not interfere, and are removed once they are old.
        backup(&state, &backups, false).unwrap();
        let leftovers = || std::fs::read_dir(&backups).unwrap().count() - 1;
        assert!(leftovers() > 0, "{step}: there is something to sweep up");
        for entry in std::fs::read_dir(&backups).unwrap().map(Result::unwrap) {
            let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
            File::options().write(true).open(entry.path()).unwrap().set_modified(long_ago).unwrap();
        }
        backup(&state, &backups.join("another.db"), false).unwrap();
        assert_eq!(leftovers(), 1, "{step}: both backups and nothing else");
    }
}

#[test]
fn a_partial_file_of_the_future_was_left_by_a_process_that_ended() {
    let place = tempfile::tempdir().unwrap();
    let (state, backups) = (place.path().join("state"), place.path().join("backups"));
    std::fs::create_dir(&backups).unwrap();
    let store = on_disk(&state, WriterMode::Inline).unwrap();
    store_text(&store, "/configmaps", "m", "x", Expect::Absent);
    let left = backups.join(".berth.db.4711.partial");
    let ahead = std::time::SystemTime::now() + std::time::Duration::from_secs(7200);
    File::create(&left).unwrap().set_modified(ahead).unwrap();
    backup(&state, &backups, false).unwrap();
    assert!(!left.exists());
}

#[test]
fn a_backup_removes_no_files_of_others() {
    let place = tempfile::tempdir().unwrap();
    let (state, backups) = (place.path().join("state"), place.path().join("backups"));
    std::fs::create_dir(&backups).unwrap();
    let store = on_disk(&state, WriterMode::Inline).unwrap();
    store_text(&store, "/configmaps", "m", "x", Expect::Absent);
    let others = [".photos.db.partial", ".photos.db.partial-4711", ".a.partial.db", ".photos.db.x1.partial"];
    let own = [".berth.db.4711.partial", ".berth.db.4711.partial-journal"];
    for name in others.iter().chain(&own) {
        let file = File::create(backups.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(7200)).unwrap();
    }
    backup(&state, &backups, false).unwrap();
    assert!(others.iter().all(|name| backups.join(name).exists()));
    assert!(!own.iter().any(|name| backups.join(name).exists()));
}

#[test]
fn a_restore_that_was_killed_is_either_nothing_or_completed_by_running_it_again() {
    for step in ["checked", "staged", "marked", "kept", "cleared", "renamed", "placed"] {
        let place = tempfile::tempdir().unwrap();
        let state = place.path().join("state");
        let store = on_disk(&state, WriterMode::Inline).unwrap();
        store_text(&store, "/configmaps", "old", "x", Expect::Absent);
        let file = backup(&state, &place.path().join("backup.db"), true).unwrap().file;
        store_text(&store, "/configmaps", "new", "x", Expect::Absent);
        store_text(&store, "/secrets", "s", "x", Expect::Absent);
        drop(store);
        end_at(&format!("restore:{step}"), place.path());
        match on_disk(&state, WriterMode::Inline) {
            Ok(store) => {
                assert!(matches!(step, "checked" | "staged"), "{step}");
                assert!(!state.join(RESTORED).exists(), "{step}: no host is asked what it has");
                assert_eq!(names(&store, "/configmaps"), ["new", "old"], "{step}: nothing has happened");
            }
            Err(error) => assert!(matches!(error, OpenError::HalfRestored { .. }), "{step}: {error}"),
        }
        let again = restore(&file, &state, &options(true)).unwrap();
        let store = on_disk(&state, WriterMode::Inline).unwrap();
        assert_eq!(names(&store, "/configmaps"), ["old"], "{step}");
        assert!(state.join(RESTORED).exists(), "{step}");
        drop(store);
        // The replaced database is kept, complete and once.
        let aside = tempfile::tempdir().unwrap();
        std::fs::copy(again.aside.unwrap(), aside.path().join(DATABASE)).unwrap();
        std::fs::copy(state.join("secrets.key"), aside.path().join("secrets.key")).unwrap();
        let replaced = on_disk(aside.path(), WriterMode::Inline).unwrap();
        assert_eq!(names(&replaced, "/configmaps"), ["new", "old"], "{step}");
        let kept = std::fs::read_dir(&state).unwrap().map(Result::unwrap);
        let kept =
            kept.filter(|e| e.file_name().to_string_lossy().starts_with("berth.db.before-restore")).count();
        assert_eq!(kept, 1, "{step}");
    }
}

#[test]
fn a_backup_holds_what_there_is_and_not_the_room_that_is_kept() {
    let (directory, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let key = Key::new(&resource("toys.example/boats"), "", "one");
    block_on(store.submit(put(&key, Expect::Absent, 7))).unwrap();
    block_on(store.compact(back_to(u64::MAX))).unwrap();
    let database = std::fs::metadata(directory.path().join("berth.db")).unwrap().len();
    assert!(database > 4 << 20, "{database} bytes");
    let made = backup(directory.path(), folder.path(), false).unwrap();
    assert!(made.bytes < 1 << 20, "{} bytes", made.bytes);
    store.close();
    drop(store);
    let options = RestoreOptions { replace: true, key: None };
    restore(&made.file, directory.path(), &options).unwrap();
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    assert_eq!(store.get(&key).unwrap().value()["value"], 7);
}

#[test]
fn after_a_restore_the_history_stays_within_its_bytes() {
    const BUDGET: u64 = 1_000_000;
    let (directory, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let key = Key::new(&resource("toys.example/boats"), "", "large");
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let mut last = block_on(store.submit(large(&key, Expect::Absent, 0))).unwrap();
    for value in 1..20 {
        last = block_on(store.submit(large(&key, Expect::Revision(last.revision), value))).unwrap();
    }
    let made = backup(directory.path(), target.path(), false).unwrap();
    drop(store);
    restore(&made.file, directory.path(), &options(true)).unwrap();
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    assert!(store.counters.history() > BUDGET);
    block_on(store.compact(Keep { bytes: BUDGET, ..back_to(u64::MAX) })).unwrap();
    assert!(store.counters.history() <= BUDGET, "{} bytes", store.counters.history());
    assert_eq!(rows(&store), 1);
    assert_eq!(store.get(&key).unwrap().revision, last.revision);
}
