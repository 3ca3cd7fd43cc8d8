//! The provider service: from the wire to the traits a provider implements, and back.
//!
//! ```text
//! request ─▶ decode by schema ─▶ trait method (panics caught, cancellable) ─▶ conform to Terraform's rules ─▶ encode
//! ```
//!
//! A failure on the way becomes an error diagnostic of that response. A gRPC error is used only when the response has no room
//! for diagnostics: Terraform shows gRPC errors as crashes.

mod action;
mod convert;
mod list_resource;
mod offered;
mod other;
mod resource;
mod rpc;
mod schemas;

use std::{any::Any, fmt, future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::{diagnostic::Diagnostic, provider::Provider};
use offered::Offered;

/// A provider as a gRPC service for Terraform: an implementation of [`crate::proto::tfplugin6::provider_server::Provider`].
/// [`crate::serve`] creates one; tests may create one to call a provider without a process around it.
#[derive(Clone)]
pub struct ProviderServer {
    provider: Arc<dyn Provider>,
    offered: Arc<Offered>,
    /// Cancelled by StopProvider, replaced when a new run begins. The lock is held only for a clone, so a synchronous mutex is
    /// enough.
    stop: Arc<std::sync::Mutex<CancellationToken>>,
}

impl ProviderServer {
    /// Serves a provider.
    #[must_use]
    pub fn new(provider: Arc<dyn Provider>) -> Self {
        let offered = Arc::new(Offered::new(provider.as_ref()));
        Self { provider, offered, stop: Arc::default() }
    }

    /// The cancellation token for a request of this run.
    fn cancel(&self) -> CancellationToken {
        self.stop.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Cancels the requests of this run, on StopProvider.
    fn stop(&self) {
        tracing::info!("stopping: requests in progress are cancelled");
        self.cancel().cancel();
    }

    /// Begins a run. In a process that outlives one run (debugging), the next run must not start cancelled.
    fn begin(&self) {
        let mut stop = self.stop.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if stop.is_cancelled() {
            *stop = CancellationToken::new();
        }
    }
}

impl fmt::Debug for ProviderServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderServer").finish_non_exhaustive()
    }
}

/// The result of a handler inside the server: errors end up in its response.
type Outcome<T> = Result<T, Vec<Diagnostic>>;

/// Runs code of the provider. A panic in it is an error of this one operation; the log names the operation.
async fn guarded<T>(rpc: &'static str, of: &str, call: impl Future<Output = T> + Send) -> Outcome<T> {
    let span = tracing::info_span!("request", tf_rpc = rpc, tf_type = of);
    AssertUnwindSafe(call.instrument(span)).catch_unwind().await.map_err(|panic| {
        let detail =
            format!("The provider panicked in {rpc}: {}. This is a bug in the provider.", text(&*panic));
        vec![Diagnostic::error("Provider bug", detail)]
    })
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
