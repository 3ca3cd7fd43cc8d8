//! Networks that span several hosts.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use super::guest::Guest;
use super::host::{Host, SEGMENT, segment};
use super::*;

const SOON: Duration = Duration::from_secs(3);
const TENANTS: [(&str, &str, u32); 2] = [(BRIDGE, "10.77.0.0/24", 77), (OTHER, "10.78.0.0/24", 78)];

/// Creates both tenants' networks on a host, with tunnels to the others.
fn make(host: &Host, others: &[&Host], mtu: u16) {
    let peers: Vec<IpAddr> = others.iter().map(|other| other.address.into()).collect();
    let tunnel = |vni| {
        let peers = peers.clone();
        (!peers.is_empty()).then_some(Tunnel { vni, local: host.address.into(), peers })
    };
    let configs = TENANTS.map(|(bridge, cidr, vni)| NetworkConfig {
        mtu,
        tunnel: tunnel(vni),
        ..network(bridge, cidr, Vec::new())
    });
    let nat = TENANTS.map(|(bridge, cidr, vni)| nat(bridge, cidr, tunnel(vni))).to_vec();
    host.run(move |f| {
        Box::pin(async move {
            f.networks.apply_firewall(&Firewall { nat, ..Firewall::default() }).await.expect("rules");
            for config in &configs {
                f.networks.ensure(config).await.expect("made");
            }
        })
    });
}

fn clear(hosts: &[&Host]) {
    for host in hosts {
        host.run(|f| {
            Box::pin(async move {
                for bridge in [BRIDGE, OTHER] {
                    f.networks.remove(bridge).await.expect("removed");
                }
                f.networks.apply_firewall(&Firewall::default()).await.expect("removed");
            })
        });
        let links = host.ip("-o link");
        assert!(!links.contains("bth-") && !links.contains("btx-"), "{links}");
        assert_eq!(host.on(|_, _| run("nft", "list ruleset")), "");
    }
}

fn arrives(inbox: &Receiver<usize>, bytes: usize) -> bool {
    inbox.recv_timeout(SOON).is_ok_and(|length| length == bytes - 28)
}

#[test]
fn guests_of_one_network_reach_each_other_on_whichever_host_and_those_of_another_never() {
    in_own_namespace(|| async {
        segment(1500);
        let (a, b, c) = (Host::on_segment(11, 1500), Host::on_segment(12, 1500), Host::on_segment(13, 1500));
        make(&a, &[&b, &c], 1450);
        make(&b, &[&a, &c], 1450);
        make(&c, &[&a, &b], 1450);
        let ours = [
            a.guest(BRIDGE, "10.77.0.5/24", "10.77.0.1"),
            b.guest(BRIDGE, "10.77.0.6/24", "10.77.0.1"),
            c.guest(BRIDGE, "10.77.0.7/24", "10.77.0.1"),
        ];
        let theirs =
            [a.guest(OTHER, "10.78.0.5/24", "10.78.0.1"), b.guest(OTHER, "10.78.0.6/24", "10.78.0.1")];
        ours.iter().chain(&theirs).for_each(|guest| guest.serve(80));
        assert_eq!(ours[0].fetch("10.77.0.6", 80).as_deref(), Some("10.77.0.5"), "not translated");
        assert_eq!(ours[1].fetch("10.77.0.7", 80).as_deref(), Some("10.77.0.6"));
        assert_eq!(ours[2].fetch("10.77.0.5", 80).as_deref(), Some("10.77.0.7"));
        assert_eq!(theirs[0].fetch("10.78.0.6", 80).as_deref(), Some("10.78.0.5"));
        for address in ["10.78.0.5", "10.78.0.6"] {
            assert_eq!(ours[0].fetch(address, 80), None, "{address} is another tenant's");
        }
        // Each host answers its own guests at the gateway's address, and only DNS.
        a.on(|_, _| guest::serve_here(8080));
        assert!(ours[0].connects("10.77.0.1", 53) && ours[1].connects("10.77.0.1", 53));
        assert!(!ours[0].connects("10.77.0.1", 8080), "the host's services are not for guests");
        assert!(!ours[0].connects("10.78.0.1", 53), "that is another network's gateway");
        // After a restart of the agent nothing is recreated.
        let before = a.ip("-o link show type vxlan");
        make(&a, &[&b, &c], 1450);
        assert_eq!(a.ip("-o link show type vxlan"), before);
        // A host leaves, and comes back under another address.
        make(&a, &[&b], 1450);
        assert_eq!(ours[0].fetch("10.77.0.7", 80), None, "no way to a host that is not one of its");
        assert!(ours[0].fetch("10.77.0.6", 80).is_some());
        let flood = a.on(|_, _| run("bridge", "fdb show dev btx-0a1b2c3d"));
        assert!(flood.contains("192.0.2.12") && !flood.contains("192.0.2.13"), "{flood}");
        make(&a, &[], 1450);
        assert!(!a.ip("-o link").contains("btx-"), "a host alone has no tunnels");
        assert!(!a.on(|_, _| run("nft", "list table bridge berth")).contains("btx-"));
        clear(&[&a, &b, &c]);
    });
}

