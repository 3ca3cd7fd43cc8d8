//! The host's sign of life: a Lease, renewed every ten seconds. Whoever finds it stale knows that nothing is known.

use std::sync::Arc;
use std::time::Duration;

use berth_api::{AGENT_MANAGER, SYSTEM_NAMESPACE};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::Instant;

use crate::context::Context;
use crate::error::Error;

const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Two renewals have been missed.
const OVERDUE: Duration = Duration::from_secs(25);
const TRY_AGAIN: Duration = Duration::from_secs(2);
/// How long the Lease counts without being renewed, in seconds.
const HOLDS: i32 = 40;

/// When the Lease was renewed last.
#[derive(Debug, Default)]
pub(crate) struct SignOfLife {
    renewed: tokio::sync::Mutex<Option<Instant>>,
}

impl SignOfLife {
    /// Renews the Lease now if that is overdue.
    ///
    /// To be called before anything is reported of an object. The controllers call the objects of a host whose Lease
    /// has run out unknown: reporting one again before the Lease is renewed would only make them say so again, as
    /// fast as both can write.
    pub(crate) async fn is_given(&self, ctx: &Context) -> Result<(), Error> {
        let mut renewed = self.renewed.lock().await;
        if renewed.is_some_and(|at| at.elapsed() < OVERDUE) {
            return Ok(());
        }
        renew(ctx).await?;
        *renewed = Some(Instant::now());
        Ok(())
    }

    async fn renew(&self, ctx: &Context) -> Result<(), Error> {
        let mut renewed = self.renewed.lock().await;
        renew(ctx).await?;
        *renewed = Some(Instant::now());
        Ok(())
    }
}

/// Renews the Lease until it is dropped.
pub(crate) async fn renew_for_ever(ctx: Arc<Context>) {
    loop {
        let wait = match ctx.sign_of_life.renew(&ctx).await {
            Ok(()) => RENEW_EVERY,
            Err(error) => {
                tracing::debug!(error = %error.chain(), "the Lease could not be renewed");
                TRY_AGAIN
            }
        };
        tokio::time::sleep(wait).await;
    }
}

async fn renew(ctx: &Context) -> Result<(), Error> {
    let api: Api<Lease> = Api::namespaced(ctx.client.clone(), SYSTEM_NAMESPACE);
    let now = MicroTime(ctx.now());
    let patch =
        json!({"spec": {"holderIdentity": ctx.host(), "leaseDurationSeconds": HOLDS, "renewTime": now}});
    let params = PatchParams { field_manager: Some(AGENT_MANAGER.to_owned()), ..PatchParams::default() };
    let renewed = api.patch(ctx.host(), &params, &Patch::Merge(patch)).await;
    match renewed.map_err(Error::api("renew the Lease")) {
        Err(error) if error.is_not_found() => {}
        other => return other.map(|_| ()),
    }
    let lease = Lease {
        metadata: ObjectMeta { name: Some(ctx.host().to_owned()), ..ObjectMeta::default() },
        spec: Some(LeaseSpec {
            holder_identity: Some(ctx.host().to_owned()),
            lease_duration_seconds: Some(HOLDS),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    };
    let params = PostParams { field_manager: Some(AGENT_MANAGER.to_owned()), ..PostParams::default() };
    api.create(&params, &lease).await.map(|_| ()).map_err(Error::api("create the Lease"))
}
