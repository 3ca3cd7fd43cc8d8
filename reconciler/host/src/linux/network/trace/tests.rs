//! The way of packets through the rules of a host that is described here; `network::tests::trace` compares it with real packets.

mod guests;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;

use super::super::foreign::{Drops, ForeignChain};
use super::super::{relay, ruleset, tunnel};
use super::explain;
use super::facts::{Facts, LinkFact, RouteFound};
use super::path::Walk;
use super::rules::Ruleset;
use crate::{
    Balanced, BalancedPort, Egress, FilterGroup, FilterProtocol, FilterRule, FilteredPort, Filters, Firewall,
    Forward, Ipv4Network, Ipv6Network, Lease, Nat, NetworkConfig, Port, PortException, PortLimits, PortMark,
    PortProtocol, PortTrunk, Route, StepResult, Trace, TraceDirection, TraceEnd, TraceObject, TraceProtocol,
    TraceRequest, TracedPacket, TracedRule, TrafficLimit, Tunnel,
};

const BRIDGE: &str = "bth-00004d";
const OTHER: &str = "bth-00004e";
const LAN: &str = "bth-0000ff";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn tap(last: u8) -> String {
    format!("btt0000000{last}n0")
}

/// The interface .2 of the first network has the group `web`; .3 and .4 have none, and .5 is in the other network.
fn port(last: u8) -> Port {
    let network = if last == 5 { 78 } else { 77 };
    Port {
        tap: tap(last),
        mac: format!("52:54:00:00:00:{last:02x}"),
        address: Some(std::net::Ipv4Addr::new(10, network, 0, last)),
        ipv6: (network == 77).then(|| format!("fd00:60::{last}").parse().expect("an address")),
    }
}

fn rule(name: &str, protocol: FilterProtocol, ports: &[(u16, u16)], ranges: &[&str]) -> FilterRule {
    let ranges = ranges.iter().map(|range| range.parse().expect("a range")).collect();
    FilterRule { name: name.into(), protocol, ports: ports.to_vec(), ranges, ..FilterRule::default() }
}

fn ipv6(egress: Egress) -> Option<Ipv6Network> {
    let prefix = "fd00:60::/64".parse().expect("a prefix");
    let gateway = "fd00:60::1".parse().expect("an address");
    Some(Ipv6Network { prefix, gateway, egress, autoconfiguration: false })
}

fn nat(bridge: &str, range: &str, egress: Egress) -> Nat {
    let range: ipnet::Ipv4Net = range.parse().expect("a range");
    let ipv4 = Ipv4Network { range, gateway: range.hosts().next().expect("hosts"), egress };
    let tunnel = (bridge == BRIDGE).then(|| Tunnel {
        vni: 77,
        local: "192.0.2.1".parse().expect("an address"),
        peers: vec!["192.0.2.2".parse().expect("an address")],
    });
    let ipv6 = if bridge == BRIDGE { ipv6(egress) } else { None };
    Nat { bridge: bridge.into(), ipv4: Some(ipv4), ipv6, tunnel }
}

