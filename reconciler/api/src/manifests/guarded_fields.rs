//! Fields of a spec that only privileged users set where a namespace is restricted.
//!
//! A policy of both control planes cannot ask for a verb of RBAC. The group is asked for instead, as for gates: to be in it takes the
//! verb `impersonate` on it, or the right to a token of a ServiceAccount in its namespace.

use serde_json::{Value, json};

use crate::GROUP;
use crate::restrictions::{PRIVILEGED_USERS, PRIVILEGED_USERS_NAMESPACE};

const MASTERS: &str = "system:masters";

/// A field of a spec, and when it counts as left out.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuardedField {
    name: &'static str,
    left_out: LeftOut,
}

#[derive(Clone, Copy, Debug)]
enum LeftOut {
    Absent,
    False,
    Empty,
    TextNone,
}

impl GuardedField {
    /// A number, a text or an object.
    pub(super) const fn value(name: &'static str) -> Self {
        Self { name, left_out: LeftOut::Absent }
    }

    pub(super) const fn flag(name: &'static str) -> Self {
        Self { name, left_out: LeftOut::False }
    }

    pub(super) const fn list(name: &'static str) -> Self {
        Self { name, left_out: LeftOut::Empty }
    }

    /// An enumeration with the default `None`.
    pub(super) const fn or_none(name: &'static str) -> Self {
        Self { name, left_out: LeftOut::TextNone }
    }

    fn set_condition(self, object: &str) -> String {
        let value = format!("{object}.spec.{}", self.name);
        match self.left_out {
            // The schema takes a null for a field without a value.
            LeftOut::Absent => format!("has({value}) && {value} != null"),
            LeftOut::False => format!("has({value}) && {value} == true"),
            LeftOut::Empty => format!("has({value}) && {value}.size() > 0"),
            LeftOut::TextNone => format!("has({value}) && {value} != null && {value} != 'None'"),
        }
    }

    /// The validation that the field is left out, or has the value that it had, unless `is_exempt`. `why` follows the name of the field.
    pub(super) fn validation(self, is_exempt: &str, why: &str) -> Value {
        let (after, before) = (self.set_condition("object"), self.set_condition("oldObject"));
        let name = self.name;
        json!({
            "expression": format!(
                "{is_exempt} || !({after}) || \
                 (request.operation == 'UPDATE' && {before} && object.spec.{name} == oldObject.spec.{name})"
            ),
            "message": format!("{name} {why}"),
            "reason": "Forbidden",
        })
    }
}

/// The variable `isPrivileged`.
pub(super) fn privileged_variable() -> Value {
    let groups =
        format!("['{MASTERS}', '{PRIVILEGED_USERS}', 'system:serviceaccounts:{PRIVILEGED_USERS_NAMESPACE}']");
    json!({"name": "isPrivileged", "expression": format!(
        "has(request.userInfo.groups) && request.userInfo.groups.exists(g, g in {groups})"
    )})
}

/// The users for whom `isPrivileged` holds, as a part of a sentence.
pub(super) fn privileged_users() -> String {
    format!(
        "members of {MASTERS} and {PRIVILEGED_USERS}, and ServiceAccounts of the namespace {PRIVILEGED_USERS_NAMESPACE},"
    )
}

/// The constraints of a policy about creations of a resource and changes of its spec: whatever else happens to an object, such as a
/// finalizer that the controllers remove, passes.
pub(super) fn of_specs(resource: &str) -> (Value, Value) {
    let rules = json!([{
        "apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": [resource],
    }]);
    let conditions = json!([{
        "name": "changes-the-spec", "expression": "request.operation == 'CREATE' || object.spec != oldObject.spec",
    }]);
    (rules, conditions)
}
