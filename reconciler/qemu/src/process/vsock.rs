//! The host's side of vsock devices: their context ids, the descriptor that QEMU gets, and connections to guests.
//!
//! Context ids (CIDs) are the kernel's: it refuses one that a device of any program on this host has. An id is set on an open descriptor of
//! the device file, and is free again when that is closed.
#![allow(unsafe_code, reason = "VHOST_VSOCK_SET_GUEST_CID is an ioctl on a number")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream as StdStream;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, connect, getpeername, socket};
use tokio::net::UnixStream;

use crate::console::ConsoleStream;
use crate::machine::{FIRST_CID, LAST_CID};

/// Opening it loads the kernel's module.
pub const VHOST_VSOCK: &str = "/dev/vhost-vsock";
/// `_IOW(0xaf, 0x60, __u64)` of `linux/vhost.h`.
const SET_GUEST_CID: libc::Ioctl = 0x4008_af60;
/// How many context ids are tried. There are two thousand million, and a host has some hundred guests.
const CIDS_TRIED: u32 = 64;

/// Whether this kernel has the device: a file alone, without the module, cannot be opened.
#[must_use]
pub fn has_vhost_vsock() -> bool {
    open().is_ok()
}

/// Returns the wanted context id, or the next one that no device of this host has. It is not reserved: another device can still take it.
///
/// *Errors*: the device file cannot be opened; many ids in a row are in use.
pub fn free_cid(wanted: u32) -> io::Result<u32> {
    let device = open()?;
    first_free(wanted, |cid| set_cid(&device, cid))
}

/// Opens the device for a machine with this context id, which no other gets as long as it is open.
///
/// *Errors*: [`io::ErrorKind::AddrInUse`] if another device has the id.
pub(super) fn open_with(cid: u32) -> io::Result<File> {
    let device = open()?;
    set_cid(&device, cid)?;
    Ok(device)
}

/// Connects to a vsock port of the guest with this context id. The caller limits the time; the kernel gives up after two seconds.
///
/// *Errors*: there is no such device, its guest has no driver for it, or nothing listens on the port.
pub async fn connect_to_vsock(cid: u32, port: u32) -> io::Result<ConsoleStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let unconnected = socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
    match connect(unconnected.as_raw_fd(), &VsockAddr::new(cid, port)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    // tokio has no stream of this family. That of a Unix socket reads, writes, waits and shuts down by the same calls.
    let stream = UnixStream::from_std(StdStream::from(unconnected))?;
    stream.writable().await?;
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    getpeername::<VsockAddr>(stream.as_raw_fd())?;
    Ok(ConsoleStream::over(stream))
}

fn open() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(VHOST_VSOCK)
}

fn set_cid(device: &File, cid: u32) -> io::Result<()> {
    let number = u64::from(cid);
    // SAFETY: the descriptor is open, and the kernel reads eight bytes at the pointer, which lives on.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), SET_GUEST_CID, &raw const number) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns the first id from the wanted one on that `take` does not refuse as one in use.
fn first_free(wanted: u32, take: impl Fn(u32) -> io::Result<()>) -> io::Result<u32> {
    let span = LAST_CID - FIRST_CID + 1;
    let first = wanted.clamp(FIRST_CID, LAST_CID) - FIRST_CID;
    for cid in (0..CIDS_TRIED).map(|further| FIRST_CID + (first + further) % span) {
        match take(cid) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            taken => return taken.map(|()| cid),
        }
    }
    Err(io::Error::from(io::ErrorKind::AddrInUse))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_wanted_context_id_is_taken_or_the_next_that_is_free() {
        let used = [70_000, 70_001, LAST_CID];
        let take = |cid: u32| {
            if used.contains(&cid) { Err(io::Error::from(io::ErrorKind::AddrInUse)) } else { Ok(()) }
        };
        let found = [70_002, 70_000, LAST_CID, 0, 2].map(|wanted| first_free(wanted, take).ok());
        assert_eq!(found, [Some(70_002), Some(70_002), Some(FIRST_CID), Some(FIRST_CID), Some(FIRST_CID)]);
    }

    #[test]
    fn a_host_without_a_free_context_id_or_without_the_right_to_set_one_is_an_error() {
        let kind =
            |kind: io::ErrorKind| first_free(FIRST_CID, |_| Err(io::Error::from(kind))).map_err(|e| e.kind());
        for refused in [io::ErrorKind::AddrInUse, io::ErrorKind::PermissionDenied] {
            assert_eq!(kind(refused), Err(refused));
        }
    }

    #[tokio::test]
    async fn a_connection_to_a_context_id_without_a_guest_fails_soon() {
        let attempt = connect_to_vsock(LAST_CID, 22);
        let result =
            tokio::time::timeout(Duration::from_secs(30), attempt).await.expect("the kernel gives up");
        assert!(result.is_err(), "{result:?}");
    }
}
