//! The result of the `provider` block, shared by all resources of a process.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::sync::OnceCell;

use crate::{api::Api, connection::Server};

/// The time limit for finding out, once per process, whether the control plane responds to a plan.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// The settings, shared by all resources.
#[derive(Debug, Default)]
pub struct Session {
    settings: RwLock<Settings>,
}

/// The settings from the `provider` block.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The client of the control plane, or the reason there is none.
    pub api: Result<Api, String>,
    /// The owner of the objects.
    pub owner: String,
    /// The default namespace; none while it is unknown.
    pub namespace: Option<String>,
    /// The control plane of `api`; empty while there is no client.
    pub server: Server,
    reachable: Arc<OnceCell<bool>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self::new(Err("The provider is not configured yet.".into()), "default".into(), None)
    }
}

impl Settings {
    /// Settings with these values.
    #[must_use]
    pub fn new(api: Result<Api, String>, owner: String, namespace: Option<String>) -> Self {
        Self { api, owner, namespace, server: Server::default(), reachable: Arc::new(OnceCell::new()) }
    }

    /// Sets the control plane.
    #[must_use]
    pub fn at(self, server: Server) -> Self {
        Self { server, ..self }
    }

    /// The field manager.
    #[must_use]
    pub fn manager(&self) -> String {
        format!("terraform:{}", self.owner)
    }

    /// The client of a control plane that responds; checked once, then cached.
    pub async fn reachable(&self) -> Option<&Api> {
        let api = self.api.as_ref().ok()?;
        let responds = self.reachable.get_or_init(|| api.responds(PROBE_LIMIT)).await;
        responds.then_some(api)
    }
}

impl Session {
    /// The current settings.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the settings.
    pub fn configure(&self, settings: Settings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
    }
}
