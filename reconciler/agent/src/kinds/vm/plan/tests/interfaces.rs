//! Links, and network cards that are plugged in and out of a running machine.

use std::collections::BTreeSet;

use berth_api::condition;
use berth_api::vm::{Acceleration, InterfaceStatus, NicModel as NetworkCardModel};
use berth_qemu::machine::{NIC_PORTS, NicModel, NicSpec, USUAL_NIC_PORTS};

use super::*;

/// A VM with these interfaces, `nicN` with the addresses of the Nth.
fn with_interfaces(interfaces: Value) -> VM {
    let mut vm = vm(json!({"networkInterfaces": interfaces}));
    let given = &mut vm.status.as_mut().expect("bound").interfaces;
    let first = given.remove(0);
    for interface in &vm.spec.network_interfaces {
        let number: u8 = interface.name.as_str().trim_start_matches("nic").parse().expect("a number");
        given.push(InterfaceStatus {
            name: interface.name.to_string(),
            mac_address: format!("52:54:00:00:00:{:02x}", number + 2),
            address: format!("10.77.0.{}", number + 2),
            ..first.clone()
        });
    }
    vm
}

fn of_names(names: &[&str]) -> VM {
    with_interfaces(names.iter().map(|name| json!({"name": name})).collect())
}

/// The VM as it was started, with a link of each card.
fn started(vm: &VM) -> Observed {
    started_from(vm, ready_to_start())
}

fn started_from(vm: &VM, mut observed: Observed) -> Observed {
    for step in plan(vm, &observed.clone()).steps {
        if let Step::Launch(request) = &step {
            observed.machine = present(RunState::Running).machine;
            let machine = observed.machine.as_mut().expect("just set");
            machine.nics = request.machine.nics.iter().map(seen).collect();
            machine.nic_ports = (0..request.machine.nic_ports).collect();
            machine.links = machine.nics.iter().map(|nic| (nic.id.clone(), true)).collect();
        }
        follow(&mut observed, &step);
    }
    let mut journal = observed.journal.clone();
    journal.run.as_mut().expect("started").process = Some(identity());
    Observed {
        journal,
        journal_written: true,
        process: present(RunState::Running).process,
        guest: GuestFacts { agent: true, ..GuestFacts::default() },
        host: None,
        ..observed
    }
}

fn seen(nic: &NicSpec) -> ObservedNic {
    ObservedNic { id: nic.id.clone(), model: nic.model, mac: nic.mac.clone(), port: nic.port }
}

/// Does to the machine what QEMU and the host do.
fn follow(observed: &mut Observed, step: &Step) {
    let tap = |id: &str| format!("btt01234567n{}", id.trim_start_matches("nic"));
    if let Step::WriteJournal(journal) = step {
        observed.journal = (**journal).clone();
    }
    let (Some(machine), taps) = (&mut observed.machine, &mut observed.taps) else { return };
    match step {
        Step::MakeTap(tap) => taps.push(tap.name.clone()),
        Step::PlugNic(nic) => {
            assert!(taps.contains(&tap(&nic.id)), "{nic:?} without a tap");
            assert!(observed.journal.slots.values().any(|slot| *slot == nic.slot), "not in the journal");
            let is_free = |other: &ObservedNic| other.id == nic.id || other.port != nic.port;
            assert!(machine.nics.iter().all(is_free), "{nic:?} in a port that is taken");
            machine.nics.retain(|other| other.id != nic.id);
            machine.nics.push(seen(nic));
            machine.links.insert(nic.id.clone(), true);
        }
        Step::UnplugNic { id, .. } => {
            machine.nics.retain(|nic| nic.id != *id);
            machine.links.remove(id);
        }
        Step::RemoveTap(name) => {
            assert!(machine.nics.iter().all(|nic| tap(&nic.id) != *name), "{name} from below a card");
            taps.retain(|tap| tap != name);
        }
        Step::SetLink { nic, up } => {
            machine.links.insert(nic.clone(), *up);
        }
        _ => {}
    }
}

