//! The wait after an apply, and the meaning of each of its ends for Terraform.

use std::time::Duration;

use serde_json::Value as Json;
use tfplugin6::{Diagnostic, Value};

use super::{KindResource, at};
use crate::{
    api::{self, ObjectWait, Verdict, WaitEnd},
    readiness::{Condition, Outcome},
};

/// The grace period for other objects to release a resource this one waits for: in one apply, one resource often releases a
/// resource that another acquires.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// The purpose of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Create,
    Update,
}

/// The result of a wait.
#[derive(Debug)]
pub(super) struct Waited {
    /// The object as last seen; none: there is no (new) state.
    pub(super) object: Option<Json>,
    /// Diagnostics to show.
    pub(super) diagnostics: Vec<Diagnostic>,
}

enum Reached {
    Done,
    Stalled(Condition),
}

impl KindResource {
    /// Waits until the object has reached the declared state.
    ///
    /// An error on create makes Terraform destroy the object in the next apply. So an error is returned only where that loses
    /// nothing.
    pub(super) async fn wait(&self, waiting: ObjectWait<'_>, purpose: Purpose, planned: &Value) -> Waited {
        let title = self.title(waiting.at);
        let ended = api::wait_until_settled(waiting, GRACE, |object, settled| {
            match self.kind.outcome(object, planned) {
                Outcome::Done => Verdict::Done(Reached::Done),
                Outcome::Stalled(condition) if !settled && condition.is_transient() => {
                    Verdict::Wait(condition.text())
                }
                Outcome::Stalled(condition) => Verdict::Done(Reached::Stalled(condition)),
                Outcome::Soon(why) if !settled => Verdict::Wait(why),
                Outcome::Soon(_) => Verdict::Done(Reached::Done),
                Outcome::Waiting(why) => Verdict::Wait(why),
            }
        })
        .await;
        let created = purpose == Purpose::Create;
        let with =
            |object: Option<Json>, diagnostic: Diagnostic| Waited { object, diagnostics: vec![diagnostic] };
        match ended {
            WaitEnd::Done(Reached::Done, object) => Waited { object: Some(object), diagnostics: Vec::new() },
            WaitEnd::Done(Reached::Stalled(condition), object) => {
                let kept = created && self.kind.is_worth_keeping(&object);
                let summary = format!("{title} cannot become ready");
                let detail = format!("{}. Correct the cause, then apply again.", condition.text());
                let diagnostic = if kept {
                    Diagnostic::warning(summary, detail)
                } else {
                    Diagnostic::error(summary, detail)
                };
                with(Some(object), diagnostic)
            }
            WaitEnd::Gone => {
                let detail = "Another client deleted it while Terraform waited for it.";
                with(None, Diagnostic::error(format!("{title} is gone"), detail))
            }
            WaitEnd::TimedOut(object, why) => {
                let fail = planned.get("on_timeout").as_str() == Some("fail");
                let summary = format!("{title} is not ready yet");
                let detail = format!(
                    "The timeout has passed; the operation continues in the background. It waits for: {why}. The next plan shows its \
                     state; timeouts {{ {} = \"…\" }} sets a longer timeout.",
                    if created { "create" } else { "update" }
                );
                let diagnostic = if fail {
                    Diagnostic::error(summary, detail).at(at("on_timeout"))
                } else {
                    Diagnostic::warning(summary, detail)
                };
                with(Some(object), diagnostic)
            }
            WaitEnd::Cancelled(object) => {
                let detail = "Terraform was interrupted. The object is kept, and the operation continues in the background.";
                with(Some(object), Diagnostic::warning(format!("Stopped waiting for {title}"), detail))
            }
            WaitEnd::Unreachable(object, problem) => {
                let summary = format!("The control plane became unreachable during the wait for {title}");
                let detail = format!(
                    "{problem}. {title} exists, and the operation continues in the background. Apply again once the control plane is \
                     reachable: the next apply finds the object and continues."
                );
                // On create, a state with an error would make Terraform replace it; without a state the next apply adopts it,
                // unless the name is generated: another apply generates another name.
                if created && !planned.get("name_prefix").is_null() {
                    return with(Some(object), Diagnostic::warning(summary, detail));
                }
                with((!created).then_some(object), Diagnostic::error(summary, detail))
            }
        }
    }
}
