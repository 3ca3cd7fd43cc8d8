//! Starting a VM: what it waits for and how it is launched.

use berth_api::CpuTopology;
use berth_api::vm::VMRestored;
use berth_qemu::machine::Topology;

use super::*;
use crate::kinds::vm::seed::Lan;
use crate::restores::DueParts;

#[test]
fn a_start_notes_what_it_decides_makes_the_network_launches_and_lets_run() {
    let plan = plan(&vm(json!({})), &ready_to_start());
    assert_eq!(names(&plan), ["WriteJournal", "EnsureNetworks", "MakeTap", "Launch", "Start", "WatchLeases"]);
    let (Step::WriteJournal(journal), Step::Launch(config)) = (&plan.steps[0], &plan.steps[3]) else {
        panic!("{plan:?}")
    };
    insta::assert_json_snapshot!(journal.pins, @r#"
    {
      "machineType": "pc-q35-7.2",
      "cpuModel": "max",
      "accelerator": "tcg",
      "windowsWithoutHpet": true,
      "uuid": "21a1d1ec-d5d8-864d-8e13-e65caf94d6ec"
    }
    "#);
    let disks: Vec<_> = config.machine.disks.iter().map(|d| (d.id.as_str(), d.boot, d.target)).collect();
    assert_eq!(disks, [("v-root", true, Some(0)), ("v-data", false, Some(1))]);
    let nics: Vec<_> = config.machine.nics.iter().map(|n| (n.id.as_str(), n.mac.as_str(), n.slot)).collect();
    assert_eq!(nics, [("nic0", "52:54:00:00:00:02", 0)]);
    assert_eq!((config.machine.name.as_str(), config.machine.memory_bytes), ("ns/web", 512 << 20));
}

#[test]
fn an_address_of_a_bridged_network_is_asked_for_there_and_one_of_an_overlay_or_of_its_dhcp_server_is_not() {
    let network = |allocation: &str| {
        let spec = json!({
            "type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "10.77.0.0/24", "ipv4": {"allocation": allocation}
        });
        let object = json!({"metadata": {"name": "default", "namespace": "berth-shared"}, "spec": spec});
        serde_json::from_value(object).expect("a Network")
    };
    let on = |allocation: &str| {
        let mut observed = ready_to_start();
        let lan = Lan::of(&network(allocation)).expect("a bridged network");
        observed.lans.insert("berth-shared/default".to_owned(), lan);
        observed.accesses.insert("berth-shared/default".to_owned(), "vmbr0".to_owned());
        plan(&vm(json!({})), &observed)
    };
    let planned = on("Static");
    let [Step::WriteJournal(_), Step::EnsureNetworks, Step::ProbeAddresses(asked), Step::MakeTap(_), ..] =
        planned.steps.as_slice()
    else {
        panic!("{planned:?}")
    };
    let given = &vm(json!({})).status.expect("bound").interfaces[0];
    assert_eq!((asked.len(), asked[0].bridge.as_str()), (1, "vmbr0"));
    assert_eq!(asked[0].address.to_string(), given.address);
    assert_eq!(asked[0].interface, given.name);
    let external = names(&on("External"));
    assert!(!external.contains(&"ProbeAddresses"), "{external:?}");
}

/// Adds a public address that was not given to the VM.
fn without_address(observed: &mut Observed, refused: Option<&str>) {
    observed.public.push(DeclaredAddress {
        interface: "nic0".into(),
        name: "p".into(),
        address: None,
        forwarded: false,
        refused: refused.map(str::to_owned),
    });
}

#[test]
fn each_thing_that_is_missing_is_waited_for_under_its_own_name() {
    let plan_with = |change: fn(&mut Observed)| {
        let mut observed = ready_to_start();
        change(&mut observed);
        plan(&vm(json!({})), &observed)
    };
    assert_eq!(
        stands(&plan_with(|o| o.size = Err(SizeError::NoClass("small".into())))),
        (false, Reason::WaitingForClass)
    );
    assert_eq!(
        stands(&plan_with(|o| o.missing_networks.push("a/b".into()))),
        (false, Reason::WaitingForNetwork)
    );
    let refused = plan_with(|o| {
        let why = "Network a/b: its identifier is another's".to_owned();
        o.refused_interfaces.insert("nic0".to_owned(), why);
    });
    assert_eq!(stands(&refused), (true, Reason::InvalidSpec));
    assert!(refused.requeue_after.is_some(), "nobody tells when the host's routes change");
    assert_eq!(stands(&plan_with(|o| o.bridges.clear())), (false, Reason::WaitingForNetwork));
    assert_eq!(stands(&plan_with(|o| o.disks[1].volume = None)), (false, Reason::WaitingForDisk));
    assert_eq!(stands(&plan_with(|o| o.disks[1].restores_first = true)), (false, Reason::WaitingForDisk));
    let moving = plan_with(|o| o.disks[1].moves_first = true);
    assert_eq!(stands(&moving), (false, Reason::WaitingForDisk));
    assert!(moving.steps.is_empty() && moving.readiness.message().contains("moved to another pool"));
    let half_restored = plan_with(|o| o.restore = VmRestore::Incomplete("no".into()));
    assert_eq!(stands(&half_restored), (true, Reason::RestoreRefused));
    let out_of_reach = plan_with(|o| o.restore = VmRestore::Away("storage pool fast is away".into()));
    assert_eq!(stands(&out_of_reach), (true, Reason::PoolAway));
    assert!(out_of_reach.requeue_after.is_some(), "nothing announces that the pool is back");
    assert_eq!(stands(&plan_with(|o| o.disks[1].user = User::None)), (false, Reason::WaitingForDisk));
    assert_eq!(stands(&plan_with(|o| o.disks[0].user = User::Other("db".into()))), (true, Reason::DiskInUse));
    let unallocated = plan_with(|o| without_address(o, None));
    assert_eq!(stands(&unallocated), (false, Reason::WaitingForPublicIP));
    assert!(unallocated.readiness.message().contains("has no address (yet)"));
    let misnamed =
        plan_with(|o| without_address(o, Some("its address is of the other family than publicIP")));
    assert_eq!(stands(&misnamed), (false, Reason::WaitingForPublicIP));
    assert!(misnamed.readiness.message().contains("cannot lead here: its address is of the other family"));
    let secret = plan_with(|o| o.bootstrap = Bootstrap::Missing("s".into()));
    assert_eq!(stands(&secret), (false, Reason::WaitingForBootstrap));
    assert!(secret.requeue_after.is_some(), "Secrets are not watched");
    let qemu = plan_with(|o| o.host.as_mut().expect("set").qemu = Err("not installed".into()));
    assert_eq!(stands(&qemu), (true, Reason::QemuMissing));
    assert!(qemu.requeue_after.is_some(), "nobody tells when it is installed");
    let memory = plan_with(|o| o.free_memory = Some(500 << 20));
    assert_eq!(stands(&memory), (false, Reason::Unschedulable));
    let uefi = plan_with(|o| o.host.as_mut().expect("set").qemu.as_mut().expect("set").uefi = false);
    assert_eq!(stands(&uefi), (true, Reason::NotSupported));
    fn without_keys(observed: &mut Observed, firmware: &str) {
        observed.host.as_mut().expect("set").qemu.as_mut().expect("set").secure_boot = false;
        observed.size = size(json!({"cpus": 1, "memory": "512Mi", "firmware": firmware}));
    }
    assert_eq!(stands(&plan_with(|o| without_keys(o, "UEFISecureBoot"))), (true, Reason::NotSupported));
    assert!(plan_with(|o| without_keys(o, "UEFI")).steps.len() > 1, "the other firmware is installed");
    fn without_swtpm(o: &mut Observed, tpm: bool) {
        o.host.as_mut().expect("set").qemu.as_mut().expect("set").tpm = false;
        o.size = size(json!({"cpus": 1, "memory": "512Mi", "tpm": tpm}));
    }
    let swtpm = plan_with(|o| without_swtpm(o, true));
    assert_eq!(stands(&swtpm), (true, Reason::NotSupported));
    assert!(swtpm.readiness.message().contains("apt install swtpm"), "{:?}", swtpm.readiness);
    assert!(plan_with(|o| without_swtpm(o, false)).steps.len() > 1, "it has no TPM");
}

#[test]
fn guest_memory_in_huge_pages_needs_free_ones_and_no_ordinary_memory() {
    let with = |total: u64, free: u64, pages: &str| {
        let mut o = ready_to_start();
        let facts = berth_host::HugePagesFacts { page_bytes: 2 << 20, total, free };
        o.host.as_mut().expect("set").huge_pages = vec![facts];
        o.free_memory = Some(0);
        o.size = size(json!({"cpus": 1, "memory": "512Mi", "hugePages": pages}));
        plan(&vm(json!({})), &o)
    };
    let started = with(300, 256, "2Mi");
    let launch = started.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(&request.machine),
        _ => None,
    });
    assert_eq!(launch.map(|machine| machine.huge_page_bytes), Some(Some(2 << 20)), "{:?}", started.readiness);
    let used = with(300, 255, "2Mi");
    assert_eq!((stands(&used), used.steps.len()), ((false, Reason::Unschedulable), 0));
    insta::assert_snapshot!(used.readiness.message(), @"the VM needs 256 huge pages of 2Mi and this host has 255 huge pages of 2Mi left");
    assert!(used.requeue_after.is_some(), "no event tells that some are free");
    let few = with(255, 255, "2Mi");
    assert_eq!(stands(&few), (true, Reason::NoHostWithHugePages));
    insta::assert_snapshot!(few.readiness.message(), @"the VM needs 256 huge pages of 2Mi and this host has 255 huge pages of 2Mi: reserve more there (vm.nr_hugepages)");
    assert_eq!(stands(&with(300, 300, "None")), (false, Reason::Unschedulable), "ordinary memory is needed");
    assert_eq!(stands(&with(300, 300, "1Gi")), (true, Reason::InvalidSpec), "half a page");
}

