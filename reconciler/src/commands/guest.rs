//! `berth exec` and `berth cp`: a program and files in a guest, by its agent; `berth reset` and `berth nmi`.

mod button;
mod copy;
mod session;

use std::{
    io::{Read, Write},
    process::ExitCode,
};

use anyhow::{Context, bail};
use berth_api::{
    console::ConsoleUse,
    guest_access::{ClientMessage, Content, Exec, Exit, HostMessage, MAX_INPUT},
};

pub(super) use button::press;
pub(super) use copy::run as copy;

use crate::{cli::ExecOptions, failure};

use session::Session;

/// The exit code for a failure of berth itself, as of ssh.
const FAILED: u8 = 255;
/// Added to the number of a signal that ended the program, as in a shell.
const BY_SIGNAL: i64 = 128;

/// Runs a program in the guest; returns its exit code.
pub(super) async fn exec(options: ExecOptions) -> ExitCode {
    run(options).await.unwrap_or_else(|error| failure::report(&error, FAILED))
}

async fn run(options: ExecOptions) -> anyhow::Result<ExitCode> {
    let ExecOptions { stdin, timeout, target, command } = options;
    let input = if stdin { input()? } else { Vec::new() };
    let exec = Exec { command, input: Content(input), seconds: timeout.0.as_secs() };
    if let Err(problem) = exec.check() {
        bail!("{problem}");
    }
    let mut session = Session::open(&target, ConsoleUse::Exec).await?;
    session.send(&ClientMessage::Exec(exec)).await?;
    // Ctrl-C ends this process, and with it the session.
    match session.next_within(timeout.0 + session::ANSWER).await? {
        HostMessage::Exit(exit) => print(&exit),
        HostMessage::Error(text) => bail!("{text}"),
        _ => bail!("the host sent an unexpected message: its version of berth may differ from this one"),
    }
}

fn input() -> anyhow::Result<Vec<u8>> {
    let mut input = Vec::new();
    let limit = u64::try_from(MAX_INPUT).unwrap_or(u64::MAX) + 1;
    std::io::stdin().take(limit).read_to_end(&mut input).context("reading the standard input")?;
    Ok(input)
}

fn print(exit: &Exit) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    unless_unread(out.write_all(&exit.stdout.0).and_then(|()| out.flush()))?;
    unless_unread(std::io::stderr().write_all(&exit.stderr.0))?;
    if exit.is_truncated {
        notice!("berth: the guest agent did not keep all of the output");
    }
    let code = exit.code.or(exit.signal.map(|signal| BY_SIGNAL.saturating_add(signal)));
    let code = code.context("the guest agent told neither an exit code nor a signal")?;
    // Windows has larger codes.
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(FAILED)))
}

/// The reader of a pipe has read enough, as `head` does: the exit code is still that of the program.
fn unless_unread(written: std::io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("printing"),
    }
}

#[test]
fn output_that_is_not_read_to_its_end_is_no_failure_and_a_full_disk_is_one() {
    let (reader, mut unread) = std::io::pipe().expect("a pipe");
    drop(reader);
    assert!(unless_unread(unread.write_all(b"text")).is_ok());
    assert!(unless_unread(Err(std::io::ErrorKind::StorageFull.into())).is_err());
}

#[test]
fn any_number_of_a_signal_that_a_guest_sends_is_a_failure() {
    let nothing = || Content(Vec::new());
    let exit = Exit {
        code: None,
        signal: Some(i64::MAX),
        stdout: nothing(),
        stderr: nothing(),
        is_truncated: false,
    };
    assert!(print(&exit).is_ok());
}
