//! Keys as files in memory, which a program inherits: they are in no argument, no environment and no file of the host.

use std::fs::File;
use std::io::{self, Write as _};

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::machine::DiskKey;

/// Returns a file in memory with the passphrase of this key. The program that inherits it opens it anew, as `/proc/self/fd/N`.
pub(super) fn key_file(key: &DiskKey) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"key", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(key.passphrase().as_bytes())?;
    Ok(file)
}

/// The id of the one key of a program of QEMU's other than a machine.
pub const TOOL_KEY: &str = "key";

/// The arguments with which such a program reads its key from this descriptor.
pub(super) fn arguments(descriptor: i32) -> [String; 2] {
    ["--object".to_owned(), format!("secret,id={TOOL_KEY},file=/proc/self/fd/{descriptor}")]
}
