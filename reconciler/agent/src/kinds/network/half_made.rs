//! The rules while a network is not as it should be: those of all others change, and its own stay as they were. Pure.
//!
//! A network that is not to have a tunnel any more may still have it after a failure, and a tunnel never exists without the rules that
//! guard it. What its other rules rely on may be missing too.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use berth_api::Network;
use berth_host::{Firewall, Nat, Tunnel};
use ipnet::{Ipv4Net, Ipv6Net};

/// Returns the tunnel whose rules let nothing in by any tunnel that the network may have here: no packet comes from that address.
pub(super) fn closed_tunnel(network: &Network) -> Option<Tunnel> {
    let vni = network.status.as_ref()?.vni.and_then(|vni| u32::try_from(vni).ok())?;
    Some(closed(vni, network.is_encrypted()))
}

fn closed(vni: u32, is_encrypted: bool) -> Tunnel {
    let nowhere = match is_encrypted {
        true => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        false => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    Tunnel { vni, local: nowhere, peers: vec![nowhere] }
}

/// Adds the rules for a bridge that no network is to have, and that could not be removed: it may still have a tunnel, and it is not known
/// whether that was of an encrypted network. No guest is on it.
pub(super) fn close(rules: &mut Firewall, bridge: &str) {
    let vni = bridge.strip_prefix("bth-").and_then(|vni| u32::from_str_radix(vni, 16).ok());
    let Some(vni) = vni else { return };
    for is_encrypted in [false, true] {
        let tunnel = Some(closed(vni, is_encrypted));
        rules.nat.push(Nat { bridge: bridge.to_owned(), ipv4: None, ipv6: None, tunnel });
    }
    // It may still be connected to a bridge of the host, too: nothing is routed from there.
    rules.bridged.push(bridge.to_owned());
}

/// The ranges of a network, which it keeps.
fn ranges(nat: &Nat) -> (Option<Ipv4Net>, Option<Ipv6Net>) {
    (nat.ipv4.map(|ipv4| ipv4.range), nat.ipv6.map(|ipv6| ipv6.prefix))
}

/// Gives a network the rules that it had before. `closed`: in place of a tunnel if these are not known, as in the first pass of an agent,
/// or are those of a network that was deleted: a bridge is named after an identifier, which the next network may get.
///
/// Returns false if neither is known: the rules must not be applied then.
pub(super) fn keep_rules(
    rules: &mut Firewall,
    before: Option<&Firewall>,
    bridge: &str,
    closed: Option<Tunnel>,
) -> bool {
    let place = rules.nat.iter().position(|nat| nat.bridge == bridge);
    let is_its = |former: &&Nat| place.is_none_or(|place| ranges(former) == ranges(&rules.nat[place]));
    let former = before.and_then(|before| before.nat.iter().find(|nat| nat.bridge == bridge));
    let former = former.filter(is_its).cloned();
    match (former, place) {
        (Some(former), Some(place)) => rules.nat[place] = former,
        (Some(former), None) => rules.nat.push(former),
        (None, Some(place)) if rules.nat[place].tunnel.is_none() => {
            let is_known = closed.is_some();
            rules.nat[place].tunnel = closed;
            return is_known;
        }
        (None, _) => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use berth_host::{Egress, Ipv4Network};
    use serde_json::json;

    use super::*;

    const BRIDGE: &str = "bth-00004d";

    fn nat(bridge: &str, peer: Option<u8>) -> Nat {
        let address = |last: u8| IpAddr::from([192, 0, 2, last]);
        let tunnel = |peer: u8| Tunnel { vni: 77, local: address(1), peers: vec![address(peer)] };
        Nat { bridge: bridge.to_owned(), ipv4: None, ipv6: None, tunnel: peer.map(tunnel) }
    }

    fn firewall(nat: Vec<Nat>) -> Firewall {
        Firewall { nat, ..Firewall::default() }
    }

    #[test]
    fn a_network_that_could_not_be_made_keeps_the_rules_of_its_tunnel_and_the_others_get_theirs() {
        let before = firewall(vec![nat(BRIDGE, Some(2)), nat("bth-00004e", Some(2))]);
        let mut rules =
            firewall(vec![nat(BRIDGE, None), nat("bth-00004e", Some(3)), nat("bth-00004f", None)]);
        assert!(keep_rules(&mut rules, Some(&before), BRIDGE, None));
        let expected = [nat(BRIDGE, Some(2)), nat("bth-00004e", Some(3)), nat("bth-00004f", None)];
        assert_eq!(rules.nat, expected);
    }

    #[test]
    fn a_network_does_not_get_the_rules_of_a_deleted_one_that_had_its_identifier() {
        let of_range = |range: &str, peer: Option<u8>| {
            let (range, gateway) = (range.parse().expect("a range"), Ipv4Addr::new(10, 77, 0, 1));
            let ipv4 = Ipv4Network { range, gateway, egress: Egress::Masquerade };
            Nat { ipv4: Some(ipv4), ..nat(BRIDGE, peer) }
        };
        let before = firewall(vec![of_range("10.77.0.0/16", Some(2))]);
        let closed = Tunnel { vni: 77, local: Ipv4Addr::UNSPECIFIED.into(), peers: Vec::new() };
        let mut rules = firewall(vec![of_range("10.78.0.0/16", None)]);
        assert!(keep_rules(&mut rules, Some(&before), BRIDGE, Some(closed.clone())));
        let expected = Nat { tunnel: Some(closed), ..of_range("10.78.0.0/16", None) };
        assert_eq!(rules.nat, [expected]);
        let mut same = firewall(vec![of_range("10.77.0.0/16", None)]);
        assert!(keep_rules(&mut same, Some(&before), BRIDGE, None));
        assert_eq!(same.nat, before.nat);
    }

    #[test]
    fn a_bridge_that_could_not_be_removed_is_closed_to_other_hosts_with_and_without_encryption() {
        let mut rules = firewall(vec![nat("bth-00004e", Some(2))]);
        close(&mut rules, BRIDGE);
        let tunnels: Vec<&Tunnel> = rules.nat[1..].iter().filter_map(|nat| nat.tunnel.as_ref()).collect();
        assert!(tunnels.iter().all(|tunnel| tunnel.vni == 77), "{tunnels:?}");
        assert!(
            matches!(tunnels[..], [plain, encrypted] if !plain.is_encrypted() && encrypted.is_encrypted())
        );
        assert!(rules.nat[1..].iter().all(|nat| nat.bridge == BRIDGE));
        assert_eq!(rules.bridged, [BRIDGE]);
        close(&mut rules, "bth-other");
        assert_eq!(rules.nat.len(), 3, "it is of no network");
    }

    #[test]
    fn a_network_whose_rules_are_not_known_is_closed_to_other_hosts() {
        let network = |encryption: &str| -> Network {
            let network = json!({
                "metadata": {"name": "lan", "namespace": "ns"},
                "spec": {"cidr": "10.77.0.0/16", "encryption": encryption},
                "status": {"observedGeneration": 1, "vni": 77},
            });
            serde_json::from_value(network).expect("a Network")
        };
        let closed = closed_tunnel(&network("None")).expect("it has an identifier");
        assert_eq!((closed.vni, closed.is_encrypted()), (77, false));
        assert_eq!(closed.peers, [IpAddr::V4(Ipv4Addr::UNSPECIFIED)]);
        assert!(closed_tunnel(&network("WireGuard")).is_some_and(|tunnel| tunnel.is_encrypted()));
        for before in [None, Some(firewall(Vec::new()))] {
            let mut rules = firewall(vec![nat(BRIDGE, None)]);
            assert!(keep_rules(&mut rules, before.as_ref(), BRIDGE, Some(closed.clone())));
            assert_eq!(rules.nat[0].tunnel.as_ref(), Some(&closed));
            let mut unknown = firewall(vec![nat(BRIDGE, None)]);
            assert!(!keep_rules(&mut unknown, before.as_ref(), BRIDGE, None), "its tunnel would be open");
        }
    }
}
