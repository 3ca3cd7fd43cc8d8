//! The admission policies behind [gates](crate::gates): which users write them, and the deletions that they refuse.
//!
//! A policy of both control planes cannot ask for a verb of RBAC. The group is asked for instead: to be in it takes the verb
//! `impersonate` on it, or the right to a token of a ServiceAccount in its namespace.

use serde_json::{Value, json};

use super::policy;
use crate::GROUP;
use crate::gates::{DELETE_GATE, GATEKEEPERS, GATEKEEPERS_NAMESPACE, POWER_ON_GATE};

const MASTERS: &str = "system:masters";

/// The policies and their bindings.
pub(super) fn all() -> Vec<Value> {
    [writers(), deletions()].concat()
}

fn annotations(object: &str) -> String {
    format!("has({object}.metadata.annotations) ? {object}.metadata.annotations : {{}}")
}

fn writers() -> Vec<Value> {
    let before = format!("request.operation == 'UPDATE' ? ({}) : {{}}", annotations("oldObject"));
    let groups = format!("['{MASTERS}', '{GATEKEEPERS}', 'system:serviceaccounts:{GATEKEEPERS_NAMESPACE}']");
    let is_gate = format!("(k.startsWith('{POWER_ON_GATE}') || k.startsWith('{DELETE_GATE}'))");
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": ["vms"],
        }]},
        "variables": [
            {"name": "before", "expression": before},
            {"name": "after", "expression": annotations("object")},
            {"name": "isGatekeeper", "expression": format!(
                "has(request.userInfo.groups) && request.userInfo.groups.exists(g, g in {groups})"
            )},
        ],
        "validations": [{
            "expression": format!(
                "variables.isGatekeeper || \
                 (variables.after.all(k, !{is_gate} || (k in variables.before && variables.before[k] == variables.after[k])) && \
                 variables.before.all(k, !{is_gate} || k in variables.after))"
            ),
            "message": format!(
                "only members of {MASTERS} and {GATEKEEPERS}, and ServiceAccounts of the namespace {GATEKEEPERS_NAMESPACE}, add, \
                 change and remove the annotations {POWER_ON_GATE}… and {DELETE_GATE}…"
            ),
            "reason": "Forbidden",
        }],
    });
    policy("berth-gates", spec).to_vec()
}

fn deletions() -> Vec<Value> {
    let is_gate = format!("k.startsWith('{DELETE_GATE}')");
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["DELETE"], "resources": ["vms"],
        }]},
        "variables": [
            {"name": "annotations", "expression": annotations("oldObject")},
            {"name": "gates", "expression": format!("variables.annotations.filter(k, {is_gate})")},
        ],
        "validations": [{
            "expression": "variables.gates.size() == 0",
            "messageExpression": "'VM ' + oldObject.metadata.name + ' is held by the annotation ' + variables.gates[0] + ' (' + \
                 variables.annotations[variables.gates[0]] + '): it can be deleted once a gatekeeper has removed that'",
            "message": format!("it is held by an annotation {DELETE_GATE}…, which a gatekeeper removes"),
            "reason": "Forbidden",
        }],
    });
    policy("berth-delete-gates", spec).to_vec()
}
