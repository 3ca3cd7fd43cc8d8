//! The same scenarios with a fake QEMU and, if it is installed, the real one.
//!
//! The real one runs under TCG with no operating system: a BIOS that finds nothing to boot.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth_qemu::balloon::{self, Balloon};
use berth_qemu::block::{self, BlockError, IoLimits, ObservedCdrom, ObservedDisk, Unplugged};
use berth_qemu::cdrom::{self, Changed};
use berth_qemu::cpus;
use berth_qemu::fake::FakeHypervisor;
use berth_qemu::hypervisor::{Hypervisor, Limits, StateFile};
use berth_qemu::machine::{
    Accelerator, Backing, Bus, Cache, CdromSpec, DiskKey, DiskSpec, Firmware, Format, Graphics, LaunchSpec,
    MachineFiles, MachinePaths, MachineSpec, Medium, Topology, TpmFiles,
};
use berth_qemu::memory::{self, Growth};
use berth_qemu::power::{self, RunState};
use berth_qemu::process::{LaunchError, LocalHypervisor};
use berth_qemu::qcow2;
use berth_qemu::qmp::{EventKind, Events, Notice, Qmp, QmpError};
use berth_qemu::saved_state::{self, Transfer};
use berth_qemu::tpm;
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

async fn until_state(qmp: &Qmp, wanted: &RunState) {
    let search = async {
        while power::run_state(qmp).await.expect("it answers") != *wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), search).await.expect("it comes to this state");
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

/// Creates the overlay that a disk continues in.
fn overlay_on(below: &DiskSpec, number: u32, size: u64) -> DiskSpec {
    let file = below.file.with_file_name(format!("{}.{number}.qcow2", below.id));
    let backing = Backing { file: below.file.clone(), format: Format::Qcow2, backing: None };
    qcow2::create_overlay(&file, size, &backing).expect("an overlay");
    DiskSpec { file, ..below.clone() }
}

#[tokio::test]
async fn disks_of_a_running_machine_continue_in_overlays_all_at_once_or_not_at_all() {
    for bench in Bench::all() {
        let (data, log) = (bench.new_disk("data"), bench.new_disk("log"));
        let (qmp, _events) = bench.launch().await;
        let mut overlays = Vec::new();
        for disk in [&data, &log] {
            bench.plug(&qmp, disk).await.expect("plugged");
            let overlay = overlay_on(disk, 1, 16 * MIB);
            bench.host.grant(&overlay.file, true).await.expect("granted");
            overlays.push(overlay);
        }
        let files = async || -> Vec<Option<PathBuf>> {
            let seen = block::disks(&qmp).await.expect("disks");
            let file = |id: &str| seen.iter().find(|disk| disk.id == id).and_then(|disk| disk.file.clone());
            vec![file("data"), file("log")]
        };
        let before = [&data, &log].map(|disk| Some(disk.file.clone()));
        let missing = DiskSpec { file: log.file.with_file_name("none.qcow2"), ..log.clone() };
        block::continue_in_overlays(&qmp, &[overlays[0].clone(), missing]).await.expect_err("no such file");
        assert_eq!(files().await, before, "neither is switched");
        assert!(block::continue_in_overlays(&qmp, &overlays).await.expect("switched"));
        assert_eq!(files().await, [0, 1].map(|n: usize| Some(overlays[n].file.clone())));
        assert!(!block::continue_in_overlays(&qmp, &overlays).await.expect("switched before"));
        let second = overlay_on(&overlays[1], 2, 16 * MIB);
        let torn = block::continue_in_overlays(&qmp, &[overlays[0].clone(), second]).await;
        assert!(matches!(torn, Err(BlockError::NotOneMoment { .. })), "{torn:?}");
        assert_eq!(files().await, [0, 1].map(|n: usize| Some(overlays[n].file.clone())));
        bench.end().await;
    }
}

