//! The same lifecycle on a real Kubernetes control plane.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Kit, kubectl, lifecycle, quotas, restrictions, site, uploads, verbs};
use crate::berth::{CONTROLLERS_METRICS, HEALTH};
use crate::http;
use crate::platform::{HostLogin, Platform};
use crate::report::Report;

/// Runs the suite.
pub fn run(kit: &Kit, report: &mut Report) -> Result<()> {
    let parts = report.step("the programs are built", || kit.parts("kubernetes"))?;
    let guest = report.step("the small guest is built", || kit.small_guest())?;
    let mut platform = site::on_kubernetes(kit, report, &parts, HostLogin::Administrator)?;
    report.case("the Deployment is accepted, and its account's controllers answer probes", || {
        deployment(&platform)
    });
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

fn deployment(platform: &Platform) -> Result<()> {
    let get = ["get", "deployment", "berth-controllers", "--namespace=berth-system", "-o", "json"];
    let object: Value = serde_json::from_str(&platform.kubectl().ok(&get)?).context("a Deployment")?;
    let spec = &object["spec"];
    ensure!(spec["replicas"] == 2, "{spec:#}");
    let container = &spec["template"]["spec"]["containers"][0];
    ensure!(container["securityContext"]["readOnlyRootFilesystem"] == true, "{container:#}");
    ensure!(container["resources"]["limits"]["memory"] == "1Gi", "{container:#}");
    // Pods are not run here, but admitted: by the strictest Pod Security Standard.
    let label =
        |text: &str| platform.kubectl().ok(&["label", "namespace", "berth-system", "--overwrite", text]);
    label("pod-security.kubernetes.io/enforce=restricted")?;
    let metadata = json!({"name": "restricted", "namespace": "berth-system"});
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec["template"]["spec"]});
    let create = ["create", "--dry-run=server", "-f", "-"];
    platform.kubectl().with_input(&create, &pod.to_string())?.success()?;
    label("pod-security.kubernetes.io/enforce-")?;
    for path in ["/livez", "/readyz"] {
        let body = http::get_within(platform.namespace(), HEALTH, path, Duration::from_secs(30))?;
        ensure!(body == "ok\n", "{path}: {body}");
    }
    let limit = Duration::from_secs(30);
    let metrics = http::get_within(platform.namespace(), CONTROLLERS_METRICS, "/metrics", limit)?;
    for part in ["berth_controllers_leader 1", "berth_controllers_reconciles_total{kind=\""] {
        ensure!(metrics.contains(part), "{part} is not in\n{metrics}");
    }
    Ok(())
}
