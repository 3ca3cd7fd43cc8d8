//! `berth_network`

mod addresses;

use std::net::IpAddr;

use async_trait::async_trait;
use ipnet::IpNet;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    api::Api,
    change::PlannedChange,
    field::{Effect, Field, Presence, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    replacement,
};

/// A network of VMs.
#[derive(Debug)]
pub struct Network;

/// The attributes that cannot change.
const FIXED: [&str; 11] = [
    "cidr",
    "ipv6_cidr",
    "type",
    "bridge",
    "ipv4",
    "ipv6",
    "dhcp4",
    "dhcp6",
    "encryption",
    AUTOCONFIGURATION,
    PRIVACY_ADDRESSES,
];

const AUTOCONFIGURATION: &str = "ipv6_autoconfiguration";
const PRIVACY_ADDRESSES: &str = "ipv6_privacy_addresses";

/// The most characters of all search domains: more does not fit into a packet of DHCP.
const MOST_OF_DOMAINS: usize = 100;

/// The last labels of domains for other kinds of names: multicast DNS, the machine itself, and addresses.
const RESERVED: [&str; 3] = ["local", "localhost", "arpa"];

/// The routes of the guests of a network, or of an interface.
pub(crate) fn routes() -> Field {
    let fields = vec![
        Field::spec("name", Shape::Text(Form::Name)).presence(Presence::Numbered("route")).text(
            "Name of the route within the list, for people. Default `route0`, `route1`, … by position.",
        ),
        Field::spec("to", Shape::Text(Form::IpRange)).required(),
        Field::spec("via", Shape::Text(Form::Ip)).required(),
    ];
    Field::spec("routes", Shape::Keyed(fields))
}

