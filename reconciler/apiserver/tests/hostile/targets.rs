//! The targets that receive arbitrary bytes. Every input is meaningful: an unknown word is mapped to a known
//! one.

use http::Method;
use serde_json::{Value, json};

use crate::fixture::{Ask, BOATS, CRDS, Fixture};

/// An entry point: its name, which is also that of its corpus, and the function that processes an input.
pub(crate) type Target = (&'static str, fn(&mut Fixture, &[u8]));

/// All targets.
pub(crate) const TARGETS: &[Target] = &[
    ("bodies", bodies),
    ("patches", patches),
    ("selectors", selectors),
    ("paths", paths),
    ("rules", rules),
    ("definitions", definitions),
];

/// Feeds one input to one target, on the same server as the previous inputs.
pub(crate) fn feed(target: Target, fixture: &mut Fixture, input: &[u8]) {
    fixture.begin();
    (target.1)(fixture, input);
    fixture.end();
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";

/// Splits `WORD WORD…\n` from the rest.
fn headed(input: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let rest = input.get(end + 1..).unwrap_or_default();
    (input[..end].split(|byte| *byte == b' ').collect(), rest)
}

/// Splits the input at lines of `---`.
fn sections(input: &[u8]) -> Vec<&[u8]> {
    const BETWEEN: &[u8] = b"\n---\n";
    let (mut found, mut rest) = (Vec::new(), input);
    while let Some(at) = rest.windows(BETWEEN.len()).position(|window| window == BETWEEN) {
        found.push(&rest[..at]);
        rest = &rest[at + BETWEEN.len()..];
    }
    found.push(rest);
    found
}

/// Returns the entry a word names; an unknown word maps to one of the entries.
fn named<'a, T>(word: Option<&&[u8]>, of: &'a [(&'static str, T)]) -> &'a T {
    let word = word.copied().unwrap_or_default();
    let sum = word.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    let found = of.iter().find(|(name, _)| name.as_bytes() == word);
    &found.unwrap_or(&of[sum % of.len()]).1
}

const BODIES: &[(&str, (Method, &str))] = &[
    ("boat", (Method::POST, BOATS)),
    (
        "boat-dry",
        (Method::POST, "/apis/toys.example/v1/namespaces/default/boats?dryRun=All&fieldValidation=Strict"),
    ),
    ("boat-put", (Method::PUT, "/apis/toys.example/v1/namespaces/default/boats/ada")),
    ("boat-status", (Method::PUT, "/apis/toys.example/v1/namespaces/default/boats/ada/status")),
    ("boat-delete", (Method::DELETE, "/apis/toys.example/v1/namespaces/default/boats/ada")),
    ("boats-delete", (Method::DELETE, BOATS)),
    ("map", (Method::POST, MAPS)),
    ("map-put", (Method::PUT, "/api/v1/namespaces/default/configmaps/chart")),
    ("secret", (Method::POST, "/api/v1/namespaces/default/secrets")),
    ("event", (Method::POST, "/api/v1/namespaces/default/events")),
    ("event-put", (Method::PUT, "/apis/events.k8s.io/v1/namespaces/default/events/seen")),
    ("new-event", (Method::POST, "/apis/events.k8s.io/v1/namespaces/default/events")),
    ("namespace", (Method::POST, "/api/v1/namespaces")),
    ("namespace-put", (Method::PUT, "/api/v1/namespaces/default")),
    ("finalize", (Method::PUT, "/api/v1/namespaces/default/finalize")),
    ("account", (Method::POST, "/api/v1/namespaces/default/serviceaccounts")),
    ("token", (Method::POST, "/api/v1/namespaces/default/serviceaccounts/pilot/token")),
    ("lease", (Method::POST, "/apis/coordination.k8s.io/v1/namespaces/default/leases")),
    ("role", (Method::POST, "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles")),
    ("role-binding", (Method::POST, "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings")),
    ("cluster-role", (Method::POST, "/apis/rbac.authorization.k8s.io/v1/clusterroles")),
    ("cluster-role-binding", (Method::POST, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings")),
    ("policy", (Method::POST, POLICIES)),
    ("binding", (Method::POST, "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings")),
    ("crd", (Method::POST, CRDS)),
    ("crd-put", (Method::PUT, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/boats.toys.example")),
    ("who", (Method::POST, "/apis/authentication.k8s.io/v1/selfsubjectreviews")),
    ("whose", (Method::POST, "/apis/authentication.k8s.io/v1/tokenreviews")),
    ("may", (Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")),
    ("may-what", (Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews")),
];

const TYPES: &[(&str, &str)] = &[
    ("json", "application/json"),
    ("yaml", "application/yaml"),
    ("protobuf", "application/vnd.kubernetes.protobuf"),
    ("none", ""),
    ("any", "*/*"),
];

/// `ROUTE TYPE\nBODY`: sends objects, options and reviews, then reads the stored objects in every way.
fn bodies(fixture: &mut Fixture, input: &[u8]) {
    let (words, body) = headed(input);
    let (method, path) = named(words.first(), BODIES).clone();
    let kind = named(words.get(1), TYPES);
    let reply = fixture.ask(Ask::new(method, path).body(kind, body));
    if reply.is_some_and(|reply| reply.code < 300) {
        read_back(fixture, path.split('?').next().unwrap_or_default());
    }
}

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// Reads the stored objects in every shape, writes them once more, and watches them from the beginning.
fn read_back(fixture: &mut Fixture, path: &str) {
    for accept in [TABLE, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", ""] {
        fixture.ask(Ask { accept: accept.into(), ..Ask::new(Method::GET, path) });
    }
    fixture.ask(Ask::new(Method::GET, format!("{path}?watch=true&resourceVersion=0&timeoutSeconds=1")));
    if path.starts_with(CRDS) {
        for document in ["/openapi/v2", "/openapi/v3", "/apis", "/openapi/v3/apis/toys.example/v1"] {
            fixture.ask(Ask::new(Method::GET, document));
        }
        fixture.ask(Ask { accept: TABLE.into(), ..Ask::new(Method::GET, BOATS) });
        let again = json!({"spec": {"oars": 3}}).to_string();
        let merge = "application/merge-patch+json";
        fixture.ask(Ask::new(Method::PATCH, format!("{BOATS}/ada")).body(merge, again));
    }
}

const PATCHES: &[(&str, &str)] = &[
    ("json", "application/json-patch+json"),
    ("merge", "application/merge-patch+json"),
    ("strategic", "application/strategic-merge-patch+json"),
    ("apply", "application/apply-patch+yaml"),
];

const PATCHED: &[(&str, &str)] = &[
    ("boat", "/apis/toys.example/v1/namespaces/default/boats/ada"),
    ("boat-status", "/apis/toys.example/v1/namespaces/default/boats/ada/status"),
    ("map", "/api/v1/namespaces/default/configmaps/chart"),
    ("new", "/apis/toys.example/v1/namespaces/default/boats/new"),
    ("namespace", "/api/v1/namespaces/default"),
    ("event", "/apis/events.k8s.io/v1/namespaces/default/events/seen"),
    ("policy", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/calm"),
    ("crd", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/boats.toys.example"),
];

/// `OBJECT KIND\nPATCH`, applied twice: unchanged, and by another field manager with force.
fn patches(fixture: &mut Fixture, input: &[u8]) {
    let (words, body) = headed(input);
    let (path, kind) = (named(words.first(), PATCHED), named(words.get(1), PATCHES));
    let apply = kind.contains("apply");
    for query in ["fieldManager=a", "fieldManager=b&fieldValidation=Strict&force=true"] {
        let query = if apply { query } else { query.trim_end_matches("&force=true") };
        fixture.ask(Ask::new(Method::PATCH, format!("{path}?{query}")).body(kind, body));
    }
    fixture.ask(Ask::new(Method::GET, *path));
}

/// `LABELS\nFIELDS\nCONTINUE`: used to list, watch and delete a collection.
fn selectors(fixture: &mut Fixture, input: &[u8]) {
    let mut parts = input.splitn(3, |byte| *byte == b'\n');
    let mut next = || escaped(parts.next().unwrap_or_default(), |_| false);
    let query = format!("labelSelector={}&fieldSelector={}", next(), next());
    let token = next();
    for path in [BOATS, MAPS, "/api/v1/events"] {
        fixture.ask(Ask::new(Method::GET, format!("{path}?{query}&limit=1&continue={token}")));
        let watch = format!("{path}?{query}&watch=1&timeoutSeconds=1&resourceVersion={token}");
        fixture.ask(Ask::new(Method::GET, watch));
        fixture.ask(Ask::new(Method::DELETE, format!("{path}?{query}&dryRun=All")));
    }
}

const METHODS: &[(&str, Method)] = &[
    ("get", Method::GET),
    ("post", Method::POST),
    ("put", Method::PUT),
    ("patch", Method::PATCH),
    ("delete", Method::DELETE),
    ("head", Method::HEAD),
    ("options", Method::OPTIONS),
];

/// `METHOD\nPATH?QUERY\nACCEPT\nUSER`.
fn paths(fixture: &mut Fixture, input: &[u8]) {
    let parts: Vec<&[u8]> = input.splitn(4, |byte| *byte == b'\n').collect();
    let part = |at: usize| parts.get(at).copied().unwrap_or_default();
    let method = named(Some(&part(0)), METHODS).clone();
    let target = escaped(part(1), |byte| b"/?&=%:@!$'()*+,;~".contains(&byte));
    let target = if target.starts_with('/') { target } else { format!("/{target}") };
    let ask = Ask { accept: part(2).into(), impersonate: part(3).into(), ..Ask::new(method, target) };
    fixture.ask(ask);
}

/// Percent-encodes everything but letters, digits, `-`, `.`, `_` and the bytes that `kept` accepts.
fn escaped(text: &[u8], kept: impl Fn(u8) -> bool) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte) || kept(byte);
    text.iter()
        .map(|byte| if plain(*byte) { char::from(*byte).into() } else { format!("%{byte:02X}") })
        .collect()
}

/// The fields of the test kind on which rules are tried.
const PLACES: &[(&str, &str)] = &[
    ("root", ""),
    ("text", "text"),
    ("number", "number"),
    ("list", "list"),
    ("map", "map"),
    ("any", "any"),
    ("message", "message"),
    ("policy", "policy"),
];

/// `PLACE\nEXPRESSION\n---\nEXPRESSION…`: in a definition, or in a policy, where all expressions but the last
/// are variables.
fn rules(fixture: &mut Fixture, input: &[u8]) {
    let (words, body) = headed(input);
    let place = *named(words.first(), PLACES);
    let expressions: Vec<_> = sections(body).into_iter().take(64).map(String::from_utf8_lossy).collect();
    if place == "policy" {
        policy(fixture, &expressions);
        return;
    }
    let rules: Vec<Value> = expressions
        .iter()
        .map(|rule| match place {
            "message" => json!({"rule": "false", "messageExpression": rule}),
            _ => json!({"rule": rule}),
        })
        .collect();
    let mut schema = json!({"type": "object", "properties": {
        "text": {"type": "string"}, "number": {"type": "integer"},
        "list": {"type": "array", "items": {"type": "string"}},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
        "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
    let at = if matches!(place, "" | "message") { &mut schema } else { &mut schema["properties"][place] };
    at["x-kubernetes-validations"] = rules.into();
    let object = json!({"text": "kiel, lübeck", "number": 7, "list": ["a", "b", "c"], "map": {"x": 1, "y": 2},
        "any": {"deep": {"er": [1, 2.5, null, "2026-01-01T00:00:00Z", "10.0.0.1"]}}});
    define(fixture, &schema.to_string(), "[]", &object.to_string());
}

fn policy(fixture: &mut Fixture, expressions: &[std::borrow::Cow<'_, str>]) {
    let (last, variables) = expressions.split_last().expect("there is always a section");
    let variables: Vec<Value> = variables
        .iter()
        .enumerate()
        .map(|(at, expression)| json!({"name": format!("v{at}"), "expression": expression}))
        .collect();
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "calm"}, "spec": {"variables": variables,
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["*"], "resources": ["configmaps"]}]},
            "matchConditions": [{"name": "c", "expression": last}],
            "validations": [{"expression": last, "messageExpression": last}]}});
    let merge = "application/merge-patch+json";
    fixture.ask(Ask::new(Method::PATCH, format!("{POLICIES}/calm")).body(merge, policy.to_string()));
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made", "labels": {"a": "b"}},
        "data": {"text": "x".repeat(1000)}});
    fixture
        .ask(Ask::new(Method::POST, format!("{MAPS}?dryRun=All")).body("application/json", map.to_string()));
    fixture.ask(Ask::new(Method::DELETE, format!("{MAPS}/chart?dryRun=All")));
}

/// `SCHEMA\n---\nCOLUMNS\n---\nOBJECT`: a definition, and an object of it read in every shape.
fn definitions(fixture: &mut Fixture, input: &[u8]) {
    let parts = sections(input);
    let part = |at: usize, other: &str| {
        parts.get(at).map_or_else(|| other.to_owned(), |part| String::from_utf8_lossy(part).into_owned())
    };
    define(fixture, &part(0, "{}"), &part(1, "[]"), &part(2, "{}"));
}

/// Defines `floats` from parts that need not be valid JSON, creates an object with this `spec`, reads it and
/// deletes both.
fn define(fixture: &mut Fixture, schema: &str, columns: &str, spec: &str) {
    const FLOATS: &str = "/apis/tried.example/v1/namespaces/default/floats";
    let (json, merge) = ("application/json", "application/merge-patch+json");
    let definition = format!(
        r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"floats.tried.example"}},
        "spec":{{"group":"tried.example","scope":"Namespaced","names":{{"plural":"floats","kind":"Float"}},"versions":[{{
        "name":"v1","served":true,"storage":true,"additionalPrinterColumns":{columns},"schema":{{"openAPIV3Schema":
        {{"type":"object","properties":{{"spec":{schema}}}}}}}}}]}}}}"#
    );
    if fixture.ask(Ask::new(Method::POST, CRDS).body(json, definition)).is_none_or(|made| made.code >= 300) {
        return;
    }
    let object = format!(
        r#"{{"apiVersion":"tried.example/v1","kind":"Float","metadata":{{"name":"one"}},"spec":{spec}}}"#
    );
    fixture.ask(Ask::new(Method::POST, FLOATS).body(json, object.clone()));
    fixture
        .ask(Ask::new(Method::PATCH, format!("{FLOATS}/one")).body(merge, format!(r#"{{"spec":{spec}}}"#)));
    let applied = Ask::new(Method::PATCH, format!("{FLOATS}/one?fieldManager=a&force=true"));
    fixture.ask(applied.body("application/apply-patch+yaml", object));
    read_back(fixture, FLOATS);
    fixture.ask(Ask::new(Method::GET, "/openapi/v3/apis/tried.example/v1"));
    fixture.ask(Ask::new(Method::GET, "/openapi/v2"));
    fixture.ask(Ask::new(Method::DELETE, format!("{CRDS}/floats.tried.example")));
}
