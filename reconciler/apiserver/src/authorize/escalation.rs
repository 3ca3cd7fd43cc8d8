//! Nobody grants what he does not have: writing a role needs all its permissions, binding one as well.
//!
//! As in Kubernetes the verbs `escalate` (on roles) and `bind` (on what is bound) allow it all the same, and members
//! of `system:masters` may do everything.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Attributes, allows, grants, rule_allows};
use crate::builtin::RBAC;
use crate::core::Core;
use crate::error::{ApiError, Result, Subject};
use crate::identity::Identity;
use crate::resource::Resource;
use crate::store::Key;

/// Single permissions one role may be taken apart into.
const MAX_PERMISSIONS: usize = 100_000;
/// Missing permissions one refusal names.
const MAX_TOLD: usize = 64;

/// Refuses a role or binding that grants more than its writer has.
pub(crate) fn check(
    core: &Core,
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
        "roles" | "clusterroles" => role(core, who, resource, object),
        "rolebindings" | "clusterrolebindings" => binding(core, who, resource, object),
        _ => Ok(()),
    }
}

/// Whether a write changes nothing but what garbage collection writes. Anything else affirms all that is granted.
fn only_collected(old: &Value, new: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        let metadata = crate::meta::of(&mut object);
        for member in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
            metadata.shift_remove(member);
        }
        object
    };
    rest(old) == rest(new)
}

fn place(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

fn role(core: &Core, who: &Identity, resource: &Resource, object: &Value) -> Result<()> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let escalate = Attributes {
        verb: "escalate",
        group: RBAC,
        resource: &resource.plural,
        namespace: place(object),
        name,
        ..Attributes::default()
    };
    if allows(core, who, &escalate) {
        return Ok(());
    }
    holds_all(core, who, &object["rules"], place(object))
        .map_err(|why| ApiError::forbidden(Subject { group: RBAC, kind: &resource.plural, name }, &why))
}

fn binding(core: &Core, who: &Identity, resource: &Resource, object: &Value) -> Result<()> {
    let (kind, plural) = match object["roleRef"]["kind"].as_str() {
        Some("Role") => ("roles", "roles"),
        _ => ("clusterroles", "clusterroles"),
    };
    let namespace = if kind == "roles" { place(object) } else { "" };
    let name = object["roleRef"]["name"].as_str().unwrap_or_default();
    let bind = Attributes {
        verb: "bind",
        group: RBAC,
        resource: plural,
        namespace: place(object),
        name,
        ..Attributes::default()
    };
    if allows(core, who, &bind) {
        return Ok(());
    }
    let key = Key::new(&format!("{RBAC}/{kind}").into(), namespace, name);
    let role = core.store.get(&key);
    // What was asked for is the binding: as in Kubernetes it is that which is said not to be found.
    let missing = || ApiError::not_found(Subject { group: RBAC, kind: &resource.plural, name });
    let role = role.ok_or_else(missing)?;
    holds_all(core, who, &role.value()["rules"], place(object)).map_err(|why| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        ApiError::forbidden(Subject { group: RBAC, kind: &resource.plural, name }, &why)
    })
}

/// Whether somebody has every permission of these rules, there.
fn holds_all(core: &Core, who: &Identity, rules: &Value, namespace: &str) -> Result<(), String> {
    let grants = grants(core);
    let held: Vec<&Value> = grants.rules(who, namespace).collect();
    let mut left = MAX_PERMISSIONS;
    // Verbs by what they are on, in the words of kube-apiserver.
    let mut missing: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for rule in rules.as_array().into_iter().flatten() {
        for wanted in permissions(rule, &mut left)? {
            if !held.iter().any(|rule| rule_allows(rule, &wanted)) {
                let verbs = missing.entry(told(&wanted)).or_default();
                if !verbs.contains(&wanted.verb) {
                    verbs.push(wanted.verb);
                }
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let groups: Vec<String> = who.groups.iter().map(|group| format!("{group:?}")).collect();
    let missing = missing.iter().take(MAX_TOLD);
    let missing: String =
        missing.map(|(what, verbs)| format!("\n{{{what}, Verbs:{}}}", list(verbs))).collect();
    Err(format!(
        "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:{missing}",
        who.user,
        groups.join(" ")
    ))
}

fn list(texts: &[&str]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
    format!("[{}]", texts.join(", "))
}

/// What a permission is on.
fn told(wanted: &Attributes<'_>) -> String {
    if !wanted.path.is_empty() {
        return format!("NonResourceURLs:{}", list(&[wanted.path]));
    }
    let resource = match wanted.subresource {
        "" => wanted.resource.to_owned(),
        subresource => format!("{}/{subresource}", wanted.resource),
    };
    let names = match wanted.name {
        "" => String::new(),
        name => format!(", ResourceNames:{}", list(&[name])),
    };
    format!("APIGroups:{}, Resources:{}{names}", list(&[wanted.group]), list(&[&resource]))
}

/// A rule as single permissions. A `*` stays one: only who has `*` holds it.
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
    use serde_json::json;

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
