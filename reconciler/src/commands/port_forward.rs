//! `berth port-forward`: ports of a VM on this machine, and `berth ssh` by it.

mod ssh;

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use anyhow::{Context, bail, ensure};
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

/// The kind of a port of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PortKind {
    /// Of an address of the VM; none: that of its first interface.
    Tcp(Option<IpAddr>),
    Vsock,
}

impl PortKind {
    /// Checks that there is a port of this kind with this number.
    fn checked(self, port: u32) -> anyhow::Result<()> {
        ensure!(
            self == Self::Vsock || port <= u32::from(u16::MAX),
            "port {port} is not a TCP port: use 1 to 65535. Only ports of --vsock can be greater"
        );
        Ok(())
    }

    /// The use that a ticket is for, and the query of the request.
    fn request(self, port: u32) -> (ConsoleUse, String) {
        let query = format!("{PORT}={port}");
        match self {
            Self::Tcp(None) => (ConsoleUse::PortForward, query),
            Self::Tcp(Some(address)) => (ConsoleUse::PortForward, format!("{query}&{ADDRESS}={address}")),
            Self::Vsock => (ConsoleUse::Vsock, query),
        }
    }
}

/// A port of a VM.
#[derive(Clone, Debug)]
struct Remote {
    target: ConsoleTarget,
    port: u32,
    kind: PortKind,
}

impl Remote {
    async fn connect(&self) -> anyhow::Result<TokioIo<Upgraded>> {
        let (wanted, query) = self.kind.request(self.port);
        connection::open(&self.target, wanted, Some(&query)).await
    }
}

/// Serves ports of the VM on this machine, until it is interrupted. Each connection takes a ticket of its own.
///
/// *Errors:* there is no such VM; a local port is in use.
pub(super) async fn run(options: PortForwardOptions) -> anyhow::Result<()> {
    let PortForwardOptions { vm, ports, address, vsock, stdio, site } = options;
    let target = site.target(&vm);
    let kind = if vsock { PortKind::Vsock } else { PortKind::Tcp(address) };
    ports.iter().try_for_each(|ports| kind.checked(ports.remote))?;
    let remote = |ports: &Ports| Remote { target: target.clone(), port: ports.remote, kind };
    if stdio {
        let [port] = ports.as_slice() else { bail!("--stdio connects to one port") };
        return connect_stdio(&remote(port)).await;
    }
    // A client would see no reason for a connection that is closed.
    connection::vm(&target).await?;
    let mut served = JoinSet::new();
    for each in &ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, each.local)).await;
        let listener = listener.with_context(|| format!("listening on port {} of 127.0.0.1", each.local))?;
        let local = listener.local_addr().context("asking for the port")?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{local} -> {vm}:{}", each.remote).and_then(|()| out.flush()).context("printing")?;
        served.spawn(serve(listener, remote(each)));
    }
    notice!("Ctrl-C ends");
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
                Ok(_) => notice!("a connection was refused: {CONNECTIONS} are open"),
                Err(error) => {
                    notice!("a client could not connect: {error}");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            },
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                if let Ok(Err(error)) = ended {
                    notice!("a connection was closed: {error:#}");
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
        bail!(
            "its client runs as another user of this machine, or has disconnected: use the user of this command, or root"
        );
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[tokio::test]
    async fn no_port_is_served_of_a_vm_that_cannot_be_found() {
        let site = ["--kubeconfig", "/nowhere/kubeconfig"];
        for vm in ["web", "WEB/../x"] {
            let words = ["berth", "port-forward", vm, ":80"].into_iter().chain(site);
            let Command::PortForward(options) = Cli::try_parse_from(words).expect("it parses").command else {
                panic!("it is port-forward")
            };
            let ended =
                tokio::time::timeout(std::time::Duration::from_secs(10), Box::pin(run(options))).await;
            assert!(ended.expect("it waits for no client").is_err(), "{vm}");
        }
    }

    #[test]
    fn each_kind_of_port_has_a_use_of_its_own_and_its_own_numbers() {
        let address = "10.0.0.2".parse().expect("an address");
        let requests =
            [PortKind::Tcp(None), PortKind::Tcp(Some(address)), PortKind::Vsock].map(|kind| kind.request(22));
        assert_eq!(
            requests,
            [
                (ConsoleUse::PortForward, "port=22".to_owned()),
                (ConsoleUse::PortForward, "port=22&address=10.0.0.2".to_owned()),
                (ConsoleUse::Vsock, "port=22".to_owned()),
            ]
        );
        assert!(PortKind::Tcp(None).checked(65_535).is_ok() && PortKind::Vsock.checked(70_000).is_ok());
        let error = PortKind::Tcp(None).checked(70_000).expect_err("no port of TCP").to_string();
        assert!(error.contains("--vsock"), "{error}");
    }
}
