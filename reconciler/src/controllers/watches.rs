//! The watches of all kinds, merged into one stream of changes.

use berth_api::{
    Disk, Host, HotswapDiskAttachment, IPPool, Image, Network, PlacementGroup, PublicIP, SYSTEM_NAMESPACE,
    StoragePool, VM, VMClass, manifests::access::HOST_LABEL,
};
use futures::{Stream, StreamExt, stream::BoxStream, stream::select_all};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::ServiceAccount, rbac::v1::Role},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource,
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;
use tracing::warn;

use super::{Key, Kind, key::Watched};

/// An object of any watched kind.
#[derive(Clone, Debug)]
pub(super) enum Object {
    Host(Box<Host>),
    Lease(Box<Lease>),
    StoragePool(Box<StoragePool>),
    IPPool(Box<IPPool>),
    Network(Box<Network>),
    VMClass(Box<VMClass>),
    PlacementGroup(Box<PlacementGroup>),
    Image(Box<Image>),
    Disk(Box<Disk>),
    PublicIP(Box<PublicIP>),
    VM(Box<VM>),
    HotswapDiskAttachment(Box<HotswapDiskAttachment>),
    ServiceAccount(Box<ServiceAccount>),
    Role(Box<Role>),
}

macro_rules! objects {
    ($($kind:ident),+) => {
        $(impl From<$kind> for Object { fn from(object: $kind) -> Self { Object::$kind(Box::new(object)) } })+

        impl Object {
            /// Which object it is.
            pub(super) fn key(&self) -> Key {
                match self { $(Self::$kind(object) => Key::of(object.as_ref()),)+ }
            }

            /// Its metadata.
            pub(super) fn meta(&self) -> &ObjectMeta {
                match self { $(Self::$kind(object) => object.meta(),)+ }
            }
        }
    };
}

objects!(
    Host,
    Lease,
    StoragePool,
    IPPool,
    Network,
    VMClass,
    PlacementGroup,
    Image,
    Disk,
    PublicIP,
    VM,
    HotswapDiskAttachment,
    ServiceAccount,
    Role
);

/// What a watch reports.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// A list begins: what it does not name by [`Change::Listed`] is gone.
    ListBegins(Kind),
    /// The list is complete.
    Listed(Kind),
    /// An object appeared or changed.
    Applied(Object),
    /// An object went.
    Deleted(Object),
}

impl Change {
    /// The object that changed; none for what tells of a whole list.
    pub(super) fn key(&self) -> Option<Key> {
        match self {
            Self::ListBegins(_) | Self::Listed(_) => None,
            Self::Applied(object) | Self::Deleted(object) => Some(object.key()),
        }
    }
}

/// One stream of the changes of every kind. It never ends; a broken watch is started again after a back-off.
pub(super) fn all(client: &Client) -> impl Stream<Item = Change> + Unpin + Send + use<> {
    let everywhere = |client: &Client| client.clone();
    select_all([
        one::<Host>(Api::all(everywhere(client))),
        one::<Lease>(Api::namespaced(everywhere(client), SYSTEM_NAMESPACE)),
        one::<StoragePool>(Api::all(everywhere(client))),
        one::<IPPool>(Api::all(everywhere(client))),
        one::<Network>(Api::all(everywhere(client))),
        one::<VMClass>(Api::all(everywhere(client))),
        one::<PlacementGroup>(Api::all(everywhere(client))),
        one::<Image>(Api::all(everywhere(client))),
        one::<Disk>(Api::all(everywhere(client))),
        one::<PublicIP>(Api::all(everywhere(client))),
        one::<VM>(Api::all(everywhere(client))),
        one::<HotswapDiskAttachment>(Api::all(everywhere(client))),
        labelled::<ServiceAccount>(Api::namespaced(everywhere(client), SYSTEM_NAMESPACE), HOST_LABEL),
        labelled::<Role>(Api::all(everywhere(client)), HOST_LABEL),
    ])
}

fn one<K>(api: Api<K>) -> BoxStream<'static, Change>
where
    K: Watched + DeserializeOwned + std::fmt::Debug + Send + Into<Object> + 'static,
{
    with(api, watcher::Config::default())
}

/// Only those with the label.
fn labelled<K>(api: Api<K>, label: &str) -> BoxStream<'static, Change>
where
    K: Watched + DeserializeOwned + std::fmt::Debug + Send + Into<Object> + 'static,
{
    with(api, watcher::Config::default().labels(label))
}

fn with<K>(api: Api<K>, config: watcher::Config) -> BoxStream<'static, Change>
where
    K: Watched + DeserializeOwned + std::fmt::Debug + Send + Into<Object> + 'static,
{
    watcher(api, config)
        .default_backoff()
        .filter_map(|event| async move {
            match event {
                Ok(watcher::Event::Init) => Some(Change::ListBegins(K::KIND)),
                Ok(watcher::Event::InitDone) => Some(Change::Listed(K::KIND)),
                Ok(watcher::Event::InitApply(object) | watcher::Event::Apply(object)) => {
                    Some(Change::Applied(object.into()))
                }
                Ok(watcher::Event::Delete(object)) => Some(Change::Deleted(object.into())),
                Err(error) => {
                    warn!(kind = K::KIND.as_str(), %error, "watch failed and is started again");
                    None
                }
            }
        })
        .boxed()
}