#[async_trait]
impl ResourceKind for Network {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_network",
            kind: "Network",
            plural: "networks",
            description: "A network of VMs: a private one that berth makes (`type` `Overlay`, the default), or one that the hosts already have (`Bridge`), by a bridge or an interface of theirs, also with a VLAN.\n\nThe VMs of an overlay reach each other, on whichever hosts they run, and the outside as `egress` declares: by NAT, if nothing is declared. Those of a bridge are machines of the network that the bridge is on, with addresses of it: see the page on bridged networks. A network has IPv4 (`cidr`), IPv6 (`ipv6_cidr`) or both. A VM's network interface names it in `network`. The Network `default` of a namespace is created without this resource when a VM first needs it.\n\nA range that overlaps another Network's, or one that a host uses, is refused. Destroying a network that VMs use is accepted; a finalizer keeps it until no VM uses it. Until then no other network can have this name.",
            example: include_str!("../../examples/resources/berth_network/resource.tf"),
            shown: "status.mtu",
            timeouts: [120, 120, 300],
        }
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::spec("type", Shape::Text(Form::Any)).default("Overlay").effect(Effect::Replace),
            Field::spec(
                "bridge",
                Shape::Object(vec![
                    Field::spec("name", Shape::Text(Form::Any)).effect(Effect::Replace),
                    Field::spec("interface", Shape::Text(Form::Any)).effect(Effect::Replace),
                    Field::spec("vlan", Shape::Integer).effect(Effect::Replace),
                    Field::spec("trunk_vlans", Shape::TextList(Form::Vlans)).key("trunkVLANs"),
                ]),
            ),
            Field::spec(
                "ipv4",
                Shape::Object(vec![
                    Field::spec("allocation", Shape::Text(Form::Any))
                        .default("Static")
                        .effect(Effect::Replace),
                    Field::spec("gateway", Shape::Text(Form::Ipv4)),
                    Field::spec("range", Shape::Text(Form::Ipv4Sequence)),
                    Field::spec("source_check", Shape::Text(Form::Any)),
                    Field::spec("dhcp", Shape::Bool),
                    Field::spec("name_server", Shape::Text(Form::Ipv4)),
                ]),
            ),
            Field::spec(
                "ipv6",
                Shape::Object(vec![
                    Field::spec("allocation", Shape::Text(Form::Any))
                        .default("Static")
                        .effect(Effect::Replace),
                    Field::spec("gateway", Shape::Text(Form::Ipv6)),
                    Field::spec("range", Shape::Text(Form::Ipv6Sequence)),
                    Field::spec("pool", Shape::Text(Form::Name)).effect(Effect::Replace),
                    Field::spec("dhcp", Shape::Bool),
                    Field::spec("source_check", Shape::Text(Form::Any)),
                ]),
            ),
            Field::spec("cidr", Shape::Text(Form::Ipv4Range)).effect(Effect::Replace),
            Field::spec("egress", Shape::Text(Form::Any)),
            Field::spec("ipv6_cidr", Shape::Text(Form::Ipv6Prefix)).key("ipv6CIDR").effect(Effect::Replace),
            Field::spec("ipv6_egress", Shape::Text(Form::Any)).key("ipv6Egress").default("None"),
            Field::spec(AUTOCONFIGURATION, Shape::Bool).key("ipv6Autoconfiguration").effect(Effect::Replace),
            Field::spec(PRIVACY_ADDRESSES, Shape::Bool).key("ipv6PrivacyAddresses").effect(Effect::Replace),
            Field::spec("dns", Shape::TextList(Form::Ip)),
            Field::spec("dns_domain", Shape::Text(Form::Domain)),
            Field::spec("search_domains", Shape::TextList(Form::Domain)),
            routes(),
            Field::spec("dhcp4", Shape::Bool).effect(Effect::Replace),
            Field::spec("dhcp6", Shape::Bool).effect(Effect::Replace),
            Field::spec("isolated", Shape::Bool),
            // In the namespace of each VM: on a shared network, not in its own.
            Field::spec("security_groups", Shape::TextList(Form::Name)),
            Field::spec("encryption", Shape::Text(Form::Any)).effect(Effect::Replace),
            Field::spec("mtu", Shape::Integer).effect(Effect::PowerCycle),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let mut found =
            check_search_domains(config.get("search_domains"), &AttributePath::root("search_domains"));
        found.extend(check_dns_domain(config));
        found.extend(check_routes(config));
        found.extend(check_security_groups(config));
        found.extend(check_egress(config));
        found.extend(check_dhcp(config));
        found.extend(check_autoconfiguration(config));
        found.extend(check_privacy_addresses(config));
        found.extend(check_bridge(config.get("bridge")));
        found.extend(addresses::check(config));
        found
    }

    /// An attribute that is left out is `true`, `None`, or for those about addresses that guests form `false`: declaring that replaces
    /// nothing.
    fn refine(&self, change: &mut PlannedChange<'_>) {
        let is_usual = |state: &Value, name: &str| {
            let value = state.get(name);
            value.is_null()
                || value.as_bool() == Some(![AUTOCONFIGURATION, PRIVACY_ADDRESSES].contains(&name))
                || value.as_str() == Some("None")
        };
        for name in ["dhcp4", "dhcp6", "encryption", AUTOCONFIGURATION, PRIVACY_ADDRESSES] {
            if !is_usual(change.prior, name) || !is_usual(&change.planned, name) {
                continue;
            }
            let path = AttributePath::root(name);
            change.replace.retain(|replaced| *replaced != path);
            for change in change.changes.iter_mut().filter(|change| change.path == path) {
                change.effect = Effect::Live;
            }
        }
        warn_of_ipv6_routes(change);
    }

    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        let is_same = |name: &&str| {
            let (planned, prior) = (change.planned.get(name), change.prior.get(name));
            let parts = fixed_parts(name);
            let are_same = parts.iter().all(|part| planned.get(part) == prior.get(part));
            if parts.is_empty() { planned == prior } else { are_same }
        };
        let changed = FIXED.into_iter().find(|name| !is_same(name)).unwrap_or("cidr");
        replacement::refuse_in_use(api, change, self.info().plural, changed, "The network is in use").await;
    }

    /// A network without an identifier was never made on a host.
    fn is_worth_keeping(&self, object: &Json) -> bool {
        object.pointer("/status/vni").is_some()
    }
}

/// The parts of a fixed attribute that cannot change, if others can.
fn fixed_parts(attribute: &str) -> &'static [&'static str] {
    match attribute {
        "bridge" => &["name", "interface", "vlan"],
        "ipv4" | "ipv6" => &["allocation"],
        _ => &[],
    }
}

