//! Create: read, declare, write the side object, wait.
//!
//! ```text
//! GET ─ none ───────────▶ apply ─ 201 ─▶ side object ─▶ wait ─▶ state
//!   ├── ours and equal ──▶ adopt ─────────────────┘
//!   ├── to be replaced ──▶ error
//!   ├── being deleted ───▶ wait until it is gone, GET again; also while this apply is about to delete it
//!   └── anything else ───▶ error with an import hint
//! ```
//!
//! Of a kind that is adopted, the object must exist, and is declared unless it is ours already.

use std::time::Duration;

use serde_json::Value as Json;
use tfplugin6::{
    Diagnostic, Value,
    resource::{ApplyRequest, ApplyResponse},
};
use tokio::time::{Instant, sleep};

use super::{
    KindResource,
    apply::{ApplyContext, Declared},
    conflict::{Conflict, appliers},
    is_terminating, text,
    wait::{Purpose, Waited},
};
use crate::{
    api::{self, Address, ApiError, ObjectWait, Verdict, WaitEnd},
    kind::{SideObject, Supply},
    name_prefix,
    private::Private,
    timeouts::{self, Operation},
};

const DELETION_POLL: Duration = Duration::from_millis(50);

impl KindResource {
    /// Creates the object.
    pub(super) async fn create(&self, request: ApplyRequest) -> ApplyResponse {
        let settings = self.session.settings();
        let api = match &settings.api {
            Ok(api) => api,
            Err(problem) => {
                let at = self.address(&request.planned);
                return self.no_control_plane(&settings, &at, problem).into();
            }
        };
        let mut planned = request.planned.clone();
        if self.is_namespaced && planned.get("namespace").is_unknown() {
            let namespace = settings.namespace.clone().unwrap_or_else(|| "default".into());
            planned.set("namespace", namespace);
        }
        let prefix = request.config.get("name_prefix").as_str();
        let is_generated = name_prefix::is_generated(&request.config);
        if planned.get("name").is_unknown() {
            let generated =
                prefix.filter(|_| is_generated).map(|prefix| Value::from(name_prefix::generate(prefix)));
            planned.set("name", generated.unwrap_or_else(|| self.kind.default_name(&request.config)));
        }
        if planned.get("name").as_str().is_none_or(str::is_empty) {
            let detail = "The name is empty: set name, or name_prefix.";
            return Diagnostic::error("Missing name", detail).at("name").into();
        }
        let at = self.address(&planned);
        planned.set("id", at.id());
        let mut private = Private::from_bytes(&request.private);
        let replaces = private.replaces.take();
        let until = Instant::now() + timeouts::limit(Operation::Create, &planned, self.info.timeouts);
        let refusals = self.refusals(api, &settings, &request, until).await;
        if !refusals.is_empty() {
            return ApplyResponse::failed(refusals);
        }
        let apply = ApplyContext { request: &request, settings: &settings, api, at, until };
        match self.declare_new(&apply, &planned, &private, replaces.as_deref()).await {
            Ok(object) => {
                let private = self.kind.private_of(&object, private);
                let adopted = settings.run.has_adopted(uid(&object)) && !self.kind.is_adopted();
                let adopted = adopted.then(|| self.adopted(&apply.at, &settings.owner));
                let mut response =
                    self.finish(&apply, Purpose::Create, Declared { planned, private, object }).await;
                response.diagnostics.extend(adopted);
                response
            }
            Err(diagnostics) if is_generated => self.unfinished(&apply, planned, &private, diagnostics).await,
            Err(diagnostics) => ApplyResponse::failed(diagnostics),
        }
    }

    /// The response of a create under a generated name that has failed. The next apply generates another name: an object that may
    /// exist is in the state, and is replaced.
    async fn unfinished(
        &self,
        apply: &ApplyContext<'_>,
        planned: Value,
        private: &Private,
        diagnostics: Vec<Diagnostic>,
    ) -> ApplyResponse {
        let found = match apply.read().await {
            Ok(None) => return ApplyResponse::failed(diagnostics),
            Ok(Some(found)) => found,
            Err(_) => Json::Null,
        };
        let (state, private) = self.state_after(&planned, &found, private);
        let response = ApplyResponse::new(state).warn(diagnostics);
        ApplyResponse { private: Some(private.to_bytes()), ..response }
    }

