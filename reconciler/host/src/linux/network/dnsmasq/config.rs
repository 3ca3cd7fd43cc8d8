//! dnsmasq's files as text. Pure, except for looking up the user that dnsmasq may run as.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use jiff::Timestamp;
use nix::unistd::User;

use super::{Files, options};
use crate::{Egress, Lease, LeaseTaken, NetworkConfig};

/// Long enough that guests rarely renew, short enough that deleted entries expire.
const LEASE_SECONDS: i64 = 12 * 3600;
/// Short: dnsmasq gives a reserved IPv6 address to no other client while it is leased, and a guest that is installed anew is another
/// client (its DUID changes, its MAC address does not).
const IPV6_LEASE_SECONDS: i64 = 10 * 60;
/// The time for which guests keep an address that they have formed of the prefix after the last advertisement: longer than the host's
/// server of them is ever away. The prefix of a network does not change.
const PREFIX_SECONDS: i64 = 24 * 3600;
/// The interval of router advertisements, and the time for which guests keep the default route after the last one.
const ADVERTISE_SECONDS: u32 = 60;
const ROUTER_SECONDS: u32 = 1800;

/// The user that dnsmasq changes to, the first that exists.
pub(super) fn user() -> Option<&'static str> {
    ["dnsmasq", "nobody"].into_iter().find(|name| matches!(User::from_name(name), Ok(Some(_))))
}

/// The beginning of the configuration of each server of a bridge.
pub(super) fn head(pid: &Path, bridge: &str, user: Option<&str>) -> String {
    let user = user.map(|user| format!("user={user}\n")).unwrap_or_default();
    let pid = pid.display();
    // It listens on this bridge's addresses only.
    format!(
        "# Written by berth.\n{user}pid-file={pid}\ninterface={bridge}\nexcept-interface=lo\nbind-interfaces\n\
         no-hosts\ndomain-needed\nbogus-priv\n"
    )
}

pub(super) fn conf(files: &Files, network: &NetworkConfig, user: Option<&str>) -> String {
    let mut conf = head(&files.pid, &network.bridge, user);
    let mut line = |text: std::fmt::Arguments<'_>| {
        writeln!(conf, "{text}").expect("writing to memory");
    };
    line(format_args!("quiet-dhcp"));
    // Only clients in the hosts file get an address.
    if let Some(ipv4) = network.ipv4 {
        let (first, mask) = (ipv4.range.network(), ipv4.range.netmask());
        line(format_args!("dhcp-range={first},static,{mask},{LEASE_SECONDS}"));
    }
    line(format_args!("dhcp-ignore=tag:!known\ndhcp-authoritative\nno-ping\ndhcp-lease-max=65536"));
    line(format_args!("dhcp-hostsfile={}", files.hosts.display()));
    line(format_args!("dhcp-leasefile={}", files.leases.display()));
    // Not in a file of options that SIGHUP reads again: dnsmasq 2.90 crashes when it does.
    if let Some(ipv4) = network.ipv4 {
        line(format_args!("dhcp-option=option:mtu,{}", network.mtu));
        for option in options::options(network, ipv4) {
            line(format_args!("dhcp-option={option}"));
        }
    }
    if let Some(ipv6) = network.ipv6 {
        let (prefix, length) = (ipv6.prefix.network(), ipv6.prefix.prefix_len());
        // `static`: those in the hosts file. `ra-stateless`: guests form their own, and ask DHCPv6 for name servers only.
        let (mode, seconds) = match ipv6.autoconfiguration {
            true => ("ra-stateless", PREFIX_SECONDS),
            false => ("static", IPV6_LEASE_SECONDS),
        };
        line(format_args!("dhcp-range={prefix},{mode},{length},{seconds}"));
        // A lifetime of 0: the gateway is no way to the outside.
        let lifetime = if ipv6.egress == Egress::None { 0 } else { ROUTER_SECONDS };
        let (bridge, mtu) = (&network.bridge, network.mtu);
        line(format_args!("enable-ra\nra-param={bridge},mtu:{mtu},{ADVERTISE_SECONDS},{lifetime}"));
        for option in options::ipv6_options(network, ipv6) {
            line(format_args!("dhcp-option={option}"));
        }
    }
    if !network.dns.is_empty() || options::names_of(network).is_some() {
        // Guests use other DNS servers, or names have a server of their own.
        line(format_args!("port=0"));
    }
    conf
}

