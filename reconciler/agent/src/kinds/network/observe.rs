//! Desired state of this host's networks, and observation of the actual one.

mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::vm::InterfaceStatus;
use berth_api::{PublicIP, VM};
use berth_host::{
    BridgedNetwork, ExternalLease, Firewall, HostLinks, HostRange, InstanceFacts, LearnedAddress,
    NetworkConfig, SystemError, TapFacts, Uplink, WireguardConfig,
};
use ipnet::IpNet;
use kube::Client;

use super::upcoming::{Identities, upcoming};
use super::{Step, filters};
use crate::context::Context;
use crate::error::Error;
use crate::index::{Index, Tables, instance_of};
use crate::journal::{ForwardedAddress, Journal};
use crate::key::ObjectName;
use crate::networking::{
    Applied, Check, CheckedTarget, GuestPort, Health, Probe, RefusedAddress, ports_of, tap_prefix,
};
use crate::typed_api::TypedApi;
pub(super) use wanted::wanted;

/// Desired state according to the objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Desired {
    pub(super) networks: Vec<NetworkConfig>,
    pub(super) bridged: Vec<BridgedNetwork>,
    /// The interface by which the packets of encrypted networks go to other hosts.
    pub(super) wireguard: Option<WireguardConfig>,
    pub(super) firewall: Firewall,
    /// By network (`namespace/name`).
    pub(super) bridges: BTreeMap<String, String>,
    /// Networks that are not created here, and why.
    pub(super) refused_networks: BTreeMap<String, String>,
    /// Bridges that a guest's tap is on: left as they are while their Network cannot be read.
    pub(super) left_alone: BTreeSet<String>,
    /// Public addresses that cannot be forwarded, and why.
    pub(super) refused: BTreeMap<IpAddr, RefusedAddress>,
    /// The health checks of targets of public addresses.
    pub(super) checks: BTreeMap<CheckedTarget, Check>,
    /// Those of them that count as healthy before their first check.
    pub(super) trusted: Vec<CheckedTarget>,
    /// Public addresses to announce that are not on this host yet: to be probed first.
    pub(super) to_probe: Vec<IpAddr>,
}

/// Everything a plan for the networks is made from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(super) wanted: Desired,
    pub(super) bridges: Vec<String>,
    pub(super) taps: Vec<String>,
    /// Those of them that are ports of no bridge: another program has removed theirs, or has taken them off it.
    pub(super) loose_taps: BTreeSet<String>,
    /// The bridges of the others.
    pub(super) tap_bridges: BTreeMap<String, String>,
    /// Prefixes of the names of taps that an instance may use.
    pub(super) tap_owners: BTreeSet<String>,
    pub(super) applied: Applied,
    /// The interface on which public addresses are to be probed, if any probe is due.
    pub(super) to_probe: Option<String>,
    /// The instances of the VMs bound here.
    pub(super) instances: BTreeSet<String>,
    /// Taps of their guests according to journals that were read.
    pub(super) read_ports: BTreeMap<String, Vec<GuestPort>>,
    pub(super) leases: Vec<ExternalLease>,
    /// Whether this host has an interface of WireGuard.
    pub(super) has_wireguard: bool,
    /// Whether to apply again what has been applied before.
    pub(super) ensure_all: bool,
}

/// A guest that runs here while its VM is not bound here (any more): its network state is kept as it is.
#[derive(Clone, Debug)]
pub(super) struct KeptGuest {
    pub(super) instance: String,
    pub(super) name: ObjectName,
    pub(super) uid: String,
    pub(super) interfaces: Vec<InterfaceStatus>,
    pub(super) public: Vec<ForwardedAddress>,
    pub(super) ports: Vec<GuestPort>,
}

