//! The probes and hooks of a VM.

use crate::{
    field::{Field, Shape},
    form::Form,
};

fn port() -> Field {
    Field::spec("port", Shape::Integer).required()
}

fn http_get() -> Field {
    let path = Field::spec("path", Shape::Text(Form::Any)).default("/");
    Field::spec("http_get", Shape::Object(vec![port(), path]))
}

fn exec() -> Field {
    let command = Field::spec("command", Shape::TextList(Form::Any)).required();
    Field::spec("exec", Shape::Object(vec![command]))
}

fn number(name: &'static str, default: i64) -> Field {
    Field::spec(name, Shape::Integer).default(default)
}

/// A probe with this name.
pub(super) fn probe(name: &'static str) -> Field {
    let fields = vec![
        Field::spec("tcp_socket", Shape::Object(vec![port()])),
        http_get(),
        exec(),
        number("initial_delay_seconds", 0),
        number("period_seconds", 10),
        number("timeout_seconds", 1),
        number("failure_threshold", 3),
        number("success_threshold", 1),
    ];
    Field::spec(name, Shape::Object(fields))
}

/// The hooks.
pub(super) fn hooks() -> Field {
    let hook = |name, actions: Vec<Field>| {
        let policy = Field::spec("failure_policy", Shape::Text(Form::Any)).default("Ignore");
        let fields = actions.into_iter().chain([number("timeout_seconds", 30), policy]).collect();
        Field::spec(name, Shape::Object(fields))
    };
    let snapshot = Field::spec("snapshot", Shape::Object(vec![number("keep", 3)]));
    let post_start = hook("post_start", vec![http_get(), exec()]);
    let pre_stop = hook("pre_stop", vec![http_get(), exec(), snapshot]);
    Field::spec("hooks", Shape::Object(vec![post_start, pre_stop]))
}
