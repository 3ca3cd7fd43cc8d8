//! Observation of a VM in the index: all that the control plane knows of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_api::VM;
use berth_qemu::hypervisor::CpuTime;
use jiff::Timestamp;
use kube::ResourceExt;

use super::super::bootstrap::Bootstrap;
use super::super::declared_disks::reported_disks;
use super::super::observed_users::GuestUsers;
use super::super::secure_boot_keys::KeysToEnroll;
use super::super::seed::Lan;
use super::super::{guest_network, placement};
use super::{DeclaredAddress, Observed};
use crate::admission::Admission;
use crate::context::Context;
use crate::firmware_copies;
use crate::group_turn::GroupTurn;
use crate::guest_packages::ObservedPackage;
use crate::index::{Tables, class_of, cpu_controls, declared_profile, declared_size, mtu_of, volume_of};
use crate::journal::Journal;
use crate::key::ObjectName;
use crate::kinds::network;
use crate::live_moves::DepartureState;
use crate::machine::GuestFacts;
use crate::networking::{NamedAddress, Networks, find, named_addresses, security_groups_of};
use crate::probes::ProbeResults;
use crate::restores::{self, VmRestore};

/// Fills in what the control plane knows and leaves the rest empty.
pub(super) fn from_index(ctx: &Context, vm: &VM, name: &ObjectName) -> Observed {
    let tables = ctx.index.read();
    let interfaces = vm.status.as_ref().map(|s| s.interfaces.as_slice()).unwrap_or_default();
    let mut missing_networks = Vec::new();
    let mut mtus = BTreeMap::new();
    let mut bridges = BTreeMap::new();
    let mut lans = BTreeMap::new();
    let mut choosing = BTreeSet::new();
    let mut accesses = BTreeMap::new();
    for interface in interfaces {
        if let Some(access) = ctx.networks.access_of(&tables, &interface.network) {
            accesses.insert(interface.network.clone(), access);
        }
        if let Some(bridge) = ctx.networks.bridge_of(&tables, &interface.network) {
            bridges.insert(interface.network.clone(), bridge);
        }
        let network = interface
            .network
            .split_once('/')
            .and_then(|(namespace, network)| tables.networks.get(&ObjectName::new(namespace, network)));
        match network {
            Some(network) => {
                mtus.insert(interface.network.clone(), mtu_of(&network));
                lans.extend(Lan::of(&network).map(|lan| (interface.network.clone(), lan)));
                choosing.extend(network.has_privacy_addresses().then(|| interface.network.clone()));
            }
            None => missing_networks.push(interface.network.clone()),
        }
    }
    let conflicts = interfaces.iter().filter_map(|interface| {
        let bridge = accesses.get(&interface.network).filter(|_| lans.contains_key(&interface.network))?;
        let own = [&interface.address, &interface.ipv6_address].into_iter();
        let mut addresses = own.filter_map(|text| text.parse().ok());
        let text = addresses.find_map(|address| ctx.networks.conflicts.recent(bridge, address))?;
        Some((interface.name.clone(), text))
    });
    let conflicts = conflicts.collect();
    let refused_interfaces = interfaces.iter().filter_map(|interface| {
        let why = network::why_not_interface(ctx, &tables, vm, interface)?;
        Some((interface.name.clone(), why))
    });
    let refused_interfaces = refused_interfaces.collect();
    let is_failing =
        |network: &&String| ctx.networks.must_be_made(&tables, std::iter::once(*network)).is_err();
    let networks = interfaces.iter().map(|interface| &interface.network);
    let failing_networks = networks.filter(is_failing).cloned().collect();
    let host = tables.hosts.get(&ObjectName::new("", ctx.host()));
    let group = placement::group_of(&tables, vm, name);
    let misplaced = host.as_ref().and_then(|host| placement::misplaced(vm, group.as_deref(), host));
    Observed {
        now: Timestamp::UNIX_EPOCH,
        instance: String::new(),
        admission: Admission::Unknown,
        journal: Journal::new(vm),
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
        size: declared_size(&tables, name, vm),
        cpu_controls: cpu_controls(&tables, name, vm),
        pinned_class: vm.pinned_class(class_of(&tables, name, vm).as_deref().map(|class| &class.spec)),
        profile: declared_profile(&tables, name, vm),
        wanted_cpu_time: CpuTime::default(),
        cpu_time: None,
        disks: Vec::new(),
        cdroms: Vec::new(),
        attachments: attachments(&tables, name),
        reported_disks: reported_disks(&tables, vm, name),
        bytes: ctx.disk_use.of_vm(&tables, name, vm),
        left_volumes: BTreeSet::new(),
        mounts: BTreeMap::new(),
        lost_taps: BTreeSet::new(),
        loose_taps: BTreeSet::new(),
        missing_networks,
        refused_interfaces,
        failing_networks,
        missing_groups: missing_groups(&tables, vm, name),
        misrouted: misrouted(&tables, vm),
        lans,
        choosing,
        conflicts,
        network_config: guest_network::configs(&tables, vm),
        observed_addresses: Some(Vec::new()),
        accesses,
        bridges,
        mtus,
        public: public(&ctx.networks, &tables, vm, name),
        bootstrap: Bootstrap::NotObserved,
        secure_boot_keys: KeysToEnroll::NotDue,
        host: None,
        vsock_cid: None,
        offered: None,
        free_memory: None,
        held: None,
        taps: Vec::new(),
        is_saving: false,
        has_tpm_state: true,
        copies_firmware: firmware_copies::pool_of(&tables, vm).is_some(),
        state_kept: false,
        disks_to_hold: Vec::new(),
        attached: Vec::new(),
        last_words: None,
        console: ctx.config.console.as_ref().map(|server| server.published()),
        host_address: host.as_ref().and_then(|h| h.status.as_ref()?.address.clone()),
        draining: host.as_ref().is_some_and(|h| h.spec.draining),
        at_shutdown: None,
        no_room: false,
        holder: Some(ctx.config.holder()),
        misplaced: misplaced.or_else(|| placement::beside_another(&tables, vm, name)),
        restore: VmRestore::None,
        memory: None,
        booted_restored: None,
        turn: GroupTurn::Free,
        departure: DepartureState::default(),
        snapshots: restores::snapshots_of(&tables, name, vm),
        still_user: tables.disks.all().any(|(disk_name, disk)| {
            let users = disk.status.iter().flat_map(|s| &s.used_by);
            disk_name.namespace == name.namespace
                && users.into_iter().any(|user| Some(&user.vm_uid) == vm.metadata.uid.as_ref())
        }),
    }
}

