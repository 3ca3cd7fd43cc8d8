//! `berth start`, `stop`, `restart`, `pause` and `suspend`: changes the declared power of VMs, and waits until they have it; and that of groups.

mod groups;

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use berth_agent::TypedApi;
use berth_api::{ConditionType, Power, Reason, VM, VMGroup, VMState, VMStatus, condition, restart_token};
use kube::{
    Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{connect, outage::Outage, resources};
use crate::{cli::PowerOptions, one_connection::client_of};

/// How often a VM is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The field manager of the commands.
const MANAGER: &str = "berth";

/// The command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Start,
    Stop,
    Restart,
    Pause,
    Suspend,
}

/// The state of a VM that is awaited.
#[derive(Debug)]
struct Awaited {
    name: String,
    /// The restart token that its guest is to be started with.
    token: Option<String>,
}

/// Changes the VMs, and waits for all of them.
///
/// *Errors:* a VM does not exist; the control plane refuses the change; a VM does not reach the state in time, or is stalled.
pub(super) async fn run(verb: Verb, options: PowerOptions) -> anyhow::Result<()> {
    let site = &options.site;
    let client = client_of(connect::admin(&site.connection, &site.state.state_dir).await?)?;
    Box::pin(act(client, verb, &options)).await
}

async fn act(client: Client, verb: Verb, options: &PowerOptions) -> anyhow::Result<()> {
    let site = &options.site;
    let namespace = resources::checked(&site.namespace)?;
    let vms: TypedApi<VM> = TypedApi::namespaced(client.clone(), namespace);
    let of_groups: TypedApi<VMGroup> = TypedApi::namespaced(client, namespace);
    let end = Instant::now().checked_add(options.timeout.0).context("--timeout is too long")?;
    // All are found before one is changed: after a mistake in a name the command is repeated, and would restart the others again.
    let (mut found, mut found_groups) = (Vec::new(), Vec::new());
    for name in &options.vms {
        match name.strip_prefix(groups::PREFIX) {
            Some(group) => found_groups.push(groups::find(&of_groups, verb, group).await?),
            None => found.push(find(&vms, namespace, name).await?),
        }
    }
    let mut awaited = Vec::new();
    for vm in &found {
        awaited.push(declare(&vms, verb, vm).await?);
    }
    for (group, power) in &found_groups {
        groups::declare(&of_groups, group, *power).await?;
    }
    if options.no_wait {
        return Ok(());
    }
    for one in &awaited {
        Box::pin(wait(&vms, verb, one, end)).await?;
    }
    for (group, _) in &found_groups {
        Box::pin(groups::wait(&of_groups, &group.name_any(), end)).await?;
    }
    Ok(())
}

/// Returns the VM of this name.
pub(super) async fn find(vms: &TypedApi<VM>, namespace: &str, name: &str) -> anyhow::Result<VM> {
    resources::checked(name)?;
    let found = vms.get_opt(name).await.with_context(|| format!("reading VM {name}"))?;
    found.with_context(|| format!("there is no VM {name} in namespace {namespace} (see -n)"))
}

async fn declare(vms: &TypedApi<VM>, verb: Verb, vm: &VM) -> anyhow::Result<Awaited> {
    let name = vm.name_any();
    let change = change(verb, vm);
    let token = change.as_ref().and_then(|spec| spec["restartToken"].as_str()).map(str::to_owned);
    let Some(spec) = change else { return Ok(Awaited { name, token }) };
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({ "spec": spec }));
    vms.patch(&name, &params, &patch).await.with_context(|| format!("changing VM {name}"))?;
    if let Some(manager) = declared_by(vm).filter(|_| token.is_none()) {
        notice!("VM {name}: {manager} declares its power, and changes it back when it is applied again");
    }
    Ok(Awaited { name, token })
}

/// Returns the change of the spec; None if the VM declares it already.
fn change(verb: Verb, vm: &VM) -> Option<Value> {
    let power = match verb {
        Verb::Start if vm.spec.power == Power::Running => return has_ended(vm).then(|| another_token(vm)),
        Verb::Start => Power::Running,
        Verb::Restart => return Some(another_token(vm)),
        Verb::Stop => Power::Stopped,
        Verb::Pause => Power::Paused,
        Verb::Suspend => Power::Suspended,
    };
    (vm.spec.power != power).then(|| json!({"power": power.as_str()}))
}