/// Actual state of the host, as input of `wanted`.
#[derive(Clone, Debug, Default)]
pub(super) struct Actual<'a> {
    pub(super) kept: &'a [KeptGuest],
    pub(super) host: &'a str,
    pub(super) uplink: Option<&'a Uplink>,
    pub(super) probed: BTreeMap<IpAddr, Probe>,
    pub(super) bridges: &'a [String],
    pub(super) taps: &'a [TapFacts],
    /// Records of the taps that exist or are about to be created.
    pub(super) ports: Vec<GuestPort>,
    /// The leases of DHCP servers that are not berth's.
    pub(super) leases: &'a [ExternalLease],
    /// The IPv6 addresses that guests have taken where others than berth give them out.
    pub(super) learned: &'a [LearnedAddress],
    /// Ranges that the host itself uses.
    pub(super) ranges: &'a [HostRange],
    /// Bridges and interfaces of the host, which bridged networks name.
    pub(super) links: HostLinks,
    /// Addresses closed to guests, besides the site's hosts.
    pub(super) closed: &'a [IpNet],
    pub(super) allowed: &'a [IpNet],
    /// Results of the health checks of targets of public addresses.
    pub(super) health: BTreeMap<CheckedTarget, Health>,
    /// Whether this agent has just started, so that no target has been checked.
    pub(super) trusts_before_checks: bool,
}

/// How many times an observation is tried when a VM leaves during it.
const ATTEMPTS: usize = 8;

pub(super) async fn observe(ctx: &Context) -> Result<Observed, Error> {
    for _ in 0..ATTEMPTS {
        if let Some(observed) = observe_once(ctx).await? {
            return Ok(observed);
        }
    }
    Err(Error::Conflict)
}

/// Returns None if a VM left during the observation: its guest may still run and must not be treated as gone.
async fn observe_once(ctx: &Context) -> Result<Option<Observed>, Error> {
    let (bridges, taps) = ctx.system.networks_and_taps().await?;
    let known = known_owners(&ctx.index.read());
    let mut tap_owners = known.clone();
    let mut kept = Vec::new();
    // Instances are only read if there is a tap that belongs to none of the VMs bound here.
    if taps.iter().any(|tap| !is_owned(&tap.name, &tap_owners)) {
        let instances = ctx.system.instances().await?;
        let strange: Vec<InstanceFacts> =
            instances.into_iter().filter(|i| !tap_owners.contains(&tap_prefix(&i.instance))).collect();
        tap_owners.extend(strange.iter().map(|i| tap_prefix(&i.instance)));
        kept = self::kept(&ctx.client, strange).await;
    }
    keep_arriving(&mut kept, ctx.networks.arriving(), &known);
    tap_owners.extend(kept.iter().map(|guest| tap_prefix(&guest.instance)));
    let ports = guest_ports(ctx, &taps, &kept).await?;
    let any_public =
        ctx.index.read().public_ips.all().next().is_some() || kept.iter().any(|k| !k.public.is_empty());
    let mut uplink = if any_public { Some(ctx.system.uplink().await?) } else { None };
    if let Some(uplink) = &mut uplink {
        forget_elsewhere(uplink, ctx.networks.applied().firewall.as_deref());
    }
    let interface = uplink.as_ref().and_then(|uplink| uplink.interface.as_deref().ok());
    let any_bridged = ctx.index.read().networks.all().any(|(_, network)| network.host_bridge().is_some());
    let links = if any_bridged { ctx.system.host_links().await? } else { HostLinks::default() };
    let any_external = ctx.index.read().networks.all().any(|(_, network)| network.is_external());
    let leases = if any_external { ctx.system.external_leases().await? } else { Vec::new() };
    let any_learned = ctx.index.read().networks.all().any(|(_, network)| network.checks_learned());
    let learned = if any_learned { ctx.system.learned_addresses().await? } else { Vec::new() };
    let has_wireguard = has_wireguard(ctx).await?;
    let facts;
    let mut seen = Actual {
        kept: &kept,
        host: ctx.host(),
        uplink: uplink.as_ref(),
        probed: interface.map(|interface| ctx.networks.probes.on(interface)).unwrap_or_default(),
        bridges: &bridges,
        taps: &taps,
        ports: ports.all,
        leases: &leases,
        learned: &learned,
        ranges: &[],
        links,
        closed: &ctx.config.control_plane,
        allowed: &ctx.config.guest_allow,
        health: ctx.networks.checks.all(),
        trusts_before_checks: !ctx.networks.checks.has_begun(),
    };
    // Read after the host, so that a VM that was bound meanwhile is included.
    let mut wanted = wanted_now(&ctx.index, &seen);
    if wanted.bridges.values().any(|bridge| !bridges.contains(bridge)) {
        // Only a bridge that does not exist yet can conflict with the host's own ranges.
        facts = ctx.system.facts().await?;
        seen.ranges = &facts.ranges;
        wanted = wanted_now(&ctx.index, &seen);
    }
    let now = known_owners(&ctx.index.read());
    if !known.is_subset(&now) {
        return Ok(None);
    }
    let is_due = |interface: &&str| !ctx.networks.probes.is_settled(interface, &wanted.to_probe);
    let to_probe = interface.filter(is_due).map(str::to_owned);
    tap_owners.extend(now);
    wanted.left_alone = taps
        .iter()
        .filter(|tap| is_owned(&tap.name, &tap_owners))
        .filter_map(|tap| tap.bridge.clone())
        .collect();
    let applied = ctx.networks.applied().clone();
    let loose_taps = taps.iter().filter(|tap| tap.bridge.is_none()).map(|tap| tap.name.clone()).collect();
    let tap_bridges = taps.iter().filter_map(|tap| Some((tap.name.clone(), tap.bridge.clone()?))).collect();
    let taps = taps.into_iter().map(|tap| tap.name).collect();
    let (instances, read_ports) = (ports.instances, ports.read);
    Ok(Some(Observed {
        wanted,
        bridges,
        taps,
        tap_bridges,
        loose_taps,
        tap_owners,
        applied,
        to_probe,
        instances,
        read_ports,
        leases,
        has_wireguard,
        ensure_all: false,
    }))
}

