//! Traces and real packets have the same end.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::filters::{FRIENDS, filters, firewall_with, group, guest, port, rule, tracked};
use super::guest::{Guest, serve_here};
use super::*;
use crate::{
    FilterProtocol, Filters, StepResult, Trace, TraceEnd, TraceObject, TraceProtocol, TraceRequest,
    TracedPacket,
};

const OUTSIDE: &str = "203.0.113.9";

/// The networks of the host as an agent knows them.
struct Known<'a> {
    f: &'a Fixture,
    firewall: Firewall,
    network: NetworkConfig,
}

impl Known<'_> {
    async fn trace(&self, last: u8, is_sent: bool, (from, to): (&str, &str), dport: u16) -> Trace {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let request = TraceRequest {
            tap: port(last).tap,
            down: BTreeSet::new(),
            shown_taps: self.firewall.ports.iter().map(|port| port.tap.clone()).collect(),
            shown_bridges: BTreeSet::from([BRIDGE.to_owned()]),
            is_sent,
            packet: TracedPacket {
                from: ip(from),
                to: ip(to),
                protocol: TraceProtocol::Tcp,
                port: dport,
                icmp_type: None,
            },
            firewall: self.firewall.clone(),
            networks: vec![self.network.clone()],
        };
        self.f.networks.trace(&request).await.expect("traced")
    }

    /// Compares the trace of a packet that a guest sends with a connection that it opens.
    async fn agrees(&self, (last, sender): (u8, &Guest), to: &'static str, dport: u16, passes: bool) {
        let from = match to.contains(':') {
            true => format!("fd00:60::{last}"),
            false => format!("10.77.0.{last}"),
        };
        let trace = self.trace(last, true, (&from, to), dport).await;
        assert_eq!(is_passed(&trace), passes, "{from} to {to} port {dport}: {trace:?}");
        assert_eq!(sender.connects(to, dport), passes, "{from} to {to} port {dport}, really");
    }

    /// The same for a packet that comes to the guest .2 from outside.
    async fn agrees_from(&self, outside: &Guest, to: &'static str, dport: u16, passes: bool) {
        let trace = self.trace(2, false, (OUTSIDE, to), dport).await;
        assert_eq!(is_passed(&trace), passes, "to {to} port {dport}: {trace:?}");
        assert_eq!(outside.connects(to, dport), passes, "to {to} port {dport}, really");
    }
}

fn is_passed(trace: &Trace) -> bool {
    matches!(trace.end, TraceEnd::Guest { .. } | TraceEnd::Host | TraceEnd::Outside { .. })
}

/// The group of the guest .2: friends on port 8080, a range outside on port 80, and everything out.
fn of_web() -> Filters {
    let rules = vec![
        rule(FilterProtocol::Tcp, &[(8080, 8080)], &[], &[FRIENDS]),
        rule(FilterProtocol::Tcp, &[(80, 80)], &["203.0.113.0/24", "fd00:60::4/128"], &[]),
    ];
    filters(Some(group(rules, None)), &[3])
}

