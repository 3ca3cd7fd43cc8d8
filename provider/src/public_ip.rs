//! `berth_public_ip`

use async_trait::async_trait;
use berth_api::public_ip::parse_duration;
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
            description: "A public address from a pool. A VM's network interface names it in `public_ip`; or its `ports` lead to VMs, each to one or in turn to several. The address is kept while a VM is stopped or replaced.\n\nA change of `ports` is applied live: established connections go on. The condition `TargetsAvailable` tells whether each port has a target that runs and whose health check succeeds; applies do not wait for it. See the page on load balancing.",
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
            Field::spec("address", Shape::Text(Form::Ipv4)).presence(Presence::Kept).effect(Effect::Replace),
            Field::spec("ports", Shape::Keyed(port_fields())),
            Field::spec("deletion_protection", Shape::Bool).default(false),
        ]
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        check_ports(config.get("ports"))
    }

    /// Warns of more addresses than the pool has.
    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        let Some(pool) = change.planned.get("pool").as_str().map(str::to_owned) else { return };
        let is_new = change.is_create() && !change.is_applied;
        let Some(name) = change.planned.get("name").as_str().filter(|_| is_new) else { return };
        let place = Address::cluster("ippools", &pool);
        let retry_limit = RetryLimit::seconds(READ_SECONDS, &CancellationToken::new());
        let Ok(Some(found)) = api.get(&place, &retry_limit).await else { return };
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
        view
    }

    fn is_worth_keeping(&self, object: &Json) -> bool {
        object.pointer("/status/address").is_some()
    }
}

fn port_fields() -> Vec<Field> {
    let health_check = vec![
        Field::spec("type", Shape::Text(Form::Any)),
        Field::spec("path", Shape::Text(Form::Any)),
        Field::spec("port", Shape::Integer),
        Field::spec("interval", Shape::Text(Form::Any)).default("5s"),
        Field::spec("timeout", Shape::Text(Form::Any)).default("2s"),
        Field::spec("healthy_threshold", Shape::Integer).default(1),
        Field::spec("unhealthy_threshold", Shape::Integer).default(2),
    ];
    vec![
        Field::spec("name", Shape::Text(Form::Name))
            .presence(Presence::Numbered("port"))
            .text("Name of the port within its list. Default `port0`, `port1`, … by position."),
        Field::spec("port", Shape::Integer).required(),
        Field::spec("target_port", Shape::Integer),
        Field::spec("protocol", Shape::Text(Form::Any)).default("tcp"),
        Field::spec("targets", Shape::TextList(Form::Name)).required(),
        Field::spec("session_affinity", Shape::Text(Form::Any)).default("None"),
        Field::spec("health_check", Shape::Object(health_check)),
    ]
}

fn check_ports(ports: &Value) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let key = |port: &Value| {
        let protocol = match port.get("protocol") {
            protocol if protocol.is_unknown() => return None,
            protocol => protocol.as_str().unwrap_or("tcp").to_owned(),
        };
        Some((port.get("port").as_i64()?, protocol))
    };
    for (i, port) in ports.elements().iter().enumerate() {
        let at = AttributePath::root("ports").index(i);
        let before =
            ports.elements().iter().take(i).position(|other| key(other).is_some() && key(other) == key(port));
        if let (Some(before), Some((number, protocol))) = (before, key(port)) {
            let path = at.clone().attribute("port");
            let detail = format!(
                "{path}: {protocol} {number} is declared in ports[{before}] too: each port and protocol can be declared once."
            );
            found.push(Diagnostic::error("A port twice", detail).at(path));
        }
        let targets = port.get("targets").elements();
        let twice = targets
            .iter()
            .enumerate()
            .find(|(n, target)| target.as_str().is_some() && targets[..*n].contains(target));
        if let Some((n, target)) = twice {
            let path = at.clone().attribute("targets").index(n);
            let detail = format!(
                "{path}: {:?} is named twice: a target can be named once.",
                target.as_str().unwrap_or_default()
            );
            found.push(Diagnostic::error("A target twice", detail).at(path));
        }
        found.extend(check_health(&at, port));
    }
    found
}

fn check_health(port_at: &AttributePath, port: &Value) -> Vec<Diagnostic> {
    let check = port.get("health_check");
    if check.is_null() || check.is_unknown() {
        return Vec::new();
    }
    let at = |name: &str| port_at.clone().attribute("health_check").attribute(name);
    let mut found = Vec::new();
    if port.get("protocol").as_str() == Some("udp") && check.get("port").is_null() {
        let path = at("port");
        let detail = format!("{path}: a health check of a udp port needs a port, which it asks by TCP.");
        found.push(Diagnostic::error("A health check without a port", detail).at(path));
    }
    if check.get("type").as_str() == Some("tcp") && check.get("path").as_str().is_some() {
        let path = at("path");
        let detail = format!("{path}: a path is for the type \"http\", and the type is \"tcp\".");
        found.push(Diagnostic::error("A path without HTTP", detail).at(path));
    }
    for (name, seconds, minutes, range) in
        [("interval", 999, 10, "1s to 999s, or 1m to 10m"), ("timeout", 60, 0, "1s to 60s")]
    {
        let Some(text) = check.get(name).as_str() else { continue };
        let most = if text.ends_with('m') { minutes * 60 } else { seconds };
        let is_right = parse_duration(text).is_some_and(|time| time.as_secs() <= most);
        if !is_right {
            let path = at(name);
            let detail = format!("{path}: {text:?} is not a duration of {range}, such as \"5s\".");
            found.push(Diagnostic::error("Not a duration", detail).at(path));
        }
    }
    found
}
