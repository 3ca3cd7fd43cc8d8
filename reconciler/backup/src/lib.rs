//! Backups of disks: deduplicated, compressed and encrypted, in a folder or in an S3-compatible object store.
//!
//! ```text
//!  Repository     open, back_up, facts, restore, open_backup, verify, delete, list
//!     │
//!     ├── repository_file, keys      repository.json, and what the password protects
//!     ├── sealed, block, manifest    objects as bytes: pure
//!     ▼
//!  Objects        the trait of a store: get, put, create, delete, list
//!     ├── Folder
//!     └── S3, with Signature Version 4
//! ```
//!
//! Must not know Kubernetes, QEMU or any of berth's kinds. Callers implement [`Source`] and [`Sink`] for their disks.
//!
//! # Format, version 1
//!
//! Numbers in binary data are little-endian. `PREFIX` is the folder, or the prefix of the keys in the bucket.
//!
//! ```text
//! PREFIX/repository.json                        public parameters, and the keys, sealed with the password
//! PREFIX/disks/DISK/blocks/XX/ID                a block of data, or an index; XX: the first two digits of ID
//! PREFIX/disks/DISK/backups/BACKUP              the manifest of a backup, written last
//! PREFIX/disks/DISK/damaged/ID                  a note that the block ID was found damaged
//! ```
//!
//! **`repository.json`** is JSON: `format` (`berth-backup`), `version` (1), `id` (a UUID), `blockSize` (4194304), `kdf` with `name`
//! (`PBKDF2-HMAC-SHA256`), `salt` (base64) and `iterations`, and `keys` (base64). `keys` is a nonce of 12 bytes, 64 bytes
//! encrypted with AES-256-GCM and a tag of 16 bytes. The key is derived from the password; the associated data is the text
//! `berth-backup/1/repository/ID/BLOCKSIZE/SALT/ITERATIONS`, with the values as in the JSON. Bytes 0 to 31 are the repository's
//! sealing key, 32 to 63 its key for ids. Both are random and never change.
//!
//! **A note** has any content. The next backup that has its block stores that anew, and deletes the note. At worst, a note that is wrong has a
//! block stored again.
//!
//! **Sealed objects** are all others:
//!
//! ```text
//! byte   0       1: the version
//!        1       0: stored, 1: a Zstandard frame
//!        2..6    the length of the plain data
//!        6..18   the nonce
//!       18..     the data, encrypted with AES-256-GCM and the sealing key, and a tag of 16 bytes
//! ```
//!
//! The associated data is the text `berth-backup/1/block/ID` or `berth-backup/1/backup/DISK/BACKUP` followed by bytes 0 to 5. So an object
//! that is renamed, or moved to another disk's backup, does not decrypt.
//!
//! **A block** is 4 MiB of a disk; the last one may be shorter. Its id is HMAC-SHA256 of the plain data with the key for ids, in
//! hexadecimal digits. Equal blocks of one disk are one object; those of two disks are two, so that only the host of a
//! disk writes and deletes its objects. A block of zeros is not stored; its id in an index is 32 zero bytes.
//!
//! **An index** has the ids of 16384 blocks (64 GiB of the disk), 32 bytes each; the last one is shorter. It is stored as if it were a
//! block, so that the index of an unchanged part of a disk is stored once. An index with zero blocks only is not stored.
//!
//! **A manifest** is JSON: `size` in bytes, `time` (RFC 3339), `facts` (an object, as given by the caller), `readBytes`, `storedBytes` and
//! `blocks` (the number of blocks that are not zeros) for information, and `indexes`: their ids in order, `null` for one that is
//! not stored. A backup without manifest does not exist.
//!
//! # Limits
//!
//! A disk has at most 16 TiB ([`MAX_SIZE`]), and at most 16 Mi different blocks in its repository (64 TiB of data). The nonces of AES-GCM are random, so a repository should
//! not have more than 2^32 objects ever written (16 PiB of data), where a repeated nonce has a probability of 2^-33. At most 4
//! blocks are in memory, also of a backup that is read in parts. A large disk also needs 32 bytes for each block that its backups have.
//!
//! # Security
//!
//! The store learns the ids of disks and backups, sizes, times and which blocks of a disk are equal. It cannot read or
//! change data without detection. It can delete objects, and replace a backup by nothing; keep copies where that matters.

mod block;
mod disk;
mod error;
mod ids;
mod keys;
mod location;
mod manifest;
mod objects;
mod repository;
mod repository_file;
mod sealed;
#[cfg(test)]
mod tests;

pub use disk::{Extent, Progress, Sink, Source};
pub use error::{DiskError, Error, Result};
pub use ids::{BackupId, DiskId};
pub use location::{Location, Resolver, S3Location};
pub use manifest::{BackupFacts, MAX_FACTS, MAX_SIZE, Summary};
pub use repository::{BackupReader, ListedBackup, NewBackup, Repository, Verification, VerifyOptions};
