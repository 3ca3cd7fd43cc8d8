//! Small files that an option names: a password, a join string.

use std::{fs::File, io::Read, path::Path};

use anyhow::{Context, ensure};

/// Returns the text of a file of at most this many bytes. It may be a pipe.
///
/// *Errors:* the file cannot be read, is longer or is no text.
pub(super) fn read(path: &Path, limit: u64) -> anyhow::Result<String> {
    let reading = || format!("reading {}", path.display());
    let mut bytes = Vec::new();
    // A device may have no end.
    File::open(path).and_then(|file| file.take(limit + 1).read_to_end(&mut bytes)).with_context(reading)?;
    ensure!(
        u64::try_from(bytes.len()).is_ok_and(|length| length <= limit),
        "{} has more than {limit} bytes: name the file with the text alone",
        path.display()
    );
    String::from_utf8(bytes).ok().with_context(|| format!("{} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_a_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("password");
        std::fs::write(&path, "secret\n").expect("written");
        assert_eq!(read(&path, 7).expect("it fits"), "secret\n");
        let refused = |path: &Path, limit| format!("{:#}", read(path, limit).expect_err("refused"));
        assert!(refused(&path, 6).contains("has more than 6 bytes"));
        let endless = refused(Path::new("/dev/zero"), 4096);
        assert!(endless.starts_with("/dev/zero has more than 4096 bytes"), "{endless}");
        std::fs::write(&path, [0xff]).expect("written");
        assert!(refused(&path, 7).contains("is not UTF-8"));
        assert!(refused(&folder.path().join("none"), 7).starts_with("reading "));
    }
}
