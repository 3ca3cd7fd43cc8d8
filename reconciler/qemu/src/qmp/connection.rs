//! The task that owns a monitor's stream.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::event::Event;
use super::frame::{FrameError, Frames};
use super::request_line;

/// A command on its way to QEMU.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) command: String,
    pub(super) args: Value,
    /// A file that QEMU is given with the command.
    pub(super) file: Option<OwnedFd>,
    pub(super) reply: oneshot::Sender<Result<Value, Refusal>>,
}

#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) class: String,
    pub(super) desc: String,
}

/// Why the connection ended, for error messages.
#[derive(Clone, Debug)]
pub(super) struct Ended(pub(super) String);

/// The longest event that is kept, in bytes: QEMU's have some hundred.
const MAX_EVENT: usize = 8 << 10;
/// The most messages in a second that answer nothing. A QEMU that a guest has taken over may send them without end: those beyond are not
/// read for the rest of the second.
pub(super) const MOST_UNASKED: u32 = 1000;
/// The longest cause of a refusal that is kept: it is shown in the status of the VM.
const MAX_WORDS: usize = 1000;
const SECOND: Duration = Duration::from_secs(1);

type Waiting = HashMap<u64, oneshot::Sender<Result<Value, Refusal>>>;

/// Runs until either side disconnects. Waiting callers are notified by their dropped reply channels, after the reason
/// has been published.
pub(super) async fn run<R, W>(
    (mut frames, mut writer, socket): (Frames<R>, W, Option<OwnedFd>),
    mut requests: mpsc::Receiver<Request>,
    events: broadcast::Sender<Event>,
    ended: watch::Sender<Option<Ended>>,
) where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut waiting = Waiting::new();
    let mut next_id = 0_u64;
    // The line being written: kept outside the select, so that a partial write is never lost or repeated.
    let mut line: Vec<u8> = Vec::new();
    let mut written = 0;
    let (mut second, mut unasked) = (Instant::now(), 0_u32);
    let why = loop {
        tokio::select! {
            () = sleep_until(second + SECOND), if unasked >= MOST_UNASKED => unasked = 0,
            message = frames.next(), if unasked < MOST_UNASKED => match message {
                Ok(message) => {
                    if !dispatch(message, frames.length(), &mut waiting, &events) {
                        if second.elapsed() >= SECOND {
                            (second, unasked) = (Instant::now(), 0);
                        }
                        unasked += 1;
                    }
                }
                Err(FrameError::Closed) => break "closed by QEMU".to_owned(),
                Err(error) => break error.to_string(),
            },
            count = writer.write(&line[written..]), if written < line.len() => match count {
                Ok(0) => break "closed by QEMU".to_owned(),
                Ok(count) => written += count,
                Err(error) => break error.to_string(),
            },
            request = requests.recv(), if written == line.len() => match request {
                None => break "no user left".to_owned(),
                Some(request) => {
                    // The caller gave up while the request was queued, so it must not run now.
                    if request.reply.is_closed() {
                        continue;
                    }
                    if let Some(file) = &request.file && let Err(error) = send(file, socket.as_ref()) {
                        let desc = format!("cannot pass a file: {error}");
                        let _ = request.reply.send(Err(Refusal { class: "GenericError".to_owned(), desc }));
                        continue;
                    }
                    waiting.retain(|_, reply| !reply.is_closed());
                    next_id += 1;
                    line = request_line(next_id, &request.command, &request.args);
                    written = 0;
                    waiting.insert(next_id, request.reply);
                }
            },
        }
    };
    ended.send_replace(Some(Ended(why)));
}

/// Passes a file ahead of the command that names it. QEMU keeps the last file that came with a byte; this byte is white space
/// between two messages.
fn send(file: &OwnedFd, socket: Option<&OwnedFd>) -> io::Result<()> {
    let socket = socket.ok_or(io::ErrorKind::Unsupported)?;
    let files = [file.as_raw_fd()];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let message = [ControlMessage::ScmRights(&files)];
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(b"\n")], &message, flags, None)?;
    Ok(())
}

/// Returns whether the message is an answer.
fn dispatch(
    mut message: Value,
    length: usize,
    waiting: &mut Waiting,
    events: &broadcast::Sender<Event>,
) -> bool {
    if message.get("event").is_some() && length > MAX_EVENT {
        tracing::debug!(length, "a QMP event is longer than any of QEMU's: it is dropped");
        return false;
    }
    if let Some(event) = Event::from_message(&message) {
        // An event without readers is not an error.
        let _ = events.send(event);
        return false;
    }
    let reply = message.get("id").and_then(Value::as_u64).and_then(|id| waiting.remove(&id));
    let Some(reply) = reply else {
        // The reply to a request that timed out, or a message type of a later QEMU.
        tracing::debug!(length, "unasked QMP message");
        return false;
    };
    let text = |error: &Value, name: &str| words(error.get(name).and_then(Value::as_str).unwrap_or("?"));
    let outcome = match message.get("error") {
        Some(error) => Err(Refusal { class: text(error, "class"), desc: text(error, "desc") }),
        None => Ok(message.get_mut("return").map_or(Value::Null, Value::take)),
    };
    let _ = reply.send(outcome);
    true
}

/// Makes QEMU's words safe for a terminal and for a status.
fn words(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || *c == '\n').take(MAX_WORDS).collect()
}
