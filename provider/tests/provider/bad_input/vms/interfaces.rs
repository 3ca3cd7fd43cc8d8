//! Bad interfaces of a VM.

use serde_json::{Value as Json, json};

use super::vm;
use crate::bad_input::{Bad, everywhere, here, with};

/// A VM with so many interfaces.
pub(in crate::bad_input) fn numbered(count: usize) -> Json {
    let interfaces: Vec<Json> = (0..count).map(|n| json!({"name": format!("nic{n}")})).collect();
    with(vm(), "/network_interfaces", interfaces.into())
}

pub(super) fn interfaces() -> Vec<Bad> {
    let nics = |nics: Json| with(vm(), "/network_interfaces", nics);
    let limited = |limits: Json| nics(json!([{"name": "nic0", "limits": limits}]));
    let guest_name = |name: &str| nics(json!([{"name": "nic0", "guest_name": name}]));
    let mac = |mac: &str| nics(json!([{"name": "nic0", "mac_address": mac}]));
    let two_macs = json!([{"name": "a", "mac_address": "52:54:00:00:00:0a"}, {"name": "b", "mac_address": "52:54:00:00:00:0A"}]);
    let two_addresses = json!([{"name": "a", "network": "default", "address": "10.77.0.9"}, {"name": "b", "network": "default", "address": "10.77.0.9"}]);
    vec![
        everywhere(
            nics(json!([{"name": "NIC"}])),
            "network_interfaces[0].name",
            "\"NIC\" is not a DNS label",
        ),
        everywhere(
            nics(json!([{"name": "nic0", "model": "pcnet"}])),
            "network_interfaces[0].model",
            "e1000e",
        ),
        everywhere(nics(json!([{"name": "nic0", "link": "down"}])), "network_interfaces[0].link", "Down"),
        everywhere(
            nics(json!([{"name": "nic0", "allowed_addresses": ["fd00:60::100"]}])),
            "network_interfaces[0].allowed_addresses[0]",
            "\"fd00:60::100/128\"",
        ),
        everywhere(
            nics(json!([{"name": "nic0", "allowed_addresses": ["10.0.0.9/32", "fd00:60::100/64"]}])),
            "network_interfaces[0].allowed_addresses[1]",
            "no host bits",
        ),
        everywhere(nics(json!([{"name": "nic0", "dscp": "46"}])), "network_interfaces[0].dscp", "AF11"),
        everywhere(
            nics(json!([{"name": "nic0", "network": "a.b"}])),
            "network_interfaces[0].network",
            "not a DNS label",
        ),
        everywhere(
            limited(json!({"ingress_burst": "1Mi", "egress_bandwidth": "1M"})),
            "network_interfaces[0].limits.ingress_burst",
            "set ingress_bandwidth too",
        ),
        everywhere(
            limited(json!({"egress_bandwidth": "1k"})),
            "network_interfaces[0].limits.egress_bandwidth",
            "64k",
        ),
        everywhere(
            limited(json!({"egress_bandwidth": "1M", "egress_burst": "64Ki"})),
            "network_interfaces[0].limits.egress_burst",
            "128Ki",
        ),
        everywhere(
            nics(json!([{"name": "nic0", "dns": ["one"]}])),
            "network_interfaces[0].dns[0]",
            "not an address",
        ),
        everywhere(
            nics(json!([{"name": "nic0", "search_domains": ["a."]}])),
            "network_interfaces[0].search_domains[0]",
            "not a domain",
        ),
        everywhere(
            nics(json!([{"name": "nic0", "search_domains": ["a", "a"]}])),
            "network_interfaces[0].search_domains[1]",
            "already",
        ),
        everywhere(
            nics(json!([{"name": "a", "ipv6_address": "10.77.0.9"}])),
            "network_interfaces[0].ipv6_address",
            "not an IPv6 address",
        ),
        here(
            nics(
                json!([{"name": "a", "ipv6_address": "fd00:60::9"}, {"name": "b", "ipv6_address": "FD00:60::9"}]),
            ),
            "network_interfaces[1].ipv6_address",
            "network_interfaces[0] has",
        ),
        here(limited(json!({})), "network_interfaces[0].limits", "at least one of ingress_bandwidth"),
        everywhere(nics(json!([{"name": "a"}, {"name": "a"}])), "network_interfaces", "\"a\" is used twice"),
        everywhere(numbered(11), "network_interfaces", "at most 10"),
        everywhere(mac("52:54:00:00:00"), "network_interfaces[0].mac_address", "six pairs"),
        everywhere(
            nics(json!([{"name": "nic0", "acceleration": "On"}])),
            "network_interfaces[0].acceleration",
            "Auto",
        ),
        everywhere(
            nics(
                json!([{"name": "nic0", "gateway": "10.77.0.9", "routes": [{"to": "0.0.0.0/0", "via": "10.77.0.9"}]}]),
            ),
            "network_interfaces[0].routes",
            "gateway is the default route",
        ),
        everywhere(
            nics(json!([{"name": "nic0", "gateway": "10.77.0.9", "default_route": false}])),
            "network_interfaces[0].default_route",
            "leave gateway",
        ),
        everywhere(
            nics(json!([{"name": "nic0", "gateway": "fd00:60::9"}])),
            "network_interfaces[0].gateway",
            "not an IPv4 address",
        ),
        everywhere(
            nics(json!([{"name": "nic0", "routes": [
                {"to": "192.168.0.0/16", "via": "10.77.0.9"}, {"to": "192.168.0.0/16", "via": "10.77.0.8"}]}])),
            "network_interfaces[0].routes[1].to",
            "another route",
        ),
        everywhere(
            nics(json!([{"name": "nic0", "routes": [{"to": "192.168.0.0/16", "via": "fd00:60::9"}]}])),
            "network_interfaces[0].routes[0].via",
            "family",
        ),
        everywhere(
            nics(json!([{"name": "nic0", "mtu": 100}])),
            "network_interfaces[0].mtu",
            "100 is not between",
        ),
        everywhere(guest_name("0lan"), "network_interfaces[0].guest_name", "a letter"),
        everywhere(guest_name("a-name-too-long-"), "network_interfaces[0].guest_name", "at most 15"),
        everywhere(guest_name("lo"), "network_interfaces[0].guest_name", "not the name"),
        everywhere(
            nics(json!([{"name": "a", "guest_name": "lan0"}, {"name": "b", "guest_name": "lan0"}])),
            "network_interfaces[1].guest_name",
            "network_interfaces[0]",
        ),
        everywhere(mac("53:54:00:00:00:01"), "network_interfaces[0].mac_address", "a multicast address"),
        everywhere(mac("ff:ff:ff:ff:ff:ff"), "network_interfaces[0].mac_address", "a multicast address"),
        everywhere(
            mac("00:00:00:00:00:00"),
            "network_interfaces[0].mac_address",
            "the address of no interface",
        ),
        everywhere(
            nics(two_macs),
            "network_interfaces[1].mac_address",
            "network_interfaces[0] has the MAC address",
        ),
        everywhere(
            nics(two_addresses),
            "network_interfaces[1].address",
            "network_interfaces[0] has the address",
        ),
        everywhere(
            nics(json!([{"name": "a", "public_ip": "p"}, {"name": "b", "public_ip": "p"}])),
            "network_interfaces[1].public_ip",
            "network_interfaces[0] has the public address",
        ),
        everywhere(
            nics(json!([{"name": "a", "public_ipv6": "p"}, {"name": "b", "public_ipv6": "p"}])),
            "network_interfaces[1].public_ipv6",
            "network_interfaces[0] has the public IPv6 address",
        ),
        everywhere(
            nics(json!([{"name": "a", "public_ip": "p", "public_ipv6": "p"}])),
            "network_interfaces[0].public_ipv6",
            "public_ip names it too",
        ),
        everywhere(
            nics(json!([{"name": "a", "address": "10.0.0"}])),
            "network_interfaces[0].address",
            "not an IPv4 address",
        ),
    ]
}
