//! Guests that choose the identifiers of their IPv6 addresses: the first one that claims an address has it.

use std::sync::mpsc::Receiver;

use super::spoofing::{UDP, ethernet, ipv6, link_local, mark, udp};
use super::*;
use crate::{ChosenAddresses, ObservedPort, Port, PortException};

const IPV6: u16 = 0x86dd;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// The name of the tunnel of the bridge: frames that come by it are those of another host.
const TUNNEL: &str = "btx-0a1b2c3d";

fn address(text: &str) -> Ipv6Addr {
    text.parse().expect("an address")
}

fn formed(last: u8) -> Ipv6Addr {
    address(&format!("fd00:60::5054:ff:fe00:{last:x}"))
}

fn tap(last: u8) -> String {
    format!("btt0000000{last}n0")
}

fn rules(guests: &[u8]) -> Firewall {
    let prefix: Ipv6Net = "fd00:60::/64".parse().expect("a prefix");
    let port = |last: &u8| Port {
        tap: tap(*last),
        mac: lease(*last).mac,
        address: lease(*last).address,
        ipv6: Some(formed(*last)),
    };
    let exception = |last: &u8| PortException {
        tap: tap(*last),
        ranges: vec!["fd00:60::/64".parse().expect("a range"), "fe80::/64".parse().expect("a range")],
        macs: Vec::new(),
        gateways: vec![address("fd00:60::1").into()],
    };
    let observed = |last: &u8| ObservedPort {
        tap: tap(*last),
        chosen: Some(ChosenAddresses {
            bridge: BRIDGE.to_owned(),
            prefix,
            own: vec![link_local((*last).into()), formed(*last)],
        }),
        ..ObservedPort::default()
    };
    Firewall {
        ports: guests.iter().map(port).collect(),
        exceptions: guests.iter().map(exception).collect(),
        observed: guests.iter().map(observed).collect(),
        guests: true,
        ..firewall(&[])
    }
}

fn frame(from: u8, packet: &[u8]) -> Vec<u8> {
    ethernet([0x52, 0x54, 0, 0, 0, from], IPV6, packet)
}

fn discovery(from: u8, source: Ipv6Addr, kind: u8, about: Ipv6Addr) -> Vec<u8> {
    let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &about.octets()].concat();
    frame(from, &ipv6(source, ICMPV6, &message))
}

/// The detection of duplicates.
fn probe(from: u8, about: Ipv6Addr) -> Vec<u8> {
    discovery(from, Ipv6Addr::UNSPECIFIED, SOLICITATION, about)
}

fn data(from: u8, source: Ipv6Addr) -> Vec<u8> {
    frame(from, &ipv6(source, UDP, &udp(9, 9, &[])))
}

/// Whether a frame arrives before the next one, which is honest.
fn passes(from: &Guest, inbox: &Receiver<Vec<u8>>, (last, frame): (u8, Vec<u8>)) -> bool {
    while inbox.try_recv().is_ok() {}
    from.inject([&frame[..], &mark("the frame")].concat());
    from.inject([&data(last, formed(last))[..], &mark("the last")].concat());
    let mut has_passed = false;
    while let Ok(frame) = inbox.recv_timeout(Duration::from_secs(3)) {
        if frame.ends_with(&mark("the last")) {
            return has_passed;
        }
        has_passed |= frame.ends_with(&mark("the frame"));
    }
    panic!("an honest frame did not arrive");
}

/// Waits until the bridge forwards: a new port does after a moment.
fn connected(from: &Guest, last: u8, inbox: &Receiver<Vec<u8>>) {
    for _ in 0..40 {
        from.inject([&data(last, formed(last))[..], &mark("the first")].concat());
        let arrived = inbox.recv_timeout(Duration::from_millis(250));
        if arrived.is_ok_and(|frame| frame.ends_with(&mark("the first"))) {
            return;
        }
    }
    panic!("nothing arrives");
}

#[test]
fn an_address_is_that_of_the_first_guest_that_claims_it_on_whichever_host() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        host.networks.apply_firewall(&rules(&[5, 6])).await.expect("rules");
        host.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.expect("made");
        let (one, two) = (Guest::by_tap(BRIDGE, &tap(5), 5), Guest::by_tap(BRIDGE, &tap(6), 6));
        let far = Guest::by_tap(BRIDGE, TUNNEL, 7);
        let (by_one, by_two) = (one.frames(), two.frames());
        connected(&one, 5, &by_two);
        connected(&two, 6, &by_one);
        connected(&far, 7, &by_two);
        let chosen = address("fd00:60::1234:5678:9abc:def0");
        let from_one = |frame: Vec<u8>| passes(&one, &by_two, (5, frame));
        let from_two = |frame: Vec<u8>| passes(&two, &by_one, (6, frame));
        let from_far = |frame: Vec<u8>| passes(&far, &by_two, (7, frame));
        assert!(!from_one(data(5, chosen)), "before it is claimed");
        assert!(from_one(probe(5, chosen)), "the claim");
        assert!(from_one(data(5, chosen)));
        for (what, frame) in [
            ("a probe", probe(6, chosen)),
            ("an advertisement", discovery(6, link_local(6), ADVERTISEMENT, chosen)),
            ("a solicitation from it", discovery(6, chosen, SOLICITATION, formed(5))),
            ("a packet from it", data(6, chosen)),
            ("the address of another MAC address", probe(6, formed(9))),
            ("the gateway", probe(6, address("fd00:60::1"))),
            ("an address of hosts", probe(6, address("fd00:60::9:9"))),
        ] {
            assert!(!from_two(frame), "{what}");
        }
        assert!(!from_far(discovery(7, chosen, ADVERTISEMENT, chosen)), "from another host");
        let stable = address("fe80::aaaa:bbbb:cccc:dddd");
        assert!(from_two(discovery(6, stable, SOLICITATION, formed(5))), "a link-local address");

        // Claimed on another host, and then used here by the guest that has moved.
        let moved = address("fd00:60::7777:0:0:1");
        assert!(from_far(probe(7, moved)));
        assert!(!from_one(probe(5, moved)));
        let seen = host.networks.seen_addresses().await.expect("listed");
        let has = |last: u8, address: Ipv6Addr| seen[&tap(last)].contains(&IpAddr::V6(address));
        assert!(has(5, chosen) && !has(5, moved), "{seen:?}");
        ip(&format!("link set {} nomaster", tap(6)));
        host.networks.apply_firewall(&rules(&[5, 7])).await.expect("rules");
        let guest = Guest::by_tap(BRIDGE, &tap(7), 7);
        connected(&guest, 7, &by_one);
        assert!(passes(&guest, &by_one, (7, data(7, moved))), "at once");
        let again = guest.frames();
        assert!(passes(&one, &again, (5, data(5, chosen))), "kept while rules change");

        ip(&format!("link del {TUNNEL}"));
        host.networks.remove(BRIDGE).await.expect("removed");
        host.networks.apply_firewall(&Firewall::default()).await.expect("removed");
        assert_eq!(run("nft", "list ruleset"), "");
    });
}

