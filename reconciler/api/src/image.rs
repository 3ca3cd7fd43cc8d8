//! Image: the source of disks.

mod metadata;
#[cfg(test)]
mod tests;

use std::fmt;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Binding, Conditions, GuestOS, ObjectUser, ResourceName, SHARED_NAMESPACE, sharing::is_shared,
    vm::ConsoleAddress,
};
pub use metadata::ImageOs;

/// The source of disks, or of the medium of a CD-ROM drive. One host downloads and verifies it; the other hosts that need it copy it from
/// there, or download it. An image that is made from a Disk, a DiskSnapshot or another Image is on the host of that one, and an uploaded
/// image is on the host that it was uploaded to: other hosts copy it from there.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
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
    doc = "The source of disks.",
    selectable = ".status.binding.host",
    selectable = ".spec.source.sha256",
    selectable = ".spec.format",
    selectable = ".spec.version",
    selectable = ".spec.os.distribution",
    selectable = ".spec.os.version",
    selectable = ".spec.os.architecture",
    selectable = ".spec.owner",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Format", type_ = "string", json_path = ".spec.format"),
    printcolumn(name = "Size", type_ = "string", json_path = ".status.virtualSize"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "OS", type_ = "string", priority = 1, json_path = ".spec.os.distribution"),
    printcolumn(name = "OS-Version", type_ = "string", priority = 1, json_path = ".spec.os.version"),
    printcolumn(name = "Owner", type_ = "string", priority = 1, json_path = ".spec.owner"),
    printcolumn(name = "URL", type_ = "string", priority = 1, json_path = ".spec.source.url"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters"),
    validation = Rule::new("!has(self.spec.source.image) || has(self.spec.source.imageNamespace) || self.spec.source.image != self.metadata.name").message("spec.source.image must be another Image").field_path(".spec.source.image")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.source.sha256) == has(oldSelf.source.sha256) && (!has(self.source.sha256) || self.source.sha256 == oldSelf.source.sha256)").message("source.sha256 cannot change: disks are made from this very content; create another Image").field_path(".source.sha256"),
    validation = Rule::new("has(self.source.sha512) == has(oldSelf.source.sha512) && (!has(self.source.sha512) || self.source.sha512 == oldSelf.source.sha512)").message("source.sha512 cannot change: disks are made from this very content; create another Image").field_path(".source.sha512"),
    validation = Rule::new("has(self.source.checksumUrl) == has(oldSelf.source.checksumUrl) && (!has(self.source.checksumUrl) || self.source.checksumUrl == oldSelf.source.checksumUrl)").message("source.checksumUrl cannot change: it was read once; create another Image").field_path(".source.checksumUrl"),
    validation = Rule::new("(has(self.source.trustOnFirstUse) && self.source.trustOnFirstUse) == (has(oldSelf.source.trustOnFirstUse) && oldSelf.source.trustOnFirstUse)").message("source.trustOnFirstUse cannot change: disks are made from the bytes that were first; create another Image").field_path(".source.trustOnFirstUse"),
    validation = Rule::new("self.format == oldSelf.format").message("format cannot change: create another Image").field_path(".format"),
    validation = Rule::new("has(self.compression) == has(oldSelf.compression) && (!has(self.compression) || self.compression == oldSelf.compression)").message("compression cannot change: create another Image").field_path(".compression"),
    validation = Rule::new("(has(self.ovaDisk) ? self.ovaDisk : 0) == (has(oldSelf.ovaDisk) ? oldSelf.ovaDisk : 0)").message("ovaDisk cannot change: create another Image").field_path(".ovaDisk"),
    validation = Rule::new("!has(self.ovaDisk) || self.format == 'ova'").message("ovaDisk is the number of a disk in an ova").field_path(".ovaDisk"),
    validation = Rule::new("!(has(self.source.url) && self.source.url.startsWith('oci://') && self.format == 'ova')").message("the layer of an oci:// image is no ova").field_path(".format"),
    validation = Rule::new("!(has(self.source.url) && self.source.url.startsWith('oci://') && has(self.compression))").message("the registry has the compression of an oci:// image").field_path(".compression"),
    validation = Rule::new("!has(self.source.url) || !has(oldSelf.source.url) || self.source.url == oldSelf.source.url || !(self.source.url.startsWith('oci://') || oldSelf.source.url.startsWith('oci://'))").message("an oci:// URL cannot change: disks are made from the content that it had; create another Image").field_path(".source.url"),
    validation = Rule::new("(has(self.source.disk) ? self.source.disk : '') == (has(oldSelf.source.disk) ? oldSelf.source.disk : '')").message("source.disk cannot change: the image was made once; create another Image").field_path(".source.disk"),
    validation = Rule::new("(has(self.source.snapshot) ? self.source.snapshot : '') == (has(oldSelf.source.snapshot) ? oldSelf.source.snapshot : '')").message("source.snapshot cannot change: the image was made once; create another Image").field_path(".source.snapshot"),
    validation = Rule::new("(has(self.source.image) ? self.source.image : '') == (has(oldSelf.source.image) ? oldSelf.source.image : '')").message("source.image cannot change: the image has the content of that one; create another Image").field_path(".source.image"),
    validation = Rule::new("(has(self.source.imageNamespace) ? self.source.imageNamespace : '') == (has(oldSelf.source.imageNamespace) ? oldSelf.source.imageNamespace : '')").message("source.imageNamespace cannot change: the image has the content of that one; create another Image").field_path(".source.imageNamespace"),
    validation = Rule::new("(has(self.source.diskNamespace) ? self.source.diskNamespace : '') == (has(oldSelf.source.diskNamespace) ? oldSelf.source.diskNamespace : '')").message("source.diskNamespace cannot change: the image was made once; create another Image").field_path(".source.diskNamespace"),
    validation = Rule::new("(has(self.source.snapshotNamespace) ? self.source.snapshotNamespace : '') == (has(oldSelf.source.snapshotNamespace) ? oldSelf.source.snapshotNamespace : '')").message("source.snapshotNamespace cannot change: the image was made once; create another Image").field_path(".source.snapshotNamespace"),
    validation = Rule::new("has(self.source.upload) == has(oldSelf.source.upload) && (!has(self.source.upload) || self.source.upload.size == oldSelf.source.upload.size)").message("source.upload cannot change: disks are made from this very content; create another Image").field_path(".source.upload"),
    validation = Rule::new("!has(self.source.token) || self.format != 'iso'").message("an iso is the medium of drives, in which it would be exchanged: create another Image").field_path(".source.token"),
    validation = Rule::new("has(self.source.url) || has(self.source.upload) || has(self.source.image) || self.format == 'qcow2'").message("an image that is made from a disk or a snapshot has the format qcow2").field_path(".format"),
    validation = Rule::new("has(self.source.url) || has(self.source.upload) || has(self.source.image) || !has(self.compression)").message("compression is that of the file at a url, of an upload or of the other image").field_path(".compression")
)]
pub struct ImageSpec {
    /// The source of the image.
    pub source: ImageSource,
    /// The format of the image: `qcow2` (default), `raw`, `vmdk` (one file: monolithic sparse or stream-optimized), `vdi`, `vhdx`
    /// or `vhd` for disks, `ova` for a VMDK in an OVA, `iso` (ISO 9660) for CD-ROM drives of VMs. Never guessed. Hosts convert those that QEMU does not run
    /// well to qcow2, with `qemu-img`. Cannot change.
    #[serde(default)]
    pub format: ImageFormat,
    /// The number of the disk in an `ova`, from 1, in the order of its `.vmdk` files: each disk is an Image of its own. Default: the only
    /// disk; an archive with several disks is refused. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub ova_disk: Option<i64>,
    /// The compression of the file at the source: `gzip`, `xz`, `zstd` or `bzip2`. Default: none. Never guessed. The checksum is
    /// that of the compressed file. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<ImageCompression>,
    /// The operating system of guests that boot from disks made of it, `Linux` or `Windows`: that of VMs that declare none, neither themselves
    /// nor by their class. Disks that are copied from another disk or made from a backup have none. Default: none. A change takes effect at
    /// the next power cycle of each VM.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "guestOS")]
    pub guest_os: Option<GuestOS>,
    /// Whether deleting it is refused. Set it to false before deleting. Default false. Applied live.
    #[serde(default)]
    pub deletion_protection: bool,
    /// A name for people, at most 128 characters. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub display_name: Option<String>,
    /// A description for people, at most 1,024 characters. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub description: Option<String>,
    /// The version of the image, such as `2026.11` or `4.2.1`, at most 64 characters. A data source chooses the highest one. Default:
    /// none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub version: Option<String>,
    /// The operating system in the image, as its author declares it. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<Box<ImageOs>>,
    /// The person or the team that answers for the image, as its author declares it, at most 253 characters. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub owner: Option<String>,
    /// The namespaces whose Images can have the content of this one by `source.image` and `source.imageNamespace`, at most 64; `*` is
    /// every namespace. Once a namespace is taken off the list, no further Image there gets the content, and no further disk is made
    /// from those that have it; disks that exist stay. Default: none. Applied live.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    #[x_kube(validation = Rule::new("self.all(n, n == '*' || n.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'))").message("each of sharedWith must be the name of a namespace, or *"))]
    pub shared_with: Vec<String>,
}

