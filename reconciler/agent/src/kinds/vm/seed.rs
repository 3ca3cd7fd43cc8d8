//! Content of the bootstrap volumes (cloud-init NoCloud, Windows). Pure. May contain secrets: never printed.
//!
//! ```text
//!  user-data     the declared user data
//!  vendor-data   the default user and its password: cloud-init puts what the user data declares in its place; and the script that
//!                installs the guest agent, which runs beside those of the user data
//!  meta-data     host name and SSH keys, then the keys of the Secret, then those of the VM's spec, each in place of those before
//! ```

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use berth_api::vm::{ConfiguredRoute, GuestAgentPolicy, InterfaceConfig, InterfaceStatus};
use berth_api::{Network, VM, password};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::bootstrap::{Bootstrap, BootstrapData, MetaData, mapping};
use crate::index::mtu_of;
use crate::networking::{guest_name, ipv6_routes_for, ipv6_routes_of, mtu_for, routes_for, routes_of};
use berth_host::{GuestRoutes, Ipv6Route, Route, Seed};
use berth_yaml::Ordered;

/// Returns the seed of a VM. YAML is written as JSON, which is a subset of YAML. Ignition does not read such a volume:
/// its configuration is passed separately.
pub(super) fn seed(
    vm: &VM,
    cloud_instance: &str,
    bootstrap: &Bootstrap,
    lans: &BTreeMap<String, Lan>,
    configs: &[InterfaceConfig],
) -> Seed {
    let nothing = BootstrapData::default();
    let data = bootstrap.data().unwrap_or(&nothing);
    let mut meta_data = own_meta_data(vm, cloud_instance, data);
    meta_data.extend(declared_meta_data(vm, data).into_iter().map(|(key, value)| (key, value.into())));
    let (ignition, user) = match data.user_data.clone() {
        Some(text) if berth_api::user_data::is_ignition(&text) => (Some(text), None),
        text => (None, text),
    };
    Seed {
        user_data: user.unwrap_or_else(|| "#cloud-config\n".to_owned()),
        meta_data: pretty(&Value::Object(meta_data)),
        network_config: declared_network_config(vm, data)
            .map_or_else(|| own_network_config(vm, lans, configs), str::to_owned),
        vendor_data: vendor_data(vm, cloud_instance, data),
        unattend: data.unattend.clone(),
        ignition,
    }
}

/// Installs and starts the guest agent.
const INSTALL_AGENT: &str = include_str!("seed/install-agent.sh");

fn installs_agent(vm: &VM) -> bool {
    let declared = vm.spec.bootstrap.as_ref().and_then(|spec| spec.guest_agent);
    declared == Some(GuestAgentPolicy::Install)
}

/// The default user and its password, and the installation of the guest agent. A script is not replaced by the keys of a cloud-config in
/// the user data, as `packages` and `runcmd` would be.
fn vendor_data(vm: &VM, cloud_instance: &str, data: &BootstrapData) -> Option<String> {
    let config = default_user(vm, cloud_instance, data);
    if !installs_agent(vm) {
        return config;
    }
    let Some(config) = config else { return Some(INSTALL_AGENT.to_owned()) };
    let archive = json!([
        {"type": "text/cloud-config", "content": config},
        {"type": "text/x-shellscript", "content": INSTALL_AGENT, "filename": "install-agent.sh"},
    ]);
    Some(format!("#cloud-config-archive\n{}", pretty(&archive)))
}

/// The default user and its password.
fn default_user(vm: &VM, cloud_instance: &str, data: &BootstrapData) -> Option<String> {
    let spec = vm.spec.bootstrap.as_ref();
    let mut config = Map::new();
    if let Some(user) = spec.and_then(|spec| spec.user.as_deref()) {
        config.insert("user".to_owned(), json!({ "name": user }));
    }
    // The salt needs no secret: it is another one for each guest.
    let salt = Sha256::digest(cloud_instance).first_chunk().copied()?;
    if let Some(hash) = data.password.as_deref().and_then(|text| password::hashed(text, salt)) {
        let expires = spec.and_then(|spec| spec.password_expires).unwrap_or(true);
        config.insert("password".to_owned(), json!(hash));
        config.insert("chpasswd".to_owned(), json!({ "expire": expires }));
    }
    (!config.is_empty()).then(|| format!("#cloud-config\n{}", pretty(&Value::Object(config))))
}

