//! The objects that every cluster has from the start.

mod roles;

use std::sync::Arc;

use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::builtin::RBAC;
use crate::core::Core;
use crate::identity::Identity;
use crate::request::{Options, Sub, Target};
use crate::verbs::{Call, PatchKind};

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates missing objects, and adds the rules that this version has in addition to the roles of an older
/// version.
pub(crate) async fn ensure(core: &Arc<Core>) -> Result<(), String> {
    let namespaces = NAMESPACES.map(|name| ("", "namespaces", json!({"metadata": {"name": name}})));
    let roles = roles::all().into_iter().map(|(plural, object)| (RBAC, plural, object));
    try_join_all(namespaces.into_iter().chain(roles).map(|(group, plural, object)| async move {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let mut call = call(core, group, plural, &name).ok_or_else(|| format!("{plural} are not served"))?;
        let stored = core.store.get(&call.target.resource.key("", &name));
        let done = match stored {
            None => call.create(object).await.map(drop),
            Some(entry) => match with_missing_rules(&entry.value(), &object) {
                Some(rules) => call.patch(PatchKind::Merge, json!({"rules": rules})).await.map(drop),
                None => Ok(()),
            },
        };
        match done {
            // Retried at the next start: the server opens without the role, so that an administrator can fix
            // the cause.
            Err(error) if group == RBAC => {
                tracing::warn!(plural, name, error = error.message, "a default role could not be made");
                Ok(())
            }
            done => done.map_err(|error| format!("making {plural} {name}: {}", error.message)),
        }
    }))
    .await
    .map(drop)
}

/// Returns the rules of a stored role with the missing ones added, if any are missing and the role is kept up
/// to date. As in Kubernetes, rules added by an administrator stay.
fn with_missing_rules(stored: &Value, wanted: &Value) -> Option<Vec<Value>> {
    let wanted = wanted["rules"].as_array()?;
    let mut rules = stored["rules"].as_array().cloned().unwrap_or_default();
    let before = rules.len();
    rules.extend(
        wanted.iter().filter(|rule| !stored["rules"].as_array().is_some_and(|r| r.contains(rule))).cloned(),
    );
    let kept_up_to_date = stored["metadata"]["annotations"][roles::AUTOUPDATE] == "true";
    (kept_up_to_date && rules.len() > before).then_some(rules)
}

fn call(core: &Arc<Core>, group: &str, plural: &str, name: &str) -> Option<Call> {
    let served = core.catalog.served();
    let resource = Arc::clone(served.find(group, plural)?);
    let target =
        Target { resource, version: 0, namespace: String::new(), name: name.to_owned(), sub: Sub::None };
    Some(Call {
        core: Arc::clone(core),
        who: Identity::admin(),
        target,
        options: Options::default(),
        default_manager: "berth-apiserver".into(),
        warnings: Vec::new(),
        twice: Vec::new(),
        verb: "create",
        written: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_of_an_older_version_gains_rules_and_keeps_its_own() {
        let (a, b, c) = (json!({"verbs": ["a"]}), json!({"verbs": ["b"]}), json!({"verbs": ["c"]}));
        let stored =
            |update: &str| json!({"metadata": {"annotations": {roles::AUTOUPDATE: update}}, "rules": [a, c]});
        let wanted = json!({"rules": [a, b]});
        assert_eq!(with_missing_rules(&stored("true"), &wanted), Some(vec![a.clone(), c.clone(), b.clone()]));
        assert_eq!(with_missing_rules(&stored("false"), &wanted), None);
        assert_eq!(with_missing_rules(&stored("true"), &json!({"rules": [c]})), None);
        assert_eq!(
            with_missing_rules(&stored("true"), &json!({"rules": null})),
            None,
            "gathered rules are not ours"
        );
    }
}
