//! The way of a packet over bridges and through the host. Pure.
//!
//! ```text
//!  tap ─▶ bridge: source check ─┬─ to a neighbour ─▶ [rules for routed packets, where the bridge is tracked] ─▶ tap, tunnel, LAN
//!                               └─ to the gateway ─▶ translation ─▶ route ─┬─ the host
//!  outside ──────────────────────────────────────▶ translation ─▶ route ───┴─ forwarding ─▶ source ─▶ tap, tunnel, outside
//!  tunnel, LAN ─▶ bridge ─▶ as to a neighbour
//! ```
//!
//! The route is the kernel's: [`Walk::begin`] ends where one is needed, and [`Walk::finish`] goes on with it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::ControlFlow;

use super::super::bridged::inner_of;
use super::super::foreign::{Drops, ForeignChain};
use super::super::relay::OUTER_PREFIX;
use super::super::ruleset::{GroupChain, link_local};
use super::super::{BRIDGE_PREFIX, bridge_mac, hardware_address, tunnel};
use super::explain::{self, Context};
use super::facts::{Facts, RouteFound};
use super::guest_routes;
use super::matching::Frame;
use super::rules::{Decision, Hit, Ruleset};
use crate::{NetworkConfig, Port, SENDER, StepResult, Trace, TraceEnd, TraceObject, TraceRequest, TraceStep};

/// A part of the way: it ends here, or goes on.
type Way = ControlFlow<TraceEnd>;

