//! A client of the NBD protocol: reads and writes a disk that QEMU or qemu-nbd exports on a unix socket.
//!
//! ```text
//!  connect ──▶ handshake: structured replies, metadata contexts, the export
//!                  ▼
//!              requests: one at a time, each with its reply
//!                  ▼
//!              disconnect
//! ```
//!
//! Source: "The NBD protocol", `doc/proto.md` of the project NetworkBlockDevice/nbd.
//!
//! The server is not trusted: lengths are checked against the request before memory is used for them, and the time for each exchange is
//! limited. After a reply that does not follow the protocol, or a request whose future was dropped, the connection is not used
//! any more.

mod connection;
mod handshake;
mod reply;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;

use crate::socket;
use connection::Connection;
use handshake::Export;
use reply::{ReadReply, StatusReply, merge};

/// The time limit for one exchange. A disk that is busy may need seconds.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum length of a read or write in one request.
const MAX_PIECE: usize = 4 << 20;
/// The maximum length of zeros in one request: a disk that cannot make holes writes them.
const MAX_ZEROES: u64 = 128 << 20;
/// The maximum length of the extents in one request.
const MAX_STATUS: u64 = 1 << 30;
/// The maximum number of extents that are returned at once.
const MAX_EXTENTS: usize = 4 << 20;

/// The flag of a read that is answered in one part. Otherwise QEMU closes the connection when the disk has an error.
const DO_NOT_FRAGMENT: u16 = 1 << 2;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const WRITE_ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;

/// A part of a disk, as its image has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// In bytes.
    pub length: u64,
    /// The image in the chain that has the data: 1 is the top one, 2 its backing file. 0: no image has.
    pub depth: u32,
    /// It reads as zeros.
    pub is_zero: bool,
    /// It uses no space.
    pub is_hole: bool,
}

