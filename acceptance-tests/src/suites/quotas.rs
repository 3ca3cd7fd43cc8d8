//! Quotas of a namespace: with kubectl on both control planes, and `examples/quota` with Terraform.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::kubectl::contains_all;
use super::manifests;
use crate::kubectl::Kubectl;
use crate::platform::Platform;
use crate::report::Report;
use crate::terraform::unwrapped;
use crate::{wait, workspace};

const SOON: Duration = Duration::from_secs(60);

/// Requests with kubectl, which both control planes answer alike.
pub fn refusals(report: &mut Report, platform: &Platform) {
    report.case(
        "a namespace uses no more than its quota: a disk and its growth are refused with the amounts",
        || {
            within_namespace(platform, "team-b", |kubectl| {
                let class = |scratch: &str| {
                    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VMClass", "metadata": {"name": "scratch"},
                        "spec": {"cpus": 1, "memory": "512Mi", "scratchDisk": {"size": scratch}}})
                };
                kubectl.apply(&class("32Mi").to_string())?;
                kubectl.apply(
                    &manifests::quota("team", &json!({"diskSize": "100Mi", "disks": 2})).to_string(),
                )?;
                kubectl.apply(&manifests::blank_disk("first", "64Mi").to_string())?;
                let is_counted = |quota: &serde_json::Value| quota["status"]["used"]["diskSize"] == "64Mi";
                kubectl.until("vmquota/team", "to count the disk", SOON, is_counted)?;
                let too_large = manifests::blank_disk("second", "64Mi").to_string();
                // A real Kubernetes needs a moment to find the kind of the policy's parameters.
                let text = wait::until("the quota to be in force", SOON, || {
                    kubectl.with_input(&["create", "--dry-run=server", "-f", "-"], &too_large)?.failure()
                })?;
                contains_all(&text, &["Quota team: diskSize: 64Mi used, more needed, limit 100Mi"])?;
                let grown = kubectl.apply_refused(&manifests::blank_disk("first", "128Mi").to_string())?;
                contains_all(&grown, &["Quota team: diskSize: 64Mi used"])?;
                let of_class = kubectl.apply_refused(&class("64Mi").to_string())?;
                contains_all(&of_class, &["Quota team: diskSize: the VMs of the class would get more"])?;
                kubectl.apply(&manifests::blank_disk("second", "32Mi").to_string())?;
                contains_all(&kubectl.ok(&["get", "quotas"])?, &["DISK-SIZE", "team", "100Mi"])?;
                Ok(())
            })
        },
    );
    report.case("an upload that is larger than what a quota leaves for images is refused with its size", || {
        within_namespace(platform, "team-c", |kubectl| {
            kubectl.apply(&manifests::quota("team", &json!({"imageStorage": "1Mi"})).to_string())?;
            let is_counted = |quota: &serde_json::Value| quota["status"]["used"]["imageStorage"] == "0";
            kubectl.until("vmquota/team", "to count the images", SOON, is_counted)?;
            let upload = |size: u64| {
                let source = json!({"upload": {"size": size}, "sha256": "0".repeat(64)});
                json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Image", "metadata": {"name": "pushed"},
                    "spec": {"source": source}})
                .to_string()
            };
            let text = wait::until("the quota to be in force", SOON, || {
                kubectl.with_input(&["create", "--dry-run=server", "-f", "-"], &upload(2 << 20))?.failure()
            })?;
            contains_all(&text, &["Quota team: imageStorage: 0 used, more needed, limit 1Mi"])?;
            kubectl.with_input(&["create", "--dry-run=server", "-f", "-"], &upload(1 << 20))?.success()?;
            Ok(())
        })
    });
}

/// The example: Terraform warns of the refusal in the plan.
pub fn example(report: &mut Report, platform: &Platform) {
    report.case("examples/quota: a disk within the quota is made; a plan beyond it warns and fails", || {
        within_namespace(platform, "team-a", |kubectl| {
            let project = platform.project()?;
            project.copy_from(&workspace::root().join("examples/quota"))?;
            project.init()?;
            project.apply()?;
            project.plan_is_empty()?;
            let is_counted = |quota: &serde_json::Value| quota["status"]["used"]["diskSize"] == "20Gi";
            kubectl.until("vmquota/team", "to count the disk", SOON, is_counted)?;
            project.write("terraform.tfvars.json", &json!({"disk_size": "101Gi"}).to_string())?;
            let refusal = ["Quota team: diskSize: 20Gi used", "limit 100Gi"];
            let warning = unwrapped(&project.plan()?.text);
            contains_all(&warning, &refusal)?;
            contains_all(&warning, &["An apply of this plan fails"])?;
            contains_all(&unwrapped(&project.apply_refused()?), &refusal)?;
            project.write("terraform.tfvars.json", &json!({"disk_size": "100Gi"}).to_string())?;
            project.apply()?;
            project.destroy()?;
            Ok(())
        })
    });
}

/// Runs `body` with kubectl in a namespace of its own, which is removed afterwards.
fn within_namespace(
    platform: &Platform,
    name: &str,
    body: impl FnOnce(&Kubectl) -> Result<()>,
) -> Result<()> {
    let kubectl = platform.kubectl();
    kubectl.ok(&["create", "namespace", name])?;
    let within = kubectl.within(name);
    let result = body(&within);
    let disks = within.ok(&["delete", "quotas.berth.dev,disks", "--all", "--timeout=60s"]);
    let namespace = kubectl.ok(&["delete", "namespace", name, "--wait=false"]);
    result?;
    disks?;
    namespace.map(drop)
}