#[test]
fn dhcp_is_answered_by_the_guests_own_host_only() {
    in_own_namespace(|| async {
        segment(1500);
        let (a, b) = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
        make(&a, &[&b], 1450);
        make(&b, &[&a], 1450);
        let near = a.on(|_, _| Guest::join(BRIDGE, 5));
        let far = b.on(|_, _| Guest::join(BRIDGE, 6));
        // Host a has both leases, host b neither.
        let peers = vec![b.address.into()];
        let tunnel = Tunnel { vni: 77, local: a.address.into(), peers };
        let config = tunnelled(network(BRIDGE, "10.77.0.0/24", vec![lease(5), lease(6)]), tunnel);
        a.run(move |f| Box::pin(async move { f.networks.ensure(&config).await.expect("told") }));
        let (offer, none) = blocking(move || (near.dhcp(), far.dhcp())).await;
        assert_eq!(offer.map(|o| (o.address, o.mtu)), Some((Ipv4Addr::new(10, 77, 0, 5), Some(1450))));
        assert_eq!(none, None, "a host that knows it, but over the tunnel");
        clear(&[&a, &b]);
    });
}

#[test]
fn what_guests_are_told_fits_and_larger_packets_of_older_guests_arrive_too() {
    in_own_namespace(|| async {
        segment(1500);
        let (a, b) = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
        make(&a, &[&b], 1450);
        make(&b, &[&a], 1450);
        let from = a.guest(BRIDGE, "10.77.0.5/24", "10.77.0.1");
        let to = b.guest(BRIDGE, "10.77.0.6/24", "10.77.0.1");
        let inbox = to.listen(9000);
        from.send("10.77.0.6", 9000, 1450, true).expect("sent");
        assert!(arrives(&inbox, 1450), "the largest that guests are told");
        from.send("10.77.0.6", 9000, 1500, false).expect("sent");
        assert!(arrives(&inbox, 1500), "from a guest that was told more before there were other hosts");
        // An unfragmentable packet does not fit: the kernel reports the MTU to its sender.
        let reported = (0..20).any(|_| {
            std::thread::sleep(Duration::from_millis(50));
            from.send("10.77.0.6", 9000, 1500, true).is_err()
        });
        assert!(reported, "the sender hears of the smaller size");
        from.send("10.77.0.6", 9000, 1450, true).expect("sent");
        assert!(arrives(&inbox, 1450));
        clear(&[&a, &b]);
    });
}

/// A frame in VXLAN: a broadcast UDP packet to port 9000.
fn smuggled(vni: u32) -> Vec<u8> {
    let mut packet = vec![0x08, 0, 0, 0];
    packet.extend_from_slice(&(vni << 8).to_be_bytes());
    packet.extend([0xff; 6]);
    packet.extend([0x52, 0x54, 0, 0x66, 0x66, 0x66, 0x08, 0]);
    let mut header = [0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0, 10, 78, 0, 99, 255, 255, 255, 255];
    let sum: u32 = header.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("one carry at most");
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(header);
    packet.extend([0x23, 0x28, 0x23, 0x28, 0, 12, 0, 0]);
    packet.extend(b"evil");
    packet
}

