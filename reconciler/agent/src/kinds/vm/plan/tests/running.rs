//! A running VM: left alone, or its disks plugged and unplugged.

use berth_qemu::block::Mirror;
use berth_qemu::machine::Bus;

use super::super::start::unsynced_interfaces;
use super::*;
use crate::disk_places::DiskPlace;
use crate::hardware::memory_reservation;
use crate::kinds::vm::cpu_time;
use crate::public_address::GivenAddress;

#[test]
fn a_machine_launched_before_a_crash_is_noted_and_let_run() {
    let mut observed = present(RunState::Prelaunch);
    if let Some(run) = &mut observed.journal.run {
        run.process = None;
    }
    let first = plan(&vm(json!({})), &observed);
    let [Step::WriteJournal(journal)] = &first.steps[..] else { panic!("{first:?}") };
    assert!(journal.has_process());
    observed.journal = (**journal).clone();
    assert_eq!(names(&plan(&vm(json!({})), &observed)), ["Start"]);
}

#[test]
fn a_machine_of_a_vm_that_had_another_uid_is_noted_as_this_ones_and_any_other_is_left_alone() {
    let mut observed = present(RunState::Running);
    observed.journal.uid = "u0".into();
    let other = plan(&vm(json!({})), &observed);
    assert_eq!(stands(&other), (true, Reason::NotSupported));
    let mut said = vm(json!({}));
    said.annotations_mut().insert(berth_api::FORMER_UID_ANNOTATION.into(), "u0".into());
    let taken = plan(&said, &observed);
    let [Step::WriteJournal(journal)] = &taken.steps[..] else { panic!("{taken:?}") };
    assert_eq!((journal.uid.as_str(), &journal.run), ("u1", &observed.journal.run));
    observed.journal = (**journal).clone();
    assert_eq!(stands(&plan(&said, &observed)), (false, Reason::Running));
    said.metadata.name = Some("web-2".into());
    observed.journal.uid = "u0".into();
    assert_eq!(stands(&plan(&said, &observed)), (true, Reason::NotSupported), "it is of another name");
}

#[test]
fn a_guest_that_a_full_disk_of_its_host_paused_is_called_paused_with_the_reason() {
    let vm = vm(json!({}));
    for (state, reason) in [(RunState::IoError, "NoSpace"), (RunState::Paused, "Paused")] {
        let observed = present(state.clone());
        let reported = status(&vm, &observed, &plan(&vm, &observed).readiness, at(NOW));
        assert_eq!(reported.state, Some(VMState::Paused), "{state:?}");
        let running = berth_api::condition::find(&reported.conditions, "Running").expect("it says so");
        assert_eq!((running.status.as_str(), running.reason.as_str()), ("False", reason));
        assert!(running.message.contains("paused"), "{}", running.message);
    }
}

#[test]
fn a_paused_guest_is_resumed_every_ten_seconds_also_after_the_clock_was_set_back() {
    let mut observed = present(RunState::IoError);
    let resumes = |second: i64| {
        observed.machine.as_mut().expect("it runs").resumed_at = Some(at(second));
        names(&plan(&vm(json!({})), &observed)) == ["Start"]
    };
    assert_eq!([NOW - 10, NOW - 9, NOW + 3600].map(resumes), [true, false, true]);
}

