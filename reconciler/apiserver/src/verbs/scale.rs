//! The scale subresource: replicas of a custom resource, seen as `autoscaling/v1` Scale.

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::update::Source;
use super::{Answer, ApiError, Call, PatchKind, Result, Subject};
use crate::meta::field_error;
use crate::schema::ErrorKind;
use crate::schema::message::{go_json, json_type};

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

pub(super) async fn update(call: &mut Call, scale: Value) -> Result<Answer> {
    if scale["kind"] != "Scale" {
        return Err(ApiError::bad_request("the body is not a Scale"));
    }
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
        super::patch::patch_plain(kind, &mut scale, &patch)?;
        let replicas = &scale["spec"]["replicas"];
        if !replicas.is_null() && !replicas.is_i64() {
            let why = format!(
                "json: cannot unmarshal {} into Go struct field ScaleSpec.spec.replicas of type int32",
                json_type(replicas)
            );
            let error = crate::meta::invalid("patch", &go_json(&scale).into(), &why);
            return Err(ApiError::invalid(Subject { group: "", kind: "", name: "" }, &[error]));
        }
        Ok(scale)
    })
    .await
}

/// None at all is none; what is no number must not become one.
fn replicas(name: &str, sent: &Value) -> Result<i64> {
    if sent.is_null() {
        return Ok(0);
    }
    sent.as_i64().ok_or_else(|| {
        let error = field_error(
            ErrorKind::TypeInvalid,
            "spec.replicas",
            format!("Invalid value: {sent}: must be an integer"),
        );
        ApiError::invalid(Subject { group: "autoscaling", kind: "Scale", name }, &[error])
    })
}

async fn set(call: &mut Call, new_scale: impl Fn(&Call, &Value) -> Result<Value>) -> Result<Answer> {
    let path = path(call, "specReplicasPath").to_owned();
    let answer = call
        .change(Source::Update, |call, live| {
            let scale = new_scale(call, live)?;
            let replicas = replicas(&call.target.name, &scale["spec"]["replicas"])?;
            let mut object = live.clone();
            put(&mut object, &path, replicas.into());
            object["metadata"]["resourceVersion"] = scale["metadata"]["resourceVersion"].clone();
            Ok(object)
        })
        .await?;
    let object: Value = serde_json::from_slice(&answer.body).map_err(ApiError::internal)?;
    read(call, &object).map(|scale| Answer { is_object: false, ..Answer::of_value(StatusCode::OK, &scale) })
}
