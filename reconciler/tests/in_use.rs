//! What is in use cannot be deleted, and what was used can be as soon as nobody uses it. A whole berth on the embedded
//! control plane, with a host in memory, in one runtime with paused time.

use std::{sync::Arc, time::Duration};

use berth::{clock::Identities, controllers, install};
use berth_agent::{AgentConfig, fake::FakeSystem};
use berth_api::{Host, IPPool, Image, Network, PlacementGroup, StoragePool, VM, VMClass, condition};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

#[path = "shared/image.rs"]
mod image;
#[path = "shared/serve.rs"]
mod serve;
use serve::serve;

const LIMIT: Duration = Duration::from_secs(300);

struct Site {
    client: Client,
    system: Arc<FakeSystem>,
    agent: JoinHandle<()>,
}

impl Site {
    /// A control plane and one ready host, `h1`.
    async fn new() -> Self {
        let (_server, client, clock) = serve().await;
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
        let site = Self { client, system, agent };
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
        self.apply(namespace, "Network", "back", json!({"cidr": range})).await;
        self.apply(namespace, "PublicIP", "web", json!({})).await;
        self.apply(namespace, "Disk", "root", json!({"image": "debian", "size": "2Gi"})).await;
        let spec = json!({"class": "small", "disks": [{"name": "root", "boot": true}],
            "networkInterfaces": [{"name": "nic0", "network": "back", "publicIP": "web"}],
            "placement": {"group": "spread"}, "stop": {"gracePeriodSeconds": 5}});
        self.apply(namespace, "VM", "web", spec).await;
        self.until("the VM runs", async || {
            let vm = self.in_namespace::<VM>(namespace).get("web").await.expect("it is there");
            vm.status
                .is_some_and(|s| condition::find(&s.conditions, "Ready").is_some_and(|c| c.status == "True"))
        })
        .await;
    }

