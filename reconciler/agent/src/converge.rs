//! The reconcile loop of every kind: observe, plan, apply, until the plan has no step; then report the status.
//!
//! ```text
//!   observe ──▶ plan ──steps──▶ apply ─┐
//!      ▲          │ none               │
//!      └──────────┼────────────────────┘
//!                 ▼
//!              status ──▶ written if it differs
//! ```
//!
//! The status reports the last observation, made after the last step; never what a step was meant to do.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use berth_api::condition::find;
use berth_api::{AGENT_MANAGER, Binding, Conditions, HOST_FINALIZER, JsonKind, Readiness, Reason};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::object::HasStatus;
use kube::{Client, Resource, ResourceExt};
use serde_json::json;

use crate::context::Context;
use crate::error::{Error, RETRY_SPACE_EVERY};
use crate::index::{Index, Indexed};
use crate::key::{Key, ObjectName};
use crate::recorder::{EventType, Recorder};
use crate::typed_api::TypedApi;
use berth_host::Retry;

/// Far more rounds than any object needs: a plan that never ends is a bug and must not burn a core.
const MAX_ROUNDS: usize = 32;
/// How long a status that only shows progress is held back: the next one, usually under way, replaces it.
pub(crate) const PROGRESS_HOLD: Duration = Duration::from_secs(1);

/// The soonest that an object is reconciled again whose status could not be reported.
const SOONEST_UNREPORTED: Duration = Duration::from_secs(1);

/// When to requeue a key after a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requeue {
    /// When something changes.
    OnChange,
    /// After this time, or when something changes.
    After(Duration),
    /// The reconcile failed: requeue with the object's back-off.
    BackOff,
    /// The same, with a back-off of at most this time.
    BackOffAtMost(Duration),
}

impl Requeue {
    /// Returns when to requeue a key whose reconcile has failed with this error.
    pub(crate) fn after_failure(error: &Error) -> Self {
        error.longest_back_off().map_or(Self::BackOff, Self::BackOffAtMost)
    }

    /// Returns the earlier of the two; a failure takes precedence over both.
    pub(crate) fn sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::BackOffAtMost(a), Self::BackOffAtMost(b)) => Self::BackOffAtMost(a.min(b)),
            (Self::BackOffAtMost(most), _) | (_, Self::BackOffAtMost(most)) => Self::BackOffAtMost(most),
            (Self::BackOff, _) | (_, Self::BackOff) => Self::BackOff,
            (Self::After(a), Self::After(b)) => Self::After(a.min(b)),
            (Self::After(after), Self::OnChange) | (Self::OnChange, Self::After(after)) => Self::After(after),
            (Self::OnChange, Self::OnChange) => Self::OnChange,
        }
    }
}

/// A plan: what to do about an object now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan<S> {
    /// In order of application; the next observation may add more.
    pub(crate) steps: Vec<S>,
    /// Readiness of the object if there is no step, or while the steps are applied.
    pub(crate) readiness: Readiness,
    /// Delay after which to reconcile again even without a change event.
    pub(crate) requeue_after: Option<Duration>,
}

impl<S> Plan<S> {
    /// Returns a plan without steps.
    pub(crate) fn without_steps(readiness: Readiness) -> Self {
        Self { steps: Vec::new(), readiness, requeue_after: None }
    }

    pub(crate) fn steps(steps: Vec<S>, readiness: Readiness) -> Self {
        Self { steps, readiness, requeue_after: None }
    }

    pub(crate) fn requeue_after(mut self, after: Duration) -> Self {
        self.requeue_after = Some(self.requeue_after.map_or(after, |earlier| earlier.min(after)));
        self
    }

    /// Requeues it when work in the background that has failed may begin again. `None`: only a change lets it begin.
    pub(crate) fn requeue_for_retry(self, again: Option<Duration>) -> Self {
        match again {
            Some(again) => self.requeue_after(again.max(Duration::from_millis(1))),
            None => self,
        }
    }
}

/// Returns the readiness of an object that waits for work, or for another object, of this readiness.
pub(crate) fn waiting_for(other: &Readiness, text: String) -> Readiness {
    match other {
        Readiness::Stalled(reason, _) => Readiness::Stalled(*reason, text),
        _ => Readiness::Reconciling(other.reason(), text),
    }
}

