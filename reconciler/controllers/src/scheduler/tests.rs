mod affinity;
mod resources;

use super::*;
use crate::cache::capacity::Usage;
use berth_api::{Reason, placement_group::HOSTNAME_LABEL};
use proptest::arbitrary::any;
use proptest::{prelude::prop, prop_assert, prop_assert_eq, proptest, strategy::Strategy as Generator};

const ZONE: &str = "topology.kubernetes.io/zone";

fn host(name: &str, memory: u64) -> Candidate {
    Candidate {
        name: name.into(),
        labels: [(HOSTNAME_LABEL.to_owned(), name.to_owned())].into(),
        ready: true,
        allocatable_cpus: 8,
        allocatable_memory: memory << 20,
        overhead: 10 << 20,
        ..Candidate::default()
    }
}

fn labelled(name: &str, memory: u64, key: &str, value: &str) -> Candidate {
    let mut host = host(name, memory);
    host.labels.insert(key.into(), value.into());
    host
}

fn request(memory: u64) -> Request {
    Request { cpus: 1, memory: memory << 20, ..Request::default() }
}

#[test]
fn a_host_that_is_reserved_for_namespaces_takes_vms_of_these_alone() {
    let of = |namespace: &str| Request { namespace: namespace.into(), ..request(100) };
    let reserved = || {
        let namespaces = std::sync::Arc::new(["team-a".to_owned(), "team-b".to_owned()].into());
        Candidate { namespaces, ..host("a", 9000) }
    };
    for namespace in ["team-a", "team-b"] {
        assert_eq!(chosen(&of(namespace), &[], &[reserved(), host("b", 1000)]), Ok("a"));
    }
    assert_eq!(chosen(&of("team-c"), &[], &[reserved(), host("b", 1000)]), Ok("b"));
    let text = now(&of("team-c"), &[], &[reserved(), host("b", 50)]);
    assert!(text.contains("1 reserved for other namespaces, 1 with too little free memory"), "{text}");
    assert!(!text.contains("team-a"), "the names of others are not for its users: {text}");
    let on_a = Request { host: Some("a".to_owned()), ..of("team-c") };
    assert_eq!(now(&on_a, &[], &[reserved()]), "host a is reserved for other namespaces");
}

fn group(enforcement: Enforcement, topology_key: &str) -> Option<Group> {
    let topology_key = topology_key.to_owned();
    Some(Group {
        namespace: "default".into(),
        name: "web".into(),
        enforcement,
        topology_key,
        ..Group::default()
    })
}

fn members(hosts: &[&str]) -> Members {
    let mut members = Members::new();
    for host in hosts {
        *members.entry((*host).to_owned()).or_default() += 1;
    }
    members
}

fn group_of(members: Members) -> PlacedVms {
    PlacedVms { members, ..PlacedVms::default() }
}

fn chosen<'a>(wanted: &Request, with: &[&str], hosts: &'a [Candidate]) -> Result<&'a str, Unplaced> {
    choose(wanted, &group_of(members(with)), hosts.iter(), PlacementPolicy::Balance)
}

fn now(wanted: &Request, with: &[&str], hosts: &[Candidate]) -> String {
    match chosen(wanted, with, hosts) {
        Err(Unplaced::Now(text)) => text,
        other => panic!("expected it to wait, got {other:?}"),
    }
}

fn never(wanted: &Request, with: &[&str], hosts: &[Candidate]) -> (Reason, String) {
    match chosen(wanted, with, hosts) {
        Err(Unplaced::Never(reason, text)) => (reason, text),
        other => panic!("expected that it never can, got {other:?}"),
    }
}

#[test]
fn the_host_with_the_largest_share_left_is_taken_or_with_packing_the_smallest() {
    let hosts = [host("a", 500), host("b", 900), host("c", 700)];
    assert_eq!(chosen(&request(100), &[], &hosts), Ok("b"));
    let packed = choose(&request(100), &PlacedVms::default(), hosts.iter(), PlacementPolicy::Pack);
    assert_eq!(packed, Ok("a"));
}

