//! Prevention of privilege escalation: writing or binding a role requires all permissions of that role.
//!
//! As in Kubernetes, the verbs `escalate` (on roles) and `bind` (on the bound role) permit it nevertheless,
//! and members of `system:masters` may do everything.

use berth_apimachinery::error::{ApiError, Result, Subject};
use berth_store::Key;
use serde_json::{Value, json};

use super::{Access, Attributes, allows, grants, rule_allows};
use crate::builtin::RBAC;
use crate::identity::Identity;
use crate::resource::Resource;

/// The maximum number of single permissions into which one role is expanded.
const MAX_PERMISSIONS: usize = 100_000;

/// Refuses a role or binding that grants more than the writing user has.
pub(crate) fn check(
    access: &Access,
    who: &Identity,
    resource: &Resource,
    object: &Value,
    old: Option<&Value>,
) -> Result<()> {
    if resource.group != RBAC || who.is_master() {
        return Ok(());
    }
    if old.is_some_and(|old| only_collected(old, object)) {
        return Ok(());
    }
    match resource.plural.as_str() {
        "roles" | "clusterroles" => role(access, who, resource, object, old),
        "rolebindings" | "clusterrolebindings" => binding(access, who, resource, object),
        _ => Ok(()),
    }
}

/// Whether a write changes only what garbage collection changes. Any other write reaffirms everything that is
/// granted.
fn only_collected(old: &Value, new: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        let metadata = berth_apimachinery::meta::of(&mut object);
        for member in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
            metadata.remove(member);
        }
        object
    };
    rest(old) == rest(new)
}

fn place(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

/// Returns the rules of `cluster-admin`.
fn everything() -> Value {
    json!([
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
        {"verbs": ["*"], "nonResourceURLs": ["*"]},
    ])
}

fn role(
    access: &Access,
    who: &Identity,
    resource: &Resource,
    object: &Value,
    old: Option<&Value>,
) -> Result<()> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let escalate = Attributes {
        verb: "escalate",
        group: RBAC,
        resource: &resource.plural,
        namespace: place(object),
        name,
        ..Attributes::default()
    };
    if allows(access, who, &escalate) {
        return Ok(());
    }
    let gathers = |role: Option<&Value>| role.is_some_and(|role| !role["aggregationRule"].is_null());
    let held = holds_all(access, who, &object["rules"], place(object));
    // The rules that a role aggregates are unknown when it is written.
    let held = match gathers(Some(object)) || gathers(old) {
        true => held.and_then(|()| holds_all(access, who, &everything(), place(object))),
        false => held,
    };
    held.map_err(|why| ApiError::forbidden(Subject { group: RBAC, kind: &resource.plural, name }, &why))
}

fn binding(access: &Access, who: &Identity, resource: &Resource, object: &Value) -> Result<()> {
    let (plural, namespace) = match object["roleRef"]["kind"].as_str() {
        Some("Role") => ("roles", place(object)),
        _ => ("clusterroles", ""),
    };
    let name = object["roleRef"]["name"].as_str().unwrap_or_default();
    let bind = Attributes {
        verb: "bind",
        group: RBAC,
        resource: plural,
        namespace: place(object),
        name,
        ..Attributes::default()
    };
    if allows(access, who, &bind) {
        return Ok(());
    }
    let key = Key::new(&format!("{RBAC}/{plural}").into(), namespace, name);
    let role = access.store.get(&key);
    // The request is for the binding: as in Kubernetes, the binding is reported as not found.
    let missing = || ApiError::not_found(Subject { group: RBAC, kind: &resource.plural, name });
    let role = role.ok_or_else(missing)?;
    holds_all(access, who, &role.value()["rules"], place(object)).map_err(|why| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        ApiError::forbidden(Subject { group: RBAC, kind: &resource.plural, name }, &why)
    })
}

/// Checks that a user has every permission of these rules in this namespace.
fn holds_all(access: &Access, who: &Identity, rules: &Value, namespace: &str) -> Result<(), String> {
    let grants = grants(access);
    let held: Vec<&Value> = grants.rules(who, namespace).collect();
    let mut left = MAX_PERMISSIONS;
    for rule in rules.as_array().into_iter().flatten() {
        for wanted in permissions(rule, &mut left)? {
            if !held.iter().any(|rule| rule_allows(rule, &wanted)) {
                return Err(not_held(who, &wanted));
            }
        }
    }
    Ok(())
}

