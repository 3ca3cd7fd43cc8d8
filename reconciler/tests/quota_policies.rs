//! The admission policies of quotas on the embedded control plane, as requests. Without controllers: the tests write the statuses.

use berth::install;
use berth_api::QuotaUsage;
use berth_apiserver::Server;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;

use crate::installed;

const OBJECTS: &str = "/apis/berth.dev/v1alpha1/namespaces/default";
const MERGE: &str = "application/merge-patch+json";

/// A control plane, and a user of it.
struct Plane {
    server: Server,
    /// The user with the rights of an editor; none: an administrator.
    editor: Option<&'static str>,
    /// The control plane's database.
    _folder: TempDir,
}

impl Plane {
    async fn new() -> Self {
        let installed::Copy { server, folder, .. } = installed::copy().await;
        Self { server, editor: None, _folder: folder }
    }

    async fn send(&self, method: Method, path: &str, kind: &str, body: &Value) -> (u16, String) {
        let mut request = Request::builder().method(method).uri(format!("{OBJECTS}/{path}"));
        request = request.header("accept", "application/json").header("content-type", kind);
        if let Some(editor) = self.editor {
            request = request.header("impersonate-user", editor);
        }
        let request = request.body(Full::new(bytes::Bytes::from(body.to_string()))).expect("a request");
        let response = self.server.service().oneshot(request).await.expect("the server answers");
        let code = response.status().as_u16();
        let text = response.into_body().collect().await.expect("a whole answer").to_bytes();
        (code, String::from_utf8_lossy(&text).into_owned())
    }

    async fn create(&self, kind: &str, plural: &str, name: &str, spec: Value) -> (u16, String) {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        self.send(Method::POST, plural, "application/json", &object).await
    }

    async fn patch(&self, path: &str, patch: Value) -> (u16, String) {
        self.send(Method::PATCH, path, MERGE, &patch).await
    }

    /// Creates a quota that has counted this.
    async fn limit(&self, hard: Value, used: QuotaUsage) {
        made(&self.create("Quota", "quotas", "team", json!({"hard": hard})).await);
        let status = json!({"status": {"observedGeneration": 1, "used": used}});
        made(&self.patch("quotas/team/status", status).await);
    }

    /// Gives a VM a host and this hardware.
    async fn run(&self, name: &str, cpus: i64, memory: &str) {
        let hardware = json!({"cpus": cpus, "memory": memory, "firmware": "UEFI", "machineType": "q35",
            "cpuModel": "host", "accelerator": "kvm", "uuid": "67e55044-10b1-426f-9247-bb680e5fe0c8"});
        let status = json!({"status": {"binding": {"host": "h1", "epoch": 1}, "hardware": hardware}});
        made(&self.patch(&format!("vms/{name}/status"), status).await);
    }
}

fn made((code, text): &(u16, String)) {
    assert!((200..300).contains(code), "{code}: {text}");
}

fn refused((code, text): &(u16, String), why: &str) {
    assert!(*code == 403 && text.contains(why), "{code}: {text}");
}

fn used(cpus: i64, memory: &str, disk_size: &str) -> QuotaUsage {
    QuotaUsage { cpus, memory: memory.into(), disk_size: disk_size.into(), ..QuotaUsage::default() }
}

fn vm(mut spec: Value) -> Value {
    spec["disks"] = json!([{"name": "root", "boot": true}]);
    spec
}

#[tokio::test]
async fn cpus_that_are_sent_as_a_float_are_compared_as_integers() {
    let plane = Plane::new().await;
    made(&plane.create("VMClass", "vmclasses", "small", json!({"cpus": 1, "memory": "1Gi"})).await);
    made(&plane.create("VM", "vms", "a", vm(json!({"cpus": 1, "memory": "1Gi"}))).await);
    plane.limit(json!({"cpus": 4, "memory": "4Gi"}), used(1, "1Gi", "0")).await;
    let large = vm(json!({"cpus": 64.0, "memory": "1Gi"}));
    assert!(large.to_string().contains("64.0"), "the text of the request has a float");
    refused(&plane.create("VM", "vms", "b", large).await, "cpus: 1 used, 64 more needed, limit 4");
    refused(&plane.create("VM", "vms", "b", vm(json!({"cpus": 2.0}))).await, "memory: 1Gi used");
    refused(&plane.patch("vms/a", json!({"spec": {"cpus": 64.0}})).await, "cpus: 1 used, 63 more needed");
    refused(&plane.patch("vmclasses/small", json!({"spec": {"cpus": 64.0}})).await, "would get more");
    made(&plane.patch("vms/a", json!({"spec": {"cpus": 2.0}})).await);
}