#[test]
fn dedicated_cpus_are_requested_of_the_host_and_missing_ones_are_waited_for() {
    let with = |total: u32, free: u32| {
        let mut o = ready_to_start();
        let dedicated = berth_host::DedicatedFacts { cpus: (0..total).collect(), free: (0..free).collect() };
        o.host.as_mut().expect("set").dedicated = dedicated;
        o.offered = Some((0, 7 << 30));
        let class = json!({"cpus": 2, "memory": "512Mi", "dedicatedCpuPlacement": true, "isolateEmulatorThread": true});
        o.size = size(class);
        plan(&vm(json!({})), &o)
    };
    let started = with(4, 3);
    let request = started.steps.iter().find_map(|step| match step {
        Step::Launch(request) => request.dedicated,
        _ => None,
    });
    let isolated = berth_host::DedicatedRequest { isolate_emulator_thread: true };
    assert_eq!(request, Some(isolated), "{:?}", started.readiness);
    let used = with(4, 2);
    assert_eq!((stands(&used), used.steps.len()), ((false, Reason::Unschedulable), 0));
    insta::assert_snapshot!(used.readiness.message(), @"the VM needs 3 dedicated CPUs and this host has 2 left");
    let none = with(0, 0);
    assert_eq!(stands(&none), (true, Reason::NoHostWithDedicatedCPUs));
    insta::assert_snapshot!(none.readiness.message(), @"the VM needs 3 dedicated CPUs and this host has 0: start its agent with --dedicated-cpus and their numbers");
}

