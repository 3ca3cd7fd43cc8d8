//! Admission policies that refuse to delete what is in use. They read the object's own `status.usedBy`, so that a
//! refusal costs one object however many users there are.
//!
//! *Guarantees:* an object is listed as used before anything is bound that names it, by a write that carries the
//! version read; a deletion that comes first fails that write, one that comes after is refused here.

use serde_json::{Value, json};

use super::policy;
use crate::{GROUP, LISTED_USERS};

const UNUSED: &str =
    "!has(oldObject.status) || !has(oldObject.status.usedBy) || oldObject.status.usedBy.size() == 0";

/// The policies and their bindings.
pub(super) fn all() -> Vec<Value> {
    let of_one_vm = |kind: &str| {
        let user = "oldObject.status.usedBy[0]";
        let attachment = format!("(has({user}.attachment) ? ' (attachment ' + {user}.attachment + ')' : '')");
        format!(
            "'{kind} ' + oldObject.metadata.name + ' is in use by VM ' + {user}.vm + {attachment} + ': delete or detach that first'"
        )
    };
    let shared = format!(
        "request.kind.kind + ' ' + oldObject.metadata.name + ' is in use by ' + {} + ': delete what uses it first'",
        users()
    );
    let host = format!(
        "'Host ' + oldObject.metadata.name + ' is in use by ' + {} + ': \"berth host drain ' + oldObject.metadata.name + '\" \
         stops its VMs; \"berth host forget ' + oldObject.metadata.name + '\" takes it away once nothing is bound to it, \
         with --lost also when the machine is gone for good'",
        users()
    );
    let kinds = ["images", "ippools", "networks", "placementgroups", "storagepools", "vmclasses"];
    [
        in_use("berth-disk-in-use", &["disks"], &of_one_vm("Disk")),
        in_use("berth-publicip-in-use", &["publicips"], &of_one_vm("PublicIP")),
        in_use("berth-in-use", &kinds, &shared),
        in_use("berth-host-in-use", &["hosts"], &host),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Names the first users: all but one of those listed, because a full list may not be all of them.
fn users() -> String {
    let named = |n: usize| {
        let user = format!("oldObject.status.usedBy[{n}]");
        format!("{user}.kind + ' ' + {user}.namespace + '/' + {user}.name")
    };
    let more = |n: usize, text: String| format!("(oldObject.status.usedBy.size() > {n} ? {text} : '')");
    let last = LISTED_USERS - 1;
    let mut parts = vec![named(0)];
    parts.extend((1..last).map(|n| more(n, format!("', ' + {}", named(n)))));
    parts.push(more(last, "' and others'".to_owned()));
    parts.join(" + ")
}

fn in_use(name: &str, plurals: &[&str], message: &str) -> [Value; 2] {
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["DELETE"], "resources": plurals,
        }]},
        "validations": [{
            "expression": UNUSED,
            "messageExpression": message,
            "message": "it is in use: delete or detach its users first (status.usedBy)",
            "reason": "Forbidden",
        }],
    });
    policy(name, spec)
}
