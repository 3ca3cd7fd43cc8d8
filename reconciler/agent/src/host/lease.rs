//! The host's sign of life: a Lease, renewed every ten seconds. Whoever finds it stale knows that nothing is known.
//!
//! It is also what makes one machine one host: it names the agent that holds it, and every renewal says which state of
//! it is renewed. An agent does nothing before it holds the Lease of its host, and ends when another has taken it.

use std::sync::Arc;
use std::time::Duration;

use berth_api::{AGENT_MANAGER, SYSTEM_NAMESPACE};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::context::Context;
use crate::error::{AgentError, Error};
use crate::queue::ObjectName;

const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Two renewals have been missed.
const OVERDUE: Duration = Duration::from_secs(25);
const TRY_AGAIN: Duration = Duration::from_secs(2);
/// How often is asked whether the control plane is in charge, while nobody but this agent writes the Lease. A move writes
/// it too, so that it is asked at once.
const ASK_EVERY: Duration = Duration::from_secs(60);
/// How long the Lease counts without being renewed, in seconds.
const HOLDS: u32 = 40;
/// How long the control plane may say that it does not know us before that is believed: one that starts may err.
const DOUBT: Duration = Duration::from_secs(20);

/// What is known of the Lease.
#[derive(Debug)]
pub(crate) struct SignOfLife {
    state: tokio::sync::Mutex<State>,
    /// Whether this agent ever held it.
    held: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    renewed: Option<Instant>,
    /// The Lease as we wrote it last.
    version: Option<String>,
    /// When the control plane was found to be in charge.
    asked: Option<Instant>,
    /// Another agent's: its version, and since when it has not changed, by our own clock.
    other: Option<Other>,
    /// Since when the control plane does not know us.
    unknown: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Other {
    version: Option<String>,
    since: Instant,
}

impl Default for SignOfLife {
    fn default() -> Self {
        Self { state: tokio::sync::Mutex::default(), held: watch::channel(false).0 }
    }
}

impl SignOfLife {
    /// Renews the Lease now if that is overdue.
    ///
    /// To be called before anything is reported of an object. The controllers call the objects of a host whose Lease
    /// has run out unknown: reporting one again before the Lease is renewed would only make them say so again, as
    /// fast as both can write.
    pub(crate) async fn is_given(&self, ctx: &Context) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        if state.renewed.is_some_and(|at| at.elapsed() < OVERDUE) {
            return Ok(());
        }
        self.renew_locked(ctx, &mut state).await
    }

    /// Waits until this agent is the one of its host.
    pub(crate) async fn is_ours(&self) {
        // The sender is in `self`: it cannot be gone.
        let _ = self.held.subscribe().wait_for(|held| *held).await;
    }

    async fn renew(&self, ctx: &Context) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        self.renew_locked(ctx, &mut state).await
    }

    async fn renew_locked(&self, ctx: &Context, state: &mut State) -> Result<(), Error> {
        let lease = renew(ctx, state).await?;
        state.version = lease.resource_version();
        state.other = None;
        state.renewed = Some(Instant::now());
        self.held.send_replace(true);
        Ok(())
    }
}