#[test]
fn the_cpus_of_a_running_machine_are_in_the_status_and_a_change_waits() {
    let mut running = present(RunState::Running);
    let cpus = berth_host::DedicatedCpus {
        vcpus: vec![3],
        emulator: Some(4),
        numa_node: Some(0),
        guest_nodes: Vec::new(),
    };
    running.process.as_mut().expect("it runs").dedicated = Some(cpus);
    running.size = size(
        json!({"cpus": 1, "memory": "512Mi", "dedicatedCpuPlacement": true, "isolateEmulatorThread": true}),
    );
    let reported =
        status(&vm(json!({})), &running, &Readiness::Ready(Reason::Running, String::new()), at(NOW));
    let has = reported.dedicated_cpus.expect("it has some");
    assert_eq!((has.cpus.as_slice(), has.emulator_thread, has.numa_node), ([3].as_slice(), Some(4), Some(0)));
    assert!(has.guest_nodes.is_empty(), "it sees one");
    assert_eq!(reported.pending_power_cycle, ["dedicatedCpuPlacement", "isolateEmulatorThread"]);
}

#[test]
fn the_nodes_of_a_guest_are_in_the_status_with_those_of_its_host() {
    let mut running = present(RunState::Running);
    running.journal.run.as_mut().expect("it runs").numa_nodes = Some(2);
    let cpus = berth_host::DedicatedCpus {
        vcpus: vec![2, 3, 8, 16],
        guest_nodes: vec![Some(0), None],
        ..Default::default()
    };
    running.process.as_mut().expect("it runs").dedicated = Some(cpus);
    let reported =
        status(&vm(json!({})), &running, &Readiness::Ready(Reason::Running, String::new()), at(NOW));
    let has = reported.dedicated_cpus.expect("it has some");
    let nodes: Vec<_> = has.guest_nodes.iter().map(|node| (node.cpus.as_slice(), node.numa_node)).collect();
    assert_eq!(nodes, [([2, 3].as_slice(), Some(0)), ([8, 16].as_slice(), None)]);
}

