//! The use of the host by one VM, for a client that wants to know why the VM is slow: two readings, a moment apart.

use std::sync::Arc;
use std::time::Duration;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use super::STALLED;
use super::session::write;
use crate::context::Context;
use crate::key::ObjectName;
use crate::measure::usage;
use crate::usage::{Usage, VmUsage};

/// The time between the readings.
const BETWEEN: Duration = Duration::from_secs(2);

/// A session that sends the readings and ends.
pub(super) struct UsageSession {
    ctx: Arc<Context>,
    vm: ObjectName,
}

impl UsageSession {
    pub(super) fn new(ctx: Arc<Context>, vm: ObjectName) -> Self {
        Self { ctx, vm }
    }

    pub(super) async fn run(self, mut stream: TokioIo<Upgraded>) {
        for reading in 0..2 {
            if reading > 0 {
                sleep(BETWEEN).await;
            }
            let usage = usage(&self.ctx).await;
            let Ok(mut line) = serde_json::to_vec(&of_one_vm(&usage, &self.vm)) else { return };
            line.push(b'\n');
            if write(&mut stream, &line).await.is_err() {
                return;
            }
        }
        let _ = timeout(STALLED, stream.shutdown()).await;
    }
}

/// Returns the reading without other VMs and without pools: the client has a right to this VM only.
fn of_one_vm(usage: &Usage, vm: &ObjectName) -> Usage {
    let is_it = |one: &&VmUsage| one.namespace == vm.namespace && one.name == vm.name;
    let vms = usage.vms.iter().filter(is_it).cloned().collect();
    Usage {
        host: usage.host.clone(),
        time: usage.time,
        machine: usage.machine.clone(),
        vms,
        pools: Vec::new(),
    }
}
