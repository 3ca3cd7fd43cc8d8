use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::balloon;
use crate::block::{self, Unplugged};
use crate::guest_agent::{GuestAgentError, ShutdownMode, has_listener, mounts_of};
use crate::hypervisor::{Hypervisor, Limits};
use crate::machine::{
    Bus, Cache, DiskSpec, Format, LaunchSpec, MachinePaths, NicModel, NicSpec, Tap, example,
};
use crate::power::{self, RunState};
use crate::process::LaunchError;
use crate::qmp::{Event, EventKind, Events, Notice, Qmp, QmpError};

/// Image files that exist as soon as they are requested.
#[derive(Debug)]
struct Anything;

impl ImageFiles for Anything {
    fn size(&self, _: &Path, _: Format) -> std::io::Result<u64> {
        Ok(1 << 30)
    }
    fn grow(&self, _: &Path, _: Format, _: u64) -> std::io::Result<()> {
        Ok(())
    }
    fn create(&self, _: &Path, _: u64) -> std::io::Result<()> {
        Ok(())
    }
}

fn disk(id: &str) -> DiskSpec {
    DiskSpec {
        id: id.to_owned(),
        file: format!("/pool/{id}").into(),
        format: Format::Qcow2,
        backing: None,
        serial: format!("serial-{id}"),
        wwn: None,
        boot: id == "root",
        read_only: false,
        target: None,
        cache: Cache::Writeback,
        bus: Bus::VirtioScsi,
        keeps_space: false,
        shared: false,
    }
}

fn spec(instance: &str) -> LaunchSpec {
    let nic = NicSpec {
        id: "nic0".to_owned(),
        tap: Tap::Name("tap0".to_owned()),
        mac: "52:54:00:12:34:56".to_owned(),
        mtu: None,
        slot: 0,
        model: NicModel::default(),
        port: None,
        queues: 1,
        no_vhost: false,
    };

    let mut spec = example(Path::new("/run"));
    spec.machine.instance = instance.to_owned();
    spec.machine.disks = vec![disk("root")];
    spec.machine.nics = vec![nic];
    spec.files.paths = MachinePaths::in_directory(format!("/run/{instance}"));
    spec
}

fn host() -> FakeHypervisor {
    FakeHypervisor::with_files(std::sync::Arc::new(Anything))
}

async fn running(host: &FakeHypervisor, spec: &LaunchSpec) -> (Qmp, Events) {
    host.launch(spec, Limits::default()).await.expect("launched");
    let (qmp, events) = host.connect(&spec.files.paths).await.expect("connected");
    power::start(&qmp).await.expect("started");
    (qmp, events)
}

async fn until(events: &mut Events, wanted: impl Fn(&EventKind) -> bool) -> Event {
    loop {
        match events.next().await.expect("connected") {
            Notice::Event(event) if wanted(&event.kind()) => return event,
            _ => {}
        }
    }
}

fn opened(kind: &EventKind) -> bool {
    matches!(kind, EventKind::PortOpened { open: true, .. })
}

#[tokio::test(start_paused = true)]
async fn a_guest_suspends_itself_on_request_of_its_agent_until_it_is_woken_up() {
    let (host, spec) = (host(), spec("a"));
    let (qmp, mut events) = running(&host, &spec).await;
    until(&mut events, opened).await;
    let mut agent = host.guest_agent(&spec.files.paths).await.expect("the channel is there");
    let early = power::wake_up(&qmp).await.expect_err("it runs");
    assert!(early.to_string().contains("guest is not in suspended state"), "{early}");
    agent.suspend_to_memory().await.expect("asked");
    until(&mut events, |kind| *kind == EventKind::Suspend).await;
    power::start(&qmp).await.expect("QEMU ignores it");
    assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Suspended);
    power::wake_up(&qmp).await.expect("woken up");
    until(&mut events, |kind| *kind == EventKind::Wakeup).await;
    assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running);
    agent.ping().await.expect("it goes on");
}