/// A host with each kind of rule.
fn firewall(egress: Egress) -> Firewall {
    let web = FilterGroup {
        name: "ns/web".into(),
        ingress: vec![
            rule("ssh", FilterProtocol::Tcp, &[(22, 22)], &["192.0.2.0/24"]),
            rule("http", FilterProtocol::Tcp, &[(80, 81)], &["0.0.0.0/0", "::/0"]),
            rule("ping", FilterProtocol::Icmp, &[], &["10.77.0.3/32"]),
        ],
        egress: Some(vec![rule("dns", FilterProtocol::Udp, &[(53, 53)], &["0.0.0.0/0"])]),
    };
    let limits = TrafficLimit { bandwidth: None, packets: Some(1000) };
    let groups = vec!["ns/web".into()];
    Firewall {
        nat: vec![nat(BRIDGE, "10.77.0.0/24", egress), nat(OTHER, "10.78.0.0/24", Egress::Masquerade)],
        bridged: vec![LAN.into()],
        advertised: Vec::new(),
        answered_ipv6: Vec::new(),
        name_servers: Vec::new(),
        forwards: [("198.51.100.7", "10.77.0.2"), ("2001:db8::7", "fd00:60::2")]
            .map(|(public, private)| (ip(public), ip(private)))
            .map(|(public, private)| Forward { public, private, announced_on: Some("eth0".into()) })
            .into(),
        balanced: vec![Balanced {
            public: "198.51.100.8".parse().expect("an address"),
            announced_on: None,
            ports: vec![BalancedPort {
                protocol: PortProtocol::Tcp,
                port: 443,
                by_client: false,
                targets: vec![ip("10.77.0.2"), ip("10.77.0.3")],
                target_port: 81,
            }],
            sources: vec![(BRIDGE.into(), "10.77.0.9".parse().expect("an address"))],
            by_lan: Vec::new(),
        }],
        prefixes: Vec::new(),
        ports: (2..=5).map(port).collect(),
        exceptions: vec![PortException {
            tap: tap(3),
            ranges: vec!["10.77.0.100/32".parse().expect("a range")],
            macs: Vec::new(),
            gateways: vec!["10.77.0.1".parse().expect("an address")],
        }],
        limits: vec![PortLimits { tap: tap(4), ingress: limits, egress: limits }],
        marks: vec![PortMark { tap: tap(4), dscp: 46 }],
        trunks: vec![PortTrunk { tap: tap(3), vlans: vec![(10, 10), (100, 199)] }],
        isolated: Vec::new(),
        observed: Vec::new(),
        answered: Vec::new(),
        filters: Filters {
            ports: vec![FilteredPort { port: port(2), groups, asks_dhcp: false, prefixes: Vec::new() }],
            groups: vec![web],
            ..Filters::default()
        }
        .into(),
        guests: true,
        closed: vec!["192.0.2.0/24".parse().expect("a range")],
        ipv6_closed: Vec::new(),
        ipv6_allowed: Vec::new(),
        allowed: vec!["192.0.2.80/32".parse().expect("a range")],
    }
}

fn network(nat: &Nat) -> NetworkConfig {
    let lease = |last: u8| Lease {
        mac: format!("52:54:00:00:00:{last:02x}"),
        address: Some(std::net::Ipv4Addr::new(10, 77, 0, last)),
        hostname: "guest".into(),
        no_default_route: last == 4,
        ..Lease::default()
    };
    let via = Route {
        to: "172.16.0.0/12".parse().expect("a range"),
        via: "10.77.0.3".parse().expect("an address"),
    };
    NetworkConfig {
        bridge: nat.bridge.clone(),
        ipv4: nat.ipv4,
        ipv6: nat.ipv6,
        mtu: 1450,
        dns: Vec::new(),
        search_domains: Vec::new(),
        routes: if nat.bridge == BRIDGE { vec![via] } else { Vec::new() },
        ipv6_routes: Vec::new(),
        leases: (2..=4).map(lease).collect(),
        tunnel: nat.tunnel.clone(),
        tracked: true,
        relay: None,
        prefixes: Vec::new(),
        names: None,
    }
}

fn facts() -> Facts {
    let link = |name: &str, bridge: Option<&str>, is_tracked: bool| LinkFact {
        name: name.into(),
        is_up: true,
        bridge: bridge.map(str::to_owned),
        is_tracked,
    };
    let mut links = vec![
        link(BRIDGE, None, true),
        link(OTHER, None, false),
        link("eth0", None, false),
        link(&tunnel::name_of(BRIDGE), Some(BRIDGE), false),
        link(&relay::relay_link(BRIDGE), None, false),
    ];
    links.extend((2..=5).map(|last| link(&tap(last), Some(if last == 5 { OTHER } else { BRIDGE }), false)));
    Facts { links, is_tracking_global: false, is_ipv6_forwarded: true, foreign: Vec::new() }
}