#[test]
fn reservations_fit_into_the_real_cpus_of_a_host_and_other_vms_beside_them() {
    let with = |name: &str, reserved: u32| {
        let mut host = host(name, 1000);
        (host.reservable, host.used.reserved) = (2000, reserved);
        host
    };
    let hosts = [with("a", 1500), with("b", 500)];
    let wanted = |reserved: u32| Request { reserved, ..request(100) };
    assert_eq!(chosen(&wanted(1500), &[], &hosts), Ok("b"));
    assert_eq!(chosen(&request(100), &[], &[with("a", 2000)]), Ok("a"));
    insta::assert_snapshot!(now(&wanted(1750), &[], &hosts), @"0 of 2 hosts can take it: 2 with too few CPUs that are not reserved (it needs 1 CPUs and 100 MiB)");
    let tied = Request { host: Some("a".into()), ..wanted(1000) };
    insta::assert_snapshot!(now(&tied, &[], &hosts), @"host a has 0.5 of 2 CPUs left that are not reserved and it reserves 1");
    let (reason, text) = never(&wanted(2001), &[], &hosts);
    assert_eq!(reason, Reason::NoHostLargeEnough);
    insta::assert_snapshot!(text, @"it reserves 2.001 CPUs and no host it may run on has that many: b has 2 that can be reserved");
}

#[test]
fn a_vm_with_a_cpu_model_is_placed_on_a_host_that_has_it() {
    let with = |name: &str, models: &[&str]| {
        let models = models.iter().map(|model| (*model).to_owned()).collect();
        Candidate { cpu_models: std::sync::Arc::new(models), ..host(name, 1000) }
    };
    let hosts = [with("a", &["x86-64-v2"]), with("b", &["x86-64-v2", "x86-64-v3"])];
    let wanted = |model: &str| Request { cpu_model: Some(model.into()), ..request(100) };
    assert_eq!(chosen(&wanted("x86-64-v2"), &[], &hosts), Ok("a"));
    assert_eq!(chosen(&wanted("x86-64-v3"), &[], &hosts), Ok("b"));
    let (reason, text) = never(&wanted("x86-64-v4"), &[], &hosts);
    assert_eq!(reason, Reason::NotSupported);
    insta::assert_snapshot!(text, @"no host it may run on has the CPU model x86-64-v4: see status.cpuModels of the Hosts");
    let mut down = hosts;
    down[1].ready = false;
    insta::assert_snapshot!(now(&wanted("x86-64-v3"), &[], &down), @"0 of 2 hosts can take it: 1 not ready, 1 without the CPU model x86-64-v3 (it needs 1 CPUs and 100 MiB)");
}

#[test]
fn a_vm_is_placed_where_its_architecture_is_there_or_emulated() {
    let of = |name: &str, architectures: &[Architecture]| {
        let architectures = architectures.iter().copied().collect();
        Candidate { architectures, ..host(name, 1000) }
    };
    let (x86, arm) = (Architecture::X86_64, Architecture::Aarch64);
    let wanted = |architecture| Request { architecture, ..request(100) };
    assert_eq!(chosen(&wanted(x86), &[], &[host("older", 1000)]), Ok("older"), "an older agent");
    let hosts = [host("a", 1000), of("b", &[x86, arm]), of("c", &[arm])];
    assert_eq!(chosen(&wanted(arm), &[], &hosts[..2]), Ok("b"));
    assert_eq!(chosen(&wanted(x86), &[], &hosts[2..]).ok(), None);
    let (reason, text) = never(&wanted(arm), &[], &hosts[..1]);
    assert_eq!(reason, Reason::NotSupported);
    insta::assert_snapshot!(text, @"no host that it may run on runs VMs of architecture aarch64: see status.architectures of the Hosts, add a host with such processors, or let one emulate them with --emulate aarch64");
    let mut down = hosts[..2].to_vec();
    down[1].ready = false;
    assert!(now(&wanted(arm), &[], &down).contains("1 without the architecture aarch64"));
}

#[test]
fn a_vm_with_a_machine_type_is_placed_where_qemu_has_it() {
    let with = |name: &str, types: &[&str]| {
        let types = types.iter().map(|name| (*name).to_owned()).collect();
        Candidate { machine_types: std::sync::Arc::new(types), ..host(name, 1000) }
    };
    let hosts = [with("a", &["pc-q35-7.2"]), with("b", &["pc-q35-7.2", "pc-q35-9.2"])];
    let wanted = |name: &str| Request { machine_type: Some(name.into()), ..request(100) };
    assert_eq!(chosen(&wanted("pc-q35-7.2"), &[], &hosts), Ok("a"));
    assert_eq!(chosen(&wanted("pc-q35-9.2"), &[], &hosts), Ok("b"));
    assert_eq!(chosen(&wanted("pc-q35-9.2"), &[], &[with("old", &[])]), Ok("old"), "its host checks it");
    let (reason, text) = never(&wanted("pc-q35-10.0"), &[], &hosts);
    assert_eq!(reason, Reason::NotSupported);
    insta::assert_snapshot!(text, @"no host it may run on has the machine type pc-q35-10.0: see status.machineTypes of the Hosts");
    let mut down = hosts;
    down[1].ready = false;
    let text = now(&wanted("pc-q35-9.2"), &[], &down);
    assert!(text.contains("1 without the machine type pc-q35-9.2"), "{text}");
}

