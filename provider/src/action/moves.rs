//! `berth_vm_move`: has a VM moved to another host, which no plan of its resource shows.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use berth_api::{
    Reason,
    vm::{MOVE_ANNOTATION, RequestedMove},
};
use serde_json::{Value as Json, json};
use tfplugin6::{
    Action, Attribute, Diagnostic, Schema,
    action::{ActionRequest, Progress},
    resource::ValidateRequest,
};

use super::{Invocation, arguments, problems, state};
use crate::{
    api::Verdict,
    form::Form,
    readiness::{Condition, condition},
    resource::KindResource,
    vm::restart::another,
};

const LOST_VARIABLES: &str = "its UEFI variables, such as its boot entries, stay behind: on the other host it boots from its boot disk by the \
                              default path (EFI/BOOT)";

/// The action `berth_vm_move`.
pub struct VmMove {
    vm: Arc<KindResource>,
}

impl fmt::Debug for VmMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmMove").finish_non_exhaustive()
    }
}

impl VmMove {
    /// The HCL example of its documentation.
    pub const EXAMPLE: &'static str = include_str!("../../../examples/actions/berth_vm_move/action.tf");

    /// The action on VMs of a resource.
    #[must_use]
    pub fn new(vm: Arc<KindResource>) -> Self {
        Self { vm }
    }
}

/// The host of a VM, and the epoch of its binding.
fn binding(object: &Json) -> Option<(&str, i64)> {
    let binding = object.pointer("/status/binding")?;
    Some((binding["host"].as_str()?, binding["epoch"].as_i64()?))
}

/// The change that requests the move. None: the VM is on that host.
fn change(object: &Json, to: Option<&str>, live: bool, title: &str) -> Result<Option<Json>, Diagnostic> {
    let Some((host, epoch)) = binding(object) else {
        let detail = "It waits for its first host.";
        return Err(Diagnostic::error(format!("{title} has no host yet"), detail));
    };
    if to == Some(host) {
        return Ok(None);
    }
    let text = RequestedMove { epoch, host: to.map(str::to_owned), live }.to_text();
    let has_annotations = object.pointer("/metadata/annotations").is_some_and(Json::is_object);
    Ok(Some(if has_annotations {
        let path = format!("/metadata/annotations/{}", MOVE_ANNOTATION.replace('/', "~1"));
        json!({"op": "add", "path": path, "value": text})
    } else {
        json!({"op": "add", "path": "/metadata/annotations", "value": {MOVE_ANNOTATION: text}})
    }))
}

/// Whether the running guest is being sent to the other host.
fn is_sent(object: &Json) -> bool {
    object.pointer("/status/migration").is_some_and(Json::is_object)
}

/// The restart in which the VM moves. None: it is not declared to run.
fn restart(object: &Json) -> Option<Json> {
    let power = object.pointer("/spec/power").and_then(Json::as_str).unwrap_or("Running");
    (power == "Running").then(|| json!({"op": "add", "path": "/spec/restartToken", "value": another(object)}))
}

/// The condition of a VM that is on the host which it was to leave.
fn went_back(object: &Json, host: &str) -> Condition {
    let found = condition(object, "Scheduled").unwrap_or_default();
    Condition {
        status: "False".to_owned(),
        message: format!("it is on host {host} again: {}", found.message),
        ..found
    }
}

#[async_trait]
impl Action for VmMove {
    fn type_name(&self) -> &str {
        "berth_vm_move"
    }

    fn schema(&self) -> Schema {
        let own = vec![
            Attribute::string("to").optional().description(
                "Name of the Host to which the VM moves. Default: the scheduler chooses one.",
            ),
            Attribute::bool("restart").optional().description(
                "Whether to restart a VM that runs, as its `stop` says, so that it moves now. Default false: it moves when it is next \
                 stopped, and the action does not wait for that.",
            ),
            Attribute::bool("live").optional().description(
                "Whether a VM that runs moves without a stop, if all its disks are in pools of type `Shared` and nothing else keeps its guest \
                 on its host. Otherwise it moves when it is next stopped. Default false.",
            ),
        ];
        Schema::new(arguments(own)).description(
            "Moves a VM to another host while it is off, or with `live` while it runs. Its disks in pools of type `Local` are copied there. \
             Terraform 1.14 and later.\n\nThe next plan of the VM's resource is empty. If \
             `placement` of the VM does not allow the other host, the VM is not moved, and the action \
             fails. A VM that is off moves at once. Its firmware variables and the memory of its TPM go with it.",
        )
    }

    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let mut found = problems(&request.config);
        let to = request.config.get("to").as_str();
        let problem = to.and_then(|to| Form::DottedName.problem(to));
        found.extend(problem.map(|problem| Diagnostic::error("Invalid to", problem).at("to")));
        found
    }

    async fn invoke(&self, request: ActionRequest, progress: Progress) -> Vec<Diagnostic> {
        let (settings, config) = (self.vm.session().settings(), &request.config);
        let action = match Invocation::new(&self.vm, &settings, config, &request.cancel) {
            Ok(action) => action,
            Err(diagnostic) => return vec![diagnostic],
        };
        let to = config.get("to").as_str();
        let restarts = config.get("restart").as_bool() == Some(true);
        let live = config.get("live").as_bool() == Some(true);
        let mut object = match action.patch(|object| change(object, to, live, &action.title)).await {
            Ok(object) => object,
            Err(diagnostics) => return diagnostics,
        };
        let (host, epoch) =
            binding(&object).map(|(host, epoch)| (host.to_owned(), epoch)).unwrap_or_default();
        if to == Some(host.as_str()) {
            progress.report(format!("{}: on host {host} already", action.title));
            return Vec::new();
        }
        progress.report(format!("{}: move from host {host} requested", action.title));
        if object.pointer("/status/hardware/firmware").and_then(Json::as_str) == Some("UEFI") {
            progress.report(format!("{}: {LOST_VARIABLES}", action.title));
        }
        if restarts {
            object = match action.patch(|object| Ok(restart(object))).await {
                Ok(object) => object,
                Err(diagnostics) => return diagnostics,
            };
        }
        if !action.waits() {
            return Vec::new();
        }
        let judge = |object: &Json| {
            match binding(object) {
                Some((at, now)) if now > epoch && at == host => {
                    return Verdict::Done(Some(went_back(object, &host)));
                }
                Some((_, now)) if now > epoch => return action.running(object),
                _ => {}
            }
            let has_ended = condition(object, "Ready").is_some_and(|ready| {
                Reason::OF_ENDED_GUESTS.iter().any(|reason| ready.reason == reason.as_str())
            });
            // It moves once it is stopped, or started again.
            let runs = has_ended || object.pointer("/status/process").is_some_and(Json::is_object);
            match condition(object, "Movable") {
                Some(movable) if movable.status == "False" => Verdict::Done(Some(movable)),
                Some(_) if runs && !restarts && !is_sent(object) => Verdict::Done(None),
                _ => Verdict::Wait(state(object).to_owned()),
            }
        };
        action.wait(object, &progress, judge).await
    }
}
