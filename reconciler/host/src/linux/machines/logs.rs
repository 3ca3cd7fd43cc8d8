//! Logs of machines: the guest's serial console, and QEMU's standard error. A guest can make both grow without limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_qemu::machine::{MAX_SERIAL_PORTS, serial_log_name};
use berth_qemu::process;

use super::super::files::{self, blocking};
use super::super::layout::{Layout, is_name};
use crate::SystemError;

/// A log that exceeds this size is truncated, and its last part is kept in a second file.
const MAX_BYTES: u64 = 4 << 20;
/// The interval between checks. Data written in between comes on top: a serial line writes a few MB/s.
const EVERY: Duration = Duration::from_secs(1);

/// Limits the size of the logs of all instances.
pub(super) async fn rotate(layout: &Layout) {
    loop {
        let layout = layout.clone();
        blocking(move || cut_all(&layout, MAX_BYTES)).await;
        tokio::time::sleep(EVERY).await;
    }
}

pub(super) fn cut_all(layout: &Layout, max_bytes: u64) {
    // If the instances cannot be listed, there is nothing to truncate.
    let instances = files::names(&layout.instances()).unwrap_or_default();
    let mut names: Vec<String> = (1..=MAX_SERIAL_PORTS).map(serial_log_name).collect();
    names.push("qemu.log".to_owned());
    for instance in instances.iter().filter(|n| is_name(n)) {
        let folder = layout.instance(instance);
        for name in &names {
            let log = place(&folder, name);
            if !fs::symlink_metadata(&log).is_ok_and(|m| m.is_file() && m.len() > max_bytes) {
                continue;
            }
            match process::cut_log(&log, max_bytes) {
                Ok(None) => {}
                Ok(Some(last)) => keep(&folder.join(format!("{name}.1")), &last),
                Err(error) => tracing::warn!(instance, name, %error, "a log cannot be cut"),
            }
        }
    }
}

/// Returns the end of a log, with what was cut off it before.
pub(super) fn tail(folder: &Path, name: &str, max_bytes: u64) -> Result<Vec<u8>, SystemError> {
    let log = place(folder, name);
    let recent = process::last_bytes(&log, max_bytes).map_err(files::failed("read", &log))?;
    let left = max_bytes.saturating_sub(recent.len() as u64);
    let cut = folder.join(format!("{name}.1"));
    let mut bytes = process::last_bytes(&cut, left).map_err(files::failed("read", &cut))?;
    bytes.extend(recent);
    Ok(bytes)
}

fn keep(path: &Path, bytes: &[u8]) {
    if let Err(error) = files::write_atomic(path, bytes, 0o600) {
        tracing::warn!(error = error.chain(), "the end of a log is lost");
    }
}

/// The path of a log: in the instance's directory, which the agent owns. Machines started by an older version of berth
/// have it in QEMU's own directory, with a link here.
pub(super) fn place(folder: &Path, name: &str) -> PathBuf {
    let log = folder.join(name);
    let is_link = fs::symlink_metadata(&log).is_ok_and(|m| m.is_symlink());
    if is_link { folder.join("run").join(name) } else { log }
}
