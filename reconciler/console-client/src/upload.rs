//! Uploads the file of an image: see [`berth_api::image_upload`]. An upload that breaks off continues where it ended.

use std::io::SeekFrom;
use std::time::Duration;

use async_trait::async_trait;
use berth_api::image_upload::{MAX_LINE, UploadMessage};
use berth_api::vm::ConsoleAddress;
use futures::StreamExt;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWrite, AsyncWriteExt, ReadHalf};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::codec::{FramedRead, LinesCodec};

use crate::connection::{ConnectError, Connection, connect};
use crate::file::{FileError, MeasuredFile};

/// The bytes that are read and sent at a time.
const BLOCK: usize = 256 << 10;
/// The time for the host to answer, and to take a block.
const ANSWER: Duration = Duration::from_secs(60);
/// The time for the message of a host that has closed the connection.
const LAST_MESSAGE: Duration = Duration::from_secs(2);
/// The pause before another attempt.
const PAUSE: Duration = Duration::from_secs(1);
/// How long attempts are repeated while no byte arrives.
const PATIENCE: Duration = Duration::from_secs(90);

/// Why an attempt ended.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The file cannot be read, or has changed.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The host's reason, for people.
    #[error("{0}")]
    Host(String),
    /// The connection broke.
    #[error("the connection to the host broke: {0}")]
    Broken(String),
}

impl UploadError {
    /// Whether another attempt may succeed by itself.
    fn is_passing(&self) -> bool {
        match self {
            Self::File(_) | Self::Host(_) => false,
            Self::Broken(_) => true,
            // Too many uploads, a host that has just started or that does not know the image yet.
            Self::Connect(ConnectError::Refused { code, .. }) => matches!(code, 403 | 404 | 429 | 503),
            Self::Connect(_) => true,
        }
    }
}

/// Why a file was not uploaded.
#[derive(Debug, thiserror::Error)]
pub enum PushError<E> {
    /// The caller's reason.
    #[error("{0}")]
    Place(E),
    /// The last attempt.
    #[error(transparent)]
    Upload(#[from] UploadError),
}

/// Where to upload a file to.
#[derive(Clone, Debug)]
pub struct Target {
    /// The host's server.
    pub server: ConsoleAddress,
    /// The path of the request.
    pub path: String,
    /// A ticket that was not used before.
    pub ticket: String,
}

/// The next step of an upload.
#[derive(Clone, Debug)]
pub enum Next {
    /// To upload the file.
    Upload(Box<Target>),
    /// To ask again in a moment: the image has no host yet.
    Wait,
    /// Nothing: the host has the file.
    Done,
}

/// The image that a file is uploaded for.
#[async_trait]
pub trait UploadPlace: Sync {
    /// Why nothing can be uploaded.
    type Error: Send;

    /// Reads what to do next. Must end the waiting at a time of its own.
    async fn next(&self) -> Result<Next, Self::Error>;