/// Follows the plans to their end, without the first `done` steps' answers being known: the agent crashed after them.
fn settle(vm: &VM, mut observed: Observed, done: usize) -> Observed {
    let steps = plan(vm, &observed).steps;
    for step in steps.iter().take(done) {
        follow(&mut observed, step);
    }
    for _ in 0..10 {
        let steps = plan(vm, &observed).steps;
        if steps.is_empty() {
            return observed;
        }
        steps.iter().for_each(|step| follow(&mut observed, step));
    }
    panic!("it does not come to its end: {:?}", plan(vm, &observed));
}

fn cards(observed: &Observed) -> BTreeSet<(String, String)> {
    let machine = observed.machine.as_ref().expect("it runs");
    let found: BTreeSet<_> = machine.nics.iter().map(|nic| (nic.id.clone(), nic.mac.clone())).collect();
    assert_eq!(found.len(), machine.nics.len(), "a card twice");
    found
}

fn pending(vm: &VM, observed: &Observed) -> Vec<String> {
    status(vm, observed, &plan(vm, observed).readiness, at(NOW)).pending_power_cycle
}

#[test]
fn an_interface_that_is_added_is_in_the_journal_before_its_tap_and_its_tap_before_its_card() {
    let running = started(&of_names(&["nic0"]));
    let more = of_names(&["nic0", "nic1"]);
    let planned = plan(&more, &running);
    assert_eq!(
        names(&planned),
        ["WriteJournal", "EnsureNetworkOf", "MakeTap", "PlugNic", "WriteJournal"],
        "{planned:?}"
    );
    assert_eq!(planned.readiness.reason(), Reason::Attaching);
    let Some(Step::PlugNic(nic)) = planned.steps.get(3) else { panic!("{planned:?}") };
    assert_eq!((nic.id.as_str(), nic.mac.as_str(), nic.port), ("nic1", "52:54:00:00:00:03", Some(1)));
    let down = with_interfaces(json!([{"name": "nic0"}, {"name": "nic1", "link": "Down"}]));
    assert_eq!(names(&plan(&down, &running))[3..], ["PlugNic", "SetLink", "WriteJournal"]);
    let settled = settle(&more, running, 0);
    let run = settled.journal.run.as_ref().expect("it runs");
    assert_eq!(run.machine.as_ref().map(|machine| machine.nics.len()), Some(2), "what is suspended has both");
    assert!(pending(&more, &settled).is_empty());
    assert!(matches!(plan(&more, &settled).readiness, Readiness::Ready(..)));
}

#[test]
fn whatever_step_the_agent_crashes_after_each_interface_has_one_card_and_the_journal_is_the_same() {
    let changes: [(&[&str], &[&str]); 4] = [
        (&["nic0"], &["nic0", "nic1", "nic2"]),
        (&["nic0", "nic1", "nic2"], &["nic1"]),
        (&["nic0", "nic1"], &["nic2", "nic1"]),
        (&["nic0"], &[]),
    ];
    for (before, after) in changes {
        let (running, declared) = (started(&of_names(before)), of_names(after));
        let expected = settle(&declared, running.clone(), 0);
        for done in 0..=plan(&declared, &running).steps.len() {
            let settled = settle(&declared, running.clone(), done);
            assert_eq!(cards(&settled), cards(&expected), "{before:?} → {after:?} after {done} steps");
            assert_eq!(settled.journal, expected.journal, "{before:?} → {after:?} after {done} steps");
            assert_eq!(settled.journal.slots.len(), after.len());
            assert!(pending(&declared, &settled).is_empty());
        }
    }
}

#[test]
fn another_order_of_the_list_changes_nothing() {
    let running = started(&of_names(&["nic0", "nic1"]));
    assert!(plan(&of_names(&["nic1", "nic0"]), &running).steps.is_empty());
}

