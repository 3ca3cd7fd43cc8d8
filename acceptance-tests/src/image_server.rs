//! An HTTP server for images, with the faults that a test selects: 404, a cut connection, refused ranges.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::namespace::Namespace;

/// The response for a path.
#[derive(Debug, Clone)]
pub enum Content {
    /// The file.
    File(PathBuf),
    /// The file, but the first connection for it ends after this many bytes.
    CutOnce(PathBuf, u64),
    /// The file, but every connection for it ends after this many bytes and ranges are refused.
    CutAlways(PathBuf, u64),
    /// The file, for requests with this `Authorization`; 401 Unauthorized for others.
    Private(PathBuf, String),
    /// 404 Not Found, for a path that had content before.
    Gone,
    /// A redirect to this URL.
    Redirect(String),
    /// The first bytes of the file, and then nothing for as long as the client waits.
    Hang(PathBuf, u64),
}

#[derive(Debug, Default)]
struct Shelf {
    contents: Mutex<BTreeMap<String, Content>>,
    cut: Mutex<Vec<String>>,
    requests: Mutex<BTreeMap<String, u64>>,
    bytes: AtomicU64,
    hanging: AtomicU64,
    closed: AtomicBool,
}

/// A server inside a namespace.
#[derive(Debug)]
pub struct ImageServer {
    shelf: Arc<Shelf>,
    address: SocketAddr,
    namespace: Arc<Namespace>,
}

impl ImageServer {
    /// Starts a server on one of the namespace's addresses.
    pub fn start(namespace: &Arc<Namespace>, address: &str) -> Result<Self> {
        let place = format!("{address}:0");
        let listener = namespace.inside(move || Ok(TcpListener::bind(place)?))?;
        let address = listener.local_addr()?;
        let shelf = Arc::new(Shelf::default());
        let served = Arc::clone(&shelf);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if served.closed.load(Ordering::SeqCst) {
                    return;
                }
                let served = Arc::clone(&served);
                std::thread::spawn(move || {
                    // A client may disconnect early.
                    let _ = answer(&served, stream);
                });
            }
        });
        Ok(Self { shelf, address, namespace: Arc::clone(namespace) })
    }

    /// Serves `content` at `/name` and returns its URL.
    pub fn put(&self, name: &str, content: Content) -> String {
        lock(&self.shelf.contents).insert(format!("/{name}"), content);
        self.url(name)
    }

    /// The URL of `/name`.
    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    /// The number of requests for `/name`.
    pub fn requests(&self, name: &str) -> u64 {
        lock(&self.shelf.requests).get(&format!("/{name}")).copied().unwrap_or_default()
    }

    /// The number of clients that wait for the rest of a [`Content::Hang`].
    pub fn hanging(&self) -> u64 {
        self.shelf.hanging.load(Ordering::SeqCst)
    }

    /// The number of content bytes sent in total.
    pub fn bytes_sent(&self) -> u64 {
        self.shelf.bytes.load(Ordering::SeqCst)
    }
}

impl Drop for ImageServer {
    fn drop(&mut self) {
        self.shelf.closed.store(true, Ordering::SeqCst);
        // The listener blocks in accept: one connection wakes it.
        let address = self.address;
        let _ = self.namespace.inside(move || Ok(TcpStream::connect(address)?));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Request {
    method: String,
    path: String,
    from: Option<u64>,
    authorization: String,
}

fn read_request(stream: &TcpStream) -> Result<Option<Request>> {
    let mut reader = BufReader::new(stream.take(16 << 10));
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut words = first.split_whitespace();
    let method = words.next().unwrap_or_default().to_owned();
    let path = words.next().unwrap_or_default().to_owned();
    let mut from = None;
    let mut authorization = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            return Ok(Some(Request { method, path, from, authorization }));
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("authorization")
        {
            value.trim().clone_into(&mut authorization);
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("range")
        {
            from =
                value.trim().strip_prefix("bytes=").and_then(|range| range.split('-').next()?.parse().ok());
        }
    }
}

fn answer(shelf: &Shelf, mut stream: TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))?;
    let Some(request) = read_request(&stream)? else { return Ok(()) };
    // A query string holds the client's signature and is not part of the name.
    let name = request.path.split('?').next().unwrap_or_default().to_owned();
    *lock(&shelf.requests).entry(name.clone()).or_default() += 1;
    let content = lock(&shelf.contents).get(&name).cloned();
    let file = match content {
        None | Some(Content::Gone) => {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
            return Ok(());
        }
        Some(Content::Redirect(to)) => {
            let head = format!(
                "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(head.as_bytes())?;
            return Ok(());
        }
        Some(Content::Hang(path, after)) => {
            let file = Sent { path, cut: Some(after), ranges: false };
            send(shelf, &request, &mut stream, &file)?;
            // Until the client disconnects.
            shelf.hanging.fetch_add(1, Ordering::SeqCst);
            stream.set_read_timeout(None)?;
            let _ = stream.read(&mut [0]);
            shelf.hanging.fetch_sub(1, Ordering::SeqCst);
            return Ok(());
        }
        Some(Content::Private(_, wanted)) if request.authorization != wanted => {
            stream
                .write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
            return Ok(());
        }
        Some(Content::File(path) | Content::Private(path, _)) => Sent { path, cut: None, ranges: true },
        Some(Content::CutAlways(path, after)) => Sent { path, cut: Some(after), ranges: false },
        Some(Content::CutOnce(path, after)) => {
            let mut seen = lock(&shelf.cut);
            let first = request.method == "GET" && !seen.contains(&request.path);
            if first {
                seen.push(request.path.clone());
            }
            Sent { path, cut: first.then_some(after), ranges: true }
        }
    };
    send(shelf, &request, &mut stream, &file)
}

/// A file as it is sent.
#[derive(Debug)]
struct Sent {
    path: PathBuf,
    /// The number of bytes after which the connection is cut.
    cut: Option<u64>,
    /// Whether requests for a range are accepted.
    ranges: bool,
}

fn send(shelf: &Shelf, request: &Request, stream: &mut TcpStream, sent: &Sent) -> Result<()> {
    let Sent { path, cut, ranges } = sent;
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let length = file.metadata()?.len();
    let from = request.from.filter(|from| *ranges && *from < length);
    let head = match from {
        Some(from) => format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-{}/{length}\r\nContent-Length: {}\r\n",
            length - 1,
            length - from
        ),
        None => format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n"),
    };
    let accept = if *ranges { "Accept-Ranges: bytes\r\n" } else { "Accept-Ranges: none\r\n" };
    stream.write_all(
        format!("{head}{accept}ETag: \"{length}\"\r\nContent-Type: application/octet-stream\r\nConnection: close\r\n\r\n")
            .as_bytes(),
    )?;
    if request.method == "HEAD" {
        return Ok(());
    }
    file.seek(SeekFrom::Start(from.unwrap_or(0)))?;
    let mut left = (length - from.unwrap_or(0)).min(cut.unwrap_or(u64::MAX));
    let mut chunk = vec![0; 256 << 10];
    while left > 0 {
        let want = usize::try_from(left.min(chunk.len() as u64)).unwrap_or(chunk.len());
        let read = file.read(&mut chunk[..want])?;
        if read == 0 {
            break;
        }
        stream.write_all(&chunk[..read])?;
        shelf.bytes.fetch_add(read as u64, Ordering::SeqCst);
        left -= read as u64;
    }
    Ok(())
}
