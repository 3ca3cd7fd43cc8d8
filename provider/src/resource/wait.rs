//! The wait after an apply, and what each way it can end means for Terraform.

use std::time::Duration;

use serde_json::Value as Json;
use tfplugin6::{Diagnostic, Value};

use super::{KindResource, at};
use crate::{
    api::{self, Ended, Verdict, Waiting},
    readiness::{Condition, Outcome},
};

/// How long somebody else may take to let go of what this waits for: in one apply, one resource often gives up what
/// another takes.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Create,
    Update,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Waited {
    /// The object as last seen; none: there is to be no (new) state.
    pub(super) object: Option<Json>,
    /// What to tell.
    pub(super) diagnostics: Vec<Diagnostic>,
}

enum Reached {
    Done,
    Stalled(Condition),
}

impl KindResource {
    /// Waits until what was declared is there.
    ///
    /// An error on create makes Terraform destroy the object next time. So it is one only where that harms nothing.
    pub(super) async fn wait(&self, waiting: Waiting<'_>, purpose: Purpose, planned: &Value) -> Waited {
        let title = self.title(waiting.at);
        let ended =
            api::until_settled(waiting, GRACE, |object, settled| match self.kind.outcome(object, planned) {
                Outcome::Done => Verdict::Over(Reached::Done),
                Outcome::Stalled(condition) if !settled && condition.may_heal() => {
                    Verdict::Wait(condition.text())
                }
                Outcome::Stalled(condition) => Verdict::Over(Reached::Stalled(condition)),
                Outcome::Waiting(why) => Verdict::Wait(why),
            })
            .await;
        let created = purpose == Purpose::Create;
        let with =
            |object: Option<Json>, diagnostic: Diagnostic| Waited { object, diagnostics: vec![diagnostic] };
        match ended {
            Ended::Over(Reached::Done, object) => Waited { object: Some(object), diagnostics: Vec::new() },
            Ended::Over(Reached::Stalled(condition), object) => {
                let kept = created && self.kind.has_lived(&object);
                let summary = format!("{title} cannot go on");
                let detail = format!("{}. Change what it says, then apply again.", condition.text());
                let diagnostic = if kept {
                    Diagnostic::warning(summary, detail)
                } else {
                    Diagnostic::error(summary, detail)
                };
                with(Some(object), diagnostic)
            }
            Ended::Gone => {
                let detail = "It was deleted by somebody else while Terraform waited for it.";
                with(None, Diagnostic::error(format!("{title} is gone"), detail))
            }
            Ended::TimedOut(object, why) => {
                let fail = planned.get("on_timeout").as_str() == Some("fail");
                let summary = format!("{title} is not ready yet");
                let detail = format!(
                    "The time for it ran out; it goes on by itself. It waits for: {why}. The next plan shows where it \
                     stands; timeouts {{ {} = \"…\" }} gives it longer.",
                    if created { "create" } else { "update" }
                );
                let diagnostic = if fail {
                    Diagnostic::error(summary, detail).at(at("on_timeout"))
                } else {
                    Diagnostic::warning(summary, detail)
                };
                with(Some(object), diagnostic)
            }
            Ended::Cancelled(object) => {
                let detail = "Terraform was told to stop. The object is kept and goes on by itself.";
                with(Some(object), Diagnostic::warning(format!("Stopped waiting for {title}"), detail))
            }
            Ended::Unreachable(object, problem) => {
                let summary = format!("The control plane went away while {title} was waited for");
                let detail = format!(
                    "{problem}. {title} exists and goes on by itself. Apply again when the control plane is back: \
                     the next apply finds it and goes on from there."
                );
                // On create, a state with an error would make Terraform replace it; without a state the next apply adopts it.
                with((!created).then_some(object), Diagnostic::error(summary, detail))
            }
        }
    }
}
