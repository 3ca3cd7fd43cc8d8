//! KeyClass: the key by which the keys of encrypted disks are protected.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Conditions, ObjectUser, ResourceName};

/// The key that protects the keys of encrypted Disks, in a Secret or in a Vault. Disks of its namespace name it; one in `berth-shared` is
/// there for every namespace. A Disk that names another class than before gets its key protected by that one, while its VM runs.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "KeyClass",
    plural = "keyclasses",
    singular = "keyclass",
    shortname = "kc",
    namespaced,
    status = "KeyClassStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "The key that protects the keys of encrypted Disks.",
    printcolumn(name = "Secret", type_ = "string", json_path = ".spec.secret.name"),
    printcolumn(name = "Vault", type_ = "string", json_path = ".spec.vault.address"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.secret) != has(self.vault)").message("set either secret or vault"),
    validation = Rule::new("has(self.secret) == has(oldSelf.secret) && (!has(self.secret) || self.secret == oldSelf.secret)").message("secret cannot change: create another KeyClass, and have the disks name that one").field_path(".secret"),
    validation = Rule::new("has(self.vault) == has(oldSelf.vault) && (!has(self.vault) || (self.vault.mount == oldSelf.vault.mount && self.vault.key == oldSelf.vault.key && has(self.vault.__namespace__) == has(oldSelf.vault.__namespace__) && (!has(self.vault.__namespace__) || self.vault.__namespace__ == oldSelf.vault.__namespace__)))").message("mount, key and namespace cannot change: create another KeyClass, and have the disks name that one").field_path(".vault")
)]
pub struct KeyClassSpec {
    /// The key, in a Secret. Set either this or `vault`. Cannot change: to use another key, create another KeyClass and have the disks
    /// name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<KeySecret>,
    /// The key, in the transit engine of a Vault (or OpenBao), which it does not leave. Set either this or `secret`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vault: Option<VaultKey>,
}

/// A key in a Secret of the namespace of its KeyClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeySecret {
    /// Name of the Secret, in the same namespace. Without it no disk of the class can be opened any more: keep it in another place
    /// too.
    pub name: ResourceName,
    /// The entry of the Secret: 32 random bytes in base64, as `openssl rand -base64 32` prints them. Default `key`.
    #[serde(default = "default_key")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

fn default_key() -> String {
    "key".into()
}

/// A key that the transit engine of a Vault has. Hosts have the keys of disks encrypted and decrypted there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.address.startsWith('https://') || self.address.startsWith('http://127.') || self.address.startsWith('http://[::1]')").message("address must begin with https://: http:// is for a loopback address of the host only").field_path(".address"),
    validation = Rule::new("has(self.tokenSecret) != has(self.appRole)").message("set either tokenSecret or appRole")
)]
pub struct VaultKey {
    /// The URL of the server, such as `https://vault.example:8200`, without a path. `http://` is for a loopback address of the host only.
    /// An address that is not public has to be allowed by the administrator of each host, as for images (`--image-allow`). May change, if
    /// the Vault is the same.
    #[schemars(length(min = 8, max = 253), regex(pattern = r"^https?://[A-Za-z0-9.:\[\]-]+/?$"))]
    pub address: String,
    /// The path at which the transit engine is mounted. Default `transit`. Cannot change.
    #[serde(default = "default_mount")]
    #[schemars(
        length(min = 1, max = 128),
        regex(pattern = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*$")
    )]
    pub mount: String,
    /// The name of the key in the transit engine, of a type that encrypts, such as `aes256-gcm96`. It has to exist. Cannot change.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$"))]
    pub key: String,
    /// The namespace of the Vault that has the engine, the key and the AppRole, for a Vault with namespaces. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 128),
        regex(pattern = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*$")
    )]
    pub namespace: Option<String>,
    /// Certificates in PEM that are trusted beside those of the host, in a Secret. Default of its `key`: `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret: Option<VaultSecret>,
    /// A token of the Vault, in a Secret. Set either this or `appRole`. Default of its `key`: `token`. It is not renewed: replace it in the
    /// Secret before it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret: Option<VaultSecret>,
    /// A role by which hosts log in (`auth/approle`). Set either this or `tokenSecret`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_role: Option<VaultAppRole>,
}

fn default_mount() -> String {
    "transit".into()
}

/// A role of the AppRole method at `auth/approle`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VaultAppRole {
    /// The role ID, which is no secret.
    #[serde(rename = "roleID")]
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[A-Za-z0-9_.-]+$"))]
    pub role_id: String,
    /// The secret ID, in a Secret. Default of its `key`: `secretID`.
    pub secret: VaultSecret,
}

