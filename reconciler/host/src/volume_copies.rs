//! Copies of volumes between hosts: the file that one of them reads, and another one receives.

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{RemoteError, Result, VolumeOwner};

/// The size of the blocks of a file in a copy. A part is within one of them.
pub const COPY_BLOCK: u64 = 4 << 20;

/// The stay of a VM on a host that a volume was copied for. No two stays are the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Arrival {
    /// The uid of the VM.
    pub vm: String,
    /// The epoch of its binding.
    pub epoch: i64,
}

impl Arrival {
    /// Whether it is this stay, or a later one of the same VM.
    pub fn is_since(&self, stay: &Self) -> bool {
        self.vm == stay.vm && self.epoch >= stay.epoch
    }
}

/// A volume to copy from the host that its VM has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFetch {
    pub pool: String,
    pub id: String,
    /// The name of the host that has it.
    pub from: String,
    /// The least size of the disk in bytes: it has that one already.
    pub size: u64,
    /// Digest of the cached image that it is an overlay on; None for a blank volume.
    pub base: Option<String>,
    /// Whether the space for its whole size is to be reserved afterwards.
    pub thick: bool,
    pub owner: VolumeOwner,
    pub arrival: Arrival,
}

/// The file of a volume that is copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopiedFile {
    /// With the holes, in bytes.
    pub length: u64,
    /// The bytes that it takes from the requested offset on.
    pub taken: u64,
    /// Digest of the image that it is an overlay on.
    pub base: Option<String>,
    /// Another one for each state of the file.
    pub tag: String,
}

/// Bytes of a file that is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedPart {
    pub offset: u64,
    /// At least one.
    pub bytes: Vec<u8>,
}

/// Reads the file of a volume of this host for another one.
#[async_trait]
pub trait VolumeReader: Send + fmt::Debug {
    fn about(&self) -> &CopiedFile;

    /// Returns the next bytes that are not a hole, within one block ([`COPY_BLOCK`]). None: there are no more.
    ///
    /// *Errors*: [`VolumeBusy`](crate::SystemError::VolumeBusy) if the file has changed since it was opened.
    async fn next(&mut self) -> Result<Option<CopiedPart>>;
}

/// The file of a volume on another host.
#[async_trait]
pub trait RemoteVolume: Send + Sync + fmt::Debug {
    /// Opens it for reading from this offset on. It is untrusted: it may have any length and bytes, and may end early.
    async fn open(&self, offset: u64) -> std::result::Result<RemoteVolumeFile, RemoteError>;
}

/// A file on another host that is being read.
#[derive(Debug)]
pub struct RemoteVolumeFile {
    pub about: CopiedFile,
    pub parts: Box<dyn RemoteParts>,
}

/// The parts of a file on another host.
#[async_trait]
pub trait RemoteParts: Send + fmt::Debug {
    /// Returns the next one. None: the host has sent all.
    async fn next(&mut self) -> std::result::Result<Option<CopiedPart>, RemoteError>;
}