/// A kind of object and its four functions.
#[async_trait]
pub(crate) trait Reconciler: 'static {
    type Object: Indexed
        + Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + HasStatus<Status = Self::Status>
        + JsonKind;
    type Status: Clone + Default + PartialEq + Send + Sync;
    type Observed: Send + Sync;
    type Step: Debug + Send + Sync;

    /// Reads everything the plan needs. The only reader.
    async fn observe(ctx: &Context, object: &Self::Object) -> Result<Self::Observed, Error>;

    /// Decides what to do. Pure and total. *Guarantees:* a converged or blocked object has no steps.
    fn plan(object: &Self::Object, observed: &Self::Observed) -> Plan<Self::Step>;

    /// Applies one step. The only writer. Each step must be repeatable.
    async fn apply(ctx: &Context, object: &Self::Object, step: &Self::Step) -> Result<(), Error>;

    /// Returns the status for an observation. Pure.
    fn status(
        object: &Self::Object,
        observed: &Self::Observed,
        readiness: &Readiness,
        now: Timestamp,
    ) -> Self::Status;

    /// Returns the status with everything that only shows progress as it is in the stored status. No reader waits for
    /// such a difference, so it is held back for [`PROGRESS_HOLD`].
    fn without_progress(_stored: &Self::Status, status: &Self::Status) -> Self::Status {
        status.clone()
    }

    /// Whether a guest has just started, and its agent is still to answer. Such a status is held back for [`PROGRESS_HOLD`] where the guest
    /// before came in that time: the next one, which has both, replaces it.
    fn awaits_guest(_stored: &Self::Status, _status: &Self::Status) -> bool {
        false
    }

    /// Returns whether the guest was seen soon after its start, if this status is the first in which it is seen.
    fn guest_came_soon(_stored: &Self::Status, _status: &Self::Status) -> Option<bool> {
        None
    }

    /// Returns the event of this change of the status, beside those of an object that becomes stalled or that a step failed for. Each is
    /// one more write: the way of a new object to its first readiness has none.
    fn event(_stored: Option<&Self::Status>, _status: &Self::Status) -> Option<(EventType, Reason, String)> {
        None
    }

    fn binding(object: &Self::Object) -> Option<&Binding>;

    fn conditions(status: &Self::Status) -> &Conditions;
}

/// Reconciles the object of this name; one that is no longer bound to this host is not in the index and needs nothing.
pub(crate) async fn converge_named<K: Reconciler>(
    ctx: &Context,
    name: &ObjectName,
) -> Result<Requeue, Error> {
    let found = K::Object::table(&mut ctx.index.read()).get(name);
    match found {
        Some(object) => converge::<K>(ctx, &object).await,
        None => Ok(Requeue::OnChange),
    }
}

/// Reconciles one object as far as possible now.
pub(crate) async fn converge<K: Reconciler>(ctx: &Context, object: &K::Object) -> Result<Requeue, Error> {
    let ours = K::binding(object).is_some_and(|b| b.host == ctx.host());
    if !ours || released(&ctx.index, object) {
        return Ok(Requeue::OnChange);
    }
    let mut observed = K::observe(ctx, object).await?;
    let mut plan = K::plan(object, &observed);
    let mut failure = None;
    let mut rounds = 0;
    'rounds: while !plan.steps.is_empty() {
        rounds += 1;
        if rounds > MAX_ROUNDS {
            tracing::warn!(steps = ?plan.steps, "a plan does not come to its end");
            return Ok(Requeue::BackOff);
        }
        for step in &plan.steps {
            tracing::info!(?step, "applying");
            if let Err(error) = K::apply(ctx, object, step).await {
                if error.is_transient() {
                    tracing::debug!(?step, error = %error.chain(), "a step has to wait");
                } else {
                    tracing::info!(?step, error = %error.chain(), "a step failed");
                }
                failure = Some(error);
                break 'rounds;
            }
            if released(&ctx.index, object) {
                return Ok(Requeue::OnChange);
            }
        }
        observed = K::observe(ctx, object).await?;
        plan = K::plan(object, &observed);
    }
    report::<K>(ctx, object, observed, plan, failure).await
}