#[test]
fn a_guest_has_no_more_than_sixteen_addresses_at_a_time() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        host.networks.apply_firewall(&rules(&[5, 6])).await.expect("rules");
        host.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.expect("made");
        let (one, two) = (Guest::by_tap(BRIDGE, &tap(5), 5), Guest::by_tap(BRIDGE, &tap(6), 6));
        let inbox = two.frames();
        connected(&one, 5, &inbox);
        let claims = |number: u8| {
            passes(&one, &inbox, (5, probe(5, address(&format!("fd00:60::9999:0:0:{number:x}")))))
        };
        let claimed = (1..=24).filter(|number| claims(*number)).count();
        assert!((8..=16).contains(&claimed), "{claimed}");
        assert!(passes(&one, &inbox, (5, data(5, formed(5)))), "it keeps its own");
        host.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn the_table_of_claims_is_missed_at_once_while_a_guest_chooses() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let lost = async |wait| {
            tokio::time::timeout(Duration::from_millis(wait), host.networks.firewall_removed()).await
        };
        assert!(lost(10).await.is_err(), "it listens");
        host.networks.apply_firewall(&rules(&[5])).await.expect("written");
        host.networks.apply_firewall(&rules(&[5, 6])).await.expect("changed");
        assert!(lost(400).await.is_err(), "no removal");
        run("nft", "delete table bridge berth_senders");
        assert!(matches!(lost(1000).await, Ok(Ok(()))), "another program has removed it");
        host.networks.apply_firewall(&rules(&[5, 6])).await.expect("written again");
        assert!(run("nft", "list table bridge berth_senders").contains(&format!("from_{}", tap(6))));
        host.networks.apply_firewall(&rules(&[])).await.expect("no guest chooses");
        assert!(lost(400).await.is_err(), "berth itself has removed it");
    });
}

#[test]
fn a_removal_is_missed_also_where_the_kernel_drops_its_messages() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let lost = async |wait| {
            tokio::time::timeout(Duration::from_millis(wait), host.networks.firewall_removed()).await
        };
        assert!(lost(10).await.is_err(), "it listens");
        host.networks.apply_firewall(&rules(&[5])).await.expect("written");
        assert!(lost(400).await.is_err(), "no removal");
        let rule = "add rule inet other many ip saddr 192.0.2.1 ip daddr 192.0.2.2 accept\n";
        let many = format!("add table inet other\nadd chain inet other many\n{}", rule.repeat(2000));
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().to_str().expect("a path");
        // More messages than the buffer of a socket has room for.
        std::fs::write(path, &many).expect("written");
        run("nft", &format!("-f {path}"));
        assert!(lost(1000).await.is_err(), "rules of another program");
        for table in ["inet berth", "bridge berth", "bridge berth_senders"] {
            std::fs::write(path, format!("{many}delete table {table}\n")).expect("written");
            run("nft", &format!("-f {path}"));
            assert!(matches!(lost(2000).await, Ok(Ok(()))), "{table}");
            host.networks.apply_firewall(&rules(&[5])).await.expect("written again");
            assert!(lost(400).await.is_err(), "{table} is there again");
        }
    });
}

#[test]
fn a_removal_is_missed_also_while_another_program_goes_on_changing_rules() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let lost = async |wait| {
            tokio::time::timeout(Duration::from_millis(wait), host.networks.firewall_removed()).await
        };
        assert!(lost(10).await.is_err(), "it listens");
        host.networks.apply_firewall(&rules(&[5])).await.expect("written");
        assert!(lost(400).await.is_err(), "no removal");
        let change = "nft add table inet other; nft delete table inet other; sleep 0.02";
        let script = format!("nft delete table inet berth; for n in $(seq 500); do {change}; done");
        let mut writer = Command::new("sh").args(["-c", &script]).spawn().expect("a shell");
        let found = lost(5000).await;
        writer.kill().expect("ended");
        writer.wait().expect("ended");
        assert!(matches!(found, Ok(Ok(()))), "{found:?}");
    });
}
