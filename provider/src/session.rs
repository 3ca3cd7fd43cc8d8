//! What the `provider` block came to: shared by all resources of a process.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tokio::sync::OnceCell;

use crate::api::Api;

/// How long a plan waits to learn whether the control plane answers. Once a process.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// Shared by all resources.
#[derive(Debug, Default)]
pub struct Session {
    settings: RwLock<Settings>,
}

/// What the `provider` block came to.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The way to the control plane, or why there is none.
    pub api: Result<Api, String>,
    /// Whose objects these are.
    pub owner: String,
    /// The namespace of what does not say one; none while it is not known.
    pub namespace: Option<String>,
    reachable: Arc<OnceCell<bool>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self::new(Err("The provider is not configured yet.".into()), "default".into(), None)
    }
}

impl Settings {
    /// These.
    #[must_use]
    pub fn new(api: Result<Api, String>, owner: String, namespace: Option<String>) -> Self {
        Self { api, owner, namespace, reachable: Arc::new(OnceCell::new()) }
    }

    /// The field manager.
    #[must_use]
    pub fn manager(&self) -> String {
        format!("terraform:{}", self.owner)
    }

    /// The way to a control plane that answers; asked once, and then remembered.
    pub async fn reachable(&self) -> Option<&Api> {
        let api = self.api.as_ref().ok()?;
        let answers = self.reachable.get_or_init(|| api.answers(PROBE_LIMIT)).await;
        answers.then_some(api)
    }
}

impl Session {
    /// The settings now.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes other settings.
    pub fn configure(&self, settings: Settings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = settings;
    }
}
