//! A control plane in memory, with berth's definitions in it.

use std::sync::Arc;

use berth_apiserver::{Server, ServerConfig};
use berth_engine::RuntimeClock;
use kube::Client;

use super::setup;

/// Returns the control plane, a client of its administrator, and the clock that all components share.
pub(crate) async fn serve() -> (Server, Client, Arc<RuntimeClock>) {
    let (server, admin) = setup::install(ServerConfig::in_memory()).await;
    (server, admin, setup::clock())
}
