//! A network that is on several hosts: the controllers say where it is, each host's agent makes its way to the others.
//! Whole agents on hosts in memory, on the embedded control plane, in one runtime with paused time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use berth::{clock::Identities, controllers};
use berth_agent::{AgentConfig, RuntimeClock, fake::FakeSystem, system::Tunnel};
use berth_api::{Network, VM, condition};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

#[path = "shared/image.rs"]
mod image;
#[path = "shared/serve.rs"]
mod serve;
use serve::serve;

const LIMIT: Duration = Duration::from_secs(300);

struct Site {
    client: Client,
    clock: Arc<RuntimeClock>,
    hosts: BTreeMap<&'static str, Arc<FakeSystem>>,
    stop: CancellationToken,
}

impl Site {
    async fn new() -> Self {
        let (_server, client, clock) = serve().await;
        let site = Self { client, clock, hosts: BTreeMap::new(), stop: CancellationToken::new() };
        let config = controllers::Config {
            clock: site.clock.clone(),
            identities: Identities::seeded(1),
            ..controllers::Config::new()
        };
        tokio::spawn(controllers::run(site.client.clone(), config, site.stop.clone()));
        site.apply("VMClass", "small", json!({"cpus": 1, "memory": "512Mi", "firmware": "BIOS"})).await;
        site.apply("Image", "debian", image::spec()).await;
        site
    }

    async fn join(&mut self, name: &'static str, address: &str, mtu: u16) {
        let system = image::host(&self.clock);
        system.change_facts(|facts| {
            facts.address = Some(address.parse().expect("an address"));
            facts.mtu = Some(mtu);
        });
        self.hosts.insert(name, system.clone());
        let config = AgentConfig { clock: self.clock.clone(), seed: Some(1), ..AgentConfig::new(name) };
        let (client, stop) = (self.client.clone(), self.stop.clone());
        tokio::spawn(async move { berth_agent::run(config, client, system, stop).await });
        let hosts: Api<berth_api::Host> = Api::all(self.client.clone());
        self.until(&format!("{name} reports"), async || {
            let host = hosts.get_opt(name).await.expect("it answers");
            host.and_then(|h| h.status).is_some_and(|s| s.address.is_some())
        })
        .await;
    }

    async fn apply(&self, kind: &str, name: &str, spec: Value) {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let resource = ApiResource {
            group: "berth.dev".into(),
            version: "v1alpha1".into(),
            api_version: "berth.dev/v1alpha1".into(),
            kind: kind.into(),
            plural: format!("{}{}", kind.to_lowercase(), if kind == "VMClass" { "es" } else { "s" }),
        };
        let api: Api<DynamicObject> = Api::default_namespaced_with(self.client.clone(), &resource);
        let applied = api.patch(name, &PatchParams::apply("user").force(), &Patch::Apply(&object)).await;
        applied.unwrap_or_else(|error| panic!("applying {kind} {name}: {error}"));
    }

    /// A VM that has to be on this host.
    async fn vm(&self, name: &str, host: &str, network: &str) {
        self.apply("Disk", name, json!({"image": "debian", "size": "4Gi"})).await;
        let spec = json!({
            "class": "small", "placement": {"host": host},
            "disks": [{"name": name, "boot": true}],
            "networkInterfaces": [{"name": "nic0", "network": network}],
        });
        self.apply("VM", name, spec).await;
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let begun = Instant::now();
        while !holds().await {
            assert!(begun.elapsed() < LIMIT, "never: {what}");
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    async fn runs(&self, name: &str) {
        let vms: Api<VM> = Api::default_namespaced(self.client.clone());
        self.until(&format!("{name} runs"), async || {
            let vm = vms.get(name).await.expect("it answers");
            let status = vm.status.unwrap_or_default();
            condition::find(&status.conditions, "Running").is_some_and(|c| c.status == "True")
        })
        .await;
    }

    /// The ways from a host: network range → who is sent to.
    fn tunnels(&self, host: &str) -> Vec<Tunnel> {
        self.hosts[host].networks_now().into_iter().filter_map(|network| network.tunnel).collect()
    }

    async fn tunnelled(&self, host: &str, peers: &[&str]) {
        self.until(&format!("{host} reaches {peers:?}"), async || {
            let tunnels = self.tunnels(host);
            let to: Vec<String> = tunnels.iter().flat_map(|t| &t.peers).map(ToString::to_string).collect();
            to == peers
        })
        .await;
    }

    async fn network(&self) -> Network {
        let networks: Api<Network> = Api::namespaced(self.client.clone(), "berth-shared");
        networks.get("default").await.expect("the default network")
    }
}

fn in_simulated_time(scenario: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O can always be built");
    runtime.block_on(scenario);
}

#[test]
fn a_network_leads_to_the_hosts_its_vms_are_on_and_to_no_others() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        site.vm("one", "h1", "default").await;
        site.runs("one").await;
        let alone = &site.hosts["h1"].networks_now()[0];
        assert_eq!((alone.mtu, alone.tunnel.clone()), (1500, None), "one machine is as it always was");

        site.join("h2", "192.0.2.2", 1500).await;
        site.join("h3", "192.0.2.3", 9000).await;
        site.vm("two", "h2", "default").await;
        site.runs("two").await;
        site.tunnelled("h1", &["192.0.2.2"]).await;
        site.tunnelled("h2", &["192.0.2.1"]).await;
        let (here, there) = (&site.tunnels("h1")[0], &site.tunnels("h2")[0]);
        assert_eq!(here.vni, there.vni);
        assert_eq!(site.network().await.status.and_then(|s| s.vni), Some(i64::from(here.vni)));
        assert_eq!(site.hosts["h2"].networks_now()[0].mtu, 1450);
        let rules = site.hosts["h1"].firewall_now();
        assert_eq!(rules.nat[0].tunnel.as_ref(), Some(here), "guarded");

        site.vm("three", "h3", "default").await;
        site.runs("three").await;
        site.tunnelled("h1", &["192.0.2.2", "192.0.2.3"]).await;
        // The last VM of the network leaves a host.
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        vms.delete("two", &DeleteParams::default()).await.expect("deleted");
        site.tunnelled("h1", &["192.0.2.3"]).await;
        site.tunnelled("h2", &[]).await;
        assert!(site.hosts["h2"].leftovers().bridges.is_empty());
        site.stop.cancel();
    });
}

#[test]
fn a_vm_waits_for_a_network_that_is_refused_and_the_reason_is_told() {
    in_simulated_time(async {
        let mut site = Site::new().await;
        site.join("h1", "192.0.2.1", 1500).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        site.apply("Network", "mine", json!({"cidr": "10.77.4.0/24"})).await;
        site.vm("one", "h1", "mine").await;
        let vms: Api<VM> = Api::default_namespaced(site.client.clone());
        site.until("it is told why it waits", async || {
            let status = vms.get("one").await.expect("it answers").status.unwrap_or_default();
            let ready = condition::find(&status.conditions, "Ready").map(|c| c.message.clone());
            ready.is_some_and(|text| {
                text.contains("Network mine is refused")
                    && text.contains("overlaps 10.77.0.0/16 of network berth-shared/default")
            })
        })
        .await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(vms.get("one").await.expect("it answers").status.and_then(|s| s.binding).is_none());
        // Once the older one is gone, it goes on by itself.
        let networks: Api<Network> = Api::namespaced(site.client.clone(), "berth-shared");
        networks.delete("default", &DeleteParams::default()).await.expect("deleted");
        site.runs("one").await;
        site.stop.cancel();
    });
}
