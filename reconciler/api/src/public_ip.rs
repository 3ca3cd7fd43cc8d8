//! PublicIP: an address that leads to a VM, or by its ports to several, and is kept while they are stopped.

mod assigned;
mod port;

use std::net::IpAddr;

use ipnet::IpNet;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Binding, Conditions, IPPoolMode, ObjectUse, ResourceName};

pub use assigned::{MOST_PUBLIC_PORTS, PublicPort, parse_port_range};
pub use port::{
    ForwardingAddress, HealthCheck, HealthCheckType, MOST_PORTS, MOST_TARGETS, PortProtocol, PortStatus,
    PortTarget, PublicIPPort, SessionAffinity, parse_duration,
};

/// An address from an IPPool. A VM's network interface names it, or its ports name VMs; it is kept while a VM is stopped or replaced.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "PublicIP",
    plural = "publicips",
    singular = "publicip",
    shortname = "pip",
    namespaced,
    status = "PublicIPStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "An address from an IPPool that leads to a VM.",
    selectable = ".status.binding.host",
    selectable = ".spec.pool",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address"),
    printcolumn(name = "VM", type_ = "string", json_path = ".status.usedBy[*].vm"),
    printcolumn(name = "Ports", type_ = "string", json_path = ".status.ports[*].port"),
    printcolumn(name = "Targets", type_ = "string", json_path = ".status.ports[*].available"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters"),
    validation = Rule::new("!has(self.spec.ports) || self.spec.ports.size() == 0 || (has(oldSelf.spec.ports) && oldSelf.spec.ports.size() > 0) || !has(oldSelf.status) || !has(oldSelf.status.usedBy) || oldSelf.status.usedBy.size() == 0").message("the whole address leads to a VM (status.usedBy): take it out of that VM's network interface before you declare ports").field_path(".spec.ports"),
    // Only a port that is newly declared: the controllers' own write of another one must pass.
    validation = Rule::new("!has(self.spec.ports) || !has(oldSelf.status) || !has(oldSelf.status.ports) || self.spec.ports.all(p, !has(p.port) || (has(oldSelf.spec.ports) && oldSelf.spec.ports.exists(o, o.name == p.name && has(o.port) && o.port == p.port && (o.protocol == 'udp') == (p.protocol == 'udp'))) || !oldSelf.status.ports.exists(g, has(g.port) && g.port == p.port && g.name != p.name && (g.protocol == 'udp') == (p.protocol == 'udp') && self.spec.ports.exists(o, o.name == g.name && !has(o.port) && (o.protocol == 'udp') == (p.protocol == 'udp'))))").message("a declared port has been given out to an entry without port (status.ports): declare another one").field_path(".spec.ports"),
    // The address that was decided may be written down and left out again: it is the one it has, and stays.
    validation = Rule::new("(has(self.spec.address) ? self.spec.address : (has(oldSelf.status) && has(oldSelf.status.address) ? oldSelf.status.address : '')) == (has(oldSelf.spec.address) ? oldSelf.spec.address : (has(oldSelf.status) && has(oldSelf.status.address) ? oldSelf.status.address : ''))").message("address cannot change: create another PublicIP").field_path(".spec.address")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.pool == oldSelf.pool").message("pool cannot change: create another PublicIP").field_path(".pool"),
    validation = Rule::new("(has(self.prefixLength) ? self.prefixLength : 0) == (has(oldSelf.prefixLength) ? oldSelf.prefixLength : 0)").message("prefixLength cannot change: create another PublicIP").field_path(".prefixLength"),
    validation = Rule::new("!has(self.prefixLength) || !has(self.ports) || self.ports.size() == 0").message("a prefix leads to one VM as a whole: declare ports on a PublicIP without prefixLength").field_path(".prefixLength"),
    validation = Rule::new("!has(self.prefixLength) || !has(self.address) || self.address.contains(':')").message("with prefixLength, address must be the first IPv6 address of a prefix of that length, such as 2001:db8:0:8:1:: of a /80").field_path(".address"),
    validation = Rule::new("!has(self.ports) || self.ports.all(p, !has(p.port) || self.ports.filter(q, has(q.port) && q.port == p.port && (q.protocol == 'udp') == (p.protocol == 'udp')).size() == 1)").message("each port and protocol can be declared once").field_path(".ports"),
    validation = Rule::new("!has(self.portRange) || (self.portRange.matches('^[1-9][0-9]{0,4}-[1-9][0-9]{0,4}$') && self.portRange.split('-').all(n, int(n) <= 65535) && int(self.portRange.split('-')[0]) <= int(self.portRange.split('-')[1]))").message("portRange must be two ports from 1 to 65535, the first one not above the last, such as 30000-32767").field_path(".portRange")
)]
pub struct PublicIPSpec {
    /// Name of the IPPool. Default `default`. Cannot change.
    #[serde(default = "default_pool")]
    pub pool: ResourceName,
    /// A specific address of the pool, one of IPv6 in its shortest form. Default: the lowest free one. Cannot change; the allocated
    /// address can be added later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 39), regex(pattern = r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9a-f:]*:[0-9a-f:]*)$"))]
    #[x_kube(validation = Rule::new("!self.contains(':') || (isIP(self) && ip(self).family() == 6 && ip.isCanonical(self))").message("must be an IPv4 address, or an IPv6 address in its shortest form, such as 2001:db8::10"))]
    pub address: Option<String>,
    /// The length of an IPv6 prefix, 64 to 127: the PublicIP is then a whole prefix of that length, which its host routes to the IPv6
    /// address of the VM's interface (`publicIPv6`). Its IPPool has IPv6 addresses and the mode `local`. `address` is the first one of the
    /// prefix. The guest gets no address of it by itself. Default: none, and it is a single address. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 64, max = 127))]
    pub prefix_length: Option<i64>,
    /// The ports of the address that lead to VMs, keyed by `name`, at most 32. All other ports are refused. Those of an IPv6 address lead
    /// to the IPv6 addresses of the VMs. Default: none, and the
    /// whole address leads to the VM whose network interface names the PublicIP. Applied live: established connections go on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 32))]
    pub ports: Vec<PublicIPPort>,
    /// The first and last port that are given out to entries of `ports` without `port`, such as `20000-20099`. Default `30000-32767`.
    /// Applied live: ports that were given out stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 11))]
    pub port_range: Option<String>,
    /// Whether deleting it is refused. Set it to false before deleting. Default false. Applied live.
    #[serde(default)]
    pub deletion_protection: bool,
}

