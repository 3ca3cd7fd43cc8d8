//! A copy of the file of a volume to the host that its VM goes to, once the host's ticket is accepted: see [`berth_api::volume_copy`].
//!
//! ```text
//!  ticket of the host's account ─▶ the control plane: the Disk is bound there, and its data is here ─▶ the file, that nothing has open
//! ```
//!
//! The Disk is read from the control plane for each request: it names this host as the former one only after this host has given its VM up,
//! and the word of the host that asks counts for nothing.

use std::sync::Arc;
use std::time::Duration;

use berth_api::Disk;
use berth_api::image_copy::of_query;
use berth_api::volume_copy::{VolumeFile, VolumeMessage, VolumePart, audience};
use berth_host::{CopiedPart, VolumeReader};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::places::Place;
use super::refusal::ConsoleRefusal;
use super::{Consoles, STALLED, VOLUME_COPIES, VOLUME_COPIES_OF_HOST};
use crate::context::Context;
use crate::key::ObjectName;
use crate::typed_api::TypedApi;

/// The time for the host to take a part.
const PART_TIME: Duration = Duration::from_secs(120);
/// After so many parts, the Disk is read again: the copy may not be needed any more.
const CHECKED_AFTER: u64 = 64;

/// A copy to send.
pub(super) struct VolumeCopy {
    ctx: Arc<Context>,
    name: ObjectName,
    volume: String,
    /// The host that copies.
    host: String,
    file: Box<dyn VolumeReader>,
    _place: Place<String>,
}

impl VolumeCopy {
    /// Verifies the ticket for a copy and opens the file.
    ///
    /// *Errors*: the ticket is not that of the host in the query and for this volume; the Disk is not bound to that host with its data
    /// here; a QEMU has the file open.
    pub(super) async fn open(
        ctx: &Arc<Context>,
        consoles: &Consoles,
        (name, volume): (ObjectName, &str),
        query: Option<&str>,
        ticket: &str,
    ) -> Result<Self, ConsoleRefusal> {
        let (host, offset) = query.and_then(of_query).ok_or(ConsoleRefusal::NoCopyQuery)?;
        let audience = audience(&name.namespace, &name.name, volume);
        consoles.tickets.redeem_of_host(&ctx.client, ctx.now(), ticket, host, audience).await?;
        let not_left = || ConsoleRefusal::NotLeft { host: host.to_owned() };
        let disk = read(ctx, &name).await?.filter(|disk| is_left(disk, ctx.host(), host, volume));
        let disk = disk.ok_or_else(not_left)?;
        let pool = disk.pool().to_string();
        // Its own record counts, whatever the status of the Disk names.
        let found = ctx.system.volume(&pool, volume).await?;
        found.filter(|found| found.owner.uid == disk.metadata.uid).ok_or_else(not_left)?;
        let place = consoles.volume_copies.take(host.to_owned());
        let place = place.ok_or_else(|| ConsoleRefusal::TooManyCopies {
            host: host.to_owned(),
            most: VOLUME_COPIES,
            most_of_host: VOLUME_COPIES_OF_HOST,
        })?;
        let file = ctx.system.open_left_volume(&pool, volume, offset).await?.ok_or_else(not_left)?;
        tracing::info!(namespace = name.namespace, disk = name.name, host, offset, "copy of a volume opened");
        let (ctx, volume, host) = (ctx.clone(), volume.to_owned(), host.to_owned());
        Ok(Self { ctx, name, volume, host, file, _place: place })
    }

    /// Sends the file to its end.
    pub(super) async fn run(mut self, stream: TokioIo<Upgraded>) {
        let (_, mut to_host) = tokio::io::split(stream);
        if let Err(detail) = self.send(&mut to_host).await {
            tracing::info!(volume = self.volume, host = self.host, detail, "a copy of a volume ended early");
        }
        let _ = timeout(STALLED, to_host.shutdown()).await;
    }

