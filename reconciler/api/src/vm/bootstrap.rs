//! The bootstrap data of a VM.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ResourceName;

/// The data that the guest gets at its first boot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.secretName) && has(self.userData))").message("set secretName or userData, not both"))]
pub struct Bootstrap {
    /// Name of a Secret in the VM's namespace. Its key `userData` is the cloud-init user data. `networkConfig`,
    /// when present, replaces the configuration that berth generates; the keys of `metaData` (YAML) are added to those that
    /// berth generates; `password` is that of the default user, as text or as a hash of crypt(5); `unattend.xml` is an answer
    /// file for Windows Setup and Sysprep. Read at each start of the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')").message("must be a name: lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part"))]
    pub secret_name: Option<String>,
    /// User data without secrets, in plain sight. At most 65,536 characters. A cloud-config that is not YAML is refused. An
    /// Ignition configuration (JSON) is offered to the guest as Ignition reads it on QEMU. May be encoded in base64, and
    /// compressed with gzip before: the guest gets it decoded. Its own users and passwords come before `user` and the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65536))]
    #[x_kube(validation = Rule::new("self.matches('(?i)^[ \\t\\r\\n]*($|[{]|#cloud-config|## template: jinja|#!|#include|#upstart-job|#part-handler|#cloud-boothook|mime-version:|content-type:|#ps1|rem cmd|<powershell>|<script>)') || self.matches('(?m)^(machine|apiVersion):') || self.matches('^(([A-Za-z0-9+/]{4})+[\\r\\n]*)*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?[ \\t\\r\\n]*$')").message("nothing in a guest reads this: begin it with '#cloud-config', with '#!' and a program for a script, with a MIME header, or write an Ignition configuration (JSON)"))]
    pub user_data: Option<String>,
    /// SSH public keys for the default user. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 8192), regex(pattern = r"^(ssh-|ecdsa-|sk-)\S+ \S+")))]
    pub ssh_authorized_keys: Vec<String>,
    /// Name of a Secret in the VM's namespace with more SSH public keys for the default user: each of its values is the text of
    /// an `authorized_keys` file, without options before the keys. At most 64 keys. Read at each start of the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')").message("must be a name: lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part"))]
    pub ssh_authorized_keys_secret: Option<String>,
    /// The name of the default user, instead of the one that the image declares, such as `debian`. It has the image's other
    /// settings for this user: groups, shell, sudo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^[a-z_][a-z0-9_-]{0,31}$"))]
    pub user: Option<String>,
    /// Whether the default user must change the password at the first login. Default true, as cloud-init's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_expires: Option<bool>,
    /// `Install`: at its first boot, the guest installs qemu-guest-agent with its package manager, unless the image has it, and starts
    /// it, by a script of cloud-init's vendor data beside the user data. It needs a way to its package sources. `Skip` (default): the
    /// guest has the agent that its image or the user data installs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_agent: Option<GuestAgentPolicy>,
    /// The guest's host name. Default: the VM's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<ResourceName>,
    /// The guest's domain, for example `example.org`: with the host name it is the fully qualified name. At most 189
    /// characters. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 189),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$")
    )]
    pub domain: Option<String>,
    /// cloud-init's network configuration (YAML, version 1 or 2), in plain sight. Default: the one in the Secret, else one that
    /// berth generates, with DHCP on each interface. At most 16,384 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16384))]
    pub network_config: Option<String>,
    /// Keys for cloud-init's meta-data (a YAML mapping without aliases), in plain sight: added to those of the Secret and to those that berth
    /// generates (`instance-id`, `local-hostname`, `public-keys`), in place of keys of the same name. With an `instance-id` of
    /// its own, cloud-init does not run again after other changes. At most 16,384 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16384))]
    pub meta_data: Option<String>,
    /// A checksum of the Secret's content, set by the writer of the Secret, so that a change is visible here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub checksum: Option<String>,
}

/// Whether a guest installs qemu-guest-agent at its first boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GuestAgentPolicy {
    Install,
    #[default]
    Skip,
}

impl Bootstrap {
    /// Returns the names of the Secrets that it takes data from.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        [&self.secret_name, &self.ssh_authorized_keys_secret].into_iter().flatten().map(String::as_str)
    }
}
