//! The same lifecycle on a real Kubernetes control plane.

use anyhow::Result;

use super::{Kit, kubectl, lifecycle, quotas, restrictions, uploads, verbs};
use crate::platform::Platform;
use crate::report::Report;

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("kubernetes"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let programs = report.step("kube-apiserver is built from source", || kit.kubernetes())?;
    let mut platform =
        report.step("etcd and kube-apiserver serve", || Platform::kubernetes(&parts, &programs))?;
    report.step("the CRDs, policies and roles apply, and controllers and host start", || {
        platform.install_on_kubernetes()
    })?;
    // The same cases as on the embedded control plane: a difference between the two is a bug.
    kubectl::reading(report, &platform);
    kubectl::writing(report, &platform);
    kubectl::refusals(report, &platform);
    quotas::refusals(report, &platform);
    restrictions::refusals(report, &platform);
    verbs::run(report, &platform);
    uploads::push(report, &platform);
    uploads::example(report, &platform, &guest);
    lifecycle::run_cases(report, &mut platform, &guest)
}
