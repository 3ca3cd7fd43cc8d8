//! Checks of what networks need.

use berth_host::linux::DoctorFacts;

use super::{Check, Level};

pub(super) fn tun(facts: &DoctorFacts) -> Check {
    match facts.devices.get("/dev/net/tun") {
        Some(Err(error)) => Check::bad(
            "tun",
            Level::Failure,
            format!("/dev/net/tun cannot be opened: {error}; VMs with network interfaces do not start"),
            "modprobe tun; in a container, pass the device into it (--device /dev/net/tun)",
        ),
        _ => Check::ok("tun", "/dev/net/tun opens"),
    }
}

pub(super) fn bridge(facts: &DoctorFacts) -> Check {
    match has(facts, "bridge") {
        true => Check::ok("bridge", "the kernel has bridges"),
        false => Check::bad(
            "bridge",
            Level::Failure,
            "the kernel has no module for bridges: VMs with network interfaces do not start",
            "modprobe bridge, or install the distribution's usual kernel",
        ),
    }
}

pub(super) fn vxlan(facts: &DoctorFacts) -> Check {
    match has(facts, "vxlan") {
        true => Check::ok("vxlan", "the kernel has VXLAN"),
        false => Check::bad(
            "vxlan",
            Level::Warning,
            "the kernel has no module for VXLAN: networks do not span hosts",
            "modprobe vxlan, or install the distribution's usual kernel",
        ),
    }
}

/// Networks with `encryption` need `wg`, and WireGuard in the kernel or the program in its place.
pub(super) fn wireguard(facts: &DoctorFacts) -> Check {
    let missing = |program: &str| facts.programs.get(program).cloned().flatten();
    let is_served = has(facts, "wireguard") || missing("wireguard-go").is_none();
    let cause = match missing("wg") {
        Some(advice) => Some(("wg is not installed", advice)),
        None if is_served => None,
        None => missing("wireguard-go").map(|advice| ("the kernel has no WireGuard", advice)),
    };
    match cause {
        None => Check::ok("wireguard", "networks can encrypt between hosts"),
        Some((found, advice)) => Check::bad(
            "wireguard",
            Level::Note,
            format!("{found}: no VM on a network with encryption runs here"),
            advice,
        ),
    }
}

pub(super) fn vhost_net(facts: &DoctorFacts) -> Check {
    match facts.vhost_net {
        true => Check::ok("vhost-net", "/dev/vhost-net exists"),
        false => Check::bad(
            "vhost-net",
            Level::Note,
            "/dev/vhost-net does not exist: QEMU moves the packets, which takes more processor time",
            "modprobe vhost_net",
        ),
    }
}

pub(super) fn vhost_vsock(facts: &DoctorFacts) -> Check {
    match facts.vhost_vsock {
        true => Check::ok("vhost-vsock", "/dev/vhost-vsock exists"),
        false => Check::bad(
            "vhost-vsock",
            Level::Note,
            "/dev/vhost-vsock does not exist: no VM here can have a vsock device",
            "modprobe vhost_vsock",
        ),
    }
}

pub(super) fn nft(facts: &DoctorFacts) -> Check {
    program(facts, "nft", "nftables")
}

pub(super) fn dnsmasq(facts: &DoctorFacts) -> Check {
    program(facts, "dnsmasq", "dnsmasq")
}

fn program(facts: &DoctorFacts, program: &str, name: &'static str) -> Check {
    match facts.programs.get(program) {
        Some(Some(advice)) => Check::bad(name, Level::Failure, format!("{program} is not installed"), advice),
        _ => Check::ok(name, format!("{program} is installed")),
    }
}

pub(super) fn forwarding(facts: &DoctorFacts) -> Check {
    // The agent enables it with the first network.
    match facts.ip_forward {
        true => Check::ok("forwarding", "net.ipv4.ip_forward is on"),
        false => {
            Check::ok("forwarding", "net.ipv4.ip_forward is off: berth turns it on with its first network")
        }
    }
}

pub(super) fn firewall(facts: &DoctorFacts) -> Check {
    match &facts.firewall {
        Ok(None) => Check::ok("firewall", "nothing on this host drops guests' packets"),
        Ok(Some(obstacle)) => {
            let (found, fix) = obstacle.split_once(": ").unwrap_or((obstacle, "accept these packets there"));
            Check::bad("firewall", Level::Warning, found, fix)
        }
        Err(error) => Check::bad(
            "firewall",
            Level::Warning,
            format!("its rules cannot be read: {error}"),
            "run this as root, with nftables installed",
        ),
    }
}

fn has(facts: &DoctorFacts, module: &str) -> bool {
    facts.modules.get(module).copied().unwrap_or_default()
}
