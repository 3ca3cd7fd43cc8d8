//! The parameters of a policy: objects of its `paramKind`, of which each binding selects some by its `paramRef`.
//!
//! A policy is evaluated once for each parameter, and a request must pass for all of them.

use serde_json::Value;

use super::LabelSelector;

/// The maximum number of objects that a binding may select from. More are an error: each costs an evaluation.
pub(crate) const MOST_PARAMS: usize = 128;

/// The kind of a policy's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParamKind {
    pub(crate) api_version: String,
    pub(crate) kind: String,
}

impl ParamKind {
    pub(super) fn parse(spec: &Value) -> Option<Self> {
        let declared = spec.get("paramKind").filter(|kind| !kind.is_null())?;
        let text = |name: &str| declared.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        Some(Self { api_version: text("apiVersion"), kind: text("kind") })
    }
}

/// The objects that can be parameters.
pub(crate) trait ParamSource {
    /// Returns whether objects of the kind are in namespaces; `None` for a kind that cannot have parameters.
    fn namespaced(&self, kind: &ParamKind) -> Option<bool>;
    /// Returns the objects of the kind, in this namespace if it is one with namespaces: all of them, or at least one more than
    /// [`MOST_PARAMS`].
    fn objects(&self, kind: &ParamKind, namespace: &str) -> Vec<Value>;
}

/// The selection of a binding.
#[derive(Debug)]
pub(super) struct ParamRef {
    name: String,
    namespace: String,
    selector: Option<LabelSelector>,
    denies_if_missing: bool,
}

impl ParamRef {
    /// # Errors
    /// The selector is invalid.
    pub(super) fn parse(spec: &Value) -> Result<Option<Self>, String> {
        let Some(declared) = spec.get("paramRef").filter(|declared| !declared.is_null()) else {
            return Ok(None);
        };
        let text = |name: &str| declared.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let selector = declared.get("selector").filter(|selector| !selector.is_null());
        let selector = selector.map(|selector| LabelSelector::parse(Some(selector))).transpose()?;
        let denies_if_missing = text("parameterNotFoundAction") == "Deny";
        Ok(Some(Self { name: text("name"), namespace: text("namespace"), selector, denies_if_missing }))
    }

    /// Returns the namespace of the parameters of a request in this namespace; empty if they are in none.
    fn namespace<'a>(&'a self, is_namespaced: bool, of_request: &'a str) -> Result<&'a str, String> {
        match (is_namespaced, self.namespace.is_empty()) {
            (true, false) => Ok(&self.namespace),
            (true, true) if of_request.is_empty() => {
                Err("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                    .to_owned())
            }
            (true, true) => Ok(of_request),
            (false, false) => {
                Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned())
            }
            (false, true) => Ok(""),
        }
    }

    fn selects(&self, object: &Value) -> Result<bool, String> {
        match (&self.selector, self.name.is_empty()) {
            (Some(_), false) => Err("paramRef.name and paramRef.selector are mutually exclusive".to_owned()),
            (Some(selector), true) => Ok(selector.matches(object.pointer("/metadata/labels"))),
            (None, false) => {
                Ok(object.pointer("/metadata/name").and_then(Value::as_str) == Some(self.name.as_str()))
            }
            (None, true) => Err("one of name or selector must be provided".to_owned()),
        }
    }
}

/// Returns the parameters to evaluate a policy with: `None` alone without a kind or a selection, and nothing if no parameter is
/// found and that is allowed.
///
/// # Errors
/// The kind is not served, the selection does not fit it or the request, or nothing is found and that is not allowed.
pub(super) fn of(
    kind: Option<&ParamKind>,
    selection: Option<&ParamRef>,
    namespace: &str,
    source: &dyn ParamSource,
) -> Result<Vec<Option<Value>>, String> {
    let (Some(kind), Some(selection)) = (kind, selection) else { return Ok(vec![None]) };
    let is_namespaced = source.namespaced(kind).ok_or_else(|| {
        format!(
            "paramKind kind `{}, Kind={}` not known: this server has parameters of kinds of \
             CustomResourceDefinitions only",
            kind.api_version, kind.kind
        )
    })?;
    let objects = source.objects(kind, selection.namespace(is_namespaced, namespace)?);
    if objects.len() > MOST_PARAMS {
        return Err(format!(
            "there are more than {MOST_PARAMS} objects of kind {} to select from",
            kind.kind
        ));
    }
    let mut selected = Vec::new();
    for object in objects {
        if selection.selects(&object)? {
            selected.push(Some(object));
        }
    }
    if selected.is_empty() && selection.denies_if_missing {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    Ok(selected)
}