/// A host and a question about it.
struct Case {
    firewall: Firewall,
    facts: Facts,
    tap: u8,
    down: BTreeSet<String>,
    /// The guests of other namespaces, and whether the first network is of another one too.
    hidden: BTreeSet<String>,
    is_network_hidden: bool,
    /// None: an echo request.
    icmp_type: Option<u8>,
}

impl Case {
    fn of(tap: u8) -> Self {
        let (down, hidden) = (BTreeSet::new(), BTreeSet::new());
        let firewall = firewall(Egress::Masquerade);
        Self { firewall, facts: facts(), tap, down, hidden, is_network_hidden: false, icmp_type: None }
    }

    /// The host's routes: to its networks by their bridges, and to all else by a router.
    fn route(to: IpAddr) -> RouteFound {
        let by = |interface: &str, gateway: Option<&str>| RouteFound::By {
            interface: interface.into(),
            gateway: gateway.map(ip),
            source: gateway.map(|_| ip("192.0.2.1")),
        };
        let text = to.to_string();
        let is_of = |prefixes: &[&str]| prefixes.iter().any(|prefix| text.starts_with(prefix));
        if ["192.0.2.1", "10.77.0.1"].contains(&text.as_str()) || is_of(&["198.51.100."]) {
            RouteFound::Local
        } else if is_of(&["10.77.", "fd00:60:"]) {
            by(BRIDGE, None)
        } else if is_of(&["10.78."]) {
            by(OTHER, None)
        } else if is_of(&["240."]) {
            RouteFound::None { detail: "the host has no route".into() }
        } else {
            by("eth0", Some("192.0.2.254"))
        }
    }

    fn trace(&self, is_sent: bool, from: &str, to: &str, (protocol, port): (TraceProtocol, u16)) -> Trace {
        let is_shown = |tap: &String| !self.hidden.contains(tap);
        let bridges =
            [BRIDGE, OTHER].into_iter().filter(|bridge| *bridge == OTHER || !self.is_network_hidden);
        let request = TraceRequest {
            tap: tap(self.tap),
            down: self.down.clone(),
            shown_taps: (2..=5).map(tap).filter(is_shown).collect(),
            shown_bridges: bridges.map(str::to_owned).collect(),
            is_sent,
            packet: TracedPacket { from: ip(from), to: ip(to), protocol, port, icmp_type: self.icmp_type },
            firewall: self.firewall.clone(),
            networks: self.firewall.nat.iter().map(network).collect(),
        };
        let rules = Ruleset::of(&ruleset::replace(&request.firewall, &[], &[]));
        let groups = ruleset::group_chains(&request.firewall.filters);
        let mut walk = Walk::new(&request, &rules, &groups, &self.facts);
        let arrival = (!is_sent).then(|| Self::route(ip(from)));
        let end = match walk.begin(arrival.as_ref()) {
            ControlFlow::Break(end) => end,
            ControlFlow::Continue(()) => {
                let route = Self::route(walk.frame().now.to);
                walk.finish(&route)
            }
        };
        walk.into_trace(end)
    }

    fn sent(&self, to: &str, what: (TraceProtocol, u16)) -> Trace {
        let from = match ip(to) {
            IpAddr::V4(_) => port(self.tap).address.map(|address| address.to_string()),
            IpAddr::V6(_) => port(self.tap).ipv6.map(|address| address.to_string()),
        };
        self.trace(true, &from.expect("an address"), to, what)
    }
}

const fn tcp(port: u16) -> (TraceProtocol, u16) {
    (TraceProtocol::Tcp, port)
}

const PING: (TraceProtocol, u16) = (TraceProtocol::Icmp, 0);

/// The last step: its place, and the object it follows from.
fn last(trace: &Trace) -> (&str, Option<TraceObject>) {
    let step = trace.steps.last().expect("a step");
    (step.place.as_str(), step.by.clone())
}

fn network_object(bridge: &str) -> Option<TraceObject> {
    Some(TraceObject::Network { name: bridge.to_owned() })
}

