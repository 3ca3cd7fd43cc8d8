//! Records of the devices of this host that instances have, one file for each device, the names under which devices are offered, and their
//! attributes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::files::{self, failed};
use crate::SystemError;

type Result<T> = std::result::Result<T, SystemError>;

/// The most bytes of an attribute that are read, and the most characters of a text that are kept.
const MOST_BYTES: u64 = 512;
const MOST_CHARACTERS: usize = 64;

/// The records of one bus, `<folder>/<device>.json`. A record is on disk before anything of its device is changed, and removed last.
#[derive(Clone, Debug)]
pub(super) struct DeviceRecords {
    folder: PathBuf,
}

impl DeviceRecords {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Returns all records by device.
    pub(super) fn all<R: DeserializeOwned>(&self) -> Result<BTreeMap<String, R>> {
        let mut records = BTreeMap::new();
        for name in files::names(&self.folder)? {
            let Some(device) = name.strip_suffix(".json") else { continue };
            let path = self.folder.join(&name);
            match files::read_json(&path)? {
                None => {}
                Some(Ok(record)) => {
                    records.insert(device.to_owned(), record);
                }
                Some(Err(detail)) => {
                    let source = io::Error::new(io::ErrorKind::InvalidData, detail);
                    return Err(SystemError::File { attempt: "understand", path, source });
                }
            }
        }
        Ok(records)
    }

    pub(super) fn write(&self, device: &str, record: &impl Serialize) -> Result<()> {
        files::ensure_private_folder(&self.folder)?;
        files::write_json(&self.path(device), record, 0o600)
    }

    pub(super) fn remove(&self, device: &str) -> Result<()> {
        let path = self.path(device);
        files::remove_if_there(&path).map_err(failed("remove", &path))
    }

    fn path(&self, device: &str) -> PathBuf {
        self.folder.join(format!("{device}.json"))
    }
}

/// The names under which devices are offered: a device counts for the first name that it is given.
#[derive(Debug, Default)]
pub(super) struct OfferedNames(BTreeMap<String, String>);

impl OfferedNames {
    /// Offers a device, which consists of these parts, under a name. Returns why it cannot be, if a part of it is offered already.
    pub(super) fn offer(&mut self, name: &str, parts: &[String]) -> Option<String> {
        let other = parts.iter().find_map(|part| self.0.get(part));
        let problem = other.map(|other| format!("it is offered as {other} already"));
        for part in parts {
            self.0.entry(part.clone()).or_insert_with(|| name.to_owned());
        }
        problem
    }
}

/// An attribute of a device in sysfs. Devices and drivers have the words of some of them.
pub(super) fn attribute(path: &Path) -> Option<String> {
    let read = || -> io::Result<String> {
        let mut bytes = Vec::new();
        fs::File::open(path)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().ok()
}

/// Text of a device, fit to be shown: without characters that change how others are shown.
pub(super) fn harmless(text: &str) -> String {
    let shown = |c: char| if c.is_alphanumeric() || c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    text.chars().take(MOST_CHARACTERS).map(shown).collect()
}
