//! Replacing an object, and what replacing shares with patching.

use std::sync::Arc;

use berth_apimachinery::meta;
use berth_store::{Action, Entry, Expect, Write, WriteError};
use http::StatusCode;
use serde_json::{Map, Value, json};

use super::source::Source;
use super::{ATTEMPTS, Answer, ApiError, Call, Result};
use crate::admission::Operation;
use crate::core::Core;
use crate::request::Sub;
use crate::store_error::of_write;

impl Call {
    /// Replaces the object, or its status.
    pub(crate) async fn update(&mut self, mut object: Value) -> Result<Answer> {
        self.accept(&mut object)?;
        self.check_name(&object)?;
        let revision = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let unconditional = matches!(revision, "" | "0");
        if unconditional && self.resource().needs_revision {
            let why = "must be specified for an update";
            let error = meta::invalid("metadata.resourceVersion", &0.into(), why);
            self.existing()?;
            // In Kubernetes this refusal names the resource; others name the kind.
            return Err(ApiError::invalid(self.subject(&self.target.name), &[error]));
        }
        let mut object = Some(object);
        self.change(Source::Update, move |call, _| match &object {
            Some(object) if unconditional => Ok(object.clone()),
            // An update that names a revision has one attempt.
            _ => object.take().ok_or_else(|| ApiError::modified(call.subject(&call.target.name))),
        })
        .await
    }

