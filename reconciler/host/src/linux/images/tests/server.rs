//! An HTTP server with one thread per connection. The test creates its replies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Starts at 1.
    pub(super) number: usize,
    pub(super) path: String,
    pub(super) range: Option<u64>,
    pub(super) if_range: Option<String>,
    pub(super) authorization: Option<String>,
    pub(super) host: Option<String>,
    /// The header `X-Key`.
    pub(super) key: Option<String>,
}

#[derive(Debug)]
pub(super) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    cut_after: Option<usize>,
    pause: Duration,
    delay: Duration,
    length_told: bool,
}

impl Reply {
    pub(super) fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            cut_after: None,
            pause: Duration::ZERO,
            delay: Duration::ZERO,
            length_told: true,
        }
    }

    pub(super) fn file(body: &[u8]) -> Self {
        Self { body: body.to_vec(), ..Self::status(200) }.header("ETag", "\"v1\"")
    }

    /// The file, without a validator of its version.
    pub(super) fn unnamed(body: &[u8]) -> Self {
        Self { body: body.to_vec(), ..Self::status(200) }
    }

    /// The requested range, or a 416 response.
    pub(super) fn range(body: &[u8], request: &Request) -> Self {
        let Some(from) = request.range else { return Self::file(body) };
        let start = usize::try_from(from).expect("small");
        if start >= body.len() {
            return Self::status(416).header("Content-Range", format!("bytes */{}", body.len()));
        }
        let range = format!("bytes {start}-{}/{}", body.len() - 1, body.len());
        Self { body: body[start..].to_vec(), ..Self::status(206) }.header("Content-Range", range)
    }

    pub(super) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Closes the connection after this many bytes of the body.
    pub(super) fn cut_after(mut self, bytes: usize) -> Self {
        self.cut_after = Some(bytes);
        self
    }

    /// Takes a tenth of a second or more for the body.
    pub(super) fn slowly(self) -> Self {
        self.pausing(Duration::from_millis(10))
    }

    /// Pauses after each 256 KiB of the body.
    pub(super) fn pausing(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Delays the response.
    pub(super) fn late_by(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets whether the response has a Content-Length.
    pub(super) fn length_told(mut self, reported: bool) -> Self {
        self.length_told = reported;
        self
    }

    fn send(self, stream: &mut impl Write) -> std::io::Result<()> {
        std::thread::sleep(self.delay);
        write!(stream, "HTTP/1.1 {} X\r\n", self.status)?;
        if self.length_told {
            write!(stream, "Content-Length: {}\r\n", self.body.len())?;
        }
        for (name, value) in &self.headers {
            write!(stream, "{name}: {value}\r\n")?;
        }
        stream.write_all(b"Connection: close\r\n\r\n")?;
        let end = self.cut_after.unwrap_or(self.body.len()).min(self.body.len());
        for block in self.body[..end].chunks(256 << 10) {
            stream.write_all(block)?;
            std::thread::sleep(self.pause);
        }
        stream.flush()
    }
}

/// Ends with the test process; its threads wait for nothing that outlives it.
#[derive(Debug)]
pub(super) struct Server {
    /// Scheme, address and port.
    origin: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(super) fn start(reply: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1", reply)
    }

    /// Listens on another address.
    pub(super) fn at(address: &str, reply: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        Self::serve("http", address, move |mut stream, seen| {
            let Some(request) = read(&stream, seen) else { return };
            // Some tests use a client that disconnects early.
            let _ = reply(&request).send(&mut stream);
        })
    }

    /// Serves by HTTPS, with a certificate for its address.
    pub(super) fn start_tls(
        made: &rcgen::CertifiedKey<rcgen::KeyPair>,
        reply: impl Fn(&Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the default versions")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .expect("a certificate with its key");
        let config = Arc::new(config);
        Self::serve("https", "127.0.0.1", move |stream, seen| {
            let connection = ServerConnection::new(Arc::clone(&config)).expect("a valid configuration");
            let mut stream = StreamOwned::new(connection, stream);
            // A client that does not trust the certificate ends the handshake.
            let Some(request) = read(&mut stream, seen) else { return };
            let _ = reply(&request).send(&mut stream);
            stream.conn.send_close_notify();
            let _ = stream.flush();
        })
    }

    fn serve(
        scheme: &str,
        address: &str,
        answer: impl Fn(TcpStream, &Mutex<Vec<Request>>) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((address, 0)).expect("a free port");
        let origin = format!("{scheme}://{}", listener.local_addr().expect("address"));
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (seen, answer) = (Arc::clone(&requests), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, seen, answer) =
                    (stream.expect("connection"), Arc::clone(&seen), Arc::clone(&answer));
                std::thread::spawn(move || answer(stream, &seen));
            }
        });
        Self { origin, requests }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.origin)
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no panic").clone()
    }
}

fn read(stream: impl Read, seen: &Mutex<Vec<Request>>) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let (mut range, mut if_range, mut authorization, mut host, mut key) = (None, None, None, None, None);
    for line in lines.take_while(|l| !l.is_empty()) {
        let (name, value) = line.split_once(": ")?;
        match name.to_ascii_lowercase().as_str() {
            "range" => range = value.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok(),
            "if-range" => if_range = Some(value.to_owned()),
            "authorization" => authorization = Some(value.to_owned()),
            "host" => host = Some(value.to_owned()),
            "x-key" => key = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut seen = seen.lock().expect("no panic");
    let request = Request { number: seen.len() + 1, path, range, if_range, authorization, host, key };
    seen.push(request.clone());
    Some(request)
}
