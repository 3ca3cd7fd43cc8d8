//! Creating an object.

use berth_apimachinery::meta;
use berth_apimachinery::time::seconds;
use berth_store::{Action, Expect, Key, WriteError};
use http::StatusCode;
use serde_json::Value;

use super::source::Source;
use super::{Answer, ApiError, Call, Result};
use crate::admission::Operation;
use crate::catalog::definition;
use crate::core::Core;
use crate::request::Sub;
use crate::store_error::of_write;

/// The number of attempts to find a free generated name.
const NAME_ATTEMPTS: usize = 8;
/// The number of letters of its prefix that a generated name keeps.
const MAX_PREFIX: usize = 58;

impl Call {
    pub(crate) async fn create(&mut self, mut object: Value) -> Result<Answer> {
        if self.target.sub != Sub::None {
            return Err(ApiError::method_not_allowed());
        }
        self.accept(&mut object)?;
        let generated = self.take_name(&mut object)?;
        let mut attempt = 1;
        loop {
            let created = self.create_named(object.clone()).await;
            match created {
                Err(error) if generated && error.reason == "AlreadyExists" && attempt < NAME_ATTEMPTS => {
                    self.generate_name(&mut object);
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    /// Determines the name; returns whether it was generated.
    fn take_name(&mut self, object: &mut Value) -> Result<bool> {
        let has =
            |object: &Value, member: &str| object["metadata"][member].as_str().is_some_and(|s| !s.is_empty());
        if has(object, "resourceVersion") {
            return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
        }
        if !has(object, "name") && has(object, "generateName") {
            self.generate_name(object);
            return Ok(true);
        }
        self.target.name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        Ok(false)
    }

    fn generate_name(&mut self, object: &mut Value) {
        let prefix = object["metadata"]["generateName"].as_str().unwrap_or_default();
        let kept: String = prefix.chars().take(MAX_PREFIX).collect();
        let name = format!("{kept}{}", self.core.ids.suffix());
        object["metadata"]["name"] = name.as_str().into();
        self.target.name = name;
    }

    /// Creates an object that passed [`Self::accept`] and has its name.
    pub(super) async fn create_named(&mut self, object: Value) -> Result<Answer> {
        let object = self.prepare_new(object, Source::Update)?;
        let object = self.own(None, object);
        self.finish_create(object).await
    }

    /// Builds the state to store of a new object, before ownership is recorded.
    pub(super) fn prepare_new(&mut self, mut object: Value, source: Source) -> Result<Value> {
        self.place(&mut object)?;
        let resource = std::sync::Arc::clone(&self.target.resource);
        let now = self.core.clock.now();
        let metadata = meta::of(&mut object);
        for set_by_server in
            ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation", "resourceVersion"]
        {
            metadata.remove(set_by_server);
        }
        metadata.insert("uid".into(), self.core.ids.uid().into());
        metadata.insert("creationTimestamp".into(), seconds(now).into());
        if resource.counts_generation {
            metadata.insert("generation".into(), 1.into());
        }
        if resource.is_custom()
            && self.version().has_status
            && let Some(members) = object.as_object_mut()
        {
            members.remove("status");
        }
        if resource.is_custom() {
            self.fill_in(source, &mut object);
        } else {
            crate::builtin::prepare(&resource, &mut object, None, now);
        }
        meta::tidy(&mut object);
        Ok(object)
    }

    /// Sets the object's namespace to that of the request.
    fn place(&self, object: &mut Value) -> Result<()> {
        let namespace = self.target.namespace.as_str();
        let metadata = meta::of(object);
        let sent = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
        if !sent.is_empty() && sent != namespace {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        if self.resource().namespaced {
            if namespace.is_empty() {
                return Err(ApiError::bad_request("an empty namespace may not be set during creation"));
            }
            metadata.insert("namespace".into(), namespace.into());
        } else {
            metadata.remove("namespace");
        }
        Ok(())
    }

    /// Validates, admits and stores a complete new object.
    pub(super) async fn finish_create(&mut self, mut object: Value) -> Result<Answer> {
        crate::builtin::begin(self.resource(), &mut object);
        for _ in 0..super::ATTEMPTS {
            let guards = self.guards()?;
            self.validate(&object, None)?;
            self.may_create()?;
            self.admit(Operation::Create, Some(&object), None)?;
            // As in Kubernetes, the errors of an object are reported before the conflict of its name.
            if let Some(there) = self.core.store.get(&self.key()) {
                let subject = self.subject(&self.target.name);
                return Err(if there.facts.deleting {
                    ApiError::still_exists(subject)
                } else {
                    ApiError::already_exists(subject)
                });
            }
            berth_apimachinery::schema::whole_numbers(&mut object);
            let encoded = Core::encode(self.resource(), &object)?;
            if self.options.dry_run {
                return Ok(Answer::of_value(StatusCode::CREATED, &object));
            }
            match self.commit(Expect::Absent, Action::Put(encoded), guards).await {
                Ok(entry) => return Ok(self.answer(StatusCode::CREATED, &entry)),
                // Either the name was taken in the meantime, or the namespace or definition changed: retry.
                Err(WriteError::Conflict) => self.check_definition()?,
                Err(error) => return Err(of_write(&error)),
            }
        }
        Err(ApiError::too_many_requests("the namespace or definition keeps changing"))
    }

    /// Returns the keys that must not change during the write: its namespace and its definition.
    fn guards(&self) -> Result<Vec<(Key, u64)>> {
        let mut guards = Vec::new();
        if self.resource().namespaced {
            let name = &self.target.namespace;
            let namespace = self
                .core
                .namespace(name)
                .ok_or_else(|| ApiError::not_found(super::Subject { group: "", kind: "namespaces", name }))?;
            if namespace.facts.deleting {
                return Err(ApiError::namespace_terminating(self.subject(&self.target.name), name));
            }
            guards.push((namespace.key.clone(), namespace.revision));
        }
        if let Some((crd, revision, terminating)) = definition(self.resource()) {
            if terminating {
                return Err(ApiError::method_not_allowed());
            }
            self.core.store.get(crd).ok_or_else(ApiError::no_such_path)?;
            guards.push((crd.clone(), revision));
        }
        Ok(guards)
    }
}
