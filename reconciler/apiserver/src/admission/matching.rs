//! Matching of requests by a policy's `matchConstraints` and a binding's `matchResources`.

use serde_json::Value;

use super::{Operation, Request};

#[derive(Debug, Default)]
pub(super) struct Constraints {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    namespace_selector: Selector,
    object_selector: Selector,
    /// `matchPolicy: Exact`; otherwise all versions of a resource match.
    exact: bool,
}

#[derive(Debug)]
struct Rule {
    groups: Vec<String>,
    versions: Vec<String>,
    operations: Vec<String>,
    resources: Vec<String>,
    names: Vec<String>,
    scope: Option<String>,
}

impl Constraints {
    pub(super) fn parse(value: &Value) -> Result<Self, String> {
        Ok(Self {
            rules: rules(value, "resourceRules"),
            excluded: rules(value, "excludeResourceRules"),
            namespace_selector: Selector::parse(value.get("namespaceSelector"))?,
            object_selector: Selector::parse(value.get("objectSelector"))?,
            exact: value.get("matchPolicy").and_then(Value::as_str) == Some("Exact"),
        })
    }

    /// Whether the namespace of a request decides about it.
    pub(super) fn reads_namespace(&self) -> bool {
        !self.namespace_selector.is_empty()
    }

    /// # Errors
    /// The namespace is required and unknown.
    pub(super) fn matches(&self, request: &Request<'_>) -> Result<bool, String> {
        let namespace = self.matches_namespace(request);
        if namespace == Ok(false) || !self.matches_object(request) {
            return Ok(false);
        }
        if self.selects(request) { namespace } else { Ok(false) }
    }

    /// Whether the rules select the request, whatever the labels of its object and namespace are.
    pub(super) fn selects(&self, request: &Request<'_>) -> bool {
        let any = |rules: &[Rule]| rules.iter().any(|rule| rule.matches(request, self.exact));
        !any(&self.excluded) && (self.rules.is_empty() || any(&self.rules))
    }

    fn matches_namespace(&self, request: &Request<'_>) -> Result<bool, String> {
        if self.namespace_selector.is_empty() {
            return Ok(true);
        }
        if is_namespace(request) {
            // A namespace counts as inside itself.
            let own = request.object.or(request.old_object);
            return Ok(own.is_none_or(|object| self.namespace_selector.matches(labels(object))));
        }
        if request.namespace.is_empty() {
            return Ok(true);
        }
        match request.namespace_object {
            Some(namespace) => Ok(self.namespace_selector.matches(labels(namespace))),
            None => {
                Err(format!("namespaces {} not found", berth_apimachinery::schema::quote(request.namespace)))
            }
        }
    }

    fn matches_object(&self, request: &Request<'_>) -> bool {
        self.object_selector.is_empty()
            || [request.object, request.old_object]
                .into_iter()
                .flatten()
                .any(|o| self.object_selector.matches(labels(o)))
    }
}

fn is_namespace(request: &Request<'_>) -> bool {
    request.group.is_empty() && request.resource == "namespaces"
}

fn labels(object: &Value) -> Option<&Value> {
    object.pointer("/metadata/labels")
}

fn rules(value: &Value, name: &str) -> Vec<Rule> {
    let list = value.get(name).and_then(Value::as_array).into_iter().flatten();
    list.map(|rule| Rule {
        groups: strings(rule, "apiGroups"),
        versions: strings(rule, "apiVersions"),
        operations: strings(rule, "operations"),
        resources: strings(rule, "resources"),
        names: strings(rule, "resourceNames"),
        scope: rule.get("scope").and_then(Value::as_str).map(str::to_owned),
    })
    .collect()
}

fn strings(value: &Value, name: &str) -> Vec<String> {
    let list = value.get(name).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn any(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

impl Rule {
    fn matches(&self, request: &Request<'_>, exact: bool) -> bool {
        self.scope_matches(request)
            && any(&self.operations, request.operation.as_str())
            && any(&self.groups, request.group)
            && (!exact || any(&self.versions, request.version))
            && self.resources.iter().any(|r| resource_matches(r, request))
            && (self.names.is_empty() || self.names.iter().any(|name| name == request.name))
    }

    fn scope_matches(&self, request: &Request<'_>) -> bool {
        let cluster = is_namespace(request) || request.namespace.is_empty();
        match self.scope.as_deref() {
            None | Some("*") => true,
            Some("Namespaced") => !cluster,
            Some("Cluster") => cluster,
            Some(_) => false,
        }
    }
}

/// `pods`, `pods/status`, `*/status`, `*` (no subresource) and `*/*`.
fn resource_matches(pattern: &str, request: &Request<'_>) -> bool {
    let (resource, subresource) = pattern.split_once('/').unwrap_or((pattern, ""));
    (resource == "*" || resource == request.resource)
        && (subresource == "*" || subresource == request.subresource)
}

/// A label selector.
#[derive(Debug, Default)]
pub(crate) struct Selector {
    terms: Vec<Term>,
}

#[derive(Debug)]
enum Term {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
}

impl Selector {
    pub(crate) fn parse(value: Option<&Value>) -> Result<Self, String> {
        let mut terms = Vec::new();
        let Some(value) = value else { return Ok(Self { terms }) };
        for (key, wanted) in value.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            terms.push(Term::In(key.clone(), vec![wanted.as_str().unwrap_or_default().to_owned()]));
        }
        for term in value.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let key = term.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
            let values = strings(term, "values");
            terms.push(match term.get("operator").and_then(Value::as_str).unwrap_or_default() {
                "In" => Term::In(key, values),
                "NotIn" => Term::NotIn(key, values),
                "Exists" => Term::Exists(key),
                "DoesNotExist" => Term::DoesNotExist(key),
                other => {
                    return Err(format!(
                        "{} is not a valid label selector operator",
                        berth_apimachinery::schema::quote(other)
                    ));
                }
            });
        }
        Ok(Self { terms })
    }

    fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    pub(crate) fn matches(&self, labels: Option<&Value>) -> bool {
        let label = |key: &str| labels.and_then(|l| l.get(key)).and_then(Value::as_str);
        self.terms.iter().all(|term| match term {
            Term::In(key, values) => label(key).is_some_and(|v| values.iter().any(|wanted| wanted == v)),
            Term::NotIn(key, values) => label(key).is_none_or(|v| !values.iter().any(|wanted| wanted == v)),
            Term::Exists(key) => label(key).is_some(),
            Term::DoesNotExist(key) => label(key).is_none(),
        })
    }
}

impl Operation {
    pub(super) const NAMES: [&'static str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
}
