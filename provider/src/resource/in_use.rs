//! Refuses to delete a Disk while a VM that stays uses it: once nothing uses the Disk, its file would be deleted, which cannot
//! be undone.
//!
//! Every other kind may be deleted while it is in use, and disappears once it is not.

use std::time::Duration;

use serde_json::Value as Json;
use tfplugin6::Diagnostic;
use tokio::time::{Instant, sleep};

use super::{KindResource, apply::ApplyContext, create::is_known_as, is_terminating, text};
use crate::api::{Address, Api, ApiError, RetryLimit};

/// The time after which a user of the Disk counts as staying: a VM that the same command destroys, without a reference between
/// the two, may be destroyed a moment later.
const USER_GRACE: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

impl KindResource {
    /// Waits a moment for the deletion of the VM that uses a Disk.
    ///
    /// *Errors:* the VM stays.
    pub(super) async fn refuse_in_use(
        &self,
        apply: &ApplyContext<'_>,
        uid: &str,
    ) -> Result<(), Vec<Diagnostic>> {
        if self.info.kind != "Disk" {
            return Ok(());
        }
        let failed = |error: ApiError| self.request_diagnostics(&error, &apply.at);
        let limit = apply.request_limit();
        let grace_end = Instant::now() + USER_GRACE;
        loop {
            let disk = apply.api.get(&apply.at, &limit).await.map_err(failed)?;
            let Some(disk) = disk.filter(|disk| is_known_as(disk, uid) && !is_terminating(disk)) else {
                return Ok(());
            };
            let user = remaining_user(apply.api, &apply.at, &disk, &limit).await;
            let Some(user) = user.map_err(failed)? else { return Ok(()) };
            if Instant::now() >= grace_end {
                let detail = format!(
                    "Disk {} is in use by {user}, which is not being destroyed: destroy it, or remove the disk from it, \
                     first. To replace the disk, give the new disk another name, so that the VM can switch to it first.",
                    apply.at.name
                );
                return Err(vec![Diagnostic::error(format!("{} is in use", self.title(&apply.at)), detail)]);
            }
            tokio::select! {
                () = apply.request.cancel.cancelled() => return Err(failed(ApiError::Cancelled)),
                () = sleep(POLL_INTERVAL) => {}
            }
        }
    }
}

/// The VM, with its attachment, that uses a Disk and is not about to release it.
async fn remaining_user(
    api: &Api,
    at: &Address,
    disk: &Json,
    retry_limit: &RetryLimit,
) -> Result<Option<String>, ApiError> {
    let stays = |object: &Option<Json>| object.as_ref().is_some_and(|object| !is_terminating(object));
    for user in disk.pointer("/status/usedBy").and_then(Json::as_array).into_iter().flatten() {
        let (name, attachment) = (text(user, "/vm"), text(user, "/attachment"));
        let vm = api.get(&at.sibling("vms", name), retry_limit).await?;
        if !stays(&vm) {
            continue;
        }
        if attachment.is_empty() {
            // A VM that was changed and no longer lists the Disk releases it in a moment.
            if vm.as_ref().is_some_and(|vm| lists(vm, &at.name)) {
                return Ok(Some(format!("VM {name}")));
            }
        } else if stays(&api.get(&at.sibling("hotswapdiskattachments", attachment), retry_limit).await?) {
            return Ok(Some(format!("VM {name} (attachment {attachment})")));
        }
    }
    Ok(None)
}

/// Whether a VM's spec lists the Disk.
fn lists(vm: &Json, disk: &str) -> bool {
    let disks = vm.pointer("/spec/disks").and_then(Json::as_array);
    disks.into_iter().flatten().any(|listed| text(listed, "/name") == disk)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_vm_that_no_longer_lists_a_disk_is_about_to_release_it() {
        let vm = json!({"spec": {"disks": [{"name": "root", "boot": true}]}});
        assert!(lists(&vm, "root"));
        assert!(!lists(&vm, "data"));
    }
}