/// A snapshot with memory: the disks are switched while the guest is still paused, and the guest of the state goes on on the former files.
#[tokio::test]
async fn disks_continue_in_overlays_between_the_end_of_a_save_and_the_guest_that_goes_on() {
    for mut bench in Bench::all() {
        let data = bench.new_disk("data");
        let state = bench.directory.path().join("saved.state");
        let (qmp, _events) = bench.launch().await;
        power::start(&qmp).await.expect("started");
        bench.plug(&qmp, &data).await.expect("plugged in");
        let overlay = overlay_on(&data, 1, 16 * MIB);
        bench.host.grant(&overlay.file, true).await.expect("granted");
        let lend = bench.host.lend_state(&qmp, &bench.spec.files.paths, StateFile::Empty(&state)).await;
        lend.expect("given");
        saved_state::save(&qmp, true).await.expect("begun");
        until_state(&qmp, &RunState::PostMigrate).await;
        let switched = block::continue_in_overlays(&qmp, std::slice::from_ref(&overlay)).await;
        assert!(switched.expect("QEMU allows it in this state"));
        power::start(&qmp).await.expect("started again");
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running);
        let open = block::disks(&qmp).await.expect("disks");
        let file = open.into_iter().find(|disk| disk.id == "data").and_then(|disk| disk.file);
        assert_eq!(file.as_ref(), Some(&overlay.file), "the guest goes on on the new file");
        power::quit(&qmp).await.expect("ended");
        qmp.closed().await;
        bench.end().await;

        let restored = overlay_on(&data, 2, 16 * MIB);
        let backing = Backing { file: data.file.clone(), format: Format::Qcow2, backing: None };
        bench.spec.machine.disks[0].target = Some(0);
        bench.spec.machine.disks.push(DiskSpec { target: Some(1), backing: Some(backing), ..restored });
        bench.spec.files.from_saved_state = true;
        // As a snapshot keeps it: under another name as well.
        std::fs::hard_link(&state, bench.directory.path().join("kept.state")).expect("another name");
        let (qmp, _events) = bench.launch().await;
        let lend = bench.host.lend_state(&qmp, &bench.spec.files.paths, StateFile::Saved(&state)).await;
        lend.expect("given");
        saved_state::load(&qmp).await.expect("begun");
        until_state(&qmp, &RunState::Paused).await;
        power::start(&qmp).await.expect("started");
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Running);
        bench.end().await;
    }
}

/// Takes a snapshot with memory as far as QEMU is concerned. Returns the file with the state.
async fn save_and_switch(bench: &Bench, qmp: &Qmp, overlay: &DiskSpec, name: &str) -> PathBuf {
    let state = bench.directory.path().join(name);
    bench.host.grant(&overlay.file, true).await.expect("granted");
    let lend = bench.host.lend_state(qmp, &bench.spec.files.paths, StateFile::Empty(&state)).await;
    lend.expect("given");
    saved_state::save(qmp, true).await.expect("begun");
    until_state(qmp, &RunState::PostMigrate).await;
    assert_eq!(saved_state::transfer(qmp).await.expect("asked"), Transfer::Completed);
    assert!(block::continue_in_overlays(qmp, std::slice::from_ref(overlay)).await.expect("switched"));
    power::start(qmp).await.expect("started again");
    state
}

/// Writes to the disk `data` as its guest does; only in the real QEMU.
async fn write(bench: &Bench, qmp: &Qmp, pattern: u8) {
    if bench.real {
        let command = format!("qemu-io -d data \"write -P {pattern} 0 4k\"");
        let written = qmp.execute("human-monitor-command", json!({"command-line": command})).await;
        written.expect("written");
    }
}

/// Checks which of these patterns a file has; only one that the real QEMU wrote to.
fn assert_has(bench: &Bench, disk: &DiskSpec, patterns: &[u8]) {
    if !bench.real {
        return;
    }
    let bytes = std::fs::read(&disk.file).expect("read");
    let has = |pattern: u8| bytes.chunks(512).any(|sector| sector.iter().all(|byte| *byte == pattern));
    let found: Vec<u8> = [17, 34, 51, 68].into_iter().filter(|pattern| has(*pattern)).collect();
    assert_eq!(found, patterns, "{}", disk.file.display());
}

/// As a snapshot is finished: no QEMU writes to the file of the disk any more, and nothing may.
fn finish(bench: &Bench, disk: &DiskSpec) {
    if !bench.real {
        return;
    }
    let file = std::fs::File::open(&disk.file).expect("opened");
    // QEMU's lock of a file that it writes to.
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 101,
        l_len: 1,
        l_pid: 0,
    };
    nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_OFD_GETLK(&mut lock)).expect("asked");
    assert_eq!(lock.l_type, libc::F_UNLCK as libc::c_short, "a QEMU writes to {}", disk.file.display());
    std::fs::set_permissions(&disk.file, std::os::unix::fs::PermissionsExt::from_mode(0o444)).expect("ours");
}

