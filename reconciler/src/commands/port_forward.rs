//! `berth port-forward`: ports of a VM on this machine, and `berth ssh` by it.

mod ssh;

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use anyhow::{Context, bail};
use berth_api::console::{ADDRESS, ConsoleUse, PORT};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

pub(super) use ssh::run as ssh;

use crate::cli::{ConsoleTarget, PortForwardOptions, Ports};

use super::{
    console::{self, connection},
    vnc::local_user,
};

/// The number of connections at a time. The host has a limit of its own for each VM.
const CONNECTIONS: usize = 64;

/// A port of a VM.
#[derive(Clone, Debug)]
struct Remote {
    target: ConsoleTarget,
    port: u16,
    address: Option<IpAddr>,
}

impl Remote {
    async fn connect(&self) -> anyhow::Result<TokioIo<Upgraded>> {
        let mut query = format!("{PORT}={}", self.port);
        if let Some(address) = self.address {
            query.push_str(&format!("&{ADDRESS}={address}"));
        }
        connection::open(&self.target, ConsoleUse::PortForward, Some(&query)).await
    }
}

/// Serves ports of the VM on this machine, until it is interrupted. Each connection takes a ticket of its own.
///
/// *Errors:* the VM cannot be reached; a local port is in use.
pub(super) async fn run(options: PortForwardOptions) -> anyhow::Result<()> {
    let PortForwardOptions { vm, ports, address, stdio, site } = options;
    let target = site.target(&vm);
    let remote = |ports: &Ports| Remote { target: target.clone(), port: ports.remote, address };
    if stdio {
        let [port] = ports.as_slice() else { bail!("--stdio connects to one port") };
        return connect_stdio(&remote(port)).await;
    }
    let mut served = JoinSet::new();
    for each in &ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, each.local)).await;
        let listener = listener.with_context(|| format!("listening on port {} of 127.0.0.1", each.local))?;
        let local = listener.local_addr().context("asking for the port")?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{local} -> {vm}:{}", each.remote).and_then(|()| out.flush()).context("printing")?;
        served.spawn(serve(listener, remote(each)));
    }
    eprintln!("Ctrl-C ends");
    tokio::select! {
        _ = served.join_next() => bail!("a port is no longer served"),
        interrupted = tokio::signal::ctrl_c() => interrupted.context("waiting for Ctrl-C"),
    }
}

async fn serve(listener: TcpListener, remote: Remote) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) if connections.len() < CONNECTIONS => {
                    let remote = remote.clone();
                    connections.spawn(async move { forward(&remote, client).await });
                }
                Ok(_) => eprintln!("a connection was refused: {CONNECTIONS} are open"),
                Err(error) => {
                    eprintln!("a client could not connect: {error}");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            },
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                if let Ok(Err(error)) = ended {
                    eprintln!("a connection was closed: {error:#}");
                }
            }
        }
    }
}

async fn forward(remote: &Remote, mut client: TcpStream) -> anyhow::Result<()> {
    let is_ours = match client.peer_addr().context("its address")? {
        SocketAddr::V4(_) => local_user::may_connect(&client)?,
        SocketAddr::V6(_) => false,
    };
    if !is_ours {
        bail!("it belongs to another user of this machine");
    }
    client.set_nodelay(true).context("connecting")?;
    let mut guest = remote.connect().await?;
    // Either end may disconnect at any time.
    let _ = tokio::io::copy_bidirectional(&mut client, &mut guest).await;
    Ok(())
}

/// Connects the standard input and output.
async fn connect_stdio(remote: &Remote) -> anyhow::Result<()> {
    let guest = remote.connect().await?;
    let (mut from_guest, mut to_guest) = tokio::io::split(guest);
    let mut typed = console::typed();
    let sent = async {
        while let Some(bytes) = typed.recv().await {
            to_guest.write_all(&bytes).await?;
            to_guest.flush().await?;
        }
        to_guest.shutdown().await?;
        // The answer may come after the end of the input.
        std::future::pending::<std::io::Result<()>>().await
    };
    tokio::select! {
        shown = console::show(&mut from_guest) => shown,
        sent = sent => sent.context("the connection broke"),
    }
}
