//! Addresses that a host gives by DHCP to its guests on a bridged network.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::bridged::{lan, part};
use super::host::{self, Host, segment};
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

/// The ports of requests of DHCP, and those of answers.
const REQUEST: [u8; 4] = [0, 68, 0, 67];
const ANSWER: [u8; 4] = [0, 67, 0, 68];

/// Has a machine ask for an address, while the host goes on.
async fn ask(machine: Guest) -> (Guest, Option<dhcp::Offer>) {
    blocking(move || {
        let offer = machine.dhcp();
        (machine, offer)
    })
    .await
}

/// Whether a machine has received a request of DHCP.
fn is_asked(frames: &Receiver<Vec<u8>>) -> bool {
    frames.try_iter().any(|frame| goes_between(&frame, REQUEST))
}

fn goes_between(frame: &[u8], ports: [u8; 4]) -> bool {
    frame.get(34..38) == Some(&ports[..])
}

/// Makes a host's part of the network that the hosts are on, with one guest that it answers.
fn serving(host: &Host, last: u8, address: Ipv4Addr) -> Guest {
    host.on(|_, _| {
        ip("link add vmbr0 type bridge");
        ip("link set up0 master vmbr0");
        ip("link set vmbr0 up");
    });
    let tap = format!("btt0000000{last}n0");
    let mac = hardware_address([0x52, 0x54, 0, 0, 0, last]);
    let mut part = served();
    for guest in &mut part.served {
        (guest.tap, guest.mac, guest.address) = (tap.clone(), mac.clone(), address);
    }
    let port = Port { tap: tap.clone(), mac, address: Some(address), ipv6: None };
    let rules = Firewall { ports: vec![port], answered: vec![tap.clone()], ..rules() };
    let with_tap = part.clone();
    host.run(move |f| {
        Box::pin(async move {
            f.networks.apply_firewall(&rules).await.expect("rules");
            f.networks.ensure_bridged(&part).await.expect("made");
        })
    });
    let guest = host.on(move |_, _| Guest::by_tap(BRIDGE, &tap, last));
    host.run(move |f| {
        Box::pin(async move { f.networks.ensure_bridged(&with_tap).await.expect("with its tap") })
    });
    guest
}

/// Has a machine ask for an address, while these hosts go on.
fn ask_beside(hosts: [&Host; 2], machine: &Guest) -> Option<dhcp::Offer> {
    let is_done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        for host in hosts {
            let is_done = is_done.clone();
            scope.spawn(move || {
                host.run(move |_| {
                    Box::pin(async move {
                        for _ in 0..500 {
                            if is_done.load(Ordering::Relaxed) {
                                break;
                            }
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                    })
                });
            });
        }
        let offer = machine.dhcp();
        is_done.store(true, Ordering::Relaxed);
        offer
    })
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

#[test]
fn of_two_hosts_on_one_network_each_answers_its_own_guests_and_no_request_reaches_the_other() {
    in_own_namespace(|| async {
        const OTHER_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 51);
        segment(1500);
        let (a, b) = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
        let (one, two) = (serving(&a, 3, ADDRESS), serving(&b, 4, OTHER_ADDRESS));
        let machine = host::outsider("192.0.2.99/24");
        for (guest, address, other) in [(&one, ADDRESS, &two), (&two, OTHER_ADDRESS, &one)] {
            let heard = [machine.frames(), other.frames()];
            let offer = ask_beside([&a, &b], guest).expect("an address");
            assert_eq!(offer.address, address, "its own");
            for frames in &heard {
                let of_dhcp = |frame: &Vec<u8>| goes_between(frame, REQUEST) || goes_between(frame, ANSWER);
                assert_eq!(
                    frames.try_iter().find(of_dhcp),
                    None,
                    "neither the request nor the answer leaves"
                );
            }
        }
        let heard = [one.frames(), two.frames()];
        assert_eq!(ask_beside([&a, &b], &machine), None, "a machine of the network gets no answer of either");
        for frames in &heard {
            assert!(is_asked(frames), "though it was heard on each host");
        }
    });
}
