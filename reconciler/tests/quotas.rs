//! Quotas of a namespace: requests beyond a limit are refused, what passes all the same waits, and it goes on by itself once there is
//! room. A complete berth on the embedded control plane, with a host in memory, in one runtime with paused time.

use berth_api::{Disk, PublicIP, Quota, QuotaUsage, VM, condition};
use k8s_openapi::{NamespaceResourceScope, api::admissionregistration::v1::ValidatingAdmissionPolicyBinding};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

#[path = "shared/one_host.rs"]
mod one_host;
use one_host::Site;

impl Site {
    /// Applies an object that must be refused; returns the whole message.
    async fn refusal(&self, kind: &str, name: &str, spec: Value) -> String {
        let refused = self.apply(kind, name, spec).await.expect_err("it is refused");
        format!("{refused:#}")
    }

    fn all<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Applies a quota, and waits until it has counted this.
    async fn limit(&self, hard: Value, what: &str, is_counted: impl Fn(&QuotaUsage) -> bool) {
        self.apply("Quota", "team", json!({"hard": hard})).await.expect("it applies");
        self.until_used(what, is_counted).await;
    }

    async fn until_used(&self, what: &str, is_counted: impl Fn(&QuotaUsage) -> bool) {
        self.until(what, async || {
            let quota = self.all::<Quota>().get("team").await.expect("it is there");
            let generation = quota.metadata.generation;
            let status = quota.status.filter(|status| Some(status.observed_generation) == generation);
            status.and_then(|status| status.used).is_some_and(|used| is_counted(&used))
        })
        .await;
    }

    /// The reason and message of the condition `Ready` of an object.
    async fn ready<K>(&self, name: &str) -> (String, String)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Serialize
            + std::fmt::Debug,
    {
        let object = self.all::<K>().get(name).await.expect("it is there");
        let object = serde_json::to_value(object).expect("plain data");
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.into_iter().find(|c| c["type"] == "Ready").unwrap_or_default();
        let text = |name: &str| ready[name].as_str().unwrap_or_default().to_owned();
        (text("reason"), text("message"))
    }

    async fn until_running(&self, name: &str) {
        self.until("the VM is ready", async || {
            let vm = self.all::<VM>().get(name).await.expect("it is there");
            vm.status
                .is_some_and(|s| condition::find(&s.conditions, "Ready").is_some_and(|c| c.status == "True"))
        })
        .await;
    }

    /// Takes the policies out of force, as if the count came too late for all requests.
    async fn without_admission(&self) {
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.client.clone());
        let all = bindings.list(&ListParams::default()).await.expect("it answers").items;
        for binding in all.iter().map(ResourceExt::name_any).filter(|name| name.starts_with("berth-quota-")) {
            bindings.delete(&binding, &DeleteParams::default()).await.expect("it is accepted");
        }
    }

    async fn delete<K>(&self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        self.all::<K>().delete(name, &DeleteParams::default()).await.expect("it is accepted");
    }
}

fn vm(memory: &str, disks: &Value) -> Value {
    json!({"cpus": 1, "memory": memory, "firmware": "BIOS", "disks": disks, "stop": {"gracePeriodSeconds": 5}})
}

