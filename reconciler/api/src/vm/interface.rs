//! A network interface of a VM, as declared.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::DscpClass;
use crate::hardware::NicModel;
use crate::route::Route;
use crate::{Quantity, ResourceName};

/// A network interface of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.network) == has(oldSelf.network) && (!has(self.network) || self.network == oldSelf.network)").message("network cannot change on an existing interface: give the interface another name"),
    validation = Rule::new("!has(self.allowedAddresses) || self.allowedAddresses.size() == 0 || !has(self.securityGroups) || self.securityGroups.size() == 0").message("allowedAddresses and securityGroups exclude each other: a group would not know these addresses").field_path(".allowedAddresses"),
    validation = Rule::new("!has(self.publicIP) || !has(self.publicIPv6) || self.publicIP != self.publicIPv6").message("publicIP and publicIPv6 cannot name the same PublicIP: it has one address").field_path(".publicIPv6"),
    validation = Rule::new("!has(self.queues) || self.queues == 1 || !has(self.model) || self.model == 'virtio'").message("only a card of the model virtio has several queues").field_path(".queues"),
    validation = Rule::new("has(self.dhcp4) == has(oldSelf.dhcp4) && (!has(self.dhcp4) || self.dhcp4 == oldSelf.dhcp4)").message("dhcp4 cannot change on an existing interface: its guest is configured by it; give the interface another name"),
    validation = Rule::new("has(self.dhcp6) == has(oldSelf.dhcp6) && (!has(self.dhcp6) || self.dhcp6 == oldSelf.dhcp6)").message("dhcp6 cannot change on an existing interface: its guest is configured by it; give the interface another name"),
    validation = Rule::new("has(self.guestName) == has(oldSelf.guestName) && (!has(self.guestName) || self.guestName == oldSelf.guestName)").message("guestName cannot change on an existing interface: its guest is configured by it; give the interface another name"),
    validation = Rule::new("!has(self.gateway) || !has(self.routes) || self.routes.all(r, r.to != '0.0.0.0/0')").message("gateway is the default route: leave the route to 0.0.0.0/0 out").field_path(".routes"),
    validation = Rule::new("!has(self.defaultRoute) || self.defaultRoute || !(has(self.gateway) || has(self.ipv6Gateway) || (has(self.routes) && self.routes.exists(r, r.to == '0.0.0.0/0')))").message("with defaultRoute false there is no default route: leave gateway, ipv6Gateway and the route to 0.0.0.0/0 out").field_path(".defaultRoute"),
    validation = Rule::new("!has(self.macAddress) || self.macAddress != '00:00:00:00:00:00'").message("a macAddress of zeros is the address of no interface").field_path(".macAddress")
)]
pub struct NetworkInterface {
    /// Name of the interface within the VM, the key of the list, for example `nic0`.
    pub name: ResourceName,
    /// Name of the Network, in the VM's namespace or in `berth-shared`. Default `default`, which is created in the VM's
    /// namespace if neither has it. Cannot change.
    #[serde(default = "default_network")]
    pub network: ResourceName,
    /// Name of a PublicIP in the VM's namespace, of an IPv4 pool, that leads to this interface. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "publicIP")]
    pub public_ip: Option<ResourceName>,
    /// Name of a PublicIP in the VM's namespace, of an IPv6 pool, that leads to the IPv6 address of this interface: an address, or with
    /// `prefixLength` a whole prefix. Its Network must have `ipv6CIDR`, and an `ipv6Egress` other than `None`, by which guests have a way for their answers. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "publicIPv6")]
    pub public_ipv6: Option<ResourceName>,
    /// Names of SecurityGroups in the VM's namespace, at most 8: the interface receives and sends only what one of them allows.
    /// Default: the `securityGroups` of its Network. With none there either, the interface receives everything from its Network and, by
    /// its public address, from outside, and sends everything. Applied live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(validation = Rule::new("self.all(g, self.filter(h, h == g).size() == 1)").message("a security group can be named once"))]
    pub security_groups: Vec<ResourceName>,
    /// Ranges of IPv4 and IPv6 addresses, beside its own, that the interface may send from and answer for: `10.64.0.100/32` or
    /// `fd00:60::100/128` for an address that several VMs share (VRRP), `0.0.0.0/0` and `::/0` for a router. At most 16. Only on a Network
    /// of the VM's own namespace, and not together with `securityGroups`. The gateway's addresses are never among them. With an IPv6 range
    /// the interface may also send VRRP over IPv6. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 43)))]
    #[x_kube(validation = Rule::new("self.all(c, isCIDR(c) && cidr(c).masked() == cidr(c))").message("each of allowedAddresses must be a range such as 10.64.0.100/32 or fd00:60::100/128, with no host bits set"))]
    pub allowed_addresses: Vec<String>,
    /// MAC addresses, beside its own, that the interface may send from, such as `00:00:5e:00:01:0a` of VRRP or `00:00:5e:00:02:0a` of VRRP
    /// over IPv6, lower case, at most 4, each also with the link-local IPv6 address that follows from it. Only on a Network of the VM's own
    /// namespace. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 4),
        inner(length(max = 17), regex(pattern = r"^[0-9a-f][02468ace](:[0-9a-f]{2}){5}$"))
    )]
    pub allowed_mac_addresses: Vec<String>,
    /// Ceilings for the traffic of the interface. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Box<InterfaceLimits>>,
    /// The class of the packets that the guest sends, `CS0` to `CS7`, `AF11` to `AF43` or `EF`: the host writes its DSCP into all of IPv4
    /// and IPv6, in place of the guest's. Default: packets keep what the guest sets. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::vm::dscp::schema")]
    pub dscp: Option<DscpClass>,
    /// Addresses of the name servers that the guest gets for this interface, at most 4. Default: those of its Network. A change reaches
    /// a running guest of an `Overlay` when it renews its lease.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4), inner(length(max = 39), regex(pattern = r"^[0-9a-f.:]+$")))]
    #[x_kube(validation = Rule::new("self.all(a, isIP(a))").message("must be addresses, such as 9.9.9.9 or 2620:fe::fe"))]
    pub dns: Vec<String>,
    /// Domains in which the guest looks up names, in this order: at most 6, with 100 characters in total. Default: those of its Network. A
    /// change reaches a running guest of an `Overlay` when it renews its lease.
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
    /// Whether the guest gets a default route by this interface. `false` for a further interface, so that its gateway does not compete
    /// with that of the first. Default true. A change reaches a running guest of an `Overlay` when it renews its lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_route: Option<bool>,
    /// The router of the guest's IPv4 default route by this interface, in place of the Network's: an address of the Network's `cidr`.
    /// Default: that of the Network. A change reaches a running guest of an `Overlay` when it renews its lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15), regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$"))]
    #[x_kube(validation = Rule::new("isIP(self) && ip.isCanonical(self)").message("must be an IPv4 address, such as 10.77.0.9"))]
    pub gateway: Option<String>,
    /// The router of the guest's IPv6 default route by this interface, in place of the Network's: an address of the Network's `ipv6CIDR`, or
    /// a link-local one such as `fe80::9`. On a `Bridge`, and in an `Overlay` with `dhcp6` false: other guests follow the advertisements of
    /// their gateway. Default: that of the Network. A change reaches guests that are created afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6Gateway")]
    #[schemars(length(max = 39), regex(pattern = r"^[0-9a-f:]*$"))]
    #[x_kube(validation = Rule::new("isIP(self) && ip(self).family() == 6 && ip.isCanonical(self)").message("must be an IPv6 address in its shortest form, such as fd00:60::9"))]
    pub ipv6_gateway: Option<String>,
    /// Routes that the guest gets by this interface, beside those of its Network, at most 16 together: where the Network gets more later, its
    /// last ones are left out. One to the destination of a route of the Network takes its place. Given as the routes of a Network are: those of IPv4 by DHCP in an `Overlay` and by cloud-init on a `Bridge`,
    /// those of IPv6 by cloud-init. Default: none. A change of IPv4 reaches a running guest of an `Overlay` when it renews its lease, and of
    /// IPv6 guests that are created afterwards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.all(r, self.filter(s, s.to == r.to).size() == 1)").message("a destination can have one route only"))]
    pub routes: Vec<Route>,
    /// The largest packet that the guest sends and receives by this interface, in bytes, 576 to 9216: at most that of its Network, which
    /// counts where it is smaller. Default: that of the Network. Takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 576, max = 9216))]
    pub mtu: Option<i64>,
    /// Whether the DHCP server of an `Overlay` gives the interface its IPv4 address. `false`: the guest gets the same address by its
    /// cloud-init network configuration, and the DHCP server no lease. Default: that of the Network. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp4: Option<bool>,
    /// Whether the DHCPv6 server of an `Overlay` gives the interface its IPv6 address, as `dhcp4`. Default: that of the Network. Cannot
    /// change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp6: Option<bool>,
    /// The name of the network card in the guest, for example `lan0`, which cloud-init gives it by the MAC address at the guest's first
    /// boot: a letter, then letters, digits, `_`, `.` and `-`, at most 15, unique in the VM. Default: the name that the guest gives it.
    /// Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 15), regex(pattern = r"^[a-zA-Z][a-zA-Z0-9_.-]*$"))]
    #[x_kube(validation = Rule::new("self != 'lo'").message("lo is the loopback interface of each guest"))]
    pub guest_name: Option<String>,
    /// A specific MAC address. Default: one is generated once and kept. Cannot change; the generated address can be
    /// added later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 17), regex(pattern = r"^[0-9a-fA-F][26aAeE0cC48](:[0-9a-fA-F]{2}){5}$"))]
    pub mac_address: Option<String>,
    /// A specific private IPv4 address within the Network. Default: one is allocated once and kept. Cannot change; the
    /// allocated address can be added later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 15), regex(pattern = r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$"))]
    pub address: Option<String>,
    /// A specific IPv6 address within the Network's `ipv6CIDR`, or its `ipv6.range`, in its shortest form. Default: one is allocated once and kept. Cannot
    /// change; the allocated address can be added later.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "ipv6Address")]
    #[schemars(length(max = 39), regex(pattern = r"^[0-9a-f:]*$"))]
    #[x_kube(validation = Rule::new("isIP(self) && ip(self).family() == 6 && ip.isCanonical(self)").message("must be an IPv6 address in its shortest form, such as fd00:60::10"))]
    pub ipv6_address: Option<String>,
    /// The network card that the guest sees: `virtio`, `e1000`, `e1000e` or `rtl8139`. `virtio` is by far the fastest;
    /// the others are for guests without a virtio driver. Default: the `networkInterfaceModel` of the VM's class, or `virtio`. Takes effect
    /// at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<NicModel>,
    /// Pairs of receive and transmit queues of a `virtio` card, 1 to 16: with several, as many CPUs of the guest send and receive at
    /// the same time. Of use up to the number of its CPUs. Default: one for each CPU of the VM's start, at most 8, where the host's kernel
    /// moves the packets (see `acceleration`), and otherwise 1. Takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16))]
    pub queues: Option<u8>,
    /// `Auto` (default): the host's kernel moves the packets of a `virtio` card (vhost-net), where the VM has KVM and the host
    /// `/dev/vhost-net`. `Off`: QEMU moves them, as it does those of other models. Takes effect at the next power cycle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acceleration: Option<Acceleration>,
    /// The link that the guest sees: `Up` or `Down`, as if the cable were pulled out. Nothing is received or sent while it is
    /// `Down`. Default `Up`. Applied live.
    #[serde(default)]
    pub link: LinkState,
}

