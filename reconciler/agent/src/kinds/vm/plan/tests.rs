use std::time::Duration;

use berth_api::{CpuControls, CpuTopology, Graphics, Profile, Size, SizeError, VM, VMState, VMStatus};
use berth_host::{HostFacts, KvmFacts, ProcessFacts, QemuFacts, VolumeFacts, VolumeOwner};
use berth_qemu::block::ObservedDisk;
use berth_qemu::hypervisor::{CpuTime, ProcessIdentity};
use berth_qemu::machine::{Accelerator, Architecture, Format};
use berth_qemu::nics::ObservedNic;
use berth_qemu::power::RunState;
use berth_qemu::saved_state::Transfer;
use jiff::Timestamp;
use kube::ResourceExt;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::bootstrap::Bootstrap;
use super::super::declared_disks::{DeclaredDisk, ReportedDisk, User};
use super::super::observe::DeclaredAddress;
use super::super::secure_boot_keys::KeysToEnroll;
use super::super::status::{restarted, status, transition, without_progress};
use super::*;
use crate::admission::Admission;
use crate::group_turn::GroupTurn;
use crate::guest_packages::ObservedPackage;
use crate::journal::{Ended, Journal, Run, RunProfile};
use crate::kinds::vm::observed_users::GuestUsers;
use crate::machine::{GuestFacts, MachineState};
use crate::probes::ProbeResults;
use crate::restores::VmRestore;

mod always;
mod architecture;
mod devices;
mod ended;
mod enrolling;
mod firmware;
mod interfaces;
mod live;
mod media;
mod memory;
mod offline;
mod pins;
mod release;
mod reported;
mod running;
mod scratch;
mod screen;
mod seeding;
mod shares;
mod sleep;
mod start;
mod stop;
mod suspend;
mod vgpus;
mod vsock;

const NOW: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("small")
}

fn vm(spec: Value) -> VM {
    let mut whole = json!({"class": "small", "disks": [{"name": "root", "boot": true}, {"name": "data"}]});
    for (key, value) in spec.as_object().cloned().unwrap_or_default() {
        whole[key] = value;
    }
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u1", "generation": 4},
        "spec": whole,
        "status": {"observedGeneration": 1, "instanceID": "i-0123456789ab", "binding": {"host": "h", "epoch": 1},
            "interfaces": [{"name": "nic0", "network": "berth-shared/default", "macAddress": "52:54:00:00:00:02", "address": "10.77.0.2"}]},
    }))
    .expect("a VM")
}

fn deleted(mut vm: VM) -> VM {
    vm.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(NOW)));
    vm
}

fn disk(name: &str, boot: bool) -> DeclaredDisk {
    let id = format!("v-{name}");
    let volume = VolumeFacts {
        problem: None,
        encryption: None,
        retained: false,
        pending_snapshot: None,
        restores: Vec::new(),
        restoring: false,
        reserved: None,
        pool: "default".into(),
        id: id.clone(),
        size: 1 << 30,
        base: None,
        owner: VolumeOwner {
            namespace: "ns".into(),
            name: name.into(),
            uid: None,
            image: None,
            source: None,
        },
        path: format!("/{id}.qcow2").into(),
        format: Format::Qcow2,
        cache: Default::default(),
        backing: None,
    };
    DeclaredDisk {
        name: name.into(),
        boot,
        volume: Some(volume),
        volume_id: Some(id),
        serial: format!("serial-{name}"),
        user: User::ThisVm,
        problem: None,
        is_locked: false,
        reported: true,
        bus: Default::default(),
        read_only: false,
        grows_first: false,
        restores_first: false,
        moves_first: false,
        is_reserved: false,
        work: None,
        has_limits: false,
    }
}

fn host() -> HostFacts {
    let qemu = QemuFacts {
        version: "7.2.0".into(),
        machine_type: "pc-q35-7.2".into(),
        machine_types: vec!["pc-q35-7.2".to_owned()],
        cpu_model: "max".into(),
        uefi: true,
        secure_boot: true,
        cpu_models: vec!["Westmere".to_owned(), "x86-64-v2".to_owned()],
        boot_roms: true,
        io_uring: true,
        tpm: true,
        vsock: true,
    };
    HostFacts {
        block_devices: Vec::new(),
        cpus: 4,
        memory_bytes: 8 << 30,
        storage_total_bytes: 1 << 40,
        storage_free_bytes: 1 << 40,
        architecture: Architecture::X86_64,
        emulated: None,
        qemu: Ok(qemu),
        kvm: KvmFacts { usable: false, reason: String::new(), mips: None },
        accelerator: Accelerator::Tcg { tb_size_mib: 32 },
        vhost_net: false,
        address: None,
        mtu: None,
        ranges: Vec::new(),
        ipv6_addresses: Vec::new(),
        links: Default::default(),
        wireguard: Err("wg is not installed".into()),
        pci_devices: Vec::new(),
        usb_devices: Vec::new(),
        vgpus: Vec::new(),
        shares: Vec::new(),
        backup_folders: Vec::new(),
        pool_folders: Vec::new(),
        huge_pages: Vec::new(),
        dedicated: Default::default(),
        overhead_bytes: 80 << 20,
        boot_id: "b".into(),
    }
}

