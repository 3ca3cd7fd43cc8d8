//! Downloads the file of an image: see [`berth_api::image_download`]. A download that breaks off continues where it ended, and the
//! checksum of the whole file is verified.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use berth_api::image_download::{DownloadMessage, MAX_LINE, query};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::time::{Instant, sleep, timeout};

use crate::connection::{ConnectError, connect};
use crate::part::{Expected, Part, PartError};
use crate::upload::Target;

/// The bytes that are read and written at a time.
const BLOCK: usize = 256 << 10;
/// The time for the host to answer, and to send something.
const ANSWER: Duration = Duration::from_secs(60);
/// The pause before another attempt.
const PAUSE: Duration = Duration::from_secs(1);
/// How long attempts are repeated while no byte arrives.
const PATIENCE: Duration = Duration::from_secs(90);

/// Why an attempt ended.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The file cannot be written.
    #[error(transparent)]
    Part(#[from] PartError),
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The host does not follow the protocol.
    #[error("{0}")]
    Host(String),
    /// The connection broke.
    #[error("the connection to the host broke: {0}")]
    Broken(String),
    /// The host has sent other bytes than the image has.
    #[error(
        "the bytes that came have another checksum than the image: the file on the host, or the way from it, is damaged"
    )]
    Checksum,
}

impl DownloadError {
    /// Whether another attempt may succeed by itself.
    fn is_passing(&self) -> bool {
        match self {
            Self::Part(_) | Self::Host(_) | Self::Checksum => false,
            Self::Broken(_) => true,
            // Too many downloads, or a host that has just started.
            Self::Connect(ConnectError::Refused { code, .. }) => matches!(code, 403 | 404 | 429 | 503),
            Self::Connect(_) => true,
        }
    }
}

/// Why a file was not downloaded.
#[derive(Debug, thiserror::Error)]
pub enum FetchError<E> {
    /// The caller's reason.
    #[error("{0}")]
    Place(E),
    /// The last attempt.
    #[error(transparent)]
    Download(#[from] DownloadError),
}

/// The image whose file is downloaded.
#[async_trait]
pub trait DownloadPlace: Sync {
    /// Why nothing can be downloaded.
    type Error: Send;

    /// Returns where to download the file from, with a ticket that was not used before. Called for each attempt.
    async fn target(&self) -> Result<Target, Self::Error>;

