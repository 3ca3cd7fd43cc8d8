//! The leases of a bridged network's DHCP server, as its host reads them.

use super::super::snooping::ack::tests::{MAC, ack};
use super::bridged::{lan, part, reaches};
use super::*;
use crate::Port;

const TAP: &str = "btt00000003n0";
const LEASED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
/// The MAC address of a guest that asks for nothing.
const OTHER_MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 4];
const MADE_UP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 66);

fn rules(lease: Option<Ipv4Addr>) -> Firewall {
    let port = Port { tap: TAP.to_owned(), mac: hardware_address(MAC), address: lease, ipv6: None };
    Firewall { bridged: vec![BRIDGE.to_owned()], ports: vec![port], guests: true, ..Firewall::default() }
}

fn listening() -> BridgedNetwork {
    BridgedNetwork { leased: vec![hardware_address(MAC), hardware_address(OTHER_MAC)], ..part(false) }
}

/// An answer about the other guest, as this machine would send it.
fn forged(sender: [u8; 6]) -> Vec<u8> {
    let mut frame = ack(OTHER_MAC, MADE_UP, 3600);
    frame[6..12].copy_from_slice(&sender);
    frame
}

/// The frame with a VLAN tag.
fn tagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, 10], &frame[12..]].concat()
}

/// Has the machine send the frames until the host has read a lease.
async fn heard_after(host: &Fixture, machine: &Guest, frames: &[Vec<u8>]) {
    for _ in 0..40 {
        // A new port of a bridge forwards after a moment.
        frames.iter().for_each(|frame| machine.inject(frame.clone()));
        let heard = host.networks.external_leases_changed();
        if tokio::time::timeout(Duration::from_millis(250), heard).await.is_ok() {
            return;
        }
    }
    panic!("no lease is read");
}

#[test]
fn a_guest_sends_from_the_lease_that_its_host_has_read_and_no_guest_forges_one() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        host.networks.apply_firewall(&rules(None)).await.expect("rules");
        host.networks.ensure_bridged(&listening()).await.expect("made");
        let guest = Guest::by_tap(BRIDGE, TAP, 3);
        guest.on(|| ip("addr add 192.0.2.77/24 dev eth0"));
        assert!(!reaches(&guest, "192.0.2.9"), "it has no lease");
        // The guest's answers are kept from the network, and where they are not, they go out by the port.
        guest.inject(forged(MAC));
        run("nft", "flush chain bridge berth guests");
        guest.inject(forged(MAC));
        let frames = [tagged(&forged([2, 0, 0, 0, 0, 1])), ack(MAC, LEASED, 3600)];
        heard_after(&host, &machine, &frames).await;
        let leases = host.networks.external_leases().await.expect("listed");
        let expected =
            ExternalLease { bridge: BRIDGE.to_owned(), mac: hardware_address(MAC), address: LEASED };
        assert_eq!(leases, [expected]);
        let later = LinuxNetworks::new(host.layout.clone());
        assert_eq!(later.external_leases().await.expect("listed"), leases, "after a restart");

        host.networks.apply_firewall(&rules(Some(LEASED))).await.expect("rules");
        assert!(reaches(&guest, "192.0.2.9"), "from its lease");
        guest.on(|| {
            ip("addr del 192.0.2.77/24 dev eth0");
            ip("addr add 192.0.2.66/24 dev eth0");
        });
        assert!(!reaches(&guest, "192.0.2.9"), "from another address");

        host.networks.ensure_bridged(&part(false)).await.expect("without leases");
        assert!(host.networks.external_leases().await.expect("listed").is_empty());
        host.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn leases_are_read_again_after_the_port_was_made_again_and_go_with_the_network() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        host.networks.apply_firewall(&rules(None)).await.expect("rules");
        host.networks.ensure_bridged(&listening()).await.expect("made");
        ip("link del btu-0a1b2c3d");
        host.networks.ensure_bridged(&listening()).await.expect("made again");
        heard_after(&host, &machine, &[ack(MAC, LEASED, 3600)]).await;
        assert_eq!(host.networks.external_leases().await.expect("listed").len(), 1);
        let file = host.layout.networks().join("leases.json");
        assert!(file.exists());
        host.networks.remove(BRIDGE).await.expect("removed");
        assert!(!file.exists() && host.networks.external_leases().await.expect("listed").is_empty());
    });
}