/// Refuses a bridge that is neither one of the hosts nor over an interface, or both, and names that no host has.
fn check_bridge(bridge: &Value) -> Vec<Diagnostic> {
    let (name, interface, vlan) = (bridge.get("name"), bridge.get("interface"), bridge.get("vlan"));
    if bridge.is_null() || [bridge, name, interface, vlan].iter().any(|value| value.is_unknown()) {
        return Vec::new();
    }
    let at = AttributePath::root("bridge");
    let mut found = Vec::new();
    let mut wrong = |at: AttributePath, summary: &str, detail: &str| {
        found.push(Diagnostic::error(summary, format!("{at}: {detail}")).at(at));
    };
    match (name.is_null(), interface.is_null()) {
        (true, true) => wrong(
            at.clone(),
            "Missing bridge or interface",
            "set `name` to a bridge of the hosts, or `interface` to an interface of the hosts over which berth creates a bridge.",
        ),
        (false, false) => wrong(
            at.clone(),
            "Both a bridge and an interface",
            "set either `name`, a bridge of the hosts, or `interface`, over which berth creates a bridge. Leave one of them out.",
        ),
        _ => {}
    }
    if !vlan.is_null() && interface.is_null() {
        let detail = "it is a VLAN of `interface`, which is not set. To use a VLAN of an existing bridge, create a bridge over that VLAN on the hosts, and set `name` to it.";
        wrong(at.clone().attribute("vlan"), "A VLAN without an interface", detail);
    }
    if !vlan.is_null() && !bridge.get("trunk_vlans").elements().is_empty() {
        let detail = "a network has either `vlan`, whose tag the host adds and removes, or `trunk_vlans`, whose tags the guest sees. Leave one of them out.";
        wrong(at.clone().attribute("trunk_vlans"), "Both vlan and trunk_vlans", detail);
    }
    for (attribute, value) in [("name", name), ("interface", interface)] {
        let path = at.clone().attribute(attribute);
        let Some(text) = value.as_str() else { continue };
        let is_interface_name = text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
        if !is_interface_name {
            let detail = format!(
                "{text:?} is not the name of an interface: use letters, digits, \"_\", \".\" and \"-\", with a letter or digit at the beginning."
            );
            wrong(path, "Invalid name of an interface", &detail);
        } else if text == "lo" {
            wrong(
                path,
                "The loopback interface",
                "it leads to no network: name another interface of the hosts.",
            );
        } else if is_berths(text) {
            wrong(
                path,
                "The name is reserved for berth",
                &format!(
                    "{text:?} is a name of interfaces that berth makes itself: name one that the hosts have without berth."
                ),
            );
        }
    }
    found
}

/// Whether berth gives such names to the interfaces that it makes on hosts.
fn is_berths(name: &str) -> bool {
    let is_tap = |rest: &str| rest.len() >= 8 && rest.bytes().take(8).all(|b| b.is_ascii_hexdigit());
    name == "berth-public"
        || matches!(name.as_bytes(), [b'b', b't', b'a'..=b'z', b'-', ..])
        || name.strip_prefix("btt").is_some_and(is_tap)
}

