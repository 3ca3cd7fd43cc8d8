//! A client of berth's API that adds nothing to what is measured: one connection, no process to start, no discovery.
//!
//! Its sockets are made inside a namespace and used from any thread.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

use crate::namespace::Namespace;

/// No answer is longer.
const LONGEST: u64 = 256 << 20;
/// Between two events of a watch that is waited for.
const PATIENCE: Duration = Duration::from_secs(300);
/// A connection that was quiet for longer may have been closed by the server.
const IDLE: Duration = Duration::from_secs(5);
/// berth's group and version.
const GROUP: &str = "/apis/berth.dev/v1alpha1";

/// Where an API is and how one is let in.
#[derive(Debug, Clone)]
pub struct Access {
    address: String,
    token: String,
    tls: Arc<ClientConfig>,
    namespace: Arc<Namespace>,
}

impl Access {
    /// As a kubeconfig in YAML says: one of `berth up`, or of a host that joined.
    pub fn read(kubeconfig: &Path, namespace: &Arc<Namespace>) -> Result<Self> {
        let text = std::fs::read_to_string(kubeconfig)
            .with_context(|| format!("reading {}", kubeconfig.display()))?;
        // One that is written as JSON has the same lines, with quotes and commas.
        let text = if text.starts_with('{') { text.replace(['"', ','], "") } else { text };
        let field = |name| field(&text, name).with_context(|| format!("no {name} in the kubeconfig"));
        let mut roots = RootCertStore::empty();
        let authority = STANDARD.decode(field("certificate-authority-data:")?)?;
        roots.add(CertificateDer::from_pem_slice(&authority)?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = field("server:")?;
        let address = server.strip_prefix("https://").context("the server has no TLS")?.to_owned();
        let token = match field("tokenFile:") {
            Ok(file) => std::fs::read_to_string(kubeconfig.with_file_name(file))?.trim().to_owned(),
            Err(_) => field("token:")?,
        };
        Ok(Self { address, token, tls: Arc::new(tls), namespace: Arc::clone(namespace) })
    }

    /// The same API, asked by somebody else.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self.clone() }
    }

    /// What one is let in with.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The port of the server.
    pub fn port(&self) -> Result<u16> {
        let (_, port) = self.address.rsplit_once(':').context("the server has no port")?;
        Ok(port.parse()?)
    }

    /// Opens a connection.
    pub fn connect(&self) -> Result<Api> {
        Ok(Api { stream: self.stream()?, access: self.clone(), used: Instant::now() })
    }

    fn stream(&self) -> Result<Stream> {
        let address = self.address.clone();
        let socket = self.namespace.inside(move || Ok(TcpStream::connect(&address)?))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let host = self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host);
        let name = ServerName::try_from(host.to_owned())?;
        let tls = ClientConnection::new(Arc::clone(&self.tls), name)?;
        Ok(BufReader::new(StreamOwned::new(tls, socket)))
    }
}

/// The value after a key in YAML, perhaps as a block below it.
fn field(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().map(|line| line.trim().trim_start_matches("- "));
    let value = lines.find_map(|line| line.strip_prefix(name))?.trim();
    let value = if value.starts_with(['>', '|']) { lines.next()? } else { value };
    Some(value.trim_matches('"').to_owned())
}

/// A connection to the API.
#[derive(Debug)]
pub struct Api {
    stream: Stream,
    access: Access,
    used: Instant,
}

type Stream = BufReader<StreamOwned<ClientConnection, TcpStream>>;

enum Length {
    Known(u64),
    Chunked,
}

/// A request word for word.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Such as `PATCH`.
    pub method: &'a str,
    /// With its query.
    pub path: &'a str,
    /// What the body is.
    pub content_type: &'a str,
    /// Further headers: name, value.
    pub headers: &'a [(String, String)],
    /// May be empty.
    pub body: &'a str,
}

impl<'a> Request<'a> {
    /// One with a JSON body, or none.
    pub fn new(method: &'a str, path: &'a str, body: &'a str) -> Self {
        Self { method, path, content_type: "application/json", headers: &[], body }
    }
}