/// Whether the guest has ended by itself, and its restart policy leaves it off for now.
pub(super) fn has_ended(vm: &VM) -> bool {
    let conditions = vm.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let ready = condition::find(conditions, ConditionType::Ready.as_str());
    ready.is_some_and(|ready| Reason::OF_ENDED_GUESTS.iter().any(|reason| ready.reason == reason.as_str()))
}

pub(super) fn another_token(vm: &VM) -> Value {
    let token = vm.spec.restart_token.as_deref().unwrap_or_default();
    let version = vm.resource_version().unwrap_or_default();
    json!({"restartToken": restart_token::another(token, &vm.uid().unwrap_or_default(), &version)})
}

/// Returns the configuration that declares the power of a VM or group, by its field manager. A resource of Terraform always does.
fn declared_by(object: &impl ResourceExt) -> Option<String> {
    let mut appliers =
        object.managed_fields().iter().filter(|entry| entry.operation.as_deref() == Some("Apply"));
    let declares = appliers.find(|entry| {
        let owns_power =
            entry.fields_v1.as_ref().is_some_and(|fields| fields.0.pointer("/f:spec/f:power").is_some());
        owns_power || entry.manager.as_deref().is_some_and(|manager| manager.starts_with("terraform:"))
    });
    declares.and_then(|entry| entry.manager.clone())
}