#[test]
fn an_interface_that_is_removed_keeps_its_place_in_the_journal_until_the_guest_has_released_its_card() {
    let running = started(&of_names(&["nic0", "nic1"]));
    let less = of_names(&["nic0"]);
    let planned = plan(&less, &running);
    assert_eq!(names(&planned), ["UnplugNic", "RemoveTap", "WriteJournal", "EnsureNetworks"]);
    insta::assert_snapshot!(planned.readiness.message(), @"the guest is asked to release network interface nic1, and has not done so yet");
    let mut left = less.clone();
    let both = of_names(&["nic0", "nic1"]).status.expect("bound").interfaces;
    left.status.as_mut().expect("bound").interfaces = both;
    let kept = |observed: &Observed| {
        let reported = status(&left, observed, &plan(&left, observed).readiness, at(NOW));
        reported.interfaces.len()
    };
    assert_eq!(kept(&running), 2, "it has its address");
    assert_eq!(kept(&settle(&left, running, 0)), 1, "its address is free");
}

#[test]
fn a_card_that_cannot_be_plugged_waits_for_the_next_start() {
    let running = started(&of_names(&["nic0"]));
    let conventional = with_interfaces(json!([{"name": "nic0"}, {"name": "nic1", "model": "rtl8139"}]));
    assert!(plan(&conventional, &running).steps.is_empty());
    assert_eq!(pending(&conventional, &running), ["networkInterfaces[nic1]"]);
    let express = with_interfaces(json!([{"name": "nic0"}, {"name": "nic1", "model": "e1000e"}]));
    assert!(names(&plan(&express, &running)).contains(&"PlugNic"));
    let other_model = with_interfaces(json!([{"name": "nic0", "model": "e1000e"}]));
    assert!(plan(&other_model, &running).steps.is_empty());
    assert_eq!(pending(&other_model, &running), ["networkInterfaces[nic0]"]);
    let more_queues = with_interfaces(json!([{"name": "nic0", "queues": 4}]));
    assert!(plan(&more_queues, &running).steps.is_empty());
    assert_eq!(pending(&more_queues, &running), ["networkInterfaces[nic0]"]);
    let unaccelerated = with_interfaces(json!([{"name": "nic0", "acceleration": "Off"}]));
    assert!(plan(&unaccelerated, &running).steps.is_empty());
    assert_eq!(pending(&unaccelerated, &running), ["networkInterfaces[nic0]"]);
    let smaller = with_interfaces(json!([{"name": "nic0", "mtu": 1400}]));
    assert!(plan(&smaller, &running).steps.is_empty());
    assert_eq!(pending(&smaller, &running), ["networkInterfaces[nic0]"]);
    let small = started(&smaller);
    let launched = small.journal.run.as_ref().and_then(|run| run.machine.as_deref()).expect("recorded");
    assert_eq!(launched.nics[0].mtu, Some(1400));
    assert!(pending(&smaller, &small).is_empty());
    assert_eq!(pending(&of_names(&["nic0"]), &small), ["networkInterfaces[nic0]"]);
    let larger = started(&with_interfaces(json!([{"name": "nic0", "mtu": 9000}])));
    let launched = larger.journal.run.as_ref().and_then(|run| run.machine.as_deref()).expect("recorded");
    assert_eq!(launched.nics[0].mtu, None, "that of the Network is smaller");
    let off = started(&unaccelerated);
    assert!(pending(&unaccelerated, &off).is_empty());
    let reported = status(&unaccelerated, &off, &plan(&unaccelerated, &off).readiness, at(NOW));
    let places = reported.hardware.map(|hardware| hardware.interface_places).unwrap_or_default();
    assert_eq!(places[0].acceleration, Some(Acceleration::Off));
    let emulated = started(&with_interfaces(json!([{"name": "nic0", "model": "e1000e"}])));
    let same = with_interfaces(json!([{"name": "nic0", "model": "e1000e", "acceleration": "Off"}]));
    assert!(pending(&same, &emulated).is_empty(), "QEMU moves its packets already");
    let as_it_is = with_interfaces(json!([{"name": "nic0", "queues": 1, "acceleration": "Auto"}]));
    assert!(pending(&as_it_is, &running).is_empty());

    // A machine that an earlier version started has no ports.
    let mut older = running;
    older.journal.in_ports.clear();
    let machine = older.machine.as_mut().expect("it runs");
    machine.nic_ports.clear();
    machine.nics[0].port = None;
    for (declared, waits) in [(of_names(&["nic0", "nic1"]), "nic1"), (of_names(&[]), "nic0")] {
        assert!(plan(&declared, &older).steps.is_empty());
        assert_eq!(pending(&declared, &older), [format!("networkInterfaces[{waits}]")]);
    }
}

