//! Disks: plugged, grown, limited and unplugged, and errors that say why not.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use berth_qemu::block::{self, BlockError, IoLimits, Unplugged};
use berth_qemu::hypervisor::Limits;
use berth_qemu::machine::{Backing, Bus, DiskKey, DiskSpec, Format};
use berth_qemu::power;
use berth_qemu::qcow2;
use berth_qemu::qmp::QmpError;
use serde_json::json;

use super::{Bench, MIB, disk};

#[tokio::test]
async fn a_disk_is_plugged_grown_and_unplugged_and_every_step_may_be_repeated() {
    for bench in Bench::all() {
        let (qmp, _events) = bench.launch().await;
        power::start(&qmp).await.expect("started");
        let data = bench.new_disk("data");
        for _ in 0..2 {
            bench.plug(&qmp, &data).await.expect("plugged");
        }
        let seen = block::disks(&qmp).await.expect("disks");
        assert_eq!(seen.iter().map(|d| d.id.as_str()).collect::<Vec<_>>(), ["boot", "data"]);
        assert_eq!(
            (seen[1].serial.as_str(), seen[1].size, seen[1].target),
            ("serial-data", 16 * MIB, Some(1))
        );
        assert_eq!((seen[1].node.as_deref(), seen[1].file.as_ref()), (Some("data"), Some(&data.file)));
        assert!(!seen[1].read_only && !seen[1].io_error);
        for _ in 0..2 {
            block::resize(&qmp, "data", 32 * MIB).await.expect("grown");
        }
        assert_eq!(block::disks(&qmp).await.expect("disks")[1].size, 32 * MIB);
        let shrink = block::resize(&qmp, "data", 16 * MIB).await;
        assert!(matches!(shrink, Err(BlockError::Shrink { .. })), "{shrink:?}");
        for _ in 0..2 {
            let outcome = block::unplug(&qmp, "data", Duration::from_secs(10)).await.expect("unplugged");
            assert_eq!(outcome, Unplugged::Released);
        }
        assert_eq!(block::disks(&qmp).await.expect("disks").len(), 1);
        let mut file = std::fs::File::open(&data.file).expect("still there");
        assert_eq!(qcow2::virtual_size(&mut file).expect("readable"), 32 * MIB);
        // After the release another device can use the file.
        bench.plug(&qmp, &DiskSpec { id: "again".to_owned(), ..data }).await.expect("plugged");
        bench.end().await;
    }
}

#[tokio::test]
async fn what_a_crash_left_half_done_is_finished() {
    for bench in Bench::all() {
        let (qmp, _events) = bench.launch().await;
        let data = bench.new_disk("data");
        bench.plug(&qmp, &data).await.expect("plugged");
        // A crash between device_del and blockdev-del.
        qmp.execute("device_del", json!({"id": "data"})).await.expect("asked");
        assert_eq!(
            block::unplug(&qmp, "data", Duration::from_secs(10)).await.expect("done"),
            Unplugged::Released
        );
        // A crash between blockdev-add and device_add.
        let node = json!({"driver": "qcow2", "node-name": "data", "file": {"driver": "file", "filename": data.file}});
        qmp.execute("blockdev-add", node).await.expect("added");
        bench.plug(&qmp, &data).await.expect("plugged");
        assert_eq!(block::disks(&qmp).await.expect("disks").len(), 2);
        bench.end().await;
    }
}

