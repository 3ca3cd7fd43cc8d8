//! Checks whether the control plane commands this host: before the Lease is taken, and so before any other action, and
//! again periodically.
//!
//! The host persists the newest term it knows (see [`berth_api::site`]) before acting on it. A control plane restored
//! from a backup reports an older term: the host waits, and its VMs keep running.

use std::sync::Arc;

use berth_api::SYSTEM_NAMESPACE;
use berth_api::site::{Authority, SITE, Site, TermRecord, authority};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;

use crate::error::Error;
use crate::typed_api::TypedApi;
use berth_host::System;

/// The term of the site that this host obeys.
pub(crate) struct SiteTerm {
    client: Client,
    system: Arc<dyn System>,
    /// The persisted record, if it has been read.
    kept: tokio::sync::Mutex<Option<Option<TermRecord>>>,
}

/// Reads the control plane's own site record; `None` if it has never taken part in a move or predates moves.
///
/// *Errors:* the control plane does not answer; the inner `Err` is a message for people if the record cannot be parsed.
pub async fn read(client: &Client) -> Result<Option<Result<Site, String>>, kube::Error> {
    let maps: TypedApi<ConfigMap> = TypedApi::namespaced(client.clone(), SYSTEM_NAMESPACE);
    match maps.get_opt(SITE).await {
        Ok(found) => Ok(found
            .map(|map| Site::from_data(&map.data.unwrap_or_default()).map_err(|error| error.to_string()))),
        // The roles predate the site record.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        Err(error) => Err(error),
    }
}

impl SiteTerm {
    pub(crate) fn new(client: Client, system: Arc<dyn System>) -> Self {
        Self { client, system, kept: tokio::sync::Mutex::default() }
    }

    /// Checks that the control plane commands this host.
    ///
    /// *Errors:* [`Error::Moved`], [`Error::NotInCharge`]; the control plane does not answer; the record cannot be
    /// persisted.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        let site =
            match read(&self.client).await.map_err(Error::api("read which control plane is in charge"))? {
                None => None,
                Some(Ok(site)) => Some(site),
                Some(Err(why)) => return Err(Error::NotInCharge { why }),
            };
        let mut kept = self.kept.lock().await;
        let record = match &*kept {
            Some(record) => record.clone(),
            None => {
                let read = self.system.read_site().await?.map(serde_json::from_value).transpose();
                kept.insert(read.map_err(|error| Error::SiteRecord { detail: error.to_string() })?).clone()
            }
        };
        let (newer, outcome) = match authority(site.as_ref(), record.as_ref()) {
            Authority::NotInCharge(why) => return Err(Error::NotInCharge { why }),
            Authority::InCharge(None) => return Ok(()),
            Authority::InCharge(Some(newer)) => (newer, Ok(())),
            Authority::Moved(newer) => (newer, Err(Error::Moved)),
        };
        if record.as_ref() != Some(&newer) {
            // Unknown until the write succeeds: a write that failed may still have taken effect.
            *kept = None;
            self.system.write_site(&serde_json::to_value(&newer).expect("it is plain JSON")).await?;
            tracing::info!(site = newer.site, term = newer.term, "site term recorded");
            *kept = Some(Some(newer));
        }
        outcome
    }
}
