//! The ports of a public address that its entries have: declared ones, and ones that the controllers give out.

use std::ops::RangeInclusive;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{PortProtocol, PortStatus, PublicIP, PublicIPPort, PublicIPSpec};

/// The first and last port that are given out, unless a PublicIP declares others.
const DEFAULT_RANGE: (i64, i64) = (30_000, 32_767);

/// The maximum number of public ports in the status of a VM.
pub const MOST_PUBLIC_PORTS: usize = 256;

/// Parses a range of ports, such as `30000-32767`: its first and its last port.
pub fn parse_port_range(text: &str) -> Option<RangeInclusive<i64>> {
    let number = |text: &str| {
        let is_number = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
        text.parse::<u16>().ok().filter(|_| is_number).map(i64::from)
    };
    let (first, last) = text.split_once('-')?;
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then_some(first..=last)
}

impl PublicIPSpec {
    /// Returns the ports that are given out to entries without a declared one.
    pub fn port_range(&self) -> RangeInclusive<i64> {
        let (first, last) = DEFAULT_RANGE;
        self.port_range.as_deref().and_then(parse_port_range).unwrap_or(first..=last)
    }
}

impl PublicIP {
    /// Returns the port of the address that an entry has: the declared one, else the one in the status. None until one is given out.
    ///
    /// *Guarantees:* never one that another entry declares.
    pub fn port_of(&self, entry: &PublicIPPort) -> Option<i64> {
        entry.port.or_else(|| {
            let ports = &self.status.as_ref()?.ports;
            let is_its =
                |given: &&PortStatus| given.name == entry.name.as_str() && given.protocol == entry.protocol;
            let given = ports.iter().find(is_its)?.port?;
            let declares_it =
                |other: &PublicIPPort| other.port == Some(given) && other.protocol == entry.protocol;
            (!self.spec.ports.iter().any(declares_it)).then_some(given)
        })
    }
}

/// A port of a public address that leads to a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PublicPort {
    /// The PublicIP and the name of its port, as `publicip/port`.
    #[schemars(length(max = 127))]
    pub name: String,
    /// The public address.
    #[schemars(length(max = 39))]
    pub address: String,
    /// The port of the public address.
    pub port: i64,
    /// The port of the VM.
    pub target_port: i64,
    /// The protocol.
    #[serde(default)]
    pub protocol: PortProtocol,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ip(ports: &serde_json::Value, given: &serde_json::Value) -> PublicIP {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "PublicIP", "metadata": {"name": "web"},
            "spec": {"ports": ports}, "status": {"address": "192.0.2.8", "ports": given},
        }))
        .expect("a PublicIP")
    }

    #[test]
    fn a_range_of_ports_has_two_bounds_in_order() {
        assert_eq!(parse_port_range("30000-32767"), Some(30_000..=32_767));
        assert_eq!(parse_port_range("22-22"), Some(22..=22));
        for wrong in ["", "-", "22", "0-22", "22-65536", "23-22", "+1-2", " 1-2", "1-2-3", "01-2"] {
            assert_eq!(parse_port_range(wrong), None, "{wrong}");
        }
        assert_eq!(PublicIPSpec::default().port_range(), 30_000..=32_767);
    }

    #[test]
    fn an_entry_has_its_declared_port_else_the_one_in_the_status() {
        let given = json!([
            {"name": "ssh", "port": 30_001, "protocol": "tcp", "available": 0, "total": 1},
            {"name": "dns", "port": 30_002, "protocol": "tcp", "available": 0, "total": 1},
        ]);
        let entries = json!([
            {"name": "ssh", "targetPort": 22, "targets": ["a"]},
            {"name": "dns", "targetPort": 53, "protocol": "udp", "targets": ["a"]},
            {"name": "web", "port": 80, "targets": ["a"]},
        ]);
        let ip = ip(&entries, &given);
        let ports: Vec<Option<i64>> = ip.spec.ports.iter().map(|entry| ip.port_of(entry)).collect();
        assert_eq!(ports, [Some(30_001), None, Some(80)], "the port of another protocol is another port");
    }

    #[test]
    fn a_port_that_another_entry_declares_is_no_longer_given_out() {
        let given = json!([{"name": "ssh", "port": 30_001, "protocol": "tcp", "available": 0, "total": 1}]);
        let entries = json!([
            {"name": "ssh", "targetPort": 22, "targets": ["a"]},
            {"name": "web", "port": 30_001, "targets": ["a"]},
        ]);
        let ip = ip(&entries, &given);
        assert_eq!(ip.port_of(&ip.spec.ports[0]), None);
    }
}
