//! The way of a packet through this host: the question in the host's terms, and the answer in those of objects.
//!
//! ```text
//!  VM, interface, address ─▶ tap, packet, applied networks ─▶ host ─▶ steps by bridges and taps ─▶ by Networks and VMs
//! ```
//!
//! *Guarantees*: names of objects in other namespaces, except those of the shared Networks, are not in the answer; neither are rules of
//! a sender there, nor the address of a guest there that a public address leads to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use berth_api::packet_trace::{OtherEnd, TraceQuery};
use berth_api::vm::{InterfaceStatus, LinkState};
use berth_api::{RuleProtocol, SHARED_NAMESPACE, VM};
use berth_host::{
    Firewall, Port, SystemError, Trace, TraceEnd, TraceObject, TraceProtocol, TraceRequest, TracedPacket,
};
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::index::instance_of;
use crate::key::ObjectName;
use crate::networking::GuestPort;

/// The way of a packet on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PacketTrace {
    pub host: String,
    /// The interface of the VM in question.
    pub interface: String,
    /// As its sender sends it.
    pub packet: TracedPacket,
    pub trace: Trace,
}

/// Why a packet is not traced.
#[derive(Debug)]
pub(crate) enum TraceProblem {
    /// The VM neither sends nor receives such a packet here.
    Packet(String),
    NotApplied,
    System(SystemError),
}

/// Traces a packet of a VM that runs here.
pub(crate) async fn trace(
    ctx: &Context,
    name: &ObjectName,
    vm: &VM,
    query: &TraceQuery,
) -> Result<PacketTrace, TraceProblem> {
    let instance = instance_of(vm).unwrap_or_default().to_owned();
    let interface = interface(vm, query.interface.as_deref()).map_err(TraceProblem::Packet)?;
    let mut ports = ctx.networks.ports.of(&BTreeSet::from([instance])).into_values().flatten();
    let port = ports.find(|port| is_of(port, interface)).map(|guest| guest.port);
    let no_port =
        || format!("interface {} is not connected on this host yet: try again in a moment", interface.name);
    let port = port.ok_or_else(|| TraceProblem::Packet(no_port()))?;
    let (firewall, networks) = {
        let applied = ctx.networks.applied();
        (applied.firewall.clone(), applied.networks.values().cloned().collect())
    };
    let firewall = firewall.ok_or(TraceProblem::NotApplied)?;
    let packet = packet(query, interface, &port, &firewall).map_err(TraceProblem::Packet)?;
    let names = Names::read(ctx, &name.namespace);
    let request = TraceRequest {
        tap: port.tap,
        shown_taps: names.own_taps(),
        shown_bridges: names.own_bridges(),
        down: names.down.clone(),
        is_sent: matches!(query.other, OtherEnd::To(_)),
        packet,
        firewall: Arc::unwrap_or_clone(firewall),
        networks,
    };
    let trace = ctx.system.trace(&request).await.map_err(TraceProblem::System)?;
    Ok(PacketTrace {
        host: ctx.host().to_owned(),
        interface: interface.name.clone(),
        packet,
        trace: names.in_trace(trace),
    })
}

/// Returns the interface of this name, or the only one.
fn interface<'a>(vm: &'a VM, wanted: Option<&str>) -> Result<&'a InterfaceStatus, String> {
    let all = vm.status.as_ref().map(|status| status.interfaces.as_slice()).unwrap_or_default();
    let names = || all.iter().map(|each| each.name.as_str()).collect::<Vec<_>>().join(", ");
    match (wanted, all) {
        (_, []) => Err("the VM has no network interface".to_owned()),
        (Some(wanted), all) => {
            let found = all.iter().find(|each| each.name == wanted);
            found.ok_or_else(|| format!("the VM has no interface {wanted}: it has {}", names()))
        }
        (None, [only]) => Ok(only),
        (None, _) => Err(format!("the VM has several interfaces: name one of {} (--interface)", names())),
    }
}

fn is_of(port: &GuestPort, interface: &InterfaceStatus) -> bool {
    port.network == interface.network && port.port.mac == interface.mac_address.to_ascii_lowercase()
}

