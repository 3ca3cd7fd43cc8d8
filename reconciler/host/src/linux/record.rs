//! The host's own record of the control plane that it obeys: one file in the state directory, which is not part of any
//! control plane's backup. Its content is the agent's.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::files;
use crate::SystemError;

const FILE: &str = "site.json";

/// Reads the record in a state directory; `None` if there is none.
///
/// *Errors:* the file cannot be read or is damaged: it is then unknown which control plane this host may obey.
pub fn read<T: DeserializeOwned>(state_dir: &Path) -> Result<Option<T>, SystemError> {
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

/// Writes the record; on disk when this returns.
///
/// *Errors:* the file cannot be written.
pub fn write<T: Serialize>(state_dir: &Path, record: &T) -> Result<(), SystemError> {
    files::write_json(&state_dir.join(FILE), record, 0o600)
}

/// Removes the record, because an administrator has this machine join another control plane.
///
/// *Errors:* the file cannot be removed.
pub fn forget(state_dir: &Path) -> Result<(), SystemError> {
    let path = state_dir.join(FILE);
    files::remove_if_there(&path).map_err(files::failed("remove", &path))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn it_is_read_back_and_a_damaged_one_is_not_taken_for_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let record = json!({"site": "s", "term": 2});
        assert_eq!(read::<Value>(folder.path()).expect("nothing there"), None);
        write(folder.path(), &record).expect("written");
        assert_eq!(read(folder.path()).expect("read"), Some(record));
        std::fs::write(folder.path().join(FILE), "{").expect("damaged");
        assert!(read::<Value>(folder.path()).is_err());
        forget(folder.path()).expect("removed");
        assert_eq!(read::<Value>(folder.path()).expect("nothing there"), None);
    }
}