/// Where an image comes from: a URL with the checksum of its bytes (exactly one of `sha256`, `sha512`, `checksumUrl` and
/// `trustOnFirstUse`, or none with `oci://`), a Disk, a DiskSnapshot, another Image, or an upload with its checksum (`sha256` or `sha512`).
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.url), has(self.disk), has(self.snapshot), has(self.upload), has(self.image)].filter(set, set).size() == 1").message("a source is exactly one of url, disk, snapshot, upload and image"),
    validation = Rule::new("!has(self.url) || self.url.startsWith('oci://') || [has(self.sha256), has(self.sha512), has(self.checksumUrl), has(self.trustOnFirstUse) && self.trustOnFirstUse].filter(set, set).size() == 1").message("exactly one of sha256, sha512 and checksumUrl is needed, or trustOnFirstUse: true"),
    validation = Rule::new("!has(self.trustOnFirstUse) || !self.trustOnFirstUse || (has(self.url) && !self.url.startsWith('oci://'))").message("trustOnFirstUse is for a url: an oci:// image has its checksum in the registry").field_path(".trustOnFirstUse"),
    validation = Rule::new("!has(self.imageNamespace) || has(self.image)").message("imageNamespace is the namespace of the Image in image").field_path(".imageNamespace"),
    validation = Rule::new("!has(self.token) || !(has(self.sha256) || has(self.sha512) || has(self.upload))").message("token makes the content anew, and a declared checksum fixes the content: create another Image").field_path(".token"),
    validation = Rule::new("!has(self.diskNamespace) || has(self.disk)").message("diskNamespace is the namespace of the Disk in disk").field_path(".diskNamespace"),
    validation = Rule::new("!has(self.snapshotNamespace) || has(self.snapshot)").message("snapshotNamespace is the namespace of the DiskSnapshot in snapshot").field_path(".snapshotNamespace"),
    validation = Rule::new("has(self.url) || !(has(self.timeoutSeconds) || has(self.retries))").message("timeoutSeconds and retries are for a url").field_path(".timeoutSeconds"),
    validation = Rule::new("!has(self.secretName) || !has(self.url) || !self.url.startsWith('file:')").message("a file of the host needs no Secret").field_path(".secretName"),
    validation = Rule::new("!has(self.secretName) || !has(self.url) || !self.url.matches('^[a-z]+://[^/]*@')").message("secretName and a user in the url exclude each other").field_path(".secretName"),
    validation = Rule::new("!has(self.url) || !self.url.startsWith('oci://') || !(has(self.sha256) || has(self.sha512) || has(self.checksumUrl))").message("an oci:// image has its checksum in the registry: write @sha256:... at the end of url to choose one"),
    validation = Rule::new("!has(self.upload) || [has(self.sha256), has(self.sha512)].filter(set, set).size() == 1").message("an upload needs exactly one of sha256 and sha512").field_path(".upload"),
    validation = Rule::new("!has(self.upload) || !(has(self.checksumUrl) || has(self.secretName))").message("checksumUrl and secretName belong to a url").field_path(".upload"),
    validation = Rule::new("has(self.url) || has(self.upload) || !(has(self.sha256) || has(self.sha512) || has(self.checksumUrl) || has(self.secretName))").message("sha256, sha512, checksumUrl and secretName belong to a url: the host computes the checksum of an image that is made from a disk or a snapshot, and a copy has that of the other image")
)]
pub struct ImageSource {
    /// `http://`, `https://`, `oci://REGISTRY/REPOSITORY[:TAG|@DIGEST]` for an image in a container registry, or `file:///` for a
    /// file on the host, in a folder that its administrator allows (`--image-dir`). Can change, for example to a mirror: the
    /// checksum identifies the content. An `oci://` URL cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = Rule::new("self.matches('^(https?|oci)://[^/:?#]') || self.startsWith('file:///')").message("must start with http://, https:// or oci:// and a host, or with file:///"))]
    pub url: Option<String>,
    /// Name of a Disk, of the same namespace or of `diskNamespace`: its data is copied when the image is made, as soon as the disk has a
    /// file. Its VM runs on meanwhile. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<ResourceName>,
    /// The namespace of the Disk in `disk`, which has to be shared with the namespace of the image (`sharedWith`). Default: the same
    /// namespace. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_namespace: Option<ResourceName>,
    /// Name of a DiskSnapshot, of the same namespace or of `snapshotNamespace`, whose data the image has. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<ResourceName>,
    /// The namespace of the DiskSnapshot in `snapshot`, which has to be shared with the namespace of the image (`sharedWith`). Default: the
    /// same namespace. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_namespace: Option<ResourceName>,
    /// Name of another Image, of the same namespace or of `imageNamespace`: this one has its content under another name, without another
    /// download, and keeps it when the other one is deleted. `format` and `compression` are those of the other one. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ResourceName>,
    /// The namespace of the Image in `image`, which has to be shared with the namespace of this one (`sharedWith`), also for each disk that
    /// is made from this one. Default: the same namespace. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_namespace: Option<ResourceName>,
    /// The file is uploaded to the host of the image: by `berth image push`, or by Terraform from its machine. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload: Option<ImageUpload>,
    /// SHA-256 of the bytes at the source, 64 hexadecimal digits in lower case. Enforced before the first use. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9a-f]{64}$')").message("must be 64 hexadecimal digits in lower case (as sha256sum prints them)"))]
    pub sha256: Option<String>,
    /// SHA-512 of the bytes at the source, 128 hexadecimal digits in lower case. Enforced before the first use. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9a-f]{128}$')").message("must be 128 hexadecimal digits in lower case (as sha512sum prints them)"))]
    pub sha512: Option<String>,
    /// `http://` or `https://` of a file of checksums (`SHA256SUMS`, `SHA512SUMS`; GNU or BSD format, at most 1 MiB) with a line
    /// for the last part of `url`. Read once, before the download; `status.checksum` stores the result. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    #[x_kube(validation = Rule::new("self.matches('^https?://[^/:?#]')").message("must start with http:// or https:// and a host"))]
    pub checksum_url: Option<String>,
    /// Whether the checksum is that of the bytes that `url` has when it is first downloaded, in `status.checksum`, because there is none to
    /// compare them with. It is enforced from then on. Whatever the server, or the network to it, sends then is accepted: use it for
    /// sources that you trust, with `https://`. Default false. Cannot change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub trust_on_first_use: bool,
    /// The longest time that one attempt to download the `url` may take, its decompression and conversion included, in seconds, from 10 to
    /// 86,400. The next attempt continues with the bytes that have come, but with `trustOnFirstUse`. Default: no limit, while at least 64 KiB a second come. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 86_400))]
    pub timeout_seconds: Option<i64>,
    /// How many times a download of the `url` that has failed is tried again, on each host, before the image is `Stalled`
    /// (`DownloadFailed`), at most 1,000. Default: without limit. Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub retries: Option<i64>,
    /// Any text of 1 to 64 characters. A change makes the content anew: the checksum at `checksumUrl` or in the registry is read again and
    /// the `url` is downloaded, or the present data of the disk, the snapshot or the other image is copied. Disks that exist keep the
    /// content that they are based on. New disks wait for the new content, whose checksum is in `status.checksum`. Not with `sha256`,
    /// `sha512`, `upload` and the format `iso`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub token: Option<String>,
    /// Name of a Secret in the Image's namespace with what the source asks for: `username` and `password`, or `token`; `headers`,
    /// one `Name: value` per line; `ca.crt`, the certificates in PEM that its own is issued by; or `.dockerconfigjson` for a
    /// registry. Hosts that download the image may read it. Credentials are sent to the host of `url` only, and not where it redirects
    /// to. Not together with a user in `url`. Can change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')").message("must be a name: lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part"))]
    #[schemars(length(max = 253))]
    pub secret_name: Option<String>,
}