#[test]
fn a_guest_that_a_full_pool_paused_says_which_disk_of_which_pool_and_how_it_goes_on() {
    let mut observed = present(RunState::IoError);
    let disks = &mut observed.machine.as_mut().expect("it runs").disks;
    disks.iter_mut().filter(|disk| disk.id == "v-data").for_each(|disk| disk.io_error = true);
    let reported = ReportedDisk { name: "data".into(), pool: "fast".into(), ..ReportedDisk::default() };
    observed.reported_disks = [("v-data".to_owned(), reported)].into();
    for spec in [json!({}), json!({"power": "Paused"})] {
        let vm = vm(spec);
        let status = status(&vm, &observed, &plan(&vm, &observed).readiness, at(NOW));
        for kind in ["Ready", "Running"] {
            let message = &berth_api::condition::find(&status.conditions, kind).expect("it says so").message;
            for part in ["Disk data in StoragePool fast", "free space there", "resumed"] {
                assert!(message.contains(part), "{kind}: {message}");
            }
            assert!(!message.contains("root"), "{message}");
        }
    }
    observed.reported_disks.clear();
    let vm = vm(json!({}));
    let message = plan(&vm, &observed).readiness.message().to_owned();
    assert!(message.contains("the disk with serial number serial-v-data"), "{message}");
}

#[test]
fn what_is_declared_paused_is_paused_from_any_state_in_which_its_guest_could_run() {
    let paused = vm(json!({"power": "Paused"}));
    assert_eq!(names(&plan(&paused, &present(RunState::Running))), ["Pause"]);
    for state in [RunState::Prelaunch, RunState::Paused] {
        let observed = present(state);
        let plan = plan(&paused, &observed);
        assert_eq!((stands(&plan), plan.requeue_after), ((false, Reason::Paused), None));
        let reported = status(&paused, &observed, &plan.readiness, at(NOW));
        assert_eq!(reported.state, Some(VMState::Paused));
        assert!(berth_api::condition::is_true(&reported.conditions, berth_api::ConditionType::Ready));
    }
    // The write that failed is repeated by a resume, which nothing asks for.
    assert_eq!(stands(&plan(&paused, &present(RunState::IoError))), (false, Reason::NoSpace));
    let launch = names(&plan(&paused, &ready_to_start()));
    assert!(launch.contains(&"Launch") && !launch.contains(&"Start"), "{launch:?}");
    assert!(!launch.contains(&"WatchLeases"), "{launch:?}");
}

#[test]
fn a_guest_that_is_paused_for_the_switch_of_a_disk_is_resumed_by_nothing_before_the_record() {
    let mut observed = present(RunState::Paused);
    for (mirror, resumes) in [(Mirror::Pending, false), (Mirror::Switched, false), (Mirror::Ready, true)] {
        observed.machine.as_mut().expect("it runs").mirrors = [("v-data".to_owned(), mirror.clone())].into();
        let plan = plan(&vm(json!({})), &observed);
        assert_eq!(names(&plan).contains(&"Start"), resumes, "{mirror:?}");
        assert!(resumes || stands(&plan) == (false, Reason::Moving), "{plan:?}");
    }
}

#[test]
fn a_paused_guest_is_restarted_only_once_it_is_to_run() {
    let mut paused = vm(json!({"power": "Paused", "restartToken": "2"}));
    assert_eq!(stands(&plan(&paused, &present(RunState::Paused))), (false, Reason::Paused));
    paused.spec.power = Power::Running;
    let restarting = plan(&paused, &present(RunState::Paused));
    assert!(matches!(&restarting.steps[..], [Step::WriteJournal(journal)] if journal.stop.is_some()));
}

#[test]
fn a_state_is_kept_while_the_monitor_of_the_same_process_does_not_answer() {
    let mut vm = vm(json!({}));
    let mut observed = present(RunState::IoError);
    let readiness = Readiness::Reconciling(Reason::Retrying, String::new());
    let stored = status(&vm, &observed, &readiness, at(NOW));
    vm.status = Some(stored.clone());
    observed.machine = None;
    assert_eq!(status(&vm, &observed, &readiness, at(NOW)).state, Some(VMState::Paused));
    if let Some(process) = &mut observed.process {
        process.identity.pid += 1;
    }
    assert_eq!(status(&vm, &observed, &readiness, at(NOW)).state, Some(VMState::Starting), "another process");
}

fn given(address: &str, prefix: Option<ipnet::Ipv6Net>) -> GivenAddress {
    GivenAddress { address: address.parse().expect("an address"), prefix, mode: berth_api::IPPoolMode::L2 }
}

