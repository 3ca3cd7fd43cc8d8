//! The watch of a kind as a stream of changes.

use std::time::Duration;

use berth_api::Unparsed;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use tracing::warn;

use crate::{
    key::{Key, ObjectKind, Watched},
    object::Object,
};

/// The delay before a list is made again after an object that cannot be read.
const UNREADABLE_DELAY: Duration = Duration::from_secs(5);

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
    K: Watched + Into<Object>,
{
    with::<K>(Api::all_with(client, &Unparsed::resource::<K>()), watcher::Config::default())
}

/// Watches all objects of a namespace.
pub(crate) fn within<K>(client: Client, namespace: &str) -> BoxStream<'static, Change>
where
    K: Watched + Into<Object>,
{
    let api = Api::namespaced_with(client, namespace, &Unparsed::resource::<K>());
    with::<K>(api, watcher::Config::default())
}

/// Watches only objects with the label, those of a namespace or all.
pub(crate) fn labelled<K>(client: Client, namespace: Option<&str>, label: &str) -> BoxStream<'static, Change>
where
    K: Watched + Into<Object>,
{
    let resource = Unparsed::resource::<K>();
    let api = match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    with::<K>(api, watcher::Config::default().labels(label))
}

/// Watches only the object of that name in a namespace.
pub(crate) fn named<K>(client: Client, namespace: &str, name: &str) -> BoxStream<'static, Change>
where
    K: Watched + Into<Object>,
{
    let api = Api::namespaced_with(client, namespace, &Unparsed::resource::<K>());
    with::<K>(api, watcher::Config::default().fields(&format!("metadata.name={name}")))
}

/// A watch that begins again with a list after an object that cannot be read: an incomplete list would mean that the object
/// is gone.
fn with<K>(api: Api<Unparsed>, config: watcher::Config) -> BoxStream<'static, Change>
where
    K: Watched + Into<Object>,
{
    stream::repeat_with(move || until_unreadable(watched(api.clone(), config.clone()), change::<K>, K::KIND))
        .flatten()
        .boxed()
}

type Events = BoxStream<'static, Result<watcher::Event<Unparsed>, watcher::Error>>;

fn watched(api: Api<Unparsed>, config: watcher::Config) -> Events {
    watcher(api, config).default_backoff().boxed()
}

/// The changes of the events, up to an object that `change` cannot read.
fn until_unreadable(
    events: Events,
    change: fn(watcher::Event<Unparsed>) -> Result<Change, serde_json::Error>,
    kind: ObjectKind,
) -> BoxStream<'static, Change> {
    events
        .scan((), move |(), event| async move {
            match event.map(change) {
                Ok(Ok(change)) => Some(Some(change)),
                Ok(Err(error)) => {
                    warn!(kind = kind.as_str(), %error, "an object cannot be read, and all are listed again");
                    tokio::time::sleep(UNREADABLE_DELAY).await;
                    None
                }
                Err(error) => {
                    warn!(kind = kind.as_str(), %error, "watch failed and is started again");
                    Some(None)
                }
            }
        })
        .filter_map(std::future::ready)
        .boxed()
}

fn change<K>(event: watcher::Event<Unparsed>) -> Result<Change, serde_json::Error>
where
    K: Watched + Into<Object>,
{
    let read = |object: Unparsed| object.parse::<K>().map(Into::into);
    Ok(match event {
        watcher::Event::Init => Change::ListBegins(K::KIND),
        watcher::Event::InitDone => Change::Listed(K::KIND),
        watcher::Event::InitApply(object) | watcher::Event::Apply(object) => Change::Applied(read(object)?),
        watcher::Event::Delete(object) => Change::Deleted(read(object)?),
    })
}

#[cfg(test)]
mod tests {
    use berth_api::Disk;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;

    fn object(size: &serde_json::Value) -> Unparsed {
        let disk = json!({"metadata": {"name": "root", "namespace": "ns"}, "spec": {"size": size}});
        serde_json::from_value(disk).expect("an object")
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_with_an_object_that_cannot_be_read_is_never_complete() {
        let changes = async |size: serde_json::Value| {
            let events = [Event::Init, Event::InitApply(object(&size)), Event::InitDone];
            let events = stream::iter(events.map(Ok)).boxed();
            until_unreadable(events, change::<Disk>, ObjectKind::Disk).collect::<Vec<_>>().await
        };
        let complete = changes(json!("1Gi")).await;
        assert!(
            matches!(complete[..], [Change::ListBegins(_), Change::Applied(_), Change::Listed(_)]),
            "{complete:?}"
        );
        let broken = changes(json!(7)).await;
        assert!(matches!(broken[..], [Change::ListBegins(_)]), "{broken:?}");
    }
}
