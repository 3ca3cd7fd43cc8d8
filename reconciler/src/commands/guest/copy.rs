//! `berth cp`: one file, in one direction.

use std::{
    fs::OpenOptions,
    io::{Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use berth_api::{
    console::ConsoleUse,
    guest_access::{ClientMessage, Content, HostMessage, MAX_FILE, MAX_PIECE, WriteFile, check_path},
};
use nix::fcntl::OFlag;

use crate::{
    cli::{CpOptions, Place},
    commands::incoming::Incoming,
};

use super::session::Session;

/// Copies a file from or to a guest.
///
/// *Errors:* no file of this name, no right to read or write it; each step's of the connection.
pub(in crate::commands) async fn run(options: CpOptions) -> anyhow::Result<()> {
    let CpOptions { from, to, site } = options;
    match (from, to) {
        (Place::Here(from), Place::Guest { vm, path }) => {
            let path = within(&path, &from);
            let target = site.target(&vm);
            let session = || Session::open(&target, ConsoleUse::File);
            upload(Path::new(&from), path, session).await
        }
        (Place::Guest { vm, path }, Place::Here(to)) => {
            let to = if Path::new(&to).is_dir() { format!("{to}/") } else { to };
            let to = PathBuf::from(within(&to, &path));
            download(Session::open(&site.target(&vm), ConsoleUse::File).await?, path, &to).await
        }
        (Place::Here(_), Place::Here(_)) => bail!("one of the two files must be in a VM: VM:PATH"),
        (Place::Guest { .. }, Place::Guest { .. }) => {
            bail!("one of the two files must be on this machine: copy in two steps")
        }
    }
}

/// The path of a copy: with a slash at its end, a folder for a file of the same name.
fn within(to: &str, from: &str) -> String {
    let name = from.trim_end_matches(separators(from)).rsplit(separators(from)).next().unwrap_or(from);
    if to.ends_with(separators(to)) { format!("{to}{name}") } else { to.to_owned() }
}

/// The characters between the names of a path.
fn separators(path: &str) -> &'static [char] {
    const SLASH: &[char] = &['/'];
    const OF_WINDOWS: &[char] = &['/', '\\'];
    if is_of_windows(path) { OF_WINDOWS } else { SLASH }
}

/// Whether a path is one of a Windows guest, with a drive or a server.
fn is_of_windows(path: &str) -> bool {
    let has_drive = matches!(path.as_bytes(), [drive, b':', b'/' | b'\\', ..] if drive.is_ascii_alphabetic());
    has_drive || path.starts_with(r"\\")
}

async fn upload<F: Future<Output = anyhow::Result<Session>>>(
    from: &Path,
    path: String,
    session: impl FnOnce() -> F,
) -> anyhow::Result<()> {
    if let Err(problem) = check_path(&path) {
        bail!("{problem}");
    }
    let what = || format!("reading {}", from.display());
    // The opening of a pipe would wait for its writer.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(from);
    let mut file = file.with_context(what)?;
    let metadata = file.metadata().with_context(what)?;
    ensure!(metadata.is_file(), "{} is not a file: copy folders with tar or scp (berth ssh)", from.display());
    ensure!(
        metadata.len() <= MAX_FILE,
        "{} is larger than 4 GiB: copy it with scp (berth ssh)",
        from.display()
    );
    let mode = metadata.permissions().mode() & 0o777;
    let mut session = session().await?;
    session.send(&ClientMessage::Write(WriteFile { path, mode })).await?;
    expect(&mut session, &HostMessage::Ready).await?;
    let mut piece = vec![0; MAX_PIECE];
    loop {
        let count = file.read(&mut piece).with_context(what)?;
        if count == 0 {
            break;
        }
        if session.send(&ClientMessage::Piece(Content(piece[..count].to_vec()))).await.is_err() {
            // The host has closed the connection: its last message says why.
            break;
        }
    }
    // The same as above.
    let _ = session.send(&ClientMessage::End).await;
    expect(&mut session, &HostMessage::End).await
}

async fn expect(session: &mut Session, wanted: &HostMessage) -> anyhow::Result<()> {
    match session.next().await? {
        HostMessage::Error(text) => bail!("{text}"),
        message if message == *wanted => Ok(()),
        _ => bail!("the host sent an unexpected message: its version of berth may differ from this one"),
    }
}

async fn download(mut session: Session, path: String, to: &Path) -> anyhow::Result<()> {
    if let Err(problem) = check_path(&path) {
        bail!("{problem}");
    }
    session.send(&ClientMessage::Read(path)).await?;
    let what = || format!("writing {}", to.display());
    // Made with the first message: a copy that fails at once writes nothing.
    let mut incoming: Option<Incoming> = None;
    let mut total = 0;
    loop {
        let message = session.next().await?;
        if let HostMessage::Error(text) = message {
            bail!("{text}");
        }
        let mut copy = match incoming.take() {
            Some(copy) => copy,
            None => Incoming::begin(to).with_context(what)?,
        };
        match message {
            HostMessage::Piece(Content(piece)) => {
                total += piece.len() as u64;
                ensure!(total <= MAX_FILE, "the file is larger than 4 GiB: copy it with scp (berth ssh)");
                copy.file.write_all(&piece).with_context(what)?;
                incoming = Some(copy);
            }
            HostMessage::End => return copy.complete().with_context(what),
            _ => bail!("the host sent an unexpected message: its version of berth may differ from this one"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_at_the_end_means_a_folder() {
        assert_eq!(within("/tmp/", "/etc/motd"), "/tmp/motd");
        assert_eq!(within("/tmp/a", "/etc/motd"), "/tmp/a");
        assert_eq!(within("./", "motd"), "./motd");
        assert_eq!(within("./", r"C:\Users\a.txt"), "./a.txt");
        assert_eq!(within(r"C:\Temp\", "./a.txt"), r"C:\Temp\a.txt");
        assert_eq!(within("./", r"/srv/a\b"), r"./a\b", "a name in a Linux guest");
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let (sender, refused) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let copied = upload(&pipe, "/x".to_owned(), || async { bail!("it needs no session") });
            let _ = sender.send(runtime.block_on(copied).expect_err("a pipe").to_string());
        });
        let refused = refused.recv_timeout(std::time::Duration::from_secs(10)).expect("it ends");
        assert!(refused.contains("is not a file"), "{refused}");
    }
}