/// Names the first permission that is missing.
fn not_held(who: &Identity, wanted: &Attributes<'_>) -> String {
    let Attributes { verb, group, resource, subresource, name, path, .. } = *wanted;
    let what = match (path, subresource) {
        ("", "") => format!("resource {resource:?} in API group {group:?}"),
        ("", _) => format!("resource \"{resource}/{subresource}\" in API group {group:?}"),
        (path, _) => format!("path {path:?}"),
    };
    let name = if name.is_empty() { String::new() } else { format!(" with the name {name:?}") };
    let user = &who.user;
    format!("user {user:?} is attempting to grant RBAC permissions not currently held: {verb} {what}{name}")
}

/// Expands a rule into single permissions. A `*` stays a single permission, which only a `*` grants.
fn permissions<'a>(rule: &'a Value, left: &mut usize) -> Result<Vec<Attributes<'a>>, String> {
    let texts = |member: &str| -> Vec<&'a str> {
        rule[member].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let (verbs, groups, resources) = (texts("verbs"), texts("apiGroups"), texts("resources"));
    let (names, paths) = (texts("resourceNames"), texts("nonResourceURLs"));
    let names = if names.is_empty() { vec![""] } else { names };
    let count = verbs.len().saturating_mul(
        groups.len().saturating_mul(resources.len()).saturating_mul(names.len()).saturating_add(paths.len()),
    );
    *left = left.checked_sub(count).ok_or("the role has too many permissions to be judged")?;
    let mut all = Vec::with_capacity(count);
    for verb in verbs {
        all.extend(paths.iter().map(|path| Attributes { verb, path, ..Attributes::default() }));
        for group in &groups {
            for whole in &resources {
                let (resource, subresource) = whole.split_once('/').unwrap_or((whole, ""));
                all.extend(names.iter().map(|name| Attributes {
                    verb,
                    group,
                    resource,
                    subresource,
                    name,
                    ..Attributes::default()
                }));
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(held: &Value, wanted: &Value) -> bool {
        let wanted = permissions(wanted, &mut 1000).expect("few");
        !wanted.is_empty() && wanted.iter().all(|w| rule_allows(held, w))
    }

    #[test]
    fn a_star_is_held_only_by_who_has_it_and_a_name_by_who_has_all() {
        let rule = |verbs: &[&str], resources: &[&str], names: &[&str]| json!({"verbs": verbs, "apiGroups": ["x"], "resources": resources, "resourceNames": names});
        assert!(covers(&rule(&["*"], &["*"], &[]), &rule(&["*"], &["*"], &[])));
        assert!(covers(
            &rule(&["get", "list"], &["a", "a/status"], &[]),
            &rule(&["get"], &["a/status"], &["n"])
        ));
        assert!(!covers(&rule(&["get"], &["*"], &[]), &rule(&["*"], &["a"], &[])));
        assert!(!covers(&rule(&["get"], &["a"], &[]), &rule(&["get"], &["*"], &[])));
        assert!(!covers(&rule(&["get"], &["a"], &["n"]), &rule(&["get"], &["a"], &[])));
        assert!(!covers(&rule(&["get"], &["a"], &["n"]), &rule(&["get"], &["a"], &["m"])));
    }

    #[test]
    fn only_garbage_collection_may_write_a_role_without_having_what_it_grants() {
        let role = |labels: Value, finalizers: Value| json!({"metadata": {"name": "a", "labels": labels, "finalizers": finalizers}, "rules": []});
        assert!(only_collected(&role(json!({}), json!(["x"])), &role(json!({}), json!([]))));
        assert!(!only_collected(&role(json!({}), json!([])), &role(json!({"a": "b"}), json!([]))));
    }

    #[test]
    fn a_role_too_large_to_judge_is_refused() {
        let many: Vec<String> = (0..500).map(|i| i.to_string()).collect();
        let rule = json!({"verbs": many, "apiGroups": [""], "resources": many});
        assert!(permissions(&rule, &mut 100_000).is_err());
    }
}
