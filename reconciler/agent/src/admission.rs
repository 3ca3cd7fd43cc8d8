//! Admission of a VM: the final decision whether it may run here, however it was bound.
//!
//! ```text
//!  bound ──judge──▶ fits: reserved here ─▶ status.admittedEpoch ─▶ its disks are made, it is started
//!              └──▶ does not: status.refusal ─▶ the scheduler unbinds the VM and binds it anew
//! ```
//!
//! Nothing is created for a VM before `admittedEpoch` has been read back from the control plane, and the scheduler
//! unbinds only VMs that are not admitted. Both are writes of the same object with its resourceVersion, so one of them
//! fails: a VM bound by a scheduler with outdated state never runs on two hosts.

mod affinity;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_api::SizeTaken;
use berth_api::placement_group::GroupMember;
use berth_api::vm::declared_shares;
use berth_api::{
    CpuAmount, DeviceName, Graphics, Host, HostStatus, PlacementGroup, Quantity, Strategy, VM, VMStatus,
};
use kube::ResourceExt;

use crate::huge_pages;
use crate::index::{Tables, cpu_controls, vm_devices, vm_size};
use crate::key::ObjectName;
use affinity::kept_apart;

/// Whether a VM may run here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Admission {
    /// Admitted before, as recorded in its status.
    Recorded,
    /// Admitted; its status must record that first.
    Granted,
    /// It fits into this offer, and no capacity is reserved for it yet.
    Fits(Box<Offer>),
    /// Its requirements are not known yet.
    Unknown,
    /// Refused, for this reason.
    Refused(String),
}

/// Capacity reserved for admitted VMs for which the status may not record it yet: epoch of the binding, by uid.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    epochs: Mutex<BTreeMap<String, i64>>,
}

/// The resources that this host offers to a VM, besides the objects in the tables.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Offer {
    pub(crate) host: String,
    /// CPUs and memory for all VMs.
    pub(crate) capacity: SizeTaken,
    /// Thousandths of real CPUs that can be reserved.
    pub(crate) reservable: u32,
    /// Bytes of memory that each VM takes above its guest memory.
    pub(crate) overhead: u64,
    /// The VM's required placement group.
    pub(crate) group: Option<PlacementGroup>,
    /// Whether the control plane's definitions store the claims of placement groups.
    pub(crate) has_claims: bool,
    /// Whether this agent is older than the control plane's definitions.
    pub(crate) outdated: bool,
}

/// Input of the decision.
#[derive(Clone, Debug, Default)]
struct AdmissionInput {
    cordoned: bool,
    /// Whether the host is reserved for other namespaces than the VM's.
    for_others: bool,
    /// Whether this agent is older than the control plane's definitions.
    outdated: bool,
    /// CPUs and memory the VM requests.
    needs: SizeTaken,
    /// CPUs and memory of all admitted VMs, overhead included.
    taken: SizeTaken,
    /// CPUs and memory the host offers.
    offered: SizeTaken,
    overhead: u64,
    /// Thousandths of CPUs that the VM reserves, that admitted VMs do, and that can be.
    reserves: u32,
    reserved: u32,
    reservable: u32,
    /// The PCI and USB devices and vGPUs that the VM takes.
    devices: Vec<DeviceInput>,
    /// The shares that the host does not have for the VM.
    unshared: Vec<String>,
    /// The rule by which an admitted VM here and the VM are kept apart, for people.
    kept_apart: Option<String>,
    group: Option<GroupInput>,
}

/// The devices of one name.
#[derive(Clone, Debug)]
struct DeviceInput {
    name: DeviceName,
    needs: i64,
    /// The number that no admitted VM takes.
    left: i64,
    /// Whether one is a display controller, and the VM has graphics.
    excluded: bool,
}

/// Constraints of a required placement group on this host.
#[derive(Clone, Debug, Default)]
struct GroupInput {
    name: String,
    strategy: Strategy,
    topology_key: String,
    /// This host's value of the topology key.
    value: Option<String>,
    /// An admitted member on this host.
    here: Option<String>,
    /// Members on other hosts, according to the group's status.
    elsewhere: Vec<GroupMember>,
    /// Whether the group admits members by claim and has none for this one.
    unclaimed: bool,
}

