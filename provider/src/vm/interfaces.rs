//! The network interfaces of a VM: their attributes, and what a plan checks.

use std::collections::BTreeSet;

use berth_api::Quantity;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    change::PlannedChange,
    field::{Effect, Field, Presence, Shape, declared_power},
    form::Form,
    network,
    references::{NETWORK, PUBLIC_IP, SECURITY_GROUP},
};

pub(super) fn network_interfaces() -> Field {
    let fields = vec![
        Field::spec("name", Shape::Text(Form::Name))
            .presence(Presence::Numbered("nic"))
            .text("Name of the interface within the VM, the key of the list. Default `nic0`, `nic1`, … by position."),
        Field::spec("network", Shape::Text(Form::Name))
            .default(berth_api::DEFAULT_NAME)
            .effect(Effect::Fixed)
            .refers(NETWORK)
            .text(
                "Name of the Network, in the VM's namespace or in `berth-shared`. Default: `network` of the provider, or `default`, which \
                 is created in the VM's namespace if neither has it; an interface that exists keeps its Network. Cannot change.",
            ),
        Field::spec("public_ip", Shape::Text(Form::Name)).key("publicIP").refers(PUBLIC_IP),
        Field::spec("public_ipv6", Shape::Text(Form::Name)).key("publicIPv6").refers(PUBLIC_IP),
        Field::spec("security_groups", Shape::TextList(Form::Name)).refers(SECURITY_GROUP),
        Field::spec("allowed_addresses", Shape::TextList(Form::IpRange)),
        Field::spec("allowed_mac_addresses", Shape::TextList(Form::Mac)),
        interface_limits(),
        Field::spec("dscp", Shape::Text(Form::Any)),
        Field::spec("dns", Shape::TextList(Form::Ip)),
        Field::spec("search_domains", Shape::TextList(Form::Domain)),
        Field::spec("default_route", Shape::Bool),
        Field::spec("gateway", Shape::Text(Form::Ipv4)),
        Field::spec("ipv6_gateway", Shape::Text(Form::Ipv6)).key("ipv6Gateway"),
        network::routes(),
        Field::spec("mtu", Shape::Integer).effect(Effect::PowerCycle),
        Field::spec("dhcp4", Shape::Bool).effect(Effect::Fixed),
        Field::spec("dhcp6", Shape::Bool).effect(Effect::Fixed),
        Field::spec("guest_name", Shape::Text(Form::Any)).effect(Effect::Fixed),
        Field::spec("mac_address", Shape::Text(Form::Mac)).presence(Presence::Kept).effect(Effect::Fixed),
        Field::spec("address", Shape::Text(Form::Ipv4)).presence(Presence::Kept).effect(Effect::Fixed),
        Field::spec("ipv6_address", Shape::Text(Form::Ipv6))
            .key("ipv6Address")
            .presence(Presence::Kept)
            .effect(Effect::Fixed),
        Field::spec("model", Shape::Text(Form::Any)).implied("virtio").effect(Effect::PowerCycle),
        Field::spec("queues", Shape::Integer).effect(Effect::PowerCycle),
        Field::spec("acceleration", Shape::Text(Form::Any)).effect(Effect::PowerCycle),
        Field::spec("link", Shape::Text(Form::Any)).default("Up"),
    ];
    let one = Value::from(vec![Value::object([("name", Value::from("nic0"))])]);
    Field::spec("network_interfaces", Shape::Keyed(fields)).default(one)
}

/// An interface of a model that has no place in a port of the machine is added and removed at the next start.
pub(super) fn wait_with_fixed_models(change: &mut PlannedChange<'_>) {
    let is_fixed = |interface: &&Value| matches!(interface.get("model").as_str(), Some("e1000" | "rtl8139"));
    let fixed = |state: &Value| -> BTreeSet<String> {
        let interfaces = state.get("network_interfaces").elements();
        interfaces.iter().filter(is_fixed).filter_map(|i| i.get("name").as_str().map(str::to_owned)).collect()
    };
    let named = |state: &Value| -> BTreeSet<String> {
        let interfaces = state.get("network_interfaces").elements();
        interfaces.iter().filter_map(|i| i.get("name").as_str().map(str::to_owned)).collect()
    };
    let (was, is) = (named(change.prior), named(&change.planned));
    let mut moved = was.symmetric_difference(&is);
    let all: BTreeSet<String> = fixed(change.prior).union(&fixed(&change.planned)).cloned().collect();
    let waits = moved.any(|name| all.contains(name));
    let interfaces = AttributePath::root("network_interfaces");
    let effect = Effect::PowerCycle.with_power(declared_power(change.prior));
    for change in change.changes.iter_mut().filter(|change| waits && change.path == interfaces) {
        change.effect = effect;
    }
}

