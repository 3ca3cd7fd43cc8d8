//! Networks in the test's own network namespace, with guests in namespaces of their own. Needs root.

mod balancing;
mod balancing_bridged;
mod balancing_ipv6;
mod bridged;
mod bridged_dhcp;
mod bridged_dhcp6;
mod bridged_ipv6;
mod bridged_names;
mod choices;
mod dhcp;
mod dns;
mod echo;
mod exceptions;
mod filters;
mod foreign_input;
mod guest;
mod host;
mod hosts;
mod ipv6;
mod isolation;
mod learning;
mod limits;
mod marks;
mod names;
mod options;
mod over_interface;
mod public_ipv6;
mod senders;
mod servers;
mod snooping;
mod spoofing;
mod trace;
mod trunks;

use std::future::Future;
use std::process::Command;
use std::time::Duration;

use ipnet::Ipv6Net;
use tempfile::TempDir;

use super::*;
use crate::{Egress, Forward, Ipv4Network, Lease, Nat, Tunnel};
use guest::Guest;

const BRIDGE: &str = "bth-0a1b2c3d";
const OTHER: &str = "bth-99999999";

fn is_root() -> bool {
    nix::unistd::Uid::effective().is_root()
}

/// Runs a test in its own network namespace. Threads started inside stay inside.
pub(in super::super) fn in_own_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    if !is_root() {
        eprintln!("skipped: only root can make network namespaces");
        return;
    }
    let thread = std::thread::spawn(|| {
        if let Err(error) = unshare() {
            eprintln!("skipped: cannot make a network namespace: {error}");
            return;
        }
        ip("link set lo up");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(test());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn unshare() -> nix::Result<()> {
    use nix::mount::{MsFlags, mount};
    use nix::sched::CloneFlags;
    nix::sched::unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
    // /sys shows the interfaces of the namespace it was mounted in.
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>)
}

fn run(program: &str, args: &str) -> String {
    let output =
        Command::new(program).args(args.split(' ')).output().expect("iproute2 and nftables for tests");
    assert!(output.status.success(), "{program} {args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(in super::super) fn ip(args: &str) -> String {
    run("ip", args)
}

const BRIDGED: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";

/// Whether this kernel passes bridged packets to the firewall.
fn filters_bridged() -> bool {
    std::fs::read_to_string(BRIDGED).is_ok_and(|v| v.trim() == "1")
}

/// Sends a raw frame on this interface of the caller's network namespace.
fn send_raw(interface: &str, frame: &[u8]) {
    let listed = ip(&format!("-o link show dev {interface}"));
    let link = listed.split(':').next().and_then(|index| index.parse().ok()).expect("an index");
    let socket = announce::packet_socket(0).expect("as root");
    announce::send_frame(&socket, link, frame).expect("sent");
}

/// Forwards every frame that this namespace receives from now on, until the receiver is dropped.
fn receive_raw(tell: std::sync::mpsc::Sender<Vec<u8>>) {
    use nix::sys::socket::{MsgFlags, recv};
    use std::os::fd::AsRawFd;
    let all = u16::try_from(libc::ETH_P_ALL).expect("a small number").to_be();
    let socket = announce::packet_socket(all.into()).expect("as root");
    std::thread::spawn(move || {
        let mut frame = [0; 2048];
        while let Ok(length) = recv(socket.as_raw_fd(), &mut frame, MsgFlags::empty()) {
            if tell.send(frame[..length].to_vec()).is_err() {
                return;
            }
        }
    });
}

struct Fixture {
    _folder: TempDir,
    networks: LinuxNetworks,
    layout: Layout,
}

impl Fixture {
    fn new() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("temporary folder");
        // dnsmasq reads its files as its own user.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o711)).expect("mode");
        let layout = Layout::new(folder.path());
        Self { networks: LinuxNetworks::new(layout.clone()), layout, _folder: folder }
    }

    fn pid(&self, bridge: &str) -> Option<i32> {
        std::fs::read_to_string(self.layout.network(bridge).join("dnsmasq.pid")).ok()?.trim().parse().ok()
    }
}

fn ipv4(range: &str, egress: Egress) -> Option<Ipv4Network> {
    let range: Ipv4Net = range.parse().expect("range");
    Some(Ipv4Network { range, gateway: range.hosts().next().expect("hosts"), egress })
}

fn network(bridge: &str, range: &str, leases: Vec<Lease>) -> NetworkConfig {
    NetworkConfig {
        bridge: bridge.to_owned(),
        ipv4: ipv4(range, Egress::Masquerade),
        ipv6: None,
        mtu: 1450,
        dns: Vec::new(),
        search_domains: Vec::new(),
        names: None,
        routes: Vec::new(),
        ipv6_routes: Vec::new(),
        leases,
        tunnel: None,
        tracked: false,
        relay: None,
        prefixes: Vec::new(),
    }
}

fn tunnelled(config: NetworkConfig, tunnel: Tunnel) -> NetworkConfig {
    NetworkConfig { tunnel: Some(tunnel), ..config }
}

fn lease(last: u8) -> Lease {
    Lease {
        mac: format!("52:54:00:00:00:{last:02x}"),
        address: Some(Ipv4Addr::new(10, 77, 0, last)),
        ipv6: Some(Ipv6Addr::new(0xfd00, 0x60, 0, 0, 0, 0, 0, last.into())),
        hostname: format!("guest-{last}"),
        ..Lease::default()
    }
}

fn nat(bridge: &str, range: &str, tunnel: Option<Tunnel>) -> Nat {
    Nat { bridge: bridge.to_owned(), ipv4: ipv4(range, Egress::Masquerade), ipv6: None, tunnel }
}

fn firewall(forwards: &[(&str, &str)]) -> Firewall {
    let address = |text: &str| text.parse().expect("address");
    Firewall {
        nat: vec![nat(BRIDGE, "10.77.0.0/24", None), nat(OTHER, "10.78.0.0/24", None)],
        forwards: forwards
            .iter()
            .map(|(public, private)| Forward {
                public: address(public),
                private: address(private),
                announced_on: None,
            })
            .collect(),
        ..Firewall::default()
    }
}

#[test]
fn a_network_is_made_kept_and_removed_without_a_trace() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let config = network(BRIDGE, "10.77.0.0/24", vec![lease(5)]);
        f.networks.ensure(&config).await.expect("made");
        assert_eq!(f.networks.networks().await.expect("list"), [BRIDGE]);
        assert!(ip(&format!("-4 -o addr show dev {BRIDGE}")).contains("10.77.0.1/24"));
        let link = ip(&format!("-o link show dev {BRIDGE}"));
        assert!(link.contains("mtu 1450") && link.contains("UP"), "{link}");
        let forwarding = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").expect("read");
        assert_eq!(forwarding.trim(), "1");
        let pid = f.pid(BRIDGE).expect("a DHCP server");

        f.networks.ensure(&config).await.expect("no change");
        let more = NetworkConfig { leases: vec![lease(5), lease(6)], ..config.clone() };
        f.networks.ensure(&more).await.expect("another guest");
        assert_eq!(f.pid(BRIDGE), Some(pid), "told, not started again");
        // A changed configuration and a crash both result in a new process.
        f.networks.ensure(&NetworkConfig { mtu: 1400, ..more.clone() }).await.expect("another MTU");
        let second = f.pid(BRIDGE).expect("a DHCP server");
        assert_ne!(second, pid);
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(second), nix::sys::signal::Signal::SIGKILL)
            .expect("kill");
        wait_gone(second);
        f.networks.ensure(&more).await.expect("put right");
        let third = f.pid(BRIDGE).expect("a DHCP server");
        ip(&format!("link set {BRIDGE} down"));
        ip(&format!("addr add 192.168.9.9/24 dev {BRIDGE}"));
        f.networks.ensure(&more).await.expect("put right");
        assert!(!ip(&format!("-4 -o addr show dev {BRIDGE}")).contains("192.168.9.9"));
        assert!(ip(&format!("-o link show dev {BRIDGE}")).contains("UP"));

        f.networks.remove(BRIDGE).await.expect("removed");
        f.networks.remove(BRIDGE).await.expect("removed already");
        wait_gone(third);
        assert!(f.networks.networks().await.expect("list").is_empty());
        assert!(files::names(&f.layout.networks()).expect("list").is_empty());
    });
}

