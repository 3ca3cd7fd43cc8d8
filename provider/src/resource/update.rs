//! Update: declare again, correct manual edits, wait.

use std::collections::BTreeSet;

use serde_json::{Value as Json, json};
use tfplugin6::{
    Diagnostic, Value,
    resource::{ApplyRequest, ApplyResponse},
};
use tokio::time::Instant;

use super::{
    KindResource,
    apply::{ApplyContext, Declared},
    at,
    conflict::{self, Conflict, is_metadata_declared, other_applier},
    create::uid,
    text,
    wait::Purpose,
};
use crate::{
    api::ApiError,
    field::{Field, Presence, Shape, Source},
    kind::SideObject,
    mapping, planning,
    private::Private,
    timeouts::{self, Operation},
};

/// How often a removal is tried on an object that others keep changing.
const REMOVALS: u32 = 10;
/// The parts of an object's metadata that are declared name by name.
const METADATA: [&str; 2] = ["labels", "annotations"];

impl KindResource {
    /// Updates the object.
    pub(super) async fn update(&self, request: ApplyRequest) -> ApplyResponse {
        let settings = self.session.settings();
        let api = match &settings.api {
            Ok(api) => api,
            Err(problem) => {
                let at = self.address(&request.planned);
                return self.no_control_plane(&settings, &at, problem).into();
            }
        };
        let private = Private::from_bytes(&request.private);
        let failed = |diagnostics: Vec<Diagnostic>| {
            let before = private.clone().before_change().to_bytes();
            ApplyResponse { private: Some(before), ..ApplyResponse::failed(diagnostics) }
        };
        let until = Instant::now() + timeouts::limit(Operation::Update, &request.planned, self.info.timeouts);
        let refusals = self.refusals(api, &settings, &request, until).await;
        if !refusals.is_empty() {
            return failed(refusals);
        }
        let at = self.address(&request.planned);
        let apply = ApplyContext { request: &request, settings: &settings, api, at, until };
        let object = match self.declare_update(&apply, &private).await {
            Ok(object) => object,
            Err(diagnostics) => return failed(diagnostics),
        };
        let planned = request.planned.clone();
        self.finish(&apply, Purpose::Update, Declared { planned, private, object }).await
    }

    async fn declare_update(
        &self,
        apply: &ApplyContext<'_>,
        private: &Private,
    ) -> Result<Json, Vec<Diagnostic>> {
        let ApplyRequest { prior, planned, config, .. } = apply.request;
        let manager = apply.settings.manager();
        let expected = prior.get("uid").as_str().unwrap_or_default();
        let wanted = self.object(planned, config, private, Some(expected));
        let side_object = SideObject {
            api: apply.api,
            manager: &manager,
            at: &apply.at,
            object: &wanted,
            planned,
            config,
            private,
            retry_limit: apply.request_limit(),
        };
        if self.kind.has_side_object(&side_object) {
            // A dry run first: a refusal must come before anything is written.
            self.apply_to_existing(apply, &wanted, true).await?;
            let written = self.kind.write_side_object(side_object).await;
            written.map_err(|error| self.request_diagnostics(&error, &apply.at))?;
        }
        let object = self.apply_to_existing(apply, &wanted, false).await?;
        self.remove_leftovers(apply, &wanted, object).await
    }

    /// Applies the object to the one that the state knows. Manual edits are corrected.
    async fn apply_to_existing(
        &self,
        apply: &ApplyContext<'_>,
        wanted: &Json,
        dry_run: bool,
    ) -> Result<Json, Vec<Diagnostic>> {
        let prior = &apply.request.prior;
        let failed = |error: ApiError| self.request_diagnostics(&error, &apply.at);
        let applied = match apply.declare(wanted, apply.forces_conflicts(), dry_run).await {
            Err(error) if Conflict::is_cause_of(&error) => {
                let conflict = Conflict::read(apply.api, &apply.at, &error, &apply.request_limit()).await;
                self.check_overwrite(apply, &conflict.map_err(failed)?)?;
                apply.declare(wanted, true, dry_run).await.map_err(failed)?
            }
            result => result.map_err(failed)?,
        };
        if uid(&applied.object) != prior.get("uid").as_str().unwrap_or_default() {
            let detail = "It was deleted and created again by another client during this apply: plan again.";
            let summary = format!("{} is another object now", self.title(&apply.at));
            return Err(vec![Diagnostic::error(summary, detail)]);
        }
        Ok(applied.object)
    }

