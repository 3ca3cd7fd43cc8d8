//! An object that is deleted while in use stays until nothing uses it, lists its users, and accepts no new users; a
//! protected object cannot be deleted. A complete berth on the embedded control plane, with a host in memory, in
//! one runtime with paused time.

use std::{sync::Arc, time::Duration};

use berth::install;
use berth_agent::AgentConfig;
use berth_api::{
    Disk, Host, IPPool, Image, KeyClass, Network, PlacementGroup, PublicIP, SecurityGroup, StoragePool, VM,
    VMClass, VMGroup, condition,
};
use berth_controllers as controllers;
use berth_engine::Identities;
use berth_host::fake::FakeSystem;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    image,
    installed::{self, Copy},
};

const LIMIT: Duration = Duration::from_secs(300);
/// The objects that [`Site::declare_everything`] declares, the users last.
const EVERYTHING: [(&str, &str); 11] = [
    ("VMClass", "small"),
    ("Image", "debian"),
    ("PlacementGroup", "spread"),
    ("Network", "back"),
    ("SecurityGroup", "front"),
    ("PublicIP", "web"),
    ("Disk", "root"),
    ("Disk", "data"),
    ("VM", "web"),
    ("HotswapDiskAttachment", "data"),
    ("VMGroup", "app"),
];

struct Site {
    client: Client,
    system: Arc<FakeSystem>,
    agent: JoinHandle<()>,
    /// The control plane's database.
    _folder: TempDir,
}

impl Site {
    /// A control plane and one ready host, `h1`.
    async fn new() -> Self {
        let Copy { server: _server, admin: client, clock, folder } = installed::copy().await;
        let config = controllers::Config {
            clock: clock.clone(),
            identities: Identities::seeded(1),
            ..controllers::Config::new()
        };
        tokio::spawn(controllers::run(client.clone(), config, CancellationToken::new()));
        let system = image::host(&clock);
        let config = AgentConfig { clock, seed: Some(1), ..AgentConfig::new("h1") };
        let agent = berth_agent::run(config, client.clone(), system.clone(), CancellationToken::new());
        let agent = tokio::spawn(async move { agent.await.unwrap_or_else(|error| panic!("{error}")) });
        let site = Self { client, system, agent, _folder: folder };
        let hosts: Api<Host> = Api::all(site.client.clone());
        site.until("the host reports", async || {
            let host = hosts.get_opt("h1").await.expect("it answers");
            host.and_then(|h| h.status).is_some_and(|s| s.observed_generation >= 0)
        })
        .await;
        site
    }

    async fn apply(&self, namespace: &str, kind: &str, name: &str, spec: Value) {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": namespace}, "spec": spec});
        install::apply(&self.client, &[object]).await.expect("it applies");
    }

    /// A VM `web` with one of everything, all of it in this namespace.
    async fn declare_all(&self, namespace: &str, range: &str) {
        self.apply(namespace, "VMClass", "small", json!({"cpus": 1, "memory": "256Mi", "firmware": "BIOS"}))
            .await;
        self.apply(namespace, "Image", "debian", image::spec()).await;
        self.apply(namespace, "PlacementGroup", "spread", json!({})).await;
        self.apply(namespace, "VMGroup", "app", json!({})).await;
        self.apply(namespace, "Network", "back", json!({"cidr": range})).await;
        let rule = json!({"name": "own", "securityGroups": ["front"]});
        self.apply(namespace, "SecurityGroup", "front", json!({"ingress": [rule]})).await;
        self.apply(namespace, "PublicIP", "web", json!({})).await;
        self.apply(namespace, "Disk", "root", json!({"image": "debian", "size": "2Gi"})).await;
        let spec = json!({"class": "small", "disks": [{"name": "root", "boot": true}],
            "networkInterfaces": [{"name": "nic0", "network": "back", "publicIP": "web", "securityGroups": ["front"]}],
            "placement": {"group": "spread"}, "vmGroup": "app", "stop": {"gracePeriodSeconds": 5}});
        self.apply(namespace, "VM", "web", spec).await;
        self.until("the VM runs", async || {
            let vm = self.in_namespace::<VM>(namespace).get("web").await.expect("it is there");
            vm.status
                .is_some_and(|s| condition::find(&s.conditions, "Ready").is_some_and(|c| c.status == "True"))
        })
        .await;
    }

