//! The built-in kinds: only those that custom resources depend on.
//!
//! Their schemas are not validated field by field as those of custom resources are; only harmful values are
//! refused.

pub(crate) mod decode;
mod event;
mod validate;

use std::sync::Arc;

use base64::Engine as _;
use berth_apimachinery::meta::NameRule;
use berth_apimachinery::schema::StructuralSchema;
use berth_apimachinery::table::Columns;
use berth_apimachinery::time::seconds;
use berth_store::FieldPath;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::resource::{ALL_VERBS, Origin, Resource, Retirement, Schema, Version};

pub(crate) use validate::validate;

/// The group of the server itself.
pub(crate) const SYSTEM_GROUP: &str = crate::identity::MASTERS;
pub(crate) const RBAC: &str = "rbac.authorization.k8s.io";
pub(crate) const ADMISSION: &str = "admissionregistration.k8s.io";
pub(crate) const APIEXTENSIONS: &str = "apiextensions.k8s.io";
pub(crate) const EVENTS: &str = "events.k8s.io";

struct Definition {
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
    short: &'static [&'static str],
    namespaced: bool,
    status: bool,
    generation: bool,
    fields: &'static [&'static str],
    rule: NameRule,
}

/// The verbs of resources that have no objects.
const VERBS_OF_ABSENT: &[&str] = &["get", "list", "watch"];
const VERBS_OF_NAMESPACES: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

const fn kind(
    group: &'static str,
    plural: &'static str,
    kind: &'static str,
    short: &'static [&'static str],
) -> Definition {
    Definition {
        group,
        version: "v1",
        plural,
        kind,
        short,
        namespaced: true,
        status: false,
        generation: false,
        fields: &[],
        rule: NameRule::Subdomain,
    }
}

