//! Private networks with an IPv6 prefix: addresses by a real dnsmasq, the way out, several hosts. Spoofed frames are in `spoofing`.

use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::time::Instant;

use nix::sys::socket::{setsockopt, sockopt};

use super::guest::Guest;
use super::host::{Host, segment};
use super::*;
use crate::{Egress, Ipv6Network};

/// On a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);
/// Longer than an answer takes otherwise.
const NO_ANSWER: Duration = Duration::from_secs(8);
const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const SOLICIT: u8 = 1;
const ADVERTISE: u8 = 2;
const REQUEST: u8 = 3;
const REPLY: u8 = 7;
const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const IDENTITY: u16 = 3;
const ADDRESS: u16 = 5;
const NAME_SERVERS: u16 = 23;

pub(super) fn ipv6(egress: Egress) -> Option<Ipv6Network> {
    let prefix = "fd00:60::/64".parse().expect("a prefix");
    let gateway = "fd00:60::1".parse().expect("an address");
    Some(Ipv6Network { prefix, gateway, egress, autoconfiguration: false })
}

fn dual_stack(egress: Egress) -> NetworkConfig {
    NetworkConfig { ipv6: ipv6(egress), ..network(BRIDGE, "10.77.0.0/24", vec![lease(5), lease(6)]) }
}

fn rules(egress: Egress) -> Firewall {
    let nat = vec![Nat { ipv6: ipv6(egress), ..nat(BRIDGE, "10.77.0.0/24", None) }];
    Firewall { nat, ..Firewall::default() }
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).expect("short");
    [&code.to_be_bytes()[..], &length.to_be_bytes(), value].concat()
}

/// Returns the values of this option, at the top level.
fn options(mut message: &[u8], code: u16) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let [a, b, c, d, rest @ ..] = message {
        let length = usize::from(u16::from_be_bytes([*c, *d]));
        let Some((value, after)) = rest.split_at_checked(length) else { break };
        if u16::from_be_bytes([*a, *b]) == code {
            found.push(value);
        }
        message = after;
    }
    found
}

/// An address that a DHCPv6 server has given, and its name servers.
#[derive(Debug, PartialEq, Eq)]
struct Given {
    address: Ipv6Addr,
    dns: Vec<Ipv6Addr>,
}