impl Reservations {
    fn epochs(&self) -> MutexGuard<'_, BTreeMap<String, i64>> {
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides whether the VM may run here. Changes nothing.
    pub(crate) fn judge(&self, tables: &Tables, vm: &VM, offer: Offer) -> Admission {
        let epochs = self.epochs();
        let Some(case) = case(tables, vm, &offer, &epochs) else { return Admission::Unknown };
        match judge(&case) {
            Ok(()) if is_reserved(vm, &epochs) => Admission::Granted,
            Ok(()) => Admission::Fits(Box::new(offer)),
            Err(why) => Admission::Refused(why),
        }
    }

    /// Decides again, as others may have reserved meanwhile, and reserves what the VM takes if it fits.
    pub(crate) fn reserve(&self, tables: &Tables, vm: &VM, offer: &Offer) {
        let mut epochs = self.epochs();
        // An entry is dropped once the tables show the VM as admitted, bound anew, or gone.
        epochs.retain(|uid, epoch| {
            let mut vms = tables.vms.all().map(|(_, vm)| vm);
            vms.any(|vm| vm.metadata.uid.as_ref() == Some(uid) && awaits(vm, *epoch))
        });
        if case(tables, vm, offer, &epochs).is_some_and(|case| judge(&case).is_ok()) {
            epochs.insert(vm.uid().unwrap_or_default(), epoch_of(vm).unwrap_or_default());
        }
    }
}

/// Whether the VM is bound under this epoch and its status does not record its admission.
fn awaits(vm: &VM, epoch: i64) -> bool {
    vm.status.as_ref().is_some_and(|s| !s.is_admitted()) && epoch_of(vm) == Some(epoch)
}

fn is_reserved(vm: &VM, epochs: &BTreeMap<String, i64>) -> bool {
    let epoch = vm.metadata.uid.as_ref().and_then(|uid| epochs.get(uid));
    epoch.is_some_and(|epoch| awaits(vm, *epoch))
}

/// Returns the admission of a VM that was admitted before, whatever its status records.
pub(crate) fn admitted_before(vm: &VM) -> Admission {
    let is_recorded = vm.status.as_ref().is_some_and(VMStatus::is_admitted);
    if is_recorded || vm.metadata.deletion_timestamp.is_some() {
        Admission::Recorded
    } else {
        Admission::Granted
    }
}

fn epoch_of(vm: &VM) -> Option<i64> {
    vm.status.as_ref()?.binding.as_ref().map(|b| b.epoch)
}

/// Returns the input of the decision; None if the size of the VM is not known.
fn case(tables: &Tables, vm: &VM, offer: &Offer, reserved: &BTreeMap<String, i64>) -> Option<AdmissionInput> {
    let name = ObjectName::new(vm.namespace().unwrap_or_default(), vm.name_any());
    let needs = vm_size(tables, &name, vm)?;
    let is_admitted = |other: &VM| other.status.as_ref().is_some_and(VMStatus::is_admitted);
    let others: Vec<_> = tables
        .vms
        .all()
        .filter(|(_, other)| other.metadata.uid != vm.metadata.uid)
        .filter(|(_, other)| is_admitted(other) || is_reserved(other, reserved))
        .collect();
    let sizes = others.iter().filter_map(|(name, other)| vm_size(tables, name, other));
    let taken = sizes.fold(SizeTaken::default(), |sum, size| SizeTaken {
        cpus: sum.cpus + size.cpus,
        dedicated_cpus: sum.dedicated_cpus + size.dedicated_cpus,
        memory: sum.memory.saturating_add(size.memory).saturating_add(offer.overhead),
        huge_memory: sum.huge_memory.saturating_add(size.huge_memory),
        // Of all of them together only what is kept counts.
        whole_memory: 0,
    });
    let reserves = |name: &ObjectName, vm: &VM| cpu_controls(tables, name, vm).reserved;
    let reserved = others.iter().fold(0u32, |sum, (name, other)| sum.saturating_add(reserves(name, other)));
    let host = tables.hosts.get(&ObjectName::new("", &offer.host));
    let group = offer.group.as_ref().map(|group| {
        let same = |other: &VM| group_of(other) == Some(group.name_any());
        let here = others.iter().find(|(n, other)| n.namespace == name.namespace && same(other));
        let label = host.as_ref().and_then(|h| h.labels().get(&group.spec.topology_key).cloned());
        let by_claim = group.is_claimed() && offer.has_claims;
        let uid = vm.metadata.uid.as_deref().unwrap_or_default();
        let allows = |value: &String| group.allows(uid, epoch_of(vm).unwrap_or_default(), value);
        let members = group.status.as_ref().map(|s| s.members.clone()).unwrap_or_default();
        GroupInput {
            unclaimed: by_claim && !label.as_ref().is_some_and(allows),
            name: group.name_any(),
            strategy: group.spec.strategy,
            value: label,
            here: here.map(|(n, _)| n.name.clone()),
            elsewhere: elsewhere(members, &name.name, &offer.host),
            topology_key: group.spec.topology_key.clone(),
        }
    });
    Some(AdmissionInput {
        cordoned: host.as_ref().is_some_and(|h| h.spec.cordoned || h.spec.draining),
        for_others: host.as_ref().is_some_and(|h| !h.spec.takes_namespace(&name.namespace)),
        outdated: offer.outdated,
        needs,
        taken,
        offered: offer.capacity,
        overhead: offer.overhead,
        reserves: reserves(&name, vm),
        reserved,
        reservable: offer.reservable,
        devices: devices(tables, (&name, vm), &others, host.as_deref()),
        unshared: unshared(vm, host.as_deref()),
        kept_apart: kept_apart(&name, vm, &others),
        group,
    })
}

