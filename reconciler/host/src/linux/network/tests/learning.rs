//! The IPv6 addresses that guests take first, where the network's routers give them out.

use super::super::discovery;
use super::bridged::{lan, part};
use super::bridged_ipv6::{about, address, arrived, frame, mac};
use super::spoofing::link_local;
use super::*;
use crate::{LearnedGuest, Port, PortException};

const SOLICITATION: u8 = 135;

fn port(last: u8) -> Port {
    Port { tap: format!("btt0000000{last}n0"), mac: hardware_address(mac(last)), address: None, ipv6: None }
}

/// The guests 5 and 6; the first one sends from these addresses too.
fn rules(learned: &[Ipv6Addr]) -> Firewall {
    let further = PortException {
        tap: port(5).tap,
        ranges: learned.iter().map(|address| Ipv6Net::from(*address).into()).collect(),
        macs: Vec::new(),
        gateways: Vec::new(),
    };
    Firewall {
        bridged: vec![BRIDGE.to_owned()],
        advertised: vec![BRIDGE.to_owned()],
        ports: vec![port(5), port(6)],
        exceptions: if learned.is_empty() { Vec::new() } else { vec![further] },
        guests: true,
        ..Firewall::default()
    }
}

fn learning() -> BridgedNetwork {
    let guest = |last: u8| LearnedGuest { tap: port(last).tap, mac: port(last).mac };
    BridgedNetwork { learned: vec![guest(5), guest(6)], ..part(false) }
}

async fn learned(networks: &LinuxNetworks) -> Vec<(String, Ipv6Addr)> {
    let listed = networks.learned_addresses().await.expect("listed");
    listed.into_iter().map(|one| (one.mac, one.address)).collect()
}

/// Has the guest send the frames until the host has learned the address; returns all that it has learned.
async fn learned_after(
    host: &Fixture,
    guest: &Guest,
    frames: &[Vec<u8>],
    until: Ipv6Addr,
) -> Vec<(String, Ipv6Addr)> {
    for _ in 0..40 {
        frames.iter().for_each(|frame| guest.inject(frame.clone()));
        let changed = host.networks.external_leases_changed();
        let _ = tokio::time::timeout(Duration::from_millis(250), changed).await;
        let found = learned(&host.networks).await;
        if found.iter().any(|(_, address)| *address == until) {
            return found;
        }
    }
    panic!("{until} is not learned");
}

#[test]
fn the_first_guest_that_takes_an_address_has_it_unless_a_machine_of_the_lan_answers_for_it() {
    in_own_namespace(|| async {
        let host = Fixture::new();
        let machine = lan();
        machine.on(|| ip("-6 addr add 2001:db8:7::9/64 dev eth0 nodad"));
        let [of_machine, first, second, forged] =
            ["2001:db8:7::9", "2001:db8:7::77", "2001:db8:7::78", "2001:db8:7::79"].map(address);
        host.networks.apply_firewall(&rules(&[])).await.expect("rules");
        host.networks.ensure_bridged(&learning()).await.expect("made");
        let (guest, other) = (Guest::by_tap(BRIDGE, &port(5).tap, 5), Guest::by_tap(BRIDGE, &port(6).tap, 6));
        host.networks.ensure_bridged(&learning()).await.expect("with their taps");
        // Until the ports forward, nothing answers a probe.
        assert!(arrived((&guest, 5), &machine.frames(), &[]).is_empty());

        let inbox = guest.frames();
        let claim = |last: u8, address| discovery::probe(mac(last), address);
        let claims = [claim(5, of_machine), claim(5, first)];
        let found = learned_after(&host, &guest, &claims, first).await;
        assert_eq!(found, [(port(5).mac, first)], "not the address of a machine");
        let claims = [claim(6, first), claim(5, forged), claim(6, second)];
        let found = learned_after(&host, &other, &claims, second).await;
        assert_eq!(found, [(port(5).mac, first), (port(6).mac, second)], "not another guest's");
        let is_probe = |frame: Vec<u8>| discovery::claims(&frame, second).is_some();
        assert!(!inbox.try_iter().any(is_probe), "a guest that hears of a probe would give the address up");
        let later = LinuxNetworks::new(host.layout.clone());
        assert_eq!(learned(&later).await, found, "after a restart");

        host.networks.apply_firewall(&rules(&[first])).await.expect("rules");
        let own = link_local(5);
        let case = |what: &'static str, source, payload: &[u8]| (what, frame(5, source, payload, what));
        let cases = [
            case("from its address", first, &about(SOLICITATION, of_machine)),
            case("advertisement of its address", own, &about(136, first)),
            case("from another address", second, &about(SOLICITATION, of_machine)),
            case("advertisement of another address", own, &about(136, second)),
            case("as a router", own, &[134, 0, 0, 0, 0, 0, 0, 0]),
        ];
        let sent = arrived((&guest, 5), &machine.frames(), &cases);
        assert_eq!(sent, ["from its address", "advertisement of its address"]);

        let file = host.layout.networks().join("learned.json");
        assert!(file.exists());
        host.networks.ensure_bridged(&part(false)).await.expect("without a check");
        assert!(learned(&host.networks).await.is_empty() && !file.exists());
        host.networks.remove(BRIDGE).await.expect("removed");
    });
}