impl Api {
    /// Reads a path.
    pub fn get(&mut self, path: &str) -> Result<String> {
        self.ask("GET", path, "")
    }

    /// Reads an object or a list.
    pub fn read(&mut self, path: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.get(path)?)?)
    }

    /// Makes an object of a kind, in `default` when the kind is namespaced.
    pub fn create(&mut self, kind: Kind, name: &str, spec: &Value) -> Result<Value> {
        let object = serde_json::json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": kind.kind, "metadata": {"name": name}, "spec": spec,
        });
        Ok(serde_json::from_str(&self.ask("POST", &kind.path(), &object.to_string())?)?)
    }

    /// Makes an object of any kind, written as JSON, below the path of its kind.
    pub fn post(&mut self, path: &str, object: &str) -> Result<()> {
        self.ask("POST", path, object).map(drop)
    }

    /// Deletes an object.
    pub fn delete(&mut self, kind: Kind, name: &str) -> Result<()> {
        self.ask("DELETE", &format!("{}/{name}", kind.path()), "").map(drop)
    }

    fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<String> {
        let (status, text) = self.answer(&Request::new(method, path, body))?;
        ensure!((200..300).contains(&status), "{method} {path}: {status}: {text}");
        Ok(text)
    }

    /// Sends a request: the code and the text of the answer, whatever they are.
    pub fn answer(&mut self, request: &Request<'_>) -> Result<(u16, String)> {
        if self.used.elapsed() > IDLE {
            self.stream = self.access.stream()?;
        }
        self.used = Instant::now();
        self.send(request)?;
        let (status, length) = self.head()?;
        let mut text = Vec::new();
        match length {
            Length::Known(length) => {
                ensure!(length <= LONGEST, "{} answers with {length} bytes", request.path);
                (&mut self.stream).take(length).read_to_end(&mut text)?;
            }
            Length::Chunked => while self.chunk(&mut text)? {},
        }
        Ok((status, String::from_utf8(text)?))
    }

    fn send(&mut self, request: &Request<'_>) -> Result<()> {
        let Request { method, path, content_type, headers, body } = *request;
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nAccept: application/json\r\n\
             Content-Type: {content_type}\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            self.access.address,
            self.access.token,
            body.len()
        );
        let stream = self.stream.get_mut();
        stream.write_all(text.as_bytes())?;
        stream.flush()?;
        Ok(())
    }

    fn head(&mut self) -> Result<(u16, Length)> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|word| word.parse().ok()).context("no status line")?;
        let mut length = Length::Known(0);
        loop {
            let line = self.line()?.to_lowercase();
            match line.split_once(':') {
                _ if line.is_empty() => return Ok((status, length)),
                Some(("content-length", value)) => length = Length::Known(value.trim().parse()?),
                Some(("transfer-encoding", value)) if value.trim() == "chunked" => length = Length::Chunked,
                _ => {}
            }
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!((&mut self.stream).take(64 << 10).read_line(&mut line)? > 0, "the connection was closed");
        Ok(line.trim_end().to_owned())
    }

    /// Appends one chunk; false after the last.
    fn chunk(&mut self, to: &mut Vec<u8>) -> Result<bool> {
        let length = u64::from_str_radix(self.line()?.split(';').next().unwrap_or_default(), 16)?;
        ensure!(length + to.len() as u64 <= LONGEST, "an answer without end");
        (&mut self.stream).take(length).read_to_end(to)?;
        self.line()?;
        Ok(length > 0)
    }

    /// Follows all objects of a kind, beginning with what there is.
    pub fn watch(self, kind: Kind) -> Result<Watch> {
        self.watch_from(&kind.path(), "0")
    }

    /// Follows all objects below a path, from this revision on.
    pub fn watch_from(mut self, path: &str, revision: &str) -> Result<Watch> {
        let query = format!("{path}?watch=true&resourceVersion={revision}");
        self.send(&Request::new("GET", &query, ""))?;
        match self.head()? {
            (200, Length::Chunked) => Ok(Watch { api: self, read: Vec::new() }),
            (status, _) => bail!("watching {path}: {status}"),
        }
    }
}