/// The most bytes of an uploaded file, and of any image on a host.
pub const MAX_IMAGE_FILE: i64 = 256 << 30;

/// A file that is uploaded. Its checksum is that of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageUpload {
    /// The number of bytes of the file, from 1 to 256 GiB. Cannot change.
    #[schemars(range(min = 1, max = 274_877_906_944i64))]
    pub size: i64,
}

/// Without user names, passwords and query strings: these may be secrets.
impl fmt::Debug for ImageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageSource")
            .field("url", &self.url.as_deref().map(redacted_url))
            .field("disk", &self.disk)
            .field("disk_namespace", &self.disk_namespace)
            .field("snapshot", &self.snapshot)
            .field("snapshot_namespace", &self.snapshot_namespace)
            .field("image", &self.image)
            .field("image_namespace", &self.image_namespace)
            .field("upload", &self.upload)
            .field("sha256", &self.sha256)
            .field("sha512", &self.sha512)
            .field("trust_on_first_use", &self.trust_on_first_use)
            .field("checksum_url", &self.checksum_url.as_deref().map(redacted_url))
            .field("timeout_seconds", &self.timeout_seconds)
            .field("token", &self.token)
            .field("retries", &self.retries)
            .field("secret_name", &self.secret_name)
            .finish()
    }
}

