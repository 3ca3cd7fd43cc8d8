//! The common setup of tests of a complete berth: a control plane with berth's definitions in it.

use std::sync::Arc;

use berth::install;
use berth_api::{Network, NetworkSpec};
use berth_apiserver::{Server, ServerConfig};
use berth_engine::RuntimeClock;
use kube::{Api, Client, api::PostParams};

/// Opens a control plane and installs the definitions, the defaults, and a Network `default` for all namespaces.
pub(crate) async fn install(config: ServerConfig) -> (Server, Client) {
    let config = ServerConfig { clock: clock(), seed: Some(1), ..config };
    let server = Server::open(config).await.expect("the control plane opens");
    let admin = Client::new(server.service(), "default");
    install::manifests(&admin).await.expect("the manifests apply");
    install::defaults(&admin, "198.18.100.0/24").await.expect("the defaults apply");
    share_a_network(&admin).await;
    (server, admin)
}

/// A clock that follows the runtime's, from a fixed time on.
pub(crate) fn clock() -> Arc<RuntimeClock> {
    Arc::new(RuntimeClock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time")))
}

/// Creates the Network `default` that all namespaces share, so that tests know their VMs' addresses.
async fn share_a_network(admin: &Client) {
    let networks: Api<Network> = Api::namespaced(admin.clone(), "berth-shared");
    let spec = NetworkSpec { cidr: "10.77.0.0/16".to_owned(), ..NetworkSpec::default() };
    networks.create(&PostParams::default(), &Network::new("default", spec)).await.expect("created");
}
