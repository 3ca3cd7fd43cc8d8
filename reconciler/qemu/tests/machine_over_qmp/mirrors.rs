//! Disks of a running machine that go on in another file.

use std::path::PathBuf;
use std::time::Duration;

use berth_qemu::block::{self, BlockError, Mirror};
use berth_qemu::machine::{Backing, DiskSpec, Format};
use berth_qemu::power::{self, RunState};
use berth_qemu::qcow2;
use berth_qemu::qmp::Qmp;
use serde_json::json;

use super::{Bench, MIB, disk};

/// Describes an empty file in another folder for the data of this disk.
async fn target(bench: &Bench, of: &DiskSpec) -> DiskSpec {
    let folder = bench.directory.path().join("slow");
    std::fs::create_dir_all(&folder).expect("made");
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o711)).expect("ours");
    let file = folder.join(of.file.file_name().expect("a name"));
    match &of.backing {
        None => qcow2::create(&file, 16 * MIB).expect("a new file"),
        Some(backing) => qcow2::create_overlay(&file, 16 * MIB, backing).expect("an overlay"),
    }
    bench.host.grant(&file, true).await.expect("granted");
    DiskSpec { file, ..of.clone() }
}

async fn state(qmp: &Qmp) -> Option<Mirror> {
    block::mirrors(qmp).await.expect("asked").remove("data")
}

async fn until_ready(qmp: &Qmp) {
    until(qmp, "data", Mirror::Ready).await;
}

async fn until(qmp: &Qmp, disk: &str, wanted: Mirror) {
    let search = async {
        while block::mirrors(qmp).await.expect("asked").get(disk) != Some(&wanted) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), search).await.expect("it gets there");
}

/// Plugs in two disks and mirrors both, until both can be switched. Returns the other files.
async fn two_mirrors(bench: &Bench, qmp: &Qmp) -> [DiskSpec; 2] {
    power::start(qmp).await.expect("started");
    let mut others = Vec::new();
    for id in ["data", "more"] {
        let disk = bench.new_disk(id);
        bench.plug(qmp, &disk).await.expect("plugged in");
        let other = target(bench, &disk).await;
        block::begin_mirror(qmp, &other).await.expect("begun");
        until(qmp, id, Mirror::Ready).await;
        others.push(other);
    }
    others.try_into().expect("two")
}

#[tokio::test]
async fn two_disks_are_switched_in_one_pause_and_the_guest_goes_on_when_both_are_recorded() {
    for bench in Bench::all() {
        let (qmp, _events) = bench.launch().await;
        let others = two_mirrors(&bench, &qmp).await;
        for other in &others {
            block::switch_mirror(&qmp, &other.id).await.expect("switched");
        }
        block::end_mirror(&qmp, "data").await.expect("ended");
        assert_eq!(
            power::run_state(&qmp).await.expect("asked"),
            RunState::Paused,
            "the other is not recorded"
        );
        block::end_mirror(&qmp, "more").await.expect("ended");
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running);
        let disks = block::disks(&qmp).await.expect("disks");
        for other in &others {
            let seen = disks.iter().find(|disk| disk.id == other.id).expect("it has it");
            assert_eq!(seen.file.as_ref(), Some(&other.file));
        }
        bench.end().await;
    }
}

#[tokio::test]
async fn a_switch_that_is_cancelled_lets_no_guest_go_on_that_waits_for_the_record_of_another() {
    for bench in Bench::all() {
        let (qmp, _events) = bench.launch().await;
        two_mirrors(&bench, &qmp).await;
        block::switch_mirror(&qmp, "more").await.expect("switched");
        // A crash between job-complete and job-finalize.
        qmp.execute("job-complete", json!({"id": "mirror-data"})).await.expect("asked");
        until(&qmp, "data", Mirror::Pending).await;
        assert!(block::cancel_mirror(&qmp, "data").await.expect("cancelled"));
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Paused);
        block::end_mirror(&qmp, "more").await.expect("ended");
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running);
        bench.end().await;
    }
}

async fn file(qmp: &Qmp) -> Option<PathBuf> {
    let disks = block::disks(qmp).await.expect("disks");
    disks.into_iter().find(|disk| disk.id == "data").and_then(|disk| disk.file)
}

/// Writes to the disk `data`, or reads it, as its guest does; only in the real QEMU.
async fn io(bench: &Bench, qmp: &Qmp, command: &str) {
    if bench.real {
        let line = format!("qemu-io -d data \"{command}\"");
        let answer = qmp.execute("human-monitor-command", json!({"command-line": line})).await;
        let answer = answer.expect("executed");
        let text = answer.as_str().unwrap_or_default();
        assert!(!text.contains("failed") && !text.contains("error"), "{command}: {text}");
    }
}

