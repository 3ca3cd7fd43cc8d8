//! Whether the control plane's CustomResourceDefinitions match this agent: each is labelled with its version.
//!
//! Within an API version changes are additive, so an agent of another version works. But older definitions drop some of
//! the fields it reports, and of newer ones it does not know every field that a user may have declared. An older agent
//! therefore keeps the VMs it has and takes no new ones.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::{JsonKind, VERSION_LABEL};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::PartialObjectMeta;
use kube::core::object::HasStatus;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio::time::Instant;

/// The version this agent was built for.
const OWN: &str = env!("CARGO_PKG_VERSION");
/// Minimum interval between two reads of the definitions. Until the first read, an older agent may take VMs with fields
/// it does not know.
const REFRESH_EVERY: Duration = Duration::from_secs(60);
/// The definition that is read on behalf of all of them: they are applied together.
const SAMPLE: &str = "hosts.berth.dev";

/// How the definitions' version compares with this agent's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum VersionSkew {
    /// Same version, or not known.
    #[default]
    Same,
    /// Older, with their version if they are labelled.
    Older(Option<String>),
    /// Newer, with their version.
    Newer(String),
}

/// The observed state of the control plane's definitions.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    /// Whether the response to a write lacked a field that was written.
    dropped: AtomicBool,
    last_read: Mutex<(Option<Instant>, VersionSkew)>,
}

impl Definitions {
    /// Whether the response to a write lacks a field that was written.
    pub(crate) fn check_response<K>(&self, written: &K, answer: &K) -> bool
    where
        K: JsonKind + HasStatus<Status: PartialEq>,
    {
        // Values that differ may be written the same.
        let older = answer.status() != written.status() && status(answer) != status(written);
        if older && !self.dropped.swap(true, Relaxed) {
            tracing::warn!(
                version = OWN,
                "the control plane's definitions are older than this agent: apply `berth crds` of this version"
            );
        }
        older
    }

    /// Returns how the definitions compare, as far as observed.
    pub(crate) fn version_skew(&self) -> VersionSkew {
        match self.last_read().1.clone() {
            VersionSkew::Same if self.dropped.load(Relaxed) => VersionSkew::Older(None),
            skew => skew,
        }
    }

    /// Reads the version of the definitions, at most once a minute. A failed read changes nothing.
    pub(crate) async fn refresh(&self, client: &Client) {
        if self.last_read().0.is_some_and(|at| at.elapsed() < REFRESH_EVERY) {
            return;
        }
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let found: kube::Result<PartialObjectMeta<_>> = definitions.get_metadata(SAMPLE).await;
        let skew = match found {
            Ok(definition) => version_skew(definition.labels().get(VERSION_LABEL).map(String::as_str)),
            Err(error) => {
                tracing::debug!(%error, "the version of the definitions cannot be read");
                return;
            }
        };
        let before = std::mem::replace(&mut *self.last_read(), (Some(Instant::now()), skew.clone())).1;
        if before != skew {
            match &skew {
                VersionSkew::Same => {
                    tracing::info!("the control plane's definitions are of this agent's version")
                }
                other => tracing::warn!("{}", text(other).unwrap_or_default()),
            }
        }
    }

    fn last_read(&self) -> MutexGuard<'_, (Option<Instant>, VersionSkew)> {
        self.last_read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the status as it is written.
fn status<K: JsonKind>(object: &K) -> Option<Value> {
    let mut object: Value = serde_json::from_str(object.to_json().ok()?.get()).ok()?;
    object.get_mut("status").map(Value::take)
}

/// Returns the message for definitions that do not match this agent, with what to do about it.
pub(crate) fn text(skew: &VersionSkew) -> Option<String> {
    match skew {
        VersionSkew::Same => None,
        VersionSkew::Older(version) => {
            let version = version.as_ref().map(|v| format!(" (they are of {v})")).unwrap_or_default();
            Some(format!(
                "the control plane's definitions are older than this agent, which is of {OWN}{version}: what they do not \
                 know is not shown; apply `berth crds` of {OWN}"
            ))
        }
        VersionSkew::Newer(version) => Some(format!(
            "the control plane's definitions are of {version} and this agent of {OWN}, which does not know all that can be \
             declared there: its VMs go on, and it takes no new ones until berth is updated on this host"
        )),
    }
}

/// Compares the version with this agent's. Definitions without a label predate the label.
fn version_skew(version: Option<&str>) -> VersionSkew {
    let Some(version) = version else { return VersionSkew::Older(None) };
    match compare(version, OWN) {
        Some(Ordering::Less) => VersionSkew::Older(Some(version.to_owned())),
        Some(Ordering::Greater) => VersionSkew::Newer(version.to_owned()),
        Some(Ordering::Equal) | None => VersionSkew::Same,
    }
}

/// Compares major and minor versions; patch releases do not change definitions. Returns None if one is not a version.
fn compare(one: &str, other: &str) -> Option<Ordering> {
    let parts = |text: &str| -> Option<(u32, u32)> {
        let mut parts = text.split(['.', '-', '+']);
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    Some(parts(one)?.cmp(&parts(other)?))
}

#[cfg(test)]
mod tests {
    use berth_api::Disk;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_the_control_plane_drops_is_noticed() {
        let definitions = Definitions::default();
        let disk = |status: Value| -> Disk {
            let disk = json!({"metadata": {"name": "root"}, "spec": {"size": "1Gi"}, "status": status});
            serde_json::from_value(disk).expect("a disk")
        };
        let sent = disk(json!({"observedGeneration": 1, "volumeID": "v-1"}));
        assert!(!definitions.check_response(&sent, &sent));
        assert_eq!(definitions.version_skew(), VersionSkew::Same);
        assert!(definitions.check_response(&sent, &disk(json!({"observedGeneration": 1}))));
        assert_eq!(definitions.version_skew(), VersionSkew::Older(None));
    }

    #[test]
    fn versions_are_compared_by_number_and_without_their_patch() {
        assert_eq!(version_skew(Some(OWN)), VersionSkew::Same);
        assert_eq!(version_skew(Some("99.10.0")), VersionSkew::Newer("99.10.0".into()));
        assert_eq!(version_skew(None), VersionSkew::Older(None));
        assert_eq!(version_skew(Some("nonsense")), VersionSkew::Same);
        assert_eq!(compare("0.10.0", "0.9.7"), Some(Ordering::Greater));
        assert_eq!(compare("1.2.3-rc.1", "1.2.9"), Some(Ordering::Equal));
        assert_eq!(compare("0.9.0", "1.0.0"), Some(Ordering::Less));
    }
}
