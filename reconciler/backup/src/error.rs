//! The errors of this crate.

use std::fmt;
use std::path::PathBuf;

use uuid::Uuid;

/// The result of an operation on a repository.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a [`Source`](crate::Source) or a [`Sink`](crate::Sink), which this crate does not know.
pub type DiskError = Box<dyn std::error::Error + Send + Sync>;

/// Why an operation on a repository failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{what} {value:?} is not valid: it must have 1 to 80 of the characters a-z, 0-9 and -")]
    Id { what: &'static str, value: String },
    #[error("the location of the repository is not valid: {detail}")]
    Location { detail: String },
    #[error("the password of a repository must not be empty")]
    NoPassword,

    #[error(
        "there is no repository at {place}: repository.json is missing. If it was there, the folder is not mounted or \
         the address is another one"
    )]
    NoRepository { place: String },
    #[error(
        "{place} has no repository.json but is not empty (it has {found}): restore repository.json, or use an empty place"
    )]
    NotEmpty { place: String, found: String },
    #[error(
        "the repository at {place} has version {version} of the format, and this berth reads version 1: use a newer berth"
    )]
    Version { place: String, version: u64 },
    #[error(
        "the password does not open the repository at {place}: it is another one, or repository.json was changed"
    )]
    Password { place: String, id: Uuid },
    /// The repository that was opened is not there any more: another one is in its place.
    #[error(
        "the repository at {place} is another one, {found}, and was {id} before: restore the former one, or use another \
         place for this one"
    )]
    Replaced { place: String, id: Uuid, found: Uuid },

    #[error("there is no backup {backup} of disk {disk}")]
    NoBackup { disk: String, backup: String },
    /// The object is truncated or was changed: its name, length or content is not as it was written.
    #[error(
        "{place} is damaged: {detail}. The next backup of the disk stores a block anew if the disk still has its data; \
         otherwise restore this object from a copy, or delete the backups that need it"
    )]
    Damaged { place: String, detail: String },
    #[error(
        "the block {place} is missing: the backup cannot be read. The next backup of the disk stores it anew if the disk \
         still has its data; otherwise restore this object from a copy, or delete the backup"
    )]
    MissingBlock { place: String },
    /// Each time that the backup was complete, blocks of it were gone.
    #[error(
        "blocks of the backup are deleted while it is made, such as {place}: another site deletes backups of this disk, or \
         another program deletes objects of the repository"
    )]
    BlocksDeleted { place: String },
    #[error(
        "{place} has more than {limit} {what}, the maximum: use a repository of its own for some of the disks"
    )]
    TooMany { place: String, what: &'static str, limit: usize },
    #[error("the disk has {size} bytes, and a backup at most {limit}")]
    DiskTooLarge { size: u64, limit: u64 },
    #[error("the facts of a backup have {length} bytes of JSON, and at most {limit} are stored")]
    FactsTooLarge { length: usize, limit: usize },
    #[error("the disk has {size} bytes, and the backup needs {needed}: restore to a larger disk")]
    DiskTooSmall { size: u64, needed: u64 },
    #[error("{length} bytes at byte {offset} are not in the backup, which has {size}")]
    OutOfRange { offset: u64, length: usize, size: u64 },
    #[error(
        "the extents of the disk from byte {offset} on cover {covered} bytes, and {needed} were asked for"
    )]
    Extents { offset: u64, covered: u64, needed: u64 },

    #[error("cannot read the disk at byte {offset}")]
    Source { offset: u64, source: DiskError },
    #[error("cannot write the disk at byte {offset}")]
    Sink { offset: u64, source: DiskError },

    #[error("cannot {action} {}", path.display())]
    Folder { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{} did not answer within {seconds} seconds: is the server of this folder reachable?", path.display())]
    FolderStalled { path: PathBuf, seconds: u64 },
    /// The server gave no complete answer, at any of the attempts.
    #[error("cannot {action} {place}, at {attempts} attempts: {detail}")]
    NoAnswer { action: &'static str, place: String, attempts: u32, detail: String },
    /// `code` and `message` are those of S3.
    #[error("cannot {action} {place}: the server answered {status} {code}: {message}{}", Hint(*status, code))]
    Refused { action: &'static str, place: String, status: u16, code: String, message: String },
    #[error("cannot {action} {place}: {detail}")]
    UnexpectedAnswer { action: &'static str, place: String, detail: String },
    #[error("cannot encrypt {place}: the cryptographic library failed")]
    Cryptography { place: String },
}

impl Error {
    /// Whether the same operation may succeed later, without a change of the repository, its address or its password.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NoAnswer { .. } | Self::FolderStalled { .. } | Self::Folder { .. } => true,
            Self::BlocksDeleted { .. } => true,
            Self::Source { .. } | Self::Sink { .. } => true,
            Self::Refused { status, code, .. } => {
                let codes = ["SlowDown", "RequestTimeout", "OperationAborted", "ConditionalRequestConflict"];
                codes.contains(&code.as_str()) || matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
            }
            _ => false,
        }
    }
}

/// The next step of a person, for the answers of S3 that are common.
struct Hint<'a>(u16, &'a str);

impl fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.0, self.1) {
            (_, "NoSuchBucket") => " (create the bucket, or correct its name)",
            (_, "InvalidAccessKeyId" | "SignatureDoesNotMatch") => " (correct the access key and its secret)",
            (_, "RequestTimeTooSkewed") => " (set this host's clock)",
            (301 | 307 | 308, _) | (_, "AuthorizationHeaderMalformed") => {
                " (correct the endpoint and the region: redirects are not followed)"
            }
            (403, _) => " (the access key needs to read, write, delete and list these objects)",
            _ => "",
        })
    }
}
