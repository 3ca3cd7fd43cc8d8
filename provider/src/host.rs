//! `berth_host`

use async_trait::async_trait;
use serde_json::Value as Json;
use tfplugin6::{AttributePath, CancellationToken, Diagnostic, Value};

use crate::{
    api::{Address, Api, RetryLimit},
    change::PlannedChange,
    field::{Effect, Field, Presence, Shape},
    form::Form,
    kind::{KindInfo, ResourceKind},
    mapping,
    readiness::Outcome,
};

/// The time limit for reading a Host, in seconds.
const READ_SECONDS: u64 = 2;

/// A machine that runs VMs.
#[derive(Debug)]
pub struct Host;

#[async_trait]
impl ResourceKind for Host {
    fn info(&self) -> KindInfo {
        KindInfo {
            type_name: "berth_host",
            kind: "Host",
            plural: "hosts",
            description: "Labels and schedulability of a host: a machine that runs VMs. The host's agent creates the Host when the machine joins (`berth host --join`); this resource adopts it and creates none. It is cluster-scoped, and only an administrator can write it.\n\nDestroying the resource deletes no Host. It withdraws what this resource declares: its labels are removed, `cordoned` and `draining` become false, `reserved` becomes the default, and with `namespaces` the host takes VMs of all namespaces again, each unless another program declares it too. `berth host forget` removes a host.\n\nAn attribute that is left out keeps the value that others set, for example with `berth host cordon`, and labels of others are not changed.",
            example: include_str!("../../examples/resources/berth_host/resource.tf"),
            shown: "status.free",
            timeouts: [60, 60, 60],
        }
    }

    fn name_field(&self) -> Field {
        let mut field = Field::observed(
            "name",
            "/metadata/name",
            "Name of the host: the one it joined with. Another name is another host.",
        );
        field.shape = Shape::Text(Form::DottedName);
        field.presence(Presence::Required).effect(Effect::Replace)
    }

    fn fields(&self) -> Vec<Field> {
        vec![
            Field::spec("cordoned", Shape::Bool)
                .presence(Presence::Kept)
                .text("Whether the host takes no new VMs. Left out: as others set it."),
            Field::spec("draining", Shape::Bool).presence(Presence::Kept).text(
                "Whether the host is drained: it takes no new VMs, and its VMs are shut down and stay stopped with the reason \
                 `HostDraining`, whatever their declared power. Left out: as others set it.",
            ),
            Field::spec("reserved", Shape::Object(reserved_fields())).presence(Presence::Kept).text(
                "CPUs and memory that the host keeps for itself and its other programs: VMs are placed in the rest, which \
                 `status.allocatable` of the data source shows. A change counts for VMs that are placed or started afterwards. \
                 Of those that run, guests give back what they have above their `memory_reservation`. Left out: as others set it.",
            ),
            Field::spec("namespaces", Shape::TextList(Form::Name)).presence(Presence::Kept).text(
                "The namespaces that the host is reserved for, at most 256: VMs of others are not placed on it. VMs that have the host \
                 keep it, and start again. `[]`: VMs of all namespaces are placed on it. Left out: as others set it.",
            ),
            Field::observed("address", "/status/address", "The address at which other hosts reach it."),
            Field {
                shape: Shape::TextList(Form::Any),
                ..Field::observed(
                    "roles",
                    "/status/roles",
                    "`VMs`: it runs VMs. `ControlPlane`: the control plane that its agent reports to runs on it (`berth up`).",
                )
            },
        ]
    }

    fn is_adopted(&self) -> bool {
        true
    }

    /// Refuses a host that does not exist, or that has less than it is to reserve, and warns of values that the adoption changes.
    async fn look(&self, api: &Api, change: &mut PlannedChange<'_>) {
        let Some(name) = change.planned.get("name").as_str() else { return };
        let retry_limit = RetryLimit::seconds(READ_SECONDS, &CancellationToken::new());
        match api.get(&Address::cluster(self.info().plural, name), &retry_limit).await {
            Ok(None) if change.is_create() => {
                let detail = format!(
                    "This control plane has no host {name:?}. A host appears when its machine joins: \"berth token create {name}\" on \
                     the control plane, then \"berth host --join\" there."
                );
                change.refuse_missing("The host does not exist", detail, AttributePath::root("name"));
            }
            Ok(Some(host)) => {
                if change.is_create() {
                    let warnings = adopted_differently(change, &host);
                    change.diagnostics.extend(warnings);
                }
                refuse_to_reserve_all(change, &host);
            }
            Ok(None) | Err(_) => {}
        }
    }