#[test]
fn the_public_addresses_that_lead_to_it_are_noted() {
    let mut observed = present(RunState::Running);
    let seen = |address: &str| DeclaredAddress {
        interface: "nic0".into(),
        name: "p".into(),
        address: Some(given(address, None)),
        forwarded: true,
        refused: None,
    };
    observed.public.push(seen("192.0.2.7"));
    let noting = plan(&vm(json!({})), &observed);
    let [Step::WriteJournal(journal)] = &noting.steps[..] else { panic!("{noting:?}") };
    let updated = &journal.public[0];
    assert_eq!((updated.name.as_str(), updated.address.to_string().as_str()), ("p", "192.0.2.7"));
    observed.journal = (**journal).clone();
    assert_eq!(stands(&plan(&vm(json!({})), &observed)), (false, Reason::Running));
    observed.public.push(seen("2001:db8::7"));
    let noting = plan(&vm(json!({})), &observed);
    let [Step::WriteJournal(journal)] = &noting.steps[..] else { panic!("{noting:?}") };
    assert_eq!((journal.public.len(), journal.public_ipv6.len()), (1, 1), "apart, for an earlier agent");
    let prefix: ipnet::Ipv6Net = "2001:db8:0:8:1::/80".parse().expect("a prefix");
    observed.public[1].address = Some(given("2001:db8:0:8:1::", Some(prefix)));
    let noting = plan(&vm(json!({})), &observed);
    let [Step::WriteJournal(journal)] = &noting.steps[..] else { panic!("{noting:?}") };
    assert_eq!(journal.public_ipv6[0].given().prefix, Some(prefix), "with its length");
    let declared = vm(json!({"networkInterfaces": [{"name": "nic0"}]}));
    let reported = status(&declared, &observed, &noting.readiness, at(NOW));
    let interface = &reported.interfaces[0];
    assert_eq!(interface.public_ipv6_prefix.as_deref(), Some("2001:db8:0:8:1::/80"));
    assert_eq!((&interface.public_ipv6_address, &reported.public_ipv6_address), (&None, &None));
    observed.public.clear();
    let noting = plan(&vm(json!({})), &observed);
    assert!(
        matches!(&noting.steps[..], [Step::WriteJournal(journal)] if journal.public.is_empty()),
        "{noting:?}"
    );
}

#[test]
fn what_runs_as_declared_is_left_alone() {
    let plan = plan(&vm(json!({})), &present(RunState::Running));
    assert_eq!((stands(&plan), plan.requeue_after), ((false, Reason::Running), None));
}

#[test]
fn a_disk_added_to_the_list_is_plugged_in_and_one_taken_off_it_is_pulled() {
    let mut observed = present(RunState::Running);
    observed.disks.push(disk("more", false));
    observed.disks.last_mut().expect("a disk").moves_first = true;
    let moving = plan(&vm(json!({})), &observed);
    assert_eq!(stands(&moving), (false, Reason::WaitingForDisk), "its file is locked meanwhile");
    observed.disks.last_mut().expect("a disk").is_reserved = true;
    let left = plan(&vm(json!({})), &observed);
    assert_eq!(left.steps, [Step::Unplug { volume: "v-more".to_owned() }], "the move waits for the machine");
    observed.disks.last_mut().expect("a disk").is_reserved = false;
    let mut open = observed.clone();
    open.machine.as_mut().expect("it runs").left_open.insert("v-more".to_owned());
    let left = plan(&vm(json!({})), &open);
    assert_eq!(left.steps, [Step::Unplug { volume: "v-more".to_owned() }], "a plug was interrupted");
    observed.disks.last_mut().expect("a disk").moves_first = false;
    let noting = plan(&vm(json!({})), &observed);
    let [Step::WriteJournal(journal)] = &noting.steps[..] else { panic!("{noting:?}") };
    observed.journal = (**journal).clone();
    let plugging = plan(&vm(json!({})), &observed);
    let [Step::Plug { disk }] = &plugging.steps[..] else { panic!("{plugging:?}") };
    assert_eq!((disk.id.as_str(), disk.target), ("v-more", Some(1)));
    let mut observed = present(RunState::Running);
    observed.disks.truncate(1);
    assert_eq!(
        stands(&plan(&vm(json!({})), &observed)),
        (true, Reason::MountsUnknown),
        "nothing tells what is mounted"
    );
    observed.mounts.insert("v-data".into(), Vec::new());
    assert_eq!(names(&plan(&vm(json!({})), &observed)), ["Unplug"]);
    observed.mounts.insert("v-data".into(), vec!["/srv".into()]);
    assert_eq!(stands(&plan(&vm(json!({})), &observed)), (true, Reason::GuestBusy));
    observed.attachments.insert("v-data".into(), ("data".into(), "a".into()));
    assert_eq!(stands(&plan(&vm(json!({})), &observed)), (false, Reason::Running), "an attachment has it");
}