/// Asks for an address by DHCPv6 under this DUID, from the caller's network namespace.
fn ask(duid: &[u8], patience: Duration) -> Option<Given> {
    let deadline = Instant::now() + patience;
    let link = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    let index = link.lines().find(|line| line.ends_with("eth0")).and_then(|line| line.split(' ').nth(1));
    let index = u32::from_str_radix(index?, 16).expect("an index");
    let bind = || UdpSocket::bind("[::]:546").expect("a namespace of our own");
    let socket = bind();
    setsockopt(&socket, sockopt::BindToDevice, &"eth0".into()).expect("as root");
    socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout above zero");
    let identity =
        |inner: &[u8]| option(IDENTITY, &[&[0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0][..], inner].concat());
    let exchange = |kind: u8, answer_kind: u8, more: &[u8]| -> Option<Vec<u8>> {
        let own =
            [&[kind, 1, 2, 3][..], &option(CLIENT_ID, duid), &option(6, &NAME_SERVERS.to_be_bytes()), more]
                .concat();
        while Instant::now() < deadline {
            // Without a link-local address, sending is an error.
            if socket.send_to(&own, SocketAddrV6::new(SERVERS, 547, 0, index)).is_err() {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            let mut answer = [0; 1500];
            let Ok((length, _)) = socket.recv_from(&mut answer) else { continue };
            if answer[0] == answer_kind {
                return Some(answer[4..length].to_vec());
            }
        }
        None
    };
    let advertised = exchange(SOLICIT, ADVERTISE, &identity(&[]))?;
    let offered = options(options(&advertised, IDENTITY).first()?.get(12..)?, ADDRESS).first()?.to_vec();
    let server = options(&advertised, SERVER_ID).first()?.to_vec();
    let wanted = [option(SERVER_ID, &server), identity(&option(ADDRESS, &offered))].concat();
    let answer = exchange(REQUEST, REPLY, &wanted)?;
    let address = |bytes: &[u8]| <[u8; 16]>::try_from(bytes).ok().map(Ipv6Addr::from);
    let given = options(options(&answer, IDENTITY).first()?.get(12..)?, ADDRESS).first()?.to_vec();
    let dns = options(&answer, NAME_SERVERS).into_iter().flat_map(|list| list.chunks(16).filter_map(address));
    Some(Given { address: address(given.get(..16)?)?, dns: dns.collect() })
}

/// Returns the first AAAA record of a name, from the gateway's name server.
fn look_up(name: &str) -> Option<Ipv6Addr> {
    let socket = UdpSocket::bind("[::]:0").expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout above zero");
    let length = u8::try_from(name.len()).expect("a label");
    let header = [0xbe, 0x27, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let query = [&header[..], &[length], name.as_bytes(), &[0, 0, 28, 0, 1]].concat();
    socket.send_to(&query, "[fd00:60::1]:53").ok()?;
    let mut answer = [0; 512];
    let (length, _) = socket.recv_from(&mut answer).ok()?;
    // The answer follows the question: a pointer to the name, type, class, lifetime, length, and the address.
    let record = answer.get(query.len()..length)?;
    let address: [u8; 16] = record.get(12..28)?.try_into().ok()?;
    (record.get(2..4)? == [0, 28]).then(|| address.into())
}

fn duid(last: u8) -> Vec<u8> {
    vec![0, 2, 0, 0, 0, 9, 1, 2, 3, last]
}

async fn asks(guest: Guest, duid: Vec<u8>) -> (Option<Given>, Guest) {
    blocking(move || (guest.on(move || ask(&duid, PATIENCE)), guest)).await
}

async fn asks_in_vain(guest: Guest, duid: Vec<u8>) -> (Option<Given>, Guest) {
    blocking(move || (guest.on(move || ask(&duid, NO_ANSWER)), guest)).await
}

fn address(text: &str) -> Ipv6Addr {
    text.parse().expect("an address")
}

/// Gives a guest an IPv6 address, and a default route by the gateway.
pub(super) fn configure(guest: &Guest, address: &'static str) {
    guest.on(move || {
        ip(&format!("-6 addr add {address}/64 dev eth0 nodad"));
        // A router advertisement may have made one.
        ip("-6 route replace default via fd00:60::1");
    });
}

#[test]
fn a_network_without_ipv4_gives_out_ipv6_addresses_and_its_host_has_no_other_in_it() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let only = Lease { address: None, ..lease(5) };
        let config = NetworkConfig { ipv4: None, leases: vec![only], ..dual_stack(Egress::Masquerade) };
        let nat = vec![Nat { ipv4: None, ..rules(Egress::Masquerade).nat.remove(0) }];
        f.networks.ensure(&config).await.expect("made");
        f.networks.apply_firewall(&Firewall { nat, ..Firewall::default() }).await.expect("written");
        assert_eq!(ip(&format!("-4 addr show dev {BRIDGE}")), "");
        let (given, _guest) = asks(Guest::join(BRIDGE, 5), duid(1)).await;
        assert_eq!(given.map(|given| given.address), Some(address("fd00:60::5")));
        let mut taken = Vec::new();
        // The file of leases is written after the answer.
        for _ in 0..50 {
            taken = f.networks.leases_taken(BRIDGE).await.expect("read");
            if !taken.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let [one] = &taken[..] else { panic!("{taken:?}") };
        assert_eq!((&one.mac, one.address), (&lease(5).mac, address("fd00:60::5").into()));
        let forwarding = f.networks.forwarding().await.expect("looked");
        assert!(forwarding.ok, "IPv4 need not be forwarded: {forwarding:?}");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn guests_get_the_ipv6_address_that_was_decided_and_nobody_else_gets_any() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        f.networks.ensure(&dual_stack(Egress::None)).await.expect("made");
        f.networks.apply_firewall(&rules(Egress::None)).await.expect("written");
        assert!(ip(&format!("-6 addr show dev {BRIDGE}")).contains("fd00:60::1/64"));
        let (known, stranger) = (Guest::join(BRIDGE, 5), Guest::join(BRIDGE, 7));
        let (given, known) = asks(known, duid(1)).await;
        let expected = Given { address: address("fd00:60::5"), dns: vec![address("fd00:60::1")] };
        assert_eq!(given, Some(expected));
        let name = known.on(|| {
            ip("-6 addr add fd00:60::5/64 dev eth0 nodad");
            look_up("guest-5")
        });
        assert_eq!(name, Some(address("fd00:60::5")), "its name");
        // A guest that is installed anew has the same MAC address and another DUID.
        f.networks.ensure(&dual_stack(Egress::None)).await.expect("no change");
        let (again, known) = asks_in_vain(known, duid(2)).await;
        assert_eq!(again, None, "until the lease of the former DUID ends");
        let (none, _stranger) = asks_in_vain(stranger, duid(3)).await;
        assert_eq!(none, None, "a stranger on the bridge");
        // Its address is another guest's now.
        drop(known);
        let heir = Lease { ipv6: lease(5).ipv6, ..lease(6) };
        let config = NetworkConfig { leases: vec![heir], ..dual_stack(Egress::None) };
        f.networks.ensure(&config).await.expect("told");
        let (given, _heir) = asks(Guest::join(BRIDGE, 6), duid(4)).await;
        assert_eq!(given.map(|given| given.address), Some(address("fd00:60::5")));
        // The network's prefix is there or not at all.
        let without = NetworkConfig { ipv6: None, ..config };
        f.networks.ensure(&without).await.expect("made");
        assert_eq!(ip(&format!("-6 addr show dev {BRIDGE}")), "");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn a_guest_learns_the_prefix_and_has_a_default_route_only_where_there_is_a_way_out() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        f.networks.ensure(&dual_stack(Egress::None)).await.expect("made");
        f.networks.apply_firewall(&rules(Egress::None)).await.expect("written");
        let guest = Guest::join(BRIDGE, 5);
        let routes = |guest: &Guest| guest.on(|| ip("-6 route"));
        let has = |guest: &Guest, what: &str| {
            (0..150).any(|_| {
                std::thread::sleep(Duration::from_millis(100));
                routes(guest).contains(what)
            })
        };
        assert!(has(&guest, "fd00:60::/64"), "the prefix: {}", routes(&guest));
        let addresses = guest.on(|| ip("-6 addr show dev eth0"));
        assert!(!addresses.contains("fd00:60:"), "no address of its own choice: {addresses}");
        assert!(!routes(&guest).contains("default"), "{}", routes(&guest));
        f.networks.ensure(&dual_stack(Egress::Masquerade)).await.expect("changed");
        assert!(has(&guest, "default via fe80:"), "{}", routes(&guest));
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn where_guests_form_their_addresses_they_have_that_of_their_mac_and_get_none_by_dhcp() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let ipv6 = ipv6(Egress::None).map(|ipv6| Ipv6Network { autoconfiguration: true, ..ipv6 });
        let config = NetworkConfig { ipv6, ..dual_stack(Egress::None) };
        f.networks.ensure(&config).await.expect("made");
        f.networks.apply_firewall(&rules(Egress::None)).await.expect("written");
        let guest = Guest::join(BRIDGE, 5);
        let addresses = |guest: &Guest| guest.on(|| ip("-6 addr show dev eth0"));
        let is_formed = (0..150).any(|_| {
            std::thread::sleep(Duration::from_millis(100));
            addresses(&guest).contains("fd00:60::5054:ff:fe00:5/64")
        });
        assert!(is_formed, "{}", addresses(&guest));
        let (given, _guest) = asks_in_vain(guest, duid(9)).await;
        assert_eq!(given, None, "by DHCPv6");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn guests_reach_the_outside_only_as_the_network_says() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let outside = Guest::beside("10.9.0.2/24", "10.9.0.1/24");
        let uplink = ip("-o -4 addr show to 10.9.0.1");
        let uplink = uplink.split_ascii_whitespace().nth(1).expect("a name").to_owned();
        ip(&format!("-6 addr add 2001:db8:9::1/64 dev {uplink} nodad"));
        ip("-6 route add 2001:db8:1::/64 via 2001:db8:9::2");
        outside.on(|| {
            ip("-6 addr add 2001:db8:9::2/64 dev eth0 nodad");
            ip("-6 addr add 2001:db8:1::2/64 dev eth0 nodad");
            ip("-6 addr add 2001:db8:1::3/64 dev eth0 nodad");
            ip("-6 route add fd00:60::/64 via 2001:db8:9::1");
        });
        outside.serve6(80);
        for egress in [Egress::None, Egress::Masquerade, Egress::Routed] {
            f.networks.ensure(&dual_stack(egress)).await.expect("made");
            f.networks.apply_firewall(&rules(egress)).await.expect("written");
            let guest = Guest::join(BRIDGE, 5);
            configure(&guest, "fd00:60::5");
            guest.serve6(80);
            guest::serve_here6(8080);
            let seen_as = guest.fetch("2001:db8:1::2", 80);
            let expected = match egress {
                Egress::None => None,
                Egress::Masquerade => Some("2001:db8:9::1"),
                Egress::Routed => Some("fd00:60::5"),
            };
            assert_eq!(seen_as.as_deref(), expected, "{egress:?}");
            assert!(!guest.connects("2001:db8:9::2", 80), "{egress:?}: a machine on the host's own network");
            assert!(!guest.connects("2001:db8:9::1", 8080), "{egress:?}: the host");
            assert!(!guest.connects("fd00:60::1", 8080), "{egress:?}: the host at the gateway's address");
            assert!(guest.connects("fd00:60::1", 53), "{egress:?}: names");
            assert_eq!(outside.fetch("fd00:60::5", 80), None, "{egress:?}: from outside");
            assert!(guest::fetch("fd00:60::5", 80).is_some(), "{egress:?}: its host reaches it");
            if egress == Egress::None {
                continue;
            }
            let host = vec!["2001:db8:1::3/128".parse().expect("an address")];
            let closed = Firewall { ipv6_closed: host, ..rules(egress) };
            f.networks.apply_firewall(&closed).await.expect("written");
            assert!(!guest.connects("2001:db8:1::3", 80), "{egress:?}: another host, on another network");
            assert!(guest.connects("2001:db8:1::2", 80), "{egress:?}: its neighbour");
        }
        // A foreign change is put right, and nothing is left.
        f.networks.remove(BRIDGE).await.expect("removed");
        f.networks.apply_firewall(&Firewall::default()).await.expect("removed");
        assert_eq!(run("nft", "list ruleset"), "");
    });
}

