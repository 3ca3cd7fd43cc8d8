//! Encrypted volumes on a real file system, by the real `qemu-img`.

use std::collections::BTreeSet;

use super::super::super::qemu_img::block_node;
use super::super::snapshots::tests::{Fixture, ID, MIB, POOL, snapshot, taken, volume};
use super::*;
use crate::{DeclaredRestore, NewMove, NewRestore, NewVolume};

const KEY: [u8; 32] = [7; 32];

fn sealed(generation: u32) -> SealedKey {
    SealedKey {
        id: "k-1".to_owned(),
        provider: "Secret".to_owned(),
        wrapped_by: "ns/default".to_owned(),
        wrapping_key_id: "w-1".to_owned(),
        generation,
        sealed: "AAAA".to_owned(),
    }
}

fn new(id: &str, snapshot: Option<&str>) -> NewVolume {
    let size = snapshot.is_none().then_some(4 * MIB);
    NewVolume { encryption: Some(Box::new(sealed(1))), ..volume(id, size, snapshot) }
}

/// A host with an encrypted volume `v-e`, and its key.
fn encrypted() -> Fixture {
    let f = Fixture::new();
    unlock(&f, "v-e");
    f.volumes.create(&new("v-e", None), None).expect("made");
    f
}

fn unlock(f: &Fixture, holder: &str) {
    f.volumes.keys().add("k-1", holder, DiskKey::new(KEY));
}

/// Runs QEMU's tool on a chain, with this key.
fn io(chain: &Backing, key: [u8; 32], command: &str) -> bool {
    let secret = format!("secret,id={TOOL_KEY},data={}", DiskKey::new(key).passphrase());
    let run = Command::new("qemu-io")
        .args(["--object", &secret, "-c", command])
        .arg(format!("json:{}", block_node(chain, "auto")))
        .output()
        .expect("qemu-io is installed (qemu-utils)");
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    run.status.success() && !text.contains("verification failed")
}

fn chain(f: &Fixture, id: &str) -> Backing {
    let found = f.found(id);
    Backing { file: found.path, format: found.format, backing: found.backing.map(Box::new) }
}

fn take(f: &Fixture, id: &str) {
    let new = crate::NewSnapshot { volume: "v-e".to_owned(), ..snapshot(id) };
    f.volumes.begin_snapshot(&new).expect("begun");
    f.volumes.finish_snapshot(POOL, id, &taken()).expect("finished");
}

#[test]
fn a_tool_that_cannot_measure_its_time_is_run_again_and_another_failure_is_reported_at_once() {
    let failing = |text: &'static str, successes_from: u32| {
        let mut runs = 0;
        let made = until_measured(|| {
            runs += 1;
            if runs >= successes_from { Ok(()) } else { Err(QEMU_IMG.failed(text)) }
        });
        (made.is_ok(), runs)
    };
    let unmeasured = "a.qcow2: Unable to get accurate CPU usage (exit status: 1)";
    assert_eq!(failing(unmeasured, 3), (true, 3));
    assert_eq!(failing(unmeasured, u32::MAX), (false, ATTEMPTS));
    assert_eq!(failing("a.qcow2: Permission denied", 3), (false, 1));
}

