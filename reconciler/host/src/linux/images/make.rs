//! Makes an image from a snapshot: one file with all that the snapshot is based on.
//!
//! ```text
//!  snapshot ─▶ snapshot ─▶ image   ──qemu-img convert──▶ <uid>.making-<process> ──SHA-256──▶ <digest>.json ──rename──▶ <digest>
//! ```
//!
//! The headers of these files are written by the QEMUs of guests. `qemu-img` therefore gets the whole chain by name, follows no
//! name in a header, and can open no other file. The files below a snapshot never change, so the work can be repeated.
//!
//! A snapshot in Ceph is raw data. `qemu-img` reads it with the rights of the agent, which has the key of Ceph.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use berth_qemu::machine::{Backing, Format};
use berth_qemu::process::{Filter, FilterError, RunAs};
use sha2::{Digest, Sha256};

use super::super::files::{self, blocking, failed};
use super::super::layout::{IMAGE_LINKS, Layout, check_name};
use super::super::qemu_img::{CONVERT_MEMORY, DiskNode, QEMU_IMG, block_node, linked, no_space, paths, text};
use super::unpack::TIME;
use super::{LinuxImages, Result};
use crate::{DownloadLimits, Encoding, ImageFacts, ImageSource, NewImage, SystemError};

const MAKING: &str = ".making-";
const BLOCK: usize = 1 << 20;
/// The memory of `qemu-img` with the threads and caches of Ceph's library.
const MEMORY_FOR_CEPH: u64 = 4 << 30;

/// The data of a snapshot.
#[derive(Debug)]
pub(in super::super) enum SnapshotContent {
    /// In a chain of files, the first of which is that of the snapshot.
    Files(Backing),
    /// Raw data, in Ceph or in a file of the host, which is read with the rights of the agent: no header of it is.
    Raw {
        disk: DiskNode,
        /// The bytes that have data.
        bytes: u64,
    },
}

/// The data as `qemu-img` opens it, and with which rights.
#[derive(Debug)]
pub(in super::super) struct Input {
    pub(in super::super) disk: DiskNode,
    pub(in super::super) user: Option<RunAs>,
    pub(in super::super) memory: u64,
}

impl SnapshotContent {
    /// Returns how the data is opened. `links`: the folder for the paths of the user to the files. Blocking.
    pub(in super::super) fn into_input(
        self,
        layout: &Layout,
        links: &Path,
        user: Option<RunAs>,
    ) -> Result<Input> {
        let chain = match (self, &user) {
            (Self::Raw { disk, .. }, _) => return Ok(Input { disk, user: None, memory: MEMORY_FOR_CEPH }),
            (Self::Files(chain), Some(user)) => linked(layout, links, &chain, user)?,
            (Self::Files(chain), None) => chain,
        };
        let disk = DiskNode { node: block_node(&chain, "auto"), files: paths(&chain) };
        Ok(Input { disk, user, memory: CONVERT_MEMORY })
    }

    /// Returns the bytes that the data takes at most. Blocking.
    pub(in super::super) fn bytes(&self) -> Result<u64> {
        let chain = match self {
            Self::Files(chain) => chain,
            Self::Raw { bytes, .. } => return Ok(*bytes),
        };
        let mut bytes = 0_u64;
        for path in paths(chain) {
            let metadata = fs::metadata(&path).map_err(failed("look at", &path))?;
            bytes = bytes.saturating_add(metadata.blocks().saturating_mul(512).min(metadata.len()));
        }
        Ok(bytes)
    }
}

impl ImageSource {
    /// The image as a source with this digest, for comparisons and messages.
    pub(super) fn made(new: &NewImage, digest: &str) -> Self {
        Self {
            namespace: new.namespace.clone(),
            shared: false,
            url: String::new(),
            shown: format!("the image of {}", new.shown),
            digest: digest.to_owned(),
            format: Format::Qcow2,
            encoding: Encoding::default(),
            secret: None,
            host: None,
            limits: DownloadLimits::default(),
        }
    }
}

/// The unfinished file and the links to the snapshots, which go with the work, however it ends.
struct Making {
    output: PathBuf,
    links: PathBuf,
}

impl Drop for Making {
    fn drop(&mut self) {
        // A file that stays is removed by the housekeeping of the next process.
        let _ = files::remove_if_there(&self.output);
        let _ = fs::remove_dir_all(&self.links);
    }
}

