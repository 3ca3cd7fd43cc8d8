//! A client of berth's API without overhead that would distort measurements: one connection, no process start, no discovery.

use std::io::{BufRead, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

pub use crate::access::Access;
use crate::access::Stream;

/// The largest response body, in bytes.
const LONGEST: u64 = 256 << 20;
/// The longest wait between two events of a watch.
const PATIENCE: Duration = Duration::from_secs(300);
/// The idle time after which the server may have closed a connection.
const IDLE: Duration = Duration::from_secs(5);
/// berth's group and version.
const GROUP: &str = "/apis/berth.dev/v1alpha1";

impl Access {
    /// Opens a connection.
    pub fn connect(&self) -> Result<Api> {
        Ok(Api { stream: self.stream(PATIENCE)?, access: self.clone(), used: Instant::now() })
    }
}

/// A connection to the API.
#[derive(Debug)]
pub struct Api {
    stream: Stream,
    access: Access,
    used: Instant,
}

enum Length {
    Known(u64),
    Chunked,
}

/// A request that is sent literally.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Such as `PATCH`.
    pub method: &'a str,
    /// The path with its query.
    pub path: &'a str,
    /// The media type of the body.
    pub content_type: &'a str,
    /// Further headers: name, value.
    pub headers: &'a [(String, String)],
    /// The body, which may be empty.
    pub body: &'a str,
}

impl<'a> Request<'a> {
    /// A request with a JSON body, or with none.
    pub fn new(method: &'a str, path: &'a str, body: &'a str) -> Self {
        Self { method, path, content_type: "application/json", headers: &[], body }
    }
}

impl Api {
    /// Gets a path as text.
    pub fn get(&mut self, path: &str) -> Result<String> {
        self.ask("GET", path, "")
    }

    /// Gets an object or a list.
    pub fn read(&mut self, path: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.get(path)?)?)
    }

    /// Creates an object of a kind, in `default` when the kind is namespaced.
    pub fn create(&mut self, kind: Kind, name: &str, spec: &Value) -> Result<Value> {
        let object = serde_json::json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": kind.kind, "metadata": {"name": name}, "spec": spec,
        });
        Ok(serde_json::from_str(&self.ask("POST", &kind.path(), &object.to_string())?)?)
    }

    /// Creates an object of any kind, written as JSON, below the path of its kind.
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

    /// Sends a request. Returns the status code and the text of the response, whatever they are.
    pub fn answer(&mut self, request: &Request<'_>) -> Result<(u16, String)> {
        if self.used.elapsed() > IDLE {
            self.stream = self.access.stream(PATIENCE)?;
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
            self.access.token(),
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

    /// Watches all objects of a kind, beginning with the existing ones.
    pub fn watch(self, kind: Kind) -> Result<Watch> {
        self.watch_from(&kind.path(), "0")
    }

    /// Watches all objects below a path, from this revision on.
    pub fn watch_from(mut self, path: &str, revision: &str) -> Result<Watch> {
        let query = format!("{path}?watch=true&resourceVersion={revision}");
        self.send(&Request::new("GET", &query, ""))?;
        match self.head()? {
            (200, Length::Chunked) => Ok(Watch { api: self, read: Vec::new() }),
            (status, _) => bail!("watching {path}: {status}"),
        }
    }
}

/// The Status with which the server ended a watch.
#[derive(Debug)]
pub struct Ended(pub Value);

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the watch ended: {}", self.0)
    }
}

impl std::error::Error for Ended {}

/// A watch on objects.
#[derive(Debug)]
pub struct Watch {
    api: Api,
    read: Vec<u8>,
}

impl Watch {
    /// The next event: an object added, modified or deleted.
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
                    Some("ERROR") => return Err(Ended(event["object"].take()).into()),
                    _ => continue,
                };
                return Ok(Event { seen, gone, object: event["object"].take() });
            }
            ensure!(self.api.chunk(&mut self.read)?, "the watch ended");
        }
    }

    /// Reads `count` events without decoding them. Returns the arrival time of the last.
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

    /// Waits until `done` returns true for an object.
    pub fn until(&mut self, mut done: impl FnMut(&Value) -> bool) -> Result<Event> {
        loop {
            let event = self.next_event()?;
            if !event.gone && done(&event.object) {
                return Ok(event);
            }
        }
    }

    /// Waits until the object of this name is gone. Returns the time of the event.
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
    /// The time of arrival.
    pub seen: Instant,
    /// Whether the object was deleted.
    pub gone: bool,
    /// The object, in its current or last state.
    pub object: Value,
}

/// A kind of the berth API.
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
/// `DiskSnapshot`.
pub const DISK_SNAPSHOT: Kind = Kind { kind: "DiskSnapshot", plural: "disksnapshots", namespaced: true };
/// `BackupRepository`.
pub const BACKUP_REPOSITORY: Kind =
    Kind { kind: "BackupRepository", plural: "backuprepositories", namespaced: true };
/// `Backup`.
pub const BACKUP: Kind = Kind { kind: "Backup", plural: "backups", namespaced: true };
/// `Network`.
pub const NETWORK: Kind = Kind { kind: "Network", plural: "networks", namespaced: true };
/// `SecurityGroup`.
pub const SECURITY_GROUP: Kind = Kind { kind: "SecurityGroup", plural: "securitygroups", namespaced: true };
/// `Host`.
pub const HOST: Kind = Kind { kind: "Host", plural: "hosts", namespaced: false };

impl Kind {
    /// The path of the kind's objects.
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
