//! vsock devices of guests: their context ids, and connections to their ports.

use std::io;
use std::path::Path;

use berth_qemu::console::ConsoleStream;
use berth_qemu::process::{self, VHOST_VSOCK};

use super::files::failed;
use crate::{Result, SystemError};

/// Returns the wanted context id, or the next that is free. None: this kernel has no vsock devices.
pub(super) fn free_cid(wanted: u32) -> Result<Option<u32>> {
    match process::free_cid(wanted) {
        Ok(cid) => Ok(Some(cid)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(failed("choose a context id of", Path::new(VHOST_VSOCK))(error)),
    }
}

/// Whether there is no device file, or one without its module.
fn is_absent(error: &io::Error) -> bool {
    let is_without_module = matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO));
    is_without_module || error.kind() == io::ErrorKind::NotFound
}

pub(super) async fn connect(cid: u32, port: u32) -> Result<ConsoleStream> {
    process::connect_to_vsock(cid, port).await.map_err(|error| SystemError::Network {
        attempt: "connect to",
        name: format!("vsock port {port} of context id {cid}"),
        detail: error.to_string(),
    })
}
