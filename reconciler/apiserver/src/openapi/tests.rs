use serde_json::{Value, json};

use super::*;

const VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

fn thing(schema: &str) -> Served<'_> {
    Served {
        group: "x.example.dev",
        version: "v1",
        kind: "Thing",
        list_kind: "ThingList",
        plural: "things",
        namespaced: true,
        verbs: VERBS,
        status: true,
        schema: Some(schema.as_bytes()),
        selectable: vec!["spec.port"],
    }
}

fn namespace() -> Served<'static> {
    Served {
        group: "",
        version: "v1",
        kind: "Namespace",
        list_kind: "NamespaceList",
        plural: "namespaces",
        namespaced: false,
        verbs: VERBS,
        status: true,
        schema: None,
        selectable: Vec::new(),
    }
}

fn schema() -> String {
    let schema = json!({"type": "object", "description": "A thing.", "required": ["spec"], "properties": {
        "metadata": {"type": "object"},
        "spec": {"type": "object", "properties": {
            "not": {"type": "string", "nullable": true, "description": "A field of that name."},
            "size": {"x-kubernetes-int-or-string": true},
            "port": {"type": "string", "x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        }},
    }});
    schema.to_string()
}

/// Returns the `$ref`s of a document that refer to nothing in it.
fn dangling(document: &Value, value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => {
            let own = map
                .get("$ref")
                .and_then(Value::as_str)
                .filter(|r| document.pointer(r.trim_start_matches('#')).is_none());
            own.map(str::to_owned)
                .into_iter()
                .chain(map.values().flat_map(|v| dangling(document, v)))
                .collect()
        }
        Value::Array(items) => items.iter().flat_map(|v| dangling(document, v)).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_index_has_an_entry_for_each_group_version() {
    let schema = schema();
    let index = v3_index(&[thing(&schema), namespace()]);
    let paths: Vec<&String> = index["paths"].as_object().expect("paths").keys().collect();
    assert_eq!(paths, ["api/v1", "apis/x.example.dev/v1"]);
    let url = |index: &Value| {
        index["paths"]["apis/x.example.dev/v1"]["serverRelativeURL"].as_str().expect("url").to_owned()
    };
    assert!(url(&index).starts_with("/openapi/v3/apis/x.example.dev/v1?hash="));
    let changed = schema.replace("A thing.", "Another thing.");
    assert_ne!(url(&v3_index(&[thing(&changed), namespace()])), url(&index));
    assert_eq!(v3_index(&[thing(&schema), namespace()]), index);
}

#[test]
fn a_document_has_what_kubectl_looks_for() {
    let schema = schema();
    let all = [thing(&schema), namespace()];
    let document = v3_document(&all, "apis/x.example.dev/v1").expect("served");
    assert_eq!(v3_document(&all, "apis/nothing/v1"), None);
    let gvk = json!({"group": "x.example.dev", "version": "v1", "kind": "Thing"});
    let item = "/apis/x.example.dev/v1/namespaces/{namespace}/things/{name}";
    let patch = &document["paths"][item]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"], gvk);
    let has = |name: &str| {
        patch["parameters"]
            .as_array()
            .expect("parameters")
            .iter()
            .any(|p| p["name"] == name && p["in"] == "query")
    };
    assert!(has("fieldValidation") && has("dryRun") && has("fieldManager") && has("force"));
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_none());
    let model = &document["components"]["schemas"]["dev.example.x.v1.Thing"];
    assert_eq!(model["x-kubernetes-group-version-kind"], json!([gvk]));
    assert_eq!(
        model["properties"]["metadata"]["allOf"][0]["$ref"],
        "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
    assert_eq!(model["required"], json!(["spec"]));
    assert_eq!(
        model["properties"]["spec"]["properties"]["size"]["anyOf"],
        json!([{"type": "integer"}, {"type": "string"}])
    );
    assert!(model["properties"]["metadata"].get("default").is_none());
    assert_eq!(model["x-kubernetes-selectable-fields"], json!([{"fieldPath": "spec.port"}]));
    let paths: Vec<&String> = document["paths"].as_object().expect("paths").keys().collect();
    assert_eq!(
        paths,
        [
            "/apis/x.example.dev/v1/namespaces/{namespace}/things",
            "/apis/x.example.dev/v1/namespaces/{namespace}/things/{name}",
            "/apis/x.example.dev/v1/namespaces/{namespace}/things/{name}/status",
            "/apis/x.example.dev/v1/things",
        ]
    );
    assert_eq!(dangling(&document, &document), Vec::<String>::new());
    let core = v3_document(&all, "/api/v1/").expect("served");
    assert!(
        core["paths"]["/api/v1/namespaces/{name}"]["patch"]["requestBody"]["content"]
            .get("application/strategic-merge-patch+json")
            .is_some()
    );
    assert_eq!(dangling(&core, &core), Vec::<String>::new());
}

#[test]
fn swagger_has_the_models_of_built_in_kinds_and_nothing_else() {
    let schema = schema();
    let document = v2_document(&[thing(&schema), namespace()]);
    assert_eq!((&document["swagger"], &document["paths"]), (&json!("2.0"), &json!({})));
    assert!(document["definitions"].get("dev.example.x.v1.Thing").is_none());
    assert_eq!(
        document["definitions"]["io.k8s.api.core.v1.Namespace"]["properties"]["metadata"]["$ref"],
        "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
    assert_eq!(dangling(&document, &document), Vec::<String>::new());
}
