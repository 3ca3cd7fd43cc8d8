//! Real machines, on hosts with QEMU.

use berth_qemu::block::{Devices, Unplugged};
use berth_qemu::hypervisor::Limits;
use berth_qemu::machine::{
    Accelerator, Bus, Cache, DiskSpec, Firmware, Format, Graphics, NIC_PORTS, NicModel, NicSpec, Tap,
    Topology,
};
use berth_qemu::nics::{self, NicError, ObservedNic};
use berth_qemu::power;
use serde_json::json;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

use super::super::network::tests::in_own_namespace;
use super::super::{LinuxConfig, LinuxSystem};
use super::*;
use crate::{
    DedicatedFacts, DedicatedRequest, HostInfo as _, Machines as _, NetworkConfig, Networks as _, NewVolume,
    Seed, TapConfig, VolumeOwner, Volumes as _,
};

mod isolation;

const GRACE: Duration = Duration::from_secs(5);

/// Instances are unique on the whole host: each test, in each run, has its own.
fn instance() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("i-{:08x}{:04x}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A host with QEMU, or None with the reason printed.
async fn host() -> Option<(TempDir, LinuxSystem)> {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::Builder::new().prefix("b").tempdir().expect("temporary folder");
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).expect("mode");
    let system = LinuxSystem::open(LinuxConfig::new(folder.path())).expect("opened");
    if let Err(why) = system.facts().await.expect("facts").qemu {
        eprintln!("skipped: {why}");
        return None;
    }
    Some((folder, system))
}

async fn machine(system: &LinuxSystem, instance: &str, firmware: Firmware) -> LaunchRequest {
    let owner = VolumeOwner {
        namespace: "default".to_owned(),
        name: "root".to_owned(),
        uid: None,
        image: None,
        source: None,
    };
    let new = NewVolume {
        encryption: None,
        pool: "default".to_owned(),
        id: "v-0123456789abcdef".to_owned(),
        size: Some(64 << 20),
        base: None,
        snapshot: None,
        file: None,
        thick: false,
        shared: false,
        owner,
    };
    let volume = system.create_volume(&new).await.expect("made");
    let facts = system.facts().await.expect("facts").qemu.expect("installed");
    let machine = MachineSpec {
        instance: instance.to_owned(),
        name: "web".to_owned(),
        uuid: "12345678-1234-4234-8234-123456789abc".to_owned(),
        cpus: 1,
        topology: Topology::of_cores(1),
        numa_nodes: 1,
        memory_bytes: 64 << 20,
        max_memory_bytes: Some(128 << 20),
        huge_page_bytes: None,
        accelerator: Accelerator::Tcg { tb_size_mib: 16 },
        firmware,
        machine_type: facts.machine_type,
        cpu_model: "max".to_owned(),
        disks: vec![DiskSpec {
            id: "disk-root".to_owned(),
            file: volume.path,
            format: Format::Qcow2,
            backing: None,
            serial: "v0123456789abcdef".to_owned(),
            wwn: None,
            boot: true,
            read_only: false,
            target: Some(0),
            cache: Cache::Writeback,
            bus: Bus::VirtioScsi,
            keeps_space: false,
            shared: false,
        }],
        cdroms: vec![],
        nics: Vec::new(),
        nic_ports: 0,
        pci_devices: Vec::new(),
        usb_devices: Vec::new(),
        vgpus: Vec::new(),
        shares: Vec::new(),
        graphics: Graphics::None,
        extras: Default::default(),
        tpm: false,
    };
    LaunchRequest {
        machine,
        seed: Some(Seed {
            meta_data: "instance-id: i\n".to_owned(),
            user_data: "#cloud-config\npassword: secret\n".to_owned(),
            network_config: "version: 2\n".to_owned(),
            unattend: Some("<unattend/>".to_owned()),
            ..Seed::default()
        }),
        keys: None,
        scratch: None,
        limits: Limits::default(),
        dedicated: None,
        from_saved_state: false,
    }
}