    /// Finishes an apply once the object is declared: writes the side object, waits, and builds the state.
    pub(super) async fn finish(
        &self,
        apply: &ApplyContext<'_>,
        purpose: Purpose,
        declared: Declared,
    ) -> ApplyResponse {
        let Declared { planned, private, object } = declared;
        let (api, at) = (apply.api, &apply.at);
        let manager = apply.settings.manager();
        let side_object = SideObject {
            api,
            manager: &manager,
            at,
            object: &object,
            planned: &planned,
            config: &apply.request.config,
            private: &private,
            retry_limit: apply.request_limit(),
        };
        // An update has written it already: the object must not refer to data that does not exist yet.
        let written =
            if purpose == Purpose::Create { self.kind.write_side_object(side_object).await } else { Ok(()) };
        let is_adoptable = planned.get("name_prefix").is_null();
        if let (Err(ApiError::Unreachable(_) | ApiError::Cancelled), true) = (&written, is_adoptable) {
            // Without a state the next apply adopts the object, which may run already. With one, it would replace it.
            let detail = "The object is declared, and it is not known whether its user data is. Apply again: the apply \
                          finds the object and continues.";
            let summary = format!("{} was interrupted", self.title(at));
            return ApplyResponse::failed(vec![Diagnostic::error(summary, detail)]);
        }
        if let Err(error) = written {
            let (state, private) = self.state_after(&planned, &object, &private);
            let response = ApplyResponse::new(state).warn(self.request_diagnostics(&error, at));
            return ApplyResponse { private: Some(private.to_bytes()), ..response };
        }
        let supply = Supply {
            api,
            at,
            object: &object,
            planned: &planned,
            private: &private,
            limit: apply.wait_limit(),
        };
        if let Err(problem) = self.kind.supply(supply).await {
            if purpose == Purpose::Create && is_adoptable {
                // Without a state the next apply adopts the object and continues. With one, it would replace it.
                return ApplyResponse::failed(vec![*problem]);
            }
            let (state, private) = self.state_after(&planned, &object, &private);
            let response = ApplyResponse::new(state).warn(vec![*problem]);
            return ApplyResponse { private: Some(private.to_bytes()), ..response };
        }
        let wait = ObjectWait { api, at, object, retry_limit: apply.wait_limit() };
        let Waited { object, mut diagnostics } = self.wait(wait, purpose, &planned).await;
        let Some(object) = object else { return ApplyResponse::failed(diagnostics) };
        diagnostics.extend(self.kind.check_updated(&object, &apply.request.prior, &planned));
        let object = self.kind.complete(api, object).await;
        let (state, private) = self.state_after(&planned, &object, &private);
        ApplyResponse {
            identity: self.identity(&state),
            state: Some(state),
            private: Some(private.to_bytes()),
            diagnostics,
        }
    }

    /// Declares fields of an object that another program has created.
    async fn declare_adopted(
        &self,
        apply: &ApplyContext<'_>,
        planned: &Value,
        private: &Private,
    ) -> Result<Json, Vec<Diagnostic>> {
        let at = &apply.at;
        let failed = |error: ApiError| self.request_diagnostics(&error, at);
        let manager = apply.settings.manager();
        let found = loop {
            let Some(found) = self.read_undeleted(apply).await? else {
                let detail = "This resource adopts an object that exists, and there is none of this name.";
                return Err(vec![Diagnostic::error(format!("{} does not exist", self.title(at)), detail)]);
            };
            if !appliers(&found).contains(manager.as_str()) {
                break found;
            }
            if let Some(adopted) = self.adopt(apply, planned, found).await? {
                return Ok(adopted);
            }
        };
        // With its uid, the apply cannot create another object.
        let mut wanted = self.object(planned, &apply.request.config, private, None);
        wanted["metadata"]["uid"] = uid(&found).into();
        match apply.declare(&wanted, apply.forces_conflicts(), false).await {
            Err(error) if Conflict::is_cause_of(&error) => {
                let conflict =
                    Conflict::read(apply.api, at, &error, &apply.request_limit()).await.map_err(failed)?;
                if !conflict.is_manual_only() {
                    return Err(vec![conflict.diagnostic(&self.title(at), &self.fields)]);
                }
                // The plan has warned of values that people have set.
                apply.declare(&wanted, true, false).await.map(|applied| applied.object).map_err(failed)
            }
            result => result.map(|applied| applied.object).map_err(failed),
        }
    }

    /// Reads the object. One that this apply is about to delete is read again once the deletion is requested.
    async fn read_undeleted(&self, apply: &ApplyContext<'_>) -> Result<Option<Json>, Vec<Diagnostic>> {
        loop {
            let found = apply.read().await.map_err(|error| self.request_diagnostics(&error, &apply.at))?;
            let is_deleting = found.as_ref().is_some_and(|found| apply.settings.run.is_deleting(uid(found)));
            if !is_deleting || Instant::now() > apply.until || apply.request.cancel.is_cancelled() {
                return Ok(found);
            }
            sleep(DELETION_POLL).await;
        }
    }