fn wait_gone(pid: i32) {
    let gone = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.is_empty() || state.contains(") Z ")
    });
    assert!(gone, "process {pid} is still there");
}

#[test]
fn rules_that_another_program_removes_are_missed_at_once_and_a_replacement_is_no_removal() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let lost = async |wait| {
            tokio::time::timeout(Duration::from_millis(wait), f.networks.firewall_removed()).await
        };
        assert!(lost(10).await.is_err(), "it listens");
        f.networks.apply_firewall(&firewall(&[])).await.expect("written");
        f.networks.apply_firewall(&firewall(&[("198.51.100.7", "10.77.0.2")])).await.expect("replaced");
        assert!(lost(400).await.is_err(), "no removal");
        run("nft", "flush ruleset");
        assert!(matches!(lost(1000).await, Ok(Ok(()))), "noticed within a second");
        f.networks.apply_firewall(&firewall(&[])).await.expect("written again");
        assert!(run("nft", "list table inet berth").contains("masquerade"));
        run("nft", "add table inet other");
        run("nft", "delete table inet other");
        assert!(lost(400).await.is_err(), "a table of another program");
        run("nft", "delete table inet berth");
        assert!(matches!(lost(1000).await, Ok(Ok(()))), "a single table too");
    });
}

#[test]
fn a_tap_joins_its_bridge_and_goes_again() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let tap = TapConfig {
            name: "btt0a1b2c3dn0".to_owned(),
            bridge: BRIDGE.to_owned(),
            mtu: 1450,
            multi_queue: false,
        };
        let error = f.networks.ensure_tap(&tap).await.expect_err("no bridge yet");
        assert!(error.to_string().contains(BRIDGE), "{error}");
        f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.expect("made");
        f.networks.ensure_tap(&tap).await.expect("made");
        f.networks.ensure_tap(&tap).await.expect("no change");
        let there = TapFacts { name: tap.name.clone(), bridge: Some(BRIDGE.to_owned()) };
        assert_eq!(f.networks.taps().await.expect("list"), [there]);
        let link = ip(&format!("-d -o link show dev {}", tap.name));
        let hairpin = if filters_bridged() { "hairpin on" } else { "hairpin off" };
        for part in
            ["mtu 1500", hairpin, &format!("master {BRIDGE}"), "persist on", "vnet_hdr on", "pi off", "UP"]
        {
            assert!(link.contains(part), "{part} in {link}");
        }
        f.networks.remove_tap(&tap.name).await.expect("removed");
        f.networks.remove_tap(&tap.name).await.expect("removed already");
        assert!(f.networks.taps().await.expect("list").is_empty());
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn a_tap_that_a_machine_has_on_another_bridge_is_not_taken() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.expect("made");
        ip(&format!("link add {OTHER} type bridge"));
        let tap = |slot: u8, bridge: &str| TapConfig {
            name: format!("btt0a1b2c3dn{slot}"),
            bridge: bridge.to_owned(),
            mtu: 1450,
            multi_queue: false,
        };
        f.networks.ensure_tap(&tap(1, BRIDGE)).await.expect("made");
        f.networks.ensure_tap(&tap(1, OTHER)).await.expect("no machine has it");
        let used = tap(0, BRIDGE);
        let _machine = Guest::by_tap(OTHER, &used.name, 0x41);
        let error = f.networks.ensure_tap(&used).await.expect_err("another machine has it");
        assert!(error.to_string().contains("a tap of this name on another bridge"), "{error}");
        let link = ip(&format!("-o link show dev {}", used.name));
        assert!(link.contains(&format!("master {OTHER}")), "{link}");
    });
}

