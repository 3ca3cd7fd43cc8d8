//! Who may say which uid an object had: with it one is given the guest and the files that were made for another.

use serde_json::{Value, json};

use super::policy;
use crate::{FORMER_UID_ANNOTATION, GROUP};

/// The group whose members may. It is the administrators' on every control plane; who may impersonate may be one.
const MASTERS: &str = "system:masters";

/// The policy and its binding. Anybody who may edit the object may take the annotation off, or leave it as it is.
pub(super) fn all() -> [Value; 2] {
    let said = |object: &str| {
        let annotations = format!("{object}.metadata.annotations");
        format!(
            "has({annotations}) && '{FORMER_UID_ANNOTATION}' in {annotations} ? {annotations}['{FORMER_UID_ANNOTATION}'] : ''"
        )
    };
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": ["vms", "disks"],
        }]},
        "variables": [
            {"name": "before", "expression": format!("request.operation == 'UPDATE' ? ({}) : ''", said("oldObject"))},
            {"name": "after", "expression": said("object")},
        ],
        "validations": [{
            "expression": format!(
                "variables.after == '' || variables.after == variables.before || \
                 (has(request.userInfo.groups) && '{MASTERS}' in request.userInfo.groups)"
            ),
            "message": format!("only a member of {MASTERS} says with {FORMER_UID_ANNOTATION} which uid an object had"),
            "reason": "Forbidden",
        }],
    });
    policy("berth-former-uid", spec)
}
