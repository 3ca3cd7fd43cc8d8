//! Opens recoveries after a restore: see `Host.spec.recovery`.
//!
//! A restore leaves a mark beside the database before it changes the database ([`RESTORED`]); `berth up` opens a recovery
//! for every host in the restored data before it serves requests, and then removes the mark.

use std::path::Path;

use anyhow::Context;
use berth_agent::TypedApi;
use berth_api::Host;
use berth_apiserver::RESTORED;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

/// Returns the fields of a Host's spec that open a recovery at this time, or close it.
pub(crate) fn spec(since: Option<Timestamp>) -> Value {
    json!({"recovery": since.map(|since| json!({"since": since.to_string()}))})
}

/// Opens a recovery for every host, if this control plane was restored since it was last started.
///
/// *Errors:* the control plane does not respond; the mark cannot be removed.
pub async fn open_if_restored(client: &Client, control_plane: &Path) -> anyhow::Result<()> {
    let path = control_plane.join(RESTORED);
    if !path.try_exists().with_context(|| format!("looking for {}", path.display()))? {
        return Ok(());
    }
    let hosts: TypedApi<Host> = TypedApi::all(client.clone());
    let params = PatchParams { field_manager: Some("berth".into()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({"spec": spec(Some(Timestamp::now()))}));
    for host in hosts.list(&ListParams::default()).await.context("listing hosts")? {
        let name = host.name_any();
        hosts
            .patch(&name, &params, &patch)
            .await
            .with_context(|| format!("opening a recovery of host {name}"))?;
        tracing::info!(host = name, "restored: it is asked what it has before anything is placed");
    }
    std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))
}
