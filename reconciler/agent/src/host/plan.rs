//! The host's housekeeping. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Step;
use super::observe::Observed;

pub(super) fn plan(observed: &Observed) -> Vec<Step> {
    let mut steps = Vec::new();
    let finished = observed.lost_instances.iter().filter(|lost| lost.deleting);
    steps.extend(finished.map(|lost| Step::FinishInstance(lost.instance.clone())));
    let unused = observed.images.iter().filter(|sha256| !observed.images_in_use.contains(*sha256));
    steps.extend(unused.map(|sha256| Step::RemoveImage(sha256.clone())));
    let mut pools = BTreeSet::new();
    for trashed in &observed.trash {
        let pool = &trashed.volume.pool;
        let Some(retention) = observed.retention.get(pool) else { continue };
        let age = observed.now.duration_since(trashed.deleted_at);
        let over = Duration::try_from(age).is_ok_and(|age| age >= *retention);
        if over && pools.insert(pool) {
            steps.push(Step::PurgeTrash { pool: pool.clone(), older_than: *retention });
        }
    }
    steps
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