/// Objects as they change.
#[derive(Debug)]
pub struct Watch {
    api: Api,
    read: Vec<u8>,
}

impl Watch {
    /// The next object that came, changed or went.
    pub fn next_event(&mut self) -> Result<Event> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let seen = Instant::now();
                let rest = self.read.split_off(end + 1);
                let line = std::mem::replace(&mut self.read, rest);
                let mut event: Value = serde_json::from_slice(&line)?;
                let gone = match event["type"].as_str() {
                    Some("ADDED" | "MODIFIED") => false,
                    Some("DELETED") => true,
                    Some("ERROR") => bail!("the watch ended: {}", event["object"]),
                    _ => continue,
                };
                return Ok(Event { seen, gone, object: event["object"].take() });
            }
            ensure!(self.api.chunk(&mut self.read)?, "the watch ended");
        }
    }

    /// Reads so many events without looking at them; when the last had come.
    pub fn skip(&mut self, mut count: usize) -> Result<Instant> {
        while count > 0 {
            ensure!(self.api.chunk(&mut self.read)?, "the watch ended");
            let lines = self.read.iter().filter(|byte| **byte == b'\n').count();
            ensure!(!self.read.starts_with(b"{\"type\":\"ERROR\""), "the watch ended with an error");
            let rest = self.read.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            self.read.drain(..rest);
            count = count.saturating_sub(lines);
        }
        Ok(Instant::now())
    }

    /// Waits until `done` says so of an object.
    pub fn until(&mut self, mut done: impl FnMut(&Value) -> bool) -> Result<Event> {
        loop {
            let event = self.next_event()?;
            if !event.gone && done(&event.object) {
                return Ok(event);
            }
        }
    }

    /// Waits until the object of this name is gone; when that was seen.
    pub fn until_gone(&mut self, wanted: &str) -> Result<Instant> {
        loop {
            let event = self.next_event()?;
            if event.gone && name(&event.object) == wanted {
                return Ok(event.seen);
            }
        }
    }
}

/// A change of an object.
#[derive(Debug, Clone)]
pub struct Event {
    /// When it arrived here.
    pub seen: Instant,
    /// Whether the object is no more.
    pub gone: bool,
    /// The object, as it is or was.
    pub object: Value,
}

/// A kind of berth's.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
}

/// `VM`.
pub const VM: Kind = Kind { kind: "VM", plural: "vms", namespaced: true };
/// `VMClass`.
pub const VM_CLASS: Kind = Kind { kind: "VMClass", plural: "vmclasses", namespaced: true };
/// `Image`.
pub const IMAGE: Kind = Kind { kind: "Image", plural: "images", namespaced: true };
/// `Disk`.
pub const DISK: Kind = Kind { kind: "Disk", plural: "disks", namespaced: true };
/// `HotswapDiskAttachment`.
pub const ATTACHMENT: Kind =
    Kind { kind: "HotswapDiskAttachment", plural: "hotswapdiskattachments", namespaced: true };
/// `Host`.
pub const HOST: Kind = Kind { kind: "Host", plural: "hosts", namespaced: false };

impl Kind {
    /// The path of its objects.
    pub fn path(self) -> String {
        let namespace = if self.namespaced { "/namespaces/default" } else { "" };
        format!("{GROUP}{namespace}/{}", self.plural)
    }
}

/// Whether a condition of an object is True.
pub fn is_true(object: &Value, condition: &str) -> bool {
    crate::kubectl::condition_of(object, condition).is_some_and(|found| found["status"] == "True")
}

/// An object's name.
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_stands_on_the_line_below_its_key() {
        let text = "clusters:\n- cluster:\n    server: https://a:1\n    data: >-\n      QUJD\nusers:\n- token: \"t\"\n";
        let read = |name| field(text, name).expect("it is there");
        assert_eq!([read("server:"), read("data:"), read("token:")], ["https://a:1", "QUJD", "t"]);
        assert_eq!(field(text, "other:"), None);
    }
}
