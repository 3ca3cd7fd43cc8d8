//! The same scenarios with a fake QEMU and, if it is installed, the real one.
//!
//! The real one runs under TCG with no operating system: a BIOS that finds nothing to boot.

#[path = "machine_over_qmp/disks.rs"]
mod disks;
#[path = "machine_over_qmp/hardware.rs"]
mod hardware;
#[path = "machine_over_qmp/live_move.rs"]
mod live_move;
#[path = "machine_over_qmp/mirrors.rs"]
mod mirrors;
#[path = "machine_over_qmp/overlays.rs"]
mod overlays;
#[path = "machine_over_qmp/saved_state.rs"]
mod saved_state;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use berth_qemu::block::{self, BlockError};
use berth_qemu::fake::FakeHypervisor;
use berth_qemu::hypervisor::{Hypervisor, Limits};
use berth_qemu::machine::{
    Accelerator, Bus, Cache, DiskSpec, Firmware, Format, Graphics, LaunchSpec, MachineFiles, MachinePaths,
    MachineSpec, Topology,
};
use berth_qemu::power::{self, RunState};
use berth_qemu::process::{LaunchError, LocalHypervisor};
use berth_qemu::qcow2;
use berth_qemu::qmp::{EventKind, Events, Notice, Qmp, QmpError};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// A host with one machine description and its files.
struct Bench {
    host: Arc<dyn Hypervisor>,
    spec: LaunchSpec,
    directory: tempfile::TempDir,
    real: bool,
}

impl Bench {
    fn all() -> Vec<Self> {
        let mut benches = vec![Self::new(Arc::new(FakeHypervisor::new()), false)];
        match LocalHypervisor::discover() {
            Ok(local) => benches.push(Self::new(Arc::new(local), true)),
            Err(error) => eprintln!("only the fake: {error}"),
        }
        benches
    }

    fn new(host: Arc<dyn Hypervisor>, real: bool) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        // QEMU runs as another user.
        std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711))
            .expect("ours");
        qcow2::create(&directory.path().join("boot.qcow2"), 64 * MIB).expect("a new disk");
        let spec = LaunchSpec {
            machine: MachineSpec {
                instance: format!("{}", directory.path().file_name().expect("named").display())
                    .replace('.', "t"),
                name: "web, the first".to_owned(),
                uuid: "7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c".to_owned(),
                cpus: 1,
                topology: Topology::of_cores(1),
                numa_nodes: 1,
                memory_bytes: 64 * MIB,
                max_memory_bytes: None,
                huge_page_bytes: None,
                accelerator: Accelerator::Tcg { tb_size_mib: 32 },
                firmware: Firmware::Bios,
                machine_type: "pc-q35-7.2".to_owned(),
                cpu_model: "qemu64".to_owned(),
                disks: vec![disk(directory.path(), "boot", true)],
                cdroms: vec![],
                nics: vec![],
                nic_ports: 0,
                pci_devices: Vec::new(),
                usb_devices: Vec::new(),
                vgpus: Vec::new(),
                shares: Vec::new(),
                graphics: Graphics::None,
                extras: Default::default(),
                tpm: false,
            },
            files: MachineFiles::new(MachinePaths::in_directory(directory.path().join("run"))),
            affinity: Default::default(),
        };
        Self { host, spec, directory, real }
    }

    async fn launch(&self) -> (Qmp, Events) {
        self.host.launch(&self.spec, Limits::default()).await.expect("launched");
        self.host.connect(&self.spec.files.paths).await.expect("connected")
    }

    async fn end(&self) {
        let process = self.host.find(&self.spec.machine.instance).await.expect("listed");
        if let Some(process) = process {
            self.host.kill(&process, Duration::from_secs(5)).await.expect("killed");
        }
    }

    fn new_disk(&self, id: &str) -> DiskSpec {
        qcow2::create(&self.directory.path().join(format!("{id}.qcow2")), 16 * MIB).expect("a new disk");
        disk(self.directory.path(), id, false)
    }

    async fn plug(&self, qmp: &Qmp, disk: &DiskSpec) -> Result<(), BlockError> {
        self.host.grant(&disk.file, true).await.expect("granted");
        block::plug(qmp, disk).await
    }
}

fn disk(directory: &Path, id: &str, boot: bool) -> DiskSpec {
    DiskSpec {
        id: id.to_owned(),
        file: directory.join(format!("{id}.qcow2")),
        format: Format::Qcow2,
        backing: None,
        serial: format!("serial-{id}"),
        wwn: None,
        boot,
        read_only: false,
        target: None,
        cache: Cache::Writeback,
        bus: Bus::VirtioScsi,
        keeps_space: false,
        shared: false,
    }
}

