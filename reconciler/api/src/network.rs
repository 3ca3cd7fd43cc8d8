//! Network: a private network of VMs, or a network that hosts already have.

mod ipv6;
mod name_server;

use std::net::{Ipv4Addr, SocketAddrV4};

use ipnet::Ipv4Net;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{BridgeSpec, Conditions, ObjectUser, ResourceName, WireguardPeer};

pub use crate::route::Route;
pub use ipv6::{Ipv6SourceCheck, Ipv6Spec, ipv6_at, ipv6_of_mac, link_local_of_mac};

/// A network, of IPv4, of IPv6 or of both. The VMs of an `Overlay` reach each other and, as `egress` declares, the outside; those of a
/// `Bridge` are machines of the network that the bridge is on.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "Network",
    plural = "networks",
    singular = "network",
    namespaced,
    status = "NetworkStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "A network of VMs.",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Bridge", type_ = "string", priority = 1, json_path = ".spec.bridge.name"),
    printcolumn(name = "Interface", type_ = "string", priority = 1, json_path = ".spec.bridge.interface"),
    printcolumn(name = "VLAN", type_ = "integer", priority = 1, json_path = ".spec.bridge.vlan"),
    printcolumn(name = "CIDR", type_ = "string", json_path = ".spec.cidr"),
    printcolumn(name = "IPv6", type_ = "string", priority = 1, json_path = ".spec.ipv6CIDR"),
    printcolumn(name = "MTU", type_ = "integer", json_path = ".status.mtu"),
    printcolumn(name = "VNI", type_ = "integer", priority = 1, json_path = ".status.vni"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.cidr) == has(oldSelf.cidr) && (!has(self.cidr) || self.cidr == oldSelf.cidr)").message("cidr cannot change: addresses are given out; create another Network").field_path(".cidr"),
    validation = Rule::new("has(self.ipv6CIDR) == has(oldSelf.ipv6CIDR) && (!has(self.ipv6CIDR) || self.ipv6CIDR == oldSelf.ipv6CIDR || (isCIDR(self.ipv6CIDR) && isCIDR(oldSelf.ipv6CIDR) && cidr(self.ipv6CIDR) == cidr(oldSelf.ipv6CIDR)))").message("ipv6CIDR cannot change: addresses are given out; create another Network").field_path(".ipv6CIDR"),
    validation = Rule::new("(has(self.type) ? self.type : 'Overlay') == (has(oldSelf.type) ? oldSelf.type : 'Overlay')").message("type cannot change: VMs are on it; create another Network").field_path(".type"),
    validation = Rule::new("!has(self.bridge) || !has(oldSelf.bridge) || (has(self.bridge.name) == has(oldSelf.bridge.name) && (!has(self.bridge.name) || self.bridge.name == oldSelf.bridge.name) && has(self.bridge.interface) == has(oldSelf.bridge.interface) && (!has(self.bridge.interface) || self.bridge.interface == oldSelf.bridge.interface) && has(self.bridge.vlan) == has(oldSelf.bridge.vlan) && (!has(self.bridge.vlan) || self.bridge.vlan == oldSelf.bridge.vlan))").message("bridge cannot change: VMs are on it; create another Network").field_path(".bridge"),
    validation = Rule::new("(has(self.ipv4) && has(self.ipv4.allocation) ? self.ipv4.allocation : 'Static') == (has(oldSelf.ipv4) && has(oldSelf.ipv4.allocation) ? oldSelf.ipv4.allocation : 'Static')").message("ipv4.allocation cannot change: VMs have their addresses by it; create another Network").field_path(".ipv4"),
    validation = Rule::new("has(self.bridge) == (has(self.type) && self.type == 'Bridge')").message("bridge is that of a Network of type Bridge: it needs one, and no other type has one").field_path(".bridge"),
    validation = Rule::new("!has(self.ipv4) || (has(self.type) && self.type == 'Bridge')").message("ipv4 is for a Network of type Bridge: in an Overlay, berth gives out the addresses of cidr by DHCP").field_path(".ipv4"),
    validation = Rule::new("(has(self.dhcp4) ? self.dhcp4 : true) == (has(oldSelf.dhcp4) ? oldSelf.dhcp4 : true)").message("dhcp4 cannot change: guests are configured by it; create another Network").field_path(".dhcp4"),
    validation = Rule::new("(has(self.dhcp6) ? self.dhcp6 : true) == (has(oldSelf.dhcp6) ? oldSelf.dhcp6 : true)").message("dhcp6 cannot change: guests are configured by it; create another Network").field_path(".dhcp6"),
    validation = Rule::new("(has(self.ipv6Autoconfiguration) ? self.ipv6Autoconfiguration : false) == (has(oldSelf.ipv6Autoconfiguration) ? oldSelf.ipv6Autoconfiguration : false)").message("ipv6Autoconfiguration cannot change: VMs have their addresses by it; create another Network").field_path(".ipv6Autoconfiguration"),
    validation = Rule::new("!has(self.ipv6Autoconfiguration) || !self.ipv6Autoconfiguration || !(has(self.type) && self.type == 'Bridge')").message("ipv6Autoconfiguration is for a Network of type Overlay: on a Bridge, ipv6.allocation External leaves IPv6 to the routers of its network").field_path(".ipv6Autoconfiguration"),
    validation = Rule::new("!has(self.ipv6Autoconfiguration) || !self.ipv6Autoconfiguration || has(self.ipv6CIDR)").message("ipv6Autoconfiguration needs ipv6CIDR").field_path(".ipv6Autoconfiguration"),
    validation = Rule::new("!has(self.ipv6Autoconfiguration) || !self.ipv6Autoconfiguration || !has(self.dhcp6)").message("with ipv6Autoconfiguration there is no DHCPv6 server that gives out addresses: leave dhcp6 out").field_path(".dhcp6"),
    validation = Rule::new("(has(self.ipv6PrivacyAddresses) ? self.ipv6PrivacyAddresses : false) == (has(oldSelf.ipv6PrivacyAddresses) ? oldSelf.ipv6PrivacyAddresses : false)").message("ipv6PrivacyAddresses cannot change: guests have their addresses by it; create another Network").field_path(".ipv6PrivacyAddresses"),
    validation = Rule::new("!has(self.ipv6PrivacyAddresses) || !self.ipv6PrivacyAddresses || (has(self.ipv6Autoconfiguration) && self.ipv6Autoconfiguration)").message("ipv6PrivacyAddresses needs ipv6Autoconfiguration: guests choose the identifiers of addresses that they form").field_path(".ipv6PrivacyAddresses"),
    validation = Rule::new("!has(self.ipv6PrivacyAddresses) || !self.ipv6PrivacyAddresses || !has(self.securityGroups) || self.securityGroups.size() == 0").message("securityGroups match only the addresses that berth allocates: leave them out, or ipv6PrivacyAddresses").field_path(".securityGroups"),
    validation = Rule::new("!has(self.dhcp4) || !(has(self.type) && self.type == 'Bridge')").message("dhcp4 is for a Network of type Overlay: on a Bridge, ipv4.allocation declares it").field_path(".dhcp4"),
    validation = Rule::new("!has(self.dhcp6) || !(has(self.type) && self.type == 'Bridge')").message("dhcp6 is for a Network of type Overlay: on a Bridge, ipv6.allocation declares it").field_path(".dhcp6"),
    validation = Rule::new("!has(self.egress) || !(has(self.type) && self.type == 'Bridge')").message("egress is for a Network of type Overlay: on a Bridge, guests are machines of its network").field_path(".egress"),
    validation = Rule::new("!has(self.egress) || has(self.cidr)").message("egress is that of IPv4, and needs cidr: the way out of IPv6 is ipv6Egress").field_path(".egress"),
    validation = Rule::new("(has(self.ipv6) && has(self.ipv6.allocation) ? self.ipv6.allocation : 'Static') == (has(oldSelf.ipv6) && has(oldSelf.ipv6.allocation) ? oldSelf.ipv6.allocation : 'Static')").message("ipv6.allocation cannot change: VMs have their addresses by it; create another Network").field_path(".ipv6"),
    validation = Rule::new("!has(self.ipv6) || (has(self.type) && self.type == 'Bridge') || (has(self.ipv6.pool) && !has(self.ipv6.gateway) && !has(self.ipv6.range) && (!has(self.ipv6.allocation) || self.ipv6.allocation == 'Static'))").message("ipv6 is for a Network of type Bridge, except for ipv6.pool: in an Overlay, berth gives out the addresses of ipv6CIDR by DHCPv6").field_path(".ipv6"),
    validation = Rule::new("!has(self.ipv6) || !has(self.ipv6.pool) || (!has(self.ipv6CIDR) && !(has(self.type) && self.type == 'Bridge'))").message("ipv6.pool gives an Overlay its prefix: leave ipv6CIDR out, and declare ipv6CIDR on a Bridge").field_path(".ipv6"),
    validation = Rule::new("(has(self.ipv6) && has(self.ipv6.pool) ? self.ipv6.pool : '') == (has(oldSelf.ipv6) && has(oldSelf.ipv6.pool) ? oldSelf.ipv6.pool : '')").message("ipv6.pool cannot change: addresses are given out; create another Network").field_path(".ipv6"),
    validation = Rule::new("!has(self.ipv6) || has(self.ipv6CIDR) || has(self.ipv6.pool) || (has(self.ipv6.allocation) && self.ipv6.allocation == 'External')").message("ipv6 needs ipv6CIDR, unless ipv6.allocation is External").field_path(".ipv6"),
    validation = Rule::new("!(has(self.ipv6) && has(self.ipv6.allocation) && self.ipv6.allocation == 'External') || !(has(self.ipv6CIDR) || has(self.ipv6.gateway) || has(self.ipv6.range))").message("with ipv6.allocation External, guests get everything of IPv6 from routers that are not berth's: leave ipv6CIDR, ipv6.gateway and ipv6.range out").field_path(".ipv6"),
    validation = Rule::new("!has(self.ipv6) || !has(self.ipv6.gateway) || !has(self.ipv6CIDR) || !isCIDR(self.ipv6CIDR) || self.ipv6.gateway.matches('^fe[89ab][0-9a-f]:') || (isIP(self.ipv6.gateway) && cidr(self.ipv6CIDR).containsIP(self.ipv6.gateway))").message("ipv6.gateway must be an address of ipv6CIDR, or a link-local one such as fe80::1").field_path(".ipv6"),
    validation = Rule::new("!has(self.ipv6) || !has(self.ipv6.range) || !has(self.ipv6CIDR) || !isCIDR(self.ipv6CIDR) || self.ipv6.range.split('-').all(a, isIP(a) && cidr(self.ipv6CIDR).containsIP(a))").message("ipv6.range must be two addresses of ipv6CIDR, such as 2001:db8:7::1000-2001:db8:7::1fff").field_path(".ipv6"),
    validation = Rule::new("!has(self.ipv6Egress) || self.ipv6Egress == 'None' || !(has(self.type) && self.type == 'Bridge')").message("ipv6Egress is for a Network of type Overlay: on a Bridge, guests are machines of its network").field_path(".ipv6Egress"),
    validation = Rule::new("!has(self.isolated) || !self.isolated || !(has(self.type) && self.type == 'Bridge')").message("isolated is for a Network of type Overlay: on a Bridge, guests of different hosts reach each other by the network of the hosts, whose switch can isolate them").field_path(".isolated"),
    validation = Rule::new("(has(self.encryption) ? self.encryption : 'None') == (has(oldSelf.encryption) ? oldSelf.encryption : 'None')").message("encryption cannot change: hosts would send unencrypted packets until all of them have changed; create another Network").field_path(".encryption"),
    validation = Rule::new("!has(self.encryption) || self.encryption == 'None' || !(has(self.type) && self.type == 'Bridge')").message("encryption is for a Network of type Overlay: on a Bridge, packets between hosts are those of the network of the hosts").field_path(".encryption"),
    validation = Rule::new("!has(self.dnsDomain) || !(has(self.type) && self.type == 'Bridge') || (has(self.ipv4) && has(self.ipv4.nameServer))").message("dnsDomain of a Network of type Bridge needs ipv4.nameServer: the address at which its hosts answer").field_path(".dnsDomain"),
    validation = Rule::new("!has(self.dnsDomain) || !has(self.searchDomains) || self.dnsDomain.size() + self.searchDomains.join('').size() <= 100").message("dnsDomain is the first of the search domains, and they must have at most 100 characters in total: more does not fit into a packet of DHCP").field_path(".dnsDomain"),
    validation = Rule::new("!has(self.ipv6Egress) || self.ipv6Egress == 'None' || has(self.ipv6CIDR) || (has(self.ipv6) && has(self.ipv6.pool))").message("ipv6Egress needs ipv6CIDR or ipv6.pool").field_path(".ipv6Egress"),
    validation = Rule::new("has(self.cidr) || has(self.ipv6CIDR) || (has(self.ipv6) && has(self.ipv6.pool)) || (has(self.ipv4) && has(self.ipv4.allocation) && self.ipv4.allocation == 'External') || (has(self.ipv6) && has(self.ipv6.allocation) && self.ipv6.allocation == 'External')").message("cidr is missing: a Network has cidr, ipv6CIDR or both, unless ipv4.allocation or ipv6.allocation is External").field_path(".cidr"),
    validation = Rule::new("has(self.cidr) || !has(self.ipv4) || !(has(self.ipv4.gateway) || has(self.ipv4.range))").message("ipv4.gateway and ipv4.range need cidr").field_path(".ipv4"),
    validation = Rule::new("has(self.cidr) || !has(self.routes) || self.routes.all(r, r.to.contains(':'))").message("these routes are those of IPv4, and need cidr").field_path(".routes"),
    validation = Rule::new("has(self.ipv6CIDR) || !has(self.routes) || !self.routes.exists(r, r.to.contains(':'))").message("routes of IPv6 need ipv6CIDR").field_path(".routes"),
    validation = Rule::new("!has(self.routes) || !has(self.ipv6CIDR) || !isCIDR(self.ipv6CIDR) || self.routes.all(r, !r.via.contains(':') || r.via.matches('^fe[89ab][0-9a-f]:') || (isIP(r.via) && cidr(self.ipv6CIDR).containsIP(r.via)))").message("via of each route of IPv6 must be an address of ipv6CIDR, or a link-local one such as fe80::9").field_path(".routes"),
    validation = Rule::new("!(has(self.ipv4) && has(self.ipv4.allocation) && self.ipv4.allocation == 'External') || !(has(self.cidr) || has(self.ipv4.gateway) || has(self.ipv4.range) || (has(self.dns) && self.dns.size() > 0) || (has(self.searchDomains) && self.searchDomains.size() > 0) || (has(self.routes) && self.routes.exists(r, !r.to.contains(':'))))").message("with ipv4.allocation External, guests get everything of IPv4 from a DHCP server that is not berth's: leave cidr, dns, searchDomains, IPv4 routes, ipv4.gateway and ipv4.range out").field_path(".ipv4"),
    validation = Rule::new("!has(self.ipv4) || !has(self.ipv4.sourceCheck) || self.ipv4.sourceCheck == 'None' || (has(self.ipv4.allocation) && self.ipv4.allocation == 'External')").message("ipv4.sourceCheck Lease needs ipv4.allocation External: an address that berth gives out is always checked").field_path(".ipv4"),
    validation = Rule::new("!has(self.ipv6) || !has(self.ipv6.dhcp) || !self.ipv6.dhcp || (has(self.type) && self.type == 'Bridge' && has(self.ipv6CIDR) && !(has(self.ipv6.allocation) && self.ipv6.allocation == 'External'))").message("ipv6.dhcp gives out the addresses that berth allocates on a Bridge: it needs ipv6CIDR and ipv6.allocation Static; with External, the network's own routers configure guests").field_path(".ipv6"),
    validation = Rule::new("!has(self.ipv6) || !has(self.ipv6.sourceCheck) || self.ipv6.sourceCheck == 'None' || (has(self.ipv6.allocation) && self.ipv6.allocation == 'External')").message("ipv6.sourceCheck Learned needs ipv6.allocation External: an address that berth gives out is always checked").field_path(".ipv6"),
    validation = Rule::new("!has(self.routes) || !has(self.cidr) || !isCIDR(self.cidr) || self.routes.all(r, r.via.contains(':') || (isIP(r.via) && cidr(self.cidr).containsIP(r.via)))").message("via of each route of IPv4 must be an address of cidr").field_path(".routes"),
    validation = Rule::new("!has(self.ipv4) || !has(self.ipv4.dhcp) || !self.ipv4.dhcp || (has(self.cidr) && !(has(self.ipv4.allocation) && self.ipv4.allocation == 'External'))").message("ipv4.dhcp gives out the addresses that berth allocates: it needs cidr and ipv4.allocation Static; with External, the network has a DHCP server of its own").field_path(".ipv4"),
    validation = Rule::new("!has(self.ipv4) || !has(self.ipv4.nameServer) || (has(self.dnsDomain) && has(self.cidr) && !(has(self.ipv4.allocation) && self.ipv4.allocation == 'External'))").message("ipv4.nameServer answers questions about the names of dnsDomain: it needs dnsDomain, cidr and ipv4.allocation Static").field_path(".ipv4"),
    validation = Rule::new("!has(self.ipv4) || !has(self.ipv4.nameServer) || !has(self.cidr) || !isCIDR(self.cidr) || (isIP(self.ipv4.nameServer) && cidr(self.cidr).containsIP(self.ipv4.nameServer) && !(has(self.ipv4.gateway) && self.ipv4.gateway == self.ipv4.nameServer))").message("ipv4.nameServer must be an address of cidr other than ipv4.gateway").field_path(".ipv4"),
    validation = Rule::new("!has(self.routes) || !has(self.ipv4) || !has(self.ipv4.gateway) || self.routes.all(r, r.to != '0.0.0.0/0')").message("ipv4.gateway is the default route: leave the route to 0.0.0.0/0 out").field_path(".routes"),
    validation = Rule::new("!has(self.ipv4) || !has(self.ipv4.gateway) || !has(self.cidr) || !isCIDR(self.cidr) || (isIP(self.ipv4.gateway) && cidr(self.cidr).containsIP(self.ipv4.gateway))").message("ipv4.gateway must be an address of cidr").field_path(".ipv4"),
    validation = Rule::new("!has(self.securityGroups) || self.securityGroups.size() == 0 || !(has(self.ipv6) && has(self.ipv6.allocation) && self.ipv6.allocation == 'External')").message("securityGroups need the addresses that berth gives out: leave them out, or set ipv6.allocation to Static").field_path(".securityGroups"),
    validation = Rule::new("!has(self.securityGroups) || self.securityGroups.size() == 0 || !(has(self.ipv4) && has(self.ipv4.allocation) && self.ipv4.allocation == 'External') || (has(self.ipv4.sourceCheck) && self.ipv4.sourceCheck == 'Lease')").message("securityGroups need addresses that are checked: leave them out, or set ipv4.sourceCheck to Lease").field_path(".securityGroups"),
    validation = Rule::new("!has(self.ipv4) || !has(self.ipv4.range) || !has(self.cidr) || !isCIDR(self.cidr) || self.ipv4.range.split('-').all(a, isIP(a) && cidr(self.cidr).containsIP(a))").message("ipv4.range must be two addresses of cidr, such as 192.0.2.50-192.0.2.99").field_path(".ipv4")
)]
pub struct NetworkSpec {
    /// `Overlay` (default): a private network that berth makes, between all hosts, with NAT to the outside. `Bridge`: a network that
    /// hosts already have, by a Linux bridge or an interface of theirs; VMs are placed only on hosts that have it. A `Bridge` is declared in the
    /// namespace `berth-shared`, for the VMs of all namespaces. Cannot change.
    #[serde(default, rename = "type")]
    pub network_type: NetworkType,
    /// The bridge of a Network of type `Bridge`: `name`, a bridge that hosts have, or `interface` and possibly `vlan`, over which berth
    /// makes one. Cannot change, except for `trunkVLANs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<BridgeSpec>,
    /// How VMs on a Network of type `Bridge` get their IPv4 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Spec>,
    /// How VMs on a Network of type `Bridge` get their IPv6 addresses, or with `pool` the IPPool that an `Overlay` takes its prefix from.
    /// Left out together with `ipv6CIDR`: they have link-local ones only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Spec>,
    /// The IPv4 range, for example `10.77.0.0/16`. In an `Overlay`, the first address is the gateway. Loopback, link-local, multicast and
    /// reserved ranges are refused; so is one that overlaps another Network's or one that a host uses, and outside of
    /// `berth-shared` one that is larger than /16 or not among those the administrator allows. For a `Bridge`, the range of the
    /// network that is there, which hosts may use; left out if `ipv4.allocation` is `External`. Left out with `ipv6CIDR` or with
    /// `ipv6.allocation` `External`: the Network has no IPv4. Cannot change.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 18))]
    #[x_kube(validation = Rule::new("!(self.matches('^(0|127|22[4-9]|23[0-9]|24[0-9]|25[0-5])[.]') || self.startsWith('169.254.') || (isCIDR(self) && cidr(self).containsIP('169.254.0.1')))").message("is a special range (this network, loopback, link-local, multicast or reserved): choose a private one such as 10.77.0.0/16"))]
    #[x_kube(validation = Rule::new("isCIDR(self) && cidr(self).ip().family() == 4 && cidr(self).masked() == cidr(self) && cidr(self).prefixLength() >= 8 && cidr(self).prefixLength() <= 29").message("must be an IPv4 range such as 10.77.0.0/16, with no host bits set and a prefix of 8 to 29"))]
    pub cidr: String,
    /// The way of IPv4 packets of an `Overlay`'s guests to the outside. `Masquerade` (default): under the address of their host, or of the
    /// PublicIP that leads to them. `Routed`: unchanged, for a `cidr` that the routers outside route to the host of each VM. `None`:
    /// they are rejected; public addresses still lead to the guests. From the outside, guests receive the answers to what they
    /// send. Applied live: established connections go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
    /// The IPv6 prefix, for example `fd00:60::/64`: a /64 of unique local (`fc00::/7`) or global (`2000::/3`) addresses, in lower case.
    /// Each interface then has an address of it, beside its IPv4 address if there is `cidr`. In an `Overlay`, the gateway is the first
    /// one, `fd00:60::1`, and a prefix of another Network, or one that a host uses, is refused. For a `Bridge`, the prefix of the
    /// network that is there, which hosts may use; left out if `ipv6.allocation` is `External`. Default: none, and guests have
    /// link-local IPv6 addresses only. Cannot change.
    #[serde(default, skip_serializing_if = "String::is_empty", rename = "ipv6CIDR")]
    #[schemars(length(max = 43))]
    #[x_kube(validation = Rule::new("self.matches('^(f[cd][0-9a-f]{2}|[23][0-9a-f]{3}):')").message("must be of fc00::/7 (unique local) or 2000::/3 (global), in lower case, such as fd00:60::/64"))]
    #[x_kube(validation = Rule::new("!self.startsWith('fd62:6572:7468:')").message("is within fd62:6572:7468::/48, which hosts use for encrypted packets: choose another prefix"))]
    #[x_kube(validation = Rule::new("isCIDR(self) && cidr(self).ip().family() == 6 && cidr(self).masked() == cidr(self) && cidr(self).prefixLength() == 64").message("must be an IPv6 prefix such as fd00:60::/64, with no host bits set and a length of 64"))]
    pub ipv6_cidr: String,
    /// The way of IPv6 packets of guests to the outside, like NAT for IPv4: `None` (default): there is none, and guests get no default
    /// route. `Masquerade`: under the address of their host. `Routed`: unchanged, for a prefix that the routers outside route to the
    /// host of each VM. From the outside, guests receive the answers to what they send, and, unless it is `None`, what comes by their
    /// public IPv6 addresses. A change reaches running guests within minutes.
    #[serde(default, rename = "ipv6Egress")]
    pub ipv6_egress: Egress,
    /// Whether the guests of an `Overlay` form their IPv6 addresses themselves (SLAAC): each of the prefix and its MAC address (EUI-64), by
    /// router advertisements and without DHCPv6. That address is the one of the interface in the VM's status, and unless
    /// `ipv6PrivacyAddresses` is true the only one of the prefix that it may send from. Default false: each interface gets one by DHCPv6.
    /// Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6Autoconfiguration")]
    pub ipv6_autoconfiguration: Option<bool>,
    /// Whether guests with `ipv6Autoconfiguration` may also use addresses whose identifiers they choose: stable private (RFC 7217) and
    /// temporary (RFC 8981) ones. The first interface that claims an address by neighbour discovery has it, up to 16 at a time, until it
    /// has not used it for two hours; the address of another interface cannot be claimed. `status.observedAddresses` of the VM lists
    /// them, and names of `dnsDomain` lead to them. Interfaces with security groups have only the address of their MAC address. Default
    /// false. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6PrivacyAddresses")]
    pub ipv6_privacy_addresses: Option<bool>,
    /// Addresses of the name servers that guests get, of IPv4 by DHCP and of IPv6 by DHCPv6 in an `Overlay`, and by cloud-init on a
    /// `Bridge`. Left out: in an `Overlay` the gateway, which asks the host's, and on a `Bridge` none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), inner(length(max = 39), regex(pattern = r"^[0-9a-f.:]+$")))]
    #[x_kube(validation = Rule::new("self.all(a, isIP(a))").message("must be addresses, such as 9.9.9.9 or 2620:fe::fe"))]
    pub dns: Vec<String>,
    /// The domain of the names of VMs, for example `app.internal`: the name server at the gateway of an `Overlay`, or at `ipv4.nameServer`
    /// of a `Bridge`, knows the VM `web` as `web.app.internal`, in `berth-shared` as `web.NAMESPACE.app.internal`, and its addresses by that name. Guests get the
    /// domain as the first of their search domains, except in `berth-shared`. The name server asks no other one about names of this
    /// domain. At least two labels and at most 50 characters, 100 with the search domains. Default: none, and VMs have no names. A
    /// change reaches the name server within seconds, and a running guest when it renews its lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 50),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)+$")
    )]
    #[x_kube(validation = Rule::new("!self.matches('[.](local|localhost|arpa|[0-9]+)$')").message("must not end with local (of multicast DNS), localhost, arpa or a number: choose a domain such as app.internal"))]
    pub dns_domain: Option<String>,
    /// Domains in which guests look up names, in this order, for example `example.org`, by DHCP in an `Overlay` and by cloud-init on a
    /// `Bridge`: at most 6, with 100 characters in total, which fit into a packet of DHCP. Default: none. A change reaches a running
    /// guest of an `Overlay` when it renews its lease.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 6),
        inner(
            length(max = 100),
            regex(pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$")
        )
    )]
    #[x_kube(validation = Rule::new("self.join('').size() <= 100").message("the domains must have at most 100 characters in total: more does not fit into a packet of DHCP"))]
    #[x_kube(validation = Rule::new("self.all(d, self.filter(e, e == d).size() == 1)").message("a domain can be named once"))]
    pub search_domains: Vec<String>,
    /// Routes that guests get beside that of the gateway, at most 16: of IPv4 by DHCP in an `Overlay` and by cloud-init on a `Bridge`, of
    /// IPv6 by cloud-init. Default: none. A change of IPv4 reaches a running guest of an `Overlay` when it renews its lease, and of IPv6
    /// guests that are created afterwards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.all(r, self.filter(s, s.to == r.to).size() == 1)").message("a destination can have one route only"))]
    pub routes: Vec<Route>,
    /// Whether the DHCP server of an `Overlay` gives guests their IPv4 addresses. `false`: they get the same addresses by their
    /// cloud-init network configuration, and the DHCP server gives no leases; an interface can declare otherwise. Default true. Cannot
    /// change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp4: Option<bool>,
    /// Whether the DHCPv6 server of an `Overlay` gives guests their IPv6 addresses, as `dhcp4`. Default true. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp6: Option<bool>,
    /// Whether the VMs of an `Overlay` are kept from each other: they reach their gateway and what is outside, are reached from there by
    /// public addresses, and send nothing to each other, on one host or several. Default false. Applied live, also to established
    /// connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolated: Option<bool>,
    /// Names of SecurityGroups, in the namespace of each VM, that the interfaces with no `securityGroups` of their own have, at most 8.
    /// An interface that names groups has those and none of these. One with `allowedAddresses` cannot be on such a Network. Default: none.
    /// Applied live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(validation = Rule::new("self.all(g, self.filter(h, h == g).size() == 1)").message("a security group can be named once"))]
    pub security_groups: Vec<ResourceName>,
    /// Whether the packets of an `Overlay` are encrypted between hosts: `None` (default), or `WireGuard`. With `WireGuard`, VMs are placed
    /// only on hosts that can encrypt (`status.wireguard` of the Host), and no packet of the Network leaves a host unencrypted for another
    /// one, nor is one accepted. Packets to the outside are not encrypted. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// The largest packet, in bytes; guests get it by DHCP. Default 1500, or with several hosts what fits through the
    /// tunnels between them: 50 less than their interfaces carry, 130 less with `encryption`. One that does not fit is lowered, and the
    /// condition `MTUFits` is False. On a `Bridge`, a host whose bridge or interface carries less starts none of its VMs. A change reaches guests at their next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 576, max = 9216))]
    pub mtu: Option<i64>,
}

