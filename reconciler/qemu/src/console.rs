//! A connection to the serial console or to the VNC server of a running machine.

use std::fmt;
use std::io;
use std::path::Path;

use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf, split};

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The two directions of a connection.
///
/// A serial console serves one connection at a time: a second one receives nothing until the first is closed, and a guest
/// that writes waits for a connection that is not read. The VNC server serves several.
pub struct ConsoleStream {
    output: ReadHalf<Box<dyn Stream>>,
    input: WriteHalf<Box<dyn Stream>>,
}

impl fmt::Debug for ConsoleStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConsoleStream")
    }
}

impl ConsoleStream {
    /// Connects to the socket of a machine.
    pub async fn connect(socket: &Path) -> io::Result<Self> {
        Ok(Self::over(crate::socket::connect(socket).await?))
    }

    /// Uses a stream that is connected already.
    pub fn over(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let stream: Box<dyn Stream> = Box::new(stream);
        let (output, input) = split(stream);
        Self { output, input }
    }

    /// Returns the output and the input.
    pub fn into_parts(
        self,
    ) -> (impl AsyncRead + Send + Unpin + 'static, impl AsyncWrite + Send + Unpin + 'static) {
        (self.output, self.input)
    }
}