#[test]
fn cpus_count_as_much_as_memory_where_they_are_scarcer() {
    let mut busy = host("a", 100_000);
    busy.used.cpus = 7;
    assert_eq!(chosen(&request(100), &[], &[busy, host("b", 300)]), Ok("b"));
}

#[test]
fn measured_overhead_counts_for_every_vm() {
    assert!(chosen(&request(100), &[], &[host("a", 109)]).is_err());
    assert_eq!(chosen(&request(100), &[], &[host("a", 110)]), Ok("a"));
    let mut used = host("a", 219);
    used.used = Usage { cpus: 1, memory: 100 << 20, vms: 1, ..Usage::default() };
    assert!(chosen(&request(100), &[], &[used.clone()]).is_err(), "two VMs, two overheads");
    used.allocatable_memory = 220 << 20;
    assert_eq!(chosen(&request(100), &[], &[used]), Ok("a"));
}

#[test]
fn every_reason_is_told_with_its_count() {
    let mut silent = host("s", 900);
    silent.ready = false;
    let mut cordoned = host("c", 900);
    cordoned.cordoned = true;
    let mut full = host("a", 900);
    full.used.memory = 500 << 20;
    let mut full_too = full.clone();
    full_too.name = "b".into();
    insta::assert_snapshot!(
        now(&request(800), &[], &[silent, cordoned, full, full_too]),
        @"0 of 4 hosts can take it: 1 not ready, 1 cordoned, 2 with too little free memory (it needs 1 CPUs and 800 MiB)"
    );
    insta::assert_snapshot!(now(&request(800), &[], &[]), @"there is no host yet");
}

#[test]
fn a_vm_of_whose_memory_a_part_is_kept_fits_beside_others_and_only_on_a_host_of_its_size() {
    let kept = Request { whole_memory: 400 << 20, ..request(100) };
    let mut hosts = [host("a", 500)];
    hosts[0].used = Usage { cpus: 1, memory: 300 << 20, vms: 1, ..Usage::default() };
    assert_eq!(chosen(&kept, &[], &hosts), Ok("a"));
    let larger = Request { whole_memory: 600 << 20, ..kept };
    insta::assert_snapshot!(never(&larger, &[], &hosts).1, @"it needs 1 CPUs and 600Mi of memory and no host it may run on is that large: the largest, a, offers 8 CPUs and 490Mi to one VM");
    // Its size has room, and the part that is kept for it has none.
    hosts[0].used.memory = 400 << 20;
    let waits = Request { whole_memory: 450 << 20, ..request(100) };
    insta::assert_snapshot!(now(&waits, &[], &hosts), @"0 of 1 hosts can take it: 1 with too little free memory (it needs 1 CPUs and 100 MiB)");
}

#[test]
fn a_vm_larger_than_any_host_is_told_so_with_the_largest() {
    let mut larger = host("b", 700);
    larger.used.memory = 700 << 20;
    let (reason, text) = never(&request(800), &[], &[host("a", 500), larger]);
    assert_eq!(reason, Reason::NoHostLargeEnough);
    insta::assert_snapshot!(text, @"it needs 1 CPUs and 800Mi of memory and no host it may run on is that large: the largest, b, offers 8 CPUs and 690Mi to one VM");
    let mut unknown = host("new", 0);
    unknown.allocatable_cpus = 0;
    assert!(
        now(&request(800), &[], &[host("a", 500), unknown]).contains("too little"),
        "a new host may be larger"
    );
}

#[test]
fn a_required_group_never_shares_a_host_and_a_preferred_one_only_when_it_must() {
    let hosts = [host("a", 900), host("b", 500)];
    let mut wanted = request(100);
    wanted.group = group(Enforcement::Required, HOSTNAME_LABEL);
    assert_eq!(chosen(&wanted, &["a"], &hosts), Ok("b"));
    let (reason, text) = never(&wanted, &["a", "b"], &hosts);
    assert_eq!(reason, Reason::GroupTooLarge);
    insta::assert_snapshot!(text, @"placement group web keeps its members apart: hosts have 2 different values of kubernetes.io/hostname and 2 other members are placed; add a host, or take a member out");
    wanted.group = group(Enforcement::Preferred, HOSTNAME_LABEL);
    assert_eq!(chosen(&wanted, &["a"], &hosts), Ok("b"));
    assert_eq!(chosen(&wanted, &["a", "b"], &hosts), Ok("a"));
}