#[test]
fn a_bridge_never_takes_the_place_of_what_is_the_hosts_own() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let _router = Guest::beside("192.0.2.254/24", "192.0.2.1/24");
        ip("route add default via 192.0.2.254");
        ip("route add 198.51.100.0/24 via 192.0.2.254");
        ip("route add 10.0.0.0/8 via 192.0.2.254");
        let before = ip("-4 route");
        for range in ["192.0.2.0/24", "192.0.2.128/25", "192.0.0.0/16", "198.51.100.0/24", "198.51.0.0/16"] {
            let error = f.networks.ensure(&network(BRIDGE, range, Vec::new())).await.expect_err(range);
            assert!(error.to_string().contains("in use by this host"), "{error}");
            assert_eq!(ip("-4 route"), before);
            assert!(!ip("-o link").contains(BRIDGE));
        }
        // Within a route to elsewhere, the network takes a part of the range and the route stays.
        f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.expect("made");
        assert!(ip("-4 route").contains("10.0.0.0/8 via 192.0.2.254"));
        let ranges = f.networks.host_ranges().await.expect("looked");
        let listed = |range: &str, is_route| {
            ranges.contains(&HostRange { range: range.parse().expect("a range"), is_route })
        };
        assert!(listed("192.0.2.0/24", false) && listed("198.51.100.0/24", true), "{ranges:?}");
        assert!(!ranges.iter().any(|of| of.range.to_string() == "10.77.0.0/24"), "berth's own: {ranges:?}");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn what_is_not_ours_is_not_touched() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        ip("link add br0 type bridge");
        ip("link add bth-0a1b2c3d type veth peer name btt0a1b2c3dn0");
        assert!(f.networks.networks().await.expect("list").is_empty());
        assert!(f.networks.taps().await.expect("list").is_empty());
        assert!(f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.is_err());
        assert!(f.networks.remove(BRIDGE).await.is_err(), "a stranger's interface under our name");
        assert!(f.networks.remove_tap("btt0a1b2c3dn0").await.is_err());
        for name in ["br0", "lo", "eth0"] {
            assert!(f.networks.remove(name).await.is_err() && f.networks.remove_tap(name).await.is_err());
        }
        run("nft", "add table ip mine");
        f.networks.apply_firewall(&firewall(&[])).await.expect("written");
        f.networks.apply_firewall(&Firewall::default()).await.expect("removed");
        assert_eq!(run("nft", "list tables").trim(), "table ip mine");
        assert!(ip("-o link").contains("br0") && ip("-o link").contains(BRIDGE));
    });
}

