//! Requests to an agent over HTTP: to this machine's by its socket, to another one by the address of its metrics.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

/// The time for an agent to answer.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// The maximum size of an answer in bytes: several thousand VMs.
const MAX_ANSWER: usize = 32 << 20;

/// Sends a request and reads the answer.
///
/// *Errors:* there is no answer in time, or another one than of an agent.
pub(super) async fn request<T: DeserializeOwned>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    method: Method,
    path: &str,
) -> anyhow::Result<T> {
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.context("sending the request")?;
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header(header::HOST, "berth");
    let request = request.body(Empty::<Bytes>::new())?;
    let answer =
        timeout(ANSWER, sender.send_request(request)).await.context("no answer within 10 seconds")?;
    let answer = answer.context("the connection was closed")?;
    if answer.status() != StatusCode::OK {
        bail!("it answered with code {}: is this the agent of a host?", answer.status().as_u16());
    }
    let body = timeout(ANSWER, Limited::new(answer.into_body(), MAX_ANSWER).collect()).await;
    let body = body.context("no answer within 10 seconds")?.map_err(|error| anyhow::anyhow!("{error}"))?;
    serde_json::from_slice(&body.to_bytes()).context("reading the answer: its version of berth may differ")
}
