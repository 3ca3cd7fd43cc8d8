//! DHCP options of guests as text: name servers, search domains and routes of the network, and of single guests. Pure.
//!
//! A guest whose options differ from the network's has a tag of its own in the hosts file. dnsmasq prefers options of a tag
//! to those without one. An empty option of routers is not sent. One of routes would be: guests with routes of their own
//! have a second tag, which takes those of the network away. So have guests with search domains of their own for the option
//! of one domain.
//!
//! *Source*: RFC 3442 (a client that gets routes ignores the router, so that they include the default route), RFC 3397.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{GuestRoutes, Ipv4Network, Ipv6Network, Lease, Names, NetworkConfig, Route};

/// The tag of guests that do not get the routes of the network.
const OWN_ROUTES: &str = "own-routes";

/// The tag of guests with search domains of their own, which do not get the domain of the network's names.
const OWN_DOMAINS: &str = "own-domains";

/// What a guest gets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Options {
    dns: Vec<IpAddr>,
    search_domains: Vec<String>,
    /// Of IPv4.
    routes: GuestRoutes,
    mtu: u16,
}

/// Returns the values of `dhcp-option` for DHCP of IPv4.
pub(super) fn options(network: &NetworkConfig, ipv4: Ipv4Network) -> Vec<String> {
    let common = Options::of_network(network);
    let dns = |options: &Options| match options.dns.is_empty() {
        true => list([ipv4.gateway]),
        false => list(ipv4_only(&options.dns)),
    };
    let mut options = Vec::new();
    let mut add = |option: String| options.push(option);
    add(format!("option:router{}", list(common.routes.default)));
    add(format!("option:dns-server{}", dns(&common)));
    if let Some(domain) = searched_domain(network) {
        add(format!("tag:!{OWN_DOMAINS},option:domain-name,{domain}"));
    }
    if !common.search_domains.is_empty() {
        add(format!("option:domain-search{}", list(&common.search_domains)));
    }
    if !common.routes.others.is_empty() {
        add(format!("tag:!{OWN_ROUTES},option:classless-static-route{}", routes(&common.routes)));
    }
    for lease in sorted(&network.leases) {
        let (own, tag) = (Options::of(network, lease), tag(lease));
        if own.routes.default != common.routes.default {
            add(format!("tag:{tag},option:router{}", list(own.routes.default)));
        }
        if own.dns != common.dns {
            add(format!("tag:{tag},option:dns-server{}", dns(&own)));
        }
        if own.search_domains != common.search_domains {
            add(format!("tag:{tag},option:domain-search{}", list(&own.search_domains)));
        }
        if own.mtu != common.mtu {
            add(format!("tag:{tag},option:mtu,{}", own.mtu));
        }
        if own.routes != common.routes && !own.routes.others.is_empty() {
            add(format!("tag:{tag},option:classless-static-route{}", routes(&own.routes)));
        }
    }
    options
}

/// Returns the values of `dhcp-option` for DHCPv6, which router advertisements contain too: those without a tag. Name servers with
/// IPv4 addresses are in the answers of DHCP for IPv4.
pub(super) fn ipv6_options(network: &NetworkConfig, ipv6: Ipv6Network) -> Vec<String> {
    let common = Options::of_network(network);
    let dns = |options: &Options| match options.dns.is_empty() {
        true => list([bracketed(ipv6.gateway)]),
        false => list(ipv6_only(&options.dns).map(bracketed)),
    };
    let mut options = Vec::new();
    let common_dns = dns(&common);
    if !common_dns.is_empty() {
        options.push(format!("option6:dns-server{common_dns}"));
    }
    if !common.search_domains.is_empty() {
        options.push(format!("option6:domain-search{}", list(&common.search_domains)));
    }
    for lease in sorted(&network.leases) {
        let (own, tag) = (Options::of(network, lease), tag(lease));
        let own_dns = dns(&own);
        if own_dns != common_dns && !own_dns.is_empty() {
            options.push(format!("tag:{tag},option6:dns-server{own_dns}"));
        }
        if own.search_domains != common.search_domains {
            options.push(format!("tag:{tag},option6:domain-search{}", list(&own.search_domains)));
        }
    }
    options
}

fn sorted(leases: &[Lease]) -> Vec<&Lease> {
    let mut leases: Vec<&Lease> = leases.iter().collect();
    leases.sort_by_key(|lease| (lease.address, lease.ipv6, &lease.mac));
    leases
}

fn ipv4_only(addresses: &[IpAddr]) -> impl Iterator<Item = Ipv4Addr> {
    addresses.iter().filter_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    })
}

fn ipv6_only(addresses: &[IpAddr]) -> impl Iterator<Item = Ipv6Addr> {
    addresses.iter().filter_map(|address| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(*address),
    })
}

/// An IPv6 address as dnsmasq reads it in options.
fn bracketed(address: Ipv6Addr) -> String {
    format!("[{address}]")
}