#[test]
fn a_full_free_host_is_waited_for_and_makes_no_group_too_large() {
    let mut full = host("b", 900);
    full.used.memory = 890 << 20;
    let mut wanted = request(100);
    wanted.group = group(Enforcement::Required, HOSTNAME_LABEL);
    insta::assert_snapshot!(
        now(&wanted, &["a"], &[host("a", 900), full]),
        @"0 of 2 hosts can take it: 1 already with a member of placement group web, 1 with too little free memory (it needs 1 CPUs and 100 MiB)"
    );
}

#[test]
fn zones_are_kept_apart_whichever_host_of_them_a_member_is_on() {
    let hosts = [
        labelled("a1", 900, ZONE, "a"),
        labelled("a2", 900, ZONE, "a"),
        labelled("b1", 300, ZONE, "b"),
        host("x", 990),
    ];
    let mut wanted = request(100);
    wanted.group = group(Enforcement::Required, ZONE);
    assert_eq!(chosen(&wanted, &["a2"], &hosts), Ok("b1"), "not the unlabelled one, which is in no zone");
    assert_eq!(never(&wanted, &["a1", "b1"], &hosts).0, Reason::GroupTooLarge);
    wanted.group = group(Enforcement::Required, "nobody/has-it");
    assert!(never(&wanted, &[], &hosts).1.contains("no host has the label nobody/has-it"));
}

#[test]
fn a_packed_group_stays_together() {
    let hosts = [labelled("a1", 300, ZONE, "a"), labelled("b1", 900, ZONE, "b")];
    let mut wanted = request(100);
    for (enforcement, expected) in [(Enforcement::Required, None), (Enforcement::Preferred, Some("b1"))] {
        let rule = group(enforcement, ZONE).map(|g| Group { strategy: Strategy::Pack, ..g });
        wanted.group = rule;
        assert_eq!(chosen(&wanted, &["a1"], &hosts), Ok("a1"));
        let mut full = hosts.clone();
        full[0].used.cpus = 8;
        assert_eq!(chosen(&wanted, &["a1"], &full).ok(), expected, "{enforcement:?}");
    }
}

#[test]
fn preferred_labels_decide_between_hosts_that_fit_and_required_ones_rule_out() {
    let hosts = [labelled("a", 900, "disk", "hdd"), labelled("b", 300, "disk", "ssd")];
    let mut wanted = request(100);
    wanted.preferred = [("disk".to_owned(), "ssd".to_owned())].into();
    assert_eq!(chosen(&wanted, &[], &hosts), Ok("b"));
    wanted.preferred = [("disk".to_owned(), "nvme".to_owned())].into();
    assert_eq!(chosen(&wanted, &[], &hosts), Ok("a"));
    wanted.selector = [("disk".to_owned(), "ssd".to_owned())].into();
    assert_eq!(chosen(&wanted, &[], &hosts), Ok("b"));
    wanted.selector = [("disk".to_owned(), "nvme".to_owned())].into();
    insta::assert_snapshot!(never(&wanted, &[], &hosts).1, @"none of 2 hosts has the labels disk=nvme");
}

#[test]
fn a_vm_goes_where_its_disks_are_and_else_is_told_what_is_wrong_there() {
    let mut hosts = [host("a", 500), host("b", 900)];
    let mut wanted = request(100);
    wanted.disk_hosts = ["a".to_owned()].into();
    assert_eq!(chosen(&wanted, &[], &hosts), Ok("a"));
    hosts[0].used = Usage { cpus: 1, memory: 400 << 20, vms: 1, ..Usage::default() };
    insta::assert_snapshot!(now(&wanted, &[], &hosts), @"host a has 90Mi of 500Mi memory free and it needs 100Mi and 10Mi of overhead");
    hosts[0].cordoned = true;
    insta::assert_snapshot!(now(&wanted, &[], &hosts), @"host a is cordoned: it takes no new VMs");
    hosts[0].ready = false;
    insta::assert_snapshot!(now(&wanted, &[], &hosts), @"host a is not ready: its agent does not report");
    wanted.host = Some("b".into());
    insta::assert_snapshot!(never(&wanted, &[], &hosts).1, @"its disks are on host a and placement.host names b");
    wanted.host = Some("c".into());
    insta::assert_snapshot!(never(&wanted, &[], &hosts).1, @"there is no host c, which placement.host names");
    wanted = Request { disk_hosts: ["a".to_owned(), "b".to_owned()].into(), ..request(100) };
    insta::assert_snapshot!(never(&wanted, &[], &hosts).1, @"its disks are on different hosts (a, b): it can run on one only");
}

