//! Taps that persist after their creator has ended.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;

use super::netlink::network;
use crate::SystemError;

const TUN: &str = "/dev/net/tun";

/// Creates a tap owned by root: the launcher opens it and passes the descriptors to QEMU, one, or with `multi_queue` several.
/// rtnetlink cannot create taps.
#[allow(unsafe_code, reason = "the tun driver is only reached by ioctl")]
pub(super) fn create(name: &str, multi_queue: bool) -> Result<(), SystemError> {
    let failed = |error: io::Error| {
        let advice = match error.kind() {
            io::ErrorKind::NotFound => " (modprobe tun)",
            io::ErrorKind::PermissionDenied => " (the host agent needs root or CAP_NET_ADMIN)",
            _ => "",
        };
        network("make the tap", name, format!("{TUN}: {error}{advice}"))
    };
    let device = OpenOptions::new().read(true).write(true).open(TUN).map_err(failed)?;
    // SAFETY: all-zero bytes are a valid `ifreq`: it contains integers, byte arrays and a null pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte less than the array: the name is NUL-terminated.
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        // Signed on x86-64 only.
        *to = from as libc::c_char;
    }
    let several = if multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | several;
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags).expect("the flags fit 16 bits");
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives until the call returns.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) }).map_err(failed)?;
    // SAFETY: TUNSETPERSIST takes a number, no pointer.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETPERSIST, 1 as libc::c_ulong) }).map_err(failed)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
