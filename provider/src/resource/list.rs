//! Lists for `terraform query`: the identity of each object, and the state as an import and a read make it.

use serde_json::Value as Json;
use tfplugin6::{Diagnostic, Value, list_resource::ListResult};

use super::{KindResource, text};
use crate::{api::Api, private::Private};

impl KindResource {
    /// The result for an object without its state.
    pub(crate) fn found(&self, object: &Json) -> ListResult {
        let state = self.imported(text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        ListResult {
            identity: self.identity(&state).unwrap_or_default(),
            display_name: self.address(&state).id(),
            resource: None,
        }
    }

    /// The result for an object with its state. A part of the state that cannot be read is a warning, and leaves it out.
    pub(crate) async fn found_with_state(&self, api: &Api, object: Json) -> (ListResult, Vec<Diagnostic>) {
        let found = self.found(&object);
        let object = self.kind.complete(api, object).await;
        let imported = self.imported(text(&object, "/metadata/namespace"), text(&object, "/metadata/name"));
        let mut state: Value = self.refreshed(&imported, &object);
        match self.kind.read_side_object(api, &object, &Private::default(), &mut state).await {
            Ok(_) => (ListResult { resource: Some(state), ..found }, Vec::new()),
            Err(error) => {
                let detail = format!("{error}. It is listed without its attributes.");
                let summary = format!("{} {} could not be read", self.info.kind, found.display_name);
                (found, vec![Diagnostic::warning(summary, detail)])
            }
        }
    }
}
