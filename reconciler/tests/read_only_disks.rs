//! Disks that several VMs read. A complete berth on the embedded control plane, with a host in memory, in one runtime with paused time.

use kube::api::DeleteParams;
use serde_json::{Value, json};

#[path = "shared/disk_of_several.rs"]
mod disk_of_several;
#[path = "shared/one_host.rs"]
mod one_host;
use one_host::Site;

impl Site {
    /// Declares a VM with a boot disk of its own, and the disk `data`.
    async fn declare_vm(&self, name: &str, read_only: bool) {
        let root = format!("{name}-root");
        let disks = json!([
            {"name": root, "boot": true, "template": {"image": "debian", "size": "2Gi"}},
            {"name": "data", "readOnly": read_only},
        ]);
        let spec = json!({"cpus": 1, "memory": "256Mi", "firmware": "BIOS", "disks": disks, "stop": {"mode": "Hard"}});
        self.apply("VM", name, spec).await.expect("it applies");
    }
}

fn data() -> Value {
    json!({"image": "debian", "access": "ReadOnlyMany"})
}

#[tokio::test(start_paused = true)]
async fn several_vms_read_one_disk_at_a_time() {
    let site = Site::new().await;
    site.apply("Disk", "data", data()).await.expect("it applies");
    for name in ["a", "b"] {
        site.declare_vm(name, true).await;
    }
    for name in ["a", "b"] {
        site.until_vm_is(name, "True", None).await;
        let status = site.vms().get(name).await.expect("it is there").status.expect("it runs");
        assert!(status.disks.len() == 2 && status.disks.iter().all(|disk| disk.attached), "{status:?}");
    }
    site.until("both are listed", async || site.users().await == ["a", "b"]).await;

    site.declare_vm("c", false).await;
    site.until_vm_is("c", "False", Some("WaitingForDisk")).await;
    site.declare_vm("c", true).await;
    site.until_vm_is("c", "True", None).await;
    site.vms().delete("a", &DeleteParams::default()).await.expect("deleted");
    site.until("the others keep it", async || site.users().await == ["b", "c"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_vms_only_read_has_data_from_the_start_and_stays_so() {
    let site = Site::new().await;
    let refused = async |spec: Value| {
        let refused = site.apply("Disk", "data", spec).await.expect_err("refused");
        format!("{refused:#}")
    };
    let text = refused(json!({"size": "1Gi", "access": "ReadOnlyMany"})).await;
    assert!(text.contains("set the image or the source of its data"), "{text}");
    let text = refused(json!({"image": "debian", "access": "ReadWriteMany"})).await;
    assert!(text.contains("ReadWriteMany"), "{text}");
    site.apply("Disk", "data", data()).await.expect("it applies");
    let text = refused(json!({"image": "debian", "access": "ReadWriteOnce"})).await;
    assert!(text.contains("access cannot change"), "{text}");
    let text =
        refused(json!({"image": "debian", "access": "ReadOnlyMany", "restore": {"snapshot": "s"}})).await;
    assert!(text.contains("is not restored"), "{text}");
}
