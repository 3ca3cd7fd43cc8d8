//! The bootstrap data of a start: those that are declared now.
//!
//! A guest that ended by itself is restarted without the control plane too. If a Secret cannot be read then, the guest keeps the data that
//! it was last started with, whose files are on the host. Any other start waits for the Secret: a first one has no such data, and one that is
//! asked for is when changed data are due.

use std::time::Duration;

use berth_api::{Readiness, Reason, VM};
use berth_host::Seed;

use super::super::bootstrap::Bootstrap;
use super::super::seed::{digest, seed};
use super::{Observed, Step, asks_for_restart};
use crate::converge::Plan;
use crate::journal::Journal;

/// Retry interval for Secrets that are not there: they are not watched.
const LOOK_FOR: Duration = Duration::from_secs(2);
/// Retry interval while a Secret cannot be read.
const READ_AGAIN: Duration = Duration::from_secs(10);
/// Retry interval for Secrets that cannot be used.
const UNUSABLE: Duration = Duration::from_secs(30);

/// Checks for the bootstrap data.
pub(super) fn ready(vm: &VM, observed: &Observed) -> Result<(), Plan<Step>> {
    let waits = |reason, text| Plan::without_steps(Readiness::Reconciling(reason, text));
    match &observed.bootstrap {
        Bootstrap::Missing(name) => {
            let text = format!(
                "Secret {name} with bootstrap data does not exist (yet), or this host may not read it (yet)"
            );
            Err(waits(Reason::WaitingForBootstrap, text).requeue_after(LOOK_FOR))
        }
        Bootstrap::Unusable(text) => {
            let stalled = Readiness::Stalled(Reason::InvalidSpec, text.clone());
            Err(Plan::without_steps(stalled).requeue_after(UNUSABLE))
        }
        Bootstrap::Unreadable { why, .. } if !keeps(vm, observed) => {
            Err(waits(Reason::Retrying, why.clone()).requeue_after(READ_AGAIN))
        }
        Bootstrap::NotObserved | Bootstrap::Unreadable { .. } | Bootstrap::Found(_) => Ok(()),
    }
}

/// Returns the seed of a start, and the journal with its record. None: the machine keeps the data of its last start.
pub(super) fn seeded(vm: &VM, observed: &Observed, journal: Journal) -> (Journal, Option<Seed>) {
    if keeps(vm, observed) {
        return (journal, None);
    }
    let journal = journal.with_bootstrap(digest(vm, &observed.bootstrap));
    let cloud_instance = journal.cloud_instance(&observed.instance);
    let seed = seed(vm, &cloud_instance, &observed.bootstrap, &observed.lans, &observed.network_config);
    (journal, Some(seed))
}

/// Whether the guest is restarted with the bootstrap data of its last start.
fn keeps(vm: &VM, observed: &Observed) -> bool {
    let Bootstrap::Unreadable { has_files: true, .. } = observed.bootstrap else { return false };
    let run = observed.journal.run.as_ref();
    // A launch that failed is repeated as it was.
    run.is_some_and(|run| (run.ended.is_some() || run.keeps_bootstrap) && !asks_for_restart(vm, run))
}