    /// Receives the number of bytes that the host has or that were sent to it.
    fn progress(&self, done: u64);
}

/// Uploads the file. Attempts that break off are repeated, for as long as there is progress.
///
/// # Errors
/// The file cannot be read or has changed; the host refuses it; no byte arrives for 90 seconds.
pub async fn push<P: UploadPlace>(place: &P, file: &MeasuredFile) -> Result<(), PushError<P::Error>> {
    let (mut most, mut progressed) = (0, Instant::now());
    loop {
        match place.next().await.map_err(PushError::Place)? {
            Next::Done => return Ok(()),
            Next::Wait => progressed = Instant::now(),
            Next::Upload(target) => {
                let mut done = 0;
                let sent = attempt(&target, file, |at| {
                    done = at;
                    place.progress(at);
                });
                let error = match sent.await {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                };
                if done > most {
                    (most, progressed) = (done, Instant::now());
                }
                if !error.is_passing() || progressed.elapsed() > PATIENCE {
                    return Err(error.into());
                }
            }
        }
        sleep(PAUSE).await;
    }
}

async fn attempt(
    target: &Target,
    file: &MeasuredFile,
    mut progress: impl FnMut(u64) + Send,
) -> Result<(), UploadError> {
    file.check_unchanged()?;
    let connection = connect(&target.server, &target.path, &target.ticket).await?;
    let (from_host, to_host) = tokio::io::split(connection);
    let mut messages = Messages(FramedRead::new(from_host, LinesCodec::new_with_max_length(MAX_LINE)));
    let offset = match messages.next(ANSWER).await? {
        UploadMessage::Offset(offset) if offset <= file.size() => offset,
        _ => {
            return Err(UploadError::Host(
                "the host sent something else than its number of bytes".to_owned(),
            ));
        }
    };
    progress(offset);
    let sent = tokio::select! {
        sent = send(file, offset, to_host, &mut progress) => sent,
        // The host has a reason to end before the file does.
        message = messages.next(Duration::MAX) => return message.and_then(|message| finished(&message)),
    };
    match sent {
        Ok(_open) => finished(&messages.next(ANSWER).await?),
        Err(error @ UploadError::Broken(_)) => match messages.next(LAST_MESSAGE).await {
            Err(said @ UploadError::Host(_)) => Err(said),
            _ => Err(error),
        },
        Err(error) => Err(error),
    }
}

fn finished(message: &UploadMessage) -> Result<(), UploadError> {
    match message {
        UploadMessage::Received => Ok(()),
        _ => Err(UploadError::Host("the host sent something else than the end of the upload".to_owned())),
    }
}

/// The messages of the host.
struct Messages(FramedRead<ReadHalf<Connection>, LinesCodec>);

impl Messages {
    async fn next(&mut self, limit: Duration) -> Result<UploadMessage, UploadError> {
        let broken = |why: &str| UploadError::Broken(why.to_owned());
        let line = timeout(limit, self.0.next()).await.map_err(|_| broken("the host does not answer"))?;
        let line = line.ok_or_else(|| broken("the host closed it"))?;
        let line = line.map_err(|error| UploadError::Broken(error.to_string()))?;
        match serde_json::from_str(&line) {
            Ok(UploadMessage::Error(text)) => Err(UploadError::Host(text)),
            Ok(message) => Ok(message),
            Err(_) => {
                Err(UploadError::Host("the host sent a message that is not known: is it newer?".to_owned()))
            }
        }
    }
}

/// Sends the file from this offset to its end. Returns the connection: the host may still read.
async fn send<W: AsyncWrite + Unpin>(
    file: &MeasuredFile,
    offset: u64,
    mut to_host: W,
    progress: &mut (impl FnMut(u64) + Send),
) -> Result<W, UploadError> {
    let unreadable = |error| FileError::Unreadable { path: file.path.clone(), error };
    let mut from = File::open(&file.path).await.map_err(unreadable)?;
    from.seek(SeekFrom::Start(offset)).await.map_err(unreadable)?;
    let (mut at, mut block) = (offset, vec![0; BLOCK]);
    while at < file.size() {
        let most = usize::try_from(file.size() - at).unwrap_or(BLOCK).min(BLOCK);
        let count = from.read(&mut block[..most]).await.map_err(unreadable)?;
        if count == 0 {
            return Err(FileError::Changed(file.path.clone()).into());
        }
        let written = timeout(ANSWER, to_host.write_all(&block[..count])).await;
        written
            .map_err(|_| UploadError::Broken("the host does not read".to_owned()))?
            .map_err(|error| UploadError::Broken(error.to_string()))?;
        at += count as u64;
        progress(at);
    }
    let flushed = timeout(ANSWER, to_host.flush()).await;
    flushed
        .map_err(|_| UploadError::Broken("the host does not read".to_owned()))?
        .map_err(|error| UploadError::Broken(error.to_string()))?;
    file.check_unchanged()?;
    Ok(to_host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::measure;

    #[tokio::test]
    async fn a_file_that_changes_while_it_is_sent_is_not_uploaded() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk.raw");
        std::fs::write(&path, vec![7; 2 * BLOCK]).expect("a file");
        let file = measure(&path, None).expect("measured");
        let mut sent = Vec::new();
        assert!(send(&file, 5, &mut sent, &mut |_| {}).await.is_ok());
        assert_eq!(sent.len(), 2 * BLOCK - 5);
        let mut change = |at: u64| {
            if at == BLOCK as u64 {
                std::fs::write(&path, vec![8; BLOCK]).expect("changed");
            }
        };
        let cut = send(&file, 0, Vec::new(), &mut change).await;
        assert!(matches!(cut, Err(UploadError::File(FileError::Changed(_)))), "{cut:?}");
        let mut grown = |_| std::fs::write(&path, vec![7; 2 * BLOCK + 1]).expect("changed");
        std::fs::write(&path, vec![7; 2 * BLOCK]).expect("as before");
        let other = measure(&path, None).expect("measured");
        let grown = send(&other, 0, Vec::new(), &mut grown).await;
        assert!(matches!(grown, Err(UploadError::File(FileError::Changed(_)))), "{grown:?}");
    }

    #[test]
    fn only_what_may_pass_by_itself_is_tried_again() {
        let refused = |code| UploadError::Connect(ConnectError::Refused { code, text: String::new() });
        assert!(refused(429).is_passing() && refused(403).is_passing());
        assert!(!refused(507).is_passing() && !refused(413).is_passing() && !refused(400).is_passing());
        assert!(UploadError::Broken(String::new()).is_passing());
        assert!(!UploadError::Host("no space left".to_owned()).is_passing());
    }
}
