//! `paths`: what can be done to a resource, as OpenAPI v3.

use serde_json::{Map, Value, json};

use super::Served;
use super::models::{SCALE, meta, name, reference};

const WRITE: [&str; 3] = ["dryRun", "fieldManager", "fieldValidation"];
const PATCH: [&str; 4] = ["dryRun", "fieldManager", "fieldValidation", "force"];
const DELETE: [&str; 4] = ["dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"];
const LIST: [&str; 10] = [
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];

/// The paths of a resource and its subresources.
pub(super) fn of(served: &Served<'_>) -> Vec<(String, Value)> {
    let root = format!("/{}", served.path());
    let collection = if served.namespaced {
        format!("{root}/namespaces/{{namespace}}/{}", served.plural)
    } else {
        format!("{root}/{}", served.plural)
    };
    let item = format!("{collection}/{{name}}");
    let mut out = Vec::new();
    let mut add = |path: String, operations: Vec<(&'static str, Value)>| {
        if !operations.is_empty() {
            let item = path_item(&path, operations);
            out.push((path, item));
        }
    };
    let builder = Builder { served };
    add(collection, builder.collection());
    add(item.clone(), builder.item("", name(served, served.kind)));
    if served.namespaced && builder.may("list") {
        add(format!("{root}/{}", served.plural), vec![("get", builder.list("ForAllNamespaces"))]);
    }
    if served.status {
        add(format!("{item}/status"), builder.item("Status", name(served, served.kind)));
    }
    if served.scale {
        add(format!("{item}/scale"), builder.item("Scale", SCALE.to_owned()));
    }
    out
}

fn path_item(path: &str, operations: Vec<(&'static str, Value)>) -> Value {
    let mut item: Map<String, Value> =
        operations.into_iter().map(|(verb, op)| (verb.to_owned(), op)).collect();
    let named = ["namespace", "name"].into_iter().filter(|name| path.contains(&format!("{{{name}}}")));
    let mut parameters: Vec<Value> = named
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect();
    parameters.push(query("pretty"));
    item.insert("parameters".to_owned(), Value::Array(parameters));
    Value::Object(item)
}

fn query(name: &str) -> Value {
    let ty = match name {
        "force" | "watch" | "allowWatchBookmarks" | "sendInitialEvents" | "orphanDependents" => "boolean",
        "limit" | "timeoutSeconds" | "gracePeriodSeconds" => "integer",
        _ => "string",
    };
    json!({"name": name, "in": "query", "schema": {"type": ty, "uniqueItems": true}})
}

struct Builder<'r, 'a> {
    served: &'r Served<'a>,
}

impl Builder<'_, '_> {
    fn may(&self, verb: &str) -> bool {
        self.served.verbs.contains(&verb)
    }

    fn collection(&self) -> Vec<(&'static str, Value)> {
        let kind = name(self.served, self.served.kind);
        let mut out = Vec::new();
        if self.may("list") {
            out.push(("get", self.list("")));
        }
        if self.may("create") {
            let body = body(&["application/json", "application/yaml"], reference(&kind));
            out.push(("post", self.operation("create", "post", "", &WRITE, Some(body), reference(&kind))));
        }
        if self.may("deletecollection") {
            let parameters: Vec<&str> = LIST[1..9].iter().chain(&DELETE).copied().collect();
            let answer = meta("Status");
            out.push((
                "delete",
                self.operation("deleteCollection", "deletecollection", "", &parameters, None, answer),
            ));
        }
        out
    }

    fn list(&self, suffix: &str) -> Value {
        let answer = reference(&name(self.served, self.served.list_kind));
        self.operation("list", "list", suffix, &LIST, None, answer)
    }

    /// The operations on one object or one of its subresources.
    fn item(&self, subresource: &str, model: String) -> Vec<(&'static str, Value)> {
        let model = reference(&model);
        let mut out = Vec::new();
        if self.may("get") {
            out.push(("get", self.operation("read", "get", subresource, &[], None, model.clone())));
        }
        if self.may("update") {
            let body = body(&["application/json", "application/yaml"], model.clone());
            out.push((
                "put",
                self.operation("replace", "put", subresource, &WRITE, Some(body), model.clone()),
            ));
        }
        if self.may("patch") {
            let mut types = vec![
                "application/apply-patch+yaml",
                "application/json-patch+json",
                "application/merge-patch+json",
            ];
            // Clients ask here whether they may send one; custom resources take none.
            if self.served.is_builtin() {
                types.push("application/strategic-merge-patch+json");
            }
            let body = body(&types, meta("Patch"));
            out.push(("patch", self.operation("patch", "patch", subresource, &PATCH, Some(body), model)));
        }
        if self.may("delete") && subresource.is_empty() {
            let body = body(&["application/json", "application/yaml"], meta("DeleteOptions"));
            out.push(("delete", self.operation("delete", "delete", "", &DELETE, Some(body), meta("Status"))));
        }
        out
    }

    fn operation(
        &self,
        verb: &str,
        action: &str,
        suffix: &str,
        parameters: &[&str],
        body: Option<Value>,
        answer: Value,
    ) -> Value {
        let served = self.served;
        let scope = if served.namespaced && suffix != "ForAllNamespaces" { "Namespaced" } else { "" };
        let group = if served.group.is_empty() { "core" } else { served.group };
        let id = format!("{verb}{}{}{scope}{}{suffix}", camel(group), camel(served.version), served.kind);
        let content = json!({"application/json": {"schema": answer}, "application/yaml": {"schema": answer}});
        let mut operation = json!({
            "operationId": id,
            "tags": [format!("{}_{}", group.replace('.', "_"), served.version)],
            "parameters": parameters.iter().map(|p| query(p)).collect::<Vec<_>>(),
            "responses": {
                "200": {"description": "OK", "content": content},
                "401": {"description": "Unauthorized"},
            },
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": served.gvk(),
        });
        if let Some(body) = body {
            operation["requestBody"] = body;
        }
        operation
    }
}

fn body(types: &[&str], schema: Value) -> Value {
    let content: Map<String, Value> =
        types.iter().map(|t| ((*t).to_owned(), json!({"schema": schema}))).collect();
    json!({"required": true, "content": content})
}

/// `berth.dev` → `BerthDev`.
fn camel(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty());
    words
        .map(|word| {
            let mut chars = word.chars();
            chars.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(chars).collect::<String>()
        })
        .collect()
}