    /// Checks that the object has the name in the URL.
    pub(super) fn check_name(&self, object: &Value) -> Result<()> {
        let sent = object["metadata"]["name"].as_str().unwrap_or_default();
        if sent.is_empty() {
            let why = format!(
                "the name of the object ({} based on URL) was undeterminable: name must be provided",
                self.target.name
            );
            return Err(ApiError::bad_request(why));
        }
        if sent != self.target.name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({sent}) does not match the name on the URL ({})",
                self.target.name
            )));
        }
        Ok(())
    }

    /// Gives the live object a new state, retrying when another client writes in between.
    pub(super) async fn change(
        &mut self,
        source: Source,
        mut new_state: impl FnMut(&mut Self, &Value) -> Result<Value>,
    ) -> Result<Answer> {
        for _ in 0..ATTEMPTS {
            let entry = self.existing()?;
            let live = self.view(&entry);
            let warnings = self.warnings.len();
            let new = new_state(self, &live)?;
            self.check_identity(source, &live, &new)?;
            match self.replace(source, &entry, &live, new).await? {
                Some(answer) => return Ok(answer),
                // The next attempt repeats the warnings.
                None => self.warnings.truncate(warnings),
            }
        }
        Err(ApiError::modified(self.subject(&self.target.name)))
    }

    /// Checks that the new state is for the same object (by uid), and for this revision if it names one.
    fn check_identity(&self, source: Source, live: &Value, whole: &Value) -> Result<()> {
        let (old, new) = (&live["metadata"], &whole["metadata"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let subject = self.subject(&self.target.name);
        let uid = text(&new["uid"]);
        let other_uid = !uid.is_empty() && uid != text(&old["uid"]);
        if other_uid && source != Source::Update {
            let error = meta::invalid("metadata.uid", &uid.into(), "field is immutable");
            return Err(self.invalid(whole, &[error]));
        }
        if other_uid {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                text(&old["uid"])
            );
            return Err(ApiError::conflict(subject, &why));
        }
        let revision = text(&new["resourceVersion"]);
        if !revision.is_empty() && revision != "0" && revision != text(&old["resourceVersion"]) {
            return Err(ApiError::modified(subject));
        }
        let (sent, name) = (text(&new["name"]), text(&old["name"]));
        if sent != name {
            let why = format!("the name of the object ({sent}) does not match the name on the URL ({name})");
            return Err(ApiError::bad_request(why));
        }
        let namespace = text(&new["namespace"]);
        if !namespace.is_empty() && namespace != text(&old["namespace"]) {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        Ok(())
    }

    /// Stores the new state; `None` if the live object changed in the meantime.
    async fn replace(
        &mut self,
        source: Source,
        entry: &Arc<Entry>,
        live: &Value,
        new: Value,
    ) -> Result<Option<Answer>> {
        let mut new = match source {
            Source::Apply => self.prepare_changed(live, new, source)?,
            // In a subresource write, ownership of the other fields is recorded before they are dropped;
            // likewise for the finalizers of a namespace.
            _ if self.target.sub == Sub::Status || self.resource().is("", "namespaces") => {
                let owned = self.own(Some(live), new);
                self.prepare_changed(live, owned, source)?
            }
            _ => {
                let prepared = self.prepare_changed(live, new, source)?;
                self.own(Some(live), prepared)
            }
        };
        if meta::same(live, &new) {
            return Ok(Some(self.answer(StatusCode::OK, entry)));
        }
        self.validate(&new, Some(live))?;
        self.admit(Operation::Update, Some(&new), Some(live))?;
        berth_apimachinery::schema::whole_numbers(&mut new);
        let action = if is_released(&new, self.resource().is("", "namespaces")) {
            Action::Delete
        } else {
            Action::Put(Core::encode(self.resource(), &new)?)
        };
        if self.options.dry_run {
            return Ok(Some(shown(new, live)));
        }
        let deleted = matches!(action, Action::Delete);
        let expect = Expect::Revision(entry.revision);
        // A host's Lease is renewed long before it expires, and every renewal is soon followed by those of other hosts.
        let deferrable = !deleted && crate::builtin::is_renewal(self.resource(), live, &new);
        let guards = if deleted { Vec::new() } else { self.definition() };
        let write = Write { deferrable, ..self.write_of(expect, action, guards) };
        match self.commit_write(write).await {
            // The last state was never stored: the response carries the revision that it replaced.
            Ok(_) if deleted => Ok(Some(shown(new, live))),
            Ok(entry) => Ok(Some(self.answer(StatusCode::OK, &entry))),
            Err(WriteError::Conflict) => self.check_definition().map(|()| None),
            Err(error) => Err(of_write(&error)),
        }
    }

    /// Builds the state to store of a changed object, before ownership is recorded.
    fn prepare_changed(&self, live: &Value, mut new: Value, source: Source) -> Result<Value> {
        let resource = Arc::clone(&self.target.resource);
        meta::keep_system_fields(&mut new, live);
        match self.target.sub {
            Sub::Status => new = with_part(live, "status", new),
            Sub::Finalize => {
                let finalizers = new["spec"]["finalizers"].as_array().filter(|all| !all.is_empty());
                new["spec"] = finalizers.map_or_else(|| json!({}), |all| json!({"finalizers": all}));
                new = with_part(live, "spec", new);
            }
            Sub::None | Sub::Token => {}
        }
        if self.target.sub == Sub::None && self.version().has_status {
            copy_member(&mut new, live, "status");
        }
        if resource.is_custom() {
            self.fill_in(source, &mut new);
        } else if self.target.sub != Sub::Finalize {
            let now = self.core.clock.now();
            crate::builtin::prepare(&resource, &mut new, Some(live), now);
        }
        meta::tidy(&mut new);
        let status_apart = self.version().has_status;
        if resource.counts_generation && meta::spec_changed(live, &new, status_apart) {
            let generation = live["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
            meta::of(&mut new).insert("generation".into(), generation.into());
        }
        Ok(new)
    }

    /// Sets the defaults of a custom resource. Only in an object that is sent whole may nulls count as
    /// absent.
    pub(super) fn fill_in(&self, source: Source, object: &mut Value) {
        let schema = &self.version().schema;
        match source {
            Source::Update | Source::Patch => schema.default(object),
            Source::Apply => schema.default_applied(object),
        }
    }
}

/// Returns a state that was not stored as the response.
pub(super) fn shown(mut state: Value, live: &Value) -> Answer {
    state["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    Answer::of_value(StatusCode::OK, &state)
}

/// Whether an object that is being deleted has no finalizers left.
pub(super) fn is_released(object: &Value, is_namespace: bool) -> bool {
    let metadata = &object["metadata"];
    let held = metadata["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    let full = is_namespace && object["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    !metadata["deletionTimestamp"].is_null() && !held && !full
}

fn copy_member(to: &mut Value, from: &Value, member: &str) {
    let Some(members) = to.as_object_mut() else { return };
    match from.get(member) {
        Some(value) => members.insert(member.into(), value.clone()),
        None => members.remove(member),
    };
}

/// Returns the live object with one part of the new one, and with the managers that the request sent.
fn with_part(live: &Value, part: &str, mut new: Value) -> Value {
    let managers = meta::of(&mut new).remove("managedFields");
    let mut metadata = copy_with(&live["metadata"], [("managedFields", managers)]);
    metadata.remove("resourceVersion");
    let part = (part, new.get_mut(part).map(Value::take));
    Value::Object(copy_with(live, [("metadata", Some(metadata.into())), part]))
}

/// Returns a copy of an object's members, some with another value, or without them.
fn copy_with<const N: usize>(object: &Value, mut others: [(&str, Option<Value>); N]) -> Map<String, Value> {
    let members = object.as_object().into_iter().flatten();
    let mut copy: Map<String, Value> = members
        .filter_map(|(name, value)| {
            let other = others.iter_mut().find(|(other, _)| other == name);
            let value = match other {
                Some((_, other)) => other.take()?,
                None => value.clone(),
            };
            Some((name.clone(), value))
        })
        .collect();
    copy.extend(others.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    copy
}

#[cfg(test)]
mod tests {
    use berth_store::Key;

    use super::*;
    use crate::identity::Identity;
    use crate::request::{Options, Target};
    use crate::verbs::PatchKind;

    /// Returns a request of the administrator that begins now.
    fn call(core: &Arc<Core>, key: &Key) -> Call {
        let served = core.catalog.served();
        let resource = served.by_storage(&key.resource).expect("it is served");
        let (namespace, name) = (key.namespace.to_string(), key.name.to_string());
        Call {
            core: Arc::clone(core),
            who: Identity::admin(),
            target: Target { resource: Arc::clone(resource), version: 0, namespace, name, sub: Sub::None },
            options: Options::default(),
            default_manager: "test".into(),
            warnings: Vec::new(),
            twice: Vec::new(),
            verb: "update",
            written: None,
        }
    }

    #[tokio::test]
    async fn a_write_that_began_under_another_definition_stores_nothing_in_its_form() {
        let core = Core::in_memory();
        let namespace = Key::new(&core.namespaces, "", "default");
        call(&core, &namespace).create(json!({"metadata": {"name": "default"}})).await.unwrap();
        let crd = Key::new(&core.catalog.crds, "", "boats.toys.example");
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
            "x-kubernetes-preserve-unknown-fields": true}}});
        let version =
            json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
        let definition = json!({"metadata": {"name": "boats.toys.example"}, "spec": {"group": "toys.example",
            "scope": "Namespaced", "names": {"plural": "boats", "kind": "Boat"}, "versions": [version]}});
        call(&core, &crd).create(definition).await.unwrap();
        let boat = |name: &str| Key::new(&"toys.example/boats".into(), "default", name);
        let object = |name: &str| json!({"apiVersion": "toys.example/v1", "kind": "Boat", "metadata": {"name": name}, "spec": {}});
        call(&core, &boat("a")).create(object("a")).await.unwrap();
        let (mut create, mut update) = (call(&core, &boat("b")), call(&core, &boat("a")));
        let (mut other, mut delete) = (call(&core, &boat("c")), call(&core, &boat("a")));
        let label = json!({"metadata": {"labels": {"version": "2"}}});
        call(&core, &crd).patch(PatchKind::Merge, label).await.unwrap();
        update.patch(PatchKind::Merge, json!({"spec": {"oars": 1}})).await.expect("the form is the same");
        other.create(object("c")).await.expect("the form is the same");
        let held = json!({"metadata": {"finalizers": ["toys.example/held"]}});
        update.patch(PatchKind::Merge, held).await.unwrap();
        let names = json!({"spec": {"names": {"shortNames": ["bt"]}}});
        call(&core, &crd).patch(PatchKind::Merge, names).await.unwrap();
        let oars = json!({"spec": {"oars": 2}});
        let updated = update.patch(PatchKind::Merge, oars.clone()).await;
        for refused in [updated, create.create(object("b")).await, delete.delete().await] {
            assert_eq!(refused.unwrap_err().code, 429, "clients try again");
        }
        call(&core, &boat("a")).patch(PatchKind::Merge, oars).await.unwrap();
        call(&core, &boat("b")).create(object("b")).await.unwrap();
    }
}
