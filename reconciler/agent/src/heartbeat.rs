//! Looks regularly whether the QEMUs of this host answer. A VM with nothing to do is not reconciled, and QEMU does not report that it
//! was stopped, or waits for a disk of the host.
//!
//! ```text
//!   every 15 s: query-status ─▶ no answer within 20 s: silent ─▶ the VM is reconciled ─▶ NotResponding
//!                           └─▶ an answer again                ─▶ the VM is reconciled ─▶ as declared
//! ```
//!
//! The driver of each machine asks, and enqueues the VM only when the machine falls silent or answers again.

use std::time::Duration;

use tokio::time::sleep;

use crate::context::Context;

/// The time between two looks.
const EVERY: Duration = Duration::from_secs(15);

/// Looks for as long as it is polled.
pub(crate) async fn run(ctx: &Context) {
    ctx.lease.acquired().await;
    loop {
        sleep(EVERY).await;
        for machine in ctx.machines.all() {
            machine.check_answer();
        }
    }
}
