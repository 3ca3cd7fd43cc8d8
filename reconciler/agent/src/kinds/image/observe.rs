//! Observation of an image.

use berth_api::{Image, former_uid};
use berth_host::{ImageFacts, ResolvedImage, SnapshotFacts};
use kube::ResourceExt;

use super::wanted_by;
use crate::context::Context;
use crate::error::Error;
use crate::key::Key;
use crate::pulls::{Pull, Wanted};

/// Everything an image's plan is made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    pub(crate) cached: Option<ImageFacts>,
    pub(crate) pull: Option<Pull>,
    /// The snapshot that it is made from. Only observed until it is made.
    pub(crate) snapshot: Option<SnapshotFacts>,
    /// Whether the volume that this snapshot is to be taken of is there. Only observed until it is taken.
    pub(crate) has_volume: bool,
}

pub(super) async fn observe(ctx: &Context, image: &Image) -> Result<Observed, Error> {
    let Some(wanted) = wanted_by(image) else { return Ok(Observed::default()) };
    let pull = || ctx.pulls.state(&wanted, &Key::of(image));
    match &wanted {
        Wanted::Image(source) => {
            let cached = ctx.system.image(source).await?;
            let pull = if cached.is_some() { None } else { pull() };
            Ok(Observed { cached, pull, ..Observed::default() })
        }
        Wanted::Checksum(_) => Ok(Observed { pull: pull(), ..Observed::default() }),
        Wanted::Made(new) => {
            if let Some(digest) = made(ctx, image).await? {
                // Before a crash, or before its status was lost.
                let found = Pull::Found(ResolvedImage { digest, media_type: None });
                return Ok(Observed { pull: Some(found), ..Observed::default() });
            }
            let snapshot = ctx.system.snapshot(&new.pool, &new.snapshot).await?;
            let is_taken = snapshot.as_ref().is_some_and(|found| found.taken.is_some());
            let volume = image.status.as_ref().and_then(|status| status.volume_id.as_deref());
            let has_volume = match volume.filter(|_| !is_taken) {
                Some(volume) => ctx.system.volume(&new.pool, volume).await?.is_some(),
                None => false,
            };
            Ok(Observed { cached: None, pull: pull(), snapshot, has_volume })
        }
    }
}

/// Returns the digest of the image that was made for this object.
async fn made(ctx: &Context, image: &Image) -> Result<Option<String>, Error> {
    let uids: Vec<String> = image.uid().into_iter().chain(former_uid(image).map(str::to_owned)).collect();
    let images = ctx.system.images().await?;
    let found = images.into_iter().find(|facts| uids.iter().any(|uid| facts.made_for.contains(uid)));
    Ok(found.map(|facts| facts.digest))
}
