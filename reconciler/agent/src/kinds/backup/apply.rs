//! Applies the steps of a backup's plan.

use berth_api::Backup;

use super::Step;
use crate::context::Context;
use crate::converge::release;
use crate::error::Error;
use crate::key::Key;

pub(super) async fn apply(ctx: &Context, backup: &Backup, step: &Step) -> Result<(), Error> {
    let key = Key::of(backup);
    match step {
        Step::Start(wanted) => ctx.pulls.start(wanted, key),
        Step::Follow(wanted) => ctx.pulls.follow(wanted, key),
        Step::Cancel(wanted) => ctx.pulls.cancel(wanted).await,
        Step::Release => release(ctx, backup).await?,
    }
    Ok(())
}