/// An address that is to be announced on another interface than before is probed there, like one that is new on this host.
fn forget_elsewhere(uplink: &mut Uplink, applied: Option<&Firewall>) {
    let (Ok(interface), Some(applied)) = (&uplink.interface, applied) else { return };
    let forwards = applied.forwards.iter().map(|forward| (forward.public, &forward.announced_on));
    let balanced = applied.balanced.iter().map(|balanced| (balanced.public, &balanced.announced_on));
    let is_elsewhere = |on: &Option<String>| on.as_ref().is_some_and(|on| on != interface);
    for (public, _) in forwards.chain(balanced).filter(|(_, on)| is_elsewhere(on)) {
        uplink.public.remove(&public);
    }
}

/// Whether this host has an interface of WireGuard: looked for where this agent, or one before it, may have made one.
async fn has_wireguard(ctx: &Context) -> Result<bool, Error> {
    let may_have = {
        let applied = ctx.networks.applied();
        applied.wireguard.is_some() || applied.ensured_at.is_none()
    };
    Ok(may_have && ctx.system.has_wireguard().await?)
}

/// Returns the desired state. The groups of its filters are recorded while the tables are locked: of a group that changes afterwards, it
/// is known that it concerns this host.
fn wanted_now(index: &Index, seen: &Actual<'_>) -> Desired {
    let mut tables = index.read();
    let wanted = wanted(&tables, seen);
    tables.filtering_groups = Some(filters::groups_in(&wanted.firewall.filters));
    wanted
}

/// The taps of guests, as recorded by this agent or by their journals.
#[derive(Default)]
struct Ports {
    all: Vec<GuestPort>,
    /// The instances of the VMs bound here.
    instances: BTreeSet<String>,
    /// Records that were read, of instances of which this agent had none.
    read: BTreeMap<String, Vec<GuestPort>>,
}

