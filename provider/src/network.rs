//! `berth_network`

use async_trait::async_trait;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value as Json;

use crate::{
    api::Api,
    change::PlannedChange,
    field::{Effect, Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    replacement,
};

/// A private network.
#[derive(Debug)]
pub struct Network;

#[async_trait]
impl ResourceKind for Network {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_network",
            kind: "Network",
            plural: "networks",
            description: "A private IPv4 network of VMs. Its VMs reach each other, on whichever hosts they run, and the outside by NAT. A VM's network interface names it in `network`. The Network `default` of a namespace is created without this resource when a VM first needs it.\n\nA range that overlaps another Network's, or one that a host uses, is refused. Destroying a network that VMs use is accepted; a finalizer keeps it until no VM uses it. Until then no other network can have this name.",
            example: include_str!("../../examples/resources/berth_network/resource.tf"),
            shown: "status.mtu",
            timeouts: [120, 120, 300],
        }
    }

    fn definition(&self) -> CustomResourceDefinition {
        berth_api::Network::crd()
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::spec("cidr", Shape::Text(Form::Ipv4Range)).required().effect(Effect::Replace),
            Field::spec("dns", Shape::TextList(Form::Ipv4)),
            Field::spec("mtu", Shape::Integer).effect(Effect::PowerCycle),
        ]
    }

    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        replacement::refuse_in_use(api, change, self.info().plural, "cidr", "The network is in use").await;
    }

    /// A network without an identifier was never made on a host.
    fn is_worth_keeping(&self, object: &Json) -> bool {
        object.pointer("/status/vni").is_some()
    }
}
