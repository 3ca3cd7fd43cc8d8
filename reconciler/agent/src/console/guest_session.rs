//! A client's session with the agent of a guest: one program that is run, or one file that is copied. Or with its machine: one button
//! that is pressed.
//!
//! Knows the messages of [`berth_api::guest_access`]. Each message of a client and of a guest is limited, and so is the time:
//! a client that sends nothing, and one that does not read, are disconnected after [`STALLED`].

mod files;

use std::time::Duration;

use berth_api::console::ConsoleUse;
use berth_api::guest_access::{ClientMessage, Content, Exec, Exit, HostMessage, MAX_CLIENT_LINE};
use berth_qemu::guest_agent::{GuestAgentError, GuestCommand, GuestExit};
use futures::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_util::codec::{Framed, LinesCodec};

use super::STALLED;
use super::places::Place;
use crate::error::Error;
use crate::machine::{GuestError, Machine, MachineError};

/// A session to run.
#[derive(Debug)]
pub(super) struct GuestSession {
    machine: Machine,
    used: ConsoleUse,
    _place: Place<String>,
}

/// Why a session ended early.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    /// Nobody reads an answer.
    #[error("the client has disconnected")]
    Disconnected,
    #[error("{0}")]
    Wrong(String),
    #[error(transparent)]
    Guest(#[from] GuestError),
}

impl SessionError {
    fn wrong(text: &str) -> Self {
        Self::Wrong(text.to_owned())
    }
}

/// The client's side.
struct Client(Framed<TokioIo<Upgraded>, LinesCodec>);

impl Client {
    async fn next(&mut self) -> Result<ClientMessage, SessionError> {
        let line = timeout(STALLED, self.0.next()).await;
        let line = line.map_err(|_| SessionError::wrong("the client sent nothing for 30 seconds"))?;
        let line = line.ok_or(SessionError::Disconnected)?;
        let line =
            line.map_err(|_| SessionError::wrong("a message of the client is too long, or no text"))?;
        serde_json::from_str(&line)
            .map_err(|_| SessionError::wrong("the client sent a message that this host does not know"))
    }

    async fn send(&mut self, message: &HostMessage) -> Result<(), SessionError> {
        let line = serde_json::to_string(message).map_err(|_| SessionError::Disconnected)?;
        let sent = timeout(STALLED, self.0.send(line)).await;
        sent.ok().and_then(Result::ok).ok_or(SessionError::Disconnected)
    }

    /// Waits until the client disconnects, or sends a message that nothing waits for.
    async fn gone(&mut self) {
        let _ = self.0.next().await;
    }
}

impl GuestSession {
    pub(super) fn new(machine: Machine, used: ConsoleUse, place: Place<String>) -> Self {
        Self { machine, used, _place: place }
    }

    /// Runs the session to its end.
    pub(super) async fn run(self, stream: TokioIo<Upgraded>) {
        let mut client = Client(Framed::new(stream, LinesCodec::new_with_max_length(MAX_CLIENT_LINE)));
        let done = match self.used {
            ConsoleUse::Reset => confirm(&mut client, self.machine.reset().await).await,
            ConsoleUse::Nmi => confirm(&mut client, self.machine.inject_nmi().await).await,
            _ => self.serve(&mut client).await,
        };
        if let Err(error) = done {
            tracing::debug!(%error, "a session with a guest ended early");
            let _ = client.send(&HostMessage::Error(error.to_string())).await;
        }
        let _ = timeout(STALLED, SinkExt::<String>::close(&mut client.0)).await;
    }

    async fn serve(&self, client: &mut Client) -> Result<(), SessionError> {
        match (client.next().await?, self.used) {
            (ClientMessage::Exec(exec), ConsoleUse::Exec) => execute(&self.machine, client, exec).await,
            (ClientMessage::Read(path), ConsoleUse::File) => files::read(&self.machine, client, path).await,
            (ClientMessage::Write(file), ConsoleUse::File) => files::write(&self.machine, client, file).await,
            _ => Err(SessionError::wrong("the ticket is for another use")),
        }
    }
}

/// Reports that a button was pressed.
async fn confirm(client: &mut Client, pressed: Result<(), MachineError>) -> Result<(), SessionError> {
    pressed.map_err(|error| SessionError::Wrong(Error::from(error).chain()))?;
    client.send(&HostMessage::End).await
}

async fn execute(machine: &Machine, client: &mut Client, exec: Exec) -> Result<(), SessionError> {
    exec.check().map_err(SessionError::Wrong)?;
    let mut words = exec.command.into_iter();
    let command = GuestCommand {
        program: words.next().unwrap_or_default(),
        args: words.collect(),
        env: Vec::new(),
        input: exec.input.0,
    };
    let limit = Duration::from_secs(exec.seconds);
    let exit = tokio::select! {
        exit = machine.run_in_guest(command, limit) => exit,
        // The program runs on: the agent cannot end it.
        () = client.gone() => return Err(SessionError::Disconnected),
    };
    let exit = exit.map_err(|error| match error {
        GuestError::Agent(GuestAgentError::Broken { detail }) => SessionError::Wrong(format!(
            "the program's output is lost: it is larger than 4 MiB, or the guest agent has ended ({detail}). Write the output \
             to a file in the guest, and copy it with berth cp"
        )),
        other => other.into(),
    })?;
    client.send(&HostMessage::Exit(message(exit))).await
}

fn message(exit: GuestExit) -> Exit {
    Exit {
        code: exit.code,
        signal: exit.signal,
        stdout: Content(exit.stdout),
        stderr: Content(exit.stderr),
        is_truncated: exit.is_truncated,
    }
}
