//! Roles and bindings, indexed by user and group, so that the cost of authorizing a request depends only on
//! the grants of its user.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use berth_store::{Entry, State};
use serde_json::Value;

use crate::builtin::RBAC;
use crate::identity::Identity;
use crate::service_account::user_name;

/// The resources of access rules, as the store names them: ClusterRoles, Roles, and the bindings of each.
static STORED: LazyLock<[String; 4]> = LazyLock::new(|| {
    ["clusterroles", "roles", "clusterrolebindings", "rolebindings"].map(|kind| format!("{RBAC}/{kind}"))
});

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
    built: Mutex<Option<Built>>,
}

#[derive(Debug)]
struct Built {
    /// The revisions of the last changes of the four resources.
    at: [u64; 4],
    grants: Arc<Grants>,
    parsed: Parsed,
}

impl GrantsCache {
    pub(crate) fn current(&self, state: &State) -> Arc<Grants> {
        let now = STORED.each_ref().map(|resource| state.changed(resource));
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(built) = built.as_ref().filter(|built| built.at == now) {
            return Arc::clone(&built.grants);
        }
        let before = built.take().map(|built| built.parsed).unwrap_or_default();
        let (grants, parsed) = Grants::of(state, &before);
        let grants = Arc::new(grants);
        *built = Some(Built { at: now, grants: Arc::clone(&grants), parsed });
        grants
    }
}

/// The parsed parts of the stored objects. Each host has objects of its own here: a change of one must not parse those of all hosts.
#[derive(Debug, Default)]
struct Parsed {
    roles: ByRevision<Vec<Value>>,
    bindings: ByRevision<Binding>,
}

/// Parsed parts of objects by revision, which is that of one state of one object.
#[derive(Debug)]
struct ByRevision<T>(HashMap<u64, Arc<T>>);

impl<T> Default for ByRevision<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> ByRevision<T> {
    /// Returns the part of this state of the object: that of `before`, if it has it, or parsed now.
    fn take(&mut self, before: &Self, entry: &Entry, parse: impl FnOnce(&Value) -> T) -> Arc<T> {
        let known = before.0.get(&entry.revision).cloned();
        let parsed = known.unwrap_or_else(|| Arc::new(parse(&entry.value())));
        self.0.insert(entry.revision, Arc::clone(&parsed));
        parsed
    }
}

/// The role and the subjects of a binding.
#[derive(Debug)]
struct Binding {
    role: Option<(Scope, Arc<str>)>,
    users: Vec<Box<str>>,
    groups: Vec<Box<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Cluster,
    Namespace,
}

impl Binding {
    fn parse(binding: &Value, namespace: &str) -> Self {
        let name: Arc<str> = binding["roleRef"]["name"].as_str().unwrap_or_default().into();
        let role = match binding["roleRef"]["kind"].as_str() {
            Some("ClusterRole") => Some((Scope::Cluster, name)),
            Some("Role") if !namespace.is_empty() => Some((Scope::Namespace, name)),
            _ => None,
        };
        let mut parsed = Self { role, users: Vec::new(), groups: Vec::new() };
        for subject in binding["subjects"].as_array().into_iter().flatten() {
            let name = subject["name"].as_str().unwrap_or_default();
            match subject["kind"].as_str() {
                Some("User") => parsed.users.push(name.into()),
                Some("Group") => parsed.groups.push(name.into()),
                Some("ServiceAccount") => {
                    let place = subject["namespace"].as_str().unwrap_or(namespace);
                    parsed.users.push(user_name(place, name).into());
                }
                _ => {}
            }
        }
        parsed
    }
}

