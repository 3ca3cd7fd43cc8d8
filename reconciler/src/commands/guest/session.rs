//! A session with the agent of a guest, at the VM's host.

use std::time::Duration;

use anyhow::Context;
use berth_api::{
    console::ConsoleUse,
    guest_access::{ClientMessage, HostMessage, MAX_HOST_LINE},
};
use futures::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_util::codec::{Framed, LinesCodec};

use crate::{cli::ConsoleTarget, commands::console::connection};

/// The time for an answer of the host: it waits for the guest's agent, and for others that use it.
pub(super) const ANSWER: Duration = Duration::from_secs(90);

/// An open session.
pub(super) struct Session(Framed<TokioIo<Upgraded>, LinesCodec>);

impl Session {
    /// Opens a session.
    ///
    /// *Errors:* each step's, with its remedy.
    pub(super) async fn open(target: &ConsoleTarget, wanted: ConsoleUse) -> anyhow::Result<Self> {
        let stream = connection::open(target, wanted, None).await?;
        Ok(Self(Framed::new(stream, LinesCodec::new_with_max_length(MAX_HOST_LINE))))
    }

    pub(super) async fn send(&mut self, message: &ClientMessage) -> anyhow::Result<()> {
        let line = serde_json::to_string(message).context("encoding a message")?;
        let sent = timeout(ANSWER, self.0.send(line)).await;
        sent.context("the host does not read")?.context("the connection to the host broke")
    }

    pub(super) async fn next(&mut self) -> anyhow::Result<HostMessage> {
        self.next_within(ANSWER).await
    }

    pub(super) async fn next_within(&mut self, limit: Duration) -> anyhow::Result<HostMessage> {
        let line = timeout(limit, self.0.next()).await.context("the host does not answer")?;
        let line =
            line.context("the host closed the connection")?.context("the connection to the host broke")?;
        serde_json::from_str(&line)
            .context("the host sent a message that this command does not know: is it newer?")
    }
}