#[tokio::test]
async fn a_machine_is_started_once_found_again_and_removed_without_a_trace() {
    let Some((folder, system)) = host().await else { return };
    let instance = instance();
    let config = machine(&system, &instance, Firmware::Bios).await;
    system.write_journal(&instance, &serde_json::json!({"intent": "start"})).await.expect("journal");
    assert_eq!(system.process(&instance).await.expect("looked"), None);
    let started = system.launch(&config).await.expect("started");
    assert_eq!(system.launch(&config).await.expect("started already"), started);
    let (qmp, _events) = system.connect(&instance).await.expect("a monitor");
    let status = qmp.execute("query-status", Value::Null).await.expect("an answer");
    assert_eq!(status["status"], "prelaunch", "not one instruction before somebody says so: {status}");
    system.guest_agent(&instance).await.expect("a channel");
    drop(qmp);

    // A second run of the agent; then one without a record of the start on disk.
    let again = LinuxSystem::open(LinuxConfig::new(folder.path())).expect("opened");
    assert_eq!(again.process(&instance).await.expect("looked"), Some(started.clone()));
    let record = folder.path().join("instances").join(&instance).join("process.json");
    fs::remove_file(&record).expect("there");
    let found = again.process(&instance).await.expect("looked").expect("found by its command line");
    assert_eq!(found.identity, started.identity);
    let drift = found.started_at.duration_since(started.started_at);
    assert!(drift.abs() < SignedDuration::from_secs(120), "{drift}");
    let instances = again.instances().await.expect("list");
    assert_eq!(instances[0].process.as_ref().map(|p| &p.identity), Some(&started.identity));
    assert!(again.foreign().await.expect("looked").iter().all(|s| !s.detail.contains(&instance)));

    let error = again.remove_instance(&instance).await.expect_err("it runs");
    assert!(
        matches!(error, SystemError::StillRunning { pid, .. } if pid == started.identity.pid),
        "{error:?}"
    );
    again.kill(&instance, GRACE).await.expect("ended");
    again.kill(&instance, GRACE).await.expect("ended already");
    tokio::time::timeout(GRACE, again.exited(&started.identity)).await.expect("at once").expect("waited");
    again.remove_instance(&instance).await.expect("removed");
    assert!(again.instances().await.expect("list").is_empty());
}

#[tokio::test]
async fn secrets_and_notes_are_out_of_the_reach_of_others() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let Some((folder, system)) = host().await else { return };
    let instance = instance();
    let config = machine(&system, &instance, Firmware::Bios).await;
    system.write_journal(&instance, &serde_json::json!({})).await.expect("journal");
    system.launch(&config).await.expect("started");
    let home = folder.path().join("instances").join(&instance);
    let of = |name: &str| {
        let metadata = fs::metadata(home.join(name)).expect("there");
        (metadata.uid(), metadata.permissions().mode() & 0o777)
    };
    let us = nix::unistd::Uid::effective().as_raw();
    assert_eq!(of("journal.json"), (us, 0o600));
    assert_eq!((of("seed.img"), of("sysprep.img")), ((us, 0o440), (us, 0o440)));
    assert_eq!(of("").0, us, "QEMU's user cannot exchange what is in the folder");
    let qemu = system.machines.users.own(&instance).map_or(us, |u| u.uid);
    assert_eq!(of("run"), (qemu, 0o700));
    assert_eq!(of("serial.log"), (us, 0o620));
    assert_eq!(of("qemu.log").0, us);
    if us == 0 {
        let accounts = fs::read_to_string("/etc/passwd").expect("readable");
        assert!(qemu != 0 && !accounts.contains(&format!(":{qemu}:")), "QEMU has a user to itself");
    }
    system.kill(&instance, GRACE).await.expect("ended");
}

