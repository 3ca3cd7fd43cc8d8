//! The manifest of a backup, and its indexes.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::block::{BLOCK_SIZE, BlockId};
use crate::error::{Error, Result};

/// The maximum size of a disk, in bytes: 16 TiB.
pub const MAX_SIZE: u64 = 16 << 40;
/// The maximum length of the facts of a backup, in bytes of JSON.
pub const MAX_FACTS: usize = 64 << 10;
/// The number of blocks in an index.
pub(crate) const INDEX_BLOCKS: usize = 16 << 10;
/// The length of an id in an index.
const ID: usize = 32;
/// The maximum length of an index.
pub(crate) const MAX_INDEX: usize = INDEX_BLOCKS * ID;
/// The maximum length of a manifest: its facts, and 256 indexes with at most 70 bytes.
pub(crate) const MAX_MANIFEST: usize = 128 << 10;

/// The amount of data of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The size of the disk in bytes.
    pub size: u64,
    /// The bytes that were read from the disk.
    pub read_bytes: u64,
    /// The bytes that were added to the repository, as stored: blocks and indexes, without the manifest.
    pub stored_bytes: u64,
    /// The number of blocks that are not zeros.
    pub blocks: u64,
}

/// The description of a complete backup.
#[derive(Clone, Debug, PartialEq)]
pub struct BackupFacts {
    /// As given by the caller.
    pub time: Timestamp,
    /// As given by the caller.
    pub facts: Map<String, Value>,
    pub summary: Summary,
}

/// A manifest as stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub(crate) size: u64,
    pub(crate) time: Timestamp,
    pub(crate) facts: Map<String, Value>,
    pub(crate) read_bytes: u64,
    pub(crate) stored_bytes: u64,
    pub(crate) blocks: u64,
    /// `None`: zero blocks only.
    pub(crate) indexes: Vec<Option<BlockId>>,
}

/// The part of a disk that an index describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The number of the index.
    pub(crate) index: usize,
    /// In bytes.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Part {
    /// The number of blocks.
    pub(crate) fn blocks(self) -> usize {
        self.length.div_ceil(BLOCK_SIZE as u64) as usize
    }

    /// The offset of a block of this part, and its length.
    pub(crate) fn block(self, at: usize) -> (u64, usize) {
        let offset = (at * BLOCK_SIZE) as u64;
        (self.offset + offset, (self.length - offset).min(BLOCK_SIZE as u64) as usize)
    }
}

/// The parts of a disk of this size.
pub(crate) fn parts(size: u64) -> impl Iterator<Item = Part> + Send {
    let of_index = (INDEX_BLOCKS * BLOCK_SIZE) as u64;
    (0..size.div_ceil(of_index)).map(move |index| {
        let offset = index * of_index;
        Part { index: index as usize, offset, length: (size - offset).min(of_index) }
    })
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("maps have keys of text")
    }

    /// The error explains why it is none.
    pub(crate) fn decode(json: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if manifest.size > MAX_SIZE {
            return Err(format!("the disk has {} bytes, and at most {MAX_SIZE} are possible", manifest.size));
        }
        let (found, needed) = (manifest.indexes.len(), parts(manifest.size).count());
        match found == needed {
            true => Ok(manifest),
            false => Err(format!("it has {found} indexes, and its size needs {needed}")),
        }
    }

    pub(crate) fn summary(&self) -> Summary {
        let Self { size, read_bytes, stored_bytes, blocks, .. } = *self;
        Summary { size, read_bytes, stored_bytes, blocks }
    }

    pub(crate) fn into_facts(self) -> BackupFacts {
        BackupFacts { summary: self.summary(), time: self.time, facts: self.facts }
    }
}

/// Refuses facts that are too large.
pub(crate) fn check_facts(facts: &Map<String, Value>) -> Result<()> {
    let length = serde_json::to_vec(facts).expect("maps have keys of text").len();
    match length <= MAX_FACTS {
        true => Ok(()),
        false => Err(Error::FactsTooLarge { length, limit: MAX_FACTS }),
    }
}

pub(crate) fn encode_index(ids: &[BlockId]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.0).collect()
}

/// Reads the index of a part of a disk. The error explains why it is none.
pub(crate) fn decode_index(data: &[u8], part: Part) -> Result<Vec<BlockId>, String> {
    let (ids, rest) = data.as_chunks::<ID>();
    match rest.is_empty() && ids.len() == part.blocks() {
        true => Ok(ids.iter().map(|id| BlockId(*id)).collect()),
        false => {
            Err(format!("it is an index of {} bytes, and {} are needed", data.len(), part.blocks() * ID))
        }
    }
}

impl Serialize for BlockId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BlockId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("an id is not 64 hexadecimal digits"))
    }
}
