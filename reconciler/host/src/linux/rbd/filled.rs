//! Images of Ceph that have data of their own from the beginning. The note of the volume is not complete before that: an interrupted call is done
//! again, and to everything else there is no volume yet.

use super::super::files;
use super::super::filesystems::{self, FORMATTED};
use super::super::qemu_img::{QEMU_IMG, text};
use super::client::{Client, LONG};
use super::{RbdPool, Result, options_of, replies};
use crate::{Fill, NewFilesystem, SystemError};

impl RbdPool {
    /// Gives the image of a volume that is being made its data.
    pub(super) async fn fill(&self, id: &str, size: u64, fill: &Fill) -> Result<()> {
        match fill {
            Fill::Image => self.flatten(id).await,
            Fill::Filesystem(filesystem) => self.format(id, size, filesystem).await,
        }
    }

    /// Copies the data of the image that the volume is a clone of.
    async fn flatten(&self, id: &str) -> Result<()> {
        let spec = self.spec(&Self::name_of(id));
        let found = self.rbd(&["info", "--format", "json", &spec]).await?;
        if !found.ok {
            return Err(Client::failed(&found));
        }
        match replies::has_parent(&found.stdout).map_err(Self::not_understood)? {
            true => self.must(&["flatten", "--no-progress", &spec], LONG).await.map(drop),
            false => Ok(()),
        }
    }

    /// Makes a file system in a file of this host, and copies it to the image, whose former data is overwritten.
    async fn format(&self, id: &str, size: u64, filesystem: &NewFilesystem) -> Result<()> {
        let notes = std::path::absolute(&self.notes).unwrap_or_else(|_| self.notes.clone());
        let file = notes.join(format!("{}{id}{FORMATTED}", files::UNFINISHED));
        let formatted = filesystems::format(&file, size, filesystem, self.tools_user).await?;
        let source = format!("file:{}", text(&file));
        let target = options_of(&self.image(&Self::name_of(id)));
        let args = ["convert", "-n", "-f", "raw", "--target-image-opts", &source, &target];
        let written = self.client.within(&QEMU_IMG, &args, LONG).await?;
        drop(formatted);
        match written.ok {
            true => Ok(()),
            false => {
                let detail = written.stderr.lines().last().unwrap_or("it gives no reason").to_owned();
                Err(SystemError::Program { program: QEMU_IMG.name, detail })
            }
        }
    }
}
