//! N8 and N9: ten thousand VMs on simulated hosts, and the growth of one VM's cost since there were a hundred; a thousand on
//! berth's own control plane and on kube-apiserver, in turn.

use std::time::Duration;

use anyhow::Result;

use super::Bench;
use super::figure::Reading;
use super::figures::many::{
    BOUND, CONVERGED, CPU, GROWTH, HOST_WRITES, HOSTS_CPU, KUBERNETES_CONVERGED, KUBERNETES_CPU,
    KUBERNETES_MEMORY, LIST, MEMORY, STEADY, WRITES,
};
use crate::bench::scale::{self, Measured, Size};

const SIZE: Size = Size { vms: 10_000, hosts: 500, steady: Duration::from_secs(30) };
/// The size that two processors carry with kube-apiserver.
const SMALL: Size = Size { vms: 1_000, hosts: 50, steady: Duration::from_secs(10) };

/// Measures it.
#[expect(clippy::cast_precision_loss, reason = "nothing is written 2^52 times")]
pub fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let logs = bench.log("N8").with_extension("");
    let berth = &bench.binaries.berth;
    let embedded = Measured::Embedded { berth };
    let found = scale::run(SIZE, &embedded, &logs)?;
    let ours = scale::run(SMALL, &embedded, &logs)?;
    let theirs = scale::run(SMALL, &Measured::Kubernetes { berth, cache: &bench.cache }, &logs)?;
    let converged = ours.burst.converged.div_duration_f64(theirs.burst.converged);
    Ok(vec![
        Reading::once(BOUND, found.burst.bound.as_secs_f64()),
        Reading::once(CONVERGED, found.burst.converged.as_secs_f64()),
        Reading::once(MEMORY, found.steady.peak_memory),
        Reading::once(CPU, found.burst.cpu_per_vm()),
        Reading::once(HOSTS_CPU, found.burst.hosts_cpu_per_vm()),
        Reading::once(WRITES, found.burst.writes_per_vm()),
        Reading::once(STEADY, found.steady.core_percent()),
        Reading::once(HOST_WRITES, found.burst.host_writes() as f64),
        Reading::once(KUBERNETES_CONVERGED, converged),
        Reading::once(KUBERNETES_CPU, ours.burst.cpu_per_vm() / theirs.burst.cpu_per_vm()),
        Reading::once(KUBERNETES_MEMORY, ours.steady.peak_memory / theirs.steady.peak_memory),
        Reading::once(GROWTH, found.growth()),
        Reading::once(LIST, found.list_growth()),
    ])
}