#[test]
fn a_volume_with_a_key_has_no_plain_data_and_opens_with_its_key_only() {
    let f = encrypted();
    let disk = chain(&f, "v-e");
    assert_eq!((disk.format, f.found("v-e").size), (Format::EncryptedQcow2, 4 * MIB));
    assert!(io(&disk, KEY, "write -P 0x41 0 128k"), "written");
    assert!(io(&disk, KEY, "read -P 0x41 0 128k"));
    assert!(!io(&disk, [8; 32], "read 0 64k"), "another key opens it");
    let bytes = fs::read(&disk.file).expect("read");
    assert!(!bytes.windows(64).any(|part| part == [0x41; 64]), "the data is in the file as it is");
    assert_eq!(fs::metadata(&disk.file).expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(f.volumes.grow(POOL, "v-e", 8 * MIB).expect("grown").size, 8 * MIB);
    assert!(io(&disk, KEY, "read -P 0x41 0 128k") && io(&disk, KEY, "write -P 2 7M 64k"));
}

#[test]
fn snapshots_copies_and_restores_share_the_key_of_their_volume() {
    let f = encrypted();
    assert!(io(&chain(&f, "v-e"), KEY, "write -P 1 0 64k"));
    take(&f, "s-1");
    assert!(io(&chain(&f, "v-e"), KEY, "write -P 2 0 64k"));
    let missing = f.volumes.create(&new("v-copy", Some("s-1")), None);
    assert!(matches!(missing, Err(SystemError::KeyMissing { .. })), "it holds the key itself: {missing:?}");
    unlock(&f, "v-copy");
    let other = SealedKey { id: "k-2".to_owned(), ..sealed(1) };
    let plain = NewVolume { encryption: None, ..new("v-copy", Some("s-1")) };
    for wrong in [NewVolume { encryption: Some(Box::new(other)), ..plain.clone() }, plain] {
        let refused = f.volumes.create(&wrong, None);
        assert!(matches!(refused, Err(SystemError::Invalid { .. })), "one chain has one key: {refused:?}");
    }
    f.volumes.create(&new("v-copy", Some("s-1")), None).expect("copied");
    assert!(io(&chain(&f, "v-copy"), KEY, "read -P 1 0 64k"));
    let facts = f.volumes.snapshot(POOL, "s-1").expect("read").expect("there");
    assert_eq!(facts.encryption.as_deref(), Some(&sealed(1)));
    let declared = DeclaredRestore { name: "before".to_owned(), ..DeclaredRestore::default() };
    let (pool, volume, snapshot) = (POOL.to_owned(), "v-e".to_owned(), "s-1".to_owned());
    f.volumes.restore_snapshot(&NewRestore { pool, volume, snapshot, declared, size: 0 }).expect("restored");
    let restored = chain(&f, "v-e");
    assert!(restored.format.is_encrypted() && io(&restored, KEY, "read -P 1 0 64k"));
    let former = f.volumes.trashed().expect("listed").remove(0).volume;
    assert_eq!(former.encryption.as_deref(), Some(&sealed(1)), "what was replaced keeps its key");
}

#[test]
fn a_deleted_snapshot_from_which_a_backup_is_still_made_has_the_key_of_its_volume() {
    let f = encrypted();
    take(&f, "s-1");
    let key = || f.volumes.key_of_snapshot(POOL, "s-1");
    assert!(matches!(key(), Err(SystemError::KeyMissing { .. })), "its object holds the key itself");
    f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
    assert_eq!(key().expect("that of its volume"), Some(DiskKey::new(KEY)));
    f.volumes.keys().remove("k-1", "v-e");
    assert!(matches!(key(), Err(SystemError::KeyMissing { .. })), "nothing holds it");
}

#[test]
fn the_snapshots_of_an_encrypted_volume_go_with_it_to_another_pool_with_its_present_key() {
    let f = encrypted();
    assert!(io(&chain(&f, "v-e"), KEY, "write -P 1 0 64k"));
    take(&f, "s-1");
    let new = NewMove { id: "v-e".to_owned(), from: POOL.to_owned(), to: "slow".to_owned() };
    let mut begun = f.volumes.begin_move(&new).expect("begun").expect("it is elsewhere");
    while begun.step().expect("copied") {}
    f.volumes.rewrap(POOL, "v-e", &sealed(2)).expect("wrapped meanwhile");
    f.volumes.finish_move(&begun).expect("moved");
    drop(begun);
    let facts = f.volumes.snapshot("slow", "s-1").expect("read").expect("there");
    assert_eq!((facts.encryption.as_deref(), facts.owner.is_some()), (Some(&sealed(2)), true));
    let found = f.volumes.volume("slow", "v-e").expect("read").expect("there");
    assert_eq!(found.encryption.as_deref(), Some(&sealed(2)));
    let disk = Backing { file: found.path, format: found.format, backing: found.backing.map(Box::new) };
    assert!(io(&disk, KEY, "read -P 1 0 64k"));
    assert!(f.files("snapshots").is_empty());
}

#[tokio::test]
async fn the_files_of_deleted_snapshots_are_merged_with_their_key_and_stay_without_it() {
    let f = encrypted();
    for byte in 1..=3 {
        assert!(io(&chain(&f, "v-e"), KEY, &format!("write -P {byte} {byte}M 64k")));
        take(&f, &format!("s-{byte}"));
    }
    f.volumes.delete_snapshot(POOL, "s-1").expect("deleted");
    f.volumes.keys().remove("k-1", "v-e");
    assert!(f.volumes.begin_merge(&BTreeSet::new()).expect("looked").is_none(), "the key is not known");
    unlock(&f, "v-e");
    let merge = f.volumes.begin_merge(&BTreeSet::new()).expect("begun").expect("there is one");
    merge.run(None).await.expect("committed");
    f.volumes.finish_merge(&merge).expect("finished");
    let disk = chain(&f, "v-e");
    assert_eq!(disk.files(), 3);
    for byte in 1..=3 {
        assert!(io(&disk, KEY, &format!("read -P {byte} {byte}M 64k")), "{byte}");
    }
}

#[test]
fn without_its_key_no_file_of_a_volume_is_made_and_another_wrapping_changes_the_notes_only() {
    let f = encrypted();
    take(&f, "s-1");
    let before = fs::read(f.found("v-e").path).expect("read");
    f.volumes.rewrap(POOL, "v-e", &sealed(2)).expect("wrapped");
    f.volumes.rewrap(POOL, "v-e", &sealed(2)).expect("wrapped already");
    assert_eq!(f.found("v-e").encryption.as_deref(), Some(&sealed(2)));
    let facts = f.volumes.snapshot(POOL, "s-1").expect("read").expect("there");
    assert_eq!(facts.encryption.as_deref(), Some(&sealed(2)));
    assert!(fs::read(f.found("v-e").path).expect("read") == before, "the file is as it was");
    let other = SealedKey { id: "k-2".to_owned(), ..sealed(3) };
    assert!(f.volumes.rewrap(POOL, "v-e", &other).is_err(), "another key");
    assert!(f.volumes.rewrap(POOL, ID, &sealed(3)).is_err(), "it is not encrypted");
    f.volumes.keys().remove("k-1", "v-e");
    let missing = f.volumes.create(&new("v-f", None), None);
    assert!(matches!(missing, Err(SystemError::KeyMissing { .. })), "{missing:?}");
    assert!(f.files("volumes").iter().all(|name| !name.contains("v-f")));
    let new = crate::NewSnapshot { volume: "v-e".to_owned(), ..snapshot("s-2") };
    let missing = f.volumes.begin_snapshot(&new);
    assert!(matches!(missing, Err(SystemError::KeyMissing { .. })), "{missing:?}");
}

#[test]
fn a_copy_of_a_plain_snapshot_and_a_file_that_is_taken_over_are_not_encrypted() {
    let f = Fixture::new();
    f.take("s-1");
    for holder in ["v-copy", "v-file"] {
        unlock(&f, holder);
    }
    let file = NewVolume { file: Some("/srv/disk.qcow2".into()), ..new("v-file", None) };
    for wrong in [new("v-copy", Some("s-1")), file] {
        let refused = f.volumes.create(&wrong, None);
        assert!(matches!(refused, Err(SystemError::Invalid { .. })), "{refused:?}");
    }
}

/// The common field of the notes of volumes and of snapshots, as versions without encryption read them.
#[derive(serde::Deserialize)]
struct EarlierNote {
    #[serde(rename = "volumeID")]
    volume_id: String,
}

#[test]
fn an_agent_without_encryption_refuses_the_notes_of_encrypted_volumes_and_snapshots_only() {
    let f = encrypted();
    take(&f, "s-1");
    f.take("s-2");
    let read = |path: &str| {
        let text = fs::read_to_string(f.at(path)).expect("read");
        (serde_json::from_str::<EarlierNote>(&text).map(|note| note.volume_id).ok(), text)
    };
    for path in ["volumes/v-e.json", "snapshots/s-1.json"] {
        let (volume, text) = read(path);
        assert_eq!(volume, None, "{text}");
        assert!(text.contains(r#""encryptedVolumeID": "v-e""#), "{text}");
    }
    for path in [format!("volumes/{ID}.json").as_str(), "snapshots/s-2.json"] {
        let (volume, text) = read(path);
        assert_eq!(volume.as_deref(), Some(ID), "{text}");
        assert!(!text.contains("encrypt"), "{text}");
    }
}
