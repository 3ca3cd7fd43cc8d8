//! What every reconcile is handed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;

use crate::config::AgentConfig;
use crate::definitions::Definitions;
use crate::error::Error;
use crate::host::{Overhead, SignOfLife};
use crate::index::Index;
use crate::machine::Machines;
use crate::network::Applied;
use crate::pulls::Pulls;
use crate::queue::Queue;
use crate::recorder::Recorder;
use crate::seekers::Seekers;
use crate::site::Allegiance;
use crate::system::{HostFacts, System};
use crate::vm::Admissions;

/// One running agent.
pub(crate) struct Context {
    pub(crate) config: AgentConfig,
    pub(crate) client: Client,
    pub(crate) system: Arc<dyn System>,
    pub(crate) index: Index,
    pub(crate) queue: Arc<Queue>,
    pub(crate) machines: Machines,
    pub(crate) admissions: Admissions,
    pub(crate) pulls: Pulls,
    pub(crate) network: Applied,
    pub(crate) seekers: Seekers,
    pub(crate) recorder: Recorder,
    pub(crate) sign_of_life: SignOfLife,
    /// Which control plane this host has obeyed.
    pub(crate) allegiance: Allegiance,
    /// What a VM takes above its guest memory, as it is measured here.
    pub(crate) overhead: Overhead,
    /// Whether the control plane knows all that is reported.
    pub(crate) definitions: Definitions,
    /// Whether this host was being emptied when that was last looked at.
    pub(crate) draining: AtomicBool,
    synced: watch::Sender<bool>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("host", &self.config.host_name).finish_non_exhaustive()
    }
}

impl Context {
    pub(crate) fn new(
        config: AgentConfig,
        client: Client,
        system: Arc<dyn System>,
        recorder: Recorder,
    ) -> Self {
        let queue = Arc::new(Queue::new(config.seed));
        Self {
            index: Index::default(),
            admissions: Admissions::default(),
            machines: Machines::new(system.clone(), queue.clone(), config.clock.clone()),
            pulls: Pulls::new(system.clone(), queue.clone()),
            network: Applied::default(),
            seekers: Seekers::default(),
            recorder,
            sign_of_life: SignOfLife::default(),
            allegiance: Allegiance::default(),
            overhead: Overhead::default(),
            definitions: Definitions::default(),
            draining: AtomicBool::new(false),
            synced: watch::channel(false).0,
            queue,
            config,
            client,
            system,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.config.clock.now()
    }

    /// What the machine has, with what a VM takes here above its guest memory.
    pub(crate) async fn facts(&self) -> Result<HostFacts, Error> {
        let facts = self.system.facts().await?;
        Ok(HostFacts { overhead_bytes: self.overhead.figure(facts.overhead_bytes), ..facts })
    }

    pub(crate) fn host(&self) -> &str {
        &self.config.host_name
    }

    /// To be called when a table has changed: lets [`Context::synced`] go on once all are there.
    pub(crate) fn sync_changed(&self) {
        if !*self.synced.borrow() && self.index.read().is_synced() {
            self.synced.send_replace(true);
        }
    }

    /// Waits until every table holds what the control plane has.
    pub(crate) async fn synced(&self) {
        let mut synced = self.synced.subscribe();
        // The sender is in `self`: it cannot be gone.
        let _ = synced.wait_for(|synced| *synced).await;
    }
}