fn smuggle(to: &'static str) {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.send_to(&smuggled(78), (to, 4789)).expect("sent");
}

#[test]
fn nobody_puts_frames_into_a_network_but_its_own_hosts() {
    in_own_namespace(|| async {
        segment(1500);
        let (a, b) = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
        make(&a, &[&b], 1450);
        make(&b, &[&a], 1450);
        let attacker = a.guest(BRIDGE, "10.77.0.5/24", "10.77.0.1");
        let victims =
            [a.guest(OTHER, "10.78.0.5/24", "10.78.0.1"), b.guest(OTHER, "10.78.0.6/24", "10.78.0.1")];
        let inboxes = victims.each_ref().map(|victim| victim.listen(9000));
        a.on(|_, _| smuggle("192.0.2.12"));
        assert!(arrives(&inboxes[1], 32), "what its hosts send comes through");
        let outsider = host::outsider("192.0.2.99/24");
        for to in ["192.0.2.11", "192.0.2.12"] {
            outsider.on(move || smuggle(to));
            attacker.on(move || smuggle(to));
        }
        attacker.on(|| smuggle("10.77.0.1"));
        // Under the address of its host, which does not know this one as that of a host.
        b.ip("addr add 192.0.2.112/24 dev up0");
        attacker.on(|| smuggle("192.0.2.112"));
        for inbox in &inboxes {
            assert!(
                inbox.recv_timeout(Duration::from_millis(700)).is_err(),
                "a stranger's frame came through"
            );
        }
        // Verifies that the rules, and nothing else, drop them.
        for host in [&a, &b] {
            host.on(|_, _| {
                run("nft", "flush chain inet berth input");
                run("nft", "flush chain inet berth forward");
            });
        }
        attacker.on(|| smuggle("10.77.0.1"));
        assert!(arrives(&inboxes[0], 32));
        attacker.on(|| smuggle("192.0.2.12"));
        assert!(arrives(&inboxes[1], 32));
        clear(&[&a, &b]);
    });
}

/// Assigns public addresses to a host, on behalf of its guests.
fn publish(host: &Host, others: &[&Host], forwards: &'static [(&str, &str)]) {
    let peers: Vec<IpAddr> = others.iter().map(|other| other.address.into()).collect();
    let address = host.address;
    host.run(move |f| {
        Box::pin(async move {
            let uplink = f.networks.uplink(&UplinkChoice { named: None, address: Some(address) }).await;
            let interface = uplink.expect("looked").interface.expect("there is one");
            assert_eq!(interface, "up0");
            let tunnel = |vni| Some(Tunnel { vni, local: address.into(), peers: peers.clone() });
            let parse = |text: &str| text.parse().expect("address");
            let forward = |(public, private): &(&str, &str)| Forward {
                public: parse(public),
                private: parse(private),
                announced_on: Some(interface.clone()),
            };
            let nat = TENANTS.map(|(bridge, cidr, vni)| nat(bridge, cidr, tunnel(vni))).to_vec();
            let firewall =
                Firewall { nat, forwards: forwards.iter().map(forward).collect(), ..Firewall::default() };
            f.networks.apply_firewall(&firewall).await.expect("written");
        })
    });
}

