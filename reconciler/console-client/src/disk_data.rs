//! Reads parts of the data of a backup or a snapshot: see [`berth_api::disk_read`].

use std::time::Duration;

use berth_api::backup::declaration::MAX_DECLARATION;
use berth_api::disk_read::{DeclarationRequest, DiskRequest, MAX_LINE, MAX_READ, ReadMessage, ReadRequest};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use crate::connection::Connection;

/// The time for the host to answer: it may fetch the data from the store of the backups.
const ANSWER: Duration = Duration::from_secs(150);

/// Why no data came.
#[derive(Debug, thiserror::Error)]
pub enum DiskDataError {
    /// The host's reason.
    #[error("the host ended it: {0}")]
    Ended(String),
    /// The host does not follow the protocol.
    #[error("{0}")]
    Host(String),
    /// The connection broke.
    #[error("the connection to the host broke: {0}")]
    Broken(String),
}

/// The data of a disk, at the host that serves it.
#[derive(Debug)]
pub struct DiskData<S = Connection> {
    stream: BufReader<S>,
    size: u64,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> DiskData<S> {
    /// Uses a connection that was just opened.
    ///
    /// # Errors
    /// The host does not answer as it should.
    pub async fn over(connection: S) -> Result<Self, DiskDataError> {
        let mut data = Self { stream: BufReader::new(connection), size: 0 };
        match data.message().await? {
            ReadMessage::Size(size) => Ok(Self { size, ..data }),
            ReadMessage::Error(text) => Err(DiskDataError::Ended(text)),
            ReadMessage::Data(_) | ReadMessage::Declaration(_) => Err(unexpected()),
        }
    }

    /// The size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the data of a part of the disk, of at most [`MAX_READ`] bytes. After an error the connection is not used any more.
    ///
    /// # Errors
    /// The part is not on the disk; the host ended the connection.
    pub async fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, DiskDataError> {
        let request = ReadRequest { offset, length };
        if !request.is_within(self.size) {
            let all = self.size;
            return Err(DiskDataError::Host(format!(
                "{length} bytes at byte {offset} cannot be read: the disk has {all}, and {MAX_READ} are read at most"
            )));
        }
        match self.answer(DiskRequest::Part(request)).await? {
            ReadMessage::Data(count) if count == length => self.bytes(length).await,
            _ => Err(unexpected()),
        }
    }

    /// Returns the declaration that is stored with a backup, as JSON. None: it has none. After an error the connection is not used any more.
    ///
    /// # Errors
    /// The host ended the connection, also one of an earlier version; the declaration is too long.
    pub async fn declaration(&mut self) -> Result<Option<Vec<u8>>, DiskDataError> {
        let request = DiskRequest::Declaration(DeclarationRequest { declaration: true });
        match self.answer(request).await? {
            ReadMessage::Declaration(0) => Ok(None),
            ReadMessage::Declaration(length)
                if usize::try_from(length).is_ok_and(|n| n <= MAX_DECLARATION) =>
            {
                self.bytes(length).await.map(Some)
            }
            ReadMessage::Declaration(length) => {
                let text =
                    format!("the declaration has {length} bytes, and at most {MAX_DECLARATION} are read");
                Err(DiskDataError::Host(text))
            }
            _ => Err(unexpected()),
        }
    }

    /// Sends a request, and returns the message that answers it.
    async fn answer(&mut self, request: DiskRequest) -> Result<ReadMessage, DiskDataError> {
        let mut line = serde_json::to_vec(&request).expect("our own types are plain JSON");
        line.push(b'\n');
        let sent = async {
            self.stream.write_all(&line).await?;
            self.stream.flush().await
        };
        let sent = timeout(ANSWER, sent).await.map_err(|_| late())?;
        if let Err(error) = sent {
            // The host's reason may have come before its end.
            return Err(match self.message().await {
                Ok(ReadMessage::Error(text)) => DiskDataError::Ended(text),
                _ => broken(&error),
            });
        }
        match self.message().await? {
            ReadMessage::Error(text) => Err(DiskDataError::Ended(text)),
            message => Ok(message),
        }
    }

    async fn bytes(&mut self, length: u32) -> Result<Vec<u8>, DiskDataError> {
        let mut data = vec![0; usize::try_from(length).unwrap_or_default()];
        let read = timeout(ANSWER, self.stream.read_exact(&mut data)).await;
        read.map_err(|_| late())?.map_err(|error| broken(&error))?;
        Ok(data)
    }

    async fn message(&mut self) -> Result<ReadMessage, DiskDataError> {
        let mut line = Vec::new();
        let most = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
        let mut limited = (&mut self.stream).take(most);
        let read = timeout(ANSWER, limited.read_until(b'\n', &mut line)).await.map_err(|_| late())?;
        if read.map_err(|error| broken(&error))? == 0 {
            return Err(DiskDataError::Broken("the host closed it".to_owned()));
        }
        serde_json::from_slice(&line).map_err(|_| unexpected())
    }
}

fn unexpected() -> DiskDataError {
    DiskDataError::Host("the host sent a message that is not known: is it newer?".to_owned())
}

fn late() -> DiskDataError {
    DiskDataError::Broken("the host does not answer".to_owned())
}

fn broken(error: &std::io::Error) -> DiskDataError {
    DiskDataError::Broken(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_is_asked_for_and_comes() {
        let (near, mut far) = tokio::io::duplex(1 << 10);
        far.write_all(b"{\"size\":10}\n").await.expect("sent");
        let mut data = DiskData::over(near).await.expect("a size");
        assert_eq!(data.size(), 10);
        far.write_all(b"{\"data\":3}\nabc{\"error\":\"it was deleted\"}\n").await.expect("sent");
        assert_eq!(data.read(5, 3).await.expect("data"), b"abc");
        let mut request = [0; 24];
        far.read_exact(&mut request).await.expect("a request");
        assert_eq!(&request, b"{\"offset\":5,\"length\":3}\n");
        let error = data.read(0, 1).await.expect_err("the end").to_string();
        assert_eq!(error, "the host ended it: it was deleted");
        let beyond = data.read(9, 2).await.expect_err("not on the disk").to_string();
        assert!(beyond.contains("2 bytes at byte 9"), "{beyond}");
    }

    #[tokio::test]
    async fn the_declaration_of_a_backup_comes_if_there_is_one() {
        let (near, mut far) = tokio::io::duplex(1 << 10);
        far.write_all(b"{\"size\":10}\n{\"declaration\":2}\n{}{\"declaration\":0}\n").await.expect("sent");
        far.write_all(b"{\"declaration\":99999999}\n").await.expect("sent");
        let mut data = DiskData::over(near).await.expect("a size");
        assert_eq!(data.declaration().await.expect("sent").as_deref(), Some(&b"{}"[..]));
        assert_eq!(data.declaration().await.expect("sent"), None);
        let long = data.declaration().await.expect_err("it is too long").to_string();
        assert!(long.contains("99999999"), "{long}");
        let mut request = [0; 21];
        far.read_exact(&mut request).await.expect("a request");
        assert_eq!(&request, b"{\"declaration\":true}\n");
    }

    #[tokio::test]
    async fn another_number_of_bytes_and_garbage_are_refused() {
        for answer in ["{\"data\":4}\nabcd", "{\"size\":5}\n", "garbage\n", ""] {
            let (near, mut far) = tokio::io::duplex(1 << 10);
            far.write_all(b"{\"size\":10}\n").await.expect("sent");
            far.write_all(answer.as_bytes()).await.expect("sent");
            far.shutdown().await.expect("ended");
            let mut data = DiskData::over(near).await.expect("a size");
            assert!(data.read(5, 3).await.is_err(), "{answer}");
        }
    }
}
