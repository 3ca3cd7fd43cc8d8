//! Asking the admission policies, and recording who owns which fields.

use serde_json::Value;

use super::{ApiError, Call, Result};
use crate::admission::{self, Operation};
use crate::authorize;
use crate::fields;
use crate::request::Sub;

impl Call {
    /// Asks the policies in force. The objects are as this version serves them.
    pub(super) fn admit(
        &mut self,
        operation: Operation,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<()> {
        if let Some(object) = object {
            authorize::check_escalation(&self.core, &self.who, self.resource(), object, old)?;
        }
        let policies = self.core.policies();
        if policies.is_empty() {
            return Ok(());
        }
        let namespace = self.core.namespace(&self.target.namespace).map(|entry| entry.value());
        let resource = self.resource();
        let user = admission::UserInfo {
            username: self.who.user.clone(),
            uid: self.who.uid.clone(),
            groups: self.who.groups.clone(),
            extra: self.who.extra(),
        };
        // A namespace is in itself, as in Kubernetes.
        let place = if resource.is("", "namespaces") { &self.target.name } else { &self.target.namespace };
        // Of many that are deleted at once policies are told no name.
        let name = if self.verb == "deletecollection" { "" } else { self.target.name.as_str() };
        let request = admission::Request {
            operation,
            group: &resource.group,
            version: &self.version().name,
            resource: &resource.plural,
            kind: &resource.kind,
            subresource: self.target.sub.name(),
            namespace: place,
            name,
            object,
            old_object: old,
            user: &user,
            options: None,
            dry_run: self.options.dry_run,
            namespace_object: namespace.as_ref(),
        };
        match policies.check(&request) {
            Ok(warnings) => {
                self.warnings.extend(warnings);
                Ok(())
            }
            Err(denied) => Err(ApiError::denied(self.subject(&denied.name), &denied)),
        }
    }

    pub(super) fn own_created(&self, object: Value) -> Result<Value> {
        self.own(None, object)
    }

    pub(super) fn own_updated(&self, live: &Value, object: Value) -> Result<Value> {
        self.own(Some(live), object)
    }

    fn own(&self, before: Option<&Value>, mut object: Value) -> Result<Value> {
        let options = fields::UpdateOptions {
            blank: crate::builtin::blank(self.resource()),
            manager: self.manager(),
            subresource: self.subresource().map(str::to_owned),
            api_version: self.resource().api_version(self.target.version),
            // As in Kubernetes nobody knows when something was scaled.
            now: match self.target.sub {
                Sub::Scale => String::new(),
                _ => crate::clock::seconds(self.core.clock.now()),
            },
            reset: self.reset(),
        };
        fields::track_update(before, &mut object, &options, &self.version().schema);
        Ok(object)
    }

    /// What a write through this side of the object cannot touch.
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
