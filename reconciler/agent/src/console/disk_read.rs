//! A client's reads of the data of a Backup or a DiskSnapshot, once its ticket is accepted: see [`berth_api::disk_read`].
//!
//! The data is sent as it is: its partitions and file systems are read by the client, not by this process. So is the declaration of a backup.
//! A session ends with its client, and with its object.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use berth_api::console::DISK_READ_ACCOUNT;
use berth_api::disk_read::{DiskOrigin, DiskRequest, MAX_LINE, ReadMessage};
use berth_api::{Binding, Readiness};
use berth_host::DiskReader;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::{Instant, timeout};

use super::places::Place;
use super::refusal::ConsoleRefusal;
use super::ticket::Claim;
use super::{Consoles, DISK_READS, DISK_READS_OF_NAMESPACE, STALLED};
use crate::context::Context;
use crate::credentials::Secrets;
use crate::index::Tables;
use crate::key::ObjectName;
use crate::kinds::backup::{id_of, repository_of};

/// The time for the client to send the next request: its program may write slowly to its own disk.
const NEXT_REQUEST: Duration = Duration::from_secs(120);
/// How often it is looked meanwhile whether the object is still there.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The time of a whole session: others wait for its place.
const SESSION: Duration = Duration::from_secs(3600);
/// The time for the repository, or for the host's disk, to answer.
const READ: Duration = Duration::from_secs(120);

/// The data to read.
pub(super) struct DiskReadSession {
    ctx: Arc<Context>,
    origin: DiskOrigin,
    name: ObjectName,
    uid: String,
    disk: Box<dyn DiskReader>,
    _place: Place<String>,
}

impl DiskReadSession {
    /// Verifies the ticket and opens the data.
    ///
    /// *Errors*: the ticket is not for this object; the object is deleted, not complete or not of this host; the host may not read the
    /// Secrets of the repository, or they do not open it.
    pub(super) async fn open(
        ctx: &Arc<Context>,
        consoles: &Consoles,
        origin: DiskOrigin,
        name: ObjectName,
        ticket: &str,
    ) -> Result<Self, ConsoleRefusal> {
        // Only a ticket's holder learns which objects are here.
        let uid = uid_of(&ctx.index.read(), origin, &name).unwrap_or_default();
        let audience = origin.audience(&name.namespace, &name.name, &uid);
        let claim = Claim { namespace: &name.namespace, audience, accounts: &[DISK_READ_ACCOUNT] };
        consoles.tickets.redeem(&ctx.client, ctx.now(), ticket, &claim).await?;
        if !is_served(ctx, origin, &name, &uid) {
            return Err(ConsoleRefusal::NoData { kind: origin.kind() });
        }
        let place = consoles.disk_reads.take(name.namespace.clone());
        let place = place.ok_or(ConsoleRefusal::TooManyReads {
            most: DISK_READS,
            most_of_namespace: DISK_READS_OF_NAMESPACE,
        })?;
        let disk = match origin {
            DiskOrigin::Backup => open_backup(ctx, &name).await?,
            DiskOrigin::DiskSnapshot => open_snapshot(ctx, &name).await?,
        };
        tracing::info!(
            namespace = name.namespace,
            name = name.name,
            kind = origin.kind(),
            "reads of a disk opened"
        );
        Ok(Self { ctx: ctx.clone(), origin, name, uid, disk, _place: place })
    }

    /// Answers the requests of the client.
    pub(super) async fn run(mut self, stream: TokioIo<Upgraded>) {
        let (from_client, mut to_client) = tokio::io::split(stream);
        let mut from_client = BufReader::with_capacity(MAX_LINE, from_client);
        let answered = timeout(SESSION, self.answer_all(&mut from_client, &mut to_client)).await;
        if let Err(detail) =
            answered.unwrap_or_else(|_| Err("an hour has passed: read less at a time".to_owned()))
        {
            tracing::info!(
                name = self.name.name,
                kind = self.origin.kind(),
                detail,
                "reads of a disk ended early"
            );
            // The client may be gone.
            let _ = send(&mut to_client, &ReadMessage::Error(detail), &[]).await;
        }
        let _ = timeout(STALLED, to_client.shutdown()).await;
    }

    /// The error is for people.
    async fn answer_all(
        &mut self,
        from_client: &mut (impl AsyncBufRead + Unpin),
        to_client: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), String> {
        send(to_client, &ReadMessage::Size(self.disk.size()), &[]).await?;
        let mut data = Vec::new();
        while let Some(request) = self.next_request(from_client).await? {
            let DiskRequest::Part(request) = request else {
                self.check_served()?;
                let declaration = self.disk.declaration().unwrap_or_default();
                let length = u32::try_from(declaration.len()).unwrap_or_default();
                send(to_client, &ReadMessage::Declaration(length), declaration.as_bytes()).await?;
                continue;
            };
            if !request.is_within(self.disk.size()) {
                return Err(format!(
                    "{} bytes at byte {} were asked for, and the disk has {}",
                    request.length,
                    request.offset,
                    self.disk.size()
                ));
            }
            data.resize(usize::try_from(request.length).unwrap_or_default(), 0);
            let read = timeout(READ, self.disk.read_at(request.offset, &mut data)).await;
            read.map_err(|_| "the data did not come within two minutes".to_owned())?
                .map_err(|error| error.chain())?;
            // After the read: the file of a deleted snapshot may have had other data meanwhile.
            self.check_served()?;
            send(to_client, &ReadMessage::Data(request.length), &data).await?;
        }
        Ok(())
    }

