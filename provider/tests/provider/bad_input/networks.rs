//! Bad networks, pools, and public addresses.

use serde_json::{Value as Json, json};

use super::{Bad, everywhere, here, with};

pub(super) fn networks() -> Vec<Bad> {
    let network = || json!({"name": "n", "cidr": "10.80.0.0/24"});
    let ipv6 = |prefix: &str| with(network(), "/ipv6_cidr", json!(prefix));
    let bridged = || json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "10.80.0.0/24"});
    let over = |interface: &str, vlan: Option<i64>| {
        let mut bridge = json!({"interface": interface});
        if let Some(vlan) = vlan {
            bridge["vlan"] = vlan.into();
        }
        with(bridged(), "/bridge", bridge)
    };
    let on_lan6 = || with(bridged(), "/ipv6_cidr", json!("2001:db8:7::/64"));
    let ipv6_only = || json!({"name": "n", "ipv6_cidr": "fd00:60::/64"});
    let routed = |routes: Json| with(network(), "/routes", routes);
    let routed6 = |routes: Json| with(ipv6("fd00:60::/64"), "/routes", routes);
    let external = |name: &str, value: Json| {
        let network = json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0"},
            "ipv4": {"allocation": "External"}});
        with(network, &format!("/{name}"), value)
    };
    vec![
        everywhere(with(network(), "/cidr", json!("10.80.0.1/24")), "cidr", "no host bits"),
        everywhere(with(network(), "/cidr", json!("10.80.0.0")), "cidr", "not a range of IPv4 addresses"),
        everywhere(ipv6("fd00:60::1/64"), "ipv6_cidr", "no host bits"),
        everywhere(ipv6("fd00:60::/48"), "ipv6_cidr", "write a /64"),
        everywhere(ipv6("fe80::/64"), "ipv6_cidr", "neither of fc00::/7"),
        everywhere(ipv6("10.80.0.0/24"), "ipv6_cidr", "not an IPv6 prefix"),
        everywhere(with(network(), "/ipv6", json!({})), "ipv6", "only a network of type"),
        everywhere(with(bridged(), "/ipv6", json!({})), "ipv6_cidr", "`ipv6` needs it"),
        everywhere(
            with(on_lan6(), "/ipv6", json!({"gateway": "2001:db8:8::1"})),
            "ipv6.gateway",
            "not within ipv6_cidr",
        ),
        everywhere(
            with(on_lan6(), "/ipv6", json!({"range": "2001:db8:7::50-2001:db8:8::1"})),
            "ipv6.range",
            "not within ipv6_cidr",
        ),
        everywhere(
            with(on_lan6(), "/ipv6", json!({"range": "2001:db8:7::50"})),
            "ipv6.range",
            "not a sequence of IPv6 addresses",
        ),
        everywhere(with(on_lan6(), "/ipv6", json!({"allocation": "External"})), "ipv6_cidr", "leave it out"),
        everywhere(with(on_lan6(), "/ipv6", json!({"allocation": "Slaac"})), "ipv6.allocation", "Slaac"),
        everywhere(with(on_lan6(), "/ipv6_egress", json!("Routed")), "ipv6_egress", "leave it out"),
        everywhere(with(ipv6_only(), "/egress", json!("Routed")), "egress", "no `cidr`"),
        everywhere(
            with(ipv6_only(), "/routes", json!([{"to": "10.0.0.0/8", "via": "10.80.0.9"}])),
            "routes",
            "no `cidr`",
        ),
        everywhere(with(bridged(), "/egress", json!("None")), "egress", "leave it out"),
        everywhere(with(network(), "/egress", json!("nat")), "egress", "Masquerade"),
        everywhere(with(bridged(), "/isolated", json!(true)), "isolated", "Leave it out"),
        everywhere(with(bridged(), "/encryption", json!("WireGuard")), "encryption", "Overlay"),
        everywhere(with(network(), "/encryption", json!("IPsec")), "encryption", "WireGuard"),
        everywhere(with(bridged(), "/dhcp4", json!(false)), "dhcp4", "leave it out"),
        everywhere(with(bridged(), "/dhcp6", json!(true)), "dhcp6", "leave it out"),
        everywhere(with(network(), "/ipv6_egress", json!("Routed")), "ipv6_egress", "Set `ipv6_cidr`"),
        everywhere(
            with(network(), "/ipv6_autoconfiguration", json!(true)),
            "ipv6_autoconfiguration",
            "Set `ipv6_cidr`",
        ),
        everywhere(
            with(on_lan6(), "/ipv6_autoconfiguration", json!(true)),
            "ipv6_autoconfiguration",
            "Leave it out",
        ),
        everywhere(
            with(with(ipv6_only(), "/ipv6_autoconfiguration", json!(true)), "/dhcp6", json!(true)),
            "dhcp6",
            "leave it out",
        ),
        everywhere(
            with(ipv6_only(), "/ipv6_privacy_addresses", json!(true)),
            "ipv6_privacy_addresses",
            "Set `ipv6_autoconfiguration = true`",
        ),
        everywhere(
            with(
                with(
                    with(ipv6_only(), "/ipv6_autoconfiguration", json!(true)),
                    "/ipv6_privacy_addresses",
                    json!(true),
                ),
                "/security_groups",
                json!(["web"]),
            ),
            "security_groups",
            "Leave one of them out",
        ),
        everywhere(with(ipv6("fd00:60::/64"), "/ipv6_egress", json!("nat")), "ipv6_egress", "Masquerade"),
        everywhere(with(network(), "/dns", json!(["one"])), "dns[0]", "not an address"),
        everywhere(with(network(), "/search_domains", json!(["a_b"])), "search_domains[0]", "not a domain"),
        everywhere(
            with(network(), "/search_domains", json!(["a", "b", "a"])),
            "search_domains[2]",
            "already",
        ),
        everywhere(
            with(network(), "/search_domains", json!(["a".repeat(51), "b".repeat(50)])),
            "search_domains",
            "101 characters in total",
        ),
        everywhere(
            with(network(), "/search_domains", json!(["a", "b", "c", "d", "e", "f", "g"])),
            "search_domains",
            "at most 6",
        ),
        everywhere(
            routed(json!([{"to": "10.0.0.0/8", "via": "10.81.0.1"}])),
            "routes[0].via",
            "not within cidr",
        ),
        everywhere(routed(json!([{"to": "10.0.0.1/8", "via": "10.80.0.9"}])), "routes[0].to", "no host bits"),
        everywhere(routed(json!([{"to": "fd00::/64", "via": "10.80.0.9"}])), "routes[0].to", "IPv4"),
        everywhere(
            routed(json!([{"to": "10.0.0.0/8", "via": "gateway"}])),
            "routes[0].via",
            "not an address",
        ),
        everywhere(
            routed6(json!([{"to": "fd09::/48", "via": "fd00:61::9"}])),
            "routes[0].via",
            "not within ipv6_cidr",
        ),
        everywhere(
            routed6(json!([{"to": "::/0", "via": "fd00:60::9"}])),
            "routes[0].to",
            "default route of IPv6",
        ),
        everywhere(routed(json!([{"to": "fd09::/48", "via": "fe80::9"}])), "routes[0].to", "no `ipv6_cidr`"),
        everywhere(
            routed6(json!([{"to": "10.0.0.0/8", "via": "fd00:60::9"}])),
            "routes[0].to",
            "of one family",
        ),
        everywhere(
            routed(
                json!([{"to": "10.0.0.0/8", "via": "10.80.0.9"}, {"to": "10.0.0.0/8", "via": "10.80.0.8"}]),
            ),
            "routes[1].to",
            "routes[0] leads to 10.0.0.0/8 too",
        ),
        everywhere(
            with(
                with(bridged(), "/ipv4", json!({"gateway": "10.80.0.1"})),
                "/routes",
                json!([{"to": "0.0.0.0/0", "via": "10.80.0.9"}]),
            ),
            "routes[0].to",
            "by ipv4.gateway 10.80.0.1",
        ),
        everywhere(with(network(), "/dns_domain", json!("internal")), "dns_domain", "single label"),
        everywhere(with(network(), "/dns_domain", json!("App.internal")), "dns_domain", "not a domain"),
        everywhere(with(network(), "/dns_domain", json!("app.internal.")), "dns_domain", "not a domain"),
        everywhere(
            with(network(), "/dns_domain", json!("app.local")),
            "dns_domain",
            "must not end with \"local\"",
        ),
        everywhere(with(network(), "/dns_domain", json!("app.7")), "dns_domain", "must not end with \"7\""),
        everywhere(
            with(network(), "/dns_domain", json!(format!("{}.internal", "a".repeat(42)))),
            "dns_domain",
            "50",
        ),
        everywhere(
            with(
                with(network(), "/search_domains", json!(["a".repeat(60), "b".repeat(29)])),
                "/dns_domain",
                json!("app.internal"),
            ),
            "dns_domain",
            "101 characters in total",
        ),
        everywhere(with(bridged(), "/dns_domain", json!("app.internal")), "dns_domain", "ipv4.name_server"),
        everywhere(
            with(bridged(), "/ipv4", json!({"name_server": "10.80.0.53"})),
            "ipv4.name_server",
            "Set that too",
        ),
        everywhere(
            with(
                with(bridged(), "/ipv4", json!({"name_server": "10.81.0.53"})),
                "/dns_domain",
                json!("app.internal"),
            ),
            "ipv4.name_server",
            "not within cidr",
        ),
        everywhere(external("search_domains", json!(["example.org"])), "search_domains", "leave it out"),
        everywhere(
            external("routes", json!([{"to": "10.0.0.0/8", "via": "10.80.0.9"}])),
            "routes",
            "leave it out",
        ),
        everywhere(with(network(), "/mtu", json!(100)), "mtu", "100 is not between"),
        everywhere(external("security_groups", json!(["web"])), "security_groups", "ipv4.source_check"),
        everywhere(
            with(
                with(bridged(), "/ipv6", json!({"allocation": "External"})),
                "/security_groups",
                json!(["web"]),
            ),
            "security_groups",
            "ipv6.allocation",
        ),
        everywhere(json!({"name": "n"}), "cidr", "it is needed"),
        everywhere(with(network(), "/type", json!("Bridge")), "bridge", "needs the name of a bridge"),
        everywhere(with(network(), "/bridge", json!({"name": "vmbr0"})), "bridge", "only a network of type"),
        everywhere(with(bridged(), "/bridge", json!({})), "bridge", "set `name`"),
        everywhere(
            with(bridged(), "/bridge", json!({"name": "vmbr0", "interface": "eth1"})),
            "bridge",
            "set either `name`",
        ),
        everywhere(with(bridged(), "/bridge/vlan", json!(120)), "bridge.vlan", "a VLAN of `interface`"),
        everywhere(
            with(over("eth1", Some(120)), "/bridge/trunk_vlans", json!(["20"])),
            "bridge.trunk_vlans",
            "Leave one of them out",
        ),
        everywhere(
            with(bridged(), "/bridge/trunk_vlans", json!(["20", "4095"])),
            "bridge.trunk_vlans[1]",
            "not a VLAN",
        ),
        everywhere(over("eth1", Some(0)), "bridge.vlan", "0 is not between"),
        everywhere(over("eth1", Some(4095)), "bridge.vlan", "4095 is not between"),
        everywhere(over("eth 1", None), "bridge.interface", "not the name of an interface"),
        everywhere(over("sixteencharacter", None), "bridge.interface", "15"),
        everywhere(over("lo", Some(120)), "bridge.interface", "leads to no network"),
        everywhere(over("btx-00004d", None), "bridge.interface", "berth makes itself"),
        everywhere(over("btt01234567n0", None), "bridge.interface", "berth makes itself"),
        everywhere(with(network(), "/ipv4", json!({})), "ipv4", "only a network of type"),
        everywhere(
            with(bridged(), "/ipv4", json!({"gateway": "10.81.0.1"})),
            "ipv4.gateway",
            "not within cidr",
        ),
        everywhere(
            with(bridged(), "/ipv4", json!({"range": "10.80.0.9-10.81.0.1"})),
            "ipv4.range",
            "not within cidr",
        ),
        everywhere(
            with(bridged(), "/ipv4", json!({"range": "10.80.0.9"})),
            "ipv4.range",
            "not a sequence of IPv4 addresses",
        ),
        everywhere(with(bridged(), "/ipv4", json!({"allocation": "External"})), "cidr", "leave it out"),
        everywhere(with(bridged(), "/ipv4", json!({"allocation": "Dhcp"})), "ipv4.allocation", "Dhcp"),
        everywhere(
            with(bridged(), "/ipv4", json!({"source_check": "Lease"})),
            "ipv4.source_check",
            "always checked",
        ),
        everywhere(with(bridged(), "/ipv4", json!({"source_check": "Arp"})), "ipv4.source_check", "Arp"),
        everywhere(
            with(on_lan6(), "/ipv6", json!({"source_check": "Learned"})),
            "ipv6.source_check",
            "always checked",
        ),
        everywhere(with(on_lan6(), "/ipv6", json!({"source_check": "Lease"})), "ipv6.source_check", "Lease"),
        everywhere(
            json!({"name": "n", "ipv6_cidr": "fd00:60::/64", "ipv6": {"pool": "p"}}),
            "ipv6_cidr",
            "takes its prefix from the pool",
        ),
        everywhere(with(on_lan6(), "/ipv6", json!({"pool": "p"})), "ipv6.pool", "only an overlay"),
        everywhere(
            json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0"},
                "ipv4": {"allocation": "External", "dhcp": true}}),
            "ipv4.dhcp",
            "not berth's",
        ),
        everywhere(
            json!({"name": "n", "namespace": "berth-shared", "type": "Bridge", "bridge": {"name": "vmbr0"},
                "ipv6": {"allocation": "External", "dhcp": true}}),
            "ipv6.dhcp",
            "routers that are not berth's",
        ),
    ]
}

