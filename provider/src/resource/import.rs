//! Import: needs only a name; the read that follows does the rest.

use berth_api::ResourceName;
use tfplugin6::{
    Diagnostic, Value,
    resource::{ImportRequest, ImportResponse, ImportSource},
};

use super::KindResource;

impl KindResource {
    /// Imports an object by `namespace/name`, `name`, or identity.
    pub(super) fn adopt_by_name(&self, request: &ImportRequest) -> ImportResponse {
        let default = self.session.settings().namespace.unwrap_or_else(|| "default".into());
        let (namespace, name) = match &request.source {
            ImportSource::Id(id) => match id.split_once('/') {
                Some((namespace, name)) => (namespace.to_owned(), name.to_owned()),
                None => (default, id.clone()),
            },
            ImportSource::Identity(identity) => {
                let text = |name| identity.get(name).as_str().map(str::to_owned);
                (text("namespace").unwrap_or(default), text("name").unwrap_or_default())
            }
        };
        let fits = ResourceName::is_dns_label(&namespace) && name.split('.').all(ResourceName::is_dns_label);
        if !fits {
            let detail = format!(
                "{:?} is no name of an object. Write namespace/name, or name for namespace \"default\": \
                 terraform import {}.NAME default/web",
                format!("{namespace}/{name}"),
                self.info.type_name
            );
            return Diagnostic::error("Nothing can be imported by that name", detail).into();
        }
        let mut state = Value::object(self.fields.iter().map(|field| (field.name, Value::Null)));
        state.set("namespace", namespace);
        state.set("name", name);
        ImportResponse { identity: Self::identity(&state), ..ImportResponse::new(state) }
    }
}
