//! Replies to requests.

use std::collections::BTreeMap;

use super::Extent;
use super::connection::{Wire, WireError, protocol, text};

const SIMPLE: u32 = 0x6744_6698;
const STRUCTURED: u32 = 0x668e_33ef;
/// The flag of the last chunk of a reply.
const DONE: u16 = 1;

/// Types of chunks.
const NONE: u16 = 0;
const OFFSET_DATA: u16 = 1;
const OFFSET_HOLE: u16 = 2;
const BLOCK_STATUS: u16 = 5;
/// Types from here on are errors.
const ERRORS: u16 = 1 << 15;

/// The maximum number of chunks of a reply: 4 MiB in sectors of 512 bytes, and its end.
const MAX_CHUNKS: usize = 8193;
/// The maximum length of an error in a chunk.
const MAX_ERROR: usize = 4096 + 64;
/// The maximum number of descriptors in a chunk; QEMU sends at most 128 Ki.
const MAX_DESCRIPTORS: usize = 256 << 10;

/// States of `base:allocation`.
const STATE_HOLE: u32 = 1;
const STATE_ZERO: u32 = 2;

/// An error of the disk.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) errno: i32,
    pub(super) message: String,
}

/// A chunk of a reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    kind: u16,
    length: usize,
}

/// The reply to one kind of request.
pub(super) trait Reply {
    /// Reads the payload of a chunk that is no error.
    async fn chunk(&mut self, wire: &mut Wire, chunk: Chunk) -> Result<(), WireError>;

    /// Checks that a reply without error is complete. `is_simple`: it is without chunks.
    fn check(&self, is_simple: bool) -> Result<(), WireError>;
}

/// Reads the reply to a request. Returns the disk's error, if it failed.
pub(super) async fn read(
    wire: &mut Wire,
    cookie: u64,
    reply: &mut impl Reply,
) -> Result<Option<Failure>, WireError> {
    let mut failure = None;
    for _ in 0..MAX_CHUNKS {
        let is_simple = match wire.u32().await? {
            SIMPLE => true,
            STRUCTURED => false,
            other => return protocol(format!("a reply begins with {other:#x}")),
        };
        if is_simple {
            let (error, of) = (wire.u32().await?, wire.u64().await?);
            if of != cookie || failure.is_some() {
                return protocol("it is the reply to another request");
            }
            if error != 0 {
                return Ok(Some(failed(error, &[])));
            }
            return reply.check(true).map(|()| None);
        }
        let (flags, kind, of) = (wire.u16().await?, wire.u16().await?, wire.u64().await?);
        let length = wire.u32().await? as usize;
        if of != cookie {
            return protocol("it is the reply to another request");
        }
        if kind >= ERRORS {
            let data = wire.bytes(length, MAX_ERROR, "the error").await?;
            let parsed = parse_error(&data);
            let Some(parsed) = parsed else { return protocol("an error has a wrong length") };
            failure.get_or_insert(parsed);
        } else if kind == NONE {
            if length != 0 || flags & DONE == 0 {
                return protocol("an empty chunk has data, or is not the last one");
            }
        } else {
            reply.chunk(wire, Chunk { kind, length }).await?;
        }
        if flags & DONE != 0 {
            if failure.is_none() {
                reply.check(false)?;
            }
            return Ok(failure);
        }
    }
    protocol(format!("a reply has more than {MAX_CHUNKS} chunks"))
}

fn parse_error(data: &[u8]) -> Option<Failure> {
    let (error, rest) = data.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let message = rest.get(..usize::from(u16::from_be_bytes(*length)))?;
    Some(failed(u32::from_be_bytes(*error), message))
}

/// The numbers of errors are those of Linux.
fn failed(error: u32, message: &[u8]) -> Failure {
    let errno = i32::try_from(error).unwrap_or(i32::MAX);
    let message = match message.is_empty() {
        true => format!("error {error}"),
        false => text(message),
    };
    Failure { errno, message }
}

/// The reply to a request that returns nothing.
pub(super) struct Done;

impl Reply for Done {
    async fn chunk(&mut self, _: &mut Wire, chunk: Chunk) -> Result<(), WireError> {
        protocol(format!("a chunk of type {} was not expected", chunk.kind))
    }

    fn check(&self, _is_simple: bool) -> Result<(), WireError> {
        Ok(())
    }
}

/// The reply to a read.
pub(super) struct ReadReply<'a> {
    offset: u64,
    into: &'a mut [u8],
    /// Where the parts that were received begin and end in the buffer.
    received: BTreeMap<usize, usize>,
}

impl<'a> ReadReply<'a> {
    pub(super) fn new(offset: u64, into: &'a mut [u8]) -> Self {
        Self { offset, into, received: BTreeMap::new() }
    }

