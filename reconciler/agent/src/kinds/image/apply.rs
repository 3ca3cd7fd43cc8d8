//! Applies the steps of an image's plan.

use berth_api::Image;

use super::Step;
use crate::context::Context;
use crate::error::Error;
use crate::key::Key;
use crate::snapshots::take;

pub(super) async fn apply(ctx: &Context, image: &Image, step: &Step) -> Result<(), Error> {
    let key = Key::of(image);
    match step {
        Step::TakeSnapshot(new) => take(ctx, std::slice::from_ref(new)).await?,
        Step::Pull(wanted) => ctx.pulls.start(wanted, key),
        Step::FollowPull(wanted) => ctx.pulls.follow(wanted, key),
        Step::AddReader { digest, namespace } => ctx.system.add_reader(digest, namespace).await?,
    }
    Ok(())
}