/// The size of a VM without values of its own.
fn size(class: Value) -> Result<Size, SizeError> {
    let class = serde_json::from_value(class).expect("a class");
    vm(json!({})).spec.size(Some(&class))
}

/// An observation with every dependency in place and no QEMU.
fn ready_to_start() -> Observed {
    Observed {
        now: at(NOW),
        instance: "i-0123456789ab".into(),
        admission: Admission::Recorded,
        journal: Journal::new(&vm(json!({}))),
        journal_written: false,
        journal_problem: None,
        process: None,
        details: None,
        machine: None,
        unreachable: None,
        oom_killed: false,
        connection_due: false,
        machine_known: false,
        lease_watch: None,
        probe_watch: None,
        probes: ProbeResults::default(),
        hook: None,
        guest_users: GuestUsers::default(),
        guest_package: ObservedPackage::default(),
        guest: GuestFacts::default(),
        lease_taken: false,
        size: size(json!({"cpus": 1, "memory": "512Mi"})),
        cpu_controls: CpuControls::default(),
        pinned_class: None,
        profile: Profile::default(),
        wanted_cpu_time: CpuTime::default(),
        cpu_time: None,
        disks: vec![disk("root", true), disk("data", false)],
        cdroms: Vec::new(),
        attachments: Default::default(),
        mounts: Default::default(),
        lost_taps: Default::default(),
        loose_taps: Default::default(),
        missing_networks: Vec::new(),
        missing_groups: Vec::new(),
        misrouted: None,
        lans: Default::default(),
        choosing: Default::default(),
        conflicts: Default::default(),
        network_config: Vec::new(),
        observed_addresses: None,
        accesses: Default::default(),
        refused_interfaces: Default::default(),
        failing_networks: Default::default(),
        bridges: [("berth-shared/default".to_owned(), "bth-00004d".to_owned())].into(),
        mtus: [("berth-shared/default".to_owned(), 1500)].into(),
        public: Vec::new(),
        bootstrap: Bootstrap::Found(Box::default()),
        secure_boot_keys: KeysToEnroll::NotDue,
        host: Some(host()),
        vsock_cid: None,
        offered: Some((16, 7 << 30)),
        free_memory: Some(1 << 30),
        held: None,
        turn: GroupTurn::Free,
        departure: Default::default(),
        taps: Vec::new(),
        is_saving: false,
        has_tpm_state: true,
        copies_firmware: false,
        state_kept: false,
        disks_to_hold: Vec::new(),
        left_volumes: Default::default(),
        attached: Vec::new(),
        reported_disks: Default::default(),
        bytes: None,
        last_words: None,
        still_user: false,
        console: None,
        host_address: None,
        draining: false,
        at_shutdown: None,
        no_room: false,
        holder: None,
        misplaced: None,
        restore: VmRestore::None,
        memory: None,
        booted_restored: None,
        snapshots: Vec::new(),
    }
}

fn identity() -> ProcessIdentity {
    ProcessIdentity { pid: 42, start_time: 1, boot_id: "b".into() }
}

fn run() -> Run {
    Run {
        class: "small".into(),
        cpus: 1,
        memory_bytes: 512 << 20,
        firmware: "UEFI".into(),
        dedicated_cpus: false,
        isolate_emulator_thread: false,
        huge_pages: berth_api::HugePages::None,
        tpm: false,
        topology: None,
        numa_nodes: None,
        max_cpus: None,
        growth: None,
        graphics: Graphics::None,
        cdroms: Vec::new(),
        uuid: None,
        profile: RunProfile::default(),
        machine: None,
        default_queues: None,
        enrolls: false,
        boot_volume: "v-root".into(),
        interfaces: None,
        token: None,
        process: Some(identity()),
        started_at: Some(at(NOW - 100)),
        booted_at: None,
        post_start: None,
        keeps_bootstrap: false,
        ended: None,
    }
}

fn plugged(id: &str) -> ObservedDisk {
    ObservedDisk {
        is_encrypted: false,
        id: id.into(),
        node: Some(id.into()),
        serial: format!("serial-{id}"),
        file: None,
        size: 1 << 30,
        read_only: false,
        bus: Default::default(),
        limits: Default::default(),
        target: Some(0),
        is_direct: true,
        files_below: 0,
        io_error: false,
    }
}

