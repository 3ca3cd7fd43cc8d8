//! A minimal HTTP client that connects from a given network namespace.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::namespace::Namespace;
use crate::wait;

/// The largest page that a test reads, in bytes.
const LONGEST: u64 = 1 << 20;
/// The time after which a connection is begun anew. The kernel itself repeats the first packet after 1, 3, 7, 15 and 31 seconds: a guest that
/// has booted meanwhile would be seen that much later.
const BEGIN_ANEW: Duration = Duration::from_secs(2);

/// Gets a page from `address` (port 80 unless it names one), from the namespace `from`.
pub fn get(from: &Namespace, address: &str, path: &str, limit: Duration) -> Result<String> {
    let target: SocketAddr =
        if address.contains(':') { address.parse() } else { format!("{address}:80").parse() }
            .with_context(|| format!("{address} is no address"))?;
    let path = path.to_owned();
    from.inside(move || Held::connect(target, limit)?.get(&path))
}

/// Retries until the page is available.
pub fn get_within(from: &Namespace, address: &str, path: &str, limit: Duration) -> Result<String> {
    wait::until(&format!("http://{address}{path}"), limit, || {
        get(from, address, path, Duration::from_secs(15).min(limit))
    })
}

/// A connection that is open, and over which nothing was asked yet.
#[derive(Debug)]
pub struct Held {
    target: SocketAddr,
    stream: TcpStream,
}

impl Held {
    /// Connects to port 80 of `address` from the namespace `from`.
    pub fn open(from: &Namespace, address: &str, limit: Duration) -> Result<Self> {
        let target: SocketAddr =
            format!("{address}:80").parse().with_context(|| format!("{address} is no address"))?;
        from.inside(move || Self::connect(target, limit))
    }

    fn connect(target: SocketAddr, limit: Duration) -> Result<Self> {
        let end = Instant::now() + limit;
        let stream = loop {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&target, left.min(BEGIN_ANEW)) {
                Err(error) if error.kind() == ErrorKind::TimedOut && Instant::now() < end => {}
                connected => break connected.with_context(|| format!("connecting to {target}"))?,
            }
        };
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { target, stream })
    }

    /// Gets a page over this connection.
    pub fn get(self, path: &str) -> Result<String> {
        exchange(self, path)
    }
}

fn exchange(Held { target, mut stream }: Held, path: &str) -> Result<String> {
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\nConnection: close\r\n\r\n", target.ip())?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer).with_context(|| format!("reading from {target}"))?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = split(&answer).with_context(|| format!("an answer without a head: {answer:?}"))?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        bail!("http://{target}{path} answered {status}: {body}");
    }
    Ok(body.to_owned())
}

/// Splits a response into head and body. busybox passes on the line ends of a CGI script.
fn split(answer: &str) -> Option<(&str, &str)> {
    let ends = ["\r\n\r\n", "\n\n"].iter().filter_map(|end| Some((answer.find(end)?, end.len())));
    let (at, length) = ends.min()?;
    Some((&answer[..at], &answer[at + length..]))
}

/// The value of `key=` in a page of such lines.
pub fn field<'a>(page: &'a str, key: &str) -> Result<&'a str> {
    page.split_whitespace()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        .with_context(|| format!("no {key}= in {page:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_at_the_first_empty_line_of_either_kind() {
        assert_eq!(
            split("HTTP/1.0 200 OK\r\nA: b\n\nbody\r\n\r\n"),
            Some(("HTTP/1.0 200 OK\r\nA: b", "body\r\n\r\n"))
        );
        assert_eq!(split("HTTP/1.0 200 OK\r\n\r\na\n\nb"), Some(("HTTP/1.0 200 OK", "a\n\nb")));
    }

    #[test]
    fn a_field_is_found_by_its_whole_key() {
        assert_eq!(field("boot_id=a\nid=b size=c", "id").expect("there"), "b");
        assert!(field("boot_id=a", "id").is_err());
    }
}
