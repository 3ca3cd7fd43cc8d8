//! `moved` blocks from resources of other providers.
//!
//! Such a move changes Terraform's state and nothing else: the machine there goes on, and berth has no object yet. So the read
//! after the move decides:
//!
//! ```text
//! move ─▶ read ─┬─ no object ─▶ no state: the plan creates it, and names the values that differ from those before
//!               └─ an object ─▶ it is taken up as by an import, and may be changed in place only
//! ```

use serde_json::Value as Json;
use tfplugin6::{
    Diagnostic, Value,
    resource::{MoveRequest, MoveResponse},
};

use super::KindResource;
use crate::{
    change::PlannedChange,
    moved::{self, Source},
    planning,
    private::Private,
    run::Run,
    session::Settings,
};

impl KindResource {
    /// Takes over the state of a resource of another provider.
    pub(super) fn take_over(&self, request: &MoveRequest) -> MoveResponse {
        let target = self.info.type_name;
        let from = &request.source_type_name;
        let state = serde_json::from_str(&request.source_json).unwrap_or(Json::Null);
        let source = moved::sources_of(target).contains(&from.as_str()).then(|| moved::read(from, &state));
        let Some(Some(source)) = source else { return self.not_movable(request).into() };
        let Some(name) = state.get("name").and_then(Json::as_str).filter(|name| !name.is_empty()) else {
            let detail = format!(
                "The state of this {from} has no name. Remove the moved block, and forget the resource with a removed block or \
                 terraform state rm."
            );
            return Diagnostic::error(format!("A {from} without a name cannot be moved"), detail).into();
        };
        let origin = format!("{from} {name:?}");
        let warning = self.move_warning(&origin, &source);
        let mut state = self.imported("", "");
        state.set("namespace", Value::Null);
        state.set("name", source.name);
        for (attribute, value) in source.attributes {
            state.set(attribute, value);
        }
        let private = Private { moved_from: Some(origin), ..self.imported_private() };
        MoveResponse { private: private.to_bytes(), ..MoveResponse::new(state).warn([warning]) }
    }

    fn not_movable(&self, request: &MoveRequest) -> Diagnostic {
        let (target, from) = (self.info.type_name, &request.source_type_name);
        let summary = format!("A {from} cannot be moved to a {target}");
        if from == target {
            let detail = format!(
                "The state is one of provider {}. To use another address of the same provider, run terraform state \
                 replace-provider.",
                request.source_provider_address
            );
            return Diagnostic::error(summary, detail);
        }
        let forget = format!(
            "Declare the {target}, and forget the {from} with a removed block or terraform state rm."
        );
        let detail = match moved::sources_of(target) {
            _ if from.starts_with("berth_") => {
                format!("They are different kinds, and a moved block does not change a kind. {forget}")
            }
            [] => format!("No resource of another provider becomes a {target}. {forget}"),
            sources => format!("Resources that become a {target}: {}. {forget}", sources.join(", ")),
        };
        Diagnostic::error(summary, detail)
    }

    fn move_warning(&self, origin: &str, source: &Source) -> Diagnostic {
        let kind = self.info.kind;
        let mut detail = format!(
            "The apply makes Terraform forget {origin}: what it describes stays where it is, keeps running, and is no longer \
             managed or destroyed by Terraform. Unless the {kind} exists in berth, the plan creates it."
        );
        if source.name.is_none() {
            detail.push_str(" Its name cannot be one in berth, which has DNS labels.");
        }
        for note in &source.notes {
            detail.push_str("\n\n");
            detail.push_str(note);
        }
        if !source.left_out.is_empty() {
            detail.push_str(&format!("\n\nNot moved: {}.", source.left_out.join(", ")));
        }
        Diagnostic::warning(format!("{origin} becomes a {} in Terraform only", self.info.type_name), detail)
    }

    /// The state with the namespace that the configuration means: a moved state has none, and the provider's is not known during the
    /// move.
    pub(super) fn with_namespace(&self, mut state: Value, settings: &Settings) -> Value {
        if self.is_namespaced && state.get("namespace").is_null() {
            state.set(
                "namespace",
                settings.namespace.clone().unwrap_or_else(|| berth_api::DEFAULT_NAME.into()),
            );
        }
        state
    }

    /// The warning that a move has found an object.
    pub(super) fn taken_up(&self, state: &Value, origin: &str) -> Diagnostic {
        let title = self.title(&self.address(state));
        let detail = format!(
            "It exists in berth, so the moved block of {origin} imports it. If that is not intended, remove \
             the moved block."
        );
        Diagnostic::warning(format!("{title} is imported by a moved block"), detail)
    }

    /// Refuses to act on a state that the move alone has made, and to destroy or replace an object that a move has just found.
    pub(super) fn refuse_after_move(
        &self,
        prior: &Value,
        private: &Private,
        is_destructive: bool,
    ) -> Option<Diagnostic> {
        let origin = private.moved_from.as_ref().filter(|_| !prior.is_null())?;
        if prior.get("uid").is_null() {
            let detail = "Without a refresh the provider cannot see whether berth has the object. Plan again without -refresh=false.";
            return Some(Diagnostic::error(format!("{origin} cannot be moved without a refresh"), detail));
        }
        let title = self.title(&self.address(prior));
        let detail = format!(
            "It existed in berth before the moved block of {origin} imported it, and this plan would destroy it. Remove the moved \
             block; to manage {title} with its present values, import it."
        );
        is_destructive
            .then(|| Diagnostic::error(format!("{title} would be destroyed after a moved block"), detail))
    }

    /// Names the values of a create that differ from those that a moved block has brought.
    pub(super) fn compare_with_moved(&self, run: &Run, change: &mut PlannedChange<'_>) {
        let at = self.address(&change.planned);
        let Some((origin, before)) = run.moved(&at) else { return };
        let differences: Vec<String> = planning::changes(&self.fields, &before, &change.planned)
            .into_iter()
            .filter(|difference| {
                !before.at(&difference.path).is_null() && difference.path.to_string() != "name"
            })
            .map(|difference| {
                let [was, is] = [&before, &change.planned].map(|state| text(state.at(&difference.path)));
                format!("- {}: {was}, now {is}", difference.path)
            })
            .collect();
        if !differences.is_empty() {
            let summary = format!("{} differs from {origin}", self.title(&at));
            let detail =
                format!("The moved values, and those of the new object:\n{}", differences.join("\n"));
            change.diagnostics.push(Diagnostic::warning(summary, detail));
        }
    }
}

/// A value in one line.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::Unknown(_) => "decided by berth".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("{text:?}"),
        Value::List(elements) => format!("[{}]", elements.iter().map(text).collect::<Vec<_>>().join(", ")),
        Value::Map(entries) => {
            let set = entries.iter().filter(|(_, value)| !value.is_null());
            // The names of what a list holds identify its elements.
            match entries.get("name").and_then(Value::as_str) {
                Some(name) => format!("{name:?}"),
                None => set
                    .map(|(name, value)| format!("{name} = {}", text(value)))
                    .collect::<Vec<_>>()
                    .join(", "),
            }
        }
        Value::Dynamic(inner) => text(&inner.1),
    }
}
