//! Authorization: Kubernetes' RBAC over the stored roles and bindings.
//!
//! Members of `system:masters` may do everything; other users only what their bindings allow.

mod escalation;
mod grants;

use std::sync::Arc;

use berth_apimachinery::error::{ApiError, Result, Subject};
use berth_store::Store;
use http::HeaderMap;
use serde_json::Value;

pub(crate) use escalation::check as check_escalation;
use grants::{Grants, GrantsCache};

use crate::identity::Identity;
use crate::request::ResourcePath;
use crate::service_account;

/// The stored roles and bindings, and a cache of the grants derived from them.
#[derive(Debug)]
pub(crate) struct Access {
    store: Arc<Store>,
    cache: GrantsCache,
}

impl Access {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store, cache: GrantsCache::default() }
    }
}

/// The attributes of a request to authorize.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attributes<'a> {
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    /// Set instead of the resource for non-resource paths.
    pub(crate) path: &'a str,
}

/// Returns the identity a request is made in: an impersonated one if the headers name it and the sender may
/// impersonate it.
pub(crate) fn impersonated(access: &Access, who: Identity, headers: &HeaderMap) -> Result<Identity> {
    let all = |name: &str| headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let Some(user) = all("impersonate-user").next().filter(|user| !user.is_empty()) else {
        if headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
            return Err(ApiError::bad_request("impersonation needs a user"));
        }
        return Ok(who);
    };
    // Policies may decide by them: the request must not go on without.
    if headers.keys().any(|name| name.as_str().starts_with("impersonate-extra-")) {
        return Err(ApiError::bad_request("this server does not impersonate extra information about users"));
    }
    let uid = all("impersonate-uid").next().unwrap_or_default();
    let mut groups: Vec<String> = all("impersonate-group").map(str::to_owned).collect();
    let subject = match service_account::of_user(user) {
        Some((namespace, name)) => ("serviceaccounts", namespace, name),
        None => ("users", "", user),
    };
    let asked = groups.iter().map(|group| ("groups", "", group.as_str()));
    let of_uid = (!uid.is_empty()).then_some(("uids", "", uid));
    for (resource, namespace, name) in std::iter::once(subject).chain(asked).chain(of_uid) {
        let group = if resource == "uids" { "authentication.k8s.io" } else { "" };
        let wanted =
            Attributes { verb: "impersonate", group, resource, namespace, name, ..Attributes::default() };
        if !allows(access, &who, &wanted) {
            return Err(refused(&who, &wanted));
        }
    }
    // A ServiceAccount has its own groups, unless the request names others.
    if let Some((namespace, _)) = service_account::of_user(user)
        && groups.is_empty()
    {
        groups = service_account::groups(namespace).into();
    }
    let mut identity = Identity { uid: uid.to_owned(), ..Identity::new(user, groups) };
    // A client without a credential, which is no member of `system:authenticated`.
    if user == "system:anonymous" {
        identity.groups.retain(|group| group != "system:authenticated");
        identity.groups.push("system:unauthenticated".into());
    }
    Ok(identity)
}

/// Checks whether a user may do this to a resource, regardless of whether the resource exists: an
/// unauthorized user must not learn what exists.
pub(crate) fn resource(
    access: &Access,
    who: &Identity,
    verb: &str,
    path: &ResourcePath,
    field_selector: &str,
) -> Result<()> {
    // A list or watch of one name is authorized as access to that object, so that rules with names can allow
    // it.
    let listed = path.name.is_empty() && matches!(verb, "list" | "watch");
    let selected = if listed { berth_apimachinery::selector::exact_name(field_selector) } else { None };
    let name = selected.as_deref().unwrap_or(&path.name);
    // A namespace counts as inside itself, as in Kubernetes.
    let of_namespace = path.group.is_empty() && path.plural == "namespaces" && path.namespace.is_empty();
    let namespace = if of_namespace { &path.name } else { &path.namespace };
    let attributes = Attributes {
        verb,
        group: &path.group,
        resource: &path.plural,
        subresource: &path.sub,
        namespace,
        name,
        path: "",
    };
    check(access, who, &attributes)
}

/// Refuses what the rules do not allow on a resource.
pub(crate) fn check(access: &Access, who: &Identity, wanted: &Attributes<'_>) -> Result<()> {
    if allows(access, who, wanted) { Ok(()) } else { Err(refused(who, wanted)) }
}

fn refused(who: &Identity, wanted: &Attributes<'_>) -> ApiError {
    let Attributes { verb, group, resource, subresource, namespace, name, .. } = *wanted;
    let what = match subresource {
        "" => resource.to_owned(),
        sub => format!("{resource}/{sub}"),
    };
    let place = match namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let why = format!("User {:?} cannot {verb} resource {what:?} in API group {group:?} {place}", who.user);
    ApiError::forbidden(Subject { group, kind: resource, name }, &why)
}

pub(crate) fn path(access: &Access, who: &Identity, verb: &str, path: &str) -> Result<()> {
    if allows(access, who, &Attributes { verb, path, ..Attributes::default() }) {
        return Ok(());
    }
    Err(ApiError::forbidden_path(&who.user, verb, path))
}

