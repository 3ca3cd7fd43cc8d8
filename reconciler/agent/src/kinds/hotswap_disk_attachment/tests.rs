use berth_api::{Disk, VM};
use berth_host::{VolumeFacts, VolumeOwner};
use berth_qemu::block::ObservedDisk;
use berth_qemu::machine::Format;
use berth_qemu::power::RunState;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::status::status;
use super::*;
use crate::machine::{GuestFacts, MachineState};

fn attachment(deleted: bool, force: bool) -> HotswapDiskAttachment {
    let mut object = json!({
        "metadata": {"name": "a", "namespace": "ns", "generation": 1},
        "spec": {"vm": "web", "disk": "data", "force": force},
        "status": {"observedGeneration": 0, "binding": {"host": "h", "epoch": 1}},
    });
    if deleted {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    serde_json::from_value(object).expect("an attachment")
}

fn vm() -> VM {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u1"},
        "spec": {"class": "s", "disks": [{"name": "root", "boot": true}]},
        "status": {"observedGeneration": 1, "instanceID": "i-1"},
    }))
    .expect("a VM")
}

fn disk(used_by: Value) -> Disk {
    serde_json::from_value(json!({
        "metadata": {"name": "data", "namespace": "ns"}, "spec": {"size": "1Gi"},
        "status": {"observedGeneration": 1, "volumeID": "v-1", "serial": "v1", "usedBy": used_by},
    }))
    .expect("a Disk")
}

fn ours() -> Value {
    json!([{"use": "Hotswap", "vm": "web", "vmUid": "u1", "attachment": "a"}])
}

fn machine(state: RunState, plugged: bool) -> MachineState {
    let disk = ObservedDisk {
        is_encrypted: false,
        id: "v-1".into(),
        node: Some("v-1".into()),
        serial: "v1".into(),
        file: Some("/v-1".into()),
        size: 1,
        read_only: false,
        bus: Default::default(),
        limits: Default::default(),
        target: Some(1),
        is_direct: true,
        files_below: 0,
        io_error: false,
    };
    MachineState {
        run_state: state,
        qemu_version: "7.2.0".into(),
        disks: if plugged { vec![disk] } else { Vec::new() },
        cdroms: Vec::new(),
        nics: Vec::new(),
        nic_ports: Vec::new(),
        links: Default::default(),
        cpus: None,
        growth: None,
        has_tpm: None,
        lost_shares: None,
        ending: None,
        resumed_at: None,
        transfer: berth_qemu::saved_state::Transfer::Idle,
        saved_percent: None,
        save_failure: None,
        left_open: Default::default(),
        save_began: None,
        sleep: Default::default(),
        mirrors: Default::default(),
    }
}

fn seen(used_by: Value, machine: Option<MachineState>) -> Observed {
    let volume = VolumeFacts {
        problem: None,
        encryption: None,
        retained: false,
        pending_snapshot: None,
        restores: Vec::new(),
        restoring: false,
        reserved: None,
        pool: "default".into(),
        id: "v-1".into(),
        size: 1,
        base: None,
        owner: VolumeOwner {
            namespace: "ns".into(),
            name: "data".into(),
            uid: None,
            image: None,
            source: None,
        },
        path: "/v-1".into(),
        format: Format::Qcow2,
        cache: Default::default(),
        backing: None,
    };
    Observed {
        vm: Some(vm().into()),
        disk: Some(disk(used_by).into()),
        volume: Some(volume),
        machine,
        ..Observed::default()
    }
}

fn stands(plan: &Plan<Step>) -> (usize, bool, Reason) {
    (plan.steps.len(), matches!(plan.readiness, Readiness::Stalled(..)), plan.readiness.reason())
}

#[test]
fn a_disk_without_the_encryption_that_it_declares_is_not_plugged_in() {
    let mut without = disk(ours());
    let encryption = serde_json::from_value(json!({"keyClass": "k"})).expect("an encryption");
    without.spec.encryption = Some(Box::new(encryption));
    let running = seen(ours(), Some(machine(RunState::Running, false)));
    let observed = Observed { disk: Some(without.into()), ..running };
    let plan_now = plan(&attachment(false, false), &observed);
    assert_eq!(stands(&plan_now), (0, false, Reason::WaitingForDisk));
}

