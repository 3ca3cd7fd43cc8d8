//! Names on bridged networks, from a real dnsmasq at an address that the network sees nothing of.

use super::bridged::{lan, part, reaches};
use super::dns::{self, A, Answer, PTR};
use super::*;
use crate::{BridgedNames, NameRecord, Names, Port};

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);
const TAP: &str = "btt00000002n0";
const ARP: [u8; 2] = [0x08, 0x06];

fn rules() -> Firewall {
    let address = "192.0.2.50".parse().ok();
    let port = Port { tap: TAP.to_owned(), mac: "52:54:00:00:00:02".to_owned(), address, ipv6: None };
    Firewall {
        bridged: vec![BRIDGE.to_owned()],
        ports: vec![port],
        name_servers: vec![(BRIDGE.to_owned(), SERVER)],
        guests: true,
        ..Firewall::default()
    }
}

fn named(address: &str) -> BridgedNetwork {
    let record = NameRecord { name: "web".to_owned(), address: address.parse().expect("an address") };
    let names = Names { domain: "lan.example.org".to_owned(), is_searched: false, records: vec![record] };
    let range = "192.0.2.0/24".parse().expect("a range");
    BridgedNetwork { names: Some(BridgedNames { address: SERVER, range, names }), ..part(false) }
}

fn ask(machine: &Guest, name: &'static str, kind: u16) -> Option<Answer> {
    machine.on(move || dns::ask(SERVER, name, kind))
}

/// Asks until the answer has this record: a new port of a bridge forwards after a moment, and dnsmasq reads its names after it was
/// notified.
fn answers(machine: &Guest, name: &'static str, kind: u16, record: &str) -> bool {
    let is_it = |answer: Answer| answer.records == [record];
    (0..20).any(|_| {
        let is_answered = ask(machine, name, kind).is_some_and(is_it);
        if !is_answered {
            std::thread::sleep(Duration::from_millis(100));
        }
        is_answered
    })
}

/// Whether a frame is a question or an answer of ARP that has the address of the name server.
fn is_about_server(frame: &[u8]) -> bool {
    let part = |at: usize| frame.get(at..at + 4) == Some(&SERVER.octets()[..]);
    frame.get(12..14) == Some(&ARP[..]) && (part(28) || part(38))
}

#[test]
fn guests_and_the_host_find_names_at_an_address_that_the_network_sees_nothing_of() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        host.networks.apply_firewall(&rules()).await.expect("rules");
        host.networks.ensure_bridged(&named("192.0.2.50")).await.expect("made");
        let heard = machine.frames();
        let guest = Guest::by_tap(BRIDGE, TAP, 2);
        guest.on(|| ip("addr add 192.0.2.50/24 dev eth0"));
        assert!(answers(&guest, "web.lan.example.org", A, "192.0.2.50"));
        assert!(answers(&guest, "50.2.0.192.in-addr.arpa", PTR, "web.lan.example.org"));
        assert!(reaches(&guest, "192.0.2.9") && reaches(&guest, "192.0.2.1"), "as before");
        let of_host = blocking(|| dns::ask(SERVER, "web.lan.example.org", A)).await;
        assert_eq!(of_host.expect("an answer").records, ["192.0.2.50"]);
        assert!(!heard.try_iter().any(|frame| is_about_server(&frame)), "neither questions nor answers");
        assert_eq!(ask(&machine, "web.lan.example.org", A).map(|answer| answer.records), None);
        assert!(!reaches(&machine, "192.0.2.53"));

        host.networks.ensure_bridged(&named("192.0.2.51")).await.expect("changed");
        assert!(answers(&guest, "web.lan.example.org", A, "192.0.2.51"));
        assert!(ip("rule list").contains("192.0.2.53"));
        host.networks.ensure_bridged(&part(false)).await.expect("without names");
        assert!(!ip("rule list").contains("192.0.2.53"));
        assert!(!ip(&format!("addr show dev {BRIDGE}")).contains("inet"));
        assert!(ask(&guest, "web.lan.example.org", A).is_none());
        assert!(!host.layout.network(BRIDGE).exists());

        host.networks.ensure_bridged(&named("192.0.2.50")).await.expect("again");
        host.networks.remove(BRIDGE).await.expect("removed");
        assert!(!ip("rule list").contains("192.0.2.53"));
        assert!(!host.layout.network(BRIDGE).exists());
    });
}

#[test]
fn the_network_sees_nothing_of_the_name_server_while_no_guest_runs() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        let without_guests = Firewall { ports: Vec::new(), guests: false, ..rules() };
        host.networks.apply_firewall(&without_guests).await.expect("rules");
        host.networks.ensure_bridged(&named("192.0.2.50")).await.expect("made");
        assert!(reaches(&machine, "192.0.2.1"), "the host itself");
        assert!(!reaches(&machine, "192.0.2.53"));
        host.networks.remove(BRIDGE).await.expect("removed");
        host.networks.apply_firewall(&Firewall::default()).await.expect("removed");
        assert_eq!(run("nft", "list ruleset"), "");
    });
}
