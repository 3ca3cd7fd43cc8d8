//! The Image controller: binds an image to a host that verifies it. The users stay up to date here also after that:
//! no host knows all its disks.

use berth_api::{Binding, ConditionType, Image, ImageState, ImageStatus, Readiness, Reason, condition};
use k8s_openapi::jiff::Timestamp;

use crate::{
    batch::WriteBatch,
    cache::Cache,
    config::Config,
    key::Key,
    plan::{Dependency, Outcome, Plan},
};

#[derive(Debug)]
struct Observed {
    /// A host that can verify it now.
    host: Option<String>,
    /// The host it is bound to is fenced or silent.
    lost: bool,
    /// Another host, to check whether it refuses the image too.
    other: Option<String>,
}

/// The number of hosts that must refuse an image before the image counts as bad, if there are as many.
const VERDICTS: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    NoChange,
    Wait,
    Bind(String),
}

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(image) = cache.tables.images.get(key).cloned() else { return Outcome::Settled };
    let plan = plan(&image, &observe(cache, &image));
    let mut status = status(&image, &plan.decision, config.clock.now());
    let users = cache.listed_users(key, &status.used_by);
    status.used_by.clone_from(&users);
    batch.used(image.as_ref(), status, &users, config.clock.now());
    plan.outcome
}

fn observe(cache: &Cache, image: &Image) -> Observed {
    use kube::ResourceExt;
    let alive = |name: &str| cache.is_alive(name);
    let binding = image.status.as_ref().and_then(|s| s.binding.as_ref());
    // The host with the fewest VMs, then by name: verifying costs it a download.
    let hosts = cache.tables.hosts.all().map(|h| h.name_any()).filter(|name| alive(name));
    let host = hosts.min_by_key(|name| (cache.index.capacity.usage(name).vms, name.clone()));
    let mut all: Vec<String> =
        cache.tables.hosts.all().map(|h| h.name_any()).filter(|name| alive(name)).collect();
    all.sort();
    // Each binding that the scheduler made means one more host asked to verify.
    let asked = binding.map_or(0, |b| usize::try_from(b.epoch).unwrap_or(usize::MAX));
    let other = binding.filter(|_| asked < all.len().min(VERDICTS)).and_then(|b| {
        let after = all.iter().find(|name| **name > b.host).or(all.first());
        after.filter(|name| **name != b.host).cloned()
    });
    Observed { host, lost: binding.is_some_and(|b| !alive(&b.host)), other }
}

fn plan(image: &Image, observed: &Observed) -> Plan<Decision> {
    let status = image.status.as_ref();
    let is_bound = status.is_some_and(|s| s.binding.is_some());
    let is_verified = status.is_some_and(|s| s.virtual_size.is_some());
    if image.metadata.deletion_timestamp.is_some() || (is_bound && (is_verified || !observed.lost)) {
        // One host's refusal counts for that host only.
        let refused = status.is_some_and(|s| condition::is_true(&s.conditions, ConditionType::Stalled));
        if let Some(other) = observed.other.as_ref().filter(|_| refused && !is_verified)
            && image.metadata.deletion_timestamp.is_none()
        {
            return Plan::settled(Decision::Bind(other.clone()));
        }
        return Plan::settled(Decision::NoChange);
    }
    match &observed.host {
        Some(host) => Plan::settled(Decision::Bind(host.clone())),
        None => Plan::blocked(Decision::Wait, vec![Dependency::Hosts]),
    }
}

fn status(image: &Image, decision: &Decision, now: Timestamp) -> ImageStatus {
    let mut status = image.status.clone().unwrap_or_default();
    let generation = image.metadata.generation.unwrap_or_default();
    let text = match decision {
        Decision::NoChange => return status,
        Decision::Wait => "there is no ready host that could verify it".to_owned(),
        Decision::Bind(host) => {
            let epoch = status.binding.as_ref().map_or(1, |b| b.epoch + 1);
            status.binding = Some(Binding { host: host.clone(), epoch });
            format!("host {host} verifies it")
        }
    };
    Readiness::Reconciling(Reason::Pending, text).write(&mut status.conditions, generation, now);
    status.state = Some(ImageState::Pending);
    status.observed_generation = generation;
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn image(status: serde_json::Value) -> Image {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Image", "metadata": {"name": "a", "namespace": "default"},
            "spec": {"source": {"url": "file:///a", "sha256": "0".repeat(64)}}, "status": status,
        }))
        .expect("an image")
    }

    #[test]
    fn an_image_moves_to_another_host_only_while_it_is_not_verified() {
        let lost = Observed { host: Some("b".into()), lost: true, other: None };
        let pulling = image(json!({"binding": {"host": "a", "epoch": 1}}));
        assert_eq!(plan(&pulling, &lost).decision, Decision::Bind("b".into()));
        let verified = image(json!({"binding": {"host": "a", "epoch": 1}, "virtualSize": "1Gi"}));
        assert_eq!(plan(&verified, &lost).decision, Decision::NoChange);
    }

    #[test]
    fn what_one_host_refuses_another_is_asked_for() {
        let stalled = json!([{"type": "Stalled", "status": "True", "reason": "ChecksumMismatch", "message": "no",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let refused = image(json!({"binding": {"host": "a", "epoch": 1}, "conditions": stalled}));
        let seen = |other: Option<&str>| Observed {
            host: Some("a".into()),
            lost: false,
            other: other.map(Into::into),
        };
        assert_eq!(plan(&refused, &seen(Some("b"))).decision, Decision::Bind("b".into()));
        assert_eq!(plan(&refused, &seen(None)).decision, Decision::NoChange, "all were asked");
        let verified =
            image(json!({"binding": {"host": "a", "epoch": 1}, "conditions": stalled, "virtualSize": "1Gi"}));
        assert_eq!(plan(&verified, &seen(Some("b"))).decision, Decision::NoChange);
    }

    #[test]
    fn without_a_host_it_waits_for_one() {
        let plan = plan(&image(json!(null)), &Observed { host: None, lost: false, other: None });
        assert_eq!(plan.outcome, Outcome::Blocked(vec![Dependency::Hosts]));
    }
}
