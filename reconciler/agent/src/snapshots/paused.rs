//! Guests that are paused for a snapshot go on.

use std::time::Duration;

use berth_api::VM;
use berth_host::InstanceFacts;
use berth_qemu::power::RunState;
use berth_qemu::saved_state::Transfer;
use tokio::time::{Instant, sleep};

use crate::context::Context;
use crate::error::Error;
use crate::journal::Journal;
use crate::key::{Key, ObjectName};
use crate::machine::Machine;
use crate::walks;

/// How long a guest may take to go on.
const RESUME_LIMIT: Duration = Duration::from_secs(10);
/// How long QEMU may take to end a save that is cancelled.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);
/// How often QEMU is asked whether it has ended a save that is cancelled.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The state of a machine while QEMU writes the last part of its state.
const FINISHING: &str = "finish-migrate";

/// Lets a guest go on that was paused for its memory, saved or not, and removes the file. The file stays if it may still be paused: a later
/// agent then finds it.
pub(super) async fn let_go_on(ctx: &Context, instance: &str, machine: &Machine) -> Result<(), Error> {
    let deadline = Instant::now() + CANCEL_LIMIT;
    let mut was_cancelled = false;
    let state = loop {
        let state = machine.state().await?;
        let is_writing = state.transfer == Transfer::Active
            || matches!(&state.run_state, RunState::Other(name) if name == FINISHING);
        if !is_writing {
            break state;
        }
        if Instant::now() >= deadline {
            let why = "QEMU does not end the save: its guest stays paused until it does".to_owned();
            return Err(Error::MemoryNotSaved { why });
        }
        machine.cancel_save().await?;
        was_cancelled = true;
        sleep(LOOK_EVERY).await;
    };
    let was_paused = match state.run_state {
        RunState::PostMigrate => true,
        // Without a save it is paused because it is declared so, or is resumed by the plan of its VM.
        RunState::Paused => was_cancelled || state.transfer != Transfer::Idle,
        _ => false,
    };
    if was_paused {
        machine.start().await?;
        machine.set_clock().await;
    }
    Ok(ctx.system.remove_state(instance).await?)
}

/// Lets the guests go on that this agent, or a former one, had paused for a snapshot when it ended. Needs no control plane.
pub(crate) async fn resume_paused(ctx: &Context) {
    let instances = match ctx.system.instances().await {
        Ok(instances) => instances,
        Err(error) => {
            return tracing::warn!(%error, "it is not known whether guests are paused for snapshots");
        }
    };
    walks::go_on(RESUME_LIMIT, instances, |facts| resume(ctx, facts)).await;
}

async fn resume(ctx: &Context, facts: InstanceFacts) -> Result<(), Error> {
    let InstanceFacts { instance, journal, process } = facts;
    let (Some(Ok(journal)), Some(process)) = (journal.map(Journal::parse), process) else { return Ok(()) };
    // A state that its journal knows is that of a suspension. A guest that is sent to another host may run there.
    if journal.suspension.is_some() || journal.departure.is_some() || !ctx.system.has_state(&instance).await?
    {
        return Ok(());
    }
    let key = Key::new::<VM>(ObjectName::new(&journal.namespace, &journal.name));
    let machine = ctx.machines.connect(&instance, Some(&journal.uid), Some(key), &process).await?;
    let_go_on(ctx, &instance, &machine).await
}