async fn wait_for(events: &mut Events, wanted: impl Fn(&EventKind) -> bool) -> EventKind {
    let search = async {
        loop {
            match events.next().await.expect("the connection lasts") {
                Notice::Event(event) if wanted(&event.kind()) => return event.kind(),
                _ => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), search).await.expect("the event came")
}

#[tokio::test]
async fn a_launched_machine_waits_for_its_start_then_runs_pauses_and_ends() {
    for bench in Bench::all() {
        let (qmp, mut events) = bench.launch().await;
        assert_eq!(power::run_state(&qmp).await.expect("state"), RunState::Prelaunch);
        power::start(&qmp).await.expect("started");
        // Events that QEMU sent before its reply are available together with the reply.
        let Some(Notice::Event(first)) = events.try_next() else { panic!("no event before the answer") };
        assert_eq!(first.kind(), EventKind::Resume);
        assert_eq!(power::run_state(&qmp).await.expect("state"), RunState::Running);
        power::start(&qmp).await.expect("starting twice is fine");
        let awake = power::wake_up(&qmp).await.expect_err("it does not sleep");
        assert!(awake.to_string().contains("Unable to wake up"), "{awake}");
        power::stop(&qmp).await.expect("stopped");
        assert_eq!(power::run_state(&qmp).await.expect("state"), RunState::Paused);
        let process = bench.host.find(&bench.spec.machine.instance).await.expect("listed").expect("runs");
        power::quit(&qmp).await.expect("ended");
        tokio::time::timeout(Duration::from_secs(10), bench.host.exited(&process))
            .await
            .expect("in time")
            .expect("exited");
        qmp.closed().await;
        assert!(!bench.host.is_alive(&process).await.expect("asked"));
        assert!(power::run_state(&qmp).await.expect_err("nobody there").is_disconnected());
    }
}

#[tokio::test]
async fn a_restarted_caller_finds_the_same_process_and_state() {
    for bench in Bench::all() {
        let (qmp, events) = bench.launch().await;
        power::start(&qmp).await.expect("started");
        let before = bench.host.find(&bench.spec.machine.instance).await.expect("listed");
        drop((qmp, events));
        let after = bench.host.find(&bench.spec.machine.instance).await.expect("listed");
        assert_eq!(before, after);
        let (qmp, _events) = bench.host.connect(&bench.spec.files.paths).await.expect("connected again");
        assert_eq!(power::run_state(&qmp).await.expect("state"), RunState::Running);
        bench.end().await;
    }
}

#[tokio::test]
async fn a_machine_that_cannot_start_says_why_and_leaves_no_process() {
    for mut bench in Bench::all() {
        bench.spec.machine.disks.push(disk(bench.directory.path(), "missing", false));
        let outcome = bench.host.launch(&bench.spec, Limits::default()).await;
        match outcome {
            Err(LaunchError::Exited { stderr, .. }) => assert!(stderr.contains("No such file"), "{stderr}"),
            // File ownership changes before the launch.
            Err(LaunchError::Prepare { path, .. }) => assert!(path.ends_with("missing.qcow2")),
            other => panic!("{other:?}"),
        }
        assert_eq!(bench.host.find(&bench.spec.machine.instance).await.expect("listed"), None);
    }
}

#[tokio::test]
async fn two_machines_never_have_one_disk() {
    for bench in Bench::all() {
        let (_qmp, _events) = bench.launch().await;
        let mut second = bench.spec.clone();
        second.machine.instance.push('b');
        second.files.paths = MachinePaths::in_directory(bench.directory.path().join("second"));
        match bench.host.launch(&second, Limits::default()).await {
            Err(LaunchError::Exited { stderr, .. }) => assert!(stderr.contains("lock"), "{stderr}"),
            other => panic!("{other:?}"),
        }
        let again = bench.host.launch(&bench.spec, Limits::default()).await;
        assert!(matches!(again, Err(LaunchError::AlreadyRunning { .. })), "{again:?}");
        bench.end().await;
    }
}

#[tokio::test]
async fn two_machines_have_one_disk_if_neither_writes_to_it() {
    for mut bench in Bench::all() {
        let data = DiskSpec { read_only: true, ..bench.new_disk("data") };
        bench.spec.machine.disks.push(data.clone());
        let (_qmp, _events) = bench.launch().await;
        let other = |name: &str, data: DiskSpec| {
            let mut other = bench.spec.clone();
            other.machine.instance.push_str(name);
            let boot = DiskSpec { boot: true, ..bench.new_disk(&format!("boot-{name}")) };
            other.machine.disks = vec![boot, data];
            other.files.paths = MachinePaths::in_directory(bench.directory.path().join(name));
            other
        };
        let reader = other("b", data.clone());
        bench.host.launch(&reader, Limits::default()).await.expect("it only reads");
        let writer = other("c", DiskSpec { read_only: false, ..data });
        match bench.host.launch(&writer, Limits::default()).await {
            Err(LaunchError::Exited { stderr, .. }) => assert!(stderr.contains("lock"), "{stderr}"),
            other => panic!("{other:?}"),
        }
        let process = bench.host.find(&reader.machine.instance).await.expect("listed").expect("it runs");
        bench.host.kill(&process, Duration::from_secs(5)).await.expect("killed");
        bench.end().await;
    }
}

#[tokio::test]
async fn a_second_client_of_one_monitor_waits_and_the_error_says_so() {
    for bench in Bench::all() {
        let (qmp, _events) = bench.launch().await;
        if bench.real {
            let stream =
                tokio::net::UnixStream::connect(&bench.spec.files.paths.qmp).await.expect("accepted");
            let outcome = Qmp::over_within(stream, Duration::from_millis(300)).await;
            assert!(matches!(outcome, Err(QmpError::NoGreeting { .. })), "{outcome:?}");
            let (rescue, _) =
                Qmp::connect(&bench.spec.files.paths.rescue).await.expect("the second monitor is free");
            assert_eq!(power::run_state(&rescue).await.expect("state"), RunState::Prelaunch);
        }
        assert_eq!(power::run_state(&qmp).await.expect("the first is served"), RunState::Prelaunch);
        bench.end().await;
    }
}

#[tokio::test]
async fn a_reset_machine_starts_over() {
    for bench in Bench::all() {
        let (qmp, mut events) = bench.launch().await;
        power::start(&qmp).await.expect("started");
        power::reset(&qmp).await.expect("reset");
        let kind = wait_for(&mut events, |k| matches!(k, EventKind::Reset { .. })).await;
        assert!(matches!(kind, EventKind::Reset { by_guest: false, .. }));
        assert_eq!(power::run_state(&qmp).await.expect("state"), RunState::Running);
        bench.end().await;
    }
}

/// The fake refuses invalid requests like QEMU: class and text are compared between the two.
#[tokio::test]
async fn refusals_read_the_same_from_both() {
    let commands = [
        ("nope", Value::Null),
        ("query-status", json!({"x": 1})),
        ("qmp_capabilities", Value::Null),
        ("device_del", json!({"id": "dX"})),
        ("device_del", Value::Null),
        ("blockdev-del", json!({"node-name": "dX"})),
        ("blockdev-del", json!({"node-name": "boot"})),
        ("blockdev-del", Value::Null),
        ("block_resize", json!({"node-name": "dX", "size": 1024})),
        ("qom-get", json!({"path": "/machine/peripheral/zz", "property": "serial"})),
        ("device_add", json!({"driver": "scsi-hd", "id": "boot", "drive": "boot", "bus": "scsi0.0"})),
        ("device_add", json!({"driver": "scsi-hd", "id": "d9", "drive": "dX", "bus": "scsi0.0"})),
        ("device_add", json!({"driver": "scsi-hd", "id": "d9", "drive": "boot", "bus": "scsi9.0"})),
        ("device_add", json!({"driver": "scsi-hd", "id": "d9", "bus": "scsi0.0"})),
        ("device_add", json!({"driver": "scsi-hd", "id": "d9", "drive": "boot", "bus": "scsi0.0"})),
        (
            "blockdev-add",
            json!({"driver": "qcow2", "node-name": "boot", "file": {"driver": "file", "filename": "/nonexistent"}}),
        ),
        (
            "blockdev-add",
            json!({"driver": "qcow2", "node-name": "n", "file": {"driver": "file", "filename": "/nonexistent"}}),
        ),
        (
            "blockdev-add",
            json!({"driver": "qcow2", "node-name": "n", "zork": 1, "file": {"driver": "file", "filename": "/nonexistent"}}),
        ),
    ];
    let mut refusals = Vec::new();
    for bench in Bench::all() {
        let (qmp, _events) = bench.launch().await;
        let mut words = Vec::new();
        for (command, args) in &commands {
            match qmp.execute(command, args.clone()).await {
                Err(QmpError::Refused { class, desc, .. }) => {
                    words.push(format!("{command}: {class}: {desc}"))
                }
                other => panic!("{command} {args}: {other:?}"),
            }
        }
        refusals.push(words);
        bench.end().await;
    }
    assert!(refusals.windows(2).all(|pair| pair[0] == pair[1]), "{refusals:#?}");
}

async fn until_state(qmp: &Qmp, wanted: &RunState) {
    let search = async {
        while power::run_state(qmp).await.expect("it answers") != *wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), search).await.expect("it comes to this state");
}
