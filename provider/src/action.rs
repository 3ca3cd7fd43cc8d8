//! Actions on a VM: restart, power and move.
//!
//! ```text
//! read the VM ─▶ refuse, or patch its spec at this version (again, if it has changed) ─▶ wait, with progress
//! ```
//!
//! They write as a manager of their own: a manual edit to the resource that declares the VM.

mod moves;
mod power;
mod restart;

use std::{sync::Arc, time::Duration};

use serde_json::{Value as Json, json};
use tfplugin6::{Attribute, CancellationToken, Diagnostic, Value, action::Progress};
use tokio::time::Instant;

pub use moves::VmMove;
pub use power::VmPower;
pub use restart::VmRestart;

use crate::{
    api::{Address, Api, ObjectWait, RetryLimit, Verdict, WaitEnd, wait_until},
    form::Form,
    readiness::{Condition, Outcome},
    resource::KindResource,
    timeouts,
};

/// The time for which a request is retried while the control plane is away, in seconds.
const RETRIES: u64 = 30;
/// How often a change is tried on an object that others keep changing.
const ATTEMPTS: u32 = 10;
/// The default timeout.
const TIMEOUT: &str = "10m";
/// The words of `wait_for`.
const WAITS: [&str; 3] = ["none", "running", "guest"];

/// The arguments that every action has, with those of its own after the name.
fn arguments(own: Vec<Attribute>) -> Vec<Attribute> {
    let mut arguments = vec![
        Attribute::string("name").required().description("Name of the VM."),
        Attribute::string("namespace")
            .optional()
            .description("Namespace of the VM. Default: the provider's `namespace`."),
    ];
    arguments.extend(own);
    arguments.push(Attribute::string("wait_for").optional().description(
        "The state that the action waits for: `none`, `running` (default: QEMU runs and everything declared \
         is attached), or `guest` (the guest agent answered, or without an agent the guest got its first \
         DHCP lease). With any value but `none`, the action also waits for a VM that is to be off.",
    ));
    arguments.push(Attribute::string("timeout").optional().description(format!(
        "The longest wait, such as `30s`, `10m` or `1h`; then the action fails. Default `{TIMEOUT}`."
    )));
    arguments
}

/// The problems with these arguments.
fn problems(config: &Value) -> Vec<Diagnostic> {
    let text = |name: &str| config.get(name).as_str();
    let mut found = Vec::new();
    for name in ["name", "namespace"] {
        let problem = text(name).and_then(|text| Form::Name.problem(text));
        found.extend(problem.map(|problem| Diagnostic::error(format!("Invalid {name}"), problem).at(name)));
    }
    if let Some(word) = text("wait_for").filter(|word| !WAITS.contains(word)) {
        let detail = format!("{word:?} is not one of \"none\", \"running\", \"guest\".");
        found.push(Diagnostic::error("Invalid wait_for", detail).at("wait_for"));
    }
    if let Some(text) = text("timeout").filter(|text| timeouts::parse(text).is_none()) {
        let detail =
            format!("{text:?} is not a duration between 1s and 24h: write for example \"30s\" or \"10m\".");
        found.push(Diagnostic::error("Invalid timeout", detail).at("timeout"));
    }
    found
}

/// One invocation.
struct Invocation<'a> {
    resource: &'a KindResource,
    api: &'a Api,
    /// The field manager.
    manager: String,
    at: Address,
    title: String,
    /// The planned state for [`crate::kind::ResourceKind::outcome`].
    wanted: Value,
    limit: RetryLimit,
    timeout: String,
}

impl<'a> Invocation<'a> {
    fn new(
        resource: &'a Arc<KindResource>,
        settings: &'a crate::session::Settings,
        config: &Value,
        cancel: &CancellationToken,
    ) -> Result<Self, Diagnostic> {
        let api = settings.api.as_ref();
        let api = api.map_err(|problem| resource.no_control_plane(settings, &resource.any(), problem))?;
        let text = |name: &str| config.get(name).as_str();
        let namespace = text("namespace").map(str::to_owned).or_else(|| settings.namespace.clone());
        let namespace = namespace.ok_or_else(|| {
            let detail = "The provider's namespace is not known yet: it comes from a resource that does not exist yet. Set namespace \
                          here.";
            Diagnostic::error("Unknown namespace", detail).at("namespace")
        })?;
        let at = Address::berth(resource.info().plural, &namespace, text("name").unwrap_or_default());
        let timeout = text("timeout").unwrap_or(TIMEOUT);
        let seconds = timeouts::parse(timeout).unwrap_or_default();
        let limit =
            RetryLimit { until: Instant::now() + Duration::from_secs(seconds), cancel: cancel.clone() };
        Ok(Self {
            resource,
            api,
            // Not the manager that declares: the next declaration corrects a manual edit, and no declaration.
            manager: format!("terraform-action:{}", settings.owner),
            title: resource.title(&at),
            at,
            wanted: Value::object([("wait_for", Value::from(text("wait_for").unwrap_or("running")))]),
            limit,
            timeout: timeout.to_owned(),
        })
    }

    /// The limits of one request.
    fn request_limit(&self) -> RetryLimit {
        let until = self.limit.until.min(Instant::now() + Duration::from_secs(RETRIES));
        RetryLimit { until, cancel: self.limit.cancel.clone() }
    }

