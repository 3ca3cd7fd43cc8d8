//! Restarts that a change requires: by a [restart token](berth_api::restart_token) of the provider, beside the user's token if there
//! is one.

use berth_api::power::{Power, PowerChange, refusal};
use berth_api::restart_token::{self, DIGITS, PREFIX, SEPARATOR, own, split};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    change::PlannedChange,
    field::{Effect, declared_power},
    planning::Change,
    private::Private,
};

/// The longest token of a user: the custom resource accepts 253 characters for both.
const LONGEST: usize = 253 - PREFIX.len() - DIGITS - 1;

/// The summary of the warning of a restart.
pub(super) const RESTART: &str = "The VM will be restarted";

/// The problem with a user's token.
pub(super) fn check(token: &Value) -> Option<Diagnostic> {
    let token = token.as_str()?;
    let detail = if split(token).1.is_some() {
        format!("{token:?} ends like a token of the provider's own: leave out \"{PREFIX}…\".")
    } else if token.chars().count() > LONGEST {
        format!("It has {} characters; at most {LONGEST} are allowed.", token.chars().count())
    } else {
        return None;
    };
    Some(Diagnostic::error("Invalid restart_token", detail).at(AttributePath::root("restart_token")))
}

/// With `allow_reboot`, a change that would wait for the next power cycle restarts the VM, and so does one that waits already.
pub(super) fn refine(change: &mut PlannedChange<'_>) {
    refuse_transitions(change);
    announce(change, runs(change.prior) && runs(&change.planned));
    if keeps_running(change) && !restart_for_waiting(change) {
        restart_for_pending(change);
    }
}

fn runs(state: &Value) -> bool {
    state.get("power").as_str() == Some("Running")
}

/// Whether the VM runs before the change, and after it.
fn keeps_running(change: &PlannedChange<'_>) -> bool {
    runs(change.prior) && runs(&change.planned) && change.replace.is_empty()
}

/// Restarts the VM where that is allowed and a part of this change would wait for the next power cycle. Returns whether it does.
pub(super) fn restart_for_waiting(change: &mut PlannedChange<'_>) -> bool {
    let waiting: Vec<AttributePath> =
        change.with_effect(Effect::PowerCycle).map(|change| change.path.clone()).collect();
    let allowed = change.planned.get("allow_reboot").as_bool() == Some(true);
    if waiting.is_empty() || !allowed || !change.is_update() || !keeps_running(change) {
        return false;
    }
    for change in &mut change.changes {
        if change.effect == Effect::PowerCycle {
            change.effect = Effect::Reboot;
        }
    }
    let detail = "allow_reboot is true: the VM is restarted once, as declared in stop, so that the change takes effect.";
    let first = waiting.into_iter().next().unwrap_or_default();
    change.diagnostics.push(Diagnostic::warning(RESTART, detail).at(first));
    request(change);
    true
}

/// Restarts the VM where that is allowed and an earlier change, of this configuration or of another client, waits for the next
/// power cycle; otherwise warns of it.
fn restart_for_pending(change: &mut PlannedChange<'_>) {
    let (pending, allow) = (AttributePath::root("pending_power_cycle"), AttributePath::root("allow_reboot"));
    let names: Vec<&str> = change.prior.at(&pending).elements().iter().filter_map(Value::as_str).collect();
    let is_restarted = change.diagnostics.iter().any(|warning| warning.summary == RESTART);
    if names.is_empty() || is_restarted {
        return;
    }
    let names = names.join(", ");
    let allowed = change.config.at(&allow).clone();
    if allowed.is_unknown() {
        // The plan within the apply decides.
        change.planned.set("allow_reboot", Value::UNKNOWN);
        change.planned.set("pending_power_cycle", Value::UNKNOWN);
    } else if allowed.as_bool() == Some(true) {
        let detail = format!(
            "allow_reboot is true, and these changes wait for the next power cycle: {names}. The VM is restarted once, as declared \
             in stop, so that they take effect."
        );
        change.diagnostics.push(Diagnostic::warning(RESTART, detail).at(allow));
        change.planned.set("allow_reboot", true);
        change.changes.push(Change { path: pending, effect: Effect::Reboot });
        request(change);
    } else {
        let detail = format!(
            "These changes take effect when the VM is next started: {names}. With allow_reboot = true the next apply restarts it."
        );
        let summary = "Changes wait for the next power cycle";
        change.diagnostics.push(Diagnostic::warning(summary, detail).at(pending));
    }
}

/// Warns of a restart that another token requests. Without a token nothing is restarted.
fn announce(change: &mut PlannedChange<'_>, runs: bool) {
    let path = AttributePath::root("restart_token");
    let is_other = change.is_update() && runs && change.changes.iter().any(|change| change.path == path);
    let is_left = !change.planned.get("restart_token").is_null() || change.private.restart_token.is_some();
    if is_other && is_left {
        let detail = "restart_token changes: the VM is restarted once, as declared in stop.";
        change.planned.set("pending_power_cycle", Value::UNKNOWN);
        change.diagnostics.push(Diagnostic::warning(RESTART, detail).at(path));
    }
}