/// Returns the taps of VMs bound here and of kept guests. The journal of an instance with a tap is read if this agent
/// has neither read nor written it since its start. An instance without one may be about to get its first.
async fn guest_ports(ctx: &Context, taps: &[TapFacts], kept: &[KeptGuest]) -> Result<Ports, Error> {
    let vms: BTreeMap<String, Arc<VM>> = {
        let tables = ctx.index.read();
        let of_vm = |(_, vm): (&ObjectName, &Arc<VM>)| Some((instance_of(vm)?.to_owned(), vm.clone()));
        tables.vms.all().filter_map(of_vm).collect()
    };
    let instances: BTreeSet<String> = vms.keys().cloned().collect();
    let of_others: Vec<&KeptGuest> = kept.iter().filter(|kept| !instances.contains(&kept.instance)).collect();
    let mut known = ctx.networks.ports.of(&instances);
    let (mut read, mut without_tap) = (BTreeMap::new(), Vec::new());
    for (instance, vm) in vms.iter().filter(|(instance, _)| !known.contains_key(*instance)) {
        let prefix = BTreeSet::from([tap_prefix(instance)]);
        if !taps.iter().any(|tap| is_owned(&tap.name, &prefix)) {
            without_tap.push((instance, vm));
            continue;
        }
        // An unreadable journal is read again by the next observation; until then its guest can send nothing.
        if let Some(Ok(journal)) = ctx.system.read_journal(instance).await?.map(Journal::parse) {
            read.insert(instance.clone(), ports_of(instance, &journal, interfaces_of(vm)));
        }
    }
    known.extend(read.clone());
    if !without_tap.is_empty() {
        let interfaces = vms.values().flat_map(|vm| interfaces_of(vm));
        let identities = Identities::of(interfaces.chain(of_others.iter().flat_map(|kept| &kept.interfaces)));
        let applied = ctx.networks.applied();
        let has_bridge = |network: &str| {
            applied.bridges.contains_key(network) && !applied.refused_networks.contains_key(network)
        };
        known.extend(without_tap.into_iter().filter_map(|(instance, vm)| {
            Some((instance.clone(), upcoming(instance, vm, &identities, has_bridge)?))
        }));
    }
    let mut all: Vec<GuestPort> = known.into_values().flatten().collect();
    all.extend(of_others.iter().flat_map(|kept| kept.ports.iter().cloned()));
    Ok(Ports { all, instances, read })
}

fn interfaces_of(vm: &VM) -> &[InterfaceStatus] {
    vm.status.as_ref().map(|status| status.interfaces.as_slice()).unwrap_or_default()
}

/// Returns the tap name prefixes of all VMs bound here.
fn known_owners(tables: &Tables) -> BTreeSet<String> {
    tables.vms.all().filter_map(|(_, vm)| instance_of(vm)).map(tap_prefix).collect()
}

/// Whether this tap's name consists of one of these prefixes and a slot number.
pub(super) fn is_owned(tap: &str, owners: &BTreeSet<String>) -> bool {
    owners.contains(tap.trim_end_matches(|c: char| c.is_ascii_digit()))
}

/// Returns the guests that run as these instances, with the public addresses that still belong to them.
async fn kept(client: &Client, instances: Vec<InstanceFacts>) -> Vec<KeptGuest> {
    let running = instances.into_iter().filter(|i| i.process.is_some());
    let kept = running.filter_map(|found| {
        let journal = Journal::parse(found.journal?).ok()?;
        Some(guest_of(found.instance, journal))
    });
    let mut all: Vec<KeptGuest> = kept.collect();
    for guest in &mut all {
        let mut public = Vec::new();
        for note in std::mem::take(&mut guest.public) {
            if is_still_its(client, guest, &note).await {
                public.push(note);
            }
        }
        guest.public = public;
    }
    all
}

/// Adds the guests that come from other hosts, but for those that run here and those that are bound here, whose tap names begin so. One with
/// a tap and without a process waits for its QEMU: its network and its rules are there before.
fn keep_arriving(kept: &mut Vec<KeptGuest>, arriving: BTreeMap<String, Journal>, bound: &BTreeSet<String>) {
    for (instance, journal) in arriving {
        let is_kept = kept.iter().any(|guest| guest.instance == instance);
        if !is_kept && !bound.contains(&tap_prefix(&instance)) {
            kept.push(guest_of(instance, journal));
        }
    }
}

fn guest_of(instance: String, journal: Journal) -> KeptGuest {
    KeptGuest {
        ports: ports_of(&instance, &journal, &[]),
        instance,
        name: ObjectName::new(&journal.namespace, &journal.name),
        uid: journal.uid,
        interfaces: journal.interfaces,
        public: journal.public.into_iter().chain(journal.public_ipv6).collect(),
    }
}

