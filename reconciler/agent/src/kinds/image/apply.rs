//! Applies the steps of an image's plan.

use berth_api::Image;
use kube::ResourceExt;

use super::Step;
use crate::context::Context;
use crate::error::Error;
use crate::key::{Key, ObjectName};

pub(super) async fn apply(ctx: &Context, image: &Image, step: &Step) -> Result<(), Error> {
    let key = Key::Image(ObjectName::new(image.namespace().unwrap_or_default(), image.name_any()));
    match step {
        Step::Pull(wanted) => ctx.pulls.start(wanted, key),
        Step::FollowPull(wanted) => ctx.pulls.follow(wanted, key),
    }
    Ok(())
}