#[tokio::test]
async fn files_that_no_disk_uses_are_found_and_closed() {
    for bench in Bench::all() {
        let (qmp, _events) = bench.launch().await;
        let none = BTreeSet::<String>::new;
        assert_eq!(block::left_open(&qmp).await.expect("asked"), none(), "the boot disk has its device");
        let (data, next) = (bench.new_disk("data"), bench.new_disk("data.1"));
        for file in [&data.file, &next.file] {
            bench.host.grant(file, true).await.expect("granted");
        }
        let node = |name: &str, file: &Path| json!({"driver": "qcow2", "node-name": name, "file": {"driver": "file", "filename": file}});
        // A crash between blockdev-add and device_add.
        qmp.execute("blockdev-add", node("data", &data.file)).await.expect("added");
        assert_eq!(block::left_open(&qmp).await.expect("asked"), BTreeSet::from(["data".to_owned()]));
        let closed = block::unplug(&qmp, "data", Duration::from_secs(10)).await.expect("closed");
        assert_eq!((closed, block::left_open(&qmp).await.expect("asked")), (Unplugged::Released, none()));
        // A crash between blockdev-add and blockdev-mirror.
        bench.plug(&qmp, &data).await.expect("plugged");
        qmp.execute("blockdev-add", node("data.1", &next.file)).await.expect("added");
        let disks = block::disks(&qmp).await.expect("disks");
        let mirrors = block::mirrors(&qmp).await.expect("none");
        block::close_unused(&qmp, &disks, &mirrors).await.expect("closed");
        let nodes = qmp.execute("query-named-block-nodes", json!({"flat": true})).await.expect("nodes");
        let names: Vec<_> =
            nodes.as_array().expect("a list").iter().map(|n| n["node-name"].as_str()).collect();
        assert!(names.contains(&Some("data")) && !names.contains(&Some("data.1")), "{names:?}");
        bench.end().await;
    }
}

#[tokio::test]
async fn another_disk_of_the_same_id_is_a_conflict_and_a_locked_file_is_said_to_be_locked() {
    for bench in Bench::all() {
        let (qmp, _events) = bench.launch().await;
        let data = bench.new_disk("data");
        bench.plug(&qmp, &data).await.expect("plugged");
        let other = DiskSpec { id: "data".to_owned(), ..bench.new_disk("other") };
        let outcome = bench.plug(&qmp, &other).await;
        assert!(matches!(outcome, Err(BlockError::Conflict { .. })), "{outcome:?}");
        let twice = DiskSpec { id: "twice".to_owned(), serial: "twice".to_owned(), ..data };
        let outcome = bench.plug(&qmp, &twice).await;
        assert!(matches!(outcome, Err(BlockError::Locked { .. })), "{outcome:?}");
        bench.end().await;
    }
}

#[tokio::test]
async fn a_refused_device_leaves_no_node_behind() {
    for bench in Bench::all() {
        let (qmp, _events) = bench.launch().await;
        let taken = DiskSpec { target: Some(0), ..bench.new_disk("data") };
        let outcome = bench.plug(&qmp, &taken).await;
        assert!(matches!(outcome, Err(BlockError::Qmp(QmpError::Refused { .. }))), "{outcome:?}");
        let nodes = qmp.execute("query-named-block-nodes", json!({"flat": true})).await.expect("nodes");
        let names: Vec<_> =
            nodes.as_array().expect("a list").iter().map(|n| n["node-name"].as_str()).collect();
        assert!(!names.contains(&Some("data")), "{names:?}");
        bench.end().await;
    }
}

