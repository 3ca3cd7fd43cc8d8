//! Copies of the firmware state of instances in the folders of shared pools: a line of JSON, and the archive. The host that a VM is bound to writes
//! its copy, so that another one has it if that host is lost.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::super::super::files::{self, failed};
use super::super::super::layout::check_name;
use super::super::{LinuxMachines, Result};
use crate::{FirmwareCopy, MAX_FIRMWARE_ARCHIVE};

/// The longest line before the archive.
const MAX_LINE: usize = 4 << 10;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CopyHeader {
    uid: String,
    epoch: i64,
    is_final: bool,
    sha256: String,
}

impl LinuxMachines {
    pub(in super::super::super) async fn write_firmware_copy(
        &self,
        pool: &str,
        instance: &str,
        copy: &FirmwareCopy,
    ) -> Result<()> {
        check_name("instance", instance)?;
        let (pools, of, copy) = (self.pool_folders.clone(), pool.to_owned(), copy.clone());
        let name = file_name(instance);
        let work = move || {
            let folder = pools.firmware_folder(&of)?;
            files::ensure_private_folder(&folder)?;
            write(&folder.join(name), &copy)
        };
        self.pool_folders.on_pools(&BTreeSet::from([pool.to_owned()]), work).await
    }

    pub(in super::super::super) async fn firmware_copy(
        &self,
        pool: &str,
        instance: &str,
    ) -> Result<Option<FirmwareCopy>> {
        check_name("instance", instance)?;
        let (pools, of, name) = (self.pool_folders.clone(), pool.to_owned(), file_name(instance));
        let work = move || read(&pools.firmware_folder(&of)?.join(name));
        self.pool_folders.on_pools(&BTreeSet::from([pool.to_owned()]), work).await
    }

    pub(in super::super::super) async fn remove_firmware_copy(
        &self,
        pool: &str,
        instance: &str,
    ) -> Result<()> {
        check_name("instance", instance)?;
        let (pools, of, name) = (self.pool_folders.clone(), pool.to_owned(), file_name(instance));
        let work = move || {
            let path = pools.firmware_folder(&of)?.join(name);
            files::remove_if_there(&path).map_err(failed("remove", &path))
        };
        self.pool_folders.on_pools(&BTreeSet::from([pool.to_owned()]), work).await
    }
}

fn file_name(instance: &str) -> String {
    format!("{instance}.state")
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write(path: &Path, copy: &FirmwareCopy) -> Result<()> {
    let FirmwareCopy { uid, epoch, is_final, archive } = copy;
    // A write may wait for a file server for as long as its host is cut off, while the next host of the VM has written its own.
    if let Ok(Some(present)) = read(path)
        && present.uid == *uid
        && present.epoch > *epoch
    {
        tracing::warn!(path = %path.display(), "a copy of a later stay of the VM is kept");
        return Ok(());
    }
    let header = CopyHeader { uid: uid.clone(), epoch: *epoch, is_final: *is_final, sha256: digest(archive) };
    let mut bytes = serde_json::to_vec(&header).expect("our own types are plain JSON");
    bytes.push(b'\n');
    bytes.extend_from_slice(archive);
    files::write_atomic(path, &bytes, 0o600)
}

/// Reads a copy. None: there is none.
fn read(path: &Path) -> Result<Option<FirmwareCopy>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed("read", path))?,
    };
    let most = MAX_FIRMWARE_ARCHIVE + MAX_LINE;
    let mut bytes = Vec::new();
    let limited = file.take(u64::try_from(most).unwrap_or(u64::MAX));
    io::BufReader::new(limited).read_to_end(&mut bytes).map_err(failed("read", path))?;
    let damaged = || failed("understand", path)(io::ErrorKind::InvalidData.into());
    let end = bytes.iter().take(MAX_LINE).position(|byte| *byte == b'\n').ok_or_else(damaged)?;
    let header: CopyHeader = serde_json::from_slice(&bytes[..end]).map_err(|_| damaged())?;
    let archive = bytes.split_off(end + 1);
    if digest(&archive) != header.sha256 {
        return Err(damaged());
    }
    let CopyHeader { uid, epoch, is_final, .. } = header;
    Ok(Some(FirmwareCopy { uid, epoch, is_final, archive }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_copy_is_read_as_it_was_written_and_not_if_it_is_damaged() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("i-1.state");
        assert_eq!(read(&path).expect("no copy"), None);
        let copy = FirmwareCopy { uid: "u".to_owned(), epoch: 2, is_final: true, archive: b"{\n}".to_vec() };
        write(&path, &copy).expect("written");
        assert_eq!(read(&path).expect("read"), Some(copy.clone()));
        let delayed = FirmwareCopy { epoch: 1, archive: b"old".to_vec(), ..copy.clone() };
        write(&path, &delayed).expect("nothing is written");
        assert_eq!(read(&path).expect("read"), Some(copy.clone()), "of a later stay");
        let of_another = FirmwareCopy { uid: "v".to_owned(), ..delayed };
        write(&path, &of_another).expect("written");
        assert_eq!(read(&path).expect("read"), Some(of_another), "epochs of another VM do not compare");
        let mut bytes = fs::read(&path).expect("there");
        bytes.push(b'x');
        fs::write(&path, &bytes).expect("damaged");
        assert!(read(&path).is_err());
        fs::write(&path, b"no line").expect("damaged");
        assert!(read(&path).is_err());
    }
}
