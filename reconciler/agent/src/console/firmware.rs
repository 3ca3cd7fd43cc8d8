//! The firmware state of a VM for the host that the VM goes to, once the host's ticket is accepted: see [`berth_api::firmware_copy`].
//!
//! ```text
//!  ticket of the host's account ─▶ the control plane: the VM is bound there, and its firmware state is here ─▶ the archive
//! ```
//!
//! The VM is read from the control plane for each request, and the journal has to record that this host has given the VM up: nothing changes the
//! state any more.

use std::sync::Arc;
use std::time::Duration;

use berth_api::VM;
use berth_api::firmware_copy::{FirmwareArchive, audience};
use berth_api::image_copy::of_query;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::places::Place;
use super::refusal::ConsoleRefusal;
use super::{Consoles, STALLED, VOLUME_COPIES, VOLUME_COPIES_OF_HOST};
use crate::context::Context;
use crate::index::instance_of;
use crate::journal::Journal;
use crate::key::ObjectName;
use crate::typed_api::TypedApi;

/// The time for the host to take all of it.
const LIMIT: Duration = Duration::from_secs(60);

/// An archive to send.
pub(super) struct FirmwareSession {
    instance: String,
    /// The host that fetches it.
    host: String,
    archive: Vec<u8>,
    _place: Place<String>,
}

impl FirmwareSession {
    /// Verifies the ticket and reads the state.
    ///
    /// *Errors*: the ticket is not that of the host in the query and for this instance; the VM is not bound to that host with its firmware
    /// state here.
    pub(super) async fn open(
        ctx: &Arc<Context>,
        consoles: &Consoles,
        (name, instance): (ObjectName, &str),
        query: Option<&str>,
        ticket: &str,
    ) -> Result<Self, ConsoleRefusal> {
        let (host, _) = query.and_then(of_query).ok_or(ConsoleRefusal::NoCopyQuery)?;
        let audience = audience(&name.namespace, &name.name, instance);
        consoles.tickets.redeem_of_host(&ctx.client, ctx.now(), ticket, host, audience).await?;
        let not_left = || ConsoleRefusal::FirmwareNotLeft { host: host.to_owned() };
        let vms: TypedApi<VM> = TypedApi::namespaced(ctx.client.clone(), &name.namespace);
        let vm = vms.get_opt(&name.name).await;
        let vm = vm.map_err(|error| ConsoleRefusal::CannotReadNeeds { detail: error.to_string() })?;
        let vm = vm.filter(|vm| is_left(vm, ctx.host(), host, instance)).ok_or_else(not_left)?;
        let journal = ctx.system.read_journal(instance).await?.map(Journal::parse);
        let is_given_up =
            |journal: &Journal| journal.released.is_some() && Some(&journal.uid) == vm.metadata.uid.as_ref();
        if !matches!(&journal, Some(Ok(journal)) if is_given_up(journal))
            || ctx.system.process(instance).await?.is_some()
        {
            return Err(not_left());
        }
        let place = consoles.volume_copies.take(host.to_owned());
        let place = place.ok_or_else(|| ConsoleRefusal::TooManyCopies {
            host: host.to_owned(),
            most: VOLUME_COPIES,
            most_of_host: VOLUME_COPIES_OF_HOST,
        })?;
        let archive = ctx.system.firmware_state(instance).await?;
        tracing::info!(namespace = name.namespace, vm = name.name, host, "firmware state read for a host");
        Ok(Self { instance: instance.to_owned(), host: host.to_owned(), archive, _place: place })
    }

    /// Sends the archive.
    pub(super) async fn run(self, stream: TokioIo<Upgraded>) {
        let (_, mut to_host) = tokio::io::split(stream);
        let sha256 = Sha256::digest(&self.archive).iter().map(|byte| format!("{byte:02x}")).collect();
        let line = FirmwareArchive { length: self.archive.len(), sha256 };
        let mut bytes = serde_json::to_vec(&line).expect("our own types are plain JSON");
        bytes.push(b'\n');
        let send = async {
            to_host.write_all(&bytes).await?;
            to_host.write_all(&self.archive).await?;
            to_host.flush().await
        };
        if !matches!(timeout(LIMIT, send).await, Ok(Ok(()))) {
            tracing::info!(instance = self.instance, host = self.host, "a firmware state is not sent");
        }
        let _ = timeout(STALLED, to_host.shutdown()).await;
    }
}

/// Whether the firmware state of a VM is on this host, as this instance, and the VM is bound to the other one.
fn is_left(vm: &VM, own: &str, host: &str, instance: &str) -> bool {
    let Some(status) = vm.status.as_ref().filter(|_| vm.metadata.deletion_timestamp.is_none()) else {
        return false;
    };
    let is_bound_there = status.binding.as_ref().is_some_and(|binding| binding.host == host);
    is_bound_there && own != host && vm.firmware_state_on() == Some(own) && instance_of(vm) == Some(instance)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_the_host_that_the_vm_is_bound_to_gets_its_firmware_state_from_the_one_that_has_it() {
        let given = |binding: Value, former: Value, instance: &str| {
            let vm: VM = serde_json::from_value(json!({
                "metadata": {"name": "web", "namespace": "ns"},
                "spec": {"disks": [{"name": "root", "boot": true}]},
                "status": {"binding": binding, "formerHost": former, "instanceID": instance},
            }))
            .expect("a VM");
            is_left(&vm, "a", "b", "i-1")
        };
        let on = |host: &str| json!({"host": host, "epoch": 2});
        assert!(given(on("b"), json!("a"), "i-1"));
        for (binding, former, instance, why) in [
            (on("b"), json!(null), "i-1", "that host has it now"),
            (on("b"), json!("c"), "i-1", "it is on another host"),
            (on("c"), json!("a"), "i-1", "the VM goes to another host"),
            (on("a"), json!("a"), "i-1", "the VM is back"),
            (json!(null), json!("a"), "i-1", "the VM has no host yet"),
            (on("b"), json!("a"), "i-2", "it is another instance"),
        ] {
            assert!(!given(binding, former, instance), "{why}");
        }
    }
}
