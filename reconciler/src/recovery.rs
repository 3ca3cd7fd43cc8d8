//! Opens recoveries after a restore: see `Host.spec.recovery`.
//!
//! `berth restore` leaves a mark beside the database before it changes the database; `berth up` opens a recovery
//! for every host in the restored data before it serves requests, and then removes the mark.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use berth_agent::TypedApi;
use berth_api::Host;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

/// A file in the control plane's folder.
const MARK: &str = "restored";

/// Returns the fields of a Host's spec that open a recovery at this time, or close it.
pub(crate) fn spec(since: Option<Timestamp>) -> Value {
    json!({"recovery": since.map(|since| json!({"since": since.to_string()}))})
}

fn mark_in(control_plane: &Path) -> PathBuf {
    control_plane.join(MARK)
}

/// Makes the next start of the control plane in this folder open recoveries; durable when it returns.
///
/// *Errors:* the mark cannot be written.
pub fn mark(control_plane: &Path) -> anyhow::Result<()> {
    let path = mark_in(control_plane);
    let write = || -> std::io::Result<()> {
        // It may be the first file in the folder, which has the keys.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(control_plane)?;
        std::fs::File::create(&path)?.sync_all()?;
        std::fs::File::open(control_plane)?.sync_all()
    };
    write().with_context(|| format!("noting in {} that hosts are to be asked what they have", path.display()))
}

/// Whether the next start opens recoveries.
pub fn is_marked(control_plane: &Path) -> bool {
    mark_in(control_plane).exists()
}

/// Removes the mark.
///
/// *Errors:* it cannot be removed.
pub fn unmark(control_plane: &Path) -> anyhow::Result<()> {
    let path = mark_in(control_plane);
    std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))
}

/// Opens a recovery for every host, if this control plane was restored since it was last started.
///
/// *Errors:* the control plane does not respond; the mark cannot be removed.
pub async fn open_if_restored(client: &Client, control_plane: &Path) -> anyhow::Result<()> {
    let path = mark_in(control_plane);
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_folder_that_is_made_for_the_mark_is_private() {
        let folder = tempfile::tempdir().expect("a folder");
        let control_plane = folder.path().join("control-plane");
        mark(&control_plane).expect("marked");
        assert!(is_marked(&control_plane));
        let mode = std::fs::metadata(&control_plane).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        unmark(&control_plane).expect("unmarked");
        assert!(!is_marked(&control_plane));
    }
}
