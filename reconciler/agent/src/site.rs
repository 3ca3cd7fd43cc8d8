//! Whether the control plane commands this host: asked before the Lease is taken, and so before anything, and
//! again once in a while.
//!
//! The host keeps the newest term it knows of (see [`berth_api::site`]) before it acts on it. One that came back from a
//! backup says an older one: it is waited for, and what runs goes on.

use berth_api::SYSTEM_NAMESPACE;
use berth_api::site::{Record, SITE, Site, Standing, judge};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};

use crate::context::Context;
use crate::error::Error;

/// What this host has kept, as far as it was read.
#[derive(Debug, Default)]
pub(crate) struct Allegiance {
    kept: tokio::sync::Mutex<Option<Option<Record>>>,
}

/// What the control plane says of itself; `None`: it never took part in a move, or is too old to know of them.
///
/// *Errors:* it does not answer; in words for people if it says what cannot be understood.
pub async fn read(client: &Client) -> Result<Option<Result<Site, String>>, kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    match maps.get_opt(SITE).await {
        Ok(found) => Ok(found
            .map(|map| Site::from_data(&map.data.unwrap_or_default()).map_err(|error| error.to_string()))),
        // Roles of before there was such a thing.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes sure that the control plane commands this host.
///
/// *Errors:* [`Error::Moved`], [`Error::NotInCharge`]; it does not answer; what has to be kept cannot be.
pub(crate) async fn obeys(ctx: &Context) -> Result<(), Error> {
    let site = match read(&ctx.client).await.map_err(Error::api("read which control plane is in charge"))? {
        None => None,
        Some(Ok(site)) => Some(site),
        Some(Err(why)) => return Err(Error::NotInCharge { why }),
    };
    let mut kept = ctx.allegiance.kept.lock().await;
    let record = match &*kept {
        Some(record) => record.clone(),
        None => kept.insert(ctx.system.read_site().await?).clone(),
    };
    let note = match judge(site.as_ref(), record.as_ref()) {
        Standing::Waits(why) => return Err(Error::NotInCharge { why }),
        Standing::Commands(note) => note.map(|note| (note, Ok(()))),
        Standing::Moved(note) => Some((note, Err(Error::Moved))),
    };
    let Some((note, then)) = note else { return Ok(()) };
    if record.as_ref() != Some(&note) {
        // Unknown until it is written: a write that failed may have been one.
        *kept = None;
        ctx.system.write_site(&note).await?;
        tracing::info!(site = note.site, term = note.term, "kept which control plane is in charge");
        *kept = Some(Some(note));
    }
    then
}
