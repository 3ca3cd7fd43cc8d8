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