fn missing_groups(tables: &Tables, vm: &VM, name: &ObjectName) -> Vec<String> {
    let named = vm.status.iter().flat_map(|s| &s.interfaces).flat_map(|i| security_groups_of(tables, vm, i));
    let missing = named.filter(|group| tables.security_groups.get(&name.beside(group)).is_none());
    let missing: BTreeSet<String> = missing.collect();
    missing.into_iter().collect()
}

fn misrouted(tables: &Tables, vm: &VM) -> Option<String> {
    let mut given = vm.status.iter().flat_map(|status| &status.interfaces);
    given.find_map(|given| {
        let declared = vm.spec.network_interfaces.iter().find(|i| i.name.as_str() == given.name)?;
        let network = find(tables, &given.network)?;
        declared.misrouted_on(&network)
    })
}

/// Returns the volumes of the disks that attachments plug into the VM, with the names of the disk and the attachment.
pub(super) fn attachments(tables: &Tables, name: &ObjectName) -> BTreeMap<String, (String, String)> {
    let volume = |disk: &str| {
        let disk = tables.disks.get(&name.beside(disk))?;
        volume_of(&disk).map(str::to_owned)
    };
    tables
        .attachments_of(name)
        .filter_map(|a| Some((volume(a.spec.disk.as_str())?, (a.spec.disk.to_string(), a.name_any()))))
        .collect()
}

fn public(networks: &Networks, tables: &Tables, vm: &VM, name: &ObjectName) -> Vec<DeclaredAddress> {
    let private = |interface: &str, is_ipv6: bool| {
        let status = vm.status.as_ref()?;
        let found = status.interfaces.iter().find(|i| i.name == interface)?;
        let own = if is_ipv6 { &found.ipv6_address } else { &found.address };
        own.parse::<IpAddr>().ok()
    };
    let declared = |named: NamedAddress| {
        let NamedAddress { interface, name, address, misnamed_in } = named;
        let forwarded = address.is_some_and(|public| {
            private(&interface, public.address.is_ipv6()).is_some_and(|private| match public.prefix {
                Some(prefix) => networks.has_route(prefix, private),
                None => networks.has_forward(public.address, private),
            })
        });
        let misnamed = misnamed_in.map(|field| format!("its address is of the other family than {field}"));
        let refused = address
            .and_then(|given| networks.refused(given.address))
            .map(|refused| refused.text)
            .or(misnamed);
        DeclaredAddress { interface, name, address, forwarded, refused }
    };
    named_addresses(tables, name, vm).into_iter().map(declared).collect()
}