/// Refuses the changes of power and restarts that the table of the API refuses.
fn refuse_transitions(change: &mut PlannedChange<'_>) {
    let token = AttributePath::root("restart_token");
    let changed = change.changes.iter().map(|change| change.path.clone());
    let known = changed.filter(|path| change.planned.at(path).is_wholly_known());
    let known: Vec<AttributePath> = known.collect();
    if !change.is_update() || change.planned.get("power").is_unknown() {
        return;
    }
    let declared = declared_power(&change.planned);
    if declared != Power::Running && change.planned.at(&token).is_null() {
        // The provider's own token goes with the user's: alone it would be another token.
        change.private.restart_token = None;
    }
    let observed = change.prior.get("state").as_str();
    let observed = observed.and_then(|state| serde_json::from_value(state.into()).ok());
    for path in known {
        let requested = match path.to_string().as_str() {
            "power" => PowerChange::To(declared),
            "restart_token" if !change.planned.at(&path).is_null() => PowerChange::Restart,
            _ => continue,
        };
        if let Some(why) = refusal(requested, declared, observed) {
            let detail = format!("{}.", why.replace("restartToken", "restart_token"));
            change.refuse("The power of the VM does not allow this change", detail, path);
        }
    }
}

/// Plans a restart, which brings everything that waits for it.
pub(super) fn request(change: &mut PlannedChange<'_>) {
    change.planned.set("pending_power_cycle", Value::UNKNOWN);
    let mut hash = Sha256::new();
    hash.update(change.private.restart_token.as_deref().unwrap_or_default());
    hash.update(change.prior.get("uid").as_str().unwrap_or_default());
    for name in [
        "class",
        "cpus",
        "max_cpus",
        "memory",
        "max_memory",
        "huge_pages",
        "firmware",
        "secure_boot_keys",
        "tpm",
        "cpu_topology",
        "numa_nodes",
        "dedicated_cpu_placement",
        "isolate_emulator_thread",
        "io_threads_policy",
        "cpu_model",
        "machine_type",
        "guest_os",
        "watchdog",
        "serial_number",
        "graphics",
        "resolution",
        "keyboard_layout",
        "sound",
        "serial_ports",
        "vsock",
        "boot_order",
        "uuid",
        "pci_devices",
        "usb_devices",
        "vgpus",
        "shares",
        "scratch_disk",
        "disks",
        "cdroms",
        "network_interfaces",
        "placement",
        "bootstrap",
        "restore",
    ] {
        hash.update(format!("{:?}", change.planned.get(name)));
    }
    change.private.restart_token = Some(own(hash));
}

/// Hides the provider's own token.
pub(super) fn view(object: &mut Json) {
    let Some(spec) = object.get_mut("spec").and_then(Json::as_object_mut) else { return };
    let token = spec.get("restartToken").and_then(Json::as_str).unwrap_or_default().to_owned();
    match split(&token) {
        (_, None) => {}
        (None, Some(_)) => drop(spec.remove("restartToken")),
        (Some(theirs), Some(_)) => drop(spec.insert("restartToken".into(), theirs.into())),
    }
}

/// Declares the user's token and the provider's own.
pub(super) fn declare(spec: &mut Json, private: &Private) {
    let (Some(own), Some(spec)) = (&private.restart_token, spec.as_object_mut()) else { return };
    let token = match spec.get("restartToken").and_then(Json::as_str) {
        Some(theirs) => format!("{theirs}{SEPARATOR}{own}"),
        None => own.clone(),
    };
    spec.insert("restartToken".into(), token.into());
}

/// The token of an object with another part of the provider's own, which restarts the VM and which no plan shows.
pub(crate) fn another(object: &Json) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Json::as_str).unwrap_or_default();
    restart_token::another(
        text("/spec/restartToken"),
        text("/metadata/uid"),
        text("/metadata/resourceVersion"),
    )
}

/// The provider's own token in the object, to be kept.
pub(super) fn kept(object: &Json) -> Option<String> {
    let token = object.pointer("/spec/restartToken").and_then(Json::as_str)?;
    split(token).1.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_the_users_the_providers_or_both() {
        let own = "terraform-0123456789ab";
        assert_eq!(split("1"), (Some("1"), None));
        assert_eq!(split("a+b"), (Some("a+b"), None));
        assert_eq!(split("terraform-x"), (Some("terraform-x"), None));
        assert_eq!(split(own), (None, Some(own)));
        assert_eq!(split(&format!("a+b+{own}")), (Some("a+b"), Some(own)));
        for reserved in [own, "1+terraform-0123456789ab", &"x".repeat(LONGEST + 1)] {
            assert!(check(&Value::from(reserved)).is_some(), "{reserved}");
        }
        assert!(check(&Value::from("x".repeat(LONGEST))).is_none());
        assert!(check(&Value::UNKNOWN).is_none() && check(&Value::Null).is_none());
    }

    #[test]
    fn another_token_keeps_the_users_part_and_differs() {
        let with = |token: Json, version: &str| {
            another(
                &serde_json::json!({"metadata": {"uid": "u", "resourceVersion": version}, "spec": {"restartToken": token}}),
            )
        };
        let first = with(Json::Null, "1");
        assert_eq!(split(&first), (None, Some(first.as_str())));
        let second = with(first.clone().into(), "2");
        assert!(second != first && split(&second).0.is_none());
        let theirs = with("a+b".into(), "1");
        assert_eq!(split(&theirs).0, Some("a+b"));
        let again = with(theirs.clone().into(), "2");
        assert!(again != theirs && split(&again).0 == Some("a+b"));
    }
}
