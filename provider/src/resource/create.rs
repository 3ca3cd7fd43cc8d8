//! Create: look, declare, write what stands beside, wait.
//!
//! ```text
//! GET ─ none ───────────▶ apply ─ 201 ─▶ beside ─▶ wait ─▶ state
//!   ├── ours and equal ──▶ adopt ───────────┘
//!   ├── on its way out ──▶ wait until it is gone, GET again
//!   └── anything else ───▶ error with an import hint
//! ```

use std::time::Duration;

use serde_json::Value as Json;
use tfplugin6::{
    Diagnostic, Value,
    resource::{ApplyRequest, ApplyResponse},
};
use tokio::time::Instant;

use super::{KindResource, conflict::appliers, is_terminating, text, wait::Purpose};
use crate::{
    api::{self, Address, Api, ApiError, ApplyMode, Ended, Patience, Verdict, Waiting},
    kind::Beside,
    private::Private,
    session::Settings,
    timeouts::{self, Operation},
};

/// How long requests are tried again while the control plane is away.
pub(super) const RETRIES: u64 = 30;

impl KindResource {
    /// Makes it.
    pub(super) async fn create(&self, request: ApplyRequest) -> ApplyResponse {
        let settings = self.session.settings();
        let api = match &settings.api {
            Ok(api) => api.clone(),
            Err(problem) => return no_control_plane(problem).into(),
        };
        let mut planned = request.planned.clone();
        if planned.get("namespace").is_unknown() {
            let namespace = settings.namespace.clone().unwrap_or_else(|| "default".into());
            planned.set("namespace", namespace);
        }
        if planned.get("name").is_unknown() {
            planned.set("name", self.kind.default_name(&request.config));
        }
        let at = self.address(&planned);
        let id = format!("{}/{}", at.namespace, at.name);
        planned.set("id", id);
        let private = Private::from_bytes(&request.private);
        let until = Instant::now() + timeouts::limit(Operation::Create, &planned, self.facts.timeouts);
        let declared = self.object(&planned, &request.config, &private, None);
        let object = match self.declare_new(&api, &settings, &at, &declared, until, &request).await {
            Ok(object) => object,
            Err(diagnostics) => return ApplyResponse::failed(diagnostics),
        };
        self.finish(&api, &settings, Purpose::Create, &at, planned, private, object, until, &request).await
    }