#[test]
fn a_disk_that_is_ours_is_plugged_into_the_running_vm_and_stays() {
    let plan_now = plan(&attachment(false, false), &seen(ours(), Some(machine(RunState::Running, false))));
    let [Step::Plug { instance, disk, .. }] = &plan_now.steps[..] else { panic!("{plan_now:?}") };
    assert_eq!(
        (instance.as_str(), disk.id.as_str(), disk.serial.as_str(), disk.boot),
        ("i-1", "v-1", "v1", false)
    );
    let observed = seen(ours(), Some(machine(RunState::Running, true)));
    let plan_now = plan(&attachment(false, false), &observed);
    assert_eq!(stands(&plan_now), (0, false, Reason::Attached));
    let reported = status(&attachment(false, false), &observed, &plan_now.readiness, Timestamp::UNIX_EPOCH);
    assert_eq!(reported.state, Some(berth_api::AttachmentState::Attached));
    assert_eq!(reported.device.as_deref(), Some("/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_v1"));
}

#[test]
fn what_it_waits_for_is_said() {
    let live = attachment(false, false);
    let running = || Some(machine(RunState::Running, false));
    assert_eq!(stands(&plan(&live, &Observed::default())), (0, false, Reason::WaitingForVM));
    let no_file = Observed { volume: None, ..seen(ours(), running()) };
    assert_eq!(stands(&plan(&live, &no_file)), (0, false, Reason::WaitingForDisk));
    let away = Observed { away: Some("storage pool fast is away".into()), ..no_file };
    assert!(plan(&live, &away).readiness.message().contains("out of reach: storage pool fast is away"));
    assert_eq!(stands(&plan(&live, &seen(json!([]), running()))), (0, false, Reason::WaitingForDisk));
    let moving = Observed { moves_first: true, ..seen(ours(), running()) };
    assert_eq!(stands(&plan(&live, &moving)), (0, false, Reason::WaitingForDisk));
    assert!(plan(&live, &moving).readiness.message().contains("moved to another pool"));
    let other = json!([{"use": "Fixed", "vm": "db", "vmUid": "u2"}]);
    assert_eq!(stands(&plan(&live, &seen(other, running()))), (0, true, Reason::DiskInUse));
    assert_eq!(stands(&plan(&live, &seen(ours(), None))), (0, false, Reason::WaitingForVM));
    let off = Some(machine(RunState::Shutdown, false));
    assert_eq!(stands(&plan(&live, &seen(ours(), off))), (0, false, Reason::WaitingForVM));
}

#[test]
fn with_a_vm_that_is_stopped_as_declared_it_is_ready_and_not_attached() {
    let mut stopped = vm();
    stopped.spec.power = Power::Stopped;
    let observed = Observed { vm: Some(stopped.into()), ..seen(ours(), None) };
    let plan_now = plan(&attachment(false, false), &observed);
    assert_eq!(stands(&plan_now), (0, false, Reason::Available));
    let reported = status(&attachment(false, false), &observed, &plan_now.readiness, Timestamp::UNIX_EPOCH);
    let attached = condition::find(&reported.conditions, "Attached").expect("said");
    assert_eq!((attached.status.as_str(), attached.message.as_str()), ("False", "attached when VM web runs"));
    assert_eq!(reported.state, Some(berth_api::AttachmentState::Requested));
    let ending = Observed { machine: Some(machine(RunState::Shutdown, true)), ..observed };
    assert_eq!(
        stands(&plan(&attachment(false, false), &ending)),
        (0, false, Reason::Attached),
        "as QEMU has it"
    );
}

#[test]
fn a_mounted_disk_stays_unless_forced() {
    let mounted = || Observed {
        mounts: Some(vec!["/srv".into()]),
        ..seen(ours(), Some(machine(RunState::Running, true)))
    };
    let busy = plan(&attachment(true, false), &mounted());
    assert_eq!(stands(&busy), (0, true, Reason::GuestBusy));
    assert!(busy.requeue_after.is_some(), "the guest does not tell when it unmounts");
    assert!(matches!(&plan(&attachment(true, true), &mounted()).steps[..], [Step::Unplug { .. }]));
    let unmounted = Observed { mounts: Some(Vec::new()), ..mounted() };
    assert!(matches!(&plan(&attachment(true, false), &unmounted).steps[..], [Step::Unplug { .. }]));
}

