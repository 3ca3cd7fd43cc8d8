//! The host's own note of which control plane it obeys: one file in the state directory, which no backup of a control
//! plane holds.

use std::path::Path;

use berth_api::site::Record;

use super::files;
use crate::system::SystemError;

const FILE: &str = "site.json";

/// What is kept in a state directory; `None` if nothing is.
///
/// *Errors:* it cannot be read, or is damaged: then nobody knows whom this host may obey.
pub fn read(state_dir: &Path) -> Result<Option<Record>, SystemError> {
    let path = state_dir.join(FILE);
    match files::read_json(&path)? {
        None => Ok(None),
        Some(Ok(record)) => Ok(Some(record)),
        Some(Err(detail)) => {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidData, detail);
            Err(SystemError::File { attempt: "understand", path, source })
        }
    }
}

/// Keeps it; on disk when it returns.
///
/// *Errors:* the file cannot be written.
pub fn write(state_dir: &Path, record: &Record) -> Result<(), SystemError> {
    files::write_json(&state_dir.join(FILE), record, 0o600)
}

/// Forgets it: an administrator has this machine join another control plane.
///
/// *Errors:* the file cannot be removed.
pub fn forget(state_dir: &Path) -> Result<(), SystemError> {
    let path = state_dir.join(FILE);
    files::remove_if_there(&path).map_err(files::failed("remove", &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_back_and_a_damaged_one_is_not_taken_for_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let record = Record { site: "s".into(), term: 2 };
        assert_eq!(read(folder.path()).expect("nothing there"), None);
        write(folder.path(), &record).expect("written");
        assert_eq!(read(folder.path()).expect("read"), Some(record));
        std::fs::write(folder.path().join(FILE), "{").expect("damaged");
        assert!(read(folder.path()).is_err());
        forget(folder.path()).expect("removed");
        assert_eq!(read(folder.path()).expect("nothing there"), None);
    }
}
