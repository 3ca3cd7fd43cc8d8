//! Downloads the file of an image: see [`berth_api::image_download`]. A download that breaks off continues where it ended, and the
//! checksum of the whole file is verified.

use std::time::Duration;

use async_trait::async_trait;
use berth_api::image_download::{DownloadMessage, MAX_LINE, query};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::connection::{ConnectError, connect};
use crate::part::{Expected, Part};
use crate::part_file::{PartError, PartFile};
use crate::upload::Target;

/// The bytes that are read and written at a time.
const BLOCK: usize = 256 << 10;
/// The time for the host to accept the request, to send the size, and to send [`LEAST`] bytes.
const ANSWER: Duration = Duration::from_secs(60);
/// The bytes that count as progress: a host ends the connection of a client that takes fewer in a minute.
const LEAST: u64 = 1 << 20;
/// The pause before another attempt.
const PAUSE: Duration = Duration::from_secs(1);
/// How long attempts are repeated without progress.
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

    /// Whether there may be a target soon, without anything else being done: the control plane does not answer now.
    fn is_passing(&self, error: &Self::Error) -> bool;

    /// Receives the number of bytes that have come.
    fn progress(&self, done: u64);
}

/// Downloads the file, of which bytes of an earlier download may be there, and returns it, still locked: nothing else writes to it before
/// the caller has given it its name. Attempts that break off are repeated, for as long as there is progress. Bytes of an earlier download
/// that turn out to be of another file are downloaded again.
///
/// # Errors
/// The file cannot be written; the host refuses it or sends other bytes; less than 1 MiB arrives in 90 seconds. The bytes that have come
/// stay, unless they are wrong.
pub async fn fetch<P: DownloadPlace>(
    place: &P,
    file: PartFile,
    expected: &Expected,
) -> Result<PartFile, FetchError<P::Error>> {
    let mut part = read(file, expected).await?;
    let (mut most, mut progressed) = (part.at(), Instant::now());
    loop {
        place.progress(part.at());
        while !part.is_whole() {
            let Err(error) = attempt(place, &mut part).await else { continue };
            if part.at() >= most + LEAST {
                (most, progressed) = (part.at(), Instant::now());
            }
            let is_passing = match &error {
                FetchError::Place(error) => place.is_passing(error),
                FetchError::Download(error) => error.is_passing(),
            };
            if !is_passing || progressed.elapsed() > PATIENCE {
                return Err(error);
            }
            sleep(PAUSE).await;
        }
        if part.verify().map_err(DownloadError::from)? {
            return Ok(part.into_file());
        }
        let is_continued = part.is_continued();
        part.begin_anew().map_err(DownloadError::from)?;
        if !is_continued {
            return Err(DownloadError::Checksum.into());
        }
        (most, progressed) = (0, Instant::now());
    }
}

/// Reads what is there, on a thread of its own: it may be many GiB.
async fn read(file: PartFile, expected: &Expected) -> Result<Part, DownloadError> {
    let expected = expected.clone();
    let read = tokio::task::spawn_blocking(move || Part::of(file, &expected)).await;
    let read = read.map_err(|error| DownloadError::Host(format!("reading the file: {error}")))?;
    Ok(read?)
}

/// Adds bytes to the file until it is whole.
async fn attempt<P: DownloadPlace>(place: &P, part: &mut Part) -> Result<(), FetchError<P::Error>> {
    let target = place.target().await.map_err(FetchError::Place)?;
    let path = format!("{}?{}", target.path, query(part.at()));
    let connection = timeout(ANSWER, connect(&target.server, &path, &target.ticket)).await;
    let connection =
        connection.map_err(|_| DownloadError::Broken("the host does not accept the request".to_owned()))?;
    let connection = connection.map_err(DownloadError::from)?;
    let mut from_host = BufReader::with_capacity(BLOCK, connection);
    Ok(receive(&mut from_host, part, |at| place.progress(at)).await?)
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
    let (mut counted, mut until) = (part.at(), Instant::now() + ANSWER);
    while !part.is_whole() {
        let most = usize::try_from(part.size() - part.at()).unwrap_or(BLOCK).min(BLOCK);
        let read = timeout_at(until, from_host.read(&mut block[..most])).await;
        let read = read.map_err(|_| DownloadError::Broken("less than 1 MiB came in a minute".to_owned()))?;
        match read.map_err(|error| DownloadError::Broken(error.to_string()))? {
            0 => {
                let (at, size) = (part.at(), part.size());
                return Err(DownloadError::Broken(format!("the host closed it after {at} of {size} bytes")));
            }
            count => part.add(&block[..count])?,
        }
        if part.at() >= counted + LEAST {
            (counted, until) = (part.at(), Instant::now() + ANSWER);
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
mod tests;