/// Returns the packet that a query asks for, with the interface's own address at its other end.
fn packet(
    query: &TraceQuery,
    interface: &InterfaceStatus,
    port: &Port,
    firewall: &Firewall,
) -> Result<TracedPacket, String> {
    let other = query.other.address();
    let own = match other {
        IpAddr::V4(_) => port.address.map(IpAddr::V4).ok_or_else(|| {
            format!(
                "the IPv4 address of interface {} is not known: Network {} has no IPv4, or another DHCP server gives it out",
                interface.name, interface.network
            )
        }),
        IpAddr::V6(_) => port.ipv6.map(IpAddr::V6).ok_or_else(|| {
            format!(
                "interface {} has no IPv6 address that is known, as Network {} has no IPv6 prefix of berth's, and {other} is one of IPv6",
                interface.name, interface.network
            )
        }),
    }?;
    if other == own {
        return Err(format!("{other} is the address of the interface itself"));
    }
    let (from, to) = match query.other {
        OtherEnd::To(to) => (own, to),
        OtherEnd::From(from, None) => (from, own),
        OtherEnd::From(from, Some(public)) => {
            if !is_public_of(firewall, public, own) {
                return Err(format!(
                    "this host does not forward public address {public} to interface {}: it leads elsewhere, or another host has it",
                    interface.name
                ));
            }
            (from, public)
        }
    };
    let icmp_type = query.icmp_type.and_then(|kind| kind.number(query.protocol));
    Ok(TracedPacket { from, to, protocol: protocol(query.protocol)?, port: query.port, icmp_type })
}

fn is_public_of(firewall: &Firewall, public: IpAddr, own: IpAddr) -> bool {
    let balanced = firewall.balanced.iter().filter(|each| public == each.public);
    firewall.forwards.iter().any(|each| each.public == public && each.private == own)
        || balanced.flat_map(|each| &each.ports).flat_map(|port| &port.targets).any(|target| own == *target)
}

fn protocol(protocol: RuleProtocol) -> Result<TraceProtocol, String> {
    match protocol {
        RuleProtocol::Any => Err("a packet has a protocol: tcp, udp, icmp or icmpv6".to_owned()),
        RuleProtocol::Tcp => Ok(TraceProtocol::Tcp),
        RuleProtocol::Udp => Ok(TraceProtocol::Udp),
        RuleProtocol::Icmp => Ok(TraceProtocol::Icmp),
        RuleProtocol::Icmpv6 => Ok(TraceProtocol::Icmpv6),
    }
}

/// The names that a client of one namespace may read, by those of the host.
#[derive(Debug, Default)]
struct Names {
    namespace: String,
    /// `namespace/name` of a Network, by its bridge.
    networks: BTreeMap<String, String>,
    /// VM and interface, by tap.
    interfaces: BTreeMap<String, (ObjectName, String)>,
    /// The taps of interfaces whose link is Down.
    down: BTreeSet<String>,
}

/// The names of a VM's interfaces are read from this.
struct VmOfHost {
    name: ObjectName,
    instance: String,
    interfaces: Vec<InterfaceStatus>,
    /// The interfaces whose link is Down.
    down: Vec<String>,
}

impl VmOfHost {
    fn of(name: &ObjectName, vm: &VM) -> Option<Self> {
        let interfaces = vm.status.as_ref()?.interfaces.clone();
        let declared = vm.spec.network_interfaces.iter().filter(|each| each.link == LinkState::Down);
        let down = declared.map(|each| each.name.as_str().to_owned()).collect();
        Some(Self { name: name.clone(), instance: instance_of(vm)?.to_owned(), interfaces, down })
    }
}

impl Names {
    fn read(ctx: &Context, namespace: &str) -> Self {
        let networks = ctx.networks.applied().bridges.clone();
        let networks = networks.into_iter().map(|(network, bridge)| (bridge, network)).collect();
        let vms: Vec<VmOfHost> = {
            let tables = ctx.index.read();
            tables.vms.all().filter_map(|(name, vm)| VmOfHost::of(name, vm)).collect()
        };
        let instances = vms.iter().map(|vm| vm.instance.clone()).collect();
        let ports = ctx.networks.ports.of(&instances);
        let (mut interfaces, mut down) = (BTreeMap::new(), BTreeSet::new());
        for vm in vms {
            for port in ports.get(&vm.instance).into_iter().flatten() {
                let found = vm.interfaces.iter().find(|interface| is_of(port, interface));
                let interface = found.map(|interface| interface.name.clone()).unwrap_or_default();
                if vm.down.contains(&interface) {
                    down.insert(port.port.tap.clone());
                }
                interfaces.insert(port.port.tap.clone(), (vm.name.clone(), interface));
            }
        }
        Self { namespace: namespace.to_owned(), networks, interfaces, down }
    }

    /// The taps of VMs in the client's namespace.
    fn own_taps(&self) -> BTreeSet<String> {
        let own = self.interfaces.iter().filter(|(_, (vm, _))| vm.namespace == self.namespace);
        own.map(|(tap, _)| tap.clone()).collect()
    }