fn interface_limits() -> Field {
    let amount = |name| Field::spec(name, Shape::Text(Form::Quantity));
    let fields = vec![
        amount("ingress_bandwidth"),
        amount("egress_bandwidth"),
        amount("ingress_burst"),
        amount("egress_burst"),
        Field::spec("ingress_packets", Shape::Integer),
        Field::spec("egress_packets", Shape::Integer),
    ];
    Field::spec("limits", Shape::Object(fields))
}

/// A value that two interfaces cannot share: its attribute, its name in a message, and how it is read.
type Exclusive = (&'static str, &'static str, fn(&Value) -> Option<String>);

/// Refuses what two interfaces of a VM cannot share.
pub(super) fn check_interfaces(config: &Value) -> Vec<Diagnostic> {
    let mac = |interface: &Value| Some(Form::Mac.canonical(interface.get("mac_address").as_str()?));
    let public = |interface: &Value| interface.get("public_ip").as_str().map(str::to_owned);
    let public_ipv6 = |interface: &Value| interface.get("public_ipv6").as_str().map(str::to_owned);
    let private = |interface: &Value| {
        Some(format!("{} of {}", interface.get("address").as_str()?, network_name(interface)?))
    };
    let ipv6 = |interface: &Value| {
        let address = Form::Ipv6.canonical(interface.get("ipv6_address").as_str()?);
        Some(format!("{address} of {}", network_name(interface)?))
    };
    let guest_name = |interface: &Value| interface.get("guest_name").as_str().map(str::to_owned);
    let shared: [Exclusive; 6] = [
        ("guest_name", "the guest_name", guest_name),
        ("mac_address", "the MAC address", mac),
        ("public_ip", "the public address", public),
        ("public_ipv6", "the public IPv6 address", public_ipv6),
        ("address", "the address", private),
        ("ipv6_address", "the IPv6 address", ipv6),
    ];
    let mut found = Vec::new();
    for (i, interface) in config.get("network_interfaces").elements().iter().enumerate() {
        let has = |name: &str| !interface.get(name).elements().is_empty();
        if has("allowed_addresses") && has("security_groups") {
            let path = AttributePath::root("network_interfaces").index(i).attribute("allowed_addresses");
            let detail = format!(
                "{path}: security groups match only the allocated addresses of an interface. Leave out `allowed_addresses` or `security_groups`."
            );
            found.push(Diagnostic::error("Both allowed_addresses and security_groups", detail).at(path));
        }
        if public(interface).is_some() && public(interface) == public_ipv6(interface) {
            let path = AttributePath::root("network_interfaces").index(i).attribute("public_ipv6");
            let detail = format!(
                "{path}: public_ip names it too, and a berth_public_ip has one address: name another one, of an IPv6 pool."
            );
            found.push(Diagnostic::error("One public address for both families", detail).at(path));
        }
        let path = AttributePath::root("network_interfaces").index(i).attribute("limits");
        found.extend(check_limits(interface.get("limits"), &path));
        found.extend(check_guest_name(config, interface, i));
        found.extend(check_routes(interface, i));
        let path = AttributePath::root("network_interfaces").index(i).attribute("search_domains");
        found.extend(network::check_search_domains(interface.get("search_domains"), &path));
    }
    for (name, what, of) in shared {
        let mut seen = std::collections::BTreeMap::new();
        for (i, interface) in config.get("network_interfaces").elements().iter().enumerate() {
            let Some(value) = of(interface) else { continue };
            if let Some(first) = seen.insert(value.clone(), i) {
                let path = AttributePath::root("network_interfaces").index(i).attribute(name);
                let detail = format!(
                    "{path}: network_interfaces[{first}] has {what} {value:?} too; each belongs to one interface."
                );
                found.push(Diagnostic::error(format!("Two interfaces with one {name}"), detail).at(path));
            }
        }
    }
    found
}

/// The network of an interface in words. None if it is not known: it may be another one.
fn network_name(interface: &Value) -> Option<&str> {
    let network = interface.get("network");
    // The provider block, which says which one that is, is not known during validation.
    if network.is_null() { Some("the default network") } else { network.as_str() }
}

/// The destination of the default route of IPv4.
const EVERYWHERE: &str = "0.0.0.0/0";