#[test]
fn a_volume_that_a_plug_or_an_unplug_has_left_open_is_closed() {
    let mut observed = present(RunState::Running);
    observed.left_volumes.insert("v-gone".into());
    let plan = plan(&vm(json!({})), &observed);
    assert_eq!(plan.steps, [Step::CloseLeft { volume: "v-gone".into() }]);
    assert!(plan.requeue_after.is_some(), "QEMU may use it for a moment still");
}

#[test]
fn a_disk_that_was_plugged_in_keeps_its_target_when_another_is_taken_off() {
    let place = |number| DiskPlace { bus: Bus::VirtioScsi, number };
    let mut observed = ready_to_start();
    for (name, number) in [("root", 0), ("data", 1), ("more", 2)] {
        observed.journal.disk_places.record(name, place(number));
    }
    observed.disks = vec![disk("new", false), disk("root", true), disk("more", false)];
    let started = plan(&vm(json!({})), &observed);
    let targets = started.steps.iter().find_map(|step| match step {
        Step::Launch(request) => {
            Some(request.machine.disks.iter().map(|disk| (disk.id.clone(), disk.target)).collect::<Vec<_>>())
        }
        _ => None,
    });
    let wanted = [("v-root", 0), ("v-new", 1), ("v-more", 2)];
    let wanted = wanted.map(|(id, target)| (id.to_owned(), Some(target))).to_vec();
    assert_eq!(targets, Some(wanted));
}

#[test]
fn a_target_that_something_else_has_taken_is_given_up() {
    let mut observed = present(RunState::Running);
    observed.disks.push(disk("more", false));
    // Both disks of this machine have the target 0.
    observed.journal.disk_places.record("more", DiskPlace { bus: Bus::VirtioScsi, number: 0 });
    let noting = plan(&vm(json!({})), &observed);
    let [Step::WriteJournal(journal)] = &noting.steps[..] else { panic!("{noting:?}") };
    assert_eq!(journal.disk_places.get("more").map(|place| place.number), Some(1));
}

#[test]
fn another_boot_disk_waits_for_the_next_power_cycle() {
    let mut observed = present(RunState::Running);
    observed.disks[0] = disk("newroot", true);
    assert_eq!(stands(&plan(&vm(json!({})), &observed)), (false, Reason::Running));
    let readiness = Readiness::Ready(Reason::Running, String::new());
    let reported = status(&vm(json!({})), &observed, &readiness, at(NOW));
    let reported = reported.disks[0].message.as_deref();
    assert_eq!(reported, Some("becomes the boot disk at the next power cycle"));
}