async fn wait(vms: &TypedApi<VM>, verb: Verb, awaited: &Awaited, end: Instant) -> anyhow::Result<()> {
    let name = &awaited.name;
    let (mut shown, outage) = (None, Outage::default());
    loop {
        let read = vms.get_opt(name).await.with_context(|| format!("reading VM {name}"));
        if let Some(found) = outage.answer(read)? {
            let Some(vm) = found else { bail!("VM {name} was deleted") };
            let state = vm.status.as_ref().and_then(|status| status.state);
            if shown != state {
                let word = state.map_or_else(|| "Pending".to_owned(), |state| format!("{state:?}"));
                notice!("VM {name}: {word}");
                shown = state;
            }
            if is_done(verb, &vm, awaited.token.as_deref()) {
                return Ok(());
            }
            if let Some(why) = stalled(&vm) {
                bail!("VM {name} is stalled: {why}");
            }
        }
        if Instant::now() >= end {
            bail!(
                "VM {name} has not reached the state within --timeout: `berth why vm/{name}` names the cause. The change stays declared"
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Returns the status if it is about the present spec.
fn current(vm: &VM) -> Option<&VMStatus> {
    vm.status.as_ref().filter(|status| Some(status.observed_generation) == vm.metadata.generation)
}

fn is_done(verb: Verb, vm: &VM, token: Option<&str>) -> bool {
    let Some(status) = current(vm) else { return false };
    // Set at the start that followed the request.
    let is_started = token.is_none() || status.restart_token.as_deref() == token;
    match verb {
        Verb::Start | Verb::Restart => status.state == Some(VMState::Running) && is_started,
        Verb::Stop => status.process.is_none() && status.state != Some(VMState::Stopping),
        Verb::Pause => status.state == Some(VMState::Paused),
        Verb::Suspend => status.state == Some(VMState::Suspended),
    }
}

/// Returns why the VM does not go on without a person.
fn stalled(vm: &VM) -> Option<String> {
    let stalled = condition::find(&current(vm)?.conditions, ConditionType::Stalled.as_str())?;
    (stalled.status == "True").then(|| format!("{} ({})", stalled.message, stalled.reason))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{
        cli::{Cli, Command},
        commands::fake::control_plane,
    };

    #[tokio::test]
    async fn no_vm_is_changed_if_one_of_the_names_is_wrong() {
        let web = r#"{"apiVersion": "berth.dev/v1alpha1", "kind": "VM",
            "metadata": {"name": "web", "uid": "u", "resourceVersion": "7", "generation": 3},
            "spec": {"power": "Running", "disks": [{"name": "root", "boot": true}]}}"#;
        let (client, changes) = control_plane(vec![("web", web)]);
        let restart = async |names: &[&str]| {
            let words = ["berth", "restart", "--no-wait"].iter().chain(names);
            let Command::Restart(options) = Cli::try_parse_from(words).expect("it parses").command else {
                panic!("it is restart")
            };
            Box::pin(act(client.clone(), Verb::Restart, &options)).await
        };
        for wrong in ["typo", "vmgroup/typo", "vms/web", "web?x"] {
            assert!(restart(&["web", wrong]).await.is_err(), "{wrong}");
            assert_eq!(changes.all(), [""; 0], "{wrong}");
        }
        let elsewhere = restart(&["web", "-n", "shop?"]).await.expect_err("no namespace").to_string();
        assert!(elsewhere.contains("\"shop?\" is not the name"), "{elsewhere}");
        assert_eq!(changes.all(), [""; 0]);
        restart(&["web"]).await.expect("it is restarted");
        assert_eq!(changes.all(), ["PATCH /apis/berth.dev/v1alpha1/namespaces/default/vms/web"]);
    }

    fn vm(power: &str, state: &str, ready: &str) -> VM {
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": ready, "message": "it ended", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "VM",
            "metadata": {"name": "web", "uid": "u", "resourceVersion": "7", "generation": 3},
            "spec": {"power": power, "restartToken": "mine", "disks": [{"name": "root", "boot": true}]},
            "status": {"state": state, "observedGeneration": 3, "restartToken": "mine", "conditions": [condition("Ready", "False")]},
        }))
        .expect("a VM")
    }

    #[test]
    fn each_command_declares_its_power_once() {
        let stopped = vm("Stopped", "Stopped", "Stopped");
        for (verb, power) in [(Verb::Start, "Running"), (Verb::Pause, "Paused"), (Verb::Suspend, "Suspended")]
        {
            assert_eq!(change(verb, &stopped), Some(json!({"power": power})));
            assert_eq!(change(verb, &vm(power, "Pending", "Bound")), None);
        }
        assert_eq!(change(Verb::Stop, &stopped), None);
    }

    #[test]
    fn a_restart_keeps_the_declared_token_and_starts_a_guest_that_has_ended() {
        let running = vm("Running", "Running", "Running");
        let token = change(Verb::Restart, &running).expect("a change")["restartToken"].clone();
        let token = token.as_str().expect("a token");
        assert_eq!(restart_token::split(token).0, Some("mine"));
        assert_eq!(change(Verb::Start, &running), None);
        for reason in ["GuestEnded", "CrashLoop", "OutOfMemory"] {
            let ended = change(Verb::Start, &vm("Running", "Stopped", reason)).expect("a change");
            assert_eq!(ended["restartToken"], token);
        }
        assert_eq!(change(Verb::Start, &vm("Running", "Stopped", "PowerOnHeld")), None);
        assert!(is_done(Verb::Start, &running, None) && !is_done(Verb::Restart, &running, Some(token)));
    }

    #[test]
    fn a_status_of_an_earlier_spec_ends_no_wait() {
        let mut paused = vm("Paused", "Paused", "Paused");
        assert!(is_done(Verb::Pause, &paused, None) && !is_done(Verb::Start, &paused, None));
        paused.metadata.generation = Some(4);
        assert!(!is_done(Verb::Pause, &paused, None));
        let stopping = vm("Stopped", "Stopping", "Stopping");
        assert!(!is_done(Verb::Stop, &stopping, None));
        assert!(is_done(Verb::Stop, &vm("Stopped", "Stopped", "Stopped"), None));
    }

    #[test]
    fn the_configuration_that_changes_the_power_back_is_named() {
        let mut declared = vm("Running", "Running", "Running");
        assert_eq!(declared_by(&declared), None);
        declared.metadata.managed_fields = serde_json::from_value(json!([
            {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:power": {}}}},
            {"manager": "flux", "operation": "Apply", "fieldsV1": {"f:spec": {"f:power": {}}}},
        ]))
        .expect("managers");
        assert_eq!(declared_by(&declared).as_deref(), Some("flux"));
    }
}