#[test]
fn numa_nodes_are_those_of_the_start_until_the_next_power_cycle() {
    let declared = || size(json!({"cpus": 4, "memory": "512Mi", "numaNodes": 2}));
    let plan = plan(&vm(json!({})), &Observed { size: declared(), ..ready_to_start() });
    let launched = plan.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(&request.machine),
        _ => None,
    });
    let machine = launched.expect("it is launched");
    let topology = Topology { sockets: 2, cores: 2, threads: 1 };
    assert_eq!((machine.numa_nodes, machine.topology), (2, topology));
    let Some(Step::WriteJournal(journal)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(journal.run.as_ref().and_then(|run| run.numa_nodes), Some(2));
    let mut running = Observed { size: declared(), ..present(RunState::Running) };
    running.journal.run.as_mut().expect("it runs").cpus = 4;
    let reported =
        status(&vm(json!({})), &running, &Readiness::Ready(Reason::Running, String::new()), at(NOW));
    assert_eq!(reported.pending_power_cycle, ["numaNodes"], "and no other topology");
}

#[test]
fn a_change_of_huge_pages_waits_for_the_next_power_cycle() {
    let huge = size(json!({"cpus": 1, "memory": "512Mi", "hugePages": "2Mi"}));
    let mut running = Observed { size: huge, ..present(RunState::Running) };
    let report = |running: &Observed| {
        status(&vm(json!({})), running, &Readiness::Ready(Reason::Running, String::new()), at(NOW))
    };
    assert_eq!(report(&running).pending_power_cycle, ["hugePages"]);
    running.journal.run.as_mut().expect("it runs").huge_pages = berth_api::HugePages::TwoMebibytes;
    assert!(report(&running).pending_power_cycle.is_empty());
    running.journal.pins = Some(crate::journal::PinnedHardware {
        machine_type: "pc-q35-7.2".into(),
        cpu_model: "max".into(),
        cpu_level: None,
        accelerator: "tcg".into(),
        windows_without_hpet: true,
        uuid: String::new(),
    });
    let hardware = report(&running).hardware.expect("it runs");
    assert_eq!(hardware.huge_pages, Some(berth_api::HugePages::TwoMebibytes));
    assert_eq!(hardware.taken().map(|taken| (taken.memory, taken.huge_memory.total())), Some((0, 512 << 20)));
}

#[test]
fn a_tpm_of_the_vm_or_its_class_is_part_of_the_machine_and_a_change_of_it_waits() {
    let class = json!({"cpus": 1, "memory": "512Mi", "tpm": true});
    let observed = |own: Value| {
        let class = serde_json::from_value(class.clone()).expect("a class");
        Observed { size: vm(own).spec.size(Some(&class)), ..ready_to_start() }
    };
    let has = |own: Value| {
        let steps = plan(&vm(own.clone()), &observed(own)).steps;
        steps.into_iter().find_map(|step| match step {
            Step::Launch(request) => Some(request.machine.tpm),
            _ => None,
        })
    };
    assert_eq!((has(json!({})), has(json!({"tpm": false}))), (Some(true), Some(false)));
    let running = Observed { size: observed(json!({})).size, ..present(RunState::Running) };
    let reported =
        status(&vm(json!({})), &running, &Readiness::Ready(Reason::Running, String::new()), at(NOW));
    assert_eq!(reported.pending_power_cycle, ["tpm"]);
}

