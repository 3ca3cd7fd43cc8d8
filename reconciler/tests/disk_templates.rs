//! Disks that are declared within a VM: created with it, changed with it, and deleted after it. A complete berth on the
//! embedded control plane, with a host in memory, in one runtime with paused time.

use berth::install;
use berth_api::{Disk, Image, Quantity, VM, condition};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::image;

#[path = "shared/one_host.rs"]
mod one_host;
use one_host::Site;

impl Site {
    fn vms(&self) -> Api<VM> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn disks(&self) -> Api<Disk> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn disk(&self, name: &str) -> Option<Disk> {
        self.disks().get_opt(name).await.expect("it answers")
    }

    async fn until_ready(&self) {
        self.until("the VM is ready", async || {
            let vm = self.vms().get("web").await.expect("it is there");
            let generation = vm.metadata.generation;
            let ready = |s: berth_api::VMStatus| {
                Some(s.observed_generation) == generation
                    && condition::find(&s.conditions, "Ready").is_some_and(|c| c.status == "True")
            };
            vm.status.is_some_and(ready)
        })
        .await;
    }
}

fn vm(disks: &Value) -> Value {
    json!({"cpus": 1, "memory": "256Mi", "firmware": "BIOS", "disks": disks, "stop": {"gracePeriodSeconds": 5}})
}

fn root(size: &str) -> Value {
    json!({"name": "web-root", "boot": true, "template": {"image": "debian", "size": size}})
}

