//! Whether the control plane's definitions go with this agent: each of them carries the version it is of.
//!
//! Within an API version changes are additive, so an agent of another version works; but older definitions drop some of
//! what it reports, and of newer ones it does not know every field that a user may have declared. So an older agent
//! keeps the VMs it has and takes no new ones.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_api::VERSION_LABEL;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use tokio::time::Instant;

/// The version this agent was built for.
const OWN: &str = env!("CARGO_PKG_VERSION");
/// How often the definitions are looked at: people change them seldom.
const LOOK_EVERY: Duration = Duration::from_secs(300);
/// The definition that is looked at, for all of them: they are applied together.
const LOOKED_AT: &str = "hosts.berth.dev";

/// How the definitions stand to this agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// They are of its version, or it is not known.
    #[default]
    Same,
    /// They are older; the version, where they say one.
    Older(Option<String>),
    /// They are newer, of this version.
    Newer(String),
}

/// What was found of the control plane's definitions.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    /// An answer to a write lacked something of what was written.
    dropped: AtomicBool,
    looked: Mutex<(Option<Instant>, Standing)>,
}

impl Definitions {
    /// Whether the answer to a write lacks something of what was written.
    pub(crate) fn are_older<S: Serialize>(&self, written: &S, answered: Option<&S>) -> bool {
        let value = |status: &S| serde_json::to_value(status).ok();
        let older = value(written) != answered.and_then(value);
        if older && !self.dropped.swap(true, Relaxed) {
            tracing::warn!(
                version = OWN,
                "the control plane's definitions are older than this agent: apply `berth crds` of this version"
            );
        }
        older
    }

    /// How they stand, as far as was seen.
    pub(crate) fn standing(&self) -> Standing {
        match self.looked().1.clone() {
            Standing::Same if self.dropped.load(Relaxed) => Standing::Older(None),
            standing => standing,
        }
    }

    /// Looks at the version of the definitions, every few minutes at most. What cannot be read changes nothing.
    pub(crate) async fn look(&self, client: &Client) {
        if self.looked().0.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return;
        }
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let found: kube::Result<PartialObjectMeta<_>> = definitions.get_metadata(LOOKED_AT).await;
        let standing = match found {
            Ok(definition) => standing(definition.labels().get(VERSION_LABEL).map(String::as_str)),
            Err(error) => {
                tracing::debug!(%error, "the version of the definitions cannot be read");
                return;
            }
        };
        let before = std::mem::replace(&mut *self.looked(), (Some(Instant::now()), standing.clone())).1;
        if before != standing {
            match &standing {
                Standing::Same => {
                    tracing::info!("the control plane's definitions are of this agent's version")
                }
                other => tracing::warn!("{}", text(other).unwrap_or_default()),
            }
        }
    }

    fn looked(&self) -> MutexGuard<'_, (Option<Instant>, Standing)> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is said of definitions that do not go with this agent, and what to do.
pub(crate) fn text(standing: &Standing) -> Option<String> {
    match standing {
        Standing::Same => None,
        Standing::Older(version) => {
            let version = version.as_ref().map(|v| format!(" (they are of {v})")).unwrap_or_default();
            Some(format!(
                "the control plane's definitions are older than this agent, which is of {OWN}{version}: what they do not \
                 know is not shown; apply `berth crds` of {OWN}"
            ))
        }
        Standing::Newer(version) => Some(format!(
            "the control plane's definitions are of {version} and this agent of {OWN}, which does not know all that can be \
             declared there: its VMs go on, and it takes no new ones until berth is updated on this host"
        )),
    }
}

/// Definitions without a version are from before they had one.
fn standing(version: Option<&str>) -> Standing {
    let Some(version) = version else { return Standing::Older(None) };
    match compare(version, OWN) {
        Some(Ordering::Less) => Standing::Older(Some(version.to_owned())),
        Some(Ordering::Greater) => Standing::Newer(version.to_owned()),
        Some(Ordering::Equal) | None => Standing::Same,
    }
}

/// Major and minor versions: patches do not change definitions. None of what is no version.
fn compare(one: &str, other: &str) -> Option<Ordering> {
    let parts = |text: &str| -> Option<(u32, u32)> {
        let mut parts = text.split(['.', '-', '+']);
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    };
    Some(parts(one)?.cmp(&parts(other)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_the_control_plane_drops_is_noticed() {
        let definitions = Definitions::default();
        let sent = json!({"a": 1, "new": 2});
        assert!(!definitions.are_older(&sent, Some(&sent)));
        assert_eq!(definitions.standing(), Standing::Same);
        assert!(definitions.are_older(&sent, Some(&json!({"a": 1}))));
        assert_eq!(definitions.standing(), Standing::Older(None));
    }

    #[test]
    fn versions_are_compared_by_number_and_without_their_patch() {
        assert_eq!(standing(Some(OWN)), Standing::Same);
        assert_eq!(standing(Some("99.10.0")), Standing::Newer("99.10.0".into()));
        assert_eq!(standing(None), Standing::Older(None));
        assert_eq!(standing(Some("nonsense")), Standing::Same);
        assert_eq!(compare("0.10.0", "0.9.7"), Some(Ordering::Greater));
        assert_eq!(compare("1.2.3-rc.1", "1.2.9"), Some(Ordering::Equal));
        assert_eq!(compare("0.9.0", "1.0.0"), Some(Ordering::Less));
    }
}