#[test]
fn only_the_interface_of_a_network_that_fails_waits() {
    let mut observed = started(&of_names(&["nic0"]));
    let other = "ns/other".to_owned();
    let mut more = of_names(&["nic0", "nic1", "nic2"]);
    more.status.as_mut().expect("bound").interfaces[1].network = other.clone();
    observed.bridges.insert(other.clone(), "bth-00004e".to_owned());
    observed.mtus.insert(other.clone(), 1500);
    observed.failing_networks.insert(other);
    let asked = |plan: &Plan<Step>| -> Vec<String> {
        let of = |step: &Step| match step {
            Step::EnsureNetworkOf(name) => Some(name.clone()),
            _ => None,
        };
        plan.steps.iter().filter_map(of).collect()
    };
    let first = plan(&more, &observed);
    assert_eq!(asked(&first), ["nic2"]);
    first.steps.iter().for_each(|step| follow(&mut observed, step));
    let macs = |observed: &Observed| cards(observed).into_iter().map(|(_, mac)| mac).collect::<BTreeSet<_>>();
    assert!(macs(&observed).contains("52:54:00:00:00:04"), "{observed:?}");
    let second = plan(&more, &observed);
    assert_eq!(asked(&second), ["nic1"], "it is tried again");
    let fewer = without(&more, "nic2");
    assert_eq!(names(&plan(&fewer, &observed))[0], "UnplugNic", "it holds up no other card");
    observed.refused_interfaces.insert("nic1".to_owned(), "its range is in use".to_owned());
    let refused = plan(&more, &observed);
    assert_eq!((asked(&refused).len(), refused.readiness.reason()), (0, Reason::InvalidSpec));
}

fn without(vm: &VM, name: &str) -> VM {
    let mut vm = vm.clone();
    vm.spec.network_interfaces.retain(|interface| interface.name.as_str() != name);
    vm
}

#[test]
fn an_interface_without_a_model_has_that_of_the_class_from_the_next_start_on() {
    let declared =
        with_interfaces(json!([{"name": "nic0", "queues": 4}, {"name": "nic1", "model": "virtio"}]));
    let class = |model| Profile { network_interface_model: model, ..Profile::default() };
    let usual = with_models(&declared, &class(None));
    assert_eq!(*usual, declared);
    let running = started(&usual);
    let emulated = with_models(&declared, &class(Some(NetworkCardModel::E1000e)));
    assert!(plan(&emulated, &running).steps.is_empty());
    assert_eq!(pending(&emulated, &running), ["networkInterfaces[nic0]"], "the other one declares its model");
    let launched = started(&emulated);
    let machine = launched.journal.run.as_ref().and_then(|run| run.machine.as_deref()).expect("recorded");
    let cards: Vec<_> = machine.nics.iter().map(|nic| (nic.model, nic.queues)).collect();
    assert_eq!(cards, [(NicModel::E1000e, 1), (NicModel::Virtio, 1)]);
    assert!(pending(&emulated, &launched).is_empty());
}

/// The VM as a host with KVM starts it, by the number of CPUs of its class.
fn started_with_cpus(vm: &VM, cpus: i64, vhost_net: bool) -> Observed {
    let host = HostFacts { accelerator: Accelerator::Kvm, vhost_net, ..host() };
    let size = size(json!({"cpus": cpus, "memory": "512Mi"}));
    started_from(vm, Observed { host: Some(host), size, ..ready_to_start() })
}

fn queues(observed: &Observed) -> Vec<u8> {
    let machine = observed.journal.run.as_ref().and_then(|run| run.machine.as_deref()).expect("recorded");
    machine.nics.iter().map(|nic| nic.queues).collect()
}

