//! Images behind HTTP: resumed where they were cut off, given up when nothing comes.

use std::error::Error as _;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap, IF_RANGE, LAST_MODIFIED, RANGE};
use reqwest::{Response, StatusCode, Url};
use tokio::sync::mpsc;

use super::super::files::blocking;
use super::Result;
use super::download::Job;
use super::partial::{Origin, Partial};
use crate::system::SystemError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// A source that sends nothing for so long is gone.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_REDIRECTS: usize = 5;
/// Attempts in a row that bring nothing.
const MAX_FRUITLESS: u32 = 4;
/// Attempts in all: a source that cuts every few bytes is left to the caller's back-off.
const MAX_ATTEMPTS: u32 = 64;
/// Blocks between the network and the disk.
const QUEUE: usize = 16;

/// Made at the first download: hosts that only use local files need no root certificates.
#[derive(Debug, Default)]
pub(super) struct Client {
    plain: OnceLock<reqwest::Client>,
    secure: OnceLock<reqwest::Client>,
}

impl Client {
    fn of(&self, url: &Url) -> std::result::Result<&reqwest::Client, reqwest::Error> {
        if url.scheme() == "https" {
            return made(&self.secure, builder().build());
        }
        // Without any root certificates on the host, http:// still has to work.
        made(&self.plain, builder().build().or_else(|_| builder().tls_certs_only([]).build()))
    }
}

fn made(
    slot: &OnceLock<reqwest::Client>,
    built: std::result::Result<reqwest::Client, reqwest::Error>,
) -> std::result::Result<&reqwest::Client, reqwest::Error> {
    match slot.get() {
        Some(client) => Ok(client),
        None => built.map(|client| slot.get_or_init(|| client)),
    }
}

fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(STALL_TIMEOUT)
        .pool_idle_timeout(Duration::from_secs(5))
        .redirect(reqwest::redirect::Policy::limited(MAX_REDIRECTS))
}

/// Why an attempt ended early.
enum Stop {
    /// Worth another attempt at once.
    Cut(String),
    Final(SystemError),
}

impl From<SystemError> for Stop {
    fn from(error: SystemError) -> Self {
        Self::Final(error)
    }
}

/// Downloads what is missing of the file.
pub(super) async fn download(
    job: &Job<'_>,
    client: &Client,
    url: &Url,
    mut partial: Partial,
) -> Result<Partial> {
    let client = client.of(url).map_err(|e| {
        job.failed(format!("{}: are root certificates installed (ca-certificates)?", chain(&e)))
    })?;
    let (mut fruitless, mut attempts) = (0, 0);
    loop {
        let before = partial.len();
        let (kept, outcome) = attempt(job, client, url, partial).await;
        let stopped = match (kept, outcome) {
            (Some(complete), Ok(())) => return Ok(complete),
            (_, Err(Stop::Final(error))) => return Err(error),
            (Some(rest), Err(Stop::Cut(detail))) => {
                partial = rest;
                detail
            }
            (None, _) => unreachable!("only a failed write keeps nothing, and that is final"),
        };
        fruitless = if partial.len() > before { 0 } else { fruitless + 1 };
        attempts += 1;
        if fruitless >= MAX_FRUITLESS || attempts >= MAX_ATTEMPTS {
            return Err(job.failed(stopped));
        }
        tracing::debug!(bytes = partial.len(), stopped, "download cut off; resuming");
        tokio::time::sleep(Duration::from_millis(200) * (1 << fruitless)).await;
    }
}

type Attempt = (Option<Partial>, std::result::Result<(), Stop>);

async fn attempt(job: &Job<'_>, client: &reqwest::Client, url: &Url, mut partial: Partial) -> Attempt {
    let response = match request(job, client, url, &partial).await {
        Ok(response) => response,
        Err(stop) => return (Some(partial), Err(stop)),
    };
    let total = match begin(job, &response, &mut partial) {
        Ok(Begun::Stream { total }) => total,
        Ok(Begun::Complete) => return (Some(partial), Ok(())),
        Err(stop) => return (Some(partial), Err(stop)),
    };
    if response.status() == StatusCode::OK
        && let Err(error) = note(job, response.headers()).await
    {
        return (Some(partial), Err(Stop::Final(error)));
    }
    receive(job, response, partial, total).await
}