/// Why a disk could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    #[error("cannot connect to the NBD socket {}", path.display())]
    Connect { path: PathBuf, source: std::io::Error },
    #[error("the NBD server closed the connection, or it broke")]
    Broken { source: std::io::Error },
    #[error("the NBD server did not answer {request} within {after:?}")]
    Silent { request: &'static str, after: Duration },
    #[error("the NBD server's answer to {request} does not follow the protocol: {detail}")]
    Protocol { request: &'static str, detail: String },
    #[error("the NBD server refused {request} of the export {export:?}: {message}")]
    Refused { request: &'static str, export: String, message: String },
    /// An error of the disk. The connection can be used further.
    #[error("{request} failed at byte {offset}: {message}")]
    Failed { request: &'static str, offset: u64, message: String, source: std::io::Error },
    #[error("{length} bytes at byte {offset} are not on the disk of {size} bytes")]
    OutOfRange { offset: u64, length: u64, size: u64 },
    #[error("the NBD server does not offer {what} for this export")]
    NotOffered { what: &'static str },
    #[error("the disk has more than {MAX_EXTENTS} extents in {length} bytes: ask for a smaller part")]
    TooManyExtents { length: u64 },
    #[error("the connection to the NBD server is not usable after an earlier failure: connect again")]
    Unusable,
}

/// A connection to one export. One request at a time.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    export: Export,
    last_cookie: u64,
}

/// A request to the server.
#[derive(Clone, Copy, Debug)]
struct Request<'a> {
    name: &'static str,
    flags: u16,
    command: u16,
    offset: u64,
    length: u32,
    data: &'a [u8],
}

impl Client {
    /// Connects to an export of the server at this socket.
    pub async fn connect(path: &Path, export: &str) -> Result<Self, NbdError> {
        let stream = socket::connect(path)
            .await
            .map_err(|source| NbdError::Connect { path: path.to_owned(), source })?;
        Self::over(stream, export, DEFAULT_TIMEOUT).await
    }

    /// Uses the server at the other end of a connected stream, with this time limit for one exchange.
    pub async fn over(stream: UnixStream, export: &str, timeout: Duration) -> Result<Self, NbdError> {
        let mut connection = Connection::new(stream, timeout);
        let export = connection
            .exchange("the handshake", async |wire| handshake::negotiate(wire, export).await)
            .await?;
        Ok(Self { connection, export, last_cookie: 0 })
    }

    /// Returns the size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.export.size
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.export.is_read_only
    }

    /// Returns the extents of a part of the disk, in order and without gaps. Neighbours differ.
    ///
    /// *Errors*: [`NbdError::NotOffered`] if the export was made without the metadata context `qemu:allocation-depth`.
    pub async fn extents(&mut self, offset: u64, length: u64) -> Result<Vec<Extent>, NbdError> {
        self.check(offset, length)?;
        let base = self.export.base_allocation.ok_or(NbdError::NotOffered { what: "base:allocation" })?;
        let depth =
            self.export.allocation_depth.ok_or(NbdError::NotOffered { what: "qemu:allocation-depth" })?;
        let (mut found, mut done): (Vec<Extent>, u64) = (Vec::new(), 0);
        while done < length {
            let part = (length - done).min(MAX_STATUS);
            let request = Request {
                name: "the state of blocks",
                flags: 0,
                command: BLOCK_STATUS,
                offset: offset + done,
                length: part as u32,
                data: &[],
            };
            let mut reply = StatusReply::new(base, depth);
            self.request(request, &mut reply).await?;
            for extent in merge(&reply.base, &reply.depth, part) {
                done += extent.length;
                match found.last_mut().filter(|last| Extent { length: extent.length, ..**last } == extent) {
                    Some(last) => last.length += extent.length,
                    None => found.push(extent),
                }
            }
            if found.len() > MAX_EXTENTS {
                return Err(NbdError::TooManyExtents { length });
            }
        }
        Ok(found)
    }

    /// Fills the buffer with the data at this offset.
    pub async fn read_at(&mut self, offset: u64, into: &mut [u8]) -> Result<(), NbdError> {
        self.check(offset, into.len() as u64)?;
        let flags = if self.export.can_read_whole { DO_NOT_FRAGMENT } else { 0 };
        let mut at = offset;
        for piece in into.chunks_mut(MAX_PIECE) {
            let length = piece.len() as u32;
            let request = Request { name: "a read", flags, command: READ, offset: at, length, data: &[] };
            self.request(request, &mut ReadReply::new(at, piece)).await?;
            at += u64::from(length);
        }
        Ok(())
    }

    /// Writes the data at this offset. It is on the medium after [`Client::flush`].
    pub async fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<(), NbdError> {
        self.check_write(offset, data.len() as u64)?;
        let mut at = offset;
        for piece in data.chunks(MAX_PIECE) {
            let length = piece.len() as u32;
            let request =
                Request { name: "a write", flags: 0, command: WRITE, offset: at, length, data: piece };
            self.request(request, &mut reply::Done).await?;
            at += u64::from(length);
        }
        Ok(())
    }

    /// Makes a part of the disk zeros, without space if the disk's format can.
    pub async fn write_zeroes(&mut self, offset: u64, length: u64) -> Result<(), NbdError> {
        self.check_write(offset, length)?;
        if !self.export.can_write_zeroes {
            return Err(NbdError::NotOffered { what: "writes of zeros" });
        }
        let mut done = 0;
        while done < length {
            let part = (length - done).min(MAX_ZEROES);
            let (name, command) = ("a write of zeros", WRITE_ZEROES);
            let request =
                Request { name, flags: 0, command, offset: offset + done, length: part as u32, data: &[] };
            self.request(request, &mut reply::Done).await?;
            done += part;
        }
        Ok(())
    }

    /// Returns once all earlier writes are on the medium.
    pub async fn flush(&mut self) -> Result<(), NbdError> {
        if !self.export.can_flush {
            return Err(NbdError::NotOffered { what: "flushes" });
        }
        let request = Request { name: "a flush", flags: 0, command: FLUSH, offset: 0, length: 0, data: &[] };
        self.request(request, &mut reply::Done).await
    }

    /// Ends the connection in order, so that the server does not report a lost client.
    pub async fn disconnect(mut self) -> Result<(), NbdError> {
        self.last_cookie += 1;
        let (name, cookie) = ("the disconnect", self.last_cookie);
        let request = Request { name, flags: 0, command: DISC, offset: 0, length: 0, data: &[] };
        self.connection.exchange(name, async |wire| wire.send(&request.head(cookie)).await).await
    }

    /// Sends a request and reads its reply.
    async fn request(&mut self, request: Request<'_>, reply: &mut impl reply::Reply) -> Result<(), NbdError> {
        self.last_cookie += 1;
        let cookie = self.last_cookie;
        let failure = self
            .connection
            .exchange(request.name, async |wire| {
                wire.send(&request.head(cookie)).await?;
                wire.send(request.data).await?;
                reply::read(wire, cookie, reply).await
            })
            .await?;
        match failure {
            None => Ok(()),
            Some(failure) => Err(NbdError::Failed {
                request: request.name,
                offset: request.offset,
                message: failure.message,
                source: std::io::Error::from_raw_os_error(failure.errno),
            }),
        }
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), NbdError> {
        match offset.checked_add(length).is_some_and(|end| end <= self.export.size) {
            true => Ok(()),
            false => Err(NbdError::OutOfRange { offset, length, size: self.export.size }),
        }
    }

    fn check_write(&self, offset: u64, length: u64) -> Result<(), NbdError> {
        if self.export.is_read_only {
            return Err(NbdError::NotOffered { what: "writes" });
        }
        self.check(offset, length)
    }
}

impl Request<'_> {
    fn head(&self, cookie: u64) -> [u8; 28] {
        let mut head = [0; 28];
        head[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
        head[4..6].copy_from_slice(&self.flags.to_be_bytes());
        head[6..8].copy_from_slice(&self.command.to_be_bytes());
        head[8..16].copy_from_slice(&cookie.to_be_bytes());
        head[16..24].copy_from_slice(&self.offset.to_be_bytes());
        head[24..].copy_from_slice(&self.length.to_be_bytes());
        head
    }
}
