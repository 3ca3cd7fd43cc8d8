//! BackupRepository: where Backups are kept, an S3-compatible object store or a folder of hosts.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{Conditions, ObjectUser, Quantity, ResourceName};

/// The bytes a second of verifications in a repository that declares none.
pub const VERIFICATION_BANDWIDTH: &str = "64Mi";
/// The maximum number of folders for backups in a Host's status.
pub const MOST_BACKUP_FOLDERS: usize = 64;

/// Where the Backups of a namespace are kept: an S3-compatible object store, or a folder that hosts have. All data in it is encrypted
/// with a password. It is made with its first Backup, and never deleted with the object.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "BackupRepository",
    plural = "backuprepositories",
    singular = "backuprepository",
    shortname = "brepo",
    namespaced,
    status = "BackupRepositoryStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "Where Backups are kept.",
    printcolumn(name = "Endpoint", type_ = "string", json_path = ".spec.s3.endpoint"),
    printcolumn(name = "Bucket", type_ = "string", json_path = ".spec.s3.bucket"),
    printcolumn(name = "Folder", type_ = "string", json_path = ".spec.folder"),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Reason", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].message"#),
    validation = Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("metadata.name must be a DNS label: lower-case letters, digits and '-', at most 63 characters")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.s3) != has(self.folder)").message("set either s3 or folder"),
    validation = Rule::new("has(self.s3) == has(self.credentialsSecretName)").message("credentialsSecretName is for s3, and s3 needs it").field_path(".credentialsSecretName"),
    validation = Rule::new("has(self.s3) == has(oldSelf.s3) && (!has(self.s3) || self.s3 == oldSelf.s3)").message("s3 cannot change: create another BackupRepository").field_path(".s3"),
    validation = Rule::new("has(self.folder) == has(oldSelf.folder) && (!has(self.folder) || self.folder == oldSelf.folder)").message("folder cannot change: create another BackupRepository").field_path(".folder")
)]
pub struct BackupRepositorySpec {
    /// A place in an S3-compatible object store. Set either this or `folder`. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Location>,
    /// The name under which administrators offer a folder for backups on their hosts (`--backup-folder NAME=FOLDER`): lower-case
    /// letters, digits and `-`, at most 36 characters. The repository is in it in `NAMESPACE/NAME`. Of a folder of several hosts (NFS),
    /// all of them read what one has written. Cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 36), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub folder: Option<String>,
    /// Name of the Secret, in the same namespace, with the credentials for `s3`: its keys `accessKeyID` and `secretAccessKey`, and
    /// optionally `ca.crt` with certificates that are trusted beside those of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_name: Option<ResourceName>,
    /// Name of the Secret, in the same namespace, with the password in its key `password`. Without the password no backup can be
    /// restored: keep it in another place too.
    pub password_secret_name: ResourceName,
    /// How its Backups are read back and verified, again and again. None: only when a Backup asks for it (`berth disk-backup verify`).
    /// Applied live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<VerificationPolicy>,
}

/// When Backups are verified: all their data is read from the repository, decrypted and compared with its checksums.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.bandwidth) || (quantity(self.bandwidth).compareTo(quantity('1Mi')) >= 0 && quantity(self.bandwidth).compareTo(quantity('100Gi')) <= 0)").message("bandwidth is from 1Mi to 100Gi a second").field_path(".bandwidth")
)]
pub struct VerificationPolicy {
    /// Each Backup is verified once it is complete, and again so many days after its last verification, 1 to 365. A block that was read
    /// for another Backup of the disk within this time is not read again.
    #[schemars(range(min = 1, max = 365))]
    pub interval_days: i64,
    /// The most bytes of disks that a host reads in a second, for one verification at a time of the namespace, for example `20Mi`. One that
    /// runs keeps the bandwidth with which it began. Default `64Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Quantity>,
}

/// A place in an S3-compatible object store.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct S3Location {
    /// The URL of the server, such as `https://s3.eu-north-1.amazonaws.com` or `https://minio.example:9000`. Buckets are named in the
    /// path of its requests.
    #[schemars(length(min = 8, max = 253), regex(pattern = r"^https?://[A-Za-z0-9.:\[\]-]+/?$"))]
    pub endpoint: String,
    /// The region that requests are signed for. Default `us-east-1`, which servers without regions take.
    #[serde(default = "default_region")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[A-Za-z0-9-]+$"))]
    pub region: String,
    /// The bucket. It has to exist.
    #[schemars(length(min = 3, max = 63), regex(pattern = r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$"))]
    pub bucket: String,
    /// The beginning of the keys of all its objects, without a slash at either end. Default: none. No other repository and no other
    /// program may write below it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512), regex(pattern = r"^([A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*)?$"))]
    pub prefix: String,
}

fn default_region() -> String {
    "us-east-1".into()
}

/// The observed state of a BackupRepository.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupRepositoryStatus {
    /// The generation that these conditions describe; -1 before the first report.
    #[serde(default = "crate::condition::never_observed")]
    pub observed_generation: i64,
    /// `Ready`: a host can reach it, as far as is known without opening it. `Reconciling`, `Stalled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::condition::schema")]
    pub conditions: Conditions,
    /// The identity that the repository has in itself, once a host has opened it. Another repository in the same place is refused.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "repositoryID")]
    #[schemars(length(max = 80))]
    pub repository_id: Option<String>,
    /// At most four of the Backups in it. A deleted BackupRepository stays until there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub used_by: Vec<ObjectUser>,
}

/// A folder for backups that a host offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostBackupFolder {
    /// The name.
    #[schemars(length(max = 36))]
    pub name: String,
    /// Why it cannot be used, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub problem: Option<String>,
}

impl BackupRepositorySpec {
    /// The most bytes a second of a verification.
    pub fn verification_bandwidth(&self) -> u64 {
        let declared = self.verification.as_ref().and_then(|policy| policy.bandwidth.clone());
        let bandwidth = declared.unwrap_or_else(|| Quantity(VERIFICATION_BANDWIDTH.to_owned()));
        bandwidth.bytes().unwrap_or(1 << 20)
    }

    /// The Secrets that a host needs to open it.
    pub fn secrets(&self) -> impl Iterator<Item = &ResourceName> {
        self.credentials_secret_name.iter().chain([&self.password_secret_name])
    }
}