#[test]
fn guests_get_the_address_that_was_decided_and_nobody_else_gets_any() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let config = network(BRIDGE, "10.77.0.0/24", vec![lease(5)]);
        f.networks.ensure(&config).await.expect("made");
        let (known, late) = (Guest::join(BRIDGE, 5), Guest::join(BRIDGE, 6));
        let before = jiff::Timestamp::now();
        let offer = blocking(move || (known.dhcp(), known)).await;
        let (offer, _known) = (offer.0.expect("an address"), offer.1);
        assert_eq!(offer.address, Ipv4Addr::new(10, 77, 0, 5));
        assert_eq!((offer.router, offer.mtu), (Some(Ipv4Addr::new(10, 77, 0, 1)), Some(1450)));
        let taken = f.networks.leases_taken(BRIDGE).await.expect("read");
        assert_eq!((taken.len(), taken[0].address), (1, offer.address.into()));
        assert_eq!(taken[0].mac, lease(5).mac);
        assert!((taken[0].taken_at - before).get_seconds().abs() < 60, "{taken:?}");

        let (none, late) = blocking(move || (late.dhcp(), late)).await;
        assert_eq!(none, None, "a stranger on the bridge");
        f.networks.ensure(&NetworkConfig { leases: vec![lease(6)], ..config.clone() }).await.expect("told");
        let (now, late) = blocking(move || (late.dhcp(), late)).await;
        assert_eq!(now.expect("an address").address, Ipv4Addr::new(10, 77, 0, 6));

        // The address of a deleted VM is given to a new one before its lease has expired.
        let heir = Lease { mac: lease(6).mac, ..lease(5) };
        f.networks.ensure(&NetworkConfig { leases: vec![heir], ..config }).await.expect("told");
        let (now, _late) = blocking(move || (late.dhcp(), late)).await;
        assert_eq!(now.expect("an address").address, Ipv4Addr::new(10, 77, 0, 5));
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn a_public_address_leads_to_its_guest_from_everywhere() {
    in_own_namespace(|| async {
        if std::fs::write(BRIDGED, "0").is_err() {
            eprintln!("this kernel has no br_netfilter: only the plain case is tested");
        }
        reach_public_address().await;
    });
}

