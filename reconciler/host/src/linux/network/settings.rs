//! Settings of the kernel below `/proc/sys`.

use std::path::Path;

use super::super::files::{blocking, failed};
use super::Result;

/// Sets a setting of the kernel, unless it is set.
pub(super) async fn sysctl(key: &str, value: &'static str) -> Result<()> {
    let path = Path::new("/proc/sys").join(key);
    blocking(move || {
        let now = std::fs::read_to_string(&path).map_err(failed("read", &path))?;
        if now.trim() == value { Ok(()) } else { std::fs::write(&path, value).map_err(failed("set", &path)) }
    })
    .await
}

/// For settings that some kernels lack.
pub(super) async fn sysctl_if_there(key: &str, value: &'static str) {
    if let Err(error) = sysctl(key, value).await {
        tracing::debug!(key, error = error.chain(), "setting not made");
    }
}
