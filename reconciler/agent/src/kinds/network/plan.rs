//! Plan for the host's networks. Pure.

use std::sync::Arc;

use berth_host::NetworkConfig;

use super::Step;
use super::observe::{Observed, is_owned};

pub(super) fn plan(observed: &Observed) -> Vec<Step> {
    // Removals first: a network that gets another bridge needs the identifier and the address of the previous one.
    let mut steps = Vec::new();
    if let Some(interface) = observed.to_probe.clone() {
        steps.push(Step::ProbeAddresses { interface, addresses: observed.wanted.to_probe.clone() });
    }
    let unowned = observed.taps.iter().filter(|tap| !is_owned(tap, &observed.tap_owners));
    steps.extend(unowned.map(|tap| Step::RemoveTap(tap.clone())));
    let used = |bridge: &String| {
        observed.wanted.networks.iter().any(|network| network.bridge == *bridge)
            || observed.wanted.bridged.iter().any(|network| network.bridge == *bridge)
            || observed.wanted.left_alone.contains(bridge)
    };
    let unused = observed.bridges.iter().filter(|bridge| !used(bridge));
    steps.extend(unused.map(|bridge| Step::RemoveNetwork(bridge.clone())));
    // A tunnel or a connection to a bridge of the host never exists without the firewall rules that guard it.
    let (tunnelled, alone): (Vec<_>, Vec<_>) =
        observed.wanted.networks.iter().cloned().partition(|network| network.tunnel.is_some());
    let (encrypted, tunnelled): (Vec<_>, Vec<_>) =
        tunnelled.into_iter().partition(NetworkConfig::is_encrypted);
    let mut make: Vec<Step> = alone.into_iter().map(Step::EnsureNetwork).collect();
    make.push(Step::ApplyFirewall(Arc::new(observed.wanted.firewall.clone())));
    make.extend(tunnelled.into_iter().map(Step::EnsureNetwork));
    make.extend(observed.wanted.bridged.iter().cloned().map(Step::EnsureBridged));
    make.extend(encrypted.into_iter().map(Step::EnsureNetwork));
    // Last: a host whose interface cannot be made has all its networks, and the rules let no packet of encrypted ones leave without it.
    make.extend(observed.wanted.wireguard.clone().map(Step::EnsureWireguard));
    if observed.wanted.wireguard.is_none() && observed.has_wireguard {
        make.push(Step::RemoveWireguard);
    }
    make.retain(|step| observed.ensure_all || !observed.is_in_effect(step));
    steps.extend(make);
    steps
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use berth_api::Reason;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::super::observe::{Actual, Desired, KeptGuest, wanted};
    use super::*;
    use crate::index::Index;
    use crate::networking::{Applied, GuestPort, Probe};
    use berth_host::{HostRange, Port, TapFacts, Tunnel, Uplink, WireguardConfig};

    const BRIDGE: &str = "bth-00004d";

    fn world(public: bool, network: bool) -> Index {
        let index = Index::default();
        let interfaces =
            if public { json!([{"name": "nic0", "publicIP": "web"}]) } else { json!([{"name": "nic0"}]) };
        let vm = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u1", "resourceVersion": "1"},
            "spec": {"class": "s", "disks": [{"name": "d", "boot": true}], "networkInterfaces": interfaces},
            "status": {"observedGeneration": 1, "instanceID": "i-0123456789ab", "interfaces": [
                {"name": "nic0", "network": "berth-shared/default", "macAddress": "52:54:00:00:00:01", "address": "10.77.0.2"}]},
        });
        index.apply::<berth_api::VM>(Event::Apply(serde_json::from_value(vm).expect("a VM")));
        let ip = json!({
            "metadata": {"name": "web", "namespace": "ns", "resourceVersion": "1"}, "spec": {},
            "status": {"observedGeneration": 1, "address": "198.18.100.1", "usedBy": [{"use": "Address", "vm": "web", "vmUid": "u1"}]},
        });
        index.apply::<berth_api::PublicIP>(Event::Apply(serde_json::from_value(ip).expect("a PublicIP")));
        if network {
            let network = json!({
                "metadata": {"name": "default", "namespace": "berth-shared", "resourceVersion": "1"},
                "spec": {"cidr": "10.77.0.0/16"}, "status": {"observedGeneration": 1, "vni": 77},
            });
            index.apply::<berth_api::Network>(Event::Apply(
                serde_json::from_value(network).expect("a Network"),
            ));
        }
        index
    }

    fn uplink() -> Uplink {
        Uplink {
            interface: Ok("eth0".to_owned()),
            ipv6_obstacle: None,
            own: BTreeSet::new(),
            public: BTreeSet::new(),
        }
    }

    fn seen_with(index: &Index, uplink: &Uplink, probed: BTreeMap<IpAddr, Probe>) -> Desired {
        wanted(&index.read(), &Actual { host: "h1", uplink: Some(uplink), probed, ..Actual::default() })
    }

    fn seen(index: &Index, applied: Applied, bridges: &[String], taps: &[&str]) -> Observed {
        let wanted = seen_with(index, &uplink(), BTreeMap::new());
        let taps = taps.iter().map(|t| (*t).to_owned()).collect();
        let tap_owners = BTreeSet::from(["btt01234567n".to_owned()]);
        Observed { wanted, bridges: bridges.to_vec(), taps, tap_owners, applied, ..Observed::default() }
    }

    fn made(observed: &Observed) -> Applied {
        let mut applied = Applied::default();
        for step in plan(observed) {
            match step {
                Step::EnsureNetwork(n) => drop(applied.networks.insert(n.bridge.clone(), n)),
                Step::ApplyFirewall(f) => applied.firewall = Some(f),
                _ => {}
            }
        }
        applied
    }

    #[test]
    fn the_gateways_address_is_the_one_that_controllers_keep_from_guests() {
        for bridge in ["bth-000001", "bth-00beef"] {
            assert_eq!(berth_host::bridge_mac(bridge), berth_api::network::bridge_mac(bridge));
        }
    }

    #[test]
    fn a_vm_gets_a_bridge_a_lease_nat_and_its_public_address() {
        let steps = plan(&seen(&world(true, true), Applied::default(), &[], &[]));
        insta::assert_debug_snapshot!(steps, @r#"
        [
            EnsureNetwork(
                NetworkConfig {
                    bridge: "bth-00004d",
                    ipv4: Some(
                        Ipv4Network {
                            range: 10.77.0.0/16,
                            gateway: 10.77.0.1,
                            egress: Masquerade,
                        },
                    ),
                    ipv6: None,
                    mtu: 1500,
                    dns: [],
                    search_domains: [],
                    names: None,
                    routes: [],
                    ipv6_routes: [],
                    leases: [
                        Lease {
                            mac: "52:54:00:00:00:01",
                            address: Some(
                                10.77.0.2,
                            ),
                            ipv6: None,
                            hostname: "web",
                            dns: [],
                            search_domains: [],
                            no_default_route: false,
                            routes: [],
                            ipv6_routes: [],
                            mtu: None,
                            no_dhcp4: false,
                            no_dhcp6: false,
                        },
                    ],
                    tunnel: None,
                    tracked: false,
                    relay: None,
                    prefixes: [],
                },
            ),
            ApplyFirewall(
                Firewall {
                    nat: [
                        Nat {
                            bridge: "bth-00004d",
                            ipv4: Some(
                                Ipv4Network {
                                    range: 10.77.0.0/16,
                                    gateway: 10.77.0.1,
                                    egress: Masquerade,
                                },
                            ),
                            ipv6: None,
                            tunnel: None,
                        },
                    ],
                    bridged: [],
                    advertised: [],
                    forwards: [
                        Forward {
                            public: 198.18.100.1,
                            private: 10.77.0.2,
                            announced_on: None,
                        },
                    ],
                    balanced: [],
                    prefixes: [],
                    ports: [],
                    exceptions: [],
                    limits: [],
                    marks: [],
                    trunks: [],
                    isolated: [],
                    observed: [],
                    answered: [],
                    answered_ipv6: [],
                    name_servers: [],
                    filters: Filters {
                        ports: [],
                        groups: [],
                        sets: {},
                        ipv6_sets: {},
                    },
                    guests: false,
                    closed: [],
                    ipv6_closed: [],
                    allowed: [],
                    ipv6_allowed: [],
                },
            ),
        ]
        "#);
    }

    #[test]
    fn the_prefix_and_egress_of_a_network_and_the_ipv6_address_of_an_interface_reach_the_host() {
        let index = world(false, true);
        let network = json!({
            "metadata": {"name": "default", "namespace": "berth-shared", "resourceVersion": "2"},
            "spec": {"cidr": "10.77.0.0/16", "egress": "None", "ipv6CIDR": "fd00:60::/64", "ipv6Egress": "Routed"},
            "status": {"observedGeneration": 1, "vni": 77},
        });
        index.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        let vm = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u1", "resourceVersion": "2"},
            "spec": {"class": "s", "disks": [{"name": "d", "boot": true}], "networkInterfaces": [{"name": "nic0"}]},
            "status": {"observedGeneration": 1, "instanceID": "i-0123456789ab", "interfaces": [
                {"name": "nic0", "network": "berth-shared/default", "macAddress": "52:54:00:00:00:01",
                 "address": "10.77.0.2", "ipv6Address": "fd00:60::2"}]},
        });
        index.apply::<berth_api::VM>(Event::Apply(serde_json::from_value(vm).expect("a VM")));
        let steps = plan(&seen(&index, Applied::default(), &[], &[]));
        let [Step::EnsureNetwork(network), Step::ApplyFirewall(firewall)] = &steps[..] else {
            panic!("{steps:?}")
        };
        let ipv6 = network.ipv6.expect("a prefix");
        assert_eq!(
            (ipv6.prefix.to_string(), ipv6.gateway.to_string()),
            ("fd00:60::/64".into(), "fd00:60::1".into())
        );
        assert_eq!((ipv6.egress, firewall.nat[0].ipv6), (berth_host::Egress::Routed, Some(ipv6)));
        assert_eq!(firewall.nat[0].ipv4.map(|ipv4| ipv4.egress), Some(berth_host::Egress::None));
        assert_eq!(network.leases[0].ipv6, "fd00:60::2".parse().ok());
    }

    /// The VM with an IPv6 address, to which a public one of an `l2` pool leads beside the IPv4 one.
    fn dual_stack(egress: &str) -> Index {
        let index = world(true, true);
        let network = json!({
            "metadata": {"name": "default", "namespace": "berth-shared", "resourceVersion": "2"},
            "spec": {"cidr": "10.77.0.0/16", "ipv6CIDR": "fd00:60::/64", "ipv6Egress": egress},
            "status": {"observedGeneration": 1, "vni": 77},
        });
        index.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        let vm = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u1", "resourceVersion": "2"},
            "spec": {"class": "s", "disks": [{"name": "d", "boot": true}],
                "networkInterfaces": [{"name": "nic0", "publicIP": "web", "publicIPv6": "web6"}]},
            "status": {"observedGeneration": 1, "instanceID": "i-0123456789ab", "interfaces": [
                {"name": "nic0", "network": "berth-shared/default", "macAddress": "52:54:00:00:00:01",
                 "address": "10.77.0.2", "ipv6Address": "fd00:60::2"}]},
        });
        index.apply::<berth_api::VM>(Event::Apply(serde_json::from_value(vm).expect("a VM")));
        let ip = json!({
            "metadata": {"name": "web6", "namespace": "ns", "resourceVersion": "1"}, "spec": {"pool": "segment6"},
            "status": {"observedGeneration": 1, "address": "2001:db8::7", "mode": "l2",
                       "usedBy": [{"use": "Address", "vm": "web", "vmUid": "u1"}]},
        });
        index.apply::<berth_api::PublicIP>(Event::Apply(serde_json::from_value(ip).expect("a PublicIP")));
        index
    }

    #[test]
    fn a_public_ipv6_address_leads_to_the_ipv6_address_of_its_interface_once_it_was_probed() {
        let index = dual_stack("Masquerade");
        let public: IpAddr = "2001:db8::7".parse().expect("an address");
        let seen = seen_with(&index, &uplink(), BTreeMap::new());
        assert_eq!((seen.firewall.forwards.len(), &seen.to_probe[..]), (1, &[public][..]));
        let seen = seen_with(&index, &uplink(), BTreeMap::from([(public, Probe::Free)]));
        let [ipv4, ipv6] = &seen.firewall.forwards[..] else { panic!("{seen:?}") };
        assert!(ipv4.public.is_ipv4() && ipv4.private.is_ipv4());
        assert_eq!((ipv6.public, ipv6.private.to_string()), (public, "fd00:60::2".to_owned()));
        assert_eq!(ipv6.announced_on.as_deref(), Some("eth0"));
        let taken = Probe::Taken("52:54:00:66:66:66".into(), tokio::time::Instant::now());
        let seen = seen_with(&index, &uplink(), BTreeMap::from([(public, taken)]));
        assert_eq!(seen.refused[&public].reason, Reason::AddressConflict);
    }

    #[test]
    fn a_public_ipv6_address_is_refused_where_its_guest_cannot_answer_or_the_host_cannot_announce() {
        let public: IpAddr = "2001:db8::7".parse().expect("an address");
        let seen = seen_with(&dual_stack("None"), &uplink(), BTreeMap::from([(public, Probe::Free)]));
        assert_eq!(seen.firewall.forwards.len(), 1, "that of IPv4");
        let text = &seen.refused[&public].text;
        assert!(text.contains("Network berth-shared/default has ipv6Egress None"), "{text}");
        let without = Uplink { ipv6_obstacle: Some("IPv6 is off".into()), ..uplink() };
        let seen = seen_with(&dual_stack("Routed"), &without, BTreeMap::new());
        assert_eq!(seen.refused[&public].reason, Reason::NoPublicInterface);
    }

    #[test]
    fn a_guest_whose_vm_is_not_known_keeps_its_bridge_lease_nat_and_public_address() {
        let before = plan(&seen(&world(true, true), Applied::default(), &[], &[]));
        let lost = Index::default();
        let network = json!({"metadata": {"name": "default", "namespace": "berth-shared", "resourceVersion": "1"},
            "spec": {"cidr": "10.77.0.0/16"}, "status": {"observedGeneration": 1, "vni": 77}});
        lost.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        let kept = json!([{"name": "nic0", "network": "berth-shared/default", "macAddress": "52:54:00:00:00:01",
            "address": "10.77.0.2"}]);
        let public =
            json!([{"interface": "nic0", "name": "web", "address": "198.18.100.1", "mode": "local"}]);
        let kept = [KeptGuest {
            instance: "i-0123456789ab".into(),
            name: crate::key::ObjectName::new("ns", "web"),
            uid: "u1".into(),
            interfaces: serde_json::from_value(kept).expect("interfaces"),
            public: serde_json::from_value(public).expect("a public address"),
            ports: Vec::new(),
        }];
        let uplink = uplink();
        let with = |index: &Index| {
            let seen_here = Actual { kept: &kept, host: "h1", uplink: Some(&uplink), ..Actual::default() };
            let wanted = Desired {
                left_alone: BTreeSet::from([BRIDGE.to_owned()]),
                ..wanted(&index.read(), &seen_here)
            };
            Observed { wanted, ..seen(&Index::default(), Applied::default(), &[], &[]) }
        };
        assert_eq!(plan(&with(&lost)), before);
        assert_eq!(plan(&with(&world(true, true))), before, "once it is known it is there once");
        let unknown = Observed { bridges: vec![BRIDGE.to_owned()], ..with(&Index::default()) };
        assert!(
            !plan(&unknown).iter().any(|step| matches!(step, Step::RemoveNetwork(_))),
            "nor is it cut off"
        );
    }

    #[test]
    fn what_is_so_already_is_left_alone() {
        let index = world(true, true);
        let bridge = BRIDGE.to_owned();
        let real = made(&seen(&index, Applied::default(), &[], &[]));
        let so = seen(&index, real.clone(), &[bridge], &["btt01234567n0"]);
        assert_eq!(plan(&so), []);
        assert_eq!(plan(&Observed { ensure_all: true, ..so }).len(), 2);
        assert_eq!(plan(&seen(&index, real, &[], &[])).len(), 1, "a bridge that vanished is made again");
    }

    #[test]
    fn a_public_address_that_is_no_longer_wanted_stops_leading_there() {
        let real = made(&seen(&world(true, true), Applied::default(), &[], &[]));
        let steps = plan(&seen(&world(false, true), real, &[BRIDGE.to_owned()], &[]));
        let [Step::ApplyFirewall(firewall)] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!((firewall.forwards.len(), firewall.nat.len()), (0, 1));
    }

    #[test]
    fn bridges_and_taps_nobody_uses_are_removed_and_one_with_a_guest_on_it_stays() {
        let bridge = BRIDGE.to_owned();
        let steps = plan(&seen(
            &Index::default(),
            Applied::default(),
            std::slice::from_ref(&bridge),
            &["bttffffffffn0"],
        ));
        assert!(steps.contains(&Step::RemoveNetwork(bridge.clone())), "{steps:?}");
        assert!(steps.contains(&Step::RemoveTap("bttffffffffn0".to_owned())), "{steps:?}");
        let mut unreadable =
            seen(&world(false, false), Applied::default(), std::slice::from_ref(&bridge), &[]);
        unreadable.wanted.left_alone.insert(bridge);
        let steps = plan(&unreadable);
        assert!(!steps.iter().any(|s| matches!(s, Step::RemoveNetwork(_))), "{steps:?}");
    }

    fn spread(index: &Index, hosts: &[(&str, &str)]) {
        let hosts: Vec<_> =
            hosts.iter().map(|(name, address)| json!({"name": name, "address": address})).collect();
        let network = json!({
            "metadata": {"name": "default", "namespace": "berth-shared", "resourceVersion": "2"},
            "spec": {"cidr": "10.77.0.0/16"},
            "status": {"observedGeneration": 1, "vni": 77, "mtu": 1450, "hosts": hosts},
        });
        index.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
    }

    fn tunnel(index: &Index) -> Option<(u32, String, Vec<String>)> {
        let steps = plan(&seen(index, Applied::default(), &[], &[]));
        let mut networks = steps.iter().filter_map(|step| match step {
            Step::EnsureNetwork(network) => Some(network),
            _ => None,
        });
        let tunnel = networks.next_back().expect("a network").tunnel.clone()?;
        Some((tunnel.vni, tunnel.local.to_string(), tunnel.peers.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn a_tunnel_leads_to_the_hosts_the_network_is_on_and_to_no_others() {
        let index = world(false, true);
        spread(&index, &[("h1", "192.0.2.1")]);
        assert_eq!(tunnel(&index), None, "this host alone");
        spread(&index, &[("h2", "192.0.2.2")]);
        assert_eq!(tunnel(&index), None, "not known to be on this host yet");
        spread(&index, &[("h1", "192.0.2.1"), ("h2", "192.0.2.3"), ("h3", "192.0.2.2")]);
        let peers = vec!["192.0.2.2".to_owned(), "192.0.2.3".to_owned()];
        assert_eq!(tunnel(&index), Some((77, "192.0.2.1".to_owned(), peers)));
    }

    #[test]
    fn the_rules_that_guard_a_tunnel_come_before_it_and_go_after_it() {
        let index = world(false, true);
        spread(&index, &[("h1", "192.0.2.1"), ("h2", "192.0.2.2")]);
        let steps = plan(&seen(&index, Applied::default(), &[], &[]));
        assert!(
            matches!(&steps[..], [Step::ApplyFirewall(f), Step::EnsureNetwork(n)]
            if f.nat[0].tunnel == n.tunnel && n.tunnel.is_some() && n.mtu == 1450),
            "{steps:?}"
        );
        spread(&index, &[("h1", "192.0.2.1")]);
        let steps = plan(&seen(&index, Applied::default(), &[], &[]));
        assert!(matches!(&steps[..], [Step::EnsureNetwork(_), Step::ApplyFirewall(_)]), "{steps:?}");
    }

    #[test]
    fn an_encrypted_network_is_guarded_first_and_waits_for_no_interface_of_wireguard() {
        let mut observed = seen(&world(false, true), Applied::default(), &[], &[]);
        let [local, peer] = [1, 2].map(|n| Ipv6Addr::new(0xfd62, 0x6572, 0x7468, 0, 0, 0, 0, n));
        observed.wanted.networks[0].tunnel =
            Some(Tunnel { vni: 77, local: local.into(), peers: vec![peer.into()] });
        let config =
            WireguardConfig { address: local, local: Ipv4Addr::new(192, 0, 2, 1), peers: Vec::new() };
        observed.wanted.wireguard = Some(config);
        let steps = plan(&observed);
        assert!(
            matches!(&steps[..], [Step::ApplyFirewall(_), Step::EnsureNetwork(_), Step::EnsureWireguard(_)]),
            "{steps:?}"
        );
    }

    fn announced(index: &Index) {
        let ip = json!({
            "metadata": {"name": "web", "namespace": "ns", "resourceVersion": "2"}, "spec": {"pool": "segment"},
            "status": {"observedGeneration": 1, "address": "192.0.2.130", "mode": "l2",
                       "usedBy": [{"use": "Address", "vm": "web", "vmUid": "u1"}]},
        });
        index.apply::<berth_api::PublicIP>(Event::Apply(serde_json::from_value(ip).expect("a PublicIP")));
    }

    #[test]
    fn an_address_of_an_l2_pool_is_announced_where_there_is_an_interface_for_it() {
        let index = world(true, true);
        announced(&index);
        let mut uplink = uplink();
        let free = BTreeMap::from([("192.0.2.130".parse().expect("an address"), Probe::Free)]);
        let seen = seen_with(&index, &uplink, free);
        assert_eq!(seen.firewall.forwards[0].announced_on.as_deref(), Some("eth0"));
        uplink.interface = Err("there is none".to_owned());
        let seen = seen_with(&index, &uplink, BTreeMap::new());
        assert!(seen.firewall.forwards.is_empty());
        let refused = seen.refused.values().next().expect("said");
        assert_eq!(refused.reason, Reason::NoPublicInterface);
        assert_eq!(refused.text, "192.0.2.130 is not announced: there is none");
    }

    #[test]
    fn an_announced_address_is_taken_only_once_nobody_else_is_known_to_have_it() {
        let index = world(true, true);
        announced(&index);
        let address: IpAddr = "192.0.2.130".parse().expect("an address");
        let here = |public: &[IpAddr], probe: Option<Probe>| {
            let public = public.iter().copied().collect();
            let uplink = Uplink { own: BTreeSet::new(), public, ..uplink() };
            let probed = probe.map(|probe| (address, probe)).into_iter().collect();
            seen_with(&index, &uplink, probed)
        };
        for probe in [None, Some(Probe::Running)] {
            let seen = here(&[], probe);
            assert_eq!((seen.firewall.forwards.len(), seen.refused.len()), (0, 0), "nothing is known yet");
            assert_eq!(seen.to_probe, [address]);
        }
        assert_eq!(here(&[], Some(Probe::Free)).firewall.forwards.len(), 1);
        let mac = "52:54:00:66:66:66".to_owned();
        let seen = here(&[], Some(Probe::Taken(mac.clone(), tokio::time::Instant::now())));
        assert_eq!(
            (seen.firewall.forwards.len(), &seen.to_probe[..]),
            (0, &[address][..]),
            "asked for again"
        );
        let refused = &seen.refused[&address];
        assert_eq!((refused.reason, refused.mac.as_ref()), (Reason::AddressConflict, Some(&mac)));
        assert!(
            refused.text.starts_with("192.0.2.130 is answered for by 52:54:00:66:66:66"),
            "{}",
            refused.text
        );
        let seen = here(&[address], None);
        assert_eq!(
            (seen.firewall.forwards.len(), seen.to_probe.len()),
            (1, 0),
            "a restart interrupts nothing"
        );
    }

    #[test]
    fn an_address_that_is_the_hosts_own_never_leads_to_a_vm() {
        let index = world(true, true);
        let own = ["198.18.100.1".parse().expect("an address")].into();
        let uplink = Uplink { own, ..uplink() };
        let seen = seen_with(&index, &uplink, BTreeMap::new());
        assert!(seen.firewall.forwards.is_empty(), "the host would be cut off");
        assert_eq!(seen.refused.values().next().map(|r| r.reason), Some(Reason::HostAddress));
    }

    fn port_of_web() -> Port {
        let (tap, mac) = ("btt01234567n0".into(), "52:54:00:00:00:01".into());
        Port { tap, mac, address: Some(Ipv4Addr::new(10, 77, 0, 2)), ipv6: None }
    }

    #[test]
    fn a_guest_sends_as_what_its_journal_says_and_stays_on_the_bridge_it_is_on() {
        let index = world(false, true);
        let taps = [TapFacts { name: "btt01234567n0".into(), bridge: Some("bth-6a60db49".into()) }];
        let port = port_of_web();
        let noted = vec![GuestPort {
            network: "berth-shared/default".into(),
            port: port.clone(),
            groups: Vec::new(),
        }];
        let here = Actual { host: "h1", taps: &taps, ports: noted, ..Actual::default() };
        let wanted = wanted(&index.read(), &here);
        assert_eq!(wanted.firewall.ports, [port]);
        assert_eq!(wanted.networks[0].bridge, "bth-6a60db49", "an agent before this one named it");
        assert_eq!(wanted.firewall.nat[0].bridge, "bth-6a60db49");
    }

    #[test]
    fn the_firewall_is_the_same_before_and_after_a_guests_tap_is_made() {
        let index = world(true, true);
        let port = port_of_web();
        let noted = vec![GuestPort { network: "berth-shared/default".into(), port, groups: Vec::new() }];
        let before = Actual { host: "h1", ports: noted, ..Actual::default() };
        let taps = [TapFacts { name: "btt01234567n0".into(), bridge: Some(BRIDGE.into()) }];
        let after = Actual { taps: &taps, ..before.clone() };
        let before = wanted(&index.read(), &before).firewall;
        assert!(before.guests);
        assert_eq!(before, wanted(&index.read(), &after).firewall);
    }

    #[test]
    fn a_network_whose_range_the_host_uses_gets_no_bridge_and_no_rule() {
        let index = world(true, true);
        let ranges = [HostRange { range: "10.77.3.0/24".parse().expect("a range"), is_route: true }];
        let here = Actual { host: "h1", ranges: &ranges, ..Actual::default() };
        let wanted = wanted(&index.read(), &here);
        assert!(wanted.networks.is_empty() && wanted.firewall.nat.is_empty(), "{wanted:?}");
        assert!(wanted.firewall.forwards.is_empty());
        assert!(wanted.refused_networks["berth-shared/default"].contains("in use by this host"));
    }

    #[test]
    fn guests_are_kept_from_the_control_plane_and_from_every_host_of_the_site() {
        let index = world(false, true);
        let network = json!({
            "metadata": {"name": "default", "namespace": "berth-shared", "resourceVersion": "2"},
            "spec": {"cidr": "10.77.0.0/16"},
            "status": {"observedGeneration": 1, "vni": 77, "hosts": [{"name": "h1", "address": "192.0.2.1"}]},
        });
        index.apply::<berth_api::Network>(Event::Apply(serde_json::from_value(network).expect("a Network")));
        let addresses = ["192.0.2.1", "192.0.2.7", "2001:db8::7"]
            .map(|address| address.parse::<IpAddr>().expect("an address"));
        let listed = berth_api::host_addresses::to_data(addresses.into_iter());
        let map = k8s_openapi::api::core::v1::ConfigMap { data: Some(listed), ..Default::default() };
        index.read().host_addresses.apply(Event::Apply(map));
        let range = |text: &str| text.parse::<ipnet::IpNet>().expect("a range");
        let control_plane = ["203.0.113.5/32", "2001:db8:1::5/128"].map(range);
        let allowed = ["192.0.2.7/32", "2001:db8::7/128"].map(range);
        let here = Actual { host: "h1", closed: &control_plane, allowed: &allowed, ..Actual::default() };
        let firewall = wanted(&index.read(), &here).firewall;
        let closed: Vec<String> = firewall.closed.iter().map(ToString::to_string).collect();
        assert_eq!(closed, ["192.0.2.1/32", "192.0.2.7/32", "203.0.113.5/32"]);
        let closed: Vec<String> = firewall.ipv6_closed.iter().map(ToString::to_string).collect();
        assert_eq!(closed, ["2001:db8::7/128", "2001:db8:1::5/128"]);
        assert_eq!((firewall.allowed.len(), firewall.ipv6_allowed.len()), (1, 1));
    }
}
