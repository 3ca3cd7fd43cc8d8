//! Tests the protocol against every order of reads and writes by schedulers and hosts, with the production decision
//! functions.

use std::collections::BTreeSet;

use berth_api::Strategy as Rule;
use proptest::prelude::*;
use serde_json::json;

use crate::topology::{
    Fate, PlacementGroup, ResourceExt, TopologyClaim, VM, VMStatus, fate, holder, is_open, taken,
};

const ZONES: [&str; 2] = ["a", "b"];
const VMS: usize = 3;

/// A scheduler's writes in flight: one of the group, and then one of a VM. `None`: not needed, or done.
#[derive(Clone, Debug, Default)]
struct Job {
    gone: Option<(usize, String)>,
    group: Option<PlacementGroup>,
    vm: Option<(usize, VM)>,
}

/// A scheduler, with each object as it last read it.
#[derive(Clone, Debug)]
struct Scheduler {
    group: PlacementGroup,
    vms: Vec<Option<VM>>,
    job: Option<Job>,
}

/// The server, two schedulers, and for each VM the version of it and of the group that its host has read.
#[derive(Debug)]
struct Site {
    version: u64,
    made: u64,
    group: PlacementGroup,
    vms: Vec<Option<VM>>,
    schedulers: [Scheduler; 2],
    hosts: Vec<Option<(VM, bool)>>,
}

#[derive(Clone, Debug)]
enum Move {
    ReadGroup(usize),
    ReadVm(usize, usize),
    /// A scheduler wants a VM in a zone, or nowhere.
    Place(usize, usize, Option<usize>),
    /// A scheduler withdraws a binding that was not admitted.
    TakeBack(usize, usize),
    Tidy(usize),
    /// The next write of a scheduler arrives; or it crashed before.
    Arrives(usize),
    Crashes(usize),
    HostReads(usize),
    HostWrites(usize),
    Gone(usize),
    Made(usize),
}

fn moves() -> impl Strategy<Value = Move> {
    let (s, v) = (0..2usize, 0..VMS);
    prop_oneof![
        3 => s.clone().prop_map(Move::ReadGroup),
        3 => (s.clone(), v.clone()).prop_map(|(s, v)| Move::ReadVm(s, v)),
        4 => (s.clone(), v.clone(), prop::option::weighted(0.9, 0..2usize)).prop_map(|(s, v, z)| Move::Place(s, v, z)),
        1 => (s.clone(), v.clone()).prop_map(|(s, v)| Move::TakeBack(s, v)),
        2 => s.clone().prop_map(Move::Tidy),
        6 => s.clone().prop_map(Move::Arrives),
        1 => s.prop_map(Move::Crashes),
        3 => v.clone().prop_map(Move::HostReads),
        3 => v.clone().prop_map(Move::HostWrites),
        1 => v.clone().prop_map(Move::Gone),
        1 => v.prop_map(Move::Made),
    ]
}

fn rules() -> impl Strategy<Value = Rule> {
    prop_oneof![Just(Rule::Spread), Just(Rule::Pack)]
}

fn zone_of(vm: &VM) -> Option<&str> {
    vm.status.as_ref()?.binding.as_ref().map(|b| b.host.as_str())
}

/// The host of each zone is named after the zone.
fn claim_of(group: &PlacementGroup, vm: &VM, zone: &str, epoch: i64) -> TopologyClaim {
    TopologyClaim {
        value: zone.to_owned(),
        key: group.spec.topology_key.clone(),
        vm: vm.name_any(),
        vm_uid: vm.uid().unwrap_or_default(),
        epoch,
        host: zone.to_owned(),
    }
}

fn with_status(vm: &VM, change: impl FnOnce(&mut VMStatus)) -> VM {
    let mut vm = vm.clone();
    change(vm.status.get_or_insert_default());
    vm
}

fn refused(host: &str, epoch: i64) -> Option<Box<berth_api::vm::HostRefusal>> {
    let message = String::new();
    Some(Box::new(berth_api::vm::HostRefusal { host: host.to_owned(), epoch, message, time: None }))
}

