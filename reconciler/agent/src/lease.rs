//! The host's heartbeat: a Lease, renewed every 15 seconds. A stale Lease means that the host's state is unknown.
//!
//! The Lease also ensures that a host is a single machine: its holder names the agent down to the start of its process,
//! and every renewal carries the resourceVersion that it renews. An agent does nothing before it holds its host's
//! Lease, and ends when another agent renews it, with two exceptions: it lets a guest go on that a former agent paused for a snapshot, and
//! while no control plane has answered it, it restarts guests in the place of a former agent that has ended in this boot of the machine
//! (`kinds/vm/offline.rs`). Of several agents on copies of one state directory only one acts.

use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::{AGENT_MANAGER, SYSTEM_NAMESPACE};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::AgentConfig;
use crate::error::{AgentError, Error};
use crate::index::Index;
use crate::key::ObjectName;
use crate::site::SiteTerm;
use crate::typed_api::TypedApi;

/// Two renewals fit into the duration of a Lease, and time to repeat one that fails. An idle control plane does little else
/// than store renewals.
const RENEW_EVERY: Duration = Duration::from_secs(15);
/// Age at which a renewal is overdue: one has been missed.
const OVERDUE: Duration = Duration::from_secs(25);
const RETRY_EVERY: Duration = Duration::from_secs(2);
/// How often the agent checks that the control plane is in charge while no other client writes the Lease. A move of the
/// site also writes the Lease, which triggers the check at once.
const CHECK_SITE_EVERY: Duration = Duration::from_secs(60);
/// Duration of the Lease, in seconds.
const HOLDS: u32 = 40;
/// How many of its own writes an agent remembers.
const REMEMBERED: usize = 32;
/// How long the control plane must keep rejecting our credential before that is believed: one that is starting may err.
const DOUBT: Duration = Duration::from_secs(20);

/// The Lease of this agent's host.
pub(crate) struct HostLease {
    client: Client,
    config: AgentConfig,
    site: SiteTerm,
    state: tokio::sync::Mutex<State>,
    /// When the Lease was last renewed; read while a renewal is under way, which the control plane stores together with those of other
    /// hosts.
    renewed: std::sync::Mutex<Option<Instant>>,
    /// Whether this agent has ever held the Lease.
    held: watch::Sender<bool>,
    contact: watch::Sender<Contact>,
}

/// Whether the control plane has ever answered this agent, whatever its answer was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contact {
    /// No attempt has ended yet.
    Unknown,
    Unanswered,
    Answered,
}

#[derive(Debug, Default)]
struct State {
    /// When the control plane was last found not to answer, since the last renewal.
    unanswered: Option<Instant>,
    /// The resourceVersion of our latest write.
    version: Option<String>,
    /// When the control plane was last found to be in charge.
    checked: Option<Instant>,
    /// The renew times of this agent's latest writes, including those that got no response.
    written: VecDeque<Timestamp>,
    /// Another agent's Lease: its resourceVersion, and since when that has not changed, by our own clock.
    other: Option<Other>,
    /// Since when the control plane has been rejecting our credential.
    unknown: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Other {
    version: Option<String>,
    since: Instant,
}

impl HostLease {
    pub(crate) fn new(client: Client, config: AgentConfig, site: SiteTerm) -> Self {
        let (held, contact) = (watch::channel(false).0, watch::channel(Contact::Unknown).0);
        let (state, renewed) = (tokio::sync::Mutex::default(), std::sync::Mutex::default());
        Self { client, config, site, state, renewed, held, contact }
    }

    /// Renews the Lease if it is overdue.
    ///
    /// Must be called before the status of an object is written. The controllers mark the objects of a host with an
    /// expired Lease as unknown: reporting one before the Lease is renewed would only make them mark it again, as fast
    /// as both can write.
    pub(crate) async fn ensure_renewed(&self) -> Result<(), Error> {
        if !self.is_overdue() {
            return Ok(());
        }
        let mut state = self.state.lock().await;
        // A renewal that was under way may have ended.
        if !self.is_overdue() {
            return Ok(());
        }
        // An attempt can take half a minute: it is not repeated for each object in turn, as guests that are to be restarted would wait too.
        if state.unanswered.is_some_and(|at| at.elapsed() < RETRY_EVERY) {
            return Err(Error::Unanswered);
        }
        self.renew(&mut state).await
    }

    fn last_renewal(&self) -> MutexGuard<'_, Option<Instant>> {
        self.renewed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_overdue(&self) -> bool {
        self.last_renewal().is_none_or(|at| at.elapsed() >= OVERDUE)
    }