#[test]
fn a_card_that_declares_none_has_a_queue_for_each_cpu_where_the_kernel_moves_its_packets() {
    let one = of_names(&["nic0"]);
    for (cpus, vhost_net, expected) in [(1, true, 1), (4, true, 4), (16, true, 8), (4, false, 1)] {
        let started = started_with_cpus(&one, cpus, vhost_net);
        assert_eq!(queues(&started), [expected], "{cpus} CPUs, vhost: {vhost_net}");
        assert!(pending(&one, &started).is_empty());
    }
    assert_eq!(queues(&started(&one)), [1], "an emulated machine");
    let others = with_interfaces(json!([{"name": "nic0", "queues": 2}, {"name": "nic1", "model": "e1000e"},
        {"name": "nic2", "acceleration": "Off"}]));
    assert_eq!(queues(&started_with_cpus(&others, 4, true)), [2, 1, 1]);
}

#[test]
fn a_machine_keeps_the_queues_of_its_start_and_cards_that_are_plugged_in_have_as_many() {
    let (one, two) = (of_names(&["nic0"]), of_names(&["nic0", "nic1"]));
    let plugged = |observed: &Observed| {
        plan(&two, observed).steps.into_iter().find_map(|step| match step {
            Step::PlugNic(nic) => Some(nic.queues),
            _ => None,
        })
    };
    let running = started_with_cpus(&one, 4, true);
    assert_eq!(plugged(&running), Some(4));
    let taps = plan(&two, &running).steps.into_iter().filter_map(|step| match step {
        Step::MakeTap(tap) => Some(tap.multi_queue),
        _ => None,
    });
    assert_eq!(taps.collect::<Vec<_>>(), [true]);
    // An earlier version started it.
    let mut older = started_with_cpus(&one, 4, false);
    older.journal.run.as_mut().expect("it runs").default_queues = None;
    assert!(pending(&one, &older).is_empty());
    assert_eq!(plugged(&older), Some(1));
    let fewer = with_interfaces(json!([{"name": "nic0", "queues": 1}]));
    assert_eq!(pending(&fewer, &running), ["networkInterfaces[nic0]"]);
}

#[test]
fn an_interface_without_an_address_or_a_network_is_waited_for() {
    let running = started(&of_names(&["nic0"]));
    let mut undecided = of_names(&["nic0", "nic1"]);
    undecided.status.as_mut().expect("bound").interfaces.pop();
    for observed in [&running, &ready_to_start()] {
        let planned = plan(&undecided, observed);
        assert_eq!(stands(&planned), (false, Reason::WaitingForNetwork));
        assert!(planned.readiness.message().contains("interface nic1 waits for its address"), "{planned:?}");
    }
    let mut elsewhere = of_names(&["nic0", "nic1"]);
    elsewhere.status.as_mut().expect("bound").interfaces[1].network = "ns/later".into();
    let planned = plan(&elsewhere, &running);
    assert_eq!(stands(&planned), (false, Reason::WaitingForNetwork));
}

#[test]
fn a_new_machine_has_its_cards_in_ports_and_one_whose_place_is_known_keeps_it() {
    let vm = with_interfaces(json!([{"name": "nic0"}, {"name": "nic1", "model": "rtl8139"}]));
    let nics = |observed: &Observed| {
        let launch = plan(&vm, observed).steps.into_iter().find_map(|step| match step {
            Step::Launch(request) => Some(request.machine),
            _ => None,
        });
        let machine = launch.expect("it starts");
        assert_eq!(machine.nic_ports, USUAL_NIC_PORTS);
        machine.validate().expect("a valid machine");
        machine.nics.into_iter().map(|nic| (nic.model, nic.slot, nic.port)).collect::<Vec<_>>()
    };
    let expected = [(NicModel::Virtio, 0, Some(0)), (NicModel::Rtl8139, 1, None)];
    assert_eq!(nics(&ready_to_start()), expected);
    let mut older = ready_to_start();
    older.journal.slots = [("nic0".to_owned(), 0)].into();
    assert_eq!(nics(&older)[0], (NicModel::Virtio, 0, None));
}

