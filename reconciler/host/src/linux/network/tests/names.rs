//! Names of machines, from a real dnsmasq.

use std::net::Ipv4Addr;

use super::dhcp::CLAIMED;
use super::dns::{self, A, AAAA, Answer, NXDOMAIN, PTR, REFUSED};
use super::guest::Guest;
use super::{BRIDGE, Fixture, in_own_namespace, lease, network};
use crate::linux::files::blocking;
use crate::{Lease, NameRecord, Names, NetworkConfig};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const DOMAIN: &str = "app.internal";

fn names(records: &[(&str, &str)]) -> Option<Names> {
    let record = |(name, address): &(&str, &str)| NameRecord {
        name: (*name).to_owned(),
        address: address.parse().expect("an address"),
    };
    let records = records.iter().map(record).collect();
    Some(Names { domain: DOMAIN.to_owned(), is_searched: true, records })
}

fn plain(leases: Vec<Lease>) -> NetworkConfig {
    network(BRIDGE, "10.77.0.0/24", leases)
}

/// Asks the gateway from within a guest.
async fn ask(guest: &Guest, name: &str, kind: u16) -> Option<Answer> {
    let name = name.to_owned();
    guest.on(move || dns::ask(GATEWAY, &name, kind))
}

async fn records(guest: &Guest, name: &str, kind: u16) -> Vec<String> {
    let answer = ask(guest, name, kind).await.expect("an answer");
    assert_eq!(answer.code, 0, "{name}: {answer:?}");
    answer.records
}

async fn is_unknown(guest: &Guest, name: &str, kind: u16) -> bool {
    ask(guest, name, kind).await.is_some_and(|answer| answer.code == NXDOMAIN && answer.records.is_empty())
}

/// Makes the host's name server one that cannot be reached, so that the answer to each question that is forwarded is REFUSED.
fn cut_off() -> tempfile::TempDir {
    use nix::mount::{MsFlags, mount};
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("resolv.conf");
    std::fs::write(&file, "nameserver 192.0.2.53\n").expect("written");
    mount(Some(&file), "/etc/resolv.conf", None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("as root");
    folder
}

fn kill(pid: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).expect("kill");
    super::wait_gone(pid);
}

fn server(f: &Fixture) -> Option<i32> {
    std::fs::read_to_string(f.layout.network(BRIDGE).join("names.pid")).ok()?.trim().parse().ok()
}

#[test]
fn names_lead_to_addresses_and_back_and_no_other_server_is_asked_about_the_rest() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let _resolv_conf = cut_off();
        let known = [("web", "10.77.0.9"), ("web", "fd00:60::9"), ("queue.team-a", "10.77.0.10")];
        let config = NetworkConfig { names: names(&known), ..plain(vec![lease(5)]) };
        f.networks.ensure(&config).await.expect("made");
        let guest = Guest::at(BRIDGE, "10.77.0.5/24", "10.77.0.1");
        let web = ask(&guest, "web.app.internal", A).await.expect("an answer");
        assert_eq!((web.code, web.records.as_slice()), (0, ["10.77.0.9".to_owned()].as_slice()));
        assert!(web.ttl <= 5, "{web:?}");
        assert_eq!(records(&guest, "Web.App.Internal", AAAA).await, ["fd00:60::9"]);
        assert_eq!(records(&guest, "queue.team-a.app.internal", A).await, ["10.77.0.10"]);
        assert!(records(&guest, "queue.team-a.app.internal", AAAA).await.is_empty(), "it has none");
        assert_eq!(records(&guest, "9.0.77.10.in-addr.arpa", PTR).await, ["web.app.internal"]);
        let zone = "0.0.0.0.0.0.0.0.0.6.0.0.0.0.d.f.ip6.arpa";
        let reverse = format!("9.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.{zone}");
        assert_eq!(records(&guest, &reverse, PTR).await, ["web.app.internal"]);
        for name in ["db.app.internal", "a.web.app.internal", "web", "queue.team-b.app.internal"] {
            assert!(is_unknown(&guest, name, A).await, "{name}");
        }
        assert!(is_unknown(&guest, "200.0.77.10.in-addr.arpa", PTR).await);
        let other = ask(&guest, "example.org", A).await.expect("an answer");
        assert_eq!(other.code, REFUSED, "the host's name server is asked about other domains");

        f.networks.remove(BRIDGE).await.expect("removed");
        assert_eq!(server(&f), None);
        assert!(super::files::names(&f.layout.networks()).expect("list").is_empty());
    });
}