#[tokio::test(start_paused = true)]
async fn a_vm_runs_with_disks_that_only_it_declares_and_they_follow_it() {
    let site = Site::new().await;
    site.apply("VM", "web", vm(&json!([root("2Gi")]))).await.expect("it applies");
    site.until_ready().await;
    let made = site.disk("web-root").await.expect("it was created");
    assert_eq!(made.spec.image.as_ref().map(|image| image.as_str()), Some("debian"));

    let data = json!({"name": "web-data", "template": {"size": "1Gi"}});
    site.apply("VM", "web", vm(&json!([root("3Gi"), data]))).await.expect("it applies");
    site.until_ready().await;
    site.until("the disk grows", async || {
        site.disk("web-root").await.and_then(|d| d.status).is_some_and(|s| s.size.as_deref() == Some("3Gi"))
    })
    .await;
    let attached = site.vms().get("web").await.expect("it is there").status.expect("it runs").disks;
    assert!(attached.iter().all(|d| d.attached) && attached.len() == 2, "{attached:?}");

    site.apply("VM", "web", vm(&json!([root("3Gi")]))).await.expect("it applies");
    site.until_ready().await;
    let detached = site.disk("web-data").await.expect("its data stays");
    assert_eq!(detached.metadata.deletion_timestamp, None);

    site.vms().delete("web", &DeleteParams::default()).await.expect("it is accepted");
    site.until("its disks are deleted after it", async || {
        let disks = [site.disk("web-root").await, site.disk("web-data").await];
        let vm = site.vms().get_opt("web").await.expect("it answers");
        let early = vm.is_some() && disks.iter().flatten().any(|d| d.metadata.deletion_timestamp.is_some());
        assert!(!early, "a disk goes before its VM");
        disks.iter().all(Option::is_none)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_of_a_template_follows_the_labels_and_annotations_of_its_vm() {
    let site = Site::new().await;
    site.apply("VM", "web", vm(&json!([root("2Gi")]))).await.expect("it applies");
    site.until_ready().await;
    let label = async |metadata: Value| {
        let patch = Patch::Merge(json!({"metadata": metadata}));
        site.vms().patch("web", &PatchParams::default(), &patch).await.expect("it is accepted");
    };
    label(
        json!({"labels": {"team": "shop", "app.kubernetes.io/name": "web"}, "annotations": {"note": "mine"}}),
    )
    .await;
    site.until("the disk has them", async || {
        let disk = site.disk("web-root").await.expect("it is there");
        disk.labels().get("team").is_some_and(|team| team == "shop")
            && disk.annotations().contains_key("note")
    })
    .await;
    let disk = site.disk("web-root").await.expect("it is there");
    assert!(!disk.labels().contains_key("app.kubernetes.io/name"), "{:?}", disk.labels());
    let own = Patch::Merge(json!({"metadata": {"labels": {"own": "1"}}}));
    site.disks().patch("web-root", &PatchParams::default(), &own).await.expect("it is accepted");
    label(json!({"labels": {"team": null}, "annotations": {"note": null}})).await;
    site.until("the disk has them no more", async || {
        let disk = site.disk("web-root").await.expect("it is there");
        !disk.labels().contains_key("team") && !disk.annotations().contains_key("note")
    })
    .await;
    let disk = site.disk("web-root").await.expect("it is there");
    assert_eq!(disk.labels()["own"], "1", "its own stays");
}

#[tokio::test(start_paused = true)]
async fn a_vm_whose_disk_cannot_be_created_names_it_and_goes_on_once_it_can() {
    let site = Site::new().await;
    let refuse = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-disks"}, "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": ["berth.dev"], "apiVersions": ["*"],
                "operations": ["CREATE"], "resources": ["disks"]}]},
            "validations": [{"expression": "false", "message": "no more disks"}],
    }});
    let everywhere = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "no-disks"}, "spec": {"policyName": "no-disks", "validationActions": ["Deny"]}});
    install::apply(&site.client, &[refuse, everywhere]).await.expect("it applies");
    site.apply("VM", "web", vm(&json!([root("2Gi")]))).await.expect("it applies");
    site.until("the VM names the disk", async || {
        let vm = site.vms().get("web").await.expect("it is there");
        let conditions = vm.status.map(|s| s.conditions).unwrap_or_default();
        condition::find(&conditions, "Ready").is_some_and(|ready| {
            ready.reason == "WaitingForDisk" && ready.message.contains("Disk web-root does not exist")
        })
    })
    .await;
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(site.client.clone());
    bindings.delete("no-disks", &DeleteParams::default()).await.expect("it is there");
    site.until_ready().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_exists_is_neither_taken_over_nor_changed() {
    let site = Site::new().await;
    site.apply("Disk", "web-root", json!({"size": "5Gi"})).await.expect("it applies");
    site.apply("VM", "web", vm(&json!([root("2Gi")]))).await.expect("it applies");
    site.until("the VM names the disk", async || {
        let vm = site.vms().get("web").await.expect("it is there");
        let conditions = vm.status.map(|s| s.conditions).unwrap_or_default();
        condition::find(&conditions, "Ready").is_some_and(|ready| {
            ready.reason == "WaitingForDisk" && ready.message.contains("was not created for this VM")
        })
    })
    .await;
    let disk = site.disk("web-root").await.expect("it is there");
    assert_eq!((disk.spec.size, disk.spec.image), (Some(Quantity("5Gi".into())), None));
    site.disks().delete("web-root", &DeleteParams::default()).await.expect("nothing uses it");
    site.until_ready().await;
    let made = site.disk("web-root").await.expect("the VM has one of its own");
    assert_eq!(made.spec.size, Some(Quantity("2Gi".into())));
}