#[test]
fn a_vm_whose_tpm_has_lost_its_emulator_needs_a_person() {
    let with = |has_tpm| {
        let mut observed = present(RunState::Running);
        observed.machine.as_mut().expect("it runs").has_tpm = has_tpm;
        plan(&vm(json!({})), &observed)
    };
    assert_eq!(stands(&with(Some(false))), (true, Reason::TPMFailed));
    for works in [Some(true), None] {
        assert_eq!(stands(&with(works)), (false, Reason::Running));
    }
    assert!(with(Some(true)).requeue_after.is_some(), "QEMU does not tell when it ends");
}

#[test]
fn hardware_that_was_pinned_stays_when_the_host_has_newer() {
    let mut observed = ready_to_start();
    let first = plan(&vm(json!({})), &observed);
    let Step::WriteJournal(journal) = &first.steps[0] else { panic!("{first:?}") };
    observed.journal = Journal { run: None, ..(**journal).clone() };
    let qemu = observed.host.as_mut().and_then(|h| h.qemu.as_mut().ok()).expect("set");
    qemu.machine_type = "pc-q35-10.0".into();
    let second = plan(&vm(json!({})), &observed);
    let [.., Step::Launch(config), Step::Start, Step::WatchLeases(_)] = &second.steps[..] else {
        panic!("{second:?}")
    };
    assert_eq!(config.machine.machine_type, "pc-q35-7.2");
}

#[test]
fn nothing_is_made_for_a_vm_before_the_control_plane_knows_that_it_was_let_in() {
    let (vm, now) = (vm(json!({})), at(NOW));
    let seen = |admission| Observed { admission, ..ready_to_start() };
    for admission in [Admission::Granted, Admission::Unknown, Admission::Refused("it is full".into())] {
        assert_eq!(plan(&vm, &seen(admission.clone())).steps, [], "{admission:?}");
    }
    let let_in = seen(Admission::Granted);
    let reported = status(&vm, &let_in, &plan(&vm, &let_in).readiness, now);
    assert!(reported.admitted_epoch == Some(1) && reported.is_admitted());
    let refused = seen(Admission::Refused("it is full".into()));
    let reported = status(&vm, &refused, &plan(&vm, &refused).readiness, now);
    assert!(!reported.is_admitted());
    let refusal = reported.refused().expect("it is refused");
    assert_eq!((refusal.host.as_str(), refusal.epoch, refusal.message.as_str()), ("h", 1, "it is full"));
    let scheduled = berth_api::condition::find(&reported.conditions, "Scheduled").expect("it says so");
    assert_eq!((scheduled.status.as_str(), scheduled.reason.as_str()), ("False", "Refused"));
}

#[test]
fn the_machine_has_the_declared_topology_and_its_run_records_the_size() {
    let declared =
        json!({"cpus": 8, "memory": "1Gi", "cpuTopology": {"sockets": 2, "cores": 2, "threads": 2}});
    let plan = plan(&vm(json!({"class": null})), &Observed { size: size(declared), ..ready_to_start() });
    let launched = plan.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(&request.machine),
        _ => None,
    });
    let machine = launched.expect("it is launched");
    assert_eq!((machine.cpus, machine.topology), (8, Topology { sockets: 2, cores: 2, threads: 2 }));
    let Some(Step::WriteJournal(journal)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    let run = journal.run.as_ref().expect("recorded");
    let topology = CpuTopology { sockets: 2, cores: 2, threads: 2 };
    assert_eq!((run.class.as_str(), run.cpus, run.topology), ("", 8, Some(topology)));
}