#[tokio::test]
async fn a_disk_goes_on_in_another_file_with_its_data_while_its_guest_runs() {
    for bench in Bench::all() {
        let data = bench.new_disk("data");
        let (qmp, events) = bench.launch().await;
        power::start(&qmp).await.expect("started");
        bench.plug(&qmp, &data).await.expect("plugged in");
        io(&bench, &qmp, "write -P 17 0 4M").await;
        let other = target(&bench, &data).await;
        block::begin_mirror(&qmp, &other).await.expect("begun");
        block::begin_mirror(&qmp, &other).await.expect("it is begun");
        until_ready(&qmp).await;
        // To both files.
        io(&bench, &qmp, "write -P 34 1M 64k").await;
        assert_eq!(file(&qmp).await.as_ref(), Some(&data.file));
        let grown = block::resize(&qmp, "data", 32 * MIB).await;
        assert!(grown.is_err(), "it grows after that");
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running);

        block::switch_mirror(&qmp, "data").await.expect("switched");
        block::switch_mirror(&qmp, "data").await.expect("it is switched");
        assert_eq!(file(&qmp).await.as_ref(), Some(&other.file));
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Paused, "until it is recorded");
        assert!(!block::cancel_mirror(&qmp, "data").await.expect("asked"), "it is too late");
        // Another agent finds it.
        drop((qmp, events));
        let (qmp, _events) = bench.host.connect(&bench.spec.files.paths).await.expect("connected");
        assert_eq!(state(&qmp).await, Some(Mirror::Switched));

        block::end_mirror(&qmp, "data").await.expect("ended");
        block::end_mirror(&qmp, "data").await.expect("it is ended");
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running);
        assert_eq!((state(&qmp).await, file(&qmp).await), (None, Some(other.file.clone())));
        // QEMU has closed it.
        std::fs::remove_file(&data.file).expect("removed");
        io(&bench, &qmp, "read -P 17 0 1M").await;
        io(&bench, &qmp, "read -P 34 1M 64k").await;
        io(&bench, &qmp, "write -P 51 2M 64k").await;
        block::resize(&qmp, "data", 32 * MIB).await.expect("grown");
        bench.end().await;
    }
}

#[tokio::test]
async fn a_mirror_that_is_cancelled_or_cannot_begin_leaves_the_disk_in_its_file() {
    for bench in Bench::all() {
        let data = bench.new_disk("data");
        let (qmp, _events) = bench.launch().await;
        power::start(&qmp).await.expect("started");
        bench.plug(&qmp, &data).await.expect("plugged in");
        io(&bench, &qmp, "write -P 17 0 1M").await;
        let missing = DiskSpec { file: bench.directory.path().join("none.qcow2"), ..data.clone() };
        block::begin_mirror(&qmp, &missing).await.expect_err("there is no such file");
        assert_eq!(state(&qmp).await, None);
        let other = target(&bench, &data).await;
        for _ in 0..2 {
            block::begin_mirror(&qmp, &other).await.expect("begun");
            until_ready(&qmp).await;
            assert!(block::cancel_mirror(&qmp, "data").await.expect("cancelled"));
            assert!(block::cancel_mirror(&qmp, "data").await.expect("there is none"));
            assert_eq!((state(&qmp).await, file(&qmp).await), (None, Some(data.file.clone())));
        }
        let refused = block::switch_mirror(&qmp, "data").await;
        assert!(matches!(refused, Err(BlockError::Mirror { .. })), "{refused:?}");
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running);
        io(&bench, &qmp, "read -P 17 0 1M").await;
        block::resize(&qmp, "data", 32 * MIB).await.expect("nothing uses it any more");
        // A guest that is paused is not switched, and not resumed.
        let other =
            target(&bench, &DiskSpec { file: bench.directory.path().join("data2.qcow2"), ..data }).await;
        block::begin_mirror(&qmp, &other).await.expect("begun: the file grows with the disk");
        until_ready(&qmp).await;
        power::stop(&qmp).await.expect("paused");
        block::switch_mirror(&qmp, "data").await.expect_err("its guest does not run");
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Paused);
        bench.end().await;
    }
}

#[tokio::test]
async fn a_disk_on_an_image_takes_only_its_own_data_to_the_other_file() {
    for bench in Bench::all() {
        let image = bench.directory.path().join("image.qcow2");
        qcow2::create(&image, 16 * MIB).expect("an image");
        bench.host.grant(&image, false).await.expect("granted");
        let backing = Backing { file: image, format: Format::Qcow2, backing: None };
        let own = bench.directory.path().join("data.qcow2");
        qcow2::create_overlay(&own, 16 * MIB, &backing).expect("an overlay");
        let data = DiskSpec { backing: Some(backing), ..disk(bench.directory.path(), "data", false) };
        let (qmp, _events) = bench.launch().await;
        power::start(&qmp).await.expect("started");
        bench.plug(&qmp, &data).await.expect("plugged in");
        io(&bench, &qmp, "write -P 17 0 64k").await;
        let other = target(&bench, &data).await;
        block::begin_mirror(&qmp, &other).await.expect("begun");
        until_ready(&qmp).await;
        block::switch_mirror(&qmp, "data").await.expect("switched");
        block::end_mirror(&qmp, "data").await.expect("ended");
        let disks = block::disks(&qmp).await.expect("disks");
        let seen = disks.into_iter().find(|disk| disk.id == "data").expect("it has it");
        assert_eq!((seen.file.as_ref(), seen.files_below), (Some(&other.file), 1));
        std::fs::remove_file(&data.file).expect("removed");
        io(&bench, &qmp, "read -P 17 0 64k").await;
        io(&bench, &qmp, "read -P 0 1M 64k").await;
        let bytes = std::fs::metadata(&other.file).expect("there").len();
        assert!(bytes < 4 * MIB, "{bytes}: what the disk has not written stays in the image");
        bench.end().await;
    }
}