/// The type of a Network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NetworkType {
    #[default]
    Overlay,
    Bridge,
}

/// The encryption of a Network's packets between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Encryption {
    #[default]
    None,
    WireGuard,
}

/// The way of guests' packets to the outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Egress {
    #[default]
    None,
    Masquerade,
    Routed,
}

/// How VMs on a bridge of hosts get their IPv4 addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipv4Spec {
    /// `Static` (default): berth gives each interface an address of the range, and the guest gets it by its cloud-init network
    /// configuration. `External`: the guest asks the network's own DHCP server; the VM's status has its address once the guest uses
    /// it. Cannot change.
    #[serde(default)]
    pub allocation: Allocation,
    /// The address of the network's router, which guests use as default gateway and no VM gets. Left out: guests have no default
    /// route by this network. A change reaches guests that are created afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15), regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$"))]
    pub gateway: Option<String>,
    /// The addresses that berth gives out, first and last, for example `192.0.2.50-192.0.2.99`. No other machine of the network and
    /// no DHCP server may use them. Default: all of `cidr` but the first and last address, the gateway and those of hosts. A change
    /// affects interfaces that get an address afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 31),
        regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}-[0-9]{1,3}(\.[0-9]{1,3}){3}$")
    )]
    pub range: Option<String>,
    /// With `allocation` `External`: the IPv4 addresses that a guest may send from. `None` (default): any. `Lease`: the one that the
    /// network's DHCP server has leased to its interface, which the host reads from the server's answers; until then a guest sends
    /// nothing but requests of DHCP and ARP probes. Security groups need `Lease`. A change reaches running guests at once; one whose
    /// lease its host has not seen is cut off until it asks for a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_check: Option<SourceCheck>,
    /// With `allocation` `Static`: whether each host also gives its own VMs their addresses by DHCP, for guests without cloud-init.
    /// Machines that are not VMs of the host get no answer, and requests of its VMs reach no other DHCP server. Default: false. A change
    /// reaches running guests when they ask next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp: Option<bool>,
    /// With `dnsDomain`: the address at which each host answers questions of its own VMs, and of the host, about the names of the
    /// network's VMs. No VM gets it, and no machine of the network may have it, which sees nothing of it. Guests use it as their name
    /// server, unless `dns` declares others. A change reaches guests as that of `dns`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15), regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$"))]
    pub name_server: Option<String>,
}

