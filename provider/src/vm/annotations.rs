//! Annotations of a VM: those of its users' programs, and gates.

use berth_api::gates::{DELETE_GATE, POWER_ON_GATE};
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::field::{Field, Presence, Shape};

/// The domain whose annotations berth sets, apart from gates.
const OWN_DOMAIN: &str = "berth.dev";
/// The limit of Kubernetes for all annotations of an object, in bytes.
const MOST_BYTES: usize = 256 << 10;

pub(super) fn field() -> Field {
    let text = "Annotations of the object, for other programs. `poweron.check.berth.dev/NAME` holds back the VM's start, and \
                `delete.check.berth.dev/NAME` its deletion, with the reason as the value: only gatekeepers may declare, change and remove \
                these. Annotations that other programs set are not changed.";
    let mut field = Field::observed("annotations", "/metadata/annotations", text);
    field.shape = Shape::Annotations;
    field.presence(Presence::Optional)
}

pub(super) fn check(config: &Value) -> Vec<Diagnostic> {
    let at = || AttributePath::root("annotations");
    let Some(annotations) = config.get("annotations").as_map() else { return Vec::new() };
    let is_reserved =
        |key: &&String| !is_gate(key) && domain(key).is_some_and(|domain| is_within(domain, OWN_DOMAIN));
    let reserved = |key: &String| {
        let detail = format!(
            "{key:?} is in the domain {OWN_DOMAIN}, whose annotations berth sets. Of these, {POWER_ON_GATE}NAME and {DELETE_GATE}NAME \
             can be declared."
        );
        Diagnostic::error("Invalid annotation", detail).at(at().key(key))
    };
    let mut found: Vec<Diagnostic> = annotations.keys().filter(is_reserved).map(reserved).collect();
    let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    let bytes: usize = annotations.iter().map(size).sum();
    if bytes > MOST_BYTES {
        let detail = format!("They have {bytes} bytes in all, and {MOST_BYTES} are possible.");
        found.push(Diagnostic::error("Annotations that are too large", detail).at(at()));
    }
    found
}

fn is_gate(key: &str) -> bool {
    key.starts_with(POWER_ON_GATE) || key.starts_with(DELETE_GATE)
}

fn domain(key: &str) -> Option<&str> {
    key.split_once('/').map(|(domain, _)| domain)
}

fn is_within(domain: &str, of: &str) -> bool {
    domain.strip_suffix(of).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_and_large_annotations_are_refused() {
        let config = |key: &str, value: &str| {
            Value::object([("annotations", Value::object([(key, Value::from(value))]))])
        };
        let problems = |key: &str, value: &str| {
            check(&config(key, value)).into_iter().map(|d| d.summary).collect::<Vec<_>>()
        };
        assert_eq!(problems("delete.check.berth.dev/backup", "a copy is being made"), [""; 0]);
        assert_eq!(problems("berth.dev/former-uid", "u"), ["Invalid annotation"]);
        assert_eq!(problems("terraform.berth.dev/timeouts", "{}"), ["Invalid annotation"]);
        assert_eq!(problems("note", &"x".repeat(MOST_BYTES)), ["Annotations that are too large"]);
        assert!(check(&Value::object([("annotations", Value::UNKNOWN)])).is_empty());
    }
}
