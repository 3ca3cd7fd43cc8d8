//! The KeyClass controller: it does not read the Secret, which only hosts with disks of the class may. It is ready once reconciled.

use berth_api::{KeyClass, KeyClassStatus, Readiness, Reason};
use k8s_openapi::jiff::Timestamp;

use crate::{batch::WriteBatch, cache::Cache, config::Config, key::Key, plan::Outcome};

pub(crate) fn reconcile(cache: &Cache, config: &Config, key: &Key, batch: &mut WriteBatch) -> Outcome {
    let Some(class) = cache.tables.key_classes.get(key).cloned() else { return Outcome::Settled };
    let mut status = status(&class, config.clock.now());
    let users = cache.listed_users(key, &status.used_by);
    status.used_by.clone_from(&users);
    batch.used(class.as_ref(), status, &users, config.clock.now());
    Outcome::Settled
}

fn status(class: &KeyClass, now: Timestamp) -> KeyClassStatus {
    let mut status = class.status.clone().unwrap_or_default();
    let generation = class.metadata.generation.unwrap_or_default();
    Readiness::Ready(Reason::Available, String::new()).write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    status
}
