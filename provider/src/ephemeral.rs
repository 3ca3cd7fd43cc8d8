//! Ephemeral resources: credentials that are in no plan, state or log.

pub mod console;
pub mod host_token;
pub mod token;

use std::ops::RangeInclusive;

use tfplugin6::{Diagnostic, Value};

use crate::{api::Api, form::Form, session::Settings};

/// The time for which a request is retried while the control plane is away, in seconds.
const RETRIES: u64 = 5;

/// The client, and the namespace that the configuration or the provider names.
fn place<'a>(
    settings: &'a Settings,
    config: &Value,
    title: &str,
) -> Result<(&'a Api, String), Box<Diagnostic>> {
    let api = settings.api.as_ref().map_err(|problem| {
        Box::new(settings.shared_failure(title, Diagnostic::error("No control plane", problem)))
    })?;
    let namespace = config.get("namespace").as_str().map(str::to_owned);
    let namespace = namespace.or_else(|| settings.namespace.clone()).ok_or_else(|| {
        let detail = "The provider's namespace is not known yet: it comes from a resource that does not exist yet. Set namespace here.";
        Box::new(Diagnostic::error("Unknown namespace", detail).at("namespace"))
    })?;
    Ok((api, namespace))
}

/// The problems of configured names.
fn check_names(config: &Value, forms: &[(&str, Form)]) -> Vec<Diagnostic> {
    let problem = |(name, form): &(&str, Form)| {
        let problem = form.problem(config.get(name).as_str()?)?;
        Some(Diagnostic::error(format!("Invalid {name}"), problem).at(*name))
    };
    forms.iter().filter_map(problem).collect()
}

/// The problem of a configured `expiration_seconds`: it is a whole number in this range.
fn check_lifetime(config: &Value, range: &RangeInclusive<i64>) -> Option<Diagnostic> {
    let lifetime = config.get("expiration_seconds");
    lifetime.as_number()?;
    if lifetime.as_i64().is_some_and(|seconds| range.contains(&seconds)) {
        return None;
    }
    let detail = format!("A lifetime is a whole number from {} to {} seconds.", range.start(), range.end());
    Some(Diagnostic::error("Invalid expiration_seconds", detail).at("expiration_seconds"))
}