#[test]
fn a_host_that_just_refused_it_is_not_asked_again() {
    let hosts = [host("a", 500), host("b", 900)];
    let wanted = Request { refused_by: Some("b".into()), ..request(100) };
    assert_eq!(chosen(&wanted, &[], &hosts), Ok("a"));
}

/// A host: memory, zone, whether it can be used.
fn hosts() -> impl Generator<Value = Vec<Candidate>> {
    prop::collection::vec((100u64..1000, 0..3usize, 0..6usize), 1..7).prop_map(|hosts| {
        let one = |(i, (memory, zone, state)): (usize, (u64, usize, usize))| Candidate {
            ready: state != 0,
            cordoned: state == 1,
            ..labelled(&format!("h{i}"), memory, ZONE, ["a", "b", "c"][zone])
        };
        hosts.into_iter().enumerate().map(one).collect()
    })
}

proptest! {
    #[test]
    fn never_over_capacity_never_two_of_a_group_and_whatever_the_order(
        mut hosts in hosts(),
        preferences in prop::collection::vec((1i64..4, 1u64..400), 1..20),
        by_zone in any::<bool>(),
        pack in any::<bool>(),
        turn in 0..6usize,
    ) {
        let key = if by_zone { ZONE } else { HOSTNAME_LABEL };
        let policy = if pack { PlacementPolicy::Pack } else { PlacementPolicy::Balance };
        let mut beside = PlacedVms::default();
        let mut taken = BTreeSet::new();
        for (cpus, memory) in preferences {
            let wanted = Request { cpus, memory: memory << 20, group: group(Enforcement::Required, key), ..Request::default() };
            let chosen = choose(&wanted, &beside, hosts.iter(), policy).map(str::to_owned);
            let mut turned = hosts.clone();
            turned.rotate_left(turn % hosts.len());
            turned.reverse();
            prop_assert_eq!(&chosen, &choose(&wanted, &beside, turned.iter(), policy).map(str::to_owned));
            let Ok(name) = chosen else { continue };
            let host = hosts.iter_mut().find(|h| h.name == name).expect("it was a candidate");
            prop_assert!(host.ready && !host.cordoned);
            prop_assert!(taken.insert(host.labels[key].clone()), "two members at one value");
            host.used.cpus += cpus;
            host.used.memory += memory << 20;
            host.used.vms += 1;
            prop_assert!(host.used.cpus <= host.allocatable_cpus);
            prop_assert!(host.used.memory + host.used.vms * host.overhead <= host.allocatable_memory);
            *beside.members.entry(name).or_default() += 1;
        }
    }

    /// `Never` is correct: with all hosts up, empty and uncordoned, the VM still does not fit.
    #[test]
    fn never_means_never_with_these_hosts(hosts in hosts(), memory in 1u64..1200, with in prop::collection::vec(0..7usize, 0..4)) {
        let names: Vec<String> = with.into_iter().map(|i| format!("h{i}")).collect();
        let beside = group_of(members(&names.iter().map(String::as_str).collect::<Vec<_>>()));
        let wanted = Request { group: group(Enforcement::Required, ZONE), ..request(memory) };
        if let Err(Unplaced::Never(..)) = choose(&wanted, &beside, hosts.iter(), PlacementPolicy::Balance) {
            let best: Vec<Candidate> = hosts.into_iter().map(|h| Candidate { ready: true, cordoned: false, used: Usage::default(), ..h }).collect();
            prop_assert!(choose(&wanted, &beside, best.iter(), PlacementPolicy::Balance).is_err());
        }
    }
}

#[test]
fn of_equal_hosts_the_one_that_has_the_image_is_chosen() {
    let has = Request { image_hosts: ["b".to_owned()].into(), ..request(100) };
    assert_eq!(chosen(&request(100), &[], &[host("a", 1000), host("b", 1000)]), Ok("a"));
    assert_eq!(chosen(&has, &[], &[host("a", 1000), host("b", 1000)]), Ok("b"));
    let large = Request { memory: 500 << 20, ..has };
    assert_eq!(chosen(&large, &[], &[host("a", 2000), host("b", 1000)]), Ok("a"), "the load counts first");
}