    /// Checks that the plan has shown the manual edits to overwrite. Fields that a program declares are kept.
    fn check_overwrite(&self, apply: &ApplyContext<'_>, conflict: &Conflict) -> Result<(), Vec<Diagnostic>> {
        let title = self.title(&apply.at);
        if !conflict.is_manual_only() {
            return Err(vec![conflict.diagnostic(&title, &self.fields)]);
        }
        let prior = &apply.request.prior;
        // Compared in the form of the state: labels of others and local fields take no part in the comparison.
        let now = self.refreshed(prior, &conflict.object);
        let unseen = conflict.attributes(&self.fields).into_iter().find(|name| {
            let field = self.fields.iter().find(|field| field.name == name);
            field.is_some_and(|field| !mapping::same(&field.shape, now.get(name), prior.get(name)))
        });
        let Some(name) = unseen else { return Ok(()) };
        let managers: BTreeSet<&str> = conflict.fields.iter().map(|(manager, _)| manager.as_str()).collect();
        let detail = format!(
            "{} changed it after the plan was made, so the plan did not show the value to overwrite: plan again.",
            managers.into_iter().collect::<Vec<_>>().join(", ")
        );
        let summary = format!("{title} has changed since the plan");
        Err(vec![Diagnostic::error(summary, detail).at(at(&name))])
    }

    /// Removes values that the plan showed as removed but that an apply alone leaves, because other managers own them too.
    async fn remove_leftovers(
        &self,
        apply: &ApplyContext<'_>,
        wanted: &Json,
        object: Json,
    ) -> Result<Json, Vec<Diagnostic>> {
        let changes = planning::changes(&self.fields, &apply.request.prior, &apply.request.planned);
        let changed: BTreeSet<&str> =
            changes.iter().filter_map(|change| planning::root(&change.path)).collect();
        let mut leftovers = Vec::new();
        let ApplyRequest { prior, planned, .. } = apply.request;
        // A list without elements may mean something else than none.
        let is_removed = |name: &str| !prior.get(name).is_null() && planned.get(name).is_null();
        let removed = |field: &&Field| changed.contains(field.name) || is_removed(field.name);
        for field in self.fields.iter().filter(removed) {
            find_leftovers(field, &wanted["spec"], &object["spec"], "/spec", &mut leftovers);
        }
        let manager = apply.settings.manager();
        // An object that is adopted has labels of the program that has created it.
        for map in METADATA.into_iter().filter(|_| !self.kind.is_adopted()) {
            let removed = removed_names(prior.get(map), planned.get(map));
            let left = removed.filter(|name| object["metadata"][map].get(name).is_some());
            let left = left.filter(|name| !is_metadata_declared(&object, &manager, map, name));
            leftovers.extend(left.map(|name| format!("/metadata/{map}/{}", escaped(name))));
        }
        if leftovers.is_empty() {
            return Ok(object);
        }
        let failed = |error: ApiError| self.request_diagnostics(&error, &apply.at);
        let mut object = object;
        let mut attempt = 1;
        loop {
            self.check_removal(apply, &object, &leftovers)?;
            let patch = removal(&object, &leftovers);
            let error = match apply.api.json_patch(&apply.at, &patch, &manager, &apply.request_limit()).await
            {
                Ok(patched) => return Ok(patched),
                Err(error) if error.code() == 422 && attempt < REMOVALS => error,
                Err(error) => return Err(failed(error)),
            };
            attempt += 1;
            let read = apply.api.get(&apply.at, &apply.request_limit()).await.map_err(failed)?;
            let same = |read: &Json, pointer| text(read, pointer) == text(&object, pointer);
            // Its response was lost, and a repetition came to the changed object; or another client has removed the same.
            let is_done =
                |read: &&Json| same(read, "/metadata/uid") && is_carried_out(&leftovers, &object, read);
            if let Some(read) = read.as_ref().filter(is_done) {
                return Ok(read.clone());
            }
            // Only another status or other metadata: with another spec the plan did not show what would be removed.
            let is_repeated = |read: &Json| {
                same(read, "/metadata/uid")
                    && !same(read, "/metadata/resourceVersion")
                    && read["spec"] == object["spec"]
            };
            match read.filter(is_repeated) {
                Some(read) => object = read,
                None => return Err(failed(error)),
            }
        }
    }

    /// Checks that no other program declares the values to remove.
    fn check_removal(
        &self,
        apply: &ApplyContext<'_>,
        object: &Json,
        leftovers: &[String],
    ) -> Result<(), Vec<Diagnostic>> {
        let manager = apply.settings.manager();
        // Labels and annotations that another program declares are not among them.
        let of_spec = leftovers.iter().filter(|pointer| pointer.starts_with("/spec/"));
        for pointer in of_spec.filter(|_| !apply.forces_conflicts()) {
            let key = pointer.split('/').nth(2).unwrap_or_default();
            if let Some(other) = other_applier(object, &manager, key) {
                let detail = format!(
                    "{} is declared by {other:?}. Declare it here too, or set force_conflicts = true to remove it.",
                    pointer.trim_start_matches('/').replace('/', ".")
                );
                let summary = conflict::summary(&self.title(&apply.at));
                return Err(vec![Diagnostic::error(summary, detail)]);
            }
        }
        Ok(())
    }
}

