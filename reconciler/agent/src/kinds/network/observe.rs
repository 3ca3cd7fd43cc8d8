//! Desired state of this host's networks, and observation of the actual one.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use berth_api::vm::InterfaceStatus;
use berth_api::{IPPoolMode, PublicIP, VM};
use berth_host::{
    BridgedNetwork, ExternalLease, Firewall, Forward, HostLinks, HostRange, InstanceFacts, Lease, Nat,
    NetworkConfig, TapFacts, Uplink,
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use kube::Client;

use super::Step;
use super::announcing::{announced_on, occupied};
use super::balancing::{self, Here, balance};
use super::bridged::{advertised, bridged, over_an_interface, ports, refuse_public};
use super::bridges::{Existing, assign};
use super::config::{addresses, config};
use super::exceptions::exceptions;
use super::filters::{GroupsOf, filters};
use super::isolation::isolated;
use super::leases::with_leases;
use super::limits::limits;
use super::marks::marks;
use super::senders::observed;
use super::trunks::trunks;
use crate::context::Context;
use crate::error::Error;
use crate::index::{Tables, instance_of};
use crate::journal::{ForwardedAddress, Journal};
use crate::key::ObjectName;
use crate::networking::{
    Applied, Check, CheckedTarget, GuestPort, Health, Probe, RefusedAddress, find, hostname, named_addresses,
    ports_of, security_groups_of, tap_prefix,
};
use crate::typed_api::TypedApi;

/// Desired state according to the objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Desired {
    pub(super) networks: Vec<NetworkConfig>,
    pub(super) bridged: Vec<BridgedNetwork>,
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
    let ports = guest_ports(ctx, &taps, &kept).await?;
    let any_public =
        ctx.index.read().public_ips.all().next().is_some() || kept.iter().any(|k| !k.public.is_empty());
    let uplink = if any_public { Some(ctx.system.uplink().await?) } else { None };
    let any_bridged = ctx.index.read().networks.all().any(|(_, network)| network.host_bridge().is_some());
    let links = if any_bridged { ctx.system.host_links().await? } else { HostLinks::default() };
    let any_external = ctx.index.read().networks.all().any(|(_, network)| network.is_external());
    let leases = if any_external { ctx.system.external_leases().await? } else { Vec::new() };
    let facts;
    let mut seen = Actual {
        kept: &kept,
        host: ctx.host(),
        uplink: uplink.as_ref(),
        probed: ctx.networks.probes.all(),
        bridges: &bridges,
        taps: &taps,
        ports: ports.all,
        leases: &leases,
        ranges: &[],
        links,
        closed: &ctx.config.control_plane,
        allowed: &ctx.config.guest_allow,
        health: ctx.networks.checks.all(),
        trusts_before_checks: !ctx.networks.checks.has_begun(),
    };
    // Read after the host, so that a VM that was bound meanwhile is included.
    let mut wanted = wanted(&ctx.index.read(), &seen);
    if wanted.bridges.values().any(|bridge| !bridges.contains(bridge)) {
        // Only a bridge that does not exist yet can conflict with the host's own ranges.
        facts = ctx.system.facts().await?;
        seen.ranges = &facts.ranges;
        wanted = self::wanted(&ctx.index.read(), &seen);
    }
    let now = known_owners(&ctx.index.read());
    if !known.is_subset(&now) {
        return Ok(None);
    }
    let interface = uplink.as_ref().and_then(|uplink| uplink.interface.as_ref().ok());
    let to_probe = interface.filter(|_| !ctx.networks.probes.is_settled(&wanted.to_probe)).cloned();
    tap_owners.extend(now);
    wanted.left_alone = taps
        .iter()
        .filter(|tap| is_owned(&tap.name, &tap_owners))
        .filter_map(|tap| tap.bridge.clone())
        .collect();
    let applied = ctx.networks.applied().clone();
    let taps = taps.into_iter().map(|tap| tap.name).collect();
    let (instances, read_ports) = (ports.instances, ports.read);
    Ok(Some(Observed {
        wanted,
        bridges,
        taps,
        tap_owners,
        applied,
        to_probe,
        instances,
        read_ports,
        leases,
        ensure_all: false,
    }))
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
/// has neither read nor written it since its start.
async fn guest_ports(ctx: &Context, taps: &[TapFacts], kept: &[KeptGuest]) -> Result<Ports, Error> {
    let interfaces: BTreeMap<String, Vec<InterfaceStatus>> = {
        let tables = ctx.index.read();
        let of_vm = |(_, vm): (&ObjectName, &Arc<VM>)| {
            let interfaces = vm.status.iter().flat_map(|s| s.interfaces.clone()).collect();
            Some((instance_of(vm)?.to_owned(), interfaces))
        };
        tables.vms.all().filter_map(of_vm).collect()
    };
    let instances: BTreeSet<String> = interfaces.keys().cloned().collect();
    let mut known = ctx.networks.ports.of(&instances);
    let mut read = BTreeMap::new();
    for (instance, interfaces) in interfaces.iter().filter(|(instance, _)| !known.contains_key(*instance)) {
        let prefix = BTreeSet::from([tap_prefix(instance)]);
        if !taps.iter().any(|tap| is_owned(&tap.name, &prefix)) {
            continue;
        }
        // An unreadable journal is read again by the next observation; until then its guest can send nothing.
        if let Some(Ok(journal)) = ctx.system.read_journal(instance).await?.map(Journal::parse) {
            read.insert(instance.clone(), ports_of(instance, &journal, interfaces));
        }
    }
    known.extend(read.clone());
    let mut all: Vec<GuestPort> = known.into_values().flatten().collect();
    let of_others = kept.iter().filter(|kept| !instances.contains(&kept.instance));
    all.extend(of_others.flat_map(|kept| kept.ports.iter().cloned()));
    Ok(Ports { all, instances, read })
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
        Some(KeptGuest {
            ports: ports_of(&found.instance, &journal, &[]),
            instance: found.instance,
            name: ObjectName::new(&journal.namespace, &journal.name),
            uid: journal.uid,
            interfaces: journal.interfaces,
            public: journal.public.into_iter().chain(journal.public_ipv6).collect(),
        })
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
                    && self.bridges.contains(&network.bridge)
            }
            Step::EnsureBridged(network) => {
                self.applied.bridged.get(&network.bridge) == Some(network)
                    && self.bridges.contains(&network.bridge)
            }
            Step::ApplyFirewall(firewall) => self.applied.firewall.as_ref() == Some(firewall),
            Step::ProbeAddresses { .. } | Step::RemoveTap(_) | Step::RemoveNetwork(_) => false,
        }
    }
}

