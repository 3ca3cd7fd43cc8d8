//! Reviews: the caller's identity and permissions, those of another user, and the holder of a token.

use berth_apimachinery::error::{ApiError, Result, Subject};
use berth_apimachinery::meta::{self, invalid};
use serde_json::{Value, json};

use crate::authenticate;
use crate::authorize::{self, Attributes};
use crate::core::Core;
use crate::identity::{Identity, Token};
use crate::request::ResourcePath;
use crate::service_account::ISSUER;

/// A review: posted, answered, never stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Review {
    pub(crate) group: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) namespaced: bool,
}

const fn review(group: &'static str, plural: &'static str, kind: &'static str) -> Review {
    Review { group, plural, kind, namespaced: false }
}

const AUTHORIZATION: &str = "authorization.k8s.io";
const WHO: Review = review("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview");
const WHOSE: Review = review("authentication.k8s.io", "tokenreviews", "TokenReview");
const MAY: Review = review(AUTHORIZATION, "selfsubjectaccessreviews", "SelfSubjectAccessReview");
const RULES: Review = review(AUTHORIZATION, "selfsubjectrulesreviews", "SelfSubjectRulesReview");
const MAY_ANOTHER: Review = review(AUTHORIZATION, "subjectaccessreviews", "SubjectAccessReview");
/// The same within one namespace, for its administrators.
const MAY_ANOTHER_THERE: Review = Review {
    namespaced: true,
    ..review(AUTHORIZATION, "localsubjectaccessreviews", "LocalSubjectAccessReview")
};
pub(crate) const KINDS: &[Review] = &[WHO, WHOSE, MAY_ANOTHER_THERE, MAY, RULES, MAY_ANOTHER];

impl Review {
    /// Returns the review posted to `path`.
    pub(crate) fn of(path: &ResourcePath) -> Option<Self> {
        KINDS.iter().copied().find(|kind| {
            kind.group == path.group
                && kind.plural == path.plural
                && path.version == "v1"
                && path.name.is_empty()
                && kind.namespaced != path.namespace.is_empty()
        })
    }
}