/// Returns the devices that the VM takes, beside those that the others take.
fn devices(
    tables: &Tables,
    (name, vm): (&ObjectName, &VM),
    others: &[(&ObjectName, &Arc<VM>)],
    host: Option<&Host>,
) -> Vec<DeviceInput> {
    let wanted = vm_devices(tables, name, vm);
    if wanted.is_empty() {
        return Vec::new();
    }
    let offered =
        host.and_then(|host| host.status.as_ref()).map(HostStatus::offered_devices).unwrap_or_default();
    let taken: Vec<_> = others.iter().map(|(name, other)| vm_devices(tables, name, other)).collect();
    let device = |(name, needs): (DeviceName, i64)| {
        let of = offered.get(&name).copied().unwrap_or_default();
        let taken: i64 = taken.iter().filter_map(|devices| devices.get(&name)).sum();
        let excluded = of.display && vm.spec.graphics != Graphics::None;
        DeviceInput { needs, left: of.usable - taken, excluded, name }
    };
    wanted.into_iter().map(device).collect()
}

fn unshared(vm: &VM, host: Option<&Host>) -> Vec<String> {
    let offered =
        host.and_then(|host| host.status.as_ref()).map(HostStatus::offered_shares).unwrap_or_default();
    let lacks = |(name, writes): &(String, bool)| !offered.get(name).is_some_and(|can| *can || !writes);
    declared_shares(vm).into_iter().filter(lacks).map(|(name, _)| name).collect()
}

fn group_of(vm: &VM) -> Option<String> {
    vm.spec.placement.as_ref()?.group.as_ref().map(ToString::to_string)
}

fn elsewhere(members: Vec<GroupMember>, me: &str, here: &str) -> Vec<GroupMember> {
    let other = |m: &GroupMember| m.vm != me && m.host.as_deref().is_some_and(|host| host != here);
    members.into_iter().filter(other).collect()
}