    /// The bridges of Networks in the client's namespace, which have no VMs of others.
    fn own_bridges(&self) -> BTreeSet<String> {
        let own = self.networks.iter().filter(|(_, network)| self.own(network).is_some());
        own.map(|(bridge, _)| bridge.clone()).collect()
    }

    fn in_trace(&self, mut trace: Trace) -> Trace {
        for step in &mut trace.steps {
            step.by = step.by.take().map(|object| self.in_object(object));
        }
        match &mut trace.end {
            TraceEnd::Guest { interface, .. } => *interface = self.interface(interface),
            TraceEnd::Tunnel { network, .. } => *network = self.network(network),
            TraceEnd::Host
            | TraceEnd::Outside { .. }
            | TraceEnd::Dropped
            | TraceEnd::Rejected
            | TraceEnd::Undecided => {}
        }
        trace
    }

    fn in_object(&self, object: TraceObject) -> TraceObject {
        match object {
            TraceObject::SecurityGroup { name, direction, rule } => match self.own(&name) {
                Some(name) => TraceObject::SecurityGroup { name, direction, rule },
                None => {
                    TraceObject::SecurityGroup { name: OTHER_NAMESPACE.to_owned(), direction, rule: None }
                }
            },
            TraceObject::SecurityGroups { names, direction } => {
                let own: Option<Vec<String>> = names.iter().map(|name| self.own(name)).collect();
                let names = own.unwrap_or_else(|| vec![OTHER_NAMESPACE.to_owned()]);
                TraceObject::SecurityGroups { names, direction }
            }
            TraceObject::Network { name } => TraceObject::Network { name: self.network(&name) },
            TraceObject::Interface { name } => TraceObject::Interface { name: self.interface(&name) },
            other @ (TraceObject::PublicAddress { .. } | TraceObject::Host | TraceObject::OtherProgram) => {
                other
            }
        }
    }

    /// Returns the name of an object (`namespace/name`) of the client's namespace.
    fn own(&self, name: &str) -> Option<String> {
        let (namespace, name) = name.split_once('/')?;
        (namespace == self.namespace).then(|| name.to_owned())
    }

    fn network(&self, bridge: &str) -> String {
        let Some(name) = self.networks.get(bridge) else { return bridge.to_owned() };
        let is_shared = name.split_once('/').is_some_and(|(namespace, _)| namespace == SHARED_NAMESPACE);
        match self.own(name) {
            Some(own) => own,
            None if is_shared => name.clone(),
            None => OTHER_NAMESPACE.to_owned(),
        }
    }

    fn interface(&self, tap: &str) -> String {
        match self.interfaces.get(tap) {
            Some((vm, interface)) if vm.namespace == self.namespace => format!("{}/{interface}", vm.name),
            Some(_) => OTHER_NAMESPACE.to_owned(),
            None => tap.to_owned(),
        }
    }
}

