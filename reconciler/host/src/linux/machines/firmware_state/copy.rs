//! Copies of the firmware state of instances in the folders of shared pools, one file for each instance. The host that a VM is bound to writes
//! its copy, so that another one has it if that host is lost.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::super::super::files::{self, failed};
use super::super::super::layout::check_name;
use super::super::{LinuxMachines, Result};
use crate::FirmwareCopy;

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
        uid: &str,
    ) -> Result<Option<FirmwareCopy>> {
        check_name("instance", instance)?;
        let (pools, of, name) = (self.pool_folders.clone(), pool.to_owned(), file_name(instance));
        let uid = uid.to_owned();
        let work = move || {
            let found = read(&pools.firmware_folder(&of)?.join(name))?;
            Ok(found.filter(|copy| copy.uid == uid))
        };
        self.pool_folders.on_pools(&BTreeSet::from([pool.to_owned()]), work).await
    }

    pub(in super::super::super) async fn remove_firmware_copy(
        &self,
        pool: &str,
        instance: &str,
    ) -> Result<()> {
        check_name("instance", instance)?;
        let (pools, of, name) = (self.pool_folders.clone(), pool.to_owned(), file_name(instance));
        let work = move || remove(&pools.firmware_folder(&of)?.join(name));
        self.pool_folders.on_pools(&BTreeSet::from([pool.to_owned()]), work).await
    }
}

fn file_name(instance: &str) -> String {
    format!("{instance}.state")
}

fn write(path: &Path, copy: &FirmwareCopy) -> Result<()> {
    // A write may wait for a file server for as long as its host is cut off, while the next host of the VM has written its own.
    if let Ok(Some(present)) = read(path)
        && present.uid == copy.uid
        && present.epoch > copy.epoch
    {
        tracing::warn!(path = %path.display(), "a copy of a later stay of the VM is kept");
        return Ok(());
    }
    files::write_atomic(path, &copy.stored(), 0o600)
}

/// Removes a copy, and one that a host had begun to write when it crashed.
fn remove(path: &Path) -> Result<()> {
    let unfinished = files::unfinished(path);
    for path in [unfinished.as_path(), path] {
        files::remove_if_there(path).map_err(failed("remove", path))?;
    }
    Ok(())
}

/// Reads a copy. None: there is none.
fn read(path: &Path) -> Result<Option<FirmwareCopy>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed("read", path))?,
    };
    let mut bytes = Vec::new();
    let limited = file.take(u64::try_from(FirmwareCopy::MAX_STORED).unwrap_or(u64::MAX));
    io::BufReader::new(limited).read_to_end(&mut bytes).map_err(failed("read", path))?;
    let damaged = || failed("understand", path)(io::ErrorKind::InvalidData.into());
    FirmwareCopy::read_stored(bytes).map(Some).ok_or_else(damaged)
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

    #[test]
    fn nothing_of_a_copy_stays_also_not_of_one_whose_write_was_interrupted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("i-1.state");
        let other = folder.path().join("i-10.state");
        for path in [&path, &files::unfinished(&path), &other] {
            fs::write(path, b"keys").expect("written");
        }
        for _ in 0..2 {
            remove(&path).expect("removed");
            assert_eq!(files::names(folder.path()).expect("listed"), ["i-10.state"]);
        }
        remove(&folder.path().join("none/i-1.state")).expect("there is no folder");
    }
}