#[test]
fn a_machine_with_many_cards_has_more_ports_and_two_of_them_are_free_for_later() {
    let ports = |count: usize| {
        let vm = with_interfaces((0..count).map(|n| json!({"name": format!("nic{n}")})).collect());
        let launch = plan(&vm, &ready_to_start()).steps.into_iter().find_map(|step| match step {
            Step::Launch(request) => Some(request.machine),
            _ => None,
        });
        let machine = launch.expect("it starts");
        machine.validate().expect("a valid machine");
        assert!(machine.nics.iter().all(|nic| nic.port.is_some()), "{count}");
        machine.nic_ports
    };
    assert_eq!([0, 1, 6].map(ports), [USUAL_NIC_PORTS; 3]);
    assert_eq!([7, 8, 10].map(ports), [NIC_PORTS; 3]);
}

#[test]
fn a_link_is_as_declared_from_the_start_and_set_again_where_its_state_is_not_known() {
    let down = with_interfaces(json!([{"name": "nic0"}, {"name": "nic1", "link": "Down"}]));
    let steps = plan(&down, &ready_to_start()).steps;
    let place = |wanted: &dyn Fn(&Step) -> bool| steps.iter().position(wanted).expect("planned");
    let set = place(&|step| *step == Step::SetLink { nic: "nic1".into(), up: false });
    assert!(place(&|step| matches!(step, Step::Launch(_))) < set);
    assert!(set < place(&|step| *step == Step::Start), "the guest never sees it up");
    let links: Vec<_> = steps.iter().filter(|step| matches!(step, Step::SetLink { .. })).collect();
    assert_eq!(links.len(), 1, "the others are up");

    let mut running = started(&down);
    assert!(plan(&down, &running).steps.is_empty());
    let up = of_names(&["nic0", "nic1"]);
    assert_eq!(plan(&up, &running).steps, [Step::SetLink { nic: "nic1".into(), up: true }]);
    running.machine.as_mut().expect("it runs").links.clear();
    assert_eq!(names(&plan(&down, &running)), ["SetLink", "SetLink"], "the agent was restarted");
    running.machine.as_mut().expect("it runs").run_state = RunState::Prelaunch;
    assert_eq!(names(&plan(&down, &running)), ["SetLink", "SetLink", "Start"]);
}

#[test]
fn a_machine_whose_cards_are_not_recorded_is_not_suspended() {
    let (running, more) = (started(&of_names(&["nic0"])), of_names(&["nic0", "nic1"]));
    let steps = plan(&more, &running).steps;
    let mut plugged = running;
    steps.iter().take(4).for_each(|step| follow(&mut plugged, step));
    let mut suspended = more.clone();
    suspended.spec.power = Power::Suspended;
    let planned = plan(&suspended, &plugged);
    let [Step::WriteJournal(journal)] = planned.steps.as_slice() else { panic!("{planned:?}") };
    assert!(journal.suspension.is_none());
    follow(&mut plugged, &planned.steps[0]);
    let planned = plan(&suspended, &plugged);
    let [Step::WriteJournal(journal)] = planned.steps.as_slice() else { panic!("{planned:?}") };
    let saved = journal.suspension.as_ref().expect("it is suspended now");
    assert_eq!(saved.machine.nics.len(), 2);
}