#[tokio::test]
async fn a_machine_without_new_bootstrap_data_has_the_files_of_its_last_start() {
    let Some((folder, system)) = host().await else { return };
    let instance = instance();
    let config = machine(&system, &instance, Firmware::Bios).await;
    system.write_journal(&instance, &serde_json::json!({})).await.expect("journal");
    let home = folder.path().join("instances").join(&instance);
    let files = || ["seed.img", "sysprep.img"].map(|name| fs::read(home.join(name)).ok());
    system.launch(&config).await.expect("started");
    let before = files();
    assert!(before.iter().all(Option::is_some));
    system.kill(&instance, GRACE).await.expect("ended");
    assert!(files() == before, "they outlive the machine");
    system.launch(&LaunchRequest { seed: None, ..config.clone() }).await.expect("started");
    assert!(files() == before);
    assert_eq!(system.bootstrap_data(&instance).await.expect("looked"), ["seed", "sysprep"]);
    system.kill(&instance, GRACE).await.expect("ended");
    let seed = config.seed.clone().map(|seed| Seed { unattend: None, ..seed });
    system.launch(&LaunchRequest { seed, ..config }).await.expect("started");
    assert_eq!(system.bootstrap_data(&instance).await.expect("looked"), ["seed"]);
    system.kill(&instance, GRACE).await.expect("ended");
}

#[tokio::test]
async fn what_qemu_says_when_it_gives_up_is_in_the_error() {
    let Some((_folder, system)) = host().await else { return };
    let instance = instance();
    let mut config = machine(&system, &instance, Firmware::Bios).await;
    config.machine.machine_type = "pc-q35-99.9".to_owned();
    let error = system.launch(&config).await.expect_err("no such machine type");
    assert_eq!(error.variant(), "Launch");
    assert!(error.chain().contains("unsupported machine type"), "{}", error.chain());
    assert!(system.stderr_tail(&instance).await.expect("read").contains("unsupported machine type"));
    assert_eq!(system.process(&instance).await.expect("looked"), None);
}

/// Huge pages of 2 MiB that are reserved for a test, and are released when it ends.
struct ReservedPages {
    before: u64,
}

impl ReservedPages {
    const FILE: &str = "/proc/sys/vm/nr_hugepages";

    /// Reserves this many more; None with the reason printed.
    fn reserve(count: u64) -> Option<Self> {
        let read = || fs::read_to_string(Self::FILE).ok()?.trim().parse::<u64>().ok();
        let before = read()?;
        let reserved = Self { before };
        let written = fs::write(Self::FILE, (before + count).to_string());
        if written.is_err() || read()? < before + count {
            eprintln!("skipped: this machine cannot reserve {count} huge pages");
            return None;
        }
        Some(reserved)
    }
}

impl Drop for ReservedPages {
    fn drop(&mut self) {
        let _ = fs::write(Self::FILE, self.before.to_string());
    }
}

/// KiB of huge pages of 2 MiB that the process has in a mapping of this many KiB.
fn huge_kib_of(pid: i32, mapping_kib: u64) -> u64 {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("it runs");
    let mut sums = [0, 0];
    let mut is_guest = false;
    for line in smaps.lines() {
        let Some((name, rest)) = line.split_once(':') else { continue };
        let amount = rest.trim().strip_suffix(" kB").and_then(|kib| kib.trim().parse::<u64>().ok());
        match (name, amount) {
            ("Size", Some(kib)) => is_guest = kib == mapping_kib,
            ("Shared_Hugetlb", Some(kib)) if is_guest => sums[0] += kib,
            ("Private_Hugetlb", Some(kib)) if is_guest => sums[1] += kib,
            _ => {}
        }
    }
    sums.into_iter().sum()
}

#[tokio::test]
async fn guest_memory_is_in_huge_pages_and_a_machine_without_enough_of_them_does_not_start() {
    const PAGE: u64 = 2 << 20;
    let Some((_folder, system)) = host().await else { return };
    let Some(_reserved) = ReservedPages::reserve(40) else { return };
    let free = async || {
        let pages = system.facts().await.expect("facts").huge_pages;
        pages.into_iter().find(|pages| pages.page_bytes == PAGE).map_or(0, |pages| pages.free)
    };
    let before = free().await;
    assert!(before >= 40);
    let instance = instance();
    let mut config = machine(&system, &instance, Firmware::Bios).await;
    config.machine.huge_page_bytes = Some(PAGE);
    config.machine.max_memory_bytes = None;
    let started = system.launch(&config).await.expect("started");
    assert_eq!(huge_kib_of(started.identity.pid, 64 << 10), 64 << 10, "all of it, before the guest runs");
    assert_eq!(free().await, before - 32);
    let overhead = system.overhead(&started.identity, 64 << 20).await.expect("read").expect("it runs");
    assert!(overhead < 512 << 20, "{overhead}");
    system.kill(&instance, GRACE).await.expect("ended");
    assert_eq!(free().await, before);
    config.machine.memory_bytes = (before + 1) * PAGE;
    let error = system.launch(&config).await.expect_err("one page is missing");
    let is_named = matches!(&error, SystemError::Launch(LaunchError::HugePages { page: PAGE, .. }));
    assert!(is_named, "{}", error.chain());
    assert_eq!(system.process(&instance).await.expect("looked"), None);
    assert_eq!(free().await, before, "none is kept");
}