/// Network state of a guest.
struct Guest {
    namespace: String,
    interfaces: Vec<InterfaceStatus>,
    hostname: String,
    /// With the name of their interface.
    public: Vec<(String, IpAddr, IPPoolMode)>,
}

impl Guest {
    /// The public addresses of an interface.
    fn public_of(&self, interface: &str) -> impl Iterator<Item = (IpAddr, IPPoolMode)> {
        self.public.iter().filter(move |(of, ..)| of == interface).map(|(_, address, mode)| (*address, *mode))
    }
}

/// Returns the guests of the VMs bound here, followed by the kept ones.
fn guests(tables: &Tables, kept: &[KeptGuest]) -> Vec<Guest> {
    let of_vm = |(name, vm): (&ObjectName, &Arc<VM>)| {
        let mut interfaces: Vec<InterfaceStatus> =
            vm.status.iter().flat_map(|s| s.interfaces.clone()).collect();
        for interface in &mut interfaces {
            interface.security_groups = security_groups_of(vm, interface);
        }
        let public = named_addresses(tables, name, vm).into_iter().filter_map(|named| {
            let (address, mode) = named.address?;
            Some((named.interface, address, mode))
        });
        Guest {
            namespace: name.namespace.clone(),
            public: public.collect(),
            interfaces,
            hostname: hostname(vm),
        }
    };
    let is_owned =
        |kept: &KeptGuest| tables.vms.all().any(|(_, vm)| instance_of(vm) == Some(kept.instance.as_str()));
    let of_kept = |kept: &KeptGuest| Guest {
        namespace: kept.name.namespace.clone(),
        interfaces: kept.interfaces.clone(),
        hostname: kept.name.name.clone(),
        public: kept.public.iter().map(|p| (p.interface.clone(), p.address, p.mode)).collect(),
    };
    let kept = kept.iter().filter(|kept| !is_owned(kept)).map(of_kept);
    tables.vms.all().map(of_vm).chain(kept).collect()
}

