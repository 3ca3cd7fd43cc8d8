//! The control plane that each test gets a copy of.

use std::sync::Arc;

use berth_api::host_addresses::{self, HOST_ADDRESSES};
use berth_api::{Network, manifests};
use berth_apiserver::{Server, ServerConfig};
use berth_engine::RuntimeClock;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};

/// Opens a control plane and installs the definitions, the defaults, a Network `default` for all namespaces, and the
/// namespace `ns`.
pub(crate) async fn install(config: ServerConfig) -> (Server, Client) {
    let config = ServerConfig { clock: clock(), seed: Some(1), ..config };
    let server = Server::open(config).await.expect("the control plane opens");
    let client = Client::new(server.service(), "default");
    let shared = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Network",
        "metadata": {"name": "default", "namespace": "berth-shared"}, "spec": {"cidr": "10.77.0.0/16"}});
    let defaults = manifests::defaults("198.18.100.0/24");
    for object in manifests::all().iter().chain(&defaults).chain([&shared]) {
        apply(&client, object).await;
    }
    apply(&client, &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}})).await;
    // On behalf of the controllers: without the list of hosts there is no firewall, and without a VNI a network has
    // no bridge.
    let listed = host_addresses::to_data(["192.0.2.1".parse().expect("an address")].into_iter());
    let listed = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": listed,
        "metadata": {"name": HOST_ADDRESSES, "namespace": "berth-system"}});
    apply(&client, &listed).await;
    let networks: Api<Network> = Api::namespaced(client.clone(), "berth-shared");
    let identified = Patch::Merge(json!({"status": {"vni": 4096}}));
    networks.patch_status("default", &PatchParams::default(), &identified).await.expect("patched");
    (server, client)
}

/// A clock that follows the runtime's, from a fixed time on.
pub(crate) fn clock() -> Arc<RuntimeClock> {
    Arc::new(RuntimeClock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time")))
}

async fn apply(client: &Client, object: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let lower = kind.to_lowercase();
    resource.plural =
        lower.strip_suffix('y').map_or_else(|| format!("{lower}s"), |stem| format!("{stem}ies"));
    let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = text(&object["metadata"]["name"]);
    api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(object)).await.expect("applied");
}
