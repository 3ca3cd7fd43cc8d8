//! Image: given to a host that verifies it. Who uses it is kept here also after that: no host knows all its disks.

use berth_api::{Binding, Image, ImageState, ImageStatus, Readiness, Reason};
use k8s_openapi::jiff::Timestamp;

use super::{
    Config, Key, World,
    draft::Draft,
    plan::{Need, Outcome, Plan},
};

#[derive(Debug)]
struct Observed {
    /// A host that can verify it now.
    host: Option<String>,
    /// The host it is bound to is gone for good or silent.
    lost: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    Leave,
    Wait,
    Bind(String),
}

pub(super) fn reconcile(world: &World, config: &Config, key: &Key, draft: &mut Draft) -> Outcome {
    let Some(image) = world.images.get(key).cloned() else { return Outcome::Settled };
    let plan = plan(&image, &observe(world, &image));
    let mut status = status(&image, &plan.decision, config.clock.now());
    status.used_by = world.listed_users(key, &status.used_by);
    draft.status(image.as_ref(), status);
    plan.outcome
}

fn observe(world: &World, image: &Image) -> Observed {
    use kube::ResourceExt;
    let alive = |name: &str| world.is_alive(name);
    let binding = image.status.as_ref().and_then(|s| s.binding.as_ref());
    // The host with the fewest VMs, then by name: verifying costs it a download.
    let hosts = world.hosts.all().map(|h| h.name_any()).filter(|name| alive(name));
    let host = hosts.min_by_key(|name| (world.index.fleet.usage(name).vms, name.clone()));
    Observed { host, lost: binding.is_some_and(|b| !alive(&b.host)) }
}

fn plan(image: &Image, observed: &Observed) -> Plan<Decision> {
    let status = image.status.as_ref();
    let is_bound = status.is_some_and(|s| s.binding.is_some());
    let is_verified = status.is_some_and(|s| s.virtual_size.is_some());
    if image.metadata.deletion_timestamp.is_some() || (is_bound && (is_verified || !observed.lost)) {
        return Plan::settled(Decision::Leave);
    }
    match &observed.host {
        Some(host) => Plan::settled(Decision::Bind(host.clone())),
        None => Plan::blocked(Decision::Wait, vec![Need::Hosts]),
    }
}

fn status(image: &Image, decision: &Decision, now: Timestamp) -> ImageStatus {
    let mut status = image.status.clone().unwrap_or_default();
    let generation = image.metadata.generation.unwrap_or_default();
    let text = match decision {
        Decision::Leave => return status,
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
        let lost = Observed { host: Some("b".into()), lost: true };
        let pulling = image(json!({"binding": {"host": "a", "epoch": 1}}));
        assert_eq!(plan(&pulling, &lost).decision, Decision::Bind("b".into()));
        let verified = image(json!({"binding": {"host": "a", "epoch": 1}, "virtualSize": "1Gi"}));
        assert_eq!(plan(&verified, &lost).decision, Decision::Leave);
    }

    #[test]
    fn without_a_host_it_waits_for_one() {
        let plan = plan(&image(json!(null)), &Observed { host: None, lost: false });
        assert_eq!(plan.outcome, Outcome::Blocked(vec![Need::Hosts]));
    }
}