#[tokio::test(start_paused = true)]
async fn a_guest_boots_tells_of_itself_and_shuts_down_when_asked() {
    let (host, spec) = (host(), spec("a"));
    host.set_behaviour("a", |b| {
        b.boot_time = Duration::from_secs(20);
        b.guest.addresses.push(GuestAddress { nic: 0, address: [10, 0, 0, 5].into(), prefix: 24 });
        b.guest.mounts.insert("serial-root".to_owned(), "/".to_owned());
    });
    let (qmp, mut events) = running(&host, &spec).await;
    let mut agent = host.guest_agent(&spec.files.paths).await.expect("the channel is there");
    assert!(matches!(agent.ping().await, Err(GuestAgentError::Silent { .. })));
    assert!(!has_listener(&qmp).await.expect("QEMU says"));
    let start = Instant::now();
    until(&mut events, opened).await;
    assert!(start.elapsed() >= Duration::from_secs(17));
    assert!(has_listener(&qmp).await.expect("QEMU says"));
    agent.ping().await.expect("booted");
    assert_eq!(agent.host_name().await.expect("name"), spec.machine.name);
    assert_eq!(agent.os_info().await.expect("system").id, "debian");
    let nic = agent.interfaces().await.expect("interfaces").remove(1);
    assert_eq!(
        (nic.mac.as_deref(), nic.addresses),
        (Some("52:54:00:12:34:56"), vec![([10, 0, 0, 5].into(), 24)])
    );
    let mounted = agent.filesystems().await.expect("mounts");
    assert_eq!(mounts_of(&mounted, "serial-root", Some(0))[0].mountpoint, "/");
    power::powerdown(&qmp).await.expect("pressed");
    let off = until(&mut events, |k| matches!(k, EventKind::Shutdown { .. })).await;
    assert_eq!(off.kind(), EventKind::Shutdown { by_guest: true, reason: "guest-shutdown".to_owned() });
    assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Shutdown);
    let refused = power::start(&qmp).await.expect_err("needs a reset");
    assert!(refused.to_string().contains("Resetting the Virtual Machine is required"));
    power::reset(&qmp).await.expect("reset");
    power::start(&qmp).await.expect("started");
    until(&mut events, opened).await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_with_a_driver_fills_its_balloon_and_reports_its_memory_once_it_is_asked() {
    let (host, spec) = (host(), spec("a"));
    host.set_behaviour("a", |b| b.memory_used = 100 << 20);
    let (qmp, mut events) = running(&host, &spec).await;
    until(&mut events, opened).await;
    let size = spec.machine.memory_bytes;
    let before = balloon::observe(&qmp).await.expect("observed");
    assert_eq!((before.left, before.report), (size, None));
    balloon::report_regularly(&qmp).await.expect("accepted");
    balloon::request(&qmp, size / 2).await.expect("accepted");
    let after = balloon::observe(&qmp).await.expect("observed");
    let memory = after.report.expect("a report").memory;
    assert_eq!((after.left, memory.total, memory.used()), (size / 2, size / 2, 100 << 20));
    assert!(balloon::request(&qmp, 0).await.is_err(), "QEMU refuses it, too");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_ignores_the_button_keeps_running_until_it_is_killed() {
    let (host, spec) = (host(), spec("a"));
    host.set_behaviour("a", |b| b.ignores_powerdown = true);
    let (qmp, mut events) = running(&host, &spec).await;
    until(&mut events, opened).await;
    power::powerdown(&qmp).await.expect("pressed");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running);
    let process = host.find("a").await.expect("listed").expect("runs");
    host.kill(&process, Duration::ZERO).await.expect("killed");
    host.exited(&process).await.expect("gone");
    assert_eq!(host.find("a").await.expect("listed"), None);
    qmp.closed().await;
    assert!(host.connect(&spec.files.paths).await.expect_err("gone").is_disconnected());
}

#[tokio::test(start_paused = true)]
async fn a_disk_the_guest_keeps_is_waited_for_and_released_once_it_lets_go() {
    let (host, spec) = (host(), spec("a"));
    host.set_behaviour("a", |b| b.keeps.push("data".to_owned()));
    let (qmp, _events) = running(&host, &spec).await;
    host.grant(Path::new("/pool/data"), true).await.expect("granted");
    block::plug(&qmp, &disk("data")).await.expect("plugged");
    let start = Instant::now();
    for _ in 0..2 {
        let outcome = block::unplug(&qmp, "data", Duration::from_secs(5)).await.expect("asked");
        assert_eq!(outcome, Unplugged::Waiting);
    }
    assert!(start.elapsed() >= Duration::from_secs(10) && start.elapsed() < Duration::from_secs(12));
    assert_eq!(host.view("a").expect("runs").disks.len(), 2);
    host.guest_releases("a", "data");
    let outcome = block::unplug(&qmp, "data", Duration::from_secs(5)).await.expect("asked");
    assert_eq!(outcome, Unplugged::Released);
    let view = host.view("a").expect("runs");
    assert_eq!((view.nodes, view.disks.len()), (vec!["root".to_owned()], 1));
}

