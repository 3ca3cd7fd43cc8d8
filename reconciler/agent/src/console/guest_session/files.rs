//! Copies of files from and to a guest.
//!
//! The agent makes a file that every user of the guest can read and write. So a shell makes it before, for its owner only, and
//! gives it its permissions once it is complete. Guests without that shell, such as Windows, have no such permissions.

use std::time::Duration;

use berth_api::guest_access::{ClientMessage, Content, HostMessage, MAX_FILE, WriteFile, check_path};
use berth_qemu::guest_agent::{FileAccess, FileHandle, GuestAgentError, GuestCommand, MAX_PIECE};

use super::{Client, SessionError};
use crate::machine::Machine;

/// Makes a file that does not exist, and says so.
const MAKE: &str = r#"if [ ! -e "$1" ]; then umask 077 && : >"$1" && echo made; fi"#;
const SHELL: &str = "/bin/sh";
/// The time for such a program.
const SOON: Duration = Duration::from_secs(30);

/// Sends a file to the client.
pub(super) async fn read(machine: &Machine, client: &mut Client, path: String) -> Result<(), SessionError> {
    check_path(&path).map_err(SessionError::Wrong)?;
    let file = open(machine, path, FileAccess::Read).await?;
    let sent = send(machine, client, file).await;
    close(machine, file).await.and(sent)?;
    client.send(&HostMessage::End).await
}

async fn send(machine: &Machine, client: &mut Client, file: FileHandle) -> Result<(), SessionError> {
    let mut total = 0;
    loop {
        let (piece, is_end) = machine.exchange(move |agent| Box::pin(agent.read_file(file))).await?;
        total += piece.len() as u64;
        if total > MAX_FILE {
            return Err(SessionError::wrong("the file is larger than 4 GiB: copy it with scp (berth ssh)"));
        }
        if !piece.is_empty() {
            client.send(&HostMessage::Piece(Content(piece))).await?;
        }
        if is_end {
            return Ok(());
        }
    }
}

/// Receives a file from the client.
pub(super) async fn write(
    machine: &Machine,
    client: &mut Client,
    file: WriteFile,
) -> Result<(), SessionError> {
    let WriteFile { path, mode } = file;
    check_path(&path).map_err(SessionError::Wrong)?;
    let has_modes = !is_windows(machine).await?;
    let is_made = has_modes && shell(machine, MAKE, &path).await?.trim() == "made";
    let file = open(machine, path.clone(), FileAccess::Write).await?;
    let received = receive(machine, client, file).await;
    close(machine, file).await.and(received)?;
    if is_made {
        let script = format!(r#"chmod {:o} -- "$1""#, mode & 0o777);
        shell(machine, &script, &path).await?;
    }
    client.send(&HostMessage::End).await
}

async fn receive(machine: &Machine, client: &mut Client, file: FileHandle) -> Result<(), SessionError> {
    client.send(&HostMessage::Ready).await?;
    let mut total = 0;
    loop {
        let piece = match client.next().await? {
            ClientMessage::Piece(Content(piece)) if piece.len() <= MAX_PIECE => piece,
            ClientMessage::End => return Ok(()),
            _ => return Err(SessionError::wrong("the client sent something else than a piece of the file")),
        };
        total += piece.len() as u64;
        if total > MAX_FILE {
            return Err(SessionError::wrong("the file is larger than 4 GiB: copy it with scp (berth ssh)"));
        }
        machine.exchange(move |agent| Box::pin(async move { agent.write_file(file, &piece).await })).await?;
    }
}

async fn open(machine: &Machine, path: String, access: FileAccess) -> Result<FileHandle, SessionError> {
    let opened =
        machine.exchange(move |agent| Box::pin(async move { agent.open_file(&path, access).await })).await?;
    Ok(opened)
}

async fn close(machine: &Machine, file: FileHandle) -> Result<(), SessionError> {
    Ok(machine.exchange(move |agent| Box::pin(agent.close_file(file))).await?)
}

/// Whether the guest says that it is Windows. One that does not tell has a shell, or the first program fails.
async fn is_windows(machine: &Machine) -> Result<bool, SessionError> {
    let system = machine
        .exchange(|agent| {
            Box::pin(async move {
                match agent.os_info().await {
                    Err(GuestAgentError::Refused { .. } | GuestAgentError::Unexpected { .. }) => Ok(None),
                    system => system.map(Some),
                }
            })
        })
        .await?;
    Ok(system.is_some_and(|system| system.id == "mswindows"))
}

/// Runs a script with the path as its argument, and returns its output.
async fn shell(machine: &Machine, script: &str, path: &str) -> Result<String, SessionError> {
    let args = ["-c", script, "sh", path].map(str::to_owned).to_vec();
    let command = GuestCommand { program: SHELL.to_owned(), args, ..GuestCommand::default() };
    let exit = machine.run_in_guest(command, SOON).await?;
    if exit.code == Some(0) {
        return Ok(String::from_utf8_lossy(&exit.stdout).into_owned());
    }
    // The guest's words, without control characters.
    let words: String =
        String::from_utf8_lossy(&exit.stderr).chars().filter(|c| !c.is_control()).take(300).collect();
    Err(SessionError::Wrong(format!("the guest cannot write the file: {words}")))
}