/// Returns the lease of an interface with these addresses.
fn lease(
    tables: &Tables,
    guest: &Guest,
    interface: &InterfaceStatus,
    (address, ipv6): (Option<Ipv4Addr>, Option<Ipv6Addr>),
) -> Lease {
    let network = find(tables, &interface.network);
    Lease {
        mac: interface.mac_address.to_ascii_lowercase(),
        address,
        ipv6,
        hostname: guest.hostname.clone(),
        dns: addresses(&interface.dns),
        search_domains: interface.search_domains.clone(),
        no_default_route: interface.default_route == Some(false),
        no_dhcp4: network.as_ref().is_some_and(|network| network.is_without_dhcp4(interface.dhcp4)),
        no_dhcp6: network.as_ref().is_some_and(|network| network.is_without_dhcp6(interface.dhcp6)),
    }
}

/// Returns the desired state according to the objects. Pure.
pub(super) fn wanted(tables: &Tables, seen: &Actual<'_>) -> Desired {
    let guests = guests(tables, seen.kept);
    let named = guests.iter().flat_map(|guest| &guest.interfaces).map(|interface| &interface.network);
    let named = named.chain(balancing::networks(tables, seen.host));
    let existing = Existing {
        attached: attached(seen),
        bridges: seen.bridges,
        ranges: seen.ranges,
        links: seen.links.clone(),
    };
    let assigned = assign(tables, named, &existing);
    let mut networks: BTreeMap<String, NetworkConfig> = BTreeMap::new();
    let mut wanted = Desired::default();
    let groups_of = groups_of(&guests);
    for guest in &guests {
        for interface in &guest.interfaces {
            let Some(bridge) = assigned.bridges.get(&interface.network) else { continue };
            let address: Option<Ipv4Addr> = interface.address.parse().ok();
            let ipv6: Option<Ipv6Addr> = interface.ipv6_address.parse().ok();
            if address.is_none() && ipv6.is_none() {
                continue;
            }
            let network = match networks.entry(bridge.clone()) {
                Entry::Occupied(network) => network.into_mut(),
                // Once for all guests: its tunnel names every host of the network.
                Entry::Vacant(network) => {
                    let found = find(tables, &interface.network);
                    // A bridged network needs nothing but its connection.
                    let overlay = found.filter(|found| found.host_bridge().is_none());
                    match overlay.and_then(|found| config(&found, bridge, seen.host)) {
                        Some(config) => network.insert(config),
                        None => continue,
                    }
                }
            };
            network.tracked |= !interface.security_groups.is_empty();
            let mac = interface.mac_address.to_ascii_lowercase();
            let is_taken = |lease: &Lease| {
                (address.is_some() && lease.address == address)
                    || (ipv6.is_some() && lease.ipv6 == ipv6)
                    || lease.mac == mac
            };
            if network.leases.iter().any(is_taken) {
                continue;
            }
            network.leases.push(lease(tables, guest, interface, (address, ipv6)));
            for (public, mode) in guest.public_of(&interface.name) {
                if refuse_public(tables, interface, public).is_none() {
                    forward((public, mode), interface, seen, &mut wanted);
                }
            }
        }
    }
    for name in balancing::networks(tables, seen.host) {
        let Some(bridge) = assigned.bridges.get(name).filter(|bridge| !networks.contains_key(*bridge)) else {
            continue;
        };
        let overlay = find(tables, name).filter(|found| found.host_bridge().is_none());
        networks.extend(overlay.and_then(|found| Some((bridge.clone(), config(&found, bridge, seen.host)?))));
    }
    let here = Here { host: seen.host, health: &seen.health, trusted: trusted(seen) };
    let admit = |public: Ipv4Addr, mode| admit(public.into(), mode, seen, &mut wanted);
    let balancing = balance(tables, &assigned.bridges, &mut networks, &here, admit);
    wanted.firewall.balanced = balancing.balanced;
    (wanted.checks, wanted.trusted) = (balancing.checks, balancing.trusted);
    wanted.networks = networks.into_values().collect();
    let interfaces: Vec<&InterfaceStatus> = guests.iter().flat_map(|guest| &guest.interfaces).collect();
    wanted.bridged = bridged(tables, &assigned.bridges, &interfaces);
    let bridges = wanted.bridged.iter().map(|network| network.bridge.clone());
    let over_interfaces: BTreeSet<String> = wanted.bridged.iter().filter_map(over_an_interface).collect();
    wanted.firewall.bridged = bridges.chain(over_interfaces).collect();
    wanted.firewall.advertised = advertised(tables, &assigned.bridges);
    for (guest, interface) in guests.iter().flat_map(|guest| guest.interfaces.iter().map(move |i| (guest, i)))
    {
        let public = guest.public_of(&interface.name);
        let refused =
            public.filter_map(|(public, _)| Some((public, refuse_public(tables, interface, public)?)));
        wanted.refused.extend(refused);
    }
    for network in &mut wanted.networks {
        network.leases.sort();
        wanted.firewall.nat.push(Nat {
            bridge: network.bridge.clone(),
            ipv4: network.ipv4,
            ipv6: network.ipv6,
            tunnel: network.tunnel.clone(),
        });
    }
    wanted.firewall.forwards.sort();
    wanted.firewall.nat.sort();
    let leased = with_leases(tables, &assigned.bridges, seen.leases, &groups_of, &seen.ports);
    wanted.firewall.ports = ports(tables, &groups_of, &leased);
    wanted.firewall.limits = limits(interfaces.iter().copied(), &seen.ports);
    wanted.firewall.marks = marks(interfaces.iter().copied(), &seen.ports);
    wanted.firewall.isolated = isolated(tables, &assigned.bridges, &seen.ports);
    wanted.firewall.trunks = trunks(tables, &groups_of, &seen.ports, &seen.links);
    wanted.firewall.observed = observed(tables, &seen.ports);
    wanted.firewall.exceptions = exceptions(tables, &groups_of, &interfaces, &leased);
    wanted.firewall.filters = filters(tables, &groups_of, &leased);
    // A tap that is about to be created counts, so that the firewall is the same before and after.
    wanted.firewall.guests = !seen.taps.is_empty() || !wanted.firewall.ports.is_empty();
    (wanted.firewall.closed, wanted.firewall.ipv6_closed) = closed(tables, &assigned.bridges, seen);
    (wanted.firewall.allowed, wanted.firewall.ipv6_allowed) = by_family(seen.allowed);
    wanted.bridges = assigned.bridges;
    wanted.refused_networks = assigned.refused;
    wanted
}

