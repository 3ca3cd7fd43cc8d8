//! Roles and bindings, turned around: what each user and group is granted, so that judging a request costs what
//! its sender's grants cost and not what everybody's do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::builtin::RBAC;
use crate::identity::Identity;
use crate::service_account::user_name;
use crate::store::State;

const KINDS: [&str; 4] = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"];

/// Rules by namespace and name.
type Roles = HashMap<(Arc<str>, Arc<str>), Arc<Vec<Value>>>;

#[derive(Debug, Clone)]
struct Grant {
    /// Empty: everywhere.
    namespace: Arc<str>,
    rules: Arc<Vec<Value>>,
    /// `ClusterRoleBinding "b" of ClusterRole "r" to User "u"`.
    source: Arc<str>,
}

#[derive(Debug, Default)]
pub(crate) struct Grants {
    users: HashMap<Box<str>, Vec<Grant>>,
    groups: HashMap<Box<str>, Vec<Grant>>,
}

/// The grants of the roles and bindings stored now; made anew only after one of them has changed.
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
        let of_role =
            format!("{} {:?}", text(&binding["roleRef"]["kind"]), text(&binding["roleRef"]["name"]));
        let binding_name = text(&binding["metadata"]["name"]);
        let source = match namespace {
            "" => format!("ClusterRoleBinding {binding_name:?} of {of_role}"),
            namespace => format!("RoleBinding {:?} of {of_role}", format!("{binding_name}/{namespace}")),
        };
        for subject in binding["subjects"].as_array().into_iter().flatten() {
            let name = text(&subject["name"]);
            let (of, who, told) = match subject["kind"].as_str() {
                Some("User") => (&mut self.users, name.clone(), name),
                Some("Group") => (&mut self.groups, name.clone(), name),
                Some("ServiceAccount") => {
                    let place = subject["namespace"].as_str().unwrap_or(namespace);
                    (&mut self.users, user_name(place, &name), format!("{name}/{place}"))
                }
                _ => continue,
            };
            let source = format!("{source} to {} {told:?}", text(&subject["kind"]));
            let grant =
                Grant { namespace: namespace.into(), rules: Arc::clone(rules), source: source.into() };
            of.entry(who.into()).or_default().push(grant);
        }
    }

    fn grants<'a>(&'a self, who: &'a Identity, namespace: &'a str) -> impl Iterator<Item = &'a Grant> {
        let by_group = who.groups.iter().filter_map(|group| self.groups.get(group.as_str()));
        let grants = self.users.get(who.user.as_str()).into_iter().chain(by_group).flatten();
        grants.filter(move |grant| grant.namespace.is_empty() || *grant.namespace == *namespace)
    }

    /// The rules that apply to somebody in a namespace, or with an empty one cluster-wide.
    pub(crate) fn rules<'a>(
        &'a self,
        who: &'a Identity,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Value> {
        self.grants(who, namespace).flat_map(|grant| grant.rules.iter())
    }

    /// By which binding somebody may do what a rule that fits allows: `RoleBinding "b/ns" of Role "r" to User "u"`.
    pub(crate) fn source(
        &self,
        who: &Identity,
        namespace: &str,
        fits: impl Fn(&Value) -> bool,
    ) -> Option<Arc<str>> {
        let mut grants = self.grants(who, namespace);
        grants.find(|grant| grant.rules.iter().any(&fits)).map(|grant| Arc::clone(&grant.source))
    }
}