#[test]
fn what_waits_for_the_next_power_cycle_is_listed_while_the_host_could_start_the_vm_again() {
    let sized =
        |memory: &str, firmware: &str| size(json!({"cpus": 2, "memory": memory, "firmware": firmware}));
    let pending = |observed: &Observed, vm: &VM| {
        status(vm, observed, &plan(vm, observed).readiness, at(NOW)).pending_power_cycle
    };
    let as_declared = vm(json!({}));
    let mut observed = present(RunState::Running);
    assert!(pending(&observed, &as_declared).is_empty());
    observed.disks[0] = disk("newroot", true);
    observed.size = sized("1Gi", "BIOS");
    if let Some(run) = &mut observed.journal.run {
        run.interfaces = Some(vec!["nic7/52:54:00:00:00:07".to_owned()]);
    }
    let listed = pending(&observed, &vm(json!({"class": "large", "networkInterfaces": []})));
    let expected = ["class", "cpus", "memory", "firmware", "disks[newroot]", "networkInterfaces[nic7]"];
    assert_eq!(listed, expected);
    assert!(pending(&Observed { process: None, ..observed }, &as_declared).is_empty(), "it does not run");
    let too_large = Observed { size: sized("1Ti", "UEFI"), ..present(RunState::Running) };
    assert!(pending(&too_large, &as_declared).is_empty(), "once off, it stays off");
}

#[test]
fn a_class_that_is_changed_and_changed_back_waits_for_no_power_cycle() {
    let mut object = vm(json!({}));
    for (cpus, expected) in [(2, ("False", "PowerCycleNeeded")), (1, ("True", "Synced"))] {
        let size = size(json!({"cpus": cpus, "memory": "512Mi"}));
        let observed = Observed { size, ..present(RunState::Running) };
        let reported = status(&object, &observed, &plan(&object, &observed).readiness, at(NOW));
        let synced = berth_api::condition::find(&reported.conditions, "ClassSynced").expect("it runs");
        assert_eq!((synced.status.as_str(), synced.reason.as_str()), expected, "{cpus} CPUs");
        object.status = Some(reported);
    }
}

#[test]
fn each_part_of_the_size_waits_for_the_power_cycle_under_its_own_name() {
    let object = vm(json!({}));
    let pending = |declared: Value, object: &VM| {
        let observed = Observed { size: size(declared), ..present(RunState::Running) };
        let reported = status(object, &observed, &plan(object, &observed).readiness, at(NOW));
        let synced = berth_api::condition::find(&reported.conditions, "ClassSynced").expect("it runs");
        assert_eq!(synced.status == "True", reported.pending_power_cycle.is_empty(), "{}", synced.message);
        (reported.pending_power_cycle, synced.message.clone())
    };
    let has = || json!({"cpus": 1, "memory": "512Mi"});
    assert!(pending(has(), &object).0.is_empty(), "the journal of an older agent has no topology");
    let with = |key: &str, value: Value| {
        let mut declared = has();
        declared[key] = value;
        pending(declared, &object).0
    };
    assert_eq!(with("cpus", json!(2)), ["cpus"]);
    assert_eq!(with("memory", json!("1Gi")), ["memory"]);
    assert_eq!(with("firmware", json!("BIOS")), ["firmware"]);
    assert_eq!(with("cpuTopology", json!({"cores": 1, "sockets": 2})), ["cpuTopology"]);
    let classless = vm(json!({"class": null}));
    let (names, message) = pending(has(), &classless);
    assert_eq!(names, ["class"]);
    insta::assert_snapshot!(message, @"the VM runs with class small, 1 CPUs and 512Mi: stop and start it for the change of class to take effect");
}

