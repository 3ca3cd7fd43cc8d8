//! Deletion of objects: immediate, or by a mark until their finalizers are gone.

use berth_apimachinery::meta;
use berth_apimachinery::time::seconds;
use berth_store::{Action, Entry, Expect, WriteError};
use http::StatusCode;
use serde_json::{Value, json};

use super::update::is_released;
use super::{ATTEMPTS, Answer, ApiError, Call, Result, Subject};
use crate::admission::Operation;
use crate::core::Core;
use crate::request::{Propagation, Sub};
use crate::store_error::of_write;

pub(crate) const ORPHAN: &str = "orphan";
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Namespaces that cannot be deleted because clients and the server depend on them.
const KEPT: [&str; 3] = ["default", "kube-system", "kube-public"];

impl Call {
    pub(crate) async fn delete(&mut self) -> Result<Answer> {
        if self.target.sub != Sub::None {
            return Err(ApiError::method_not_allowed());
        }
        if self.resource().is("", "namespaces") && KEPT.contains(&self.target.name.as_str()) {
            let why = "this namespace may not be deleted";
            return Err(ApiError::forbidden(self.subject(&self.target.name), why));
        }
        for _ in 0..ATTEMPTS {
            let entry = self.existing()?;
            self.check_preconditions(&entry)?;
            let live = self.view(&entry);
            self.admit(Operation::Delete, None, Some(&live))?;
            let marked = self.marked(&live);
            let gone = is_released(&marked, self.resource().is("", "namespaces"));
            if self.options.dry_run {
                return Ok(match gone {
                    true => self.success(&live),
                    false => super::update::shown(marked, &live),
                });
            }
            if !gone && meta::same(&live, &marked) {
                return Ok(self.answer(StatusCode::OK, &entry));
            }
            let (action, guards) = match gone {
                true => (Action::Delete, Vec::new()),
                false => (Action::Put(Core::encode(self.resource(), &marked)?), self.definition()),
            };
            let expect = Expect::Revision(entry.revision);
            match self.commit(expect, action, guards).await {
                Ok(_) if gone => return Ok(self.success(&live)),
                Ok(entry) => return Ok(self.answer(StatusCode::OK, &entry)),
                Err(WriteError::Conflict) => self.check_definition()?,
                Err(error) => return Err(of_write(&error)),
            }
        }
        Err(ApiError::modified(self.subject(&self.target.name)))
    }

    fn check_preconditions(&self, entry: &Entry) -> Result<()> {
        let resource = self.resource();
        // In Kubernetes this refusal names the kind; others name the resource.
        let subject = Subject { group: &resource.group, kind: &resource.kind, name: &self.target.name };
        let check = |what: &str, wanted: &Option<String>, found: &str, since: &str| match wanted {
            Some(wanted) if wanted != found => {
                let why = format!(
                    "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). \
                     The object might have been {since}"
                );
                Err(ApiError::conflict(subject, &why))
            }
            _ => Ok(()),
        };
        check("UID", &self.options.precondition_uid, &entry.facts.uid, "deleted and then recreated")?;
        let revision = entry.revision.to_string();
        check("ResourceVersion", &self.options.precondition_revision, &revision, "modified")
    }

    /// Returns the object marked as being deleted.
    fn marked(&self, live: &Value) -> Value {
        let resource = self.resource();
        let mut object = live.clone();
        let already = !live["metadata"]["deletionTimestamp"].is_null();
        let metadata = meta::of(&mut object);
        metadata.remove("resourceVersion");
        if !already {
            metadata.insert("deletionTimestamp".into(), seconds(self.core.clock.now()).into());
            if !resource.is("", "namespaces") {
                metadata.insert("deletionGracePeriodSeconds".into(), 0.into());
            }
            if let Some(generation) = live["metadata"]["generation"].as_i64() {
                metadata.insert("generation".into(), (generation + 1).into());
            }
        }
        set_finalizer(metadata, ORPHAN, self.options.propagation.map(|p| p == Propagation::Orphan));
        set_finalizer(metadata, FOREGROUND, self.options.propagation.map(|p| p == Propagation::Foreground));
        if resource.is("", "namespaces") {
            object["status"]["phase"] = "Terminating".into();
        }
        if resource.is(crate::builtin::APIEXTENSIONS, "customresourcedefinitions") {
            if !already {
                set_finalizer(meta::of(&mut object), crate::crd::CLEANUP, Some(true));
            }
            let old = object.clone();
            crate::crd::prepare(&mut object, Some(&old), &seconds(self.core.clock.now()));
        }
        object
    }

    fn success(&self, live: &Value) -> Answer {
        let resource = self.resource();
        let mut details =
            json!({"name": self.target.name, "kind": resource.plural, "uid": live["metadata"]["uid"]});
        if !resource.group.is_empty() {
            details["group"] = resource.group.as_str().into();
        }
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
        });
        Answer { is_object: false, ..Answer::of_value(StatusCode::OK, &status) }
    }

    /// Deletes every object that the selectors and the namespace cover; returns the list of them.
    pub(crate) async fn delete_collection(&mut self) -> Result<super::Page> {
        let page = self.list().await?;
        for entry in &page.entries {
            self.target.name = entry.key.name.to_string();
            self.target.namespace = entry.key.namespace.to_string();
            match self.delete().await {
                Err(error) if error.reason == "NotFound" => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(page)
    }
}

/// Adds or removes a finalizer; `None` leaves it unchanged.
fn set_finalizer(metadata: &mut serde_json::Map<String, Value>, finalizer: &str, wanted: Option<bool>) {
    let Some(wanted) = wanted else { return };
    let list = metadata.entry("finalizers").or_insert_with(|| Value::Array(Vec::new()));
    if let Some(list) = list.as_array_mut() {
        list.retain(|one| one != finalizer);
        if wanted {
            list.push(finalizer.into());
        }
        if list.is_empty() {
            metadata.remove("finalizers");
        }
    }
}
