//! The way to the data of a backup or a snapshot: its status, a ticket from the control plane, its host.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use berth_agent::TypedApi;
use berth_api::{
    Backup, Binding, DiskSnapshot,
    console::DISK_READ_ACCOUNT,
    disk_read::{DiskOrigin, NOT_YET, READ_UNTIL_ANNOTATION},
    vm::ConsoleAddress,
};
use berth_console_client::{ConnectError, Connection, DiskData, connect_within};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{
    Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    cli::FileSource,
    commands::{connect, console::connection::ticket, resources},
    one_connection::client_of,
};

/// How long to wait until the controllers let the host read the Secrets of the repository, and the host has opened it.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(1);
/// The time for the host's answer, which has 30 seconds itself to open a backup or to start a program for a snapshot.
const ANSWER: Duration = Duration::from_secs(35);
/// The time for a host to report a backup that it has just got: controllers give it those of a host that is gone for good.
const REPORTED: Duration = Duration::from_secs(20);
/// For how long the host may read them, if this process does not end it before.
const PERMITTED: SignedDuration = SignedDuration::from_secs(120);

/// An object whose data is read.
#[derive(Debug)]
struct Object {
    uid: String,
    host: String,
    server: ConsoleAddress,
}

/// The status of an object has no address at which its host serves it.
#[derive(Debug, thiserror::Error)]
#[error(
    "host {host} serves no files of {kind} {name}: its agent has not reported the {kind} yet, is older than this command, or runs with \
     --no-console"
)]
struct Unserved {
    host: String,
    kind: &'static str,
    name: String,
}

/// Connects to the host of an object.
///
/// *Errors:* there is no such object, or it is not complete; its host serves no reads, does not answer or refuses the ticket; the
/// repository of a backup is not opened in time.
pub(in crate::commands) async fn opened(
    origin: DiskOrigin,
    source: &FileSource,
    name: &str,
) -> anyhow::Result<DiskData> {
    let (namespace, name) = (resources::checked(&source.namespace)?, resources::checked(name)?);
    let client = client_of(connect::admin(&source.connection, &source.state.state_dir).await?)?;
    let site = Site { client, namespace, name, origin };
    let connection = match origin {
        DiskOrigin::DiskSnapshot => {
            let object = site.object().await?.with_context(|| format!("DiskSnapshot {name} has no host"))?;
            site.connect(&object).await?
        }
        DiskOrigin::Backup => {
            // An object that cannot be read is not changed.
            if let Err(error) = site.object().await
                && !error.is::<Unserved>()
            {
                return Err(error);
            }
            let connected = site.connect_to_backup().await;
            site.end_permission().await;
            connected?
        }
    };
    Ok(DiskData::over(connection).await?)
}

struct Site<'a> {
    client: Client,
    namespace: &'a str,
    name: &'a str,
    origin: DiskOrigin,
}

impl Site<'_> {
    fn backups(&self) -> TypedApi<Backup> {
        TypedApi::namespaced(self.client.clone(), self.namespace)
    }

    /// Returns None for a Backup whose host is gone for good.
    async fn object(&self) -> anyhow::Result<Option<Object>> {
        let (kind, name, namespace) = (self.origin.kind(), self.name, self.namespace);
        let reading = || format!("reading {kind} {name}");
        let found = match self.origin {
            DiskOrigin::Backup => {
                let found = self.backups().get_opt(name).await.with_context(reading)?;
                found.map(|backup| of_backup(&backup))
            }
            DiskOrigin::DiskSnapshot => {
                let snapshots: TypedApi<DiskSnapshot> = TypedApi::namespaced(self.client.clone(), namespace);
                let found = snapshots.get_opt(name).await.with_context(reading)?;
                found.map(|snapshot| of_snapshot(&snapshot).map(Some))
            }
        };
        found.unwrap_or_else(|| bail!("there is no {kind} {name} in namespace {namespace} (see -n)"))
    }

    async fn connect(&self, object: &Object) -> anyhow::Result<Connection> {
        let audience = self.origin.audience(self.namespace, self.name, &object.uid);
        let ticket = ticket(&self.client, self.namespace, DISK_READ_ACCOUNT, audience).await?;
        let path = self.origin.path(self.namespace, self.name);
        let connected = connect_within(ANSWER, &object.server, &path, &ticket).await;
        connected.with_context(|| format!("host {}, {}", object.host, object.server.address))
    }

    /// Has the host permitted to read the Secrets of the repository, and connects once it does. A Backup whose host is gone for good gets
    /// another one meanwhile.
    async fn connect_to_backup(&self) -> anyhow::Result<Connection> {
        let begun = Instant::now();
        let (mut is_shown, mut was_unbound) = (false, false);
        loop {
            self.permit().await?;
            let (error, may_pass) = match self.object().await {
                Ok(Some(object)) => match Box::pin(self.connect(&object)).await {
                    Ok(connection) => return Ok(connection),
                    Err(error) => {
                        let refused = error.downcast_ref::<ConnectError>();
                        let is_early = matches!(refused, Some(ConnectError::Refused { code: NOT_YET, .. }));
                        (error, is_early)
                    }
                },
                Ok(None) => {
                    was_unbound = true;
                    (no_host(self.name), true)
                }
                // Its new host has not reported it yet.
                Err(error) => {
                    let is_early = error.is::<Unserved>() && begun.elapsed() < REPORTED;
                    (error, was_unbound || is_early)
                }
            };
            if !may_pass || begun.elapsed() > PATIENCE {
                return Err(error);
            }
            if !is_shown && begun.elapsed() > PAUSE * 5 {
                notice!("berth: waiting: {error:#}");
                is_shown = true;
            }
            sleep(PAUSE).await;
        }
    }

    async fn permit(&self) -> anyhow::Result<()> {
        let until = Timestamp::now().checked_add(PERMITTED).context("the clock of this machine")?;
        self.annotate(&json!(until.to_string())).await.with_context(|| {
            format!(
                "permitting the host of Backup {} to read the Secrets of its repository (verb patch on backups)",
                self.name
            )
        })
    }

    /// The controllers end it otherwise.
    async fn end_permission(&self) {
        if let Err(error) = self.annotate(&json!(null)).await {
            notice!(
                "berth: the host of Backup {} may read the Secrets of its repository for up to two more minutes: {error}",
                self.name
            );
        }
    }

    async fn annotate(&self, value: &serde_json::Value) -> Result<(), kube::Error> {
        let patch = json!({"metadata": {"annotations": {READ_UNTIL_ANNOTATION: value}}});
        self.backups().patch(self.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }
}