fn root(name: &str, size: &str) -> Value {
    json!([{"name": name, "boot": true, "template": {"image": "debian", "size": size}}])
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_would_exceed_the_limit_is_refused_and_so_is_its_growth() {
    let site = Site::new().await;
    site.apply("Disk", "a", json!({"size": "4Gi"})).await.expect("there is no limit yet");
    site.limit(json!({"diskSize": "10Gi", "disks": 2}), "one is counted", |used| used.disk_size == "4Gi")
        .await;
    let text = site.refusal("Disk", "b", json!({"size": "7Gi"})).await;
    assert!(text.contains("Quota team: diskSize: 4Gi used, more needed, limit 10Gi"), "{text}");
    site.apply("Disk", "b", json!({"size": "6Gi"})).await.expect("it fits");
    site.until_used("both are counted", |used| used.disk_size == "10Gi" && used.disks == 2).await;
    let text = site.refusal("Disk", "b", json!({"size": "7Gi"})).await;
    assert!(text.contains("diskSize: 10Gi used"), "{text}");
    site.apply("Disk", "b", json!({"size": "6Gi", "deletionPolicy": "Retain"}))
        .await
        .expect("it is no growth");
    let text = site.refusal("Disk", "c", json!({"image": "debian"})).await;
    assert!(text.contains("disks: 2 used, 1 more needed, limit 2"), "{text}");

    // A lowered limit touches nothing that exists.
    site.limit(json!({"diskSize": "1Gi"}), "the limit is lowered", |used| used.disks == 2).await;
    site.apply("Disk", "a", json!({"size": "4Gi", "deletionProtection": true}))
        .await
        .expect("it is no growth");
    let text = site.refusal("Disk", "c", json!({"image": "debian"})).await;
    assert!(text.contains("diskSize: 10Gi used, more needed, limit 1Gi"), "its size is not declared: {text}");
    site.delete::<Quota>("team").await;
    site.apply("Disk", "c", json!({"size": "1Ti"})).await.expect("without a quota there is no limit");
}

#[tokio::test(start_paused = true)]
async fn vms_are_refused_by_their_number_memory_and_cpus_and_so_are_larger_classes() {
    let site = Site::new().await;
    site.apply("VMClass", "small", json!({"cpus": 1, "memory": "1Gi", "firmware": "BIOS"}))
        .await
        .expect("it applies");
    let of_class = |class: &str| json!({"class": class, "firmware": "BIOS", "disks": root("a-root", "2Gi")});
    site.apply("VM", "a", of_class("small")).await.expect("it applies");
    site.limit(json!({"memory": "3Gi", "cpus": 4, "vms": 3}), "one is counted", |used| {
        (used.memory.as_str(), used.cpus, used.vms) == ("1Gi", 1, 1)
    })
    .await;
    let disks = root("b-root", "2Gi");
    let text = site.refusal("VM", "b", vm("2049Mi", &disks)).await;
    assert!(text.contains("Quota team: memory: 1Gi used, more needed, limit 3Gi"), "{text}");
    let text = site.refusal("VM", "b", json!({"cpus": 4, "memory": "1Gi", "disks": disks})).await;
    assert!(text.contains("cpus: 1 used, 4 more needed, limit 4"), "{text}");
    let text = site.refusal("VM", "b", json!({"cpus": 2, "disks": disks})).await;
    assert!(text.contains("memory: 1Gi used"), "two CPUs have 4Gi by default: {text}");

    let larger = json!({"cpus": 2, "memory": "1Gi", "firmware": "BIOS"});
    let text = site.refusal("VMClass", "small", larger.clone()).await;
    assert!(text.contains("cpus: the VMs of the class would get more"), "{text}");
    site.apply("VMClass", "large", larger).await.expect("a new class is used by no VM");
    let text = site.refusal("VM", "a", of_class("large")).await;
    assert!(text.contains("cannot get those of another class"), "{text}");
    let mut own = of_class("large");
    (own["cpus"], own["memory"]) = (json!(2), json!("2Gi"));
    site.apply("VM", "a", own).await.expect("its own values are compared");
}

#[tokio::test(start_paused = true)]
async fn of_a_burst_past_admission_what_fits_runs_and_the_rest_says_why_until_there_is_room() {
    let site = Site::new().await;
    site.without_admission().await;
    site.limit(json!({"vms": 1}), "nothing is counted", |used| used.vms == 0).await;
    for name in ["a", "b"] {
        let disk = format!("{name}-root");
        site.apply("VM", name, vm("256Mi", &root(&disk, "2Gi"))).await.expect("admission does not see it");
    }
    site.until_running("a").await;
    site.until("the other one says why", async || site.ready::<VM>("b").await.0 == "QuotaExceeded").await;
    let (_, text) = site.ready::<VM>("b").await;
    assert_eq!(text, "Quota team: vms: 1 used, 1 more needed, limit 1");
    site.until_used("both are counted", |used| used.vms == 2).await;
    site.delete::<VM>("a").await;
    site.until_running("b").await;

    site.limit(json!({"publicIps": 0}), "the limit is changed", |used| used.vms == 1).await;
    site.apply("PublicIP", "web", json!({})).await.expect("admission does not see it");
    site.until("the address says why", async || site.ready::<PublicIP>("web").await.0 == "QuotaExceeded")
        .await;
    site.delete::<Quota>("team").await;
    site.until("it has an address", async || {
        let ip = site.all::<PublicIP>().get("web").await.expect("it is there");
        ip.status.is_some_and(|status| status.address.is_some())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_whose_disk_would_exceed_the_limit_says_so_and_runs_once_the_limit_is_raised() {
    let site = Site::new().await;
    site.limit(json!({"diskSize": "2Gi"}), "nothing is counted", |used| used.disks == 0).await;
    site.apply("VM", "web", vm("256Mi", &root("web-root", "4Gi"))).await.expect("the disk is another object");
    site.until("it says why", async || site.ready::<VM>("web").await.0 == "QuotaExceeded").await;
    let (_, text) = site.ready::<VM>("web").await;
    assert_eq!(text, "Quota team: diskSize: 0 used, 4Gi more needed, limit 2Gi");
    assert_eq!(
        site.all::<Disk>().get_opt("web-root").await.expect("it answers").map(|disk| disk.name_any()),
        None
    );
    let raised = json!({"spec": {"hard": {"diskSize": "4Gi"}}});
    site.all::<Quota>()
        .patch("team", &PatchParams::default(), &Patch::Merge(raised))
        .await
        .expect("it is accepted");
    site.until_running("web").await;
    site.until_used("its disk is counted", |used| used.disk_size == "4Gi").await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_beyond_the_limit_reports_another_obstacle_first_and_is_ready_without_the_quota() {
    let site = Site::new().await;
    site.without_admission().await;
    site.limit(json!({"diskSize": "1Gi"}), "nothing is counted", |used| used.disks == 0).await;
    for (name, spec) in [("plain", json!({"size": "4Gi"})), ("copy", json!({"size": "4Gi", "image": "gone"}))]
    {
        site.apply("Disk", name, spec).await.expect("admission does not see it");
    }
    for (name, reason) in [("plain", "QuotaExceeded"), ("copy", "WaitingForImage")] {
        site.until(reason, async || site.ready::<Disk>(name).await.0 == reason).await;
    }
    site.until_used("both are counted", |used| used.disk_size == "8Gi" && used.disks == 2).await;
    site.delete::<Quota>("team").await;
    site.until("it can be used", async || site.ready::<Disk>("plain").await.0 == "WaitingForFirstUse").await;
}
