//! The serial lines of running machines: QEMU serves one connection, which all viewers share.
//!
//! A line is connected while it has viewers. Its output is read at once, always: a guest would wait for a connection that
//! is not read. A viewer that is slower than the guest loses output.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use berth_api::console::FIRST_SERIAL_PORT;
use berth_host::System;
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{broadcast, mpsc};
use tokio::task::AbortHandle;

use super::refusal::ConsoleRefusal;
use crate::named_locks::NamedLocks;

/// The bytes of earlier output that a new viewer receives.
const SCROLL_BACK: usize = 64 << 10;
/// The maximum size of a log: the part that is being written, and the part that was cut off before.
const LOG: u64 = 8 << 20;
/// The bytes read at a time.
const CHUNK: usize = 4 << 10;
/// The number of pieces that a slow viewer may lag behind: at most 1 MiB for a line.
const LAG: usize = 256;
/// The number of typed pieces that wait for the guest; then typing waits.
const TYPED: usize = 16;
/// The number of viewers of a machine.
const VIEWERS: usize = 16;

/// The lines of this host.
#[derive(Debug)]
pub(super) struct SerialLines {
    system: Arc<dyn System>,
    /// By instance and port.
    lines: Mutex<HashMap<(String, u8), Weak<SerialLine>>>,
    /// That of a machine is held while one of its lines is connected.
    connecting: NamedLocks,
}

/// A connected line.
#[derive(Debug)]
struct SerialLine {
    recent: Arc<Mutex<Recent>>,
    typed: mpsc::Sender<Bytes>,
    task: AbortHandle,
}

/// The end of the output, and its receivers.
#[derive(Debug)]
struct Recent {
    bytes: VecDeque<u8>,
    /// None once the machine has closed the line.
    viewers: Option<broadcast::Sender<Bytes>>,
}

/// A viewer of a line.
#[derive(Debug)]
pub(super) struct Viewer {
    /// The output before that of `output`.
    pub(super) scroll_back: Vec<u8>,
    pub(super) output: broadcast::Receiver<Bytes>,
    pub(super) typed: mpsc::Sender<Bytes>,
    /// Keeps the line connected.
    _line: Arc<SerialLine>,
}

impl Drop for SerialLine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SerialLines {
    pub(super) fn new(system: Arc<dyn System>) -> Self {
        Self { system, lines: Mutex::default(), connecting: NamedLocks::default() }
    }

    /// Returns the lines that are connected.
    fn lines(&self) -> MutexGuard<'_, HashMap<(String, u8), Weak<SerialLine>>> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|_, line| line.strong_count() > 0);
        lines
    }

    /// Returns the log of a serial port of an instance.
    pub(super) async fn log(&self, instance: &str, port: u8) -> Result<Vec<u8>, ConsoleRefusal> {
        Ok(self.system.serial_log(instance, port, LOG).await?)
    }

    /// Adds a viewer to the line of a serial port of a running instance.
    pub(super) async fn view(&self, instance: &str, port: u8) -> Result<Viewer, ConsoleRefusal> {
        let key = (instance.to_owned(), port);
        let _alone = self.connecting.lock(instance).await;
        let connected = self.lines().get(&key).and_then(Weak::upgrade);
        if let Some(line) = connected
            && let Some(viewer) = viewer(&line)?
        {
            return Ok(viewer);
        }
        let line = self.connect(instance, port).await?;
        self.lines().insert(key, Arc::downgrade(&line));
        viewer(&line)?.ok_or(ConsoleRefusal::NotRunning)
    }

    async fn connect(&self, instance: &str, port: u8) -> Result<Arc<SerialLine>, ConsoleRefusal> {
        let stream = self.system.serial(instance, port).await?;
        let (mut output, mut input) = stream.ok_or_else(|| no_line(port))?.into_parts();
        let recent = Recent { bytes: VecDeque::new(), viewers: Some(broadcast::channel(LAG).0) };
        let recent = Arc::new(Mutex::new(recent));
        let (typed, mut to_type) = mpsc::channel::<Bytes>(TYPED);
        let shown = recent.clone();
        let task = tokio::spawn(async move {
            let show = async {
                let mut chunk = vec![0; CHUNK];
                while let Ok(count @ 1..) = output.read(&mut chunk).await {
                    shown.lock().unwrap_or_else(PoisonError::into_inner).add(&chunk[..count]);
                }
            };
            let enter = async {
                while let Some(bytes) = to_type.recv().await {
                    if input.write_all(&bytes).await.is_err() {
                        break;
                    }
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = show => {}
                () = enter => {}
            }
            // Ends the viewers.
            shown.lock().unwrap_or_else(PoisonError::into_inner).viewers = None;
        });
        let line = SerialLine { recent: recent.clone(), typed, task: task.abort_handle() };
        let log = self.system.serial_log(instance, port, SCROLL_BACK as u64).await?;
        recent.lock().unwrap_or_else(PoisonError::into_inner).put_before(&log);
        Ok(Arc::new(line))
    }
}

/// Every machine has the first port.
fn no_line(port: u8) -> ConsoleRefusal {
    if port == FIRST_SERIAL_PORT { ConsoleRefusal::NotRunning } else { ConsoleRefusal::NoSerialPort { port } }
}

/// Returns a viewer of the line; `None` if the machine has closed it.
fn viewer(line: &Arc<SerialLine>) -> Result<Option<Viewer>, ConsoleRefusal> {
    let recent = line.recent.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(viewers) = &recent.viewers else { return Ok(None) };
    if viewers.receiver_count() >= VIEWERS {
        return Err(ConsoleRefusal::TooManyViewers { most: VIEWERS });
    }
    Ok(Some(Viewer {
        scroll_back: recent.bytes.iter().copied().collect(),
        output: viewers.subscribe(),
        typed: line.typed.clone(),
        _line: line.clone(),
    }))
}

impl Recent {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.limit();
        if let Some(viewers) = &self.viewers {
            // Without a receiver there is none to inform.
            let _ = viewers.send(Bytes::copy_from_slice(bytes));
        }
    }

    /// Puts the log before the output that was read so far, which the log may contain already.
    fn put_before(&mut self, log: &[u8]) {
        let read = self.bytes.make_contiguous();
        let in_both = (0..=read.len()).rev().find(|count| log.ends_with(&read[..*count])).unwrap_or_default();
        let rest = read[in_both..].to_vec();
        self.bytes = log.iter().chain(&rest).copied().collect();
        self.limit();
    }

    fn limit(&mut self) {
        let surplus = self.bytes.len().saturating_sub(SCROLL_BACK);
        self.bytes.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(log: &str, read: &str) -> String {
        let mut recent = Recent { bytes: read.bytes().collect(), viewers: None };
        recent.put_before(log.as_bytes());
        String::from_utf8(recent.bytes.into()).expect("text")
    }

    #[test]
    fn the_log_and_the_output_are_joined_without_a_gap_and_without_repetition() {
        assert_eq!(after("boot\nlogin: ", ""), "boot\nlogin: ");
        assert_eq!(after("boot\nlogin: ", "login: ro"), "boot\nlogin: ro");
        assert_eq!(after("boot\n", "login: "), "boot\nlogin: ");
        assert_eq!(after("", "x"), "x");
    }

    #[test]
    fn the_scroll_back_is_bounded() {
        let mut recent = Recent { bytes: VecDeque::new(), viewers: None };
        (0..40).for_each(|_| recent.add(&[7; CHUNK]));
        assert_eq!(recent.bytes.len(), SCROLL_BACK);
    }
}
