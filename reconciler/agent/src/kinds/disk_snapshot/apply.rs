//! Applies the steps of a snapshot's plan.

use berth_api::DiskSnapshot;
use berth_host::SystemError;

use super::Step;
use crate::context::Context;
use crate::converge::release;
use crate::error::Error;
use crate::snapshots::{keep_needed, merge_deleted, take, take_with_memory};

pub(super) async fn apply(ctx: &Context, snapshot: &DiskSnapshot, step: &Step) -> Result<(), Error> {
    match step {
        Step::Take(all) => take(ctx, all).await?,
        Step::TakeWithMemory(all) => Box::pin(take_with_memory(ctx, all)).await?,
        Step::TakeOver { pool, snapshot, owner } => {
            ctx.system.hand_over_snapshot(pool, snapshot, owner).await?;
        }
        Step::RemoveMemory(id) => {
            ctx.machines.forget_saves(id);
            ctx.system.remove_kept_state(id).await?;
        }
        Step::Delete(new) => {
            // One in Ceph may go at once.
            keep_needed(ctx);
            match ctx.system.delete_snapshot(&new.pool, &new.id).await {
                // The disk continues in its new file already.
                Err(SystemError::VolumeBusy { .. }) => {
                    take(ctx, std::slice::from_ref(new)).await?;
                    ctx.system.delete_snapshot(&new.pool, &new.id).await?;
                }
                done => done?,
            }
        }
        Step::Release => {
            release(ctx, snapshot).await?;
            merge_deleted(ctx);
        }
    }
    Ok(())
}