pub(super) fn pools() -> Vec<(&'static str, Bad)> {
    let pool = || json!({"name": "p", "cidrs": ["192.0.2.0/27"]});
    let storage = || json!({"name": "s"});
    let ip = || json!({"name": "p"});
    vec![
        (
            "berth_ip_pool",
            everywhere(with(pool(), "/cidrs", json!(["192.0.2.0/27", "x"])), "cidrs[1]", "not a range"),
        ),
        ("berth_ip_pool", everywhere(with(pool(), "/cidrs", json!([])), "cidrs", "The list is empty")),
        ("berth_ip_pool", everywhere(json!({"name": "p"}), "cidrs", "a pool has addresses")),
        (
            "berth_ip_pool",
            everywhere(
                with(pool(), "/cidrs", json!(["192.0.2.0/27", "2001:db8::/64"])),
                "cidrs[1]",
                "all of IPv4 or all of IPv6",
            ),
        ),
        (
            "berth_ip_pool",
            everywhere(with(pool(), "/cidrs", json!(["2001:db8::/48"])), "cidrs[0]", "is too large"),
        ),
        (
            "berth_ip_pool",
            everywhere(with(pool(), "/cidrs", json!(["192.0.2.1-192.1.2.1"])), "cidrs[0]", "is too long"),
        ),
        (
            "berth_ip_pool",
            everywhere(with(pool(), "/cidrs", json!(["fe80::/64"])), "cidrs[0]", "never public"),
        ),
        (
            "berth_ip_pool",
            here(with(pool(), "/cidrs", json!(["192.0.2.9-192.0.2.8"])), "cidrs[0]", "above its last"),
        ),
        ("berth_ip_pool", everywhere(with(pool(), "/mode", json!("bgp")), "mode", "is not one of")),
        (
            "berth_ip_pool",
            everywhere(
                with(pool(), "/min_prefix_length", json!(80)),
                "min_prefix_length",
                "from IPv6 `cidrs`",
            ),
        ),
        (
            "berth_ip_pool",
            everywhere(
                json!({"name": "p", "cidrs": ["2001:db8::/64"], "min_prefix_length": 63}),
                "min_prefix_length",
                "63 is ",
            ),
        ),
        ("berth_storage_pool", everywhere(with(storage(), "/type", json!("Ceph")), "type", "is not one of")),
        (
            "berth_storage_pool",
            everywhere(
                with(storage(), "/trash_retention_seconds", json!(-1)),
                "trash_retention_seconds",
                "-1 is ",
            ),
        ),
        (
            "berth_storage_pool",
            everywhere(with(storage(), "/overcommit_percent", json!(99)), "overcommit_percent", "99 is "),
        ),
        (
            "berth_storage_pool",
            everywhere(
                with(storage(), "/default_for_namespaces", json!(["Team"])),
                "default_for_namespaces[0]",
                "not a DNS label",
            ),
        ),
        ("berth_storage_pool", everywhere(with(storage(), "/name", json!("S")), "name", "not a DNS label")),
        (
            "berth_public_ip",
            everywhere(with(ip(), "/address", json!("198.18.0.0/24")), "address", "not an address"),
        ),
        ("berth_public_ip", everywhere(with(ip(), "/pool", json!("P")), "pool", "not a DNS label")),
    ]
}

