//! Watches: objects from the control plane go into the index, and the keys they concern into the queue.
//!
//! A broken watch resumes where it ended or starts again with a list; changes missed in between appear as differences
//! from the index.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use berth_api::host_addresses::HOST_ADDRESSES;
use berth_api::{
    Disk, Host, HotswapDiskAttachment, Image, Network, PublicIP, SYSTEM_NAMESPACE, StoragePool, VM, VMClass,
};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::index::Indexed;
use crate::key::Key;

type Watch = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns all watches of an agent; none of them ends.
pub(crate) fn all(ctx: &Arc<Context>) -> Vec<Watch> {
    let bound = format!("status.binding.host={}", ctx.config.host_name);
    let myself = format!("metadata.name={}", ctx.config.host_name);
    vec![
        watch::<VM>(ctx, Some(&bound)),
        watch::<Disk>(ctx, Some(&bound)),
        watch::<HotswapDiskAttachment>(ctx, Some(&bound)),
        watch::<PublicIP>(ctx, Some(&bound)),
        watch::<Image>(ctx, None),
        watch::<VMClass>(ctx, None),
        watch::<Network>(ctx, None),
        watch::<StoragePool>(ctx, None),
        watch::<Host>(ctx, Some(&myself)),
        watch_host_addresses(ctx),
    ]
}

fn watch<K>(ctx: &Arc<Context>, fields: Option<&str>) -> Watch
where
    K: Indexed + Resource + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Default,
{
    let ctx = ctx.clone();
    let config = watcher::Config { field_selector: fields.map(str::to_owned), ..watcher::Config::default() };
    let api: Api<K> = Api::all(ctx.client.clone());
    Box::pin(async move {
        // Managed fields are not used here and make up half of an object's bytes.
        let mut stream = watcher(api, config)
            .default_backoff()
            .map_ok(|event| event.modify(|object| object.meta_mut().managed_fields = None))
            .boxed();
        loop {
            match stream.next().await {
                Some(Ok(event)) => {
                    for key in ctx.index.apply(event) {
                        ctx.enqueue(key);
                    }
                }
                Some(Err(error)) => {
                    tracing::debug!(error = %error, kind = %K::kind(&K::DynamicType::default()), "watch broke, trying again");
                }
                None => return,
            }
            ctx.sync_changed();
        }
    })
}

/// Watches the list of host addresses that every firewall is built from.
fn watch_host_addresses(ctx: &Arc<Context>) -> Watch {
    let ctx = ctx.clone();
    let config = watcher::Config::default().fields(&format!("metadata.name={HOST_ADDRESSES}"));
    let api: Api<ConfigMap> = Api::namespaced(ctx.client.clone(), SYSTEM_NAMESPACE);
    Box::pin(async move {
        let mut stream = watcher(api, config).default_backoff().boxed();
        loop {
            match stream.next().await {
                Some(Ok(event)) => {
                    if ctx.index.read().host_addresses.apply(event) {
                        ctx.enqueue(Key::Network);
                    }
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "the watch of the hosts' addresses broke, trying again");
                    // The roles predate this list; VMs must not wait for it.
                    if is_forbidden(&error) {
                        ctx.index.read().host_addresses.set_unreadable();
                    }
                }
                None => return,
            }
            ctx.sync_changed();
        }
    })
}

fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => status.code == 403,
        _ => false,
    }
}