/// Returns the security groups of the interfaces in the statuses of guests, also the empty lists.
fn groups_of(guests: &[Guest]) -> GroupsOf {
    let of_interface = |(namespace, interface): (&str, &InterfaceStatus)| {
        let groups = interface.security_groups.iter().map(|name| format!("{namespace}/{name}"));
        ((interface.network.clone(), interface.mac_address.to_ascii_lowercase()), groups.collect())
    };
    let all = guests.iter().flat_map(|guest| guest.interfaces.iter().map(|i| (guest.namespace.as_str(), i)));
    all.map(of_interface).collect()
}

/// Returns, by network, the bridge that a tap of it is on.
fn attached(seen: &Actual<'_>) -> BTreeMap<String, String> {
    let mut attached = BTreeMap::new();
    for guest in &seen.ports {
        let tap = seen.taps.iter().find(|tap| tap.name == guest.port.tap);
        if let Some(bridge) = tap.and_then(|tap| tap.bridge.as_ref()) {
            attached.entry(guest.network.clone()).or_insert_with(|| bridge.clone());
        }
    }
    attached
}

/// Returns the destinations closed to guests: the control plane, all hosts of the site, and the hosts listed in the
/// status of networks here; those of IPv4 and those of IPv6.
fn closed(
    tables: &Tables,
    bridges: &BTreeMap<String, String>,
    seen: &Actual<'_>,
) -> (Vec<Ipv4Net>, Vec<Ipv6Net>) {
    let mut closed = seen.closed.to_vec();
    if !bridges.is_empty() {
        closed.extend(tables.host_addresses.listed().into_iter().flatten().copied().map(IpNet::from));
    }
    for network in bridges.keys().filter_map(|name| find(tables, name)) {
        let hosts = network.status.iter().flat_map(|s| s.hosts.iter().map(|h| &h.address));
        closed.extend(
            hosts
                .filter_map(|address| address.parse::<Ipv4Addr>().ok())
                .map(|address| IpNet::from(IpAddr::V4(address))),
        );
    }
    let (ipv4, ipv6) = by_family(&closed);
    (Ipv4Net::aggregate(&ipv4), Ipv6Net::aggregate(&ipv6))
}

