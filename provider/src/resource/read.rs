//! Read: one GET. A missing object, or another object of the same name, means that the resource is gone; no response is an
//! error.

use berth_api::gates::{DELETE_GATE, POWER_ON_GATE};
use serde_json::Value as Json;
use tfplugin6::{
    Diagnostic, Value,
    resource::{ReadRequest, ReadResponse},
};

use super::{KindResource, create::is_known_as, is_terminating};
use crate::{
    api::RetryLimit,
    field::{Field, Shape},
    mapping, name_prefix,
    private::Private,
    timeouts::{self, Operation},
};

/// The time for which a read is retried while the control plane is away, in seconds: a plan should not hang.
const RETRIES: u64 = 4;
/// The label domains of programs, not of users.
const FOREIGN_LABELS: [&str; 3] = ["kubernetes.io/", "k8s.io/", "berth.dev/"];

impl KindResource {
    /// Refreshes a state.
    pub(super) async fn refresh(&self, request: ReadRequest) -> ReadResponse {
        let settings = self.session.settings();
        let prior = self.with_namespace(request.state, &settings);
        let mut private = Private::from_bytes(&request.private);
        let moved_from = private.moved_from.take();
        if moved_from.is_some() && prior.get("name").is_null() {
            return ReadResponse::new(Value::Null);
        }
        let at = self.address(&prior);
        let limit = timeouts::limit(Operation::Read, &prior, self.info.timeouts);
        let retry_limit = RetryLimit::seconds(RETRIES, &request.cancel);
        let reading = async {
            let api = settings.api.as_ref();
            let api = api.map_err(|problem| vec![self.no_control_plane(&settings, &at, problem)])?;
            let found = settings.read(api, &at, &retry_limit).await;
            found.map(|found| (api, found)).map_err(|error| self.request_diagnostics(&error, &at))
        };
        let (api, found) = match tokio::time::timeout(limit, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(diagnostics)) => return ReadResponse::failed(diagnostics),
            Err(_) => {
                let detail = format!("No response within {} seconds (timeouts.read).", limit.as_secs());
                return Diagnostic::error(format!("{} could not be read", self.title(&at)), detail).into();
            }
        };
        let Some(object) = found else {
            if let Some(origin) = moved_from {
                settings.run.brought(&at, &origin, &prior);
            }
            return ReadResponse::new(Value::Null);
        };
        let known = prior.get("uid").as_str().unwrap_or_default();
        if !known.is_empty() && !is_known_as(&object, known) {
            let detail = "The object of that name is not the one in the state: that one was deleted, and another client \
                          created a new one. Terraform does not change the new object; import it to manage it.";
            let warning = Diagnostic::warning(format!("{} is another object now", self.title(&at)), detail);
            return ReadResponse::new(Value::Null).warn([warning]);
        }
        let object = self.kind.complete(api, object).await;
        // A state that a move has just brought was never that of the object: its values are not those to compare with.
        let moved_from = moved_from.filter(|_| known.is_empty());
        let prior = if moved_from.is_some() { self.imported(&at.namespace, &at.name) } else { prior };
        let mut state = self.refreshed(&prior, &object);
        let taken_up = moved_from.as_ref().map(|origin| self.taken_up(&prior, origin));
        let pinned = mapping::pinned_fields(&self.fields, &object);
        let private = Private { pinned, moved_from, ..private.after_change() };
        let private = match self.kind.read_side_object(api, &object, &private, &mut state).await {
            Ok(private) => private,
            Err(error) => return ReadResponse::failed(self.request_diagnostics(&error, &at)),
        };
        let identity = self.identity(&state);
        let terminating = is_terminating(&object).then(|| {
            let detail = "Another client requested its deletion. The state shows it until it is gone.";
            Diagnostic::warning(format!("{} is being deleted", self.title(&at)), detail)
        });
        ReadResponse {
            identity,
            private: Some(private.to_bytes()),
            ..ReadResponse::new(state).warn(taken_up.into_iter().chain(terminating))
        }
    }

    /// The state, updated with the observed values.
    pub(super) fn refreshed(&self, prior: &Value, object: &Json) -> Value {
        let importing = prior.get("uid").is_null();
        let mut observed = self.observed(object);
        let labels = ours(
            prior.get("labels"),
            observed.get("labels"),
            importing.then_some(is_imported_label as fn(&str) -> bool),
        );
        observed.set("labels", labels);
        let is_annotated = self.fields.iter().any(|field| matches!(field.shape, Shape::Annotations));
        if is_annotated {
            let imported = importing.then_some(is_imported_annotation as fn(&str) -> bool);
            let annotations = ours(prior.get("annotations"), observed.get("annotations"), imported);
            observed.set("annotations", annotations);
        }
        let empty = std::collections::BTreeMap::new();
        let state = mapping::refresh(&self.fields, prior, observed.as_map().unwrap_or(&empty));
        let mut state = Value::Map(state);
        state.set("id", observed.get("id").clone());
        if importing {
            // The configuration may declare a list without elements, too.
            let is_nothing = |field: &&Field| mapping::is_nothing(field, observed.get(field.name));
            for field in self.fields.iter().filter(is_nothing) {
                state.set(field.name, Value::List(Vec::new()));
            }
        }
        if importing && !self.kind.is_adopted() {
            let prefix = observed.get("name").as_str().and_then(name_prefix::of);
            state.set("name_prefix", prefix.map_or(Value::Null, Value::from));
        }
        let timeouts =
            if importing { timeouts::from_annotation(object) } else { prior.get("timeouts").clone() };
        state.set("timeouts", timeouts);
        state
    }
}

/// Whether an import takes a label into the state: all outside the domains of programs.
fn is_imported_label(name: &str) -> bool {
    !FOREIGN_LABELS.iter().any(|domain| name.contains(domain))
}

/// Whether an import takes an annotation into the state: all outside the domains of programs, and gates.
fn is_imported_annotation(name: &str) -> bool {
    [POWER_ON_GATE, DELETE_GATE].iter().any(|gate| name.starts_with(gate)) || is_imported_label(name)
}

/// The labels or annotations that the state knows: others may belong to other programs. `imported`: those that an import takes.
fn ours(prior: &Value, now: &Value, imported: Option<fn(&str) -> bool>) -> Value {
    let Some(all) = now.as_map() else { return Value::Null };
    let is_ours = |name: &str| match prior.as_map() {
        Some(known) => known.contains_key(name),
        None => imported.is_some_and(|is_imported| is_imported(name)),
    };
    let kept: Vec<_> =
        all.iter().filter(|(name, _)| is_ours(name)).map(|(n, v)| (n.clone(), v.clone())).collect();
    if kept.is_empty() { Value::Null } else { Value::object(kept) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_takes_gates_and_leaves_annotations_of_programs_to_them() {
        for name in [
            "backup.example.org/last",
            "note",
            "poweron.check.berth.dev/copy",
            "delete.check.berth.dev/backup",
        ] {
            assert!(is_imported_annotation(name), "{name}");
        }
        for name in [
            "kubectl.kubernetes.io/last-applied-configuration",
            "terraform.berth.dev/timeouts",
            "berth.dev/moved-from",
        ] {
            assert!(!is_imported_annotation(name), "{name}");
        }
    }
}