    fn in_namespace<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
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

/// What the control plane says to a deletion that it refuses.
async fn refusal<K>(api: &Api<K>, name: &str) -> String
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 403 => status.message.clone(),
        other => panic!("deleting {} {name}: {other:?}", K::kind(&())),
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_a_vm_uses_is_refused_with_its_user_and_goes_once_it_is_not_used() {
    let site = Site::new().await;
    let client = &site.client;
    site.declare_all("default", "10.78.0.0/24").await;
    let (classes, groups): (Api<VMClass>, Api<PlacementGroup>) =
        (Api::default_namespaced(client.clone()), Api::default_namespaced(client.clone()));
    let (networks, images): (Api<Network>, Api<Image>) =
        (Api::default_namespaced(client.clone()), Api::default_namespaced(client.clone()));
    let (pools, storage): (Api<IPPool>, Api<StoragePool>) =
        (Api::all(client.clone()), Api::all(client.clone()));
    let hosts: Api<Host> = Api::all(client.clone());
    let by_vm = [
        ("VMClass small", refusal(&classes, "small").await),
        ("PlacementGroup spread", refusal(&groups, "spread").await),
        ("Network back", refusal(&networks, "back").await),
    ];
    for (what, said) in by_vm {
        let expected = format!("{what} is in use by VM default/web: delete what uses it first");
        assert!(said.contains(&expected), "{said}");
    }
    let said = refusal(&images, "debian").await;
    assert!(said.contains("Image debian is in use by Disk default/root: delete"), "{said}");
    let said = refusal(&storage, "default").await;
    assert!(said.contains("StoragePool default is in use by Disk default/root: delete"), "{said}");
    let said = refusal(&pools, "default").await;
    assert!(said.contains("IPPool default is in use by PublicIP default/web: delete"), "{said}");
    let said = refusal(&hosts, "h1").await;
    assert!(said.contains("Host h1 is in use by Disk default/root, VM default/web: "), "{said}");
    assert!(said.contains("berth host drain h1") && said.contains("berth host forget h1"), "{said}");
    let vms = site.in_namespace::<VM>("default");
    site.until_deleted(&vms, "web").await;
    site.until_deleted(&classes, "small").await;
    site.until_deleted(&groups, "spread").await;
    site.until_deleted(&networks, "back").await;
    assert!(refusal(&images, "debian").await.contains("Disk default/root"), "the disk is still there");
    site.until_deleted(&site.in_namespace::<berth_api::Disk>("default"), "root").await;
    site.until_deleted(&images, "debian").await;
    site.until_deleted(&site.in_namespace::<berth_api::PublicIP>("default"), "web").await;
    for name in ["default"] {
        site.until_deleted(&pools, name).await;
        site.until_deleted(&storage, name).await;
    }
    let shared: Api<Network> = site.in_namespace("berth-shared");
    site.until_deleted(&shared, "default").await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_going_no_longer_keeps_its_class_and_group() {
    let site = Site::new().await;
    site.declare_all("default", "10.78.0.0/24").await;
    let instance = site.system.hypervisor().instances().pop().expect("it runs");
    site.system.hypervisor().set_behaviour(&instance, |b| b.ignores_powerdown = true);
    let vms = site.in_namespace::<VM>("default");
    vms.delete("web", &DeleteParams::default()).await.expect("deletable");
    // The controllers have heard of it; the guest has its five seconds to shut down.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(vms.get_opt("web").await.expect("it answers").is_some(), "it still stops");
    site.in_namespace::<VMClass>("default").delete("small", &DeleteParams::default()).await.expect("unused");
    site.in_namespace::<PlacementGroup>("default")
        .delete("spread", &DeleteParams::default())
        .await
        .expect("unused");
    assert!(refusal(&site.in_namespace::<Network>("default"), "back").await.contains("VM default/web"));
    site.until("it is gone", async || vms.get_opt("web").await.expect("it answers").is_none()).await;
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
    assert_eq!(after.resource_version(), before.resource_version(), "nobody has written it");
    let said = refusal(&classes, "small").await;
    assert!(said.contains("VM default/vm-000, VM default/vm-001, VM default/vm-002 and others"), "{said}");
}

/// A VM is bound and its class is deleted in the same moment, in every order the two can have.
#[tokio::test(start_paused = true)]
async fn no_vm_is_bound_by_a_class_that_is_deleted_in_the_same_moment() {
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
        let ((), deleted) = tokio::join!(
            async {
                after(30usize.saturating_sub(n)).await;
                site.apply("default", "VM", &name, spec).await;
            },
            async {
                after(n.saturating_sub(30)).await;
                classes.delete(&name, &DeleteParams::default()).await.is_ok()
            }
        );
        tokio::time::sleep(Duration::from_secs(2)).await;
        let status = vms.get(&name).await.expect("it is there").status.unwrap_or_default();
        let ready =
            condition::find(&status.conditions, "Ready").map(|c| c.reason.clone()).unwrap_or_default();
        match deleted {
            true => assert_eq!((status.binding, ready.as_str()), (None, "WaitingForClass"), "{n}"),
            false => assert!(status.binding.is_some(), "{n}: {ready}"),
        }
        if deleted {
            gone += 1
        } else {
            kept += 1
        }
        vms.delete(&name, &DeleteParams::default()).await.expect("deletable");
    }
    assert!(gone > 0 && kept > 0, "both orders were seen: {gone} deleted, {kept} refused");
}

#[tokio::test(start_paused = true)]
async fn a_silent_host_that_has_something_is_refused_and_one_without_anything_is_not() {
    let site = Site::new().await;
    site.declare_all("default", "10.78.0.0/24").await;
    let hosts: Api<Host> = Api::all(site.client.clone());
    site.agent.abort();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(refusal(&hosts, "h1").await.contains("VM default/web"));
    let fenced = json!({"spec": {"fenced": true, "cordoned": true}});
    let patch = kube::api::Patch::Merge(&fenced);
    hosts.patch("h1", &kube::api::PatchParams::default(), &patch).await.expect("it is there");
    site.until_deleted(&site.in_namespace::<VM>("default"), "web").await;
    site.until_deleted(&site.in_namespace::<berth_api::Disk>("default"), "root").await;
    site.until("the host goes with the last of it", async || {
        hosts.get_opt("h1").await.expect("it answers").is_none()
    })
    .await;
}