/// A URL as it may be shown in logs, conditions and events: without user name, password, query string and fragment, any of
/// which may be a secret (signed URLs).
pub fn redacted_url(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let (plain, rest) = url.split_at(end);
    let mut shown = match plain.split_once("://") {
        Some((scheme, rest)) => {
            let end = rest.find(['/', '\\']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{path}")
        }
        // No URL: nothing of it is known to be harmless but that it has no '@'.
        None => plain.rsplit_once('@').map_or(plain, |(_, host)| host).to_owned(),
    };
    if rest.starts_with('?') {
        shown.push_str("?…");
    }
    shown
}

/// The FNV-1a hash of a text: the same one in every version of berth.
fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Image {
    /// The checksum that the image's bytes must have, in hexadecimal digits: SHA-256 has 64, SHA-512 128. `None` while
    /// `checksumUrl` was not read, the registry not asked, or the image not made from its disk yet.
    pub fn digest(&self) -> Option<&str> {
        let declared = self.spec.source.sha512.as_deref().or(self.spec.source.sha256.as_deref());
        declared.or_else(|| self.status.as_ref()?.checksum.as_deref())
    }

    /// Returns the number of its disk in an OVA: 0 is the only one.
    pub fn ova_number(&self) -> u8 {
        self.spec.ova_disk.and_then(|number| u8::try_from(number).ok()).unwrap_or_default()
    }

    /// Returns the digest by which hosts store its file and report it: [`Image::digest`], but that of another file for each disk of an OVA.
    pub fn stored_digest(&self) -> Option<String> {
        let (digest, number) = (self.digest()?, self.ova_number());
        let first = digest.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        Some(match first.filter(|_| number > 0) {
            Some(first) => format!("{:02x}{}", first ^ number, digest.get(2..).unwrap_or_default()),
            None => digest.to_owned(),
        })
    }

    /// Whether it is made from a disk, a snapshot or another image of the site, or uploaded: it is on one host, and has no URL that others
    /// download it from.
    pub fn is_local(&self) -> bool {
        self.spec.source.url.is_none()
    }

    /// Whether it is on one host, and other hosts cannot copy it from there.
    pub fn is_of_one_host(&self) -> bool {
        self.is_local() && self.copied_from().is_none()
    }

    /// Whether other hosts can copy the file from the one that has it: its bytes are those that its checksum is of. A file that was
    /// decompressed or converted has others. One of a folder of the hosts is read by each host from its own, if that host allows it.
    pub fn is_copyable(&self) -> bool {
        let is_kept = matches!(self.spec.format, ImageFormat::Qcow2 | ImageFormat::Raw | ImageFormat::Iso);
        let is_of_a_folder = self.spec.source.url.as_deref().is_some_and(|url| url.starts_with("file:"));
        is_kept && self.spec.compression.is_none() && !is_of_a_folder && !self.is_unpacked()
    }

    /// Whether the layer in its registry is compressed or an archive, by its media type: a host has another file than the layer.
    fn is_unpacked(&self) -> bool {
        let layer = self.status.as_ref().and_then(|status| status.media_type.as_deref()).unwrap_or_default();
        ["gzip", "zstd", ".tar"].iter().any(|end| layer.ends_with(end))
    }

    /// Returns the host that other hosts copy it from, and its server. `None`: they download it, or it is on its host only. They also
    /// download one with a URL if the copy fails.
    pub fn copied_from(&self) -> Option<(&str, &ConsoleAddress)> {
        let status = self.status.as_ref().filter(|_| self.is_copyable())?;
        Some((status.binding.as_ref()?.host.as_str(), status.server.as_ref()?))
    }

    /// Returns the kind and the name of the object that it is made from.
    pub fn origin(&self) -> Option<(&'static str, &ResourceName)> {
        let source = &self.spec.source;
        let named = [("DiskSnapshot", &source.snapshot), ("Disk", &source.disk), ("Image", &source.image)];
        named.into_iter().find_map(|(kind, name)| Some((kind, name.as_ref()?)))
    }

    /// Returns the namespace and the name of the Image that it is a copy of.
    pub fn original(&self) -> Option<(&str, &ResourceName)> {
        let name = self.spec.source.image.as_ref()?;
        let other = self.spec.source.image_namespace.as_ref().map(ResourceName::as_str);
        Some((other.or(self.metadata.namespace.as_deref()).unwrap_or_default(), name))
    }

    /// Returns the namespace and the name of the Image that it is a copy of, if that is of another namespace: it must be shared with this one.
    pub fn foreign_original(&self) -> Option<(&str, &ResourceName)> {
        self.original().filter(|(namespace, _)| Some(*namespace) != self.metadata.namespace.as_deref())
    }

    /// Whether Images of this namespace may have its content: its own namespace may, those that it is shared with, and all if it is in
    /// `berth-shared`.
    pub fn is_shared_with(&self, namespace: &str) -> bool {
        self.metadata.namespace.as_deref() == Some(SHARED_NAMESPACE)
            || is_shared(&self.metadata, &self.spec.shared_with, namespace)
    }

    /// Returns the namespace of the Disk or the DiskSnapshot that it is made from, if that is another one: it must be shared with this one.
    pub fn foreign_data(&self) -> Option<&str> {
        let source = &self.spec.source;
        let declared = source.disk_namespace.as_ref().or(source.snapshot_namespace.as_ref())?.as_str();
        Some(declared).filter(|declared| Some(*declared) != self.metadata.namespace.as_deref())
    }

    /// Whether its content is to be made anew: its status describes that of another `source.token`.
    pub fn is_outdated(&self) -> bool {
        let is_new = self.status.as_ref().is_none_or(|status| status.binding.is_none());
        let made_for = self.status.as_ref().and_then(|status| status.token.as_ref());
        !is_new && self.spec.source.token.as_ref() != made_for && self.metadata.deletion_timestamp.is_none()
    }

    /// Returns berth's own identity of the content that is made for an object with this uid: another one for each token. It follows from the
    /// token, so that content is found again after the status was lost.
    pub fn content_id(&self, uid: &str) -> String {
        match self.status.as_ref().and_then(|status| status.token.as_deref()) {
            Some(token) => format!("{uid}-{:016x}", fnv1a(token)),
            None => uid.to_owned(),
        }
    }

    /// Returns berth's own identity of the snapshot that is taken of a Disk for this image, which nothing else names.
    pub fn own_snapshot(&self) -> Option<String> {
        self.metadata.uid.as_ref().map(|uid| format!("i-{}", self.content_id(uid)))
    }
}

/// The format of an image's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ImageFormat {
    #[default]
    Qcow2,
    Raw,
    Iso,
    Vmdk,
    Vdi,
    Vhdx,
    Vhd,
    Ova,
}

