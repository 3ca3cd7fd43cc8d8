//! Actions.

use futures::{Stream, StreamExt as _, stream};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::DropGuard;

use super::{Outcome, ProviderServer, convert, guarded};
use crate::{
    CancellationToken,
    action::{ActionRequest, Progress},
    diagnostic::Diagnostic,
    proto::tfplugin6::{self as wire, invoke_action::event},
};

impl ProviderServer {
    pub(super) async fn validate_action(
        &self,
        sent: wire::validate_action_config::Request,
    ) -> Outcome<Vec<Diagnostic>> {
        let action = self.offered.action(&sent.type_name)?;
        let request = self.validate_request(sent.config.as_ref(), &action.schema().ty)?;
        guarded("validate", action.it.type_name(), action.it.validate(request)).await
    }

    pub(super) async fn planned_action(
        &self,
        sent: wire::plan_action::Request,
    ) -> Outcome<wire::plan_action::Response> {
        let action = self.offered.action(&sent.action_type)?;
        let request = ActionRequest {
            config: convert::value_from(sent.config.as_ref(), &action.schema().ty)?,
            client: convert::client(sent.client_capabilities),
            cancel: self.cancel(),
        };
        let planned = guarded("plan", action.it.type_name(), action.it.plan(request)).await?;
        Ok(wire::plan_action::Response {
            diagnostics: convert::diagnostics(planned.diagnostics),
            deferred: planned.deferred.map(convert::deferred),
        })
    }

    /// The events of an action: its progress, then its end. A stream that is dropped cancels the action.
    pub(super) fn invoke(
        &self,
        sent: wire::invoke_action::Request,
    ) -> impl Stream<Item = wire::invoke_action::Event> + Send + 'static {
        let (progress, messages) = Progress::channel();
        let cancel = self.cancel().child_token();
        let guard = cancel.clone().drop_guard();
        let server = self.clone();
        let end = tokio::spawn(async move { server.invoked(sent, cancel, progress).await });
        let messages = UnboundedReceiverStream::new(messages).map(|message| {
            let progress = event::Type::Progress(event::Progress { message });
            wire::invoke_action::Event { r#type: Some(progress) }
        });
        // The messages end when the action drops its sender, which it does by its end.
        let end = stream::once(async move {
            let diagnostics = match end.await {
                Ok(Ok(diagnostics) | Err(diagnostics)) => diagnostics,
                Err(error) => vec![Diagnostic::error("The action has stopped", error.to_string())],
            };
            let completed = event::Completed { diagnostics: convert::diagnostics(diagnostics) };
            wire::invoke_action::Event { r#type: Some(event::Type::Completed(completed)) }
        });
        Guarded { events: Box::pin(messages.chain(end)), _guard: guard }
    }

    async fn invoked(
        &self,
        sent: wire::invoke_action::Request,
        cancel: CancellationToken,
        progress: Progress,
    ) -> Outcome<Vec<Diagnostic>> {
        let action = self.offered.action(&sent.action_type)?;
        let request = ActionRequest {
            config: convert::value_from(sent.config.as_ref(), &action.schema().ty)?,
            client: convert::client(sent.client_capabilities),
            cancel,
        };
        guarded("invoke", action.it.type_name(), action.it.invoke(request, progress)).await
    }
}

/// Events whose drop cancels the action.
struct Guarded<S> {
    events: S,
    _guard: DropGuard,
}

impl<S: Stream + Unpin> Stream for Guarded<S> {
    type Item = S::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<S::Item>> {
        self.events.poll_next_unpin(context)
    }
}