impl Site {
    fn new(strategy: Rule) -> Self {
        let group = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "PlacementGroup",
            "metadata": {"name": "g", "namespace": "ns", "resourceVersion": "0"},
            "spec": {"topologyKey": "zone", "strategy": strategy}});
        let group: PlacementGroup = serde_json::from_value(group).expect("a group");
        let nothing = Scheduler { group: group.clone(), vms: vec![None; VMS], job: None };
        let mut site = Self {
            version: 0,
            made: 0,
            group,
            vms: vec![None; VMS],
            schedulers: [nothing.clone(), nothing],
            hosts: vec![None; VMS],
        };
        (0..VMS).for_each(|vm| site.make(vm));
        site
    }

    fn next(&mut self) -> Option<String> {
        self.version += 1;
        Some(self.version.to_string())
    }

    fn make(&mut self, number: usize) {
        if self.vms[number].is_some() {
            return;
        }
        self.made += 1;
        let vm = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM",
            "metadata": {"name": format!("vm-{number}"), "namespace": "ns", "uid": format!("u{}", self.made)},
            "spec": {"class": "s", "disks": [{"name": "d", "boot": true}], "placement": {"group": "g"}}});
        let mut vm: VM = serde_json::from_value(vm).expect("a VM");
        vm.metadata.resource_version = self.next();
        self.vms[number] = Some(vm);
    }

    /// Writes a VM with the version that was read; returns whether the write succeeded.
    fn write_vm(&mut self, number: usize, mut vm: VM) -> bool {
        let now = self.vms[number].as_ref();
        if now.is_none_or(|now| now.metadata != vm.metadata) {
            return false;
        }
        vm.metadata.resource_version = self.next();
        self.vms[number] = Some(vm);
        true
    }

    fn write_group(&mut self, mut group: PlacementGroup) -> bool {
        if self.group.metadata != group.metadata {
            return false;
        }
        group.metadata.resource_version = self.next();
        self.group = group;
        true
    }

    fn step(&mut self, step: &Move) {
        match *step {
            Move::ReadGroup(s) => self.schedulers[s].group = self.group.clone(),
            Move::ReadVm(s, v) => self.schedulers[s].vms[v] = self.vms[v].clone(),
            Move::Place(s, v, zone) => self.schedulers[s].place(v, zone.map(|z| ZONES[z])),
            Move::TakeBack(s, v) => self.schedulers[s].take_back(v),
            Move::Tidy(s) => self.schedulers[s].tidy(),
            Move::Arrives(s) => self.arrives(s),
            Move::Crashes(s) => self.schedulers[s].job = None,
            Move::HostReads(v) => {
                let Some(vm) = self.vms[v].clone() else { return };
                let Some(zone) = zone_of(&vm) else { return };
                let status = vm.status.clone().unwrap_or_default();
                let epoch = status.binding.map_or(0, |b| b.epoch);
                let allows = self.group.allows(&vm.uid().unwrap_or_default(), epoch, zone);
                self.hosts[v] = (status.admitted_epoch != Some(epoch)).then_some((vm, allows));
            }
            Move::HostWrites(v) => {
                let Some((vm, allows)) = self.hosts[v].take() else { return };
                let binding = vm.status.as_ref().and_then(|s| s.binding.clone()).expect("it was bound");
                let reported = with_status(&vm, |status| match allows {
                    true => {
                        status.admitted_epoch = Some(binding.epoch);
                        status.refusal = None;
                    }
                    false => status.refusal = refused(&binding.host, binding.epoch),
                });
                self.write_vm(v, reported);
            }
            Move::Gone(v) => self.vms[v] = None,
            Move::Made(v) => self.make(v),
        }
        self.holds();
    }

    fn arrives(&mut self, s: usize) {
        let Some(job) = &mut self.schedulers[s].job else { return };
        if let Some((number, uid)) = job.gone.take() {
            if self.vms[number].as_ref().is_some_and(|vm| vm.uid().as_ref() == Some(&uid)) {
                self.schedulers[s].job = None;
            }
            return;
        }
        if let Some(group) = job.group.take() {
            if !self.write_group(group) {
                self.schedulers[s].job = None;
            }
            return;
        }
        if let Some((number, vm)) = job.vm.take() {
            self.write_vm(number, vm);
        }
        self.schedulers[s].job = None;
    }

    /// Returns the zone of each admitted member.
    fn claim_of_admitted(&self) -> Vec<&str> {
        let claim_of_admitted = |vm: &&VM| vm.status.as_ref().is_some_and(VMStatus::is_admitted);
        self.vms.iter().flatten().filter(claim_of_admitted).filter_map(zone_of).collect()
    }

    fn holds(&self) {
        let claim_of_admitted = self.claim_of_admitted();
        let zones = BTreeSet::from_iter(&claim_of_admitted).len();
        let holds = match self.group.spec.strategy {
            Rule::Spread => zones == claim_of_admitted.len(),
            Rule::Pack => zones <= 1,
        };
        assert!(holds, "let in at {claim_of_admitted:?} by {:#?}", self.group.status);
    }
}

impl Scheduler {
    fn claims(&self) -> Vec<TopologyClaim> {
        self.group.status.clone().unwrap_or_default().claims
    }