pub(super) fn prefixes() -> Vec<(&'static str, Bad)> {
    let of = |more: Json| {
        let mut config = json!({"name": "p", "prefix_length": 80});
        let more = more.as_object().cloned().unwrap_or_default();
        config.as_object_mut().expect("an object").extend(more);
        config
    };
    let port = json!([{"name": "http", "port": 80, "targets": ["a"]}]);
    let bad = [
        (everywhere(of(json!({"prefix_length": 63})), "prefix_length", "63 is ")),
        (everywhere(of(json!({"prefix_length": 128})), "prefix_length", "128 is ")),
        (everywhere(of(json!({"ports": port})), "prefix_length", "one VM as a whole")),
        (everywhere(of(json!({"address": "192.0.2.8"})), "address", "is not the first IPv6 address")),
        (here(of(json!({"address": "2001:db8::9"})), "address", "is not the first IPv6 address")),
    ];
    bad.into_iter().map(|bad| ("berth_public_ip", bad)).collect()
}

pub(super) fn ports() -> Vec<(&'static str, Bad)> {
    let port = |more: Json| {
        let mut port = json!({"port": 443, "targets": ["web-1"]});
        let more = more.as_object().cloned().unwrap_or_default();
        port.as_object_mut().expect("an object").extend(more);
        json!({"name": "b", "ports": [port]})
    };
    let twice = json!({"name": "b", "ports": [
        {"port": 443, "targets": ["a"]}, {"port": 443, "protocol": "tcp", "targets": ["b"]}]});
    let check = |check: Json| port(json!({"health_check": check}));
    let bad = [
        (everywhere(port(json!({"port": 0})), "ports[0].port", "0 is ")),
        (everywhere(port(json!({"port": 65_536})), "ports[0].port", "65536 is ")),
        (everywhere(port(json!({"protocol": "sctp"})), "ports[0].protocol", "is not one of")),
        (everywhere(port(json!({"targets": ["A"]})), "ports[0].targets[0]", "not a DNS label")),
        (everywhere(port(json!({"targets": ["a", "b", "a"]})), "ports[0].targets[2]", "named twice")),
        (everywhere(twice, "ports[1].port", "declared in ports[0] too")),
        (here(
            json!({"name": "b", "ports": [{"target_port": 22, "targets": ["a"]}]}),
            "ports[0].name",
            "needs a name",
        )),
        (everywhere(
            json!({"name": "b", "ports": [{"name": "ssh", "targets": ["a"]}]}),
            "ports[0].target_port",
            "needs `target_port`",
        )),
        (everywhere(json!({"name": "b", "port_range": "30000"}), "port_range", "not a range of ports")),
        (everywhere(json!({"name": "b", "port_range": "30-20"}), "port_range", "not a range of ports")),
        (here(
            json!({"name": "b", "port_range": "30-30", "ports": [
                {"name": "a", "target_port": 22, "targets": ["a"]}, {"name": "b", "target_port": 23, "targets": ["a"]}]}),
            "port_range",
            "has 1 ports, and 2 entries",
        )),
        (everywhere(check(json!({"interval": "2h"})), "ports[0].health_check.interval", "not a duration")),
        (everywhere(check(json!({"interval": "11m"})), "ports[0].health_check.interval", "not a duration")),
        (everywhere(check(json!({"timeout": "1m"})), "ports[0].health_check.timeout", "not a duration")),
        (everywhere(
            check(json!({"type": "tcp", "path": "/"})),
            "ports[0].health_check.path",
            "for the type",
        )),
        (everywhere(
            port(json!({"protocol": "udp", "health_check": {"interval": "2s"}})),
            "ports[0].health_check.port",
            "needs a port",
        )),
    ];
    bad.into_iter().map(|bad| ("berth_public_ip", bad)).collect()
}
