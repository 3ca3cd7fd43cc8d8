//! Watches: objects from the control plane go into the index, and the keys they concern into the queue.
//!
//! A broken watch resumes where it ended or starts again with a list; changes missed in between appear as differences
//! from the index.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use berth_api::host_addresses::HOST_ADDRESSES;
use berth_api::{JsonKind, SYSTEM_NAMESPACE, Unparsed};
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{DefaultBackoff, Event};
use kube::runtime::{WatchStreamExt, watcher};

use crate::context::Context;
use crate::index::Indexed;
use crate::key::{Key, kind};

/// The delay before a list is made again after an object that cannot be read.
const UNREADABLE_DELAY: Duration = Duration::from_secs(5);

/// A watch that feeds the index. It never ends.
pub(crate) type Watch = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Watches all objects of the kind.
pub(crate) fn all<K: Indexed + JsonKind>(ctx: &Arc<Context>) -> Watch {
    watch::<K>(ctx, watcher::Config::default(), IfUnserved::Wait)
}

/// Watches all objects of a kind that not every control plane has.
pub(crate) fn all_if_served<K: Indexed + JsonKind>(ctx: &Arc<Context>) -> Watch {
    watch::<K>(ctx, watcher::Config::default(), IfUnserved::Empty)
}

/// Watches the objects that are bound to this host.
pub(crate) fn bound<K: Indexed + JsonKind>(ctx: &Arc<Context>) -> Watch {
    let config = watcher::Config::default().fields(&format!("status.binding.host={}", ctx.host()));
    watch::<K>(ctx, config, IfUnserved::Wait)
}

/// Watches the objects of a kind that not every control plane has, those that are bound to this host.
pub(crate) fn bound_if_served<K: Indexed + JsonKind>(ctx: &Arc<Context>) -> Watch {
    let config = watcher::Config::default().fields(&format!("status.binding.host={}", ctx.host()));
    watch::<K>(ctx, config, IfUnserved::Empty)
}

/// Watches this host's object.
pub(crate) fn own<K: Indexed + JsonKind>(ctx: &Arc<Context>) -> Watch {
    let config = watcher::Config::default().fields(&format!("metadata.name={}", ctx.host()));
    watch::<K>(ctx, config, IfUnserved::Wait)
}

/// The meaning of a control plane that does not have the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IfUnserved {
    /// Nothing is known of its objects.
    Wait,
    /// There are none.
    Empty,
}

fn watch<K>(ctx: &Arc<Context>, config: watcher::Config, if_unserved: IfUnserved) -> Watch
where
    K: Indexed + JsonKind,
{
    let ctx = ctx.clone();
    let api = Api::all_with(ctx.client.clone(), &Unparsed::resource::<K>());
    Box::pin(async move {
        let mut stream = events(&api, &config);
        loop {
            match stream.next().await.map(|event| event.map(parsed::<K>)) {
                Some(Ok(Ok(event))) => {
                    for key in ctx.index.apply(event) {
                        ctx.enqueue(key);
                    }
                }
                Some(Ok(Err(error))) => {
                    // The list begins again: an incomplete one would mean that the object is gone.
                    tracing::warn!(%error, kind = %kind::<K>(), "an object cannot be read, and all are listed again");
                    tokio::time::sleep(UNREADABLE_DELAY).await;
                    stream = events(&api, &config);
                }
                Some(Err(error)) => {
                    tracing::debug!(error = %error, kind = %kind::<K>(), "watch broke, trying again");
                    if if_unserved == IfUnserved::Empty && has_code(&error, 404) {
                        ctx.index.set_unserved::<K>();
                    }
                }
                None => return,
            }
            ctx.sync_changed();
        }
    })
}

type Events = BoxStream<'static, Result<Event<Unparsed>, watcher::Error>>;

fn events(api: &Api<Unparsed>, config: &watcher::Config) -> Events {
    watcher(api.clone(), config.clone()).backoff(BackOff::default()).boxed()
}

/// The back-off of kube's watches, a third as long: after a long outage of the control plane, a host follows it again within 10 to 20 seconds
/// instead of 30 to 60.
#[derive(Default)]
struct BackOff(DefaultBackoff);

impl Iterator for BackOff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next().map(|wait| wait / 3)
    }
}

impl Backoff for BackOff {
    fn reset(&mut self) {
        self.0.reset();
    }
}

fn parsed<K: JsonKind>(event: Event<Unparsed>) -> Result<Event<K>, serde_json::Error> {
    Ok(match event {
        Event::Apply(object) => Event::Apply(object.parse()?),
        Event::Delete(object) => Event::Delete(object.parse()?),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(object.parse()?),
        Event::InitDone => Event::InitDone,
    })
}

/// Watches the list of host addresses that every firewall is built from.
pub(crate) fn host_addresses(ctx: &Arc<Context>) -> Watch {
    let ctx = ctx.clone();
    let config = watcher::Config::default().fields(&format!("metadata.name={HOST_ADDRESSES}"));
    let resource = Unparsed::resource::<ConfigMap>();
    let api = Api::namespaced_with(ctx.client.clone(), SYSTEM_NAMESPACE, &resource);
    Box::pin(async move {
        let mut stream = events(&api, &config);
        loop {
            match stream.next().await.map(|event| event.map(parsed::<ConfigMap>)) {
                Some(Ok(Ok(event))) => {
                    if ctx.index.read().host_addresses.apply(event) {
                        ctx.enqueue(Key::networks());
                    }
                }
                Some(Ok(Err(error))) => {
                    tracing::warn!(%error, "the list of the hosts' addresses cannot be read, and is read again");
                    tokio::time::sleep(UNREADABLE_DELAY).await;
                    stream = events(&api, &config);
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, "the watch of the hosts' addresses broke, trying again");
                    // The roles predate this list; VMs must not wait for it.
                    if has_code(&error, 403) {
                        ctx.index.read().host_addresses.set_unreadable();
                    }
                }
                None => return,
            }
            ctx.sync_changed();
        }
    })
}

/// Whether the list of the objects was answered with this error.
fn has_code(error: &watcher::Error, code: u16) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => status.code == code,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_watch_is_tried_again_after_at_most_twenty_seconds() {
        let waits: Vec<Duration> = BackOff::default().take(20).collect();
        assert!(waits[0] < Duration::from_secs(1), "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(20)), "{waits:?}");
    }
}