    fn place(&mut self, v: usize, zone: Option<&str>) {
        let Some(vm) = self.vms[v].clone().filter(|_| self.job.is_none()) else { return };
        let status = vm.status.clone().unwrap_or_default();
        if status.binding.is_some() {
            return;
        }
        let epoch = status.refusal.as_ref().map_or(0, |r| r.epoch) + 1;
        let others: BTreeSet<String> = taken(&self.group, &vm).cloned().collect();
        let free =
            zone.filter(|zone| crate::scheduler::allows_value(self.group.spec.strategy, &others, zone));
        let claim = free.map(|zone| claim_of(&self.group, &vm, zone, epoch));
        let open: Vec<_> = self.claims().into_iter().filter(|c| is_open(c, &vm)).collect();
        if let Some(other) = open.iter().filter(|o| Some(*o) != claim.as_ref()).max_by_key(|o| o.epoch) {
            let spent = with_status(&vm, |status| status.refusal = refused(&other.host, other.epoch));
            self.job = Some(Job { vm: Some((v, spent)), ..Job::default() });
            return;
        }
        let Some(claim) = claim else { return };
        let bound = with_status(&vm, |status| {
            status.binding = Some(berth_api::Binding { host: claim.host.clone(), epoch });
        });
        let mut group = self.group.clone();
        group.status.get_or_insert_default().claims.push(claim);
        self.job = Some(Job { group: open.is_empty().then_some(group), vm: Some((v, bound)), gone: None });
    }

    fn take_back(&mut self, v: usize) {
        let Some(vm) = self.vms[v].clone().filter(|_| self.job.is_none()) else { return };
        let status = vm.status.clone().unwrap_or_default();
        let Some(binding) = status.binding.clone().filter(|_| !status.is_admitted()) else { return };
        let unbound = with_status(&vm, |status| {
            status.refusal = refused(&binding.host, binding.epoch);
            status.binding = None;
            status.admitted_epoch = None;
        });
        self.job = Some(Job { vm: Some((v, unbound)), ..Job::default() });
    }

    fn tidy(&mut self) {
        if self.job.is_some() {
            return;
        }
        let mut group = self.group.clone();
        let (mut claims, mut gone) = (Vec::new(), None);
        for claim in self.claims() {
            let number = (0..VMS).find(|n| claim.vm == format!("vm-{n}")).expect("one of ours");
            let now = |vm: &VM| {
                let binding = vm.status.as_ref()?.binding.as_ref()?;
                Some(claim_of(&self.group, vm, &binding.host, binding.epoch))
            };
            match fate(&claim, holder(&self.group, &claim, self.vms[number].as_ref(), now)) {
                Fate::Stays(claim) => claims.push(claim),
                Fate::Goes => {}
                // Only one at a time is checked here.
                Fate::GoesIfGone if gone.is_none() => gone = Some((number, claim.vm_uid.clone())),
                Fate::GoesIfGone => claims.push(claim),
            }
        }
        group.status.get_or_insert_default().claims = claims;
        if group != self.group {
            self.job = Some(Job { gone, group: Some(group), vm: None });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_two_members_are_let_in_against_the_rule_whoever_knows_how_little(rule in rules(), steps in prop::collection::vec(moves(), 0..120)) {
        let mut site = Site::new(rule);
        steps.iter().for_each(|step| site.step(step));
    }

    /// From any state: one scheduler that reads, decides and writes without conflicts fills both zones, or has all
    /// in one.
    #[test]
    fn from_whatever_state_all_are_let_in_that_can_be(rule in rules(), steps in prop::collection::vec(moves(), 0..120)) {
        let mut site = Site::new(rule);
        steps.iter().for_each(|step| site.step(step));
        site.schedulers[0].job = None;
        for _ in 0..12 {
            (0..VMS).for_each(|vm| site.make(vm));
            for v in 0..VMS {
                for zone in 0..2 {
                    for step in [Move::ReadGroup(0), Move::ReadVm(0, v), Move::Place(0, v, Some(zone)), Move::Arrives(0),
                        Move::Arrives(0), Move::Arrives(0), Move::HostReads(v), Move::HostWrites(v), Move::ReadVm(0, v),
                        Move::TakeBack(0, v)] {
                        // A refused binding is withdrawn; one that is not admitted yet waits.
                        let refused = site.vms[v].as_ref().and_then(|vm| vm.status.as_ref()?.refused().cloned()).is_some();
                        if !matches!(step, Move::TakeBack(..)) || refused {
                            site.step(&step);
                        }
                    }
                    site.step(&Move::Arrives(0));
                    (0..VMS).for_each(|v| site.step(&Move::ReadVm(0, v)));
                    [Move::ReadGroup(0), Move::Tidy(0), Move::Arrives(0), Move::Arrives(0), Move::Arrives(0)].iter().for_each(|m| site.step(m));
                }
            }
        }
        let can = match rule {
            Rule::Spread => ZONES.len(),
            Rule::Pack => VMS,
        };
        prop_assert_eq!(site.claim_of_admitted().len(), can, "{:#?}", site);
    }
}