#[test]
fn cpus_are_plugged_in_up_to_the_maximum_of_the_start_and_never_taken() {
    let object = vm(json!({}));
    let observed = |declared: Value, max_cpus: Option<i64>| {
        let mut observed = Observed { size: size(declared), ..present(RunState::Running) };
        let run = observed.journal.run.as_mut().expect("it runs");
        (run.max_cpus, run.topology) = (max_cpus, max_cpus.map(CpuTopology::of_cores));
        observed.machine.as_mut().expect("it runs").cpus = Some(1);
        observed
    };
    let steps = |declared: Value, max_cpus| names(&plan(&object, &observed(declared, max_cpus)));
    let of = |cpus: i64| json!({"cpus": cpus, "maxCpus": 4, "memory": "512Mi"});
    assert_eq!(steps(of(2), Some(4)), ["PlugCpus"]);
    assert_eq!(steps(of(4), Some(4)), ["PlugCpus"]);
    for (declared, max_cpus, why) in [
        (of(1), Some(4), "it has them"),
        (of(4), Some(2), "it was started with fewer places"),
        (of(2), None, "it was started without places"),
        (json!({"cpus": 2, "maxCpus": 4, "memory": "1Ti"}), Some(4), "it could not start again"),
    ] {
        assert!(steps(declared, max_cpus).is_empty(), "{why}");
    }
    let mut paused = observed(of(2), Some(4));
    paused.machine.as_mut().expect("it runs").run_state = RunState::Paused;
    assert!(!names(&plan(&vm(json!({"power": "Paused"})), &paused)).contains(&"PlugCpus"), "it is paused");

    let mut plugged = observed(of(2), Some(4));
    plugged.machine.as_mut().expect("it runs").cpus = Some(2);
    let steps = plan(&object, &plugged).steps;
    let [Step::WriteJournal(journal)] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(journal.run.as_ref().map(|run| run.cpus), Some(2), "what it has is recorded");
    let synced = Observed { journal: (**journal).clone(), ..plugged };
    let reported = status(&object, &synced, &plan(&object, &synced).readiness, at(NOW));
    assert!(reported.pending_power_cycle.is_empty(), "{:?}", reported.pending_power_cycle);
}

#[test]
fn cpu_time_other_than_declared_is_corrected_whoever_changed_it() {
    let object = vm(json!({"cpuLimit": "1.5", "cpuReservation": "1"}));
    let controls = object.spec.cpu_controls(None);
    let wanted = cpu_time::of(&controls, 4);
    assert_eq!(wanted, CpuTime { limit: Some(1500), weight: 2500 });
    let has = |has: Option<CpuTime>| Observed {
        cpu_controls: controls,
        wanted_cpu_time: wanted,
        cpu_time: has,
        ..present(RunState::Running)
    };
    let steps = |observed: &Observed| plan(&object, observed).steps;
    assert_eq!(steps(&has(Some(CpuTime::default()))), [Step::SetCpuTime(wanted)]);
    assert_eq!(steps(&has(Some(CpuTime { weight: 2, ..wanted }))), [Step::SetCpuTime(wanted)]);
    for known in [Some(wanted), None] {
        assert!(steps(&has(known)).is_empty());
    }
    let report =
        |observed: &Observed| status(&object, observed, &plan(&object, observed).readiness, at(NOW)).cpu_time;
    let reported = report(&has(Some(wanted))).expect("not the default");
    assert_eq!((reported.limit.as_deref(), reported.weight), (Some("1.5"), 2500));
    assert_eq!(report(&has(Some(CpuTime::default()))), None, "as read back, not as declared");
}

