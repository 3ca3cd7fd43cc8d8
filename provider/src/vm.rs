//! `berth_vm`

mod bootstrap;
mod restart;

use async_trait::async_trait;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::{Value as Json, json};
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    api::{Api, ApiError},
    change::PlannedChange,
    field::{Effect, Field, Presence, Shape},
    form::Form,
    kind::{Beside, Facts, Kind},
    private::Private,
    readiness::{self, Outcome, Readiness},
};

/// A virtual machine.
#[derive(Debug)]
pub struct Vm;

fn network_interfaces() -> Field {
    let fields = vec![
        Field::spec("name", Shape::Text(Form::Name))
            .presence(Presence::Numbered("nic"))
            .text("Name of the interface within the VM, the key of the list. Default `nic0`, `nic1`, … by its place."),
        Field::spec("network", Shape::Text(Form::Name)).default(berth_api::DEFAULT_NAME).effect(Effect::PowerCycle),
        Field::spec("public_ip", Shape::Text(Form::Name)).key("publicIP"),
        Field::spec("mac_address", Shape::Text(Form::Mac)).presence(Presence::Kept).effect(Effect::PowerCycle),
        Field::spec("address", Shape::Text(Form::Ipv4)).presence(Presence::Kept).effect(Effect::PowerCycle),
    ];
    let one = Value::from(vec![Value::object([("name", Value::from("nic0"))])]);
    Field::spec("network_interfaces", Shape::Keyed(fields)).default(one).effect(Effect::PowerCycle)
}

fn placement() -> Field {
    let fields = vec![
        Field::spec("group", Shape::Text(Form::Name)).effect(Effect::Replace),
        Field::spec("host", Shape::Text(Form::Any)).effect(Effect::PowerCycle),
        Field::spec("host_selector", Shape::TextMap).effect(Effect::PowerCycle),
        Field::spec("preferred_host_selector", Shape::TextMap),
    ];
    Field::spec("placement", Shape::Object(fields))
}

fn stop() -> Field {
    let (mode, grace) = (Value::from("Graceful"), Value::from(60));
    let fields = vec![
        Field::spec("mode", Shape::Text(Form::Any)).default(mode.clone()),
        Field::spec("grace_period_seconds", Shape::Integer).default(grace.clone()),
    ];
    let default = Value::object([("mode", mode), ("grace_period_seconds", grace)]);
    Field::spec("stop", Shape::Object(fields)).default(default)
}

fn observed_fields() -> Vec<Field> {
    vec![
        Field::observed(
            "private_address",
            "/status/privateAddress",
            "The private address of the first interface. Decided once and kept.",
        )
        .follows(&["network_interfaces"]),
        Field::observed(
            "public_address",
            "/status/publicAddress",
            "The first public address that leads to the VM.",
        )
        .follows(&["network_interfaces"]),
        Field::observed(
            "host",
            "/status/binding/host",
            "The host it runs on. Moving to another is no change.",
        ),
        Field::observed(
            "instance_id",
            "/status/instanceID",
            "berth's own identity of the machine; what cloud-init sees.",
        ),
        Field::observed(
            "state",
            "/status/state",
            "One word for what it is doing, such as `Running` or `Stopped`.",
        )
        .follows(&["power"]),
    ]
}

#[async_trait]
impl Kind for Vm {
    fn facts(&self) -> Facts {
        Facts {
            type_name: "berth_vm",
            kind: "VM",
            plural: "vms",
            description: "A virtual machine: its class, disks, network interfaces, bootstrap data, power and placement.\n\nNo small change destroys a VM. What a change does stands in the table below and in the plan: it is live, or takes effect at the next power cycle (a warning says so; `allow_reboot` restarts the VM in the same apply), or is refused with the name of the attribute that allows it.",
            example: include_str!("vm/example.tf"),
            timeouts: [600, 600, 600],
        }
    }

    fn definition(&self) -> CustomResourceDefinition {
        berth_api::VM::crd()
    }

    fn fields(&self) -> Vec<Field> {
        let disk = vec![
            Field::spec("name", Shape::Text(Form::Name)).required(),
            Field::spec("boot", Shape::Bool).default(false).effect(Effect::PowerCycle),
        ];
        let mut fields = vec![
            Field::spec("class", Shape::Text(Form::Name)).required().effect(Effect::PowerCycle),
            Field::spec("disks", Shape::Keyed(disk)).required(),
            network_interfaces(),
            placement(),
            bootstrap::field(),
            Field::spec("power", Shape::Text(Form::Any)).default("Running"),
            Field::spec("restart_policy", Shape::Text(Form::Any)).default("OnFailure"),
            stop(),
            Field::spec("restart_token", Shape::Text(Form::Any)).effect(Effect::Reboot),
            Field::local(
                "wait_for",
                Shape::Text(Form::Any),
                "What an apply waits for: `none`, `running` (default: QEMU runs and everything declared is attached), or \
                 `guest` (the guest agent, or without one its first DHCP lease, was seen).",
            )
            .one_of(&["none", "running", "guest"])
            .default("running"),
            Field::local(
                "allow_reboot",
                Shape::Bool,
                "Restart a running VM in the same apply when a change would otherwise wait for the next power cycle. Default \
                 false.",
            )
            .default(false),
        ];
        fields.extend(observed_fields());
        fields
    }

    fn check(&self, config: &Value) -> Vec<Diagnostic> {
        let mut found = check_disks(config);
        found.extend(check_public_ips(config));
        found.extend(bootstrap::check(config.get("bootstrap")));
        found
    }

