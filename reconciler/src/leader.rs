//! Leader election: of several `berth controllers` only the one that holds the Lease decides.
//!
//! A leader lease alone is no fence, and is not used as one: every write carries the resourceVersion that was read.

use std::{sync::Arc, time::Duration};

use berth_agent::TypedApi;
use berth_api::SYSTEM_NAMESPACE;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Client, ResourceExt,
    api::{ObjectMeta, PostParams},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use berth_engine::Clock;

use crate::health::Health;

const NAME: &str = "berth-controllers";
/// How long a leader keeps the lease without renewing it.
const DURATION: Duration = Duration::from_secs(15);
/// The interval between renewals, or between attempts to acquire the lease.
const PERIOD: Duration = Duration::from_secs(4);

/// The lease's holder as this process sees it.
#[derive(Debug)]
struct Observed {
    version: Option<String>,
    /// When this version was first seen, by the local clock: the holder's may be wrong.
    since: Instant,
}

/// Waits for the lease, then runs `lead` with a token that is cancelled when the lease is lost; starts over until
/// `cancel`. The lease is released at the end, so that another process takes over at once.
pub async fn run<F, Fut>(
    client: Client,
    identity: &str,
    clock: Arc<dyn Clock>,
    cancel: CancellationToken,
    health: &Health,
    lead: F,
) where
    F: Fn(CancellationToken) -> Fut,
    Fut: Future<Output = ()>,
{
    let leases: TypedApi<Lease> = TypedApi::namespaced(client, SYSTEM_NAMESPACE);
    let mut observed = Observed { version: None, since: Instant::now() };
    while !cancel.is_cancelled() {
        let taken = tokio::select! {
            () = cancel.cancelled() => break,
            taken = take(&leases, identity, clock.as_ref(), &mut observed) => taken,
        };
        match taken {
            Ok(true) => {
                health.reached();
                info!(identity, "leading");
                let leading = cancel.child_token();
                tokio::select! {
                    () = lead(leading.clone()) => {}
                    () = keep(&leases, identity, clock.as_ref(), &mut observed, health) => warn!("the leader lease is lost"),
                }
                leading.cancel();
            }
            Ok(false) => health.reached(),
            Err(error) => warn!(%error, "the leader lease could not be read or taken"),
        }
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
    // A control plane that does not answer delays the end for no longer.
    if tokio::time::timeout(PERIOD, give_up(&leases, identity)).await.is_err() {
        warn!("giving the leader lease up takes too long; another takes it when it has run out");
    }
}

/// Renews until the lease is lost or could not be renewed in time.
async fn keep(
    leases: &TypedApi<Lease>,
    identity: &str,
    clock: &dyn Clock,
    observed: &mut Observed,
    health: &Health,
) {
    let mut renewed = Instant::now();
    loop {
        tokio::time::sleep(PERIOD).await;
        match tokio::time::timeout(PERIOD, take(leases, identity, clock, observed)).await {
            Ok(Ok(true)) => {
                renewed = Instant::now();
                health.reached();
            }
            Ok(Ok(false)) => return,
            Ok(Err(error)) => warn!(%error, "the leader lease could not be renewed"),
            Err(_) => warn!("renewing the leader lease takes too long"),
        }
        if renewed.elapsed() + PERIOD > DURATION {
            return;
        }
    }
}

/// Acquires or renews the lease; false when another process holds it.
async fn take(
    leases: &TypedApi<Lease>,
    identity: &str,
    clock: &dyn Clock,
    observed: &mut Observed,
) -> kube::Result<bool> {
    let now = MicroTime(clock.now());
    let spec = LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(i32::try_from(DURATION.as_secs()).unwrap_or(i32::MAX)),
        renew_time: Some(now.clone()),
        acquire_time: Some(now.clone()),
        ..LeaseSpec::default()
    };
    let Some(mut lease) = leases.get_opt(NAME).await? else {
        let metadata = ObjectMeta { name: Some(NAME.into()), ..ObjectMeta::default() };
        let created = leases.create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await;
        return won(created, observed);
    };
    if observed.version != lease.resource_version() {
        *observed = Observed { version: lease.resource_version(), since: Instant::now() };
    }
    let held = lease.spec.clone().unwrap_or_default();
    let holder = held.holder_identity.unwrap_or_default();
    let mine = holder == identity;
    if !mine && !holder.is_empty() && observed.since.elapsed() < DURATION {
        return Ok(false);
    }
    let acquire_time = if mine { held.acquire_time } else { spec.acquire_time.clone() };
    let transitions = held.lease_transitions.unwrap_or_default() + i32::from(!mine);
    lease.spec = Some(LeaseSpec { acquire_time, lease_transitions: Some(transitions), ..spec });
    won(leases.replace(NAME, &PostParams::default(), &lease).await, observed)
}

fn won(written: kube::Result<Lease>, observed: &mut Observed) -> kube::Result<bool> {
    match written {
        Ok(lease) => {
            *observed = Observed { version: lease.resource_version(), since: Instant::now() };
            Ok(true)
        }
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

async fn give_up(leases: &TypedApi<Lease>, identity: &str) {
    let Ok(Some(mut lease)) = leases.get_opt(NAME).await else { return };
    let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(identity))
    else {
        return;
    };
    spec.holder_identity = None;
    if let Err(error) = leases.replace(NAME, &PostParams::default(), &lease).await {
        warn!(%error, "the leader lease could not be given up; another takes it when it has run out");
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use berth_engine::SystemClock;
    use http::{Request, Response};
    use kube::client::Body;
    use tokio::time::timeout;
    use tower::service_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_control_plane_that_does_not_answer_does_not_delay_the_end() {
        let silent = service_fn(|_: Request<Body>| async {
            std::future::pending::<()>().await;
            Ok::<_, Infallible>(Response::new(Body::empty()))
        });
        let client = Client::new(silent, "default");
        let (cancel, health) = (CancellationToken::new(), Health::default());
        let clock = Arc::new(SystemClock);
        let running = run(client, "one", clock, cancel.clone(), &health, |_| async {});
        tokio::pin!(running);
        assert!(timeout(4 * PERIOD, &mut running).await.is_err(), "it goes on trying");
        cancel.cancel();
        timeout(2 * PERIOD, running).await.expect("it ends");
    }
}
