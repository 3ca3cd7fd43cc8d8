//! Running machines that go on in another process, whose state comes over a connection.

use std::time::Duration;

use berth_qemu::hypervisor::Limits;
use berth_qemu::live_move::{self, SendLimits, SendPhase};
use berth_qemu::machine::{LaunchSpec, MachineFiles, MachinePaths};
use berth_qemu::power::{self, RunState};
use berth_qemu::qmp::Qmp;
use berth_qemu::saved_state;
use tokio::io::AsyncWriteExt;

use super::{Bench, until_state};

const LIMITS: SendLimits = SendLimits { bandwidth: 1 << 30, downtime_ms: 300 };

/// The machine that the guest goes to, with the files of the first.
fn destination(bench: &Bench) -> LaunchSpec {
    let mut spec = bench.spec.clone();
    spec.machine.instance = format!("{}d", spec.machine.instance);
    spec.files = MachineFiles::new(MachinePaths::in_directory(bench.directory.path().join("run-d")));
    spec.files.from_saved_state = true;
    spec
}

async fn until_phase(qmp: &Qmp, wanted: SendPhase) {
    let reached = async {
        loop {
            let (phase, _) = live_move::progress(qmp).await.expect("asked");
            if phase == wanted {
                return;
            }
            assert!(!matches!(phase, SendPhase::Failed(_)), "{phase:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reached).await.expect("it comes to this phase");
}

/// Sends the running guest until it is loaded by the other machine, and returns the monitor of that.
async fn sent(bench: &Bench, source: &Qmp, spec: &LaunchSpec) -> Qmp {
    bench.host.launch(spec, Limits::default()).await.expect("the files are not locked yet");
    let (arriving, _events) = bench.host.connect(&spec.files.paths).await.expect("connected");
    let to = bench.host.lend_channel(&arriving, &spec.files.paths).await.expect("given");
    live_move::receive(&arriving).await.expect("begun");
    let from = bench.host.lend_channel(source, &bench.spec.files.paths).await.expect("given");
    live_move::send(source, LIMITS).await.expect("begun");
    let ((mut from, _), (_, mut to)) = (from.into_parts(), to.into_parts());
    let copied = tokio::spawn(async move {
        tokio::io::copy(&mut from, &mut to).await.expect("copied");
        to.shutdown().await.expect("ended");
    });
    until_phase(source, SendPhase::ReadyToSwitch).await;
    live_move::switch_over(source).await.expect("switched");
    until_phase(source, SendPhase::Completed).await;
    copied.await.expect("the state has an end");
    until_state(&arriving, &RunState::Paused).await;
    arriving
}

async fn end(bench: &Bench, spec: &LaunchSpec) {
    if let Some(process) = bench.host.find(&spec.machine.instance).await.expect("listed") {
        bench.host.kill(&process, Duration::from_secs(5)).await.expect("killed");
    }
    bench.end().await;
}

#[tokio::test]
async fn a_running_machine_goes_on_in_another_process() {
    for bench in Bench::all() {
        let (source, _events) = bench.launch().await;
        power::start(&source).await.expect("started");
        let spec = destination(&bench);
        let arrived = sent(&bench, &source, &spec).await;
        assert_eq!(power::run_state(&source).await.expect("asked"), RunState::PostMigrate);
        power::start(&arrived).await.expect("started");
        live_move::announce(&arrived).await.expect("announced");
        assert_eq!(power::run_state(&arrived).await.expect("asked"), RunState::Running);
        assert!(power::start(&source).await.is_err(), "the other machine has the disks");
        end(&bench, &spec).await;
    }
}

#[tokio::test]
async fn a_machine_that_was_sent_goes_on_if_the_other_one_has_not_started() {
    for bench in Bench::all() {
        let (source, _events) = bench.launch().await;
        power::start(&source).await.expect("started");
        let spec = destination(&bench);
        let arrived = sent(&bench, &source, &spec).await;
        // As a host does whose agent is not asked to start it.
        bench.host.grant(&bench.spec.machine.disks[0].file, true).await.expect("granted");
        power::start(&source).await.expect("it takes its disks again");
        assert_eq!(power::run_state(&source).await.expect("asked"), RunState::Running);
        assert!(power::start(&arrived).await.is_err(), "the first machine has the disks");
        end(&bench, &spec).await;
    }
}

#[tokio::test]
async fn a_guest_whose_move_is_cancelled_runs_on_and_can_be_saved_later() {
    for bench in Bench::all() {
        let (source, _events) = bench.launch().await;
        power::start(&source).await.expect("started");
        let from = bench.host.lend_channel(&source, &bench.spec.files.paths).await.expect("given");
        live_move::send(&source, LIMITS).await.expect("begun");
        // Nothing reads it: the other host is gone.
        drop(from);
        saved_state::cancel(&source).await.expect("cancelled");
        until_state(&source, &RunState::Running).await;
        bench.end().await;
    }
}
