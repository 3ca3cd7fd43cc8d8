//! Delete: ask, then wait until the object is really gone.

use std::time::Duration;

use serde_json::Value as Json;
use tfplugin6::{
    Diagnostic, Value,
    resource::{ApplyRequest, ApplyResponse},
};
use tokio::time::{Instant, sleep};

use super::{
    KindResource,
    create::{RETRIES, is_known_as, no_control_plane},
    in_use::InUse,
    is_terminating, text,
    wait::GRACE,
};
use crate::{
    api::{self, Address, Api, ApiError, Ended, Patience, Verdict, Waiting},
    readiness::condition,
    timeouts::{self, Operation},
};

enum Asked {
    Gone,
    /// The object, on its way out.
    Going(Json),
}

impl KindResource {
    /// Destroys it.
    pub(super) async fn destroy(&self, request: ApplyRequest) -> ApplyResponse {
        let settings = self.session.settings();
        let api = match &settings.api {
            Ok(api) => api,
            Err(problem) => return no_control_plane(problem).into(),
        };
        let at = self.address(&request.prior);
        let until = Instant::now() + timeouts::limit(Operation::Delete, &request.prior, self.facts.timeouts);
        let uid = request.prior.get("uid").as_str().unwrap_or_default();
        let gone = || ApplyResponse::new(Value::Null);
        let object = match self.ask(api, &at, uid, until, &request).await {
            Ok(Asked::Gone) => return gone(),
            Ok(Asked::Going(object)) => object,
            Err(diagnostics) => return ApplyResponse::failed(diagnostics),
        };
        let patience = Patience { until, cancel: request.cancel.clone() };
        let ended = api::until_settled(
            Waiting { api, at: &at, object, patience },
            GRACE,
            |object, settled| match self.kind.held_by_guest(object).filter(|_| settled) {
                Some(busy) => Verdict::Over(busy),
                None => {
                    let ready = condition(object, "Ready");
                    Verdict::Wait(ready.map_or_else(|| "its finalizers".into(), |ready| ready.text()))
                }
            },
        )
        .await;
        let title = self.title(&at);
        match ended {
            Ended::Gone => gone(),
            Ended::Over(condition, _) => {
                let detail = format!(
                    "{}. It goes once that is over: stop using it in the guest (unmount the filesystem), or set force = true \
                     and apply before destroying.",
                    condition.text()
                );
                Diagnostic::error(format!("{title} is still used by the guest"), detail).into()
            }
            Ended::TimedOut(_, why) => {
                let detail = format!(
                    "The deletion was asked for and goes on by itself; the time to wait for it ran out. It waits for: {why}. \
                     Terraform forgets it now."
                );
                gone().warn([Diagnostic::warning(format!("{title} is still being deleted"), detail)])
            }
            Ended::Cancelled(_) => {
                let detail = "Terraform was told to stop. The deletion was asked for and goes on by itself.";
                Diagnostic::error(format!("Stopped waiting for {title} to go"), detail).into()
            }
            Ended::Unreachable(_, problem) => {
                let detail = format!(
                    "{problem}. The deletion was asked for. Destroy again when the control plane is back."
                );
                Diagnostic::error(
                    format!("The control plane went away while {title} was being deleted"),
                    detail,
                )
                .into()
            }
        }
    }

    /// Asks for the deletion, again while whoever uses it is going away too.
    async fn ask(
        &self,
        api: &Api,
        at: &Address,
        uid: &str,
        until: Instant,
        request: &ApplyRequest,
    ) -> Result<Asked, Vec<Diagnostic>> {
        let patience = || Patience {
            until: until.min(Instant::now() + Duration::from_secs(RETRIES)),
            cancel: request.cancel.clone(),
        };
        let refused = |error: &ApiError| self.refused(error, at);
        let mut uid = uid.to_owned();
        let mut pause = Duration::from_millis(100);
        let mut in_use = InUse::default();
        loop {
            let error = match api.delete(at, &uid, &patience()).await {
                Ok(answer) if is_terminating(&answer) => return Ok(Asked::Going(answer)),
                Ok(_) => return Ok(Asked::Gone),
                Err(error) => error,
            };
            match error.code() {
                404 => return Ok(Asked::Gone),
                409 => {
                    let other = api.get(at, &patience()).await.map_err(|error| refused(&error))?;
                    match other.filter(|other| is_known_as(other, &uid)) {
                        None => return Ok(Asked::Gone),
                        Some(other) => text(&other, "/metadata/uid").clone_into(&mut uid),
                    }
                }
                403 => self.wait_for_user(api, at, &error, &mut in_use, &patience()).await?,
                _ => return Err(refused(&error)),
            }
            if Instant::now() + pause > until {
                let in_use = in_use.timed_out(&self.title(at)).filter(|_| error.code() == 403);
                return Err(in_use.map_or_else(|| refused(&error), |waited_for| vec![waited_for]));
            }
            tokio::select! {
                () = request.cancel.cancelled() => return Err(refused(&ApiError::Cancelled)),
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }
}