/// Whether a public address has not been given to another user. If the control plane does not answer, it has not.
async fn is_still_its(client: &Client, guest: &KeptGuest, note: &ForwardedAddress) -> bool {
    let ips: TypedApi<PublicIP> = TypedApi::namespaced(client.clone(), &guest.name.namespace);
    let status = match ips.get_opt(&note.name).await {
        Ok(Some(ip)) => ip.status.unwrap_or_default(),
        Ok(None) => return false,
        Err(_) => return true,
    };
    let same = status.address.is_none_or(|address| address.parse() == Ok(note.address));
    same && status.used_by.iter().all(|user| user.vm_uid == guest.uid)
}

impl Observed {
    /// Whether this step was applied before and, as far as observed, is still in effect.
    pub(super) fn is_in_effect(&self, step: &Step) -> bool {
        match step {
            Step::EnsureNetwork(network) => {
                self.applied.networks.get(&network.bridge) == Some(network)
                    && !self.applied.failed.contains_key(&network.bridge)
                    && self.bridges.contains(&network.bridge)
            }
            Step::EnsureBridged(network) => {
                self.applied.bridged.get(&network.bridge) == Some(network)
                    && !self.applied.failed.contains_key(&network.bridge)
                    && self.bridges.contains(&network.bridge)
            }
            Step::EnsureWireguard(config) => {
                self.applied.wireguard.as_ref() == Some(config) && self.has_wireguard
            }
            Step::ApplyFirewall(firewall) => {
                self.applied.firewall.as_ref() == Some(firewall) && !self.applied.may_have_other_rules
            }
            Step::ProbeAddresses { .. }
            | Step::RemoveTap(_)
            | Step::RemoveNetwork(_)
            | Step::RemoveWireguard => false,
        }
    }

    /// Whether a network that could not be made may still have a tunnel that it is not to have any more, or lack what its new rules
    /// rely on. Its rules stay as they were then.
    pub(super) fn is_half_made(&self, network: &NetworkConfig, error: &Error) -> bool {
        let is_of_server = matches!(error, Error::System(SystemError::NetworkServer { .. }));
        network.tunnel.is_none() && !is_of_server && self.bridges.contains(&network.bridge)
    }
}

#[cfg(test)]
mod tests {
    use berth_api::Reason;
    use berth_host::{Forward, Tunnel};

    use super::*;
    use crate::networking::FailedNetwork;

    fn network(tunnel: Option<Tunnel>) -> NetworkConfig {
        NetworkConfig {
            bridge: "bth-00004d".to_owned(),
            ipv4: None,
            ipv6: None,
            mtu: 1450,
            dns: Vec::new(),
            search_domains: Vec::new(),
            names: None,
            routes: Vec::new(),
            ipv6_routes: Vec::new(),
            leases: Vec::new(),
            tunnel,
            tracked: false,
            relay: None,
            prefixes: Vec::new(),
        }
    }

    #[test]
    fn a_guest_that_comes_is_kept_while_its_qemu_is_started_and_once_only() {
        let journal = Journal::new(&VM::default());
        let arriving = || BTreeMap::from([("i-0000000a".to_owned(), journal.clone())]);
        let instances =
            |kept: &[KeptGuest]| -> Vec<String> { kept.iter().map(|guest| guest.instance.clone()).collect() };
        // It has a tap, and no process that makes it one of the guests that run.
        let mut kept = vec![guest_of("i-0000000b".to_owned(), journal.clone())];
        keep_arriving(&mut kept, arriving(), &BTreeSet::new());
        assert_eq!(instances(&kept), ["i-0000000b", "i-0000000a"]);
        keep_arriving(&mut kept, arriving(), &BTreeSet::new());
        assert_eq!(kept.len(), 2, "it runs");
        let mut kept = Vec::new();
        keep_arriving(&mut kept, arriving(), &BTreeSet::from([tap_prefix("i-0000000a")]));
        assert!(kept.is_empty(), "its VM is bound here");
    }