fn no_host(backup: &str) -> anyhow::Error {
    anyhow!(
        "the host of Backup {backup} is gone for good, and it has no other one yet: a ready host has to reach its repository (kubectl get \
         hosts; status.backupFolders)"
    )
}

/// Returns None if its host is gone for good.
fn of_backup(backup: &Backup) -> anyhow::Result<Option<Object>> {
    let name = backup.name_any();
    if backup.metadata.deletion_timestamp.is_some() {
        bail!("Backup {name} is being deleted");
    }
    if !backup.is_complete() {
        bail!("Backup {name} is not complete: berth why backup/{name}");
    }
    let status = backup.status.clone().unwrap_or_default();
    if status.binding.is_none() {
        return Ok(None);
    }
    object("Backup", &name, backup.uid(), status.binding, status.files).map(Some)
}

fn of_snapshot(snapshot: &DiskSnapshot) -> anyhow::Result<Object> {
    let name = snapshot.name_any();
    if snapshot.metadata.deletion_timestamp.is_some() {
        bail!("DiskSnapshot {name} is being deleted");
    }
    let status = snapshot.status.clone().unwrap_or_default();
    if status.taken_at.is_none() {
        bail!("DiskSnapshot {name} is not taken: berth why disksnapshot/{name}");
    }
    object("DiskSnapshot", &name, snapshot.uid(), status.binding, status.files)
}

fn object(
    kind: &'static str,
    name: &str,
    uid: Option<String>,
    binding: Option<Binding>,
    server: Option<ConsoleAddress>,
) -> anyhow::Result<Object> {
    let host = binding.map_or_else(|| "?".to_owned(), |binding| binding.host);
    let Some(server) = server else { bail!(Unserved { host, kind, name: name.to_owned() }) };
    Ok(Object { uid: uid.unwrap_or_default(), host, server })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn backup(status: Value) -> Backup {
        serde_json::from_value(json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Backup",
            "metadata": {"name": "daily", "uid": "u1"}, "spec": {"repository": "r", "snapshot": "s"}, "status": status}))
        .expect("a backup")
    }

    #[test]
    fn a_backup_that_cannot_be_read_is_refused_with_the_reason() {
        let status_error = |status| of_backup(&backup(status)).expect_err("it cannot be read");
        let refused = |status| status_error(status).to_string();
        assert!(refused(json!({})).contains("is not complete"));
        let complete = "2026-01-01T00:00:00Z";
        let lost = backup(json!({"completedAt": complete, "volumeID": "v-1", "backupID": "b-1"}));
        assert!(of_backup(&lost).expect("it gets another host").is_none());
        let bound = json!({"host": "h1", "epoch": 1});
        let unserved = status_error(json!({"completedAt": complete, "binding": bound}));
        assert!(unserved.is::<Unserved>(), "it is waited for: {unserved}");
        let unserved = unserved.to_string();
        assert!(unserved.starts_with("host h1 serves no files of Backup daily: its agent"), "{unserved}");
        let files = json!({"address": "192.0.2.1:7444", "certificateSha256": "0".repeat(64)});
        let served = backup(json!({"completedAt": complete, "binding": bound, "files": files}));
        let found = of_backup(&served).expect("it can be read").expect("it has a host");
        assert_eq!((found.uid.as_str(), found.server.address.as_str()), ("u1", "192.0.2.1:7444"));
    }
}
