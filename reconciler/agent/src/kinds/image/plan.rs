//! Plan for an image. Pure.

use std::time::Duration;

use berth_api::{Image, Readiness, Reason};
use berth_host::{ImageFacts, NewSnapshot};
use kube::ResourceExt;

use super::local::{self, Fetch, LocalImage};
use super::{Observed, Step, wanted_by};
use crate::converge::Plan;
use crate::error::RETRY_SPACE_EVERY;
use crate::pulls::{Pull, Wanted, percent};

const SOON: Duration = Duration::from_millis(10);
/// How soon a file that came between two looks is looked for again.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) fn plan(image: &Image, observed: &Observed) -> Plan<Step> {
    if image.metadata.deletion_timestamp.is_some() {
        return Plan::without_steps(Readiness::Reconciling(Reason::Deleting, String::new()));
    }
    // Reported for the new generation: a client that waits for it does not take the former content for the new one.
    if image.is_outdated() {
        let text = "its content is about to be made anew, for another token".to_owned();
        return Plan::without_steps(Readiness::Reconciling(Reason::Pending, text));
    }
    let Some(wanted) = wanted_by(image) else {
        let text = "bound without the identity of its snapshot".to_owned();
        return Plan::without_steps(Readiness::Reconciling(Reason::Bound, text));
    };
    let awaited = copy_awaited(image, observed)
        .or_else(|| before_pull(image, &wanted, observed))
        .or_else(|| upload_awaited(image, observed));
    if let Some(plan) = awaited {
        return plan;
    }
    if is_not_needed_here(image, observed) {
        let text = "verified, and not in the cache of its host: a host downloads it when something needs it";
        return Plan::without_steps(Readiness::Ready(Reason::Verified, text.to_owned()));
    }
    let running = |done, total, rate| match &wanted {
        Wanted::Made(new) => {
            Readiness::Reconciling(Reason::Provisioning, format!("being made from {}", new.shown))
        }
        _ if image.spec.source.upload.is_some() => {
            Readiness::Reconciling(Reason::Pulling, "the uploaded file is being verified".to_owned())
        }
        _ => {
            let text = progress(done, total, "downloaded") + &of_rate(rate);
            Readiness::Reconciling(Reason::Pulling, text)
        }
    };
    match (&observed.cached, &observed.pull) {
        (Some(_), _) => Plan::without_steps(Readiness::Ready(Reason::Verified, String::new())),
        (None, Some(Pull::Running { done, total, rate, followed })) => {
            let follow = (!followed).then(|| Step::FollowPull(wanted.clone()));
            Plan::steps(follow.into_iter().collect(), running(*done, *total, *rate))
        }
        (None, Some(Pull::Found(_) | Pull::Stored(_) | Pull::Deleted | Pull::Verified(_))) => {
            // Once the status has the checksum, the image itself is downloaded.
            Plan::without_steps(running(0, None, None)).requeue_after(SOON)
        }
        (None, Some(Pull::Failed { readiness, again })) => {
            Plan::without_steps(readiness.clone()).requeue_for_retry(*again)
        }
        (None, None) => {
            let readiness = running(0, None, None);
            Plan::steps(vec![Step::Pull(wanted)], readiness)
        }
    }
}

/// Whether the file of an image with a URL, which was verified, is gone from the cache: to make room, or with the host's disk. An
/// object that needs it here downloads it.
fn is_not_needed_here(image: &Image, observed: &Observed) -> bool {
    let is_verified = image.status.as_ref().is_some_and(|status| status.virtual_size.is_some());
    !image.is_local() && is_verified && observed.cached.is_none()
}

/// Returns the plan for a copy of another image whose file is not here: that of the other one is, or is got as for a disk.
fn copy_awaited(image: &Image, observed: &Observed) -> Option<Plan<Step>> {
    let (name, original) = (image.spec.source.image.as_ref()?, observed.original.as_ref()?);
    if *original == LocalImage::Missing {
        let text = format!(
            "it is a copy of Image {name}, which is gone, has other content or is not shared any more, and its file is gone from this host"
        );
        return Some(Plan::without_steps(Readiness::Stalled(Reason::ImageLost, text)));
    }
    let step = |fetch, source| match fetch {
        Fetch::Pull => Step::Pull(Wanted::Image(source)),
        Fetch::FollowPull => Step::FollowPull(Wanted::Image(source)),
    };
    Some(match local::ready(name.as_str(), original, step) {
        Err(plan) => plan,
        Ok(facts) if is_to_read(image, facts) => {
            let (digest, namespace) = (facts.digest.clone(), image.namespace().unwrap_or_default());
            let text = format!("the file of Image {name} is on this host");
            let readiness = Readiness::Reconciling(Reason::Pulling, text);
            Plan::steps(vec![Step::AddReader { digest, namespace }], readiness)
        }
        Ok(_) => {
            let text = format!("the file of Image {name} is on this host");
            Plan::without_steps(Readiness::Reconciling(Reason::Pulling, text)).requeue_after(AGAIN)
        }
    })
}

