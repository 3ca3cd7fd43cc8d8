//! Newline-separated JSON with limits on the length of a line and on the number of its values.

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// The read buffer, in bytes. There are two readers for every machine, and most lines are short.
const BUFFER: usize = 2 << 10;
/// The most values in a line: each takes many times the memory of its text. The longest known replies have some ten thousand.
const MAX_VALUES: usize = 256 << 10;

/// Reads one JSON value per line.
#[derive(Debug)]
pub(crate) struct Frames<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    max: usize,
    /// The bytes of longer lines that may still be discarded.
    discardable: usize,
    /// The length of the last line.
    length: usize,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("closed by the other side")]
    Closed,
    #[error("a message is longer than {0} bytes")]
    TooLong(usize),
    #[error("a message has more than {0} values")]
    TooManyValues(usize),
    #[error("a message is not JSON: {0}")]
    NotJson(serde_json::Error),
    #[error("{0}")]
    Io(std::io::Error),
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(crate) fn new(reader: R, max: usize) -> Self {
        Self {
            reader: BufReader::with_capacity(BUFFER, reader),
            line: Vec::new(),
            max,
            discardable: 0,
            length: 0,
        }
    }

    /// Changes the maximum length of a line. Of longer lines the beginning is discarded, up to this number of bytes.
    pub(crate) fn set_max(&mut self, max: usize, discardable: usize) {
        self.max = max;
        self.discardable = discardable;
    }

    /// Returns the length of the line with the last value, in bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
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
            self.length = line.len();
            // 0xFF marks the reply to guest-sync-delimited; any bytes before it are stale.
            let message = line.rsplit(|b| *b == 0xff).next().unwrap_or(&line).trim_ascii();
            if values_at_most(message) > MAX_VALUES {
                return Err(FrameError::TooManyValues(MAX_VALUES));
            }
            if !message.is_empty() {
                return serde_json::from_slice(message).map_err(FrameError::NotJson);
            }
        }
    }
}

/// Returns a number of values that the JSON has at most: each ends at one of these bytes, or with the text.
fn values_at_most(json: &[u8]) -> usize {
    1 + json.iter().filter(|byte| matches!(byte, b',' | b':' | b']' | b'}')).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_of_many_small_values_is_refused_and_one_of_a_long_text_is_not() {
        let many = format!("[{}0]\n", "{\"\":0},".repeat(MAX_VALUES / 2));
        let mut frames = Frames::new(many.as_bytes(), 8 << 20);
        assert!(matches!(frames.next().await, Err(FrameError::TooManyValues(_))));
        let long = format!("{{\"return\": {{\"a\": [1, 2], \"b\": \"{}\"}}}}\n", "x".repeat(4 << 20));
        let mut frames = Frames::new(long.as_bytes(), 8 << 20);
        assert_eq!(frames.next().await.expect("read")["return"]["a"][1], 2);
    }
}
