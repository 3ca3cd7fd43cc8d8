//! Plan: the field table, the kind's own rules, and, when the control plane responds, admission.

use std::time::Duration;

use tfplugin6::{
    CancellationToken, Diagnostic, Severity, Value, diagnostic,
    resource::{ApplyRequest, PlanRequest, PlanResponse},
};

use super::{KindResource, conflict::Conflict, with_path};
use tokio::time::Instant;

use crate::{
    api::{Api, ApiError, ApplyOptions, RetryLimit},
    change::PlannedChange,
    defaults,
    field::Effect,
    mapping, name_prefix, planning,
    private::Private,
    run::Run,
    session::Settings,
};

/// The longest wait of a plan for admission. A missing response does not fail the plan.
const ADMISSION_LIMIT: Duration = Duration::from_secs(10);

impl KindResource {
    /// Plans a create or an update.
    pub(super) async fn plan_change(&self, request: PlanRequest) -> PlanResponse {
        if request.is_destroy() {
            return self.plan_destroy(request).await;
        }
        let settings = self.session.settings();
        let mut private = Private::from_bytes(&request.private);
        let planned = self.planned(&request.prior, &request.config, &private, &settings);
        private.restart_token_before.clone_from(&private.restart_token);
        private.keeps_placement_before = private.keeps_placement;
        private.keeps_placement = self.keeps_placement(&request.config, &planned);
        private.replaces = self.replaced(&settings.run, &request.prior, &planned);
        let mut change = PlannedChange::new(&self.fields, &request.prior, &request.config, planned, private);
        change.run = settings.run.clone();
        name_prefix::refine(&mut change);
        self.kind.refine(&mut change);
        self.kind.derive(&mut change).await;
        if !change.replace.is_empty() && request.config.get("name").is_null() {
            // The new object has no name of the configuration either.
            let is_generated = name_prefix::is_generated(&request.config);
            let name = if is_generated { Value::UNKNOWN } else { self.kind.default_name(&request.config) };
            change.planned.set("name", name);
            change.planned.set("id", Value::UNKNOWN);
        }
        let is_destructive = !change.replace.is_empty();
        let refused = self.refuse_after_move(&request.prior, &change.private, is_destructive);
        change.diagnostics.extend(refused);
        if change.is_create() {
            self.compare_with_moved(&settings.run, &mut change);
        }
        if (change.is_create() || !change.replace.is_empty()) && self.identity(&change.planned).is_some() {
            change.run.announce(&self.address(&change.planned), &change.planned);
            change.diagnostics.extend(self.destroyed_before(&change.run, &change.planned));
        }
        self.check_holders(&mut change);
        if let Some(api) = settings.reachable().await {
            // Without a response in time, the apply checks the rules that need one.
            let looks = async {
                self.kind.look(api, &mut change).await;
                self.look_for_references(api, &mut change).await;
            };
            let _ = tokio::time::timeout(ADMISSION_LIMIT, looks).await;
        }
        if change.is_create() || change.is_update() {
            warn_of_power_cycles(&mut change);
            warn_of_placement(&mut change);
        }
        if !change.replace.is_empty() {
            change.diagnostics.extend(self.protected(&request.prior, "replaced"));
        }
        if !diagnostic::has_errors(&change.diagnostics) && change.refusals.is_empty() {
            let dry_run = self.dry_run(&change, &settings, &request.cancel);
            let (refusals, missing) =
                tokio::time::timeout(ADMISSION_LIMIT, dry_run).await.unwrap_or_default();
            change.refusals.extend(refusals);
            change.missing.extend(missing);
        }
        change.diagnostics.extend(change.missing.drain(..).map(missing_as_warning));
        // A replacement deletes first: a refusal of its create must stop the plan.
        let replaces = !change.replace.is_empty();
        let refusals = std::mem::take(&mut change.refusals).into_iter();
        change
            .diagnostics
            .extend(refusals.map(|refusal| if replaces { refusal } else { as_warning(refusal) }));
        PlanResponse {
            identity: self.identity(&change.planned),
            planned: change.planned,
            requires_replace: change.replace,
            private: Some(change.private.to_bytes()),
            deferred: None,
            diagnostics: change.diagnostics.into_iter().map(with_path).collect(),
        }
    }