async fn request(
    job: &Job<'_>,
    client: &reqwest::Client,
    url: &Url,
    partial: &Partial,
) -> std::result::Result<Response, Stop> {
    let mut request = client.get(url.clone());
    if partial.len() > 0 {
        request = request.header(RANGE, format!("bytes={}-", partial.len()));
        // Of another mirror's names for versions nothing follows: there the checksum alone decides.
        let origin = Origin::read(job.image).filter(|o| o.url == job.source.url);
        if let Some(validator) = origin.and_then(|o| o.validator) {
            request = request.header(IF_RANGE, validator);
        }
    }
    request.send().await.map_err(|error| {
        let detail = chain(&error);
        if error.is_redirect() || error.is_builder() {
            Stop::Final(job.failed(detail))
        } else {
            Stop::Cut(detail)
        }
    })
}

enum Begun {
    Stream { total: Option<u64> },
    Complete,
}

fn begin(job: &Job<'_>, response: &Response, partial: &mut Partial) -> std::result::Result<Begun, Stop> {
    let status = response.status();
    let range = content_range(response.headers());
    let total = match status {
        StatusCode::OK => {
            partial.restart()?;
            response.content_length()
        }
        StatusCode::PARTIAL_CONTENT => match range {
            Some((Some(from), total)) if from == partial.len() => total,
            _ => {
                partial.restart()?;
                return Err(Stop::Cut("the server sent another part than asked for".to_owned()));
            }
        },
        StatusCode::RANGE_NOT_SATISFIABLE => {
            if matches!(range, Some((_, Some(total))) if total == partial.len()) {
                return Ok(Begun::Complete);
            }
            partial.restart()?;
            return Err(Stop::Cut("the server has fewer bytes than were downloaded before".to_owned()));
        }
        StatusCode::NOT_FOUND | StatusCode::GONE => {
            return Err(Stop::Final(job.not_found(format!("HTTP {status}"))));
        }
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            return Err(Stop::Cut(format!("HTTP {status}")));
        }
        _ if status.is_server_error() => return Err(Stop::Cut(format!("HTTP {status}"))),
        _ => return Err(Stop::Final(job.failed(format!("HTTP {status}")))),
    };
    if let Some(total) = total {
        job.check_size(total, partial.len())?;
    }
    Ok(Begun::Stream { total })
}

/// Moves the body to the file. Writing and hashing have a thread of their own; the queue between is short.
async fn receive(job: &Job<'_>, response: Response, mut partial: Partial, total: Option<u64>) -> Attempt {
    let mut len = partial.len();
    let (blocks, mut queue) = mpsc::channel::<Bytes>(QUEUE);
    let writer = tokio::spawn(blocking(move || {
        while let Some(block) = queue.blocking_recv() {
            if let Err(error) = partial.append(&block) {
                return (None, Err(error));
            }
        }
        (Some(partial), Ok(()))
    }));
    let mut body = response.bytes_stream();
    let outcome = loop {
        match body.next().await {
            None => break Ok(()),
            Some(Err(error)) => break Err(Stop::Cut(chain(&error))),
            Some(Ok(block)) => {
                len += block.len() as u64;
                if let Err(error) = job.check_limit(len) {
                    break Err(Stop::Final(error));
                }
                if blocks.send(block).await.is_err() {
                    break Ok(()); // The writer has given up and tells why below.
                }
                job.report.send_replace((len, total));
            }
        }
    };
    drop(blocks);
    let (partial, written) = writer.await.expect("the writer neither panics nor is cancelled");
    if let Err(error) = written {
        return (None, Err(Stop::Final(error)));
    }
    let short = total.is_some_and(|t| len < t);
    let outcome = match outcome {
        Ok(()) if short => Err(Stop::Cut("the connection was closed in the middle".to_owned())),
        other => other,
    };
    (partial, outcome)
}

/// What the server calls this version, for taking it up later.
async fn note(job: &Job<'_>, headers: &HeaderMap) -> Result<()> {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok());
    let validator = text(ETAG).filter(|tag| tag.starts_with('"')).or_else(|| text(LAST_MODIFIED));
    let origin = Origin { url: job.source.url.clone(), validator: validator.map(str::to_owned) };
    let image = job.image.to_owned();
    blocking(move || origin.write(&image)).await
}

/// `bytes 5-9/10` → (5, 10); `bytes */10` → (none, 10).
fn content_range(headers: &HeaderMap) -> Option<(Option<u64>, Option<u64>)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?;
    let (range, total) = text.split_once('/')?;
    let from = range.split_once('-').and_then(|(from, _)| from.parse().ok());
    Some((from, total.parse().ok()))
}

/// reqwest's errors, with their causes and without the URL, which may hold secrets.
fn chain(error: &reqwest::Error) -> String {
    let mut text = if error.is_timeout() {
        "nothing came in time".to_owned()
    } else if error.is_connect() {
        "cannot connect".to_owned()
    } else if error.is_redirect() {
        "too many redirects".to_owned()
    } else {
        "the transfer failed".to_owned()
    };
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