#[tokio::test]
async fn a_change_that_adds_nothing_passes_an_exceeded_quota() {
    let plane = Plane::new().await;
    made(&plane.create("VM", "vms", "own", vm(json!({"cpus": 4, "memory": "8Gi"}))).await);
    made(&plane.create("VM", "vms", "of-class", vm(json!({"class": "small"}))).await);
    made(&plane.create("Disk", "disks", "sized", json!({"size": "8Gi"})).await);
    made(&plane.create("Disk", "disks", "of-image", json!({"image": "debian"})).await);
    plane.run("of-class", 4, "8Gi").await;
    let hard = json!({"cpus": 1, "memory": "1Gi", "diskSize": "1Gi", "vms": 0, "disks": 0, "snapshots": 0, "images": 0});
    plane.limit(hard, used(8, "16Gi", "16Gi")).await;
    // The controllers add finalizers before a host touches the object, and take them off at its end.
    for path in ["vms/own", "vms/of-class", "disks/sized", "disks/of-image"] {
        for finalizers in [json!(["berth.dev/host", "berth.dev/in-use"]), json!(null)] {
            made(&plane.patch(path, json!({"metadata": {"finalizers": finalizers}})).await);
        }
    }
    made(&plane.patch("vms/own", json!({"spec": {"cpus": 2, "memory": "4Gi"}})).await);
    refused(
        &plane.patch("vms/own", json!({"spec": {"cpus": 3}})).await,
        "cpus: 8 used, 1 more needed, limit 1",
    );
}

#[tokio::test]
async fn a_vm_that_runs_is_compared_with_its_hardware() {
    let plane = Plane::new().await;
    made(&plane.create("VM", "vms", "a", vm(json!({"cpus": 8, "memory": "8Gi"}))).await);
    made(&plane.create("VM", "vms", "of-class", vm(json!({"class": "large"}))).await);
    plane.run("a", 8, "8Gi").await;
    plane.run("of-class", 8, "8Gi").await;
    plane.limit(json!({"cpus": 16, "memory": "16Gi"}), used(16, "16Gi", "0")).await;
    // It is counted with its hardware until its next start: going back takes nothing.
    made(&plane.patch("vms/a", json!({"spec": {"cpus": 4, "memory": "4Gi"}})).await);
    made(&plane.patch("vms/a", json!({"spec": {"cpus": 8, "memory": "8Gi"}})).await);
    refused(&plane.patch("vms/a", json!({"spec": {"cpus": 9}})).await, "cpus: 16 used, 1 more needed");
    refused(&plane.patch("vms/a", json!({"spec": {"memory": "9Gi"}})).await, "memory: 16Gi used");
    // Own amounts instead of those of the class.
    made(&plane.patch("vms/of-class", json!({"spec": {"cpus": 8, "memory": "8Gi"}})).await);
}

#[tokio::test]
async fn a_scratch_disk_is_compared_with_the_limit_of_disks() {
    let plane = Plane::new().await;
    let with = |size: &str| vm(json!({"cpus": 1, "memory": "1Gi", "scratchDisk": {"size": size}}));
    made(&plane.create("VM", "vms", "a", with("1Gi")).await);
    plane.limit(json!({"diskSize": "4Gi"}), used(1, "1Gi", "2Gi")).await;
    let why = "Quota team: diskSize: 2Gi used, more needed, limit 4Gi";
    refused(&plane.create("VM", "vms", "b", with("3Gi")).await, why);
    made(&plane.create("VM", "vms", "b", with("2Gi")).await);
    made(&plane.create("VM", "vms", "none", vm(json!({"cpus": 1, "memory": "1Gi"}))).await);
    let size = |size: Value| json!({"spec": {"scratchDisk": size}});
    refused(&plane.patch("vms/none", size(json!({"size": "3Gi"}))).await, why);
    refused(&plane.patch("vms/a", size(json!({"size": "4Gi"}))).await, why);
    made(&plane.patch("vms/a", size(json!({"size": "3Gi"}))).await);
    made(&plane.patch("vms/a", size(json!(null))).await);
}

