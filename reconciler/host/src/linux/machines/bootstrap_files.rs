//! The files with a machine's bootstrap data, written anew at each start. They may contain secrets.

use std::path::{Path, PathBuf};

use berth_qemu::machine::{FwCfg, RunAs};

use super::super::files::{self, failed};
use super::super::seed;
use crate::{Result, Seed};

/// The name under which Ignition looks for its configuration.
const IGNITION: &str = "opt/com.coreos/config";

/// Bootstrap data, and the files that it is written to.
pub(super) struct BootstrapFiles {
    data: Option<Seed>,
    /// A guest that goes on has the files of its start.
    are_kept: bool,
    seed: PathBuf,
    sysprep: PathBuf,
    ignition: PathBuf,
}

impl BootstrapFiles {
    /// In the directory of an instance.
    pub(super) fn new(data: Option<Seed>, are_kept: bool, folder: &Path) -> Self {
        let [seed, sysprep, ignition] =
            ["seed.img", "sysprep.img", "ignition.json"].map(|name| folder.join(name));
        Self { data, are_kept, seed, sysprep, ignition }
    }

    /// The volume for cloud-init.
    pub(super) fn seed_file(&self) -> Option<PathBuf> {
        self.has(&self.seed, self.data.is_some()).then(|| self.seed.clone())
    }

    /// The volume for Windows.
    pub(super) fn sysprep_file(&self) -> Option<PathBuf> {
        let is_new = self.data.as_ref().is_some_and(|data| data.unattend.is_some());
        self.has(&self.sysprep, is_new).then(|| self.sysprep.clone())
    }

    /// The configuration for Ignition.
    pub(super) fn fw_cfg(&self) -> Vec<FwCfg> {
        let is_new = self.data.as_ref().is_some_and(|data| data.ignition.is_some());
        let has_ignition = self.has(&self.ignition, is_new);
        let item = FwCfg { name: IGNITION.to_owned(), file: self.ignition.clone() };
        has_ignition.then_some(item).into_iter().collect()
    }

    /// Returns the names of the files that are there.
    pub(super) fn present(&self) -> Vec<String> {
        let named = [("ignition", &self.ignition), ("seed", &self.seed), ("sysprep", &self.sysprep)];
        named.into_iter().filter(|(_, file)| file.exists()).map(|(name, _)| name.to_owned()).collect()
    }

    fn has(&self, file: &Path, is_new: bool) -> bool {
        if self.are_kept { file.exists() } else { is_new }
    }

    /// Writes the files, readable by this user, and removes those of an earlier start that are not needed.
    pub(super) fn write(&self, user: Option<&RunAs>) -> Result<()> {
        if self.are_kept {
            return Ok(());
        }
        let data = self.data.as_ref();
        let volume = data.map(seed::volume).transpose()?;
        let unattend = data.and_then(|data| data.unattend.as_deref());
        let sysprep = unattend.map(seed::sysprep_volume).transpose()?;
        let ignition = data.and_then(|data| data.ignition.clone()).map(String::into_bytes);
        for (file, bytes) in [(&self.seed, volume), (&self.sysprep, sysprep), (&self.ignition, ignition)] {
            match bytes {
                None => files::remove_if_there(file).map_err(failed("remove", file))?,
                Some(bytes) => {
                    files::write_atomic(file, &bytes, 0o600)?;
                    files::grant(file, user)?;
                }
            }
        }
        Ok(())
    }
}
