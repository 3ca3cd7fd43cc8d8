//! Where a repository is.

use std::path::PathBuf;

use secrecy::SecretString;

/// Where a repository is.
#[derive(Clone, Debug)]
pub enum Location {
    /// An absolute path. The folder is created if its parent exists.
    Folder(PathBuf),
    S3(S3Location),
}

/// A bucket of an S3-compatible object store, or a part of it.
#[derive(Clone, Debug)]
pub struct S3Location {
    /// `https://HOST[:PORT]`, or `http://`. Buckets are addressed by path, and no proxy is used.
    pub endpoint: String,
    /// `us-east-1` for stores without regions.
    pub region: String,
    pub bucket: String,
    /// The part of the keys before all others, without slashes at its ends. It may be empty.
    pub prefix: String,
    pub access_key_id: String,
    pub secret_access_key: SecretString,
    /// Certificate authorities in PEM that the endpoint's certificate may be issued by, in addition to those of the host.
    pub ca_certificates: Option<String>,
}