impl Default for PublicIPSpec {
    fn default() -> Self {
        Self {
            pool: default_pool(),
            address: None,
            prefix_length: None,
            ports: Vec::new(),
            port_range: None,
            deletion_protection: false,
        }
    }
}

impl PublicIPSpec {
    /// Returns the addresses that it has if this is the first one: a prefix of the declared length, or this one only. None: the length
    /// is none of the address' family.
    #[must_use]
    pub fn range_at(&self, first: IpAddr) -> Option<IpNet> {
        let Some(length) = self.prefix_length else { return Some(first.into()) };
        let length = u8::try_from(length).ok().filter(|_| first.is_ipv6())?;
        IpNet::new(first, length).ok().filter(|range| range.addr() == range.network())
    }
}

fn default_pool() -> ResourceName {
    crate::DEFAULT_NAME.into()
}

/// The observed state of a PublicIP. Written by the controllers only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PublicIPStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`: an address is allocated; `AddressConflict`, only while another machine on the segment has it; `TargetsAvailable`, only
    /// with ports: each of them has a target that gets new connections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// One word for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PublicIPState>,
    /// The address; of a prefix the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 39))]
    pub address: Option<String>,
    /// The prefix, with `prefixLength`, such as `2001:db8:0:8:1::/80`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 43))]
    pub prefix: Option<String>,
    /// The way it is made reachable, from its IPPool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<IPPoolMode>,
    /// The host that has the address: that of the VM that uses it; with ports, that of a target, which forwards to the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// The VM that uses it (one at most). A deleted PublicIP stays until none does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUse>,
    /// The state of each port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 32))]
    pub ports: Vec<PortStatus>,
    /// The VMs that run and are targets of its ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 1024))]
    pub targets: Vec<PortTarget>,
    /// For each Network with a target on another host, or with one on a `bridge.interface`: the address from which such a target sees the
    /// connections come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["network".into()]))]
    #[schemars(length(max = 64))]
    pub forwarding_addresses: Vec<ForwardingAddress>,
}

/// The state of a PublicIP, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PublicIPState {
    Pending,
    Allocated,
    InUse,
    Failed,
    Terminating,
}
