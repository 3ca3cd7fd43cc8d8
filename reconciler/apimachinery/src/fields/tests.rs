use serde_json::{Value, json};

use super::set::FieldSet;
use super::*;

mod apply;
mod properties;
mod sets;
mod update;

const V: &str = "x.dev/v1";

/// Returns the fields that a value sets: its leaves, and the items and map keys that are members of granular
/// lists and maps.
fn field_set(value: &Value, schema: &StructuralSchema) -> FieldSet {
    typed::field_set(value, typed::Ty::root(schema))
}

fn schema() -> StructuralSchema {
    StructuralSchema::parse(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "size": {"type": "string"},
            "count": {"type": "integer"},
            "port": {"x-kubernetes-int-or-string": true},
            "args": {"type": "array", "items": {"type": "string"}},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "whole": {"type": "object", "x-kubernetes-map-type": "atomic",
                "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
            "disks": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {
                    "name": {"type": "string"}, "size": {"type": "string"}, "bus": {"type": "string"}}}},
            "ports": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {"type": "object", "required": ["port"], "properties": {
                    "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"},
                    "name": {"type": "string"}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }},
        "status": {"type": "object", "properties": {
            "phase": {"type": "string"},
            "conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                "items": {"type": "object", "required": ["type"], "properties": {
                    "type": {"type": "string"}, "status": {"type": "string"}}}},
        }},
    }}))
    .expect("structural")
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": V, "kind": "X", "metadata": {"name": "x"}, "spec": spec})
}

/// Returns the n-th second of a day.
fn at(n: u32) -> String {
    format!("2026-01-01T00:{:02}:{:02}Z", n / 60, n % 60)
}

/// An object and the requests on it.
struct Fixture {
    schema: StructuralSchema,
    live: Option<Value>,
    now: u32,
    reset: Reset,
    subresource: Option<String>,
}

impl Fixture {
    fn new() -> Self {
        Self { schema: schema(), live: None, now: 0, reset: Reset::Nothing, subresource: None }
    }

    fn try_apply(&mut self, manager: &str, applied: &Value, force: bool) -> Result<(), ApplyError> {
        self.now += 1;
        let options = WriteOptions {
            manager: manager.to_owned(),
            force,
            subresource: self.subresource.clone(),
            api_version: V.to_owned(),
            now: at(self.now),
            reset: self.reset,
        };
        self.live = Some(apply(self.live.as_ref(), applied, &options, &self.schema)?);
        Ok(())
    }

    fn apply(&mut self, manager: &str, spec: Value) {
        self.try_apply(manager, &object(spec), false).expect("no conflict");
    }

    fn force(&mut self, manager: &str, spec: Value) {
        self.try_apply(manager, &object(spec), true).expect("forced");
    }

    fn conflicts(&mut self, manager: &str, spec: Value) -> Vec<String> {
        match self.try_apply(manager, &object(spec), false) {
            Err(ApplyError::Conflicts(conflicts)) => conflicts.iter().map(ToString::to_string).collect(),
            other => panic!("expected conflicts, got {other:?}"),
        }
    }

    fn write(&mut self, manager: &str, mut after: Value) {
        self.now += 1;
        let options = WriteOptions {
            manager: manager.to_owned(),
            force: false,
            subresource: self.subresource.clone(),
            api_version: V.to_owned(),
            now: at(self.now),
            reset: self.reset,
        };
        track_update(self.live.as_ref(), &mut after, &options, &self.schema);
        self.live = Some(after);
    }

    /// Replaces the spec and keeps the rest, as a client does that read the object before.
    fn update(&mut self, manager: &str, spec: Value) {
        let mut after = self.live.clone().unwrap_or_else(|| object(json!({})));
        after["spec"] = spec;
        self.write(manager, after);
    }

    fn spec(&self) -> &Value {
        &self.live.as_ref().expect("an object")["spec"]
    }

    fn entries(&self) -> &[Value] {
        self.live
            .as_ref()
            .and_then(|l| l.pointer("/metadata/managedFields"))
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }

    /// Returns `manager/operation: paths`, one line each.
    fn owners(&self) -> Vec<String> {
        self.entries()
            .iter()
            .map(|e| {
                let set = FieldSet::from_v1(&e["fieldsV1"]).expect("fieldsV1");
                let paths: Vec<String> = set.paths().iter().map(|p| set::show(p)).collect();
                let text = |n: &str| e[n].as_str().unwrap_or_default().to_owned();
                format!("{}/{}: {}", text("manager"), text("operation"), paths.join(" "))
            })
            .collect()
    }

    fn times(&self) -> Vec<String> {
        self.entries().iter().map(|e| e["time"].as_str().unwrap_or_default().to_owned()).collect()
    }
}
