//! The running guest: its users, and the package of its agent.

use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    field::{Field, Shape},
    form::Form,
    references::SECRET,
};

/// The attribute `guest_users`.
pub(super) fn users() -> Field {
    let fields = vec![
        Field::spec("name", Shape::Text(Form::UserName)).required(),
        Field::spec("ssh_authorized_keys", Shape::TextList(Form::SshKey)),
        Field::spec("ssh_authorized_keys_secret", Shape::Text(Form::DottedName)).refers(SECRET),
        Field::spec("password_secret", Shape::Text(Form::DottedName)).refers(SECRET),
    ];
    Field::spec("guest_users", Shape::Keyed(fields))
}

/// The attribute `guest_agent`.
pub(super) fn agent() -> Field {
    let policy = Field::spec("policy", Shape::Text(Form::Any)).required();
    Field::spec("guest_agent", Shape::Object(vec![policy]))
}

/// Refuses the removal of an agent that is needed.
pub(super) fn check(config: &Value) -> Vec<Diagnostic> {
    let is_removed = config.get("guest_agent").get("policy").as_str() == Some("Remove");
    if !is_removed || config.get("guest_users").elements().is_empty() {
        return Vec::new();
    }
    let path = AttributePath::root("guest_agent").attribute("policy");
    let detail = format!("{path}: the guest agent sets guest_users: leave them out, or keep the agent.");
    vec![Diagnostic::error("The guest agent is needed", detail).at(path)]
}
