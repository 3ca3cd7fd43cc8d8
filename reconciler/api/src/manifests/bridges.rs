//! Restricts Networks of type `Bridge` to the administrator's namespace: they connect VMs to the hosts' own networks.

use serde_json::{Value, json};

use super::policy;
use crate::{GROUP, SHARED_NAMESPACE};

/// The policy and its binding.
pub(super) fn all() -> [Value; 2] {
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["networks"],
        }]},
        "validations": [{
            "expression": format!(
                "!has(object.spec.type) || object.spec.type != 'Bridge' || object.metadata.namespace == '{SHARED_NAMESPACE}'"
            ),
            "message": format!(
                "a Network of type Bridge belongs in namespace {SHARED_NAMESPACE}, where VMs of all namespaces find it"
            ),
            "reason": "Forbidden",
        }],
    });
    policy("berth-bridges", spec)
}
