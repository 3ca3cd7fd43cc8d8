//! IPv6 on bridged networks: addresses that berth gives out, and those of the network's own routers.

use std::sync::mpsc::Receiver;

use super::bridged::{lan, part};
use super::spoofing::{UDP, ethernet, ipv6, link_local, mark, udp};
use super::*;
use crate::{Port, PortException};

const IPV6: u16 = 0x86dd;
const ICMPV6: u8 = 58;
/// The machine of the host's network, which is its router.
const ROUTER: u8 = 9;
const LAST: &str = "the last";

pub(super) fn mac(last: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, last]
}

fn port(last: u8, ipv6: Option<&str>) -> Port {
    Port {
        tap: format!("btt0000000{last}n0"),
        mac: lease(last).mac,
        address: None,
        ipv6: ipv6.map(|text| text.parse().expect("an address")),
    }
}

/// The guest 5 has an address that berth gives out; with `is_external`, one that it forms itself.
fn rules(is_external: bool) -> Firewall {
    let any = PortException {
        tap: port(5, None).tap,
        ranges: vec!["::/0".parse().expect("a range")],
        macs: Vec::new(),
        gateways: Vec::new(),
    };
    Firewall {
        bridged: vec![BRIDGE.to_owned()],
        advertised: if is_external { vec![BRIDGE.to_owned()] } else { Vec::new() },
        ports: vec![port(5, Some("2001:db8:7::50").filter(|_| !is_external))],
        exceptions: if is_external { vec![any] } else { Vec::new() },
        guests: true,
        ..Firewall::default()
    }
}

pub(super) fn address(text: &str) -> Ipv6Addr {
    text.parse().expect("an address")
}

pub(super) fn frame(from: u8, source: Ipv6Addr, payload: &[u8], what: &str) -> Vec<u8> {
    [&ethernet(mac(from), IPV6, &ipv6(source, ICMPV6, payload))[..], &mark(what)].concat()
}

pub(super) fn about(kind: u8, target: Ipv6Addr) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat()
}

/// An honest frame from the link-local address of a machine.
fn honest(from: u8) -> Vec<u8> {
    let datagram = ipv6(link_local(from.into()), UDP, &udp(9, 9, &[]));
    [&ethernet(mac(from), IPV6, &datagram)[..], &mark(LAST)].concat()
}

/// Sends the frames, then an honest one until it arrives; returns those that arrived.
pub(super) fn arrived(
    from: (&Guest, u8),
    inbox: &Receiver<Vec<u8>>,
    cases: &[(&'static str, Vec<u8>)],
) -> Vec<&'static str> {
    // A new port of a bridge forwards after a moment.
    let is_last = |frame: &Vec<u8>| frame.ends_with(&mark(LAST));
    let hears = |_| {
        from.0.inject(honest(from.1));
        std::iter::from_fn(|| inbox.recv_timeout(Duration::from_millis(500)).ok())
            .take(64)
            .any(|f| is_last(&f))
    };
    assert!((0..20).any(hears), "no honest frame arrives");
    for (_, frame) in cases {
        from.0.inject(frame.clone());
    }
    from.0.inject(honest(from.1));
    let mut arrived = Vec::new();
    while let Ok(frame) = inbox.recv_timeout(Duration::from_secs(3)) {
        if is_last(&frame) {
            return arrived;
        }
        arrived.extend(cases.iter().map(|(what, _)| *what).filter(|what| frame.ends_with(&mark(what))));
    }
    panic!("the last frame did not arrive; before it: {arrived:?}");
}

fn advertisement() -> Vec<(&'static str, Vec<u8>)> {
    let advertisement = [134, 0, 0, 0, 0, 0, 0, 0];
    vec![(
        "router advertisement",
        frame(ROUTER, link_local(ROUTER.into()), &advertisement, "router advertisement"),
    )]
}

/// Frames that the guest sends under addresses that are not known to be its own, and as a router.
fn claims() -> Vec<(&'static str, Vec<u8>)> {
    let other = address("2001:db8:7::77");
    let own = link_local(5);
    let case = |what: &'static str, source, payload: &[u8]| (what, frame(5, source, payload, what));
    vec![
        case("from another address", other, &about(135, other)),
        case("advertisement of another address", own, &about(136, other)),
        case("probe for another address", Ipv6Addr::UNSPECIFIED, &about(135, other)),
        case("as a router", own, &[134, 0, 0, 0, 0, 0, 0, 0]),
        case("redirect", own, &about(137, other)),
    ]
}

async fn run_with(is_external: bool) -> (Vec<&'static str>, Vec<&'static str>) {
    let host = Fixture::new();
    let machine = lan();
    host.networks.apply_firewall(&rules(is_external)).await.expect("rules");
    host.networks.ensure_bridged(&part(false)).await.expect("made");
    let guest = Guest::by_tap(BRIDGE, &port(5, None).tap, 5);
    let heard = arrived((&machine, ROUTER), &guest.frames(), &advertisement());
    let sent = arrived((&guest, 5), &machine.frames(), &claims());
    host.networks.remove(BRIDGE).await.expect("removed");
    (heard, sent)
}

#[test]
fn a_guest_with_a_given_address_hears_no_router_and_sends_from_no_other_address() {
    in_own_namespace(|| async {
        assert_eq!(run_with(false).await, (Vec::new(), Vec::new()));
    });
}

#[test]
fn a_guest_of_the_networks_routers_hears_them_takes_any_address_and_is_no_router_itself() {
    in_own_namespace(|| async {
        let (heard, sent) = run_with(true).await;
        assert_eq!(heard, ["router advertisement"]);
        let passes =
            ["from another address", "advertisement of another address", "probe for another address"];
        assert_eq!(sent, passes);
    });
}

#[test]
fn a_machine_of_the_lan_that_has_an_ipv6_address_is_found_before_a_guest_takes_it() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        machine.on(|| ip("-6 addr add 2001:db8:7::9/64 dev eth0 nodad"));
        for (address, is_taken) in [("2001:db8:7::9", true), ("2001:db8:7::51", false)] {
            let address = address.parse().expect("an address");
            let mut found = None;
            // A new port of the bridge forwards after a moment.
            for _ in 0..5 {
                found = host.networks.occupant("vmbr0", address).await.expect("asked");
                if found.is_some() || !is_taken {
                    break;
                }
            }
            assert_eq!(found.is_some(), is_taken, "{address}: {found:?}");
        }
    });
}
