//! What the server says about itself: versions, groups and resources, in the legacy and the aggregated form.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::core::Core;
use crate::openapi;
use crate::resource::{Resource, group_version, version_rank};
use crate::review;

/// The Kubernetes version whose behaviour this server follows.
const MINOR: &str = "33";
const GIT_VERSION: &str = "v1.33.0+berth";

/// The order of the built-in groups; others follow.
const GROUPS: [&str; 8] = [
    "",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "rbac.authorization.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "coordination.k8s.io",
];

/// A document of the server about itself.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) body: Bytes,
    pub(crate) content_type: String,
    /// Whether caches may keep it: its address changes with its content.
    pub(crate) public: bool,
}

impl Document {
    pub(crate) fn json(value: &Value) -> Self {
        let body = serde_json::to_vec(value).expect("a JSON value always serializes into memory").into();
        Self { body, content_type: "application/json".into(), public: false }
    }

    pub(crate) fn openapi_v2_protobuf() -> Self {
        let content_type = openapi::V2_PROTOBUF.replace('@', ".");
        Self { body: openapi::v2_protobuf().into(), content_type, public: false }
    }
}

/// Resources of one version, each with the place of that version in it.
type Members = Vec<(Arc<Resource>, usize)>;

/// One group with its versions, best first, and their resources.
struct Group {
    name: String,
    versions: Vec<(String, Members)>,
}

fn groups(core: &Core) -> Vec<Group> {
    let mut found: BTreeMap<String, BTreeMap<String, Members>> = BTreeMap::new();
    for resource in core.catalog.served().resources.values() {
        for (at, version) in resource.versions.iter().enumerate().filter(|(_, version)| version.served) {
            let versions = found.entry(resource.group.clone()).or_default();
            versions.entry(version.name.clone()).or_default().push((Arc::clone(resource), at));
        }
    }
    for kind in review::KINDS {
        found.entry(kind.group.into()).or_default().entry("v1".into()).or_default();
    }
    let in_order = |(name, versions): (String, BTreeMap<_, _>)| {
        let mut versions: Vec<_> = versions.into_iter().collect();
        versions.sort_by_key(|(version, _): &(String, _)| std::cmp::Reverse(version_rank(version)));
        Group { name, versions }
    };
    let mut groups: Vec<Group> = found.into_iter().map(in_order).collect();
    // Among equals by name, in which they are already.
    groups.sort_by_key(|group| GROUPS.iter().position(|name| *name == group.name).unwrap_or(GROUPS.len()));
    groups
}

/// The document at `path`, if it is one.
pub(crate) fn document(core: &Core, path: &str, aggregated: Option<&str>) -> Option<Document> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match (parts.as_slice(), aggregated) {
        (["api"], Some(version)) => Some(aggregate(core, true, version)),
        (["apis"], Some(version)) => Some(aggregate(core, false, version)),
        ([""], _) => {
            Some(Document::json(&json!({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez",
            "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]})))
        }
        (["version"], _) => Some(Document::json(&version())),
        (["api"], None) => Some(Document::json(&json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
        }))),
        (["apis"], None) => {
            let list: Vec<Value> =
                groups(core).iter().filter(|g| !g.name.is_empty()).map(api_group).collect();
            Some(Document::json(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list})))
        }
        (["apis", name], _) => {
            let group = groups(core).into_iter().find(|group| group.name == *name)?;
            let mut document = api_group(&group);
            document["kind"] = "APIGroup".into();
            document["apiVersion"] = "v1".into();
            Some(Document::json(&document))
        }
        (["api", "v1"], _) => resource_list(core, "", "v1"),
        (["apis", group, version], _) => resource_list(core, group, version),
        (["openapi", ..], _) => openapi(core, path),
        _ => None,
    }
}

fn openapi(core: &Core, path: &str) -> Option<Document> {
    let catalog = core.catalog.served();
    let versions =
        catalog.resources.values().flat_map(|resource| resource.versions.iter().map(move |v| (resource, v)));
    let served: Vec<openapi::Served<'_>> = versions
        .filter(|(_, version)| version.served)
        .map(|(resource, version)| openapi::Served {
            group: &resource.group,
            version: &version.name,
            kind: &resource.kind,
            list_kind: &resource.list_kind,
            plural: &resource.plural,
            namespaced: resource.namespaced,
            verbs: resource.verbs,
            status: version.has_status,
            scale: version.scale.is_some(),
            schema: version.schema_json.as_ref(),
            selectable: selectable(resource),
        })
        .collect();
    match path.trim_matches('/') {
        "openapi/v2" => Some(Document::json(&openapi::v2_document(&served))),
        "openapi/v3" => Some(Document::json(&openapi::v3_index(&served))),
        path => {
            let document = openapi::v3_document(&served, path.strip_prefix("openapi/v3/")?)?;
            Some(Document { public: true, ..Document::json(&document) })
        }
    }
}

/// What documents say of selecting custom resources; of built-in kinds they say nothing.
fn selectable(resource: &Resource) -> Vec<&str> {
    let fields = resource.fields.iter().filter(|_| resource.is_custom());
    fields.map(|path| &*path.name).collect()
}

pub(crate) fn version() -> Value {
    json!({
        "major": "1", "minor": MINOR, "gitVersion": GIT_VERSION, "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "linux/amd64",
    })
}

fn api_group(group: &Group) -> Value {
    let version = |name: &str| json!({"groupVersion": group_version(&group.name, name), "version": name});
    let versions: Vec<Value> = group.versions.iter().map(|(name, _)| version(name)).collect();
    json!({"name": group.name, "versions": versions, "preferredVersion": versions.first()})
}