#[tokio::test]
async fn each_save_of_a_machine_is_of_its_own_moment_and_so_are_the_files_of_its_disk() {
    for mut bench in Bench::all() {
        let data = bench.new_disk("data");
        let (qmp, _events) = bench.launch().await;
        power::start(&qmp).await.expect("started");
        bench.plug(&qmp, &data).await.expect("plugged in");
        write(&bench, &qmp, 17).await;
        let first = overlay_on(&data, 1, 16 * MIB);
        save_and_switch(&bench, &qmp, &first, "first.state").await;
        finish(&bench, &data);
        write(&bench, &qmp, 34).await;
        let second = overlay_on(&first, 2, 16 * MIB);
        let state = save_and_switch(&bench, &qmp, &second, "second.state").await;
        finish(&bench, &first);
        write(&bench, &qmp, 51).await;
        for (disk, patterns) in [(&data, [17]), (&first, [34]), (&second, [51])] {
            assert_has(&bench, disk, &patterns);
        }
        power::quit(&qmp).await.expect("ended");
        qmp.closed().await;
        bench.end().await;

        let restored = overlay_on(&first, 3, 16 * MIB);
        let backing = chain_of(&[&first.file, &data.file]);
        bench.spec.machine.disks[0].target = Some(0);
        bench.spec.machine.disks.push(DiskSpec { target: Some(1), backing, ..restored.clone() });
        bench.spec.files.from_saved_state = true;
        let (qmp, _events) = bench.launch().await;
        let lend = bench.host.lend_state(&qmp, &bench.spec.files.paths, StateFile::Saved(&state)).await;
        lend.expect("given");
        saved_state::load(&qmp).await.expect("begun");
        until_state(&qmp, &RunState::Paused).await;
        power::start(&qmp).await.expect("started");
        write(&bench, &qmp, 68).await;
        for (disk, patterns) in [(&first, [34]), (&second, [51]), (&restored, [68])] {
            assert_has(&bench, disk, &patterns);
        }
        bench.end().await;
    }
}

#[tokio::test]
async fn a_disk_of_a_running_machine_continues_in_an_overlay_and_is_grown_and_released_after_that() {
    for bench in Bench::all() {
        let data = bench.new_disk("data");
        let (qmp, _events) = bench.launch().await;
        bench.plug(&qmp, &data).await.expect("plugged");
        let limits = IoLimits { iops: 100, ..IoLimits::default() };
        block::set_limits(&qmp, "data", &limits).await.expect("set");
        let first = overlay_on(&data, 1, 16 * MIB);
        bench.host.grant(&first.file, true).await.expect("granted");
        assert!(block::continue_in_overlays(&qmp, std::slice::from_ref(&first)).await.expect("switched"));
        assert!(
            !block::continue_in_overlays(&qmp, std::slice::from_ref(&first)).await.expect("switched before")
        );
        let seen = |disks: Vec<ObservedDisk>| disks.into_iter().find(|d| d.id == "data").expect("plugged");
        let now = seen(block::disks(&qmp).await.expect("disks"));
        assert_eq!((now.file.as_ref(), now.limits, now.read_only), (Some(&first.file), limits, false));
        block::resize(&qmp, "data", 20 * MIB).await.expect("grown");
        // Created before the disk grew.
        let second = overlay_on(&first, 2, 20 * MIB);
        bench.host.grant(&second.file, true).await.expect("granted");
        block::resize(&qmp, "data", 24 * MIB).await.expect("grown");
        assert!(block::continue_in_overlays(&qmp, std::slice::from_ref(&second)).await.expect("switched"));
        let now = seen(block::disks(&qmp).await.expect("disks"));
        assert_eq!((now.file.as_ref(), now.size), (Some(&second.file), 24 * MIB));
        let outcome = block::unplug(&qmp, "data", Duration::from_secs(10)).await.expect("unplugged");
        assert_eq!(outcome, Unplugged::Released);
        // Every file is released: each can be opened for writing again.
        for disk in [&data, &first, &second] {
            qcow2::grow(&disk.file, 32 * MIB).expect("nothing has it open");
        }
        let backing = Backing { file: first.file.clone(), format: Format::Qcow2, backing: None };
        let backing = Backing {
            backing: Some(Box::new(Backing {
                file: data.file.clone(),
                format: Format::Qcow2,
                backing: None,
            })),
            ..backing
        };
        bench.host.grant(&data.file, false).await.expect("granted");
        bench.host.grant(&first.file, false).await.expect("granted");
        let again = DiskSpec { backing: Some(backing), ..second.clone() };
        bench.plug(&qmp, &again).await.expect("plugged with the files below it");
        let missing = block::continue_in_overlays(&qmp, &[DiskSpec { id: "none".into(), ..second }]).await;
        assert!(matches!(missing, Err(BlockError::NoSuchDisk { .. })), "{missing:?}");
        bench.end().await;
    }
}