fn group_object(direction: TraceDirection, rule: Option<(usize, &str)>) -> TraceObject {
    let rule = rule.map(|(number, name)| TracedRule { number, name: name.to_owned() });
    TraceObject::SecurityGroup { name: "ns/web".into(), direction, rule }
}

fn none_of_web(direction: TraceDirection) -> Option<TraceObject> {
    Some(TraceObject::SecurityGroups { names: vec!["ns/web".into()], direction })
}

fn guest(trace: &Trace) -> Option<(&str, String)> {
    match &trace.end {
        TraceEnd::Guest { interface, packet } => Some((interface, format!("{} {}", packet.to, packet.port))),
        _ => None,
    }
}

#[test]
fn an_ingress_rule_of_the_receivers_group_is_named_with_its_number() {
    let trace = Case::of(4).sent("10.77.0.2", tcp(80));
    assert_eq!(guest(&trace), Some((tap(2).as_str(), "10.77.0.2 80".to_owned())), "{trace:?}");
    let by = group_object(TraceDirection::Ingress, Some((2, "http")));
    assert!(trace.steps.iter().any(|step| step.by.as_ref() == Some(&by)), "{trace:?}");
}

#[test]
fn a_packet_that_no_rule_allows_is_dropped_by_all_groups_of_the_interface() {
    for what in [tcp(22), tcp(82), PING, (TraceProtocol::Udp, 80)] {
        let trace = Case::of(4).sent("10.77.0.2", what);
        assert_eq!(trace.end, TraceEnd::Dropped, "{what:?}: {trace:?}");
        assert_eq!(last(&trace).1, none_of_web(TraceDirection::Ingress), "{what:?}");
    }
    assert!(guest(&Case::of(3).sent("10.77.0.2", PING)).is_some(), "the rule has this sender");
}

#[test]
fn a_filtered_guest_sends_what_its_egress_rules_allow() {
    let dropped = Case::of(2).sent("10.77.0.3", tcp(80));
    assert_eq!(
        (dropped.end.clone(), last(&dropped).1),
        (TraceEnd::Dropped, none_of_web(TraceDirection::Egress))
    );
    let outside = Case::of(2).sent("203.0.113.9", tcp(443));
    assert_eq!(last(&outside).1, none_of_web(TraceDirection::Egress), "{outside:?}");
    let allowed = Case::of(2).sent("203.0.113.9", (TraceProtocol::Udp, 53));
    assert!(
        matches!(&allowed.end, TraceEnd::Outside { interface, .. } if interface == "eth0"),
        "{allowed:?}"
    );
    let by = group_object(TraceDirection::Egress, Some((1, "dns")));
    assert!(allowed.steps.iter().any(|step| step.by.as_ref() == Some(&by)), "{allowed:?}");
}

#[test]
fn a_group_without_egress_allows_all_and_says_so() {
    let mut case = Case::of(2);
    case.filters().groups[0].egress = None;
    let trace = case.sent("10.77.0.3", tcp(80));
    assert!(guest(&trace).is_some(), "{trace:?}");
    let by = group_object(TraceDirection::Egress, None);
    assert!(trace.steps.iter().any(|step| step.by.as_ref() == Some(&by)), "{trace:?}");
}

#[test]
fn ipv6_is_filtered_as_ipv4() {
    assert!(guest(&Case::of(3).sent("fd00:60::2", tcp(81))).is_some());
    let dropped = Case::of(3).sent("fd00:60::2", (TraceProtocol::Icmpv6, 0));
    assert_eq!(last(&dropped).1, none_of_web(TraceDirection::Ingress), "{dropped:?}");
}

