//! The files with a machine's bootstrap data, written at each start with other data. They stay when the machine ends, and may contain secrets.

use std::fs;
use std::path::{Path, PathBuf};

use berth_qemu::machine::{FwCfg, RunAs};

use super::super::files::{self, failed};
use super::super::seed;
use crate::{BootstrapFile, MAX_BOOTSTRAP, Result, Seed, SystemError};

/// The name under which Ignition looks for its configuration.
const IGNITION: &str = "opt/com.coreos/config";

/// Bootstrap data, and the files that it is written to.
pub(super) struct BootstrapFiles {
    /// None: the files are those of an earlier start.
    data: Option<Seed>,
    seed: PathBuf,
    sysprep: PathBuf,
    ignition: PathBuf,
}

impl BootstrapFiles {
    /// In the directory of an instance.
    pub(super) fn new(data: Option<Seed>, folder: &Path) -> Self {
        let [seed, sysprep, ignition] =
            ["seed.img", "sysprep.img", "ignition.json"].map(|name| folder.join(name));
        Self { data, seed, sysprep, ignition }
    }

    /// The volume for cloud-init.
    pub(super) fn seed_file(&self) -> Option<PathBuf> {
        self.has(&self.seed, |_| true).then(|| self.seed.clone())
    }

    /// The volume for Windows.
    pub(super) fn sysprep_file(&self) -> Option<PathBuf> {
        self.has(&self.sysprep, |data| data.unattend.is_some()).then(|| self.sysprep.clone())
    }

    /// The configuration for Ignition.
    pub(super) fn fw_cfg(&self) -> Vec<FwCfg> {
        let has_ignition = self.has(&self.ignition, |data| data.ignition.is_some());
        let item = FwCfg { name: IGNITION.to_owned(), file: self.ignition.clone() };
        has_ignition.then_some(item).into_iter().collect()
    }

    /// Returns the names of the files that are there.
    pub(super) fn present(&self) -> Vec<String> {
        let named = [("ignition", &self.ignition), ("seed", &self.seed), ("sysprep", &self.sysprep)];
        named.into_iter().filter(|(_, file)| file.exists()).map(|(name, _)| name.to_owned()).collect()
    }

    fn named(&self) -> [(&'static str, &PathBuf); 3] {
        [("ignition", &self.ignition), ("seed", &self.seed), ("sysprep", &self.sysprep)]
    }

    /// Returns the files that are there.
    pub(super) fn read(&self) -> Result<Vec<BootstrapFile>> {
        let present = self.named().into_iter().filter(|(_, file)| file.exists());
        let read = present.map(|(name, file)| {
            let bytes = fs::read(file).map_err(failed("read", file))?;
            Ok(BootstrapFile { name: name.to_owned(), bytes })
        });
        read.collect()
    }

    /// Writes exactly these files.
    pub(super) fn put(&self, data: &[BootstrapFile]) -> Result<()> {
        let bytes: usize = data.iter().map(|file| file.bytes.len()).sum();
        let other = data.iter().find(|file| !self.named().iter().any(|(name, _)| *name == file.name));
        if other.is_some() || bytes > MAX_BOOTSTRAP {
            let value = other.map_or_else(|| format!("{bytes} bytes"), |file| file.name.clone());
            let why = "it is too large, or has a file that is not known";
            return Err(SystemError::Invalid { what: "bootstrap data", value, why });
        }
        for (name, path) in self.named() {
            match data.iter().find(|file| file.name == name) {
                Some(file) => files::write_atomic(path, &file.bytes, 0o600)?,
                None => files::remove_if_there(path).map_err(failed("remove", path))?,
            }
        }
        Ok(())
    }

    fn has(&self, file: &Path, is_in: impl Fn(&Seed) -> bool) -> bool {
        self.data.as_ref().map_or_else(|| file.exists(), is_in)
    }

    /// Writes the files, readable by this user, and removes those of an earlier start that are not needed. Without data they stay as they
    /// are.
    pub(super) fn write(&self, user: Option<&RunAs>) -> Result<()> {
        let Some(data) = &self.data else { return self.grant_present(user) };
        let volume = Some(seed::volume(data)?);
        let sysprep = data.unattend.as_deref().map(seed::sysprep_volume).transpose()?;
        let ignition = data.ignition.clone().map(String::into_bytes);
        for (file, bytes) in [(&self.seed, volume), (&self.sysprep, sysprep), (&self.ignition, ignition)] {
            match bytes {
                None => files::remove_if_there(file).map_err(failed("remove", file))?,
                Some(bytes) => {
                    // A start with the same data as before, such as that of a guest which ended, waits for no disk.
                    if !fs::read(file).is_ok_and(|written| written == bytes) {
                        files::write_atomic(file, &bytes, 0o600)?;
                    }
                    files::grant(file, user)?;
                }
            }
        }
        Ok(())
    }

    /// The instance may have another user than at that start.
    fn grant_present(&self, user: Option<&RunAs>) -> Result<()> {
        let mut present =
            [&self.seed, &self.sysprep, &self.ignition].into_iter().filter(|file| file.exists());
        present.try_for_each(|file| files::grant(file, user))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn bootstrap_data_of_another_host_takes_the_place_of_all_that_is_there() {
        let [from, to] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let file = |name: &str, bytes: &[u8]| BootstrapFile { name: name.to_owned(), bytes: bytes.to_vec() };
        let data = [file("ignition", b"{}"), file("seed", b"volume")];
        BootstrapFiles::new(None, from.path()).put(&data).expect("written");
        let read = BootstrapFiles::new(None, from.path()).read().expect("read");
        assert_eq!(read, data);
        let there = BootstrapFiles::new(None, to.path());
        there.put(&[file("sysprep", b"old")]).expect("written");
        there.put(&read).expect("written");
        assert_eq!(there.present(), ["ignition", "seed"]);
        assert!(there.put(&[file("../journal", b"")]).is_err(), "no other file is written");
        assert!(there.put(&[file("seed", &vec![0; MAX_BOOTSTRAP + 1])]).is_err());
    }

    #[test]
    fn equal_data_is_written_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let written = |user_data: &str| {
            let seed = Seed { user_data: user_data.to_owned(), ..Seed::default() };
            BootstrapFiles::new(Some(seed), folder.path()).write(None).expect("written");
            fs::metadata(folder.path().join("seed.img")).expect("there").ino()
        };
        let first = written("a");
        assert_eq!(written("a"), first);
        assert_ne!(written("b"), first, "another file takes its place");
    }
}
