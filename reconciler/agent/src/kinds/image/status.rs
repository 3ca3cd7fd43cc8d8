//! Status of an image. Pure.

use berth_api::{Image, ImageState, ImageStatus, Quantity, Readiness};
use jiff::Timestamp;

use super::Observed;
use crate::pulls::Pull;

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