/// The IPv4 addresses that guests may send from where others give them out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SourceCheck {
    #[default]
    None,
    Lease,
}

/// The origin of the addresses of VMs on a bridge, of one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Allocation {
    #[default]
    Static,
    External,
}

impl Network {
    /// The bridge of hosts that it is; None for an overlay.
    pub fn host_bridge(&self) -> Option<&BridgeSpec> {
        self.spec.bridge.as_ref().filter(|_| self.spec.network_type == NetworkType::Bridge)
    }

    /// Whether a DHCP server that is not berth's gives out its IPv4 addresses.
    pub fn is_external(&self) -> bool {
        let external = self.spec.ipv4.as_ref().is_some_and(|ipv4| ipv4.allocation == Allocation::External);
        external && self.host_bridge().is_some()
    }

    /// Whether its hosts give their guests' IPv4 addresses out by DHCP, on a bridge.
    pub fn serves_dhcp(&self) -> bool {
        let declared = self.spec.ipv4.as_ref().is_some_and(|ipv4| ipv4.dhcp == Some(true));
        declared && self.host_bridge().is_some() && !self.is_external()
    }

    /// Whether its guests may send only from the IPv4 addresses that its DHCP server, which is not berth's, has leased to them.
    pub fn checks_leases(&self) -> bool {
        let check = self.spec.ipv4.as_ref().and_then(|ipv4| ipv4.source_check);
        check == Some(SourceCheck::Lease) && self.is_external()
    }