#[test]
fn a_public_address_leads_to_its_guest_also_where_bridged_packets_are_filtered() {
    in_own_namespace(|| async {
        if std::fs::write(BRIDGED, "1").is_err() {
            eprintln!("skipped: this kernel has no br_netfilter");
            return;
        }
        reach_public_address().await;
    });
}

async fn reach_public_address() {
    let f = Fixture::new();
    for (bridge, cidr) in [(BRIDGE, "10.77.0.0/24"), (OTHER, "10.78.0.0/24")] {
        f.networks.ensure(&network(bridge, cidr, Vec::new())).await.expect("made");
    }
    let outside = Guest::beside("10.9.0.2/24", "10.9.0.1/24");
    let web = Guest::at(BRIDGE, "10.77.0.5/24", "10.77.0.1");
    let neighbour = Guest::at(BRIDGE, "10.77.0.6/24", "10.77.0.1");
    let stranger = Guest::at(OTHER, "10.78.0.5/24", "10.78.0.1");
    web.serve(80);
    let forwards = firewall(&[("198.18.100.1", "10.77.0.5")]);
    f.networks.apply_firewall(&forwards).await.expect("written");

    let host = guest::fetch("198.18.100.1", 80);
    assert!(host.is_some(), "from the host itself");
    assert!(guest::fetch("10.77.0.5", 80).is_some(), "the host reaches private addresses");
    let guest = std::net::SocketAddr::from((Ipv4Addr::new(10, 77, 0, 5), 80));
    assert!(
        guest_port::connect_to_guest(BRIDGE, guest).await.is_ok(),
        "from the bridge of the guest's network"
    );
    let elsewhere =
        tokio::time::timeout(Duration::from_secs(1), guest_port::connect_to_guest(OTHER, guest)).await;
    assert!(!matches!(elsewhere, Ok(Ok(_))), "and from no other, whatever the routes are");
    assert_eq!(outside.fetch("198.18.100.1", 80).as_deref(), Some("10.9.0.2"), "guests see who asks");
    assert!(outside.fetch("10.77.0.5", 80).is_none(), "private is private");
    assert!(neighbour.fetch("198.18.100.1", 80).is_some(), "a neighbour on the same network");
    assert!(web.fetch("198.18.100.1", 80).is_some(), "the guest itself");
    assert!(neighbour.fetch("10.77.0.5", 80).is_some(), "neighbours reach each other");
    assert!(
        stranger.fetch("198.18.100.1", 80).is_some(),
        "a guest of another network, by the public address"
    );
    assert!(stranger.fetch("10.77.0.5", 80).is_none(), "and by no other: networks are apart");
    outside.serve(8080);
    assert_eq!(web.fetch("10.9.0.2", 8080).as_deref(), Some("10.9.0.1"), "under the host's address");

    f.networks.apply_firewall(&firewall(&[("198.18.100.2", "10.77.0.5")])).await.expect("another address");
    assert!(guest::fetch("198.18.100.2", 80).is_some());
    assert!(!ip("-4 -o addr").contains("198.18.100.1/"), "the old one is gone");
    f.networks.apply_firewall(&Firewall::default()).await.expect("removed");
    assert!(!ip("-o link").contains(PUBLIC_LINK));
    assert_eq!(run("nft", "list ruleset"), "");
    for bridge in [BRIDGE, OTHER] {
        f.networks.remove(bridge).await.expect("removed");
    }
}

