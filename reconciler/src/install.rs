//! Prepares a control plane to serve berth's kinds: applies the manifests, and creates the defaults.

use anyhow::Context;
use berth_agent::TypedApi;
use berth_api::{SYSTEM_NAMESPACE, Unparsed, manifests};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::ConfigMap,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use serde_json::Value;

/// Records which manifests were applied last, so that a restart applies them only when they have changed.
const MARK: &str = "berth-manifests";
const MANAGER: &str = "berth";
/// The number of manifests applied concurrently.
const AT_ONCE: usize = 16;

/// Applies all manifests, unless these same ones were applied before.
///
/// *Errors:* the control plane rejected one, or does not respond.
pub async fn manifests(client: &Client) -> anyhow::Result<()> {
    let objects = manifests::all();
    let digest = digest(&objects);
    let marks: TypedApi<ConfigMap> = TypedApi::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let mark = marks.get_opt(MARK).await.context("reading which manifests were applied")?;
    let applied = mark.and_then(|m| m.data).and_then(|data| data.get("digest").cloned());
    if applied.as_ref() == Some(&digest) {
        return Ok(());
    }
    apply_together(client, &objects).await?;
    remove_retired(client).await?;
    let mark = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": MARK}, "data": {"digest": digest}});
    let params = PatchParams::apply(MANAGER).force();
    marks.patch(MARK, &params, &Patch::Apply(mark)).await.context("noting which manifests were applied")?;
    Ok(())
}

/// Removes the admission policies that an earlier version installed and this one does not have.
async fn remove_retired(client: &Client) -> anyhow::Result<()> {
    let all = |resource: ApiResource| Api::<Unparsed>::all_with(client.clone(), &resource);
    let bindings = all(Unparsed::resource::<ValidatingAdmissionPolicyBinding>());
    let policies = all(Unparsed::resource::<ValidatingAdmissionPolicy>());
    for name in manifests::retired_admission_policies() {
        let (binding, policy) = (
            bindings.delete(name, &DeleteParams::default()).await.map(drop),
            policies.delete(name, &DeleteParams::default()).await.map(drop),
        );
        for removed in [binding, policy] {
            match removed {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => other
                    .with_context(|| format!("removing the admission policy {name} of an earlier version"))?,
            }
        }
    }
    Ok(())
}

/// Applies objects in order, with our field manager.
///
/// *Errors:* the control plane rejected one, or does not respond.
pub async fn apply(client: &Client, objects: &[Value]) -> anyhow::Result<()> {
    for object in objects {
        apply_one(client, object).await?;
    }
    Ok(())
}

/// Applies many manifests concurrently, so that they are made durable together: separate commits are most of the
/// time of a first start.
async fn apply_together(client: &Client, objects: &[Value]) -> anyhow::Result<()> {
    // Objects that others lie in or refer to come first.
    let ground = |object: &&Value| {
        matches!(object["kind"].as_str(), Some("Namespace" | "CustomResourceDefinition" | "ClusterRole"))
    };
    let (ground, rest): (Vec<&Value>, Vec<&Value>) = objects.iter().partition(ground);
    for batch in [ground, rest] {
        let each = batch.into_iter().map(|object| apply_one(client, object));
        futures::stream::iter(each).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    }
    Ok(())
}

async fn apply_one(client: &Client, object: &Value) -> anyhow::Result<()> {
    let (api, name) = api_of(client, object)?;
    let params = PatchParams::apply(MANAGER).force();
    let applied = api.patch(&name, &params, &Patch::Apply(object)).await;
    applied.with_context(|| format!("applying {} {name}", object["kind"].as_str().unwrap_or_default()))?;
    Ok(())
}

/// Creates the IPPool and the StoragePool `default` where they are missing; existing ones stay as they are.
///
/// *Errors:* the control plane rejected one, or does not respond.
pub async fn defaults(client: &Client, public_cidr: &str) -> anyhow::Result<()> {
    for object in manifests::defaults(public_cidr) {
        let (api, name) = api_of(client, &object)?;
        let what = || format!("making the default {}", object["kind"].as_str().unwrap_or_default());
        let parsed: DynamicObject = serde_json::from_value(object.clone()).with_context(what)?;
        match api.create(&PostParams::default(), &parsed).await {
            Ok(_) => {
                tracing::info!(kind = object["kind"].as_str(), name = parsed.name_any(), "made a default")
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error).with_context(|| format!("{} {name}", what())),
        }
    }
    Ok(())
}

fn digest(objects: &[Value]) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    objects.iter().for_each(|object| object.to_string().hash(&mut hasher));
    format!("{}-{:016x}", env!("CARGO_PKG_VERSION"), hasher.finish())
}

fn api_of(client: &Client, object: &Value) -> anyhow::Result<(Api<DynamicObject>, String)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (api_version, kind) =
        text(&object["apiVersion"]).zip(text(&object["kind"])).context("a manifest without kind")?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let resource = ApiResource { plural: plural(&kind), ..resource };
    let name = text(&object["metadata"]["name"]).context("a manifest without name")?;
    let api = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    Ok((api, name))
}

fn plural(kind: &str) -> String {
    let lower = kind.to_lowercase();
    match (lower.strip_suffix('y'), lower.ends_with('s')) {
        (Some(stem), _) => format!("{stem}ies"),
        (None, true) => format!("{lower}es"),
        (None, false) => format!("{lower}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plural_of_every_manifest_is_what_its_api_is_called() {
        let kinds: std::collections::BTreeSet<String> = manifests::all()
            .iter()
            .chain(&manifests::defaults("192.0.2.0/24"))
            .filter_map(|o| o["kind"].as_str().map(plural))
            .collect();
        let kinds: Vec<_> = kinds.into_iter().collect();
        assert_eq!(
            kinds,
            [
                "clusterroles",
                "customresourcedefinitions",
                "ippools",
                "namespaces",
                "storagepools",
                "validatingadmissionpolicies",
                "validatingadmissionpolicybindings",
            ]
        );
    }

    #[test]
    fn the_digest_changes_with_the_manifests() {
        let objects = manifests::all();
        assert_eq!(digest(&objects), digest(&objects.clone()));
        assert_ne!(digest(&objects), digest(&objects[1..]));
    }
}
