//! The lines and chunks of a move, see [`berth_api::live_move`].

use std::time::Duration;

use berth_api::live_move::{DestinationMessage, MAX_ANSWER, MAX_CHUNK, MAX_LINE, SourceMessage};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// The time for the other host to take a line or a chunk.
const WRITE_TIME: Duration = Duration::from_secs(60);

/// Why the connection of a move cannot be used any more, for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WireError(pub(crate) String);

/// A message of a source, or a chunk.
#[derive(Debug)]
pub(crate) enum Line {
    Message(Box<SourceMessage>),
    Chunk(Vec<u8>),
}

/// Writes a message, and the bytes of a chunk.
pub(crate) async fn write_line(
    to: &mut (impl AsyncWrite + Unpin),
    message: &(impl Serialize + Sync),
    bytes: &[u8],
) -> Result<(), WireError> {
    let mut line = serde_json::to_vec(message).expect("our own types are plain JSON");
    line.push(b'\n');
    let sent = async {
        to.write_all(&line).await?;
        to.write_all(bytes).await?;
        to.flush().await
    };
    let sent = timeout(WRITE_TIME, sent).await;
    let sent = sent.map_err(|_| WireError("the other host does not read".to_owned()))?;
    sent.map_err(|error| WireError(format!("the connection broke: {error}")))
}

/// Reads the next message of a source, with the bytes of a chunk.
pub(crate) async fn read_line(
    from: &mut (impl AsyncBufRead + Unpin),
    limit: Duration,
) -> Result<Line, WireError> {
    let message: SourceMessage = message(from, limit, MAX_LINE).await?;
    let SourceMessage::Chunk(length) = message else { return Ok(Line::Message(Box::new(message))) };
    if length == 0 || length > MAX_CHUNK {
        return Err(WireError("the other host sent a chunk of another length than allowed".to_owned()));
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    let read = timeout(limit, from.read_exact(&mut bytes)).await;
    let read = read.map_err(|_| WireError("the other host stopped in a chunk".to_owned()))?;
    read.map_err(|error| WireError(format!("the connection broke: {error}")))?;
    Ok(Line::Chunk(bytes))
}

/// Reads the next message of a destination.
pub(crate) async fn read_answer(
    from: &mut (impl AsyncBufRead + Unpin),
    limit: Duration,
) -> Result<DestinationMessage, WireError> {
    message(from, limit, MAX_ANSWER).await
}

async fn message<M: DeserializeOwned>(
    from: &mut (impl AsyncBufRead + Unpin),
    limit: Duration,
    most: usize,
) -> Result<M, WireError> {
    let mut line = Vec::new();
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    let read = timeout(limit, from.take(most).read_until(b'\n', &mut line)).await;
    let read = read.map_err(|_| WireError("the other host does not answer in time".to_owned()))?;
    let count = read.map_err(|error| WireError(format!("the connection broke: {error}")))?;
    if count == 0 {
        return Err(WireError("the other host closed the connection".to_owned()));
    }
    serde_json::from_slice(&line)
        .map_err(|_| WireError("the other host sent a message that is not known: is it newer?".to_owned()))
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn messages_and_chunks_arrive_as_they_were_sent_within_limits() {
        let (mut near, far) = tokio::io::duplex(1 << 16);
        let mut far = BufReader::new(far);
        write_line(&mut near, &SourceMessage::Chunk(3), b"abc").await.expect("written");
        write_line(&mut near, &SourceMessage::End, &[]).await.expect("written");
        let Ok(Line::Chunk(bytes)) = read_line(&mut far, LIMIT).await else { panic!("a chunk") };
        assert_eq!(bytes, b"abc");
        let Ok(Line::Message(message)) = read_line(&mut far, LIMIT).await else { panic!("a message") };
        assert_eq!(*message, SourceMessage::End);
        for length in [0, MAX_CHUNK + 1] {
            write_line(&mut near, &SourceMessage::Chunk(length), &[]).await.expect("written");
            assert!(read_line(&mut far, LIMIT).await.is_err(), "{length}");
        }
        let silent = read_line(&mut far, LIMIT).await.expect_err("nothing comes");
        assert_eq!(silent.to_string(), "the other host does not answer in time");
        drop(near);
        let closed = read_line(&mut far, LIMIT).await.expect_err("it is closed");
        assert_eq!(closed.to_string(), "the other host closed the connection");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_one_short_line() {
        let endless = vec![b'x'; 2 * MAX_ANSWER];
        assert!(read_answer(&mut endless.as_slice(), LIMIT).await.is_err());
        let mut good = b"\"loaded\"\nrest".as_slice();
        assert_eq!(read_answer(&mut good, LIMIT).await, Ok(DestinationMessage::Loaded));
        assert_eq!(good, b"rest");
    }
}
