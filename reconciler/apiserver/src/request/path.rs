//! Paths below `/api/v1` and `/apis/GROUP/VERSION`, and their resolution to resources.

use std::sync::Arc;

use berth_apimachinery::error::{ApiError, Result};
use http::Method;

use crate::catalog::Served;
use crate::resource::Resource;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sub {
    None,
    Status,
    /// Namespaces only: the last step of their deletion.
    Finalize,
    /// ServiceAccounts only: requests a token.
    Token,
}

impl Sub {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Status => "status",
            Self::Finalize => "finalize",
            Self::Token => "token",
        }
    }

    /// The verbs of the subresource; `None` for the resource itself, which has its own.
    fn verbs(self) -> Option<&'static [&'static str]> {
        match self {
            Self::None => None,
            Self::Status => Some(&["get", "patch", "update"]),
            Self::Finalize => Some(&["update"]),
            Self::Token => Some(&["create"]),
        }
    }
}

/// A resource, or one object of it, or a subresource of that object.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) resource: Arc<Resource>,
    pub(crate) version: usize,
    /// Empty: cluster-scoped, or all namespaces.
    pub(crate) namespace: String,
    /// Empty: the collection.
    pub(crate) name: String,
    pub(crate) sub: Sub,
}

/// A path below `/api/v1` or `/apis/GROUP/VERSION` before lookup: its resource may not exist.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) sub: String,
    /// Whether the path continues after the subresource.
    deeper: bool,
}

impl ResourcePath {
    /// Parses a path; `None` if it is not the path of a resource.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let decoded: Vec<String> = path.trim_matches('/').split('/').map(decode).collect::<Option<_>>()?;
        let parts: Vec<&str> = decoded.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        // `namespaces/x/status` is a subresource of the namespace, not a resource in it.
        let (namespace, rest) = match rest {
            ["namespaces", _, "status" | "finalize", ..] => ("", rest),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            _ => ("", rest),
        };
        let part = |at: usize| rest.get(at).copied().unwrap_or_default().to_owned();
        let path = Self {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: part(0),
            namespace: namespace.to_owned(),
            name: part(1),
            sub: part(2),
            deeper: rest.len() > 3,
        };
        (!path.plural.is_empty()).then_some(path)
    }

    /// Returns the Kubernetes verb of a request, as access rules name it; empty if the method has none.
    pub(crate) fn verb(&self, method: &Method, watch: bool) -> &'static str {
        let single = !self.name.is_empty();
        match *method {
            // Unlike in Kubernetes, a single object can be watched at its own path.
            Method::GET | Method::HEAD if watch && self.sub.is_empty() => "watch",
            Method::GET | Method::HEAD if single => "get",
            Method::GET | Method::HEAD => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if single => "delete",
            Method::DELETE => "deletecollection",
            _ => "",
        }
    }

    /// Resolves the path to a served target.
    ///
    /// # Errors
    /// The resource or subresource does not exist, has another scope than the path, or does not support this
    /// verb.
    pub(crate) fn resolve(&self, served: &Served, verb: &str) -> Result<Target> {
        let resource = served.find(&self.group, &self.plural).ok_or_else(ApiError::no_such_path)?;
        let version = resource.version(&self.version).ok_or_else(ApiError::no_such_path)?;
        let definition = &resource.versions[version];
        let sub = match self.sub.as_str() {
            _ if self.deeper => None,
            "" => Some(Sub::None),
            "status" if definition.has_status => Some(Sub::Status),
            "finalize" if resource.is("", "namespaces") => Some(Sub::Finalize),
            "token" if resource.is("", "serviceaccounts") => Some(Sub::Token),
            _ => None,
        };
        self.check_place(resource, verb)?;
        let sub = sub.ok_or_else(ApiError::no_such_path)?;
        self.check_verb(resource, sub, verb)?;
        let resource = Arc::clone(resource);
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        Ok(Target { resource, version, namespace, name, sub })
    }

    /// Checks the scope: across all namespaces, namespaced objects can only be listed and watched.
    fn check_place(&self, resource: &Resource, verb: &str) -> Result<()> {
        let in_namespace = !self.namespace.is_empty();
        match (resource.namespaced, in_namespace) {
            (true, true) | (false, false) => Ok(()),
            (false, true) => Err(ApiError::no_such_path()),
            (true, false) if !self.name.is_empty() => Err(ApiError::no_such_path()),
            (true, false) if matches!(verb, "list" | "watch") => Ok(()),
            (true, false) if resource.is_custom() => Err(ApiError::no_such_path()),
            (true, false) => Err(ApiError::method_not_allowed()),
        }
    }

    fn check_verb(&self, resource: &Resource, sub: Sub, verb: &str) -> Result<()> {
        let single = !self.name.is_empty();
        let known = match sub.verbs() {
            Some(verbs) => verbs.contains(&verb),
            None => resource.verbs.contains(&verb),
        };
        let of_objects = matches!(verb, "update" | "patch");
        let misplaced = if single { verb == "create" && sub == Sub::None } else { of_objects };
        if known && !misplaced { Ok(()) } else { Err(ApiError::method_not_allowed()) }
    }
}

