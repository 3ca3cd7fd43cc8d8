//! `berth_ip_pool`

use async_trait::async_trait;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    api::Api,
    change::PlannedChange,
    field::{Effect, Field, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    replacement,
};

/// A pool of public addresses.
#[derive(Debug)]
pub struct IpPool;

#[async_trait]
impl ResourceKind for IpPool {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_ip_pool",
            kind: "IPPool",
            plural: "ippools",
            description: "Public addresses that `berth_public_ip` allocates from. It is cluster-scoped: all namespaces share it, and only an administrator can write it. Destroying a pool that public addresses name is accepted; a finalizer keeps it until none does. Until then no other pool can have this name.",
            example: include_str!("../../examples/resources/berth_ip_pool/resource.tf"),
            shown: "status.free",
            timeouts: [120, 120, 300],
        }
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::spec("cidrs", Shape::TextList(Form::PoolRange)),
            Field::spec("network_prefixes", Shape::TextList(Form::IpRange)),
            Field::spec("mode", Shape::Text(Form::Any)).default("local").effect(Effect::Replace),
            Field::spec("use_all_addresses", Shape::Bool).default(false),
            Field::spec("min_prefix_length", Shape::Integer),
        ]
    }

    /// Refuses a pool without ranges, ranges of both families, and a limit of prefixes where there are none.
    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        if config.get("cidrs").is_null() && config.get("network_prefixes").is_null() {
            let path = AttributePath::root("cidrs");
            let detail = format!("{path}: a pool has addresses: set `cidrs`, `network_prefixes` or both.");
            return vec![Diagnostic::error("A pool without addresses", detail).at(path)];
        }
        let ranges = config.get("cidrs").elements();
        let is_limited = config.get("min_prefix_length").as_i64().is_some();
        let is_of_ipv4 = ranges.first().and_then(Value::as_str).is_some_and(|first| !first.contains(':'));
        if is_limited && (is_of_ipv4 || config.get("cidrs").is_null()) {
            let path = AttributePath::root("min_prefix_length");
            let detail = format!(
                "{path}: it limits the prefixes that berth_public_ip takes from IPv6 `cidrs`. Declare IPv6 `cidrs`, or leave it out."
            );
            return vec![Diagnostic::error("A limit without prefixes", detail).at(path)];
        }
        let is_ipv6 = |range: &Value| range.as_str().map(|text| text.contains(':'));
        let Some(first) = ranges.iter().find_map(is_ipv6) else { return Vec::new() };
        let other = ranges.iter().position(|range| is_ipv6(range).is_some_and(|is_ipv6| is_ipv6 != first));
        let Some(index) = other else { return Vec::new() };
        let path = AttributePath::root("cidrs").index(index);
        let detail = format!(
            "{path}: the ranges of a pool are all of IPv4 or all of IPv6: declare another berth_ip_pool for the other family."
        );
        vec![Diagnostic::error("Ranges of both families", detail).at(path)]
    }

    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        replacement::refuse_in_use(api, change, self.info().plural, "mode", "The pool is in use").await;
    }

    /// Nothing is lost with a pool: while it is in use, it stays.
    fn is_worth_keeping(&self, _object: &Json) -> bool {
        false
    }
}
