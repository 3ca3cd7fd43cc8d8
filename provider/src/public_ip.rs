//! `berth_public_ip`

mod ports;
mod prefix;

use async_trait::async_trait;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, CancellationToken, Diagnostic, Value};

use crate::{
    api::{Address, Api, RetryLimit},
    change::PlannedChange,
    field::{Effect, Field, Presence, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    references::IP_POOL,
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
            description: "A public address from a pool. A VM's network interface names it in `public_ip`, or in `public_ipv6` if its pool has IPv6 addresses; or its `ports` lead to VMs, each to one or in turn to several. With `prefix_length` it is a whole IPv6 prefix, which is routed to one VM. The address is kept while a VM is stopped or replaced.\n\nA change of `ports` is applied live: established connections go on. The condition `TargetsAvailable` tells whether each port has a target that runs and whose health check succeeds; applies do not wait for it. An entry without `port` gets a free one, which is in `assigned_ports`. See the page on load balancing.",
            example: include_str!("../../examples/resources/berth_public_ip/resource.tf"),
            shown: "address",
            timeouts: [120, 120, 300],
        }
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::spec("pool", Shape::Text(Form::Name))
                .default(berth_api::DEFAULT_NAME)
                .effect(Effect::Replace)
                .refers(IP_POOL),
            Field::spec("address", Shape::Text(Form::Ip)).presence(Presence::Kept).effect(Effect::Replace),
            Field::spec("prefix_length", Shape::Integer).effect(Effect::Replace),
            Field::spec("ports", Shape::Keyed(ports::fields())),
            Field::spec("port_range", Shape::Text(Form::Any)),
            Field::spec("deletion_protection", Shape::Bool).default(false),
            ports::assigned_field(),
            prefix::field(),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let mut found = ports::check(config.get("ports"));
        found.extend(ports::check_range(config));
        found.extend(prefix::check(config));
        found
    }

    fn refine(&self, change: &mut PlannedChange<'_>) {
        ports::refine(change);
    }

    /// Refuses a prefix of a pool that has none, and warns of more addresses than the pool has.
    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        let Some(pool) = change.planned.get("pool").as_str().map(str::to_owned) else { return };
        let has_prefix = !change.planned.get("prefix_length").is_null();
        // The pool may have been created by the same apply.
        let is_looked_at = match has_prefix {
            true => change.is_create() || !change.replace.is_empty(),
            false => change.is_create() && !change.is_applied,
        };
        let Some(name) = change.planned.get("name").as_str().filter(|_| is_looked_at) else { return };
        let place = Address::cluster("ippools", &pool);
        let retry_limit = RetryLimit::seconds(READ_SECONDS, &CancellationToken::new());
        let Ok(Some(found)) = api.get(&place, &retry_limit).await else { return };
        if has_prefix {
            let length = change.planned.get("prefix_length").as_i64();
            change.refusals.extend(prefix::unsuitable(&pool, &found, length));
            return;
        }
        let number = |pointer| found.pointer(pointer).and_then(Json::as_i64);
        let (Some(free), true) = (number("/status/free"), number("/status/observedGeneration") >= Some(0))
        else {
            return;
        };
        let namespace = change.planned.get("namespace").as_str().unwrap_or_default();
        if change.private.replaces.is_some() {
            let own = Address::berth(self.info().plural, namespace, name);
            // It gives its address back first.
            if api.get(&own, &retry_limit).await.is_ok_and(|own| own.is_some_and(|own| has_one(&own, &pool)))
            {
                return;
            }
        }
        let added = change.run.add_user(&place, &format!("{namespace}/{name}"));
        if i64::try_from(added).is_ok_and(|added| added <= free) {
            return;
        }
        let path = AttributePath::root("pool");
        let detail = format!(
            "{path}: IPPool {pool} has {free} free addresses, and this is new PublicIP {added} of this configuration. It waits \
             (NoFreeAddress) until another one is released or the pool has more ranges."
        );
        change.diagnostics.push(Diagnostic::warning("The pool has no free address", detail).at(path));
    }

    fn view(&self, object: &Json) -> Json {
        let mut view = object.clone();
        let decided = object.pointer("/status/address").cloned();
        if let (Some(address), Some(spec)) = (decided, view.get_mut("spec").and_then(Json::as_object_mut)) {
            spec.entry("address").or_insert(address);
        }
        ports::view(object, &mut view);
        view
    }

    fn is_worth_keeping(&self, object: &Json) -> bool {
        object.pointer("/status/address").is_some()
    }
}

/// Whether the PublicIP has an address of this pool.
fn has_one(object: &Json, pool: &str) -> bool {
    let of = object.pointer("/spec/pool").and_then(Json::as_str).unwrap_or(berth_api::DEFAULT_NAME);
    of == pool && object.pointer("/status/address").is_some()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::{Client, client::Body};
    use serde_json::json;

    use super::*;
    use crate::private::Private;

    #[tokio::test]
    async fn an_address_that_is_replaced_is_no_further_one_of_its_pool() {
        let service = tower::service_fn(|request: Request<Body>| async move {
            let object = match request.uri().path().contains("/publicips/") {
                true => json!({"spec": {"pool": "full"}, "status": {"address": "192.0.2.1"}}),
                false => json!({"spec": {}, "status": {"free": 0, "observedGeneration": 1}}),
            };
            Ok::<_, Infallible>(Response::new(Body::from(object.to_string().into_bytes())))
        });
        let api = Api::new(Client::new(service, "default"));
        let fields = PublicIp.fields();
        let warnings = async |pool: &str, replaces: Option<&str>| {
            let [name, namespace, pool] = ["web", "default", pool].map(Value::from);
            let planned = Value::object([("name", name), ("namespace", namespace), ("pool", pool)]);
            let private = Private { replaces: replaces.map(str::to_owned), ..Private::default() };
            let (nothing, config) = (Value::Null, planned.clone());
            let mut change = PlannedChange::new(&fields, &nothing, &config, planned, private);
            PublicIp.look(&api, &mut change).await;
            change.diagnostics.len()
        };
        assert_eq!(warnings("full", None).await, 1);
        assert_eq!(warnings("full", Some("u1")).await, 0, "it gives its address back first");
        assert_eq!(warnings("other", Some("u1")).await, 1, "it takes one of another pool");
    }
}