#[test]
fn a_public_address_leads_to_its_guest_and_its_groups_see_the_private_port() {
    let case = Case::of(2);
    let trace = case.trace(false, "203.0.113.9", "198.51.100.7", tcp(80));
    assert_eq!(guest(&trace), Some((tap(2).as_str(), "10.77.0.2 80".to_owned())), "{trace:?}");
    assert!(trace.steps.iter().any(|step| step.result == StepResult::Rewritten));
    let ipv6 = case.trace(false, "2001:db8::9", "2001:db8::7", tcp(80));
    assert_eq!(guest(&ipv6), Some((tap(2).as_str(), "fd00:60::2 80".to_owned())), "{ipv6:?}");
    let balanced = case.trace(false, "203.0.113.9", "198.51.100.8", tcp(443));
    assert_eq!(guest(&balanced), Some((tap(2).as_str(), "10.77.0.2 81".to_owned())), "{balanced:?}");
    assert!(balanced.steps.iter().any(|step| step.detail.contains("one of 2 guests")));
    let refused = case.trace(false, "203.0.113.9", "198.51.100.8", tcp(444));
    assert_eq!(
        (refused.end.clone(), last(&refused).0),
        (TraceEnd::Rejected, "public address"),
        "{refused:?}"
    );
    let by = TraceObject::PublicAddress { address: ip("198.51.100.8") };
    assert_eq!(last(&refused).1, Some(by));
}

#[test]
fn a_private_address_gets_nothing_from_outside_and_from_other_networks() {
    let outside = Case::of(3).trace(false, "203.0.113.9", "10.77.0.3", tcp(80));
    assert_eq!(
        (outside.end.clone(), last(&outside).1),
        (TraceEnd::Dropped, network_object(BRIDGE)),
        "{outside:?}"
    );
    let stranger = Case::of(5).sent("10.77.0.3", tcp(80));
    assert_eq!(
        (stranger.end.clone(), last(&stranger).1),
        (TraceEnd::Dropped, network_object(BRIDGE)),
        "{stranger:?}"
    );
}

#[test]
fn the_egress_of_a_network_decides_what_leaves_it() {
    let mut case = Case::of(3);
    let masqueraded = case.sent("203.0.113.9", tcp(443));
    let TraceEnd::Outside { packet, .. } = &masqueraded.end else { panic!("{masqueraded:?}") };
    assert_eq!(packet.from, ip("192.0.2.1"), "the host's address");
    case.firewall = firewall(Egress::Routed);
    let routed = case.sent("203.0.113.9", tcp(443));
    let TraceEnd::Outside { packet, .. } = &routed.end else { panic!("{routed:?}") };
    assert_eq!(packet.from, ip("10.77.0.3"), "unchanged");
    case.firewall = firewall(Egress::None);
    let none = case.sent("203.0.113.9", tcp(443));
    assert_eq!((none.end.clone(), last(&none).1), (TraceEnd::Rejected, network_object(BRIDGE)));
    let none = case.sent("2001:db8::9", tcp(443));
    assert_eq!((none.end.clone(), last(&none).1), (TraceEnd::Rejected, network_object(BRIDGE)), "{none:?}");
}

#[test]
fn a_guest_with_an_announced_public_address_sends_under_it() {
    let trace = Case::of(2).sent("203.0.113.9", (TraceProtocol::Udp, 53));
    let TraceEnd::Outside { packet, .. } = &trace.end else { panic!("{trace:?}") };
    assert_eq!(packet.from, ip("198.51.100.7"));
}

#[test]
fn hosts_are_closed_to_guests_except_where_the_administrator_allows_it() {
    let closed = Case::of(3).sent("192.0.2.7", tcp(22));
    assert_eq!((closed.end.clone(), last(&closed).1), (TraceEnd::Dropped, Some(TraceObject::Host)));
    let metadata = Case::of(3).sent("169.254.169.254", tcp(80));
    assert_eq!((metadata.end.clone(), last(&metadata).1), (TraceEnd::Dropped, Some(TraceObject::Host)));
    let allowed = Case::of(3).sent("192.0.2.80", tcp(22));
    assert!(matches!(allowed.end, TraceEnd::Outside { .. }), "{allowed:?}");
    let own = Case::of(3).sent("192.0.2.1", tcp(22));
    assert_eq!((own.end.clone(), last(&own)), (TraceEnd::Dropped, ("host", Some(TraceObject::Host))));
    let names = Case::of(3).sent("10.77.0.1", (TraceProtocol::Udp, 53));
    assert_eq!(
        (names.end.clone(), last(&names)),
        (TraceEnd::Host, ("host", network_object(BRIDGE))),
        "{names:?}"
    );
}