/// Decides whether the VM may run here, or why not. Pure.
///
/// *Guarantees:* never admits more than the host offers; never a second member of a required `Spread` group on this
/// host or in its topology domain, nor a VM that a required rule by labels keeps apart from an admitted one on this host,
/// nor a member of a required `Pack` group in a domain other than its other members':
/// within its domain, a member is admitted by the claim that the group holds for it, see [`TopologyClaim`].
///
/// [`TopologyClaim`]: berth_api::placement_group::TopologyClaim
fn judge(case: &AdmissionInput) -> Result<(), String> {
    if case.cordoned {
        return Err("the host is cordoned: it takes no new VMs".to_owned());
    }
    if case.for_others {
        return Err("the host is reserved for other namespaces".to_owned());
    }
    if case.outdated {
        return Err("its agent is older than the control plane's definitions: update berth there".to_owned());
    }
    let (needs, taken, offered) = (&case.needs, &case.taken, &case.offered);
    let free = offered.cpus - taken.cpus;
    if needs.cpus > free {
        return Err(format!("it needs {} CPUs and the host has {} left", needs.cpus, free.max(0)));
    }
    let free = (offered.dedicated_cpus - taken.dedicated_cpus).max(0);
    if needs.dedicated_cpus > free {
        return Err(format!("it needs {} dedicated CPUs and the host has {free} left", needs.dedicated_cpus));
    }
    let free = offered.huge_memory.saturating_sub(taken.huge_memory);
    if let Some(pages) = needs.huge_memory.exceeds(&free) {
        let (needs, free) = (huge_pages::text(&needs.huge_memory, pages), huge_pages::text(&free, pages));
        return Err(format!("it needs {needs} and the host has {free} left"));
    }
    let free = case.reservable.saturating_sub(case.reserved);
    if case.reserves > free {
        let cpus = |millis| CpuAmount::from_millis(millis);
        let (needs, free) = (cpus(case.reserves), cpus(free));
        return Err(format!("it reserves {needs} CPUs and the host has {free} left that are not reserved"));
    }
    judge_memory(case)?;
    for DeviceInput { name, needs, left, excluded } in &case.devices {
        if needs > left {
            return Err(format!("it needs {needs} {name} and the host has {} left", left.max(&0)));
        }
        if *excluded {
            return Err(format!("{} is a display controller there, which excludes graphics", name.name));
        }
    }
    if !case.unshared.is_empty() {
        return Err(format!("the host does not share {}, as the VM needs it", case.unshared.join(", ")));
    }
    if let Some(why) = &case.kept_apart {
        return Err(why.clone());
    }
    case.group.as_ref().map_or(Ok(()), judge_group)
}

fn judge_memory(case: &AdmissionInput) -> Result<(), String> {
    let (needs, taken, offered) = (&case.needs, &case.taken, &case.offered);
    let mib = |bytes: u64| Quantity::from_bytes(bytes >> 20 << 20);
    let free = offered.memory.saturating_sub(taken.memory);
    if needs.memory.saturating_add(case.overhead) > free {
        return Err(format!(
            "it needs {} of memory and {} of overhead and the host has {} left",
            mib(needs.memory),
            mib(case.overhead),
            mib(free)
        ));
    }
    if needs.whole_memory.saturating_add(case.overhead) > offered.memory {
        return Err(format!(
            "it has {} of memory and {} of overhead and the host has {} for all VMs",
            mib(needs.whole_memory),
            mib(case.overhead),
            mib(offered.memory)
        ));
    }
    Ok(())
}

fn judge_group(group: &GroupInput) -> Result<(), String> {
    let (name, key) = (&group.name, &group.topology_key);
    let Some(value) = &group.value else {
        return Err(format!("the host does not have the label {key} of placement group {name}"));
    };
    let at = |member: &GroupMember| {
        let host = member.host.as_deref().unwrap_or_default();
        format!("{} on host {host}", member.vm)
    };
    let unclaimed =
        || format!("placement group {name} does not give {key} {value} to this binding of the VM");
    match group.strategy {
        Strategy::Spread => {
            if let Some(other) = &group.here {
                return Err(format!("the host already has {other} of placement group {name}"));
            }
            match group.elsewhere.iter().find(|m| m.value.as_ref() == Some(value)) {
                Some(other) => Err(format!("placement group {name} already has {} at {value}", at(other))),
                None if group.unclaimed => Err(unclaimed()),
                None => Ok(()),
            }
        }
        Strategy::Pack => match group.elsewhere.iter().find(|m| m.value.as_ref() != Some(value)) {
            Some(other) => Err(format!("placement group {name} has {}, which is not at {value}", at(other))),
            None if group.unclaimed => Err(unclaimed()),
            None => Ok(()),
        },
    }
}

#[cfg(test)]
mod tests {
    use berth_api::{DeviceBus, HugePages};
    use proptest::{prelude::prop, prop_assert, proptest};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn ordinary(cpus: i64, memory: u64) -> SizeTaken {
        SizeTaken::of(cpus, memory, HugePages::None)
    }

    fn case() -> AdmissionInput {
        AdmissionInput {
            needs: ordinary(1, 500 * MIB),
            offered: ordinary(4, 1024 * MIB),
            overhead: 80 * MIB,
            ..AdmissionInput::default()
        }
    }

    fn group(strategy: Strategy) -> GroupInput {
        let value = Some("a".to_owned());
        GroupInput {
            name: "web".into(),
            strategy,
            topology_key: "zone".into(),
            value,
            ..GroupInput::default()
        }
    }

