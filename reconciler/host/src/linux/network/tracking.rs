//! Tracking of the connections between the ports of a bridge, which the filters of interfaces need.
//!
//! `br_netfilter` passes a bridge's packets through the rules for routed packets, where connections are tracked. It is turned on for
//! single bridges of berth's; its global settings, which concern all bridges of the host, are left as they are.

use std::net::IpAddr;
use std::path::Path;

use super::super::files::blocking;
use super::super::program::Program;
use super::netlink::{self, Link, Netlink};
use super::{LinkKind, Result, TAP_PREFIX, ours, sysctl};

const MODPROBE: Program = Program {
    name: "modprobe",
    advice: "security groups need the kernel module br_netfilter, which it loads (Debian, Ubuntu: apt install kmod; Fedora: dnf install kmod)",
};
/// Exists while the module is loaded.
const SETTINGS: &str = "/proc/sys/net/bridge";

/// Sets whether the connections between this bridge's ports are tracked.
///
/// *Errors*: if they are to be and the kernel cannot do it: then nothing would filter them.
pub(super) async fn set(netlink: &Netlink, bridge: &Link, on: bool) -> Result<()> {
    if on {
        ensure_module(&bridge.name).await?;
    }
    let hairpin = on || is_global().await;
    let links = netlink.links().await?;
    let taps = ours(&links, TAP_PREFIX, LinkKind::Tap);
    for tap in links.iter().filter(|link| link.controller == Some(bridge.index) && taps.contains(&link.name))
    {
        if tap.hairpin != hairpin {
            netlink.set_hairpin(tap, hairpin).await?;
        }
    }
    netlink.set_tracked(bridge, on).await?;
    tracing::info!(bridge = bridge.name, on, "tracking of connections between ports set");
    Ok(())
}

async fn ensure_module(bridge: &str) -> Result<()> {
    let is_loaded = || blocking(|| Path::new(SETTINGS).exists());
    if is_loaded().await {
        return Ok(());
    }
    let output = MODPROBE.run(&["br_netfilter"], Vec::new()).await?;
    if !is_loaded().await {
        let detail = format!(
            "the kernel module br_netfilter is not there, which security groups need to filter packets between VMs of one host: \
             install it (Fedora: dnf install kernel-modules-extra), or run these VMs on another host {}",
            output.stderr
        );
        return Err(netlink::network("track connections on", bridge, detail.trim_end()));
    }
    // Loaded, the module filters all bridges of the host. It was not wanted for the others so far.
    for setting in ["iptables", "ip6tables", "arptables"] {
        sysctl(&format!("net/bridge/bridge-nf-call-{setting}"), "0").await?;
    }
    Ok(())
}

/// Whether packets between the ports of all bridges pass the rules for routed packets (container runtimes turn that on). In that
/// case, and on a tracked bridge, a guest's packet to its own public address is turned around within the bridge, and has to leave
/// by the port it came in on.
pub(super) async fn is_global() -> bool {
    is_on("bridge-nf-call-iptables").await
}

/// The same for packets to this address: IPv6 has a setting of its own.
pub(super) async fn is_global_for(to: IpAddr) -> bool {
    if to.is_ipv4() { is_global().await } else { is_on("bridge-nf-call-ip6tables").await }
}

async fn is_on(setting: &'static str) -> bool {
    let read = move || std::fs::read_to_string(Path::new(SETTINGS).join(setting));
    blocking(read).await.is_ok_and(|value| value.trim() == "1")
}
