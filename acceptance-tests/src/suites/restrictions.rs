//! Namespaces that are restricted to certain classes and fields: with kubectl on both control planes, as a user of the namespace.

use anyhow::Result;
use serde_json::{Value, json};

use super::kubectl::contains_all;
use super::manifests::{class, vm, with};
use crate::kubectl::Kubectl;
use crate::platform::Platform;
use crate::process::Finished;
use crate::report::Report;

const NAMESPACE: &str = "team-r";
/// A user with the role `berth-editor` in the namespace.
const EDITOR: &str = "--as=ruth";
const PRIVILEGED: &str = "--as-group=berth.dev:privileged-users";

/// Requests with kubectl, which both control planes answer alike.
pub fn refusals(report: &mut Report, platform: &Platform) {
    report.case(
        "a namespace is offered certain classes, and its users set no privileged fields; administrators do",
        || {
            let kubectl = platform.kubectl();
            let result = restricted(kubectl);
            let within = kubectl.within(NAMESPACE);
            let objects = within.ok(&["delete", "vms,vmclasses", "--all", "--timeout=60s"]);
            let namespace = kubectl.ok(&["delete", "namespace", NAMESPACE, "--wait=false"]);
            result?;
            objects?;
            namespace.map(drop)
        },
    );
}

fn apply(kubectl: &Kubectl, flags: &[&str], object: &Value) -> Result<Finished> {
    let mut arguments = vec!["apply", "--server-side", "-f", "-"];
    arguments.extend_from_slice(flags);
    kubectl.with_input(&arguments, &object.to_string())
}

fn restricted(kubectl: &Kubectl) -> Result<()> {
    // The marks are there from the beginning: a real Kubernetes needs a moment to see those of a namespace that it knows.
    let marks = json!({"name": NAMESPACE, "labels": {"berth.dev/privileged-fields": "Reserved"},
        "annotations": {"berth.dev/offered-classes": "small, large"}});
    kubectl.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": marks}).to_string())?;
    let kubectl = &kubectl.within(NAMESPACE);
    kubectl.ok(&["create", "rolebinding", "ruth", "--clusterrole=berth-editor", "--user=ruth"])?;
    let refused = |object: &Value, words: &str| -> Result<()> {
        contains_all(&apply(kubectl, &[EDITOR], object)?.failure()?, &[words])
    };
    let web = |class: &str| with(vm("web", class, "web"), "networkInterfaces", json!([]));
    refused(&web("huge"), "the VMClasses that namespace team-r is offered are: small,large")?;
    refused(&with(web("small"), "memory", json!("64Gi")), "memory is that of the class")?;
    refused(
        &class("small", 64, "64Gi"),
        "create and change VMClasses in a namespace that is offered certain ones",
    )?;
    let with_uuid = with(web("small"), "uuid", json!("67e55044-10b1-426f-9247-bb680e5fe0c8"));
    refused(&with_uuid, "uuid is a privileged field")?;

    apply(kubectl, &[EDITOR], &web("small"))?.success()?;
    apply(kubectl, &[EDITOR, PRIVILEGED], &class("large", 1, "64Mi"))?.success()?;
    apply(kubectl, &[EDITOR, PRIVILEGED], &with_uuid)?.success()?;
    // Other changes pass, and so do deletions.
    kubectl.ok(&["label", "vm/web", "a=b", EDITOR])?;
    kubectl.ok(&["delete", "vm/web", "--timeout=60s", EDITOR])?;
    Ok(())
}
