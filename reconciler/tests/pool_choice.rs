//! Disks whose pool is chosen among several. A complete berth on the embedded control plane, with a host in memory, in one runtime with
//! paused time.

use berth::install;
use berth_api::{Disk, DiskStatus, ResourceName, condition};
use kube::Api;
use serde_json::{Value, json};

#[path = "shared/one_host.rs"]
mod one_host;
use one_host::Site;

impl Site {
    async fn disk(&self, name: &str) -> DiskStatus {
        let disks: Api<Disk> = Api::namespaced(self.client.clone(), "default");
        disks.get_opt(name).await.expect("it answers").and_then(|disk| disk.status).unwrap_or_default()
    }

    /// Declares a pool with a label.
    async fn declare_pool(&self, name: &str, media: &str) {
        let pool = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "StoragePool",
            "metadata": {"name": name, "labels": {"media": media}}, "spec": {}});
        install::apply(&self.client, &[pool]).await.expect("it applies");
    }

    /// Declares a pool that is the default of these namespaces.
    async fn declare_default_pool(&self, name: &str, namespaces: Value) {
        let pool = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "StoragePool",
            "metadata": {"name": name}, "spec": {"defaultForNamespaces": namespaces}});
        install::apply(&self.client, &[pool]).await.expect("it applies");
    }

    /// Declares a VM with a boot disk of its own, which is in one of these pools, and the disk `data`.
    async fn declare_vm(&self, pools: Value) {
        let disks = json!([
            {"name": "web-root", "boot": true, "template": {"image": "debian", "size": "2Gi", "pools": pools}},
            {"name": "data"},
        ]);
        let spec = json!({"cpus": 1, "memory": "256Mi", "firmware": "BIOS", "disks": disks, "stop": {"mode": "Hard"}});
        self.apply("VM", "web", spec).await.expect("it applies");
    }

    /// Waits until a disk has a file in this pool.
    async fn until_in(&self, disk: &str, pool: &str) {
        self.until(&format!("Disk {disk} is in the pool {pool}"), async || {
            let status = self.disk(disk).await;
            status.size.is_some() && status.pool.as_ref().map(ResourceName::as_str) == Some(pool)
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_pools_of_new_disks_are_chosen_with_the_host_and_stay() {
    let site = Site::new().await;
    let selected = json!({"size": "1Gi", "poolSelector": {"media": "ssd"}});
    site.apply("Disk", "data", selected).await.expect("it applies");
    site.declare_vm(json!(["default", "missing"])).await;
    site.until("the disk waits for a pool", async || {
        let status = waiting(&site.disk("data").await);
        status.is_some_and(|text| text.contains("no StoragePool has the labels media=ssd"))
    })
    .await;
    assert_eq!(site.disk("data").await.pool, None);

    site.declare_pool("slow", "hdd").await;
    site.declare_pool("fast", "ssd").await;
    site.until_in("data", "fast").await;
    site.until_in("web-root", "default").await;

    // Neither the labels nor the pools are read again.
    site.declare_pool("fast", "tape").await;
    site.apply("Disk", "data", json!({"size": "1Gi", "pools": ["slow"]})).await.expect("it applies");
    site.until("the change is seen", async || site.disk("data").await.observed_generation == 2).await;
    assert_eq!(site.disk("data").await.pool.as_ref().map(ResourceName::as_str), Some("fast"));
}

#[tokio::test(start_paused = true)]
async fn a_disk_without_a_pool_stays_in_the_pool_that_was_the_default_of_its_namespace() {
    let site = Site::new().await;
    for pool in ["fast", "slow"] {
        site.declare_default_pool(pool, json!(["default"])).await;
    }
    site.apply("Disk", "data", json!({"size": "1Gi"})).await.expect("it applies");
    site.declare_vm(json!(["slow"])).await;
    site.until("the disk waits for one default pool", async || {
        let status = waiting(&site.disk("data").await);
        status.is_some_and(|text| text.contains("fast, slow are all the default pool"))
    })
    .await;
    site.declare_default_pool("slow", json!(["other"])).await;
    site.until_in("data", "fast").await;
    site.until_in("web-root", "slow").await;
    let default_pool = site.disk("data").await.default_pool;
    assert_eq!(default_pool.as_ref().map(ResourceName::as_str), Some("fast"));

    site.declare_default_pool("fast", json!(["other"])).await;
    let changed = json!({"size": "1Gi", "deletionPolicy": "Retain"});
    site.apply("Disk", "data", changed).await.expect("it applies");
    site.until("the change is seen", async || site.disk("data").await.observed_generation == 2).await;
    let status = site.disk("data").await;
    assert_eq!(status.pool.as_ref().map(ResourceName::as_str), Some("fast"), "{status:?}");
    let reason = condition::find(&status.conditions, "Ready").map(|ready| ready.reason.clone());
    assert!(!reason.is_some_and(|reason| reason.starts_with("Mov")), "it is not to be moved");
}

#[tokio::test(start_paused = true)]
async fn a_disk_names_its_pool_or_leaves_the_choice() {
    let site = Site::new().await;
    for (spec, why) in [
        (json!({"size": "1Gi", "pool": "fast", "pools": ["a"]}), "the choice of the pool"),
        (json!({"size": "1Gi", "pools": ["a"], "poolSelector": {"media": "ssd"}}), "set either pools or"),
        (json!({"pools": ["a"], "source": {"file": "/srv/a.qcow2"}}), "a file that is taken over"),
        (json!({"size": "1Gi", "pools": []}), "pools"),
        (json!({"size": "1Gi", "poolSelector": {}}), "poolSelector"),
    ] {
        let refused = site.apply("Disk", "data", spec).await.expect_err("refused");
        let text = format!("{refused:#}");
        assert!(text.contains(why), "{text}");
    }
}

/// Returns why a disk waits for a pool.
fn waiting(status: &DiskStatus) -> Option<String> {
    let ready = condition::find(&status.conditions, "Ready").filter(|ready| ready.reason == "WaitingForPool");
    ready.map(|ready| ready.message.clone())
}
