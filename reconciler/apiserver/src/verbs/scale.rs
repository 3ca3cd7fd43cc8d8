//! The scale subresource: replicas of a custom resource, seen as `autoscaling/v1` Scale.

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::update::Source;
use super::{Answer, ApiError, Call, PatchKind, Result, Subject};
use crate::builtin::decode::unreadable;

/// Reads `.spec.replicas` and the like; Kubernetes allows nothing but dotted names here.
fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.trim_start_matches('.').split('.').try_fold(object, |at, name| at.get(name))
}

fn put(object: &mut Value, path: &str, value: Value) {
    let mut at = object;
    for name in path.trim_start_matches('.').split('.') {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[name];
    }
    *at = value;
}

fn path<'a>(call: &'a Call, member: &str) -> &'a str {
    call.version().scale.as_ref().and_then(|scale| scale[member].as_str()).unwrap_or_default()
}

pub(super) fn read(call: &Call, object: &Value) -> Result<Value> {
    let count = |member: &str| at(object, path(call, member)).and_then(Value::as_i64);
    let metadata = &object["metadata"];
    let mut scale = json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {"name": metadata["name"], "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"], "creationTimestamp": metadata["creationTimestamp"]},
        "spec": {"replicas": count("specReplicasPath").unwrap_or(0)},
        "status": {"replicas": count("statusReplicasPath").unwrap_or(0)},
    });
    if let Some(namespace) = metadata.get("namespace") {
        scale["metadata"]["namespace"] = namespace.clone();
    }
    if let Some(selector) = at(object, path(call, "labelSelectorPath")).filter(|s| s.is_string()) {
        scale["status"]["selector"] = selector.clone();
    }
    Ok(scale)
}

/// Who of the object's managers owns what the Scale shows of it.
fn managers(call: &Call, live: &Value) -> Vec<Value> {
    let place: String =
        path(call, "specReplicasPath").split('.').skip(1).map(|name| format!("/f:{name}")).collect();
    let entries = live["metadata"]["managedFields"].as_array().into_iter().flatten();
    let owning = entries.filter(|entry| entry["fieldsV1"].pointer(&place).is_some());
    let of_scale = owning.map(|entry| {
        let mut entry = entry.clone();
        entry["apiVersion"] = "autoscaling/v1".into();
        entry["fieldsV1"] = json!({"f:spec": {"f:replicas": {}}});
        entry
    });
    of_scale.collect()
}

pub(super) async fn update(call: &mut Call, mut scale: Value) -> Result<Answer> {
    call.accept_side("autoscaling", "Scale", &mut scale).map_err(|why| unreadable("Scale", &why))?;
    call.check_name(&scale)?;
    set(call, move |_, _| Ok(scale.clone())).await
}

pub(super) async fn patch(call: &mut Call, kind: PatchKind, patch: Value) -> Result<Answer> {
    if kind == PatchKind::Apply {
        return Err(ApiError::unsupported_media_type(
            "application/json-patch+json, application/merge-patch+json",
        ));
    }
    set(call, move |call, live| {
        let mut scale = read(call, live)?;
        let managers = managers(call, live);
        if !managers.is_empty() {
            scale["metadata"]["managedFields"] = managers.into();
        }
        let shown = super::patch::patch_plain(kind, &mut scale, &patch)?;
        call.accept_side("autoscaling", "Scale", &mut scale).map_err(|why| {
            let error = crate::meta::invalid("patch", &shown.into(), &why);
            ApiError::invalid(Subject { group: "", kind: "", name: "" }, &[error])
        })?;
        Ok(scale)
    })
    .await
}

async fn set(call: &mut Call, new_scale: impl Fn(&mut Call, &Value) -> Result<Value>) -> Result<Answer> {
    let path = path(call, "specReplicasPath").to_owned();
    let answer = call
        .change(Source::Update, |call, live| {
            let scale = new_scale(call, live)?;
            let replicas = scale["spec"]["replicas"].as_i64().unwrap_or_default();
            let mut object = live.clone();
            put(&mut object, &path, replicas.into());
            for member in ["name", "namespace", "resourceVersion"] {
                object["metadata"][member] = scale["metadata"][member].clone();
            }
            Ok(object)
        })
        .await?;
    let object: Value = serde_json::from_slice(&answer.body).map_err(ApiError::internal)?;
    read(call, &object).map(|scale| Answer { is_object: false, ..Answer::of_value(StatusCode::OK, &scale) })
}
