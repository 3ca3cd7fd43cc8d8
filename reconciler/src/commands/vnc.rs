//! `berth vnc` and `berth screenshot`: the screen of a VM.

pub(super) mod local_user;
mod picture;

use std::{io::Write, net::Ipv4Addr, path::Path, time::Duration};

use anyhow::{Context, bail};
use berth_api::console::ConsoleUse;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

use crate::cli::{ConsoleTarget, ScreenshotOptions, VncOptions};

use super::{console::connection, incoming};
use picture::Picture;

/// The number of viewers at a time. The host has a limit of its own for each VM.
const VIEWERS: usize = 8;
/// The time for the whole screen to arrive.
const SCREEN: Duration = Duration::from_secs(30);

/// Serves the screen on a port of this machine, until it is interrupted. Each viewer's connection takes a ticket of its own.
///
/// *Errors:* no screen, for a reason that the message has; the port is in use.
pub(super) async fn vnc(options: VncOptions) -> anyhow::Result<()> {
    let VncOptions { port, target } = options;
    // A viewer would show the reason badly, or not at all.
    drop(connection::open(&target, ConsoleUse::Vnc, None).await?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let listener = listener.with_context(|| format!("listening on port {port} of 127.0.0.1 (--port)"))?;
    let address = listener.local_addr().context("asking for the port")?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "vnc://{address}").and_then(|()| out.flush()).context("printing")?;
    drop(out);
    notice!("connect a VNC viewer to {address}; Ctrl-C ends");
    let mut viewers = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((viewer, _)) if viewers.len() < VIEWERS => {
                    let target = target.clone();
                    viewers.spawn(async move { serve(&target, viewer).await });
                }
                Ok(_) => notice!("a viewer was refused: {VIEWERS} are connected"),
                Err(error) => {
                    notice!("a viewer could not connect: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(served) = viewers.join_next(), if !viewers.is_empty() => {
                if let Ok(Err(error)) = served {
                    notice!("a viewer was disconnected: {error:#}");
                }
            }
            interrupted = tokio::signal::ctrl_c() => return interrupted.context("waiting for Ctrl-C"),
        }
    }
}

/// Connects a viewer to the VM.
async fn serve(target: &ConsoleTarget, mut viewer: TcpStream) -> anyhow::Result<()> {
    if !local_user::may_connect(&viewer)? {
        bail!("it belongs to another user of this machine, or has disconnected");
    }
    viewer.set_nodelay(true).context("connecting")?;
    let mut screen = connection::open(target, ConsoleUse::Vnc, None).await?;
    // Either end may disconnect at any time.
    let _ = tokio::io::copy_bidirectional(&mut viewer, &mut screen).await;
    Ok(())
}

/// Saves what the screen shows.
///
/// *Errors:* no screen, for a reason that the message has; the file cannot be written.
pub(super) async fn screenshot(options: ScreenshotOptions) -> anyhow::Result<()> {
    let ScreenshotOptions { output, target } = options;
    let screen = connection::open(&target, ConsoleUse::Vnc, None).await?;
    let picture = timeout(SCREEN, Picture::take(screen)).await;
    let picture = picture.context("the VM's VNC server did not send its screen within 30 seconds")?;
    let picture = picture.context("reading the screen")?;
    let png = picture.to_png().context("encoding the picture")?;
    if output.as_deref() == Some(Path::new("-")) {
        let mut out = std::io::stdout().lock();
        return out.write_all(&png).and_then(|()| out.flush()).context("printing");
    }
    let file = output.unwrap_or_else(|| format!("{}.png", target.vm).into());
    incoming::write(&file, &png)?;
    notice!("{}: {} × {} pixels", file.display(), picture.width, picture.height);
    Ok(())
}