impl LinuxImages {
    /// Returns the image that was made for this object before.
    pub(in super::super) async fn made(&self, new: &NewImage) -> Result<Option<ImageFacts>> {
        check_name("uid", &new.uid)?;
        let (cache, new) = (self.cache.clone(), new.clone());
        blocking(move || cache.made(&new)).await
    }

    /// Makes the image from the data of the snapshot.
    pub(in super::super) async fn make(
        self: &Arc<Self>,
        new: &NewImage,
        data: SnapshotContent,
    ) -> Result<ImageFacts> {
        check_name("uid", &new.uid)?;
        let layout = self.cache.layout().clone();
        let making = Making {
            output: layout.images().join(format!("{}{MAKING}{}", new.uid, self.process)),
            links: layout.snapshot_links(&new.pool, &format!("{IMAGE_LINKS}{}-{}", new.uid, self.process)),
        };
        let (output, links, user) = (making.output.clone(), making.links.clone(), self.unpacker.user);
        let prepared = blocking(move || {
            files::remove_if_there(&output).map_err(failed("remove", &output))?;
            files::check_space(&output, data.bytes()?)?;
            data.into_input(&layout, &links, user)
        });
        self.convert_data(new, prepared.await?, &making.output).await?;
        let (cache, new) = (self.cache.clone(), new.clone());
        // The unfinished file stays until this has ended, also when the caller does not wait for it.
        let facts = blocking(move || {
            files::take_back(&making.output)?;
            let digest = digest(&making.output)?;
            cache.admit_made(&new, &digest, &making.output)
        })
        .await?;
        tracing::info!(digest = facts.digest, bytes = facts.bytes, "image made");
        Ok(facts)
    }

    async fn convert_data(&self, new: &NewImage, from: Input, output: &Path) -> Result<()> {
        let Input { disk: DiskNode { node, mut files }, user, memory } = from;
        let input = files.remove(0);
        let source = format!("json:{node}");
        let target = format!("file:{}", text(output));
        let filter = Filter {
            program: QEMU_IMG.find()?,
            args: ["convert", "-O", "qcow2", &source, &target].map(str::to_owned).to_vec(),
            input,
            further: files,
            output: Some(output.to_owned()),
            changed: Vec::new(),
            lock: None,
            key: None,
            user,
            max_bytes: self.max_bytes,
            memory,
            time: TIME,
        };
        filter.run().await.map_err(|error| explain(new, output, error))
    }
}

/// Returns the SHA-256 of a file, in hexadecimal digits.
fn digest(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(failed("read", path))?;
    let (mut hasher, mut block) = (Sha256::new(), vec![0; BLOCK]);
    loop {
        match file.read(&mut block).map_err(failed("read", path))? {
            0 => break,
            n => hasher.update(&block[..n]),
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn explain(new: &NewImage, output: &Path, error: FilterError) -> SystemError {
    let not_made = |detail: String| SystemError::ImageNotMade { from: new.shown.clone(), detail };
    match error {
        FilterError::TooLarge { max_bytes } => SystemError::ImageTooLarge {
            url: format!("the image of {}", new.shown),
            detail: format!("more than the {max_bytes} bytes this host allows for an image"),
        },
        FilterError::Failed { said, .. } if said.contains("No space left") => no_space(output),
        FilterError::Failed { said, status } => {
            not_made(if said.is_empty() { status } else { said.trim_start_matches("qemu-img: ").to_owned() })
        }
        FilterError::TooSlow { after } => {
            not_made(format!("it took longer than {} minutes", after.as_secs() / 60))
        }
        FilterError::File { path, source } => SystemError::File { attempt: "use", path, source },
        FilterError::Launch(error) => SystemError::Launch(error),
        FilterError::Process(error) => SystemError::Process(error),
    }
}

/// Removes what other processes left, which have ended: one agent acts on a state directory. Blocking.
pub(super) fn forget_others(layout: &Layout, process: &str) -> Result<()> {
    for name in files::names(&layout.images())? {
        if name.rsplit_once(MAKING).is_some_and(|(_, by)| by != process) {
            let path = layout.images().join(&name);
            files::remove_if_there(&path).map_err(failed("remove", &path))?;
        }
    }
    Ok(())
}