    /// The VM, if it exists.
    async fn find(&self) -> Result<Option<Json>, Vec<Diagnostic>> {
        let found = self.api.get(&self.at, &self.request_limit()).await;
        found.map_err(|error| self.resource.request_diagnostics(&error, &self.at))
    }

    /// Patches the VM with the operations that `change` derives from its current version. None: there is nothing to change.
    async fn patch(
        &self,
        change: impl Fn(&Json) -> Result<Option<Json>, Diagnostic>,
    ) -> Result<Json, Vec<Diagnostic>> {
        let mut attempt = 1;
        let mut sent: Option<Json> = None;
        loop {
            let object = self.find().await?.ok_or_else(|| vec![self.missing()])?;
            if object.pointer("/metadata/deletionTimestamp").is_some() {
                let detail = "Its deletion was requested, so it cannot be changed any more. Name another VM, or create it again once it is gone.";
                return Err(vec![Diagnostic::error(format!("{} is being deleted", self.title), detail)]);
            }
            // Its response was lost, and a repetition came to the changed object. Another restart would be a second one.
            if sent.as_ref().is_some_and(|sent| is_carried_out(sent, &object)) {
                return Ok(object);
            }
            let Some(operation) = change(&object).map_err(|refused| vec![refused])? else {
                return Ok(object);
            };
            let version = &object["metadata"]["resourceVersion"];
            let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": version});
            let patch = json!([test, operation]);
            match self.api.json_patch(&self.at, &patch, &self.manager, &self.request_limit()).await {
                Ok(object) => return Ok(object),
                // The object has changed since it was read.
                Err(error) if error.code() == 422 && attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(self.resource.request_diagnostics(&error, &self.at)),
            }
            sent = Some(operation);
        }
    }

    fn missing(&self) -> Diagnostic {
        let detail = format!(
            "Namespace {} has no VM {}. If this configuration creates it, name it by its resource (name = berth_vm.NAME.name), so \
             that the action comes after it.",
            self.at.namespace, self.at.name
        );
        Diagnostic::error(format!("{} does not exist", self.title), detail).at("name")
    }

    fn waits(&self) -> bool {
        self.wanted.get("wait_for").as_str() != Some("none")
    }

    /// Whether the VM runs as far as `wait_for` says.
    fn running(&self, object: &Json) -> Verdict<Option<Condition>> {
        match self.resource.kind().outcome(object, &self.wanted) {
            Outcome::Done => Verdict::Done(None),
            Outcome::Stalled(condition) if !condition.is_transient() => Verdict::Done(Some(condition)),
            Outcome::Stalled(condition) => Verdict::Wait(condition.text()),
            Outcome::Waiting(why) | Outcome::Soon(why) => Verdict::Wait(why),
        }
    }

    /// Waits for a verdict: none, or the condition that a person must resolve.
    async fn wait(
        &self,
        object: Json,
        progress: &Progress,
        mut judge: impl FnMut(&Json) -> Verdict<Option<Condition>>,
    ) -> Vec<Diagnostic> {
        let mut shown = String::new();
        let waiting = ObjectWait { api: self.api, at: &self.at, object, retry_limit: self.limit.clone() };
        let ended = wait_until(waiting, |object| {
            let verdict = judge(object);
            if let Verdict::Wait(why) = &verdict
                && *why != shown
            {
                progress.report(format!("{}: {why}", self.title));
                shown.clone_from(why);
            }
            verdict
        })
        .await;
        let title = &self.title;
        let error = |summary: String, detail: String| vec![Diagnostic::error(summary, detail)];
        match ended {
            WaitEnd::Done(None, object) => {
                progress.report(format!("{title}: {}", state(&object)));
                Vec::new()
            }
            WaitEnd::Done(Some(condition), _) => {
                let detail =
                    format!("{}. Correct the cause; the VM then continues by itself.", condition.text());
                error(format!("{title} cannot become ready"), detail)
            }
            WaitEnd::Gone => {
                error(format!("{title} is gone"), "Another client deleted it during the action.".into())
            }
            WaitEnd::TimedOut(_, why) => {
                let detail = format!(
                    "{} have passed; the operation continues in the background. It waits for: {why}. timeout = \"…\" sets a longer \
                     time.",
                    self.timeout
                );
                error(format!("{title} is not ready yet"), detail)
            }
            WaitEnd::Cancelled(_) => {
                let detail = "Terraform was interrupted. The operation continues in the background.";
                error(format!("Stopped waiting for {title}"), detail.into())
            }
            WaitEnd::Unreachable(_, problem) => {
                let detail = format!("{problem}. The operation continues in the background.");
                error(format!("The control plane became unreachable during the wait for {title}"), detail)
            }
        }
    }
}

/// Whether an object is as an operation of a patch makes it.
fn is_carried_out(operation: &Json, object: &Json) -> bool {
    let path = operation["path"].as_str().unwrap_or_default();
    object.pointer(path) == operation.get("value")
}

/// The state of a VM, in a word.
fn state(object: &Json) -> &str {
    object.pointer("/status/state").and_then(Json::as_str).unwrap_or("Pending")
}
