//! Addresses that a host gives by DHCP to its guests on a bridged network.

use super::bridged::{lan, part};
use super::*;
use crate::{GuestRoutes, Port, ServedGuest};

const TAP: &str = "btt00000003n0";
const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 3];
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 50);
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

fn served() -> BridgedNetwork {
    let guest = ServedGuest {
        tap: TAP.to_owned(),
        mac: hardware_address(MAC),
        address: ADDRESS,
        prefix_len: 24,
        hostname: "web".to_owned(),
        mtu: Some(1400),
        dns: vec![ROUTER],
        search_domains: vec!["example.org".to_owned()],
        routes: GuestRoutes { default: Some(ROUTER), others: Vec::new() },
    };
    BridgedNetwork { served: vec![guest], ..part(false) }
}

fn rules() -> Firewall {
    let port = Port { tap: TAP.to_owned(), mac: hardware_address(MAC), address: Some(ADDRESS), ipv6: None };
    Firewall {
        bridged: vec![BRIDGE.to_owned()],
        ports: vec![port],
        answered: vec![TAP.to_owned()],
        guests: true,
        ..Firewall::default()
    }
}

/// Has a machine ask for an address, while the host goes on.
async fn ask(machine: Guest) -> (Guest, Option<dhcp::Offer>) {
    blocking(move || {
        let offer = machine.dhcp();
        (machine, offer)
    })
    .await
}

/// Whether a machine has received a request of DHCP.
fn is_asked(frames: &std::sync::mpsc::Receiver<Vec<u8>>) -> bool {
    frames.try_iter().any(|frame| frame.get(34..38) == Some(&[0, 68, 0, 67][..]))
}

#[test]
fn a_host_gives_its_own_guests_their_addresses_and_the_network_hears_nothing_of_it() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        host.networks.apply_firewall(&rules()).await.expect("rules");
        host.networks.ensure_bridged(&served()).await.expect("made");
        let guest = Guest::by_tap(BRIDGE, TAP, 3);
        host.networks.ensure_bridged(&served()).await.expect("with its tap");
        let heard = machine.frames();
        let (guest, offer) = ask(guest).await;
        let offer = offer.expect("an address");
        assert_eq!((offer.address, offer.router, offer.mtu), (ADDRESS, Some(ROUTER), Some(1400)));
        assert_eq!((offer.dns, offer.search_domains), (vec![ROUTER], vec!["example.org".to_owned()]));
        assert!(!is_asked(&heard), "the request has left the host");

        let frames = guest.frames();
        let (machine, offer) = ask(machine).await;
        assert_eq!(offer, None, "a machine of the network gets no answer");
        assert!(is_asked(&frames), "though it was heard");

        host.networks.ensure_bridged(&part(false)).await.expect("without");
        host.networks.apply_firewall(&Firewall { answered: Vec::new(), ..rules() }).await.expect("rules");
        let heard = machine.frames();
        let (_guest, offer) = ask(guest).await;
        assert_eq!(offer, None);
        assert!(is_asked(&heard), "its request reaches the network now");
    });
}
