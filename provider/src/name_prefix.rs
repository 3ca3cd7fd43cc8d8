//! Generated names: a prefix from the configuration, and random characters.
//!
//! The name is generated when the object is created, and is unknown until then: Terraform plans each create twice, and both plans
//! must agree.

use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{change::PlannedChange, form::SUFFIX_LENGTH};

/// Those of Kubernetes' generated names: without vowels, so that they form no words.
const CHARACTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// A new name with this prefix.
#[must_use]
pub fn generate(prefix: &str) -> String {
    let mut bytes = [0; SUFFIX_LENGTH];
    let random = rustls::crypto::aws_lc_rs::default_provider().secure_random;
    random.fill(&mut bytes).expect("the operating system has random numbers");
    let character = |byte: &u8| CHARACTERS.get(usize::from(*byte) % CHARACTERS.len());
    let suffix = bytes.iter().filter_map(character).map(|&character| char::from(character));
    prefix.chars().chain(suffix).collect()
}

/// The prefix of a name that looks generated.
#[must_use]
pub fn of(name: &str) -> Option<&str> {
    let (prefix, suffix) = name.split_at_checked(name.len().checked_sub(SUFFIX_LENGTH)?)?;
    let is_generated = suffix.bytes().all(|byte| CHARACTERS.contains(&byte));
    (is_generated && !prefix.is_empty()).then_some(prefix)
}

/// The problem with a configuration of a kind that needs a name.
#[must_use]
pub fn check(config: &Value, needs_name: bool) -> Option<Diagnostic> {
    let (name, prefix) = (config.get("name"), config.get("name_prefix"));
    if name.is_set() && prefix.is_set() {
        let detail = "Set one of name and name_prefix: a name is either given or generated.";
        return Some(Diagnostic::error("Both name and name_prefix", detail).at("name_prefix"));
    }
    (needs_name && name.is_null() && prefix.is_null()).then(|| {
        let detail = "Set name, or set name_prefix to have a unique name generated.";
        Diagnostic::error("Missing name", detail).at("name")
    })
}

/// Keeps an object whose name already has the configured prefix, such as an imported one.
pub fn refine(change: &mut PlannedChange<'_>) {
    let path = AttributePath::root("name_prefix");
    let has_prefix = match (change.prior.get("name").as_str(), change.planned.at(&path).as_str()) {
        (Some(name), Some(prefix)) => name.len() > prefix.len() && name.starts_with(prefix),
        _ => false,
    };
    if !has_prefix || !change.prior.at(&path).is_null() {
        return;
    }
    change.keeps_name = true;
    change.recompute_changes();
}

/// Whether the configuration leaves the name to be generated.
#[must_use]
pub fn is_generated(config: &Value) -> bool {
    config.get("name").is_null() && !config.get("name_prefix").is_null()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        field::{Effect, Field, Shape},
        form::Form,
        private::Private,
    };

    #[test]
    fn generated_names_are_valid_differ_and_show_their_prefix() {
        let longest = "a".repeat(63 - SUFFIX_LENGTH);
        for prefix in ["web-", "w", longest.as_str()] {
            let names: std::collections::BTreeSet<String> = (0..100).map(|_| generate(prefix)).collect();
            assert_eq!(names.len(), 100);
            assert!(names.iter().all(|name| Form::Name.problem(name).is_none() && of(name) == Some(prefix)));
            assert_eq!(Form::NamePrefix.problem(prefix), None);
        }
        for name in ["web", "web-0123456789", "bcdfghjklm", "web-bcdfghjkla", ""] {
            assert_eq!(of(name), None, "{name}");
        }
        let too_long = format!("{longest}a");
        for prefix in ["", "-web", "Web-", "web_", "web.", too_long.as_str()] {
            assert!(Form::NamePrefix.problem(prefix).is_some(), "{prefix}");
        }
        assert_eq!(Form::DottedNamePrefix.problem("web.data-"), None);
        assert!(Form::DottedNamePrefix.problem("web..").is_some());
    }

    #[test]
    fn an_object_with_the_prefix_is_kept_whatever_else_is_planned_anew() {
        let prefix = Shape::Text(Form::NamePrefix);
        let fields = [Field::local("name_prefix", prefix, "The prefix.").effect(Effect::Replace)];
        let state =
            |name: &str, prefix: Value| Value::object([("name", Value::from(name)), ("name_prefix", prefix)]);
        let replaced = |prefix: &str| {
            let (prior, config) = (state("debian-12", Value::Null), state("debian-12", Value::from(prefix)));
            let mut change = PlannedChange::new(&fields, &prior, &config, config.clone(), Private::default());
            refine(&mut change);
            let refined = change.replace.clone();
            change.recompute_changes();
            assert_eq!(change.replace, refined);
            !refined.is_empty()
        };
        assert!(!replaced("debian-"));
        assert!(replaced("ubuntu-"));
    }

    #[test]
    fn a_configuration_has_a_name_or_a_prefix_unless_it_may_still_have_one() {
        let config = |name: Value, prefix: Value| Value::object([("name", name), ("name_prefix", prefix)]);
        let problem =
            |name: Value, prefix: Value| check(&config(name, prefix), true).map(|found| found.summary);
        let text = || Value::from("web");
        assert_eq!(problem(text(), text()).as_deref(), Some("Both name and name_prefix"));
        assert_eq!(problem(Value::Null, Value::Null).as_deref(), Some("Missing name"));
        assert!(check(&config(Value::Null, Value::Null), false).is_none());
        for (name, prefix) in [
            (text(), Value::Null),
            (Value::Null, text()),
            (Value::UNKNOWN, text()),
            (Value::Null, Value::UNKNOWN),
        ] {
            assert_eq!(problem(name, prefix), None);
        }
    }
}
