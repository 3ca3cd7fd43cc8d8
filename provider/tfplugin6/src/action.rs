//! Actions: operations without a state of their own, such as a restart.

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::{
    CancellationToken,
    client::{ClientCapabilities, Deferred},
    diagnostic::Diagnostic,
    resource::ValidateRequest,
    schema::Schema,
    value::Value,
};

/// One action type (Terraform 1.14 and later).
#[async_trait]
pub trait Action: Send + Sync + 'static {
    /// `berth_vm_restart`
    fn type_name(&self) -> &str;

    /// The schema of the block `config`.
    fn schema(&self) -> Schema;

    /// Validates a configuration. Values may be unknown. The provider is not configured yet.
    async fn validate(&self, request: ValidateRequest) -> Vec<Diagnostic> {
        let _ = request;
        Vec::new()
    }

    /// Checks that the action can be invoked. Values may be unknown, and objects that it concerns may not exist yet.
    async fn plan(&self, request: ActionRequest) -> PlanActionResponse {
        let _ = request;
        PlanActionResponse::default()
    }

    /// Invokes the action. The configuration is wholly known.
    async fn invoke(&self, request: ActionRequest, progress: Progress) -> Vec<Diagnostic>;
}

/// The request of [`Action::plan`] and [`Action::invoke`].
#[derive(Debug, Clone)]
pub struct ActionRequest {
    /// The configuration.
    pub config: Value,
    /// The capabilities of the Terraform client.
    pub client: ClientCapabilities,
    /// Cancelled when Terraform sends StopProvider, or has stopped reading the progress.
    pub cancel: CancellationToken,
}

/// The response of [`Action::plan`].
#[derive(Debug, Clone, Default)]
pub struct PlanActionResponse {
    /// Set if too much is unknown to plan.
    pub deferred: Option<Deferred>,
    /// Diagnostics to show.
    pub diagnostics: Vec<Diagnostic>,
}

/// Messages to the user while an action is in progress.
#[derive(Debug, Clone)]
pub struct Progress {
    messages: mpsc::UnboundedSender<String>,
}

impl Progress {
    /// Messages, and where they arrive.
    #[must_use]
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<String>) {
        let (messages, arriving) = mpsc::unbounded_channel();
        (Self { messages }, arriving)
    }

    /// Shows a message, if Terraform still reads them.
    pub fn report(&self, message: impl Into<String>) {
        let _ = self.messages.send(message.into());
    }
}