    /// Its IPv4 range, if that is known.
    pub fn range(&self) -> Option<Ipv4Net> {
        self.spec.cidr.parse().ok()
    }

    /// The address of its router: in an overlay the first of the range.
    pub fn gateway(&self) -> Option<Ipv4Addr> {
        if self.host_bridge().is_some() {
            return self.spec.ipv4.as_ref()?.gateway.as_ref()?.parse().ok();
        }
        self.range()?.hosts().next()
    }

    /// Whether its VMs do not reach each other.
    pub fn is_isolated(&self) -> bool {
        self.spec.isolated == Some(true) && self.host_bridge().is_none()
    }

    /// Whether its packets between hosts are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.spec.encryption == Some(Encryption::WireGuard) && self.host_bridge().is_none()
    }

    /// Whether it is an overlay whose DHCP server gives no IPv4 address to an interface that declares this.
    pub fn is_without_dhcp4(&self, of_interface: Option<bool>) -> bool {
        self.host_bridge().is_none() && of_interface.or(self.spec.dhcp4) == Some(false)
    }

    /// Whether it is an overlay whose DHCPv6 server gives no IPv6 address to an interface that declares this.
    pub fn is_without_dhcp6(&self, of_interface: Option<bool>) -> bool {
        self.host_bridge().is_none() && of_interface.or(self.spec.dhcp6) == Some(false)
    }

    /// Whether its VMs have IPv4 addresses, by berth or by another DHCP server.
    pub fn has_ipv4(&self) -> bool {
        self.is_external() || self.range().is_some()
    }

    /// The first and the last address for VMs, the gateway's possibly among them.
    pub fn pool(&self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        let range = self.range()?;
        let within = (range.hosts().next()?, range.hosts().next_back()?);
        let declared = self.spec.ipv4.as_ref().and_then(|ipv4| ipv4.range.as_deref());
        let Some(declared) = declared.filter(|_| self.host_bridge().is_some()) else { return Some(within) };
        let (first, last) = declared.split_once('-')?;
        let (first, last): (Ipv4Addr, Ipv4Addr) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last).then(|| (first.max(within.0), last.min(within.1)))
    }

    /// The name of its bridge on each host, once it has an identifier.
    pub fn bridge_name(&self) -> Option<String> {
        let vni = self.status.as_ref()?.vni.filter(|vni| (1..1 << 24).contains(vni))?;
        Some(format!("bth-{vni:06x}"))
    }

    /// The MAC address of its gateway, the same on each host.
    pub fn gateway_mac(&self) -> Option<String> {
        Some(bridge_mac(&self.bridge_name()?).map(|byte| format!("{byte:02x}")).join(":"))
    }
}