/// Formats the hosts file, sorted.
pub(super) fn hosts(network: &NetworkConfig) -> String {
    let mut leases: Vec<&Lease> = network.leases.iter().collect();
    leases.sort_by_key(|l| (l.address, &l.mac));
    let mut hosts = String::new();
    for lease in leases {
        let gives_out_ipv6 = network.ipv6.is_some_and(|ipv6| !ipv6.autoconfiguration);
        let (address, ipv6) = (lease.served(), lease.served_ipv6());
        // dnsmasq ignores guests that are not in this file. One that forms its address asks for name servers.
        if address.is_none() && ipv6.is_none() {
            continue;
        }
        write!(hosts, "{}", lease.mac).expect("writing to memory");
        for tag in options::tags(network, lease) {
            write!(hosts, ",set:{tag}").expect("writing to memory");
        }
        if let Some(address) = address.filter(|_| network.ipv4.is_some()) {
            write!(hosts, ",{address}").expect("writing to memory");
        }
        if let Some(ipv6) = ipv6.filter(|_| gives_out_ipv6) {
            write!(hosts, ",[{ipv6}]").expect("writing to memory");
        }
        // dnsmasq would drop the whole line if it contained an invalid name.
        if options::is_label(&lease.hostname) {
            write!(hosts, ",{}", lease.hostname).expect("writing to memory");
        }
        hosts.push('\n');
    }
    hosts
}

/// Parses dnsmasq's lease file: lines of `expiry mac address name client-id`, or for IPv6 `expiry number address name client-id`, whose
/// MAC address is that of the reservation in the hosts file. A guest with addresses of both families is seen by its IPv4 lease.
pub(super) fn parse_leases(text: &str, hosts: &str) -> Vec<LeaseTaken> {
    text.lines().filter_map(|line| parse_lease(line).or_else(|| parse_ipv6_lease(line, hosts))).collect()
}

fn parse_lease(line: &str) -> Option<LeaseTaken> {
    let mut fields = line.split_ascii_whitespace();
    let expires: i64 = fields.next()?.parse().ok()?;
    let mac = fields.next()?.to_ascii_lowercase();
    let address = IpAddr::V4(fields.next()?.parse().ok()?);
    // dnsmasq records the expiry; each renewal moves it.
    let taken_at = Timestamp::from_second(expires.saturating_sub(LEASE_SECONDS)).ok()?;
    Some(LeaseTaken { mac, address, taken_at })
}

fn parse_ipv6_lease(line: &str, hosts: &str) -> Option<LeaseTaken> {
    let mut fields = line.split_ascii_whitespace();
    let expires: i64 = fields.next()?.parse().ok()?;
    let address: Ipv6Addr = fields.nth(1)?.parse().ok()?;
    let reservation = reservation_of(address, hosts)?;
    if reservation.split(',').any(|field| field.parse::<Ipv4Addr>().is_ok()) {
        return None;
    }
    let mac = reservation.split(',').next()?.to_ascii_lowercase();
    let taken_at = Timestamp::from_second(expires.saturating_sub(IPV6_LEASE_SECONDS)).ok()?;
    Some(LeaseTaken { mac, address: address.into(), taken_at })
}

/// Returns the line of a hosts file that reserves an IPv6 address.
fn reservation_of(address: Ipv6Addr, hosts: &str) -> Option<&str> {
    let reserved = format!(",[{address}]");
    hosts.lines().find(|line| line.contains(&reserved))
}

