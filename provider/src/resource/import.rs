//! Import: needs only a name; the read that follows does the rest.

use berth_api::ResourceName;
use tfplugin6::{
    Diagnostic, Value,
    resource::{ImportRequest, ImportResponse, ImportSource},
};

use super::KindResource;
use crate::{defaults, private::Private, selector::is_domain};

impl KindResource {
    /// Imports an object by `namespace/name`, `name`, or identity; one of a kind without namespaces by `name` or identity.
    pub(super) fn adopt_by_name(&self, request: &ImportRequest) -> ImportResponse {
        let default = self.session.settings().namespace.unwrap_or_else(|| "default".into());
        let (namespace, name) = match &request.source {
            ImportSource::Id(id) => match id.split_once('/').filter(|_| self.is_namespaced) {
                Some((namespace, name)) => (namespace.to_owned(), name.to_owned()),
                None => (default, id.clone()),
            },
            ImportSource::Identity(identity) => {
                let text = |name| identity.get(name).as_str().map(str::to_owned);
                (text("namespace").unwrap_or(default), text("name").unwrap_or_default())
            }
        };
        let fits = ResourceName::is_dns_label(&namespace) && is_domain(&name);
        if !fits {
            let form = if self.is_namespaced {
                format!(
                    "{:?} is not the name of an object. Write namespace/name, or name for namespace \"default\"",
                    format!("{namespace}/{name}")
                )
            } else {
                format!(
                    "{name:?} is not the name of an object. {} has no namespace: write its name",
                    self.info.kind
                )
            };
            let example = if self.is_namespaced { "default/web" } else { "web" };
            let detail = format!("{form}: terraform import {}.NAME {example}", self.info.type_name);
            return Diagnostic::error("Invalid import ID", detail).into();
        }
        let state = self.imported(&namespace, &name);
        let private = self.imported_private().to_bytes();
        ImportResponse { identity: self.identity(&state), private, ..ImportResponse::new(state) }
    }

    /// The private data of an object that is taken into a state.
    pub(super) fn imported_private(&self) -> Private {
        Private { keeps_placement: defaults::has_placement(&self.fields), ..Private::default() }
    }

    /// The state of an import before the first read.
    pub(super) fn imported(&self, namespace: &str, name: &str) -> Value {
        let mut state = Value::object(self.fields.iter().map(|field| (field.name, Value::Null)));
        if self.is_namespaced {
            state.set("namespace", namespace);
        }
        state.set("name", name);
        state
    }
}
