//! `berth_public_ip`

use async_trait::async_trait;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, CancellationToken};

use crate::{
    api::{Address, Api, RetryLimit},
    change::PlannedChange,
    field::{Effect, Field, Presence, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
};

/// The time limit for reading a pool, in seconds.
const READ_SECONDS: u64 = 2;

/// A public address.
#[derive(Debug)]
pub struct PublicIp;

#[async_trait]
impl ResourceKind for PublicIp {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_public_ip",
            kind: "PublicIP",
            plural: "publicips",
            description: "A public address from a pool. A VM's network interface names it in `public_ip`. The address is kept while the VM is stopped or replaced.",
            example: include_str!("../../examples/resources/berth_public_ip/resource.tf"),
            shown: "address",
            timeouts: [120, 120, 300],
        }
    }

    fn definition(&self) -> CustomResourceDefinition {
        berth_api::PublicIP::crd()
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::spec("pool", Shape::Text(Form::Name))
                .default(berth_api::DEFAULT_NAME)
                .effect(Effect::Replace),
            Field::spec("address", Shape::Text(Form::Ipv4)).presence(Presence::Kept).effect(Effect::Replace),
            Field::spec("deletion_protection", Shape::Bool).default(false),
        ]
    }

    /// Refuses a pool that does not exist: the address would wait for it.
    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        let Some(pool) = change.planned.get("pool").as_str().map(str::to_owned) else { return };
        // A control plane has the pool `default`, unless its administrator has left it out.
        if pool == berth_api::DEFAULT_NAME || (!change.is_create() && change.replace.is_empty()) {
            return;
        }
        let retry_limit = RetryLimit::seconds(READ_SECONDS, &CancellationToken::new());
        if let Ok(None) = api.get(&Address::cluster("ippools", &pool), &retry_limit).await {
            let detail = format!(
                "There is no IPPool {pool:?} on this control plane. The data source berth_ip_pools lists those there are."
            );
            change.refuse_missing("The address's pool does not exist", detail, AttributePath::root("pool"));
        }
    }

    fn view(&self, object: &Json) -> Json {
        let mut view = object.clone();
        let decided = object.pointer("/status/address").cloned();
        if let (Some(address), Some(spec)) = (decided, view.get_mut("spec").and_then(Json::as_object_mut)) {
            spec.entry("address").or_insert(address);
        }
        view
    }

    fn is_worth_keeping(&self, object: &Json) -> bool {
        object.pointer("/status/address").is_some()
    }
}