/// Whether the host's kernel may move the packets of a network card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Acceleration {
    #[default]
    Auto,
    Off,
}

/// The link of a network card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LinkState {
    #[default]
    Up,
    Down,
}

/// Ceilings for the traffic of an interface, which its host enforces: packets above them are dropped. *Ingress* is what the guest
/// receives, *egress* what it sends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.ingressBandwidth) || has(self.egressBandwidth) || has(self.ingressPackets) || has(self.egressPackets)").message("limits need at least one of ingressBandwidth, egressBandwidth, ingressPackets, egressPackets"),
    validation = Rule::new("[has(self.ingressBandwidth) ? self.ingressBandwidth : '1M', has(self.egressBandwidth) ? self.egressBandwidth : '1M'].all(b, !isQuantity(b) || (quantity(b).compareTo(quantity('64k')) >= 0 && quantity(b).compareTo(quantity('1T')) <= 0))").message("a bandwidth is 64k to 1T bits a second"),
    validation = Rule::new("[has(self.ingressBurst) ? self.ingressBurst : '1M', has(self.egressBurst) ? self.egressBurst : '1M'].all(b, !isQuantity(b) || (quantity(b).compareTo(quantity('128Ki')) >= 0 && quantity(b).compareTo(quantity('1Gi')) <= 0))").message("a burst is 128Ki to 1Gi bytes: with less, large packets would never pass"),
    validation = Rule::new("!has(self.ingressBurst) || has(self.ingressBandwidth)").message("ingressBurst needs ingressBandwidth").field_path(".ingressBurst"),
    validation = Rule::new("!has(self.egressBurst) || has(self.egressBandwidth)").message("egressBurst needs egressBandwidth").field_path(".egressBurst")
)]
pub struct InterfaceLimits {
    /// Bits a second that the guest receives, for example `100M`: 64k to 1T.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_bandwidth: Option<Quantity>,
    /// Bits a second that the guest sends, for example `100M`: 64k to 1T.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_bandwidth: Option<Quantity>,
    /// Bytes that the guest receives at any rate after a pause, for example `1Mi`: 128Ki to 1Gi. Default: those of a tenth of a
    /// second at `ingressBandwidth`, at least 256Ki and at most 1Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_burst: Option<Quantity>,
    /// Bytes that the guest sends at any rate after a pause, for example `1Mi`: 128Ki to 1Gi. Default: those of a tenth of a
    /// second at `egressBandwidth`, at least 256Ki and at most 1Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_burst: Option<Quantity>,
    /// Packets a second that the guest receives, 100 to 100,000,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 100_000_000))]
    pub ingress_packets: Option<i64>,
    /// Packets a second that the guest sends, 100 to 100,000,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 100_000_000))]
    pub egress_packets: Option<i64>,
}