#[test]
fn an_announced_address_leads_to_its_guest_from_the_whole_segment_and_from_guests_anywhere() {
    in_own_namespace(|| async {
        segment(1500);
        let (a, b) = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
        make(&a, &[&b], 1450);
        make(&b, &[&a], 1450);
        let one = a.guest(BRIDGE, "10.77.0.5/24", "10.77.0.1");
        let two = b.guest(BRIDGE, "10.77.0.6/24", "10.77.0.1");
        let other_tenant = b.guest(OTHER, "10.78.0.6/24", "10.78.0.1");
        let outsider = host::outsider("192.0.2.99/24");
        [&one, &two, &other_tenant, &outsider].into_iter().for_each(|guest| guest.serve(80));
        publish(&a, &[&b], &[("192.0.2.130", "10.77.0.5")]);
        publish(&b, &[&a], &[("192.0.2.131", "10.77.0.6"), ("192.0.2.132", "10.78.0.6")]);

        assert_eq!(outsider.fetch("192.0.2.130", 80).as_deref(), Some("192.0.2.99"), "guests see who asks");
        assert!(outsider.fetch("192.0.2.132", 80).is_some());
        assert!(b.on(|_, _| guest::fetch("192.0.2.130", 80)).is_some(), "another host");
        assert!(a.on(|_, _| guest::fetch("192.0.2.130", 80)).is_some(), "its own host");
        assert_eq!(two.fetch("192.0.2.130", 80).as_deref(), Some("192.0.2.131"), "a guest on another host");
        assert_eq!(other_tenant.fetch("192.0.2.130", 80).as_deref(), Some("192.0.2.132"), "another tenant");
        assert!(other_tenant.fetch("192.0.2.131", 80).is_some(), "another tenant, on the same host");
        assert!(one.fetch("192.0.2.130", 80).is_some(), "the guest itself");
        assert_eq!(one.fetch("192.0.2.99", 80).as_deref(), Some("192.0.2.130"), "it leaves under its own");
        let within = one.fetch("10.77.0.6", 80);
        assert_eq!(within.as_deref(), Some("10.77.0.5"), "but within its network it is itself");
        assert_eq!(other_tenant.fetch("10.77.0.5", 80), None);
        let taken = a.ip("-4 -o addr");
        assert!(taken.contains("192.0.2.130/32") && !taken.contains("192.0.2.131"), "{taken}");
        clear(&[&a, &b]);
    });
}

#[test]
fn an_address_that_moves_to_another_host_is_found_there_at_once() {
    in_own_namespace(|| async {
        segment(1500);
        let (a, b) = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
        make(&a, &[&b], 1450);
        make(&b, &[&a], 1450);
        let before = a.guest(BRIDGE, "10.77.0.5/24", "10.77.0.1");
        let after = b.guest(BRIDGE, "10.77.0.6/24", "10.77.0.1");
        before.serve(80);
        after.serve(80);
        let outsider = host::outsider("192.0.2.99/24");
        publish(&a, &[&b], &[("192.0.2.130", "10.77.0.5")]);
        assert_eq!(outsider.fetch("192.0.2.130", 80).as_deref(), Some("192.0.2.99"));
        publish(&a, &[&b], &[]);
        assert_eq!(outsider.fetch("192.0.2.130", 80), None, "nobody has it");
        publish(&b, &[&a], &[("192.0.2.130", "10.77.0.6")]);
        assert_eq!(outsider.fetch("192.0.2.130", 80).as_deref(), Some("192.0.2.99"));
        // A neighbour has a wrong entry; a new agent announces the right one.
        let known = || outsider.on(|| ip("neigh show 192.0.2.130"));
        outsider.on(|| ip("neigh replace 192.0.2.130 lladdr 52:54:00:66:66:66 dev eth0 nud stale"));
        assert!(known().contains("52:54:00:66:66:66"));
        b.run(|f| {
            Box::pin(async move {
                let restarted = LinuxNetworks::new(f.layout.clone());
                let link = Netlink::open().expect("open").expect("up0").await.expect("there");
                let address = "192.0.2.130".parse().expect("address");
                restarted.announcer.announce(&link, &[address]).expect("sent");
            })
        });
        let corrected = (0..40).any(|_| {
            std::thread::sleep(Duration::from_millis(25));
            !known().contains("52:54:00:66:66:66")
        });
        assert!(corrected, "{}", known());
        clear(&[&a, &b]);
    });
}

#[test]
fn rules_are_written_while_the_interface_of_public_addresses_is_down() {
    in_own_namespace(|| async {
        segment(1500);
        let (a, b) = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
        make(&a, &[&b], 1450);
        a.ip("link set up0 down");
        publish(&a, &[&b], &[("192.0.2.130", "10.77.0.5")]);
        assert!(a.ip("-4 -o addr").contains("192.0.2.130/32"));
        clear(&[&a]);
    });
}