/// A host on which these CPUs are for single machines, or None with the reason printed: a test needs two CPUs.
async fn host_with_dedicated(cpus: &[u32]) -> Option<(TempDir, LinuxSystem, Vec<u32>)> {
    let (folder, _) = host().await?;
    let usable: Vec<u32> = super::super::usable_cpus().expect("read").into_iter().collect();
    if !cpus.iter().all(|cpu| usable.contains(cpu)) || usable.len() <= cpus.len() {
        eprintln!("skipped: of the CPUs {usable:?} of this machine not all of {cpus:?} can be dedicated");
        return None;
    }
    let shared = usable.into_iter().filter(|cpu| !cpus.contains(cpu)).collect();
    let dedicated_cpus = cpus.iter().copied().collect();
    let config = LinuxConfig { dedicated_cpus, ..LinuxConfig::new(folder.path()) };
    Some((folder, LinuxSystem::open(config).expect("opened"), shared))
}

/// The CPUs of each virtual CPU's thread, and those of the process's main thread.
fn cpus_of(pid: i32) -> (Vec<Vec<u32>>, Vec<u32>) {
    let of = |thread| process::cpus_of_thread(thread).expect("it runs");
    let threads = process::vcpu_threads(Path::new("/proc"), pid).expect("it runs");
    (threads.into_values().map(of).collect(), of(pid))
}

#[tokio::test]
async fn a_virtual_cpu_has_a_cpu_of_the_host_for_itself_as_long_as_the_machine_runs() {
    let Some((folder, system, shared)) = host_with_dedicated(&[1]).await else { return };
    let (first, second, third) = (instance(), instance(), instance());
    let mut config = machine(&system, &first, Firmware::Bios).await;
    config.dedicated = Some(DedicatedRequest::default());
    let started = system.launch(&config).await.expect("started");
    let has = started.dedicated.clone().expect("it has one");
    assert_eq!((has.vcpus.as_slice(), has.emulator), ([1].as_slice(), None));
    assert_eq!(cpus_of(started.identity.pid), (vec![vec![1]], shared.clone()));
    let facts = async |system: &LinuxSystem| system.facts().await.expect("facts").dedicated;
    let full = DedicatedFacts { cpus: [1].into(), free: BTreeSet::new() };
    assert_eq!(facts(&system).await, full);

    // Another run of the agent knows it, and gives it to no other machine.
    let again =
        LinuxSystem::open(LinuxConfig { dedicated_cpus: [1].into(), ..LinuxConfig::new(folder.path()) });
    let again = again.expect("opened");
    assert_eq!(again.process(&first).await.expect("looked").and_then(|p| p.dedicated), Some(has));
    assert_eq!(facts(&again).await, full);
    let mut other = config.clone();
    other.machine.instance.clone_from(&second);
    other.machine.disks.clear();
    let error = again.launch(&other).await.expect_err("it is taken");
    assert!(matches!(error, SystemError::NoDedicatedCpus { needed: 1, free: 0 }), "{error:?}");
    assert_eq!(again.process(&second).await.expect("looked"), None);

    // A machine without one keeps off it.
    let mut plain = LaunchRequest { dedicated: None, ..other.clone() };
    plain.machine.instance.clone_from(&third);
    let running = again.launch(&plain).await.expect("started");
    assert_eq!((running.dedicated, cpus_of(running.identity.pid)), (None, (vec![shared.clone()], shared)));
    again.kill(&third, GRACE).await.expect("ended");

    again.kill(&first, GRACE).await.expect("ended");
    assert_eq!(facts(&again).await.free, [1].into());
    again.launch(&other).await.expect("it is free");
    again.kill(&second, GRACE).await.expect("ended");
}

