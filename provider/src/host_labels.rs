//! Selectors of hosts by their labels, compared with the Hosts at plan. Pure.

use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

/// The first label of a selector that the labels of a host lack.
pub(crate) fn first_missing<'s>(labels: &Json, selector: &'s Value) -> Option<(&'s str, &'s str)> {
    let wanted = selector.as_map().into_iter().flatten();
    let mut wanted = wanted.filter_map(|(label, value)| Some((label.as_str(), value.as_str()?)));
    wanted.find(|(label, value)| labels.get(*label).and_then(Json::as_str) != Some(*value))
}

/// Warns of a selector that none of the hosts fits. The text ends with the consequence. Before the first host joins, no label is wrong.
pub(crate) fn warning(
    hosts: &[Json],
    selector: &Value,
    path: AttributePath,
    consequence: &str,
) -> Option<Diagnostic> {
    let labels = |host: &Json| host.pointer("/metadata/labels").cloned().unwrap_or_default();
    let fits = |host: &Json| first_missing(&labels(host), selector).is_none();
    if hosts.is_empty() || hosts.iter().any(fits) {
        return None;
    }
    let wanted: Vec<String> = selector
        .as_map()?
        .iter()
        .map(|(label, value)| format!("{label}={}", value.as_str().unwrap_or_default()))
        .collect();
    let detail =
        format!("{path}: none of {} hosts has the labels {}. {consequence}", hosts.len(), wanted.join(", "));
    Some(Diagnostic::warning("No host has these labels", detail).at(path))
}