#[test]
fn an_interface_that_changed_waits_for_the_next_start_and_is_named() {
    let started = vm(json!({"networkInterfaces": [{"name": "nic0"}]}));
    let steps = plan(&started, &ready_to_start()).steps;
    let journal = steps.iter().find_map(|step| match step {
        Step::WriteJournal(journal) if journal.run.is_some() => Some((**journal).clone()),
        _ => None,
    });
    let journal = journal.expect("a start is updated");
    let run = journal.run.clone().expect("just looked");
    assert_eq!(run.interfaces, Some(vec!["nic0/52:54:00:00:00:02".to_owned()]));
    assert!(unsynced_interfaces(&run, &started, &journal).is_empty());
    let mut more = vm(json!({"networkInterfaces": [{"name": "nic0"}, {"name": "nic1"}]}));
    let interfaces = &mut more.status.as_mut().expect("bound").interfaces;
    let second = berth_api::vm::InterfaceStatus {
        name: "nic1".into(),
        mac_address: "52:54:00:00:00:03".into(),
        ..interfaces[0].clone()
    };
    interfaces.push(second);
    assert_eq!(unsynced_interfaces(&run, &more, &journal), ["nic1"]);
    assert_eq!(unsynced_interfaces(&run, &vm(json!({"networkInterfaces": []})), &journal), ["nic0"]);
    let with_model = |model| vm(json!({"networkInterfaces": [{"name": "nic0", "model": model}]}));
    assert!(unsynced_interfaces(&run, &with_model("virtio"), &journal).is_empty());
    assert_eq!(unsynced_interfaces(&run, &with_model("e1000e"), &journal), ["nic0"]);
    let old = Run { interfaces: None, ..run };
    assert!(
        unsynced_interfaces(&old, &more, &journal).is_empty(),
        "what an older agent started is not known"
    );
}

#[test]
fn what_is_reported_is_what_qemu_has_and_reporting_twice_changes_nothing() {
    let mut object = vm(json!({"power": "Stopped"}));
    let mut observed = present(RunState::Running);
    observed.machine.as_mut().expect("set").disks.remove(0);
    let readiness = Readiness::Reconciling(Reason::Stopping, String::new());
    let reported = status(&object, &observed, &readiness, at(NOW));
    assert!(berth_api::condition::is_true(&reported.conditions, berth_api::ConditionType::Running));
    let attached: Vec<_> = reported.disks.iter().map(|d| (d.name.as_str(), d.attached)).collect();
    assert_eq!(attached, [("root", true), ("data", false)]);
    object.status = Some(reported.clone());
    assert_eq!(status(&object, &observed, &readiness, at(NOW + 99)), reported);
}

#[test]
fn progress_and_a_guest_seen_only_by_its_lease_are_held_back_and_what_is_waited_for_is_not() {
    let mut object = vm(json!({}));
    let mut is_held = |observed: &Observed, readiness: Readiness| {
        let stored = object.status.clone().expect("set");
        let reported = status(&object, observed, &readiness, at(NOW));
        object.status = Some(reported.clone());
        assert_ne!(reported, stored);
        without_progress(&stored, &reported) == stored
    };
    let waits = |reason| Readiness::Reconciling(reason, String::new());
    let running = || Readiness::Ready(Reason::Running, String::new());
    let absent = ready_to_start();
    assert!(!is_held(&absent, waits(Reason::WaitingForDisk)), "the first report");
    assert!(is_held(&absent, waits(Reason::Starting)));
    assert!(!is_held(&absent, Readiness::Stalled(Reason::DiskInUse, String::new())));
    let mut observed = present(RunState::Running);
    observed.guest.agent = false;
    assert!(!is_held(&observed, running()));
    observed.lease_taken = true;
    assert!(is_held(&observed, running()));
    observed.guest.agent = true;
    assert!(!is_held(&observed, running()), "it replaces the one held back");
    (observed.lease_taken, observed.guest.agent) = (false, false);
    assert!(!is_held(&observed, running()), "the guest is gone");
    observed.guest.agent = true;
    assert!(!is_held(&observed, running()), "without a lease");
    assert!(!is_held(&present(RunState::Prelaunch), waits(Reason::Starting)), "it is started again");
}

#[test]
fn a_guest_is_ready_once_its_readiness_probe_succeeds_and_only_a_running_one_is_probed() {
    let probed = |power: &str| vm(json!({"power": power, "readinessProbe": {"tcpSocket": {"port": 22}}}));
    let with = |readiness: Option<Outcome>| Observed {
        probes: ProbeResults { readiness, liveness: None },
        ..present(RunState::Running)
    };
    let failure = || Some(Outcome::Failure("no connection".into()));
    let said = |vm: &VM, observed: &Observed| plan(vm, observed).readiness;
    let waits = |text: &str| Readiness::Reconciling(Reason::ProbeFailed, text.to_owned());
    let declared = probed("Running");
    assert_eq!(said(&declared, &with(None)), waits("the readiness probe has not succeeded yet"));
    assert_eq!(said(&declared, &with(failure())), waits("the readiness probe fails: no connection"));
    assert!(matches!(said(&declared, &with(Some(Outcome::Success))), Readiness::Ready(..)));
    assert!(matches!(said(&vm(json!({})), &with(failure())), Readiness::Ready(..)), "it was removed");
}

