//! The temporary disks of machines: files of the instances, made anew at each start.
//!
//! A machine with a saved state goes on with the disk that it was saved with: its guest has data of it in memory. The disk therefore stays as long
//! as the state does.

use std::path::PathBuf;

use berth_qemu::process::RunAs;
use berth_qemu::qcow2::{self, ImageError};

use super::super::files::{self, blocking, failed};
use super::super::filesystems::{self, FORMATTED};
use super::super::layout::check_name;
use super::LinuxMachines;
use crate::{NewScratch, Result, SystemError};

const FILE: &str = "scratch.qcow2";

impl LinuxMachines {
    fn scratch(&self, instance: &str) -> PathBuf {
        self.layout.instance(instance).join(FILE)
    }

    /// Makes the disk, or finds the one of a saved machine. The directory of the instance exists.
    pub(super) async fn prepare_scratch(
        &self,
        instance: &str,
        scratch: Option<NewScratch>,
        from_saved_state: bool,
        user: Option<RunAs>,
    ) -> Result<Option<PathBuf>> {
        let path = self.scratch(instance);
        let path = std::path::absolute(&path).unwrap_or(path);
        let file = path.clone();
        let Some(NewScratch { size, filesystem }) = scratch else {
            blocking(move || files::remove_if_there(&file).map_err(failed("remove", &file))).await?;
            return Ok(None);
        };
        if from_saved_state {
            let find = move || {
                std::fs::metadata(&file).map_err(failed("find", &file))?;
                files::give(&file, user.as_ref())
            };
            blocking(find).await?;
            return Ok(Some(path));
        }
        let create = move || {
            files::remove_if_there(&file).map_err(failed("remove", &file))?;
            files::check_space(&file, 0)?;
            qcow2::create(&file, size).map_err(refused)?;
            files::give(&file, user.as_ref())
        };
        blocking(create).await?;
        if let Some(filesystem) = filesystem {
            let raw = path.with_file_name(format!("{}scratch{FORMATTED}", files::UNFINISHED));
            let formatted = filesystems::format(&raw, size, &filesystem, user).await?;
            filesystems::copy(&formatted.backing(), &path, size, user).await?;
        }
        Ok(Some(path))
    }

    /// Removes the disk of an instance whose QEMU has ended, and that has no saved state.
    pub(in super::super) async fn remove_scratch(&self, instance: &str) -> Result<()> {
        check_name("instance", instance)?;
        let path = self.scratch(instance);
        let is_there = blocking(move || path.try_exists().map_err(failed("look for", &path))).await?;
        if !is_there || self.process(instance).await?.is_some() {
            return Ok(());
        }
        self.discard_scratch(instance).await
    }

    /// Does the same after the QEMU has ended.
    pub(super) async fn discard_scratch(&self, instance: &str) -> Result<()> {
        check_name("instance", instance)?;
        let (path, state) = (self.scratch(instance), self.layout.state(instance));
        blocking(move || match state.try_exists().map_err(failed("look for", &state))? {
            true => Ok(()),
            false => files::remove_if_there(&path).map_err(failed("remove", &path)),
        })
        .await
    }
}

fn refused(error: ImageError) -> SystemError {
    match error {
        ImageError::Write { path, source } => failed("write", &path)(source),
        other => SystemError::Invalid {
            what: "scratch disk",
            value: other.to_string(),
            why: "its file cannot be created",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{LinuxConfig, LinuxSystem};
    use super::*;
    use crate::{FilesystemKind, NewFilesystem};

    #[tokio::test]
    async fn a_scratch_disk_is_made_anew_at_each_start_and_stays_with_a_saved_state() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = LinuxConfig { qemu_users: None, ..LinuxConfig::new(folder.path().join("state")) };
        let system = LinuxSystem::open(config).expect("opened");
        let machines = &system.machines;
        files::ensure_folder(&machines.layout.instance("i-1")).expect("made");
        let filesystem = NewFilesystem { kind: FilesystemKind::Ext4, label: None };
        let new = || Some(NewScratch { size: 32 << 20, filesystem: Some(filesystem.clone()) });
        let empty = Some(NewScratch { size: 32 << 20, filesystem: None });
        let path = machines.prepare_scratch("i-1", empty, false, None).await.expect("made").expect("a path");
        let empty = std::fs::read(&path).expect("read");
        machines.prepare_scratch("i-1", new(), false, None).await.expect("made anew");
        assert!(std::fs::read(&path).expect("read").len() > empty.len(), "it has a file system");
        std::fs::write(&path, b"data of the guest").expect("written");
        let kept = machines.prepare_scratch("i-1", new(), true, None).await.expect("found");
        assert_eq!(kept.as_ref(), Some(&path));
        let state = machines.layout.state("i-1");
        std::fs::create_dir_all(state.parent().expect("a folder")).expect("made");
        std::fs::write(&state, b"memory").expect("saved");
        machines.discard_scratch("i-1").await.expect("kept");
        assert_eq!(std::fs::read(&path).expect("still there"), b"data of the guest");
        machines.prepare_scratch("i-1", new(), false, None).await.expect("made anew");
        assert_ne!(std::fs::read(&path).expect("read"), b"data of the guest");
        std::fs::remove_file(&state).expect("removed");
        machines.discard_scratch("i-1").await.expect("removed");
        assert!(!path.exists());
        machines
            .prepare_scratch("i-1", new(), true, None)
            .await
            .expect_err("the one of the saved machine is gone");
        assert_eq!(machines.prepare_scratch("i-1", None, false, None).await.expect("none"), None);
    }
}
