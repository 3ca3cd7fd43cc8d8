//! What is wanted of this host's networks, and what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use berth_api::vm::InterfaceStatus;
use berth_api::{IPPoolMode, Network, NetworkHost, PublicIP, Reason, VM};
use ipnet::Ipv4Net;
use kube::{Api, ResourceExt};

use super::probes::Probe;
use super::{Real, Refused, Step, bridge_of, tap_prefix};
use crate::context::Context;
use crate::error::Error;
use crate::index::{Tables, instance_of};
use crate::queue::ObjectName;
use crate::system::{Firewall, Forward, InstanceFacts, Lease, Nat, NetworkConfig, Tunnel, Uplink};
use crate::vm::{Journal, PublicNote};

const DEFAULT_MTU: u16 = 1500;

/// What the objects say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(super) networks: Vec<NetworkConfig>,
    pub(super) firewall: Firewall,
    /// Bridges somebody is on whose Network cannot be read: left as they are.
    pub(super) left_alone: BTreeSet<String>,
    /// Public addresses that cannot lead anywhere, and why.
    pub(super) refused: BTreeMap<Ipv4Addr, Refused>,
    /// Those that are announced and not here yet: to be asked for first.
    pub(super) to_ask: Vec<Ipv4Addr>,
}

/// Everything a plan for the networks is made from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(super) wanted: Wanted,
    pub(super) bridges: Vec<String>,
    pub(super) taps: Vec<String>,
    /// What the names of taps start with that some instance may use.
    pub(super) tap_owners: BTreeSet<String>,
    pub(super) real: Real,
    /// Also what was made so already is to be made so.
    pub(super) make_sure: bool,
}

/// A guest that runs here and whose VM is not bound here (any more): what it has of networks is kept as it is.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) instance: String,
    pub(super) name: ObjectName,
    pub(super) uid: String,
    pub(super) interfaces: Vec<InterfaceStatus>,
    pub(super) public: Vec<PublicNote>,
}

/// How often it is looked anew because a VM went meanwhile.
const LOOKS: usize = 8;

pub(super) async fn observe(ctx: &Context) -> Result<Observed, Error> {
    for _ in 0..LOOKS {
        if let Some(observed) = look(ctx).await? {
            return Ok(observed);
        }
    }
    Err(Error::Conflict)
}

/// None: a VM went while it was looked. Its guest may run on, and is not to be taken for one that is gone.
async fn look(ctx: &Context) -> Result<Option<Observed>, Error> {
    let bridges = ctx.system.networks().await?;
    let taps = ctx.system.taps().await?;
    let known = known_owners(&ctx.index.read());
    let mut tap_owners = known.clone();
    let mut kept = Vec::new();
    // Every instance on the host is only looked at for a tap of none of the VMs that are bound here.
    if taps.iter().any(|tap| !is_owned(tap, &tap_owners)) {
        let instances = ctx.system.instances().await?;
        let strange: Vec<InstanceFacts> =
            instances.into_iter().filter(|i| !tap_owners.contains(&tap_prefix(&i.instance))).collect();
        tap_owners.extend(strange.iter().map(|i| tap_prefix(&i.instance)));
        kept = self::kept(ctx, strange).await;
    }
    let any_public =
        ctx.index.read().public_ips.all().next().is_some() || kept.iter().any(|k| !k.public.is_empty());
    let uplink = if any_public { Some(ctx.system.uplink().await?) } else { None };
    // Read after the host: a VM that came meanwhile is in it.
    let probed = ctx.network.probes.all();
    let (wanted, now) = {
        let tables = ctx.index.read();
        (wanted(&tables, &kept, ctx.host(), uplink.as_ref(), &probed), known_owners(&tables))
    };
    if !known.is_subset(&now) {
        return Ok(None);
    }
    if let Some(Ok(interface)) = uplink.as_ref().map(|uplink| &uplink.interface) {
        ctx.network.probes.ask(&ctx.system, &ctx.queue, interface, &wanted.to_ask);
    }
    tap_owners.extend(now);
    let real = ctx.network.real().clone();
    Ok(Some(Observed { wanted, bridges, taps, tap_owners, real, make_sure: false }))
}

/// What the names of the taps of all VMs that are bound here start with.
fn known_owners(tables: &Tables) -> BTreeSet<String> {
    tables.vms.all().filter_map(|(_, vm)| instance_of(vm)).map(tap_prefix).collect()
}

/// Whether this tap's name is one of those that start so; what ends it is the slot's number.
pub(super) fn is_owned(tap: &str, owners: &BTreeSet<String>) -> bool {
    owners.contains(tap.trim_end_matches(|c: char| c.is_ascii_digit()))
}

