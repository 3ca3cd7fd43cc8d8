//! KeyClass: the key by which the keys of encrypted disks are protected.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Conditions, ObjectUser, ResourceName};

/// The key that protects the keys of encrypted Disks. Disks of its namespace name it; one in `berth-shared` is there for every
/// namespace. A Disk that names another class than before gets its key protected by that one, while its VM runs.
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
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.secret == oldSelf.secret").message("secret cannot change: create another KeyClass, and have the disks name that one").field_path(".secret")
)]
pub struct KeyClassSpec {
    /// The key, in a Secret. Cannot change: to use another key, create another KeyClass and have the disks name it.
    pub secret: KeySecret,
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
    /// The source of that key: `Secret`.
    #[serde(rename = "providerID")]
    #[schemars(length(max = 63))]
    pub provider_id: String,
    /// The identifier of that key, which is made from it by a hash.
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
        assert_eq!(class.secret.key, "key");
        let status = EncryptionStatus { key_class: "ns/default".into(), ..EncryptionStatus::default() };
        assert_eq!(status.class(), Some(("ns", "default")));
        let changes = EncryptionStatus { next: Some("berth-shared/x".into()), ..status };
        assert_eq!(changes.classes().collect::<Vec<_>>(), [("ns", "default"), ("berth-shared", "x")]);
    }
}
