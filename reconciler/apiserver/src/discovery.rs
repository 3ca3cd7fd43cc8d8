//! Discovery: versions, groups and resources, in the legacy and the aggregated form.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::core::Core;
use crate::openapi;
use crate::resource::{Resource, group_version, version_rank};
use crate::review;

/// The Kubernetes version that this server follows in its behaviour.
const MINOR: &str = "33";
const GIT_VERSION: &str = "v1.33.0+berth";

/// A discovery document.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) body: Bytes,
    pub(crate) content_type: String,
    /// Whether caches may keep it: its URL changes with its content.
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

/// The resources of one version, each with the index of that version in it.
type Members = Vec<(Arc<Resource>, usize)>;

/// A group with its versions, best first, and their resources.
struct Group {
    name: String,
    versions: Vec<(String, Members)>,
}

impl Group {
    fn is_custom(&self) -> bool {
        self.versions.iter().flat_map(|(_, members)| members).any(|(resource, _)| resource.is_custom())
    }
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
    // A name without its group is that of a built-in kind.
    groups.sort_by_key(Group::is_custom);
    groups
}

/// Returns the document at `path`, if there is one.
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
            schema: version.schema_json.as_deref(),
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

/// The selectable fields in discovery: only those of custom resources are listed.
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
        list.push(json!({"name": kind.plural, "singularName": kind.kind.to_lowercase(),
            "namespaced": kind.namespaced, "kind": kind.kind, "verbs": ["create"]}));
    }
    let mut document = json!({"kind": "APIResourceList"});
    // The list of the core group predates versioning of such lists.
    if !group.is_empty() {
        document["apiVersion"] = "v1".into();
    }
    document["groupVersion"] = group_version(group, version).into();
    document["resources"] = list.into();
    Some(Document::json(&document))
}

/// Returns a resource and its subresources as `APIResource`s.
fn legacy(resource: &Resource, at: usize) -> Vec<Value> {
    let mut main = json!({
        "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
        "kind": resource.kind, "verbs": resource.verbs,
    });
    name_shortly(&mut main, resource);
    let of_side = |(sub, [group, version, kind], verbs): Side<'_>| {
        let mut side = json!({"name": format!("{}/{sub}", resource.plural), "singularName": "",
            "namespaced": resource.namespaced, "kind": kind, "verbs": verbs});
        if !group.is_empty() {
            side["group"] = group.into();
            side["version"] = version.into();
        }
        side
    };
    std::iter::once(main).chain(sides(resource, at).into_iter().map(of_side)).collect()
}

fn name_shortly(entry: &mut Value, resource: &Resource) {
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
}

/// A subresource: its name, the group, version and kind of its objects, its verbs. The group is empty if they are
/// those of the resource.
type Side<'a> = (&'static str, [&'a str; 3], &'static [&'static str]);

/// Returns the subresources by name.
fn sides(resource: &Resource, at: usize) -> Vec<Side<'_>> {
    let own = ["", "", resource.kind.as_str()];
    let mut sides: Vec<Side<'_>> = Vec::new();
    if resource.is("", "namespaces") {
        sides.push(("finalize", own, &["update"]));
    }
    if resource.versions[at].has_status {
        sides.push(("status", own, &["get", "patch", "update"]));
    }
    if resource.is("", "serviceaccounts") {
        sides.push(("token", ["authentication.k8s.io", "v1", "TokenRequest"], &["create"]));
    }
    sides
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
            let scope = if kind.namespaced { "Namespaced" } else { "Cluster" };
            list.push(json!({"resource": kind.plural, "scope": scope, "verbs": ["create"],
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
    // The kind of a built-in resource has the group and version of its list, which are then omitted.
    let (group, version) = if resource.is_custom() { (group.name.as_str(), version) } else { ("", "") };
    let kind = |kind: &str| json!({"group": group, "version": version, "kind": kind});
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": kind(&resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs,
    });
    name_shortly(&mut entry, resource);
    let of_side = |(sub, [group, version, name], verbs): Side<'_>| {
        let own = json!({"group": group, "version": version, "kind": name});
        let of = if group.is_empty() { kind(name) } else { own };
        json!({"subresource": sub, "responseKind": of, "verbs": verbs})
    };
    let sides: Vec<Value> = sides(resource, at).into_iter().map(of_side).collect();
    if !sides.is_empty() {
        entry["subresources"] = json!(sides);
    }
    entry
}
