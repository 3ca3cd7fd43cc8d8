//! Reads and writes objects of one kind.
//!
//! As kube's [`Api`] does, but the requests are those of objects as text: they are compiled once, and not for each kind. The crate
//! of the kinds must not know a client, so this is in the lowest crate that may.

use std::marker::PhantomData;

use berth_api::{JsonKind, Unparsed};
use k8s_openapi::NamespaceResourceScope;
use kube::api::{DeleteParams, ListParams, ObjectList, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error, Resource, ResourceExt, Result};
use serde_json::Value;

/// Reads and writes objects of this kind.
///
/// *Errors* of all requests: the control plane's; the answer is not an object of this kind.
#[derive(Debug)]
pub struct TypedApi<K> {
    text: Api<Unparsed>,
    kind: PhantomData<fn() -> K>,
}

impl<K: JsonKind> TypedApi<K> {
    /// Of the whole cluster: the objects of a kind without namespaces, or a list of those of all namespaces.
    pub fn all(client: Client) -> Self {
        Self { text: Api::all_with(client, &Unparsed::resource::<K>()), kind: PhantomData }
    }

    /// Of a namespace.
    pub fn namespaced(client: Client, namespace: &str) -> Self
    where
        K: Resource<Scope = NamespaceResourceScope>,
    {
        let text = Api::namespaced_with(client, namespace, &Unparsed::resource::<K>());
        Self { text, kind: PhantomData }
    }

    /// Reads an object.
    pub async fn get(&self, name: &str) -> Result<K> {
        parsed(&self.text.get(name).await?)
    }

    /// Reads an object; none if there is none.
    pub async fn get_opt(&self, name: &str) -> Result<Option<K>> {
        self.text.get_opt(name).await?.as_ref().map(parsed).transpose()
    }

    /// Reads an object's UID, and nothing else of it; none if there is no object.
    pub(crate) async fn get_uid(&self, name: &str) -> Result<Option<String>> {
        Ok(self.text.get_opt(name).await?.and_then(|object| object.uid()))
    }

    /// Lists the objects of one page.
    pub async fn list(&self, params: &ListParams) -> Result<ObjectList<K>> {
        let ObjectList { types, metadata, items } = self.text.list(params).await?;
        let items = items.iter().map(parsed::<K>).collect::<Result<Vec<K>>>()?;
        Ok(ObjectList { types, metadata, items })
    }

    /// Creates an object.
    pub async fn create(&self, params: &PostParams, object: &K) -> Result<K> {
        parsed(&self.text.create(params, &text(object)?).await?)
    }

    /// Replaces an object, of which the managed fields stay as they are.
    pub async fn replace(&self, name: &str, params: &PostParams, object: &K) -> Result<K> {
        parsed(&self.text.replace(name, params, &text(object)?).await?)
    }

    pub(crate) async fn replace_status(&self, name: &str, params: &PostParams, object: &K) -> Result<K> {
        parsed(&self.text.replace_status(name, params, &text(object)?).await?)
    }

    /// Changes an object.
    pub async fn patch(&self, name: &str, params: &PatchParams, patch: &Patch<Value>) -> Result<K> {
        parsed(&self.text.patch(name, params, patch).await?)
    }

    /// Deletes an object. The answer is not read.
    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<()> {
        self.text.delete(name, params).await.map(drop)
    }
}

fn parsed<K: JsonKind>(object: &Unparsed) -> Result<K> {
    object.parse().map_err(Error::SerdeError)
}

fn text<K: JsonKind>(object: &K) -> Result<Unparsed> {
    Unparsed::of(object).map_err(Error::SerdeError)
}