/// Refuses a way out of a bridge, its isolation and its encryption, and a way out of IPv6 without a prefix.
fn check_egress(config: &Value) -> Option<Diagnostic> {
    let (prefix, egress) = (config.get("ipv6_cidr"), config.get("ipv6_egress"));
    let at = AttributePath::root;
    if config.get("egress").is_set() && config.get("type").as_str() == Some("Bridge") {
        let detail = "egress: it is for networks of type \"Overlay\". On a bridge, guests use the routers of its network: leave it out.";
        return Some(Diagnostic::error("Egress of a bridged network", detail).at(at("egress")));
    }
    if config.get("isolated").as_bool() == Some(true) && config.get("type").as_str() == Some("Bridge") {
        let detail = "isolated: only a network of type \"Overlay\" has it. On a bridge, guests of different hosts reach each other by the network of the hosts; isolate them on its switch. Leave it out.";
        return Some(Diagnostic::error("Isolation on a bridge", detail).at(at("isolated")));
    }
    let is_encrypted = config.get("encryption").as_str().is_some_and(|encryption| encryption != "None");
    if is_encrypted && config.get("type").as_str() == Some("Bridge") {
        let detail = "encryption: only a network of type \"Overlay\" has it. On a bridge, packets between hosts are those of the network of the hosts. Leave it out.";
        return Some(Diagnostic::error("Encryption on a bridge", detail).at(at("encryption")));
    }
    let is_open = egress.as_str().is_some_and(|egress| egress != "None");
    if is_open && config.get("type").as_str() == Some("Bridge") {
        let detail = "ipv6_egress: it is for networks of type \"Overlay\". On a bridge, guests use the routers of its network: leave it out.";
        return Some(Diagnostic::error("Egress of a bridged network", detail).at(at("ipv6_egress")));
    }
    let has_pool = !config.get("ipv6").get("pool").is_null();
    if prefix.is_null() && !has_pool && is_open {
        let detail = "ipv6_egress: a network without `ipv6_cidr` has no IPv6 packets. Set `ipv6_cidr` or ipv6.pool, or leave `ipv6_egress` out.";
        return Some(Diagnostic::error("ipv6_egress without ipv6_cidr", detail).at(at("ipv6_egress")));
    }
    None
}

/// Refuses a switch of the DHCP server where berth has none.
fn check_dhcp(config: &Value) -> Vec<Diagnostic> {
    if config.get("type").as_str() != Some("Bridge") {
        return Vec::new();
    }
    let declared =
        [("dhcp4", "ipv4"), ("dhcp6", "ipv6")].into_iter().filter(|(name, _)| config.get(name).is_set());
    declared
        .map(|(name, family)| {
            let detail = format!(
                "{name}: only a network of type \"Overlay\" has it. On a bridge, `{family}.allocation` declares how guests get their \
                 addresses: leave it out."
            );
            Diagnostic::error("DHCP server of a bridged network", detail).at(AttributePath::root(name))
        })
        .collect()
}

/// Refuses addresses that guests form where berth is no router, without a prefix, and beside a switch of the DHCPv6 server.
fn check_autoconfiguration(config: &Value) -> Option<Diagnostic> {
    if config.get(AUTOCONFIGURATION).as_bool() != Some(true) {
        return None;
    }
    let refused = |name: &str, summary: &str, detail: &str| {
        Some(Diagnostic::error(summary, format!("{name}: {detail}")).at(AttributePath::root(name)))
    };
    if config.get("type").as_str() == Some("Bridge") {
        let detail = "only a network of type \"Overlay\" has it. On a bridge, set ipv6.allocation = \"External\" for addresses that guests form by the \
                      routers of its network. Leave it out.";
        return refused(AUTOCONFIGURATION, "Autoconfiguration on a bridge", detail);
    }
    if config.get("ipv6_cidr").is_null() {
        let detail = "a network without `ipv6_cidr` has no prefix. Set `ipv6_cidr`, or leave it out.";
        return refused(AUTOCONFIGURATION, "Autoconfiguration without a prefix", detail);
    }
    if config.get("dhcp6").is_set() {
        let detail = "with ipv6_autoconfiguration, no DHCPv6 server gives out addresses: leave it out.";
        return refused("dhcp6", "DHCPv6 beside autoconfiguration", detail);
    }
    None
}

/// Refuses addresses of identifiers that guests choose where they form none, and beside security groups.
fn check_privacy_addresses(config: &Value) -> Option<Diagnostic> {
    if config.get(PRIVACY_ADDRESSES).as_bool() != Some(true) {
        return None;
    }
    let refused = |name: &str, summary: &str, detail: &str| {
        Some(Diagnostic::error(summary, format!("{name}: {detail}")).at(AttributePath::root(name)))
    };
    let formed = config.get(AUTOCONFIGURATION);
    if formed.is_null() || formed.as_bool() == Some(false) {
        let detail = "guests choose identifiers only of addresses that they form. Set `ipv6_autoconfiguration = true`, or leave it out.";
        return refused(PRIVACY_ADDRESSES, "Privacy addresses without autoconfiguration", detail);
    }
    if !config.get("security_groups").elements().is_empty() {
        let detail = "they match only the addresses that berth allocates, and guests use others with ipv6_privacy_addresses. Leave one of them out.";
        return refused("security_groups", "Security groups beside privacy addresses", detail);
    }
    None
}