/// The compression of an image's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ImageCompression {
    Gzip,
    Xz,
    Zstd,
    Bzip2,
}

/// The observed state of an Image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`, `Reconciling`, `Stalled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// One word for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ImageState>,
    /// The host that verifies it, or that made it from a disk or a snapshot, or that it is uploaded to, and has it. Written by the
    /// scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// berth's own identity of the snapshot that it is made from. Written by the scheduler.
    #[serde(default, rename = "snapshotID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub snapshot_id: Option<String>,
    /// The volume of the Disk that it is made from, of which that snapshot is taken. Written by the scheduler.
    #[serde(default, rename = "volumeID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub volume_id: Option<String>,
    /// The StoragePool that has the snapshot. Written by the scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<ResourceName>,
    /// The size disks made from it have at least, as a quantity; of an `iso`, its size in whole sectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_size: Option<String>,
    /// The number of bytes of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
    /// The checksum at `source.checksumUrl`, or of the layer in the registry, when it was first read, or of the first bytes with
    /// `source.trustOnFirstUse`, or of the file that was made from a disk or a snapshot, or that of the image in `source.image`, 64 (SHA-256)
    /// or 128 (SHA-512) hexadecimal digits: disks are made from exactly this content, whatever the URL returns later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub checksum: Option<String>,
    /// The `source.token` whose content this is. Written by the scheduler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub token: Option<String>,
    /// The media type of that layer, also of a copy of its image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub media_type: Option<String>,
    /// The server that takes the upload, while the file is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload: Option<ConsoleAddress>,
    /// The server that other hosts copy the file from, while its host has it. Absent while its host serves none, and for a file that was
    /// decompressed or converted: other hosts download it then, and disks of one that was made or uploaded are bound to its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ConsoleAddress>,
    /// The server that clients download the file from (`berth image download`), once an image that was made or uploaded is complete. Absent
    /// while its host serves none, and for a file that was decompressed or converted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<ConsoleAddress>,
    /// The hosts that report a file with its checksum in their cache, by name, once it was verified. At most 64 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 253)))]
    pub hosts: Vec<String>,
    /// The number of bytes downloaded or uploaded, while it is being downloaded or uploaded, in steps of at least 5 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downloaded_bytes: Option<i64>,
    /// At most four of the Disks and VMs that name it. A deleted Image stays until nothing uses it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}

/// The state of an Image, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImageState {
    Pending,
    Pulling,
    /// It is being made from a disk, a snapshot or another image.
    Creating,
    Ready,
    Failed,
}
