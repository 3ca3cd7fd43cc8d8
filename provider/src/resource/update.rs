//! Update: declare again, put right what people edited, wait.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value as Json, json};
use tfplugin6::{
    Diagnostic, Value,
    resource::{ApplyRequest, ApplyResponse},
};
use tokio::time::Instant;

use super::{
    KindResource, at,
    conflict::{Conflict, other_applier},
    create::{RETRIES, no_control_plane, uid},
    text,
    wait::Purpose,
};
use crate::{
    api::{Address, Api, ApiError, ApplyMode, Patience},
    field::{Field, Presence, Shape, Source},
    kind::Beside,
    mapping, planning,
    private::Private,
    session::Settings,
    timeouts::{self, Operation},
};

impl KindResource {
    /// Makes it so.
    pub(super) async fn update(&self, request: ApplyRequest) -> ApplyResponse {
        let settings = self.session.settings();
        let api = match &settings.api {
            Ok(api) => api.clone(),
            Err(problem) => return no_control_plane(problem).into(),
        };
        let private = Private::from_bytes(&request.private);
        let place = self.address(&request.planned);
        let until =
            Instant::now() + timeouts::limit(Operation::Update, &request.planned, self.facts.timeouts);
        let object = match self.declare_again(&api, &settings, &place, &private, until, &request).await {
            Ok(object) => object,
            Err(diagnostics) => return ApplyResponse::failed(diagnostics),
        };
        let planned = request.planned.clone();
        self.finish(&api, &settings, Purpose::Update, &place, planned, private, object, until, &request).await
    }

    async fn declare_again(
        &self,
        api: &Api,
        settings: &Settings,
        place: &Address,
        private: &Private,
        until: Instant,
        request: &ApplyRequest,
    ) -> Result<Json, Vec<Diagnostic>> {
        let manager = settings.manager();
        let expected = request.prior.get("uid").as_str().unwrap_or_default();
        let declared = self.object(&request.planned, &request.config, private, Some(expected));
        let patience = Patience {
            until: until.min(Instant::now() + Duration::from_secs(RETRIES)),
            cancel: request.cancel.clone(),
        };
        let refused = |error: ApiError| self.refused(&error, place);
        let (planned, config) = (&request.planned, &request.config);
        let beside =
            Beside { api, manager: &manager, at: place, object: &declared, planned, config, private };
        self.kind.write_beside(beside).await.map_err(refused)?;
        let force = request.planned.get("force_conflicts").as_bool().unwrap_or_default();
        let mode = ApplyMode { force, dry_run: false };
        let applied = match api.apply(place, &declared, &manager, mode, &patience).await {
            Err(error) if Conflict::is_one(&error) => {
                let conflict = Conflict::of(api, place, &error, &patience).await.map_err(refused)?;
                self.may_put_right(&conflict, place, &request.prior)?;
                let mode = ApplyMode { force: true, dry_run: false };
                api.apply(place, &declared, &manager, mode, &patience).await.map_err(refused)?
            }
            answer => answer.map_err(refused)?,
        };
        if uid(&applied.object) != expected {
            let detail = "It was deleted and made again by somebody else while this ran: plan again.";
            return Err(vec![Diagnostic::error(
                format!("{} is another object now", self.title(place)),
                detail,
            )]);
        }
        let changed = planning::changes(&self.fields, &request.prior, &request.planned);
        let changed: BTreeSet<&str> =
            changed.iter().filter_map(|change| planning::root(&change.path)).collect();
        let fields: Vec<&Field> = self.fields.iter().filter(|field| changed.contains(field.name)).collect();
        self.take_away(api, &manager, place, &fields, &declared, applied.object, force, &patience).await
    }

