//! Refuses addresses that do not fit a network's type, and gateways and ranges outside of it.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use tfplugin6::{AttributePath, Diagnostic, Value};

/// The attributes of one family.
struct Family {
    /// The object with allocation, gateway and range.
    object: &'static str,
    /// The range.
    cidr: &'static str,
    server: &'static str,
}

const IPV4: Family = Family { object: "ipv4", cidr: "cidr", server: "a DHCP server that is not berth's" };
const IPV6: Family = Family { object: "ipv6", cidr: "ipv6_cidr", server: "routers that are not berth's" };

/// A network as it is declared.
struct Declared<'a> {
    config: &'a Value,
    is_bridge: bool,
    found: Vec<Diagnostic>,
}

pub(super) fn check(config: &Value) -> Vec<Diagnostic> {
    let attributes = ["type", "bridge", "ipv4", "ipv6", "cidr", "ipv6_cidr"].map(|name| config.get(name));
    let allocations = [IPV4, IPV6].map(|family| config.get(family.object).get("allocation"));
    if attributes.iter().chain(&allocations).any(|value| value.is_unknown()) {
        return Vec::new();
    }
    let is_bridge = config.get("type").as_str() == Some("Bridge");
    let mut declared = Declared { config, is_bridge, found: Vec::new() };
    declared.check_bridge();
    declared.check_presence();
    declared.check_source();
    declared.check_dhcp();
    declared.check_name_server();
    for family in [IPV4, IPV6] {
        declared.check_family(&family);
        declared.check_within(&family);
    }
    declared.found
}

fn at(name: &str) -> AttributePath {
    AttributePath::root(name)
}

