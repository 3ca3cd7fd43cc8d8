//! Whether the chains of other programs let the packets pass that guests send to the host itself: DHCP, DNS and neighbour discovery.
//! Pure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::author::Author;
use super::evaluate::Rules;
use super::service::Service;
use super::{ALL, foreign_chains, is_closed, items, name, text};
use crate::Forwarding;

/// The bridges whose guests send packets to the host, by the families of their networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Guests {
    pub(in super::super) ipv4: Vec<String>,
    pub(in super::super) ipv6: Vec<String>,
    /// Those of networks whose name server is on the host.
    pub(in super::super) names: BTreeSet<String>,
}

/// Bridges that are looked at: rules rarely differ between berth's bridges.
const MOST_BRIDGES: usize = 16;

/// Returns the obstacle for packets of guests to the host, if there is one.
pub(super) fn judge(ruleset: &Value, guests: &Guests) -> Option<Forwarding> {
    let items = items(ruleset);
    let rules = Rules::of(items);
    let packets = packets_of(guests);
    let mut found: Vec<String> = Vec::new();
    for chain in foreign_chains(items, ALL).filter(|chain| chain["hook"] == "input") {
        if !is_closed(items, chain) {
            continue;
        }
        let of_family = |service: Service| match text(&chain["family"]) {
            "ip" => !service.is_ipv6(),
            "ip6" => service.is_ipv6(),
            _ => true,
        };
        let passing = packets.iter().filter(|(service, _)| of_family(*service));
        let dropped: BTreeSet<Service> = passing
            .filter(|(service, by)| rules.is_dropped(chain, *service, by))
            .map(|(service, _)| *service)
            .collect();
        if dropped.is_empty() {
            continue;
        }
        let dropped: Vec<Service> = dropped.into_iter().collect();
        let author = Author::of(items, chain);
        let kinds: Vec<&str> = dropped.iter().map(|service| service.describe()).collect();
        found.push(format!(
            "the firewall chain {}{} drops packets of guests to this host, by {}: accept them there ({})",
            name(chain),
            author.suffix(),
            kinds.join(", "),
            author.accept_received(chain, &dropped)
        ));
    }
    (!found.is_empty()).then(|| Forwarding { ok: false, message: found.join("; ") })
}

