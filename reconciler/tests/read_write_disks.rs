//! Disks that several VMs write to. A complete berth on the embedded control plane, with a host in memory, in one runtime with paused time.

use berth_api::{DiskSnapshot, condition};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

#[path = "shared/disk_of_several.rs"]
mod disk_of_several;
#[path = "shared/one_host.rs"]
mod one_host;
use one_host::Site;

impl Site {
    /// Declares a VM with a boot disk of its own, and the disk `data`.
    async fn declare_vm(&self, name: &str) {
        let root = format!("{name}-root");
        let disks = json!([
            {"name": root, "boot": true, "template": {"image": "debian", "size": "2Gi"}},
            {"name": "data"},
        ]);
        self.apply("VM", name, vm(&disks)).await.expect("it applies");
    }

    /// Waits until the disk has this reason, and returns the message.
    async fn until_disk_has(&self, reason: &str) -> String {
        let mut message = String::new();
        self.until(reason, async || {
            let status = self.disks().get("data").await.expect("it is there").status.unwrap_or_default();
            let found = condition::find(&status.conditions, "Ready").filter(|found| found.reason == reason);
            message = found.map(|found| found.message.clone()).unwrap_or_default();
            found.is_some()
        })
        .await;
        message
    }
}

fn vm(disks: &Value) -> Value {
    json!({"cpus": 1, "memory": "256Mi", "firmware": "BIOS", "disks": disks, "stop": {"mode": "Hard"}})
}

fn data() -> Value {
    json!({"size": "1Gi", "access": "ReadWriteMany"})
}

#[tokio::test(start_paused = true)]
async fn several_vms_write_to_one_disk_and_it_grows_while_none_has_it_open() {
    let site = Site::new().await;
    site.apply("Disk", "data", data()).await.expect("it applies");
    for name in ["a", "b"] {
        site.declare_vm(name).await;
    }
    for name in ["a", "b"] {
        site.until_vm_is(name, "True", None).await;
        let status = site.vms().get(name).await.expect("it is there").status.expect("it runs");
        assert!(status.disks.len() == 2 && status.disks.iter().all(|disk| disk.attached), "{status:?}");
    }
    site.until("both are listed", async || site.users().await == ["a", "b"]).await;

    let larger = Patch::Merge(json!({"spec": {"size": "2Gi"}}));
    site.disks().patch("data", &PatchParams::default(), &larger).await.expect("it applies");
    let text = site.until_disk_has("PowerCycleNeeded").await;
    assert!(text.contains("no VM has it open"), "{text}");
    for name in ["a", "b"] {
        site.vms().delete(name, &DeleteParams::default()).await.expect("deleted");
    }
    site.until("it has grown", async || {
        let status = site.disks().get("data").await.expect("it is there").status.unwrap_or_default();
        status.size.is_some_and(|size| size == "2Gi")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_vms_write_to_boots_none_and_has_no_snapshot() {
    let site = Site::new().await;
    site.apply("Disk", "data", data()).await.expect("it applies");
    site.apply("VM", "c", vm(&json!([{"name": "data", "boot": true}]))).await.expect("it applies");
    site.until_vm_is("c", "False", Some("WaitingForDisk")).await;
    site.apply("DiskSnapshot", "s", json!({"disk": "data"})).await.expect("it applies");
    let snapshots: Api<DiskSnapshot> = Api::namespaced(site.client.clone(), "default");
    site.until("it is refused", async || {
        let status = snapshots.get("s").await.expect("it is there").status.unwrap_or_default();
        condition::find(&status.conditions, "Ready").is_some_and(|found| found.reason == "NotSupported")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_vms_write_to_is_blank_at_first_and_stays_in_its_pool() {
    let site = Site::new().await;
    let refused = async |spec: Value| {
        let refused = site.apply("Disk", "data", spec).await.expect_err("refused");
        format!("{refused:#}")
    };
    let with = |field: &str, value: Value| {
        let mut spec = data();
        spec[field] = value;
        spec
    };
    let text = refused(with("image", json!("debian"))).await;
    assert!(text.contains("is blank at first"), "{text}");
    let text = refused(with("source", json!({"disk": "other"}))).await;
    assert!(text.contains("is blank at first"), "{text}");
    let text = refused(with("restore", json!({"snapshot": "s"}))).await;
    assert!(text.contains("is not restored"), "{text}");
    let text = refused(with("encryption", json!({"keyClass": "strong"}))).await;
    assert!(text.contains("cannot be encrypted"), "{text}");
    let text = refused(with("pools", json!(["a", "b"]))).await;
    assert!(text.contains("set pool"), "{text}");
    let text = refused(with("sharedWith", json!(["*"]))).await;
    assert!(text.contains("is the source of no other Disk"), "{text}");
    site.apply("Disk", "data", data()).await.expect("it applies");
    let text = refused(with("pool", json!("fast"))).await;
    assert!(text.contains("is not moved to another pool"), "{text}");
    let text = refused(with("access", json!("ReadWriteOnce"))).await;
    assert!(text.contains("access cannot change"), "{text}");
}