#[test]
fn a_guest_whose_liveness_probe_fails_is_stopped_as_a_failure_unless_a_gate_holds_its_start() {
    let mut declared = vm(json!({"livenessProbe": {"tcpSocket": {"port": 22}}}));
    let mut observed = present(RunState::Running);
    observed.probes.liveness = Some(Outcome::Failure("no connection".into()));
    let begun = plan(&declared, &observed);
    let [Step::WriteJournal(journal)] = begun.steps.as_slice() else { panic!("{begun:?}") };
    assert_eq!(journal.stop.as_ref().map(|stop| stop.why), Some(StopReason::Unhealthy));
    let end = journal.last_end.as_ref().expect("an end");
    assert_eq!((end.orderly, end.how.as_str()), (false, "the liveness probe failed (no connection)"));
    // It goes on although the probe is asked no longer, and ends as declared for a restart.
    let stopping = Observed {
        journal: (**journal).clone(),
        probes: ProbeResults::default(),
        now: at(NOW + 61),
        ..observed.clone()
    };
    assert_eq!(names(&plan(&declared, &stopping)), ["EndProcess"]);
    let gone = Observed { process: None, machine: None, ..stopping };
    let after = plan(&declared, &gone);
    let [Step::WriteJournal(journal)] = after.steps.as_slice() else { panic!("{after:?}") };
    assert!(journal.stop.is_none() && journal.run.as_ref().is_some_and(|run| run.ended.is_some()));
    let gate = ("poweron.check.berth.dev/backup".to_owned(), "copying".to_owned());
    declared.metadata.annotations.get_or_insert_default().extend([gate]);
    assert!(plan(&declared, &observed).steps.is_empty());
}

#[test]
fn the_memory_that_is_kept_for_a_machine_is_what_is_declared_as_far_as_its_balloon_can_give_the_rest_back() {
    let declared = size(json!({"cpus": 1, "memory": "512Mi", "memoryReservation": "128Mi"})).expect("a size");
    let journal = |change: fn(&mut Journal)| {
        let mut journal = Journal { run: Some(run()), ..Journal::new(&vm(json!({}))) };
        change(&mut journal);
        journal
    };
    let of_run = |change: fn(&mut Run)| {
        let mut changed = journal(|_| {});
        changed.run.iter_mut().for_each(change);
        changed
    };
    let kept = |journal: &Journal| memory_reservation(journal, &declared);
    assert_eq!(kept(&journal(|_| {})), Some(128 << 20));
    assert_eq!(kept(&journal(|journal| journal.run = None)), None, "there is no machine");
    assert_eq!(kept(&of_run(|run| run.memory_bytes = 64 << 20)), None, "it was started with less");
    assert_eq!(kept(&of_run(|run| run.dedicated_cpus = true)), None);
    assert_eq!(kept(&of_run(|run| run.huge_pages = berth_api::HugePages::TwoMebibytes)), None);
    let with_device = journal(|journal| {
        let device = json!({"name": "gpu", "device": {"functions": ["0000:01:00.0"], "groups": [7]}});
        journal.pci_devices = vec![serde_json::from_value(device).expect("a device")];
    });
    assert_eq!(kept(&with_device), None, "it was started with the device");
    let whole = size(json!({"cpus": 1, "memory": "512Mi"})).expect("a size");
    assert_eq!(memory_reservation(&journal(|_| {}), &whole), None);
}
