//! Deletion of objects in use, lost finalizers, deletion protection. Without a guest: the VM is declared stopped.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::guests::GuestImage;
use crate::kubectl::Kubectl;
use crate::manifests::{self, with};
use crate::platform::Platform;
use crate::report::Report;
use crate::suites::kubectl::contains_all;

const SOON: Duration = Duration::from_secs(60);
const SPACE: &str = "deletion";
const ALL: &str = "hotswapdiskattachments,vms,disks,publicips,networks,placementgroups,vmclasses";

/// Runs the cases; each cleans up after itself.
pub(super) fn run(report: &mut Report, platform: &mut Platform, _guest: &GuestImage) {
    let kubectl = platform.kubectl().within(SPACE);
    let made = report.case("a namespace is made", || kubectl.ok(&["create", "namespace", SPACE]).map(drop));
    if made {
        order_free(report, &kubectl);
        finalizers(report, &kubectl);
        protection(report, &kubectl, platform.is_embedded());
    }
}

/// The objects of the quickstart without its image: everything a VM uses, the VM, a disk and its attachment.
fn objects() -> Vec<Value> {
    let vm = with(manifests::vm("web", "small", "web-root"), "power", json!("Stopped"));
    let vm = with(vm, "placement", json!({"group": "web"}));
    let interface = json!([{"name": "nic0", "network": "back", "publicIP": "web"}]);
    vec![
        manifests::class("small", 1, "64Mi"),
        manifests::blank_disk("web-root", "64Mi"),
        manifests::group("web"),
        manifests::network("back", "10.123.0.0/24"),
        manifests::public_ip("web", "default"),
        with(vm, "networkInterfaces", interface),
        manifests::blank_disk("web-data", "64Mi"),
        manifests::attachment("web-data", "web", "web-data"),
    ]
}

fn declare(kubectl: &Kubectl) -> Result<()> {
    kubectl.apply(&manifests::all(&objects()))?;
    kubectl.condition("vm/web", "Ready=True", None, SOON)?;
    kubectl.condition("hotswapdiskattachment/web-data", "Ready=True", None, SOON)?;
    kubectl.until("publicip/web", "to have its VM", SOON, |ip| ip["status"]["state"] == "InUse").map(drop)
}

fn nothing_is_left(kubectl: &Kubectl) -> Result<()> {
    let left = kubectl.ok(&["get", ALL, "-o", "name"])?;
    ensure!(left.trim().is_empty(), "left: {left}");
    Ok(())
}

fn order_free(report: &mut Report, kubectl: &Kubectl) {
    report.case("kubectl delete -f ends with nothing left, in every order of the manifest", || {
        for reversed in [false, true] {
            declare(kubectl)?;
            let mut objects = objects();
            if reversed {
                objects.reverse();
            }
            let deleted = ["delete", "-f", "-", "--timeout=60s"];
            kubectl.with_input(&deleted, &manifests::all(&objects))?.success()?;
            nothing_is_left(kubectl)?;
        }
        Ok(())
    });
    report.case(
        "what is being deleted takes no new user, and one that waits for it does not hold it",
        || {
            declare(kubectl)?;
            kubectl.ok(&["delete", "vmclass/small", "--wait=false"])?;
            let late = manifests::all(&[
                manifests::blank_disk("late", "64Mi"),
                manifests::vm("late", "small", "late"),
            ]);
            kubectl.apply(&late)?;
            let output = kubectl.condition("vm/late", "Ready=False", Some("WaitingForClass"), SOON)?;
            contains_all(&output["status"].to_string(), &["VMClass small is being deleted"])?;
            ensure!(output["status"]["binding"].is_null(), "bound: {}", output["status"]);
            kubectl.ok(&["delete", "vm/web", "--timeout=60s"])?;
            kubectl.ok(&["wait", "vmclass/small", "--for=delete", "--timeout=60s"])?;
            kubectl.ok(&["delete", ALL, "--all", "--timeout=60s"])?;
            nothing_is_left(kubectl)
        },
    );
}

fn finalizers(report: &mut Report, kubectl: &Kubectl) {
    report.case("a finalizer that kubectl replace drops is put back at once", || {
        declare(kubectl)?;
        for (kind, name) in [
            ("vm", "web"),
            ("disk", "web-root"),
            ("publicip", "web"),
            ("vmclass", "small"),
            ("hotswapdiskattachment", "web-data"),
        ] {
            let mut object = kubectl.object(kind, name)?;
            let before = object["metadata"]["finalizers"].clone();
            ensure!(before.is_array(), "{kind} {name} has no finalizer: {}", object["metadata"]);
            for field in ["finalizers", "managedFields", "resourceVersion"] {
                object["metadata"][field].take();
            }
            kubectl.with_input(&["replace", "-f", "-"], &object.to_string())?.success()?;
            kubectl.until(&format!("{kind}/{name}"), "to have its finalizer again", SOON, |object| {
                object["metadata"]["finalizers"] == before
            })?;
        }
        kubectl.ok(&["delete", ALL, "--all", "--timeout=60s"])?;
        nothing_is_left(kubectl)
    });
}

fn protection(report: &mut Report, kubectl: &Kubectl, embedded: bool) {
    let protect = |kind: &str, name: &str, wanted: bool| {
        let patch = json!({"spec": {"deletionProtection": wanted}}).to_string();
        kubectl.ok(&["patch", kind, name, "--type=merge", "-p", &patch]).map(drop)
    };
    report.case("what is protected is not deleted, not by its namespace's deletion either", || {
        declare(kubectl)?;
        let protected = [("vm", "web"), ("disk", "web-root"), ("publicip", "web")];
        for (kind, name) in protected {
            protect(kind, name, true)?;
            let output = kubectl.refused(&["delete", kind, name, "--wait=false"])?;
            contains_all(
                &output,
                &["is protected: set spec.deletionProtection to false before deleting it"],
            )?;
        }
        if embedded {
            kubectl.ok(&["delete", "namespace", SPACE, "--wait=false"])?;
            kubectl.until(&format!("namespace/{SPACE}"), "to be going", SOON, |space| {
                space["status"]["phase"] == "Terminating"
            })?;
        }
        for (kind, name) in protected {
            let object = kubectl.object(kind, name)?;
            ensure!(object["metadata"]["deletionTimestamp"].is_null(), "{kind} {name} is deleted");
            protect(kind, name, false)?;
        }
        if embedded {
            return kubectl.ok(&["wait", "namespace", SPACE, "--for=delete", "--timeout=90s"]).map(drop);
        }
        // kube-apiserver alone has no controller that empties a namespace.
        protected.iter().try_for_each(|(kind, name)| kubectl.ok(&["delete", kind, name]).map(drop))
    });
}