fn packets_of(guests: &Guests) -> Vec<(Service, &str)> {
    const BY_IPV4: &[Service] = &[Service::Dhcp, Service::Dns];
    const BY_IPV6: &[Service] = &[Service::Discovery, Service::Dhcpv6, Service::DnsByIpv6];
    let is_sent = |service: Service, bridge: &str| match service {
        Service::Dns | Service::DnsByIpv6 => guests.names.contains(bridge),
        Service::Dhcp | Service::Discovery | Service::Dhcpv6 => true,
    };
    let mut packets = Vec::new();
    for (bridges, services) in [(&guests.ipv4, BY_IPV4), (&guests.ipv6, BY_IPV6)] {
        for bridge in bridges.iter().take(MOST_BRIDGES) {
            let sent = services.iter().copied().filter(|service| is_sent(*service, bridge));
            packets.extend(sent.map(|service| (service, bridge.as_str())));
        }
    }
    packets
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const UFW: &str = include_str!("ufw.json");
    const FIREWALLD: &str = include_str!("firewalld.json");

    fn guests() -> Guests {
        let bridge = || "bth-0a1b2c3d".to_owned();
        Guests { ipv4: vec![bridge()], ipv6: vec![bridge()], names: BTreeSet::from([bridge()]) }
    }

    fn listing(text: &str) -> Value {
        serde_json::from_str(text).expect("a listing of nftables")
    }

    fn message(ruleset: &Value) -> Option<String> {
        judge(ruleset, &guests()).map(|found| found.message)
    }

    /// Puts a rule before all others of its chain.
    fn insert(ruleset: &mut Value, family: &str, table: &str, chain: &str, expr: &Value) {
        let rule = json!({"rule": {"family": family, "table": table, "chain": chain, "expr": expr}});
        ruleset["nftables"].as_array_mut().expect("items").insert(0, rule);
    }

    fn by_berths() -> Value {
        json!({"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "bth-*"}})
    }

    fn to_port(port: u16) -> Value {
        json!({"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}}, "right": port}})
    }

    #[test]
    fn ufw_drops_dhcp_and_dns_of_guests_until_it_allows_them() {
        let mut ruleset = listing(UFW);
        insta::assert_snapshot!(message(&ruleset).expect("it drops"), @"the firewall chain ip filter INPUT (ufw) drops packets of guests to this host, by DHCP (UDP port 67), DNS (UDP port 53): accept them there (ufw allow in on bth-+ to any port 67 proto udp; ufw allow in on bth-+ to any port 53)");
        // As the command writes it.
        insert(
            &mut ruleset,
            "ip",
            "filter",
            "ufw-user-input",
            &json!([by_berths(), to_port(67), {"accept": null}]),
        );
        let left = message(&ruleset).expect("it drops DNS");
        assert!(!left.contains("DHCP") && left.contains("by DNS (UDP port 53)"), "{left}");
        insert(
            &mut ruleset,
            "ip",
            "filter",
            "ufw-user-input",
            &json!([by_berths(), to_port(53), {"accept": null}]),
        );
        assert_eq!(message(&ruleset), None);
    }

    #[test]
    fn firewalld_rejects_dhcp_and_dns_of_guests_until_their_bridges_are_in_a_zone_that_accepts() {
        let mut ruleset = listing(FIREWALLD);
        insta::assert_snapshot!(message(&ruleset).expect("it rejects"), @"the firewall chain inet firewalld filter_INPUT (firewalld) drops packets of guests to this host, by DHCP (UDP port 67), DNS (UDP port 53), DHCPv6 (UDP port 547), DNS by IPv6 (UDP port 53): accept them there (firewall-cmd --permanent --zone=trusted --add-interface=bth-+; firewall-cmd --reload)");
        let into_zone = json!([by_berths(), {"goto": {"target": "filter_IN_trusted"}}]);
        insert(&mut ruleset, "inet", "firewalld", "filter_INPUT_ZONES", &into_zone);
        insert(&mut ruleset, "inet", "firewalld", "filter_IN_trusted", &json!([{"accept": null}]));
        assert_eq!(message(&ruleset), None);
    }

    #[test]
    fn a_firewall_that_drops_icmpv6_stops_neighbour_discovery() {
        let chain = json!({"chain": {"family": "ip6", "table": "filter", "name": "INPUT", "hook": "input", "policy": "drop"}});
        let found = message(&json!({"nftables": [chain]})).expect("it drops");
        assert!(found.contains("neighbour discovery (ICMPv6)"), "{found}");
        let advice = "nft insert rule ip6 filter INPUT iifname \"bth-*\" meta l4proto ipv6-icmp accept; \
                      nft insert rule ip6 filter INPUT iifname \"bth-*\" udp dport 547 accept";
        assert!(found.contains(advice), "{found}");
    }

    #[test]
    fn networks_without_guests_that_ask_the_host_need_nothing_of_its_firewall() {
        assert_eq!(judge(&listing(UFW), &Guests::default()), None);
        let only_dhcp = Guests { names: BTreeSet::new(), ..guests() };
        let found = judge(&listing(UFW), &only_dhcp).expect("it drops DHCP").message;
        assert!(!found.contains("DNS"), "{found}");
    }

    #[test]
    fn a_chain_that_is_open_or_accepts_what_is_not_understood_is_no_obstacle() {
        let chain = |policy: &str| json!({"chain": {"family": "ip", "table": "filter", "name": "INPUT", "hook": "input", "policy": policy}});
        let rule = |expr: Value| json!({"rule": {"family": "ip", "table": "filter", "chain": "INPUT", "expr": expr}});
        let of = |items: Value| message(&json!({"nftables": items}));
        assert_eq!(of(json!([chain("accept"), rule(json!([{"jump": {"target": "LIBVIRT_INP"}}]))])), None);
        // Possibly of these packets.
        let in_set = json!({"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": "@open"}});
        assert_eq!(of(json!([chain("drop"), rule(json!([in_set, {"accept": null}]))])), None);
        let elsewhere =
            json!({"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "virbr0"}});
        assert!(of(json!([chain("drop"), rule(json!([elsewhere, {"accept": null}]))])).is_some());
        let reject = json!([{"xt": {"type": "target", "name": "REJECT"}}]);
        assert!(
            of(json!([chain("accept"), rule(reject)])).is_some(),
            "the last rule of iptables-nft rejects"
        );
    }
}