#[tokio::test(start_paused = true)]
async fn what_would_replace_the_data_of_a_template_is_refused() {
    let site = Site::new().await;
    site.apply("VM", "web", vm(&json!([root("2Gi")]))).await.expect("it applies");
    site.until_ready().await;
    let cases = [
        (json!([{"name": "web-root", "boot": true}]), "template cannot be added to an existing disk"),
        (json!([root("1Gi")]), "size can only grow"),
        (
            json!([{"name": "web-root", "boot": true, "template": {"image": "other", "size": "2Gi"}}]),
            "image cannot change",
        ),
        (
            json!([{"name": "web-root", "boot": true, "template": {"image": "debian", "size": "2Gi", "deletionProtection": true}}]),
            "is deleted with its VM",
        ),
        (
            json!([{"name": "web-root", "boot": true, "template": {"image": "debian", "size": "2Gi", "restore": {"snapshot": "s"}}}]),
            "is not restored",
        ),
        (
            json!([{"name": "web-root", "boot": true, "template": {"image": "debian", "size": "2Gi", "access": "ReadOnlyMany"}}]),
            "belongs to one VM",
        ),
        (
            json!([{"name": "web-root", "boot": true, "template": {"image": "debian", "size": "2Gi", "placement": {"hostSelector": {"zone": "b"}}}}]),
            "is on the host of its VM",
        ),
    ];
    for (disks, words) in cases {
        let patch = json!({"spec": {"disks": disks}});
        let refused = site.vms().patch("web", &PatchParams::default(), &Patch::Merge(&patch)).await;
        let error = refused.expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    let empty = json!([{"name": "web-root", "boot": true, "template": {}}]);
    let error = site.apply("VM", "other", vm(&empty)).await.expect_err("nothing to make it of");
    assert!(format!("{error:#}").contains("size is required for a disk without an image"), "{error:#}");
    let unchanged = site.disk("web-root").await.expect("it is there");
    assert_eq!(unchanged.name_any(), "web-root");
    assert_eq!(unchanged.metadata.generation, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_makes_a_disk_of_an_image_for_all_namespaces_which_stays_as_long_as_the_disk() {
    let site = Site::new().await;
    let object = |kind: &str, namespace: &str, name: &str, spec: Value| {
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": namespace}, "spec": spec})
    };
    let team = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    let mut spec =
        vm(&json!([{"name": "web-root", "boot": true, "template": {"image": "common", "size": "2Gi"}}]));
    spec["networkInterfaces"] = json!([]);
    install::apply(&site.client, &[team, object("VM", "team", "web", spec)]).await.expect("it applies");
    let vms: Api<VM> = Api::namespaced(site.client.clone(), "team");
    let disks: Api<Disk> = Api::namespaced(site.client.clone(), "team");
    let message = async || {
        let disk = disks.get_opt("web-root").await.expect("it answers");
        let conditions = disk.and_then(|disk| disk.status).map(|status| status.conditions);
        condition::find(&conditions.unwrap_or_default(), "Ready").map(|ready| ready.message.clone())
    };
    site.until("the disk waits for its image", async || {
        message().await.is_some_and(|text| {
            text.contains("Image common does not exist in namespace team or berth-shared")
        })
    })
    .await;

    let common = object("Image", "berth-shared", "common", image::spec());
    install::apply(&site.client, &[common]).await.expect("it applies");
    site.until("the VM runs", async || {
        let conditions = vms.get("web").await.expect("it is there").status.map(|status| status.conditions);
        condition::find(&conditions.unwrap_or_default(), "Ready").is_some_and(|ready| ready.status == "True")
    })
    .await;
    let images: Api<Image> = Api::namespaced(site.client.clone(), "berth-shared");
    let own: Api<Image> = Api::namespaced(site.client.clone(), "team");
    assert!(own.get_opt("common").await.expect("it answers").is_none(), "the tenant has no image");

    images.delete("common", &DeleteParams::default()).await.expect("it is accepted");
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    let held = images.get_opt("common").await.expect("it answers").expect("it is in use");
    assert!(held.metadata.deletion_timestamp.is_some(), "{:?}", held.metadata);
    vms.delete("web", &DeleteParams::default()).await.expect("it is accepted");
    site.until("the image goes after the disk", async || {
        let image = images.get_opt("common").await.expect("it answers");
        let disk = disks.get_opt("web-root").await.expect("it answers");
        assert!(image.is_some() || disk.is_none(), "the image goes before the disk");
        image.is_none()
    })
    .await;
}
