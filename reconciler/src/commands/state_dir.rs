//! The state directory: what berth keeps on this machine, and where.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// The administrator's kubeconfig, in the state directory.
pub(super) const KUBECONFIG: &str = "admin.kubeconfig";
/// The control plane's own folder, in the state directory.
pub(super) const CONTROL_PLANE: &str = "control-plane";
/// Creates the state directory. QEMU's user must be able to pass through it, but not to list it.
pub(super) fn prepare(state_dir: &Path) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let what = || format!("making the state directory {}", state_dir.display());
    std::fs::create_dir_all(state_dir).with_context(what)?;
    std::fs::set_permissions(state_dir, std::fs::Permissions::from_mode(0o711)).with_context(what)?;
    state_dir.canonicalize().with_context(what)
}