fn definitions() -> Vec<Definition> {
    vec![
        Definition {
            namespaced: false,
            status: true,
            rule: NameRule::Label,
            fields: &["status.phase"],
            ..kind("", "namespaces", "Namespace", &["ns"])
        },
        kind("", "configmaps", "ConfigMap", &["cm"]),
        Definition { fields: &["type"], ..kind("", "secrets", "Secret", &[]) },
        Definition { fields: EVENT_FIELDS, ..kind("", "events", "Event", &["ev"]) },
        kind("", "serviceaccounts", "ServiceAccount", &["sa"]),
        Definition { fields: EVENT_FIELDS, ..kind(EVENTS, "events", "Event", &["ev"]) },
        kind("coordination.k8s.io", "leases", "Lease", &[]),
        Definition { rule: NameRule::PathSegment, ..kind(RBAC, "roles", "Role", &[]) },
        Definition { rule: NameRule::PathSegment, ..kind(RBAC, "rolebindings", "RoleBinding", &[]) },
        Definition {
            namespaced: false,
            rule: NameRule::PathSegment,
            ..kind(RBAC, "clusterroles", "ClusterRole", &[])
        },
        Definition {
            namespaced: false,
            rule: NameRule::PathSegment,
            ..kind(RBAC, "clusterrolebindings", "ClusterRoleBinding", &[])
        },
        Definition {
            namespaced: false,
            status: true,
            generation: true,
            ..kind(ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", &[])
        },
        Definition {
            namespaced: false,
            generation: true,
            ..kind(ADMISSION, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", &[])
        },
        Definition {
            namespaced: false,
            status: true,
            generation: true,
            ..kind(APIEXTENSIONS, "customresourcedefinitions", "CustomResourceDefinition", &["crd", "crds"])
        },
    ]
}

/// Kinds that run or serve containers. They have no objects here and none can be created;
/// `kubectl apply --prune`, `kubectl cluster-info` and `kubectl get all` list them, and fail if they are not
/// served.
fn absent() -> Vec<Definition> {
    let namespaced = [
        ("", "endpoints", "Endpoints", &["ep"][..]),
        ("", "persistentvolumeclaims", "PersistentVolumeClaim", &["pvc"]),
        ("", "pods", "Pod", &["po"]),
        ("", "replicationcontrollers", "ReplicationController", &["rc"]),
        ("", "services", "Service", &["svc"]),
        ("apps", "daemonsets", "DaemonSet", &["ds"]),
        ("apps", "deployments", "Deployment", &["deploy"]),
        ("apps", "replicasets", "ReplicaSet", &["rs"]),
        ("apps", "statefulsets", "StatefulSet", &["sts"]),
        ("batch", "cronjobs", "CronJob", &["cj"]),
        ("batch", "jobs", "Job", &[]),
        ("networking.k8s.io", "ingresses", "Ingress", &["ing"]),
    ];
    let volumes = kind("", "persistentvolumes", "PersistentVolume", &["pv"]);
    let volumes = Definition { namespaced: false, ..volumes };
    let all = namespaced.map(|(group, plural, name, short)| kind(group, plural, name, short));
    all.into_iter().chain([volumes]).collect()
}

/// Whether the resource of this group and plural is built in.
fn is_builtin(group: &str, plural: &str) -> bool {
    let mut all = definitions().into_iter().chain(absent());
    all.any(|definition| definition.group == group && definition.plural == plural)
}

/// Returns every built-in resource.
pub(crate) fn resources(stopping: &CancellationToken) -> Vec<Arc<Resource>> {
    let made = definitions().into_iter().map(|definition| resource(&definition, stopping));
    let absent = absent().into_iter().map(|definition| {
        let verbs = VERBS_OF_ABSENT;
        let other = ["endpoints", "persistentvolumeclaims", "persistentvolumes", "ingresses"];
        let categories = if other.contains(&definition.plural) { Vec::new() } else { vec!["all".to_owned()] };
        Resource { verbs, categories, ..resource(&definition, stopping) }
    });
    made.chain(absent).map(Arc::new).collect()
}

/// A kind without a schema of its own keeps every field.
fn schema(definition: &Definition) -> Schema {
    match berth_apimachinery::builtin::builtin_schema(definition.group, definition.kind) {
        Some(schema) => Schema::Builtin(schema),
        None => Schema::Custom(Box::new(StructuralSchema::untyped())),
    }
}

fn resource(definition: &Definition, stopping: &CancellationToken) -> Resource {
    // Both views of Events are one set of objects, stored in the form of the core group.
    let storage_group = if definition.group == EVENTS { "" } else { definition.group };
    // Namespaces can only be deleted one by one.
    let verbs = if definition.plural == "namespaces" { VERBS_OF_NAMESPACES } else { ALL_VERBS };
    Resource {
        group: definition.group.into(),
        plural: definition.plural.into(),
        singular: definition.kind.to_ascii_lowercase(),
        kind: definition.kind.into(),
        list_kind: format!("{}List", definition.kind),
        short_names: definition.short.iter().map(|&s| s.into()).collect(),
        categories: if definition.group == APIEXTENSIONS || definition.group == ADMISSION {
            vec!["api-extensions".into()]
        } else {
            Vec::new()
        },
        namespaced: definition.namespaced,
        name_rule: definition.rule,
        storage: format!("{storage_group}/{}", definition.plural).into(),
        versions: vec![Version {
            name: definition.version.into(),
            served: true,
            schema: schema(definition),
            schema_json: None,
            has_status: definition.status,
            columns: Columns::of_builtin(definition.group, definition.kind),
            deprecation: None,
        }],
        storage_version: 0,
        fields: definition.fields.iter().map(|path| FieldPath::parse(path)).collect(),
        origin: Origin::Builtin,
        counts_generation: definition.generation,
        needs_revision: definition.plural == "customresourcedefinitions",
        verbs,
        retirement: Retirement::with(stopping),
    }
}

/// Sets defaults and server-managed fields of a built-in object before it is stored.
pub(crate) fn prepare(resource: &Resource, object: &mut Value, old: Option<&Value>, now: Timestamp) {
    resource.versions[resource.storage_version].schema.normalize_times(object);
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "namespaces") => prepare_namespace(object, old),
        ("", "secrets") => prepare_secret(object),
        ("", "configmaps") => complete_texts(object),
        (RBAC, "rolebindings" | "clusterrolebindings") => prepare_binding(object),
        (ADMISSION, "validatingadmissionpolicies") => prepare_policy(object),
        (ADMISSION, "validatingadmissionpolicybindings") => {
            if let Some(narrowed) = object.pointer_mut("/spec/matchResources") {
                crate::admission::default_constraints(narrowed);
            }
        }
        (APIEXTENSIONS, _) => crate::crd::prepare(object, old, &seconds(now)),
        _ => {}
    }
}

