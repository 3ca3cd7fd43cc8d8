//! The way of a packet from or to a VM through the rules of this host, for a client with a ticket.

use berth_api::VM;
use berth_api::packet_trace::TraceQuery;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::STALLED;
use super::refusal::ConsoleRefusal;
use super::session::write;
use crate::context::Context;
use crate::key::ObjectName;
use crate::packet_trace::{self, TraceProblem};

/// A session that sends the answer and ends.
#[derive(Debug)]
pub(super) struct TraceSession {
    answer: Vec<u8>,
}

impl TraceSession {
    /// Traces the packet that the query of a request names, before the request is answered.
    ///
    /// *Errors*: the query names no packet that this VM sends or receives here; the host's state cannot be read.
    pub(super) async fn open(
        ctx: &Context,
        name: &ObjectName,
        vm: Option<&VM>,
        query: Option<&str>,
    ) -> Result<Self, ConsoleRefusal> {
        let vm = vm.ok_or(ConsoleRefusal::NotHere)?;
        let query = TraceQuery::of_query(query.unwrap_or_default());
        let query = query.map_err(|detail| ConsoleRefusal::NoPacket { detail })?;
        let traced = packet_trace::trace(ctx, name, vm, &query).await;
        let traced = traced.map_err(|problem| match problem {
            TraceProblem::Packet(detail) => ConsoleRefusal::NoPacket { detail },
            TraceProblem::NotApplied => ConsoleRefusal::NotApplied,
            TraceProblem::System(error) => error.into(),
        })?;
        let answer = serde_json::to_vec(&traced);
        let answer = answer.map_err(|error| ConsoleRefusal::System { detail: error.to_string() })?;
        Ok(Self { answer })
    }

    pub(super) async fn run(self, mut stream: TokioIo<Upgraded>) {
        if write(&mut stream, &self.answer).await.is_ok() {
            let _ = timeout(STALLED, stream.shutdown()).await;
        }
    }
}
