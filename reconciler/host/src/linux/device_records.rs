//! Records of the devices of this host that instances have, one file for each device, and the names under which devices are offered.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::files::{self, failed};
use crate::SystemError;

type Result<T> = std::result::Result<T, SystemError>;

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
