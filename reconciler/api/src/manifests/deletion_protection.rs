//! The admission policy behind `spec.deletionProtection`.
//!
//! Nothing else refuses a deletion: what is still used is marked as deleted and held by
//! [`USED_FINALIZER`](crate::USED_FINALIZER), [`HOST_FINALIZER`](crate::HOST_FINALIZER) or
//! [`ADDRESS_FINALIZER`](crate::ADDRESS_FINALIZER) until nothing uses it.

use serde_json::{Value, json};

use super::policy;
use crate::GROUP;

/// The policy and its binding.
pub(super) fn all() -> [Value; 2] {
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["DELETE"],
            "resources": ["vms", "disks", "images", "publicips"],
        }]},
        "validations": [{
            "expression": "!has(oldObject.spec.deletionProtection) || !oldObject.spec.deletionProtection",
            "messageExpression": "request.kind.kind + ' ' + oldObject.metadata.name + ' is protected: set spec.deletionProtection \
                 to false before deleting it'",
            "message": "it is protected: set spec.deletionProtection to false before deleting it",
            "reason": "Forbidden",
        }],
    });
    policy("berth-deletion-protection", spec)
}

/// The policies of earlier versions that are no longer part of the manifests. An installation removes them.
pub(super) const RETIRED: [&str; 4] =
    ["berth-disk-in-use", "berth-publicip-in-use", "berth-in-use", "berth-host-in-use"];
