//! The units of systemd that processes of berth are in. Reads only.

use std::fs;
use std::path::Path;

use berth_qemu::process::{Cgroups, shared_unit};

/// Exists while systemd is the first process.
const SYSTEMD: &str = "/run/systemd/system";

/// Returns the unit that this process and another one are in.
pub(super) fn shared_with(pid: i32) -> Option<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    shared_unit(&read("/proc/self/cgroup"), &read(&format!("/proc/{pid}/cgroup")))
}

pub(super) fn has_systemd() -> bool {
    Path::new(SYSTEMD).is_dir()
}

/// Whether systemd has given berth's machines a cgroup of their own.
pub(super) fn has_machines_unit() -> bool {
    Cgroups::detect().has_unit()
}

/// Gives this process more CPU time than the machines, where no service manager decides it.
pub(super) fn precede_machines() {
    if let Err(error) = Cgroups::detect().precede_machines() {
        tracing::debug!(%error, "berth has no CPU weight of its own");
    }
}
