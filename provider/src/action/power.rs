//! `berth_vm_power`: starts, stops or pauses a VM of which no configuration declares the power.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use berth_api::Power;
use serde_json::{Value as Json, json};
use tfplugin6::{
    Action, Attribute, Diagnostic, Schema,
    action::{ActionRequest, PlanActionResponse, Progress},
    resource::ValidateRequest,
};

use super::{Invocation, arguments, problems, state};
use crate::{
    api::Verdict,
    readiness::Readiness,
    resource::{KindResource, appliers, other_applier},
};

/// The action `berth_vm_power`.
pub struct VmPower {
    vm: Arc<KindResource>,
}

impl fmt::Debug for VmPower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmPower").finish_non_exhaustive()
    }
}

impl VmPower {
    /// The HCL example of its documentation.
    pub const EXAMPLE: &'static str = include_str!("../../../examples/actions/berth_vm_power/action.tf");

    /// The action on VMs of a resource.
    #[must_use]
    pub fn new(vm: Arc<KindResource>) -> Self {
        Self { vm }
    }
}

fn power(object: &Json) -> &str {
    object.pointer("/spec/power").and_then(Json::as_str).unwrap_or("Running")
}

/// The manager that declares the power of a VM. A resource always does, also after an edit by hand has taken the field over.
fn declared_by(object: &Json) -> Option<&str> {
    other_applier(object, "", "power")
        .or_else(|| appliers(object).into_iter().find(|manager| manager.starts_with("terraform:")))
}

/// Refuses a change that the next declaration would undo.
fn check(object: &Json, wanted: &str, force: bool, title: &str) -> Result<(), Diagnostic> {
    match declared_by(object) {
        Some(manager) if power(object) != wanted && !force => {
            let detail = format!(
                "{manager:?} declares it, so the next plan there would undo the action: change power there. If that configuration \
                 ignores it (lifecycle {{ ignore_changes = [power] }}), set force_conflicts = true here."
            );
            Err(Diagnostic::error(format!("The power of {title} is declared"), detail).at("power"))
        }
        _ => Ok(()),
    }
}

#[async_trait]
impl Action for VmPower {
    fn type_name(&self) -> &str {
        "berth_vm_power"
    }

    fn schema(&self) -> Schema {
        let own = vec![
            Attribute::string("power").required().description("`Running` starts or resumes the VM, `Stopped` stops it as its `stop` says, `Paused` stops its CPUs, `Suspended` suspends it as its `suspend_mode` says."),
            Attribute::bool("force_conflicts").optional().description(
                "Whether to change a power that a configuration declares. Default false: that is an error, because the next plan \
                 there would undo the action.",
            ),
        ];
        Schema::new(arguments(own)).description(
            "Starts, stops, pauses or suspends a VM, and waits until it is so. Terraform 1.14 and later.\n\nA resource `berth_vm` \
             declares `power`, `Running` by default, and its next plan would undo the action. So the action is for VMs that no \
             configuration declares, and for resources that leave the power to others: with `lifecycle { ignore_changes = [power] }` \
             in the resource and `force_conflicts = true` in the action, the next plan is empty.",
        )
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let mut found = problems(&request.config);
        let power = request.config.get("power").as_str();
        let is_power = |word: &&str| Power::ALL.iter().any(|power| power.as_str() == *word);
        if let Some(word) = power.filter(|word| !is_power(word)) {
            let words = Power::ALL.map(|power| format!("{:?}", power.as_str())).join(", ");
            let detail = format!("{word:?} is not one of {words}.");
            found.push(Diagnostic::error("Invalid power", detail).at("power"));
        }
        found
    }

    /// Refuses at plan what the invocation would refuse, if the VM exists already and the control plane responds.
    async fn plan(&self, request: ActionRequest) -> PlanActionResponse {
        let (settings, config) = (self.vm.session().settings(), &request.config);
        let mut response = PlanActionResponse::default();
        if !config.is_wholly_known() || settings.reachable().await.is_none() {
            return response;
        }
        let Ok(action) = Invocation::new(&self.vm, &settings, config, &request.cancel) else {
            return response;
        };
        if let Ok(Some(object)) = action.find().await {
            let wanted = config.get("power").as_str().unwrap_or_default();
            let force = config.get("force_conflicts").as_bool() == Some(true);
            response.diagnostics.extend(check(&object, wanted, force, &action.title).err());
        }
        response
    }

    async fn invoke(&self, request: ActionRequest, progress: Progress) -> Vec<Diagnostic> {
        let (settings, config) = (self.vm.session().settings(), &request.config);
        let action = match Invocation::new(&self.vm, &settings, config, &request.cancel) {
            Ok(action) => action,
            Err(diagnostic) => return vec![diagnostic],
        };
        let wanted = config.get("power").as_str().unwrap_or_default();
        let force = config.get("force_conflicts").as_bool() == Some(true);
        let patched = action.patch(|object| {
            check(object, wanted, force, &action.title)?;
            let change = json!({"op": "add", "path": "/spec/power", "value": wanted});
            Ok((power(object) != wanted).then_some(change))
        });
        let object = match patched.await {
            Ok(object) => object,
            Err(diagnostics) => return diagnostics,
        };
        progress.report(format!("{}: power is {wanted}", action.title));
        if !action.waits() {
            return Vec::new();
        }
        let judge = |object: &Json| {
            if wanted == "Running" {
                return action.running(object);
            }
            if matches!(wanted, "Paused" | "Suspended") {
                let is_so = state(object) == wanted && Readiness::of(object).current;
                return if is_so { Verdict::Done(None) } else { Verdict::Wait(state(object).to_owned()) };
            }
            let is_off =
                object.pointer("/status/process").is_none_or(Json::is_null) && state(object) != "Stopping";
            if is_off && Readiness::of(object).current {
                Verdict::Done(None)
            } else {
                Verdict::Wait(state(object).to_owned())
            }
        };
        action.wait(object, &progress, judge).await
    }
}