    /// The reasons why the plan must not be applied: the rules of the plan, checked again with all values known.
    pub(super) async fn refusals(
        &self,
        api: &Api,
        settings: &Settings,
        request: &ApplyRequest,
        until: Instant,
    ) -> Vec<Diagnostic> {
        let private = Private::from_bytes(&request.private);
        let (prior, config) = (&request.prior, &request.config);
        let mut change = PlannedChange::new(&self.fields, prior, config, request.planned.clone(), private);
        change.run = settings.run.clone();
        change.is_applied = true;
        name_prefix::refine(&mut change);
        self.kind.refine(&mut change);
        self.kind.derive(&mut change).await;
        let _ = tokio::time::timeout(ADMISSION_LIMIT, self.kind.look(api, &mut change)).await;
        let limit = RetryLimit { until, cancel: request.cancel.clone() };
        self.await_references(api, &mut change, &limit).await;
        change.refusals.append(&mut change.missing);
        change.refusals
    }

    /// The uid of the object that a create replaces under the same name. Terraform plans the change of a resource first, and
    /// then, where that is a replacement, its create.
    fn replaced(&self, run: &Run, prior: &Value, planned: &Value) -> Option<String> {
        if prior.is_null() {
            return run.managed_uid(&self.address(planned));
        }
        run.manages(&self.address(prior), prior.get("uid").as_str()?);
        None
    }

    /// Refuses to destroy a resource that the last apply left protected.
    pub(super) fn protected(&self, prior: &Value, what: &str) -> Option<Diagnostic> {
        let protected = prior.get("deletion_protection").as_bool().unwrap_or_default();
        let title = self.title(&self.address(prior));
        let detail = format!(
            "{title} has deletion_protection = true and would be {what}. Set deletion_protection = false and apply that \
             first."
        );
        protected
            .then(|| Diagnostic::error(format!("{title} is protected"), detail).at("deletion_protection"))
    }

    /// Whether the planned placement is not from the configuration.
    fn keeps_placement(&self, config: &Value, planned: &Value) -> bool {
        defaults::has_placement(&self.fields)
            && config.get(defaults::PLACEMENT).is_null()
            && !planned.get(defaults::PLACEMENT).is_null()
    }

    fn planned(&self, prior: &Value, config: &Value, private: &Private, settings: &Settings) -> Value {
        let config = &settings.defaults.filled(&self.fields, prior, config, private.keeps_placement);
        let mut planned = planning::plan(&self.fields, prior, config);
        planned.set("timeouts", config.get("timeouts").clone());
        if self.is_namespaced && config.get("namespace").is_null() && prior.is_null() {
            planned.set("namespace", settings.namespace.clone().map_or(Value::UNKNOWN, Value::from));
        }
        if prior.is_null() && !self.kind.is_adopted() {
            if config.get("name_prefix").is_null() {
                planned.set("name_prefix", Value::Null);
            }
            if config.get("name").is_null() && !name_prefix::is_generated(config) {
                planned.set("name", self.kind.default_name(config));
            }
        }
        if prior.is_null() && self.identity(&planned).is_some() {
            let id = self.address(&planned).id();
            planned.set("id", id);
        }
        planned
    }

