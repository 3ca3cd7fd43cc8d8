//! Behaviour that only a real process has. If QEMU is not installed, these tests print that and end.

#[path = "real_process/companions.rs"]
mod companions;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use berth_qemu::hypervisor::{CpuTime, Hypervisor, LaunchError, Limits, ProcessIdentity};
use berth_qemu::installation::Installation;
use berth_qemu::machine::{
    Accelerator, Bus, Cache, Confinement, DiskSpec, Firmware, Format, FwCfg, Graphics, LaunchSpec,
    MachineFiles, MachinePaths, MachineSpec, NIC_PORTS, PciDeviceSpec, Topology, UefiFiles, UsbDeviceSpec,
    VgpuSpec,
};
use berth_qemu::power::{self, RunState};
use berth_qemu::process::LocalHypervisor;
use berth_qemu::qmp::{EventKind, Events, Notice};
use berth_qemu::{block, qcow2};
use serde_json::Value;

struct Bench {
    host: LocalHypervisor,
    installation: Installation,
    directory: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Option<Self> {
        let installation = match Installation::discover().await {
            Ok(installation) => installation,
            Err(error) => {
                eprintln!("skipped: {error}");
                return None;
            }
        };
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o711)).expect("ours");
        let host = LocalHypervisor::at(&installation.binary);
        Some(Self { host, installation, directory })
    }

    fn spec(&self, name: &str) -> LaunchSpec {
        let machine_type = self.installation.newest_machine_type.clone().expect("every x86 QEMU has q35");
        LaunchSpec {
            machine: MachineSpec {
                instance: format!("{name}-{}", std::process::id()),
                name: name.to_owned(),
                uuid: "7f2f6d5e-5c1f-4c39-9d3a-0d8c5f1b2a3c".to_owned(),
                cpus: 2,
                topology: Topology::of_cores(2),
                numa_nodes: 1,
                memory_bytes: 64 << 20,
                max_memory_bytes: None,
                huge_page_bytes: None,
                accelerator: Accelerator::Tcg { tb_size_mib: 32 },
                firmware: Firmware::Bios,
                machine_type,
                cpu_model: "max".to_owned(),
                disks: vec![],
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
            files: MachineFiles::new(MachinePaths::in_directory(self.directory.path().join(name))),
            affinity: Default::default(),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

fn status(process: &ProcessIdentity, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{}/status", process.pid)).expect("it runs");
    let line = text.lines().find(|l| l.starts_with(&format!("{field}:"))).expect("a field of status");
    line.split_once(':').expect("a field").1.trim().to_owned()
}

#[tokio::test]
async fn the_installation_names_version_machine_types_and_firmware() {
    let Some(bench) = Bench::new().await else { return };
    let found = &bench.installation;
    eprintln!("{found:?}");
    assert!(found.version.major >= 6);
    let q35 = found.newest_machine_type.as_ref().expect("an alias");
    assert!(q35.starts_with("pc-q35-") && found.machine_types.contains(q35));
    assert!(found.uefi.iter().all(|f| f.code.is_file() && f.vars_template.is_file()));
}

#[tokio::test]
async fn qemu_takes_a_device_of_the_host_and_names_one_that_is_not_there() {
    let Some(bench) = Bench::new().await else { return };
    let mut spec = bench.spec("missing");
    let functions = vec!["ffff:1f:1f.0".to_owned(), "ffff:1f:1f.1".to_owned()];
    spec.machine.pci_devices = vec![PciDeviceSpec { functions, groups: vec![1] }];
    let error = bench.host.launch(&spec, Limits::default()).await.expect_err("there is no such device");
    assert!(error.to_string().contains("ffff:1f:1f.0: no such host device"), "{error}");
}

#[tokio::test]
async fn qemu_takes_a_vgpu_of_the_host_and_names_one_that_is_not_there() {
    let Some(bench) = Bench::new().await else { return };
    let mut spec = bench.spec("vgpu");
    let uuid = "0f5b2c6e-8a4b-8d0e-9c1f-1a2b3c4d5e6f".to_owned();
    spec.machine.vgpus =
        vec![VgpuSpec { uuid, parent: "0000:41:00.0".into(), mdev_type: "nvidia-558".into() }];
    let error = bench.host.launch(&spec, Limits::default()).await.expect_err("there is no such device");
    let folder = "/sys/bus/mdev/devices/0f5b2c6e-8a4b-8d0e-9c1f-1a2b3c4d5e6f";
    assert!(
        error.to_string().contains(folder) && error.to_string().contains("no such host device"),
        "{error}"
    );
}

/// QEMU has its library for USB devices ready before it opens the device: with the files and system calls that it is left with.
#[tokio::test]
async fn a_confined_qemu_takes_a_usb_device_of_the_host_and_names_one_that_is_not_there() {
    let Some(bench) = Bench::new().await else { return };
    let mut spec = bench.spec("usb");
    let device = UsbDeviceSpec { port: "999-1".to_owned(), bus: 999, number: 127 };
    spec.machine.usb_devices = vec![device];
    if let Some(user) = bench.host.run_as() {
        let folders = vec![bench.directory.path().to_owned()];
        spec.files.confinement = Some(Confinement { user: *user, folders });
    }
    let error = bench.host.launch(&spec, Limits::default()).await.expect_err("there is no such device");
    assert!(error.to_string().contains("failed to open /dev/bus/usb/999/127"), "{error}");
}

#[tokio::test]
async fn a_machine_with_devices_of_the_host_owns_their_device_files_and_may_lock_its_memory() {
    use std::os::unix::fs::MetadataExt;
    let Some(bench) = Bench::new().await else { return };
    let mut spec = bench.spec("locks");
    std::fs::write(bench.file("12"), "").expect("a file in place of /dev/vfio/12");
    spec.files.vfio_groups = vec![bench.file("12")];
    std::fs::write(bench.file("001"), "").expect("a file in place of /dev/bus/usb/001/001");
    spec.files.usb_nodes = vec![bench.file("001")];
    let launched = bench.host.launch(&spec, Limits::default()).await;
    if let Some(user) = bench.host.run_as() {
        for node in ["12", "001"] {
            let node = std::fs::metadata(bench.file(node)).expect("there");
            assert_eq!((node.uid(), node.mode() & 0o600), (user.uid, 0o600));
        }
    }
    let needed = (64_u64 << 20) + (1 << 30);
    let limits = |pid: &str| {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
        let line = limits.lines().find(|line| line.starts_with("Max locked memory")).expect("a limit");
        line.split_whitespace().skip(3).take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    let process = match launched {
        // Containers take CAP_SYS_RESOURCE away from their root.
        Err(LaunchError::LockMemory { bytes, .. }) => {
            assert_eq!(bytes, needed);
            let own: u64 = limits("self")[1].parse().expect("it is not unlimited");
            assert!(own < needed, "a limit of {own} bytes");
            let left = bench.host.find(&spec.machine.instance).await.expect("looked for");
            assert_eq!(left, None, "its QEMU is left");
            return;
        }
        launched => launched.expect("launched"),
    };
    let needed = needed.to_string();
    assert_eq!(limits(&process.pid.to_string()), [needed.as_str(), needed.as_str()]);
    bench.host.kill(&process, Duration::from_secs(5)).await.expect("ended");
}

#[tokio::test]
async fn a_machine_with_everything_starts_unprivileged_and_on_its_own() {
    let Some(bench) = Bench::new().await else { return };
    let mut spec = bench.spec("every, thing");
    spec.machine.instance = format!("everything-{}", std::process::id());
    if let Some(uefi) = bench.installation.uefi.iter().find(|f| !f.secure_boot) {
        std::fs::copy(&uefi.vars_template, bench.file("vars.fd")).expect("copied");
        spec.machine.firmware = Firmware::Uefi;
        spec.files.uefi =
            Some(UefiFiles { code: uefi.code.clone(), vars: bench.file("vars.fd"), smm: uefi.smm });
    }
    for name in ["seed.img", "raw.img"] {
        std::fs::write(bench.file(name), vec![0; 1 << 20]).expect("written");
    }
    std::fs::write(bench.file("config.ign"), "{}").expect("written");
    spec.files.seed = Some(bench.file("seed.img"));
    spec.files.fw_cfg =
        vec![FwCfg { name: "opt/com.coreos/config".to_owned(), file: bench.file("config.ign") }];
    spec.machine.graphics = Graphics::Vga;
    spec.machine.extras.resolution = Some((1920, 1080));
    spec.machine.extras.keyboard_layout = Some("de-ch".to_owned());
    spec.machine.extras.sound = true;
    spec.machine.nic_ports = NIC_PORTS;
    spec.machine.extras.further_serial_ports = 3;
    spec.machine.extras.windows = true;
    spec.machine.extras.without_hpet = true;
    spec.machine.numa_nodes = 2;
    for n in 0..20 {
        let file = bench.file(&format!("disk{n}.qcow2"));
        qcow2::create(&file, 1 << 30).expect("created");
        spec.machine.disks.push(DiskSpec {
            id: format!("disk{n}"),
            file,
            format: Format::Qcow2,
            backing: None,
            serial: format!("serial-{n}"),
            wwn: Some(0x5000_c500_0000_0000 + n),
            boot: n == 0,
            read_only: n == 19,
            target: None,
            cache: Cache::Writeback,
            bus: Bus::VirtioScsi,
            keeps_space: false,
            shared: false,
        });
    }
    let start = Instant::now();
    let limits = Limits { memory_max: Some(1 << 30), cpu: CpuTime { limit: Some(2000), weight: 100 } };
    let process = bench.host.launch(&spec, limits).await.expect("launched");
    eprintln!("launched in {:?}", start.elapsed());
    let (qmp, _events) = bench.host.connect(&spec.files.paths).await.expect("connected");
    assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Prelaunch);
    let disks = block::disks(&qmp).await.expect("disks");
    assert_eq!(disks.len(), 21);
    let seed = disks.iter().find(|d| d.id == "seed").expect("a seed");
    assert_eq!((seed.read_only, seed.target, seed.size), (true, Some(255), 1 << 20));
    let cpus = qmp.execute("query-hotpluggable-cpus", Value::Null).await.expect("asked");
    let nodes: BTreeSet<_> =
        cpus.as_array().into_iter().flatten().map(|cpu| cpu["props"]["node-id"].as_u64()).collect();
    assert_eq!(nodes, [Some(0), Some(1)].into(), "{cpus}");
    let memory = qmp.execute("query-memdev", Value::Null).await.expect("asked");
    let sizes: Vec<_> =
        memory.as_array().into_iter().flatten().map(|backend| backend["size"].as_u64()).collect();
    assert_eq!(sizes, [Some(32 << 20), Some(32 << 20)], "{memory}");

    assert_eq!(status(&process, "NoNewPrivs"), "1");
    assert_eq!(status(&process, "Seccomp"), "2");
    if let Some(user) = bench.host.run_as() {
        let expected =
            [user.uid.to_string(), user.uid.to_string(), user.uid.to_string(), user.uid.to_string()];
        assert_eq!(status(&process, "Uid"), expected.join("\t"));
        assert_eq!(status(&process, "Groups"), "");
        assert_eq!(status(&process, "CapEff"), "0000000000000000");
        assert_eq!(status(&process, "CapBnd").len(), 16);
    }
    let session = nix::unistd::getsid(Some(nix::unistd::Pid::from_raw(process.pid))).expect("it runs");
    assert_eq!(session.as_raw(), process.pid);
    // No descriptor of the test process is open in QEMU.
    let own = format!("/proc/{}/fd", process.pid);
    for entry in std::fs::read_dir(own).expect("it runs").flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let text = target.to_string_lossy();
        let known = text.starts_with(&*bench.directory.path().to_string_lossy())
            || text.starts_with("/usr/share/")
            || text.starts_with("/dev/null")
            || text.starts_with("/dev/urandom")
            || text.starts_with("anon_inode:")
            || text.starts_with("socket:")
            || text.starts_with("/memfd:")
            || text.starts_with("pipe:");
        assert!(known, "{text}");
    }
    let listed = bench.host.list().await.expect("listed");
    let found = listed.iter().find(|q| q.identity == process).expect("it is listed");
    assert_eq!(
        (found.instance.as_deref(), found.name.as_deref()),
        (Some(spec.machine.instance.as_str()), Some("every, thing"))
    );
    let cgroups = std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).expect("it runs");
    eprintln!("{cgroups}");

    bench.host.kill(&process, Duration::from_secs(5)).await.expect("killed");
    assert!(!Path::new(&format!("/proc/{}", process.pid)).exists());
    for line in cgroups.lines().filter(|l| l.contains("/berth/")) {
        let name = line.rsplit(':').next().expect("a path");
        for root in ["memory", "cpu", "pids", "systemd", "unified", ""] {
            assert!(!Path::new("/sys/fs/cgroup").join(root).join(&name[1..]).exists(), "{name} is left");
        }
    }
}

#[tokio::test]
async fn a_qemu_that_the_oom_killer_ended_is_counted_until_the_next_launch() {
    let Some(bench) = Bench::new().await else { return };
    let spec = bench.spec("oom");
    let instance = &spec.machine.instance;
    // Less than any QEMU takes.
    let limits = Limits { memory_max: Some(8 << 20), ..Limits::default() };
    let process = match bench.host.launch(&spec, limits).await {
        Ok(process) => {
            eprintln!("skipped: there is no control group for memory, or QEMU has swap space");
            process
        }
        Err(error) => {
            assert!(bench.host.oom_kills(instance).await > 0, "{error}");
            let process = bench.host.launch(&spec, Limits::default()).await.expect("launched");
            assert_eq!(bench.host.oom_kills(instance).await, 0, "that of another process");
            process
        }
    };
    bench.host.kill(&process, Duration::from_secs(5)).await.expect("killed");
}

#[tokio::test]
async fn a_guest_that_reads_nothing_to_boot_shows_its_firmware_on_the_serial_line() {
    let Some(bench) = Bench::new().await else { return };
    let spec = bench.spec("serial");
    let process = bench.host.launch(&spec, Limits::default()).await.expect("launched");
    let (qmp, _events) = bench.host.connect(&spec.files.paths).await.expect("connected");
    power::start(&qmp).await.expect("started");
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let text =
            berth_qemu::process::last_lines(&spec.files.paths.serial_log, 100, 1 << 16).expect("readable");
        if text.contains("SeaBIOS") {
            break;
        }
        assert!(Instant::now() < deadline, "the firmware said {text:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bench.host.kill(&process, Duration::from_secs(5)).await.expect("killed");
}

/// Powers the machine off by the chipset's power register, as ACPI would.
const POWER_OFF: [u8; 9] = [0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, 0xeb, 0xfe];

/// Suspends the machine to its memory by the same register.
const SUSPEND: [u8; 9] = [0xba, 0x04, 0x06, 0xb8, 0x00, 0x24, 0xef, 0xeb, 0xfe];

async fn until(events: &mut Events, wanted: impl Fn(&EventKind) -> bool) -> EventKind {
    let search = async {
        loop {
            if let Notice::Event(event) = events.next().await.expect("connected")
                && wanted(&event.kind())
            {
                return event.kind();
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), search).await.expect("the guest has done so")
}

async fn shut_down(events: &mut Events) -> EventKind {
    until(events, |kind| matches!(kind, EventKind::Shutdown { .. })).await
}

/// The beginning of a disk that runs this code when a BIOS boots it.
fn boot_sector(code: &[u8]) -> Vec<u8> {
    let mut sector = vec![0; 1 << 20];
    sector[..code.len()].copy_from_slice(code);
    sector[510..512].copy_from_slice(&[0x55, 0xaa]);
    sector
}

fn raw_disk(id: &str, file: PathBuf, boot: bool) -> DiskSpec {
    DiskSpec {
        id: id.to_owned(),
        file,
        format: Format::Raw,
        backing: None,
        serial: id.to_owned(),
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

#[tokio::test]
async fn a_guest_that_suspended_itself_to_its_memory_sleeps_until_it_is_woken_up() {
    let Some(bench) = Bench::new().await else { return };
    std::fs::write(bench.file("sleep.raw"), boot_sector(&SUSPEND)).expect("written");
    let mut spec = bench.spec("sleep");
    spec.machine.disks.push(raw_disk("root", bench.file("sleep.raw"), true));
    let process = bench.host.launch(&spec, Limits::default()).await.expect("launched");
    let (qmp, mut events) = bench.host.connect(&spec.files.paths).await.expect("connected");
    power::start(&qmp).await.expect("started");
    until(&mut events, |kind| *kind == EventKind::Suspend).await;
    power::start(&qmp).await.expect("QEMU ignores it");
    assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Suspended);
    power::wake_up(&qmp).await.expect("woken up");
    until(&mut events, |kind| *kind == EventKind::Wakeup).await;
    power::quit(&qmp).await.expect("ended");
    bench.host.exited(&process).await.expect("gone");
}

#[tokio::test]
async fn a_guest_that_switched_itself_off_stays_to_be_asked_and_can_be_started_again() {
    let Some(bench) = Bench::new().await else { return };
    std::fs::write(bench.file("boot.raw"), boot_sector(&POWER_OFF)).expect("written");
    let mut spec = bench.spec("off");
    // Selected as the boot disk by its flag, not by its position.
    for (id, boot) in [("first", false), ("second", true)] {
        let file = bench.file(if boot { "boot.raw" } else { "blank.raw" });
        if !boot {
            std::fs::write(&file, vec![0; 1 << 20]).expect("written");
        }
        spec.machine.disks.push(raw_disk(id, file, boot));
    }
    let process = bench.host.launch(&spec, Limits::default()).await.expect("launched");
    let (qmp, mut events) = bench.host.connect(&spec.files.paths).await.expect("connected");
    power::start(&qmp).await.expect("started");
    let end = shut_down(&mut events).await;
    assert_eq!(end, EventKind::Shutdown { by_guest: true, reason: "guest-shutdown".to_owned() });
    drop((qmp, events));
    // A later caller can still observe it.
    let (qmp, mut events) = bench.host.connect(&spec.files.paths).await.expect("connected");
    assert!(bench.host.is_alive(&process).await.expect("asked"));
    assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Shutdown);
    power::reset(&qmp).await.expect("reset");
    power::start(&qmp).await.expect("started");
    shut_down(&mut events).await;
    power::quit(&qmp).await.expect("ended");
    bench.host.exited(&process).await.expect("gone");
}

/// The launcher is another process, which ends (and with it its runtime, threads and session).
#[test]
fn a_machine_outlives_who_launched_it() {
    let test = "a_machine_outlives_who_launched_it";
    if let Some(directory) = std::env::var_os("BERTH_TEST_LAUNCH_IN") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let bench = Bench::new().await.expect("seen before");
            let paths = MachinePaths::in_directory(Path::new(&directory).join("run"));
            let mut spec = bench.spec("outlives");
            spec.machine.instance = "outlives".to_owned();
            spec.files.paths = paths;
            bench.host.launch(&spec, Limits::default()).await.expect("launched");
        });
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let Some(bench) = Bench::new().await else { return };
        let status = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", test])
            .env("BERTH_TEST_LAUNCH_IN", bench.directory.path())
            .status()
            .expect("run");
        assert!(status.success());
        let process = bench.host.find("outlives").await.expect("listed").expect("it runs on");
        let paths = MachinePaths::in_directory(bench.file("run"));
        let (qmp, _events) = bench.host.connect(&paths).await.expect("connected");
        assert_eq!(power::run_state(&qmp).await.expect("asked"), RunState::Prelaunch);
        bench.host.kill(&process, Duration::from_secs(5)).await.expect("killed");
        assert_eq!(bench.host.find("outlives").await.expect("listed"), None);
    });
}