#[tokio::test]
async fn a_machine_whose_process_ended_by_itself_keeps_no_cpu() {
    let Some((_folder, system, _)) = host_with_dedicated(&[1]).await else { return };
    let instance = instance();
    let mut config = machine(&system, &instance, Firmware::Bios).await;
    config.dedicated = Some(DedicatedRequest::default());
    let started = system.launch(&config).await.expect("started");
    let pid = nix::unistd::Pid::from_raw(started.identity.pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it runs");
    system.exited(&started.identity).await.expect("waited");
    assert_eq!(system.facts().await.expect("facts").dedicated.free, [1].into());
    let isolated = DedicatedRequest { isolate_emulator_thread: true };
    config.dedicated = Some(isolated);
    let error = system.launch(&config).await.expect_err("there is one CPU for two threads");
    assert!(matches!(error, SystemError::NoDedicatedCpus { needed: 2, free: 1 }), "{error:?}");
}

#[tokio::test]
async fn the_memory_of_a_tpm_is_its_instances_own_and_is_removed_with_it() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let Some((folder, system)) = host().await else { return };
    let instance = instance();
    if !system.facts().await.expect("facts").qemu.is_ok_and(|q| q.tpm) {
        eprintln!("skipped: swtpm is not installed");
        return;
    }
    let mut config = machine(&system, &instance, Firmware::Bios).await;
    config.machine.tpm = true;
    let state = folder.path().join("instances").join(&instance).join("tpm");
    let mut written = Vec::new();
    for _ in 0..2 {
        system.launch(&config).await.expect("started");
        let (qmp, _events) = system.connect(&instance).await.expect("a monitor");
        qmp.execute("cont", Value::Null).await.expect("started");
        let memory = state.join("tpm2-00.permall");
        while !memory.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let metadata = fs::metadata(&state).expect("there");
        let us = nix::unistd::Uid::effective().as_raw();
        let user = system.machines.users.own(&instance).map_or(us, |user| user.uid);
        assert_eq!((metadata.uid(), metadata.permissions().mode() & 0o777), (user, 0o700));
        system.kill(&instance, GRACE).await.expect("ended");
        written.push(fs::read(&memory).expect("kept"));
    }
    // The first bytes are the seeds of the TPM's keys, which a new TPM would choose anew.
    assert!(written[0][..400] == written[1][..400], "it is another TPM");
    system.remove_instance(&instance).await.expect("removed");
    assert!(!state.exists());
}

#[tokio::test]
async fn firmware_variables_are_the_machines_own_and_stay() {
    let Some((folder, system)) = host().await else { return };
    let instance = instance();
    if !system.facts().await.expect("facts").qemu.is_ok_and(|q| q.uefi) {
        eprintln!("skipped: no UEFI firmware is installed");
        return;
    }
    let config = machine(&system, &instance, Firmware::Uefi).await;
    system.launch(&config).await.expect("started");
    system.kill(&instance, GRACE).await.expect("ended");
    let vars = folder.path().join("instances").join(&instance).join("vars.fd");
    let mut bytes = fs::read(&vars).expect("a copy of the template");
    bytes[100] ^= 0xff;
    fs::write(&vars, &bytes).expect("as a guest would");
    system.launch(&config).await.expect("started again");
    system.kill(&instance, GRACE).await.expect("ended");
    assert!(fs::read(&vars).expect("there") == bytes, "what the guest wrote is kept");
    if !system.facts().await.expect("facts").qemu.is_ok_and(|q| q.secure_boot) {
        eprintln!("not shown: no firmware with Secure Boot is installed");
        return;
    }
    let config = machine(&system, &instance, Firmware::UefiSecureBoot).await;
    system.launch(&config).await.expect("started");
    system.kill(&instance, GRACE).await.expect("ended");
    let secure = fs::read(vars.with_file_name("vars-secure-boot.fd")).expect("a copy of another template");
    let microsoft: Vec<u8> = "Microsoft Corporation UEFI CA".bytes().collect();
    assert!(secure.windows(microsoft.len()).any(|part| part == microsoft), "it has no keys");
    assert!(fs::read(&vars).expect("there") == bytes, "those of the other firmware are kept");
}

