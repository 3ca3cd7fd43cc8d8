//! Image: a verified file in this host's cache.
//!
//! This host is the one that verifies it for everybody; other hosts download it when a disk needs it. What no longer
//! serves anything is dropped by the host's housekeeping, not here: an Image has no finalizer.

use std::time::Duration;

use async_trait::async_trait;
use berth_api::{Binding, Conditions, Image, ImageState, ImageStatus, Quantity, Readiness, Reason};
use jiff::Timestamp;
use kube::ResourceExt;

use crate::context::Context;
use crate::converge::{Kind, Plan};
use crate::disk::source_of;
use crate::error::Error;
use crate::pulls::Pull;
use crate::queue::{Key, ObjectName};
use crate::system::{ImageFacts, ImageSource};

/// What is so about an image.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    pub(crate) cached: Option<ImageFacts>,
    pub(crate) pull: Option<Pull>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Has it downloaded and verified; goes on by itself.
    Pull(ImageSource),
}

#[derive(Debug)]
pub(crate) struct ImageKind;

#[async_trait]
impl Kind for ImageKind {
    type Object = Image;
    type Status = ImageStatus;
    type Observed = Observed;
    type Step = Step;

    async fn observe(ctx: &Context, image: &Image) -> Result<Observed, Error> {
        let source = source_of(image);
        let cached = ctx.system.image(&source.sha256).await?;
        let pull = if cached.is_some() { None } else { ctx.pulls.state(&source) };
        Ok(Observed { cached, pull })
    }

    fn plan(image: &Image, observed: &Observed) -> Plan<Step> {
        if image.metadata.deletion_timestamp.is_some() {
            return Plan::stands(Readiness::Reconciling(Reason::Deleting, String::new()));
        }
        match (&observed.cached, &observed.pull) {
            (Some(_), _) => Plan::stands(Readiness::Ready(Reason::Verified, String::new())),
            (None, Some(Pull::Running { done, total })) => {
                Plan::stands(Readiness::Reconciling(Reason::Pulling, progress(*done, *total)))
            }
            (None, Some(Pull::Failed { readiness, again })) => {
                let plan = Plan::stands(readiness.clone());
                match again {
                    Some(again) => plan.look_again((*again).max(Duration::from_millis(1))),
                    None => plan,
                }
            }
            (None, None) => {
                let readiness = Readiness::Reconciling(Reason::Pulling, progress(0, None));
                Plan::steps(vec![Step::Pull(source_of(image))], readiness)
            }
        }
    }

    async fn apply(ctx: &Context, image: &Image, step: &Step) -> Result<(), Error> {
        let Step::Pull(source) = step;
        let name = ObjectName::new(image.namespace().unwrap_or_default(), image.name_any());
        ctx.pulls.start(source, Key::Image(name));
        Ok(())
    }

    fn status(image: &Image, observed: &Observed, readiness: &Readiness, now: Timestamp) -> ImageStatus {
        let mut status = image.status.clone().unwrap_or_default();
        let generation = image.metadata.generation.unwrap_or(0);
        status.observed_generation = generation;
        readiness.write(&mut status.conditions, generation, now);
        status.downloaded_bytes = match &observed.pull {
            Some(Pull::Running { done, .. }) => Some(i64::try_from(*done).unwrap_or(i64::MAX)),
            _ => None,
        };
        if let Some(facts) = &observed.cached {
            status.virtual_size = Some(Quantity::from_bytes(facts.virtual_size).0);
            status.bytes = Some(i64::try_from(facts.bytes).unwrap_or(i64::MAX));
        }
        status.state = Some(match (readiness, &observed.pull) {
            (Readiness::Ready(..), _) => ImageState::Ready,
            (Readiness::Stalled(..), _) => ImageState::Failed,
            (_, None) => ImageState::Pending,
            (_, Some(_)) => ImageState::Pulling,
        });
        status
    }

    fn binding(image: &Image) -> Option<&Binding> {
        image.status.as_ref()?.binding.as_ref()
    }

    fn conditions(status: &ImageStatus) -> &Conditions {
        &status.conditions
    }
}

/// Told in twentieths, so that the text changes only when it is worth a write.
fn progress(done: u64, total: Option<u64>) -> String {
    match total {
        Some(total) if total > 0 => format!("{} % downloaded", done.saturating_mul(20) / total * 5),
        _ => "downloading".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use berth_qemu::machine::Format;
    use serde_json::json;

    use super::*;

    fn image() -> Image {
        serde_json::from_value(json!({
            "metadata": {"name": "debian", "namespace": "ns", "generation": 2},
            "spec": {"source": {"url": "http://x/d.qcow2", "sha256": "ab"}},
            "status": {"observedGeneration": -1, "binding": {"host": "h", "epoch": 1}},
        }))
        .expect("an image")
    }

    fn cached() -> Observed {
        let facts = ImageFacts {
            sha256: "ab".into(),
            format: Format::Qcow2,
            virtual_size: 2 << 30,
            bytes: 700,
            path: "/images/ab".into(),
        };
        Observed { cached: Some(facts), pull: None }
    }

    fn report(observed: &Observed) -> ImageStatus {
        let plan = ImageKind::plan(&image(), observed);
        ImageKind::status(&image(), observed, &plan.readiness, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn an_image_nobody_has_is_pulled_once() {
        let plan = ImageKind::plan(&image(), &Observed::default());
        assert_eq!(plan.steps, [Step::Pull(source_of(&image()))]);
        let running = Observed { cached: None, pull: Some(Pull::Running { done: 0, total: None }) };
        assert_eq!(ImageKind::plan(&image(), &running).steps, []);
    }

    #[test]
    fn a_verified_image_is_ready_with_its_sizes() {
        let status = report(&cached());
        assert_eq!(status.state, Some(ImageState::Ready));
        assert_eq!(status.virtual_size.as_deref(), Some("2Gi"));
        assert_eq!((status.bytes, status.observed_generation), (Some(700), 2));
        assert_eq!(status.conditions[0].reason, "Verified");
    }

    #[test]
    fn a_wrong_checksum_stalls_and_is_not_tried_again_by_itself() {
        let readiness = Readiness::Stalled(Reason::ChecksumMismatch, "has checksum cd".into());
        let observed = Observed { cached: None, pull: Some(Pull::Failed { readiness, again: None }) };
        let plan = ImageKind::plan(&image(), &observed);
        assert_eq!((plan.steps.len(), plan.look_again), (0, None));
        assert_eq!(report(&observed).state, Some(ImageState::Failed));
    }

    #[test]
    fn progress_is_told_in_twentieths() {
        assert_eq!(progress(149, Some(1000)), "10 % downloaded");
        assert_eq!(progress(150, Some(1000)), "15 % downloaded");
        assert_eq!(progress(7, None), "downloading");
        assert_eq!(progress(7, Some(0)), "downloading");
    }
}
