//! `berth top`: reads the use of hosts twice and prints the rates in between.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context;
use berth_agent::Usage;
use http::Method;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::{sleep, timeout},
};

use super::{
    local_agent::{self, ANSWER},
    usage_server::SOCKET,
};
use crate::{
    cli::{OutputForm, TopOptions},
    top,
};

/// Where the use of a host is read.
#[derive(Debug)]
enum Source {
    Socket(PathBuf),
    Address(String),
}

/// Prints hosts and VMs with their rates.
///
/// *Errors:* a host does not answer.
pub(super) async fn run(options: TopOptions) -> anyhow::Result<()> {
    let sources: Vec<Source> = match options.from.is_empty() {
        true => vec![Source::Socket(options.state.state_dir.join(SOCKET))],
        false => options.from.iter().cloned().map(Source::Address).collect(),
    };
    let mut before = read_all(&sources).await?;
    loop {
        sleep(options.interval.0).await;
        let after = read_all(&sources).await?;
        let hosts: Vec<(&Usage, &Usage)> = before.iter().zip(&after).collect();
        let text = match options.output {
            OutputForm::Text => top::table(&hosts, options.namespace.as_deref()),
            OutputForm::Json => top::json(&after, options.namespace.as_deref())?,
        };
        let mut out = std::io::stdout().lock();
        if options.watch && options.output == OutputForm::Text {
            // Clears a terminal.
            out.write_all(b"\x1b[H\x1b[2J").context("printing")?;
        }
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("printing")?;
        drop(out);
        if !options.watch {
            return Ok(());
        }
        before = after;
    }
}

async fn read_all(sources: &[Source]) -> anyhow::Result<Vec<Usage>> {
    let read = sources.iter().map(|source| async move {
        let answer = match source {
            Source::Socket(path) => local(path).await,
            Source::Address(address) => {
                let stream = timeout(ANSWER, TcpStream::connect(address)).await.context("no answer")?;
                usage(stream.with_context(|| format!("connecting to {address}"))?).await
            }
        };
        answer.with_context(|| match source {
            Source::Socket(path) => format!("reading the use of this machine from {}", path.display()),
            Source::Address(address) => {
                format!("reading the use of the host at {address} (its option --metrics)")
            }
        })
    });
    futures::future::try_join_all(read).await
}

async fn local(path: &Path) -> anyhow::Result<Usage> {
    let stream = UnixStream::connect(path).await;
    let remedy = "is the agent running here, and are you root? Of other hosts: --from ADDRESS:PORT";
    usage(stream.context(remedy)?).await
}

async fn usage(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> anyhow::Result<Usage> {
    local_agent::request(stream, Method::GET, "/usage").await
}