/// The JSON patch that removes these values from this version of the object.
fn removal(object: &Json, leftovers: &[String]) -> Json {
    let version = text(object, "/metadata/resourceVersion");
    let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": version});
    // From the end of a list to its beginning, so that a removal does not shift the indices of later ones.
    let removals = leftovers.iter().rev().map(|pointer| json!({"op": "remove", "path": pointer}));
    Json::Array(std::iter::once(test).chain(removals).collect())
}

/// Whether a later version of the object is as their removal makes it.
fn is_carried_out(leftovers: &[String], object: &Json, later: &Json) -> bool {
    let mut removed = object.clone();
    for pointer in leftovers.iter().rev() {
        let Some((parent, name)) = pointer.rsplit_once('/') else { return false };
        match removed.pointer_mut(parent) {
            Some(Json::Object(map)) => drop(map.remove(&name.replace("~1", "/").replace("~0", "~"))),
            Some(Json::Array(list)) => match name.parse::<usize>() {
                Ok(at) if at < list.len() => drop(list.remove(at)),
                _ => return false,
            },
            _ => return false,
        }
    }
    // Others may change other labels.
    let is_in_metadata = |pointer: &&String| pointer.starts_with("/metadata/");
    later["spec"] == removed["spec"]
        && leftovers.iter().filter(is_in_metadata).all(|pointer| later.pointer(pointer).is_none())
}

/// The names of the labels or annotations that the plan removes.
fn removed_names<'a>(prior: &'a Value, planned: &'a Value) -> impl Iterator<Item = &'a String> {
    let before = prior.as_map().into_iter().flatten().map(|(name, _)| name);
    before.filter(move |name| planned.get(name).is_null())
}

/// A name as a part of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Collects the values in the object that could be declared, but are not.
fn find_leftovers(field: &Field, declared: &Json, found: &Json, pointer: &str, out: &mut Vec<String>) {
    let Source::Spec(key) = &field.source else { return };
    let Some(found) = found.get(key.as_ref()) else { return };
    let pointer = format!("{pointer}/{key}");
    let Some(declared) = declared.get(key.as_ref()) else {
        let is_left = match &field.presence {
            Presence::Optional | Presence::Filled => true,
            // Left out, it stands for this value.
            Presence::Implied(implied) => found.as_str() != implied.as_str(),
            _ => false,
        };
        if is_left {
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
                    out.push(format!("{pointer}/{}", escaped(name)));
                }
            }
        }
        // A list that is a set has elements of several managers. Any other is as declared.
        Shape::TextList(_) => {
            let is_declared = |text: &Json| declared.as_array().is_some_and(|all| all.contains(text));
            let found = found.as_array().into_iter().flatten().enumerate();
            out.extend(found.filter(|(_, text)| !is_declared(text)).map(|(i, _)| format!("{pointer}/{i}")));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{form::Form, mapping::TEXT};

    #[test]
    fn a_value_that_is_left_out_and_stands_for_another_one_is_left_behind() {
        let name = Field::spec("name", Shape::Text(Form::Name)).required();
        let fields = vec![name, Field::spec("model", TEXT).implied("virtio")];
        let interfaces = Field::spec("network_interfaces", Shape::Keyed(fields));
        let left = |model: &str| {
            let spec = |interface: Json| json!({"networkInterfaces": [interface]});
            let declared = spec(json!({"name": "nic0"}));
            let found = spec(json!({"name": "nic0", "model": model}));
            let mut left = Vec::new();
            find_leftovers(&interfaces, &declared, &found, "/spec", &mut left);
            left
        };
        assert_eq!(left("e1000"), ["/spec/networkInterfaces/0/model"], "each plan would show it again");
        assert_eq!(left("virtio"), [""; 0], "it means the same");
    }

    #[test]
    fn a_removal_whose_response_is_lost_is_recognized() {
        let object = |vms: Json, labels: Json, state: &str| json!({"metadata": {"labels": labels}, "spec": {"vms": vms}, "status": {"state": state}});
        let before = object(json!(["db", "web", "extra"]), json!({"a/b": "1"}), "Pending");
        let leftovers = ["/spec/vms/0", "/spec/vms/2", "/metadata/labels/a~1b"].map(str::to_owned);
        let is_removed = |later: &Json| is_carried_out(&leftovers, &before, later);
        assert!(is_removed(&object(json!(["web"]), json!({"other": "2"}), "Ready")));
        assert!(!is_removed(&before));
        assert!(!is_removed(&object(json!(["web"]), json!({"a/b": "1"}), "Ready")), "the label is left");
        assert!(!is_removed(&object(json!(["new"]), json!({}), "Ready")), "another client changed more");
    }

    #[test]
    fn elements_of_a_set_that_are_not_declared_are_left_behind() {
        let vms = Field::spec("vms", Shape::TextList(Form::Name));
        let mut left = Vec::new();
        let (declared, found) = (json!({"vms": ["web"]}), json!({"vms": ["db", "web", "extra"]}));
        find_leftovers(&vms, &declared, &found, "/spec", &mut left);
        assert_eq!(left, ["/spec/vms/0", "/spec/vms/2"]);
    }
}