#[test]
fn a_guest_sends_from_its_own_addresses_only() {
    let spoofed = Case::of(3).trace(true, "10.77.0.4", "10.77.0.2", tcp(80));
    let by = Some(TraceObject::Interface { name: tap(3) });
    assert_eq!(
        (spoofed.end.clone(), last(&spoofed)),
        (TraceEnd::Dropped, ("source check", by)),
        "{spoofed:?}"
    );
    let excepted = Case::of(3).trace(true, "10.77.0.100", "10.77.0.2", tcp(80));
    assert!(guest(&excepted).is_some(), "{excepted:?}");
    let shared = Case::of(4).sent("10.77.0.100", tcp(80));
    assert_eq!(guest(&shared).map(|(tap, _)| tap.to_owned()), Some(tap(3)), "an address that .3 may have");
}

#[test]
fn addresses_of_other_hosts_are_reached_by_the_tunnel_and_come_from_it() {
    let away = Case::of(3).sent("10.77.0.50", tcp(80));
    assert!(matches!(&away.end, TraceEnd::Tunnel { network, .. } if network == BRIDGE), "{away:?}");
    let arrives = Case::of(2).trace(false, "10.77.0.50", "10.77.0.2", tcp(80));
    assert!(guest(&arrives).is_some(), "{arrives:?}");
    let dropped = Case::of(2).trace(false, "10.77.0.50", "10.77.0.2", tcp(22));
    assert_eq!(last(&dropped).1, none_of_web(TraceDirection::Ingress));
    let unknown = Case::of(5).sent("10.78.0.50", tcp(80));
    assert_eq!((unknown.end.clone(), last(&unknown).0), (TraceEnd::Dropped, "neighbour"), "no tunnel");
}

#[test]
fn an_allowed_address_is_one_interface_and_the_gateway_is_the_host() {
    let sender = Case::of(2).trace(false, "10.77.0.100", "10.77.0.2", tcp(80));
    let by = Some(TraceObject::Interface { name: tap(3) });
    assert!(guest(&sender).is_some() && sender.steps.iter().any(|step| step.by == by), "{sender:?}");
    let gateway = Case::of(2).trace(false, "10.77.0.1", "10.77.0.2", tcp(80));
    assert_eq!((gateway.end.clone(), last(&gateway).0), (TraceEnd::Undecided, "sender"), "{gateway:?}");
    let itself = Case::of(3).trace(false, "10.77.0.100", "10.77.0.3", tcp(80));
    assert_eq!(itself.end, TraceEnd::Undecided, "{itself:?}");
    let mut shared = Case::of(2);
    shared.firewall.exceptions.push(PortException { tap: tap(4), ..shared.firewall.exceptions[0].clone() });
    for trace in [
        shared.trace(false, "10.77.0.100", "10.77.0.2", tcp(80)),
        Case { tap: 3, ..shared }.sent("10.77.0.100", tcp(80)),
    ] {
        assert_eq!((trace.end.clone(), last(&trace).0), (TraceEnd::Undecided, "neighbour"), "{trace:?}");
    }
}

#[test]
fn the_routes_of_the_guest_are_those_that_dhcp_gives_it() {
    let mut case = Case::of(4);
    let masqueraded = case.sent("172.16.0.1", tcp(80));
    assert_eq!(
        (masqueraded.end.clone(), last(&masqueraded).0),
        (TraceEnd::Undecided, "source address"),
        "the bridge is tracked: {masqueraded:?}"
    );
    case.firewall = firewall(Egress::Routed);
    let routed = case.sent("172.16.0.1", tcp(80));
    assert_eq!(guest(&routed), Some((tap(3).as_str(), "172.16.0.1 80".to_owned())), "{routed:?}");
    let none = Case::of(4).sent("203.0.113.9", tcp(80));
    assert_eq!((none.end.clone(), last(&none).0), (TraceEnd::Dropped, "routes of the guest"), "{none:?}");
}