    /// Declares an object of every kind, as the quickstart does: also a disk that is attached to the running VM.
    async fn declare_everything(&self) {
        self.declare_all("default", "10.78.0.0/24").await;
        self.apply("default", "Disk", "data", json!({"size": "1Gi"})).await;
        self.apply("default", "HotswapDiskAttachment", "data", json!({"vm": "web", "disk": "data"})).await;
        self.until("the disk is attached", async || {
            let found = self.find("default", ("HotswapDiskAttachment", "data")).await.expect("it is there");
            found["status"]["state"] == "Attached"
        })
        .await;
    }

    fn in_namespace<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn any(&self, namespace: &str, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("berth.dev", "v1alpha1", kind));
        let lower = kind.to_lowercase();
        let plural = if lower.ends_with('s') { format!("{lower}es") } else { format!("{lower}s") };
        Api::namespaced_with(self.client.clone(), namespace, &ApiResource { plural, ..resource })
    }

    async fn find(&self, namespace: &str, (kind, name): (&str, &str)) -> Option<Value> {
        let found = self.any(namespace, kind).get_opt(name).await.expect("it answers");
        found.map(|object| serde_json::to_value(object).expect("plain data"))
    }

    async fn delete(&self, namespace: &str, (kind, name): (&str, &str)) -> Result<(), String> {
        let deleted = self.any(namespace, kind).delete(name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(|error| format!("{kind} {name}: {error}"))
    }

    async fn replace(&self, namespace: &str, (kind, name): (&str, &str), patch: Value) {
        let patch = Patch::Merge(patch);
        self.any(namespace, kind).patch(name, &PatchParams::default(), &patch).await.expect("changed");
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let begun = Instant::now();
        while !holds().await {
            assert!(begun.elapsed() < LIMIT, "never: {what}");
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    async fn until_deleted<K>(&self, api: &Api<K>, name: &str)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let what = format!("{} {name} goes", K::kind(&()));
        self.until(&what, async || match api.delete(name, &DeleteParams::default()).await {
            Ok(_) => false,
            Err(kube::Error::Api(status)) => status.code == 404,
            Err(error) => panic!("{error}"),
        })
        .await;
    }
}

/// Deletes an object in use; returns the message that names its users.
async fn held<K>(site: &Site, api: &Api<K>, name: &str) -> String
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let deleted = api.delete(name, &DeleteParams::default()).await;
    deleted.unwrap_or_else(|error| panic!("deleting {} {name}: {error}", K::kind(&())));
    let message = async || {
        let object = api.get(name).await.unwrap_or_else(|error| panic!("{} {name}: {error}", K::kind(&())));
        let object = serde_json::to_value(object).expect("plain data");
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.into_iter().find(|c| c["type"] == "Ready").unwrap_or_default();
        ready["message"].as_str().filter(|text| text.contains("held until")).map(str::to_owned)
    };
    site.until(&format!("{} {name} names its users", K::kind(&())), async || message().await.is_some()).await;
    message().await.unwrap_or_default()
}

async fn is_gone<K>(api: &Api<K>, name: &str) -> bool
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    api.get_opt(name).await.expect("it answers").is_none()
}

