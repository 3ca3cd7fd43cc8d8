//! Encryption of Secrets at rest.

use std::os::unix::fs::PermissionsExt as _;

use rusqlite::params;

use super::*;
use crate::rotate::rotate_key_reaching;

const CANARY: &str = "canary-in-a-secret-7f3a";
const LOUD: &str = "canary-in-a-config-map-91bc";

fn holding(resource: &Arc<str>, name: &str, text: &str, expect: Expect) -> Write {
    let object = json!({"apiVersion": "v1", "kind": "K", "data": {"value": text},
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")}});
    let action = Action::Put(Encoded::of(&object, &[]));
    let key = Key::new(resource, "ns", name);
    Write { action, ..put(&key, expect, 0) }
}

pub(crate) fn store_text(store: &Store, plural: &str, name: &str, text: &str, expect: Expect) -> u64 {
    block_on(store.submit(holding(&resource(plural), name, text, expect))).unwrap().revision
}

/// Returns the files of a directory that contain `text`.
pub(crate) fn files_with(directory: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let content = std::fs::read(entry.path()).unwrap();
        if content.windows(text.len()).any(|at| at == text.as_bytes()) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found.sort();
    found
}

fn value_of(store: &Store, plural: &str, name: &str) -> String {
    let entry = store.get(&Key::new(&resource(plural), "ns", name)).unwrap();
    entry.value()["data"]["value"].as_str().unwrap().to_owned()
}

#[test]
fn a_secret_is_in_no_byte_of_the_database_or_its_log() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let first = store_text(&store, "/secrets", "s", CANARY, Expect::Absent);
    let second = store_text(&store, "/secrets", "s", &format!("{CANARY}-2"), Expect::Revision(first));
    block_on(store.submit(Write {
        action: Action::Delete,
        ..holding(&resource("/secrets"), "s", "", Expect::Revision(second))
    }))
    .unwrap();
    store_text(&store, "/secrets", "kept", CANARY, Expect::Absent);
    store_text(&store, "/configmaps", "m", LOUD, Expect::Absent);
    // The write-ahead log still exists beside the database.
    assert_eq!(files_with(directory.path(), CANARY), Vec::<String>::new());
    assert_eq!(files_with(directory.path(), LOUD), ["berth.db-wal"], "what is not secret is found this way");
    let mode = std::fs::metadata(directory.path().join("secrets.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Everything is readable: the current and the previous revision, also after reopening.
    let old = block_on(store.list_at(&resource("/secrets"), second, ListPart::default(), |_| true)).unwrap();
    assert_eq!(old.entries[0].value()["data"]["value"], format!("{CANARY}-2"));
    drop((store, old));
    assert_eq!(files_with(directory.path(), CANARY), Vec::<String>::new());
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    assert_eq!(value_of(&store, "/secrets", "kept"), CANARY);
}

#[test]
fn an_encrypted_row_opens_in_its_own_place_only() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let first = store_text(&store, "/secrets", "a", "of a", Expect::Absent);
    store_text(&store, "/secrets", "a", "of a, later", Expect::Revision(first));
    store_text(&store, "/secrets", "b", "of b", Expect::Absent);
    drop(store);
    let copy_row = |from: i64, to: i64| {
        let db = rusqlite::Connection::open(directory.path().join(DATABASE)).unwrap();
        let (sum, value): (i64, Vec<u8>) = db
            .query_row("SELECT sum, value FROM log WHERE id = ?1", [from], |r| Ok((r.get(0)?, r.get(1)?)))
            .unwrap();
        let was: (i64, Vec<u8>) = db
            .query_row("SELECT sum, value FROM log WHERE id = ?1", [to], |r| Ok((r.get(0)?, r.get(1)?)))
            .unwrap();
        db.execute("UPDATE log SET sum = ?1, value = ?2 WHERE id = ?3", params![sum, value, to]).unwrap();
        drop(db);
        let error = on_disk(directory.path(), WriterMode::Inline).expect_err("it does not open");
        assert!(
            matches!(&error, OpenError::Damaged { detail, .. } if detail.contains("decrypted")),
            "{error}"
        );
        let db = rusqlite::Connection::open(directory.path().join(DATABASE)).unwrap();
        db.execute("UPDATE log SET sum = ?1, value = ?2 WHERE id = ?3", params![was.0, was.1, to]).unwrap();
    };
    // The row of another object, and an earlier row of the same object.
    copy_row(3, 2);
    copy_row(1, 2);
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    assert_eq!(value_of(&store, "/secrets", "a"), "of a, later");
}

#[test]
fn without_its_key_a_database_is_refused_and_nothing_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    store_text(&store, "/secrets", "s", CANARY, Expect::Absent);
    drop(store);
    let key = directory.path().join("secrets.key");
    let right = std::fs::read_to_string(&key).unwrap();
    let before = std::fs::read(directory.path().join(DATABASE)).unwrap();
    let refused = |what: &str| {
        let had = std::fs::read(&key).ok();
        let error = on_disk(directory.path(), WriterMode::Inline).expect_err(what);
        assert!(matches!(error, OpenError::Key { .. }), "{error}");
        assert!(error.to_string().contains("secrets.key"), "{error}");
        assert_eq!(std::fs::read(&key).ok(), had, "the key file is left as it was");
        assert_eq!(std::fs::read(directory.path().join(DATABASE)).unwrap(), before);
        error.to_string()
    };
    std::fs::remove_file(&key).unwrap();
    assert!(refused("it is missing").contains("missing"));
    let write = |text: &str, mode: u32| {
        std::fs::write(&key, text).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    write(&format!("{}\n", "5a".repeat(32)), 0o600);
    assert!(refused("it is another one").contains("not this database's"));
    write("not a key", 0o600);
    assert!(refused("it is damaged").contains("damaged"));
    write("", 0o600);
    assert!(refused("it is empty").contains("damaged"));
    write(&right, 0o640);
    assert!(refused("others may read it").contains("chmod 600"));
    write(&right, 0o600);
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    assert_eq!(value_of(&store, "/secrets", "s"), CANARY);
}

#[test]
fn a_database_without_secrets_is_refused_without_its_key_too() {
    let directory = tempfile::tempdir().unwrap();
    drop(on_disk(directory.path(), WriterMode::Inline).unwrap());
    std::fs::remove_file(directory.path().join("secrets.key")).unwrap();
    assert!(matches!(on_disk(directory.path(), WriterMode::Inline), Err(OpenError::Key { .. })));
}

#[test]
fn a_rotated_key_seals_everything_and_the_old_one_opens_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let first = store_text(&store, "/secrets", "s", CANARY, Expect::Absent);
    store_text(&store, "/secrets", "s", "later", Expect::Revision(first));
    assert!(matches!(rotate_key(directory.path()), Err(OpenError::Locked { .. })), "a server runs");
    drop(store);
    let key = directory.path().join("secrets.key");
    let old = std::fs::read_to_string(&key).unwrap();
    let rotated = rotate_key(directory.path()).unwrap();
    assert_eq!(std::fs::read_to_string(&rotated.retired).unwrap(), old, "kept for backups");
    let new = std::fs::read_to_string(&key).unwrap();
    assert_eq!(new.lines().count(), 1);
    assert_ne!(new, old);
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    let then = block_on(store.list_at(&resource("/secrets"), first, ListPart::default(), |_| true)).unwrap();
    assert_eq!(then.entries[0].value()["data"]["value"], CANARY);
    drop(store);
    std::fs::write(&key, old).unwrap();
    assert!(matches!(on_disk(directory.path(), WriterMode::Inline), Err(OpenError::Key { .. })));
    // Interrupted before any row was encrypted again: the file contains both keys.
    std::fs::write(&key, format!("{new}{}\n", "5a".repeat(32))).unwrap();
    let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
    assert_eq!(value_of(&store, "/secrets", "s"), "later");
}

#[test]
fn rotations_that_are_interrupted_lose_no_key_and_do_not_fill_the_file() {
    for step in ["retired", "added", "sealed"] {
        let directory = tempfile::tempdir().unwrap();
        let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
        store_text(&store, "/secrets", "s", CANARY, Expect::Absent);
        drop(store);
        let key = directory.path().join("secrets.key");
        let mut used = std::collections::BTreeSet::new();
        for _ in 0..10 {
            let mut end = |at: &str| {
                if at == step {
                    std::panic::resume_unwind(Box::new(()));
                }
            };
            let rotate = || rotate_key_reaching(directory.path(), &mut end);
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(rotate)).is_err(), "{step}");
            let text = std::fs::read_to_string(&key).unwrap();
            assert!(text.lines().count() <= 2, "{step}");
            used.extend(text.lines().map(str::to_owned));
            let store = on_disk(directory.path(), WriterMode::Inline).unwrap();
            assert_eq!(value_of(&store, "/secrets", "s"), CANARY, "{step}");
        }
        let lost = |one: &&String| files_with(directory.path(), one).is_empty();
        assert_eq!(used.iter().find(lost), None, "{step}: earlier backups need it");
    }
}