/// Answers a review that was accepted.
pub(crate) fn answer(
    core: &Core,
    who: &Identity,
    kind: Review,
    namespace: &str,
    mut review: Value,
) -> Result<Value> {
    if kind.namespaced {
        let sent = review["metadata"]["namespace"].as_str().unwrap_or_default();
        if !sent.is_empty() && sent != namespace {
            return Err(ApiError::bad_request("metadata.namespace is not the namespace of the request"));
        }
        meta::of(&mut review).insert("namespace".into(), namespace.into());
    }
    let spec = review["spec"].clone();
    if matches!(kind, MAY | MAY_ANOTHER | MAY_ANOTHER_THERE) {
        check_question(kind, namespace, &spec)?;
    }
    if kind == RULES {
        if spec["namespace"].as_str().is_none_or(str::is_empty) {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        // As in Kubernetes, the response does not repeat the request.
        review = json!({"spec": {}});
    }
    review["kind"] = kind.kind.into();
    review["apiVersion"] = format!("{}/v1", kind.group).into();
    meta::tidy(&mut review);
    if kind == WHO {
        review["metadata"]["creationTimestamp"] = berth_apimachinery::time::seconds(core.clock.now()).into();
    }
    review["status"] = match kind {
        WHO => json!({"userInfo": user_info(who)}),
        WHOSE => whose(core, &spec)?,
        RULES => rules(core, who, spec["namespace"].as_str().unwrap_or_default()),
        MAY => may(core, who, &spec),
        _ => may(core, &subject(&spec), &spec),
    };
    Ok(review)
}

fn may(core: &Core, who: &Identity, spec: &Value) -> Value {
    json!({"allowed": authorize::allows(&core.access, who, &attributes(spec))})
}

/// Returns the user of a review, only in the groups it names.
fn subject(spec: &Value) -> Identity {
    let text = |member: &str| spec[member].as_str().unwrap_or_default().to_owned();
    let groups = spec["groups"].as_array().into_iter().flatten().filter_map(Value::as_str);
    Identity {
        user: text("user"),
        groups: groups.map(str::to_owned).collect(),
        uid: text("uid"),
        credential: String::new(),
    }
}

fn user_info(who: &Identity) -> Value {
    let mut user = json!({"username": who.user, "groups": who.groups});
    if !who.uid.is_empty() {
        user["uid"] = who.uid.as_str().into();
    }
    let extra = who.extra();
    if !extra.is_null() {
        user["extra"] = extra;
    }
    user
}

/// Returns the holder of a token for the requested audiences; without any, for the server's own.
fn whose(core: &Core, spec: &Value) -> Result<Value> {
    let token = spec["token"].as_str().unwrap_or_default();
    if token.is_empty() {
        return Err(ApiError::bad_request("token is required for TokenReview in authentication"));
    }
    let mut audiences: Vec<String> = spec["audiences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if audiences.is_empty() {
        audiences.push(ISSUER.to_owned());
    }
    Ok(match authenticate::token(&core.tokens, &Token::new(token), &audiences) {
        Ok(holder) => {
            json!({"authenticated": true, "user": user_info(&holder.identity), "audiences": holder.audiences})
        }
        Err(why) => json!({"user": {}, "error": why.to_string()}),
    })
}

/// Checks that a review names a resource or a path, and a user.
fn check_question(kind: Review, namespace: &str, spec: &Value) -> Result<()> {
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let mut errors = Vec::new();
    if resource.is_object() == path.is_object() {
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        errors.push(invalid("spec.resourceAttributes", resource, why));
    }
    let is_empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    if kind != MAY && spec["user"].as_str().is_none_or(str::is_empty) && is_empty(&spec["groups"]) {
        errors.push(invalid("spec.user", &"".into(), "at least one of user or group must be specified"));
    }
    if kind.namespaced && resource["namespace"].as_str().unwrap_or_default() != namespace {
        let why = "must match metadata.namespace";
        errors.push(invalid("spec.resourceAttributes.namespace", &resource["namespace"], why));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(Subject { group: AUTHORIZATION, kind: "", name: "" }, &errors))
}

fn attributes(spec: &Value) -> Attributes<'_> {
    let (resource, other) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    if other.is_object() {
        return Attributes {
            verb: other["verb"].as_str().unwrap_or_default(),
            path: other["path"].as_str().unwrap_or_default(),
            ..Attributes::default()
        };
    }
    Attributes {
        verb: resource["verb"].as_str().unwrap_or_default(),
        group: resource["group"].as_str().unwrap_or_default(),
        resource: resource["resource"].as_str().unwrap_or_default(),
        subresource: resource["subresource"].as_str().unwrap_or_default(),
        namespace: resource["namespace"].as_str().unwrap_or_default(),
        name: resource["name"].as_str().unwrap_or_default(),
        path: "",
    }
}

/// Returns the rules that the bindings grant a user.
fn rules(core: &Core, who: &Identity, namespace: &str) -> Value {
    let everything = [
        json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}),
        json!({"nonResourceURLs": ["*"], "verbs": ["*"]}),
    ];
    let mut all: Vec<Value> = authorize::grants(&core.access).rules(who, namespace).cloned().collect();
    // Administrators are not subject to rules, whether or not there is a binding.
    if who.is_master() {
        let missing = everything.into_iter().filter(|rule| !all.contains(rule)).collect::<Vec<_>>();
        all.extend(missing);
    }
    let with = |member: &str, members: &[&str]| -> Vec<Value> {
        let named = all.iter().filter(|rule| rule[member].as_array().is_some_and(|list| !list.is_empty()));
        let reported = named.map(|rule| {
            let reported =
                members.iter().filter_map(|name| Some(((*name).to_owned(), rule.get(*name)?.clone())));
            Value::Object(reported.collect())
        });
        reported.collect()
    };
    json!({
        "incomplete": false,
        "resourceRules": with("resources", &["verbs", "apiGroups", "resources", "resourceNames"]),
        "nonResourceRules": with("nonResourceURLs", &["verbs", "nonResourceURLs"]),
    })
}
