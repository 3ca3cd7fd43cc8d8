//! Observation of an image.

use berth_api::Image;
use berth_host::ImageFacts;

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
}

pub(super) async fn observe(ctx: &Context, image: &Image) -> Result<Observed, Error> {
    let wanted = wanted_by(image);
    let cached = match &wanted {
        Wanted::Image(source) => ctx.system.image(source).await?,
        Wanted::Checksum(_) => None,
    };
    let pull = if cached.is_some() { None } else { ctx.pulls.state(&wanted, &Key::of(image)) };
    Ok(Observed { cached, pull })
}
