//! Newline-separated JSON with a limit on the length of a line.

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// The read buffer, in bytes. There are two readers for every machine, and most lines are short.
const BUFFER: usize = 2 << 10;

/// Reads one JSON value per line.
#[derive(Debug)]
pub(crate) struct Frames<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    max: usize,
    /// The bytes of longer lines that may still be discarded.
    discardable: usize,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("closed by the other side")]
    Closed,
    #[error("a message is longer than {0} bytes")]
    TooLong(usize),
    #[error("a message is not JSON: {0}")]
    NotJson(serde_json::Error),
    #[error("{0}")]
    Io(std::io::Error),
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(crate) fn new(reader: R, max: usize) -> Self {
        Self { reader: BufReader::with_capacity(BUFFER, reader), line: Vec::new(), max, discardable: 0 }
    }

    /// Changes the maximum length of a line. Of longer lines the beginning is discarded, up to this number of bytes.
    pub(crate) fn set_max(&mut self, max: usize, discardable: usize) {
        self.max = max;
        self.discardable = discardable;
    }

    /// Returns the next value. Cancel safe: a partially read line is kept for the next call.
    pub(crate) async fn next(&mut self) -> Result<Value, FrameError> {
        loop {
            let available = self.reader.fill_buf().await.map_err(FrameError::Io)?;
            if available.is_empty() {
                return Err(FrameError::Closed);
            }
            let end = available.iter().position(|b| *b == b'\n');
            let taken = end.map_or(available.len(), |at| at + 1);
            if self.line.len() + taken > self.max {
                let Some(left) = self.discardable.checked_sub(self.line.len().max(1)) else {
                    return Err(FrameError::TooLong(self.max));
                };
                self.discardable = left;
                self.line.clear();
            }
            self.line.extend_from_slice(&available[..taken]);
            self.reader.consume(taken);
            if end.is_none() {
                continue;
            }
            let line = std::mem::take(&mut self.line);
            // 0xFF marks the reply to guest-sync-delimited; any bytes before it are stale.
            let message = line.rsplit(|b| *b == 0xff).next().unwrap_or(&line).trim_ascii();
            if !message.is_empty() {
                return serde_json::from_slice(message).map_err(FrameError::NotJson);
            }
        }
    }
}
