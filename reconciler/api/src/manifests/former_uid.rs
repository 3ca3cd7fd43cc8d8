//! Restricts the annotation with an object's former uid: it gives the object the guest and the files of another one.

use serde_json::{Value, json};

use super::policy;
use crate::{FORMER_UID_ANNOTATION, GROUP};

/// The group that may set it. It is the administrators' on every control plane; a user with the right to impersonate may be one.
const MASTERS: &str = "system:masters";

/// The policy and its binding. Every editor of the object may remove the annotation or leave it as it is.
pub(super) fn all() -> [Value; 2] {
    let annotated = |object: &str| {
        let annotations = format!("{object}.metadata.annotations");
        format!(
            "has({annotations}) && '{FORMER_UID_ANNOTATION}' in {annotations} ? {annotations}['{FORMER_UID_ANNOTATION}'] : ''"
        )
    };
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": ["vms", "disks", "disksnapshots", "backups"],
        }]},
        "variables": [
            {"name": "before", "expression": format!("request.operation == 'UPDATE' ? ({}) : ''", annotated("oldObject"))},
            {"name": "after", "expression": annotated("object")},
        ],
        "validations": [{
            "expression": format!(
                "variables.after == '' || variables.after == variables.before || \
                 (has(request.userInfo.groups) && '{MASTERS}' in request.userInfo.groups)"
            ),
            "message": format!("only a member of {MASTERS} sets the annotation {FORMER_UID_ANNOTATION}"),
            "reason": "Forbidden",
        }],
    });
    policy("berth-former-uid", spec)
}
