//! The probes of a VM.

use crate::{
    field::{Field, Shape},
    form::Form,
};

/// A probe with this name.
pub(super) fn field(name: &'static str) -> Field {
    let port = || Field::spec("port", Shape::Integer).required();
    let path = Field::spec("path", Shape::Text(Form::Any)).default("/");
    let command = Field::spec("command", Shape::TextList(Form::Any)).required();
    let number = |name, default: i64| Field::spec(name, Shape::Integer).default(default);
    let fields = vec![
        Field::spec("tcp_socket", Shape::Object(vec![port()])),
        Field::spec("http_get", Shape::Object(vec![port(), path])),
        Field::spec("exec", Shape::Object(vec![command])),
        number("initial_delay_seconds", 0),
        number("period_seconds", 10),
        number("timeout_seconds", 1),
        number("failure_threshold", 3),
        number("success_threshold", 1),
    ];
    Field::spec(name, Shape::Object(fields))
}
