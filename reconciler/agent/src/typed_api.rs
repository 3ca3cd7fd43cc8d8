//! Reads and writes objects of one kind.
//!
//! As kube's [`Api`] does, but the requests are those of objects as text: they are compiled once, and not for each kind.

use std::marker::PhantomData;

use berth_api::{JsonKind, Unparsed};
use k8s_openapi::NamespaceResourceScope;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error, Resource, Result};
use serde_json::Value;

/// Reads and writes objects of this kind.
pub(crate) struct TypedApi<K> {
    text: Api<Unparsed>,
    kind: PhantomData<fn() -> K>,
}

impl<K: JsonKind> TypedApi<K> {
    /// Of the whole cluster: the objects of a kind without namespaces, or a list of those of all namespaces.
    pub(crate) fn all(client: Client) -> Self {
        Self { text: Api::all_with(client, &Unparsed::resource::<K>()), kind: PhantomData }
    }

    /// Of a namespace.
    pub(crate) fn namespaced(client: Client, namespace: &str) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let text = Api::namespaced_with(client, namespace, &Unparsed::resource::<K>());
        Self { text, kind: PhantomData }
    }

    pub(crate) async fn get(&self, name: &str) -> Result<K> {
        parsed(&self.text.get(name).await?)
    }

    pub(crate) async fn get_opt(&self, name: &str) -> Result<Option<K>> {
        self.text.get_opt(name).await?.as_ref().map(parsed).transpose()
    }

    /// Lists the objects of one page.
    pub(crate) async fn list(&self, params: &ListParams) -> Result<Vec<K>> {
        self.text.list(params).await?.iter().map(parsed::<K>).collect()
    }

    pub(crate) async fn create(&self, params: &PostParams, object: &K) -> Result<K> {
        parsed(&self.text.create(params, &text(object)?).await?)
    }

    pub(crate) async fn patch(&self, name: &str, params: &PatchParams, patch: &Patch<Value>) -> Result<K> {
        parsed(&self.text.patch(name, params, patch).await?)
    }

    pub(crate) async fn replace_status(&self, name: &str, params: &PostParams, object: &K) -> Result<K> {
        parsed(&self.text.replace_status(name, params, &text(object)?).await?)
    }
}

fn parsed<K: JsonKind>(object: &Unparsed) -> Result<K> {
    object.parse().map_err(Error::SerdeError)
}

fn text<K: JsonKind>(object: &K) -> Result<Unparsed> {
    Unparsed::of(object).map_err(Error::SerdeError)
}