impl NetworkInterface {
    /// The PublicIPs that it names.
    pub fn public_ips(&self) -> impl Iterator<Item = &ResourceName> {
        self.public_ip.iter().chain(&self.public_ipv6)
    }

    /// The SecurityGroups that filter it: its own, or else those of its Network.
    pub fn effective_security_groups<'a>(&'a self, of_network: &'a [ResourceName]) -> &'a [ResourceName] {
        if self.security_groups.is_empty() { of_network } else { &self.security_groups }
    }
}

impl Default for NetworkInterface {
    fn default() -> Self {
        Self {
            name: "nic0".into(),
            network: default_network(),
            public_ip: None,
            public_ipv6: None,
            security_groups: Vec::new(),
            allowed_addresses: Vec::new(),
            allowed_mac_addresses: Vec::new(),
            limits: None,
            dscp: None,
            dns: Vec::new(),
            search_domains: Vec::new(),
            default_route: None,
            gateway: None,
            ipv6_gateway: None,
            routes: Vec::new(),
            mtu: None,
            dhcp4: None,
            dhcp6: None,
            guest_name: None,
            mac_address: None,
            address: None,
            ipv6_address: None,
            model: None,
            queues: None,
            acceleration: None,
            link: LinkState::default(),
        }
    }
}

fn default_network() -> ResourceName {
    crate::DEFAULT_NAME.into()
}
