//! Watches: what the control plane tells goes into the index, and what it concerns into the queue.
//!
//! A watch that breaks is taken up again where it ended, or begun anew with a list; what was missed in between shows
//! as a difference to what the index had.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use berth_api::{Disk, Host, HotswapDiskAttachment, Image, Network, PublicIP, StoragePool, VM, VMClass};
use futures::{StreamExt, TryStreamExt};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::index::Indexed;
use crate::queue::Key;

type Watch = Pin<Box<dyn Future<Output = ()> + Send>>;

/// All watches of an agent; none of them ends.
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
        // Managed fields are of no use here and half of an object's bytes.
        let mut stream = watcher(api, config)
            .default_backoff()
            .map_ok(|event| event.modify(|object| object.meta_mut().managed_fields = None))
            .boxed();
        loop {
            match stream.next().await {
                Some(Ok(event)) => {
                    for key in ctx.index.take(event) {
                        ctx.concern(key);
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

impl Context {
    /// Puts it in the queue; what concerns the whole host is gathered for a moment.
    pub(crate) fn concern(&self, key: Key) {
        match key {
            Key::Host => self.queue.add_after(key, crate::host::GATHER),
            key => self.queue.add(key),
        }
    }
}