/// Whether a change renews a Lease and changes nothing else: not its holder, nor its duration.
pub(crate) fn is_renewal(resource: &Resource, old: &Value, new: &Value) -> bool {
    resource.is("coordination.k8s.io", "leases") && berth_apimachinery::meta::is_renewal(old, new)
}

/// The finalizer that keeps a namespace until it is empty.
pub(crate) const FINALIZER: &str = "kubernetes";

/// Sets the fields of a new object that the server adds and no field manager owns.
pub(crate) fn begin(resource: &Resource, object: &mut Value) {
    if resource.is("", "namespaces") {
        let mut finalizers = object["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
        if !finalizers.iter().any(|one| one == FINALIZER) {
            finalizers.push(FINALIZER.into());
        }
        object["spec"] = json!({"finalizers": finalizers});
        object["status"] = json!({"phase": "Active"});
    }
}

fn prepare_namespace(object: &mut Value, old: Option<&Value>) {
    if let Some(old) = old {
        object["spec"] = old["spec"].clone();
    }
    label_namespace(object);
}

/// Sets the defaults of an object that was sent whole; its sender owns them.
pub(crate) fn default(resource: &Resource, object: &mut Value) {
    if !resource.is("", "namespaces") {
        return;
    }
    // An object without a name yet gets its label together with the generated name.
    if object["metadata"]["name"].as_str().is_some_and(|name| !name.is_empty()) {
        label_namespace(object);
    }
}

fn label_namespace(object: &mut Value) {
    let name = object["metadata"]["name"].clone();
    let metadata = berth_apimachinery::meta::of(object);
    let labels = metadata.entry("labels").or_insert_with(|| Value::Object(Map::new()));
    if let Some(labels) = labels.as_object_mut() {
        labels.insert("kubernetes.io/metadata.name".into(), name);
    }
}

fn prepare_secret(object: &mut Value) {
    if object["type"].as_str().is_none_or(str::is_empty) {
        object["type"] = "Opaque".into();
    }
    let Some(members) = object.as_object_mut() else { return };
    let Some(Value::Object(plain)) = members.remove("stringData") else { return };
    let data = members.entry("data").or_insert_with(|| Value::Object(Map::new()));
    if !data.is_object() {
        *data = Value::Object(Map::new());
    }
    for (name, value) in plain {
        let encoded = base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or_default());
        data[name.as_str()] = encoded.into();
    }
}

/// Replaces null texts by empty ones.
fn complete_texts(object: &mut Value) {
    let Some(data) = object.get_mut("data").and_then(Value::as_object_mut) else { return };
    data.values_mut().filter(|value| value.is_null()).for_each(|value| *value = "".into());
}

fn prepare_binding(object: &mut Value) {
    let role = &mut object["roleRef"];
    if role.is_null() {
        *role = json!({"kind": "", "name": ""});
    }
    if role.is_object() && role["apiGroup"].as_str().is_none_or(str::is_empty) {
        role["apiGroup"] = RBAC.into();
    }
    for subject in object.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
        let of_rbac = matches!(subject["kind"].as_str(), Some("User" | "Group"));
        if of_rbac && subject["apiGroup"].as_str().is_none_or(str::is_empty) {
            subject["apiGroup"] = RBAC.into();
        }
    }
}

fn prepare_policy(object: &mut Value) {
    if object["spec"].is_object() && object["spec"]["failurePolicy"].is_null() {
        object["spec"]["failurePolicy"] = "Fail".into();
    }
    if let Some(constraints) = object.pointer_mut("/spec/matchConstraints") {
        crate::admission::default_constraints(constraints);
    }
}
