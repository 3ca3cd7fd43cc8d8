//! `berth top`: reads the use of hosts twice and prints the rates in between, or that of the last hour.

mod screen;

use std::{
    io::Write as _,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use anyhow::Context;
use berth_agent::{History, Usage};
use http::Method;
use serde::de::DeserializeOwned;
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
    printable::printable,
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
    if options.history {
        return show_history(&sources, &options).await;
    }
    let mut before: Vec<Usage> = read_all(&sources, "/usage").await?;
    loop {
        sleep(options.interval.0).await;
        let after: Vec<Usage> = match read_all(&sources, "/usage").await {
            Ok(after) => after,
            // An agent that is restarted answers again soon; the rates are then those of a longer time.
            Err(error) if options.watch => {
                notice!("berth: {error:#}");
                continue;
            }
            Err(error) => return Err(error),
        };
        let hosts: Vec<(&Usage, &Usage)> = before.iter().zip(&after).collect();
        let text = match options.output {
            OutputForm::Text => printable(&top::table(&hosts, options.namespace.as_deref())),
            OutputForm::Json => top::json(&after, options.namespace.as_deref())?,
        };
        let mut out = std::io::stdout().lock();
        let is_repeated = options.watch && options.output == OutputForm::Text;
        let text = if is_repeated { screen::frame(&text, out.as_fd()) } else { text };
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("printing")?;
        drop(out);
        if !options.watch {
            return Ok(());
        }
        before = after;
    }
}

async fn show_history(sources: &[Source], options: &TopOptions) -> anyhow::Result<()> {
    let hosts: Vec<History> = read_all(sources, "/history").await?;
    let namespace = options.namespace.as_deref();
    let text = match options.output {
        OutputForm::Text => printable(&top::history::table(&hosts, namespace)),
        OutputForm::Json => top::history::json(&hosts, namespace)?,
    };
    std::io::stdout().lock().write_all(text.as_bytes()).context("printing")
}

async fn read_all<T: DeserializeOwned>(sources: &[Source], path: &str) -> anyhow::Result<Vec<T>> {
    let read = sources.iter().map(|source| async move {
        let answer = match source {
            Source::Socket(socket) => local(socket, path).await,
            Source::Address(address) => {
                let stream = timeout(ANSWER, TcpStream::connect(address)).await.context("no answer")?;
                read(stream.with_context(|| format!("connecting to {address}"))?, path).await
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

async fn local<T: DeserializeOwned>(socket: &Path, path: &str) -> anyhow::Result<T> {
    let stream = UnixStream::connect(socket).await;
    let remedy = "is the agent running here, and are you root? Of other hosts: --from ADDRESS:PORT";
    read(stream.context(remedy)?, path).await
}

async fn read<T: DeserializeOwned>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    path: &str,
) -> anyhow::Result<T> {
    local_agent::request(stream, Method::GET, path).await
}