/// Whether the namespace of a copy is to become a reader of the file, which another namespace shares with it.
fn is_to_read(copy: &Image, facts: &ImageFacts) -> bool {
    let namespace = copy.metadata.namespace.as_deref().unwrap_or_default();
    copy.foreign_original().is_some() && !facts.readers.contains(namespace)
}

/// Returns the plan for an image whose file has not been uploaded completely, or is gone.
fn upload_awaited(image: &Image, observed: &Observed) -> Option<Plan<Step>> {
    let declared = image.spec.source.upload?;
    let upload = observed.upload.as_ref()?;
    let size = u64::try_from(declared.size).unwrap_or_default();
    if upload.bytes >= size || observed.pull.is_some() {
        return None;
    }
    let stalled = |reason, text: &str| Plan::without_steps(Readiness::Stalled(reason, text.to_owned()));
    if let Some(obstacle) = &upload.obstacle {
        // Space becomes free without a notification.
        return Some(Plan::without_steps(obstacle.clone()).requeue_after(RETRY_SPACE_EVERY));
    }
    if upload.server.is_none() {
        let text = "this host takes no uploads: its agent runs with --no-console";
        return Some(stalled(Reason::ImageNotAllowed, text));
    }
    if upload.bytes == 0 && image.status.as_ref().is_some_and(|status| status.virtual_size.is_some()) {
        let text = "its file was uploaded and is gone from this host: upload it again (berth image push)";
        return Some(stalled(Reason::ImageLost, text));
    }
    let text = progress(upload.bytes, Some(size), "uploaded");
    Some(Plan::without_steps(Readiness::Reconciling(Reason::WaitingForUpload, text)))
}

/// Returns the plan for an image that is to be made and cannot be yet, or that was made and is gone.
fn before_pull(image: &Image, wanted: &Wanted, observed: &Observed) -> Option<Plan<Step>> {
    let stalled = |reason, text| Some(Plan::without_steps(Readiness::Stalled(reason, text)));
    let (kind, name) = image.origin()?;
    let Wanted::Made(new) = wanted else {
        if observed.cached.is_some() {
            return None;
        }
        let text = format!("it was made from {kind} {name}, and its file is gone from this host");
        return stalled(Reason::ImageLost, text);
    };
    if observed.is_encrypted {
        let text = format!(
            "{kind} {name} is encrypted, and images are not: make a backup of it, or a disk with it as its source"
        );
        return stalled(Reason::NotSupported, text);
    }
    if observed.pull.is_some() || observed.snapshot.as_ref().is_some_and(|found| found.taken.is_some()) {
        return None;
    }
    if let Some(reason) = observed.lost {
        let text = format!(
            "the file of {kind} {name} is gone from this host: bring the file back, or declare an image that is made from another source"
        );
        return stalled(reason, text);
    }
    let why = if image.foreign_data().is_some() { "deleted, or shared no more," } else { "deleted" };
    let text = format!("{kind} {name} was {why} before the image was made from it");
    let Some(volume) = image.status.as_ref().and_then(|status| status.volume_id.clone()) else {
        return stalled(Reason::SnapshotLost, text);
    };
    if !observed.has_volume {
        return stalled(Reason::DiskLost, text);
    }
    let take = NewSnapshot { pool: new.pool.clone(), id: new.snapshot.clone(), volume, owner: None };
    let text = format!("a snapshot of {kind} {name} is being taken");
    Some(Plan::steps(vec![Step::TakeSnapshot(take)], Readiness::Reconciling(Reason::Provisioning, text)))
}

/// Formats the rate of a download, which changes with its progress only.
fn of_rate(rate: Option<u64>) -> String {
    match rate {
        None => String::new(),
        Some(rate) if rate < 1 << 20 => format!(", {} KiB/s", rate >> 10),
        Some(rate) => format!(", {} MiB/s", rate >> 20),
    }
}

/// Formats the progress in steps of 5 %, so that the text changes only when that is worth a write.
pub(super) fn progress(done: u64, total: Option<u64>, what: &str) -> String {
    percent(done, total).map_or_else(|| format!("being {what}"), |percent| format!("{percent} % {what}"))
}
