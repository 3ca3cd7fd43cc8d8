//! Files that only their owner can read: written atomically, and durable together with their names.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Writes a file that only its owner can read, replacing it atomically.
///
/// *Guarantees:* once this returns, the file and its name survive a power loss.
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    replace(path, content, fs::File::sync_all)
}

fn replace(path: &Path, content: &[u8], sync: impl Fn(&fs::File) -> io::Result<()>) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.new", std::process::id()));
    let staged = path.with_file_name(name);
    // A leftover of a crash; it may have other permissions.
    let _ = fs::remove_file(&staged);
    let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&staged)?;
    file.write_all(content)?;
    sync(&file)?;
    fs::rename(&staged, path)?;
    // The new name is durable only once the directory is synced.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync(&fs::File::open(directory.unwrap_or(Path::new(".")))?)
}

/// Reads a file, or creates it.
pub fn read_or_make_bytes(path: &Path, make: impl FnOnce() -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let content = make()?;
            write_private(path, &content)?;
            Ok(content)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_private_file_is_durable_with_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.key");
        let synced = RefCell::new(Vec::new());
        let record = |file: &fs::File| {
            let is_directory = file.metadata()?.is_dir();
            synced.borrow_mut().push((is_directory, path.exists()));
            Ok(())
        };
        replace(&path, b"key", record).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"key");
        let expected = [(false, false), (true, true)];
        assert_eq!(synced.into_inner(), expected, "the content before the rename, the directory after it");
    }
}
