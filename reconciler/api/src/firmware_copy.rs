//! The request and the message by which a host fetches the firmware variables and the memory of the TPM of a VM from the host that it has left.
//!
//! ```text
//!  client:  a request with HOST and OFFSET (0) in its query (see `image_copy`), and a ticket
//!  host:    a line with the length and the SHA-256 of the archive; the archive
//! ```

use serde::{Deserialize, Serialize};

use crate::console::is_name;

/// The most bytes of an archive: the variables are some hundred KiB before they are compressed, and the memory of a TPM less.
pub const MAX_ARCHIVE: usize = 16 << 20;
/// The longest line before it.
pub const MAX_LINE: usize = 1 << 10;

/// The line before the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FirmwareArchive {
    /// Its length in bytes.
    pub length: usize,
    /// Its SHA-256, in hexadecimal digits.
    pub sha256: String,
}

/// The audience of a ticket for the firmware state of a VM's instance.
#[must_use]
pub fn audience(namespace: &str, vm: &str, instance: &str) -> String {
    format!("firmware-copy.berth.dev/{namespace}/{vm}/{instance}")
}

/// The path of a request for it.
#[must_use]
pub fn path(namespace: &str, vm: &str, instance: &str) -> String {
    format!("/v1/namespaces/{namespace}/vms/{vm}/instances/{instance}/firmware")
}

/// Returns namespace, VM and instance of a path.
#[must_use]
pub fn of_path(path: &str) -> Option<(&str, &str, &str)> {
    let (namespace, rest) = path.strip_prefix("/v1/namespaces/")?.split_once("/vms/")?;
    let (vm, rest) = rest.split_once("/instances/")?;
    let instance = rest.strip_suffix("/firmware")?;
    [namespace, vm, instance].iter().all(|name| is_name(name)).then_some((namespace, vm, instance))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::ConsoleUse;
    use crate::{live_move, volume_copy};

    #[test]
    fn a_path_names_the_instance_of_one_vm() {
        let whole = path("ns", "web", "i-1");
        assert_eq!(of_path(&whole), Some(("ns", "web", "i-1")));
        assert!(ConsoleUse::of_path(&whole).is_none());
        assert!(volume_copy::of_path(&whole).is_none() && live_move::of_path(&whole).is_none());
        for wrong in [
            "",
            "/v1/namespaces/ns/vms/web/instances//firmware",
            "/v1/namespaces//vms/web/instances/i-1/firmware",
            "/v1/namespaces/ns/vms/web/instances/a/b/firmware",
            "/v1/namespaces/ns/vms/web/instances/i-1",
        ] {
            assert_eq!(of_path(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_line_is_json() {
        let line = FirmwareArchive { length: 3, sha256: "ab".to_owned() };
        assert_eq!(serde_json::to_string(&line).expect("JSON"), r#"{"length":3,"sha256":"ab"}"#);
    }
}