/// In place of a name.
const OTHER_NAMESPACE: &str = "(of another namespace)";

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use berth_host::{Forward, StepResult, TraceDirection, TraceStep, TracedRule};
    use serde_json::json;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn vm(interfaces: usize) -> VM {
        let interfaces: Vec<serde_json::Value> = (0..interfaces)
            .map(|n| json!({"name": format!("nic{n}"), "network": "ns/app", "macAddress": format!("52:54:00:00:00:0{n}"),
                "address": format!("10.0.{n}.2")}))
            .collect();
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {"disks": []},
            "status": {"observedGeneration": 1, "interfaces": interfaces}}))
        .expect("a VM")
    }

    fn port() -> Port {
        let address = Some(Ipv4Addr::new(10, 0, 0, 2));
        Port { tap: "btt00000001n0".into(), mac: "52:54:00:00:00:00".into(), address, ipv6: None }
    }

    fn query(other: OtherEnd) -> TraceQuery {
        TraceQuery { interface: None, other, protocol: RuleProtocol::Tcp, port: 80, icmp_type: None }
    }

    #[test]
    fn the_only_interface_needs_no_name_and_one_of_several_does() {
        assert_eq!(interface(&vm(1), None).map(|found| found.name.as_str()), Ok("nic0"));
        assert_eq!(interface(&vm(2), Some("nic1")).map(|found| found.name.as_str()), Ok("nic1"));
        let several = interface(&vm(2), None).expect_err("several");
        assert!(several.contains("nic0, nic1"), "{several}");
        assert!(interface(&vm(1), Some("nic7")).expect_err("absent").contains("it has nic0"));
        assert_eq!(interface(&vm(0), None).expect_err("none"), "the VM has no network interface");
    }

    #[test]
    fn the_own_end_of_the_packet_is_an_address_of_the_interface() {
        let vm = vm(1);
        let nic = interface(&vm, None).expect("one");
        let public = ip("198.51.100.7");
        let forward = Forward { public, private: ip("10.0.0.2"), announced_on: None };
        let firewall = Firewall { forwards: vec![forward], ..Firewall::default() };
        let of = |other: OtherEnd| packet(&query(other), nic, &port(), &firewall).map(|p| (p.from, p.to));
        assert_eq!(of(OtherEnd::To(ip("10.0.0.9"))), Ok((ip("10.0.0.2"), ip("10.0.0.9"))));
        assert_eq!(of(OtherEnd::From(ip("10.0.0.9"), None)), Ok((ip("10.0.0.9"), ip("10.0.0.2"))));
        let by_public = of(OtherEnd::From(ip("192.0.2.9"), Some(public)));
        assert_eq!(by_public, Ok((ip("192.0.2.9"), ip("198.51.100.7"))));
        let elsewhere = of(OtherEnd::From(ip("192.0.2.9"), "198.51.100.8".parse().ok()));
        assert!(elsewhere.expect_err("not its own").contains("another host has it"));
        assert!(of(OtherEnd::To(ip("fd00::9"))).expect_err("no IPv6").contains("no IPv6 address"));
        assert!(of(OtherEnd::To(ip("10.0.0.2"))).expect_err("itself").contains("itself"));
        let unknown = Port { address: None, ..port() };
        let error =
            packet(&query(OtherEnd::To(ip("10.0.0.9"))), nic, &unknown, &firewall).expect_err("unknown");
        assert!(error.contains("another DHCP server"), "{error}");
    }

    #[test]
    fn names_of_other_namespaces_are_not_in_the_answer() {
        let interfaces = BTreeMap::from([
            ("btt1".to_owned(), (ObjectName::new("ns", "web"), "nic0".to_owned())),
            ("btt2".to_owned(), (ObjectName::new("other", "secret"), "nic0".to_owned())),
        ]);
        let networks = BTreeMap::from([
            ("bth-1".to_owned(), "ns/app".to_owned()),
            ("bth-2".to_owned(), "other/secret".to_owned()),
            ("bth-3".to_owned(), "berth-shared/lan".to_owned()),
        ]);
        let names = Names { namespace: "ns".to_owned(), networks, interfaces, down: BTreeSet::new() };
        assert_eq!(names.own_taps(), BTreeSet::from(["btt1".to_owned()]));
        assert_eq!(names.own_bridges(), BTreeSet::from(["bth-1".to_owned()]));
        let group = |name: &str| TraceObject::SecurityGroup {
            name: name.to_owned(),
            direction: TraceDirection::Ingress,
            rule: Some(TracedRule { number: 1, name: "secret".to_owned() }),
        };
        let groups = TraceObject::SecurityGroups {
            names: vec!["other/secret".to_owned()],
            direction: TraceDirection::Ingress,
        };
        let network = |name: &str| TraceObject::Network { name: name.to_owned() };
        let objects = [group("other/secret"), groups, network("bth-2")];
        let step = |by| TraceStep {
            place: "place".to_owned(),
            result: StepResult::Dropped,
            by: Some(by),
            detail: String::new(),
        };
        let packet = TracedPacket {
            from: ip("10.0.0.2"),
            to: ip("10.0.0.3"),
            protocol: TraceProtocol::Tcp,
            port: 1,
            icmp_type: None,
        };
        let end = TraceEnd::Guest { interface: "btt2".to_owned(), packet };
        let hidden = names.in_trace(Trace { steps: objects.map(step).to_vec(), end });
        assert!(!format!("{hidden:?}").contains("secret"), "{hidden:?}");
        assert_eq!(
            names.in_object(group("ns/web")),
            TraceObject::SecurityGroup {
                name: "web".to_owned(),
                direction: TraceDirection::Ingress,
                rule: Some(TracedRule { number: 1, name: "secret".to_owned() }),
            }
        );
        assert_eq!(
            (names.network("bth-1"), names.network("bth-3")),
            ("app".to_owned(), "berth-shared/lan".to_owned())
        );
        assert_eq!(
            (names.interface("btt1"), names.interface("btt9")),
            ("web/nic0".to_owned(), "btt9".to_owned())
        );
    }
}
