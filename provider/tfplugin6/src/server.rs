//! The provider service: from the wire to the traits a provider implements, and back.
//!
//! ```text
//! request ─▶ decode by schema ─▶ trait method (panics caught, cancellable) ─▶ conform to Terraform's rules ─▶ encode
//! ```
//!
//! What goes wrong on the way becomes an error diagnostic of that response. A gRPC error is only for what no response
//! has room for: Terraform shows those as crashes.

mod convert;
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

/// A provider as the gRPC service Terraform speaks to: an implementation of
/// [`crate::proto::tfplugin6::provider_server::Provider`]. [`crate::serve`] makes one; tests may, to call a provider
/// without a process around it.
#[derive(Clone)]
pub struct ProviderServer {
    provider: Arc<dyn Provider>,
    offered: Arc<Offered>,
    /// Cancelled by StopProvider, replaced when a new run begins. Held for a clone only, so a plain lock will do.
    stop: Arc<std::sync::Mutex<CancellationToken>>,
}

impl ProviderServer {
    /// Serves a provider.
    #[must_use]
    pub fn new(provider: Arc<dyn Provider>) -> Self {
        let offered = Arc::new(Offered::new(provider.as_ref()));
        Self { provider, offered, stop: Arc::default() }
    }

    /// The token for a request of this run.
    fn cancel(&self) -> CancellationToken {
        self.stop.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Terraform is told to stop.
    fn stop(&self) {
        tracing::info!("stopping: requests in progress are cancelled");
        self.cancel().cancel();
    }

    /// A run begins. A process that outlives one run (debugging) must not start the next one stopped.
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

/// What a handler inside the server gives: the errors end up in its response.
type Outcome<T> = Result<T, Vec<Diagnostic>>;

/// Runs what a provider wrote. A panic in it is an error of this one operation; what it logs says which that was.
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