    /// Nothing to wait for: a host that is away keeps what is declared for it.
    fn outcome(&self, _object: &Json, _planned: &Value) -> Outcome {
        Outcome::Done
    }
}

fn reserved_fields() -> Vec<Field> {
    vec![Field::spec("cpus", Shape::Integer), Field::spec("memory", Shape::Text(Form::Quantity))]
}

/// Refuses to reserve all that a host has, or more.
fn refuse_to_reserve_all(change: &mut PlannedChange<'_>, host: &Json) {
    let path = |name: &str| AttributePath::root("reserved").attribute(name);
    let bytes = |text: &str| berth_api::Quantity(text.to_owned()).bytes().ok();
    let reserved = change.planned.get("reserved");
    let cpus =
        reserved.get("cpus").as_i64().zip(host.pointer("/status/capacity/cpus").and_then(Json::as_i64));
    let memory =
        reserved.get("memory").as_str().zip(host.pointer("/status/capacity/memory").and_then(Json::as_str));
    let cpus = cpus.filter(|(wanted, has)| wanted >= has).map(|(_, has)| (path("cpus"), has.to_string()));
    let memory = memory
        .filter(|(wanted, has)| bytes(wanted) >= bytes(has))
        .map(|(_, has)| (path("memory"), has.to_owned()));
    for (path, has) in [cpus, memory].into_iter().flatten() {
        let detail = format!("The host has {has}: nothing would be left for VMs. Reserve less.");
        change.refuse("The host has less than is reserved", detail, path);
    }
}

/// A warning for each value of the host that its adoption changes: a plan shows no prior values of a resource that is new.
fn adopted_differently(change: &PlannedChange<'_>, host: &Json) -> Vec<Diagnostic> {
    let current = mapping::from_object(change.fields, host);
    let warning = |now: String, path: AttributePath| {
        let detail = format!("The host exists and has {path} = {now} now, which this apply changes.");
        Diagnostic::warning("The host changes when it is adopted", detail).at(path)
    };
    let mut warnings = Vec::new();
    for name in ["cordoned", "draining"] {
        if let (Some(now), Some(then)) =
            (current.get(name).and_then(Value::as_bool), change.config.get(name).as_bool())
            && now != then
        {
            warnings.push(warning(now.to_string(), AttributePath::root(name)));
        }
    }
    let reserved = current.get("reserved").unwrap_or(&Value::Null);
    for field in reserved_fields() {
        let (now, then) = (reserved.get(field.name), change.config.get("reserved").get(field.name));
        let now_text =
            now.as_str().map(str::to_owned).or_else(|| now.as_i64().map(|number| number.to_string()));
        if let Some(text) = now_text.filter(|_| then.is_set())
            && !mapping::same(&field.shape, now, then)
        {
            warnings.push(warning(text, AttributePath::root("reserved").attribute(field.name)));
        }
    }
    let names = |list: &Value| -> Vec<String> {
        list.elements().iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let then = change.config.get("namespaces");
    let now = names(current.get("namespaces").unwrap_or(&Value::Null));
    if !now.is_empty() && !then.is_null() && then.is_wholly_known() && now != names(then) {
        warnings.push(warning(format!("{now:?}"), AttributePath::root("namespaces")));
    }
    let labels = current.get("labels").unwrap_or(&Value::Null);
    for (key, then) in change.config.get("labels").as_map().into_iter().flatten() {
        if let (Some(now), Some(then)) = (labels.get(key).as_str(), then.as_str())
            && now != then
        {
            warnings.push(warning(format!("{now:?}"), AttributePath::root("labels").key(key)));
        }
    }
    warnings
}
