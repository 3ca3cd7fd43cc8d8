//! Plan: the field table, the kind's own rules, and, when the control plane answers, what admission would say.

use std::time::Duration;

use tfplugin6::{
    CancellationToken, Diagnostic, Value, diagnostic,
    resource::{PlanRequest, PlanResponse},
};

use super::{KindResource, conflict::Conflict};
use crate::{
    api::{ApiError, ApplyMode, Patience},
    change::PlannedChange,
    field::Effect,
    mapping, planning,
    private::Private,
    session::Settings,
};

/// How long a plan waits for what admission would say. Not knowing is no reason to fail.
const ASK_LIMIT: Duration = Duration::from_secs(10);

impl KindResource {
    /// Plans a create or an update.
    pub(super) async fn plan_change(&self, request: PlanRequest) -> PlanResponse {
        if request.is_destroy() {
            return PlanResponse::new(Value::Null);
        }
        let settings = self.session.settings();
        let planned = self.planned(&request.prior, &request.config, &settings);
        let private = Private::from_bytes(&request.private);
        let mut change = PlannedChange::new(&self.fields, &request.prior, &request.config, planned, private);
        self.kind.refine(&mut change);
        if change.is_create() || change.is_update() {
            warn_of_power_cycles(&mut change);
        }
        if !diagnostic::has_errors(&change.diagnostics) {
            let asked =
                tokio::time::timeout(ASK_LIMIT, self.ask_admission(&change, &settings, &request.cancel))
                    .await;
            change.diagnostics.extend(asked.unwrap_or_default());
        }
        PlanResponse {
            identity: Self::identity(&change.planned),
            planned: change.planned,
            requires_replace: change.replace,
            private: Some(change.private.to_bytes()),
            deferred: None,
            diagnostics: change.diagnostics,
        }
    }

    fn planned(&self, prior: &Value, config: &Value, settings: &Settings) -> Value {
        let mut planned = planning::plan(&self.fields, prior, config);
        planned.set("timeouts", config.get("timeouts").clone());
        if config.get("namespace").is_null() && prior.is_null() {
            planned.set("namespace", settings.namespace.clone().map_or(Value::UNKNOWN, Value::from));
        }
        if config.get("name").is_null() && prior.is_null() {
            planned.set("name", self.kind.default_name(config));
        }
        if prior.is_null()
            && let (Some(namespace), Some(name)) =
                (planned.get("namespace").as_str(), planned.get("name").as_str())
        {
            let id = format!("{namespace}/{name}");
            planned.set("id", id);
        }
        planned
    }

    /// What admission would say. Silent when the control plane is away, when this user may not ask, and when too much
    /// is unknown: a plan must not need any of it.
    async fn ask_admission(
        &self,
        change: &PlannedChange<'_>,
        settings: &Settings,
        cancel: &CancellationToken,
    ) -> Vec<Diagnostic> {
        let named = ["namespace", "name"].iter().all(|name| change.planned.get(name).as_str().is_some());
        let known = named && mapping::declared_is_known(&self.fields, &change.planned);
        if !known || !(change.is_create() || change.is_update()) {
            return Vec::new();
        }
        let Some(api) = settings.reachable().await else { return Vec::new() };
        let at = self.address(&change.planned);
        let uid = change.prior.get("uid").as_str().filter(|uid| !uid.is_empty());
        let object = self.object(&change.planned, change.config, &change.private, uid);
        let patience = Patience::seconds(0, cancel);
        let force = change.planned.get("force_conflicts").as_bool().unwrap_or_default();
        let answer = if change.is_create() {
            api.dry_create(&at, &object, &settings.manager(), &patience).await.map(|_| ())
        } else {
            let mode = ApplyMode { force, dry_run: true };
            match api.apply(&at, &object, &settings.manager(), mode, &patience).await {
                Err(error) if Conflict::is_one(&error) => {
                    match Conflict::of(api, &at, &error, &patience).await {
                        Ok(conflict) if conflict.is_with_people_only() => {
                            let mode = ApplyMode { force: true, dry_run: true };
                            api.apply(&at, &object, &settings.manager(), mode, &patience).await.map(|_| ())
                        }
                        Ok(conflict) => return vec![conflict.diagnostic(&self.title(&at), &self.fields)],
                        Err(error) => Err(error),
                    }
                }
                answer => answer.map(|_| ()),
            }
        };
        match answer {
            Err(error @ ApiError::Refused(_)) if matches!(error.code(), 400 | 422) => {
                self.refused(&error, &at)
            }
            _ => Vec::new(),
        }
    }
}

/// Says of each change that waits for the next power cycle that it does. A VM that does not run has no need of it.
fn warn_of_power_cycles(change: &mut PlannedChange<'_>) {
    if change.is_create() || change.prior.get("power").as_str() == Some("Stopped") {
        return;
    }
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
