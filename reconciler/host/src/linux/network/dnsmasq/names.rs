//! The name server of a network whose machines have names: a dnsmasq of its own, without DHCP.
//!
//! The network's DHCP server then answers no DNS. A dnsmasq that does both also answers with the host names of leases, also those
//! that guests choose, and until a lease ends, hours after its machine. So a name that berth did not write does not exist, and
//! names change without the DHCP server.
//!
//! ```text
//!  network/<bridge>/names.conf      its configuration at start
//!                   names           the records; read again on SIGHUP
//!                   names.loaded    checksum of the records that it has read
//!                   names.pid
//! ```

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use ipnet::{Ipv4Net, Ipv6Net};

use super::super::super::files::{self, blocking, failed};
use super::super::Result;
use super::process::Daemon;
use super::{checksum, config, launch, options, read};
use crate::{NameRecord, Names, NetworkConfig};

/// For how long guests may keep an answer, in seconds: a name follows its machine soon.
const TTL: u32 = 5;

#[derive(Clone, Debug)]
struct Files {
    conf: PathBuf,
    names: PathBuf,
    loaded: PathBuf,
    pid: PathBuf,
}

impl Files {
    fn within(folder: &Path) -> Self {
        Self {
            conf: folder.join("names.conf"),
            names: folder.join("names"),
            loaded: folder.join("names.loaded"),
            pid: folder.join("names.pid"),
        }
    }
}

/// The network of a name server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) bridge: &'a str,
    /// The ranges of which no other name server is asked about addresses.
    pub(super) ipv4: Option<Ipv4Net>,
    pub(super) ipv6: Option<Ipv6Net>,
}

impl<'a> Place<'a> {
    pub(super) fn of(network: &'a NetworkConfig) -> Self {
        Self {
            bridge: &network.bridge,
            ipv4: network.ipv4.map(|ipv4| ipv4.range),
            ipv6: network.ipv6.map(|ipv6| ipv6.prefix),
        }
    }
}

/// Ensures that the network's name server runs with exactly these names.
pub(super) async fn ensure(folder: &Path, place: Place<'_>, names: &Names) -> Result<()> {
    let files = Files::within(folder);
    let conf = conf(&files, place, names, config::user());
    let records = records(names);
    let start = {
        let files = files.clone();
        blocking(move || prepare(&files, &conf, &records)).await?
    };
    if start { launch(&files.conf).await } else { Ok(()) }
}

/// Prepares everything but the start; returns whether a start is needed.
fn prepare(files: &Files, conf: &str, records: &str) -> Result<bool> {
    let checksum = checksum(records);
    if let Some(daemon) = Daemon::find(&files.conf, &files.pid)? {
        if read(&files.conf)? == conf {
            if read(&files.loaded)? != checksum {
                // After a boot no server runs, and all files are written again.
                files::write_until_boot(&files.names, records.as_bytes(), 0o644)?;
                daemon.reload()?;
                files::write_until_boot(&files.loaded, checksum.as_bytes(), 0o600)?;
            }
            return Ok(false);
        }
        daemon.stop()?;
    }
    files::write_atomic(&files.conf, conf.as_bytes(), 0o644)?;
    files::write_atomic(&files.names, records.as_bytes(), 0o644)?;
    files::write_until_boot(&files.loaded, checksum.as_bytes(), 0o600)?;
    Ok(true)
}

/// Whether the network has a name server of its own.
pub(super) fn is_there(folder: &Path) -> bool {
    Files::within(folder).conf.exists()
}

/// Returns the name server of a network, if it runs.
pub(super) fn find(folder: &Path) -> Result<Option<Daemon>> {
    let files = Files::within(folder);
    Daemon::find(&files.conf, &files.pid)
}

/// Terminates the name server, if there is one, and removes its files.
pub(super) async fn remove(folder: &Path) -> Result<()> {
    let files = Files::within(folder);
    blocking(move || -> Result<()> {
        if let Some(daemon) = Daemon::find(&files.conf, &files.pid)? {
            daemon.stop()?;
        }
        for file in [&files.pid, &files.loaded, &files.names, &files.conf] {
            files::remove_if_there(file).map_err(failed("remove", file))?;
        }
        Ok(())
    })
    .await
}

fn conf(files: &Files, place: Place<'_>, names: &Names, user: Option<&str>) -> String {
    let mut conf = config::head(&files.pid, place.bridge, user);
    let mut line = |text: std::fmt::Arguments<'_>| {
        writeln!(conf, "{text}").expect("writing to memory");
    };
    // No other name server is asked about these.
    line(format_args!("local=/{}/", names.domain));
    for zone in place.ipv4.into_iter().flat_map(reverse_zones) {
        line(format_args!("local=/{zone}/"));
    }
    if let Some(prefix) = place.ipv6 {
        line(format_args!("local=/{}/", ipv6_reverse_zone(prefix)));
    }
    line(format_args!("local-ttl={TTL}"));
    line(format_args!("addn-hosts={}", files.names.display()));
    conf
}

/// Formats the records, sorted. One that is no name is left out.
fn records(names: &Names) -> String {
    let is_name = |record: &&NameRecord| record.name.split('.').all(options::is_label);
    let sorted: BTreeSet<&NameRecord> = names.records.iter().filter(is_name).collect();
    let mut records = String::new();
    for record in sorted {
        writeln!(records, "{} {}.{}", record.address, record.name, names.domain).expect("writing to memory");
    }
    records
}

