//! The keys of Secure Boot of a VM.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Keys of Secure Boot that are enrolled in place of Microsoft's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecureBootKeys {
    /// Name of a Secret in the VM's namespace with X.509 certificates as PEM, without private keys: `PK` has the platform key, `KEK` the
    /// key exchange keys, `db` the keys by which the firmware accepts boot loaders, and `dbx`, which may be absent, those by which it refuses
    /// them. At most 16 certificates and 32 KiB of them in each.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')").message("must be a name: lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part"))]
    pub secret_name: String,
    /// Any text of 1 to 64 characters. Another text enrolls the keys that the Secret has then. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub token: Option<String>,
}
