//! The firmware variables and the memory of the TPM of an instance, as one archive of bytes, and copies of it in shared pools.

use std::fmt;

/// The most bytes of an archive.
pub const MAX_FIRMWARE_ARCHIVE: usize = 16 << 20;

/// A copy in the folder of a shared pool. It has secrets of the guest: the archive is never printed.
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
