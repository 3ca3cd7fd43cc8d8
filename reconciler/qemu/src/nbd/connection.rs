//! The bytes on the socket, with limits on time.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use super::NbdError;

/// A connection that is used for one exchange at a time.
#[derive(Debug)]
pub(super) struct Connection {
    wire: Wire,
    timeout: Duration,
    /// The last exchange was complete: the next bytes from the server are a reply to the next request.
    is_usable: bool,
}

/// Reads and writes numbers in network byte order.
#[derive(Debug)]
pub(super) struct Wire {
    /// Of what is read: replies have many small parts.
    stream: BufReader<UnixStream>,
}

/// Why an exchange failed.
#[derive(Debug)]
pub(super) enum WireError {
    Io(io::Error),
    /// The server's answer does not follow the protocol.
    Protocol(String),
    /// The server refused what the handshake asks for.
    Refused {
        request: &'static str,
        export: String,
        message: String,
    },
}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The error for an answer that does not follow the protocol.
pub(super) fn protocol<T>(detail: impl Into<String>) -> Result<T, WireError> {
    Err(WireError::Protocol(detail.into()))
}

impl Connection {
    pub(super) fn new(stream: UnixStream, timeout: Duration) -> Self {
        Self { wire: Wire { stream: BufReader::new(stream) }, timeout, is_usable: true }
    }

    /// Makes one exchange within the time limit. If it fails or is dropped, the connection is not usable any more.
    pub(super) async fn exchange<T>(
        &mut self,
        request: &'static str,
        exchange: impl AsyncFnOnce(&mut Wire) -> Result<T, WireError>,
    ) -> Result<T, NbdError> {
        if !std::mem::take(&mut self.is_usable) {
            return Err(NbdError::Unusable);
        }
        let done = tokio::time::timeout(self.timeout, exchange(&mut self.wire)).await;
        let done = done.map_err(|_| NbdError::Silent { request, after: self.timeout })?;
        let done = done.map_err(|error| match error {
            WireError::Io(source) => NbdError::Broken { source },
            WireError::Protocol(detail) => NbdError::Protocol { request, detail },
            WireError::Refused { request, export, message } => NbdError::Refused { request, export, message },
        })?;
        self.is_usable = true;
        Ok(done)
    }
}

impl Wire {
    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        Ok(self.stream.get_mut().write_all(bytes).await?)
    }

    pub(super) async fn read(&mut self, into: &mut [u8]) -> Result<(), WireError> {
        self.stream.read_exact(into).await?;
        Ok(())
    }

    pub(super) async fn u16(&mut self) -> Result<u16, WireError> {
        Ok(self.stream.read_u16().await?)
    }

    pub(super) async fn u32(&mut self) -> Result<u32, WireError> {
        Ok(self.stream.read_u32().await?)
    }

    pub(super) async fn u64(&mut self) -> Result<u64, WireError> {
        Ok(self.stream.read_u64().await?)
    }

    /// Reads bytes after their length was checked.
    pub(super) async fn bytes(
        &mut self,
        length: usize,
        max: usize,
        what: &str,
    ) -> Result<Vec<u8>, WireError> {
        if length > max {
            return protocol(format!("{what} has {length} bytes, and at most {max} are possible"));
        }
        let mut bytes = vec![0; length];
        self.read(&mut bytes).await?;
        Ok(bytes)
    }
}

/// A text of the server, for messages.
pub(super) fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect()
}
