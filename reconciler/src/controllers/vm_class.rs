//! VMClass: nothing is made for it; it is ready as soon as it was looked at.

use berth_api::{Readiness, Reason, VMClass, VMClassStatus};
use k8s_openapi::jiff::Timestamp;

use super::{
    Key, World,
    apply::{WriteError, Writer},
    plan::Outcome,
};

pub(super) async fn reconcile(
    world: &mut World,
    writer: &Writer,
    key: &Key,
    touched: &mut Vec<Key>,
) -> Result<Outcome, WriteError> {
    let Some(class) = world.vm_classes.get(key).cloned() else { return Ok(Outcome::Settled) };
    let mut status = status(&class, writer.now());
    status.used_by = world.listed_users(key, &status.used_by);
    writer.status(world, class.as_ref(), status, touched).await?;
    Ok(Outcome::Settled)
}

fn status(class: &VMClass, now: Timestamp) -> VMClassStatus {
    let mut status = class.status.clone().unwrap_or_default();
    let generation = class.metadata.generation.unwrap_or_default();
    Readiness::Ready(Reason::Available, String::new()).write(&mut status.conditions, generation, now);
    status.observed_generation = generation;
    status
}
