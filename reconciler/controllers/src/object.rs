//! An object of any watched kind, and what the controllers need of each type whose status they write.

use std::sync::Arc;

use berth_api::{Conditions, Unparsed};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Client, Resource, core::object::HasStatus};

use crate::key::{Key, Watched, with_kinds};

macro_rules! define_object {
    ($($kind:ident, $table:ident, $type:ty;)+) => {
        /// An object of any watched kind. Cache, decision and write share it.
        #[derive(Clone, Debug)]
        pub(crate) enum Object {
            $($kind(Arc<$type>)),+
        }

        impl Object {
            /// The object's key.
            pub(crate) fn key(&self) -> Key {
                match self {
                    $(Self::$kind(object) => Key::of(object.as_ref())),+
                }
            }

            /// Its metadata.
            pub(crate) fn meta(&self) -> &ObjectMeta {
                match self {
                    $(Self::$kind(object) => object.meta()),+
                }
            }
        }

        $(impl From<$type> for Object {
            fn from(object: $type) -> Self {
                Self::$kind(Arc::new(object))
            }
        }

        impl From<Arc<$type>> for Object {
            fn from(object: Arc<$type>) -> Self {
                Self::$kind(object)
            }
        })+
    };
}

with_kinds!(define_object);

/// An object of a kind whose status the controllers write.
pub(crate) trait WithStatus:
    Watched + HasStatus<Status: PartialEq + Clone + Default> + Into<Object>
{
    fn conditions(status: &mut Self::Status) -> &mut Conditions;
    /// Reads and writes objects of this kind.
    fn api(client: Client, key: &Key) -> Api<Unparsed>;
}

macro_rules! with_status {
    ($($kind:ident, $api:ident;)+) => {
        $(impl WithStatus for berth_api::$kind {
            fn conditions(status: &mut Self::Status) -> &mut Conditions { &mut status.conditions }
            fn api(client: Client, key: &Key) -> Api<Unparsed> { $api::<Self>(client, key) }
        })+

        /// A call that takes an object of any kind with a status.
        pub(crate) trait StatusVisitor {
            type Output;
            fn visit<K: WithStatus>(self, object: &K) -> Self::Output;
        }

        impl Object {
            /// Calls the visitor with the typed object; `None` for a kind without a status.
            pub(crate) fn visit<V: StatusVisitor>(&self, visitor: V) -> Option<V::Output> {
                match self {
                    $(Self::$kind(object) => Some(visitor.visit(object.as_ref())),)+
                    Self::Lease(_) | Self::ServiceAccount(_) | Self::Role(_) | Self::ConfigMap(_) => None,
                }
            }
        }
    };
}

fn namespaced<K>(client: Client, key: &Key) -> Api<Unparsed>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced_with(client, key.namespace(), &Unparsed::resource::<K>())
}

fn cluster<K: Resource<DynamicType = ()>>(client: Client, _: &Key) -> Api<Unparsed> {
    Api::all_with(client, &Unparsed::resource::<K>())
}

with_status! {
    VM, namespaced;
    Disk, namespaced;
    DiskSnapshot, namespaced;
    BackupRepository, namespaced;
    Backup, namespaced;
    VMSnapshot, namespaced;
    SnapshotSchedule, namespaced;
    Quota, namespaced;
    HotswapDiskAttachment, namespaced;
    Image, namespaced;
    PublicIP, namespaced;
    PlacementGroup, namespaced;
    VMGroup, namespaced;
    VMClass, namespaced;
    KeyClass, namespaced;
    Network, namespaced;
    SecurityGroup, namespaced;
    IPPool, cluster;
    StoragePool, cluster;
    Host, cluster;
}
