//! Whether a control plane is in charge of its site: checked by the controllers and agents that act on it.

use std::time::Duration;

use berth_agent::TypedApi;
use berth_api::{
    SYSTEM_NAMESPACE,
    site::{Authority, SITE, Site, SiteState, TermRecord, authority},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Client, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use berth_agent::site::read;

/// The interval between these checks.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Whether the controllers of a control plane with this site state may decide, on a machine that has kept this
/// record.
fn may_decide(site: Option<&Site>, record: Option<&TermRecord>) -> Result<(), String> {
    if let Some(leaving) = site.filter(|site| site.state == SiteState::Leaving) {
        return Err(format!("the site is moving to {}", leaving.other));
    }
    match authority(site, record) {
        Authority::InCharge(_) => Ok(()),
        Authority::Moved(_) => Err("the site has moved to another control plane".to_owned()),
        Authority::NotInCharge(why) => Err(why),
    }
}

/// Checks whether a control plane is in charge: the inner `Err` is the reason why not.
///
/// *Errors:* it does not respond.
pub async fn in_charge(
    client: &Client,
    record: Option<&TermRecord>,
) -> Result<Result<(), String>, kube::Error> {
    Ok(match read(client).await? {
        None => may_decide(None, record),
        Some(Ok(site)) => may_decide(Some(&site), record),
        Some(Err(why)) => Err(why),
    })
}

/// Runs `lead` while the control plane is in charge, with a token that is cancelled when it no longer is; until
/// `cancel`.
///
/// *Assumptions:* the control plane rejects `lead`'s writes after it stopped being in charge.
pub async fn while_in_charge<F, Fut>(
    client: Client,
    record: impl Fn() -> Option<TermRecord>,
    cancel: CancellationToken,
    lead: F,
) where
    F: Fn(CancellationToken) -> Fut,
    Fut: Future<Output = ()>,
{
    let mut reported = None;
    while !cancel.is_cancelled() {
        match in_charge(&client, record().as_ref()).await {
            Ok(Ok(())) => {
                if reported.take().is_some() {
                    info!("this control plane is in charge");
                }
                let leading = cancel.child_token();
                tokio::select! {
                    () = lead(leading.clone()) => {}
                    () = deposed(&client, &record) => {}
                }
                leading.cancel();
            }
            Ok(Err(why)) => {
                if reported.as_ref() != Some(&why) {
                    warn!(why, "this control plane is not in charge: nothing is decided here");
                    reported = Some(why);
                }
            }
            Err(error) => warn!(%error, "whether this control plane is in charge cannot be read"),
        }
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// Waits until the control plane is no longer in charge. One that does not respond accepts no writes either.
async fn deposed(client: &Client, record: &impl Fn() -> Option<TermRecord>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if let Ok(Err(why)) = in_charge(client, record().as_ref()).await {
            info!(why, "this control plane is no longer in charge");
            return;
        }
    }
}

/// Returns the current ConfigMap, to be changed.
pub(crate) async fn found(client: &Client) -> Result<Option<ConfigMap>, kube::Error> {
    maps(client).get_opt(SITE).await
}

/// Records a control plane's site state. `before` is the ConfigMap that was read: it must not have changed since.
///
/// *Errors:* 409 if it has; the control plane's.
pub(crate) async fn write(
    client: &Client,
    before: Option<&ConfigMap>,
    site: &Site,
) -> Result<(), kube::Error> {
    let mut map = before.cloned().unwrap_or_default();
    map.metadata.name = Some(SITE.to_owned());
    map.metadata.managed_fields = None;
    map.data = Some(site.to_data());
    let params = PostParams { field_manager: Some("berth".into()), ..PostParams::default() };
    match before {
        None => maps(client).create(&params, &map).await?,
        Some(before) => maps(client).replace(&before.name_any(), &params, &map).await?,
    };
    Ok(())
}

/// Removes the site state: the control plane is then one that never took part in a move.
///
/// *Errors:* the control plane's; a missing ConfigMap is no error.
pub(crate) async fn forget(client: &Client, before: &ConfigMap) -> Result<(), kube::Error> {
    let this_one = Preconditions { uid: before.uid(), resource_version: before.resource_version() };
    let params = DeleteParams { preconditions: Some(this_one), ..DeleteParams::default() };
    match maps(client).delete(SITE, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    }
}

fn maps(client: &Client) -> TypedApi<ConfigMap> {
    TypedApi::namespaced(client.clone(), SYSTEM_NAMESPACE)
}
