//! `paths`: the operations of a resource, as OpenAPI v3.
//!
//! kubectl finds the kind of a resource here, the patch types that it accepts, and whether it accepts
//! `dryRun` and `fieldValidation`. The rest of an operation is the least that makes the document valid.

use serde_json::{Map, Value, json};

use super::Served;
use super::models::{meta, name, reference};

const WRITE: [&str; 3] = ["dryRun", "fieldManager", "fieldValidation"];
const PATCH: [&str; 4] = ["dryRun", "fieldManager", "fieldValidation", "force"];
const PATCH_TYPES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];
const JSON: &[&str] = &["application/json"];

/// An operation on a path, served if the resource has its verb.
struct Operation<'a> {
    method: &'static str,
    verb: &'static str,
    parameters: &'static [&'static str],
    /// The media types of the body; empty: there is none.
    accepts: &'static [&'static str],
    answer: &'a Value,
}

/// Returns the paths of a resource and its subresources.
pub(super) fn of(served: &Served<'_>) -> Vec<(String, Value)> {
    let root = format!("/{}", served.path());
    let everywhere = format!("{root}/{}", served.plural);
    let collection = match served.namespaced {
        true => format!("{root}/namespaces/{{namespace}}/{}", served.plural),
        false => everywhere.clone(),
    };
    let item = format!("{collection}/{{name}}");
    let (model, list) = (reference(&name(served, served.kind)), reference(&name(served, served.list_kind)));
    // Clients look here whether they may send a strategic merge patch; custom resources do not support it.
    let patches = if served.is_builtin() { &PATCH_TYPES[..] } else { &PATCH_TYPES[..3] };
    let read = |method, verb, answer| Operation { method, verb, parameters: &[], accepts: &[], answer };
    let write = |method, verb| Operation { method, verb, parameters: &WRITE, accepts: JSON, answer: &model };
    let patch =
        || Operation { method: "patch", verb: "patch", parameters: &PATCH, accepts: patches, answer: &model };
    let one = || [read("get", "get", &model), write("put", "update"), patch()];
    let status = meta("Status");
    let mut out = vec![path_item(served, &collection, [read("get", "list", &list), write("post", "create")])];
    if served.namespaced {
        out.push(path_item(served, &everywhere, [read("get", "list", &list)]));
    }
    out.push(path_item(served, &item, one().into_iter().chain([read("delete", "delete", &status)])));
    if served.status {
        out.push(path_item(served, &format!("{item}/status"), one()));
    }
    out
}

fn path_item<'a>(
    served: &Served<'_>,
    path: &str,
    operations: impl IntoIterator<Item = Operation<'a>>,
) -> (String, Value) {
    let served_verbs = operations.into_iter().filter(|of| served.verbs.contains(&of.verb));
    let mut item: Map<String, Value> =
        served_verbs.map(|of| (of.method.to_owned(), operation(served, &of))).collect();
    let named = ["namespace", "name"].into_iter().filter(|name| path.contains(&format!("{{{name}}}")));
    let parameters =
        named.map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
    item.insert("parameters".to_owned(), parameters.collect());
    (path.to_owned(), Value::Object(item))
}

fn operation(served: &Served<'_>, of: &Operation<'_>) -> Value {
    let parameter = |name: &&str| {
        let ty = if *name == "force" { "boolean" } else { "string" };
        json!({"name": name, "in": "query", "schema": {"type": ty}})
    };
    let content = json!({"application/json": {"schema": of.answer}});
    let mut operation = json!({
        "parameters": of.parameters.iter().map(parameter).collect::<Vec<_>>(),
        "responses": {"200": {"description": "OK", "content": content}},
        "x-kubernetes-action": if of.verb == "list" { "list" } else { of.method },
        "x-kubernetes-group-version-kind": served.gvk(),
    });
    if !of.accepts.is_empty() {
        let schema = if of.method == "patch" { meta("Patch") } else { of.answer.clone() };
        let content: Map<String, Value> =
            of.accepts.iter().map(|ty| ((*ty).to_owned(), json!({"schema": schema}))).collect();
        operation["requestBody"] = json!({"required": true, "content": content});
    }
    operation
}
