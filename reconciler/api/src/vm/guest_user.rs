//! Users of a running guest: their SSH keys and passwords.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// A user of the guest whose SSH keys and password the VM's host sets in the running guest, by the guest agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestUser {
    /// The name of the user in the guest, such as `debian`, the key of the list. The user must exist in the guest.
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[a-z_][a-z0-9_-]{0,31}$"))]
    pub name: String,
    /// SSH public keys for the user. At most 32. Applied live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(length(max = 8192), regex(pattern = r"^(ssh-|ecdsa-|sk-)\S+ +\S+( [^\r\n]*)?$"))
    )]
    pub ssh_authorized_keys: Vec<String>,
    /// Name of a Secret in the VM's namespace with more SSH public keys for the user: each of its values is the text of
    /// an `authorized_keys` file, without options before the keys. At most 64 keys. Read every 30 seconds while the VM runs; while it
    /// does not exist, the user's keys stay as they are. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')").message("must be a name: lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part"))]
    pub ssh_authorized_keys_secret: Option<String>,
    /// Name of a Secret in the VM's namespace whose key `password` is the user's password: text of at most 256 bytes, or a hash that begins
    /// with `$6$` or `$5$`. Set once for each version of the Secret, and again when the guest's data are made anew, as by a restore. Read every
    /// 30 seconds while the VM runs; while it does not exist, the user's keys and password stay as they are. The password also stays when
    /// this is removed. Linux guests only. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')").message("must be a name: lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part"))]
    pub password_secret: Option<String>,
}

impl GuestUser {
    /// Returns the names of the Secrets that it takes data from.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        [&self.ssh_authorized_keys_secret, &self.password_secret].into_iter().flatten().map(String::as_str)
    }
}

/// The SSH keys of a user of the guest, as the VM's host last found them, and which password it has set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestUserStatus {
    /// The name of the user.
    #[schemars(length(max = 32))]
    pub name: String,
    /// Whether the user has the declared keys, no other keys of berth, and was given the declared password.
    pub synced: bool,
    /// The number of the user's keys that are berth's, if it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<i64>,
    /// Names the version of the Secret whose password was set last. It is not made from the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub password_version: Option<String>,
    /// Why it is not synced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
}