    /// Applies the change with a dry run and returns the refusals of admission, and those for lack of a namespace. Returns nothing
    /// when the control plane is away, when this user lacks the permission, and when too much is unknown: a plan must not need any
    /// of it.
    async fn dry_run(
        &self,
        change: &PlannedChange<'_>,
        settings: &Settings,
        cancel: &CancellationToken,
    ) -> (Vec<Diagnostic>, Vec<Diagnostic>) {
        let nothing = || (Vec::new(), Vec::new());
        // A generated name is not known yet: another one serves as well.
        let mut planned = change.planned.clone();
        let prefix = change.config.get("name_prefix").as_str();
        if let Some(prefix) =
            prefix.filter(|_| change.is_create() && name_prefix::is_generated(change.config))
        {
            planned.set("name", name_prefix::generate(prefix));
        }
        let named = self.identity(&planned).is_some();
        let known = named && mapping::declared_is_known(&self.fields, &planned, change.config);
        if !known || !(change.is_create() || change.is_update()) {
            return nothing();
        }
        let Some(api) = settings.reachable().await else { return nothing() };
        let at = self.address(&planned);
        let uid = change.prior.get("uid").as_str().filter(|uid| !uid.is_empty());
        let object = self.object(&planned, change.config, &change.private, uid);
        let retry_limit = RetryLimit::seconds(0, cancel);
        let force = change.planned.get("force_conflicts").as_bool().unwrap_or_default();
        let manager = settings.manager();
        let options = ApplyOptions { manager: &manager, force, dry_run: true };
        let result = if change.is_create() && !self.kind.is_adopted() {
            api.dry_create(&at, &object, &manager, &retry_limit).await.map(|_| ())
        } else {
            match api.apply(&at, &object, options, &retry_limit).await {
                Err(error) if Conflict::is_cause_of(&error) => {
                    match Conflict::read(api, &at, &error, &retry_limit).await {
                        Ok(conflict) if conflict.is_manual_only() => {
                            let options = ApplyOptions { force: true, ..options };
                            api.apply(&at, &object, options, &retry_limit).await.map(|_| ())
                        }
                        Ok(conflict) => {
                            return (vec![conflict.diagnostic(&self.title(&at), &self.fields)], Vec::new());
                        }
                        Err(error) => Err(error),
                    }
                }
                result => result.map(|_| ()),
            }
        };
        match result {
            // Not for lack of a right: a plan may be made by a user that only reads.
            Err(error @ ApiError::Refused(_))
                if matches!(error.code(), 400 | 422) || error.denial().is_some() =>
            {
                (self.request_diagnostics(&error, &at), Vec::new())
            }
            Err(error) if error.is_namespace_missing() => (Vec::new(), self.request_diagnostics(&error, &at)),
            _ => nothing(),
        }
    }
}

/// Turns a refusal into the warning of a plan. Before `terraform destroy` Terraform plans the configuration as for an apply,
/// and a provider cannot distinguish the two: an error in a plan would block the destroy.
fn as_warning(refusal: Diagnostic) -> Diagnostic {
    let detail = format!(
        "{} An apply of this plan fails at this resource, before it changes it. It is no error yet, because an error in a \
         plan would also block terraform destroy.",
        refusal.detail
    );
    Diagnostic { severity: Severity::Warning, detail, ..refusal }
}

/// Turns a refusal for lack of an object into the warning of a plan, which does not know what the apply creates first.
fn missing_as_warning(refusal: Diagnostic) -> Diagnostic {
    let detail = format!("{} An apply fails for lack of it, unless it creates that too.", refusal.detail);
    Diagnostic { severity: Severity::Warning, detail, ..refusal }
}

/// Warns of each change that waits for the next power cycle.
fn warn_of_power_cycles(change: &mut PlannedChange<'_>) {
    let waiting: Vec<Diagnostic> = change
        .with_effect(Effect::PowerCycle)
        .map(|change| {
            let detail =
                format!("The change of {} takes effect when the VM is next started, not now.", change.path);
            Diagnostic::warning("Takes effect at the next power cycle", detail).at(change.path.clone())
        })
        .collect();
    change.diagnostics.extend(waiting);
}

/// Warns of each change that only matters when the VM is placed: it does not move the VM. A refused change has its own
/// diagnostic.
fn warn_of_placement(change: &mut PlannedChange<'_>) {
    if !change.refusals.is_empty() {
        return;
    }
    let read_later: Vec<Diagnostic> = change
        .with_effect(Effect::Placement)
        .map(|change| {
            let detail = format!(
                "{} is read when a VM is placed. The VM has a host already, and stays there, also when it is restarted, \
                 unless placement.move_policy is WhenStopped. Another VM is placed anew: terraform apply -replace=ADDRESS.",
                change.path
            );
            Diagnostic::warning("Does not move the VM", detail).at(change.path.clone())
        })
        .collect();
    change.diagnostics.extend(read_later);
}
