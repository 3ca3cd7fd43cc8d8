//! The firmware variables and the memory of the TPM of an instance, as one archive of bytes, and copies of it in shared pools.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The most bytes of an archive.
pub const MAX_FIRMWARE_ARCHIVE: usize = 16 << 20;
/// The longest line before the archive in a stored copy.
const MAX_LINE: usize = 4 << 10;

/// A copy in a shared pool: in its folder, or in Ceph. It has secrets of the guest: the archive is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct FirmwareCopy {
    /// The uid of the VM.
    pub uid: String,
    /// The epoch of the binding under which it was written.
    pub epoch: i64,
    /// Whether the VM was given up under this binding after that: the guest has not run since.
    pub is_final: bool,
    pub archive: Vec<u8>,
}

/// The line of JSON before the archive.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CopyHeader {
    uid: String,
    epoch: i64,
    is_final: bool,
    length: usize,
    sha256: String,
}

impl FirmwareCopy {
    /// The most bytes of one that is stored.
    pub(crate) const MAX_STORED: usize = MAX_FIRMWARE_ARCHIVE + MAX_LINE;

    /// Returns the bytes by which it is stored.
    pub(crate) fn stored(&self) -> Vec<u8> {
        let Self { uid, epoch, is_final, archive } = self;
        let (length, sha256) = (archive.len(), digest(archive));
        let header = CopyHeader { uid: uid.clone(), epoch: *epoch, is_final: *is_final, length, sha256 };
        let mut bytes = serde_json::to_vec(&header).expect("our own types are plain JSON");
        bytes.push(b'\n');
        bytes.extend_from_slice(archive);
        bytes
    }

    /// Reads these bytes, after which there may be zeros. None: they are not those of a whole copy.
    pub(crate) fn read_stored(mut bytes: Vec<u8>) -> Option<Self> {
        let end = bytes.iter().take(MAX_LINE).position(|byte| *byte == b'\n')?;
        let header: CopyHeader = serde_json::from_slice(&bytes[..end]).ok()?;
        let mut archive = bytes.split_off(end + 1);
        let rest = archive.get(header.length..)?;
        if rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        archive.truncate(header.length);
        let CopyHeader { uid, epoch, is_final, sha256, .. } = header;
        (digest(&archive) == sha256).then_some(Self { uid, epoch, is_final, archive })
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Debug for FirmwareCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uid, epoch, is_final, .. } = self;
        f.debug_struct("FirmwareCopy")
            .field("uid", uid)
            .field("epoch", epoch)
            .field("is_final", is_final)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_copy_is_read_as_it_was_written_and_only_if_it_is_whole() {
        let copy =
            FirmwareCopy { uid: "u".to_owned(), epoch: 2, is_final: true, archive: b"{\n}\0".to_vec() };
        let stored = copy.stored();
        assert_eq!(FirmwareCopy::read_stored(stored.clone()).as_ref(), Some(&copy));
        let padded = [&stored[..], &[0; 512]].concat();
        assert_eq!(
            FirmwareCopy::read_stored(padded).as_ref(),
            Some(&copy),
            "an image has the size of its blocks"
        );
        let cut = stored[..stored.len() - 2].to_vec();
        let mut other = stored.clone();
        let last = other.len() - 2;
        other[last] = b'x';
        let longer = [&stored[..], b"x"].concat();
        let zeros = vec![0; 4 << 20];
        for damaged in [cut, other, longer, zeros, Vec::new(), b"no line".to_vec(), b"{}\n".to_vec()] {
            assert_eq!(FirmwareCopy::read_stored(damaged.clone()), None, "{} bytes", damaged.len());
        }
    }
}