/// Whether the rules allow the request.
pub(crate) fn allows(access: &Access, who: &Identity, wanted: &Attributes<'_>) -> bool {
    if who.is_master() {
        return true;
    }
    grants(access).rules(who, wanted.namespace).any(|rule| rule_allows(rule, wanted))
}

/// Returns the current grants of all users.
pub(crate) fn grants(access: &Access) -> Arc<Grants> {
    let state = access.store.state();
    access.cache.current(&state)
}

fn has(rule: &Value, member: &str, wanted: impl Fn(&str) -> bool) -> bool {
    rule[member].as_array().into_iter().flatten().filter_map(Value::as_str).any(wanted)
}

fn rule_allows(rule: &Value, wanted: &Attributes<'_>) -> bool {
    if !has(rule, "verbs", |verb| verb == "*" || verb == wanted.verb) {
        return false;
    }
    if !wanted.path.is_empty() {
        return has(rule, "nonResourceURLs", |url| {
            url == wanted.path || url.strip_suffix('*').is_some_and(|prefix| wanted.path.starts_with(prefix))
        });
    }
    let names = rule["resourceNames"].as_array().is_none_or(Vec::is_empty)
        || has(rule, "resourceNames", |name| name == wanted.name);
    names
        && has(rule, "apiGroups", |group| group == "*" || group == wanted.group)
        && has(rule, "resources", |resource| includes(resource, wanted))
}

/// Whether an entry of `resources`, such as `vms`, `vms/status`, `*/status` or `*`, includes what is wanted.
fn includes(entry: &str, wanted: &Attributes<'_>) -> bool {
    let (resource, subresource) = entry.split_once('/').unwrap_or((entry, ""));
    entry == "*"
        || subresource == wanted.subresource
            && (resource == wanted.resource || (resource == "*" && !subresource.is_empty()))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use serde_json::json;

    use super::*;
    use crate::config::ServerConfig;

    fn wanted<'a>(verb: &'a str, resource: &'a str, subresource: &'a str, name: &'a str) -> Attributes<'a> {
        Attributes { verb, group: "x.y", resource, subresource, name, ..Attributes::default() }
    }

    #[tokio::test]
    async fn an_impersonated_uid_is_taken_over_and_what_cannot_be_is_refused() {
        let config = ServerConfig::in_memory();
        let access = Access::new(Store::open(&config.storage, config.writer).unwrap());
        let impersonated = |who: Identity, headers: &[(&'static str, &'static str)]| {
            let headers = headers
                .iter()
                .map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            impersonated(&access, who, &headers.collect())
        };
        let (user, uid) = (("impersonate-user", "ada"), ("impersonate-uid", "u"));
        let ada = impersonated(Identity::admin(), &[user, uid]).unwrap();
        assert_eq!((ada.user.as_str(), ada.uid.as_str(), ada.is_master()), ("ada", "u", false));
        assert_eq!(impersonated(Identity::admin(), &[user]).unwrap().uid, "");
        assert!(ada.groups.iter().any(|group| group == "system:authenticated"), "{ada:?}");
        let extra = impersonated(Identity::admin(), &[user, ("impersonate-extra-scopes", "s")]);
        assert_eq!(extra.unwrap_err().code, 400);
        let anonymous = impersonated(Identity::admin(), &[("impersonate-user", "system:anonymous")]).unwrap();
        assert_eq!(anonymous.groups, ["system:unauthenticated"]);
        let refused = impersonated(Identity::new("eve", Vec::new()), &[user, uid]);
        assert_eq!(refused.unwrap_err().code, 403);
    }

    #[test]
    fn a_rule_allows_what_it_names_and_nothing_else() {
        let rule = json!({"verbs": ["get", "patch"], "apiGroups": ["x.y"], "resources": ["vms", "vms/status"],
            "resourceNames": ["a"]});
        assert!(rule_allows(&rule, &wanted("get", "vms", "", "a")));
        assert!(rule_allows(&rule, &wanted("patch", "vms", "status", "a")));
        assert!(!rule_allows(&rule, &wanted("get", "vms", "", "b")), "another name");
        assert!(!rule_allows(&rule, &wanted("list", "vms", "", "")), "another verb, no name");
        assert!(!rule_allows(&rule, &wanted("get", "vms", "console", "a")), "another subresource");
        assert!(!rule_allows(&rule, &wanted("get", "disks", "", "a")), "another resource");
        assert!(
            !rule_allows(&rule, &Attributes { group: "", ..wanted("get", "vms", "", "a") }),
            "another group"
        );
    }

    #[test]
    fn stars_allow_everything_and_paths_match_by_prefix() {
        let all = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
        assert!(rule_allows(&all, &wanted("delete", "vms", "status", "a")));
        let of_all = json!({"verbs": ["get"], "apiGroups": ["x.y"], "resources": ["*/status"]});
        assert!(rule_allows(&of_all, &wanted("get", "vms", "status", "a")));
        assert!(!rule_allows(&of_all, &wanted("get", "vms", "", "a")));
        let paths = json!({"verbs": ["get"], "nonResourceURLs": ["/metrics", "/logs/*"]});
        let at = |path| Attributes { verb: "get", path, ..Attributes::default() };
        assert!(rule_allows(&paths, &at("/metrics")) && rule_allows(&paths, &at("/logs/a")));
        assert!(!rule_allows(&paths, &at("/metricsx")) && !rule_allows(&all, &at("/metrics")));
    }
}
