//! Machines that are saved to a file and go on in another process.

use std::path::PathBuf;
use std::time::Duration;

use berth_qemu::block;
use berth_qemu::cpus;
use berth_qemu::hypervisor::StateFile;
use berth_qemu::machine::{DiskSpec, Topology};
use berth_qemu::memory;
use berth_qemu::power::{self, RunState};
use berth_qemu::qmp::QmpError;
use berth_qemu::saved_state::{self, Transfer};

use super::{Bench, MIB, until_state};

/// A machine with a CPU and a disk that were plugged in, saved to a file and ended.
async fn saved(bench: &mut Bench) -> PathBuf {
    bench.spec.machine.topology = Topology::of_cores(2);
    bench.spec.machine.max_memory_bytes = Some(128 * MIB);
    let file = bench.directory.path().join("saved.state");
    let (qmp, _events) = bench.launch().await;
    power::start(&qmp).await.expect("started");
    cpus::plug(&qmp, 2).await.expect("plugged in");
    memory::request(&qmp, 32 * MIB).await.expect("requested");
    let data = bench.new_disk("data");
    bench.plug(&qmp, &data).await.expect("plugged in");
    assert_eq!(saved_state::transfer(&qmp).await.expect("asked"), Transfer::Idle);
    let without = saved_state::save(&qmp, true).await;
    assert!(matches!(without, Err(QmpError::Refused { .. })), "QEMU was given no file: {without:?}");
    assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running, "it goes on");
    let lend = bench.host.lend_state(&qmp, &bench.spec.files.paths, StateFile::Empty(&file)).await;
    lend.expect("given");
    saved_state::save(&qmp, true).await.expect("begun");
    until_state(&qmp, &RunState::PostMigrate).await;
    assert_eq!(saved_state::transfer(&qmp).await.expect("asked"), Transfer::Completed);
    power::quit(&qmp).await.expect("ended");
    qmp.closed().await;
    bench.end().await;
    // The disks as QEMU described them. CPUs are plugged in again: devices have as many queues as there were CPUs at the start.
    bench.spec.machine.disks[0].target = Some(0);
    bench.spec.machine.disks.push(DiskSpec { target: Some(1), ..data });
    bench.spec.files.from_saved_state = true;
    file
}

#[tokio::test]
async fn a_saved_machine_goes_on_in_another_process() {
    for mut bench in Bench::all() {
        let file = saved(&mut bench).await;
        let (qmp, _events) = bench.launch().await;
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::InMigrate);
        cpus::plug(&qmp, 2).await.expect("plugged in");
        let lend = bench.host.lend_state(&qmp, &bench.spec.files.paths, StateFile::Saved(&file)).await;
        lend.expect("given");
        saved_state::load(&qmp).await.expect("begun");
        until_state(&qmp, &RunState::Paused).await;
        assert!(saved_state::load(&qmp).await.is_err(), "it is loaded once");
        power::start(&qmp).await.expect("started");
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running);
        assert_eq!(cpus::observe(&qmp).await.expect("listed").present, 2);
        if bench.real {
            let growth = memory::observe(&qmp).await.expect("listed").expect("it can grow");
            assert_eq!(growth.requested, 32 * MIB, "a value that only the saved state has");
        }
        block::unplug(&qmp, "data", Duration::from_secs(1)).await.expect("QEMU knows the disk");
        bench.end().await;
    }
}

#[tokio::test]
async fn a_qemu_with_other_hardware_than_was_saved_ends() {
    for mut bench in Bench::all() {
        let file = saved(&mut bench).await;
        bench.spec.machine.disks.pop();
        bench.spec.machine.memory_bytes = 32 * MIB;
        bench.spec.machine.max_memory_bytes = None;
        let (qmp, _events) = bench.launch().await;
        let lend = bench.host.lend_state(&qmp, &bench.spec.files.paths, StateFile::Saved(&file)).await;
        lend.expect("given");
        saved_state::load(&qmp).await.expect("begun");
        tokio::time::timeout(Duration::from_secs(20), qmp.closed()).await.expect("it ends");
        assert!(file.exists(), "the state is kept");
        bench.end().await;
    }
}

#[tokio::test]
async fn a_cancelled_save_leaves_a_guest_that_goes_on() {
    for bench in Bench::all() {
        let (qmp, _events) = bench.launch().await;
        power::start(&qmp).await.expect("started");
        saved_state::cancel(&qmp).await.expect("there is none to cancel");
        let file = bench.directory.path().join("saved.state");
        let lend = bench.host.lend_state(&qmp, &bench.spec.files.paths, StateFile::Empty(&file)).await;
        lend.expect("given");
        saved_state::save(&qmp, true).await.expect("begun");
        saved_state::cancel(&qmp).await.expect("cancelled, or completed before");
        power::start(&qmp).await.expect("started");
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running);
        bench.end().await;
    }
}