/// The meta-data of the Secret, and that of the VM's spec, whose values come first. A key is at its first place.
fn declared_meta_data(vm: &VM, data: &BootstrapData) -> MetaData {
    let mut declared = data.meta_data.clone();
    let places: BTreeMap<&str, usize> =
        data.meta_data.iter().enumerate().map(|(place, (key, _))| (key.as_str(), place)).collect();
    let text = vm.spec.bootstrap.as_ref().and_then(|b| b.meta_data.as_deref());
    for (key, value) in mapping(text.unwrap_or_default()).unwrap_or_default() {
        match places.get(key.as_str()) {
            Some(place) => declared[*place].1 = value,
            None => declared.push((key, value)),
        }
    }
    declared
}

fn declared_network_config<'a>(vm: &'a VM, data: &'a BootstrapData) -> Option<&'a str> {
    let of_spec = vm.spec.bootstrap.as_ref().and_then(|b| b.network_config.as_deref());
    of_spec.or(data.network_config.as_deref())
}

/// Returns a digest of the bootstrap data, over the parts a person changes to have a guest configure itself again.
///
/// It is of a JSON text whose keys are in the order written here and in that of the meta-data: another digest makes cloud-init run again.
pub(super) fn digest(vm: &VM, bootstrap: &Bootstrap) -> String {
    let nothing = BootstrapData::default();
    let data = bootstrap.data().unwrap_or(&nothing);
    let spec = vm.spec.bootstrap.as_ref();
    let keys = spec.map(|b| b.ssh_authorized_keys.as_slice()).unwrap_or_default();
    let text = |value: Value| value.to_string();
    let mut whole = vec![text(json!(data.user_data)), text(json!(keys)), text(json!(guest_name(vm)))];
    let (meta_data, network_config) = (declared_meta_data(vm, data), declared_network_config(vm, data));
    // Without them the digest is the one that earlier versions have recorded.
    if !meta_data.is_empty() || network_config.is_some() {
        whole.push(format!("[{},{}]", Ordered::Map(meta_data), json!(network_config)));
    }
    let user = spec.map(|b| (&b.user, b.password_expires));
    let is_new = data.password.is_some() || data.unattend.is_some() || !data.keys.is_empty();
    if is_new || user.is_some_and(|user| user != (&None, None)) {
        let (user, password) = (json!(user), json!(data.password));
        let (unattend, keys) = (json!(data.unattend), json!(data.keys));
        let part = format!(r#"{{"user":{user},"password":{password},"unattend":{unattend},"keys":{keys}}}"#);
        whole.push(part);
    }
    if installs_agent(vm) {
        whole.push(text(json!({"guestAgent": "Install"})));
    }
    Sha256::digest(format!("[{}]", whole.join(","))).iter().map(|b| format!("{b:02x}")).collect()
}

fn own_meta_data(vm: &VM, cloud_instance: &str, data: &BootstrapData) -> Map<String, Value> {
    let mut keys = vm.spec.bootstrap.as_ref().map(|b| b.ssh_authorized_keys.clone()).unwrap_or_default();
    keys.extend(data.keys.iter().cloned());
    let own = [
        ("instance-id", json!(cloud_instance)),
        ("local-hostname", json!(guest_name(vm))),
        ("public-keys", json!(keys)),
    ];
    own.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A bridged network as its guests are configured for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lan {
    ipv4: LanFamily<Ipv4Addr>,
    ipv6: LanFamily<Ipv6Addr>,
    dns: Vec<String>,
    search_domains: Vec<String>,
    routes: Vec<Route>,
    ipv6_routes: Vec<Ipv6Route>,
    mtu: u16,
    has_trunk: bool,
    checks_leases: bool,
}

/// How guests of a bridged network get their addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LanFamily<A> {
    /// They have none.
    None,
    /// The network's own routers and DHCP servers configure them.
    External,
    /// berth gives them out. The length of the network's prefix, and its router.
    Static { prefix: u8, gateway: Option<A> },
}

impl Lan {
    /// None for an overlay.
    pub(super) fn of(network: &Network) -> Option<Self> {
        let bridge = network.host_bridge()?;
        let ipv4 = match network.range() {
            _ if network.is_external() => LanFamily::External,
            Some(range) => LanFamily::Static { prefix: range.prefix_len(), gateway: network.gateway() },
            None => LanFamily::None,
        };
        let ipv6 = match network.ipv6_prefix() {
            _ if network.is_ipv6_external() => LanFamily::External,
            Some(range) => LanFamily::Static { prefix: range.prefix_len(), gateway: network.ipv6_gateway() },
            None => LanFamily::None,
        };
        Some(Self {
            ipv4,
            ipv6,
            dns: network.bridge_dns(),
            search_domains: network.spec.search_domains.clone(),
            routes: routes_of(network),
            ipv6_routes: ipv6_routes_of(network),
            mtu: mtu_of(network),
            has_trunk: !bridge.trunk().is_empty(),
            checks_leases: network.checks_leases(),
        })
    }

    /// Whether others than berth give out its addresses of a family, and nothing checks which of them a guest uses.
    pub(super) fn is_unchecked(&self) -> bool {
        (self.ipv4 == LanFamily::External && !self.checks_leases) || self.ipv6 == LanFamily::External
    }

    /// Whether berth gives out its IPv4 addresses.
    pub(super) fn is_ipv4_static(&self) -> bool {
        matches!(self.ipv4, LanFamily::Static { .. })
    }

    /// Whether berth gives out its IPv6 addresses.
    pub(super) fn is_ipv6_static(&self) -> bool {
        matches!(self.ipv6, LanFamily::Static { .. })
    }

    /// Whether its guests send and receive frames with a VLAN tag.
    pub(super) fn has_trunk(&self) -> bool {
        self.has_trunk
    }

    /// Adds the configuration of an interface. Addresses that berth gives out are in it, without DHCP.
    fn configure(&self, interface: &InterfaceStatus, ethernet: &mut Value) {
        let (mut addresses, mut routes) = (Vec::new(), Vec::new());
        ethernet["dhcp4"] = json!(self.ipv4 == LanFamily::External);
        if let LanFamily::Static { prefix, gateway } = self.ipv4 {
            addresses.push(format!("{}/{prefix}", interface.address));
            let (address, has_default) =
                (interface.address.parse().ok(), interface.default_route != Some(false));
            let declared = routes_for(&self.routes, interface);
            let all = GuestRoutes::of(&declared, gateway, address, has_default).all();
            routes.extend(all.iter().map(|route| json!({"to": route.to, "via": route.via})));
        }
        match self.ipv6 {
            // Routers advertise whether there is a DHCP server; netplan and systemd-networkd ask it then.
            LanFamily::External => ethernet["accept-ra"] = json!(true),
            LanFamily::Static { prefix, gateway } => {
                ethernet["dhcp6"] = json!(false);
                ethernet["accept-ra"] = json!(false);
                addresses.push(format!("{}/{prefix}", interface.ipv6_address));
                let own = interface.ipv6_gateway.as_ref().and_then(|text| text.parse().ok());
                let gateway = own.or(gateway).filter(|_| interface.default_route != Some(false));
                routes.extend(gateway.map(|via| json!({"to": "::/0", "via": via})));
                let own = ipv6_routes_for(&self.ipv6_routes, interface);
                routes.extend(own.iter().map(|route| json!({"to": route.to, "via": route.via})));
            }
            LanFamily::None => {}
        }
        if !addresses.is_empty() {
            ethernet["addresses"] = json!(addresses);
        }
        if !routes.is_empty() {
            ethernet["routes"] = json!(routes);
        }
        self.configure_names(interface, ethernet);
        let mtu = mtu_for(self.mtu, interface.mtu);
        if interface.mtu.is_some() || (self.ipv4 != LanFamily::External && mtu != 1500) {
            ethernet["mtu"] = json!(mtu);
        }
    }

    fn configure_names(&self, interface: &InterfaceStatus, ethernet: &mut Value) {
        let dns = if interface.dns.is_empty() { &self.dns } else { &interface.dns };
        let own = &interface.search_domains;
        let search = if own.is_empty() { &self.search_domains } else { own };
        if !dns.is_empty() {
            ethernet["nameservers"]["addresses"] = json!(dns);
        }
        if !search.is_empty() {
            ethernet["nameservers"]["search"] = json!(search);
        }
    }
}

fn own_network_config(vm: &VM, lans: &BTreeMap<String, Lan>, configs: &[InterfaceConfig]) -> String {
    let mut ethernets = Map::new();
    for interface in vm.status.iter().flat_map(|s| &s.interfaces) {
        let mut ethernet = json!({"match": {"macaddress": interface.mac_address.to_ascii_lowercase()}});
        if let Some(name) = &interface.guest_name {
            ethernet["set-name"] = json!(name);
        }
        match lans.get(&interface.network) {
            Some(lan) => lan.configure(interface, &mut ethernet),
            None => {
                let is_ipv6_only = interface.address.is_empty() && !interface.ipv6_address.is_empty();
                ethernet["dhcp4"] = json!(!is_ipv6_only);
                // The address comes by DHCP too; the guest waits for it as it does for the IPv4 address.
                if !interface.ipv6_address.is_empty() {
                    ethernet["dhcp6"] = json!(true);
                }
                if let Some(config) = configs.iter().find(|config| config.name == interface.name) {
                    if config.ipv6_autoconfiguration == Some(true) {
                        ethernet["dhcp6"] = json!(false);
                        ethernet["accept-ra"] = json!(true);
                    }
                    configure_without_dhcp(config, &mut ethernet);
                }
            }
        }
        ethernets.insert(interface.name.clone(), ethernet);
    }
    pretty(&json!({"version": 2, "ethernets": ethernets}))
}

/// Adds the addresses of an overlay that its DHCP server does not give out, and the rest that a guest gets with a lease; also the IPv6
/// routes, of which DHCPv6 has none and router advertisements only those by the router itself.
fn configure_without_dhcp(config: &InterfaceConfig, ethernet: &mut Value) {
    let is_static = |text: &&String| config.is_static(text.contains(':'));
    let of = |list: &[String]| list.iter().filter(is_static).cloned().collect::<Vec<_>>();
    let addresses = of(&config.addresses);
    let default = |via: String| {
        let to = if via.contains(':') { "::/0" } else { "0.0.0.0/0" };
        json!({"to": to, "via": via})
    };
    let mut routes: Vec<Value> = of(&config.gateways).into_iter().map(default).collect();
    let is_configured = |route: &&ConfiguredRoute| route.to.contains(':') || config.is_static(false);
    let declared = config.routes.iter().filter(is_configured);
    routes.extend(declared.map(|route| json!({"to": route.to, "via": route.via})));
    if !routes.is_empty() {
        ethernet["routes"] = json!(routes);
    }
    if addresses.is_empty() {
        return;
    }
    if config.is_static(false) {
        ethernet["dhcp4"] = json!(false);
    }
    if config.is_static(true) {
        ethernet["dhcp6"] = json!(false);
        ethernet["accept-ra"] = json!(false);
    }
    ethernet["addresses"] = json!(addresses);
    let lists = [("addresses", of(&config.dns)), ("search", config.search_domains.clone())];
    for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        ethernet["nameservers"][key] = json!(list);
    }
    if config.mtu != 1500 {
        ethernet["mtu"] = json!(config.mtu);
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests;