/// Returns the tags of a guest.
pub(super) fn tags(network: &NetworkConfig, lease: &Lease) -> Vec<String> {
    let (common, own) = (Options::of_network(network), Options::of(network, lease));
    let mut tags = Vec::new();
    if own != common {
        tags.push(tag(lease));
    }
    if own.routes != common.routes {
        tags.push(OWN_ROUTES.to_owned());
    }
    if searched_domain(network).is_some() && own.search_domains != common.search_domains {
        tags.push(OWN_DOMAINS.to_owned());
    }
    tags
}

impl Options {
    fn of_network(network: &NetworkConfig) -> Self {
        let gateway = network.ipv4.map(|ipv4| ipv4.gateway);
        Self {
            dns: network.dns.clone(),
            search_domains: search_domains(network),
            routes: GuestRoutes::of(&network.routes, gateway, None, true),
            mtu: network.mtu,
        }
    }

    fn of(network: &NetworkConfig, lease: &Lease) -> Self {
        let common = Self::of_network(network);
        let own = domains(&lease.search_domains);
        Self {
            dns: if lease.dns.is_empty() { common.dns } else { lease.dns.clone() },
            search_domains: if own.is_empty() { common.search_domains } else { own },
            routes: GuestRoutes::of(
                &Route::with_network(&lease.routes, &network.routes),
                network.ipv4.map(|ipv4| ipv4.gateway),
                lease.address,
                !lease.no_default_route,
            ),
            mtu: lease.mtu.unwrap_or(network.mtu).min(network.mtu),
        }
    }
}

/// Returns the names of a network. dnsmasq would not start with a domain that is none.
pub(super) fn names_of(network: &NetworkConfig) -> Option<&Names> {
    network.names.as_ref().filter(|names| is_domain(&names.domain))
}

/// Returns the domain of a network's names, if its guests look up names in it.
fn searched_domain(network: &NetworkConfig) -> Option<&String> {
    names_of(network).filter(|names| names.is_searched).map(|names| &names.domain)
}

/// Returns the domains in which guests of the network look up names: that of its names first.
fn search_domains(network: &NetworkConfig) -> Vec<String> {
    let of_names = searched_domain(network);
    let declared = domains(&network.search_domains).into_iter().filter(|domain| Some(domain) != of_names);
    of_names.cloned().into_iter().chain(declared).collect()
}

/// Returns the domains of the list that are domains: dnsmasq would not start with any other text.
fn domains(declared: &[String]) -> Vec<String> {
    declared.iter().filter(|text| is_domain(text)).cloned().collect()
}

/// Whether a text is a domain.
pub(super) fn is_domain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Whether a text is one part of a name.
pub(super) fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn tag(lease: &Lease) -> String {
    let digits = lease.mac.chars().filter(char::is_ascii_hexdigit);
    format!("guest-{}", digits.collect::<String>())
}

/// Formats the values of an option.
fn list<T: Display>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| format!(",{value}")).collect()
}