/// An entry of a Secret of the namespace of the KeyClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VaultSecret {
    /// Name of the Secret, in the same namespace.
    pub name: ResourceName,
    /// The entry of the Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: Option<String>,
}

impl KeyClassSpec {
    /// The Secrets that a host reads for its key.
    pub fn secrets(&self) -> impl Iterator<Item = &ResourceName> {
        let vault = self.vault.as_ref();
        let token = vault.and_then(|vault| vault.token_secret.as_ref());
        let role = vault.and_then(|vault| vault.app_role.as_ref()).map(|role| &role.secret);
        let ca = vault.and_then(|vault| vault.ca_secret.as_ref());
        let own = self.secret.as_ref().map(|secret| &secret.name);
        own.into_iter().chain([token, role, ca].into_iter().flatten().map(|secret| &secret.name))
    }
}

/// The observed state of a KeyClass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyClassStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`: it is known. Whether its key can be used is in the condition `EncryptionSynced` of the Disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// At most four of the Disks and DiskSnapshots that need it. A deleted KeyClass stays until there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}

/// The encryption of a Disk as it is declared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskEncryption {
    /// Name of the KeyClass, in the Disk's namespace or in `berth-shared`. Default `default`. With another class, the key of the disk
    /// is protected by that one at once; its data stays as it is, and its VM runs on.
    #[serde(default = "default_class")]
    pub key_class: ResourceName,
}

fn default_class() -> ResourceName {
    crate::DEFAULT_NAME.into()
}

/// The encryption of a Disk or a DiskSnapshot as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EncryptionStatus {
    /// The KeyClass whose key protects it, as `NAMESPACE/NAME`.
    #[schemars(length(max = 127))]
    pub key_class: String,
    /// The source of that key: `Secret` or `Vault`.
    #[serde(rename = "providerID")]
    #[schemars(length(max = 63))]
    pub provider_id: String,
    /// The identifier of that key: a hash of it, or for a Vault of its namespace, mount and name.
    #[serde(rename = "keyID")]
    #[schemars(length(max = 63))]
    pub key_id: String,
    /// The identifier of the key of the disk, which its snapshots and copies share.
    #[serde(rename = "diskKeyID")]
    #[schemars(length(max = 63))]
    pub disk_key_id: String,
    /// How often the key of the disk was protected by a class: 1, and one more after each change of the class.
    pub generation: i64,
    /// The KeyClass that is about to protect it in the place of `keyClass`, as `NAMESPACE/NAME`. Only while that is being done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 127))]
    pub next: Option<String>,
}

impl EncryptionStatus {
    /// Returns the namespace and the name of the KeyClass.
    #[must_use]
    pub fn class(&self) -> Option<(&str, &str)> {
        self.key_class.split_once('/')
    }

    /// Returns the namespaces and the names of the KeyClasses that protect the key, or may do so already.
    pub fn classes(&self) -> impl Iterator<Item = (&str, &str)> {
        let next = self.next.as_deref().and_then(|next| next.split_once('/'));
        self.class().into_iter().chain(next)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_disk_that_declares_encryption_and_no_more_has_the_default_class_and_the_usual_entry() {
        let encryption: DiskEncryption = serde_json::from_value(json!({})).expect("an encryption");
        assert_eq!(encryption.key_class.as_str(), "default");
        let class: KeyClassSpec = serde_json::from_value(json!({"secret": {"name": "s"}})).expect("a class");
        assert_eq!(class.secret.expect("declared").key, "key");
        let status = EncryptionStatus { key_class: "ns/default".into(), ..EncryptionStatus::default() };
        assert_eq!(status.class(), Some(("ns", "default")));
        let changes = EncryptionStatus { next: Some("berth-shared/x".into()), ..status };
        assert_eq!(changes.classes().collect::<Vec<_>>(), [("ns", "default"), ("berth-shared", "x")]);
    }

    #[test]
    fn a_host_reads_the_secrets_of_a_class_and_no_others() {
        let names = |spec: serde_json::Value| {
            let spec: KeyClassSpec = serde_json::from_value(spec).expect("a class");
            spec.secrets().map(|name| name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(json!({"secret": {"name": "s"}})), ["s"]);
        let vault = json!({"address": "https://v", "key": "k", "tokenSecret": {"name": "t"}, "caSecret": {"name": "c"}});
        assert_eq!(names(json!({"vault": &vault})), ["t", "c"]);
        let role = json!({"roleID": "r", "secret": {"name": "id"}});
        assert_eq!(names(json!({"vault": {"address": "https://v", "key": "k", "appRole": role}})), ["id"]);
        let vault: VaultKey = serde_json::from_value(vault).expect("a Vault");
        assert_eq!(vault.mount, "transit");
    }
}