async fn report<K: Reconciler>(
    ctx: &Context,
    object: &K::Object,
    observed: K::Observed,
    plan: Plan<K::Step>,
    failure: Option<Error>,
) -> Result<Requeue, Error> {
    let failed = failure.as_ref().is_some_and(|error| !error.is_transient());
    let due = plan.requeue_after.filter(|_| failure.is_none());
    let (readiness, again) = match failure {
        None => (plan.readiness, plan.requeue_after.map_or(Requeue::OnChange, Requeue::After)),
        Some(error) if error.is_transient() => (plan.readiness, Requeue::After(error.wait())),
        Some(error) => {
            let again = match error.retry() {
                Retry::Backoff if error.is_no_space() || error.is_unannounced() => {
                    Requeue::After(RETRY_SPACE_EVERY)
                }
                Retry::Backoff => Requeue::after_failure(&error),
                Retry::WaitForChange => Requeue::OnChange,
            };
            (error.readiness(), again)
        }
    };
    if is_departed(&ctx.index, object) {
        // There is no object to report to.
        return Ok(again);
    }
    // After a failed step the observation is outdated: a new one shows the effects of the steps before the failure.
    let observed = match failed {
        true => K::observe(ctx, object).await.unwrap_or(observed),
        false => observed,
    };
    let status = K::status(object, &observed, &readiness, ctx.now());
    // A failure is shown at once.
    if !failed && let Some(left) = held::<K>(ctx, object, &status) {
        return Ok(again.sooner(Requeue::After(left)));
    }
    let written = write_status::<K>(ctx, object, status, failed).await;
    // What is due on this host, such as a restart of a guest, does not wait for the control plane.
    if let (Err(error), Some(due)) = (&written, due)
        && error.is_unanswered()
    {
        ctx.queue.add_after(Key::of(object), due.max(SOONEST_UNREPORTED));
    }
    written.map(|()| again)
}

/// Returns how long this status is still held back, if it only shows progress over the stored one, or a start after which the guest is about
/// to be seen.
fn held<K: Reconciler>(ctx: &Context, object: &K::Object, status: &K::Status) -> Option<Duration> {
    let uid = object.uid().unwrap_or_default();
    // Each for its own time: the start comes after progress that was held back.
    let of_guest = format!("{uid}/guest");
    let stored = object.status().filter(|stored| *stored != status);
    if stored.is_some_and(|stored| K::without_progress(stored, status) == *stored) {
        return ctx.held_statuses.hold(&uid, PROGRESS_HOLD);
    }
    ctx.held_statuses.release(&uid);
    if ctx.quick_guests.are_expected() && stored.is_some_and(|stored| K::awaits_guest(stored, status)) {
        let left = ctx.held_statuses.hold(&of_guest, PROGRESS_HOLD);
        if left.is_none() {
            ctx.quick_guests.record(false);
        }
        return left;
    }
    ctx.held_statuses.release(&of_guest);
    None
}

/// Returns the conditions as they are stored if both say that the object is not ready and goes on by itself.
///
/// *Guarantees:* `Ready`, `Stalled`, and any condition that becomes true or stops being true, are never held back.
pub(crate) fn held_conditions(stored: &Conditions, conditions: &Conditions) -> Conditions {
    let goes_on = |conditions: &Conditions| {
        find(conditions, "Ready").is_some_and(|ready| ready.status == "False")
            && find(conditions, "Reconciling").is_some_and(|reconciling| reconciling.status == "True")
    };
    let same_states = conditions.iter().all(|condition| {
        let before = find(stored, &condition.type_).map_or("False", |before| before.status.as_str());
        before == condition.status
    });
    let none_removed = stored.iter().all(|before| find(conditions, &before.type_).is_some());
    match goes_on(stored) && goes_on(conditions) && same_states && none_removed {
        true => stored.clone(),
        false => conditions.clone(),
    }
}