    fn refine(&self, change: &mut PlannedChange<'_>) {
        refuse_other_identities(change);
        bootstrap::refine(change);
        restart::refine(change);
    }

    fn view(&self, object: &Json) -> Json {
        let mut view = object.clone();
        let decided = object.pointer("/status/interfaces").and_then(Json::as_array);
        let interfaces = view.pointer_mut("/spec/networkInterfaces").and_then(Json::as_array_mut);
        for interface in interfaces.into_iter().flatten() {
            let same_name = |other: &&Json| other.get("name") == interface.get("name");
            let decided = decided.into_iter().flatten().find(same_name).cloned();
            if let (Some(decided), Some(interface)) = (decided, interface.as_object_mut()) {
                for key in ["macAddress", "address"] {
                    let value = decided.get(key).filter(|value| value.as_str() != Some("")).cloned();
                    if let Some(value) = value {
                        interface.entry(key).or_insert(value);
                    }
                }
            }
        }
        bootstrap::view(&mut view);
        restart::view(&mut view);
        view
    }

    fn declare(&self, spec: &mut Json, name: &str, planned: &Value, private: &Private) {
        bootstrap::declare(spec, name, planned, private);
        restart::declare(spec, private);
    }

    fn outcome(&self, object: &Json, wishes: &Value) -> Outcome {
        let wait_for = wishes.get("wait_for").as_str().unwrap_or("running");
        if wait_for == "none" {
            return Outcome::Done;
        }
        let readiness = Readiness::of(object);
        // What only waits for the next power cycle is as ready as it gets.
        let waits_for_person =
            readiness.ready.as_ref().is_some_and(|ready| ready.reason == "PowerCycleNeeded");
        let outcome = match readiness.outcome() {
            Outcome::Waiting(_) if readiness.current && waits_for_person => Outcome::Done,
            outcome => outcome,
        };
        if outcome != Outcome::Done || object.pointer("/spec/power") == Some(&json!("Stopped")) {
            return outcome;
        }
        let wanted: &[&str] = if wait_for == "guest" { &["Running", "GuestReady"] } else { &["Running"] };
        let missing = wanted.iter().find(|&&kind| !readiness::is_true(object, kind));
        missing.map_or(Outcome::Done, |&kind| {
            let seen = readiness::condition(object, kind).map(|condition| condition.text());
            Outcome::Waiting(seen.unwrap_or_else(|| format!("condition {kind}")))
        })
    }

    /// Its hardware is decided at its first start: before that there is nothing to lose.
    fn has_lived(&self, object: &Json) -> bool {
        let ran = |pointer| object.pointer(pointer).is_some_and(|value| !value.is_null());
        ran("/status/hardware") || ran("/status/process") || readiness::is_true(object, "Running")
    }

    async fn write_beside(&self, beside: Beside<'_>) -> Result<(), ApiError> {
        bootstrap::write_secret(beside).await
    }

    async fn read_beside(
        &self,
        api: &Api,
        object: &Json,
        private: &Private,
        state: &mut Value,
    ) -> Result<Private, ApiError> {
        bootstrap::read(api, object, private, state).await
    }
}

fn check_disks(config: &Value) -> Vec<Diagnostic> {
    let disks = config.get("disks");
    let boots: Vec<&Value> = disks.elements().iter().map(|disk| disk.get("boot")).collect();
    if disks.is_unknown() || boots.iter().any(|boot| boot.is_unknown()) {
        return Vec::new();
    }
    let booting: Vec<usize> =
        boots.iter().enumerate().filter(|(_, boot)| boot.as_bool() == Some(true)).map(|(i, _)| i).collect();
    match booting.as_slice() {
        [_] => Vec::new(),
        [] if disks.is_null() => Vec::new(),
        [] => {
            let detail = "Exactly one disk must have boot = true: the one the VM starts from.";
            vec![Diagnostic::error("No boot disk", detail).at("disks")]
        }
        [_, second, ..] => {
            let detail = format!("{} disks have boot = true; exactly one may.", booting.len());
            let path = AttributePath::root("disks").index(*second).attribute("boot");
            vec![Diagnostic::error("More than one boot disk", detail).at(path)]
        }
    }
}

fn check_public_ips(config: &Value) -> Vec<Diagnostic> {
    let mut seen = std::collections::BTreeSet::new();
    let mut found = Vec::new();
    for (i, interface) in config.get("network_interfaces").elements().iter().enumerate() {
        if let Some(name) = interface.get("public_ip").as_str()
            && !seen.insert(name.to_owned())
        {
            let path = AttributePath::root("network_interfaces").index(i).attribute("public_ip");
            let detail = format!(
                "The public address {name:?} is on another interface of this VM already; it can be on one only."
            );
            found.push(Diagnostic::error("A public address on two interfaces", detail).at(path));
        }
    }
    found
}

/// An interface's network, MAC and address are its identity: another one is another interface.
fn refuse_other_identities(change: &mut PlannedChange<'_>) {
    if change.is_create() || !change.replace.is_empty() {
        return;
    }
    let fixed = ["network", "mac_address", "address"];
    let refused = change.changes.iter().filter_map(|change| {
        let path = change.path.to_string();
        let name = path.rsplit_once("].").filter(|(list, _)| list.starts_with("network_interfaces["))?.1;
        fixed.contains(&name).then(|| {
            let detail = format!(
                "{name} cannot change on an existing interface. Give the interface another name: then it is taken away and \
                 another one takes its place at the next power cycle."
            );
            Diagnostic::error(format!("{name} of an interface cannot change"), detail).at(change.path.clone())
        })
    });
    let refused: Vec<Diagnostic> = refused.collect();
    change.diagnostics.extend(refused);
}
