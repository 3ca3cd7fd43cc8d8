//! The access-control work of Kubernetes' controllers: the rules of aggregated ClusterRoles, and the
//! `default` account of each namespace.

use std::sync::Arc;

use berth_apimachinery::error::ApiError;
use berth_store::Key;
use serde_json::{Value, json};

use super::{Step, call, gone_is_done};
use crate::admission::LabelSelector;
use crate::builtin::RBAC;
use crate::core::Core;
use crate::verbs::PatchKind;

/// The name of the account that each namespace has.
pub(super) const DEFAULT_ACCOUNT: &str = "default";

/// Whether a key is that of a ClusterRole.
pub(super) fn is_cluster_role(key: &Key) -> bool {
    key.resource.strip_prefix(RBAC) == Some("/clusterroles")
}

/// Does all pending access-control work, so that a newly opened server has nothing left to do.
pub(super) async fn settle(core: &Arc<Core>) -> Step {
    let namespaces: Vec<String> = {
        let state = core.store.state();
        state.list(&core.namespaces, None, None).map(|entry| entry.key.name.to_string()).collect()
    };
    for namespace in namespaces {
        default_account(core, &namespace).await?;
    }
    while aggregate(core).await? {}
    Ok(())
}

/// Writes the rules of the selected roles into each role with an aggregation rule; returns whether anything
/// was written. A role with an aggregation rule may itself be selected: its change requires another pass.
pub(super) async fn aggregate(core: &Arc<Core>) -> Result<bool, ApiError> {
    let roles: Vec<(Key, Value)> = {
        let state = core.store.state();
        state
            .list(&format!("{RBAC}/clusterroles"), None, None)
            .map(|entry| (entry.key.clone(), entry.value()))
            .collect()
    };
    let mut changed = false;
    for (key, role) in roles.iter().filter(|(_, role)| role["aggregationRule"].is_object()) {
        let rules = gathered(role, roles.iter().map(|(_, role)| role));
        // Compared in any order: otherwise two roles that select each other would rewrite each other forever.
        let held = role["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
        if held.len() == rules.len() && rules.iter().all(|rule| held.contains(rule)) {
            continue;
        }
        let Some(mut call) = call(core, key) else { continue };
        call.verb = "patch";
        let metadata = json!({"resourceVersion": role["metadata"]["resourceVersion"]});
        gone_is_done(call.patch(PatchKind::Merge, json!({"metadata": metadata, "rules": rules})).await)?;
        changed = true;
    }
    Ok(changed)
}

/// Returns the rules of the selected roles, by role name and without duplicates.
fn gathered<'a>(role: &Value, roles: impl Iterator<Item = &'a Value> + Clone) -> Vec<Value> {
    let mut rules: Vec<Value> = Vec::new();
    for selector in role["aggregationRule"]["clusterRoleSelectors"].as_array().into_iter().flatten() {
        // An invalid selector selects nothing.
        let Ok(selector) = LabelSelector::parse(Some(selector)) else { continue };
        let selected = roles.clone().filter(|other| {
            other["metadata"]["name"] != role["metadata"]["name"]
                && selector.matches(other["metadata"].get("labels"))
        });
        for rule in selected.flat_map(|other| other["rules"].as_array().into_iter().flatten()) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    rules
}

/// Creates the `default` account of a namespace that is not being deleted.
pub(super) async fn default_account(core: &Arc<Core>, namespace: &str) -> Step {
    let key = Key::new(&core.service_accounts, namespace, DEFAULT_ACCOUNT);
    let wanted = core.namespace(namespace).is_some_and(|entry| !entry.facts.deleting);
    if !wanted || core.store.get(&key).is_some() {
        return Ok(());
    }
    let Some(mut call) = call(core, &key) else { return Ok(()) };
    call.verb = "create";
    match call.create(json!({"metadata": {"name": DEFAULT_ACCOUNT}})).await {
        // Another request created it, or the namespace is being deleted.
        Err(error) if matches!(error.reason, "AlreadyExists" | "Forbidden") => Ok(()),
        made => gone_is_done(made),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_gathered_by_label_in_the_order_of_names_and_each_once() {
        let role = |name: &str, label: &str, verb: &str| json!({"metadata": {"name": name, "labels": {"to": label}}, "rules": [{"verbs": [verb]}, {"verbs": ["all"]}]});
        let roles = [role("a", "x", "one"), role("b", "y", "two"), role("c", "x", "three")];
        let gathers = json!({"metadata": {"name": "c"}, "aggregationRule": {"clusterRoleSelectors": [
            {"matchLabels": {"to": "x"}}, {"matchExpressions": [{"key": "to", "operator": "Exists"}]}]}});
        let rules = gathered(&gathers, roles.iter());
        assert_eq!(rules, [json!({"verbs": ["one"]}), json!({"verbs": ["all"]}), json!({"verbs": ["two"]})]);
    }
}
