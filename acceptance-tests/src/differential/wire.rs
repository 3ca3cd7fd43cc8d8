//! HTTP/1.1 over TLS that exposes every part of a response: the comparison covers details that a client library hides.

use std::io::{BufRead, Read, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::access::{Access, Stream};

/// The largest response body, in bytes.
const LONGEST: usize = 64 << 20;
/// The timeout of a read.
const PATIENCE: Duration = Duration::from_secs(60);

/// One request, ready to be sent.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) method: String,
    /// Path and query, encoded.
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

/// One response as received.
#[derive(Debug, Clone, Default)]
pub(super) struct Answer {
    pub(super) code: u16,
    /// The headers, with names in lower case.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

/// Fails while the server is not ready.
pub(super) fn ready(access: &Access) -> Result<()> {
    let authorization = ("Authorization".to_owned(), format!("Bearer {}", access.token()));
    let message = Message {
        method: "GET".into(),
        path: "/readyz".into(),
        headers: vec![authorization],
        body: Vec::new(),
    };
    let answer = Wire::new(access).ask(&message)?;
    ensure!(answer.code == 200, "/readyz answers {}", answer.code);
    Ok(())
}

/// A connection that is reopened when the server has closed it.
#[derive(Debug)]
pub(super) struct Wire {
    access: Access,
    stream: Option<Stream>,
}

impl Wire {
    pub(super) fn new(access: &Access) -> Self {
        Self { access: access.clone(), stream: None }
    }

    /// Sends one request and reads its whole response.
    pub(super) fn ask(&mut self, message: &Message) -> Result<Answer> {
        let kept = self.stream.is_some();
        match self.exchange(message) {
            // The server may close an idle connection at any moment.
            Err(_) if kept => self.exchange(message),
            other => other,
        }
    }

    fn exchange(&mut self, message: &Message) -> Result<Answer> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.access.stream(PATIENCE)?,
        };
        // A server may respond and close before it has read a body that is too long.
        let sent = send(&mut stream, &self.access.address, message);
        let (mut answer, length) = match head(&mut stream) {
            Ok(head) => head,
            Err(error) => {
                sent?;
                return Err(error);
            }
        };
        match length {
            _ if message.method == "HEAD" => {}
            Length::Known(length) => {
                ensure!(length <= LONGEST, "an answer of {length} bytes");
                answer.body.resize(length, 0);
                stream.read_exact(&mut answer.body)?;
            }
            Length::Chunked => while chunk(&mut stream, &mut answer.body)? {},
        }
        let closes = answer.headers.iter().any(|(name, value)| name == "connection" && value == "close");
        if sent.is_ok() && !closes {
            self.stream = Some(stream);
        }
        Ok(answer)
    }

    /// Opens a stream on a connection of its own.
    pub(super) fn open(access: &Access, message: &Message) -> Result<Flow> {
        let mut stream = access.stream(PATIENCE)?;
        send(&mut stream, &access.address, message)?;
        let (answer, length) = head(&mut stream)?;
        Ok(Flow { stream, answer, length })
    }
}

/// A response with a body that is still arriving.
#[derive(Debug)]
pub(super) struct Flow {
    stream: Stream,
    answer: Answer,
    length: Length,
}

impl Flow {
    /// Reads until the server ends the response, or until there are `frames` lines.
    pub(super) fn read(mut self, frames: usize) -> Result<Answer> {
        match self.length {
            Length::Known(length) => {
                ensure!(length <= LONGEST, "an answer of {length} bytes");
                self.answer.body.resize(length, 0);
                self.stream.read_exact(&mut self.answer.body)?;
            }
            Length::Chunked => loop {
                let lines = self.answer.body.iter().filter(|byte| **byte == b'\n').count();
                if lines >= frames || !chunk(&mut self.stream, &mut self.answer.body)? {
                    break;
                }
            },
        }
        // Several lines may have arrived at once.
        let ends =
            self.answer.body.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
        if let Some(end) = ends.take(frames).last() {
            self.answer.body.truncate(end);
        }
        Ok(self.answer)
    }
}

#[derive(Debug, Clone, Copy)]
enum Length {
    Known(usize),
    Chunked,
}

fn send(stream: &mut Stream, host: &str, message: &Message) -> Result<()> {
    let mut text = format!("{} {} HTTP/1.1\r\nHost: {host}\r\n", message.method, message.path);
    for (name, value) in &message.headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("Content-Length: {}\r\n\r\n", message.body.len());
    let stream = stream.get_mut();
    stream.write_all(text.as_bytes())?;
    stream.write_all(&message.body)?;
    stream.flush()?;
    Ok(())
}

fn head(stream: &mut Stream) -> Result<(Answer, Length)> {
    let first = line(stream)?;
    let code = first.split(' ').nth(1).and_then(|word| word.parse().ok()).context("no status line")?;
    let (mut answer, mut length) = (Answer { code, ..Answer::default() }, Length::Known(0));
    loop {
        let line = line(stream)?;
        let Some((name, value)) = line.split_once(':') else {
            ensure!(line.is_empty(), "no header: {line:?}");
            return Ok((answer, length));
        };
        let (name, value) = (name.to_ascii_lowercase(), value.trim().to_owned());
        match name.as_str() {
            "content-length" => length = Length::Known(value.parse()?),
            "transfer-encoding" if value == "chunked" => length = Length::Chunked,
            "transfer-encoding" => bail!("transfer encoding {value}"),
            _ => {}
        }
        answer.headers.push((name, value));
    }
}

fn line(stream: &mut Stream) -> Result<String> {
    let mut line = String::new();
    ensure!(stream.take(64 << 10).read_line(&mut line)? > 0, "the connection was closed");
    Ok(line.trim_end().to_owned())
}

/// Appends one chunk; false after the last.
fn chunk(stream: &mut Stream, to: &mut Vec<u8>) -> Result<bool> {
    let length = usize::from_str_radix(line(stream)?.split(';').next().unwrap_or_default(), 16)?;
    ensure!(length + to.len() <= LONGEST, "an answer without end");
    let from = to.len();
    to.resize(from + length, 0);
    stream.read_exact(&mut to[from..])?;
    line_end(stream)?;
    Ok(length > 0)
}

fn line_end(stream: &mut Stream) -> Result<()> {
    let mut end = String::new();
    stream.take(2).read_line(&mut end)?;
    Ok(())
}
