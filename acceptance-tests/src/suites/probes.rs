//! `examples/probes` with the small guest: an apply waits for the readiness probe, and a guest that fails its liveness probe is
//! restarted. After that start its hook fails. A snapshot from before its stop is left.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::json;

use super::kubectl::{contains_all, describes_failure};
use crate::guests::GuestImage;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::Project;

const VM: &str = "vm/probes";
const STOPPED: &str = "berth.dev/stopped-vm=probes";
const SOON: Duration = Duration::from_secs(45);
/// A guest shuts down, and another one boots.
const RESTART: Duration = Duration::from_secs(120);

pub fn example(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    report.case(
        "examples/probes: a VM is ready once its guest answers, restarted when it does not, and leaves a snapshot from before its stop",
        || {
            let (project, _) = platform.example("probes", guest)?;
            project.apply()?;
            let probed = readiness(platform, &project).and_then(|()| liveness(platform));
            project.destroy()?;
            let kept = probed.and_then(|()| snapshot_of_the_stop(platform));
            platform.kubectl().ok(&["delete", "vmsnap", "-l", STOPPED, "--timeout=60s"])?;
            kept
        },
    );
}

/// The hook took a snapshot before the VM was stopped to be destroyed, and not before the restart by the probe.
fn snapshot_of_the_stop(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    let names = kubectl.ok(&["get", "vmsnap", "-l", STOPPED, "-o", "name"])?;
    let mut lines = names.lines();
    let (Some(name), None) = (lines.next(), lines.next()) else { bail!("one snapshot: {names:?}") };
    let name = name.rsplit('/').next().unwrap_or_default();
    ensure!(name.starts_with("probes-stop-"), "{name}");
    let snapshot = kubectl.condition(&format!("vmsnap/{name}"), "Ready=True", None, SOON)?;
    let of_root = &snapshot["status"]["disks"][0]["disk"];
    ensure!(of_root == "probes-root" && snapshot["status"]["takenAt"].is_string(), "{snapshot:#}");
    Ok(())
}

fn patch(platform: &Platform, spec: &serde_json::Value) -> Result<()> {
    let patch = json!({ "spec": spec }).to_string();
    platform.kubectl().ok(&["patch", "vm", "probes", "--type=merge", "-p", &patch]).map(drop)
}

fn readiness(platform: &Platform, project: &Project) -> Result<()> {
    let kubectl = platform.kubectl();
    // The apply has waited for it.
    let ready = kubectl.object("vm", "probes")?["status"]["conditions"].to_string();
    contains_all(&ready, &["\"Ready\""])?;
    ensure!(!ready.contains("ProbeFailed"), "{ready}");
    project.plan_is_empty()?;
    patch(platform, &json!({"readinessProbe": {"httpGet": {"path": "/missing"}, "failureThreshold": 1}}))?;
    kubectl.condition(VM, "Ready=False", Some("ProbeFailed"), SOON)?;
    let text = kubectl.object("vm", "probes")?["status"]["conditions"].to_string();
    contains_all(&text, &["port 80 answered with status 404"])?;
    patch(platform, &json!({"readinessProbe": {"httpGet": {"path": "/"}, "failureThreshold": 3}}))?;
    kubectl.condition(VM, "Ready=True", Some("Running"), SOON)?;
    project.plan_is_empty()
}

/// The guest is restarted by its liveness probe. Its hook fails after that start, and it runs on.
fn liveness(platform: &Platform) -> Result<()> {
    let kubectl = platform.kubectl();
    let hook = |path: &str, policy: &str| {
        let hook = json!({"httpGet": {"path": path}, "timeoutSeconds": 5, "failurePolicy": policy});
        patch(platform, &json!({"hooks": {"postStart": hook}}))
    };
    hook("/missing", "Fail")?;
    let probe = |port: i64| json!({"livenessProbe": {"tcpSocket": {"port": port}, "initialDelaySeconds": 10, "periodSeconds": 2, "failureThreshold": 1}});
    patch(platform, &probe(81))?;
    // The probe may fail again before it is taken off.
    let restarted =
        |vm: &serde_json::Value| vm["status"]["restarts"].as_u64().is_some_and(|times| times >= 1);
    kubectl.until(VM, "to be restarted", RESTART, restarted)?;
    let end = kubectl.object("vm", "probes")?["status"]["lastEnd"]["message"].to_string();
    contains_all(&end, &["the liveness probe failed (no connection to port 81"])?;
    patch(platform, &json!({"livenessProbe": null}))?;
    let failed = kubectl.condition(VM, "Ready=False", Some("HookFailed"), RESTART)?;
    contains_all(&failed["status"]["conditions"].to_string(), &["its postStart hook failed: "])?;
    ensure!(failed["status"]["process"].is_object(), "it does not run: {:#}", failed["status"]);
    describes_failure(kubectl, &failed, "HookFailed")?;
    hook("/", "Ignore")?;
    kubectl.condition(VM, "Ready=True", Some("Running"), RESTART).map(drop)
}
