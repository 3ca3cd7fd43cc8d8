//! The bytes of an Image on this host, for an object that needs them: a Disk without a file, a VM with a CD-ROM drive.

use std::time::Duration;

use berth_api::{Image, Readiness, Reason, condition};
use berth_host::{ImageFacts, ImageSource};

use super::wanted_on;
use crate::context::Context;
use crate::converge::{Plan, waiting_for};
use crate::error::Error;
use crate::key::Key;
use crate::pulls::{Pull, Wanted, percent};

/// Whether this host has an image that an object needs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LocalImage {
    Missing,
    /// Its checksum has not been read yet, or it has not been made yet.
    Unknown,
    /// It was made on one host or uploaded to it, and its file is neither here nor served by that host: why, and the remedy.
    NotHere(String),
    /// As `NotHere`, or its host is gone, and the Image is Stalled: with its reason and message.
    Lost(Readiness),
    Absent(ImageSource),
    /// It is being downloaded by this host, from which others copy it then: this one waits so long.
    Elsewhere(String, Duration),
    Pulling(ImageSource, Pull),
    Cached(ImageFacts),
}

impl LocalImage {
    /// Returns how much of it is downloaded, in percent.
    pub(crate) fn percent(&self) -> Option<i64> {
        match self {
            Self::Pulling(_, Pull::Running { done, total, .. }) => percent(*done, *total),
            _ => None,
        }
    }
}

/// Observes the image of this name for an object of the namespace.
pub(crate) async fn observe(
    ctx: &Context,
    namespace: &str,
    name: &str,
    needed_by: &Key,
) -> Result<LocalImage, Error> {
    let found = ctx.index.read().images.find(namespace, name);
    let Some(image) = found else { return Ok(LocalImage::Missing) };
    if image.is_outdated() {
        return Ok(LocalImage::Unknown);
    }
    let Some(wanted) = wanted_on(ctx.host(), &image) else { return Ok(LocalImage::Unknown) };
    let Wanted::Image(source) = &wanted else { return Ok(LocalImage::Unknown) };
    if let Some(facts) = ctx.system.image(source).await? {
        return Ok(LocalImage::Cached(facts));
    }
    if let Some(obstacle) = obstacle(ctx.host(), &image, source) {
        return Ok(obstacle);
    }
    if let Some(pull) = ctx.pulls.state(&wanted, needed_by) {
        return Ok(LocalImage::Pulling(source.clone(), pull));
    }
    if let Some((host, report)) = downloader(ctx.host(), &image) {
        let left = ctx.pulls.awaited.time_left(source, &report);
        if !left.is_zero() {
            return Ok(LocalImage::Elsewhere(host, left));
        }
    }
    Ok(LocalImage::Absent(source.clone()))
}

/// Returns the other host that downloads an image with a URL for all, and its report, while it does so without an error. `None`: this host
/// need not wait for it.
pub(super) fn downloader(here: &str, image: &Image) -> Option<(String, String)> {
    let status = image.status.as_ref().filter(|_| !image.is_local() && image.is_copyable())?;
    let binding = status.binding.as_ref().filter(|binding| binding.host != here)?;
    let ready = condition::find(&status.conditions, "Ready")?;
    let is_begun = [Reason::Pending, Reason::Pulling].iter().any(|reason| reason.as_str() == ready.reason);
    (is_begun && status.virtual_size.is_none()).then(|| (binding.host.clone(), ready.message.clone()))
}

/// Returns why an image that was made on one host or uploaded to it cannot be copied from there.
pub(super) fn obstacle(here: &str, image: &Image, source: &ImageSource) -> Option<LocalImage> {
    let status = image.status.as_ref().filter(|_| image.is_local())?;
    let host = status.binding.as_ref().map(|binding| binding.host.clone()).unwrap_or_default();
    let stalled = condition::find(&status.conditions, "Stalled").filter(|stalled| stalled.status == "True");
    if let Some(stalled) = stalled {
        let known = Reason::ALL.iter().find(|reason| reason.as_str() == stalled.reason);
        let reason = known.copied().unwrap_or(Reason::WaitingForImage);
        return Some(LocalImage::Lost(Readiness::Stalled(
            reason,
            format!("on host {host}: {}", stalled.message),
        )));
    }
    if source.host.is_some() {
        return None;
    }
    Some(LocalImage::NotHere(match image.is_copyable() {
        _ if host == here => "is not complete on this host".to_owned(),
        true => format!(
            "is on host {host}, which does not serve it to other hosts: start its agent without --no-console, on an address that they \
             reach, or create the Disk or the VM again"
        ),
        false => format!(
            "is on host {host} only, and cannot be copied: create the Disk or the VM again, so that it is placed on that host"
        ),
    }))
}

/// A step towards an image: of the plan of the object that needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    Pull,
    FollowPull,
}

/// Returns the image if it is cached, or else the plan to wait for it.
pub(crate) fn ready<'a, S>(
    name: &str,
    image: &'a LocalImage,
    step: impl Fn(Fetch, ImageSource) -> S,
) -> Result<&'a ImageFacts, Plan<S>> {
    let waits = |text| Err(Plan::without_steps(Readiness::Reconciling(Reason::WaitingForImage, text)));
    match image {
        LocalImage::Missing => waits(format!("Image {name} does not exist (yet)")),
        LocalImage::Unknown => waits(format!("Image {name} is not made or its checksum was not read yet")),
        LocalImage::NotHere(why) => waits(format!("Image {name} {why}")),
        LocalImage::Lost(readiness) => Err(Plan::without_steps(prefixed(name, readiness))),
        LocalImage::Elsewhere(host, left) => {
            let text =
                format!("Image {name} is being downloaded by host {host}, from which it is copied then");
            Err(Plan::without_steps(Readiness::Reconciling(Reason::Pulling, text)).requeue_after(*left))
        }
        LocalImage::Absent(source) => {
            Err(Plan::steps(vec![step(Fetch::Pull, source.clone())], pulling(name, source)))
        }
        LocalImage::Pulling(
            source,
            pull @ (Pull::Running { .. }
            | Pull::Found(_)
            | Pull::Stored(_)
            | Pull::Deleted
            | Pull::Verified(_)),
        ) => {
            let is_new = matches!(pull, Pull::Running { followed: false, .. });
            let follow = is_new.then(|| step(Fetch::FollowPull, source.clone()));
            Err(Plan::steps(follow.into_iter().collect(), pulling(name, source)))
        }
        LocalImage::Pulling(_, Pull::Failed { readiness, again }) => {
            Err(Plan::without_steps(prefixed(name, readiness)).requeue_for_retry(*again))
        }
        LocalImage::Cached(facts) => Ok(facts),
    }
}

fn pulling(name: &str, source: &ImageSource) -> Readiness {
    let text = match &source.host {
        Some(host) if source.is_downloadable() => {
            format!("Image {name} is being copied from host {}, or else downloaded", host.name)
        }
        Some(host) => format!("Image {name} is being copied from host {}", host.name),
        None => format!("Image {name} is being downloaded"),
    };
    Readiness::Reconciling(Reason::Pulling, text)
}

fn prefixed(image: &str, readiness: &Readiness) -> Readiness {
    waiting_for(readiness, format!("Image {image}: {}", readiness.message()))
}