/// Refuses a domain for the names of VMs that berth cannot serve, or that hides names of others.
fn check_dns_domain(config: &Value) -> Option<Diagnostic> {
    let at = AttributePath::root("dns_domain");
    let refused = |summary: &str, detail: String| {
        Some(Diagnostic::error(summary, format!("{at}: {detail}")).at(at.clone()))
    };
    let declared = config.get("dns_domain");
    let ipv4 = config.get("ipv4");
    let has_server = ipv4.is_unknown() || !ipv4.get("name_server").is_null();
    if declared.is_set() && config.get("type").as_str() == Some("Bridge") && !has_server {
        let detail = "on a bridge, hosts answer for it at the address ipv4.name_server, which no machine of the network has. Set that too, or leave the domain out.";
        return refused("dns_domain of a bridged network", detail.to_owned());
    }
    let domain = declared.as_str()?;
    let (_, last) = domain.rsplit_once('.').unwrap_or(("", domain));
    if last == domain {
        let detail = format!(
            "{domain:?} is a single label, and would hide all public names that end with it. Use two labels or more, for example \"app.internal\"."
        );
        return refused("dns_domain with a single label", detail);
    }
    let is_number = !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit());
    if RESERVED.contains(&last) || is_number {
        let detail = format!(
            "a domain for VMs must not end with {last:?}: numbers and the labels local, localhost and arpa are reserved. Use for example \"app.internal\"."
        );
        return refused("Reserved domain", detail);
    }
    let searched: usize =
        config.get("search_domains").elements().iter().filter_map(Value::as_str).map(str::len).sum();
    let length = domain.len() + searched;
    if length > MOST_OF_DOMAINS {
        let detail = format!(
            "guests get it as the first of their search domains, which then have {length} characters in total, and {MOST_OF_DOMAINS} fit into a DHCP packet. Shorten it, or `search_domains`."
        );
        return refused("Too many search domains", detail);
    }
    None
}

/// Refuses domains that are named twice, and more of them than DHCP carries.
pub(crate) fn check_search_domains(domains: &Value, at: &AttributePath) -> Vec<Diagnostic> {
    let texts: Vec<&str> = domains.elements().iter().filter_map(Value::as_str).collect();
    let mut found = Vec::new();
    let length: usize = texts.iter().map(|text| text.len()).sum();
    if length > MOST_OF_DOMAINS {
        let detail = format!(
            "{at}: the domains have {length} characters in total, and {MOST_OF_DOMAINS} fit into a DHCP packet. Remove some of them."
        );
        found.push(Diagnostic::error("Too many search domains", detail).at(at.clone()));
    }
    for (i, domain) in domains.elements().iter().enumerate() {
        let Some(text) = domain.as_str() else { continue };
        if domains.elements()[..i].iter().any(|earlier| earlier.as_str() == Some(text)) {
            let path = at.clone().index(i);
            let detail = format!("{path}: {text:?} is in the list already: remove one of them.");
            found.push(Diagnostic::error("Duplicate search domain", detail).at(path));
        }
    }
    found
}

/// Refuses security groups where others than berth give out addresses, which they do not know.
fn check_security_groups(config: &Value) -> Vec<Diagnostic> {
    if config.get("security_groups").elements().is_empty() {
        return Vec::new();
    }
    let is_external = |name: &str| config.get(name).get("allocation").as_str() == Some("External");
    let is_checked = match config.get("ipv4").get("source_check") {
        check if check.is_unknown() => true,
        check => check.as_str() == Some("Lease"),
    };
    let remedy = if is_external("ipv6") {
        "set `ipv6.allocation` to Static"
    } else if is_external("ipv4") && !is_checked {
        "set `ipv4.source_check` to Lease"
    } else {
        return Vec::new();
    };
    let path = AttributePath::root("security_groups");
    let detail = format!(
        "{path}: security groups need addresses that are checked: {remedy}, or leave the groups out."
    );
    vec![Diagnostic::error("Security groups without checked addresses", detail).at(path)]
}