#[tokio::test(start_paused = true)]
async fn a_file_nobody_granted_cannot_be_opened() {
    let (host, spec) = (host(), spec("a"));
    let (qmp, _events) = running(&host, &spec).await;
    let error = block::plug(&qmp, &disk("data")).await.expect_err("not ours to open");
    assert!(error.to_string().contains("Permission denied"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_machine_lives_on_when_every_handle_is_dropped() {
    let (host, spec) = (host(), spec("a"));
    drop(running(&host, &spec).await);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let (qmp, _events) = host.connect(&spec.files.paths).await.expect("connected");
    assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running);
    assert!(host.view("a").expect("runs").booted);
    let again = host.launch(&spec, Limits::default()).await;
    assert!(matches!(again, Err(LaunchError::AlreadyRunning { .. })));
    assert_eq!((host.launches(), host.instances()), (1, vec!["a".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn failures_come_as_they_come_from_qemu() {
    let (host, spec) = (host(), spec("a"));
    host.set_behaviour("a", |b| b.fails_at_start = Some("qemu-system-x86_64: no".to_owned()));
    let failed = host.launch(&spec, Limits::default()).await.expect_err("fails");
    assert!(failed.to_string().contains("qemu-system-x86_64: no"), "{failed}");
    host.set_behaviour("a", |b| {
        b.fails_at_start = None;
        b.refuses.insert("stop".to_owned(), "not now".to_owned());
    });
    let (qmp, mut events) = running(&host, &spec).await;
    assert!(matches!(power::stop(&qmp).await, Err(QmpError::Refused { .. })));
    host.set_behaviour("a", |b| b.latency = Duration::from_secs(2));
    let start = Instant::now();
    power::run_state(&qmp).await.expect("slow");
    assert_eq!(start.elapsed(), Duration::from_secs(2));
    host.disk_full("a", "root");
    let full = until(&mut events, |k| matches!(k, EventKind::BlockIoError { .. })).await;
    assert_eq!(full.kind(), EventKind::BlockIoError { node: Some("root".to_owned()), no_space: true });
    assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::IoError);
    assert!(block::disks(&qmp).await.expect("disks")[0].io_error);
    host.set_behaviour("a", |b| b.hangs = true);
    assert!(matches!(power::run_state(&qmp).await, Err(QmpError::Timeout { .. })));
    host.crash("a");
    qmp.closed().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_reboots_panics_and_shuts_itself_down() {
    let (host, spec) = (host(), spec("a"));
    let (qmp, mut events) = running(&host, &spec).await;
    until(&mut events, opened).await;
    let mut agent = host.guest_agent(&spec.files.paths).await.expect("the channel is there");
    agent.shutdown(ShutdownMode::Reboot).await.expect("asked");
    until(&mut events, |k| matches!(k, EventKind::Reset { by_guest: true, .. })).await;
    until(&mut events, opened).await;
    host.guest_panics("a");
    until(&mut events, |k| *k == EventKind::GuestPanicked).await;
    assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::GuestPanicked);
    power::reset(&qmp).await.expect("reset");
    power::start(&qmp).await.expect("started");
    host.guest_powers_off("a");
    assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Shutdown);
}

#[tokio::test(start_paused = true)]
async fn one_client_is_served_at_a_time_and_the_next_when_it_is_gone() {
    let (host, spec) = (host(), spec("a"));
    let (first, _events) = running(&host, &spec).await;
    let (near, far) = tokio::io::duplex(1 << 16);
    assert!(host.serve_monitor("a", far));
    let waiting = Qmp::over_within(near, Duration::from_secs(1)).await;
    assert!(matches!(waiting, Err(QmpError::NoGreeting { .. })), "{waiting:?}");
    drop(first);
    host.connect(&spec.files.paths).await.expect("free again");
}

#[tokio::test(start_paused = true)]
async fn foreign_machines_are_listed_as_such() {
    let host = host();
    let _connection = running(&host, &spec("a")).await;
    let foreign = host.add_foreign("theirs");
    let all = host.list().await.expect("listed");
    let names: Vec<_> = all.iter().map(|q| (q.instance.as_deref(), q.name.as_deref())).collect();
    assert_eq!(names, [(Some("a"), Some("web")), (None, Some("theirs"))]);
    assert!(host.is_alive(&foreign).await.expect("asked"));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_machines_start_in_no_time() {
    let host = host();
    let mut connections = Vec::new();
    for n in 0..1000 {
        let mut spec = spec(&format!("i-{n}"));
        spec.machine.disks = vec![DiskSpec { file: format!("/pool/{n}").into(), ..disk("root") }];
        connections.push(running(&host, &spec).await);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!((0..1000).all(|n| host.view(&format!("i-{n}")).is_some_and(|v| v.booted)));
    let (qmp, _events) = &connections[999];
    let status = qmp.execute("query-status", json!({})).await.expect("asked");
    assert_eq!(status["status"], "running");
}