/// The MAC address of a bridge of this name.
pub fn bridge_mac(name: &str) -> [u8; 6] {
    let hash = Sha256::digest(name.as_bytes());
    [0x52, 0x54, 0x00, hash[0], hash[1], hash[2]]
}

/// The observed state of a Network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`; `MTUFits` and `TunnelsEncrypted`, only while they are `False`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// Its identifier: in an `Overlay` that of VXLAN, which separates its packets between hosts from those of other networks. Given
    /// once, used by no other Network. A Network that is refused has none, and no VM is bound that needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub vni: Option<i64>,
    /// The largest packet, in bytes, that guests are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<i64>,
    /// With `ipv6.pool`: the prefix that it has from that pool.
    #[serde(default, rename = "ipv6CIDR", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 43))]
    pub ipv6_cidr: String,
    /// The hosts it is on, by name: those with a VM of it that have reported their address, and with `encryption` their key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    pub hosts: Vec<NetworkHost>,
    /// The names and addresses of its VMs, by name, for the hosts; empty without `dnsDomain`. VMs beyond them have no names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096))]
    pub names: Vec<NetworkName>,
    /// The addresses of an isolated Network under which hosts forward connections to public addresses to VMs on other hosts, which let
    /// these pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), inner(length(max = 39)))]
    pub relay_addresses: Vec<String>,
    /// At most four of the VMs that are on it or are to be. A deleted Network stays until nothing uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}

