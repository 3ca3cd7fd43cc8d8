//! The programs that write firewall rules, and how each is made to accept packets of guests.

use serde_json::Value;

use super::super::BRIDGE_PREFIX;
use super::service::Service;
use super::{LEGACY, name, text};

/// Docker's chain for the rules of an administrator, which it leaves as they are.
const DOCKER_USER: &str = "DOCKER-USER";

/// The program that wrote a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Author {
    Firewalld,
    Ufw,
    Docker,
    /// By the interface of the kernel before nftables.
    Legacy,
    Other,
}

impl Author {
    pub(super) fn of(items: &[Value], chain: &Value) -> Self {
        let of_its_table =
            |other: &&Value| other["family"] == chain["family"] && other["table"] == chain["table"];
        let others = items.iter().filter_map(|item| item.get("chain")).filter(of_its_table);
        let names: Vec<&str> = others.map(|other| text(&other["name"])).collect();
        match text(&chain["table"]) {
            _ if names.iter().any(|name| name.starts_with("ufw")) => Self::Ufw,
            _ if chain["hook"] == "forward" && names.contains(&DOCKER_USER) => Self::Docker,
            "firewalld" => Self::Firewalld,
            LEGACY => Self::Legacy,
            _ => Self::Other,
        }
    }

    /// Returns its name as it follows that of a chain in a message.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Firewalld => " (firewalld)",
            Self::Ufw => " (ufw)",
            Self::Docker => " (Docker)",
            Self::Legacy | Self::Other => "",
        }
    }

    /// Returns the commands that make it accept forwarded packets of guests.
    pub(super) fn accept_forwarded(self, chain: &Value) -> String {
        match self {
            Self::Firewalld => into_trusted_zone(),
            Self::Ufw => {
                format!("ufw route allow in on {BRIDGE_PREFIX}+; ufw route allow out on {BRIDGE_PREFIX}+")
            }
            Self::Docker => {
                let program = if chain["family"] == "ip6" { "ip6tables" } else { "iptables" };
                let rule = format!("{program} -I {DOCKER_USER}");
                format!("{rule} -i {BRIDGE_PREFIX}+ -j ACCEPT; {rule} -o {BRIDGE_PREFIX}+ -j ACCEPT")
            }
            Self::Legacy => {
                let (program, to) = legacy(chain);
                format!(
                    "{program} -I {to} -i {BRIDGE_PREFIX}+ -j ACCEPT; {program} -I {to} -o {BRIDGE_PREFIX}+ -j ACCEPT"
                )
            }
            Self::Other => {
                let rule = format!("nft insert rule {}", name(chain));
                format!(
                    "{rule} iifname \"{BRIDGE_PREFIX}*\" accept; {rule} oifname \"{BRIDGE_PREFIX}*\" accept"
                )
            }
        }
    }

    /// Returns the commands that make it accept what other hosts send to a UDP port.
    pub(super) fn accept_port(self, chain: &Value, port: u16) -> String {
        match self {
            Self::Legacy => {
                let (program, to) = legacy(chain);
                format!("{program} -I {to} -p udp --dport {port} -j ACCEPT")
            }
            Self::Ufw => format!("ufw allow {port}/udp"),
            Self::Firewalld => {
                format!("firewall-cmd --permanent --add-port={port}/udp; firewall-cmd --reload")
            }
            Self::Docker | Self::Other => {
                format!("nft insert rule {} udp dport {port} accept", name(chain))
            }
        }
    }

    /// Returns the commands that make it accept packets of guests to the host.
    pub(super) fn accept_received(self, chain: &Value, services: &[Service]) -> String {
        if self == Self::Firewalld {
            return into_trusted_zone();
        }
        let mut commands: Vec<String> = Vec::new();
        for service in services {
            let command = self.accept_service(chain, *service);
            // That for DNS may be the same in both families.
            if !commands.contains(&command) {
                commands.push(command);
            }
        }
        commands.join("; ")
    }

    fn accept_service(self, chain: &Value, service: Service) -> String {
        let port = service.ports().map(|(_, to)| to);
        match self {
            Self::Ufw => match port {
                Some(53) => format!("ufw allow in on {BRIDGE_PREFIX}+ to any port 53"),
                Some(port) => format!("ufw allow in on {BRIDGE_PREFIX}+ to any port {port} proto udp"),
                None => "accept icmpv6 in /etc/ufw/before6.rules, then ufw reload".to_owned(),
            },
            Self::Legacy => {
                let (program, to) = legacy(chain);
                let packets = match port {
                    Some(port) => format!("-p udp --dport {port}"),
                    None => "-p ipv6-icmp".to_owned(),
                };
                format!("{program} -I {to} -i {BRIDGE_PREFIX}+ {packets} -j ACCEPT")
            }
            Self::Firewalld | Self::Docker | Self::Other => {
                let packets = match port {
                    Some(port) => format!("udp dport {port}"),
                    None => "meta l4proto ipv6-icmp".to_owned(),
                };
                format!("nft insert rule {} iifname \"{BRIDGE_PREFIX}*\" {packets} accept", name(chain))
            }
        }
    }
}

/// The zone accepts all packets, and berth's own rules drop what guests need not send to the host.
fn into_trusted_zone() -> String {
    format!("firewall-cmd --permanent --zone=trusted --add-interface={BRIDGE_PREFIX}+; firewall-cmd --reload")
}

fn legacy(chain: &Value) -> (&'static str, &str) {
    let program = if chain["family"] == "ip6" { "ip6tables-legacy" } else { "iptables-legacy" };
    (program, text(&chain["name"]))
}