/// Refuses two default routes, one beside `default_route = false`, routes of two families, and two to one destination.
fn check_routes(interface: &Value, i: usize) -> Vec<Diagnostic> {
    let at = |name: &str| AttributePath::root("network_interfaces").index(i).attribute(name);
    let routes = interface.get("routes").elements();
    let has = |name: &str| interface.get(name).as_str().is_some();
    let leads_everywhere = routes.iter().any(|route| route.get("to").as_str() == Some(EVERYWHERE));
    let mut found = Vec::new();
    let mut wrong = |path: AttributePath, summary: &str, detail: &str| {
        found.push(Diagnostic::error(summary, format!("{path}: {detail}")).at(path));
    };
    if has("gateway") && leads_everywhere {
        let detail = "gateway is the default route: leave the route to 0.0.0.0/0 out.";
        wrong(at("routes"), "Two default routes", detail);
    }
    let is_declared = has("gateway") || has("ipv6_gateway") || leads_everywhere;
    if is_declared && interface.get("default_route").as_bool() == Some(false) {
        let detail =
            "there is no default route then: leave gateway, ipv6_gateway and the route to 0.0.0.0/0 out.";
        wrong(at("default_route"), "No default route", detail);
    }
    for (n, route) in routes.iter().enumerate() {
        let path = |name: &str| at("routes").index(n).attribute(name);
        let Some(to) = route.get("to").as_str() else { continue };
        if routes[..n].iter().any(|earlier| earlier.get("to").as_str() == Some(to)) {
            wrong(
                path("to"),
                "Two routes to one destination",
                "another route of the interface leads there too.",
            );
        }
        if route.get("via").as_str().is_some_and(|via| via.contains(':') != to.contains(':')) {
            wrong(
                path("via"),
                "A route of two families",
                "it is not of the family of `to`: a route has both of one.",
            );
        }
    }
    found
}

/// The longest name of an interface in Linux.
const MOST_OF_GUEST_NAME: usize = 15;

/// Refuses a name that no guest can give a network card, and one that it would not learn.
fn check_guest_name(config: &Value, interface: &Value, i: usize) -> Option<Diagnostic> {
    let name = interface.get("guest_name").as_str()?;
    let path = AttributePath::root("network_interfaces").index(i).attribute("guest_name");
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
        && name.len() <= MOST_OF_GUEST_NAME
        && name != "lo";
    if !is_name {
        let detail = format!(
            "{path}: {name:?} is not the name of a network card: use a letter, then letters, digits, \"_\", \".\" and \"-\", at most \
             {MOST_OF_GUEST_NAME} characters, and not \"lo\"."
        );
        return Some(Diagnostic::error("Invalid guest_name", detail).at(path));
    }
    if config.get("bootstrap").get("network_config").as_str().is_some() {
        let detail = format!(
            "{path}: `bootstrap.network_config` takes the place of the configuration with this name, so that it would have no effect: \
             leave it out, and use `set-name` there."
        );
        return Some(Diagnostic::error("guest_name beside network_config", detail).at(path));
    }
    None
}

/// The least and the largest amounts that limits accept, as in the definition of VM, and their unit.
const AMOUNTS: [(&str, &str, &str, &str); 2] =
    [("bandwidth", "64k", "1T", "bits a second"), ("burst", "128Ki", "1Gi", "bytes")];

/// Refuses ceilings that limit nothing, or that cannot be enforced.
fn check_limits(limits: &Value, at: &AttributePath) -> Option<Diagnostic> {
    if limits.is_null() || limits.is_unknown() {
        return None;
    }
    let refuse = |name: &str, detail: String| {
        let path = at.clone().attribute(name);
        Some(Diagnostic::error("Invalid limits", format!("{path}: {detail}")).at(path))
    };
    let has = |name: &str| !limits.get(name).is_null();
    let ceilings = ["ingress_bandwidth", "egress_bandwidth", "ingress_packets", "egress_packets"];
    if !ceilings.into_iter().any(has) {
        let detail = format!("{at}: set at least one of {}.", ceilings.join(", "));
        return Some(Diagnostic::error("Invalid limits", detail).at(at.clone()));
    }
    for direction in ["ingress", "egress"] {
        for (what, least, most, unit) in AMOUNTS {
            let name = format!("{direction}_{what}");
            let Some(Ok(amount)) = limits.get(&name).as_str().map(str::parse::<Quantity>) else { continue };
            let bound = |text: &str| Quantity(text.to_owned());
            if amount < bound(least) || amount > bound(most) {
                return refuse(&name, format!("{amount} is not between {least} and {most} {unit}."));
            }
        }
        let (burst, bandwidth) = (format!("{direction}_burst"), format!("{direction}_bandwidth"));
        if limits.get(&burst).is_set() && !has(&bandwidth) {
            return refuse(&burst, format!("a burst exceeds {bandwidth} for a time: set {bandwidth} too."));
        }
    }
    None
}