fn by_family(ranges: &[IpNet]) -> (Vec<Ipv4Net>, Vec<Ipv6Net>) {
    let (mut ipv4, mut ipv6) = (Vec::new(), Vec::new());
    for range in ranges {
        match range {
            IpNet::V4(range) => ipv4.push(*range),
            IpNet::V6(range) => ipv6.push(*range),
        }
    }
    (ipv4, ipv6)
}

/// Returns the public addresses with ports that an agent which has just started finds here.
fn trusted(seen: &Actual<'_>) -> BTreeSet<Ipv4Addr> {
    let uplink = seen.uplink.filter(|_| seen.trusts_before_checks);
    let public = uplink.into_iter().flat_map(|uplink| &uplink.public);
    let ipv4 = |address: &IpAddr| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    };
    public.filter_map(ipv4).collect()
}

/// Forwards a public address to the interface's private one of the same family, or records why it cannot.
fn forward(
    (public, mode): (IpAddr, IPPoolMode),
    interface: &InterfaceStatus,
    seen: &Actual<'_>,
    wanted: &mut Desired,
) {
    let private = if public.is_ipv6() { &interface.ipv6_address } else { &interface.address };
    let Some(private) = private.parse::<IpAddr>().ok().filter(|own| own.is_ipv6() == public.is_ipv6()) else {
        return;
    };
    if let Some(announced_on) = admit(public, mode, seen, wanted) {
        wanted.firewall.forwards.push(Forward { public, private, announced_on });
    }
}

/// Returns the interface that a public address is announced on, if it is. None: it is not used (yet); records why, and what to probe.
fn admit(
    public: IpAddr,
    mode: IPPoolMode,
    seen: &Actual<'_>,
    wanted: &mut Desired,
) -> Option<Option<String>> {
    let announced_on = announced_on(public, mode, seen.uplink);
    let announced = matches!(announced_on, Ok(Some(_)));
    if announced && !seen.uplink.is_some_and(|uplink| uplink.public.contains(&public)) {
        wanted.to_probe.push(public);
        match seen.probed.get(&public) {
            Some(Probe::Free) => {}
            Some(Probe::Taken(mac, _)) => {
                wanted.refused.insert(public, occupied(public, mac));
                return None;
            }
            Some(Probe::Running) | None => return None,
        }
    }
    match announced_on {
        Ok(announced_on) => Some(announced_on),
        Err(refused) => {
            wanted.refused.insert(public, refused);
            None
        }
    }
}
