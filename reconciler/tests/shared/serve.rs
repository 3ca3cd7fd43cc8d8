//! What every test of a whole berth begins with: a control plane in memory, with berth's definitions in it.

use std::sync::Arc;

use berth::install;
use berth_agent::RuntimeClock;
use berth_apiserver::{Server, ServerConfig};
use kube::Client;

/// The control plane, its administrator, and the clock that it and everybody else goes by.
pub(crate) async fn serve() -> (Server, Client, Arc<RuntimeClock>) {
    let base = "2026-01-01T00:00:00Z".parse().expect("a time");
    let config = ServerConfig {
        clock: Arc::new(berth_apiserver::RuntimeClock::starting_at(base)),
        seed: Some(1),
        ..ServerConfig::in_memory()
    };
    let server = Server::open(config).await.expect("an in-memory server opens");
    let admin = Client::new(server.service(), "default");
    install::manifests(&admin).await.expect("the manifests apply");
    install::defaults(&admin, "10.77.0.0/16", "198.18.100.0/24").await.expect("the defaults apply");
    (server, admin, Arc::new(RuntimeClock::starting_at(base)))
}