/// Returns the MAC address that a hosts file reserves an IPv6 address for.
fn reserved_for(address: Ipv6Addr, hosts: &str) -> Option<&str> {
    reservation_of(address, hosts)?.split(',').next()
}

/// Whether the lease file has a lease of an address that is now reserved for another MAC. dnsmasq may be writing it: a line that has not
/// ended is not read.
pub(super) fn has_conflicts(text: &str, leases: &[Lease], former_hosts: &str) -> bool {
    let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    lines.any(|line| is_conflict(line, leases, former_hosts))
}

/// Returns the lease file, which no dnsmasq writes, without the leases of addresses that are now reserved for another MAC.
pub(super) fn without_conflicts(text: &str, leases: &[Lease], former_hosts: &str) -> String {
    let kept = text.lines().filter(|line| !is_conflict(line, leases, former_hosts));
    kept.fold(String::new(), |kept, line| kept + line + "\n")
}

/// Whether this line is a lease of an address that is now reserved for another MAC: dnsmasq would refuse such an address to its new owner.
/// A lease of an IPv6 address names no MAC: the former hosts file does.
fn is_conflict(line: &str, leases: &[Lease], former_hosts: &str) -> bool {
    let of_another = parse_lease(line).is_some_and(|taken| {
        let is_its = |lease: &&Lease| lease.address.map(IpAddr::V4) == Some(taken.address);
        leases.iter().filter(is_its).any(|lease| !lease.mac.eq_ignore_ascii_case(&taken.mac))
    });
    let ipv6: Option<Ipv6Addr> = line.split_ascii_whitespace().nth(2).and_then(|text| text.parse().ok());
    of_another
        || ipv6.is_some_and(|address| {
            let heir = leases.iter().find(|lease| lease.ipv6 == Some(address));
            heir.is_some_and(|heir| reserved_for(address, former_hosts) != Some(&heir.mac))
        })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn lease(mac: &str, address: &str, hostname: &str) -> Lease {
        Lease {
            mac: mac.to_owned(),
            address: Some(address.parse().expect("address")),
            hostname: hostname.to_owned(),
            ..Lease::default()
        }
    }

    fn network() -> NetworkConfig {
        NetworkConfig {
            bridge: "bth-0a1b2c3d".to_owned(),
            ipv4: Some(crate::Ipv4Network {
                range: "10.77.0.0/16".parse().expect("range"),
                gateway: Ipv4Addr::new(10, 77, 0, 1),
                egress: Egress::Masquerade,
            }),
            ipv6: None,
            mtu: 1450,
            dns: Vec::new(),
            search_domains: Vec::new(),
            names: None,
            routes: Vec::new(),
            ipv6_routes: Vec::new(),
            leases: Vec::new(),
            tunnel: None,
            tracked: false,
            relay: None,
            prefixes: Vec::new(),
        }
    }

    #[test]
    fn the_server_answers_on_its_bridge_and_to_known_guests_only() {
        let conf = conf(&Files::within(Path::new("/s/network/bth-0a1b2c3d")), &network(), Some("dnsmasq"));
        insta::assert_snapshot!(conf, @r"
        # Written by berth.
        user=dnsmasq
        pid-file=/s/network/bth-0a1b2c3d/dnsmasq.pid
        interface=bth-0a1b2c3d
        except-interface=lo
        bind-interfaces
        no-hosts
        domain-needed
        bogus-priv
        quiet-dhcp
        dhcp-range=10.77.0.0,static,255.255.0.0,43200
        dhcp-ignore=tag:!known
        dhcp-authoritative
        no-ping
        dhcp-lease-max=65536
        dhcp-hostsfile=/s/network/bth-0a1b2c3d/hosts
        dhcp-leasefile=/s/network/bth-0a1b2c3d/leases
        dhcp-option=option:mtu,1450
        dhcp-option=option:router,10.77.0.1
        dhcp-option=option:dns-server,10.77.0.1
        ");
    }

    fn ipv6(egress: Egress) -> Option<crate::Ipv6Network> {
        let prefix = "fd00:60::/64".parse().expect("a prefix");
        let gateway = "fd00:60::1".parse().expect("an address");
        Some(crate::Ipv6Network { prefix, gateway, egress, autoconfiguration: false })
    }

    #[test]
    fn guests_that_form_their_addresses_get_none_by_dhcp() {
        let guest =
            Lease { ipv6: "fd00:60::9".parse().ok(), ..lease("52:54:00:00:00:01", "10.77.0.9", "web") };
        let only = Lease { address: None, ..guest.clone() };
        let ipv6 = ipv6(Egress::Routed).map(|ipv6| crate::Ipv6Network { autoconfiguration: true, ..ipv6 });
        let network = NetworkConfig { ipv6, leases: vec![guest], ..network() };
        let text = conf(&Files::within(Path::new("/s")), &network, None);
        let (_, added) = text.split_once("dhcp-range=fd00").expect("a range");
        insta::assert_snapshot!(added, @r"
        :60::,ra-stateless,64,86400
        enable-ra
        ra-param=bth-0a1b2c3d,mtu:1450,60,1800
        dhcp-option=option6:dns-server,[fd00:60::1]
        ");
        assert_eq!(hosts(&network), "52:54:00:00:00:01,10.77.0.9,web\n");
        let without_ipv4 = NetworkConfig { ipv4: None, leases: vec![only], ..network };
        assert_eq!(hosts(&without_ipv4), "52:54:00:00:00:01,web\n", "it asks for name servers");
    }

    #[test]
    fn with_a_prefix_it_advertises_itself_and_gives_out_ipv6_addresses() {
        let guest = Lease {
            ipv6: "fd00:60::9".parse().ok(),
            dns: vec![Ipv4Addr::new(9, 9, 9, 9).into()],
            ..lease("52:54:00:00:00:01", "10.77.0.9", "web")
        };
        let network = |egress| NetworkConfig {
            ipv6: ipv6(egress),
            search_domains: vec!["example.org".to_owned()],
            leases: vec![guest.clone()],
            ..network()
        };
        let text = conf(&Files::within(Path::new("/s")), &network(Egress::None), None);
        let (_, added) = text.split_once("dhcp-range=fd00").expect("a range");
        insta::assert_snapshot!(added, @r"
        :60::,static,64,600
        enable-ra
        ra-param=bth-0a1b2c3d,mtu:1450,60,0
        dhcp-option=option6:dns-server,[fd00:60::1]
        dhcp-option=option6:domain-search,example.org
        ");
        let routed = conf(&Files::within(Path::new("/s")), &network(Egress::Routed), None);
        assert!(routed.contains("ra-param=bth-0a1b2c3d,mtu:1450,60,1800\n"), "{routed}");
        assert_eq!(
            hosts(&network(Egress::None)),
            "52:54:00:00:00:01,set:guest-525400000001,10.77.0.9,[fd00:60::9],web\n"
        );
        let without = NetworkConfig { ipv6: None, ..network(Egress::None) };
        assert!(!hosts(&without).contains("fd00"));
        let own = NetworkConfig { dns: vec![Ipv4Addr::new(9, 9, 9, 9).into()], ..network(Egress::None) };
        let own = conf(&Files::within(Path::new("/s")), &own, None);
        assert!(!own.contains("option6:dns-server"), "no name server of the host's: {own}");
    }

    #[test]
    fn without_ipv4_it_gives_out_ipv6_addresses_only() {
        let own: IpAddr = "2620:fe::fe".parse().expect("an address");
        let guest = |mac: &str, last: &str, dns: Vec<IpAddr>| Lease {
            address: None,
            ipv6: format!("fd00:60::{last}").parse().ok(),
            dns,
            ..lease(mac, "10.77.0.9", "web")
        };
        let network = NetworkConfig {
            ipv4: None,
            ipv6: ipv6(Egress::Routed),
            leases: vec![
                guest("52:54:00:00:00:01", "9", Vec::new()),
                guest("52:54:00:00:00:02", "a", vec![own]),
            ],
            ..network()
        };
        let text = conf(&Files::within(Path::new("/s/network/bth-0a1b2c3d")), &network, None);
        let (_, after) = text.split_once("quiet-dhcp\n").expect("the options of DHCP");
        insta::assert_snapshot!(after, @r"
        dhcp-ignore=tag:!known
        dhcp-authoritative
        no-ping
        dhcp-lease-max=65536
        dhcp-hostsfile=/s/network/bth-0a1b2c3d/hosts
        dhcp-leasefile=/s/network/bth-0a1b2c3d/leases
        dhcp-range=fd00:60::,static,64,600
        enable-ra
        ra-param=bth-0a1b2c3d,mtu:1450,60,1800
        dhcp-option=option6:dns-server,[fd00:60::1]
        dhcp-option=tag:guest-525400000002,option6:dns-server,[2620:fe::fe]
        ");
        assert_eq!(
            hosts(&network),
            "52:54:00:00:00:01,[fd00:60::9],web\n52:54:00:00:00:02,set:guest-525400000002,[fd00:60::a],web\n"
        );
    }

    #[test]
    fn a_lease_of_an_ipv6_address_is_that_of_the_guest_it_is_reserved_for() {
        let taken = "duid 00:01\n1763 11 fd00:60::9 web 00:03:01\n1763 12 fd00:60::10 db 00:03:02\n";
        let leases = parse_leases(taken, "52:54:00:00:00:01,[fd00:60::9],web\n");
        let [lease] = &leases[..] else { panic!("{leases:?}") };
        assert_eq!(
            (lease.mac.as_str(), lease.address),
            ("52:54:00:00:00:01", "fd00:60::9".parse().expect("one"))
        );
        assert_eq!(lease.taken_at.as_second(), 1763 - IPV6_LEASE_SECONDS);
        let both = "52:54:00:00:00:01,10.77.0.9,[fd00:60::9],web\n";
        assert!(parse_leases(taken, both).is_empty(), "its IPv4 lease is not taken yet");
    }

    #[test]
    fn a_lease_of_an_ipv6_address_stays_with_its_guest_only() {
        let taken = "duid 00:01\n1763 11 fd00:60::9 web 00:03:01\n1763 12 fd00:60::10 db 00:03:02\n";
        let guest = |mac| Lease { ipv6: "fd00:60::9".parse().ok(), ..lease(mac, "10.77.0.9", "web") };
        let former = "52:54:00:00:00:01,10.77.0.9,[fd00:60::9],web\n";
        let kept = |mac, former| without_conflicts(taken, &[guest(mac)], former);
        assert_eq!(kept("52:54:00:00:00:01", former), taken);
        let without = "duid 00:01\n1763 12 fd00:60::10 db 00:03:02\n";
        assert_eq!(kept("52:54:00:00:00:02", former), without, "another guest's now");
        assert_eq!(kept("52:54:00:00:00:02", ""), without, "its former owner is gone");
    }

    #[test]
    fn name_servers_of_its_own_replace_the_gateways() {
        let network = NetworkConfig { dns: vec![Ipv4Addr::new(9, 9, 9, 9).into()], ..network() };
        let conf = conf(&Files::within(Path::new("/s")), &network, None);
        assert!(conf.ends_with("dhcp-option=option:dns-server,9.9.9.9\nport=0\n"), "{conf}");
    }

    #[test]
    fn with_names_the_dhcp_server_answers_no_dns_and_guests_get_the_domain_first() {
        let names =
            crate::Names { domain: "app.internal".to_owned(), is_searched: true, records: Vec::new() };
        let network = NetworkConfig {
            names: Some(names),
            search_domains: vec!["example.org".to_owned(), "app.internal".to_owned()],
            ipv6: ipv6(Egress::None),
            ..network()
        };
        let conf = conf(&Files::within(Path::new("/s")), &network, None);
        let (_, options) = conf.split_once("dhcp-option=option:mtu,1450\n").expect("options");
        insta::assert_snapshot!(options, @r"
        dhcp-option=option:router,10.77.0.1
        dhcp-option=option:dns-server,10.77.0.1
        dhcp-option=tag:!own-domains,option:domain-name,app.internal
        dhcp-option=option:domain-search,app.internal,example.org
        dhcp-range=fd00:60::,static,64,600
        enable-ra
        ra-param=bth-0a1b2c3d,mtu:1450,60,0
        dhcp-option=option6:dns-server,[fd00:60::1]
        dhcp-option=option6:domain-search,app.internal,example.org
        port=0
        ");
    }

    #[test]
    fn hosts_do_not_depend_on_the_order_of_leases() {
        let (a, b) =
            (lease("52:54:00:00:00:01", "10.77.0.9", "web"), lease("52:54:00:00:00:02", "10.77.0.10", "b_c"));
        let hosts = |leases: &[&Lease]| {
            hosts(&NetworkConfig { leases: leases.iter().copied().cloned().collect(), ..network() })
        };
        assert_eq!(hosts(&[&a, &b]), "52:54:00:00:00:01,10.77.0.9,web\n52:54:00:00:00:02,10.77.0.10\n");
        assert_eq!(hosts(&[&b, &a]), hosts(&[&a, &b]));
    }

    #[test]
    fn a_guest_without_dhcp_gets_no_lease_of_that_family() {
        let guest = |no_dhcp4, no_dhcp6| Lease {
            ipv6: "fd00:60::9".parse().ok(),
            no_dhcp4,
            no_dhcp6,
            ..lease("52:54:00:00:00:01", "10.77.0.9", "web")
        };
        let hosts =
            |guest| hosts(&NetworkConfig { ipv6: ipv6(Egress::None), leases: vec![guest], ..network() });
        assert_eq!(hosts(guest(false, false)), "52:54:00:00:00:01,10.77.0.9,[fd00:60::9],web\n");
        assert_eq!(hosts(guest(true, false)), "52:54:00:00:00:01,[fd00:60::9],web\n");
        assert_eq!(hosts(guest(false, true)), "52:54:00:00:00:01,10.77.0.9,web\n");
        assert_eq!(hosts(guest(true, true)), "", "the server does not know it");
    }

    #[test]
    fn a_lease_file_that_is_being_written_is_no_conflict() {
        let guest = lease("52:54:00:00:00:03", "10.77.0.9", "new");
        let has = |text: &str| has_conflicts(text, std::slice::from_ref(&guest), "");
        // A part of it ends with the address of the guest.
        let written = "1763 52:54:00:00:00:02 10.77.0.10 * *\n1764 52:54:00:00:00:01 10.77.0.95 old *\n";
        for end in 0..=written.len() {
            assert!(!has(&written[..end]), "{end}");
        }
        assert!(has("1763 52:54:00:00:00:02 10.77.0.9 * *\n1764 52:54"));
    }

    #[test]
    fn a_lease_that_stands_in_a_new_guests_way_is_forgotten() {
        let taken = "1763 52:54:00:00:00:01 10.77.0.9 old *\n1764 52:54:00:00:00:02 10.77.0.10 * *\n";
        let kept = without_conflicts(taken, &[lease("52:54:00:00:00:03", "10.77.0.9", "new")], "");
        assert_eq!(kept, "1764 52:54:00:00:00:02 10.77.0.10 * *\n");
        assert_eq!(without_conflicts(taken, &[lease("52:54:00:00:00:01", "10.77.0.9", "old")], ""), taken);
        assert_eq!(parse_leases(taken, "")[0].mac, "52:54:00:00:00:01");
    }
}
