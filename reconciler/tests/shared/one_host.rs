//! A complete berth on the embedded control plane, with one host in memory.

use std::time::Duration;

use berth::install;
use berth_agent::AgentConfig;
use berth_api::Host;
use berth_controllers as controllers;
use berth_engine::Identities;
use kube::{Api, Client};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    image,
    installed::{self, Copy},
};

const LIMIT: Duration = Duration::from_secs(300);

/// A control plane and one host, `h1`, with the image `debian`.
pub(crate) struct Site {
    pub(crate) client: Client,
    /// The control plane's database.
    _folder: TempDir,
}

impl Site {
    pub(crate) async fn new() -> Self {
        let Copy { server: _server, admin: client, clock, folder } = installed::copy().await;
        let config = controllers::Config {
            clock: clock.clone(),
            identities: Identities::seeded(1),
            ..controllers::Config::new()
        };
        tokio::spawn(controllers::run(client.clone(), config, CancellationToken::new()));
        let system = image::host(&clock);
        let config = AgentConfig { clock, seed: Some(1), ..AgentConfig::new("h1") };
        let agent = berth_agent::run(config, client.clone(), system, CancellationToken::new());
        tokio::spawn(async move { agent.await.unwrap_or_else(|error| panic!("{error}")) });
        let site = Self { client, _folder: folder };
        let hosts: Api<Host> = Api::all(site.client.clone());
        site.until("the host reports", async || {
            let host = hosts.get_opt("h1").await.expect("it answers");
            host.and_then(|h| h.status).is_some_and(|s| s.observed_generation >= 0)
        })
        .await;
        site.apply("Image", "debian", image::spec()).await.expect("it applies");
        site
    }

    pub(crate) async fn apply(&self, kind: &str, name: &str, spec: Value) -> anyhow::Result<()> {
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name, "namespace": "default"}, "spec": spec});
        install::apply(&self.client, &[object]).await
    }

    pub(crate) async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let end = Instant::now() + LIMIT;
        while !holds().await {
            assert!(Instant::now() < end, "never: {what}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}
