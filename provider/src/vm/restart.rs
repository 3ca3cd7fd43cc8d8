//! Restarts that a change asks for: by a restart token of the provider's own.

use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{change::PlannedChange, field::Effect, private::Private};

/// Tokens that start with this are the provider's, and no part of what a user declares.
const PREFIX: &str = "terraform-";

/// With `allow_reboot`, what would wait for the next power cycle restarts the VM.
pub(super) fn refine(change: &mut PlannedChange<'_>) {
    let runs = |state: &Value| state.get("power").as_str() == Some("Running");
    let waiting: Vec<AttributePath> =
        change.with_effect(Effect::PowerCycle).map(|change| change.path.clone()).collect();
    let allowed = change.planned.get("allow_reboot").as_bool() == Some(true);
    if waiting.is_empty() || !change.is_update() || !runs(change.prior) || !runs(&change.planned) || !allowed
    {
        return;
    }
    for change in &mut change.changes {
        if change.effect == Effect::PowerCycle {
            change.effect = Effect::Reboot;
        }
    }
    let detail = "allow_reboot is true: the VM is restarted once, gracefully as stop says, so that the change takes effect.";
    let first = waiting.into_iter().next().unwrap_or_default();
    change.diagnostics.push(Diagnostic::warning("The VM will be restarted", detail).at(first));
    demand(change);
}

/// Plans a restart.
pub(super) fn demand(change: &mut PlannedChange<'_>) {
    let mut hash = Sha256::new();
    hash.update(change.private.restart_token.as_deref().unwrap_or_default());
    hash.update(change.private.uid.as_bytes());
    for name in ["class", "disks", "network_interfaces", "placement", "bootstrap"] {
        hash.update(format!("{:?}", change.planned.get(name)));
    }
    let digest = hash.finalize();
    let hex: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    change.private.restart_token = Some(format!("{PREFIX}{hex}"));
}

/// A token of the provider's own is not shown.
pub(super) fn view(object: &mut Json) {
    if let Some(spec) = object.get_mut("spec").and_then(Json::as_object_mut)
        && is_ours(spec.get("restartToken"))
    {
        spec.remove("restartToken");
    }
}

/// The provider's own token, unless the user has one.
pub(super) fn declare(spec: &mut Json, private: &Private) {
    if let (Some(token), Some(spec)) = (&private.restart_token, spec.as_object_mut()) {
        spec.entry("restartToken").or_insert_with(|| Json::from(token.clone()));
    }
}

/// The token to keep, from the object.
pub(super) fn kept(object: &Json) -> Option<String> {
    let token = object.pointer("/spec/restartToken");
    token.filter(|token| is_ours(Some(token))).and_then(Json::as_str).map(str::to_owned)
}

fn is_ours(token: Option<&Json>) -> bool {
    token.and_then(Json::as_str).is_some_and(|token| token.starts_with(PREFIX))
}