    /// What an apply does once the object is declared: writes what stands beside it, waits, and makes the state.
    #[allow(
        clippy::too_many_arguments,
        reason = "the whole of an apply in flight; a struct would only rename it"
    )]
    pub(super) async fn finish(
        &self,
        api: &Api,
        settings: &Settings,
        purpose: Purpose,
        at: &Address,
        planned: Value,
        private: Private,
        object: Json,
        until: Instant,
        request: &ApplyRequest,
    ) -> ApplyResponse {
        let manager = settings.manager();
        let beside = Beside {
            api,
            manager: &manager,
            at,
            object: &object,
            planned: &planned,
            config: &request.config,
            private: &private,
        };
        // An update has written it before: nothing must be promised in the object that is not there yet.
        let written = if purpose == Purpose::Create { self.kind.write_beside(beside).await } else { Ok(()) };
        if let Err(error) = written {
            let (state, private) = self.state_after(&planned, &object, &private);
            let response = ApplyResponse::new(state).warn(self.refused(&error, at));
            return ApplyResponse { private: Some(private.to_bytes()), ..response };
        }
        let patience = Patience { until, cancel: request.cancel.clone() };
        let waited = self.wait(Waiting { api, at, object, patience }, purpose, &planned).await;
        let Some(object) = waited.object else { return ApplyResponse::failed(waited.diagnostics) };
        let (state, private) = self.state_after(&planned, &object, &private);
        ApplyResponse {
            identity: Self::identity(&state),
            state: Some(state),
            private: Some(private.to_bytes()),
            diagnostics: waited.diagnostics,
        }
    }

    async fn declare_new(
        &self,
        api: &Api,
        settings: &Settings,
        at: &Address,
        declared: &Json,
        until: Instant,
        request: &ApplyRequest,
    ) -> Result<Json, Vec<Diagnostic>> {
        let patience = || Patience {
            until: until.min(Instant::now() + Duration::from_secs(RETRIES)),
            cancel: request.cancel.clone(),
        };
        let refused = |error: ApiError| self.refused(&error, at);
        while let Some(found) = api.get(at, &patience()).await.map_err(refused)? {
            if !is_terminating(&found) {
                return self.adopt(api, settings, at, declared, found, &patience()).await;
            }
            let patience = Patience { until, cancel: request.cancel.clone() };
            let waiting = Waiting { api, at, object: found, patience };
            let ended = api::until(waiting, |_| Verdict::<()>::Wait("being deleted".into())).await;
            if !matches!(ended, Ended::Gone) {
                let detail = "The object of that name that is being deleted did not go away in time. What it waits for \
                              stands in its status; apply again when it is gone.";
                return Err(vec![Diagnostic::error(
                    format!("{} is still being deleted", self.title(at)),
                    detail,
                )]);
            }
        }
        let manager = settings.manager();
        let applied =
            api.apply(at, declared, &manager, ApplyMode::default(), &patience()).await.map_err(refused)?;
        let ours_alone = appliers(&applied.object).iter().all(|&applier| applier == manager);
        // After a lost answer the object may be there by our own first attempt.
        if applied.created || (applied.retried && ours_alone) {
            return Ok(applied.object);
        }
        let detail =
            format!("Somebody else made it at the same moment. Look at it, then {}.", self.import_hint(at));
        Err(vec![Diagnostic::error(format!("{} was made by somebody else", self.title(at)), detail)])
    }

    /// An object that is there already is taken over only if this very configuration made it: by the same owner, and
    /// with nothing to change.
    async fn adopt(
        &self,
        api: &Api,
        settings: &Settings,
        at: &Address,
        declared: &Json,
        found: Json,
        patience: &Patience,
    ) -> Result<Json, Vec<Diagnostic>> {
        let manager = settings.manager();
        let exists = |why: String| {
            let detail = format!("{why} To manage it with Terraform, {}.", self.import_hint(at));
            vec![Diagnostic::error(format!("{} exists already", self.title(at)), detail)]
        };
        if !appliers(&found).contains(manager.as_str()) {
            return Err(exists(format!("It was not made by owner {:?}.", settings.owner)));
        }
        let mode = ApplyMode { force: true, dry_run: true };
        let would_be = match api.apply(at, declared, &manager, mode, patience).await {
            Ok(applied) => applied.object,
            Err(ApiError::Refused(status)) => {
                return Err(exists(format!("It differs from this configuration ({}).", status.message)));
            }
            Err(error) => return Err(self.refused(&error, at)),
        };
        let parts = ["/spec", "/metadata/labels"];
        if let Some(part) = parts.iter().find(|part| found.pointer(part) != would_be.pointer(part)) {
            return Err(exists(format!(
                "It differs from this configuration (in {}).",
                part.trim_start_matches('/')
            )));
        }
        tracing::info!(
            kind = self.facts.kind,
            namespace = at.namespace,
            name = at.name,
            "adopted what an earlier apply made"
        );
        Ok(found)
    }

    fn import_hint(&self, at: &Address) -> String {
        format!("run: terraform import {}.NAME {}/{}", self.facts.type_name, at.namespace, at.name)
    }
}

/// There is no way to the control plane.
pub(super) fn no_control_plane(problem: &str) -> Diagnostic {
    Diagnostic::error("No control plane", problem)
}

/// Whether the object is, or was on a control plane before, the one of that uid: its site may have moved.
pub(super) fn is_known_as(object: &Json, known: &str) -> bool {
    let annotations = object.pointer("/metadata/annotations");
    let before = annotations.and_then(|all| all.get(berth_api::MOVED_FROM_ANNOTATION)).and_then(Json::as_str);
    uid(object) == known
        || before.unwrap_or_default().split(',').any(|before| before == known && !known.is_empty())
}

/// The uid of an object.
pub(super) fn uid(object: &Json) -> &str {
    text(object, "/metadata/uid")
}