/// Returns the domains with the names of a range's addresses: one, or where the range ends within an octet one for each value of it.
fn reverse_zones(range: Ipv4Net) -> Vec<String> {
    let zone = |octets: &[u8]| {
        let reversed: String = octets.iter().rev().map(|octet| format!("{octet}.")).collect();
        format!("{reversed}in-addr.arpa")
    };
    let octets = range.network().octets();
    let (whole, rest) = octets.split_at(usize::from(range.prefix_len() / 8));
    let (Some(first), bits @ 1..) = (rest.first(), range.prefix_len() % 8) else {
        return vec![zone(whole)];
    };
    let last = first | (u8::MAX >> bits);
    (*first..=last).map(|octet| zone(&[whole, &[octet]].concat())).collect()
}

/// Returns the domain with the names of a prefix's addresses.
fn ipv6_reverse_zone(prefix: Ipv6Net) -> String {
    let nibbles = prefix.network().octets().into_iter().flat_map(|octet| [octet >> 4, octet & 0xf]);
    let of_prefix: Vec<u8> = nibbles.take(usize::from(prefix.prefix_len() / 4)).collect();
    let reversed: String = of_prefix.iter().rev().map(|nibble| format!("{nibble:x}.")).collect();
    format!("{reversed}ip6.arpa")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{Egress, Ipv4Network, Ipv6Network};

    fn network(domain: &str) -> NetworkConfig {
        let record = |name: &str, address: &str| NameRecord {
            name: name.to_owned(),
            address: address.parse().expect("an address"),
        };
        let records = vec![
            record("web", "10.77.0.9"),
            record("web", "fd00:60::9"),
            record("db.team-a", "10.77.0.10"),
            record("a b", "10.77.0.11"),
            record("x\n10.77.0.1 y", "10.77.0.12"),
            record("", "10.77.0.13"),
        ];
        NetworkConfig {
            bridge: "bth-0a1b2c3d".to_owned(),
            ipv4: Some(Ipv4Network {
                range: "10.77.0.0/23".parse().expect("range"),
                gateway: Ipv4Addr::new(10, 77, 0, 1),
                egress: Egress::Masquerade,
            }),
            ipv6: Some(Ipv6Network {
                prefix: "fd00:60::/64".parse().expect("a prefix"),
                gateway: "fd00:60::1".parse().expect("an address"),
                egress: Egress::None,
                autoconfiguration: false,
            }),
            mtu: 1450,
            dns: Vec::new(),
            search_domains: Vec::new(),
            names: Some(Names { domain: domain.to_owned(), is_searched: true, records }),
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
    fn the_server_answers_for_its_domain_and_for_the_networks_addresses() {
        let network = network("app.internal");
        let names = options::names_of(&network).expect("a domain");
        let conf = conf(
            &Files::within(Path::new("/s/network/bth-0a1b2c3d")),
            Place::of(&network),
            names,
            Some("dnsmasq"),
        );
        insta::assert_snapshot!(conf, @r"
        # Written by berth.
        user=dnsmasq
        pid-file=/s/network/bth-0a1b2c3d/names.pid
        interface=bth-0a1b2c3d
        except-interface=lo
        bind-interfaces
        no-hosts
        domain-needed
        bogus-priv
        local=/app.internal/
        local=/0.77.10.in-addr.arpa/
        local=/1.77.10.in-addr.arpa/
        local=/0.0.0.0.0.0.0.0.0.6.0.0.0.0.d.f.ip6.arpa/
        local-ttl=5
        addn-hosts=/s/network/bth-0a1b2c3d/names
        ");
    }

    #[test]
    fn records_are_sorted_and_what_is_no_name_is_left_out() {
        let network = network("app.internal");
        let names = options::names_of(&network).expect("a domain");
        insta::assert_snapshot!(records(names), @r"
        10.77.0.10 db.team-a.app.internal
        10.77.0.9 web.app.internal
        fd00:60::9 web.app.internal
        ");
        let reversed = Names { records: names.records.iter().rev().cloned().collect(), ..names.clone() };
        assert_eq!(records(&reversed), records(names), "their order does not matter");
        assert_eq!(format!("{names:?}"), r#"Names { domain: "app.internal", records: 6 }"#);
    }

    #[test]
    fn a_domain_that_is_none_has_no_names() {
        for domain in ["", "a_b.internal", "app.internal\nuser=root", "app..internal"] {
            assert_eq!(options::names_of(&network(domain)), None, "{domain}");
        }
    }

    #[test]
    fn the_zones_of_a_range_cover_it_and_nothing_else() {
        let zones = |range: &str| reverse_zones(range.parse().expect("a range"));
        assert_eq!(zones("10.0.0.0/8"), ["10.in-addr.arpa"]);
        assert_eq!(zones("10.77.0.0/16"), ["77.10.in-addr.arpa"]);
        let part = zones("10.77.9.8/29");
        assert_eq!((part.len(), part[0].as_str()), (8, "8.9.77.10.in-addr.arpa"));
        assert_eq!(part[7], "15.9.77.10.in-addr.arpa");
        let wide = zones("10.128.0.0/9");
        assert_eq!((wide.len(), wide[127].as_str()), (128, "255.10.in-addr.arpa"));
    }
}
