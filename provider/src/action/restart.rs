//! `berth_vm_restart`: another part of the provider's own in the restart token, which no plan shows.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use berth_api::power::{PowerChange, refusal};
use serde_json::{Value as Json, json};
use tfplugin6::{
    Action, Diagnostic, Schema,
    action::{ActionRequest, Progress},
    resource::ValidateRequest,
};

use super::{Invocation, arguments, problems, state};
use crate::{api::Verdict, resource::KindResource, vm::restart::another};

/// The action `berth_vm_restart`.
pub struct VmRestart {
    vm: Arc<KindResource>,
}

impl fmt::Debug for VmRestart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmRestart").finish_non_exhaustive()
    }
}

impl VmRestart {
    /// The HCL example of its documentation.
    pub const EXAMPLE: &'static str = include_str!("../../../examples/actions/berth_vm_restart/action.tf");

    /// The action on VMs of a resource.
    #[must_use]
    pub fn new(vm: Arc<KindResource>) -> Self {
        Self { vm }
    }
}

#[async_trait]
impl Action for VmRestart {
    fn type_name(&self) -> &str {
        "berth_vm_restart"
    }

    fn schema(&self) -> Schema {
        Schema::new(arguments(Vec::new())).description(
            "Restarts a VM once, as its `stop` says, and waits until it runs again. Terraform 1.14 and later.\n\nThe next plan of \
             its resource is empty: `restart_token` stays as it is declared. A VM that its `restart_policy` has left off is \
             started. A VM that is declared `Stopped` or `Paused` is not, which is an error.\n\nIn an `action_trigger`, use `after_create` or \
             `after_update`: an update that follows the action could restart the VM again.",
        )
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        problems(&request.config)
    }

    async fn invoke(&self, request: ActionRequest, progress: Progress) -> Vec<Diagnostic> {
        let settings = self.vm.session().settings();
        let action = match Invocation::new(&self.vm, &settings, &request.config, &request.cancel) {
            Ok(action) => action,
            Err(diagnostic) => return vec![diagnostic],
        };
        let patched = action.patch(|object| {
            let declared = object.pointer("/spec/power").cloned();
            let declared = declared.and_then(|power| serde_json::from_value(power).ok()).unwrap_or_default();
            let observed = object.pointer("/status/state").cloned();
            let observed = observed.and_then(|state| serde_json::from_value(state).ok());
            if let Some(why) = refusal(PowerChange::Restart, declared, observed) {
                let detail = format!("{why}.");
                return Err(Diagnostic::error(format!("{} is not restarted", action.title), detail));
            }
            Ok(Some(json!({"op": "add", "path": "/spec/restartToken", "value": another(object)})))
        });
        let object = match patched.await {
            Ok(object) => object,
            Err(diagnostics) => return diagnostics,
        };
        progress.report(format!("{}: restart requested", action.title));
        if !action.waits() {
            return Vec::new();
        }
        let token = object["spec"]["restartToken"].clone();
        let judge = |object: &Json| {
            // Set at the start that followed the request.
            if object.pointer("/status/restartToken") == Some(&token) {
                action.running(object)
            } else {
                Verdict::Wait(state(object).to_owned())
            }
        };
        action.wait(object, &progress, judge).await
    }
}