#[test]
fn a_class_that_became_larger_than_the_host_is_told_of_before_the_stop_and_at_the_start() {
    let size = || size(json!({"cpus": 1, "memory": "1Ti"}));
    let stopped = plan(&vm(json!({})), &Observed { size: size(), ..ready_to_start() });
    assert_eq!(stands(&stopped), (true, Reason::NoHostLargeEnough));
    insta::assert_snapshot!(stopped.readiness.message(), @"VMClass small asks for 1 CPUs and 1Ti of memory, and this host can give a VM 16 CPUs and 7Gi at most: make the class smaller, or name another");
    for (own, expected) in [
        (json!({"class": null, "cpus": 1}), "the VM asks for 1 CPUs"),
        (json!({"memory": "1Ti"}), "the VM with VMClass small asks for 1 CPUs"),
    ] {
        let stopped = plan(&vm(own), &Observed { size: size(), ..ready_to_start() });
        assert!(stopped.readiness.message().starts_with(expected), "{}", stopped.readiness.message());
        assert!(stopped.readiness.message().contains("lower its cpus or memory"));
    }
    let running = Observed { size: size(), ..present(RunState::Running) };
    assert!(matches!(plan(&vm(json!({})), &running).readiness, Readiness::Ready(..)), "what runs goes on");
    let reported = status(&vm(json!({})), &running, &plan(&vm(json!({})), &running).readiness, at(NOW));
    let synced = berth_api::condition::find(&reported.conditions, "ClassSynced").expect("said");
    assert_eq!((synced.status.as_str(), synced.reason.as_str()), ("False", "NoHostLargeEnough"));
    assert!(synced.message.contains("once stopped it cannot start here"), "{}", synced.message);
}

#[test]
fn a_restart_with_other_user_data_is_another_instance_to_cloud_init() {
    let mut observed = ready_to_start();
    let mut start = |user_data: &str| {
        let vm = vm(json!({"bootstrap": {"userData": user_data}}));
        observed.bootstrap = Bootstrap::of(&vm, None, None);
        let plan = plan(&vm, &observed);
        let (
            Some(Step::WriteJournal(journal)),
            [.., Step::Launch(config), Step::Start, Step::WatchLeases(_)],
        ) = (plan.steps.first(), &plan.steps[..])
        else {
            panic!("{plan:?}")
        };
        observed.journal = Journal { run: None, ..(**journal).clone() };
        let seed = config.seed.as_ref().expect("it has one");
        let meta: Value = serde_json::from_str(&seed.meta_data).expect("JSON");
        meta["instance-id"].as_str().expect("text").to_owned()
    };
    let first = start("#!/bin/sh\n");
    assert_eq!(first, "i-0123456789ab");
    assert_eq!(start("#!/bin/sh\n"), first, "a restart alone changes nothing");
    let second = start("#!/bin/sh\ntrue\n");
    assert_ne!(second, first);
    assert_eq!(start("#!/bin/sh\ntrue\n"), second);
}

#[test]
fn a_restore_that_is_not_done_is_reported_and_one_that_is_due_waits_for_the_power_cycle() {
    let due = VmRestore::Due(DueParts {
        disks: [("root".into(), Default::default())].into(),
        is_begun: false,
        memory: false,
    });
    let vm = vm(json!({"restore": {"snapshot": "s"}}));
    let report = |observed: Observed| {
        let plan = plan(&vm, &observed);
        status(&vm, &observed, &plan.readiness, at(NOW))
    };
    let reason = |reported: &VMStatus| {
        let synced = berth_api::condition::find(&reported.conditions, "RestoreSynced")?;
        assert_eq!(synced.status, "False");
        Some(synced.reason.clone())
    };
    let running = report(Observed { restore: due.clone(), ..present(RunState::Running) });
    assert_eq!(reason(&running).as_deref(), Some("PowerCycleNeeded"));
    assert_eq!(running.pending_power_cycle, ["restore"]);
    assert!(running.restored_from.is_none());
    let off = report(Observed { restore: due, ..ready_to_start() });
    assert_eq!((reason(&off).as_deref(), off.pending_power_cycle.len()), (Some("Provisioning"), 0));
    let done = serde_json::from_value(json!({"snapshot": "s", "restoredAt": "2026-01-01T00:00:00Z"}));
    let done = VmRestore::Done(done.expect("a restore"));
    for (why, expected) in [(None, None), (Some("it was booted".to_owned()), Some("RestoreRefused"))] {
        let booted = Observed { restore: done.clone(), booted_restored: why, ..present(RunState::Running) };
        assert_eq!(reason(&report(booted)).as_deref(), expected);
    }
    for (restore, expected) in [
        (VmRestore::Waits("no".into()), Some("WaitingForSnapshot")),
        (VmRestore::Refused("no".into()), Some("RestoreRefused")),
        (VmRestore::Away("no".into()), Some("PoolAway")),
        (VmRestore::None, None),
    ] {
        let reported = report(Observed { restore, ..present(RunState::Running) });
        assert_eq!((reason(&reported).as_deref(), reported.pending_power_cycle.len()), (expected, 0));
    }
    let last = VMRestored { snapshot: "s".into(), token: None, restored_at: "2026-01-01T00:00:00Z".into() };
    let done = report(Observed { restore: VmRestore::Done(last.clone()), ..present(RunState::Running) });
    assert_eq!((reason(&done), done.restored_from.as_deref()), (None, Some(&last)));
}

