//! DHCPv6 that a host answers for its own guests on a bridged network, which hears nothing of it.

use std::sync::mpsc::Receiver;

use super::super::bridged_dhcp6::message::tests::{
    MAC, answered, asks, guest as served_guest, solicits_router,
};
use super::bridged::{lan, part};
use super::bridged_ipv6::arrived;
use super::*;
use crate::Port;

const SOLICIT: u8 = 1;
const ADVERTISE: u8 = 2;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;

fn rules() -> Firewall {
    let served = served_guest();
    let port = Port { tap: served.tap.clone(), mac: served.mac, address: None, ipv6: Some(served.address) };
    Firewall {
        bridged: vec![BRIDGE.to_owned()],
        ports: vec![port],
        answered_ipv6: vec![served.tap],
        guests: true,
        ..Firewall::default()
    }
}

fn serving() -> BridgedNetwork {
    BridgedNetwork { served_ipv6: vec![served_guest()], ..part(false) }
}

/// Whether a frame is a message of ICMPv6 of this type.
fn is_message(frame: &[u8], kind: u8) -> bool {
    frame.get(12..14) == Some(&[0x86, 0xdd][..]) && frame.get(20) == Some(&58) && frame.get(54) == Some(&kind)
}

/// Whether the machine hears a frame of this kind soon after the guest has sent its request, which it repeats. The host answers meanwhile.
async fn hears(
    inbox: &Receiver<Vec<u8>>,
    guest: &Guest,
    request: &[u8],
    is_it: impl Fn(&[u8]) -> bool,
) -> bool {
    for _ in 0..10 {
        guest.inject(request.to_vec());
        tokio::time::sleep(Duration::from_millis(100)).await;
        if inbox.try_iter().any(|frame| is_it(&frame)) {
            return true;
        }
    }
    false
}

#[test]
fn a_host_gives_its_own_guest_its_ipv6_address_and_names_the_router_to_it_alone() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        host.networks.apply_firewall(&rules()).await.expect("rules");
        host.networks.ensure_bridged(&serving()).await.expect("made");
        let served = served_guest();
        let guest = Guest::by_tap(BRIDGE, &served.tap, MAC[5]);
        host.networks.ensure_bridged(&serving()).await.expect("with its tap");
        // Until the ports forward, the network hears nothing in any case.
        assert!(arrived((&guest, MAC[5]), &machine.frames(), &[]).is_empty());

        let (heard, inbox) = (machine.frames(), guest.frames());
        let is_lease = |frame: &[u8]| {
            answered(frame).is_some_and(|(kind, addresses)| {
                kind == ADVERTISE && addresses.iter().any(|(address, _)| *address == served.address)
            })
        };
        assert!(hears(&inbox, &guest, &asks(SOLICIT, &[], &[]), is_lease).await);
        let is_router = |frame: &[u8]| is_message(frame, ROUTER_ADVERTISEMENT);
        assert!(hears(&inbox, &guest, &solicits_router(), is_router).await);
        let to_servers = |frame: &[u8]| frame.get(20) == Some(&17) && frame.get(56..58) == Some(&[2, 35][..]);
        let leaves = |frame: &Vec<u8>| {
            to_servers(frame)
                || answered(frame).is_some()
                || is_message(frame, ROUTER_ADVERTISEMENT)
                || (is_message(frame, ROUTER_SOLICITATION) && frame.get(6..12) == Some(&MAC[..]))
        };
        assert_eq!(heard.try_iter().find(leaves), None, "neither requests nor answers");

        host.networks.ensure_bridged(&part(false)).await.expect("without");
        let mut open = rules();
        open.answered_ipv6.clear();
        host.networks.apply_firewall(&open).await.expect("rules");
        let heard = machine.frames();
        assert!(hears(&heard, &guest, &asks(SOLICIT, &[], &[]), to_servers).await, "it reaches the network");
        host.networks.remove(BRIDGE).await.expect("removed");
    });
}