/// The card in this slot.
fn card(slot: u8, port: Option<u8>) -> ObservedNic {
    let mac = format!("52:54:00:00:00:{:02x}", slot + 2);
    ObservedNic { id: format!("nic{slot}"), model: Default::default(), mac, port }
}

/// An observation with a QEMU in this state and both disks.
fn present(state: RunState) -> Observed {
    let machine = MachineState {
        run_state: state,
        qemu_version: "7.2.0".into(),
        disks: vec![plugged("v-data"), plugged("v-root")],
        cdroms: Vec::new(),
        nics: vec![card(0, None)],
        nic_ports: Vec::new(),
        links: [("nic0".to_owned(), true)].into(),
        cpus: None,
        growth: None,
        has_tpm: None,
        lost_shares: None,
        ending: None,
        resumed_at: None,
        transfer: Transfer::Idle,
        saved_percent: None,
        save_failure: None,
        left_open: Default::default(),
        save_began: None,
        sleep: Default::default(),
        mirrors: Default::default(),
    };
    Observed {
        journal: Journal { run: Some(run()), ..Journal::new(&vm(json!({}))) },
        journal_written: true,
        process: Some(ProcessFacts { identity: identity(), started_at: at(NOW - 100), dedicated: None }),
        machine: Some(machine),
        guest: GuestFacts { agent: true, ..GuestFacts::default() },
        host: None,
        ..ready_to_start()
    }
}

fn names(plan: &Plan<Step>) -> Vec<&'static str> {
    let name = |step: &Step| match step {
        Step::ReserveCapacity(_) => "ReserveCapacity",
        Step::Connect(_) => "Connect",
        Step::ForgetMachine => "ForgetMachine",
        Step::WatchLeases(_) => "WatchLeases",
        Step::WatchProbes(_) => "WatchProbes",
        Step::KeepKeys(_) => "KeepKeys",
        Step::KeepPackage(_) => "KeepPackage",
        Step::RunHook(_) => "RunHook",
        Step::WriteJournal(_) => "WriteJournal",
        Step::RemoveStale(_) => "RemoveStale",
        Step::TakeFirmware(_) => "TakeFirmware",
        Step::CopyFirmware => "CopyFirmware",
        Step::EnsureNetworks => "EnsureNetworks",
        Step::EnsureBridges => "EnsureBridges",
        Step::EnsureNetworkOf(_) => "EnsureNetworkOf",
        Step::ProbeAddresses(_) => "ProbeAddresses",
        Step::MakeTap(_) => "MakeTap",
        Step::TakeDevices(_) => "TakeDevices",
        Step::GiveBackDevices => "GiveBackDevices",
        Step::Launch(_) => "Launch",
        Step::Start => "Start",
        Step::Pause => "Pause",
        Step::SuspendGuest => "SuspendGuest",
        Step::WakeUp => "WakeUp",
        Step::Save { .. } => "Save",
        Step::CancelSave => "CancelSave",
        Step::SealState => "SealState",
        Step::Load { .. } => "Load",
        Step::RemoveState => "RemoveState",
        Step::LayState(_) => "LayState",
        Step::Depart(_) => "Depart",
        Step::CancelDeparture => "CancelDeparture",
        Step::AbandonDeparture => "AbandonDeparture",
        Step::SettleDeparture(_) => "SettleDeparture",
        Step::SetClock => "SetClock",
        Step::HoldDisks(_) => "HoldDisks",
        Step::Plug { .. } => "Plug",
        Step::Unplug { .. } => "Unplug",
        Step::PlugNic(_) => "PlugNic",
        Step::CloseLeft { .. } => "CloseLeft",
        Step::UnplugNic { .. } => "UnplugNic",
        Step::SetLink { .. } => "SetLink",
        Step::SetCpuTime(_) => "SetCpuTime",
        Step::Pull(_) => "Pull",
        Step::FollowPull(_) => "FollowPull",
        Step::ChangeMedium(_) => "ChangeMedium",
        Step::CloseTray(_) => "CloseTray",
        Step::PlugCpus(_) => "PlugCpus",
        Step::RequestMemory(_) => "RequestMemory",
        Step::PressPowerButton => "PressPowerButton",
        Step::AskGuestToShutDown => "AskGuestToShutDown",
        Step::EndProcess => "EndProcess",
        Step::ReportPowerOff => "ReportPowerOff",
        Step::ReportLostTap(_) => "ReportLostTap",
        Step::RemoveTap(_) => "RemoveTap",
        Step::RemoveInstance => "RemoveInstance",
        Step::Release => "Release",
    };
    plan.steps.iter().map(name).collect()
}

fn stands(plan: &Plan<Step>) -> (bool, Reason) {
    assert_eq!(plan.steps, [], "{plan:?}");
    (matches!(plan.readiness, Readiness::Stalled(..)), plan.readiness.reason())
}
