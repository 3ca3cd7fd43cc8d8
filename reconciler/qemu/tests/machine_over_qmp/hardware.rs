//! The balloon, CPUs, memory, TPM and media of a machine.

use std::path::Path;

use berth_qemu::balloon::{self, Balloon};
use berth_qemu::block::{self, BlockError, ObservedCdrom};
use berth_qemu::cdrom::{self, Changed};
use berth_qemu::cpus;
use berth_qemu::machine::{CdromSpec, Medium, Topology, TpmFiles};
use berth_qemu::memory::{self, Growth};
use berth_qemu::power;
use berth_qemu::qmp::{EventKind, QmpError};
use berth_qemu::tpm;
use serde_json::json;

use super::{Bench, MIB, wait_for};

#[tokio::test]
async fn the_balloon_of_a_guest_without_a_driver_stays_empty_and_reports_nothing() {
    for bench in Bench::all() {
        let (qmp, _events) = bench.launch().await;
        balloon::report_regularly(&qmp).await.expect("accepted");
        let size = bench.spec.machine.memory_bytes;
        balloon::request(&qmp, size / 2).await.expect("accepted");
        let empty = Balloon { left: size, report: None };
        assert_eq!(balloon::observe(&qmp).await.expect("observed"), empty);
        assert_eq!(balloon::ballooned(&qmp).await.expect("asked"), 0);
        power::quit(&qmp).await.expect("ended");
    }
}

#[tokio::test]
async fn cpus_are_plugged_in_as_far_as_there_are_places() {
    for mut bench in Bench::all() {
        bench.spec.machine.topology = Topology::of_cores(3);
        let (qmp, _events) = bench.launch().await;
        power::start(&qmp).await.expect("started");
        let first = cpus::observe(&qmp).await.expect("listed");
        assert_eq!((first.present, first.most()), (1, 3));
        for (wanted, expected) in [(1, 1), (2, 2), (2, 2), (1, 2), (9, 3)] {
            cpus::plug(&qmp, wanted).await.expect("plugged in");
            let now = cpus::observe(&qmp).await.expect("listed");
            assert_eq!((now.present, now.most()), (expected, 3), "{wanted} wanted");
        }
        bench.end().await;
    }
}

#[tokio::test]
async fn memory_is_requested_in_blocks_up_to_the_maximum() {
    for mut bench in Bench::all() {
        let (qmp, _events) = bench.launch().await;
        assert_eq!(memory::observe(&qmp).await.expect("listed"), None, "it was not started for it");
        bench.end().await;
        bench.spec.machine.max_memory_bytes = Some(128 * MIB);
        let (qmp, _events) = bench.launch().await;
        // No guest runs that could plug it in.
        let requested = |bytes| Some(Growth { requested: bytes, plugged: 0 });
        assert_eq!(memory::observe(&qmp).await.expect("listed"), requested(0));
        for bytes in [64 * MIB, 2 * MIB, 0] {
            memory::request(&qmp, bytes).await.expect("requested");
            assert_eq!(memory::observe(&qmp).await.expect("listed"), requested(bytes));
        }
        for wrong in [65 * MIB, 66 * MIB] {
            let refused = memory::request(&qmp, wrong).await;
            assert!(matches!(refused, Err(QmpError::Refused { .. })), "{wrong}: {refused:?}");
        }
        bench.end().await;
    }
}

#[tokio::test]
async fn a_machine_says_whether_the_emulator_of_its_tpm_is_there() {
    let program = Path::new("/usr/bin/swtpm");
    for mut bench in Bench::all().into_iter().filter(|bench| !bench.real || program.is_file()) {
        let (qmp, events) = bench.launch().await;
        assert_eq!(tpm::emulator(&qmp).await.expect("asked"), None, "it has no TPM");
        drop((qmp, events));
        bench.end().await;
        bench.spec.machine.tpm = true;
        let state = bench.directory.path().join("tpm");
        bench.spec.files.tpm = Some(TpmFiles { program: program.to_owned(), state });
        let (qmp, _events) = bench.launch().await;
        assert_eq!(tpm::emulator(&qmp).await.expect("asked"), Some(true));
        bench.end().await;
    }
}

#[tokio::test]
async fn media_are_inserted_exchanged_and_taken_out_and_no_file_stays_open() {
    for mut bench in Bench::all() {
        let medium = |name: char| {
            let file = bench.directory.path().join(format!("{name}.iso"));
            std::fs::write(&file, vec![0; 64 << 10]).expect("written");
            Medium { digest: name.to_string().repeat(64), file }
        };
        let (a, b) = (medium('a'), medium('b'));
        for file in [&a.file, &b.file] {
            bench.host.grant(file, false).await.expect("granted");
        }
        let drive = |slot: u8, medium: Option<&Medium>| CdromSpec {
            slot,
            serial: format!("drive-{slot}"),
            boot_first: false,
            medium: medium.cloned(),
        };
        bench.spec.machine.cdroms = vec![drive(0, Some(&a)), drive(1, None)];
        let (qmp, mut events) = bench.launch().await;
        let state = async || block::cdroms(&qmp).await.expect("asked");
        let seen = |slot: u8, medium: Option<&Medium>| ObservedCdrom {
            slot,
            node: medium.map(|medium| Medium::node(slot, &medium.digest)),
            tray_open: false,
            locked: false,
        };
        assert_eq!(state().await, [seen(0, Some(&a)), seen(1, None)]);
        assert_eq!(block::disks(&qmp).await.expect("disks").len(), 1, "a drive is no disk");

        let change = async |slot: u8, medium: Option<&Medium>| {
            for _ in 0..2 {
                let changed = cdrom::change_medium(&qmp, slot, medium).await.expect("changed");
                assert_eq!(changed, Changed::Done);
            }
        };
        change(0, Some(&b)).await;
        wait_for(&mut events, |kind| *kind == EventKind::TrayMoved).await;
        // The same content can be in two drives.
        change(1, Some(&b)).await;
        assert_eq!(state().await, [seen(0, Some(&b)), seen(1, Some(&b))]);
        change(0, None).await;
        assert_eq!(state().await, [seen(0, None), seen(1, Some(&b))]);
        let open = |name: &str| {
            let nodes = qmp.execute("query-named-block-nodes", json!({"flat": true}));
            let name = name.to_owned();
            async move { nodes.await.expect("asked").to_string().contains(&name) }
        };
        assert!(!open("a.iso").await, "no drive has it any more");
        assert!(open("b.iso").await);
        let absent = cdrom::change_medium(&qmp, 2, None).await.expect_err("no such drive");
        assert!(matches!(absent, BlockError::NoSuchDisk { .. }), "{absent}");
        let gone = Medium { file: "/nowhere.iso".into(), ..a.clone() };
        cdrom::change_medium(&qmp, 0, Some(&gone)).await.expect_err("no such file");
        change(0, Some(&a)).await;
        assert_eq!(state().await, [seen(0, Some(&a)), seen(1, Some(&b))], "after an interrupted change too");
        qmp.execute("blockdev-open-tray", json!({"id": CdromSpec::id(0)})).await.expect("opened");
        assert!(state().await[0].tray_open);
        for _ in 0..2 {
            cdrom::close_tray(&qmp, 0).await.expect("closed");
            assert_eq!(state().await[0], seen(0, Some(&a)), "with its medium");
        }
        bench.end().await;
    }
}