    fn member(vm: &str, value: &str) -> GroupMember {
        GroupMember {
            vm: vm.into(),
            host: Some("h2".into()),
            value: Some(value.into()),
            ..GroupMember::default()
        }
    }

    fn refused(case: &AdmissionInput) -> String {
        judge(case).expect_err("it must not be let in")
    }

    #[test]
    fn cpus_memory_and_overhead_are_looked_at_again_and_each_refusal_says_the_numbers() {
        assert_eq!(judge(&case()), Ok(()));
        let full = AdmissionInput { taken: ordinary(4, 0), ..case() };
        insta::assert_snapshot!(refused(&full), @"it needs 1 CPUs and the host has 0 left");
        let full = AdmissionInput { taken: ordinary(1, 500 * MIB), ..case() };
        insta::assert_snapshot!(refused(&full), @"it needs 500Mi of memory and 80Mi of overhead and the host has 524Mi left");
        let half = ordinary(1, 1000 * MIB).with_reservation(Some(500 * MIB));
        let larger = AdmissionInput { needs: half, ..case() };
        insta::assert_snapshot!(refused(&larger), @"it has 1000Mi of memory and 80Mi of overhead and the host has 1Gi for all VMs");
        let fits = AdmissionInput { offered: ordinary(4, 1080 * MIB), ..larger };
        assert_eq!(judge(&fits), Ok(()));
        let outdated = AdmissionInput { outdated: true, ..case() };
        insta::assert_snapshot!(refused(&outdated), @"its agent is older than the control plane's definitions: update berth there");
        let cordoned = AdmissionInput { cordoned: true, ..case() };
        insta::assert_snapshot!(refused(&cordoned), @"the host is cordoned: it takes no new VMs");
        let reserved = AdmissionInput { for_others: true, ..case() };
        insta::assert_snapshot!(refused(&reserved), @"the host is reserved for other namespaces");
    }

    #[test]
    fn a_vm_gets_no_more_devices_than_are_left_and_no_display_beside_its_graphics() {
        let gpus = |needs, left, excluded| AdmissionInput {
            devices: vec![DeviceInput {
                name: DeviceName::new(DeviceBus::Pci, "gpu"),
                needs,
                left,
                excluded,
            }],
            ..case()
        };
        assert_eq!(judge(&gpus(2, 2, false)), Ok(()));
        insta::assert_snapshot!(refused(&gpus(2, 1, false)), @"it needs 2 PCI devices gpu and the host has 1 left");
        insta::assert_snapshot!(refused(&gpus(1, -1, false)), @"it needs 1 PCI devices gpu and the host has 0 left");
        insta::assert_snapshot!(refused(&gpus(1, 1, true)), @"gpu is a display controller there, which excludes graphics");
    }

