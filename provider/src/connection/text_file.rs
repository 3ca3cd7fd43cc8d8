//! Files that the configuration of the connection names: a certificate, a token.

use std::{
    fs::File,
    io::{self, Read},
};

/// The maximum length in bytes. A bundle of all authorities has some 200 KiB.
const LIMIT: u64 = 4 << 20;

/// Returns the text of a file.
///
/// # Errors
/// The file cannot be read, or is longer than 4 MiB: a device may have no end.
pub(super) fn read(path: &str) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LIMIT + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > LIMIT) {
        return Err(io::Error::other(format!("it has more than {} MiB", LIMIT >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_end_is_refused() {
        let endless = read("/dev/zero").expect_err("it has no end");
        assert_eq!(endless.to_string(), "it has more than 4 MiB");
        assert_eq!(read("/dev/null").expect("it is empty"), "");
        assert!(read("/nonexistent").is_err());
    }
}
