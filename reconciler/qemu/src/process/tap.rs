//! Opens a tap interface, so that QEMU gets it as a descriptor and needs no permission to open one.
#![allow(unsafe_code, reason = "TUNSETIFF is an ioctl on a C struct")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

/// Opening it loads the kernel's module.
const VHOST: &str = "/dev/vhost-net";

/// Opens the host's packet mover for each queue of a card. Empty on a host without the module `vhost_net`: QEMU moves the packets
/// then.
pub(super) fn open_vhosts(queues: u8) -> Vec<File> {
    let open = |_| OpenOptions::new().read(true).write(true).open(VHOST);
    (0..queues).map(open).collect::<io::Result<_>>().unwrap_or_else(|error| {
        tracing::debug!(%error, path = VHOST, "a card without vhost");
        Vec::new()
    })
}

/// Attaches to an existing interface as many times as it has queues to be served. A tap of a single queue that is in use returns
/// EBUSY.
///
/// *Assumptions*: the interface was created for several queues if `queues` is more than 1.
pub(super) fn open(name: &str, queues: u8) -> io::Result<Vec<File>> {
    (0..queues).map(|_| attach(name, queues > 1)).collect()
}

fn attach(name: &str, has_queues: bool) -> io::Result<File> {
    let valid = (1..libc::IFNAMSIZ).contains(&name.len()) && !name.contains(['/', '\0']);
    // TUNSETIFF would create an unconnected interface. The kernel is queried, because /sys shows the network namespace
    // it was mounted in, which may be another one.
    if !valid || nix::net::if_::if_nametoindex(name).is_err() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no such interface"));
    }
    let tun = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: all-zero bytes are a valid ifreq: it holds a byte array and a union of plain numbers and pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let several = if has_queues { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | several;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the descriptor is open, and the kernel reads and writes one ifreq at the pointer, which lives on.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(tun)
}
