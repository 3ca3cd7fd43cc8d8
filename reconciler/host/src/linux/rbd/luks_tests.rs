//! Encrypted images without a cluster: their headers, by the real `qemu-img`, their notes and their keys.

use std::fs;
use std::process::Command;

use berth_qemu::machine::{Bus, Cache};
use berth_qemu::process::TOOL_KEY;
use serde_json::json;

use super::super::super::layout::Layout;
use super::*;
use crate::{CephAccess, RbdPoolMapping, VolumeOwner};

const MIB: u64 = 1 << 20;
const KEY: [u8; 32] = [7; 32];

fn sealed(id: &str, generation: u32) -> SealedKey {
    SealedKey {
        id: id.to_owned(),
        provider: "Secret".to_owned(),
        wrapped_by: "ns/default".to_owned(),
        wrapping_key_id: "w-1".to_owned(),
        generation,
        sealed: "AAAA".to_owned(),
    }
}

fn new(size: u64) -> NewVolume {
    let (namespace, name) = ("n".to_owned(), "d".to_owned());
    NewVolume {
        pool: "fast".to_owned(),
        id: "v-1".to_owned(),
        size: Some(size),
        base: None,
        snapshot: None,
        file: None,
        thick: false,
        shared: false,
        owner: VolumeOwner { namespace, name, uid: None, image: None, source: None },
        encryption: Some(Box::new(sealed("k-1", 1))),
    }
}

fn pools(layout: &Layout) -> RbdPools {
    let mapping: RbdPoolMapping = "fast=vms".parse().expect("a mapping");
    RbdPools::open(layout, &[mapping], &[], &CephAccess::default(), None).expect("opened")
}

fn disk(format: Format) -> DiskSpec {
    DiskSpec {
        id: "v-1".to_owned(),
        file: "rbd:vms/berth-v-1:id=berth:conf=/c".into(),
        format,
        backing: None,
        serial: "v-1".to_owned(),
        wwn: None,
        boot: false,
        read_only: false,
        target: None,
        cache: Cache::Writeback,
        bus: Bus::VirtioScsi,
        keeps_space: false,
        shared: false,
    }
}

/// Runs QEMU's tool on a file with a header, with this key.
fn io(file: &std::path::Path, key: [u8; 32], command: &str) -> bool {
    let secret = format!("secret,id={TOOL_KEY},data={}", DiskKey::new(key).passphrase());
    let node = json!({
        "driver": "luks", "key-secret": TOOL_KEY,
        "file": {"driver": "file", "filename": file.to_string_lossy()},
    });
    let run = Command::new("qemu-io")
        .args(["--object", &secret, "-c", command])
        .arg(format!("json:{node}"))
        .output()
        .expect("qemu-io is installed (qemu-utils)");
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    run.status.success() && !text.contains("failed")
}

#[tokio::test]
async fn a_header_opens_with_its_key_only_and_what_is_after_it_is_the_whole_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let layout = Layout::new(folder.path());
    let pools = pools(&layout);
    let pool = pools.get("fast").expect("there");
    let header = pool.make_header(&DiskKey::new(KEY)).await.expect("made");
    let made = fs::read(&header.file).expect("read");
    assert_eq!(made.get(..6), Some(&b"LUKS\xba\xbe"[..]));
    assert_eq!(made.len() as u64, header.bytes);
    assert!(header.bytes > 0 && header.bytes.is_multiple_of(512), "{}", header.bytes);
    let luks = pool.luks_of(&new(4 * MIB), Some(&header)).await.expect("known").expect("encrypted");
    assert_eq!(luks, Luks { key: sealed("k-1", 1), header: header.bytes });

    let image = folder.path().join("image");
    fs::copy(&header.file, &image).expect("copied");
    let file = fs::OpenOptions::new().write(true).open(&image).expect("opened");
    file.set_len(header.bytes + 4 * MIB).expect("grown");
    assert!(io(&image, KEY, "write -P 0x7a 0 4M"), "it has the size of the disk");
    assert!(!io(&image, KEY, "write -P 0x7a 4M 512"), "and no more");
    assert!(io(&image, KEY, "read -P 0x7a 0 4M"));
    assert!(!io(&image, [8; 32], "read 0 512"), "another key");
    let bytes = fs::read(&image).expect("read");
    assert!(!bytes.windows(64).any(|part| part == [0x7a; 64]), "the data is not readable");
    let made_in = header.file.parent().expect("a folder").to_owned();
    drop(header);
    assert!(!made_in.exists(), "the header goes with the work");
}

#[tokio::test]
async fn the_header_of_a_call_that_was_given_up_does_not_replace_that_of_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let pools = pools(&Layout::new(folder.path()));
    let pool = pools.get("fast").expect("there");
    let (former, key) = (DiskKey::new([8; 32]), DiskKey::new(KEY));
    let (former, header) = tokio::join!(pool.make_header(&former), pool.make_header(&key));
    let (former, header) = (former.expect("made"), header.expect("made"));
    drop(former);
    assert!(io(&header.file, [7; 32], "length") && !io(&header.file, [8; 32], "length"));
}

