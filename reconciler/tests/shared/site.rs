//! The embedded control plane with controllers, and complete agents on hosts in memory.

use std::{collections::BTreeMap, sync::Arc};

use berth_agent::AgentConfig;
use berth_controllers as controllers;
use berth_engine::{Identities, RuntimeClock};
use berth_host::fake::FakeSystem;
use kube::Client;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::{
    image,
    installed::{self, Copy},
};

pub(crate) struct Site {
    pub(crate) client: Client,
    pub(crate) clock: Arc<RuntimeClock>,
    pub(crate) hosts: BTreeMap<&'static str, Arc<FakeSystem>>,
    pub(crate) stop: CancellationToken,
    /// The control plane's database.
    _folder: TempDir,
}

impl Site {
    /// Without hosts.
    pub(crate) async fn start() -> Self {
        let Copy { server: _server, admin: client, clock, folder } = installed::copy().await;
        let site =
            Self { client, clock, hosts: BTreeMap::new(), stop: CancellationToken::new(), _folder: folder };
        let config = controllers::Config {
            clock: site.clock.clone(),
            identities: Identities::seeded(1),
            ..controllers::Config::new()
        };
        tokio::spawn(controllers::run(site.client.clone(), config, site.stop.clone()));
        site
    }

    /// Starts a host with this address on the segment between hosts.
    pub(crate) fn start_host(&mut self, name: &'static str, address: &str, mtu: u16) {
        let system = image::host(&self.clock);
        system.change_facts(|facts| {
            facts.address = Some(address.parse().expect("an address"));
            facts.mtu = Some(mtu);
        });
        self.hosts.insert(name, system.clone());
        let config = AgentConfig { clock: self.clock.clone(), seed: Some(1), ..AgentConfig::new(name) };
        let (client, stop) = (self.client.clone(), self.stop.clone());
        tokio::spawn(async move { berth_agent::run(config, client, system, stop).await });
    }
}