#[test]
fn the_name_server_answers_the_guests_of_its_network_and_the_host_alone() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let config = NetworkConfig { names: names(&[("web", "10.77.0.9")]), ..plain(vec![lease(5)]) };
        f.networks.ensure(&config).await.expect("made");
        let guest = Guest::at(BRIDGE, "10.77.0.5/24", "10.77.0.1");
        // It has a route to the network's range by the host.
        let outsider = Guest::beside("192.0.2.254/24", "192.0.2.1/24");
        assert!(ask(&outsider, "web.app.internal", A).await.is_some(), "dnsmasq itself answers all");
        f.networks.apply_firewall(&super::firewall(&[])).await.expect("written");
        assert_eq!(ask(&outsider, "web.app.internal", A).await, None);
        assert!(!outsider.connects("10.77.0.1", 53), "nor by TCP");
        assert_eq!(records(&guest, "web.app.internal", A).await, ["10.77.0.9"]);
        let of_host = blocking(|| dns::ask(GATEWAY, "web.app.internal", A)).await;
        assert_eq!(of_host.expect("an answer").records, ["10.77.0.9"]);
    });
}

#[test]
fn names_change_while_both_servers_run_and_go_with_the_domain() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let config = NetworkConfig { names: names(&[("web", "10.77.0.9")]), ..plain(vec![lease(5)]) };
        f.networks.ensure(&config).await.expect("made");
        let (dhcp, dns) = (f.pid(BRIDGE).expect("a DHCP server"), server(&f).expect("a name server"));
        let guest = Guest::join(BRIDGE, 5);
        let (offer, guest) = blocking(move || (guest.dhcp(), guest)).await;
        let offer = offer.expect("an address");
        assert_eq!((offer.dns.as_slice(), offer.domain.as_deref()), ([GATEWAY].as_slice(), Some(DOMAIN)));
        assert_eq!(offer.search_domains, [DOMAIN]);
        guest.on(|| super::ip("addr add 10.77.0.5/24 dev eth0"));
        assert_eq!(records(&guest, "web.app.internal", A).await, ["10.77.0.9"]);

        let changed = names(&[("web", "10.77.0.19"), ("db", "10.77.0.9")]);
        f.networks.ensure(&NetworkConfig { names: changed, ..config.clone() }).await.expect("changed");
        assert_eq!((f.pid(BRIDGE), server(&f)), (Some(dhcp), Some(dns)), "neither was started again");
        wait_for(&guest, "db.app.internal").await;
        assert_eq!(records(&guest, "web.app.internal", A).await, ["10.77.0.19"]);
        assert_eq!(records(&guest, "9.0.77.10.in-addr.arpa", PTR).await, ["db.app.internal"]);
        assert_eq!(f.networks.leases_taken(BRIDGE).await.expect("leases").len(), 1);

        // As an agent that has just started, after the name server has died.
        kill(dns);
        f.networks.ensure(&config).await.expect("put right");
        assert!(server(&f).is_some_and(|server| server != dns));
        assert!(is_unknown(&guest, "db.app.internal", A).await);

        f.networks.ensure(&plain(vec![lease(5)])).await.expect("no domain");
        assert_eq!(server(&f), None);
        assert!(ask(&guest, "web.app.internal", A).await.is_none_or(|answer| answer.code != 0));
        assert_eq!(f.networks.leases_taken(BRIDGE).await.expect("leases").len(), 1, "the lease goes on");
    });
}

#[test]
fn the_name_server_ends_with_its_network_also_if_the_dhcp_server_has_died() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        let config = NetworkConfig { names: names(&[("web", "10.77.0.9")]), ..plain(vec![lease(5)]) };
        f.networks.ensure(&config).await.expect("made");
        let dns = server(&f).expect("a name server");
        kill(f.pid(BRIDGE).expect("a DHCP server"));
        f.networks.remove(BRIDGE).await.expect("removed");
        super::wait_gone(dns);
        assert!(super::files::names(&f.layout.networks()).expect("list").is_empty());
    });
}

/// Waits until a name leads to an address: dnsmasq reads its names after it was notified.
async fn wait_for(guest: &Guest, name: &str) {
    for _ in 0..50 {
        if ask(guest, name, A).await.is_some_and(|answer| !answer.records.is_empty()) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("{name} leads nowhere");
}

#[test]
fn the_host_name_that_a_guest_claims_is_no_name() {
    in_own_namespace(|| async {
        let f = Fixture::new();
        // Without a name of its own, the lease has the one that the guest claims.
        let nameless = Lease { hostname: String::new(), ..lease(5) };
        let config = NetworkConfig { names: names(&[("web", "10.77.0.9")]), ..plain(vec![nameless]) };
        f.networks.ensure(&config).await.expect("made");
        let guest = Guest::join(BRIDGE, 5);
        let (offer, guest) = blocking(move || (guest.dhcp(), guest)).await;
        assert!(offer.is_some());
        let leases = std::fs::read_to_string(f.layout.network(BRIDGE).join("leases")).expect("leases");
        assert!(leases.contains(&format!(" {CLAIMED} ")), "the claim is in the lease: {leases}");
        guest.on(|| super::ip("addr add 10.77.0.5/24 dev eth0"));
        for name in [CLAIMED, &format!("{CLAIMED}.{DOMAIN}")] {
            assert!(is_unknown(&guest, name, A).await, "{name}");
        }
        assert!(is_unknown(&guest, "5.0.77.10.in-addr.arpa", PTR).await);
    });
}