#[tokio::test]
async fn a_clone_has_the_header_of_its_snapshot_and_no_other_size_is_assumed() {
    let folder = tempfile::tempdir().expect("a folder");
    let pools = pools(&Layout::new(folder.path()));
    let pool = pools.get("fast").expect("there");
    let clone = NewVolume { snapshot: Some("s-1".to_owned()), ..new(MIB) };
    for without in [&clone, &new(MIB)] {
        let unknown = pool.luks_of(without, None).await;
        assert!(matches!(unknown, Err(SystemError::VolumeDamaged { .. })), "{unknown:?}");
    }
    let note = SnapshotNote {
        id: "s-1".to_owned(),
        volume_id: "v-0".to_owned(),
        owner: None,
        begun: jiff::Timestamp::UNIX_EPOCH,
        taken: None,
        restored: None,
        luks: Some(Luks { key: sealed("k-1", 3), header: 4096 }),
    };
    pool.write_snapshot_note(&note).await.expect("written");
    let luks = pool.luks_of(&clone, None).await.expect("known").expect("encrypted");
    assert_eq!(luks, Luks { key: sealed("k-1", 1), header: 4096 }, "the key is sealed for the clone");
    let plain = NewVolume { encryption: None, ..clone };
    assert_eq!(pool.luks_of(&plain, None).await.expect("known"), None);
}

#[test]
fn an_agent_without_encryption_in_ceph_cannot_read_the_note_of_an_encrypted_volume() {
    let plain = Note::new(&new(MIB), "a".to_owned());
    let luks = Some(Luks { key: sealed("k-1", 1), header: 4096 });
    let note = Note { luks, complete: true, ..plain.clone() };
    assert_eq!(serde_json::from_str::<Note>(&note.text()).expect("read"), note);
    assert!(!note.text().contains("\"volumeID\"") && note.text().contains("\"encryptedVolumeID\""));
    assert!(plain.text().contains("\"volumeID\""));
    assert_eq!((note.header(), plain.header()), (4096, 0));
}

#[tokio::test]
async fn a_machine_gets_the_key_of_its_disk_in_ceph_once_that_is_known() {
    let folder = tempfile::tempdir().expect("a folder");
    let pools = pools(&Layout::new(folder.path()));
    let pool = pools.get("fast").expect("there");
    let keys = Keyring::default();
    let disks = [disk(Format::Luks)];
    let lost = pools.keys_of(&disks, &keys).await;
    assert!(matches!(lost, Err(SystemError::VolumeLost { .. })), "{lost:?}");
    let luks = Some(Luks { key: sealed("k-1", 1), header: 4096 });
    let note = Note { luks, complete: true, ..Note::new(&new(MIB), "a".to_owned()) };
    pool.write_note(&note).await.expect("written");
    assert_eq!(pool.note("v-1").await.expect("read"), Some(note));
    let missing = pools.keys_of(&disks, &keys).await;
    assert!(matches!(missing, Err(SystemError::KeyMissing { .. })), "{missing:?}");
    keys.add("k-1", "v-1", DiskKey::new(KEY));
    let found = pools.keys_of(&disks, &keys).await.expect("known");
    assert_eq!(found.get("v-1"), Some(&DiskKey::new(KEY)));
    let plain = pools.keys_of(&[disk(Format::Raw)], &keys).await.expect("none");
    assert!(plain.is_empty(), "it is not encrypted");
}

#[tokio::test]
async fn a_key_is_wrapped_again_in_one_form_or_the_other_and_never_replaced() {
    let luks = Luks { key: sealed("k-1", 1), header: 4096 };
    let again = rewrapped(Some(&luks), &sealed("k-1", 2));
    assert_eq!(again, Some(Luks { key: sealed("k-1", 2), header: 4096 }));
    assert_eq!(rewrapped(Some(&luks), &sealed("k-2", 2)), None, "it is the key of another disk");
    assert_eq!(rewrapped(None, &sealed("k-1", 2)), None);
    // While the cluster is away, the note here and that in Ceph stay the same.
    let folder = tempfile::tempdir().expect("a folder");
    let pools = pools(&Layout::new(folder.path()));
    let pool = pools.get("fast").expect("there");
    let note = Note { luks: Some(luks), complete: true, ..Note::new(&new(MIB), "a".to_owned()) };
    pool.write_note(&note).await.expect("written");
    let away = pool.rewrap("v-1", &sealed("k-1", 2)).await;
    assert!(matches!(away, Err(SystemError::PoolAway { .. })), "{away:?}");
    assert_eq!(pool.note("v-1").await.expect("read"), Some(note));
}