#[tokio::test]
async fn a_scratch_disk_of_a_class_grows_neither_with_the_class_nor_by_another_class_once_nothing_is_left() {
    let plane = Plane::new().await;
    let class = |size: &str| json!({"cpus": 1, "memory": "1Gi", "scratchDisk": {"size": size}});
    made(&plane.create("VMClass", "vmclasses", "small", class("1Gi")).await);
    made(&plane.create("VM", "vms", "a", vm(json!({"class": "small"}))).await);
    let own = json!({"class": "small", "scratchDisk": {"size": "1Gi"}});
    made(&plane.create("VM", "vms", "own", vm(own)).await);
    plane.limit(json!({"diskSize": "4Gi"}), used(2, "2Gi", "3Gi")).await;
    let size = |size: Value| json!({"spec": {"scratchDisk": size}});
    let grown = plane.patch("vmclasses/small", size(json!({"size": "2Gi"}))).await;
    refused(&grown, "Quota team: diskSize: the VMs of the class would get more");
    made(&plane.patch("vmclasses/small", json!({"spec": {"cpus": 2}})).await);
    made(&plane.patch("vmclasses/small", size(json!({"size": "512Mi"}))).await);
    // Room is left: the controllers count that of the class.
    made(&plane.patch("vms/a", json!({"spec": {"class": "large"}})).await);
    made(&plane.patch("quotas/team/status", json!({"status": {"used": {"diskSize": "4Gi"}}})).await);
    let why =
        "Quota team: diskSize: 4Gi used, limit 4Gi: a VM that exists cannot get the scratch disk of a class";
    refused(&plane.patch("vms/a", json!({"spec": {"class": "small"}})).await, why);
    refused(&plane.patch("vms/own", size(json!(null))).await, why);
    made(&plane.patch("vms/own", json!({"spec": {"class": "large"}})).await);
    made(&plane.patch("vms/a", json!({"metadata": {"labels": {"a": "b"}}})).await);
    made(&plane.patch("vms/a", json!({"spec": {"class": null, "cpus": 1, "memory": "1Gi"}})).await);
}

#[tokio::test]
async fn memory_that_comes_by_the_cpus_under_a_class_does_not_grow() {
    let plane = Plane::new().await;
    made(&plane.create("VM", "vms", "a", vm(json!({"class": "c", "cpus": 1}))).await);
    plane.limit(json!({"memory": "4Gi"}), used(1, "2Gi", "0")).await;
    let text = "memory: a VM that exists cannot get those of another class or of other CPUs";
    refused(&plane.patch("vms/a", json!({"spec": {"cpus": 64}})).await, text);
    refused(&plane.patch("vms/a", json!({"spec": {"cpus": null}})).await, text);
    refused(&plane.patch("vms/a", json!({"spec": {"class": "d"}})).await, text);
    made(&plane.patch("vms/a", json!({"spec": {"cpus": 64, "memory": "2Gi"}})).await);
}

#[tokio::test]
async fn a_null_counts_as_a_field_without_a_value() {
    let plane = Plane::new().await;
    made(&plane.create("VM", "vms", "a", vm(json!({"class": "small", "memory": "1Gi"}))).await);
    let hard = json!({"cpus": 64, "memory": "4Gi", "diskSize": "4Gi"});
    plane.limit(hard, used(1, "1Gi", "4Gi")).await;
    let by_cpus = vm(json!({"cpus": 8, "class": null}));
    refused(&plane.create("VM", "vms", "b", by_cpus).await, "memory: 1Gi used, more needed, limit 4Gi");
    let disk = json!({"image": "debian", "size": null});
    refused(&plane.create("Disk", "disks", "of-image", disk).await, "diskSize: 4Gi used");
    // A merge patch removes a field with a null, and this patch keeps it.
    for field in ["cpus", "cpuTopology"] {
        let patch = json!([{"op": "add", "path": format!("/spec/{field}"), "value": null},
            {"op": "replace", "path": "/spec/class", "value": "large"}]);
        let answer = plane.send(Method::PATCH, "vms/a", "application/json-patch+json", &patch).await;
        refused(&answer, "cpus: a VM that exists cannot get those of another class or of other CPUs");
    }
}

