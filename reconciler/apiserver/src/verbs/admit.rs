//! Evaluation of the admission policies, and recording of field ownership.

use berth_apimachinery::fields;
use serde_json::Value;

use super::{ApiError, Call, Result};
use crate::admission::{self, Operation};
use crate::authorize;
use crate::builtin::ADMISSION;
use crate::request::Sub;

impl Call {
    /// Evaluates the policies in force. The objects are in the form of this version.
    pub(super) fn admit(
        &mut self,
        operation: Operation,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        if let Some(object) = object {
            authorize::check_escalation(&self.core.access, &self.who, self.resource(), object, old)?;
        }
        // Policies do not apply to policies: otherwise a mistake in one could not be fixed. Nor are they compiled anew between the
        // writes of many.
        if self.resource().group == ADMISSION {
            return Ok(());
        }
        let policies = self.core.policies();
        if policies.is_empty() {
            return Ok(());
        }
        let resource = self.resource();
        // A namespace counts as inside itself, as in Kubernetes.
        let place = if resource.is("", "namespaces") { &self.target.name } else { &self.target.namespace };
        // In the deletion of a collection policies receive no name.
        let name = if self.verb == "deletecollection" { "" } else { self.target.name.as_str() };
        let request = admission::Request {
            operation,
            group: &resource.group,
            version: &self.version().name,
            resource: &resource.plural,
            kind: if self.target.sub == Sub::Token { admission::TOKEN_REQUEST } else { &resource.kind },
            subresource: self.target.sub.name(),
            namespace: place,
            name,
            object,
            old_object: old,
            user: &self.who,
            options: None,
            dry_run: self.options.dry_run,
            namespace_object: None,
        };
        // Parsed only if it is needed: few policies use it, and the renewals of hosts' Leases are most of the writes.
        let namespace =
            policies.reads_namespace(&request).then(|| self.core.namespace(&self.target.namespace));
        let namespace = namespace.flatten().map(|entry| entry.value());
        let request = admission::Request { namespace_object: namespace.as_ref(), ..request };
        match policies.check(&request, &*self.core) {
            Ok(warnings) => {
                self.warnings.extend(warnings);
                Ok(())
            }
            Err(denied) => Err(ApiError::denied(
                self.subject(&denied.name),
                (denied.code, &denied.reason),
                &denied.status_message,
                &denied.message,
            )),
        }
    }

    /// Refuses to create through another verb (apply to a missing object) without the permission to create.
    pub(super) fn may_create(&self) -> Result<()> {
        if self.verb == "create" {
            return Ok(());
        }
        let resource = self.resource();
        // A namespace counts as inside itself, as in Kubernetes.
        let place = if resource.is("", "namespaces") { &self.target.name } else { &self.target.namespace };
        let wanted = authorize::Attributes {
            verb: "create",
            group: &resource.group,
            resource: &resource.plural,
            subresource: self.target.sub.name(),
            namespace: place,
            name: &self.target.name,
            path: "",
        };
        authorize::check(&self.core.access, &self.who, &wanted)
    }

    /// Records the owners of the fields that the write changes.
    pub(super) fn own(&self, before: Option<&Value>, mut object: Value) -> Value {
        fields::track_update(before, &mut object, &self.write_options(), &self.version().schema);
        object
    }

    pub(super) fn write_options(&self) -> fields::WriteOptions {
        fields::WriteOptions {
            manager: self.manager(),
            force: self.options.force,
            subresource: self.subresource().map(str::to_owned),
            api_version: self.resource().api_version(self.target.version),
            now: berth_apimachinery::time::seconds(self.core.clock.now()),
            reset: self.reset(),
        }
    }

    /// Returns the fields that a write through this subresource cannot change.
    pub(super) fn reset(&self) -> fields::Reset {
        match self.target.sub {
            Sub::Status if self.verb != "apply" => fields::Reset::Spec,
            Sub::Status => fields::Reset::AllButStatus,
            _ if self.version().has_status => fields::Reset::Status,
            _ => fields::Reset::Nothing,
        }
    }

    pub(super) fn subresource(&self) -> Option<&'static str> {
        Some(self.target.sub.name()).filter(|name| !name.is_empty())
    }
}
