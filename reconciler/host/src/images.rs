//! Images: a cache of verified files, named by digest.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use berth_qemu::machine::{Architecture, ForeignFormat, Format};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncRead;

use crate::Result;

/// Receives the progress of a download: bytes so far, and the total if the source reports it. Called often; must be
/// fast.
pub type Progress<'a> = &'a (dyn Fn(u64, Option<u64>) + Send + Sync);

/// The images of a host.
#[async_trait]
pub trait Images: Send + Sync + fmt::Debug + 'static {
    /// Returns the verified image of this source if it is in the cache and the source's namespace has downloaded it
    /// itself, or is one of its readers. Sources in the namespace `berth-shared` need no proof of access.
    async fn image(&self, source: &ImageSource) -> Result<Option<ImageFacts>>;

    /// Ensures that the image is in the cache: downloads it and verifies checksum, format and virtual size. Bytes that
    /// are already cached for another namespace are downloaded again, but not stored.
    ///
    /// *Guarantees*: the cache contains only verified images. Concurrent callers for the same source share one
    /// download. An interrupted download resumes where it ended.
    async fn pull(
        &self,
        source: &ImageSource,
        credentials: &Credentials,
        progress: Progress<'_>,
    ) -> Result<ImageFacts>;

    /// Ensures that the image is in the cache, as [`Images::pull`] does, with the bytes of another host.
    async fn copy_image(
        &self,
        source: &ImageSource,
        from: Arc<dyn RemoteImage>,
        progress: Progress<'_>,
    ) -> Result<ImageFacts>;

    /// Opens the file of an image for another host, for reading from this offset on. `None`: it is not in the cache, or the source's
    /// namespace may not read it. An offset beyond the end gives no bytes.
    async fn open_image(&self, source: &ImageSource, offset: u64) -> Result<Option<ImageFile>>;

    /// Makes an image from a snapshot of this host: one file with everything that the snapshot is based on, named by the SHA-256
    /// that it turns out to have. Returns the one that was made for the same object before.
    ///
    /// *Guarantees*: an image that is in the cache is whole; one of an interrupted call is not in it. Dropping the future ends
    /// the work.
    ///
    /// *Errors*: [`SystemError::SnapshotLost`] if the snapshot is not there or not taken; [`SystemError::NoSpace`];
    /// [`SystemError::ImageNotMade`].
    async fn make_image(&self, new: &NewImage) -> Result<ImageFacts>;

    /// Returns how many bytes of this upload the host has. Those of an upload that ended early stay.
    ///
    /// *Errors*: [`SystemError::ImageTooLarge`] if this size is more than the host allows; [`SystemError::NoSpace`] if the rest does
    /// not fit.
    async fn uploaded(&self, source: &ImageSource, size: u64) -> Result<u64>;

    /// Adds bytes to an upload, which has `offset` bytes so far. Once it is whole, [`Images::pull`] verifies it and makes it an image.
    /// Bytes with another checksum are removed then.
    ///
    /// *Errors*: [`SystemError::Upload`] if the host has another number of bytes, or works on them; [`SystemError::NoSpace`].
    async fn append_upload(&self, source: &ImageSource, offset: u64, bytes: Vec<u8>) -> Result<()>;

    /// Reads the digest of an image from a checksum file, or from a registry.
    async fn resolve(&self, source: &ChecksumSource, credentials: &Credentials) -> Result<ResolvedImage>;

    /// Downloads the bytes of an image whose checksum is not known, and returns their SHA-256. The next [`Images::pull`] of the source with
    /// this digest begins with them.
    ///
    /// *Errors*: as of [`Images::pull`].
    async fn compute_checksum(
        &self,
        source: &ChecksumSource,
        credentials: &Credentials,
        progress: Progress<'_>,
    ) -> Result<String>;

    /// Lists the images in the cache, by digest.
    async fn images(&self) -> Result<Vec<ImageFacts>>;

    /// Removes an image from the cache.
    ///
    /// *Errors*: [`SystemError::ImageInUse`] while a volume, in a pool or in the trash, is based on it.
    async fn remove_image(&self, digest: &str) -> Result<()>;

    /// Adds a namespace to the readers of an image that is in the cache: another namespace that reads it shares it. Does nothing if it is not
    /// there.
    async fn add_reader(&self, digest: &str, namespace: &str) -> Result<()>;

    /// Removes a namespace from the readers of an image.
    async fn forget_reader(&self, digest: &str, namespace: &str) -> Result<()>;

    /// Removes partial downloads, except those of `but` and those in progress.
    async fn forget_downloads(&self, but: &BTreeSet<ImageSource>) -> Result<()>;

    /// Refuses to fetch images from these ranges, except addresses that the host's administrator allows individually.
    /// Replaces the ranges of the previous call.
    fn refuse_addresses(&self, ranges: BTreeSet<IpNet>);
}

