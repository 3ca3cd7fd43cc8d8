//! `berth console` and `berth logs`: the serial console of a VM, and its log.

pub(super) mod connection;
mod log_text;
mod terminal;

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use anyhow::{Context, anyhow, bail};
use berth_api::console::{ConsoleUse, FIRST_SERIAL_PORT, PORT};
use berth_console_client::Connection;
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::cli::{ConsoleOptions, ConsoleTarget, LogsOptions};

use log_text::LogText;
use terminal::RawTerminal;

/// Ctrl-]: detaches.
const DETACH: u8 = 0x1d;
const CHUNK: usize = 16 << 10;
/// Ends the colours of a log.
const PLAIN: &[u8] = b"\x1b[0m";

/// Attaches to the serial console.
///
/// *Errors:* no console, for a reason that the message has.
pub(super) async fn console(options: ConsoleOptions) -> anyhow::Result<()> {
    let stream = open(&options.target, ConsoleUse::Console, options.port).await?;
    let is_terminal = std::io::stdin().is_terminal();
    let mut raw = if is_terminal { Some(RawTerminal::enter()?) } else { None };
    if raw.is_some() {
        // It may be gone: a panic would leave the terminal as it is.
        let _ = write!(std::io::stderr(), "attached to {}; Ctrl-] detaches\r\n", options.target.vm);
    }
    let (mut output, mut input) = tokio::io::split(stream);
    let mut typed = typed();
    let enter = async {
        while let Some(bytes) = typed.recv().await {
            let end = if is_terminal { bytes.iter().position(|byte| *byte == DETACH) } else { None };
            input.write_all(&bytes[..end.unwrap_or(bytes.len())]).await.context("sending to the console")?;
            input.flush().await.context("sending to the console")?;
            if end.is_some() {
                break;
            }
        }
        anyhow::Ok(())
    };
    let ended = tokio::select! {
        entered = enter => entered,
        shown = show(&mut output) => shown,
        signal = ended(&mut raw) => Err(anyhow!("ended by {signal}")),
    };
    drop(raw);
    if is_terminal {
        // It may be gone, as after SIGHUP: a panic would make this an abort.
        let _ = writeln!(std::io::stderr());
    }
    ended
}

/// Returns the signal that ends this process while it has a terminal in raw mode.
async fn ended(raw: &mut Option<RawTerminal>) -> &'static str {
    match raw {
        Some(raw) => raw.signal().await,
        None => std::future::pending().await,
    }
}

/// Prints the log of the serial console: its bytes, or on a terminal its text with colours.
///
/// *Errors:* no log, for a reason that the message has.
pub(super) async fn logs(options: LogsOptions) -> anyhow::Result<()> {
    let wanted = if options.follow { ConsoleUse::Follow } else { ConsoleUse::Log };
    let mut log = open(&options.target, wanted, options.port).await?;
    if !std::io::stdout().is_terminal() {
        return show(&mut log).await;
    }
    let shown = copy(&mut log, Some(LogText::default())).await;
    // The terminal may be gone.
    let _ = std::io::stdout().write_all(PLAIN);
    shown
}

/// Returns the number of serial ports that the VM has.
async fn serial_ports(target: &ConsoleTarget) -> anyhow::Result<i64> {
    let (_, vm) = connection::vm(target).await?;
    let hardware = vm.status.as_ref().and_then(|status| status.hardware.as_ref());
    Ok(hardware.and_then(|hardware| hardware.serial_ports).unwrap_or(1))
}

/// Opens a connection to a serial port of the VM.
async fn open(target: &ConsoleTarget, wanted: ConsoleUse, port: u8) -> anyhow::Result<Connection> {
    if port == FIRST_SERIAL_PORT {
        return connection::open(target, wanted, None).await;
    }
    // A host with an older agent would open the first one.
    if i64::from(port) > serial_ports(target).await? {
        let name = &target.vm;
        bail!(
            "VM {name} has no serial port {port}: set serialPorts to {port} or more, which takes effect at its next power cycle"
        );
    }
    connection::open(target, wanted, Some(&format!("{PORT}={port}"))).await
}

/// Copies the output of the guest to the standard output, to its end.
pub(super) async fn show(output: &mut (impl tokio::io::AsyncRead + Unpin)) -> anyhow::Result<()> {
    copy(output, None).await
}

/// Copies the bytes, or their text.
async fn copy(
    output: &mut (impl tokio::io::AsyncRead + Unpin),
    mut text: Option<LogText>,
) -> anyhow::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = output.read(&mut chunk).await.context("the connection to the host broke")?;
        if count == 0 {
            return Ok(());
        }
        let part: Cow<'_, [u8]> = match &mut text {
            Some(text) => Cow::Owned(text.shown(&chunk[..count]).into_bytes()),
            None => Cow::Borrowed(&chunk[..count]),
        };
        let mut out = std::io::stdout().lock();
        match out.write_all(&part).and_then(|()| out.flush()) {
            // The reader of a pipe has read enough, as `head` does.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("printing")?,
        }
    }
}

/// Returns what is typed. A thread of its own reads: a read of the standard input cannot be cancelled.
pub(super) fn typed() -> mpsc::Receiver<Bytes> {
    let (sender, typed) = mpsc::channel(1);
    std::thread::spawn(move || {
        use std::io::Read as _;
        let mut chunk = [0; CHUNK];
        while let Ok(count @ 1..) = std::io::stdin().read(&mut chunk) {
            if sender.blocking_send(Bytes::copy_from_slice(&chunk[..count])).is_err() {
                return;
            }
        }
    });
    typed
}
