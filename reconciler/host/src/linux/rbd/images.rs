//! The contents of Images in Ceph: each is imported once, into a snapshot of which volumes are clones.
//!
//! An import is written under a name of its own and renamed at its end, so that of two hosts which import one content the first wins.
//! The file may be a tenant's: a confined program reads it, and the one that has the key of Ceph gets the data alone, by a socket.
//! Imported contents stay: berth does not know which other sites have clones of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_qemu::machine::{Backing, DiskKey};
use berth_qemu::process::{FilterError, NbdExport, NbdServer, RunAs};
use serde_json::json;

use super::super::files::{self, blocking, failed};
use super::super::program::Program;
use super::super::qemu_img::{
    CONVERT_MEMORY, DiskNode, PrintedProgress, QEMU_IMG, block_node, secret_on_stdin,
};
use super::client::{Client, LONG, PATIENCE, is_absent, not_written};
use super::{RbdPool, Result, options_of};
use crate::{ImageFacts, Progress, SystemError};

const QEMU_NBD: Program = Program {
    name: "qemu-nbd",
    advice: "it reads images for pools of Ceph (Debian, Ubuntu: apt install qemu-utils; Fedora: dnf install qemu-img)",
};
/// A program that only reads writes messages at most.
const MESSAGES: u64 = 1 << 20;
/// How long `qemu-nbd` may take until it has its socket, and until it accepts its connection there, in seconds.
const START: u32 = 30;
const TRY_EVERY: Duration = Duration::from_millis(20);
/// How long a new volume waits for the import of its image before it is tried again: of a large one it takes minutes.
const IMPORT_WAIT: Duration = Duration::from_secs(30);
/// The snapshot that volumes are clones of.
const BASE: &str = "base";
/// How much of a digest is in a name: names of images are short.
const DIGEST: usize = 64;
/// The features of all images: one client writes at a time.
pub(super) const FEATURES: &str = "layering,exclusive-lock,object-map,fast-diff,deep-flatten";

/// An image to write to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    pub(super) name: &'a str,
    /// The key of its data. None: the data is written as it is.
    pub(super) key: Option<&'a DiskKey>,
}

impl RbdPool {
    /// Imports the content of an Image for a volume, unless the pool has it. Returns the snapshot, as `rbd` names it. One import goes on at a
    /// time, also when nothing waits for it any more.
    ///
    /// *Errors*: [`SystemError::VolumeBusy`] while one goes on that takes longer, or that is another volume's.
    pub(super) async fn import(self: &Arc<Self>, image: &ImageFacts, volume: &str) -> Result<String> {
        let name = format!("berth-image-{}", cut(&image.digest, DIGEST));
        let snapshot = format!("{}@{BASE}", self.spec(&name));
        if self.has_base(&name).await? {
            return Ok(snapshot);
        }
        let busy = || SystemError::VolumeBusy {
            id: volume.to_owned(),
            detail: "an image is being imported into Ceph: it is made after that",
        };
        let alone = Arc::clone(&self.importing).try_lock_owned().map_err(|_| busy())?;
        let (pool, image) = (Arc::clone(self), image.clone());
        let import = tokio::spawn(async move {
            let imported = pool.import_now(&image, &name).await;
            if let Err(error) = &imported {
                tracing::warn!(digest = image.digest, error = error.chain(), "image not imported into Ceph");
            }
            drop(alone);
            imported
        });
        match tokio::time::timeout(IMPORT_WAIT, import).await {
            Ok(Ok(imported)) => imported.map(|()| snapshot),
            Ok(Err(_)) | Err(_) => Err(busy()),
        }
    }

    async fn import_now(&self, image: &ImageFacts, name: &str) -> Result<()> {
        if self.has_base(name).await? {
            return Ok(());
        }
        let unfinished = format!("berth-import-{}-{}", cut(&self.host(), 40), cut(&image.digest, 16));
        // That of an interrupted import.
        self.discard(&unfinished).await?;
        self.write(image, &unfinished).await?;
        let renamed = self.rbd(&["rename", &self.spec(&unfinished), &self.spec(name)]).await?;
        if !renamed.ok {
            self.discard(&unfinished).await?;
            // Another host may have been first.
            if !self.has_base(name).await? {
                return Err(Client::failed(&renamed));
            }
        }
        tracing::info!(pool = self.mapping.pool, digest = image.digest, "image imported into Ceph");
        Ok(())
    }

    async fn has_base(&self, name: &str) -> Result<bool> {
        Ok(self.snapshots_of_image(name).await?.get(BASE).is_some_and(|base| base.is_protected))
    }

    async fn write(&self, image: &ImageFacts, name: &str) -> Result<()> {
        let (spec, size) = (self.spec(name), bytes(image.virtual_size));
        self.must(&["create", "--size", &size, "--image-feature", FEATURES, &spec], PATIENCE).await?;
        let (server, socket) = self.serve(image).await?;
        let target = Target { name, key: None };
        let written = self.convert(&[&nbd_source(&socket)], target, LONG, (0, &|_, _| {})).await;
        drop(server);
        let folder = self.sockets.clone();
        blocking(move || {
            // One that stays is used by the next import.
            let _ = std::fs::remove_dir_all(folder);
        })
        .await;
        written?;
        let snapshot = format!("{spec}@{BASE}");
        self.must(&["snap", "create", "--no-progress", &snapshot], PATIENCE * 4).await?;
        self.must(&["snap", "protect", &snapshot], PATIENCE).await.map(drop)
    }