#[test]
fn ipv4_packets_leave_as_their_network_declares() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.expect("made");
        let outside = Guest::beside("10.9.0.2/24", "10.9.0.1/24");
        let guest = Guest::at(BRIDGE, "10.77.0.5/24", "10.77.0.1");
        let neighbour = Guest::at(BRIDGE, "10.77.0.6/24", "10.77.0.1");
        guest.serve(80);
        outside.serve(8080);
        for (egress, seen_as) in [
            (Egress::Masquerade, Some("10.9.0.1")),
            (Egress::None, None),
            (Egress::Routed, Some("10.77.0.5")),
        ] {
            let nat = vec![Nat { ipv4: ipv4("10.77.0.0/24", egress), ..nat(BRIDGE, "10.77.0.0/24", None) }];
            let rules = Firewall { nat, ..firewall(&[("198.18.100.1", "10.77.0.5")]) };
            f.networks.apply_firewall(&rules).await.expect("written");
            assert_eq!(guest.fetch("10.9.0.2", 8080).as_deref(), seen_as, "{egress:?}");
            assert_eq!(outside.fetch("10.77.0.5", 80), None, "{egress:?}: from outside");
            assert!(outside.fetch("198.18.100.1", 80).is_some(), "{egress:?}: by its public address");
            assert!(neighbour.fetch("198.18.100.1", 80).is_some(), "{egress:?}: a neighbour, by it");
            assert!(neighbour.fetch("10.77.0.5", 80).is_some(), "{egress:?}: neighbours");
            assert!(guest.connects("10.77.0.1", 53), "{egress:?}: names");
        }
        f.networks.apply_firewall(&Firewall::default()).await.expect("removed");
        assert_eq!(run("nft", "list ruleset"), "");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}

#[test]
fn rules_are_written_when_they_differ_and_only_then() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        // Handles increase with each rule that is written.
        let handles = || run("nft", "-a list table inet berth");
        let mut wanted = firewall(&[("198.18.100.1", "10.77.0.5"), ("198.18.100.2", "10.77.0.6")]);
        f.networks.apply_firewall(&wanted).await.expect("written");
        let first = handles();
        wanted.forwards.reverse();
        wanted.nat.reverse();
        f.networks.apply_firewall(&wanted).await.expect("the same in another order");
        assert_eq!(handles(), first, "order does not matter");
        LinuxNetworks::new(f.layout.clone()).apply_firewall(&wanted).await.expect("the same after a restart");
        assert_eq!(handles(), first);
        run("nft", "flush chain inet berth forward");
        f.networks.apply_firewall(&wanted).await.expect("put right");
        assert!(handles().contains("drop") && handles() != first, "somebody's change is put right");
        run("nft", "delete table inet berth");
        f.networks.apply_firewall(&wanted).await.expect("written again");
        assert!(handles().contains("198.18.100.2"));
        f.networks.apply_firewall(&Firewall::default()).await.expect("removed");
        f.networks.apply_firewall(&Firewall::default()).await.expect("removed already");
        assert_eq!(run("nft", "list ruleset"), "");
    });
}

#[test]
fn a_foreign_firewall_that_drops_is_noticed() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        f.networks.ensure(&network(BRIDGE, "10.77.0.0/24", Vec::new())).await.expect("made");
        f.networks.apply_firewall(&firewall(&[])).await.expect("written");
        let found = f.networks.forwarding().await.expect("looked");
        assert!(found.ok, "{found:?}");
        run("nft", "add table ip filter");
        run("nft", "add chain ip filter FORWARD { type filter hook forward priority 0 ; policy drop ; }");
        let found = f.networks.forwarding().await.expect("looked");
        assert!(!found.ok && found.message.contains("ip filter FORWARD"), "{found:?}");
        // The fix that the message suggests.
        for direction in ["iifname", "oifname"] {
            run("nft", &format!("insert rule ip filter FORWARD {direction} bth-* accept"));
        }
        let found = f.networks.forwarding().await.expect("looked");
        assert!(found.ok, "{found:?}");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").expect("somebody turns it off");
        let found = f.networks.forwarding().await.expect("looked");
        assert!(!found.ok && found.message.contains("ip_forward"), "{found:?}");
        f.networks.remove(BRIDGE).await.expect("removed");
    });
}
