//! The addresses that guests send from, where others than berth give them out.

use super::bridged::{lan, part};
use super::spoofing::{arp, ethernet, ipv6, link_local, mark};
use super::*;
use crate::{ObservedPort, Port, PortException};

const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;

fn mac(last: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, last]
}

fn tap(last: u8) -> String {
    format!("btt0000000{last}n0")
}

/// The guests 3 and 4, which take any address; the addresses of these are read.
fn rules(observed: &[u8]) -> Firewall {
    let port = |last: u8| Port { tap: tap(last), mac: lease(last).mac, address: None, ipv6: None };
    let any = |last: u8| PortException {
        tap: tap(last),
        ranges: vec!["0.0.0.0/0".parse().expect("a range"), "::/0".parse().expect("a range")],
        macs: Vec::new(),
        gateways: Vec::new(),
    };
    let observed =
        observed.iter().map(|last| ObservedPort { tap: tap(*last), ipv4: true, ipv6: true, chosen: None });
    Firewall {
        bridged: vec![BRIDGE.to_owned()],
        ports: vec![port(3), port(4)],
        exceptions: vec![any(3), any(4)],
        observed: observed.collect(),
        guests: true,
        ..Firewall::default()
    }
}

/// A question by ARP from an address, for a MAC address.
fn question(from: u8, about: [u8; 6], address: &str) -> Vec<u8> {
    ethernet(mac(from), ARP, &arp(1, about, address.parse().expect("an address")))
}

fn solicitation(from: u8, source: Ipv6Addr) -> Vec<u8> {
    let target = link_local(9).octets();
    let message = [&[SOLICITATION, 0, 0, 0, 0, 0, 0, 0][..], &target].concat();
    [&ethernet(mac(from), IPV6, &ipv6(source, ICMPV6, &message))[..], &mark("solicitation")].concat()
}

async fn seen(host: &Fixture, last: u8) -> Vec<String> {
    let seen = host.networks.seen_addresses().await.expect("listed");
    seen.get(&tap(last)).into_iter().flatten().map(ToString::to_string).collect()
}

/// Sends the frames until the last of the addresses is seen; returns what is seen then.
async fn seen_after(host: &Fixture, guest: (&Guest, u8), frames: &[Vec<u8>], until: &str) -> Vec<String> {
    for _ in 0..40 {
        // A new port of a bridge forwards after a moment.
        frames.iter().for_each(|frame| guest.0.inject(frame.clone()));
        let seen = seen(host, guest.1).await;
        if seen.iter().any(|address| address == until) {
            return seen;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    panic!("{until} is not seen");
}

#[test]
fn addresses_that_guests_take_themselves_are_seen_by_their_taps_and_stay_known_while_rules_change() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let _machine = lan();
        host.networks.apply_firewall(&rules(&[3])).await.expect("rules");
        host.networks.ensure_bridged(&part(false)).await.expect("made");
        let (guest, other) = (Guest::by_tap(BRIDGE, &tap(3), 3), Guest::by_tap(BRIDGE, &tap(4), 4));
        let frames = [
            question(3, mac(4), "192.0.2.66"),
            question(3, mac(3), "0.0.0.0"),
            solicitation(3, link_local(3)),
            question(3, mac(3), "192.0.2.77"),
            solicitation(3, "2001:db8:7::77".parse().expect("an address")),
        ];
        let known = ["192.0.2.77", "2001:db8:7::77"];
        assert_eq!(seen_after(&host, (&guest, 3), &frames, known[1]).await, known, "not what is dropped");

        host.networks.apply_firewall(&rules(&[3, 4])).await.expect("rules");
        assert_eq!(seen(&host, 3).await, known, "kept");
        let frames = [question(4, mac(4), "192.0.2.78")];
        assert_eq!(seen_after(&host, (&other, 4), &frames, "192.0.2.78").await, ["192.0.2.78"]);

        host.networks.apply_firewall(&rules(&[4])).await.expect("rules");
        assert_eq!((seen(&host, 3).await.len(), seen(&host, 4).await.len()), (0, 1));
        host.networks.apply_firewall(&Firewall::default()).await.expect("removed");
        assert!(host.networks.seen_addresses().await.expect("listed").is_empty());
        host.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn a_guest_that_sends_from_any_number_of_addresses_has_no_more_than_sixteen_of_each_family() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let _machine = lan();
        host.networks.apply_firewall(&rules(&[3])).await.expect("rules");
        host.networks.ensure_bridged(&part(false)).await.expect("made");
        let guest = Guest::by_tap(BRIDGE, &tap(3), 3);
        seen_after(&host, (&guest, 3), &[question(3, mac(3), "192.0.2.1")], "192.0.2.1").await;
        (2..100).for_each(|last| guest.inject(question(3, mac(3), &format!("192.0.2.{last}"))));
        let count = seen(&host, 3).await.len();
        assert!((1..=16).contains(&count), "{count}");
        host.networks.remove(BRIDGE).await.expect("removed");
    });
}
