//! The result of the `provider` block, shared by all resources of a process.

use std::{
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::Value as Json;
use tfplugin6::Diagnostic;
use tokio::{sync::OnceCell, time::timeout};

use crate::{
    api::{Address, Api, ApiError, RetryLimit},
    connection::Server,
    defaults::Defaults,
    run::Run,
};

/// The time limit for finding out, once per process, whether the control plane responds to a plan.
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// The time limit for finding out, once per process, whether reads can succeed.
const READ_PROBE_LIMIT: Duration = Duration::from_millis(4500);

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
    /// The values of what new resources leave out.
    pub defaults: Defaults,
    /// The control plane of `api`; empty while there is no client.
    pub server: Server,
    reachable: Arc<OnceCell<bool>>,
    /// The facts about this run of Terraform.
    pub run: Arc<Run>,
    readable: Arc<OnceCell<Result<(), Arc<ApiError>>>>,
    reported: Arc<AtomicBool>,
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
        Self {
            api,
            owner,
            namespace,
            defaults: Defaults::default(),
            server: Server::default(),
            reachable: Arc::default(),
            run: Arc::default(),
            readable: Arc::default(),
            reported: Arc::default(),
        }
    }

    /// Sets the control plane.
    #[must_use]
    pub fn at(self, server: Server) -> Self {
        Self { server, ..self }
    }

    /// Sets the values of what new resources leave out.
    #[must_use]
    pub fn with_defaults(self, defaults: Defaults) -> Self {
        Self { defaults, ..self }
    }

    /// The field manager.
    #[must_use]
    pub fn manager(&self) -> String {
        format!("terraform:{}", self.owner)
    }

    /// The client of a control plane that responds; checked once, then cached.
    pub async fn reachable(&self) -> Option<&Api> {
        let api = self.api.as_ref().ok()?;
        let responds = self.reachable.get_or_init(async || match self.readable.get() {
            Some(readable) => readable.is_ok(),
            None => api.probe(PROBE_LIMIT).await.is_ok(),
        });
        responds.await.then_some(api)
    }

    /// Finds out whether reads can succeed; checked once, then cached. A plan of many resources fails as fast as that of one.
    ///
    /// # Errors
    /// Why the control plane did not respond.
    pub async fn readable(&self, api: &Api) -> Result<(), Arc<ApiError>> {
        self.readable.get_or_init(async || api.probe(READ_PROBE_LIMIT).await.map_err(Arc::new)).await.clone()
    }

    /// Reads an object. The first read of the process finds out for all of them whether reads can succeed, and costs no request
    /// more.
    ///
    /// # Errors
    /// Every failure of the read, and why the first one got no response.
    pub async fn read(
        &self,
        api: &Api,
        at: &Address,
        retry_limit: &RetryLimit,
    ) -> Result<Option<Json>, Arc<ApiError>> {
        let mut first = None;
        let readable = self.readable.get_or_init(async || {
            match timeout(READ_PROBE_LIMIT, api.read(at, retry_limit)).await {
                Ok(Err(error)) if error.is_without_response() => Err(Arc::new(error)),
                Ok(result) => {
                    first = Some(result);
                    Ok(())
                }
                Err(_) => Err(Arc::new(api.silent(READ_PROBE_LIMIT))),
            }
        });
        readable.await.clone()?;
        match first {
            Some(result) => result.map_err(Arc::new),
            None => api.read(at, retry_limit).await.map_err(Arc::new),
        }
    }

    /// The diagnostic of a failure that all requests of this process share: in full once, then short. Terraform shows the
    /// errors of all resources.
    #[must_use]
    pub fn shared_failure(&self, title: &str, full: Diagnostic) -> Diagnostic {
        if !self.reported.swap(true, Ordering::SeqCst) {
            return full;
        }
        let mut letters = full.summary.chars();
        let first: String = letters.next().into_iter().flat_map(char::to_lowercase).collect();
        let summary = format!("{title}: {first}{}", letters.as_str());
        Diagnostic::error(summary, "Another error of this run describes the cause.")
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