#[test]
fn a_disk_whose_mounts_nobody_tells_stays_until_the_vm_is_off_unless_forced() {
    let silent =
        |vm: VM| Observed { vm: Some(vm.into()), ..seen(ours(), Some(machine(RunState::Running, true))) };
    let stays = plan(&attachment(true, false), &silent(vm()));
    assert_eq!(stands(&stays), (0, true, Reason::MountsUnknown));
    assert!(stays.requeue_after.is_some() && stays.readiness.message().contains("force"), "{stays:?}");
    assert!(matches!(&plan(&attachment(true, true), &silent(vm())).steps[..], [Step::Unplug { .. }]));
    let mut stopping = vm();
    stopping.spec.power = Power::Stopped;
    assert_eq!(stands(&plan(&attachment(true, false), &silent(stopping))), (0, false, Reason::Detaching));
    let mut going = vm();
    going.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
    assert_eq!(stands(&plan(&attachment(true, false), &silent(going))), (0, false, Reason::Detaching));
}

#[test]
fn it_goes_only_when_the_machine_let_go_and_the_disk_was_given_back() {
    let gone = attachment(true, false);
    let unplugged = || Some(machine(RunState::Running, false));
    assert_eq!(stands(&plan(&gone, &seen(ours(), unplugged()))), (0, false, Reason::Detaching));
    assert_eq!(plan(&gone, &seen(json!([]), unplugged())).steps, [Step::Release]);
    assert_eq!(plan(&gone, &seen(json!([]), None)).steps, [Step::Release], "a stopped VM holds nothing");
    let silent = Observed { unreachable: true, ..seen(json!([]), None) };
    assert_eq!(
        stands(&plan(&gone, &silent)),
        (0, false, Reason::Detaching),
        "a machine that hangs may hold it"
    );
    assert_eq!(plan(&gone, &Observed::default()).steps, [Step::Release], "its VM and Disk are gone");
}

#[test]
fn what_an_attempt_to_plug_it_in_has_left_is_removed_unless_the_vm_declares_the_disk() {
    let left = Observed { is_reserved: true, ..seen(ours(), Some(machine(RunState::Running, false))) };
    let unplug = Step::Unplug { instance: "i-1".into(), volume: "v-1".into() };
    assert_eq!(plan(&attachment(true, false), &left).steps, [unplug]);
    let mut declares = vm();
    declares.spec.disks[0].name = "data".into();
    let declared = Observed { vm: Some(declares.into()), ..left };
    assert!(plan(&attachment(true, false), &declared).steps.is_empty());
}

#[test]
fn a_disk_that_could_not_be_plugged_in_is_let_go_before_it_is_moved_or_restored() {
    let left = || Observed { is_reserved: true, ..seen(ours(), Some(machine(RunState::Running, false))) };
    let unplug = [Step::Unplug { instance: "i-1".into(), volume: "v-1".into() }];
    let live = attachment(false, false);
    assert_eq!(plan(&live, &Observed { moves_first: true, ..left() }).steps, unplug);
    assert_eq!(plan(&live, &Observed { restores_first: true, ..left() }).steps, unplug);
    assert!(matches!(plan(&live, &left()).steps[..], [Step::Plug { .. }]), "it is tried again");
    let let_go = Observed { moves_first: true, is_reserved: false, ..left() };
    assert_eq!(stands(&plan(&live, &let_go)), (0, false, Reason::WaitingForDisk));
}

#[test]
fn the_device_is_what_the_guest_says_if_it_does() {
    let mut observed = seen(ours(), Some(machine(RunState::Running, true)));
    let devices = [("v1".to_owned(), "/dev/sdb".to_owned())].into();
    observed.guest = GuestFacts { agent: true, devices, ..GuestFacts::default() };
    let ready = Readiness::Ready(Reason::Attached, String::new());
    let reported = status(&attachment(false, false), &observed, &ready, Timestamp::UNIX_EPOCH);
    assert_eq!(reported.device.as_deref(), Some("/dev/sdb"));
}

#[test]
fn a_guest_that_could_not_be_suspended_releases_a_disk_and_one_that_is_being_suspended_does_not() {
    let mut declared = vm();
    declared.spec.power = Power::Suspended;
    let deleted = |vm: &VM| {
        let running = seen(ours(), Some(machine(RunState::Running, true)));
        let observed = Observed { vm: Some(vm.clone().into()), mounts: Some(Vec::new()), ..running };
        plan(&attachment(true, false), &observed)
    };
    let waits = deleted(&declared);
    assert!(waits.steps.is_empty(), "{waits:?}");
    assert!(waits.readiness.message().contains("is being suspended with this disk"), "{waits:?}");
    let failed = Readiness::Stalled(Reason::SuspendFailed, "it has an encrypted disk".to_owned());
    let conditions = &mut declared.status.as_mut().expect("a status").conditions;
    failed.write(conditions, 1, Timestamp::UNIX_EPOCH);
    assert!(matches!(&deleted(&declared).steps[..], [Step::Unplug { .. }]));
}