async fn write_status<K: Reconciler>(
    ctx: &Context,
    object: &K::Object,
    status: K::Status,
    failed: bool,
) -> Result<(), Error> {
    if object.status() == Some(&status) {
        return Ok(());
    }
    ctx.lease.ensure_renewed().await?;
    let mut changed = object.clone();
    *changed.status_mut() = Some(status.clone());
    ctx.index.begin_write(object);
    let written = api(&ctx.client, object).replace_status(&object.name_any(), &post(), &changed).await;
    if written.is_err() {
        ctx.index.not_written(object).into_iter().for_each(|key| ctx.enqueue(key));
    }
    match written.map_err(Error::api("write the status")) {
        Ok(mut answer) => {
            if ctx.definitions.check_response(&changed, &answer) {
                // The control plane dropped fields that it does not know. Treating that as a difference would write the
                // status again and again.
                *answer.status_mut() = Some(status.clone());
                ctx.enqueue(Key::host());
            }
            for key in ctx.index.written(object, answer) {
                ctx.enqueue(key);
            }
            let came_soon = object.status().and_then(|stored| K::guest_came_soon(stored, &status));
            came_soon.into_iter().for_each(|soon| ctx.quick_guests.record(soon));
            let before = object.status().map(K::conditions);
            record_event(&ctx.recorder, object, before, K::conditions(&status), failed);
            if let Some((event_type, reason, note)) = K::event(object.status(), &status) {
                ctx.recorder.record(object.object_ref(&()), event_type, reason.as_str(), &note);
            }
            Ok(())
        }
        // The object is gone, so there is no status to write.
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Records an event if the object has come to a state that a person may have to act on: it is stalled, or a step failed.
/// Ordinary progress is visible in the conditions.
fn record_event<O: Resource<DynamicType = ()>>(
    recorder: &Recorder,
    object: &O,
    before: Option<&Conditions>,
    now: &Conditions,
    failed: bool,
) {
    let Some(ready) = find(now, "Ready") else { return };
    let same = before.and_then(|b| find(b, "Ready")).is_some_and(|b| b.reason == ready.reason);
    if !same && (failed || find(now, "Stalled").is_some()) {
        recorder.warn(object.object_ref(&()), &ready.reason, &ready.message);
    }
}

/// Reads and writes objects in the namespace of this one, of its kind.
pub(crate) fn api<O>(client: &Client, object: &O) -> TypedApi<O>
where
    O: JsonKind + Resource<Scope = NamespaceResourceScope>,
{
    TypedApi::namespaced(client.clone(), &object.namespace().unwrap_or_default())
}

pub(crate) fn post() -> PostParams {
    PostParams { field_manager: Some(AGENT_MANAGER.to_owned()), ..PostParams::default() }
}

/// Removes this host's finalizer from an object of which nothing is left on this host.
///
/// *Guarantees:* only from exactly this object (uid) at exactly this resourceVersion.
pub(crate) async fn release<O>(ctx: &Context, object: &O) -> Result<(), Error>
where
    O: Indexed + Resource<DynamicType = (), Scope = NamespaceResourceScope> + JsonKind,
{
    if O::departed(&mut ctx.index.read()).is_some_and(|departed| departed.forget(object)) {
        return Ok(());
    }
    let finalizers: Vec<&String> = object.finalizers().iter().filter(|f| *f != HOST_FINALIZER).collect();
    if finalizers.len() == object.finalizers().len() {
        return Ok(());
    }
    let patch = json!({"metadata": {
        "uid": object.uid(), "resourceVersion": object.resource_version(), "finalizers": finalizers,
    }});
    let params = PatchParams { field_manager: Some(AGENT_MANAGER.to_owned()), ..PatchParams::default() };
    let done = api(&ctx.client, object).patch(&object.name_any(), &params, &Patch::Merge(patch)).await;
    match done.map_err(Error::api("remove the finalizer")) {
        Ok(answer) => {
            ctx.index.written(object, answer);
            Ok(())
        }
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}

fn is_departed<O: Indexed>(index: &Index, object: &O) -> bool {
    O::departed(&mut index.read()).is_some_and(|departed| departed.contains(object))
}

/// Whether our finalizer was just removed from this object, so that there is no status left to write.
fn released<O: Indexed>(index: &Index, object: &O) -> bool {
    if object.meta().deletion_timestamp.is_none() || is_departed(index, object) {
        return false;
    }
    let name = ObjectName::of(object);
    let mut tables = index.read();
    let now = O::table(&mut tables).get(&name);
    now.is_none_or(|now| now.uid() != object.uid() || !now.finalizers().iter().any(|f| f == HOST_FINALIZER))
}
