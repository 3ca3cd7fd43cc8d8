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

/// Removes the keys from these files. A program that has one open keeps no key there.
pub(super) fn empty(files: &[File]) {
    for file in files {
        if let Err(error) = file.set_len(0) {
            tracing::debug!(%error, "a file in memory keeps its key");
        }
    }
}

/// The id of the one key of a program of QEMU's other than a machine.
pub const TOOL_KEY: &str = "key";

/// The arguments with which such a program reads its key from this descriptor.
pub(super) fn arguments(descriptor: i32) -> [String; 2] {
    ["--object".to_owned(), format!("secret,id={TOOL_KEY},file=/proc/self/fd/{descriptor}")]
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn a_key_file_is_read_by_its_number_and_has_no_key_once_it_was_emptied() {
        let key = DiskKey::new([7; 32]);
        let file = key_file(&key).expect("made");
        let read = || {
            let mut text = String::new();
            let mut opened = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("opened");
            opened.read_to_string(&mut text).expect("read");
            text
        };
        assert_eq!(read(), key.passphrase());
        empty(std::slice::from_ref(&file));
        assert_eq!(read(), "");
    }
}