    /// Receives the number of bytes that have come.
    fn progress(&self, done: u64);
}

/// Downloads the file to this path, where the bytes of an earlier download may be. Attempts that break off are repeated, for as long as
/// there is progress. Bytes of an earlier download that turn out to be of another file are downloaded again.
///
/// # Errors
/// The file cannot be written; the host refuses it or sends other bytes; no byte arrives for 90 seconds. The bytes that have come stay,
/// unless they are wrong.
pub async fn fetch<P: DownloadPlace>(
    place: &P,
    path: &Path,
    expected: &Expected,
) -> Result<(), FetchError<P::Error>> {
    let mut part = opened(path, expected).await?;
    let (mut most, mut progressed) = (part.at(), Instant::now());
    loop {
        place.progress(part.at());
        while !part.is_whole() {
            let target = place.target().await.map_err(FetchError::Place)?;
            let Err(error) = attempt(&target, &mut part, |at| place.progress(at)).await else { continue };
            if part.at() > most {
                (most, progressed) = (part.at(), Instant::now());
            }
            if !error.is_passing() || progressed.elapsed() > PATIENCE {
                return Err(error.into());
            }
            sleep(PAUSE).await;
        }
        if part.verify().map_err(DownloadError::from)? {
            return Ok(());
        }
        let is_continued = part.is_continued();
        part.begin_anew().map_err(DownloadError::from)?;
        if !is_continued {
            return Err(DownloadError::Checksum.into());
        }
        (most, progressed) = (0, Instant::now());
    }
}

/// Opens the file, and reads what is there on a thread of its own: it may be many GiB.
async fn opened(path: &Path, expected: &Expected) -> Result<Part, DownloadError> {
    let (path, expected) = (path.to_owned(), expected.clone());
    let opened = tokio::task::spawn_blocking(move || Part::open(&path, &expected)).await;
    let opened = opened.map_err(|error| DownloadError::Host(format!("reading the file: {error}")))?;
    Ok(opened?)
}

/// Adds bytes to the file until it is whole.
async fn attempt(
    target: &Target,
    part: &mut Part,
    progress: impl FnMut(u64) + Send,
) -> Result<(), DownloadError> {
    let path = format!("{}?{}", target.path, query(part.at()));
    let connection = connect(&target.server, &path, &target.ticket).await?;
    receive(&mut BufReader::with_capacity(BLOCK, connection), part, progress).await
}

async fn receive(
    from_host: &mut (impl AsyncBufRead + Unpin + Send),
    part: &mut Part,
    mut progress: impl FnMut(u64) + Send,
) -> Result<(), DownloadError> {
    let size = size(from_host).await?;
    if size != part.size() {
        let expected = part.size();
        return Err(DownloadError::Host(format!("the file has {size} bytes, and the image {expected}")));
    }
    let mut block = vec![0; BLOCK];
    while !part.is_whole() {
        let most = usize::try_from(part.size() - part.at()).unwrap_or(BLOCK).min(BLOCK);
        let read = timeout(ANSWER, from_host.read(&mut block[..most])).await;
        let read = read.map_err(|_| DownloadError::Broken("the host sends nothing".to_owned()))?;
        match read.map_err(|error| DownloadError::Broken(error.to_string()))? {
            0 => {
                let (at, size) = (part.at(), part.size());
                return Err(DownloadError::Broken(format!("the host closed it after {at} of {size} bytes")));
            }
            count => part.add(&block[..count])?,
        }
        progress(part.at());
    }
    Ok(())
}

/// Reads the line with the number of bytes of the file.
async fn size(from_host: &mut (impl AsyncBufRead + Unpin + Send)) -> Result<u64, DownloadError> {
    let mut line = Vec::new();
    let most = u64::try_from(MAX_LINE).unwrap_or(u64::MAX);
    let read = timeout(ANSWER, from_host.take(most).read_until(b'\n', &mut line)).await;
    let read = read.map_err(|_| DownloadError::Broken("the host does not answer".to_owned()))?;
    if read.map_err(|error| DownloadError::Broken(error.to_string()))? == 0 {
        return Err(DownloadError::Broken("the host closed it".to_owned()));
    }
    match serde_json::from_slice(&line) {
        Ok(DownloadMessage::Size(size)) => Ok(size),
        Err(_) => {
            Err(DownloadError::Host("the host sent a message that is not known: is it newer?".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn expected(bytes: &[u8]) -> Expected {
        let digest = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Expected { size: bytes.len() as u64, digest }
    }

    #[tokio::test]
    async fn a_file_is_received_up_to_its_size_and_one_of_another_size_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.part");
        let mut part = opened(&path, &expected(b"abcdef")).await.expect("opened");
        let mut seen = Vec::new();
        let cut = receive(&mut b"{\"size\":6}\nabcd".as_slice(), &mut part, |at| seen.push(at)).await;
        let Err(DownloadError::Broken(text)) = &cut else { panic!("{cut:?}") };
        assert_eq!((text.as_str(), part.at()), ("the host closed it after 4 of 6 bytes", 4));
        let other = receive(&mut b"{\"size\":7}\nefg".as_slice(), &mut part, |_| {}).await;
        assert!(matches!(other, Err(DownloadError::Host(_))), "{other:?}");
        let more = receive(&mut b"{\"size\":6}\nefgh".as_slice(), &mut part, |at| seen.push(at)).await;
        assert!(more.is_ok() && part.is_whole() && part.verify().expect("read"), "{more:?}");
        assert_eq!(seen.last(), Some(&6));
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_sends_no_size_or_nothing_more_is_given_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut part = Part::open(&folder.path().join("a.part"), &expected(b"abc")).expect("opened");
        for wrong in [&b"{}\n"[..], &[b'x'; 2 * MAX_LINE]] {
            let answer = receive(&mut &*wrong, &mut part, |_| {}).await;
            assert!(matches!(answer, Err(DownloadError::Host(_))), "{answer:?}");
        }
        let (near, mut far) = tokio::io::duplex(64);
        tokio::io::AsyncWriteExt::write_all(&mut far, b"{\"size\":3}\na").await.expect("sent");
        let silent = receive(&mut BufReader::new(near), &mut part, |_| {}).await;
        assert!(matches!(silent, Err(DownloadError::Broken(_))), "{silent:?}");
        assert_eq!(part.at(), 1, "it came");
    }

    #[test]
    fn only_what_may_pass_by_itself_is_tried_again() {
        let refused = |code| DownloadError::Connect(ConnectError::Refused { code, text: String::new() });
        assert!(refused(429).is_passing() && refused(404).is_passing());
        assert!(!refused(400).is_passing() && !refused(401).is_passing());
        assert!(DownloadError::Broken(String::new()).is_passing() && !DownloadError::Checksum.is_passing());
    }
}