#[tokio::test(start_paused = true)]
async fn whatever_a_vm_uses_stays_when_it_is_deleted_names_its_user_and_goes_once_it_is_not_used() {
    let site = Site::new().await;
    let client = &site.client;
    site.declare_all("default", "10.78.0.0/24").await;
    let (classes, groups): (Api<VMClass>, Api<PlacementGroup>) =
        (Api::default_namespaced(client.clone()), Api::default_namespaced(client.clone()));
    let filters: Api<SecurityGroup> = Api::default_namespaced(client.clone());
    let vm_groups: Api<VMGroup> = Api::default_namespaced(client.clone());
    let (networks, images): (Api<Network>, Api<Image>) =
        (Api::default_namespaced(client.clone()), Api::default_namespaced(client.clone()));
    let (disks, ips): (Api<Disk>, Api<PublicIP>) =
        (Api::default_namespaced(client.clone()), Api::default_namespaced(client.clone()));
    let (pools, storage): (Api<IPPool>, Api<StoragePool>) =
        (Api::all(client.clone()), Api::all(client.clone()));
    let hosts: Api<Host> = Api::all(client.clone());
    let by_vm = [
        held(&site, &classes, "small").await,
        held(&site, &groups, "spread").await,
        held(&site, &networks, "back").await,
        held(&site, &filters, "front").await,
        held(&site, &vm_groups, "app").await,
    ];
    for message in by_vm {
        assert_eq!(message, "deleted, and held until nothing uses it: used by VM default/web");
    }
    assert!(held(&site, &images, "debian").await.ends_with("used by Disk default/root"));
    assert!(held(&site, &storage, "default").await.ends_with("used by Disk default/root"));
    assert!(held(&site, &pools, "default").await.ends_with("used by PublicIP default/web"));
    assert!(held(&site, &disks, "root").await.ends_with("used by VM web"));
    assert!(held(&site, &ips, "web").await.ends_with("used by VM web"));
    assert!(held(&site, &hosts, "h1").await.ends_with("used by Disk default/root, VM default/web"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let vm = site.in_namespace::<VM>("default").get("web").await.expect("it is there");
    assert!(vm.status.is_some_and(|s| s.process.is_some()), "it still runs");
    site.until_deleted(&site.in_namespace::<VM>("default"), "web").await;
    site.until("all of it goes", async || {
        let gone = is_gone(&classes, "small").await && is_gone(&groups, "spread").await;
        let gone = gone && is_gone(&filters, "front").await && is_gone(&vm_groups, "app").await;
        let gone = gone && is_gone(&networks, "back").await && is_gone(&images, "debian").await;
        let gone = gone && is_gone(&disks, "root").await && is_gone(&ips, "web").await;
        gone && is_gone(&pools, "default").await && is_gone(&storage, "default").await
    })
    .await;
    // The agent of a deleted Host creates it again, as it does at its start.
    site.until("the host goes", async || {
        let host = hosts.get_opt("h1").await.expect("it answers");
        host.is_none_or(|host| host.metadata.deletion_timestamp.is_none())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_going_no_longer_keeps_its_class_and_group() {
    let site = Site::new().await;
    site.declare_all("default", "10.78.0.0/24").await;
    let instance = site.system.hypervisor().instances().pop().expect("it runs");
    site.system.hypervisor().set_behaviour(&instance, |b| b.ignores_powerdown = true);
    let vms = site.in_namespace::<VM>("default");
    vms.delete("web", &DeleteParams::default()).await.expect("deletable");
    let (classes, groups) =
        (site.in_namespace::<VMClass>("default"), site.in_namespace::<PlacementGroup>("default"));
    classes.delete("small", &DeleteParams::default()).await.expect("deletable");
    groups.delete("spread", &DeleteParams::default()).await.expect("deletable");
    // The controllers have seen the deletion; the guest has its five seconds to shut down.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(vms.get_opt("web").await.expect("it answers").is_some(), "it still stops");
    assert!(is_gone(&classes, "small").await && is_gone(&groups, "spread").await);
    assert!(held(&site, &site.in_namespace::<Network>("default"), "back").await.contains("VM default/web"));
    site.until("it is gone", async || is_gone(&vms, "web").await).await;
}

/// One of everything, deleted at once: first to last, last to first, and two orders in between.
#[tokio::test(start_paused = true)]
async fn everything_goes_in_whatever_order_it_is_deleted() {
    let site = Site::new().await;
    for order in [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0],
        [2, 5, 0, 7, 6, 3, 9, 8, 10, 1, 4],
        [4, 1, 8, 3, 9, 0, 6, 2, 7, 5, 10],
        [6, 9, 8, 10, 5, 7, 4, 2, 0, 1, 3],
    ] {
        site.declare_everything().await;
        for which in order {
            site.delete("default", EVERYTHING[which]).await.unwrap_or_else(|why| panic!("{order:?}: {why}"));
        }
        site.until(&format!("all of it goes, in the order {order:?}"), async || {
            for which in EVERYTHING {
                if site.find("default", which).await.is_some() {
                    return false;
                }
            }
            true
        })
        .await;
        assert!(site.system.hypervisor().instances().is_empty(), "{order:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_being_deleted_takes_no_new_users_and_a_vm_that_waits_for_it_does_not_hold_it() {
    let site = Site::new().await;
    site.declare_all("default", "10.78.0.0/24").await;
    let classes = site.in_namespace::<VMClass>("default");
    held(&site, &classes, "small").await;
    site.apply("default", "Disk", "late", json!({"size": "16Mi"})).await;
    let spec = json!({"class": "small", "disks": [{"name": "late", "boot": true}], "networkInterfaces": []});
    site.apply("default", "VM", "late", spec).await;
    let vms = site.in_namespace::<VM>("default");
    let late = async || {
        let status = vms.get("late").await.expect("it is there").status.unwrap_or_default();
        let message = condition::find(&status.conditions, "Ready").map(|c| c.message.clone());
        (status.binding, message.unwrap_or_default())
    };
    site.until("it names the objects it waits for", async || {
        late().await.1 == "VMClass small is being deleted"
    })
    .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(late().await.0, None);
    let listed = classes.get("small").await.expect("it is held").status.unwrap_or_default().used_by;
    assert_eq!(listed.iter().map(|user| user.name.as_str()).collect::<Vec<_>>(), ["web"]);
    site.until_deleted(&vms, "web").await;
    site.until("the class goes", async || is_gone(&classes, "small").await).await;
    site.apply("default", "VMClass", "small", json!({"cpus": 1, "memory": "256Mi", "firmware": "BIOS"}))
        .await;
    site.until("it is bound by the next class of the name", async || late().await.0.is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_that_is_taken_off_is_put_back() {
    let site = Site::new().await;
    site.declare_everything().await;
    for which in EVERYTHING {
        let before = site.find("default", which).await.expect("it is there");
        let finalizers = before["metadata"]["finalizers"].clone();
        assert!(finalizers.is_array(), "{which:?}: {before}");
        site.replace("default", which, json!({"metadata": {"finalizers": null}})).await;
        site.until(&format!("{which:?} has its finalizers again"), async || {
            let now = site.find("default", which).await.expect("it is there");
            now["metadata"]["finalizers"] == finalizers
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_protected_is_not_deleted_before_its_protection_is_taken_off() {
    let site = Site::new().await;
    site.declare_all("default", "10.78.0.0/24").await;
    let protected = [("VM", "web"), ("PublicIP", "web"), ("Disk", "root"), ("Image", "debian")];
    for which in protected {
        site.replace("default", which, json!({"spec": {"deletionProtection": true}})).await;
        let refused = site.delete("default", which).await.expect_err("it is protected");
        let (kind, name) = which;
        let expected =
            format!("{kind} {name} is protected: set spec.deletionProtection to false before deleting it");
        assert!(refused.contains(&expected), "{refused}");
    }
    for which in protected {
        site.replace("default", which, json!({"spec": {"deletionProtection": false}})).await;
        site.delete("default", which).await.expect("it is not protected any more");
    }
    site.until("all of them go", async || {
        for which in protected {
            if site.find("default", which).await.is_some() {
                return false;
            }
        }
        true
    })
    .await;
}

/// A protected object stays when its namespace is deleted, and with it the namespace.
#[tokio::test(start_paused = true)]
async fn a_namespace_with_something_protected_stays_until_it_is_not() {
    let site = Site::new().await;
    let namespaces: Api<Namespace> = Api::all(site.client.clone());
    let team = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    install::apply(&site.client, &[team]).await.expect("it applies");
    site.apply("team", "Disk", "kept", json!({"size": "16Mi", "deletionProtection": true})).await;
    site.apply("team", "Disk", "other", json!({"size": "16Mi"})).await;
    namespaces.delete("team", &DeleteParams::default()).await.expect("accepted");
    site.until("the other goes", async || site.find("team", ("Disk", "other")).await.is_none()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let kept = site.find("team", ("Disk", "kept")).await.expect("it is protected");
    assert!(kept["metadata"]["deletionTimestamp"].is_null(), "{kept}");
    site.replace("team", ("Disk", "kept"), json!({"spec": {"deletionProtection": false}})).await;
    site.until("the namespace goes", async || is_gone(&namespaces, "team").await).await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_with_everything_in_it() {
    let site = Site::new().await;
    let namespaces: Api<Namespace> = Api::all(site.client.clone());
    let team = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    install::apply(&site.client, &[team]).await.expect("it applies");
    site.declare_all("team", "10.79.0.0/24").await;
    namespaces.delete("team", &DeleteParams::default()).await.expect("deletable");
    site.until("the namespace goes", async || {
        namespaces.get_opt("team").await.expect("it answers").is_none()
    })
    .await;
    let left =
        Api::<VMClass>::all(site.client.clone()).list(&ListParams::default()).await.expect("it answers");
    assert!(left.items.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_object_that_many_use_lists_a_few_and_is_not_written_for_each() {
    let site = Site::new().await;
    let class = json!({"cpus": 1, "memory": "16Mi", "firmware": "BIOS"});
    site.apply("default", "VMClass", "small", class).await;
    let classes = site.in_namespace::<VMClass>("default");
    let declare = async |n: usize| {
        let spec = json!({"class": "small", "disks": [{"name": format!("none-{n}"), "boot": true}]});
        site.apply("default", "VM", &format!("vm-{n:03}"), spec).await;
    };
    for n in 0..10 {
        declare(n).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = classes.get("small").await.expect("it is there");
    let listed = before.status.as_ref().map(|s| s.used_by.clone()).unwrap_or_default();
    assert_eq!(listed.len(), berth_api::LISTED_USERS);
    for n in 10..200 {
        declare(n).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let after = classes.get("small").await.expect("it is there");
    assert_eq!(after.resource_version(), before.resource_version(), "it is written");
    let named: Vec<String> = listed.iter().map(|user| user.name.clone()).collect();
    assert_eq!(named, ["vm-000", "vm-001", "vm-002", "vm-003"]);
}

/// The class that protected a key before is free as soon as another one protects it; that one stays as long as its disk.
#[tokio::test(start_paused = true)]
async fn a_key_class_stays_while_it_protects_the_key_of_a_disk() {
    let site = Site::new().await;
    for (name, key) in [("first", "AQEB"), ("second", "AgIC")] {
        let key = format!("{}{}=", key.repeat(10), &key[..3]);
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"key": key},
            "metadata": {"name": name, "namespace": "default"}});
        install::apply(&site.client, &[secret]).await.expect("it applies");
        site.apply("default", "KeyClass", name, json!({"secret": {"name": name}})).await;
    }
    let of = |class: &str| json!({"size": "16Mi", "encryption": {"keyClass": class}});
    site.apply("default", "Disk", "sealed", of("first")).await;
    let small = json!({"cpus": 1, "memory": "16Mi", "firmware": "BIOS"});
    site.apply("default", "VMClass", "small", small).await;
    let vm = json!({"class": "small", "disks": [{"name": "sealed", "boot": true}], "networkInterfaces": [],
        "stop": {"gracePeriodSeconds": 5}});
    site.apply("default", "VM", "sealed", vm).await;
    let class = async || {
        let disk = site.find("default", ("Disk", "sealed")).await.expect("it is there");
        disk["status"]["encryption"]["keyClass"].clone()
    };
    site.until("the disk is made", async || class().await == "default/first").await;
    let classes = site.in_namespace::<KeyClass>("default");
    assert!(held(&site, &classes, "first").await.ends_with("used by Disk default/sealed"));
    site.apply("default", "Disk", "sealed", of("second")).await;
    site.until("the first class goes", async || is_gone(&classes, "first").await).await;
    assert_eq!(class().await, "default/second");
    assert!(held(&site, &classes, "second").await.ends_with("used by Disk default/sealed"));
    site.until_deleted(&site.in_namespace::<VM>("default"), "sealed").await;
    site.until_deleted(&site.in_namespace::<Disk>("default"), "sealed").await;
    site.until("the second class goes", async || is_gone(&classes, "second").await).await;
}

/// A VM is bound and its class is deleted in the same moment, in each possible order: the VM has its class, or
/// waits for one.
#[tokio::test(start_paused = true)]
async fn no_vm_is_bound_without_its_class_when_that_is_deleted_in_the_same_moment() {
    let site = Site::new().await;
    let (vms, classes) = (site.in_namespace::<VM>("default"), site.in_namespace::<VMClass>("default"));
    let (mut kept, mut gone) = (0, 0);
    for n in 0..60 {
        let name = format!("race-{n}");
        let class = json!({"cpus": 1, "memory": "16Mi", "firmware": "BIOS"});
        site.apply("default", "VMClass", &name, class).await;
        site.apply("default", "Disk", &name, json!({"size": "16Mi"})).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let spec = json!({"class": name, "disks": [{"name": name, "boot": true}], "networkInterfaces": []});
        let after = async |turns: usize| {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
        };
        let ((), ()) = tokio::join!(
            async {
                after(30usize.saturating_sub(n)).await;
                site.apply("default", "VM", &name, spec).await;
            },
            async {
                after(n.saturating_sub(30)).await;
                classes.delete(&name, &DeleteParams::default()).await.expect("accepted");
            }
        );
        tokio::time::sleep(Duration::from_secs(2)).await;
        let status = vms.get(&name).await.expect("it is there").status.unwrap_or_default();
        let ready =
            condition::find(&status.conditions, "Ready").map(|c| c.reason.clone()).unwrap_or_default();
        let class = classes.get_opt(&name).await.expect("it answers");
        match &class {
            None => assert_eq!((status.binding, ready.as_str()), (None, "WaitingForClass"), "{n}"),
            Some(class) => {
                assert!(status.binding.is_some(), "{n}: {ready}");
                assert_eq!(class.finalizers(), [berth_api::USED_FINALIZER], "{n}");
            }
        }
        if class.is_none() {
            gone += 1
        } else {
            kept += 1
        }
        vms.delete(&name, &DeleteParams::default()).await.expect("deletable");
    }
    assert!(gone > 0 && kept > 0, "both orders were seen: {gone} gone, {kept} held");
}

#[tokio::test(start_paused = true)]
async fn a_silent_host_that_has_something_is_held_until_it_has_nothing() {
    let site = Site::new().await;
    site.declare_all("default", "10.78.0.0/24").await;
    let hosts: Api<Host> = Api::all(site.client.clone());
    site.agent.abort();
    tokio::time::sleep(Duration::from_secs(60)).await;
    hosts.delete("h1", &DeleteParams::default()).await.expect("accepted");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let listed = hosts.get("h1").await.expect("it is held").status.unwrap_or_default().used_by;
    assert_eq!(listed.iter().map(|user| user.kind.as_str()).collect::<Vec<_>>(), ["Disk", "VM"]);
    let fenced = json!({"spec": {"fenced": true, "cordoned": true}});
    let patch = Patch::Merge(&fenced);
    hosts.patch("h1", &PatchParams::default(), &patch).await.expect("it is there");
    site.until_deleted(&site.in_namespace::<VM>("default"), "web").await;
    site.until_deleted(&site.in_namespace::<Disk>("default"), "root").await;
    site.until("the host goes with the last of it", async || {
        hosts.get_opt("h1").await.expect("it answers").is_none()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_created_with_the_hosts_finalizer_is_bound_by_one_write_and_deleted_whether_bound_or_not() {
    let site = Site::new().await;
    site.apply("default", "VMClass", "small", json!({"cpus": 1, "memory": "256Mi", "firmware": "BIOS"}))
        .await;
    let create = async |kind: &str, name: &str, spec: Value| {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "spec": spec, "metadata":
            {"name": name, "namespace": "default", "finalizers": [berth_api::HOST_FINALIZER]}});
        install::apply(&site.client, &[object]).await.expect("it applies");
    };
    for (name, class) in [("runs", "small"), ("waits", "missing")] {
        create("Disk", name, json!({"size": "16Mi"})).await;
        let disks = json!([{"name": name, "boot": true}]);
        create("VM", name, json!({"class": class, "disks": disks, "networkInterfaces": []})).await;
    }
    let seen = async |kind: &str, name: &str| site.find("default", (kind, name)).await.expect("it is there");
    site.until("one VM runs", async || seen("VM", "runs").await["status"]["state"] == "Running").await;
    site.until("the other one waits", async || !seen("VM", "waits").await["status"]["conditions"].is_null())
        .await;
    for (kind, name) in [("VM", "runs"), ("Disk", "runs"), ("VM", "waits"), ("Disk", "waits")] {
        let object = seen(kind, name).await;
        let managers = object["metadata"]["managedFields"].as_array().expect("it has managers");
        let by_controllers = managers.iter().filter(|entry| entry["manager"] == "berth-controllers");
        let parts: Vec<&Value> = by_controllers.map(|entry| &entry["subresource"]).collect();
        assert!(parts.iter().all(|part| **part == "status"), "{kind} {name}: {object}");
        site.delete("default", (kind, name)).await.expect("it is accepted");
    }
    for which in [("VM", "waits"), ("Disk", "waits"), ("VM", "runs"), ("Disk", "runs")] {
        site.until(&format!("{which:?} goes"), async || site.find("default", which).await.is_none()).await;
    }
}
