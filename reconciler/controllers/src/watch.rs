//! The watch of a kind as a stream of changes.

use std::fmt::Debug;

use berth_api::Unmanaged;
use futures::{StreamExt, stream::BoxStream};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::{
    key::{Key, ObjectKind, Watched},
    object::Object,
};

/// A watch event.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// A list begins: objects that do not arrive before [`Change::Listed`] are gone.
    ListBegins(ObjectKind),
    /// The list is complete.
    Listed(ObjectKind),
    /// An object was created or changed.
    Applied(Object),
    /// An object was deleted.
    Deleted(Object),
}

impl Change {
    /// Returns the key of the changed object; none for events about a whole list.
    pub(crate) fn key(&self) -> Option<Key> {
        match self {
            Self::ListBegins(_) | Self::Listed(_) => None,
            Self::Applied(object) | Self::Deleted(object) => Some(object.key()),
        }
    }
}

/// Watches all objects of the kind.
pub(crate) fn all<K>(client: Client) -> BoxStream<'static, Change>
where
    K: Watched + DeserializeOwned + Debug + Send + Into<Object> + 'static,
{
    every::<K>(Api::all(client))
}

/// Watches all objects of a namespace, or of all of them.
pub(crate) fn every<K>(api: Api<Unmanaged<K>>) -> BoxStream<'static, Change>
where
    K: Watched + DeserializeOwned + Debug + Send + Into<Object> + 'static,
{
    with(api, watcher::Config::default())
}

/// Watches only objects with the label.
pub(crate) fn labelled<K>(api: Api<Unmanaged<K>>, label: &str) -> BoxStream<'static, Change>
where
    K: Watched + DeserializeOwned + Debug + Send + Into<Object> + 'static,
{
    with(api, watcher::Config::default().labels(label))
}

/// Watches only the object of that name.
pub(crate) fn named<K>(api: Api<Unmanaged<K>>, name: &str) -> BoxStream<'static, Change>
where
    K: Watched + DeserializeOwned + Debug + Send + Into<Object> + 'static,
{
    with(api, watcher::Config::default().fields(&format!("metadata.name={name}")))
}

fn with<K>(api: Api<Unmanaged<K>>, config: watcher::Config) -> BoxStream<'static, Change>
where
    K: Watched + DeserializeOwned + Debug + Send + Into<Object> + 'static,
{
    watcher(api, config)
        .default_backoff()
        .filter_map(|event| async move {
            match event {
                Ok(watcher::Event::Init) => Some(Change::ListBegins(K::KIND)),
                Ok(watcher::Event::InitDone) => Some(Change::Listed(K::KIND)),
                Ok(
                    watcher::Event::InitApply(Unmanaged(object)) | watcher::Event::Apply(Unmanaged(object)),
                ) => Some(Change::Applied(object.into())),
                Ok(watcher::Event::Delete(Unmanaged(object))) => Some(Change::Deleted(object.into())),
                Err(error) => {
                    warn!(kind = K::KIND.as_str(), %error, "watch failed and is started again");
                    None
                }
            }
        })
        .boxed()
}
