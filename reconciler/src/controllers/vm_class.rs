//! VMClass: nothing is made for it; it is ready as soon as it was looked at.

use berth_api::{Readiness, Reason, VMClass, VMClassStatus};
use k8s_openapi::jiff::Timestamp;

use super::{Config, Key, World, draft::Draft, plan::Outcome};

pub(super) fn reconcile(world: &World, config: &Config, key: &Key, draft: &mut Draft) -> Outcome {
    let Some(class) = world.vm_classes.get(key).cloned() else { return Outcome::Settled };
    let mut status = status(&class, config.clock.now());
    status.used_by = world.listed_users(key, &status.used_by);
    draft.status(class.as_ref(), status);
    Outcome::Settled
}

fn status(class: &VMClass, now: Timestamp) -> VMClassStatus {
    let mut status = class.status.clone().unwrap_or_default();
    let generation = class.metadata.generation.unwrap_or_default();
    Readiness::Ready(Reason::Available, String::new()).write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    status
}