/// The guests that run as these instances, with the public addresses that are still theirs.
async fn kept(ctx: &Context, instances: Vec<InstanceFacts>) -> Vec<Kept> {
    let running = instances.into_iter().filter(|i| i.process.is_some());
    let kept = running.filter_map(|found| {
        let journal = Journal::parse(found.journal?).ok()?;
        Some(Kept {
            instance: found.instance,
            name: ObjectName::new(&journal.namespace, &journal.name),
            uid: journal.uid,
            interfaces: journal.interfaces,
            public: journal.public,
        })
    });
    let mut all: Vec<Kept> = kept.collect();
    for guest in &mut all {
        let mut public = Vec::new();
        for note in std::mem::take(&mut guest.public) {
            if is_still_its(ctx, guest, &note).await {
                public.push(note);
            }
        }
        guest.public = public;
    }
    all
}

/// Whether a public address was given to nobody else. A control plane that does not say so now has not.
async fn is_still_its(ctx: &Context, guest: &Kept, note: &PublicNote) -> bool {
    let ips: Api<PublicIP> = Api::namespaced(ctx.client.clone(), &guest.name.namespace);
    let status = match ips.get_opt(&note.name).await {
        Ok(Some(ip)) => ip.status.unwrap_or_default(),
        Ok(None) => return false,
        Err(_) => return true,
    };
    let same = status.address.is_none_or(|address| address.parse() == Ok(note.address));
    same && status.used_by.iter().all(|user| user.vm_uid == guest.uid)
}

impl Observed {
    /// Whether this step was taken before and, as far as can be seen, still holds.
    pub(super) fn is_so(&self, step: &Step) -> bool {
        match step {
            Step::EnsureNetwork(network) => {
                self.real.networks.get(&network.bridge) == Some(network)
                    && self.bridges.contains(&network.bridge)
            }
            Step::ApplyFirewall(firewall) => self.real.firewall.as_ref() == Some(firewall),
            Step::RemoveTap(_) | Step::RemoveNetwork(_) => false,
        }
    }
}

/// What a guest has of networks.
struct Guest {
    interfaces: Vec<InterfaceStatus>,
    hostname: String,
    /// By interface.
    public: BTreeMap<String, (Ipv4Addr, IPPoolMode)>,
}

/// Those of the VMs bound here, and after them those that are kept.
fn guests(tables: &Tables, kept: &[Kept]) -> Vec<Guest> {
    let of_vm = |(name, vm): (&ObjectName, &std::sync::Arc<VM>)| {
        let interfaces: Vec<InterfaceStatus> = vm.status.iter().flat_map(|s| s.interfaces.clone()).collect();
        let public =
            interfaces.iter().filter_map(|i| Some((i.name.clone(), public(tables, name, vm, &i.name)?)));
        Guest { public: public.collect(), interfaces, hostname: hostname(vm) }
    };
    let is_owned =
        |kept: &Kept| tables.vms.all().any(|(_, vm)| instance_of(vm) == Some(kept.instance.as_str()));
    let of_kept = |kept: &Kept| Guest {
        interfaces: kept.interfaces.clone(),
        hostname: kept.name.name.clone(),
        public: kept.public.iter().map(|p| (p.interface.clone(), (p.address, p.mode))).collect(),
    };
    let kept = kept.iter().filter(|kept| !is_owned(kept)).map(of_kept);
    tables.vms.all().map(of_vm).chain(kept).collect()
}

/// What the objects say. Pure.
pub(super) fn wanted(
    tables: &Tables,
    kept: &[Kept],
    host: &str,
    uplink: Option<&Uplink>,
    probed: &BTreeMap<Ipv4Addr, Probe>,
) -> Wanted {
    let mut networks: BTreeMap<String, NetworkConfig> = BTreeMap::new();
    let mut wanted = Wanted::default();
    for guest in guests(tables, kept) {
        for interface in &guest.interfaces {
            let bridge = bridge_of(&interface.network);
            let found = interface
                .network
                .split_once('/')
                .and_then(|(namespace, network)| tables.networks.get(&ObjectName::new(namespace, network)));
            let config = found.as_deref().and_then(|network| config(network, &bridge, host));
            let (Some(config), Ok(address)) = (config, interface.address.parse::<Ipv4Addr>()) else {
                wanted.left_alone.insert(bridge);
                continue;
            };
            let network = networks.entry(bridge).or_insert(config);
            let mac = interface.mac_address.to_ascii_lowercase();
            if network.leases.iter().any(|lease| lease.address == address || lease.mac == mac) {
                continue;
            }
            network.leases.push(Lease { mac, address, hostname: guest.hostname.clone() });
            if let Some((public, mode)) = guest.public.get(&interface.name).copied() {
                let announced_on = announced_on(public, mode, uplink);
                let announced = matches!(announced_on, Ok(Some(_)));
                if announced && !uplink.is_some_and(|uplink| uplink.public.contains(&public)) {
                    wanted.to_ask.push(public);
                    match probed.get(&public) {
                        Some(Probe::Free) => {}
                        Some(Probe::Taken(mac, _)) => {
                            wanted.refused.insert(public, occupied(public, mac));
                            continue;
                        }
                        Some(Probe::Asked) | None => continue,
                    }
                }
                match announced_on {
                    Ok(announced_on) => {
                        wanted.firewall.forwards.push(Forward { public, private: address, announced_on });
                    }
                    Err(refused) => {
                        wanted.refused.insert(public, refused);
                    }
                }
            }
        }
    }
    wanted.networks = networks.into_values().collect();
    for network in &mut wanted.networks {
        network.leases.sort();
        wanted.firewall.nat.push(Nat {
            bridge: network.bridge.clone(),
            cidr: network.cidr,
            gateway: network.gateway,
            tunnel: network.tunnel.clone(),
        });
    }
    wanted.firewall.forwards.sort();
    wanted.firewall.nat.sort();
    wanted
}

