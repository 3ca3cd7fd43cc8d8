//! How every object is brought to where it should be: observe, plan, apply, until the plan has no step; then report.
//!
//! ```text
//!   observe ──▶ plan ──steps──▶ apply ─┐
//!      ▲          │ none               │
//!      └──────────┼────────────────────┘
//!                 ▼
//!              status ──▶ written if it differs
//! ```
//!
//! What is reported is always what was observed last, after the last step: never what a step meant to do.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use berth_api::condition::find;
use berth_api::{AGENT_MANAGER, Binding, Conditions, HOST_FINALIZER, Readiness};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::object::HasStatus;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::context::Context;
use crate::error::Error;
use crate::index::Indexed;
use crate::queue::{Again, Key};
use crate::system::Retry;

/// Far more than any object needs: a plan that never ends is a mistake that must not burn a core.
const MAX_ROUNDS: usize = 32;
/// How soon after something passing an object is looked at again.
const SOON: Duration = Duration::from_millis(200);
/// How often what failed for want of room is tried.
pub(crate) const LOOK_FOR_ROOM: Duration = Duration::from_secs(10);

/// What is to be done about an object now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan<S> {
    /// In this order; the next look may see more to do.
    pub(crate) steps: Vec<S>,
    /// How the object stands if there is no step, or while they are taken.
    pub(crate) readiness: Readiness,
    /// When to look again although nothing told of a change.
    pub(crate) look_again: Option<Duration>,
}

impl<S> Plan<S> {
    /// Nothing to do.
    pub(crate) fn stands(readiness: Readiness) -> Self {
        Self { steps: Vec::new(), readiness, look_again: None }
    }

    pub(crate) fn steps(steps: Vec<S>, readiness: Readiness) -> Self {
        Self { steps, readiness, look_again: None }
    }

    pub(crate) fn look_again(mut self, after: Duration) -> Self {
        self.look_again = Some(self.look_again.map_or(after, |earlier| earlier.min(after)));
        self
    }
}

/// A kind of object and its four functions.
#[async_trait]
pub(crate) trait Kind: 'static {
    type Object: Indexed
        + Resource<Scope = NamespaceResourceScope>
        + HasStatus<Status = Self::Status>
        + DeserializeOwned
        + Serialize
        + Debug
        + Send
        + Sync;
    type Status: Clone + Default + PartialEq + Serialize + Send + Sync;
    type Observed: Send + Sync;
    type Step: Debug + Send + Sync;

    /// The only reader.
    async fn observe(ctx: &Context, object: &Self::Object) -> Result<Self::Observed, Error>;

    /// Pure and total. *Guarantees:* what is converged or blocked has no steps.
    fn plan(object: &Self::Object, observed: &Self::Observed) -> Plan<Self::Step>;

    /// The only writer. Each step may be taken again.
    async fn apply(ctx: &Context, object: &Self::Object, step: &Self::Step) -> Result<(), Error>;

    /// Pure: what is reported of what was observed.
    fn status(
        object: &Self::Object,
        observed: &Self::Observed,
        readiness: &Readiness,
        now: Timestamp,
    ) -> Self::Status;

    fn binding(object: &Self::Object) -> Option<&Binding>;

    fn conditions(status: &Self::Status) -> &Conditions;
}

/// Brings one object as far as it gets now.
pub(crate) async fn converge<K: Kind>(ctx: &Context, object: &K::Object) -> Result<Again, Error>
where
    <K::Object as Resource>::DynamicType: Default,
{
    let ours = K::binding(object).is_some_and(|b| b.host == ctx.host());
    if !ours || released(ctx, object) {
        return Ok(Again::OnChange);
    }
    let mut observed = K::observe(ctx, object).await?;
    let mut plan = K::plan(object, &observed);
    let mut failure = None;
    let mut rounds = 0;
    'rounds: while !plan.steps.is_empty() {
        rounds += 1;
        if rounds > MAX_ROUNDS {
            tracing::warn!(steps = ?plan.steps, "a plan does not come to its end");
            return Ok(Again::BackOff);
        }
        for step in &plan.steps {
            tracing::info!(?step, "applying");
            if let Err(error) = K::apply(ctx, object, step).await {
                if error.is_passing() {
                    tracing::debug!(?step, error = %error.chain(), "a step has to wait");
                } else {
                    tracing::info!(?step, error = %error.chain(), "a step failed");
                }
                failure = Some(error);
                break 'rounds;
            }
            if released(ctx, object) {
                return Ok(Again::OnChange);
            }
        }
        observed = K::observe(ctx, object).await?;
        plan = K::plan(object, &observed);
    }
    report::<K>(ctx, object, observed, plan, failure).await
}