#[test]
fn a_prefix_that_the_host_itself_uses_is_refused() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let _router = Guest::beside("192.0.2.254/24", "192.0.2.1/24");
        let uplink = ip("-o -4 addr show to 192.0.2.1");
        let uplink = uplink.split_ascii_whitespace().nth(1).expect("a name");
        ip(&format!("-6 addr add fd00:60::99/64 dev {uplink} nodad"));
        let error = f.networks.ensure(&dual_stack(Egress::None)).await.expect_err("it is in use");
        assert!(error.to_string().contains("its prefix fd00:60::/64 is in use by this host"), "{error}");
        assert!(!ip("-o link").contains(BRIDGE));
    });
}

#[test]
fn guests_of_several_hosts_reach_each_other_and_each_has_the_gateway_of_its_own_host() {
    in_own_namespace(|| async {
        segment(1500);
        let hosts = [Host::on_segment(11, 1500), Host::on_segment(12, 1500)];
        for (host, other) in [(&hosts[0], &hosts[1]), (&hosts[1], &hosts[0])] {
            let tunnel = Tunnel { vni: 77, local: host.address.into(), peers: vec![other.address.into()] };
            // Host 11 knows both guests and host 12 none: an answer to the guest there would have crossed the tunnel.
            let leases = if host.address == hosts[0].address { vec![lease(5), lease(6)] } else { Vec::new() };
            let config = NetworkConfig { leases, ..tunnelled(dual_stack(Egress::None), tunnel.clone()) };
            let nat = vec![Nat { tunnel: Some(tunnel), ..rules(Egress::None).nat.remove(0) }];
            host.run(move |f| {
                Box::pin(async move {
                    f.networks.apply_firewall(&Firewall { nat, ..Firewall::default() }).await.expect("rules");
                    f.networks.ensure(&config).await.expect("made");
                })
            });
        }
        let near = hosts[0].on(|_, _| Guest::join(BRIDGE, 5));
        let far = hosts[1].on(|_, _| Guest::join(BRIDGE, 6));
        configure(&near, "fd00:60::5");
        configure(&far, "fd00:60::6");
        near.serve6(80);
        far.serve6(80);
        assert_eq!(near.fetch("fd00:60::6", 80).as_deref(), Some("fd00:60::5"), "each other");
        assert_eq!(far.fetch("fd00:60::5", 80).as_deref(), Some("fd00:60::6"));
        assert!(near.connects("fd00:60::1", 53) && far.connects("fd00:60::1", 53), "the gateway");
        hosts[1].ip("link set bth-0a1b2c3d down");
        hosts[1].ip("-6 addr flush dev bth-0a1b2c3d");
        hosts[1].ip("link set bth-0a1b2c3d up");
        far.on(|| ip("-6 neigh flush dev eth0"));
        assert!(!far.connects("fd00:60::1", 53), "the other host's gateway does not answer");
        assert!(far.fetch("fd00:60::5", 80).is_some(), "while the tunnel is there");
        let (none, _far) = asks_in_vain(far, duid(6)).await;
        assert_eq!(none, None, "nor does its DHCP server");
        for host in &hosts {
            host.run(|f| {
                Box::pin(async move {
                    f.networks.remove(BRIDGE).await.expect("removed");
                    f.networks.apply_firewall(&Firewall::default()).await.expect("removed");
                })
            });
        }
    });
}