#[test]
fn a_link_that_is_down_and_a_missing_route_are_steps() {
    // The own link is down, and that of the other end.
    for down in [3, 4] {
        let case = Case { down: BTreeSet::from([tap(down)]), ..Case::of(3) };
        let is_dropped = |trace: Trace| trace.end == TraceEnd::Dropped && last(&trace).0 == "link";
        assert!(is_dropped(case.sent("10.77.0.4", tcp(80))), "{down}");
        assert!(is_dropped(case.trace(false, "10.77.0.4", "10.77.0.3", tcp(80))), "{down}");
    }
    let mut without = Case::of(3);
    without.facts.links.retain(|link| link.name != tap(3));
    assert_eq!(last(&without.sent("10.77.0.2", tcp(80))).0, "link");
    assert_eq!(last(&Case::of(3).sent("240.0.0.1", tcp(80))).0, "route");
    let mut deaf = Case::of(3);
    deaf.firewall = firewall(Egress::Routed);
    assert!(matches!(deaf.sent("2001:db8::9", tcp(80)).end, TraceEnd::Outside { .. }));
    deaf.facts.is_ipv6_forwarded = false;
    assert_eq!(last(&deaf.sent("2001:db8::9", tcp(80))), ("route", Some(TraceObject::Host)));
}

fn foreign(family: &str, hook: &str, guests: Drops, tunnels: Drops) -> ForeignChain {
    let name = format!("{family} filter {hook}");
    ForeignChain { family: family.into(), name, hook: hook.into(), guests, tunnels }
}

#[test]
fn a_packet_passes_the_chains_of_other_programs_of_its_family_and_hook() {
    let (all, some, selected) = (Drops::All, Drops::NotAccepted, Drops::Selected);
    let mut case = Case::of(3);
    case.firewall = firewall(Egress::Routed);
    let is_other = |trace: &Trace| last(trace) == ("other firewall", Some(TraceObject::OtherProgram));
    case.facts.foreign = vec![foreign("ip", "forward", all, selected)];
    let closed = case.sent("203.0.113.9", tcp(80));
    assert!(closed.end == TraceEnd::Dropped && is_other(&closed), "{closed:?}");
    let six = case.sent("2001:db8::9", tcp(80));
    assert!(matches!(six.end, TraceEnd::Outside { .. }), "a chain for IPv4: {six:?}");
    case.facts.foreign = vec![foreign("ip6", "forward", some, selected), foreign("inet", "input", some, all)];
    let six = case.sent("2001:db8::9", tcp(80));
    assert!(six.end == TraceEnd::Undecided && is_other(&six), "{six:?}");
    let names = case.sent("10.77.0.1", (TraceProtocol::Udp, 53));
    assert!(names.end == TraceEnd::Undecided && is_other(&names), "to the host: {names:?}");
    let by_tunnel = case.trace(false, "10.77.0.50", "10.77.0.3", tcp(80));
    assert!(by_tunnel.end == TraceEnd::Dropped && is_other(&by_tunnel), "{by_tunnel:?}");
    case.facts.foreign = vec![foreign("inet", "forward", selected, selected)];
    let noted = case.sent("203.0.113.9", tcp(80));
    assert!(matches!(noted.end, TraceEnd::Outside { .. }), "{noted:?}");
    assert!(noted.steps.iter().any(|step| step.detail.contains("inet filter forward")), "{noted:?}");
}

