//! Plan for the host's housekeeping. Pure.

use std::collections::BTreeSet;

use super::Step;
use super::observe::Observed;

pub(super) fn plan(observed: &Observed) -> Vec<Step> {
    let mut steps = Vec::new();
    steps.extend(observed.overhead.map(|(most, known)| Step::RecordOverhead { most, known }));
    let is_released = |name: &String| observed.released.contains(name);
    let finished =
        observed.orphan_instances.iter().filter(|lost| lost.deleting || is_released(&lost.instance));
    steps.extend(finished.map(|lost| Step::FinishInstance(lost.instance.clone())));
    // Before the instance, whose journal names them.
    steps.extend(observed.copied_volumes.iter().cloned().map(Step::RemoveCopied));
    steps.extend(observed.left_instances.iter().cloned().map(Step::FinishInstance));
    let recorded = observed
        .orphan_instances
        .iter()
        .filter(|lost| lost.restarts_offline && !lost.deleting && !is_released(&lost.instance));
    steps.extend(recorded.map(|lost| Step::ForgetRestart(lost.instance.clone())));
    let given_up = observed.orphan_volumes.iter().filter(|volume| is_released(&volume.id));
    let given_up = given_up.filter(|volume| !observed.open_volumes.contains(&volume.id));
    steps.extend(given_up.map(|v| Step::TrashVolume { pool: v.pool.clone(), volume: v.id.clone() }));
    steps.extend(observed.lost_memory.iter().cloned().map(Step::RemoveMemory));
    let is_unused = |digest: &String| !observed.images_in_use.contains(digest);
    // A volume of a pool that is away may be based on any image.
    let all_are_known = observed.facts.pool_folders.iter().all(|of| of.problem.is_none());
    let unused = observed.images.iter().filter(|digest| all_are_known && is_unused(digest));
    steps.extend(unused.map(|digest| Step::RemoveImage(digest.clone())));
    steps.extend(observed.excess.clone().map(Step::ShrinkCache));
    let former = observed.former_readers.iter().filter(|(digest, _)| !is_unused(digest));
    steps.extend(former.map(|(digest, namespace)| Step::ForgetReader {
        digest: digest.clone(),
        namespace: namespace.clone(),
    }));
    let mut pools = BTreeSet::new();
    for trashed in &observed.trash {
        let pool = &trashed.volume.pool;
        let Some(retention) = observed.retention.get(pool) else { continue };
        if trashed.rested >= *retention && pools.insert(pool) {
            steps.push(Step::PurgeTrash { pool: pool.clone(), older_than: *retention });
        }
    }
    steps
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
