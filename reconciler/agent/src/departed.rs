//! Departed VMs, Disks and DiskSnapshots: deleted before this host released them, because their finalizer was removed first.
//!
//! ```text
//!   DELETED event ──▶ uid has state on this host? ──▶ gone from the control plane? ───────▶ brought down as if it had
//!                        │ no                            │ no: only its binding changed       been marked as deleted
//!                        ▼                               ▼
//!                     forgotten                       forgotten
//! ```
//!
//! *Guarantees:* only a DELETED event marks an object as departed. An object that is missing from a list, as after a
//! restore or after a deletion while the agent was not running, is an orphan: reported and left alone.

use berth_api::{HOST_FINALIZER, JsonKind};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Client, Resource, ResourceExt};

use crate::converge::api;
use crate::error::Error;

/// Whether the control plane still has exactly this object: a watch with a field selector also reports an object as
/// deleted when it is no longer bound to this host.
pub(crate) async fn exists<K>(client: &Client, object: &K) -> Result<bool, Error>
where
    K: JsonKind + Resource<Scope = NamespaceResourceScope>,
{
    let found = api(client, object).get_uid(&object.name_any()).await;
    let found = found.map_err(Error::api("look for what was deleted"))?;
    Ok(found.is_some() && found == object.uid())
}

/// Returns the object as it would be if its finalizer were still in place.
pub(crate) fn with_finalizer<K: Resource + Clone>(object: &K, now: Timestamp) -> K {
    let mut object = object.clone();
    let meta = object.meta_mut();
    meta.deletion_timestamp.get_or_insert(Time(now));
    meta.finalizers = Some(vec![HOST_FINALIZER.to_owned()]);
    object
}
