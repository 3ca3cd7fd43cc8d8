//! Folders of this host for storage pools.

use std::path::PathBuf;
use std::str::FromStr;

use crate::shares::folder_path;

/// The maximum length of the name of a pool.
const MOST_NAME: usize = 63;

/// A folder of this host, and the storage pool whose files are in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFolderMapping {
    pub pool: String,
    /// Absolute.
    pub path: PathBuf,
}

impl FromStr for PoolFolderMapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pool, path) = text.split_once('=').ok_or_else(|| format!("{text:?} is not POOL=FOLDER"))?;
        Ok(Self { pool: checked_pool_name(pool)?.to_owned(), path: folder_path(path)? })
    }
}

/// Returns a name that a StoragePool can have.
///
/// *Errors*: it cannot have this one.
pub(crate) fn checked_pool_name(pool: &str) -> Result<&str, String> {
    match is_pool_name(pool) {
        true => Ok(pool),
        false => Err(format!(
            "{pool:?} is not the name of a StoragePool: lower-case letters, digits and '-', at most {MOST_NAME} characters, not \
             first or last '-'"
        )),
    }
}

/// Whether a StoragePool can have this name: a DNS label.
fn is_pool_name(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=MOST_NAME).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// A storage pool that several hosts use: a folder that they mount, with a folder of its own for the files of each host, or a pool of Ceph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPool {
    /// The identity in the marker, which is the same on all hosts. None: it is not decided yet.
    pub id: Option<String>,
    /// The name of this host.
    pub host: String,
    /// Whether this host writes the marker into a folder that has none.
    pub marks: bool,
    /// Whether it is a pool of Ceph, and no folder.
    pub is_rbd: bool,
}

/// The folder of a storage pool, as it is on the host now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolFolderFacts {
    pub pool: String,
    pub path: PathBuf,
    /// Of its file system. Zero while it is away.
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Why the pool is away, for people.
    pub problem: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_a_pool_is_the_name_of_the_pool_with_an_absolute_path() {
        let parse = |text: &str| text.parse::<PoolFolderMapping>();
        let fast = PoolFolderMapping { pool: "fast".to_owned(), path: "/mnt/fast".into() };
        assert_eq!(parse("fast=/mnt/fast"), Ok(fast));
        for wrong in ["fast", "=/mnt", "Fast=/mnt", "fast=mnt", "fast=", "fast=/mnt\n", "../x=/mnt"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