    async fn send(&mut self, to_host: &mut (impl AsyncWrite + Unpin)) -> Result<(), String> {
        let about = self.file.about();
        let file = VolumeFile {
            length: about.length,
            taken: about.taken,
            base: about.base.clone(),
            tag: about.tag.clone(),
        };
        write(to_host, &VolumeMessage::File(file), &[]).await?;
        let mut sent = 0_u64;
        while let Some(CopiedPart { offset, bytes }) =
            self.file.next().await.map_err(|error| error.chain())?
        {
            sent += 1;
            if sent.is_multiple_of(CHECKED_AFTER) {
                check_left(&self.ctx, &self.name, &self.host, &self.volume).await?;
            }
            let length = u32::try_from(bytes.len()).map_err(|_| "a part is too long".to_owned())?;
            let sha256 = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            write(to_host, &VolumeMessage::Part(VolumePart { offset, length, sha256 }), &bytes).await?;
        }
        // The file is the same as it was: so the data is whole if nothing was started on it meanwhile.
        check_left(&self.ctx, &self.name, &self.host, &self.volume).await?;
        write(to_host, &VolumeMessage::End, &[]).await
    }
}

/// The error is for people.
async fn check_left(ctx: &Context, name: &ObjectName, host: &str, volume: &str) -> Result<(), String> {
    let disk = read(ctx, name).await.map_err(|error| error.to_string())?;
    match disk.is_some_and(|disk| is_left(&disk, ctx.host(), host, volume)) {
        true => Ok(()),
        false => Err("the Disk does not go to that host any more".to_owned()),
    }
}

async fn read(ctx: &Context, name: &ObjectName) -> Result<Option<Disk>, ConsoleRefusal> {
    let disks: TypedApi<Disk> = TypedApi::namespaced(ctx.client.clone(), &name.namespace);
    let disk = disks.get_opt(&name.name).await;
    disk.map_err(|error| ConsoleRefusal::CannotReadNeeds { detail: error.to_string() })
}

/// Whether the data of a Disk is on this host, as this volume, and the Disk is bound to the other one.
fn is_left(disk: &Disk, own: &str, host: &str, volume: &str) -> bool {
    let Some(status) = disk.status.as_ref().filter(|_| disk.metadata.deletion_timestamp.is_none()) else {
        return false;
    };
    let is_bound_there = status.binding.as_ref().is_some_and(|binding| binding.host == host);
    let is_here = status.former_host.as_deref() == Some(own) && own != host;
    is_bound_there && is_here && status.volume_id.as_deref() == Some(volume)
}

async fn write(
    to_host: &mut (impl AsyncWrite + Unpin),
    message: &VolumeMessage,
    bytes: &[u8],
) -> Result<(), String> {
    let mut line = serde_json::to_vec(message).expect("our own types are plain JSON");
    line.push(b'\n');
    let sent = async {
        to_host.write_all(&line).await?;
        to_host.write_all(bytes).await?;
        to_host.flush().await
    };
    let sent = timeout(PART_TIME, sent).await.map_err(|_| "the host does not read".to_owned())?;
    sent.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_the_host_that_the_disk_is_bound_to_copies_it_from_the_one_that_has_its_data() {
        let served = |status: Value| {
            let object = json!({"metadata": {"name": "root", "namespace": "ns"}, "spec": {"size": "1Gi"}, "status": status});
            let disk: Disk = serde_json::from_value(object).expect("a Disk");
            is_left(&disk, "a", "b", "v-1")
        };
        let status = |binding: Value, former: Value, volume: &str| json!({"binding": binding, "formerHost": former, "volumeID": volume});
        let on = |host: &str| json!({"host": host, "epoch": 1});
        assert!(served(status(on("b"), json!("a"), "v-1")));
        for (wrong, why) in [
            (status(on("b"), json!(null), "v-1"), "that host has it now"),
            (status(on("b"), json!("c"), "v-1"), "its data is on another host"),
            (status(on("c"), json!("a"), "v-1"), "it goes to another host"),
            (status(on("a"), json!("a"), "v-1"), "it has not left this host yet"),
            (status(json!(null), json!("a"), "v-1"), "it has no host yet"),
            (status(on("b"), json!("a"), "v-2"), "it is another volume"),
        ] {
            assert!(!served(wrong), "{why}");
        }
    }
}