#[tokio::test]
async fn a_host_without_qemu_can_still_clean_up() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let instance = instance();
    let config = LinuxConfig { qemu_users: None, ..LinuxConfig::new(folder.path()) };
    let system = LinuxSystem::open(config).expect("opened");
    let missing = || LaunchError::NoBinary { binary: PathBuf::from("qemu-system-x86_64") };
    assert_eq!(without_qemu(&instance, missing()).expect("looked"), None);
    system.write_journal(&instance, &serde_json::json!({})).await.expect("journal");
    system.kill(&instance, GRACE).await.expect("nothing runs");
    system.remove_instance(&instance).await.expect("removed");
}

#[test]
fn a_network_card_is_plugged_into_a_running_machine_and_out_and_every_step_may_be_repeated() {
    in_own_namespace(|| async {
        let Some((_folder, system)) = host().await else { return };
        let instance = instance();
        let (bridge, tap) = ("bth-0a1b2c3d".to_owned(), format!("btt{}n1", &instance[2..10]));
        system.ensure_network(&network(&bridge)).await.expect("a network");
        let one = TapConfig { name: tap.clone(), bridge: bridge.clone(), mtu: 1500, multi_queue: false };
        system.ensure_tap(&one).await.expect("a tap");
        let several = TapConfig { multi_queue: true, ..one.clone() };
        system.ensure_tap(&several).await.expect("made anew");
        let nic = NicSpec { id: "nic1".to_owned(), slot: 1, port: Some(1), queues: 2, ..nic(&tap) };
        let mut config = machine(&system, &instance, Firmware::Bios).await;
        config.machine.nic_ports = NIC_PORTS;
        system.launch(&config).await.expect("started");
        let (qmp, _events) = system.connect(&instance).await.expect("connected");
        power::start(&qmp).await.expect("runs");
        let seen = async || Devices::default().look(&qmp).await.expect("devices");
        assert_eq!(seen().await.nic_ports, (0..NIC_PORTS).collect::<Vec<_>>());
        let carrier = || fs::read_to_string(format!("/sys/class/net/{tap}/carrier")).expect("read");
        for half_done in ["", "getfd", "netdev_add"] {
            if !half_done.is_empty() {
                let lent = system.lend_tap(&instance, &qmp, &nic).await.expect("opened");
                let backend =
                    json!({"type": "tap", "id": "net-nic1", "fds": "tap-nic1:tap-nic1-1", "vhost": false});
                if half_done == "netdev_add" {
                    qmp.execute("netdev_add", backend).await.expect("added");
                }
                assert!(!lent.vhost, "an emulated machine");
            }
            assert!(!nics::is_plugged(&qmp, &nic).await.expect("asked"));
            nics::remove_backend(&qmp, &nic.id).await.expect("nothing is left");
            let lent = system.lend_tap(&instance, &qmp, &nic).await.expect("a tap is opened once");
            nics::plug(&qmp, &nic, lent).await.expect("plugged");
            assert!(nics::is_plugged(&qmp, &nic).await.expect("asked"));
            assert_eq!(carrier().trim(), "1", "QEMU has the other end");
            system.ensure_tap(&one).await.expect("a tap in use stays as it is");
            assert_eq!(queues_of(&tap), (1, 1), "the guest has not asked for the second");
            let found = seen().await.nics;
            let model = NicModel::Virtio;
            let expected = ObservedNic { id: "nic1".into(), model, mac: nic.mac.clone(), port: Some(1) };
            assert_eq!(found, [expected]);
            for up in [false, false, true] {
                nics::set_link(&qmp, "nic1", up).await.expect("set");
            }
            let other = NicSpec { mac: "52:54:00:00:00:06".to_owned(), ..nic.clone() };
            let conflict = nics::is_plugged(&qmp, &other).await;
            assert!(matches!(conflict, Err(NicError::Conflict { .. })), "{conflict:?}");
            // There is no system that releases it, and a reset does. The processors stand still meanwhile: after a reset, the
            // firmware resets the machine once more.
            qmp.execute("stop", Value::Null).await.expect("stopped");
            let soon = Duration::from_millis(300);
            assert_eq!(nics::unplug(&qmp, "nic1", soon).await.expect("asked"), Unplugged::Waiting);
            qmp.execute("system_reset", Value::Null).await.expect("reset");
            qmp.execute("cont", Value::Null).await.expect("runs");
            for _ in 0..2 {
                assert_eq!(nics::unplug(&qmp, "nic1", GRACE).await.expect("asked"), Unplugged::Released);
            }
            assert_eq!(carrier().trim(), "0");
            assert!(seen().await.nics.is_empty());
        }
        let conventional = NicSpec { model: NicModel::Rtl8139, ..nic.clone() };
        let refused = nics::plug(&qmp, &conventional, LentTap { vhost: false }).await;
        assert!(matches!(refused, Err(NicError::Spec(_))), "{refused:?}");
        system.kill(&instance, GRACE).await.expect("ended");
        system.remove_tap(&tap).await.expect("removed");
        system.remove_network(&bridge).await.expect("removed");
    });
}

