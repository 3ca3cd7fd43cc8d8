//! Roles and bindings, indexed by user and group, so that the cost of authorizing a request depends only on
//! the grants of its user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use berth_store::State;
use serde_json::Value;

use crate::builtin::RBAC;
use crate::identity::Identity;
use crate::service_account::user_name;

const KINDS: [&str; 4] = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"];

/// Rules by namespace and name.
type Roles = HashMap<(Arc<str>, Arc<str>), Arc<Vec<Value>>>;

#[derive(Debug, Clone)]
struct Grant {
    /// Empty: everywhere.
    namespace: Arc<str>,
    rules: Arc<Vec<Value>>,
}

#[derive(Debug, Default)]
pub(crate) struct Grants {
    users: HashMap<Box<str>, Vec<Grant>>,
    groups: HashMap<Box<str>, Vec<Grant>>,
}

/// A cache of the grants of the stored roles and bindings; rebuilt only after one of them changed.
#[derive(Debug, Default)]
pub(crate) struct GrantsCache {
    built: Mutex<Option<([u64; 4], Arc<Grants>)>>,
}

impl GrantsCache {
    pub(crate) fn current(&self, state: &State) -> Arc<Grants> {
        let now = KINDS.map(|kind| state.changed(&format!("{RBAC}/{kind}")));
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        match &*built {
            Some((at, grants)) if *at == now => Arc::clone(grants),
            _ => {
                let grants = Arc::new(Grants::of(state));
                *built = Some((now, Arc::clone(&grants)));
                grants
            }
        }
    }
}

impl Grants {
    fn of(state: &State) -> Self {
        let rules = |kind: &str| -> Roles {
            let storage = format!("{RBAC}/{kind}");
            let roles = state.list_all(&storage);
            let rules = |role: &Value| Arc::new(role["rules"].as_array().cloned().unwrap_or_default());
            roles.map(|e| ((e.key.namespace.clone(), e.key.name.clone()), rules(&e.value()))).collect()
        };
        let (cluster_roles, roles) = (rules("clusterroles"), rules("roles"));
        let mut grants = Self::default();
        for kind in ["clusterrolebindings", "rolebindings"] {
            for entry in state.list_all(&format!("{RBAC}/{kind}")) {
                let binding = entry.value();
                let namespace = &entry.key.namespace;
                let name: Arc<str> = binding["roleRef"]["name"].as_str().unwrap_or_default().into();
                let rules = match binding["roleRef"]["kind"].as_str() {
                    Some("ClusterRole") => cluster_roles.get(&("".into(), name)),
                    Some("Role") if !namespace.is_empty() => roles.get(&(namespace.clone(), name)),
                    _ => None,
                };
                if let Some(rules) = rules {
                    grants.bind(&binding, namespace, rules);
                }
            }
        }
        grants
    }

    fn bind(&mut self, binding: &Value, namespace: &str, rules: &Arc<Vec<Value>>) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for subject in binding["subjects"].as_array().into_iter().flatten() {
            let name = text(&subject["name"]);
            let (of, who) = match subject["kind"].as_str() {
                Some("User") => (&mut self.users, name),
                Some("Group") => (&mut self.groups, name),
                Some("ServiceAccount") => {
                    let place = subject["namespace"].as_str().unwrap_or(namespace);
                    (&mut self.users, user_name(place, &name))
                }
                _ => continue,
            };
            let grant = Grant { namespace: namespace.into(), rules: Arc::clone(rules) };
            of.entry(who.into()).or_default().push(grant);
        }
    }

    fn grants<'a>(&'a self, who: &'a Identity, namespace: &'a str) -> impl Iterator<Item = &'a Grant> {
        let by_group = who.groups.iter().filter_map(|group| self.groups.get(group.as_str()));
        let grants = self.users.get(who.user.as_str()).into_iter().chain(by_group).flatten();
        grants.filter(move |grant| grant.namespace.is_empty() || *grant.namespace == *namespace)
    }

    /// Returns the rules that apply to a user in a namespace, or cluster-wide if it is empty.
    pub(crate) fn rules<'a>(
        &'a self,
        who: &'a Identity,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Value> {
        self.grants(who, namespace).flat_map(|grant| grant.rules.iter())
    }
}