#[tokio::test]
async fn where_memory_or_cpus_are_limited_an_editor_makes_no_class() {
    let mut plane = Plane::new().await;
    let rbac = "rbac.authorization.k8s.io";
    let binding = json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "bob"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "berth-editor"},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": "bob"}]});
    let client = Client::new(plane.server.service(), "default");
    install::apply(&client, &[binding]).await.expect("bob edits");
    plane.editor = Some("bob");
    let class = json!({"cpus": 64, "memory": "1Gi"});
    made(&plane.create("VMClass", "vmclasses", "before", class.clone()).await);
    plane.editor = None;
    plane.limit(json!({"cpus": 4}), used(0, "0", "0")).await;
    plane.editor = Some("bob");
    let made_by_editor = plane.create("VMClass", "vmclasses", "small", class.clone()).await;
    refused(&made_by_editor, "Quota team: only members of system:masters create a VMClass");
    made(&plane.patch("vmclasses/before", json!({"metadata": {"labels": {"a": "b"}}})).await);
    plane.editor = None;
    made(&plane.create("VMClass", "vmclasses", "small", class.clone()).await);
    made(&plane.patch("quotas/team", json!({"spec": {"hard": {"cpus": null, "diskSize": "4Gi"}}})).await);
    plane.editor = Some("bob");
    made(&plane.create("VMClass", "vmclasses", "other", class).await);
    let scratch = json!({"cpus": 1, "memory": "1Gi", "scratchDisk": {"size": "1Gi"}});
    refused(
        &plane.create("VMClass", "vmclasses", "scratch", scratch).await,
        "Quota team: only members of system:masters create a VMClass with a scratchDisk",
    );
}

#[tokio::test]
async fn no_image_and_no_backup_is_created_once_these_take_the_space_of_the_limit_and_an_upload_needs_its_size()
 {
    let plane = Plane::new().await;
    let usage = QuotaUsage {
        image_storage: Some("1Gi".into()),
        backup_storage: Some("4Gi".into()),
        backups: 1,
        ..used(0, "0", "0")
    };
    plane.limit(json!({"imageStorage": "2Gi", "backupStorage": "4Gi", "backups": 2}), usage).await;
    let image = |source: Value| json!({"source": source, "format": "qcow2"});
    let upload = |size: f64| image(json!({"upload": {"size": size}, "sha256": "0".repeat(64)}));
    let url = || image(json!({"url": "https://a/b", "sha256": "0".repeat(64)}));
    let why = "Quota team: imageStorage: 1Gi used, more needed, limit 2Gi";
    refused(&plane.create("Image", "images", "large", upload(1_073_741_825.0)).await, why);
    made(&plane.create("Image", "images", "fits", upload(1_073_741_824.0)).await);
    made(&plane.create("Image", "images", "url", url()).await);
    let backup = json!({"repository": "nas", "snapshot": "s"});
    let why = "Quota team: backupStorage: 4Gi used, limit 4Gi";
    refused(&plane.create("Backup", "backups", "b", backup.clone()).await, why);
    let existing = json!({"repository": "nas", "existing": "v-1/b-1"});
    made(&plane.create("Backup", "backups", "existing", existing).await);
    let now = json!({"status": {"used": {"imageStorage": "2Gi", "backupStorage": "3Gi", "backups": 2}}});
    made(&plane.patch("quotas/team/status", now).await);
    let why = "Quota team: imageStorage: 2Gi used, limit 2Gi";
    refused(&plane.create("Image", "images", "more", url()).await, why);
    let why = "Quota team: backups: 2 used, 1 more needed, limit 2";
    refused(&plane.create("Backup", "backups", "b", backup).await, why);
}

#[tokio::test]
async fn no_disk_and_no_snapshot_is_created_once_files_take_the_space_of_the_limit() {
    let plane = Plane::new().await;
    made(&plane.create("Disk", "disks", "data", json!({"size": "1Gi"})).await);
    let usage = QuotaUsage { used_storage: Some("2Gi".into()), ..used(0, "0", "1Gi") };
    plane.limit(json!({"usedStorage": "2Gi"}), usage).await;
    let why = "Quota team: usedStorage: 2Gi used, limit 2Gi";
    refused(&plane.create("Disk", "disks", "more", json!({"size": "1Gi"})).await, why);
    refused(&plane.create("DiskSnapshot", "disksnapshots", "s", json!({"disk": "data"})).await, why);
    made(&plane.create("VM", "vms", "a", vm(json!({"cpus": 1, "memory": "1Gi"}))).await);
    made(&plane.patch("disks/data", json!({"spec": {"size": "2Gi"}})).await);
    let less = json!({"status": {"used": {"usedStorage": "2047Mi"}}});
    made(&plane.patch("quotas/team/status", less).await);
    made(&plane.create("Disk", "disks", "more", json!({"size": "100Gi"})).await);
    made(&plane.create("DiskSnapshot", "disksnapshots", "s", json!({"disk": "data"})).await);
}