    /// Writes data to an image, whose former data is overwritten. `source`: the data, after the options for it. The progress is in parts of
    /// this number of bytes.
    pub(super) async fn convert(
        &self,
        source: &[&str],
        target: Target<'_>,
        limit: Duration,
        (size, progress): (u64, Progress<'_>),
    ) -> Result<()> {
        let options = options_of(&self.image(target.name), target.key.is_some());
        let (secret, mut args, mut input) = (secret_on_stdin(), vec!["convert", "-p", "-n"], Vec::new());
        if let Some(key) = target.key {
            args.extend(["--object", secret.as_str()]);
            input = key.passphrase().into_bytes();
        }
        args.push("--target-image-opts");
        args.extend(source);
        args.push(&options);
        let mut printed = PrintedProgress::default();
        let take = |output: &[u8]| {
            if let Some(done) = printed.read(output) {
                progress(done.of(size), Some(size));
            }
        };
        let written = self.client.stream_within(&QEMU_IMG, &args, input, limit, take).await?;
        if written.ok { Ok(()) } else { Err(not_written(&written)) }
    }

    /// Has the data of an image served to one client. Returns the socket, too.
    async fn serve(&self, image: &ImageFacts) -> Result<(NbdServer, PathBuf)> {
        let disk = self.disk_of(image).await?;
        serve_disk(&disk, self.tools_user, &self.sockets).await
    }

    /// Returns the content of an Image as programs open it, which may have another user.
    pub(super) async fn disk_of(&self, image: &ImageFacts) -> Result<DiskNode> {
        let path = std::path::absolute(&image.path).unwrap_or_else(|_| image.path.clone());
        if self.tools_user.is_some() {
            let image_file = path.clone();
            blocking(move || files::freeze(&image_file)).await?;
        }
        // No name is read from the header of the file.
        let file = Backing { file: path.clone(), format: image.format, backing: None };
        Ok(DiskNode { node: block_node(&file, "auto"), files: vec![path] })
    }

    /// Removes an import that is not finished.
    async fn discard(&self, name: &str) -> Result<()> {
        let spec = self.spec(name);
        let found = self.rbd(&["info", "--format", "json", &spec]).await?;
        if is_absent(&found) {
            return Ok(());
        }
        // It may have no snapshot yet, or one that is not protected.
        self.rbd(&["snap", "unprotect", &format!("{spec}@{BASE}")]).await?;
        self.rbd_within(&["snap", "purge", "--no-progress", &spec], LONG).await?;
        self.must(&["rm", "--no-progress", &spec], LONG).await.map(drop)
    }
}

/// Has the data of a disk in files served to one client, by a socket in this folder, which is for it alone. Returns the socket, too.
pub(super) async fn serve_disk(
    disk: &DiskNode,
    user: Option<RunAs>,
    folder: &Path,
) -> Result<(NbdServer, PathBuf)> {
    let socket = folder.join("socket");
    let (folder, former) = (folder.to_owned(), socket.clone());
    let prepare = move || {
        files::ensure_folder(&folder)?;
        files::remove_if_there(&former).map_err(failed("remove", &former))?;
        let Some(user) = user else { return Ok(()) };
        std::os::unix::fs::chown(&folder, Some(user.uid), Some(user.gid))
            .map_err(failed("change the owner of", &folder))
    };
    blocking(prepare).await?;
    let export = NbdExport {
        program: QEMU_NBD.find()?,
        source: format!("json:{}", disk.node),
        inputs: disk.files.clone(),
        output: None,
        read_only: true,
        socket: socket.clone(),
        user,
        max_bytes: MESSAGES,
        memory: CONVERT_MEMORY,
        key: None,
    };
    let explain = |error: FilterError| QEMU_NBD.failed(error.to_string());
    let mut server = export.serve().await.map_err(explain)?;
    let begun = Instant::now();
    while !socket.exists() && begun.elapsed() < Duration::from_secs(START.into()) {
        server.check().map_err(explain)?;
        tokio::time::sleep(TRY_EVERY).await;
    }
    Ok((server, socket))
}

/// Returns the data that is served by this socket, as `qemu-img` opens it.
pub(super) fn nbd_source(socket: &Path) -> String {
    let socket = json!({"type": "unix", "path": socket.to_string_lossy()});
    let served = json!({"driver": "nbd", "server": socket, "open-timeout": START});
    format!("json:{}", json!({"driver": "raw", "file": served}))
}

/// A size as an option of `rbd`.
pub(super) fn bytes(size: u64) -> String {
    format!("{size}B")
}

fn cut(text: &str, most: usize) -> &str {
    text.get(..most).unwrap_or(text)
}