    /// A person's edit is put right when the plan showed it; a program's declaration is its own.
    fn may_put_right(
        &self,
        conflict: &Conflict,
        place: &Address,
        prior: &Value,
    ) -> Result<(), Vec<Diagnostic>> {
        if !conflict.is_with_people_only() {
            return Err(vec![conflict.diagnostic(&self.title(place), &self.fields)]);
        }
        let now = self.observed(&conflict.object);
        let unseen = conflict.attributes(&self.fields).into_iter().find(|name| {
            let field = self.fields.iter().find(|field| field.name == name);
            field.is_some_and(|field| !mapping::same(&field.shape, now.get(name), prior.get(name)))
        });
        let Some(name) = unseen else { return Ok(()) };
        let who: BTreeSet<&str> = conflict.fields.iter().map(|(manager, _)| manager.as_str()).collect();
        let detail = format!(
            "{} changed it after this plan was made, so the plan did not show what would be overwritten: plan again.",
            who.into_iter().collect::<Vec<_>>().join(", ")
        );
        let summary = format!("{} was changed meanwhile", self.title(place));
        Err(vec![Diagnostic::error(summary, detail).at(at(&name))])
    }

    /// Takes away what the plan showed as removed but an apply alone leaves, because others brought it in.
    #[allow(clippy::too_many_arguments, reason = "one request with all it depends on")]
    async fn take_away(
        &self,
        api: &Api,
        manager: &str,
        place: &Address,
        fields: &[&Field],
        declared: &Json,
        object: Json,
        force: bool,
        patience: &Patience,
    ) -> Result<Json, Vec<Diagnostic>> {
        let mut leftovers = Vec::new();
        for field in fields {
            find_leftovers(field, &declared["spec"], &object["spec"], "/spec", &mut leftovers);
        }
        if leftovers.is_empty() {
            return Ok(object);
        }
        for pointer in &leftovers {
            let key = pointer.split('/').nth(2).unwrap_or_default();
            if let Some(other) = other_applier(&object, manager, key).filter(|_| !force) {
                let detail = format!(
                    "{} is declared by {other:?}. Declare it here too, or set force_conflicts = true to take it away.",
                    pointer.trim_start_matches('/').replace('/', ".")
                );
                return Err(vec![Diagnostic::error(
                    format!("{} is also declared by somebody else", self.title(place)),
                    detail,
                )]);
            }
        }
        // From the end of a list to its beginning, so that no removal moves what a later one means.
        let removals = leftovers.iter().rev().map(|pointer| json!({"op": "remove", "path": pointer}));
        let version = text(&object, "/metadata/resourceVersion");
        let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": version});
        let patch = Json::Array(std::iter::once(test).chain(removals).collect());
        api.json_patch(place, &patch, manager, patience).await.map_err(|error| self.refused(&error, place))
    }
}

/// What stands in the object, could be declared, and is not.
fn find_leftovers(field: &Field, declared: &Json, found: &Json, pointer: &str, out: &mut Vec<String>) {
    let Source::Spec(key) = &field.source else { return };
    let Some(found) = found.get(key.as_ref()) else { return };
    let pointer = format!("{pointer}/{key}");
    let Some(declared) = declared.get(key.as_ref()) else {
        if field.presence == Presence::Optional {
            out.push(pointer);
        }
        return;
    };
    match &field.shape {
        Shape::Object(fields) => {
            fields.iter().for_each(|field| find_leftovers(field, declared, found, &pointer, out));
        }
        Shape::TextMap => {
            for name in found.as_object().into_iter().flatten().map(|(name, _)| name) {
                if declared.get(name).is_none() {
                    out.push(format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1")));
                }
            }
        }
        Shape::Keyed(fields) => {
            for (i, element) in found.as_array().into_iter().flatten().enumerate() {
                let pointer = format!("{pointer}/{i}");
                let same_name = |other: &&Json| other.get("name") == element.get("name");
                match declared.as_array().into_iter().flatten().find(same_name) {
                    None => out.push(pointer),
                    Some(declared) => {
                        fields
                            .iter()
                            .for_each(|field| find_leftovers(field, declared, element, &pointer, out));
                    }
                }
            }
        }
        _ => {}
    }
}
