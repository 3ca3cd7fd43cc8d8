//! The saved state of a suspended machine: a file beside its journal that only the agent's user can open. QEMU gets it as an
//! open descriptor.

use std::fs::{self, File};
use std::io;

use berth_qemu::console::ConsoleStream;
use berth_qemu::hypervisor::StateFile;
use berth_qemu::qmp::Qmp;

use super::super::files::{self, blocking, failed};
use super::super::layout::check_name;
use super::bootstrap_files::BootstrapFiles;
use super::{LinuxMachines, Result};
use crate::{BootstrapFile, StateAccess};

impl LinuxMachines {
    pub(in super::super) async fn lend_state(
        &self,
        instance: &str,
        qmp: &Qmp,
        access: StateAccess,
    ) -> Result<()> {
        check_name("instance", instance)?;
        let path = self.layout.state(instance);
        let file = match access {
            StateAccess::Write { at_most } => {
                let state = path.clone();
                blocking(move || files::check_space(&state, at_most)).await?;
                StateFile::Empty(&path)
            }
            StateAccess::Read => StateFile::Saved(&path),
        };
        Ok(self.hypervisor().await?.lend_state(qmp, &self.paths(instance), file).await?)
    }

    pub(in super::super) async fn seal_state(&self, instance: &str) -> Result<()> {
        check_name("instance", instance)?;
        let path = self.layout.state(instance);
        blocking(move || {
            let sync = || {
                File::open(&path)?.sync_all()?;
                files::sync_parent(&path)
            };
            sync().map_err(failed("write", &path))
        })
        .await
    }

    pub(in super::super) async fn has_state(&self, instance: &str) -> Result<bool> {
        check_name("instance", instance)?;
        let path = self.layout.state(instance);
        blocking(move || match fs::symlink_metadata(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("look at", &path)(error)),
        })
        .await
    }

    pub(in super::super) async fn bootstrap_data(&self, instance: &str) -> Result<Vec<String>> {
        check_name("instance", instance)?;
        let folder = self.layout.instance(instance);
        blocking(move || Ok(BootstrapFiles::new(None, &folder).present())).await
    }

    pub(in super::super) async fn bootstrap_files(&self, instance: &str) -> Result<Vec<BootstrapFile>> {
        check_name("instance", instance)?;
        let folder = self.layout.instance(instance);
        blocking(move || BootstrapFiles::new(None, &folder).read()).await
    }

    pub(in super::super) async fn write_bootstrap_files(
        &self,
        instance: &str,
        data: &[BootstrapFile],
    ) -> Result<()> {
        check_name("instance", instance)?;
        let (folder, data) = (self.layout.instance(instance), data.to_vec());
        blocking(move || BootstrapFiles::new(None, &folder).put(&data)).await
    }

    pub(in super::super) async fn lend_channel(&self, instance: &str, qmp: &Qmp) -> Result<ConsoleStream> {
        check_name("instance", instance)?;
        Ok(self.hypervisor().await?.lend_channel(qmp, &self.paths(instance)).await?)
    }

    pub(in super::super) async fn remove_state(&self, instance: &str) -> Result<()> {
        check_name("instance", instance)?;
        let path = self.layout.state(instance);
        blocking(move || {
            files::remove_if_there(&path).map_err(failed("remove", &path))?;
            match files::sync_parent(&path) {
                // The instance's directory is gone as well.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                synced => synced.map_err(failed("write the folder of", &path)),
            }
        })
        .await
    }
}
