//! The restrictions of a namespace on the embedded control plane, as requests: the classes that it is offered, and the fields of its VMs
//! and Disks that are reserved for privileged users.

use berth::install;
use berth_apiserver::Server;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;

use crate::installed;

const MERGE: &str = "application/merge-patch+json";
const PRIVILEGED: &str = "berth.dev:privileged-users";

/// The user that sends a request: `admin`, `bob`, an editor, or `bob` as a member of a group.
#[derive(Clone, Copy)]
enum Sender {
    Admin,
    Bob,
    BobIn(&'static str),
}

/// A control plane with the namespace `team`, of which `bob` is an editor.
struct Plane {
    server: Server,
    /// The control plane's database.
    _folder: TempDir,
}

impl Plane {
    async fn new(namespace: Value) -> Self {
        let installed::Copy { server, admin: client, folder, .. } = installed::copy().await;
        let rbac = "rbac.authorization.k8s.io";
        let binding = json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
            "metadata": {"name": "bob", "namespace": "team"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "berth-editor"},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": "bob"}]});
        let mut metadata = namespace;
        metadata["name"] = json!("team");
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        install::apply(&client, &[namespace, binding]).await.expect("the namespace applies");
        Self { server, _folder: folder }
    }

    async fn send(
        &self,
        sender: Sender,
        method: Method,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> (u16, String) {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header("accept", "application/json").header("content-type", kind);
        request = match sender {
            Sender::Admin => request,
            Sender::Bob => request.header("impersonate-user", "bob"),
            Sender::BobIn(group) => {
                request.header("impersonate-user", "bob").header("impersonate-group", group)
            }
        };
        let request = request.body(Full::new(bytes::Bytes::from(body.to_string()))).expect("a request");
        let response = self.server.service().oneshot(request).await.expect("the server answers");
        let code = response.status().as_u16();
        let text = response.into_body().collect().await.expect("a whole answer").to_bytes();
        (code, String::from_utf8_lossy(&text).into_owned())
    }

    async fn create(&self, sender: Sender, kind: &str, name: &str, spec: Value) -> (u16, String) {
        let path = format!("/apis/berth.dev/v1alpha1/namespaces/team/{}", plural(kind));
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        self.send(sender, Method::POST, &path, "application/json", &object).await
    }

    async fn patch(&self, sender: Sender, kind: &str, name: &str, patch: Value) -> (u16, String) {
        let path = format!("/apis/berth.dev/v1alpha1/namespaces/team/{}/{name}", plural(kind));
        self.send(sender, Method::PATCH, &path, MERGE, &patch).await
    }

    async fn delete(&self, sender: Sender, kind: &str, name: &str) -> (u16, String) {
        let path = format!("/apis/berth.dev/v1alpha1/namespaces/team/{}/{name}", plural(kind));
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        self.send(sender, Method::DELETE, &path, "application/json", &options).await
    }

    /// Changes the metadata of the namespace.
    async fn mark(&self, metadata: Value) {
        let path = "/api/v1/namespaces/team";
        made(&self.send(Sender::Admin, Method::PATCH, path, MERGE, &json!({"metadata": metadata})).await);
    }
}

fn plural(kind: &str) -> &'static str {
    match kind {
        "VM" => "vms",
        "VMClass" => "vmclasses",
        "Disk" => "disks",
        other => panic!("{other} is no kind of this test"),
    }
}

fn made((code, text): &(u16, String)) {
    assert!((200..300).contains(code), "{code}: {text}");
}

fn refused((code, text): &(u16, String), why: &str) {
    assert!(*code == 403 && text.contains(why), "{code}: {text}");
}

fn vm(mut spec: Value) -> Value {
    spec["disks"] = json!([{"name": "root", "boot": true}]);
    spec
}

fn offered(classes: &str) -> Value {
    json!({"annotations": {"berth.dev/offered-classes": classes}})
}

fn reserved() -> Value {
    json!({"labels": {"berth.dev/privileged-fields": "Reserved"}})
}

#[tokio::test]
async fn vms_of_a_namespace_have_one_of_the_classes_that_it_is_offered() {
    let plane = Plane::new(offered("small, large")).await;
    made(&plane.create(Sender::Bob, "VM", "a", vm(json!({"class": "small"}))).await);
    made(&plane.create(Sender::Bob, "VM", "b", vm(json!({"class": "large"}))).await);
    let text = "namespace team is offered are: small,large";
    for class in ["huge", "mall", "small-large", "larg"] {
        refused(&plane.create(Sender::Bob, "VM", "c", vm(json!({"class": class}))).await, text);
    }
    refused(&plane.create(Sender::Bob, "VM", "c", vm(json!({"cpus": 1}))).await, text);
    refused(&plane.patch(Sender::Bob, "VM", "a", json!({"spec": {"class": "huge"}})).await, text);
    refused(&plane.patch(Sender::Bob, "VM", "a", json!({"spec": {"class": null, "cpus": 1}})).await, text);
    made(&plane.patch(Sender::Bob, "VM", "a", json!({"spec": {"class": "large"}})).await);
    for sender in [Sender::Admin, Sender::BobIn(PRIVILEGED)] {
        made(&plane.create(sender, "VM", "d", vm(json!({"class": "huge", "cpus": 64}))).await);
        made(&plane.delete(Sender::Bob, "VM", "d").await);
    }
}

#[tokio::test]
async fn a_vm_with_an_offered_class_has_its_size_and_its_devices() {
    let plane = Plane::new(offered("small")).await;
    for (field, value) in [
        ("cpus", json!(64)),
        ("cpuTopology", json!({"sockets": 1, "cores": 64, "threads": 1})),
        ("memory", json!("512Gi")),
        ("memoryReservation", json!("16Mi")),
        ("hugePages", json!("1Gi")),
        ("cpuWeight", json!(10_000)),
        ("dedicatedCpuPlacement", json!(true)),
        ("pciDevices", json!([{"name": "gpu"}])),
        ("usbDevices", json!([{"name": "key"}])),
        ("vgpus", json!([{"name": "t4"}])),
    ] {
        let spec = vm(json!({"class": "small", field: value}));
        let text = format!("{field} is that of the class");
        refused(&plane.create(Sender::Bob, "VM", "a", spec).await, &text);
    }
    let harmless = json!({"class": "small", "hugePages": "None", "dedicatedCpuPlacement": false, "pciDevices": [],
        "firmware": "BIOS", "graphics": "VGA"});
    made(&plane.create(Sender::Bob, "VM", "a", vm(harmless)).await);
    refused(&plane.patch(Sender::Bob, "VM", "a", json!({"spec": {"cpus": 2}})).await, "cpus is that");
}

#[tokio::test]
async fn users_of_a_namespace_that_is_offered_classes_write_none_there_and_delete_them() {
    let plane = Plane::new(json!({})).await;
    let class = json!({"cpus": 1, "memory": "1Gi"});
    made(&plane.create(Sender::Bob, "VMClass", "own", class.clone()).await);
    plane.mark(offered("small")).await;
    let text = "create and change VMClasses in a namespace that is offered certain ones";
    refused(&plane.create(Sender::Bob, "VMClass", "small", class.clone()).await, text);
    refused(&plane.patch(Sender::Bob, "VMClass", "own", json!({"spec": {"cpus": 64}})).await, text);
    made(&plane.patch(Sender::Bob, "VMClass", "own", json!({"metadata": {"labels": {"a": "b"}}})).await);
    made(&plane.delete(Sender::Bob, "VMClass", "own").await);
    made(&plane.create(Sender::BobIn(PRIVILEGED), "VMClass", "small", class.clone()).await);
    made(&plane.create(Sender::Admin, "VMClass", "large", class).await);
}

#[tokio::test]
async fn values_from_before_the_restriction_stay_and_can_be_removed() {
    let plane = Plane::new(json!({})).await;
    let before = json!({"class": "huge", "cpus": 2, "uuid": "67e55044-10b1-426f-9247-bb680e5fe0c8",
        "pciDevices": [{"name": "gpu"}]});
    made(&plane.create(Sender::Bob, "VM", "a", vm(before)).await);
    plane.mark(json!({"labels": reserved()["labels"], "annotations": offered("small")["annotations"]})).await;
    for finalizers in [json!(["berth.dev/host"]), json!(null)] {
        made(&plane.patch(Sender::Bob, "VM", "a", json!({"metadata": {"finalizers": finalizers}})).await);
    }
    made(&plane.patch(Sender::Bob, "VM", "a", json!({"spec": {"power": "Stopped"}})).await);
    made(&plane.patch(Sender::Bob, "VM", "a", json!({"spec": {"uuid": null, "pciDevices": null}})).await);
    let uuid = json!({"spec": {"uuid": "67e55044-10b1-426f-9247-bb680e5fe0c8"}});
    refused(&plane.patch(Sender::Bob, "VM", "a", uuid).await, "uuid is a privileged field");
    made(&plane.delete(Sender::Bob, "VM", "a").await);
}

#[tokio::test]
async fn privileged_fields_of_a_namespace_are_set_by_privileged_users_alone() {
    let plane = Plane::new(reserved()).await;
    let fields = [
        ("uuid", json!("67e55044-10b1-426f-9247-bb680e5fe0c8")),
        ("serialNumber", json!("X1")),
        ("machineType", json!("pc-q35-7.2")),
        ("hugePages", json!("2Mi")),
        ("dedicatedCpuPlacement", json!(true)),
        ("vsock", json!(true)),
        ("pciDevices", json!([{"name": "gpu"}])),
        ("usbDevices", json!([{"name": "key"}])),
        ("vgpus", json!([{"name": "t4"}])),
        ("shares", json!([{"name": "media"}])),
    ];
    made(&plane.create(Sender::Bob, "VM", "plain", vm(json!({"cpus": 1, "memory": "1Gi"}))).await);
    for (field, value) in &fields {
        let text = format!("{field} is a privileged field in this namespace");
        let spec = json!({*field: value, "cpus": 1, "memory": "1Gi"});
        refused(&plane.create(Sender::Bob, "VM", "a", vm(spec.clone())).await, &text);
        let patch = json!({"spec": {*field: value}});
        refused(&plane.patch(Sender::Bob, "VM", "plain", patch).await, &text);
        for sender in [Sender::Admin, Sender::BobIn(PRIVILEGED)] {
            made(&plane.create(sender, "VM", "a", vm(spec.clone())).await);
            made(&plane.patch(Sender::Bob, "VM", "a", json!({"spec": {"startOrder": 1}})).await);
            made(&plane.delete(Sender::Bob, "VM", "a").await);
        }
    }
    let isolated = vm(json!({"class": "dedicated", "isolateEmulatorThread": true}));
    let text = "isolateEmulatorThread is a privileged field";
    refused(&plane.create(Sender::Bob, "VM", "a", isolated).await, text);
    let mac = json!([{"name": "nic0", "macAddress": "52:54:00:00:00:01"}]);
    let spec = vm(json!({"cpus": 1, "networkInterfaces": mac}));
    refused(&plane.create(Sender::Bob, "VM", "a", spec.clone()).await, "macAddress of an interface");
    made(&plane.create(Sender::Admin, "VM", "a", spec).await);
    made(&plane.patch(Sender::Bob, "VM", "a", json!({"spec": {"startOrder": 1}})).await);
}

#[tokio::test]
async fn a_class_is_no_way_around_the_reserved_fields() {
    let plane = Plane::new(reserved()).await;
    made(&plane.create(Sender::Bob, "VMClass", "plain", json!({"cpus": 1, "memory": "1Gi"})).await);
    for (field, value) in [
        ("hugePages", json!("2Mi")),
        ("dedicatedCpuPlacement", json!(true)),
        ("pciDevices", json!([{"name": "gpu"}])),
        ("usbDevices", json!([{"name": "key"}])),
        ("vgpus", json!([{"name": "t4"}])),
        ("qemuOptions", json!([{"name": "cpu.vmx", "value": "on"}])),
    ] {
        let text = format!("{field} is a privileged field in this namespace");
        let spec = json!({field: value, "cpus": 1, "memory": "1Gi"});
        refused(&plane.create(Sender::Bob, "VMClass", "a", spec.clone()).await, &text);
        refused(&plane.patch(Sender::Bob, "VMClass", "plain", json!({"spec": {field: value}})).await, &text);
        made(&plane.create(Sender::BobIn(PRIVILEGED), "VMClass", "a", spec).await);
        made(&plane.delete(Sender::Bob, "VMClass", "a").await);
    }
    let dedicated = json!({"cpus": 1, "memory": "1Gi", "dedicatedCpuPlacement": true});
    made(&plane.create(Sender::Admin, "VMClass", "dedicated", dedicated).await);
    let isolated = json!({"spec": {"isolateEmulatorThread": true}});
    let text = "isolateEmulatorThread is a privileged field in this namespace";
    refused(&plane.patch(Sender::Bob, "VMClass", "dedicated", isolated.clone()).await, text);
    made(&plane.patch(Sender::Admin, "VMClass", "dedicated", isolated).await);
}

#[tokio::test]
async fn a_block_device_of_a_host_becomes_the_disk_of_privileged_users_alone() {
    let plane = Plane::new(reserved()).await;
    let device = json!({"source": {"device": "nvme"}});
    made(&plane.create(Sender::Bob, "Disk", "plain", json!({"size": "1Gi"})).await);
    let text = "source.device is a privileged field in this namespace";
    refused(&plane.create(Sender::Bob, "Disk", "a", device.clone()).await, text);
    let mut spec = vm(json!({"cpus": 1, "memory": "1Gi"}));
    spec["disks"] = json!([{"name": "root", "boot": true}, {"name": "b", "template": device.clone()}]);
    let text = "source.device in the template of a disk is a privileged field";
    refused(&plane.create(Sender::Bob, "VM", "a", spec.clone()).await, text);
    for sender in [Sender::Admin, Sender::BobIn(PRIVILEGED)] {
        made(&plane.create(sender, "Disk", "a", device.clone()).await);
        made(&plane.patch(Sender::Bob, "Disk", "a", json!({"spec": {"expandPolicy": "Offline"}})).await);
        made(&plane.delete(Sender::Bob, "Disk", "a").await);
        made(&plane.create(sender, "VM", "a", spec.clone()).await);
        made(&plane.patch(Sender::Bob, "VM", "a", json!({"spec": {"startOrder": 1}})).await);
        made(&plane.delete(Sender::Bob, "VM", "a").await);
    }
}

#[tokio::test]
async fn only_the_marks_of_the_namespace_restrict_it_and_its_editors_write_none() {
    let plane = Plane::new(json!({"labels": {"berth.dev/privileged-fields": "Open"}})).await;
    let spec = json!({"cpus": 64, "memory": "1Gi", "pciDevices": [{"name": "gpu"}]});
    made(&plane.create(Sender::Bob, "VM", "a", vm(spec)).await);
    let patch = json!({"metadata": offered("small")});
    let path = "/api/v1/namespaces/team";
    refused(&plane.send(Sender::Bob, Method::PATCH, path, MERGE, &patch).await, "cannot patch");
}