#[test]
fn a_placement_that_the_host_does_not_fit_is_told_of_and_moves_nothing() {
    let host: berth_api::Host =
        serde_json::from_value(json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Host",
        "metadata": {"name": "h", "labels": {"disk": "ssd"}}, "spec": {}}))
        .expect("a host");
    let group: berth_api::PlacementGroup =
        serde_json::from_value(json!({"apiVersion": "berth.dev/v1alpha1", "kind": "PlacementGroup",
        "metadata": {"name": "web"}, "spec": {"hostSelector": {"rack": "1"}}}))
        .expect("a group");
    let cases = [
        (json!({}), None),
        (json!({"group": "web"}), Some("hostSelector of PlacementGroup web asks for rack=1")),
        (json!({"host": "h", "hostSelector": {"disk": "ssd"}}), None),
        (json!({"host": "other"}), Some("placement.host is other and the VM is on h")),
        (json!({"hostSelector": {"disk": "ssd", "zone": "b"}}), Some("zone=b, which host h does not have")),
    ];
    for (placement, expected) in cases {
        let vm = vm(json!({"placement": placement}));
        let group = placement.get("group").map(|_| &group);
        let misplaced = super::super::super::placement::misplaced(&vm, group, &host);
        let observed = Observed { misplaced, ..present(RunState::Running) };
        let plan = plan(&vm, &observed);
        assert!(matches!(plan.readiness, Readiness::Ready(..)), "what runs goes on");
        let reported = status(&vm, &observed, &plan.readiness, at(NOW));
        let synced = berth_api::condition::find(&reported.conditions, "PlacementSynced");
        match (expected, synced) {
            (None, None) => {}
            (Some(expected), Some(synced)) => {
                assert_eq!((synced.status.as_str(), synced.reason.as_str()), ("False", "PlacedElsewhere"));
                assert!(synced.message.contains(expected), "{}", synced.message);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_declared_profile_is_that_of_the_machine_and_of_its_journal() {
    let object = vm(
        json!({"cpuModel": "x86-64-v2", "guestOS": "Windows", "watchdog": "PowerOff", "serialNumber": "A-1", "ioThreadsPolicy": "PerDisk"}),
    );
    let observed = Observed { profile: object.spec.profile(None), ..ready_to_start() };
    let plan = plan(&object, &observed);
    let launched = plan.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(request.machine.clone()),
        _ => None,
    });
    let machine = launched.expect("it is launched");
    assert!(
        machine.cpu_model.starts_with("qemu64,+") && machine.cpu_model.ends_with(",enforce"),
        "{}",
        machine.cpu_model
    );
    let wanted = berth_qemu::machine::Extras {
        windows: true,
        without_hpet: true,
        serial_number: Some("A-1".into()),
        watchdog: Some(berth_qemu::machine::Watchdog::Stop),
        thread_per_disk: true,
        place_for_second_cpu: true,
        ..Default::default()
    };
    assert_eq!(machine.extras, wanted);
    let Some(Step::WriteJournal(journal)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    assert_eq!(
        journal.pins.as_ref().map(|pins| pins.cpu_model.as_str()),
        Some("max"),
        "without a declaration"
    );
    let mut running =
        Observed { journal: (**journal).clone(), profile: observed.profile, ..present(RunState::Running) };
    running.journal.run.as_mut().expect("a run").process = Some(identity());
    let report = |object: &VM, observed: &Observed| {
        let status = status(object, observed, &super::plan(object, observed).readiness, at(NOW));
        (status.hardware.map(|hardware| hardware.cpu_model), status.pending_power_cycle)
    };
    let model = Some("x86-64-v2".to_owned());
    assert_eq!(report(&object, &running), (model.clone(), vec![]));
    let plain = vm(json!({}));
    running.profile = plain.spec.profile(None);
    let pending =
        ["ioThreadsPolicy", "cpuModel", "guestOS", "watchdog", "serialNumber"].map(str::to_owned).to_vec();
    assert_eq!(report(&plain, &running), (model, pending));
}

#[test]
fn a_host_without_the_cpu_model_starts_nothing() {
    let object = vm(json!({"cpuModel": "EPYC-Milan"}));
    let observed = Observed { profile: object.spec.profile(None), ..ready_to_start() };
    let plan = plan(&object, &observed);
    assert!(plan.steps.is_empty());
    insta::assert_snapshot!(plan.readiness.message(), @"this host's CPUs or its QEMU lack a feature of cpuModel EPYC-Milan: see status.cpuModels of the Host");
}

#[test]
fn the_settings_of_qemu_are_those_of_the_class_and_others_wait_for_the_power_cycle() {
    let class = |value: &str| {
        let options = json!([{"name": "global.virtio-net-pci.tx", "value": value}]);
        serde_json::from_value(json!({"cpus": 1, "qemuOptions": options})).expect("a class")
    };
    let object = vm(json!({}));
    let profile = |value| object.spec.profile(Some(&class(value)));
    let observed = Observed { profile: profile("bh"), ..ready_to_start() };
    let plan = plan(&object, &observed);
    let launched = plan.steps.iter().find_map(|step| match step {
        Step::Launch(request) => Some(request.machine.extras.options.clone()),
        _ => None,
    });
    let wanted = [("global.virtio-net-pci.tx".to_owned(), "bh".to_owned())];
    assert_eq!(launched, Some(wanted.into()));
    let Some(Step::WriteJournal(journal)) = plan.steps.first() else { panic!("{:?}", plan.steps) };
    let mut running =
        Observed { journal: (**journal).clone(), profile: profile("bh"), ..present(RunState::Running) };
    running.journal.run.as_mut().expect("a run").process = Some(identity());
    let pending = |observed: &Observed| {
        status(&object, observed, &super::plan(&object, observed).readiness, at(NOW)).pending_power_cycle
    };
    assert!(pending(&running).is_empty());
    running.profile = profile("timer");
    assert_eq!(pending(&running), ["qemuOptions"]);
}

#[test]
fn a_vm_that_its_group_does_not_start_yet_waits_and_a_guest_that_runs_runs_on() {
    let waits = |observed: Observed| {
        let turn = GroupTurn::Waits(Reason::StartOrderHeld, "VMGroup app does not start it yet".into());
        Observed { turn, ..observed }
    };
    let member = vm(json!({"vmGroup": "app"}));
    let held = plan(&member, &waits(ready_to_start()));
    assert_eq!(stands(&held), (false, Reason::StartOrderHeld));
    assert_eq!(held.readiness.message(), "VMGroup app does not start it yet");
    let (free, held) =
        (plan(&member, &present(RunState::Running)), plan(&member, &waits(present(RunState::Running))));
    assert_eq!((held.steps, held.readiness), (free.steps, free.readiness));
    let restarted = vm(json!({"vmGroup": "app", "restartToken": "2"}));
    let stops =
        |plan: Plan<Step>| matches!(&plan.steps[..], [Step::WriteJournal(journal)] if journal.stop.is_some());
    assert!(stops(plan(&restarted, &present(RunState::Running))));
    assert!(!stops(plan(&restarted, &waits(present(RunState::Running)))), "it could not start again");
}
