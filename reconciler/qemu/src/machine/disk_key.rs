//! The keys of encrypted disks.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

/// The length of a key, in bytes.
pub const DISK_KEY_LENGTH: usize = 32;

/// The key of an encrypted disk: the passphrase that opens the LUKS header in each of its files. Never printed, and never part of a
/// command line.
#[derive(Clone, PartialEq, Eq)]
pub struct DiskKey([u8; DISK_KEY_LENGTH]);

impl DiskKey {
    pub fn new(bytes: [u8; DISK_KEY_LENGTH]) -> Self {
        Self(bytes)
    }

    pub fn bytes(&self) -> &[u8; DISK_KEY_LENGTH] {
        &self.0
    }

    /// The passphrase: the bytes in base64.
    pub fn passphrase(&self) -> String {
        BASE64.encode(self.0)
    }
}

impl fmt::Debug for DiskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DiskKey")
    }
}

/// The id of QEMU's object with the key of a disk.
pub(crate) fn key_id(disk: &str) -> String {
    format!("key-{disk}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_passphrase_of_printable_characters_that_is_not_printed() {
        let key = DiskKey::new([7; DISK_KEY_LENGTH]);
        assert_eq!(key.passphrase(), "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");
        assert_eq!(format!("{key:?}"), "DiskKey");
    }
}