/// The source of an image, and its expected digest and format.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageSource {
    /// The namespace that declares it. Access of one namespace does not imply access of another.
    pub namespace: String,
    /// Whether every namespace may read it without having downloaded it.
    pub shared: bool,
    /// `http://`, `https://`, `oci://` or `file:///`; [`upload_url`] for the upload of an Image, [`copy_url`] for a copy of one. May contain
    /// secrets: never printed.
    pub url: String,
    /// The URL without its secrets, for messages.
    pub shown: String,
    /// Lower-case hexadecimal digits: 64 of SHA-256 or 128 of SHA-512.
    pub digest: String,
    /// The format in the cache: as declared, or qcow2 after a conversion. Never probed.
    pub format: Format,
    /// The work on the bytes at the source before they have this format.
    pub encoding: Encoding,
    /// The name of the Secret with its [`Credentials`].
    pub secret: Option<String>,
    /// The host that it is copied from. One that is downloadable is downloaded if that fails.
    pub host: Option<SourceHost>,
    /// The limits of the attempts to download it.
    pub limits: DownloadLimits,
}

/// The limits of the attempts at a download. [`Images`] does not apply them: its caller does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DownloadLimits {
    /// The longest time that an attempt may take, in seconds.
    pub timeout_seconds: Option<u32>,
    /// How many times an attempt that failed is repeated.
    pub retries: Option<u32>,
}

/// A host that has an image, for another one that copies it. [`Images`] does not connect to it: a [`RemoteImage`] does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceHost {
    /// Its name.
    pub name: String,
    /// The address of its server.
    pub address: String,
    /// SHA-256 of the server's certificate, in hexadecimal digits.
    pub certificate_sha256: String,
    /// The path of a request for the file.
    pub path: String,
    /// The audience of a ticket for it.
    pub audience: String,
}

/// A file that is read.
pub struct ImageFile {
    /// The number of bytes of the whole file.
    pub size: u64,
    /// The bytes from the requested offset on.
    pub bytes: Box<dyn AsyncRead + Send + Unpin>,
}

impl fmt::Debug for ImageFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageFile").field("size", &self.size).finish_non_exhaustive()
    }
}

/// The file of an image on another host.
#[async_trait]
pub trait RemoteImage: Send + Sync + fmt::Debug {
    /// Opens it for reading from this offset on. It is untrusted: it may have any size and bytes, and may end early.
    async fn open(&self, offset: u64) -> std::result::Result<ImageFile, RemoteError>;
}

/// Why the file on another host cannot be read, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteError {
    /// The host does not answer, or the connection broke.
    Unreachable(String),
    /// The host refuses the request, or there is no ticket.
    Refused(String),
}

const UPLOAD: &str = "upload:";

/// The URL that stands for the upload of the Image with this uid.
pub fn upload_url(uid: &str) -> String {
    format!("{UPLOAD}{uid}")
}

/// The URL that stands for the copy of the Image with this uid from the host that has it, whatever the address of that host.
pub fn copy_url(uid: &str) -> String {
    format!("copy:{uid}")
}

impl ImageSource {
    /// Whether its digest is not known yet: its bytes are downloaded to compute one.
    pub(crate) fn is_unknown(&self) -> bool {
        self.digest == NO_DIGEST
    }

    /// Returns it with a digest that is not known yet.
    pub(crate) fn with_no_digest(&self) -> Self {
        Self { digest: NO_DIGEST.to_owned(), ..self.clone() }
    }

    /// Whether it has a URL to download it from, and is not only an upload or a copy.
    pub fn is_downloadable(&self) -> bool {
        self.url.contains("://")
    }

    /// Returns the digest that its file has in the cache: for a disk of an OVA with several, that of the archive with another first byte, so
    /// that each has a file of its own. No other bytes with such a digest can be found.
    pub fn stored_digest(&self) -> String {
        let number = self.encoding.ova.unwrap_or_default();
        let first = self.digest.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match first.filter(|_| number > 0) {
            Some(first) => format!("{:02x}{}", first ^ number, self.digest.get(2..).unwrap_or_default()),
            None => self.digest.clone(),
        }
    }