#[test]
fn who_else_has_an_address_is_found_before_it_is_taken() {
    in_own_namespace(|| async {
        segment(1500);
        let (a, b) = (Host::on_segment(11, 1500), Host::on_segment(12, 1500));
        make(&b, &[&a], 1450);
        let outsider = host::outsider("192.0.2.130/24");
        let occupant = |address: &'static str| {
            a.run(move |f| {
                Box::pin(async move {
                    let address = address.parse().expect("address");
                    f.networks.occupant("up0", address).await.expect("asked")
                })
            })
        };
        let link = outsider.on(|| ip("-o link show eth0"));
        let mac = occupant("192.0.2.130").expect("the outsider answers");
        assert!(link.contains(&mac), "{mac} is not of {link}");
        assert_eq!(occupant("192.0.2.131"), None, "nobody has it");
        assert_eq!(occupant("192.0.2.11"), None, "who asks does not answer himself");
        publish(&b, &[&a], &[("192.0.2.131", "10.77.0.6")]);
        assert!(occupant("192.0.2.131").is_some(), "another host has taken it");
        let public = b.run(|f| {
            Box::pin(async move {
                let choice = UplinkChoice { named: Some("up0".to_owned()), address: None };
                f.networks.uplink(&choice).await.expect("looked").public
            })
        });
        assert_eq!(public, ["192.0.2.131".parse::<IpAddr>().expect("address")].into());
        clear(&[&b]);
    });
}

#[test]
fn a_host_with_two_interfaces_on_a_segment_does_not_take_its_own_answer_for_another_machine() {
    in_own_namespace(|| async {
        segment(1500);
        for interface in ["up0", "up1"] {
            ip(&format!("link add {interface} type veth peer name {interface}p"));
            ip(&format!("link set {interface}p master {SEGMENT} up"));
            ip(&format!("link set {interface} up"));
        }
        let host = Fixture::new();
        let occupant = async |address: &str| {
            let address = address.parse().expect("an address");
            host.networks.occupant("up0", address).await.expect("asked")
        };
        ip(&format!("link add {PUBLIC_LINK} type bridge"));
        ip(&format!("addr add 192.0.2.130/32 dev {PUBLIC_LINK}"));
        ip(&format!("link set {PUBLIC_LINK} up"));
        assert_eq!(occupant("192.0.2.130").await, None, "it has the public address itself");
        ip("addr add 192.0.2.131/32 dev up1");
        assert!(occupant("192.0.2.131").await.is_some(), "that would cut off the host");
    });
}

#[test]
fn a_host_that_cannot_announce_says_why() {
    in_own_namespace(|| async {
        segment(1500);
        let a = Host::on_segment(11, 1500);
        let address = a.address;
        a.run(move |f| {
            Box::pin(async move {
                let look = async |named: Option<&str>, address| {
                    let choice = UplinkChoice { named: named.map(str::to_owned), address };
                    f.networks.uplink(&choice).await.expect("looked")
                };
                let found = look(None, Some(address)).await;
                assert!(found.own.contains(&IpAddr::V4(address)), "{found:?}");
                assert_eq!(found.interface.as_deref(), Ok("up0"));
                let none = look(None, None).await.interface.expect_err("no default route");
                assert!(none.contains("--public-interface"), "{none}");
                let none = look(Some("eth7"), None).await.interface.expect_err("no such interface");
                assert!(none.contains("eth7"), "{none}");
                ip("route add default via 192.0.2.1");
                assert_eq!(look(None, None).await.interface.as_deref(), Ok("up0"));
                std::fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1").expect("set");
                let none = look(None, None).await.interface.expect_err("it would not answer");
                assert!(none.contains("arp_ignore=0"), "{none}");
                assert_eq!(f.networks.mtu_at(address).await.expect("looked"), Some(1500));
            })
        });
    });
}