#[tokio::test]
async fn disks_on_other_buses_are_there_from_the_start_and_stay() {
    for mut bench in Bench::all() {
        let places = [("blk", Bus::VirtioBlk, 0), ("blk-last", Bus::VirtioBlk, 15), ("sata", Bus::Sata, 5)];
        for (id, bus, place) in places {
            let disk = DiskSpec { bus, target: Some(place), serial: id.to_owned(), ..bench.new_disk(id) };
            bench.spec.machine.disks.push(DiskSpec { read_only: id == "blk-last", ..disk });
        }
        let (qmp, _events) = bench.launch().await;
        let seen = block::disks(&qmp).await.expect("disks");
        let seen: Vec<_> = seen.iter().map(|d| (d.id.as_str(), d.bus, d.read_only, d.size)).collect();
        let expected = [
            ("blk", Bus::VirtioBlk, false, 16 * MIB),
            ("blk-last", Bus::VirtioBlk, true, 16 * MIB),
            ("boot", Bus::VirtioScsi, false, 64 * MIB),
            ("sata", Bus::Sata, false, 16 * MIB),
        ];
        assert_eq!(seen, expected);
        let used: Vec<String> =
            block::disk_use(&qmp).await.expect("use").into_iter().map(|disk| disk.id).collect();
        assert!(
            ["blk", "blk-last", "boot", "sata"].iter().all(|id| used.contains(&(*id).to_owned())),
            "{used:?}"
        );
        block::resize(&qmp, "blk", 20 * MIB).await.expect("grown");
        let late = DiskSpec { bus: Bus::VirtioBlk, target: Some(1), ..bench.new_disk("late") };
        let outcome = bench.plug(&qmp, &late).await;
        assert!(matches!(outcome, Err(BlockError::NotPluggable { .. })), "{outcome:?}");
        bench.end().await;
    }
}

#[tokio::test]
async fn the_ceilings_of_a_disk_change_while_it_is_used() {
    for mut bench in Bench::all() {
        for (bus, id) in [(Bus::VirtioBlk, "blk"), (Bus::Sata, "sata")] {
            let disk = bench.new_disk(id);
            bench.spec.machine.disks.push(DiskSpec { bus, target: Some(0), serial: id.to_owned(), ..disk });
        }
        let (qmp, _events) = bench.launch().await;
        let total = IoLimits {
            iops: 100,
            bandwidth: MIB,
            burst_iops: 300,
            burst_bandwidth: 2 * MIB,
            burst_seconds: 30,
            ..IoLimits::default()
        };
        let each = IoLimits { read_iops: 5, write_bandwidth: MIB, ..IoLimits::default() };
        for limits in [total, each, IoLimits::default(), total] {
            for id in ["boot", "blk", "sata"] {
                block::set_limits(&qmp, id, &limits).await.expect("set");
            }
            let seen = block::disks(&qmp).await.expect("disks");
            assert!(seen.iter().all(|disk| disk.limits == limits), "{seen:?}");
        }
        let outcome = block::set_limits(&qmp, "none", &each).await;
        assert!(matches!(outcome, Err(BlockError::NoSuchDisk { .. })), "{outcome:?}");
        bench.end().await;
    }
}

#[tokio::test]
async fn an_overlay_reads_through_to_its_base_and_grows_beyond_it() {
    for bench in Bench::all() {
        let base = bench.new_disk("base");
        let file = bench.directory.path().join("top.qcow2");
        let backing = Backing { file: base.file, format: Format::Qcow2, backing: None };
        qcow2::create_overlay(&file, 20 * MIB, &backing).expect("an overlay");
        // The same base by a name that differs from the one in the overlay: QEMU then describes the disk in JSON.
        let moved = bench.directory.path().join("moved.qcow2");
        std::fs::hard_link(&backing.file, &moved).expect("linked");
        let backing = Backing { file: moved, ..backing };
        bench.host.grant(&backing.file, false).await.expect("granted");
        let top = DiskSpec { backing: Some(backing), ..disk(bench.directory.path(), "top", false) };
        let (qmp, _events) = bench.launch().await;
        for _ in 0..2 {
            bench.plug(&qmp, &top).await.expect("plugged");
        }
        let seen = block::disks(&qmp).await.expect("disks");
        assert_eq!((seen[1].id.as_str(), seen[1].size), ("top", 20 * MIB));
        assert_eq!(seen[1].file.as_ref(), Some(&top.file));
        block::resize(&qmp, "top", 24 * MIB).await.expect("grown");
        let outcome = block::unplug(&qmp, "top", Duration::from_secs(10)).await.expect("unplugged");
        assert_eq!(outcome, Unplugged::Released);
        bench.end().await;
    }
}