    /// Waits until this agent holds its host's Lease.
    pub(crate) async fn acquired(&self) {
        // The sender is in `self`, so it cannot be dropped.
        let _ = self.held.subscribe().wait_for(|held| *held).await;
    }

    /// Whether this agent has ever held its host's Lease.
    pub(crate) fn is_held(&self) -> bool {
        *self.held.borrow()
    }

    /// Asks whether the control plane does not answer at the moment.
    pub(crate) async fn is_silent(&self) -> bool {
        let found = self.api().get_opt(self.host()).await.map_err(Error::api("read the Lease"));
        found.is_err_and(|error| error.is_unanswered())
    }

    /// Waits until an attempt has ended; returns whether the control plane has answered.
    pub(crate) async fn first_contact(&self) -> bool {
        // The sender is in `self`, so it cannot be dropped.
        let _ = self.contact.subscribe().wait_for(|contact| *contact != Contact::Unknown).await;
        self.has_answered()
    }

    /// Whether the control plane has answered this agent.
    pub(crate) fn has_answered(&self) -> bool {
        *self.contact.borrow() == Contact::Answered
    }

    /// Waits until the control plane has answered this agent.
    pub(crate) async fn answered(&self) {
        // The sender is in `self`, so it cannot be dropped.
        let _ = self.contact.subscribe().wait_for(|contact| *contact == Contact::Answered).await;
    }

    /// Renews the Lease until the future is dropped.
    ///
    /// *Errors:* another agent is this host, the host was declared permanently gone, the control plane no longer
    /// accepts our credential, or another control plane is in charge.
    pub(crate) async fn renew_forever(&self, index: &Index) -> AgentError {
        let host = || self.config.host_name.clone();
        let mut warned = None;
        loop {
            let own = index.read().hosts.get(&ObjectName::new("", self.host()));
            if own.is_some_and(|host| host.spec.fenced) {
                return AgentError::Fenced { host: host() };
            }
            let mut state = self.state.lock().await;
            let wait = match self.renew(&mut state).await {
                Ok(()) => {
                    state.unknown = None;
                    RENEW_EVERY
                }
                Err(Error::Taken { holder }) => return AgentError::Taken { host: host(), holder },
                Err(Error::Moved) => return AgentError::Moved { host: host() },
                Err(Error::NotInCharge { why }) => {
                    if *self.held.borrow() {
                        return AgentError::Deposed { host: host(), why };
                    }
                    if warned.as_ref() != Some(&why) {
                        tracing::warn!(
                            why,
                            "the control plane does not command this host: waiting, VMs keep running"
                        );
                        warned = Some(why);
                    }
                    RETRY_EVERY
                }
                Err(error) => {
                    tracing::debug!(error = %error.chain(), "the Lease could not be renewed");
                    match error.is_unauthorized() {
                        true if state.unknown.get_or_insert_with(Instant::now).elapsed() >= DOUBT => {
                            return AgentError::Unauthorized { host: host() };
                        }
                        true => {}
                        false => state.unknown = None,
                    }
                    RETRY_EVERY
                }
            };
            drop(state);
            tokio::time::sleep(wait).await;
        }
    }

    fn host(&self) -> &str {
        &self.config.host_name
    }

    fn api(&self) -> TypedApi<Lease> {
        TypedApi::namespaced(self.client.clone(), SYSTEM_NAMESPACE)
    }

    async fn renew(&self, state: &mut State) -> Result<(), Error> {
        let written = self.write_own(state).await;
        let is_unanswered = written.as_ref().is_err_and(Error::is_unanswered);
        state.unanswered = is_unanswered.then(Instant::now);
        if !is_unanswered {
            self.contact.send_replace(Contact::Answered);
        } else if !self.has_answered() {
            self.contact.send_replace(Contact::Unanswered);
        }
        let lease = written?;
        state.version = lease.resource_version();
        state.other = None;
        *self.last_renewal() = Some(Instant::now());
        self.held.send_replace(true);
        Ok(())
    }

    /// Writes the Lease if it is ours to write.
    async fn write_own(&self, state: &mut State) -> Result<Lease, Error> {
        if let Some(version) = state.version.clone() {
            if state.checked.is_none_or(|at| at.elapsed() >= CHECK_SITE_EVERY) {
                self.site.check().await?;
                state.checked = Some(Instant::now());
            }
            // It is not read again: if another client has written it, the version is another one.
            match self.write(state, &version).await {
                // Another client wrote it, or it was deleted.
                Err(error) if matches!(error, Error::Conflict) || error.is_not_found() => {
                    state.version = None
                }
                other => return other,
            }
        }
        self.site.check().await?;
        state.checked = Some(Instant::now());
        let found = self.api().get_opt(self.host()).await.map_err(Error::api("read the Lease"))?;
        let Some(lease) = found else { return self.create(state).await };
        let version = lease.resource_version();
        let spec = lease.spec.unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let renewed = spec.renew_time.map(|time| time.0);
        if !self.config.is_own(&holder) || is_renewed_by_another(&state.written, renewed) {
            check_expired(state, holder, version.clone())?;
        }
        self.write(state, &version.unwrap_or_default()).await
    }