/// A packet on its way.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    request: &'a TraceRequest,
    rules: &'a Ruleset,
    groups: &'a BTreeMap<String, GroupChain>,
    facts: &'a Facts,
    frame: Frame,
    steps: Vec<TraceStep>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        request: &'a TraceRequest,
        rules: &'a Ruleset,
        groups: &'a BTreeMap<String, GroupChain>,
        facts: &'a Facts,
    ) -> Self {
        let own = request.firewall.ports.iter().find(|port| port.tap == request.tap);
        let frame = Frame {
            by: String::new(),
            leaves_by: String::new(),
            mac: String::new(),
            now: request.packet,
            opened: request.packet,
            preferred: own.filter(|_| !request.is_sent).and_then(|port| port.address).map(IpAddr::V4),
        };
        Self { request, rules, groups, facts, frame, steps: Vec::new() }
    }

    /// The packet as it is now, and the interface it came by.
    pub(super) fn frame(&self) -> &Frame {
        &self.frame
    }

    pub(super) fn into_trace(self, end: TraceEnd) -> Trace {
        Trace { steps: self.steps, end }
    }

    /// Follows the packet until the host has to route it. `arrival`: the route to its sender, if it is not known to be a guest.
    pub(super) fn begin(&mut self, arrival: Option<&RouteFound>) -> Way {
        let request = self.request;
        let Some(bridge) = self.facts.bridge_of(&request.tap).map(str::to_owned) else {
            let by = Some(TraceObject::Interface { name: request.tap.clone() });
            return self.dropped("link", by, "its tap on the host is missing or no port of a bridge");
        };
        if let Some(sender) = self.sender(&bridge)? {
            if sender.tap == request.tap && !request.is_sent {
                return self.undecided(SENDER, None, "the interface itself may have the sender's address");
            }
            if sender.tap != request.tap && !request.shown_taps.contains(&sender.tap) {
                let detail = "a guest that is not of this namespace sends it, whose rules are not shown";
                return self.undecided(SENDER, None, detail);
            }
            return self.sent_by_guest(&sender);
        }
        let network = self.network(&bridge);
        if network.is_some_and(|network| is_gateway(network, request.packet.from)) {
            let detail = "the sender's address is the gateway's, which is the host";
            return self.undecided(SENDER, Some(TraceObject::Host), detail);
        }
        if network.is_some_and(|network| is_within(network, request.packet.from)) {
            return self.received_by_tunnel(&bridge);
        }
        if self.is_bridged(&bridge) {
            self.frame.by = inner_of(&bridge);
            self.step(SENDER, StepResult::Note, None, "it comes by the bridge of the host");
            self.hook("bridge", "prerouting")?;
            return self.delivered_on(&bridge, request.packet.to);
        }
        match arrival {
            Some(RouteFound::By { interface, .. }) if !interface.starts_with(BRIDGE_PREFIX) => {
                let detail =
                    format!("it comes by interface {interface}, by which the host reaches the sender");
                self.step(SENDER, StepResult::Note, Some(TraceObject::Host), &detail);
                self.frame.by = interface.clone();
                self.hook("inet", "prerouting")
            }
            Some(RouteFound::By { interface, .. }) => {
                let by = Some(TraceObject::Network { name: interface.clone() });
                self.undecided(
                    SENDER,
                    by,
                    "no guest of this host has the sender's address, which is of this network",
                )
            }
            Some(RouteFound::Local) => {
                self.undecided(SENDER, Some(TraceObject::Host), "the sender's address is the host's own")
            }
            Some(RouteFound::None { .. }) | None => {
                let detail = "the host has no route to the sender, so that answers would not reach it";
                self.dropped(SENDER, Some(TraceObject::Host), detail)
            }
        }
    }

    /// The port that sends the packet, if a guest of this host does.
    fn sender(&mut self, bridge: &str) -> ControlFlow<TraceEnd, Option<Port>> {
        let (request, from) = (self.request, self.request.packet.from);
        let mut ports = request.firewall.ports.iter();
        if request.is_sent {
            return ControlFlow::Continue(ports.find(|port| port.tap == request.tap).cloned());
        }
        let beside = self.port_of(bridge, from)?;
        // A link-local address means a neighbour.
        let is_elsewhere = |port: &&Port| has_address(port, from) && !is_link_local(from);
        ControlFlow::Continue(beside.or_else(|| ports.find(is_elsewhere).cloned()))
    }

    fn sent_by_guest(&mut self, port: &Port) -> Way {
        let by = || Some(TraceObject::Interface { name: port.tap.clone() });
        if self.request.down.contains(&port.tap) {
            return self.dropped("link", by(), "its link is Down");
        }
        let Some(bridge) = self.facts.bridge_of(&port.tap).map(str::to_owned) else {
            return self.dropped("link", by(), "its tap on the host is missing or no port of a bridge");
        };
        self.must_be_up(&port.tap)?;
        self.must_be_up(&bridge)?;
        (self.frame.by, self.frame.mac) = (port.tap.clone(), port.mac.clone());
        self.hook("bridge", "prerouting")?;
        self.step("source check", StepResult::Passed, by(), "the address is the interface's");
        if self.request.firewall.limits.iter().any(|limits| limits.tap == port.tap) {
            self.step("limits", StepResult::Note, by(), "packets above its limits are dropped");
        }
        let to = self.frame.now.to;
        if self.is_bridged(&bridge) {
            return self.delivered_on(&bridge, to);
        }
        let Some(network) = self.network(&bridge).cloned() else {
            return self.undecided("link", None, "the network of its bridge is not known to the agent");
        };
        if is_gateway(&network, to) {
            return self.handed_to_host(&bridge);
        }
        if is_within(&network, to) || is_link_local(to) {
            return self.delivered_on(&bridge, to);
        }
        match guest_routes::router(&network, port, to) {
            Some(router) if is_gateway(&network, router) => self.handed_to_host(&bridge),
            Some(router) => {
                let by = Some(TraceObject::Network { name: bridge.clone() });
                let detail = format!("the guest sends it to the router {router}");
                self.step("routes of the guest", StepResult::Passed, by, &detail);
                self.delivered_on(&bridge, router)
            }
            None => self.dropped(
                "routes of the guest",
                by(),
                "the guest gets no route to the address, as default_route is false",
            ),
        }
    }

    fn received_by_tunnel(&mut self, bridge: &str) -> Way {
        let by = || Some(TraceObject::Network { name: bridge.to_owned() });
        if self.network(bridge).is_none_or(|network| network.tunnel.is_none()) {
            return self.dropped(
                SENDER,
                by(),
                "no guest of this host has the sender's address, and the network is on no other host",
            );
        }
        let to = self.request.packet.to;
        if !self.network(bridge).is_some_and(|network| is_within(network, to)) {
            let detail = "a guest of another host reaches a public address by that host, under its address: trace from that one";
            return self.undecided(SENDER, by(), detail);
        }
        self.step(SENDER, StepResult::Note, by(), "it comes by the tunnel of the network, from another host");
        let family = if self.note_encryption(bridge) { "ip6" } else { "ip" };
        self.chains_of_others((family, "input"), "the packets of tunnels (UDP port 4789)", |c| c.tunnels)?;
        self.frame.by = tunnel::name_of(bridge);
        self.hook("bridge", "prerouting")?;
        self.delivered_on(bridge, to)
    }

    /// Notes that the hosts encrypt the packets of a network between them; returns whether they do.
    fn note_encryption(&mut self, bridge: &str) -> bool {
        let encrypts = self.network(bridge).is_some_and(NetworkConfig::is_encrypted);
        if encrypts {
            let by = Some(TraceObject::Network { name: bridge.to_owned() });
            self.step("encryption", StepResult::Note, by, "WireGuard encrypts it between the hosts");
        }
        encrypts
    }

    /// Hands the packet to the gateway, which is the host.
    fn handed_to_host(&mut self, bridge: &str) -> Way {
        self.hook("bridge", "input")?;
        self.frame.by = bridge.to_owned();
        self.hook("inet", "prerouting")
    }

    /// Follows a packet between the ports of a bridge.
    fn delivered_on(&mut self, bridge: &str, next: IpAddr) -> Way {
        let target = self.port_of(bridge, next)?;
        let is_tunnelled = self.network(bridge).is_some_and(|network| network.tunnel.is_some());
        let leaves_by = match &target {
            Some(port) => port.tap.clone(),
            None if self.is_bridged(bridge) => inner_of(bridge),
            None if is_tunnelled => tunnel::name_of(bridge),
            None => {
                let by = Some(TraceObject::Network { name: bridge.to_owned() });
                let detail = format!("no guest of this host has {next}, and the network is on no other host");
                return self.dropped("neighbour", by, &detail);
            }
        };
        self.frame.leaves_by = leaves_by;
        self.hook("bridge", "forward")?;
        if self.facts.is_tracked(bridge) {
            let ports = (self.frame.by.clone(), self.frame.leaves_by.clone());
            (self.frame.by, self.frame.leaves_by) = (bridge.to_owned(), bridge.to_owned());
            self.must_not_be_translated("prerouting")?;
            self.hook("inet", "forward")?;
            self.other_programs("forward")?;
            self.must_not_be_translated("postrouting")?;
            (self.frame.by, self.frame.leaves_by) = ports;
        } else {
            self.must_not_be_filtered(bridge)?;
        }
        self.hook("bridge", "postrouting")?;
        self.arrive(bridge, target.as_ref())
    }

    /// The kernel also passes the packets of a tracked bridge through the translation of addresses, which is not followed there.
    fn must_not_be_translated(&mut self, hook: &str) -> Way {
        if self.rules.at("inet", hook, &self.frame).is_empty() {
            return Way::Continue(());
        }
        let by = Some(TraceObject::Network { name: self.frame.by.clone() });
        let detail = "the host translates an address of the packet on the bridge, which is not followed";
        self.undecided("source address", by, detail)
    }

    /// A filter is in effect where its bridge passes packets to it.
    fn must_not_be_filtered(&mut self, bridge: &str) -> Way {
        let frame = &self.frame;
        let mut filtered = self.request.firewall.filters.ports.iter();
        let found = filtered.find(|one| one.port.tap == frame.by || one.port.tap == frame.leaves_by);
        let Some(tap) = found.map(|one| one.port.tap.clone()) else { return Way::Continue(()) };
        let detail = format!("the bridge {bridge} does not pass packets to the filter of the interface yet");
        self.undecided("security groups", Some(TraceObject::Interface { name: tap }), &detail)
    }

    /// Ends at a port of a bridge.
    fn arrive(&mut self, bridge: &str, target: Option<&Port>) -> Way {
        let packet = self.frame.now;
        if let Some(port) = target {
            let by = || Some(TraceObject::Interface { name: port.tap.clone() });
            if self.request.down.contains(&port.tap) {
                return self.dropped("link", by(), "its link is Down");
            }
            self.must_be_up(&port.tap)?;
            let is_limited = self.request.firewall.limits.iter().any(|limits| limits.tap == port.tap);
            if is_limited && self.request.shown_taps.contains(&port.tap) {
                self.step("limits", StepResult::Note, by(), "packets above its limits are dropped");
            }
            return Way::Break(TraceEnd::Guest { interface: port.tap.clone(), packet });
        }
        let leaves_by = self.frame.leaves_by.clone();
        self.must_be_up(&leaves_by)?;
        if !self.is_bridged(bridge) {
            self.note_encryption(bridge);
            return Way::Break(TraceEnd::Tunnel { network: bridge.to_owned(), packet });
        }
        let by = Some(TraceObject::Network { name: bridge.to_owned() });
        self.step("neighbour", StepResult::Note, by, "no guest of this host on the network has the address");
        Way::Break(TraceEnd::Outside { interface: leaves_by, packet })
    }

    /// Follows the packet on the kernel's route.
    pub(super) fn finish(&mut self, route: &RouteFound) -> TraceEnd {
        match self.routed(route) {
            Way::Break(end) => end,
            // Every branch ends.
            Way::Continue(()) => TraceEnd::Undecided,
        }
    }

    fn routed(&mut self, route: &RouteFound) -> Way {
        let host = || Some(TraceObject::Host);
        let (interface, gateway, source) = match route {
            RouteFound::Local => {
                self.step("route", StepResult::Passed, host(), "the address is the host's own");
                self.hook("inet", "input")?;
                self.other_programs("input")?;
                return Way::Break(TraceEnd::Host);
            }
            RouteFound::None { detail } => return self.dropped("route", host(), detail),
            RouteFound::By { interface, gateway, source } => (interface, gateway, source),
        };
        let by_router = gateway.map(|router| format!(", to the router {router}")).unwrap_or_default();
        self.step("route", StepResult::Passed, host(), &format!("by interface {interface}{by_router}"));
        self.frame.leaves_by = interface.clone();
        if self.frame.now.to.is_ipv6() && !self.facts.is_ipv6_forwarded {
            return self.dropped("route", host(), "the host forwards no IPv6 packets");
        }
        self.hook("inet", "forward")?;
        self.other_programs("forward")?;
        self.hook_with_source("inet", "postrouting", *source)?;
        let relayed = interface.strip_prefix(OUTER_PREFIX).map(|rest| format!("{BRIDGE_PREFIX}{rest}"));
        if let Some(bridge) = relayed {
            self.note_encryption(&bridge);
            return Way::Break(TraceEnd::Tunnel { network: bridge, packet: self.frame.now });
        }
        if !interface.starts_with(BRIDGE_PREFIX) {
            return Way::Break(TraceEnd::Outside { interface: interface.clone(), packet: self.frame.now });
        }
        self.forwarded_into(interface)
    }

    /// Follows a packet from the host into a network.
    fn forwarded_into(&mut self, bridge: &str) -> Way {
        let to = self.frame.now.to;
        let target = self.port_of(bridge, to)?;
        let is_tunnelled = self.network(bridge).is_some_and(|network| network.tunnel.is_some());
        self.frame.by = String::new();
        self.frame.leaves_by = match &target {
            Some(port) => port.tap.clone(),
            None if is_tunnelled => tunnel::name_of(bridge),
            None => {
                let by = Some(TraceObject::Network { name: bridge.to_owned() });
                return self.dropped("neighbour", by, &format!("no guest of this host has {to}"));
            }
        };
        self.hook("bridge", "output")?;
        self.hook("bridge", "postrouting")?;
        self.arrive(bridge, target.as_ref())
    }

    /// The chains of other programs at a hook, which the packet has to pass too.
    fn other_programs(&mut self, hook: &str) -> Way {
        let family = if self.frame.now.to.is_ipv4() { "ip" } else { "ip6" };
        self.chains_of_others((family, hook), "the packet", |chain| chain.guests)
    }

    fn chains_of_others(
        &mut self,
        (family, hook): (&str, &str),
        packets: &str,
        drops: fn(&ForeignChain) -> Drops,
    ) -> Way {
        let facts = self.facts;
        let is_passed =
            |chain: &&ForeignChain| chain.hook == hook && ["inet", family].contains(&chain.family.as_str());
        let named = |wanted: Drops| {
            let chains = facts.foreign.iter().filter(is_passed).filter(|chain| drops(chain) == wanted);
            chains.map(|chain| chain.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let (all, not_accepted, selected) =
            (named(Drops::All), named(Drops::NotAccepted), named(Drops::Selected));
        let by = Some(TraceObject::OtherProgram);
        if !all.is_empty() {
            return self.dropped("other firewall", by, &format!("the chain {all} drops {packets}"));
        }
        if !not_accepted.is_empty() {
            let detail = format!(
                "the chain {not_accepted} drops {packets} unless one of its rules accepts that, and they are not evaluated"
            );
            return self.undecided("other firewall", by, &detail);
        }
        if !selected.is_empty() {
            let detail = format!("the chain {selected} gets {packets} too, and its rules are not evaluated");
            self.step("other firewall", StepResult::Note, by, &detail);
        }
        Way::Continue(())
    }

    fn hook(&mut self, family: &str, hook: &str) -> Way {
        self.hook_with_source(family, hook, None)
    }

    /// Evaluates the chains of a hook. `source`: the host's address on the interface that the packet leaves by.
    fn hook_with_source(&mut self, family: &str, hook: &str, source: Option<IpAddr>) -> Way {
        for hit in self.rules.at(family, hook, &self.frame) {
            self.decided(&hit, source)?;
        }
        Way::Continue(())
    }

    fn decided(&mut self, hit: &Hit, source: Option<IpAddr>) -> Way {
        let request = self.request;
        let (by, leaves_by) = (self.frame.by.clone(), self.frame.leaves_by.clone());
        let context = Context {
            groups: self.groups,
            filters: &request.firewall.filters,
            by: &by,
            leaves_by: &leaves_by,
            opened_to: self.frame.opened.to,
        };
        match &hit.decision {
            Decision::Accept => {
                if let Some(why) = explain::acceptance(hit, context) {
                    self.step(why.place, StepResult::Passed, why.by, &why.detail);
                }
                Way::Continue(())
            }
            Decision::Drop => {
                let why = explain::refusal(hit, context);
                self.dropped(why.place, why.by, &why.detail)
            }
            Decision::Reject => {
                let why = explain::refusal(hit, context);
                self.step(why.place, StepResult::Rejected, why.by, &why.detail);
                Way::Break(TraceEnd::Rejected)
            }
            Decision::Unknown => {
                let (family, chain) = (&hit.family, &hit.chain);
                let detail =
                    format!("a rule of chain {family} {chain} reads a part of the packet that is not given");
                self.undecided("rules of berth", None, &detail)
            }
            Decision::Destination { address, port, choices } => self.translated(address, *port, *choices),
            Decision::Source { address } => {
                self.under(address.parse().ok(), "the public address of the guest")
            }
            Decision::Masquerade => self.under(source, "the host's address on the interface"),
        }
    }

    fn translated(&mut self, address: &str, port: Option<u16>, choices: usize) -> Way {
        let by = Some(TraceObject::PublicAddress { address: self.frame.now.to });
        let Ok(address) = address.parse::<IpAddr>() else {
            return self.undecided("public address", by, "its rule leads to no address");
        };
        if !self.is_shown(address) {
            let detail =
                "it leads to a guest that is not of this namespace, whose address and rules are not shown";
            return self.undecided("public address", by, detail);
        }
        if choices > 1 && self.frame.preferred != Some(address) {
            let detail = "its connections go to one of several guests: trace to the private address of each";
            return self.undecided("public address", by, detail);
        }
        self.frame.now.to = address;
        let port = port.filter(|_| self.frame.now.protocol.has_ports());
        self.frame.now.port = port.unwrap_or(self.frame.now.port);
        let port = port.map(|port| format!(" port {port}")).unwrap_or_default();
        let of_several = match choices {
            0 | 1 => String::new(),
            _ => format!(", one of {choices} guests that get its connections"),
        };
        self.step("public address", StepResult::Rewritten, by, &format!("to {address}{port}{of_several}"));
        Way::Continue(())
    }

    fn under(&mut self, source: Option<IpAddr>, meaning: &str) -> Way {
        let detail = match source {
            Some(address) => format!("from {address}, {meaning}"),
            None => format!("from {meaning}"),
        };
        self.frame.now.from = source.unwrap_or(self.frame.now.from);
        self.step("source address", StepResult::Rewritten, Some(TraceObject::Host), &detail);
        Way::Continue(())
    }

    fn must_be_up(&mut self, link: &str) -> Way {
        match self.facts.link(link) {
            Some(found) if found.is_up => Way::Continue(()),
            Some(_) => {
                self.dropped("link", Some(TraceObject::Host), &format!("the link {link} of the host is down"))
            }
            None => self.dropped("link", Some(TraceObject::Host), &format!("the host has no link {link}")),
        }
    }

    fn step(&mut self, place: &str, result: StepResult, by: Option<TraceObject>, detail: &str) {
        self.steps.push(TraceStep { place: place.to_owned(), result, by, detail: detail.to_owned() });
    }

    fn dropped(&mut self, place: &str, by: Option<TraceObject>, detail: &str) -> Way {
        self.step(place, StepResult::Dropped, by, detail);
        Way::Break(TraceEnd::Dropped)
    }

    fn undecided(&mut self, place: &str, by: Option<TraceObject>, detail: &str) -> Way {
        self.step(place, StepResult::NotEvaluated, by, detail);
        Way::Break(TraceEnd::Undecided)
    }

    fn network(&self, bridge: &str) -> Option<&'a NetworkConfig> {
        self.request.networks.iter().find(|network| network.bridge == bridge)
    }

    fn is_bridged(&self, bridge: &str) -> bool {
        self.request.firewall.bridged.iter().any(|each| each == bridge)
    }

    /// Whether the guest with this address may be described. Of one on another host, only the network is known.
    fn is_shown(&self, address: IpAddr) -> bool {
        let request = self.request;
        let mut ports = request.firewall.ports.iter().filter(|port| has_address(port, address)).peekable();
        if ports.peek().is_some() {
            return ports.all(|port| request.shown_taps.contains(&port.tap));
        }
        let mut networks = request.networks.iter().filter(|network| is_within(network, address));
        networks.any(|network| request.shown_bridges.contains(&network.bridge))
    }

    /// The port of a bridge that has an address: its own, or one that it may send from beside that. Undecided if several may.
    fn port_of(&mut self, bridge: &str, address: IpAddr) -> ControlFlow<TraceEnd, Option<Port>> {
        let (firewall, facts) = (&self.request.firewall, self.facts);
        let is_beside = |port: &&Port| facts.bridge_of(&port.tap) == Some(bridge);
        let beside: Vec<&Port> = firewall.ports.iter().filter(is_beside).collect();
        if let Some(own) = beside.iter().find(|port| has_address(port, address)) {
            return ControlFlow::Continue(Some((*own).clone()));
        }
        // A range of more addresses is a router's, which has none of them itself.
        let has_exception = |port: &&Port| {
            let of_port = firewall.exceptions.iter().filter(|each| each.tap == port.tap);
            let mut ranges = of_port.flat_map(|each| &each.ranges);
            ranges.any(|range| range.prefix_len() == range.max_prefix_len() && range.addr() == address)
        };
        let mut excepted = beside.into_iter().filter(has_exception);
        match (excepted.next(), excepted.next()) {
            (found, None) => ControlFlow::Continue(found.cloned()),
            _ => {
                let detail = format!("several interfaces may have {address} by their allowed_addresses");
                self.undecided("neighbour", None, &detail).map_continue(|()| None)
            }
        }
    }
}

fn has_address(port: &Port, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => port.address == Some(address),
        IpAddr::V6(address) => port.ipv6 == Some(address) || link_local(&port.mac) == Some(address),
    }
}

/// Whether an address is reached on the link alone. Guests send packets to those of IPv4, such as a cloud's metadata service, to the gateway.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn is_within(network: &NetworkConfig, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => network.ipv4.is_some_and(|ipv4| ipv4.range.contains(&address)),
        IpAddr::V6(address) => network.ipv6.is_some_and(|ipv6| ipv6.prefix.contains(&address)),
    }
}

fn is_gateway(network: &NetworkConfig, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => network.ipv4.is_some_and(|ipv4| ipv4.gateway == address),
        IpAddr::V6(address) => {
            let own = link_local(&hardware_address(bridge_mac(&network.bridge)));
            own == Some(address) || network.ipv6.is_some_and(|ipv6| ipv6.gateway == address)
        }
    }
}
