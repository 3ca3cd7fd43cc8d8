//! Whether a control plane is in charge of its site: asked by those who act on it.

use std::time::Duration;

use berth_api::{
    SYSTEM_NAMESPACE,
    site::{Record, SITE, Site, SiteState, Standing, judge},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use berth_agent::site::read;

/// How often those who act ask whether they still may.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Whether the controllers of a control plane that says this of itself may decide, on a machine that has kept that.
fn may_decide(site: Option<&Site>, record: Option<&Record>) -> Result<(), String> {
    if let Some(leaving) = site.filter(|site| site.state == SiteState::Leaving) {
        return Err(format!("the site is moving to {}", leaving.other));
    }
    match judge(site, record) {
        Standing::Commands(_) => Ok(()),
        Standing::Moved(_) => Err("the site has moved to another control plane".to_owned()),
        Standing::Waits(why) => Err(why),
    }
}

/// What a control plane is to those who act on it: `Err` says why it is not in charge.
///
/// *Errors:* it does not answer.
pub async fn in_charge(client: &Client, record: Option<&Record>) -> Result<Result<(), String>, kube::Error> {
    Ok(match read(client).await? {
        None => may_decide(None, record),
        Some(Ok(site)) => may_decide(Some(&site), record),
        Some(Err(why)) => Err(why),
    })
}

/// Runs `lead` while the control plane is in charge, with a token that is cancelled when it no longer is; until `cancel`.
///
/// *Assumptions:* what `lead` writes after the control plane stopped being in charge is refused there.
pub async fn while_in_charge<F, Fut>(
    client: Client,
    record: impl Fn() -> Option<Record>,
    cancel: CancellationToken,
    lead: F,
) where
    F: Fn(CancellationToken) -> Fut,
    Fut: Future<Output = ()>,
{
    let mut told = None;
    while !cancel.is_cancelled() {
        match in_charge(&client, record().as_ref()).await {
            Ok(Ok(())) => {
                if told.take().is_some() {
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
                if told.as_ref() != Some(&why) {
                    warn!(why, "this control plane is not in charge: nothing is decided here");
                    told = Some(why);
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

/// Waits until the control plane is no longer in charge. One that does not answer takes no writes either.
async fn deposed(client: &Client, record: &impl Fn() -> Option<Record>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if let Ok(Err(why)) = in_charge(client, record().as_ref()).await {
            info!(why, "this control plane is no longer in charge");
            return;
        }
    }
}

/// The ConfigMap as it is, to be changed.
pub(crate) async fn found(client: &Client) -> Result<Option<ConfigMap>, kube::Error> {
    maps(client).get_opt(SITE).await
}

/// Says what a control plane is from now on. `before` is what was read: nobody may have changed it meanwhile.
///
/// *Errors:* 409 if somebody has; what the control plane says.
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

/// A control plane that never took part in a move from now on.
///
/// *Errors:* what the control plane says; one that is gone is none.
pub(crate) async fn forget(client: &Client, before: &ConfigMap) -> Result<(), kube::Error> {
    let this_one = Preconditions { uid: before.uid(), resource_version: before.resource_version() };
    let params = DeleteParams { preconditions: Some(this_one), ..DeleteParams::default() };
    match maps(client).delete(SITE, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), SYSTEM_NAMESPACE)
}
