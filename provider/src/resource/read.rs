//! Read: one GET. Gone is gone, another object of the same name is another object, silence is an error.

use serde_json::Value as Json;
use tfplugin6::{
    Diagnostic, Value,
    resource::{ReadRequest, ReadResponse},
};

use super::{
    KindResource,
    create::{is_known_as, no_control_plane, uid},
    is_terminating,
};
use crate::{
    api::Patience,
    mapping,
    private::Private,
    timeouts::{self, Operation},
};

/// How long a read is tried again while the control plane is away: a plan should not hang.
const RETRIES: u64 = 5;
/// Labels of these domains are programs', not the user's.
const FOREIGN_LABELS: [&str; 3] = ["kubernetes.io/", "k8s.io/", "berth.dev/"];

impl KindResource {
    /// Brings a state up to date.
    pub(super) async fn refresh(&self, request: ReadRequest) -> ReadResponse {
        let settings = self.session.settings();
        let api = match &settings.api {
            Ok(api) => api,
            Err(problem) => return no_control_plane(problem).into(),
        };
        let at = self.address(&request.state);
        let limit = timeouts::limit(Operation::Read, &request.state, self.facts.timeouts);
        let patience = Patience::seconds(RETRIES, &request.cancel);
        let found = match tokio::time::timeout(limit, api.get(&at, &patience)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return ReadResponse::failed(self.refused(&error, &at)),
            Err(_) => {
                let detail = format!("No answer within {} seconds (timeouts.read).", limit.as_secs());
                return Diagnostic::error(format!("{} could not be read", self.title(&at)), detail).into();
            }
        };
        let Some(object) = found else { return ReadResponse::new(Value::Null) };
        let known = request.state.get("uid").as_str().unwrap_or_default();
        if !known.is_empty() && !is_known_as(&object, known) {
            let detail = "The object of that name is not the one Terraform made: that one was deleted, and somebody made \
                          another. Terraform leaves this one alone; import it to manage it.";
            let warning = Diagnostic::warning(format!("{} is another object now", self.title(&at)), detail);
            return ReadResponse::new(Value::Null).warn([warning]);
        }
        let mut state = self.refreshed(&request.state, &object);
        let private = Private {
            uid: uid(&object).to_owned(),
            held: mapping::held(&self.fields, &object),
            ..Private::from_bytes(&request.private)
        };
        let private = match self.kind.read_beside(api, &object, &private, &mut state).await {
            Ok(private) => private,
            Err(error) => return ReadResponse::failed(self.refused(&error, &at)),
        };
        let identity = Self::identity(&state);
        let terminating = is_terminating(&object).then(|| {
            let detail = "Somebody asked for it to be deleted. It is shown as it is until it is gone.";
            Diagnostic::warning(format!("{} is being deleted", self.title(&at)), detail)
        });
        ReadResponse {
            identity,
            private: Some(private.to_bytes()),
            ..ReadResponse::new(state).warn(terminating)
        }
    }

    /// The state, with what is observed in it.
    pub(super) fn refreshed(&self, prior: &Value, object: &Json) -> Value {
        let importing = prior.get("uid").is_null();
        let mut observed = self.observed(object);
        let labels = our_labels(prior.get("labels"), observed.get("labels"), importing);
        observed.set("labels", labels);
        let empty = std::collections::BTreeMap::new();
        let state = mapping::refresh(&self.fields, prior, observed.as_map().unwrap_or(&empty));
        let mut state = Value::Map(state);
        state.set("id", observed.get("id").clone());
        let timeouts =
            if importing { timeouts::from_annotation(object) } else { prior.get("timeouts").clone() };
        state.set("timeouts", timeouts);
        state
    }
}

/// Of the labels, those the state knows: others may be anybody's. An import takes all that look like a user's.
fn our_labels(prior: &Value, now: &Value, importing: bool) -> Value {
    let Some(labels) = now.as_map() else { return Value::Null };
    let ours = |name: &str| match prior.as_map() {
        Some(known) => known.contains_key(name),
        None => importing && !FOREIGN_LABELS.iter().any(|domain| name.contains(domain)),
    };
    let kept: Vec<_> =
        labels.iter().filter(|(name, _)| ours(name)).map(|(n, v)| (n.clone(), v.clone())).collect();
    if kept.is_empty() { Value::Null } else { Value::object(kept) }
}