    /// Returns the uid of the Image whose upload it is. `None`: it is no upload.
    pub fn upload(&self) -> Option<&str> {
        self.url.strip_prefix(UPLOAD)
    }
}

/// Credentials for a source. Sent to the host of the source's URL only, and not where it redirects to. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// User name and password.
    pub basic: Option<(String, String)>,
    /// A token (`Authorization: Bearer`).
    pub token: Option<String>,
    /// Further headers: names and values.
    pub headers: Vec<(String, String)>,
    /// Certificates in PEM, trusted beside those of the system.
    pub ca: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// How an image is encoded at its source. Declared; never guessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Encoding {
    /// Undone first.
    pub compression: Option<Compression>,
    /// The image is the only file below `disk/` in a tar archive, as in KubeVirt's container disks.
    #[serde(default)]
    pub archive: bool,
    /// The image is a disk in an OVA: the one with this number, from 1; 0 is the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ova: Option<u8>,
    /// Converted to qcow2.
    pub foreign: Option<ForeignFormat>,
}

impl Encoding {
    /// Whether the bytes at the source are the image.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

/// The compression of an image at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Compression {
    Gzip,
    Xz,
    Zstd,
    Bzip2,
}

impl Compression {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
            Self::Bzip2 => "bzip2",
        }
    }
}

impl fmt::Debug for ImageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageSource")
            .field("namespace", &self.namespace)
            .field("url", &self.shown)
            .field("digest", &self.digest)
            .field("format", &self.format)
            .field("encoding", &self.encoding)
            .finish()
    }
}

/// A statement of a checksum file or a registry about an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedImage {
    /// As in [`ImageSource::digest`].
    pub digest: String,
    /// The media type of the layer in a registry.
    pub media_type: Option<String>,
}

/// A checksum file that lists an image, or the image's name in a registry.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChecksumSource {
    /// The namespace of the Image.
    pub namespace: String,
    /// The URL of the checksum file (`http://` or `https://`) or of the image (`oci://`). May contain secrets: never
    /// printed.
    pub url: String,
    /// That URL without its secrets, for messages.
    pub shown: String,
    /// The URL of the image: the last segment of its path is the image's name in the checksum file. May contain
    /// secrets.
    pub image_url: String,
    /// As in [`ImageSource::secret`].
    pub secret: Option<String>,
    /// Whether the checksum is that of the bytes which the image's URL has now ([`Images::compute_checksum`]).
    pub is_computed: bool,
    /// The architecture of the image that is meant, of those of an index in a registry. None: that of this host.
    pub architecture: Option<Architecture>,
    /// The limits of the attempts to download it.
    pub limits: DownloadLimits,
    /// The token of the Image: with another one, what was found before does not count.
    pub token: Option<String>,
}

/// Stands for a digest that is not known yet.
const NO_DIGEST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

impl ChecksumSource {
    /// Returns the download of the bytes that the checksum is computed of. `None`: it is read elsewhere.
    pub fn computed_from(&self) -> Option<ImageSource> {
        self.is_computed.then(|| ImageSource {
            namespace: self.namespace.clone(),
            shared: false,
            url: self.image_url.clone(),
            shown: self.shown.clone(),
            digest: NO_DIGEST.to_owned(),
            format: Format::Raw,
            encoding: Encoding::default(),
            secret: self.secret.clone(),
            host: None,
            limits: DownloadLimits::default(),
        })
    }
}

impl fmt::Debug for ChecksumSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChecksumSource")
            .field("namespace", &self.namespace)
            .field("url", &self.shown)
            .finish_non_exhaustive()
    }
}

/// An image to make from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NewImage {
    /// The namespace of the Image.
    pub namespace: String,
    /// The identity of the content: the uid of the Image, and its token if it has one.
    pub uid: String,
    /// The identity with the uid that the Image had before.
    pub former_uid: Option<String>,
    /// The object that it is made from, for messages.
    pub shown: String,
    pub pool: String,
    pub snapshot: String,
}

/// A verified image in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFacts {
    /// As in [`ImageSource::digest`].
    pub digest: String,
    pub format: Format,
    /// As in [`ImageSource::encoding`].
    pub encoding: Encoding,
    /// The virtual size: the minimum size of a disk created from it.
    pub virtual_size: u64,
    /// The size of the file.
    pub bytes: u64,
    pub path: PathBuf,
    /// The namespaces that have downloaded these bytes themselves. The image is invisible to all others.
    pub readers: BTreeSet<String>,
    /// The uids of the Images that it was made for on this host, from a snapshot or an upload: there may be no other copy of it.
    pub made_for: BTreeSet<String>,
}