/// The numbers of queues of a tap that are in use, and that are open and not in use.
fn queues_of(tap: &str) -> (u8, u8) {
    let shown = Command::new("ip").args(["-d", "-o", "link", "show", "dev", tap]).output().expect("ip runs");
    let text = String::from_utf8(shown.stdout).expect("text");
    let number = |name: &str| {
        let words: Vec<&str> = text.split_whitespace().collect();
        let at = words.iter().position(|word| *word == name)?;
        words.get(at + 1)?.parse().ok()
    };
    number("numqueues").zip(number("numdisabled")).expect("a tap of several queues")
}

fn network(bridge: &str) -> NetworkConfig {
    NetworkConfig {
        bridge: bridge.to_owned(),
        ipv4: Some(crate::Ipv4Network {
            range: "10.77.0.0/24".parse().expect("range"),
            gateway: "10.77.0.1".parse().expect("address"),
            egress: crate::Egress::Masquerade,
        }),
        ipv6: None,
        mtu: 1500,
        dns: Vec::new(),
        search_domains: Vec::new(),
        names: None,
        routes: Vec::new(),
        ipv6_routes: Vec::new(),
        leases: Vec::new(),
        tunnel: None,
        tracked: false,
        relay: None,
        prefixes: Vec::new(),
    }
}

fn nic(tap: &str) -> NicSpec {
    NicSpec {
        id: "nic0".to_owned(),
        tap: Tap::Name(tap.to_owned()),
        mac: "52:54:00:00:00:05".to_owned(),
        mtu: Some(1500),
        slot: 0,
        model: NicModel::default(),
        port: None,
        queues: 1,
        no_vhost: false,
    }
}

#[test]
fn a_machine_is_wired_to_its_network() {
    in_own_namespace(|| async {
        let Some((_folder, system)) = host().await else { return };
        let instance = instance();
        let (bridge, tap) = ("bth-0a1b2c3d".to_owned(), format!("btt{}n0", &instance[2..10]));
        system.ensure_network(&network(&bridge)).await.expect("a network");
        let wanted = TapConfig { name: tap.clone(), bridge: bridge.clone(), mtu: 1500, multi_queue: false };
        system.ensure_tap(&wanted).await.expect("a tap");
        let mut config = machine(&system, &instance, Firmware::Bios).await;
        config.machine.nics = vec![nic(&tap)];
        system.launch(&config).await.expect("started");
        let carrier = || fs::read_to_string(format!("/sys/class/net/{tap}/carrier")).expect("read");
        assert_eq!(carrier().trim(), "1", "somebody has the other end");
        system.kill(&instance, GRACE).await.expect("ended");
        assert_eq!(carrier().trim(), "0", "and it stays for the next start");
        system.remove_tap(&tap).await.expect("removed");
        system.remove_network(&bridge).await.expect("removed");
    });
}