impl Declared<'_> {
    fn wrong(&mut self, at: AttributePath, summary: &str, detail: &str) {
        self.found.push(Diagnostic::error(summary, format!("{at}: {detail}")).at(at));
    }

    fn has(&self, name: &str) -> bool {
        !self.config.get(name).is_null()
    }

    fn has_ipv4_routes(&self) -> bool {
        let is_ipv4 = |route: &Value| route.get("to").as_str().is_some_and(|to| !to.contains(':'));
        self.config.get("routes").elements().iter().any(is_ipv4)
    }

    fn is_external(&self, family: &Family) -> bool {
        self.is_bridge && self.config.get(family.object).get("allocation").as_str() == Some("External")
    }

    fn is_without_addresses(&self) -> bool {
        let is_external = self.is_external(&IPV4) || self.is_external(&IPV6);
        !self.has("cidr") && !self.has("ipv6_cidr") && !self.has_prefix_pool() && !is_external
    }

    /// Whether an overlay takes its prefix from a pool.
    fn has_prefix_pool(&self) -> bool {
        !self.is_bridge && !self.config.get(IPV6.object).get("pool").is_null()
    }

    /// Refuses beside a pool what it replaces.
    fn check_pool(&mut self) {
        let object = self.config.get(IPV6.object);
        let of_object = ["gateway", "range"].map(|name| (at(IPV6.object).attribute(name), object.get(name)));
        let all = of_object.into_iter().chain([(at(IPV6.cidr), self.config.get(IPV6.cidr))]);
        let declared: Vec<AttributePath> =
            all.filter(|(_, value)| value.is_set()).map(|(path, _)| path).collect();
        for path in declared {
            let detail = "with ipv6.pool, the network takes its prefix from the pool: leave it out.";
            self.wrong(path, "Conflicts with the pool of the prefix", detail);
        }
        if object.get("allocation").as_str() == Some("External") {
            let detail = "only a network of type \"Bridge\" has it: leave it out.";
            self.wrong(at(IPV6.object).attribute("allocation"), "Allocation of an overlay network", detail);
        }
        let is_declared = [
            ("source_check", object.get("source_check").as_str() == Some("Learned")),
            ("dhcp", object.get("dhcp").as_bool() == Some(true)),
        ];
        for (name, _) in is_declared.into_iter().filter(|(_, is_declared)| *is_declared) {
            let detail = "only a network of type \"Bridge\" has it: leave it out.";
            let path = at(IPV6.object).attribute(name);
            self.wrong(path, "Address settings of an overlay network", detail);
        }
    }

    fn check_bridge(&mut self) {
        match (self.is_bridge, self.has("bridge")) {
            (true, false) => self.wrong(
                at("bridge"),
                "A bridged network without a bridge",
                "a network of type \"Bridge\" needs the name of a bridge of the hosts, for example { name = \"vmbr0\" }, or of an interface, { interface = \"eth1\" }.",
            ),
            (false, true) => self.wrong(
                at("bridge"),
                "An overlay network with a bridge",
                "only a network of type \"Bridge\" has one. Set type = \"Bridge\", or leave `bridge` out.",
            ),
            _ => {}
        }
    }

    /// A network has addresses of one family at least, and what it declares of IPv4 needs a range.
    fn check_presence(&mut self) {
        if self.is_without_addresses() {
            let detail = "it is needed: a network has `cidr`, `ipv6_cidr` or both, unless ipv4.allocation or ipv6.allocation is \"External\".";
            self.wrong(at("cidr"), "A network without a range", detail);
        } else if !self.has("cidr") && !self.is_external(&IPV4) {
            let has_egress = self.config.get("egress").is_set();
            let declared = [("egress", has_egress), ("routes", self.has_ipv4_routes())];
            for (name, _) in declared.into_iter().filter(|(_, is_declared)| *is_declared) {
                let detail = "it is for IPv4, and the network has no `cidr`: set `cidr`, or leave it out.";
                self.wrong(at(name), "A network without IPv4", detail);
            }
        }
    }

    /// An address that berth gives out is always checked.
    fn check_source(&mut self) {
        for (family, kind, given) in [
            (IPV4, "Lease", "that the network's own DHCP server leases"),
            (IPV6, "Learned", "of the network's own routers"),
        ] {
            let check = self.config.get(family.object).get("source_check").as_str();
            if check == Some(kind) && self.is_bridge && !self.is_external(&family) {
                let object = family.object;
                let detail = format!(
                    "it is for addresses {given}. An address that berth allocates is always checked. Leave it out, or set {object}.allocation = \"External\"."
                );
                let path = at(object).attribute("source_check");
                self.wrong(path, "source_check without external allocation", &detail);
            }
        }
    }

    /// A network with servers of its own needs none of berth's, which would give out other addresses.
    fn check_dhcp(&mut self) {
        for family in [IPV4, IPV6] {
            let object = family.object;
            let is_served = self.config.get(object).get("dhcp").as_bool() == Some(true);
            if self.is_bridge && is_served && self.is_external(&family) {
                let detail = format!(
                    "with external allocation, guests ask {}. Leave it out, or set {object}.allocation = \"Static\".",
                    family.server
                );
                self.wrong(at(object).attribute("dhcp"), "dhcp with external allocation", &detail);
            }
        }
    }

    /// The hosts answer at an address of the network for the names of its VMs.
    fn check_name_server(&mut self) {
        let server = self.config.get(IPV4.object).get("name_server");
        if !self.is_bridge || !server.is_set() {
            return;
        }
        let path = at(IPV4.object).attribute("name_server");
        if self.is_external(&IPV4) {
            let detail = "with external allocation, berth does not know the addresses of names in advance. Leave it out, or set ipv4.allocation = \"Static\".";
            return self.wrong(path, "name_server with external allocation", detail);
        }
        if !self.has("dns_domain") {
            let detail = "it answers for the names of dns_domain. Set that too, or leave it out.";
            return self.wrong(path, "name_server without a domain", detail);
        }
        let range = self.config.get(IPV4.cidr).as_str().and_then(|text| text.parse::<IpNet>().ok());
        let address = server.as_str().and_then(|text| text.parse::<IpAddr>().ok());
        let is_outside = range.zip(address).is_some_and(|(range, address)| !range.contains(&address));
        let is_router = self.config.get(IPV4.object).get("gateway").as_str() == server.as_str();
        if is_outside {
            self.wrong(
                path,
                "name_server outside of the network",
                "it is not within cidr: choose an address of it.",
            );
        } else if is_router && server.as_str().is_some() {
            self.wrong(
                path,
                "name_server of the router",
                "it is the gateway: choose an address that no machine has.",
            );
        }
    }

    fn check_family(&mut self, family: &Family) {
        let object = self.config.get(family.object);
        if object.is_null() {
            return;
        }
        if family.object == IPV6.object && self.has_prefix_pool() {
            self.check_pool();
            return;
        }
        if self.is_bridge && object.get("pool").is_set() {
            let detail = "only an overlay takes its prefix from a pool. On a bridge, the prefix is that of its network: declare `ipv6_cidr`.";
            self.wrong(at(family.object).attribute("pool"), "A pool of a bridged network", detail);
            return;
        }
        if !self.is_bridge {
            let detail = format!(
                "only a network of type \"Bridge\" has it. In an overlay, berth allocates addresses of `{}`: leave it out.",
                family.cidr
            );
            self.wrong(at(family.object), "Address settings of an overlay network", &detail);
            return;
        }
        let parts = ["gateway", "range"].map(|name| (at(family.object).attribute(name), object.get(name)));
        if self.is_external(family) {
            let of_ipv4 = ["dns", "search_domains", "routes"].map(|name| (at(name), self.config.get(name)));
            let of_ipv4 = if self.has_ipv4_routes() { &of_ipv4[..] } else { &of_ipv4[..2] };
            let of_family = if family.object == IPV4.object { of_ipv4 } else { &[] };
            let declared = [(at(family.cidr), self.config.get(family.cidr))];
            let all: Vec<_> = declared.iter().chain(of_family).chain(&parts).cloned().collect();
            for (path, _) in all.into_iter().filter(|(_, value)| value.is_set()) {
                let detail = format!(
                    "with {}.allocation \"External\", guests get it from {}: leave it out.",
                    family.object, family.server
                );
                self.wrong(path, "Conflicts with external allocation", &detail);
            }
        } else if !self.has(family.cidr) && !self.is_without_addresses() {
            let detail = format!(
                "`{}` needs it: without a range, the network has no addresses of this family. Set it, or leave `{}` out.",
                family.object, family.object
            );
            self.wrong(at(family.cidr), "Addresses without a range", &detail);
        }
    }

    fn check_within(&mut self, family: &Family) {
        let cidr = self.config.get(family.cidr).as_str().unwrap_or_default();
        let Ok(range) = cidr.parse::<IpNet>() else { return };
        // A router of IPv6 is often named by its link-local address.
        let is_link_local =
            |address: IpAddr| matches!(address, IpAddr::V6(address) if is_link_local(address));
        for name in ["gateway", "range"] {
            let text = self.config.get(family.object).get(name).as_str().unwrap_or_default();
            let is_outside = |address: &str| {
                let address: Option<IpAddr> = address.parse().ok();
                address.is_some_and(|address| {
                    let may_be_outside = name == "gateway" && is_link_local(address);
                    !may_be_outside && !range.contains(&address)
                })
            };
            if text.split('-').any(is_outside) {
                let detail = format!("{text} is not within {} {cidr}.", family.cidr);
                self.wrong(at(family.object).attribute(name), "An address outside of the network", &detail);
            }
        }
    }
}

pub(super) fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}