/// A host that has VMs of a Network.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkHost {
    /// The Host's name.
    pub name: String,
    /// The address the other hosts send the network's packets to; with `encryption` the one within WireGuard.
    pub address: String,
    /// With `encryption`: its key and where it receives encrypted packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wireguard: Option<WireguardPeer>,
}

impl NetworkHost {
    /// The IPv4 address of the host itself, also if the packets of the network go to the one within WireGuard.
    pub fn host_address(&self) -> Option<Ipv4Addr> {
        match &self.wireguard {
            Some(peer) => peer.endpoint.parse::<SocketAddrV4>().ok().map(|endpoint| *endpoint.ip()),
            None => self.address.parse().ok(),
        }
    }
}

/// The maximum number of entries in `status.names`.
pub const MOST_NAMES: usize = 4096;

/// The maximum number of entries in `status.relayAddresses`.
pub const MOST_RELAYS: usize = 1024;

/// The name of a VM in the domain of a Network, and the addresses of one of its interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkName {
    /// The name without the domain: `web`, or `web.NAMESPACE` in `berth-shared`.
    #[schemars(length(max = 127))]
    pub name: String,
    /// The IPv4 address; empty in a Network without IPv4, and beside a further IPv6 address.
    #[schemars(length(max = 15))]
    pub address: String,
    /// The IPv6 address, if the Network has a prefix.
    #[serde(default, skip_serializing_if = "String::is_empty", rename = "ipv6Address")]
    #[schemars(length(max = 39))]
    pub ipv6_address: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn network(spec: serde_json::Value) -> Network {
        serde_json::from_value(json!({"metadata": {"name": "lan"}, "spec": spec})).expect("a Network")
    }

    #[test]
    fn vms_get_addresses_of_the_declared_range_and_an_empty_range_has_none() {
        let address = |text: &str| text.parse::<Ipv4Addr>().expect("an address");
        let lan = |range: serde_json::Value| {
            network(json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "192.0.2.0/24",
                "ipv4": {"gateway": "192.0.2.1", "range": range}}))
        };
        let declared = lan(json!("192.0.2.50-192.0.2.99"));
        assert_eq!(declared.pool(), Some((address("192.0.2.50"), address("192.0.2.99"))));
        assert_eq!(declared.gateway(), Some(address("192.0.2.1")));
        assert_eq!(lan(json!(null)).pool(), Some((address("192.0.2.1"), address("192.0.2.254"))));
        let all = lan(json!("192.0.2.0-192.0.2.255")).pool();
        assert_eq!(
            all,
            Some((address("192.0.2.1"), address("192.0.2.254"))),
            "no network address, no broadcast"
        );
        assert_eq!(lan(json!("192.0.2.99-192.0.2.50")).pool(), None);
    }

    #[test]
    fn a_network_has_no_domain_and_no_names_unless_they_are_there() {
        let text = serde_json::to_value(network(json!({"cidr": "10.77.0.0/16"})).spec).expect("JSON");
        assert_eq!(text.get("dnsDomain"), None);
        let status = json!({"names": [{"name": "web", "address": "10.77.0.2"}]});
        let status: NetworkStatus = serde_json::from_value(status).expect("a status");
        assert_eq!((status.names[0].name.as_str(), status.names[0].ipv6_address.as_str()), ("web", ""));
        let text = serde_json::to_value(NetworkName {
            ipv6_address: "fd00:60::2".into(),
            ..status.names[0].clone()
        });
        assert_eq!(
            text.expect("JSON"),
            json!({"name": "web", "address": "10.77.0.2", "ipv6Address": "fd00:60::2"})
        );
    }

    #[test]
    fn a_network_without_a_type_is_an_overlay_whose_gateway_is_the_first_address() {
        let overlay = network(json!({"cidr": "10.77.0.0/16"}));
        assert_eq!((overlay.host_bridge(), overlay.is_external()), (None, false));
        assert_eq!(overlay.gateway(), "10.77.0.1".parse().ok());
        let external =
            json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv4": {"allocation": "External"}});
        let external = network(external);
        let vmbr0 = BridgeSpec { name: Some("vmbr0".to_owned()), ..BridgeSpec::default() };
        assert_eq!((external.host_bridge(), external.is_external()), (Some(&vmbr0), true));
        assert_eq!((external.pool(), external.gateway()), (None, None));
    }

    #[test]
    fn an_interface_comes_before_its_overlay_and_a_bridge_has_no_dhcp_of_berths() {
        let quiet = network(json!({"cidr": "10.77.0.0/16", "dhcp4": false}));
        assert!(quiet.is_without_dhcp4(None) && quiet.is_without_dhcp4(Some(false)));
        assert!(!quiet.is_without_dhcp4(Some(true)) && !quiet.is_without_dhcp6(None));
        let usual = network(json!({"cidr": "10.77.0.0/16"}));
        assert!(!usual.is_without_dhcp4(None) && usual.is_without_dhcp4(Some(false)));
        assert!(usual.is_without_dhcp6(Some(false)));
        let bridge = network(json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "10.0.0.0/24"}));
        assert!(!bridge.is_without_dhcp4(Some(false)) && !bridge.is_without_dhcp6(Some(false)));
    }

    #[test]
    fn an_overlay_is_encrypted_if_it_declares_it() {
        let encrypted = |spec: serde_json::Value| network(spec).is_encrypted();
        assert!(encrypted(json!({"cidr": "10.77.0.0/16", "encryption": "WireGuard"})));
        assert!(!encrypted(json!({"cidr": "10.77.0.0/16", "encryption": "None"})));
        assert!(!encrypted(json!({"cidr": "10.77.0.0/16"})));
        let text = serde_json::to_value(network(json!({"cidr": "10.77.0.0/16"})).spec).expect("JSON");
        assert_eq!(text.get("encryption"), None);
    }

    #[test]
    fn leases_are_checked_only_where_another_dhcp_server_gives_them_and_if_it_is_declared() {
        let checks = |ipv4: serde_json::Value| {
            network(json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "ipv4": ipv4})).checks_leases()
        };
        assert!(checks(json!({"allocation": "External", "sourceCheck": "Lease"})));
        assert!(!checks(json!({"allocation": "External", "sourceCheck": "None"})));
        assert!(!checks(json!({"allocation": "External"})));
        assert!(!checks(json!({"sourceCheck": "Lease"})));
        let other = json!({"metadata": {"name": "lan"}, "spec": {"ipv4": {"sourceCheck": "lease"}}});
        assert!(serde_json::from_value::<Network>(other).is_err());
    }
}