    /// Returns the part of the buffer for a chunk, which must not have been received.
    fn part(&mut self, offset: u64, length: usize) -> Result<&mut [u8], WireError> {
        let start = offset.checked_sub(self.offset).and_then(|start| usize::try_from(start).ok());
        let range = start.and_then(|start| Some((start, start.checked_add(length)?)));
        let Some((start, end)) = range.filter(|(_, end)| length > 0 && *end <= self.into.len()) else {
            return protocol(format!(
                "there are {length} bytes at {offset}, which is not in the part that was read"
            ));
        };
        let before = self.received.range(..end).next_back();
        if before.is_some_and(|(_, before_end)| *before_end > start) {
            return protocol(format!("byte {offset} comes twice"));
        }
        self.received.insert(start, end);
        Ok(&mut self.into[start..end])
    }
}

impl Reply for ReadReply<'_> {
    async fn chunk(&mut self, wire: &mut Wire, chunk: Chunk) -> Result<(), WireError> {
        match (chunk.kind, chunk.length) {
            (OFFSET_DATA, length @ 8..) => {
                let offset = wire.u64().await?;
                let part = self.part(offset, length - 8)?;
                wire.read(part).await
            }
            (OFFSET_HOLE, 12) => {
                let (offset, length) = (wire.u64().await?, wire.u32().await?);
                self.part(offset, length as usize)?.fill(0);
                Ok(())
            }
            (kind, length) => {
                protocol(format!("a chunk of type {kind} with {length} bytes was not expected"))
            }
        }
    }

    fn check(&self, is_simple: bool) -> Result<(), WireError> {
        let received: usize = self.received.iter().map(|(start, end)| end - start).sum();
        match received == self.into.len() && !is_simple {
            true => Ok(()),
            false => protocol(format!("{received} of {} bytes came", self.into.len())),
        }
    }
}

/// The reply to a request for the state of blocks.
pub(super) struct StatusReply {
    ids: (u32, u32),
    /// Lengths and states of the extents, of each metadata context.
    pub(super) base: Vec<(u32, u32)>,
    pub(super) depth: Vec<(u32, u32)>,
}

impl StatusReply {
    /// With the ids of the metadata contexts.
    pub(super) fn new(base: u32, depth: u32) -> Self {
        Self { ids: (base, depth), base: Vec::new(), depth: Vec::new() }
    }
}

impl Reply for StatusReply {
    async fn chunk(&mut self, wire: &mut Wire, chunk: Chunk) -> Result<(), WireError> {
        if chunk.kind != BLOCK_STATUS || chunk.length < 4 {
            return protocol(format!("a chunk of type {} was not expected", chunk.kind));
        }
        let id = wire.u32().await?;
        let data = wire.bytes(chunk.length - 4, MAX_DESCRIPTORS * 8, "the state of blocks").await?;
        let (pairs, rest) = data.as_chunks::<8>();
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let extents: Vec<_> = pairs.iter().map(|pair| (number(&pair[..4]), number(&pair[4..]))).collect();
        if !rest.is_empty() || extents.is_empty() || extents.iter().any(|(length, _)| *length == 0) {
            return protocol("an extent is empty or incomplete");
        }
        let slot = match id {
            id if id == self.ids.0 => &mut self.base,
            id if id == self.ids.1 => &mut self.depth,
            other => return protocol(format!("there is a state of the unknown metadata context {other}")),
        };
        if !slot.is_empty() {
            return protocol("a metadata context comes twice");
        }
        *slot = extents;
        Ok(())
    }

    fn check(&self, _is_simple: bool) -> Result<(), WireError> {
        match self.base.is_empty() || self.depth.is_empty() {
            true => protocol("a metadata context is missing"),
            false => Ok(()),
        }
    }
}

/// Cuts the extents of two metadata contexts to extents with both states, as far as both reach and at most `max` bytes.
pub(super) fn merge(base: &[(u32, u32)], depth: &[(u32, u32)], max: u64) -> Vec<Extent> {
    let mut merged = Vec::new();
    let (mut base, mut depth) = (base.iter().copied(), depth.iter().copied());
    let (mut of_base, mut of_depth) = (base.next(), depth.next());
    let mut left = max;
    while let (Some((base_length, state)), Some((depth_length, depth_state))) = (of_base, of_depth) {
        let length = base_length.min(depth_length);
        let used = u64::from(length).min(left);
        if used == 0 {
            break;
        }
        let (is_zero, is_hole) = (state & STATE_ZERO != 0, state & STATE_HOLE != 0);
        merged.push(Extent { length: used, depth: depth_state, is_zero, is_hole });
        left -= used;
        of_base = if base_length > length { Some((base_length - length, state)) } else { base.next() };
        of_depth =
            if depth_length > length { Some((depth_length - length, depth_state)) } else { depth.next() };
    }
    merged
}