    fn failed() -> SystemError {
        SystemError::Program { program: "dnsmasq", detail: "port 53 is in use".to_owned() }
    }

    #[test]
    fn an_address_that_is_announced_on_another_interface_than_before_is_as_a_new_one() {
        let address = |last: u8| IpAddr::from([198, 51, 100, last]);
        let forward = |last: u8, on: Option<&str>| Forward {
            public: address(last),
            private: IpAddr::from([10, 77, 0, last]),
            announced_on: on.map(str::to_owned),
        };
        let forwards = vec![forward(1, Some("eth0")), forward(2, Some("eth1")), forward(3, None)];
        let applied = Firewall { forwards, ..Firewall::default() };
        let public = BTreeSet::from([1, 2, 3].map(address));
        let uplink = |public: BTreeSet<IpAddr>| Uplink {
            interface: Ok("eth1".to_owned()),
            ipv6_obstacle: None,
            own: BTreeSet::new(),
            public,
        };
        let mut moved = uplink(public.clone());
        forget_elsewhere(&mut moved, Some(&applied));
        assert_eq!(moved.public, BTreeSet::from([2, 3].map(address)));
        let mut unknown = uplink(public.clone());
        forget_elsewhere(&mut unknown, None);
        assert_eq!(unknown.public, public, "those of the agent before");
    }

    #[test]
    fn after_a_write_of_the_firewall_that_failed_the_rules_from_before_are_written_too() {
        let mut observed = Observed::default();
        observed.applied.firewall = Some(Arc::default());
        let step = Step::ApplyFirewall(Arc::default());
        assert!(observed.is_in_effect(&step));
        observed.applied.may_have_other_rules = true;
        assert!(!observed.is_in_effect(&step));
    }

    #[test]
    fn rules_that_another_program_removes_while_they_are_written_are_written_again() {
        let mut observed = Observed::default();
        let step = Step::ApplyFirewall(Arc::default());
        let begun = observed.applied.begin_rules();
        observed.applied.lose_rules();
        observed.applied.end_rules(begun, Arc::default());
        assert!(!observed.is_in_effect(&step));
        assert!(!observed.applied.has_no_rules(), "another removal is not that of the agent itself");
        let begun = observed.applied.begin_rules();
        observed.applied.end_rules(begun, Arc::default());
        assert!(observed.is_in_effect(&step) && observed.applied.has_no_rules());
        observed.applied.lose_rules();
        assert!(!observed.is_in_effect(&step));
    }

    #[test]
    fn only_a_network_whose_links_are_not_as_they_should_be_keeps_its_former_rules() {
        let there = Observed { bridges: vec!["bth-00004d".to_owned()], ..Observed::default() };
        let of_links = || Error::from(failed());
        let of_server = || {
            let source = Box::new(failed());
            Error::from(SystemError::NetworkServer { bridge: "bth-00004d".to_owned(), source })
        };
        assert!(there.is_half_made(&network(None), &of_links()), "its tunnel may still be there");
        assert!(!there.is_half_made(&network(None), &of_server()), "its links are made before its server");
        assert!(!Observed::default().is_half_made(&network(None), &of_links()), "it is new");
        let peers = vec![IpAddr::from([192, 0, 2, 2])];
        let tunnel = Tunnel { vni: 77, local: IpAddr::from([192, 0, 2, 1]), peers };
        assert!(!there.is_half_made(&network(Some(tunnel)), &of_links()), "its rules came first");
    }

    #[test]
    fn a_network_that_could_not_be_made_is_tried_again_although_it_is_as_before() {
        let config = network(None);
        let mut observed = Observed { bridges: vec![config.bridge.clone()], ..Observed::default() };
        observed.applied.networks.insert(config.bridge.clone(), config.clone());
        let step = Step::EnsureNetwork(config.clone());
        assert!(observed.is_in_effect(&step));
        let text = "port 53 is in use".to_owned();
        let failed = FailedNetwork { reason: Reason::Retrying, text, is_linked: true };
        observed.applied.failed.insert(config.bridge, failed);
        assert!(!observed.is_in_effect(&step));
    }
}