    async fn declare_new(
        &self,
        apply: &ApplyContext<'_>,
        planned: &Value,
        private: &Private,
        replaces: Option<&str>,
    ) -> Result<Json, Vec<Diagnostic>> {
        if self.kind.is_adopted() {
            return self.declare_adopted(apply, planned, private).await;
        }
        let (api, at) = (apply.api, &apply.at);
        let failed = |error: ApiError| self.request_diagnostics(&error, at);
        while let Some(found) = self.read_undeleted(apply).await? {
            // Adopted, it would be deleted by the second half of the replacement.
            if !is_terminating(&found) && Some(uid(&found)) == replaces {
                let detail = "With create_before_destroy the new object is created while the old one exists, so it needs \
                              another name. Set name_prefix instead of name, change the name, or remove create_before_destroy.";
                let summary = format!("{} cannot be replaced before it is destroyed", self.title(at));
                return Err(vec![Diagnostic::error(summary, detail).at("name")]);
            }
            if !is_terminating(&found) {
                match self.adopt(apply, planned, found).await? {
                    Some(adopted) => return Ok(adopted),
                    None => continue,
                }
            }
            let wait = ObjectWait { api, at, object: found, retry_limit: apply.wait_limit() };
            let ended = api::wait_until(wait, |_| Verdict::<()>::Wait("being deleted".into())).await;
            if !matches!(ended, WaitEnd::Gone) {
                let detail = "An object of that name is being deleted and still exists at the end of the timeout. Its \
                              status shows the reason. Apply again once it is gone.";
                let summary = format!("{} is still being deleted", self.title(at));
                return Err(vec![Diagnostic::error(summary, detail)]);
            }
        }
        let wanted = self.object(planned, &apply.request.config, private, None);
        let applied = apply.declare(&wanted, false, false).await.map_err(failed)?;
        let manager = apply.settings.manager();
        let ours_alone = appliers(&applied.object).iter().all(|&applier| applier == manager);
        // After a lost response, our own first attempt may have created the object.
        if applied.created || (applied.retried && ours_alone) {
            return Ok(applied.object);
        }
        let detail = format!("It was created at the same time. Inspect it, then {}.", self.import_hint(at));
        let summary = format!("{} was created by another client", self.title(at));
        Err(vec![Diagnostic::error(summary, detail)])
    }

    /// Adopts an existing object only if this very configuration created it: with the same owner, and without changes. None if
    /// this apply deletes it.
    async fn adopt(
        &self,
        apply: &ApplyContext<'_>,
        planned: &Value,
        found: Json,
    ) -> Result<Option<Json>, Vec<Diagnostic>> {
        let (at, settings) = (&apply.at, apply.settings);
        let exists = |reason: String| {
            let detail = format!("{reason} To manage it with Terraform, {}.", self.import_hint(at));
            vec![Diagnostic::error(format!("{} exists already", self.title(at)), detail)]
        };
        if !appliers(&found).contains(settings.manager().as_str()) {
            return Err(exists(format!("It was not created by owner {:?}.", settings.owner)));
        }
        let private = self.kind.private_of(&found, Private::default());
        let wanted = self.object(planned, &apply.request.config, &private, None);
        let would_be = match apply.declare(&wanted, true, true).await {
            Ok(applied) => applied.object,
            Err(ApiError::Refused(status)) => {
                return Err(exists(format!("It differs from this configuration ({}).", status.message)));
            }
            Err(error) => return Err(self.request_diagnostics(&error, at)),
        };
        let parts = ["/spec", "/metadata/labels"];
        if let Some(part) = parts.iter().find(|part| found.pointer(part) != would_be.pointer(part)) {
            return Err(exists(format!(
                "It differs from this configuration (in {}).",
                part.trim_start_matches('/')
            )));
        }
        // Those of other programs, and the provider's own, do not differ by this.
        let is_annotated = |(key, value): (&String, &Value)| {
            let found = found.pointer("/metadata/annotations").and_then(|all| all.get(key));
            found.and_then(Json::as_str) == value.as_str()
        };
        if !planned.get("annotations").as_map().into_iter().flatten().all(is_annotated) {
            return Err(exists("It differs from this configuration (in metadata/annotations).".to_owned()));
        }
        if !settings.run.adopt(uid(&found)) {
            return Ok(None);
        }
        tracing::info!(
            kind = self.info.kind,
            namespace = at.namespace,
            name = at.name,
            "adopted the object of an earlier apply"
        );
        Ok(Some(found))
    }

    /// The warning that the object existed: another state may manage it too, which nothing else shows.
    fn adopted(&self, at: &Address, owner: &str) -> Diagnostic {
        let detail = format!(
            "Owner {owner:?} has declared it with the same content: in an apply that was interrupted or whose state was lost, at \
             another address of this configuration, or from another workspace. If another state manages it too, a destroy of either \
             deletes it: set another owner and name there, for example owner = terraform.workspace in the provider block."
        );
        Diagnostic::warning(format!("{} existed already and is managed here now", self.title(at)), detail)
    }

    fn import_hint(&self, at: &Address) -> String {
        format!("run: terraform import {}.NAME {}", self.info.type_name, at.id())
    }
}

/// Whether the object has this uid, or had it on an earlier control plane: its site may have moved.
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
