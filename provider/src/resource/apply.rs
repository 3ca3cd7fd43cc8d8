//! The context that the steps of one create, update or delete share.

use std::time::Duration;

use serde_json::Value as Json;
use tfplugin6::{Value, resource::ApplyRequest};
use tokio::time::{Instant, sleep};

use crate::{
    api::{Address, Api, ApiError, Applied, ApplyOptions, RetryLimit},
    private::Private,
    session::Settings,
};

/// The time for which a request is retried while the control plane is away.
const RETRY_TIME: Duration = Duration::from_secs(30);
/// The time for which a write that a Quota refuses is repeated once this apply has deleted an object: the count follows soon after.
const COUNTED_WITHIN: Duration = Duration::from_secs(5);
const COUNT_POLL: Duration = Duration::from_millis(200);

/// One apply in progress.
pub(super) struct ApplyContext<'a> {
    /// Terraform's request.
    pub(super) request: &'a ApplyRequest,
    /// The settings of the provider.
    pub(super) settings: &'a Settings,
    /// The client of the control plane.
    pub(super) api: &'a Api,
    /// The address of the object.
    pub(super) at: Address,
    /// The end of the operation's timeout.
    pub(super) until: Instant,
}

/// An object that an apply has declared, with the values that its state is built from.
pub(super) struct Declared {
    /// The planned state.
    pub(super) planned: Value,
    /// The private data beside the state.
    pub(super) private: Private,
    /// The object as the control plane returned it.
    pub(super) object: Json,
}

impl ApplyContext<'_> {
    /// The limit of a wait: the rest of the operation's timeout.
    pub(super) fn wait_limit(&self) -> RetryLimit {
        RetryLimit { until: self.until, cancel: self.request.cancel.clone() }
    }

    /// The limit of one request.
    pub(super) fn request_limit(&self) -> RetryLimit {
        let until = self.until.min(Instant::now() + RETRY_TIME);
        RetryLimit { until, cancel: self.request.cancel.clone() }
    }

    /// Whether the configuration takes over fields of other managers.
    pub(super) fn forces_conflicts(&self) -> bool {
        self.request.planned.get("force_conflicts").as_bool().unwrap_or_default()
    }

    /// Reads the object.
    pub(super) async fn read(&self) -> Result<Option<Json>, ApiError> {
        self.api.get(&self.at, &self.request_limit()).await
    }

    /// Declares the object with one server-side apply. One that a Quota refuses is repeated for a moment if this apply has deleted others,
    /// which may be counted still.
    pub(super) async fn declare(
        &self,
        object: &Json,
        force: bool,
        dry_run: bool,
    ) -> Result<Applied, ApiError> {
        let manager = self.settings.manager();
        let options = ApplyOptions { manager: &manager, force, dry_run };
        let counted = self.until.min(Instant::now() + COUNTED_WITHIN);
        loop {
            let applied = self.api.apply(&self.at, object, options, &self.request_limit()).await;
            let may_pass = !dry_run
                && self.settings.run.has_deleted()
                && applied.as_ref().is_err_and(is_refused_by_quota)
                && Instant::now() < counted;
            if !may_pass {
                return applied;
            }
            tokio::select! {
                () = self.request.cancel.cancelled() => return applied,
                () = sleep(COUNT_POLL) => {}
            }
        }
    }
}

/// Whether the admission policy of a Quota refuses a request.
fn is_refused_by_quota(error: &ApiError) -> bool {
    error.denial().is_some_and(|words| words.starts_with("Quota ") || words.starts_with("the Quota "))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_refusal_by_a_quota_is_recognized() {
        let refused = |words: &str, code| {
            let policy = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: ";
            let status = Status::failure(&format!("{policy}{words}"), "Forbidden").with_code(code);
            is_refused_by_quota(&ApiError::Refused(status.boxed()))
        };
        assert!(refused("Quota small: disks: 2 used, 1 more needed, limit 2", 403));
        assert!(refused("the Quota of the namespace allows no more disks", 403));
        assert!(!refused("a VM cannot be deleted", 403) && !refused("Quota small", 500));
        assert!(!is_refused_by_quota(&ApiError::Cancelled));
    }
}
