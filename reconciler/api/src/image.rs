//! Image: something disks are made from.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Binding, Conditions, ObjectUser};

/// Something disks are made from. The first host to use it verifies it; every host downloads it once at most.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "Image",
    plural = "images",
    singular = "image",
    shortname = "img",
    namespaced,
    status = "ImageStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "Something disks are made from.",
    selectable = ".status.binding.host",
    selectable = ".spec.source.sha256",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Format", type_ = "string", json_path = ".spec.format"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.virtualSize"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "URL", type_ = "string", priority = 1, json_path = ".spec.source.url"),
    printcolumn(name = "Reason", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.source.sha256 == oldSelf.source.sha256").message("source.sha256 cannot change: disks are made from this very content; create another Image").field_path(".source.sha256"),
    validation = Rule::new("self.format == oldSelf.format").message("format cannot change: create another Image").field_path(".format")
)]
pub struct ImageSpec {
    /// Where the image comes from.
    pub source: ImageSource,
    /// The format of the bytes at the source: `qcow2` (default) or `raw`. Never guessed. Cannot change.
    #[serde(default)]
    pub format: ImageFormat,
}

/// Where an image comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageSource {
    /// `http://`, `https://`, or `file:///` for a file on the host. May change (a mirror): the checksum is what counts.
    #[schemars(length(max = 2048))]
    #[x_kube(validation = Rule::new("self.startsWith('http://') || self.startsWith('https://') || self.startsWith('file:///')").message("must start with http://, https:// or file:///"))]
    pub url: String,
    /// SHA-256 of the bytes at the source, 64 hexadecimal digits in lower case. Enforced before the first use. Cannot change.
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9a-f]{64}$')").message("must be 64 hexadecimal digits in lower case (as sha256sum prints them)"))]
    pub sha256: String,
}

/// The format of an image's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ImageFormat {
    #[default]
    Qcow2,
    Raw,
}

/// What is known of an Image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageStatus {
    /// The generation these conditions were computed from; -1 before anybody looked.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`, `Reconciling`, `Stalled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// One word for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ImageState>,
    /// The host that verifies it. Written by the scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// The size disks made from it have at least, as a quantity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_size: Option<String>,
    /// The number of bytes of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// The number of bytes downloaded, while it is being downloaded, in steps of at least 5 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downloaded_bytes: Option<i64>,
    /// Some of the Disks that name it: at most four, whoever else there is. While there is one, deleting the Image is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}

/// One word for what an Image is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImageState {
    Pending,
    Pulling,
    Ready,
    Failed,
}