fn resource_list(core: &Core, group: &str, version: &str) -> Option<Document> {
    let found = groups(core).into_iter().find(|candidate| candidate.name == group)?;
    let (_, resources) = found.versions.into_iter().find(|(name, _)| name == version)?;
    let mut list: Vec<Value> = resources.iter().flat_map(|(resource, at)| legacy(resource, *at)).collect();
    for kind in review::KINDS.iter().filter(|kind| kind.group == group) {
        list.push(json!({"name": kind.plural, "singularName": kind.kind.to_lowercase(), "namespaced": false,
            "kind": kind.kind, "verbs": ["create"]}));
    }
    let mut document = json!({"kind": "APIResourceList"});
    // That of the core group is older than versions of such lists.
    if !group.is_empty() {
        document["apiVersion"] = "v1".into();
    }
    document["groupVersion"] = group_version(group, version).into();
    document["resources"] = list.into();
    Some(Document::json(&document))
}

/// A resource and its subresources as `APIResource`s.
fn legacy(resource: &Resource, at: usize) -> Vec<Value> {
    let version = &resource.versions[at];
    let mut main = json!({
        "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
        "kind": resource.kind, "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        main["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        main["categories"] = json!(resource.categories);
    }
    main["storageVersionHash"] = storage_hash(resource).into();
    let mut list = vec![main];
    let side = |sub: &str, kind: &str| {
        json!({"name": format!("{}/{sub}", resource.plural), "singularName": "", "namespaced": resource.namespaced,
            "kind": kind, "verbs": ["get", "patch", "update"]})
    };
    if version.has_status {
        list.push(side("status", &resource.kind));
    }
    if version.scale.is_some() {
        let mut scale = side("scale", "Scale");
        scale["group"] = "autoscaling".into();
        scale["version"] = "v1".into();
        list.push(scale);
    }
    if resource.is("", "namespaces") {
        let mut finalize = side("finalize", "Namespace");
        finalize["verbs"] = json!(["update"]);
        // Those of built-in kinds are told by name.
        list.insert(1, finalize);
    }
    if resource.is("", "serviceaccounts") {
        let mut token = side("token", "TokenRequest");
        token["verbs"] = json!(["create"]);
        token["group"] = "authentication.k8s.io".into();
        token["version"] = "v1".into();
        list.push(token);
    }
    list
}

fn storage_hash(resource: &Resource) -> String {
    use base64::Engine as _;
    use sha2::Digest as _;
    // Both groups' Events are stored as one.
    let group = resource.storage.split('/').next().unwrap_or_default();
    let text = format!("{group}/{}/{}", resource.versions[resource.storage_version].name, resource.kind);
    base64::engine::general_purpose::STANDARD.encode(&sha2::Sha256::digest(text.as_bytes())[..8])
}

fn aggregate(core: &Core, core_group: bool, api: &str) -> Document {
    let items: Vec<Value> = groups(core)
        .iter()
        .filter(|group| group.name.is_empty() == core_group)
        .map(aggregated_group)
        .collect();
    let list = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{api}"),
        "metadata": {}, "items": items,
    });
    Document {
        content_type: format!("application/json;g=apidiscovery.k8s.io;v={api};as=APIGroupDiscoveryList"),
        ..Document::json(&list)
    }
}

fn aggregated_group(group: &Group) -> Value {
    let version = |(name, resources): &(String, Members)| {
        let mut list: Vec<Value> = resources.iter().map(|(r, at)| aggregated(group, name, r, *at)).collect();
        for kind in review::KINDS.iter().filter(|kind| kind.group == group.name) {
            list.push(json!({"resource": kind.plural, "scope": "Cluster", "verbs": ["create"],
                "singularResource": kind.kind.to_lowercase(),
                "responseKind": {"group": "", "version": "", "kind": kind.kind}}));
        }
        json!({"version": name, "freshness": "Current", "resources": list})
    };
    let mut metadata = json!({});
    if !group.name.is_empty() {
        metadata["name"] = group.name.as_str().into();
    }
    json!({"metadata": metadata, "versions": group.versions.iter().map(version).collect::<Vec<_>>()})
}

fn aggregated(group: &Group, version: &str, resource: &Resource, at: usize) -> Value {
    // What is built in is of the group and version it is told under, which need not be said.
    let (group, version) = if resource.is_custom() { (group.name.as_str(), version) } else { ("", "") };
    let kind = |kind: &str| json!({"group": group, "version": version, "kind": kind});
    let definition = &resource.versions[at];
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": kind(&resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    let mut sides = Vec::new();
    if definition.has_status {
        sides.push(json!({"subresource": "status", "responseKind": kind(&resource.kind),
            "verbs": ["get", "patch", "update"]}));
    }
    if definition.scale.is_some() {
        sides.push(json!({"subresource": "scale", "verbs": ["get", "patch", "update"],
            "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"}}));
    }
    if resource.is("", "namespaces") {
        let finalize =
            json!({"subresource": "finalize", "responseKind": kind("Namespace"), "verbs": ["update"]});
        sides.insert(0, finalize);
    }
    if resource.is("", "serviceaccounts") {
        sides.push(json!({"subresource": "token", "verbs": ["create"],
            "responseKind": {"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"}}));
    }
    if !sides.is_empty() {
        entry["subresources"] = json!(sides);
    }
    entry
}