#[test]
fn a_filter_on_an_untracked_bridge_and_an_unknown_rule_decide_nothing() {
    let mut case = Case::of(4);
    case.facts.links.iter_mut().for_each(|link| link.is_tracked = false);
    let trace = case.sent("10.77.0.2", tcp(80));
    assert_eq!((trace.end.clone(), last(&trace).0), (TraceEnd::Undecided, "security groups"), "{trace:?}");
    // The rule for requests to a DHCP server reads a field of their content.
    let dhcp = Case::of(3).trace(true, "10.77.0.3", "10.77.0.1", (TraceProtocol::Udp, 67));
    assert_eq!(dhcp.end, TraceEnd::Undecided, "{dhcp:?}");
    assert_eq!(dhcp.steps.last().map(|step| step.result), Some(StepResult::NotEvaluated));
}

#[test]
fn the_rules_and_addresses_of_other_namespaces_are_not_evaluated() {
    let case = Case { hidden: BTreeSet::from([tap(2)]), is_network_hidden: true, ..Case::of(3) };
    let from = case.trace(false, "10.77.0.2", "10.77.0.3", tcp(80));
    assert_eq!(
        (from.end.clone(), from.steps.len(), last(&from).1),
        (TraceEnd::Undecided, 1, None),
        "{from:?}"
    );
    let public = case.sent("198.51.100.7", tcp(80));
    assert_eq!((public.end.clone(), last(&public).0), (TraceEnd::Undecided, "public address"), "{public:?}");
    let mut elsewhere = case;
    elsewhere.firewall.forwards[0].private = "10.77.0.50".parse().expect("an address");
    let remote = elsewhere.sent("198.51.100.7", tcp(80));
    assert_eq!(remote.end, TraceEnd::Undecided, "{remote:?}");
    for trace in [public, remote] {
        assert!(!format!("{:?}", trace.steps).contains("to 10.77.0."), "{trace:?}");
    }
}

#[test]
fn a_sender_gets_one_of_several_guests_of_a_public_address_which_decides_nothing() {
    let sent = Case::of(3).sent("198.51.100.8", tcp(443));
    assert_eq!((sent.end.clone(), last(&sent).0), (TraceEnd::Undecided, "public address"), "{sent:?}");
    // Only the guest that is asked about is followed.
    let stranger = Case::of(4).trace(false, "203.0.113.9", "198.51.100.8", tcp(443));
    assert_eq!(stranger.end, TraceEnd::Undecided, "{stranger:?}");
}

/// The rules for packets to tunnels read the VNI, and name the peers of all tenants. One of the rules after them drops the packet.
#[test]
fn a_rule_that_may_refuse_what_is_refused_anyway_decides_nothing_and_no_rule_is_shown() {
    let to_tunnel = Case::of(3).sent("10.77.0.1", (TraceProtocol::Udp, 4789));
    assert_eq!((to_tunnel.end.clone(), last(&to_tunnel).0), (TraceEnd::Dropped, "host"), "{to_tunnel:?}");
    let mut case = Case::of(3);
    case.firewall.nat[0].tunnel.as_mut().expect("a tunnel").peers = vec![[192, 0, 2, 66].into()];
    // An address that --guest-allow has: the rule after those accepts it.
    case.firewall.allowed = vec!["192.0.2.1/32".parse().expect("a range")];
    let open = case.sent("192.0.2.1", (TraceProtocol::Udp, 4789));
    assert_eq!(open.end, TraceEnd::Undecided, "{open:?}");
    for trace in [to_tunnel, open] {
        let shown = format!("{trace:?}");
        assert!(!shown.contains("192.0.2.66") && !shown.contains("payload"), "{shown}");
    }
}

#[test]
fn every_rule_that_drops_or_rejects_has_an_explanation() {
    let refusals = Ruleset::of(&ruleset::replace(&firewall(Egress::None), &[], &[])).refusals();
    assert!(refusals.len() > 40, "{}", refusals.len());
    for refusal in refusals {
        assert!(explain::reason(&refusal).is_some(), "{} {} {}", refusal.family, refusal.chain, refusal.rule);
    }
}