impl Grants {
    fn of(state: &State, before: &Parsed) -> (Self, Parsed) {
        let mut parsed = Parsed::default();
        let [cluster_roles, roles, bindings @ ..] = &*STORED;
        let mut rules = |resource: &str| -> Roles {
            let parse = |role: &Value| role["rules"].as_array().cloned().unwrap_or_default();
            let of = |entry: &Arc<Entry>| {
                let name = (entry.key.namespace.clone(), entry.key.name.clone());
                (name, parsed.roles.take(&before.roles, entry, parse))
            };
            state.list_all(resource).map(of).collect()
        };
        let (cluster_roles, roles) = (rules(cluster_roles), rules(roles));
        let mut grants = Self::default();
        for entry in bindings.iter().flat_map(|resource| state.list_all(resource)) {
            let namespace = &entry.key.namespace;
            let parse = |binding: &Value| Binding::parse(binding, namespace);
            let binding = parsed.bindings.take(&before.bindings, entry, parse);
            let rules = match &binding.role {
                Some((Scope::Cluster, name)) => cluster_roles.get(&("".into(), Arc::clone(name))),
                Some((Scope::Namespace, name)) => roles.get(&(Arc::clone(namespace), Arc::clone(name))),
                None => None,
            };
            if let Some(rules) = rules {
                grants.bind(&binding, namespace, rules);
            }
        }
        (grants, parsed)
    }

    fn bind(&mut self, binding: &Binding, namespace: &Arc<str>, rules: &Arc<Vec<Value>>) {
        let grant = Grant { namespace: Arc::clone(namespace), rules: Arc::clone(rules) };
        for user in &binding.users {
            self.users.entry(user.clone()).or_default().push(grant.clone());
        }
        for group in &binding.groups {
            self.groups.entry(group.clone()).or_default().push(grant.clone());
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

#[cfg(test)]
mod tests {
    use berth_store::{Facts, Key};
    use bytes::Bytes;
    use serde_json::json;

    use super::*;

    fn entry(revision: u64, kind: &str, namespace: &str, name: &str, object: &Value) -> Arc<Entry> {
        let facts = Facts { uid: name.into(), ..Facts::default() };
        let key = Key::new(&format!("{RBAC}/{kind}").into(), namespace, name);
        let text = Bytes::from(object.to_string()).into();
        Arc::new(Entry { key, revision, written_ms: 0, text, facts: Arc::new(facts) })
    }

    fn role(verb: &str) -> Value {
        json!({"rules": [{"verbs": [verb]}]})
    }

    #[test]
    fn a_change_parses_what_changed_and_nothing_else() {
        let mut state = State::new(0, 0);
        let subjects = json!([{"kind": "User", "name": "ada"}, {"kind": "ServiceAccount", "name": "robot"}]);
        let binding = json!({"roleRef": {"kind": "ClusterRole", "name": "reader"}, "subjects": subjects});
        state.load(entry(1, "clusterroles", "", "reader", &role("get")));
        state.load(entry(2, "rolebindings", "ns", "readers", &binding));
        let cache = GrantsCache::default();
        let (ada, robot) =
            (Identity::new("ada", Vec::new()), Identity::new("system:serviceaccount:ns:robot", Vec::new()));
        let first = cache.current(&state);
        assert!(Arc::ptr_eq(&first, &cache.current(&state)), "nothing changed");
        assert_eq!(first.rules(&ada, "ns").count(), 1);
        assert_eq!((first.rules(&ada, "other").count(), first.rules(&robot, "ns").count()), (0, 1));
        state.load(entry(3, "clusterroles", "", "other", &role("list")));
        let second = cache.current(&state);
        let rule_of = |grants: &Grants| grants.rules(&ada, "ns").next().map(std::ptr::from_ref);
        assert_eq!(rule_of(&first), rule_of(&second), "it was not parsed again");
        state.load(entry(4, "clusterroles", "", "reader", &role("watch")));
        let third = cache.current(&state);
        assert_eq!(third.rules(&ada, "ns").next(), Some(&json!({"verbs": ["watch"]})));
        let parsed = cache.built.lock().unwrap().as_ref().map(|built| built.parsed.roles.0.len());
        assert_eq!(parsed, Some(2), "what was parsed of the earlier state is gone");
    }
}
