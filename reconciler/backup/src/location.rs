//! Where a repository is.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use reqwest::dns::Resolve;
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
    /// Resolves the name of the endpoint, to addresses that may be connected to. With it, no proxy is used. None: as the host does.
    pub resolver: Option<Resolver>,
}

/// Resolves host names.
#[derive(Clone)]
pub struct Resolver(pub Arc<dyn Resolve>);

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}
