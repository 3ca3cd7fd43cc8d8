//! N8 and N9: ten thousand VMs on simulated hosts, and the growth of one VM's cost since there were a hundred.

use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::figure::Reading;
use super::figures::many::{
    BOUND, CONVERGED, CPU, GROWTH, HOST_WRITES, HOSTS_CPU, LIST, MEMORY, STEADY, WRITES,
};
use crate::bench::scale::{self, Size};

const SIZE: Size = Size { vms: 10_000, hosts: 500, steady: Duration::from_secs(30) };

/// Measures it.
#[expect(clippy::cast_precision_loss, reason = "nothing is written 2^52 times")]
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let logs = bench.log("N8").with_extension("");
    let found = scale::run(SIZE, &bench.binaries.berth, &logs)?;
    Ok(vec![
        Reading::once(BOUND, found.burst.bound.as_secs_f64()),
        Reading::once(CONVERGED, found.burst.converged.as_secs_f64()),
        Reading::once(MEMORY, found.steady.peak_memory),
        Reading::once(CPU, found.burst.cpu_per_vm()),
        Reading::once(HOSTS_CPU, found.burst.hosts_cpu_per_vm()),
        Reading::once(WRITES, found.burst.writes_per_vm()),
        Reading::once(STEADY, found.steady.core_percent()),
        Reading::once(HOST_WRITES, found.burst.host_writes() as f64),
        Reading::once(GROWTH, found.growth()),
        Reading::once(LIST, found.list_growth()),
    ])
}