/// Creates an encrypted file, or an encrypted overlay on one, with the tool that berth uses.
fn encrypted(like: DiskSpec, key: &DiskKey, below: Option<&Path>) -> DiskSpec {
    // It creates no file where one is.
    let _ = std::fs::remove_file(&like.file);
    let mut create = std::process::Command::new("qemu-img");
    create.args([
        "create",
        "-q",
        "-f",
        "qcow2",
        "--object",
        &format!("secret,id=k,data={}", key.passphrase()),
    ]);
    create.args(["-o", "encrypt.format=luks,encrypt.key-secret=k,encrypt.iter-time=10"]);
    if let Some(below) = below {
        create.args(["-u", "-F", "qcow2", "-b"]).arg(below);
    }
    create.arg(&like.file).arg("16M");
    let mut make = || create.output().expect("qemu-img is installed (qemu-utils)");
    let error = |made: &std::process::Output| String::from_utf8_lossy(&made.stderr).into_owned();
    let mut made = make();
    // On a busy machine it cannot always measure its processor time.
    for _ in 0..4 {
        if error(&made).contains("Unable to get accurate CPU usage") {
            made = make();
        }
    }
    assert!(made.status.success(), "{}", error(&made));
    DiskSpec { format: Format::EncryptedQcow2, ..like }
}

#[tokio::test]
async fn an_encrypted_disk_opens_with_its_key_from_the_start_or_plugged_in_and_leaves_no_key_behind() {
    let key = DiskKey::new([7; 32]);
    for mut bench in Bench::all() {
        let boot = encrypted(bench.spec.machine.disks[0].clone(), &key, None);
        bench.spec.machine.disks = vec![boot];
        if bench.real {
            bench.host.launch(&bench.spec, Limits::default()).await.expect_err("without its key");
        }
        bench.spec.files.keys.insert("boot".to_owned(), key.clone());
        let (qmp, _events) = bench.launch().await;
        let argv = bench.host.list().await.expect("listed");
        assert!(!format!("{argv:?}").contains(&key.passphrase()), "no argument has the key");
        let data = encrypted(bench.new_disk("data"), &key, None);
        bench.plug(&qmp, &data).await.expect_err("without its key");
        block::add_key(&qmp, "data", &key).await.expect("added");
        let lost = DiskSpec { file: data.file.with_file_name("lost.qcow2"), ..data.clone() };
        block::plug(&qmp, &lost).await.expect_err("its file is not there");
        let keys = qmp.execute("qom-list", json!({"path": "/objects"})).await.expect("listed");
        assert!(!keys.to_string().contains("key-data"), "no key of a disk that is not plugged in: {keys}");
        for _ in 0..2 {
            block::add_key(&qmp, "data", &key).await.expect("added");
        }
        bench.plug(&qmp, &data).await.expect("plugged");
        let overlay = data.file.with_file_name("data.1.qcow2");
        let overlay = encrypted(DiskSpec { file: overlay, ..data.clone() }, &key, Some(data.file.as_path()));
        bench.host.grant(&overlay.file, true).await.expect("granted");
        block::resize(&qmp, "data", 20 * MIB).await.expect("grown");
        assert!(block::snapshot_disks(&qmp, std::slice::from_ref(&overlay), &[]).await.expect("switched"));
        let seen = block::disks(&qmp).await.expect("disks");
        let now = seen.iter().find(|disk| disk.id == "data").expect("plugged");
        assert_eq!((now.file.as_ref(), now.size), (Some(&overlay.file), 20 * MIB));
        assert!(seen.iter().all(|disk| disk.is_encrypted));
        let outcome = block::unplug(&qmp, "data", Duration::from_secs(10)).await.expect("unplugged");
        assert_eq!(outcome, Unplugged::Released);
        let gone = qmp.execute("object-del", json!({"id": "key-data"})).await;
        assert!(matches!(gone, Err(QmpError::Refused { .. })), "the key is gone: {gone:?}");
        bench.end().await;
    }
}
