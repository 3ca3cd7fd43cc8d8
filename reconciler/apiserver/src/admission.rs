//! ValidatingAdmissionPolicy and its binding: CEL expressions that decide which writes are allowed.
//!
//! Policies are compiled once into [`Policies`], which then evaluates requests. Pure: the caller supplies the
//! objects, the namespace and the user, and receives the decision. Knows no storage and no HTTP. Parameters are of kinds of
//! CustomResourceDefinitions (`paramKind`); one of another kind is a configuration error, and the policy's failure policy
//! decides about the request. `authorizer` is not supported: an expression with it does not compile.

mod matching;
mod params;
mod policy;
mod validate;

use berth_apimachinery::schema::quote;
use serde_json::Value;

use crate::identity::Identity;
use matching::Constraints;
use policy::{Action, Binding, Policy};

pub(crate) use matching::Selector as LabelSelector;
pub(crate) use params::{MOST_PARAMS, ParamKind, ParamSource};
pub(crate) use validate::{default_constraints, validate_binding, validate_policy};

/// The operation that a request performs on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// The kind of the objects of `serviceaccounts/token`, the one subresource whose objects are of a kind of their own.
pub(crate) const TOKEN_REQUEST: &str = "TokenRequest";

/// A request to evaluate.
#[derive(Clone, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) operation: Operation,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    /// Plural, without the subresource.
    pub(crate) resource: &'a str,
    /// Empty for the main resource.
    pub(crate) subresource: &'a str,
    pub(crate) kind: &'a str,
    /// Empty for cluster-scoped objects. For a Namespace its own name, as in Kubernetes.
    pub(crate) namespace: &'a str,
    /// Empty while `generateName` has not been resolved.
    pub(crate) name: &'a str,
    pub(crate) dry_run: bool,
    pub(crate) user: &'a Identity,
    /// After defaulting; `None` on delete.
    pub(crate) object: Option<&'a Value>,
    /// `None` on create.
    pub(crate) old_object: Option<&'a Value>,
    /// The Namespace object the request is in; `None` for cluster-scoped objects, and if no policy uses it.
    pub(crate) namespace_object: Option<&'a Value>,
    /// `CreateOptions` and the like, as the client sent them.
    pub(crate) options: Option<&'a Value>,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status_message}")]
pub(crate) struct Denied {
    /// The name of the object; `Unknown` if there is none.
    pub(crate) name: String,
    /// `ValidatingAdmissionPolicy 'p' with binding 'b' denied request: …`; also the message of the single
    /// cause in the Status.
    pub(crate) message: String,
    /// The whole message of the Status: `vms.berth.dev "x" is forbidden: ValidatingAdmissionPolicy …`.
    pub(crate) status_message: String,
    /// `Invalid`, `Forbidden`, `Unauthorized` or `RequestEntityTooLarge`.
    pub(crate) reason: String,
    pub(crate) code: u16,
}

/// All policies in force, compiled.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    policies: Vec<Policy>,
}

impl Policies {
    /// Compiles the bound policies. Never fails: a policy that does not compile is kept, and its failure
    /// policy decides about the requests that it matches.
    pub(crate) fn build(policies: &[Value], bindings: &[Value]) -> Self {
        if policies.is_empty() {
            return Self::default();
        }
        let mut policies: Vec<Policy> = berth_apimachinery::schema::expression::on_big_stack(|| {
            policies.iter().map(|policy| Policy::compile(policy, bindings)).collect()
        });
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        Self { policies }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.policies.is_empty()
    }

    /// Whether a policy about such requests uses the Namespace object that the request is in.
    pub(crate) fn reads_namespace(&self, request: &Request<'_>) -> bool {
        self.policies.iter().any(|policy| policy.constraints.selects(request) && policy.reads_namespace())
    }

    /// Evaluates a request; warnings are for the `Warning` headers of the response.
    ///
    /// # Errors
    /// The first refusal, in the order of policy and binding names.
    pub(crate) fn check(
        &self,
        request: &Request<'_>,
        source: &dyn ParamSource,
    ) -> Result<Vec<String>, Denied> {
        let mut warnings = Vec::new();
        let facts = policy::Facts::new(request);
        for policy in self.policies.iter().filter(|p| !p.bindings.is_empty()) {
            let matches = |constraints: &Constraints, binding: Option<&Binding>| {
                let matched = constraints.matches(request);
                matched
                    .map_err(|e| config_error(request, policy, binding, &e))
                    .or_else(|d| policy.on_error(d))
            };
            if !matches(&policy.constraints, None)? {
                continue;
            }
            if let Some(error) = &policy.configuration_error {
                policy.on_error(config_error(request, policy, None, error))?;
                continue;
            }
            for binding in &policy.bindings {
                if let Some(constraints) = &binding.constraints
                    && !matches(constraints, Some(binding))?
                {
                    continue;
                }
                let (kind, selection) = (policy.param_kind.as_ref(), binding.param_ref.as_ref());
                let all = match params::of(kind, selection, request.namespace, source) {
                    Ok(all) => all,
                    Err(error) => {
                        policy.on_error(config_error(request, policy, Some(binding), &error))?;
                        continue;
                    }
                };
                for params in &all {
                    for failure in policy.evaluate(&facts, params.as_ref()) {
                        act(request, policy, binding, &failure, &mut warnings)?;
                    }
                }
            }
        }
        Ok(warnings)
    }
}

fn act(
    request: &Request<'_>,
    policy: &Policy,
    binding: &Binding,
    failure: &policy::Failure,
    warnings: &mut Vec<String>,
) -> Result<(), Denied> {
    for action in &binding.actions {
        match action {
            Action::Deny => {
                let message = format!(
                    "ValidatingAdmissionPolicy '{}' with binding '{}' denied request: {}",
                    policy.name, binding.name, failure.message
                );
                return Err(denied(request, message, &failure.reason));
            }
            Action::Warn => warnings.push(format!(
                "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                policy.name, binding.name, failure.message
            )),
            Action::Audit => tracing::info!(
                policy = %policy.name, binding = %binding.name, message = %failure.message,
                user = %request.user.user, resource = %request.resource, name = %request.name,
                "request failed an admission policy"
            ),
        }
    }
    Ok(())
}

fn config_error(request: &Request<'_>, policy: &Policy, binding: Option<&Binding>, error: &str) -> Denied {
    let (with, what) = match binding {
        None => (String::new(), "policy"),
        Some(binding) => (format!(" with binding '{}'", binding.name), "binding"),
    };
    let name = &policy.name;
    let message = format!(
        "ValidatingAdmissionPolicy '{name}'{with} denied request: failed to configure {what}: {error}"
    );
    denied(request, message, "Invalid")
}

fn denied(request: &Request<'_>, message: String, reason: &str) -> Denied {
    let resource = if request.group.is_empty() {
        request.resource.to_owned()
    } else {
        format!("{}.{}", request.resource, request.group)
    };
    let code = match reason {
        "Forbidden" => 403,
        "Unauthorized" => 401,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    };
    let status_message = format!("{resource} {} is forbidden: {message}", quote(object_name(request)));
    let name = object_name(request).to_owned();
    Denied { name, message, status_message, reason: reason.to_owned(), code }
}

fn object_name<'a>(request: &Request<'a>) -> &'a str {
    if !request.name.is_empty() {
        return request.name;
    }
    let text = |path: &str| {
        request.object.and_then(|o| o.pointer(path)).and_then(Value::as_str).filter(|s| !s.is_empty())
    };
    text("/metadata/name").or_else(|| text("/metadata/generateName")).unwrap_or("Unknown")
}

#[cfg(test)]
mod tests;