#[test]
fn a_filtered_interface_on_a_network_with_a_trunk_is_named_by_a_condition() {
    let message = |bridge: Value, groups: &[&str]| {
        let network: berth_api::Network = serde_json::from_value(json!({
            "metadata": {"name": "default", "namespace": "berth-shared"},
            "spec": {"type": "Bridge", "bridge": bridge, "cidr": "10.77.0.0/16"},
        }))
        .expect("a Network");
        let mut vm = of_names(&["nic0"]);
        let interface = &mut vm.status.as_mut().expect("bound").interfaces[0];
        interface.security_groups = groups.iter().map(|name| (*name).to_owned()).collect();
        let mut observed = started(&vm);
        let lan = crate::kinds::vm::seed::Lan::of(&network).expect("a bridge");
        observed.lans.insert("berth-shared/default".to_owned(), lan);
        let reported = status(&vm, &observed, &plan(&vm, &observed).readiness, at(NOW));
        let found = condition::find(&reported.conditions, "SecurityGroupsSynced");
        found.map(|condition| condition.message.clone()).unwrap_or_default()
    };
    let trunk = json!({"name": "vmbr0", "trunkVLANs": ["20"]});
    assert!(message(trunk.clone(), &["web"]).contains("interface nic0 names security groups"));
    assert_eq!(message(trunk, &[]), "");
    assert_eq!(message(json!({"name": "vmbr0"}), &["web"]), "");
}

#[test]
fn a_filtered_interface_on_a_network_whose_guests_choose_their_addresses_is_named_by_a_condition() {
    let message = |groups: &[&str]| {
        let mut vm = of_names(&["nic0"]);
        let interface = &mut vm.status.as_mut().expect("bound").interfaces[0];
        interface.security_groups = groups.iter().map(|name| (*name).to_owned()).collect();
        let mut observed = started(&vm);
        observed.choosing.insert("berth-shared/default".to_owned());
        let reported = status(&vm, &observed, &plan(&vm, &observed).readiness, at(NOW));
        let found = condition::find(&reported.conditions, "SecurityGroupsSynced");
        found.map(|condition| condition.message.clone()).unwrap_or_default()
    };
    assert!(message(&["web"]).contains("its Network has ipv6PrivacyAddresses"));
    assert_eq!(message(&[]), "");
}

#[test]
fn a_tap_without_a_bridge_is_put_on_its_own_again_and_the_card_stays() {
    let vm = of_names(&["nic0"]);
    let mut loose = started(&vm);
    loose.loose_taps.insert("nic0".to_owned());
    let joins = plan(&vm, &loose);
    assert_eq!(names(&joins), ["EnsureBridges", "MakeTap"]);
    let reported = status(&vm, &loose, &joins.readiness, at(NOW));
    for kind in ["Ready", "InterfacesSynced"] {
        let found =
            condition::find(&reported.conditions, kind).map(|c| (c.status.as_str(), c.reason.as_str()));
        assert_eq!(found, Some(("False", "Attaching")), "{kind}");
    }
    loose.loose_taps.clear();
    assert!(plan(&vm, &loose).steps.is_empty());
}

#[test]
fn a_card_without_its_tap_is_exchanged_or_reported() {
    let vm = of_names(&["nic0"]);
    let mut lost = started(&vm);
    lost.lost_taps.insert("nic0".to_owned());
    let exchange = plan(&vm, &lost);
    assert_eq!(
        names(&exchange),
        ["UnplugNic", "ReportLostTap", "RemoveTap", "WriteJournal", "EnsureNetworks"]
    );
    // The tap of the new card is there.
    let mut unplugged = lost.clone();
    exchange.steps.iter().for_each(|step| follow(&mut unplugged, step));
    unplugged.lost_taps.clear();
    let settled = settle(&vm, unplugged, 0);
    assert_eq!(cards(&settled), cards(&lost), "the same card, with the same MAC address");

    // A machine that an earlier version started has no ports.
    lost.journal.in_ports.clear();
    let machine = lost.machine.as_mut().expect("it runs");
    machine.nic_ports.clear();
    machine.nics[0].port = None;
    let stays = plan(&vm, &lost);
    assert!(stays.steps.is_empty(), "{:?}", names(&stays));
    let reported = status(&vm, &lost, &stays.readiness, at(NOW));
    let reason = |kind: &str| {
        condition::find(&reported.conditions, kind).map(|c| (c.status.clone(), c.reason.clone()))
    };
    let missing = ("False".to_owned(), "TapMissing".to_owned());
    assert_eq!(reason("InterfacesSynced"), Some(missing.clone()));
    assert_eq!(reason("Ready"), Some(missing));
}