    /// Reads a request; `None`: the client has disconnected.
    async fn next_request(
        &mut self,
        from_client: &mut (impl AsyncBufRead + Unpin),
    ) -> Result<Option<DiskRequest>, String> {
        let (mut line, begun) = (Vec::new(), Instant::now());
        let read = {
            let mut limited = from_client.take(u64::try_from(MAX_LINE).unwrap_or(u64::MAX));
            let mut reading = pin!(limited.read_until(b'\n', &mut line));
            loop {
                if let Ok(read) = timeout(LOOK_EVERY, reading.as_mut()).await {
                    break read;
                }
                // Without a request the session would keep the place, and the program of a snapshot.
                self.check_served()?;
                if begun.elapsed() >= NEXT_REQUEST {
                    return Err("there was no request for two minutes".to_owned());
                }
            }
        };
        match read {
            Ok(0) | Err(_) => Ok(None),
            Ok(_) => serde_json::from_slice(&line)
                .map(Some)
                .map_err(|_| "a request is not as this host knows them: is the client newer?".to_owned()),
        }
    }

    fn check_served(&self) -> Result<(), String> {
        match is_served(&self.ctx, self.origin, &self.name, &self.uid) {
            true => Ok(()),
            false => Err(format!("the {} was deleted, or is not on this host any more", self.origin.kind())),
        }
    }
}

async fn send(
    to_client: &mut (impl AsyncWrite + Unpin),
    message: &ReadMessage,
    data: &[u8],
) -> Result<(), String> {
    let mut line = serde_json::to_vec(message).expect("our own types are plain JSON");
    line.push(b'\n');
    let sent = async {
        to_client.write_all(&line).await?;
        to_client.write_all(data).await?;
        to_client.flush().await
    };
    let sent = timeout(STALLED, sent).await.map_err(|_| "the client does not read".to_owned())?;
    sent.map_err(|error| error.to_string())
}

async fn open_backup(ctx: &Context, name: &ObjectName) -> Result<Box<dyn DiskReader>, ConsoleRefusal> {
    let found = {
        let tables = ctx.index.read();
        let backup = tables.backups.get(name);
        backup.and_then(|backup| Some((repository_of(&tables, &backup)?, id_of(&backup)?)))
    };
    let (repository, id) = found.ok_or_else(|| ConsoleRefusal::Unreadable {
        detail: "its BackupRepository does not exist".to_owned(),
    })?;
    let access = Secrets::new(ctx.client.clone()).repository(&repository).await;
    let access = access.map_err(|readiness| {
        let detail = readiness.message().to_owned();
        match readiness {
            // The controllers may not have permitted it yet.
            Readiness::Reconciling(..) => ConsoleRefusal::Closed { detail },
            _ => ConsoleRefusal::Unreadable { detail },
        }
    })?;
    Ok(ctx.system.open_backup(&access, &id).await?)
}

async fn open_snapshot(ctx: &Context, name: &ObjectName) -> Result<Box<dyn DiskReader>, ConsoleRefusal> {
    let snapshot = ctx.index.read().disk_snapshots.get(name);
    let place = snapshot.as_ref().and_then(|snapshot| {
        let status = snapshot.status.as_ref()?;
        Some((status.pool.clone()?, status.snapshot_id.clone()?))
    });
    let (pool, id) = place.ok_or(ConsoleRefusal::NoData { kind: DiskOrigin::DiskSnapshot.kind() })?;
    Ok(ctx.system.open_snapshot(pool.as_str(), &id).await?)
}

fn uid_of(tables: &Tables, origin: DiskOrigin, name: &ObjectName) -> Option<String> {
    match origin {
        DiskOrigin::Backup => tables.backups.get(name)?.metadata.uid.clone(),
        DiskOrigin::DiskSnapshot => tables.disk_snapshots.get(name)?.metadata.uid.clone(),
    }
}

/// Whether the object of this uid still exists, is bound here and has its data.
fn is_served(ctx: &Context, origin: DiskOrigin, name: &ObjectName, uid: &str) -> bool {
    let tables = ctx.index.read();
    let is_same = |metadata: &ObjectMeta, binding: Option<&Binding>| {
        metadata.uid.as_deref() == Some(uid)
            && metadata.deletion_timestamp.is_none()
            && binding.is_some_and(|binding| binding.host == ctx.host())
    };
    match origin {
        DiskOrigin::Backup => tables.backups.get(name).is_some_and(|backup| {
            let binding = backup.status.as_ref().and_then(|status| status.binding.as_ref());
            backup.is_complete() && is_same(&backup.metadata, binding)
        }),
        DiskOrigin::DiskSnapshot => tables.disk_snapshots.get(name).is_some_and(|snapshot| {
            let status = snapshot.status.as_ref();
            let is_taken = status.is_some_and(|status| status.taken_at.is_some());
            is_taken && is_same(&snapshot.metadata, status.and_then(|status| status.binding.as_ref()))
        }),
    }
}