async fn report<K: Kind>(
    ctx: &Context,
    object: &K::Object,
    observed: K::Observed,
    plan: Plan<K::Step>,
    failure: Option<Error>,
) -> Result<Again, Error>
where
    <K::Object as Resource>::DynamicType: Default,
{
    let failed = failure.as_ref().is_some_and(|error| !error.is_passing());
    let (readiness, again) = match failure {
        None => (plan.readiness, plan.look_again.map_or(Again::OnChange, Again::After)),
        Some(error) if error.is_passing() => (plan.readiness, Again::After(SOON)),
        Some(error) => {
            let again = match error.retry() {
                Retry::Backoff if error.waits_for_room() => Again::After(LOOK_FOR_ROOM),
                Retry::Backoff => Again::BackOff,
                Retry::WaitForChange => Again::OnChange,
            };
            (error.readiness(), again)
        }
    };
    // After a failed step the old look is outdated: what was done before the failure shows in a new one.
    let observed = match failed {
        true => K::observe(ctx, object).await.unwrap_or(observed),
        false => observed,
    };
    let status = K::status(object, &observed, &readiness, ctx.now());
    write_status::<K>(ctx, object, status).await?;
    Ok(again)
}

async fn write_status<K: Kind>(ctx: &Context, object: &K::Object, status: K::Status) -> Result<(), Error>
where
    <K::Object as Resource>::DynamicType: Default,
{
    if object.status() == Some(&status) {
        return Ok(());
    }
    ctx.sign_of_life.is_given(ctx).await?;
    let mut changed = object.clone();
    *changed.status_mut() = Some(status.clone());
    let written = api::<K::Object>(ctx, object).replace_status(&object.name_any(), &post(), &changed).await;
    match written.map_err(Error::api("write the status")) {
        Ok(mut answer) => {
            answer.meta_mut().managed_fields = None;
            if ctx.definitions.are_older(&status, answer.status()) {
                // What the control plane does not know it dropped: were that seen as a difference, it would be
                // written again and again.
                *answer.status_mut() = Some(status.clone());
                ctx.concern(Key::Host);
            }
            let concerned = ctx.index.written(object, answer);
            for key in concerned {
                ctx.concern(key);
            }
            let before = object.status().map(K::conditions);
            announce(ctx, object, before, K::conditions(&status));
            Ok(())
        }
        // It is gone: nobody is left to be told.
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// One event for each new reason of `Ready`.
fn announce<O: Resource>(ctx: &Context, object: &O, before: Option<&Conditions>, now: &Conditions)
where
    O::DynamicType: Default,
{
    let Some(ready) = find(now, "Ready") else { return };
    let same = before.and_then(|b| find(b, "Ready")).is_some_and(|b| b.reason == ready.reason);
    if !same {
        let stalled = find(now, "Stalled").is_some();
        ctx.recorder.record(
            object.object_ref(&O::DynamicType::default()),
            stalled,
            &ready.reason,
            &ready.message,
        );
    }
}

pub(crate) fn api<O>(ctx: &Context, object: &O) -> Api<O>
where
    O: Resource<Scope = NamespaceResourceScope>,
    O::DynamicType: Default,
{
    Api::namespaced(ctx.client.clone(), &object.namespace().unwrap_or_default())
}

pub(crate) fn post() -> PostParams {
    PostParams { field_manager: Some(AGENT_MANAGER.to_owned()), ..PostParams::default() }
}

/// Lets go of an object: what it stood for is no longer on this host.
///
/// *Guarantees:* only of the very object and version that was looked at.
pub(crate) async fn release<O>(ctx: &Context, object: &O) -> Result<(), Error>
where
    O: Indexed + Resource<Scope = NamespaceResourceScope> + DeserializeOwned + Debug,
    O::DynamicType: Default,
{
    let finalizers: Vec<&String> = object.finalizers().iter().filter(|f| *f != HOST_FINALIZER).collect();
    if finalizers.len() == object.finalizers().len() {
        return Ok(());
    }
    let patch = json!({"metadata": {
        "uid": object.uid(), "resourceVersion": object.resource_version(), "finalizers": finalizers,
    }});
    let params = PatchParams { field_manager: Some(AGENT_MANAGER.to_owned()), ..PatchParams::default() };
    let done = api(ctx, object).patch(&object.name_any(), &params, &Patch::Merge(patch)).await;
    match done.map_err(Error::api("remove the finalizer")) {
        Ok(answer) => {
            ctx.index.written(object, answer);
            Ok(())
        }
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether our finalizer was just taken off this object: then there is no status left to write.
fn released<O: Indexed>(ctx: &Context, object: &O) -> bool {
    if object.meta().deletion_timestamp.is_none() {
        return false;
    }
    let name = crate::queue::ObjectName::new(object.namespace().unwrap_or_default(), object.name_any());
    let mut tables = ctx.index.read();
    let now = O::table(&mut tables).get(&name);
    now.is_none_or(|now| now.uid() != object.uid() || !now.finalizers().iter().any(|f| f == HOST_FINALIZER))
}
