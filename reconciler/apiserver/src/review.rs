//! Questions users ask about themselves: who am I, may I do this, what may I do; and whose a token is.

use serde_json::{Value, json};

use crate::authenticate::{self, Refused};
use crate::authorize::{self, Attributes};
use crate::core::Core;
use crate::error::{ApiError, Result, Subject};
use crate::identity::Identity;
use crate::meta::{self, invalid};
use crate::service_account::ISSUER;

/// A review: posted, answered, never stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) group: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) kind: &'static str,
}

const WHO: Kind =
    Kind { group: "authentication.k8s.io", plural: "selfsubjectreviews", kind: "SelfSubjectReview" };
const WHOSE: Kind = Kind { group: "authentication.k8s.io", plural: "tokenreviews", kind: "TokenReview" };
const MAY: Kind = Kind {
    group: "authorization.k8s.io",
    plural: "selfsubjectaccessreviews",
    kind: "SelfSubjectAccessReview",
};
const RULES: Kind =
    Kind { group: "authorization.k8s.io", plural: "selfsubjectrulesreviews", kind: "SelfSubjectRulesReview" };

pub(crate) const KINDS: &[Kind] = &[WHO, WHOSE, MAY, RULES];

impl Kind {
    /// The review posted to `path`.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let rest = path.strip_prefix("/apis/")?;
        KINDS.iter().copied().find(|kind| {
            rest.strip_prefix(kind.group)
                .and_then(|r| r.strip_prefix("/v1/"))
                .is_some_and(|r| r == kind.plural)
        })
    }

    /// Whether everybody may ask it: what it tells is about who asks.
    pub(crate) fn is_open(self) -> bool {
        self != WHOSE
    }
}

/// Answers a review that was accepted.
pub(crate) fn answer(core: &Core, who: &Identity, kind: Kind, mut review: Value) -> Result<Value> {
    let spec = review["spec"].clone();
    if kind == MAY {
        one_question(&spec)?;
    }
    if kind == RULES {
        if spec["namespace"].as_str().is_none_or(str::is_empty) {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        // As in Kubernetes the answer does not repeat the question.
        review = json!({"spec": {}});
    }
    review["kind"] = kind.kind.into();
    review["apiVersion"] = format!("{}/v1", kind.group).into();
    meta::tidy(&mut review);
    if kind == WHO {
        review["metadata"]["creationTimestamp"] = crate::clock::seconds(core.clock.now()).into();
    }
    review["status"] = if kind == WHO {
        json!({"userInfo": user_info(who)})
    } else if kind == WHOSE {
        whose(core, &spec)?
    } else if kind == MAY {
        match authorize::allowed_by(core, who, &attributes(&spec)) {
            None => json!({"allowed": false}),
            Some(reason) if reason.is_empty() => json!({"allowed": true}),
            Some(reason) => json!({"allowed": true, "reason": reason}),
        }
    } else {
        rules(core, who, spec["namespace"].as_str().unwrap_or_default())
    };
    Ok(review)
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

/// Whose a token is, for the audiences that are asked for; without any for the server's own.
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
    Ok(match authenticate::token(core, token, &audiences) {
        Ok(holder) => {
            json!({"authenticated": true, "user": user_info(&holder.identity), "audiences": holder.audiences})
        }
        Err(Refused::Unknown) => json!({"user": {}, "error": Refused::Unknown.to_string()}),
        // What the two that kube-apiserver asks about a token say of one that has the form of its own.
        Err(why) => json!({"user": {}, "error": format!("[{}, {why}]", Refused::Unknown)}),
    })
}

/// A review asks about a resource or about a path.
fn one_question(spec: &Value) -> Result<()> {
    let (of_resource, of_path) =
        (spec["resourceAttributes"].is_object(), spec["nonResourceAttributes"].is_object());
    let error = match (of_resource, of_path) {
        (false, false) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            invalid("spec.resourceAttributes", &Value::Null, why)
        }
        (true, true) => {
            let why = "cannot be specified in combination with resourceAttributes";
            let path = &spec["nonResourceAttributes"];
            invalid("spec.nonResourceAttributes", &json!({"Path": path["path"], "Verb": path["verb"]}), why)
        }
        _ => return Ok(()),
    };
    Err(ApiError::invalid(Subject { group: MAY.group, kind: "", name: "" }, &[error]))
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

fn rules(core: &Core, who: &Identity, namespace: &str) -> Value {
    let all = if who.is_master() {
        vec![
            json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}),
            json!({"verbs": ["*"], "nonResourceURLs": ["*"]}),
        ]
    } else {
        authorize::grants(core).rules(who, namespace).cloned().collect()
    };
    let (paths, resources): (Vec<Value>, Vec<Value>) =
        all.into_iter().partition(|rule| rule["nonResourceURLs"].is_array());
    json!({"incomplete": false, "resourceRules": resources, "nonResourceRules": paths})
}
