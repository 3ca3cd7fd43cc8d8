//! The name server of a Network.

use std::net::Ipv4Addr;

use super::Network;

impl Network {
    /// The address at which the hosts of a bridged network answer questions about the names of its VMs. None: they do not.
    pub fn name_server(&self) -> Option<Ipv4Addr> {
        self.host_bridge()?;
        self.spec.dns_domain.as_ref()?;
        let address: Ipv4Addr = self.spec.ipv4.as_ref()?.name_server.as_ref()?.parse().ok()?;
        self.range().filter(|range| range.contains(&address) && !self.is_external())?;
        Some(address)
    }

    /// The name servers of the guests of a bridged network: those that it declares, or its own one.
    pub fn bridge_dns(&self) -> Vec<String> {
        let own = self.name_server().filter(|_| self.spec.dns.is_empty());
        self.spec.dns.iter().cloned().chain(own.map(|own| own.to_string())).collect()
    }

    /// Whether no VM gets this address of its range: its router has it, or the hosts answer at it.
    pub fn is_reserved(&self, address: Ipv4Addr) -> bool {
        self.gateway() == Some(address) || self.name_server() == Some(address)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn network(more: &Value) -> Network {
        let mut spec = json!({"type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "192.0.2.0/24"});
        let more = more.as_object().cloned().unwrap_or_default();
        spec.as_object_mut().expect("an object").extend(more);
        serde_json::from_value(json!({"metadata": {"name": "lan"}, "spec": spec})).expect("a Network")
    }

    #[test]
    fn a_bridge_with_a_domain_has_a_name_server_at_an_address_that_no_vm_gets() {
        let ipv4 = json!({"gateway": "192.0.2.1", "nameServer": "192.0.2.53"});
        let named = network(&json!({"dnsDomain": "lan.example.org", "ipv4": ipv4}));
        let address = Ipv4Addr::new(192, 0, 2, 53);
        assert_eq!((named.name_server(), named.bridge_dns()), (Some(address), vec!["192.0.2.53".to_owned()]));
        assert!(named.is_reserved(address) && named.is_reserved(Ipv4Addr::new(192, 0, 2, 1)));
        assert!(!named.is_reserved(Ipv4Addr::new(192, 0, 2, 50)));
        let dns = json!(["192.0.2.2"]);
        let declared = network(&json!({"dnsDomain": "lan.example.org", "ipv4": ipv4, "dns": dns}));
        assert_eq!(declared.bridge_dns(), ["192.0.2.2"]);
        assert_eq!(network(&json!({"ipv4": ipv4})).name_server(), None, "without names");
        let outside = json!({"nameServer": "198.51.100.53"});
        let outside = network(&json!({"dnsDomain": "lan.example.org", "ipv4": outside}));
        assert_eq!((outside.name_server(), outside.bridge_dns()), (None, Vec::new()));
    }
}
