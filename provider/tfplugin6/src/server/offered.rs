//! The provider's types by name. Each schema is computed once and only when it is needed: Terraform starts a provider many
//! times in one command, mostly for a few of its resources.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use crate::{
    action::Action,
    data_source::DataSource,
    diagnostic::Diagnostic,
    ephemeral::EphemeralResource,
    function::{Function, Signature},
    identity::IdentitySchema,
    list_resource::ListResource,
    provider::Provider,
    resource::Resource,
    schema::Schema,
    ty::Type,
};

use super::Outcome;

/// Everything that one provider offers.
pub(super) struct Offered {
    pub(super) provider: Lazy,
    pub(super) meta: OnceLock<Option<Compiled>>,
    pub(super) resources: BTreeMap<String, Offer<dyn Resource>>,
    pub(super) data_sources: BTreeMap<String, Offer<dyn DataSource>>,
    pub(super) ephemeral_resources: BTreeMap<String, Offer<dyn EphemeralResource>>,
    pub(super) list_resources: BTreeMap<String, Offer<dyn ListResource>>,
    pub(super) actions: BTreeMap<String, Offer<dyn Action>>,
    pub(super) functions: BTreeMap<String, OfferedFunction>,
}

/// A schema and the type it implies.
pub(super) struct Compiled {
    pub(super) schema: Schema,
    pub(super) ty: Type,
}

/// An identity schema and the type it implies.
pub(super) struct CompiledIdentity {
    pub(super) schema: IdentitySchema,
    pub(super) ty: Type,
}

pub(super) type Lazy = OnceLock<Compiled>;

/// One resource, data source, ephemeral resource, list resource or action.
pub(super) struct Offer<T: ?Sized> {
    pub(super) it: Arc<T>,
    schema: Lazy,
    identity: OnceLock<Option<CompiledIdentity>>,
}

/// One function.
pub(super) struct OfferedFunction {
    pub(super) it: Arc<dyn Function>,
    signature: OnceLock<Signature>,
}

impl Compiled {
    pub(super) fn new(schema: Schema) -> Self {
        let ty = schema.ty();
        Self { schema, ty }
    }
}

impl<T: ?Sized> Offer<T> {
    fn new(it: Arc<T>) -> Self {
        Self { it, schema: OnceLock::new(), identity: OnceLock::new() }
    }
}

impl Offer<dyn Resource> {
    pub(super) fn schema(&self) -> &Compiled {
        self.schema.get_or_init(|| Compiled::new(self.it.schema()))
    }

    pub(super) fn identity(&self) -> Option<&CompiledIdentity> {
        let compile = |schema: IdentitySchema| CompiledIdentity { ty: schema.ty(), schema };
        self.identity.get_or_init(|| self.it.identity_schema().map(compile)).as_ref()
    }
}

impl Offer<dyn DataSource> {
    pub(super) fn schema(&self) -> &Compiled {
        self.schema.get_or_init(|| Compiled::new(self.it.schema()))
    }
}

impl Offer<dyn EphemeralResource> {
    pub(super) fn schema(&self) -> &Compiled {
        self.schema.get_or_init(|| Compiled::new(self.it.schema()))
    }
}

impl Offer<dyn ListResource> {
    pub(super) fn schema(&self) -> &Compiled {
        self.schema.get_or_init(|| Compiled::new(self.it.schema()))
    }
}

impl Offer<dyn Action> {
    pub(super) fn schema(&self) -> &Compiled {
        self.schema.get_or_init(|| Compiled::new(self.it.schema()))
    }
}

impl OfferedFunction {
    pub(super) fn signature(&self) -> &Signature {
        self.signature.get_or_init(|| self.it.signature())
    }
}

impl Offered {
    pub(super) fn new(provider: &dyn Provider) -> Self {
        let resources = provider.resources().into_iter();
        let data_sources = provider.data_sources().into_iter();
        let ephemeral_resources = provider.ephemeral_resources().into_iter();
        let list_resources = provider.list_resources().into_iter();
        let actions = provider.actions().into_iter();
        let functions = provider.functions().into_iter();
        Self {
            provider: OnceLock::new(),
            meta: OnceLock::new(),
            resources: resources.map(|it| (it.type_name().to_owned(), Offer::new(it))).collect(),
            data_sources: data_sources.map(|it| (it.type_name().to_owned(), Offer::new(it))).collect(),
            ephemeral_resources: ephemeral_resources
                .map(|it| (it.type_name().to_owned(), Offer::new(it)))
                .collect(),
            list_resources: list_resources.map(|it| (it.type_name().to_owned(), Offer::new(it))).collect(),
            actions: actions.map(|it| (it.type_name().to_owned(), Offer::new(it))).collect(),
            functions: functions
                .map(|it| (it.name().to_owned(), OfferedFunction { it, signature: OnceLock::new() }))
                .collect(),
        }
    }

    pub(super) fn resource(&self, name: &str) -> Outcome<&Offer<dyn Resource>> {
        self.resources.get(name).ok_or_else(|| absent("resource", name))
    }

    pub(super) fn data_source(&self, name: &str) -> Outcome<&Offer<dyn DataSource>> {
        self.data_sources.get(name).ok_or_else(|| absent("data source", name))
    }

    pub(super) fn ephemeral_resource(&self, name: &str) -> Outcome<&Offer<dyn EphemeralResource>> {
        self.ephemeral_resources.get(name).ok_or_else(|| absent("ephemeral resource", name))
    }

    pub(super) fn list_resource(&self, name: &str) -> Outcome<&Offer<dyn ListResource>> {
        self.list_resources.get(name).ok_or_else(|| absent("list resource", name))
    }

    pub(super) fn action(&self, name: &str) -> Outcome<&Offer<dyn Action>> {
        self.actions.get(name).ok_or_else(|| absent("action", name))
    }
}

fn absent(what: &str, name: &str) -> Vec<Diagnostic> {
    vec![Diagnostic::error(format!("No such {what}"), format!("This provider has no {what} {name:?}."))]
}