/// Renews the Lease until it is dropped.
///
/// *Errors:* another agent is this host, it was declared gone for good, the control plane does not know us any more, or
/// another control plane is in charge.
pub(crate) async fn renew_for_ever(ctx: Arc<Context>) -> AgentError {
    let mut told = None;
    loop {
        let own = ctx.index.read().hosts.get(&ObjectName::new("", ctx.host()));
        if own.is_some_and(|host| host.spec.fenced) {
            return AgentError::Fenced { host: ctx.host().to_owned() };
        }
        let wait = match ctx.sign_of_life.renew(&ctx).await {
            Ok(()) => {
                ctx.sign_of_life.state.lock().await.unknown = None;
                RENEW_EVERY
            }
            Err(Error::Taken { holder }) => {
                return AgentError::Taken { host: ctx.host().to_owned(), holder };
            }
            Err(Error::Moved) => return AgentError::Moved { host: ctx.host().to_owned() },
            Err(Error::NotInCharge { why }) => {
                if *ctx.sign_of_life.held.borrow() {
                    return AgentError::Deposed { host: ctx.host().to_owned(), why };
                }
                if told.as_ref() != Some(&why) {
                    tracing::warn!(
                        why,
                        "the control plane does not command this host: what runs goes on, waiting"
                    );
                    told = Some(why);
                }
                TRY_AGAIN
            }
            Err(error) => {
                tracing::debug!(error = %error.chain(), "the Lease could not be renewed");
                let since = &mut ctx.sign_of_life.state.lock().await.unknown;
                match error.is_unauthorized() {
                    true if since.get_or_insert_with(Instant::now).elapsed() >= DOUBT => {
                        return AgentError::Unauthorized { host: ctx.host().to_owned() };
                    }
                    true => {}
                    false => *since = None,
                }
                TRY_AGAIN
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// Writes the Lease anew, if it is ours to write.
async fn renew(ctx: &Context, state: &mut State) -> Result<Lease, Error> {
    let api: Api<Lease> = Api::namespaced(ctx.client.clone(), SYSTEM_NAMESPACE);
    if let Some(version) = &state.version
        && state.asked.is_some_and(|at| at.elapsed() < ASK_EVERY)
    {
        match write(ctx, &api, version).await {
            // Somebody else wrote it, or it is gone.
            Err(error) if matches!(error, Error::Conflict) || error.is_not_found() => state.version = None,
            other => return other,
        }
    }
    crate::site::obeys(ctx).await?;
    state.asked = Some(Instant::now());
    let found = api.get_opt(ctx.host()).await.map_err(Error::api("read the Lease"))?;
    let Some(lease) = found else { return create(ctx, &api).await };
    let version = lease.resource_version();
    let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    // One written before agents had identities names the host only.
    let ours = [ctx.config.identity(), ctx.host(), ""].contains(&holder.as_str());
    if !ours {
        has_run_out(state, holder, version.clone())?;
    }
    write(ctx, &api, &version.unwrap_or_default()).await
}

/// Whether another agent's Lease has not been renewed for as long as it counts.
fn has_run_out(state: &mut State, holder: String, version: Option<String>) -> Result<(), Error> {
    let now = Instant::now();
    match &state.other {
        // It lives.
        Some(other) if other.version != version => return Err(Error::Taken { holder }),
        Some(other) if now.duration_since(other.since) >= Duration::from_secs(HOLDS.into()) => {
            tracing::warn!(holder, "the agent that was this host is silent: this one takes its place");
            return Ok(());
        }
        Some(_) => {}
        None => {
            tracing::warn!(holder, "another agent has this host's Lease: waiting whether it is renewed");
            state.other = Some(Other { version, since: now });
        }
    }
    Err(Error::Waiting { holder })
}

async fn write(ctx: &Context, api: &Api<Lease>, version: &str) -> Result<Lease, Error> {
    let patch = json!({
        "metadata": {"resourceVersion": version},
        "spec": {"holderIdentity": ctx.config.identity(), "leaseDurationSeconds": HOLDS, "renewTime": MicroTime(ctx.now())},
    });
    let params = PatchParams { field_manager: Some(AGENT_MANAGER.to_owned()), ..PatchParams::default() };
    let renewed = api.patch(ctx.host(), &params, &Patch::Merge(patch)).await;
    renewed.map_err(Error::api("renew the Lease"))
}

async fn create(ctx: &Context, api: &Api<Lease>) -> Result<Lease, Error> {
    let now = MicroTime(ctx.now());
    let lease = Lease {
        metadata: ObjectMeta { name: Some(ctx.host().to_owned()), ..ObjectMeta::default() },
        spec: Some(LeaseSpec {
            holder_identity: Some(ctx.config.identity().to_owned()),
            lease_duration_seconds: i32::try_from(HOLDS).ok(),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    };
    let params = PostParams { field_manager: Some(AGENT_MANAGER.to_owned()), ..PostParams::default() };
    api.create(&params, &lease).await.map_err(Error::api("create the Lease"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn another_agents_lease_is_taken_only_when_it_has_run_out() {
        let look =
            |state: &mut State, version: &str| has_run_out(state, "h_other".into(), Some(version.into()));
        let mut state = State::default();
        assert!(matches!(look(&mut state, "1"), Err(Error::Waiting { .. })));
        tokio::time::advance(Duration::from_secs(39)).await;
        assert!(matches!(look(&mut state, "1"), Err(Error::Waiting { .. })));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(look(&mut state, "1").is_ok(), "nobody has renewed it");
        let mut state = State::default();
        assert!(look(&mut state, "1").is_err());
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(matches!(look(&mut state, "2"), Err(Error::Taken { .. })), "it is renewed: it lives");
    }
}