    async fn write(&self, state: &mut State, version: &str) -> Result<Lease, Error> {
        let spec = json!({
            "holderIdentity": self.config.holder(),
            "leaseDurationSeconds": HOLDS,
            "renewTime": MicroTime(self.record_write(state)),
        });
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": spec});
        let params = PatchParams { field_manager: Some(AGENT_MANAGER.to_owned()), ..PatchParams::default() };
        let renewed = self.api().patch(self.host(), &params, &Patch::Merge(patch)).await;
        renewed.map_err(Error::api("renew the Lease"))
    }

    /// Returns the current time, recorded as the time of a write, in whole microseconds as the control plane returns
    /// it.
    fn record_write(&self, state: &mut State) -> Timestamp {
        let now = self.config.clock.now();
        let now = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
        state.written.push_back(now);
        if state.written.len() > REMEMBERED {
            state.written.pop_front();
        }
        now
    }

    async fn create(&self, state: &mut State) -> Result<Lease, Error> {
        let now = MicroTime(self.record_write(state));
        let lease = Lease {
            metadata: ObjectMeta { name: Some(self.host().to_owned()), ..ObjectMeta::default() },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.config.holder()),
                lease_duration_seconds: i32::try_from(HOLDS).ok(),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                ..LeaseSpec::default()
            }),
        };
        let params = PostParams { field_manager: Some(AGENT_MANAGER.to_owned()), ..PostParams::default() };
        self.api().create(&params, &lease).await.map_err(Error::api("create the Lease"))
    }
}

/// Whether a Lease that names this agent was renewed by another agent of the same name: the renewal is later than any
/// of this agent's. A machine that was copied while running has two such agents. After a restore of the control plane,
/// the renewal is earlier than ours.
fn is_renewed_by_another(written: &VecDeque<Timestamp>, renewed: Option<Timestamp>) -> bool {
    let (Some(last), Some(renewed)) = (written.iter().max(), renewed) else { return false };
    renewed > *last && !written.contains(&renewed)
}

/// Checks that another agent's Lease has not been renewed for its whole duration.
fn check_expired(state: &mut State, holder: String, version: Option<String>) -> Result<(), Error> {
    let now = Instant::now();
    match &state.other {
        // The other agent is alive.
        Some(other) if other.version != version => return Err(Error::Taken { holder }),
        Some(other) if now.duration_since(other.since) >= Duration::from_secs(HOLDS.into()) => {
            tracing::warn!(holder, "the agent that was this host is silent: taking its Lease");
            return Ok(());
        }
        Some(_) => {}
        None => {
            tracing::warn!(holder, "another agent holds the Lease of this host: waiting for it to expire");
            state.other = Some(Other { version, since: now });
        }
    }
    Err(Error::Waiting { holder })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_under_our_name_that_we_did_not_make_is_renewed_by_another() {
        let at = |second| Timestamp::from_second(second).expect("small");
        let written: VecDeque<Timestamp> = [at(100), at(110)].into();
        assert!(
            !is_renewed_by_another(&written, Some(at(110)))
                && !is_renewed_by_another(&written, Some(at(100))),
            "an answer was lost"
        );
        assert!(!is_renewed_by_another(&written, Some(at(50))), "the control plane was restored");
        assert!(is_renewed_by_another(&written, Some(at(115))));
        assert!(!is_renewed_by_another(&VecDeque::new(), Some(at(115))), "this agent has written none yet");
    }

    #[tokio::test(start_paused = true)]
    async fn another_agents_lease_is_taken_only_when_it_check_expired() {
        let look =
            |state: &mut State, version: &str| check_expired(state, "h_other".into(), Some(version.into()));
        let mut state = State::default();
        assert!(matches!(look(&mut state, "1"), Err(Error::Waiting { .. })));
        tokio::time::advance(Duration::from_secs(39)).await;
        assert!(matches!(look(&mut state, "1"), Err(Error::Waiting { .. })));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(look(&mut state, "1").is_ok(), "it was not renewed");
        let mut state = State::default();
        assert!(look(&mut state, "1").is_err());
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(matches!(look(&mut state, "2"), Err(Error::Taken { .. })), "it is renewed: it lives");
    }
}
