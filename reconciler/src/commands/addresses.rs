//! The addresses of this machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use anyhow::Context;
use nix::ifaddrs::getifaddrs;

use crate::cli::AgentOptions;

/// Returns every address of this machine except loopback and link-local ones, in a fixed order.
pub(super) fn own() -> Vec<IpAddr> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    };
    let others_reach = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    };
    let mut own: Vec<IpAddr> = interfaces.filter_map(address).filter(others_reach).collect();
    own.sort();
    own.dedup();
    own
}

/// Returns the address at which other machines most likely reach this one: that of the default route, else the
/// first one.
pub(super) fn outward() -> Option<IpAddr> {
    leaves_from(ANYWHERE).map(IpAddr::V4).or_else(|| own().into_iter().next())
}

/// An address for documentation, which no machine has, so that only a default route leads there.
const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);

/// Returns the source address of packets to `to`. Nothing is sent; this only queries the routing table.
fn leaves_from(to: SocketAddr) -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(to).ok()?;
    match socket.local_addr().ok()?.ip() {
        IpAddr::V4(address) if !address.is_unspecified() && !address.is_loopback() => Some(address),
        _ => None,
    }
}

/// Returns the address at which other hosts reach this one; None if the default route determines it.
///
/// *Errors:* the given address is not this machine's.
pub(super) fn of_this_machine(
    options: &AgentOptions,
    control_plane: Option<SocketAddr>,
) -> anyhow::Result<Option<Ipv4Addr>> {
    if let Some(address) = options.address {
        // Only an address of this machine can be bound.
        UdpSocket::bind((address, 0)).with_context(|| {
            format!("no interface of this machine has {address} (--address): give one that has, or none")
        })?;
        return Ok(Some(address));
    }
    Ok(match leaves_from(ANYWHERE) {
        Some(_) => None,
        None => control_plane.and_then(leaves_from),
    })
}

#[cfg(test)]
mod tests {
    use berth_host::linux::UidRange;

    use super::*;

    #[test]
    fn loopback_is_no_address_others_reach() {
        assert!(own().iter().chain(&outward()).all(|ip| !ip.is_loopback()));
    }

    fn options(address: Option<Ipv4Addr>) -> AgentOptions {
        AgentOptions {
            host_name: None,
            labels: Vec::new(),
            cpu_overcommit: 4,
            dedicated_cpus: Default::default(),
            emulate: None,
            experimental_live_migration: false,
            address,
            public_interface: None,
            image_dirs: Vec::new(),
            disk_dirs: Vec::new(),
            pci_devices: Vec::new(),
            usb_devices: Vec::new(),
            vgpus: Vec::new(),
            block_devices: Vec::new(),
            shares: Vec::new(),
            backup_folders: Vec::new(),
            pool_folders: Vec::new(),
            rbd_pools: Vec::new(),
            ceph_conf: "/etc/ceph/ceph.conf".into(),
            ceph_user: "berth".to_owned(),
            image_allow: Vec::new(),
            guest_allow: Vec::new(),
            qemu_uid_range: UidRange::default(),
            console_listen: None,
            metrics: None,
            no_console: false,
        }
    }

    #[test]
    fn an_address_that_is_not_this_machines_is_refused() {
        let mine = Ipv4Addr::LOCALHOST;
        assert_eq!(of_this_machine(&options(Some(mine)), None).expect("mine"), Some(mine));
        let error =
            of_this_machine(&options(Some(Ipv4Addr::new(203, 0, 113, 77))), None).expect_err("nobody's");
        assert!(format!("{error:#}").contains("--address"), "{error:#}");
    }
}