fn routes(routes: &GuestRoutes) -> String {
    list(routes.all().iter().map(|route| format!("{},{}", route.to, route.via)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(last: u8) -> Lease {
        Lease {
            mac: format!("52:54:00:00:00:{last:02x}"),
            address: Some(Ipv4Addr::new(10, 77, 0, last)),
            hostname: "web".to_owned(),
            ..Lease::default()
        }
    }

    fn route(to: &str, last: u8) -> Route {
        Route { to: to.parse().expect("a range"), via: Ipv4Addr::new(10, 77, 0, last) }
    }

    fn network(routes: Vec<Route>, leases: Vec<Lease>) -> NetworkConfig {
        NetworkConfig {
            bridge: "bth-0a1b2c3d".to_owned(),
            ipv4: Some(ipv4()),
            ipv6: None,
            mtu: 1450,
            dns: Vec::new(),
            search_domains: Vec::new(),
            names: None,
            routes,
            ipv6_routes: Vec::new(),
            leases,
            tunnel: None,
            tracked: false,
            relay: None,
            prefixes: Vec::new(),
        }
    }

    fn ipv4() -> Ipv4Network {
        Ipv4Network {
            range: "10.77.0.0/16".parse().expect("range"),
            gateway: Ipv4Addr::new(10, 77, 0, 1),
            egress: crate::Egress::Masquerade,
        }
    }

    fn options(network: &NetworkConfig) -> Vec<String> {
        super::options(network, ipv4())
    }

    #[test]
    fn guests_get_the_gateway_as_router_and_name_server() {
        let plain = network(Vec::new(), vec![lease(2)]);
        assert_eq!(options(&plain), ["option:router,10.77.0.1", "option:dns-server,10.77.0.1"]);
        assert_eq!(tags(&plain, &lease(2)), [""; 0]);
    }

    #[test]
    fn routes_include_the_default_route_except_for_guests_without_one_and_the_router_itself() {
        let without = Lease { no_default_route: true, ..lease(2) };
        let network = NetworkConfig {
            search_domains: vec!["example.org".to_owned(), "not a domain\nuser=root".to_owned()],
            ..network(vec![route("192.168.0.0/16", 9)], vec![lease(9), lease(3), without.clone()])
        };
        insta::assert_snapshot!(options(&network).join("\n"), @r"
        option:router,10.77.0.1
        option:dns-server,10.77.0.1
        option:domain-search,example.org
        tag:!own-routes,option:classless-static-route,0.0.0.0/0,10.77.0.1,192.168.0.0/16,10.77.0.9
        tag:guest-525400000002,option:router
        tag:guest-525400000002,option:classless-static-route,192.168.0.0/16,10.77.0.9
        ");
        assert_eq!(tags(&network, &without), ["guest-525400000002", OWN_ROUTES]);
        assert_eq!(tags(&network, &lease(9)), ["guest-525400000009", OWN_ROUTES]);
        assert_eq!(tags(&network, &lease(3)), [""; 0]);
    }

    #[test]
    fn a_guest_has_routes_and_a_largest_packet_of_its_own() {
        let routes = vec![Route::default_by(Ipv4Addr::new(10, 77, 0, 9)), route("192.168.0.0/16", 8)];
        let own = Lease { routes, mtu: Some(1400), ..lease(2) };
        let larger = Lease { mtu: Some(9000), ..lease(3) };
        let plain = network(vec![route("192.168.0.0/16", 7)], vec![own.clone(), larger.clone()]);
        insta::assert_snapshot!(options(&plain).join("\n"), @r"
        option:router,10.77.0.1
        option:dns-server,10.77.0.1
        tag:!own-routes,option:classless-static-route,0.0.0.0/0,10.77.0.1,192.168.0.0/16,10.77.0.7
        tag:guest-525400000002,option:router,10.77.0.9
        tag:guest-525400000002,option:mtu,1400
        tag:guest-525400000002,option:classless-static-route,0.0.0.0/0,10.77.0.9,192.168.0.0/16,10.77.0.8
        ");
        assert_eq!(tags(&plain, &own), ["guest-525400000002", OWN_ROUTES]);
        assert_eq!(tags(&plain, &larger), [""; 0], "the network's counts where it is smaller");
    }

    #[test]
    fn a_declared_default_route_is_the_router_of_all_guests_but_the_router_itself() {
        let network = network(vec![route("0.0.0.0/0", 9)], vec![lease(9), lease(3)]);
        insta::assert_snapshot!(options(&network).join("\n"), @r"
        option:router,10.77.0.9
        option:dns-server,10.77.0.1
        tag:guest-525400000009,option:router,10.77.0.1
        ");
    }

    #[test]
    fn guests_with_domains_of_their_own_and_those_of_a_domain_that_is_not_searched_do_not_get_it() {
        let own = Lease { search_domains: vec!["example.org".to_owned()], ..lease(2) };
        let network = |is_searched| NetworkConfig {
            names: Some(Names { domain: "app.internal".to_owned(), is_searched, records: Vec::new() }),
            ..network(Vec::new(), vec![own.clone(), lease(3)])
        };
        insta::assert_snapshot!(options(&network(true)).join("\n"), @r"
        option:router,10.77.0.1
        option:dns-server,10.77.0.1
        tag:!own-domains,option:domain-name,app.internal
        option:domain-search,app.internal
        tag:guest-525400000002,option:domain-search,example.org
        ");
        assert_eq!(tags(&network(true), &own), ["guest-525400000002", OWN_DOMAINS]);
        assert_eq!(tags(&network(true), &lease(3)), [""; 0]);
        insta::assert_snapshot!(options(&network(false)).join("\n"), @r"
        option:router,10.77.0.1
        option:dns-server,10.77.0.1
        tag:guest-525400000002,option:domain-search,example.org
        ");
        assert_eq!(tags(&network(false), &own), ["guest-525400000002"]);
    }

    #[test]
    fn a_guests_own_name_servers_and_domains_replace_the_networks() {
        let own = Lease {
            dns: vec![Ipv4Addr::new(9, 9, 9, 9).into(), Ipv4Addr::new(10, 77, 0, 53).into()],
            search_domains: vec!["db.example.org".to_owned(), "example.org".to_owned()],
            ..lease(2)
        };
        let network = NetworkConfig {
            dns: vec![Ipv4Addr::new(10, 77, 0, 54).into()],
            search_domains: vec!["example.net".to_owned()],
            ..network(Vec::new(), vec![own.clone()])
        };
        insta::assert_snapshot!(options(&network).join("\n"), @r"
        option:router,10.77.0.1
        option:dns-server,10.77.0.54
        option:domain-search,example.net
        tag:guest-525400000002,option:dns-server,9.9.9.9,10.77.0.53
        tag:guest-525400000002,option:domain-search,db.example.org,example.org
        ");
        assert_eq!(tags(&network, &own), ["guest-525400000002"]);
    }
}