    #[test]
    fn a_vm_is_not_admitted_without_its_shares() {
        let vm = |read_only: bool| -> VM {
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "web"},
                "spec": {"disks": [], "shares": [{"name": "media", "readOnly": read_only}, {"name": "data"}]},
            }))
            .expect("a VM")
        };
        let host = |media: serde_json::Value| -> Host {
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "h"}, "spec": {},
                "status": {"shares": [media, {"name": "data", "readOnly": false}]},
            }))
            .expect("a host")
        };
        let read_only = host(serde_json::json!({"name": "media", "readOnly": true}));
        assert_eq!(unshared(&vm(true), Some(&read_only)), [""; 0]);
        assert_eq!(unshared(&vm(false), Some(&read_only)), ["media"]);
        let broken = host(serde_json::json!({"name": "media", "readOnly": false, "problem": "gone"}));
        assert_eq!(unshared(&vm(true), Some(&broken)), ["media"]);
        assert_eq!(unshared(&vm(true), None), ["data", "media"]);
        let case = AdmissionInput { unshared: vec!["data".into(), "media".into()], ..case() };
        insta::assert_snapshot!(refused(&case), @"the host does not share data, media, as the VM needs it");
    }

    #[test]
    fn huge_pages_are_counted_by_size_and_beside_ordinary_memory() {
        let huge = |pages: u64| SizeTaken::of(1, pages * 2 * MIB, HugePages::TwoMebibytes);
        let offered = SizeTaken { cpus: 4, memory: 80 * MIB, ..huge(64) };
        let fits = AdmissionInput { needs: huge(40), taken: huge(24), offered, ..case() };
        assert_eq!(judge(&fits), Ok(()));
        let full = AdmissionInput { taken: huge(25), ..fits };
        insta::assert_snapshot!(refused(&full), @"it needs 40 huge pages of 2Mi and the host has 39 huge pages of 2Mi left");
        let of_another_size =
            AdmissionInput { needs: SizeTaken::of(1, 1 << 30, HugePages::OneGibibyte), offered, ..case() };
        insta::assert_snapshot!(refused(&of_another_size), @"it needs 1 huge pages of 1Gi and the host has 0 huge pages of 1Gi left");
    }

    #[test]
    fn dedicated_cpus_are_admitted_beside_those_that_vms_share() {
        let needs = ordinary(2, 500 * MIB).with_dedicated_cpus(true);
        let offered = SizeTaken { dedicated_cpus: 6, ..ordinary(0, 1024 * MIB) };
        let taken = |dedicated_cpus| SizeTaken { dedicated_cpus, ..SizeTaken::default() };
        let fits = AdmissionInput { needs, offered, taken: taken(3), ..case() };
        assert_eq!(judge(&fits), Ok(()));
        let full = AdmissionInput { taken: taken(4), ..fits };
        insta::assert_snapshot!(refused(&full), @"it needs 3 dedicated CPUs and the host has 2 left");
    }

    #[test]
    fn reservations_are_admitted_up_to_the_real_cpus() {
        let part = AdmissionInput { reserves: 1500, reserved: 2500, reservable: 4000, ..case() };
        assert_eq!(judge(&part), Ok(()));
        let full = AdmissionInput { reserved: 3000, ..part };
        insta::assert_snapshot!(refused(&full), @"it reserves 1.5 CPUs and the host has 1 left that are not reserved");
    }

    #[test]
    fn a_second_member_of_a_group_that_keeps_apart_is_refused_on_this_host_and_in_its_zone() {
        let with = |group| AdmissionInput { group: Some(group), ..case() };
        assert_eq!(judge(&with(group(Strategy::Spread))), Ok(()));
        let here = GroupInput { here: Some("web-0".into()), ..group(Strategy::Spread) };
        insta::assert_snapshot!(refused(&with(here)), @"the host already has web-0 of placement group web");
        let zone = GroupInput {
            elsewhere: vec![member("web-1", "b"), member("web-0", "a")],
            ..group(Strategy::Spread)
        };
        insta::assert_snapshot!(refused(&with(zone)), @"placement group web already has web-0 on host h2 at a");
        let unclaimed = GroupInput { unclaimed: true, ..group(Strategy::Spread) };
        insta::assert_snapshot!(refused(&with(unclaimed)), @"placement group web does not give zone a to this binding of the VM");
        let label = GroupInput { value: None, ..group(Strategy::Spread) };
        insta::assert_snapshot!(refused(&with(label)), @"the host does not have the label zone of placement group web");
        let packed = GroupInput {
            here: Some("web-0".into()),
            elsewhere: vec![member("web-1", "a")],
            ..group(Strategy::Pack)
        };
        assert_eq!(judge(&with(packed)), Ok(()));
        let unclaimed = GroupInput { unclaimed: true, ..group(Strategy::Pack) };
        insta::assert_snapshot!(refused(&with(unclaimed)), @"placement group web does not give zone a to this binding of the VM");
        let apart = GroupInput { elsewhere: vec![member("web-1", "b")], ..group(Strategy::Pack) };
        insta::assert_snapshot!(refused(&with(apart)), @"placement group web has web-1 on host h2, which is not at a");
    }

    proptest! {
        #[test]
        fn whoever_is_let_in_never_adds_up_to_more_than_the_host_offers(vms in prop::collection::vec((1i64..4, 1u64..400), 0..20)) {
            let mut taken = SizeTaken::default();
            for (cpus, memory) in vms {
                let case = AdmissionInput { needs: ordinary(cpus, memory * MIB), taken, ..case() };
                if judge(&case).is_ok() {
                    taken = ordinary(taken.cpus + cpus, taken.memory + memory * MIB + case.overhead);
                    prop_assert!(taken.cpus <= case.offered.cpus && taken.memory <= case.offered.memory);
                }
            }
        }
    }
}
