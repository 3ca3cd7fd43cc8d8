//! The blocks of networks, and notes on those that berth has no network for.

use berth_api::DEFAULT_NAME;
use berth_hcl as hcl;

use super::{Network, Writer, quoted, text};

impl<'a> Writer<'a, '_> {
    pub(super) fn add_network(&mut self, network: &'a Network) {
        let libvirt = format!("network {}", network.name);
        if network.name == DEFAULT_NAME {
            self.not_declared(
                network,
                "its guests are on the Network default of berth, with other addresses",
            );
            return;
        }
        if network.range.is_none() && network.ipv6.is_none() {
            let why = "it has no range that berth can have, or is none of its own; its guests are on the Network default";
            self.not_declared(network, why);
            return;
        }
        if self.networks.contains_key(&network.name) {
            self.notes.push(format!("{libvirt}: a second network of this name is left out"));
            return;
        }
        let name = self.network_names.free(&network.name);
        let mut lines = vec![
            format!(
                "Network {} of libvirt. Berth refuses its range while a host has it elsewhere:",
                network.name
            ),
            format!("  virsh net-destroy {0} && virsh net-autostart --disable {0}", quoted(&network.name)),
        ];
        lines.extend(network.notes.iter().map(|note| format!("- {note}")));
        self.notes.extend(network.notes.iter().map(|note| format!("{libvirt}: {note}")));
        let mut body = vec![text("name", &name)];
        if let Some(range) = network.range {
            body.push(text("cidr", &range.to_string()));
            if network.egress != "Masquerade" {
                body.push(text("egress", network.egress));
            }
        }
        if let Some(prefix) = network.ipv6 {
            body.push(text("ipv6_cidr", &prefix.to_string()));
            if network.ipv6_egress != "None" {
                body.push(text("ipv6_egress", network.ipv6_egress));
            }
        }
        let block = hcl::block("resource", &["berth_network", &hcl::identifier(&name)], &body);
        self.network_blocks.push_str(&format!("\n{}{block}", hcl::comment(&lines)));
        self.networks.insert(network.name.clone(), (name, network));
    }

    /// Notes on a network whose guests are on the Network `default`, which has other ways to the outside.
    fn not_declared(&mut self, network: &Network, why: &str) {
        let libvirt = format!("network {}", network.name);
        self.notes.push(format!("{libvirt}: {why}"));
        if network.egress == "None" && network.range.is_some() {
            self.notes.push(format!(
                "{libvirt}: it is isolated, and guests on the Network default reach the outside by NAT: declare a berth_network with egress = \"None\" for them"
            ));
        }
        self.notes.extend(network.notes.iter().map(|note| format!("{libvirt}: {note}")));
    }
}