#[test]
fn a_trace_and_a_connection_have_the_same_end() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let ipv6 = ipv6::ipv6(Egress::None);
        let network = NetworkConfig { ipv6, ..tracked() };
        let mut known = Known { f: &f, firewall: firewall_with(of_web()), network };
        known.firewall.nat[0].ipv6 = ipv6;
        f.networks.apply_firewall(&known.firewall).await.expect("rules");
        f.networks.ensure(&known.network).await.expect("made");
        let (web, friend, stranger) = (guest(2), guest(3), guest(4));
        let outside = Guest::beside("203.0.113.9/24", "203.0.113.1/24");
        for (machine, last) in [(&web, 2), (&friend, 3), (&stranger, 4)] {
            machine.on(move || ip(&format!("-6 addr add fd00:60::{last}/64 dev eth0 nodad")));
        }
        for port in [80, 8080, 9090] {
            web.serve6(port);
        }
        stranger.serve(70);
        outside.serve(7000);
        // Served on the host too, so that only its rules can be why a guest gets no connection.
        serve_here(7001);
        assert!(outside.connects("203.0.113.1", 7001), "served");

        known.agrees((3, &friend), "10.77.0.2", 8080, true).await;
        known.agrees((3, &friend), "10.77.0.2", 9090, false).await;
        known.agrees((4, &stranger), "10.77.0.2", 8080, false).await;
        known.agrees((2, &web), "10.77.0.4", 70, true).await;
        known.agrees((4, &stranger), "fd00:60::2", 80, true).await;
        known.agrees((3, &friend), "fd00:60::2", 80, false).await;
        known.agrees((2, &web), OUTSIDE, 7000, true).await;
        known.agrees((4, &stranger), OUTSIDE, 7000, true).await;
        known.agrees((4, &stranger), "10.77.0.1", 53, true).await;
        known.agrees((4, &stranger), "10.77.0.1", 7001, false).await;
        known.agrees((4, &stranger), "203.0.113.1", 7001, false).await;
        known.agrees_from(&outside, "198.51.100.7", 80, true).await;
        known.agrees_from(&outside, "198.51.100.7", 8080, false).await;
        known.agrees_from(&outside, "10.77.0.2", 80, false).await;

        // The network's way out is closed, and then the host's addresses outside.
        known.firewall.nat[0].ipv4.as_mut().expect("it has IPv4").egress = Egress::None;
        f.networks.apply_firewall(&known.firewall).await.expect("rules");
        known.agrees((4, &stranger), OUTSIDE, 7000, false).await;
        known.firewall.nat[0].ipv4.as_mut().expect("it has IPv4").egress = Egress::Masquerade;
        known.firewall.closed = vec!["203.0.113.0/24".parse().expect("a range")];
        f.networks.apply_firewall(&known.firewall).await.expect("rules");
        known.agrees((4, &stranger), OUTSIDE, 7000, false).await;
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn rules_that_are_not_those_of_berth_and_other_firewalls_are_steps_of_a_trace() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let known = Known { f: &f, firewall: firewall_with(of_web()), network: tracked() };
        f.networks.apply_firewall(&known.firewall).await.expect("rules");
        f.networks.ensure(&known.network).await.expect("made");
        let (web, friend) = (guest(2), guest(3));
        let to_web = ("10.77.0.3", "10.77.0.2");
        assert!(is_passed(&known.trace(3, true, to_web, 8080).await));

        run("nft", "add chain inet berth another");
        let changed = known.trace(3, true, to_web, 8080).await;
        assert_eq!(changed.end, TraceEnd::Undecided, "{changed:?}");
        assert!(changed.steps[0].detail.contains("not what berth installed"), "{changed:?}");
        run("nft", "flush ruleset");
        let missing = known.trace(3, true, to_web, 8080).await;
        assert_eq!(missing.end, TraceEnd::Undecided, "{missing:?}");
        assert!(missing.steps[0].detail.contains("none of berth's rules"), "{missing:?}");
        f.networks.apply_firewall(&known.firewall).await.expect("written again");
        assert!(is_passed(&known.trace(3, true, to_web, 8080).await));

        run("nft", "add table inet other");
        run("nft", "add chain inet other forward { type filter hook forward priority 0 ; policy drop ; }");
        let foreign = known.trace(3, true, to_web, 8080).await;
        let last = foreign.steps.last().expect("a step");
        assert_eq!((last.result, last.by.clone()), (StepResult::Dropped, Some(TraceObject::OtherProgram)));
        assert!(last.detail.contains("inet other forward"), "{foreign:?}");
        friend.serve(70);
        assert!(!web.connects("10.77.0.3", 70), "really");
        run("nft", "delete table inet other");

        ip(&format!("link set {} down", port(2).tap));
        let down = known.trace(3, true, to_web, 8080).await;
        assert_eq!(down.steps.last().map(|step| step.place.as_str()), Some("link"), "{down:?}");
        let spoofed = known.trace(3, true, ("10.77.0.4", "10.77.0.2"), 8080).await;
        assert_eq!(spoofed.steps.last().map(|step| step.place.as_str()), Some("source check"), "{spoofed:?}");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}
