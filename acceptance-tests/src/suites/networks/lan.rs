//! A LAN: a namespace with a switch, a DHCP server and the gateway's address, and another machine on it.

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use crate::namespace::Namespace;
use crate::process::Daemon;
use crate::scratch::Scratch;

/// The bridge of a host.
pub const BRIDGE: &str = "vmbr0";
/// The interface of a host on the LAN.
pub const CARD: &str = "lan0";
pub const GATEWAY: &str = "203.0.113.1";
/// Another machine of the LAN.
pub const OTHER: &str = "203.0.113.9";
/// The interface of the gateway on the LAN.
pub const SWITCH: &str = "lan";

/// The LAN.
#[derive(Debug)]
pub struct Lan {
    // Fields drop in this order: first the process, then the namespaces, then the files.
    _dhcp: Daemon,
    namespace: Arc<Namespace>,
    other: Arc<Namespace>,
    folder: Scratch,
}

impl Lan {
    /// A LAN without hosts.
    pub fn new() -> Result<Self> {
        let (namespace, other, folder) = (Namespace::new()?, Namespace::new()?, Scratch::new()?);
        namespace.ip(&["link", "add", SWITCH, "type", "bridge", "forward_delay", "0"])?;
        namespace.ip(&["addr", "add", &format!("{GATEWAY}/24"), "dev", SWITCH])?;
        namespace.ip(&["link", "set", SWITCH, "up"])?;
        plug(&namespace, "other", &other, "lan0")?;
        other.ip(&["addr", "add", &format!("{OTHER}/24"), "dev", "lan0"])?;
        let leases = folder.path().join("leases");
        fs::write(&leases, "")?;
        let mut command = namespace.command("dnsmasq");
        command.args([
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--port=0",
            "--bind-interfaces",
            "--user=root",
        ]);
        command.args([
            &format!("--interface={SWITCH}"),
            "--dhcp-range=203.0.113.100,203.0.113.150,1h",
            "--pid-file=",
        ]);
        command.arg(format!("--dhcp-leasefile={}", leases.display()));
        let dhcp = Daemon::spawn("dnsmasq", &mut command, &folder.path().join("dnsmasq.log"))?;
        Ok(Self { _dhcp: dhcp, namespace, other, folder })
    }

    /// The machine with the gateway's address.
    pub fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// The other machine.
    pub fn other(&self) -> &Arc<Namespace> {
        &self.other
    }

    /// Gives a host an interface on the LAN, which is down.
    pub fn plug(&self, host: &Namespace, name: &str) -> Result<()> {
        plug(&self.namespace, name, host, CARD)?;
        host.ip(&["link", "set", CARD, "down"])?;
        Ok(())
    }

    /// Makes a bridge on a host, with an interface on the LAN as its port.
    pub fn connect(&self, host: &Namespace, name: &str) -> Result<()> {
        plug(&self.namespace, name, host, CARD)?;
        // Such as a real card has: the bridge takes it.
        host.ip(&["link", "set", CARD, "address", &format!("02:00:00:00:00:0{}", &name[1..])])?;
        host.ip(&["link", "add", BRIDGE, "type", "bridge", "forward_delay", "0"])?;
        host.ip(&["link", "set", CARD, "master", BRIDGE])?;
        host.ip(&["link", "set", BRIDGE, "up"])?;
        Ok(())
    }

    /// Removes links of a host, which are the test's own.
    pub fn disconnect(host: &Namespace, links: &[&str]) -> Result<()> {
        links.iter().try_for_each(|link| host.ip(&["link", "del", link]).map(drop))
    }

    /// The address that the DHCP server has given to this MAC address.
    pub fn lease(&self, mac: &str) -> Result<String> {
        let leases = fs::read_to_string(self.folder.path().join("leases"))?;
        let address = leases.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mut address =
            address.filter_map(|words| (words.get(1) == Some(&mac)).then(|| words.get(2).copied())?);
        Ok(address.next().with_context(|| format!("no lease of {mac} in {leases:?}"))?.to_owned())
    }
}

/// Connects a machine to the switch.
fn plug(switch: &Namespace, port: &str, machine: &Namespace, card: &str) -> Result<()> {
    switch.ip(&["link", "add", port, "type", "veth", "peer", "name", card, "netns", machine.name()])?;
    switch.ip(&["link", "set", port, "master", SWITCH, "up"])?;
    machine.ip(&["link", "set", card, "up"])?;
    Ok(())
}

/// The settings of a host's bridge that berth must leave as they are: of the interface, its addresses and its connection tracking.
pub fn settings(host: &Namespace) -> Result<String> {
    let text = host.ip(&["-d", "-o", "link", "show", "dev", BRIDGE])?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let names = [
        "mtu",
        "link/ether",
        "stp_state",
        "vlan_filtering",
        "nf_call_iptables",
        "nf_call_ip6tables",
        "ageing_time",
    ];
    let of = |name: &str| words.windows(2).find(|pair| pair[0] == name).map(|pair| pair.join(" "));
    let found: Vec<String> = names.iter().filter_map(|name| of(name)).collect();
    ensure!(found.len() >= 3, "{text}");
    Ok(format!("{} {}", found.join(" "), host.ip(&["-o", "-4", "addr", "show", "dev", BRIDGE])?))
}

/// Whether a host's bridge has these settings, and this many ports of berth's.
pub fn unchanged(host: &Namespace, settings: &str, ports: usize) -> Result<()> {
    let now = self::settings(host)?;
    ensure!(now == settings, "before: {settings}\nnow: {now}");
    let links = host.ip(&["-o", "link", "show", "master", BRIDGE])?;
    let found = links.matches("btu-").count();
    // Both ends are named in each line.
    let lines = links.lines().filter(|line| line.contains("btu-")).count();
    ensure!(lines == ports, "{found} names of ports: {links}");
    Ok(())
}
