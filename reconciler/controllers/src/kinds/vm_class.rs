//! The VMClass controller: nothing is created for it; it is ready once reconciled.

use berth_api::{Readiness, Reason, VMClass, VMClassStatus};
use k8s_openapi::jiff::Timestamp;

use crate::{batch::WriteBatch, cache::Cache, config::Config, key::Key, plan::Outcome};

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(class) = cache.tables.vm_classes.get(key).cloned() else { return Outcome::Settled };
    let mut status = status(&class, config.clock.now());
    let users = cache.listed_users(key, &status.used_by);
    status.used_by.clone_from(&users);
    batch.used(class.as_ref(), status, &users, config.clock.now());
    Outcome::Settled
}

fn status(class: &VMClass, now: Timestamp) -> VMClassStatus {
    let mut status = class.status.clone().unwrap_or_default();
    let generation = class.metadata.generation.unwrap_or_default();
    Readiness::Ready(Reason::Available, String::new()).write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    status
}