/// Somebody else has the address: two who answer for it would cut each other off.
fn occupied(public: Ipv4Addr, mac: &str) -> Refused {
    let text = format!(
        "{public} is answered for by {mac} on the segment: it is not taken, and asked for again every few seconds; take it \
         away from that machine, or out of its IPPool's ranges"
    );
    Refused { reason: Reason::AddressConflict, text, mac: Some(mac.to_owned()) }
}

/// The interface a public address is announced on, if it is; or why it cannot be a VM's here.
fn announced_on(
    public: Ipv4Addr,
    mode: IPPoolMode,
    uplink: Option<&Uplink>,
) -> Result<Option<String>, Refused> {
    let Some(uplink) = uplink else { return Ok(None) };
    if uplink.own.contains(&public) {
        let text = format!(
            "{public} is this host's own address, so that it leads to no VM: take it out of its IPPool's ranges"
        );
        return Err(Refused { reason: Reason::HostAddress, text, mac: None });
    }
    match (mode, &uplink.interface) {
        (IPPoolMode::Local, _) => Ok(None),
        (IPPoolMode::L2, Ok(interface)) => Ok(Some(interface.clone())),
        (IPPoolMode::L2, Err(why)) => Err(Refused {
            reason: Reason::NoPublicInterface,
            text: format!("{public} is not announced: {why}"),
            mac: None,
        }),
    }
}

fn config(network: &Network, bridge: &str, host: &str) -> Option<NetworkConfig> {
    let cidr: Ipv4Net = network.spec.cidr.parse().ok()?;
    Some(NetworkConfig {
        bridge: bridge.to_owned(),
        cidr,
        gateway: cidr.hosts().next()?,
        mtu: mtu_of(network),
        dns: network.spec.dns.iter().filter_map(|server| server.parse().ok()).collect(),
        leases: Vec::new(),
        tunnel: tunnel(network, host),
    })
}

/// The largest packet that guests of a network are told: what the controllers found to fit, which is the same on all
/// hosts.
pub(crate) fn mtu_of(network: &Network) -> u16 {
    let fits = network.status.as_ref().and_then(|s| s.mtu).or(network.spec.mtu);
    fits.and_then(|mtu| u16::try_from(mtu).ok()).unwrap_or(DEFAULT_MTU)
}

/// The way to the network's other hosts, once there are any and this host is known to be one of them.
fn tunnel(network: &Network, host: &str) -> Option<Tunnel> {
    let status = network.status.as_ref()?;
    let vni = u32::try_from(status.vni?).ok()?;
    let address = |of: &NetworkHost| of.address.parse::<Ipv4Addr>().ok();
    let local = status.hosts.iter().find(|h| h.name == host).and_then(address)?;
    let others = status.hosts.iter().filter(|h| h.name != host).filter_map(address);
    let mut peers: Vec<Ipv4Addr> = others.filter(|peer| *peer != local).collect();
    peers.sort();
    peers.dedup();
    if peers.is_empty() { None } else { Some(Tunnel { vni, local, peers }) }
}

/// The name a guest is told.
pub(crate) fn hostname(vm: &VM) -> String {
    let own = vm.spec.bootstrap.as_ref().and_then(|b| b.hostname.as_ref());
    own.map_or_else(|| vm.name_any(), ToString::to_string)
}

/// The public address that is to lead to this interface, once the control plane says that it is this VM's, and how it is
/// made known.
pub(crate) fn public(
    tables: &Tables,
    vm_name: &ObjectName,
    vm: &VM,
    interface: &str,
) -> Option<(Ipv4Addr, IPPoolMode)> {
    if vm.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let spec = vm.spec.network_interfaces.iter().find(|n| n.name.as_str() == interface)?;
    let public = tables.public_ips.get(&vm_name.beside(spec.public_ip.as_ref()?.as_str()))?;
    let status = public.status.as_ref()?;
    let ours = status.used_by.iter().any(|user| Some(&user.vm_uid) == vm.metadata.uid.as_ref());
    let address = status.address.as_ref()?.parse().ok()?;
    ours.then_some((address, status.mode.unwrap_or_default()))
}
