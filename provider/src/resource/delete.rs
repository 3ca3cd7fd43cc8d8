//! Delete: request the deletion, then wait until the object is gone.

use std::time::Duration;

use serde_json::{Value as Json, json};
use tfplugin6::{
    Diagnostic, Value,
    resource::{ApplyRequest, ApplyResponse},
};
use tokio::time::{Instant, sleep};

use super::{KindResource, apply::ApplyContext, create::is_known_as, is_terminating, text, wait::GRACE};
use crate::{
    api::{self, ApiError, ObjectWait, Verdict, WaitEnd},
    kind,
    private::Private,
    readiness::{Condition, condition},
    timeouts::{self, Operation},
};

/// The result of a deletion request.
enum Deletion {
    Gone,
    /// The object, held by finalizers.
    Terminating(Json),
}

impl KindResource {
    /// Destroys the object.
    pub(super) async fn destroy(&self, request: ApplyRequest) -> ApplyResponse {
        let settings = self.session.settings();
        let api = match &settings.api {
            Ok(api) => api,
            Err(problem) => {
                let at = self.address(&request.prior);
                return self.no_control_plane(&settings, &at, problem).into();
            }
        };
        let at = self.address(&request.prior);
        let until = Instant::now() + timeouts::limit(Operation::Delete, &request.prior, self.info.timeouts);
        let uid = request.prior.get("uid").as_str().unwrap_or_default();
        let apply = ApplyContext { request: &request, settings: &settings, api, at, until };
        if Private::from_bytes(&request.private).leaves_object {
            return self.left(&apply.at);
        }
        if let Err(diagnostics) = self.refuse_in_use(&apply, uid).await {
            return ApplyResponse::failed(diagnostics);
        }
        if !settings.run.begin_deletion(uid) {
            return self.left(&apply.at);
        }
        let requested = if self.kind.is_adopted() {
            self.withdraw(&apply, uid).await.map(|()| Deletion::Gone)
        } else {
            self.request_deletion(&apply, uid).await
        };
        settings.run.end_deletion(uid);
        let object = match requested {
            Ok(Deletion::Gone) => return ApplyResponse::new(Value::Null),
            Ok(Deletion::Terminating(object)) => object,
            Err(diagnostics) => return ApplyResponse::failed(diagnostics),
        };
        let wait = ObjectWait { api, at: &apply.at, object, retry_limit: apply.wait_limit() };
        let ended = api::wait_until_settled(wait, GRACE, |object, settled| {
            match self.kind.blocked_by_guest(object).filter(|_| settled) {
                Some(blocking) => Verdict::Done(blocking),
                None => {
                    let ready = condition(object, "Ready");
                    Verdict::Wait(ready.map_or_else(|| "its finalizers".into(), |ready| ready.text()))
                }
            }
        });
        destroyed(&self.title(&apply.at), ended.await)
    }

    /// Withdraws what this resource declares of an object that another program has created and deletes.
    async fn withdraw(&self, apply: &ApplyContext<'_>, uid: &str) -> Result<(), Vec<Diagnostic>> {
        let mut nothing = kind::type_meta(&self.info);
        nothing["metadata"] = json!({"name": apply.at.name, "uid": uid});
        let failed = |error: ApiError| self.request_diagnostics(&error, &apply.at);
        let found = apply.read().await.map_err(failed)?;
        // Gone, or another object of that name: nothing of it is declared here.
        if found.is_none_or(|found| text(&found, "/metadata/uid") != uid) {
            return Ok(());
        }
        apply.declare(&nothing, false, false).await.map(|_| ()).map_err(failed)
    }

    /// Requests the deletion.
    async fn request_deletion(
        &self,
        apply: &ApplyContext<'_>,
        uid: &str,
    ) -> Result<Deletion, Vec<Diagnostic>> {
        let failed = |error: &ApiError| self.request_diagnostics(error, &apply.at);
        let cancel = &apply.request.cancel;
        let mut uid = uid.to_owned();
        let mut pause = Duration::from_millis(100);
        loop {
            let error = match apply.api.delete(&apply.at, &uid, &apply.request_limit()).await {
                Ok(object) if is_terminating(&object) => return Ok(Deletion::Terminating(object)),
                Ok(_) => return Ok(Deletion::Gone),
                Err(error) => error,
            };
            // A control plane without the kind, which may be another one than that of the state, does not know the object.
            let is_gone = error.is_object_missing(&apply.at) || error.is_namespace_missing();
            match error.code() {
                404 if is_gone => return Ok(Deletion::Gone),
                409 => {
                    let other = apply.read().await.map_err(|error| failed(&error))?;
                    match other.filter(|other| is_known_as(other, &uid)) {
                        None => return Ok(Deletion::Gone),
                        Some(other) => text(&other, "/metadata/uid").clone_into(&mut uid),
                    }
                }
                _ => return Err(failed(&error)),
            }
            if Instant::now() + pause > apply.until {
                return Err(failed(&error));
            }
            tokio::select! {
                () = cancel.cancelled() => return Err(failed(&ApiError::Cancelled)),
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }
}

/// The meaning of each end of the wait for Terraform.
fn destroyed(title: &str, ended: WaitEnd<Condition>) -> ApplyResponse {
    let gone = || ApplyResponse::new(Value::Null);
    match ended {
        WaitEnd::Gone => gone(),
        WaitEnd::Done(condition, _) => {
            let detail = format!(
                "{}. The deletion is requested and continues once the guest releases the disk: unmount it in the guest, stop \
                 the VM, or set force = true and apply before destroying (a guest without qemu-guest-agent needs force to \
                 be destroyed together with its VM).",
                condition.text()
            );
            Diagnostic::error(format!("{title} may still be used by the guest"), detail).into()
        }
        WaitEnd::TimedOut(_, reason) => {
            let detail = format!(
                "The deletion is requested and continues in the background, but the timeout has passed. It waits for: \
                 {reason}. Terraform removes the resource from its state now."
            );
            gone().warn([Diagnostic::warning(format!("{title} is still being deleted"), detail)])
        }
        WaitEnd::Cancelled(_) => {
            let detail =
                "Terraform was interrupted. The deletion is requested and continues in the background.";
            Diagnostic::error(format!("Stopped waiting for the deletion of {title}"), detail).into()
        }
        WaitEnd::Unreachable(_, problem) => {
            let detail = format!(
                "{problem}. The deletion is requested. Destroy again once the control plane is reachable."
            );
            let summary = format!("The control plane became unreachable while {title} was being deleted");
            Diagnostic::error(summary, detail).into()
        }
    }
}