/// Returns a chain of these files, the nearest first.
fn chain_of(files: &[&PathBuf]) -> Option<Backing> {
    let (file, below) = files.split_first()?;
    let backing = chain_of(below).map(Box::new);
    Some(Backing { file: (*file).clone(), format: Format::Qcow2, backing })
}

#[tokio::test]
async fn a_disk_of_a_running_machine_gets_a_shorter_chain_and_closes_the_files_that_it_does_not_need() {
    for bench in Bench::all() {
        let data = bench.new_disk("data");
        let (qmp, _events) = bench.launch().await;
        bench.plug(&qmp, &data).await.expect("plugged");
        let limits = IoLimits { iops: 100, ..IoLimits::default() };
        block::set_limits(&qmp, "data", &limits).await.expect("set");
        let mut disks = vec![data];
        let overlay = async |disks: &mut Vec<DiskSpec>| {
            let number = u32::try_from(disks.len()).expect("few");
            let next = overlay_on(disks.last().expect("one"), number, 16 * MIB);
            bench.host.grant(&next.file, true).await.expect("granted");
            assert!(block::continue_in_overlays(&qmp, std::slice::from_ref(&next)).await.expect("switched"));
            disks.push(next);
        };
        for _ in 0..3 {
            overlay(&mut disks).await;
        }
        let seen = async || {
            let found = block::disks(&qmp).await.expect("disks");
            found.into_iter().find(|disk| disk.id == "data").expect("plugged")
        };
        let before = seen().await;
        assert_eq!(before.files_below, 3);
        // The data of the first two files in one, as after a merge.
        let merged = disks[0].file.with_file_name("merged.qcow2");
        std::fs::copy(&disks[0].file, &merged).expect("copied");
        for file in [&disks[2].file, &merged] {
            bench.host.grant(file, false).await.expect("granted");
        }
        let shorter = DiskSpec { backing: chain_of(&[&disks[2].file, &merged]), ..disks[3].clone() };
        let other = DiskSpec { file: disks[0].file.clone(), ..shorter.clone() };
        let refused = block::shorten_chain(&qmp, &other).await;
        assert!(matches!(refused, Err(BlockError::Conflict { .. })), "{refused:?}");
        let gone = merged.with_file_name("gone.qcow2");
        let broken = DiskSpec { backing: chain_of(&[&gone]), ..shorter.clone() };
        block::shorten_chain(&qmp, &broken).await.expect_err("no such file");
        assert_eq!(seen().await, before, "as it was");
        for _ in 0..2 {
            block::shorten_chain(&qmp, &shorter).await.expect("shortened, or before");
            assert_eq!(seen().await, ObservedDisk { files_below: 2, ..before.clone() });
        }
        for released in &disks[..2] {
            qcow2::grow(&released.file, 20 * MIB).expect("nothing has it open");
        }
        // It goes on with snapshots, another chain, growth and its release.
        overlay(&mut disks).await;
        let shortest = DiskSpec { backing: chain_of(&[&merged]), ..disks[4].clone() };
        block::shorten_chain(&qmp, &shortest).await.expect("shortened");
        let now = seen().await;
        assert_eq!((now.files_below, now.file.as_ref(), now.limits), (1, Some(&disks[4].file), limits));
        block::resize(&qmp, "data", 24 * MIB).await.expect("grown");
        let outcome = block::unplug(&qmp, "data", Duration::from_secs(10)).await.expect("unplugged");
        assert_eq!(outcome, Unplugged::Released);
        for disk in &disks {
            qcow2::grow(&disk.file, 32 * MIB).expect("nothing has it open");
        }
        qcow2::grow(&merged, 32 * MIB).expect("nothing has it open");
        let longer = DiskSpec { backing: chain_of(&[&disks[2].file, &merged]), ..shortest.clone() };
        bench.plug(&qmp, &longer).await.expect("plugged with two files below it");
        assert_eq!(seen().await.files_below, 2);
        block::shorten_chain(&qmp, &shortest)
            .await
            .expect("the chain that it was plugged in with is replaced");
        assert_eq!(seen().await.files_below, 1);
        qcow2::grow(&disks[2].file, 48 * MIB).expect("nothing has it open");
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
        assert!(block::continue_in_overlays(&qmp, std::slice::from_ref(&overlay)).await.expect("switched"));
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
