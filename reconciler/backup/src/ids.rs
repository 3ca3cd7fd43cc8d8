//! The ids of disks and backups.

use std::fmt;

use crate::error::{Error, Result};

/// The maximum length of an id.
const MAX_LENGTH: usize = 80;

/// The id of a disk: 1 to 80 of the characters `a-z`, `0-9` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DiskId(String);

/// The id of a backup of a disk: 1 to 80 of the characters `a-z`, `0-9` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackupId(String);

fn is_valid(id: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    (1..=MAX_LENGTH).contains(&id.len()) && id.bytes().all(allowed)
}

impl DiskId {
    pub fn new(id: impl Into<String>) -> Result<Self> {
        let id = id.into();
        if !is_valid(&id) {
            return Err(Error::Id { what: "the id of the disk", value: id });
        }
        Ok(Self(id))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl BackupId {
    pub fn new(id: impl Into<String>) -> Result<Self> {
        let id = id.into();
        if !is_valid(&id) {
            return Err(Error::Id { what: "the id of the backup", value: id });
        }
        Ok(Self(id))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[test]
fn ids_are_short_and_cannot_leave_their_folder() {
    for id in ["a", "0-9", &"x".repeat(80)] {
        assert_eq!(DiskId::new(id).expect("valid").as_str(), id);
        assert_eq!(BackupId::new(id).expect("valid").as_str(), id);
    }
    for id in ["", "A", "a/b", "..", "a.b", "ä", "a b", &"x".repeat(81)] {
        let error = DiskId::new(id).expect_err("invalid").to_string();
        assert!(error.contains("the id of the disk") && error.contains("a-z"), "{error}");
        assert!(BackupId::new(id).is_err());
    }
}