/// Percent-decodes one path segment; a decoded slash would address another object and is refused.
pub(crate) fn decode(segment: &str) -> Option<String> {
    percent_decoded(segment).filter(|text| !text.contains(['/', '\0']))
}

pub(super) fn percent_decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let hex = [bytes.next()?, bytes.next()?];
            out.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Option<[String; 6]> {
        ResourcePath::parse(text).map(|p| [p.group, p.version, p.plural, p.namespace, p.name, p.sub])
    }

    #[test]
    fn paths_name_group_version_plural_namespace_name_and_subresource() {
        let expect = |text: &str, wanted: [&str; 6]| assert_eq!(path(text).unwrap(), wanted, "{text}");
        expect("/api/v1/secrets", ["", "v1", "secrets", "", "", ""]);
        expect("/api/v1/namespaces", ["", "v1", "namespaces", "", "", ""]);
        expect("/api/v1/namespaces/a", ["", "v1", "namespaces", "", "a", ""]);
        expect("/api/v1/namespaces/a/finalize", ["", "v1", "namespaces", "", "a", "finalize"]);
        expect("/api/v1/namespaces/a/secrets", ["", "v1", "secrets", "a", "", ""]);
        expect("/apis/x.y/v1/namespaces/a/vms/b/status", ["x.y", "v1", "vms", "a", "b", "status"]);
        expect("/apis/r/v1/clusterroles/a%3Ab", ["r", "v1", "clusterroles", "", "a:b", ""]);
        expect("/api/v1/a/b/c/d", ["", "v1", "a", "", "b", "c"]);
        expect("/api/v2/pods", ["", "v2", "pods", "", "", ""]);
        assert!(path("/apis/x.y").is_none() && path("/apis/x.y/v1").is_none() && path("/api/v1").is_none());
        assert!(path("/api/v1/secrets/a%2Fb").is_none() && path("/nothing/here/at/all").is_none());
    }

    #[test]
    fn methods_are_verbs_of_objects_or_collections() {
        let verb = |method: Method, text: &str, watch: bool| {
            ResourcePath::parse(&format!("/api/v1/namespaces/n/{text}")).unwrap().verb(&method, watch)
        };
        assert_eq!(verb(Method::GET, "secrets", false), "list");
        assert_eq!(verb(Method::GET, "secrets", true), "watch");
        assert_eq!(verb(Method::GET, "secrets/a/x", true), "get");
        assert_eq!(verb(Method::HEAD, "secrets/a", false), "get");
        assert_eq!(verb(Method::DELETE, "secrets", false), "deletecollection");
        assert_eq!(verb(Method::DELETE, "secrets/a", false), "delete");
        assert_eq!(verb(Method::PUT, "secrets", false), "update");
        assert_eq!(verb(Method::OPTIONS, "secrets", false), "");
    }
}
