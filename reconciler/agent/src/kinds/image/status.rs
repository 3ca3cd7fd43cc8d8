//! Status of an image. Pure.

use berth_api::condition::find;
use berth_api::{Image, ImageState, ImageStatus, Quantity, Readiness, Reason};
use jiff::Timestamp;

use super::Observed;
use crate::pulls::Pull;
use crate::recorder::EventType;

pub(super) fn status(
    image: &Image,
    observed: &Observed,
    readiness: &Readiness,
    now: Timestamp,
) -> ImageStatus {
    let mut status = image.status.clone().unwrap_or_default();
    let generation = image.metadata.generation.unwrap_or(0);
    status.observed_generation = generation;
    readiness.write(&mut status.conditions, generation, now);
    status.downloaded_bytes = match &observed.pull {
        Some(Pull::Running { done, .. }) => Some(i64::try_from(*done).unwrap_or(i64::MAX)),
        _ => observed.upload.as_ref().map(|upload| i64::try_from(upload.bytes).unwrap_or(i64::MAX)),
    };
    status.upload = observed.upload.as_ref().and_then(|upload| upload.server.clone());
    status.server.clone_from(&observed.server);
    status.download.clone_from(&observed.download);
    if let Some(Pull::Found(resolved)) = &observed.pull
        && status.checksum.is_none()
    {
        status.checksum = Some(resolved.digest.clone());
        status.media_type = resolved.media_type.clone();
    }
    if let Some(facts) = &observed.cached {
        status.virtual_size = Some(Quantity::from_bytes(facts.virtual_size).0);
        status.bytes = Some(i64::try_from(facts.bytes).unwrap_or(i64::MAX));
    }
    status.state = Some(match (readiness, &observed.pull) {
        (Readiness::Ready(..), _) => ImageState::Ready,
        (Readiness::Stalled(..), _) => ImageState::Failed,
        _ if image.origin().is_some() => ImageState::Creating,
        (_, None) => ImageState::Pending,
        (_, Some(_)) => ImageState::Pulling,
    });
    status
}

/// Returns the event of a change of the status: the image was verified, or a download failed and is tried again. That of an image that
/// is stalled is that of any object.
pub(super) fn event(
    stored: Option<&ImageStatus>,
    status: &ImageStatus,
) -> Option<(EventType, Reason, String)> {
    let was_verified = stored.is_some_and(|stored| stored.virtual_size.is_some());
    if let (false, Some(_), Some(bytes)) = (was_verified, &status.virtual_size, status.bytes) {
        return Some((
            EventType::Normal,
            Reason::Verified,
            format!("its file of {bytes} bytes was verified"),
        ));
    }
    let ready = find(&status.conditions, "Ready")?;
    let before = stored.and_then(|stored| find(&stored.conditions, "Ready"));
    let failures = [Reason::Retrying, Reason::NoSpace];
    let reason = failures.into_iter().find(|reason| reason.as_str() == ready.reason)?;
    let is_new = before.is_none_or(|before| before.reason != ready.reason);
    let is_stalled = find(&status.conditions, "Stalled").is_some_and(|stalled| stalled.status == "True");
    (is_new && !is_stalled).then(|| (EventType::Warning, reason, ready.message.clone()))
}