/// Refuses routes by an address outside of the network or of another family, two routes to one destination, and two default routes.
fn check_routes(config: &Value) -> Vec<Diagnostic> {
    let routes = config.get("routes").elements();
    let gateway = config.get("ipv4").get("gateway").as_str();
    let mut found = Vec::new();
    let mut wrong = |i: usize, name: &str, summary: &str, detail: String| {
        let path = AttributePath::root("routes").index(i).attribute(name);
        found.push(Diagnostic::error(summary, format!("{path}: {detail}")).at(path));
    };
    for (i, route) in routes.iter().enumerate() {
        let via: Option<IpAddr> = route.get("via").as_str().and_then(|text| text.parse().ok());
        if let Some(detail) = via.and_then(|via| outside(config, via)) {
            wrong(i, "via", "An address outside of the network", detail);
        }
        let Some(to) = route.get("to").as_str() else { continue };
        let range: Option<IpNet> = to.parse().ok();
        if let (Some(range), Some(via)) = (range, via)
            && range.addr().is_ipv4() != via.is_ipv4()
        {
            let family = |is_ipv4: bool| if is_ipv4 { "IPv4" } else { "IPv6" };
            let detail = format!(
                "{range} is of {}, and via {via} of {}: a route has both of one family.",
                family(range.addr().is_ipv4()),
                family(via.is_ipv4())
            );
            wrong(i, "to", "A route of two families", detail);
        } else if range.is_some_and(|range| range.addr().is_ipv6()) && config.get("ipv6_cidr").is_null() {
            let detail = format!(
                "{to} is of IPv6, and the network has no `ipv6_cidr`: set it, or leave the route out."
            );
            wrong(i, "to", "A network without IPv6", detail);
        } else if range.is_some_and(|range| range.addr().is_ipv6() && range.prefix_len() == 0) {
            let detail = "guests get the default route of IPv6 by `ipv6.gateway` on a bridge, and by `ipv6_egress` in an overlay: leave \
                          this route out.";
            wrong(i, "to", "A default route of IPv6", detail.to_owned());
        }
        if let Some(first) = routes[..i].iter().position(|earlier| earlier.get("to").as_str() == Some(to)) {
            let detail = format!("routes[{first}] leads to {to} too; a destination has one route.");
            wrong(i, "to", "Two routes to one destination", detail);
        }
        if let (true, Some(gateway)) = (to == "0.0.0.0/0", gateway) {
            let detail = format!("the default route is by ipv4.gateway {gateway}: leave one of them out.");
            wrong(i, "to", "Two default routes", detail);
        }
    }
    found
}

/// Warns that guests which run keep the IPv6 routes that they have.
fn warn_of_ipv6_routes(change: &mut PlannedChange<'_>) {
    let of = |state: &Value| -> Vec<(Option<String>, Option<String>)> {
        let text = |route: &Value, name: &str| route.get(name).as_str().map(str::to_owned);
        let routes = state.get("routes").elements().iter();
        let routes = routes.map(|route| (text(route, "to"), text(route, "via")));
        routes.filter(|(to, _)| to.as_ref().is_some_and(|to| to.contains(':'))).collect()
    };
    if change.is_create() || change.is_applied || of(change.prior) == of(&change.planned) {
        return;
    }
    let at = AttributePath::root("routes");
    let detail = "routes: guests get IPv6 routes by their cloud-init network configuration when they are new. Those that exist keep \
                  theirs: change them in the guests, or replace the VMs.";
    change.diagnostics.push(Diagnostic::warning("IPv6 routes reach new guests only", detail).at(at));
}

/// Returns why a router is not of the network. One of IPv6 may also have a link-local address.
fn outside(config: &Value, via: IpAddr) -> Option<String> {
    let name = if via.is_ipv4() { "cidr" } else { "ipv6_cidr" };
    let range: IpNet = config.get(name).as_str()?.parse().ok()?;
    let is_link_local = matches!(via, IpAddr::V6(via) if addresses::is_link_local(via));
    (!range.contains(&via) && !is_link_local).then(|| format!("{via} is not within {name} {range}."))
}
