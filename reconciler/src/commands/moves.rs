//! `berth move`: has VMs moved to another host at their next stop, and waits for that.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use berth_agent::TypedApi;
use berth_api::{
    Binding, ConditionType, Host, Power, VM, VMStatus, condition,
    vm::{MOVE_ANNOTATION, RequestedMove},
};
use kube::{
    Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{connect, outage::Outage, power, resources};
use crate::{cli::MoveOptions, one_connection::client_of};

/// How often a VM is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The field manager of the commands.
const MANAGER: &str = "berth";

/// Requests the moves, and waits for all of them.
///
/// *Errors:* a VM or the Host does not exist; a VM has no host, or has that one; the control plane refuses the change; a VM cannot move, or does
/// not in time.
pub(super) async fn run(options: MoveOptions) -> anyhow::Result<()> {
    let site = &options.site;
    let client = client_of(connect::admin(&site.connection, &site.state.state_dir).await?)?;
    Box::pin(act(client, &options)).await
}

async fn act(client: Client, options: &MoveOptions) -> anyhow::Result<()> {
    let site = &options.site;
    if let Some(to) = &options.to {
        let hosts: TypedApi<Host> = TypedApi::all(client.clone());
        let found =
            hosts.get_opt(resources::checked(to)?).await.with_context(|| format!("reading Host {to}"))?;
        found.with_context(|| format!("there is no Host {to}"))?;
    }
    let namespace = resources::checked(&site.namespace)?;
    let vms: TypedApi<VM> = TypedApi::namespaced(client, namespace);
    let end = Instant::now().checked_add(options.timeout.0).context("--timeout is too long")?;
    // All are looked at before one is changed: after a mistake the command is repeated, and would restart the others again.
    let mut changes = Vec::new();
    for name in &options.vms {
        let vm = power::find(&vms, namespace, name).await?;
        changes.push((name, change(name, &vm, options)?));
    }
    let mut requested = Vec::new();
    for (name, (left, change)) in changes {
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        vms.patch(name, &params, &Patch::Merge(change))
            .await
            .with_context(|| format!("changing VM {name}"))?;
        requested.extend(left.map(|left| (name, left)));
    }
    if options.no_wait {
        return Ok(());
    }
    for (name, left) in requested {
        Box::pin(wait(&vms, name, &left, options.restart, end)).await?;
    }
    Ok(())
}

/// Returns the binding that the VM leaves, if it is to, and the change of the VM.
fn change(name: &str, vm: &VM, options: &MoveOptions) -> anyhow::Result<(Option<Binding>, Value)> {
    if options.cancel {
        return Ok((None, json!({"metadata": {"annotations": {MOVE_ANNOTATION: null}}})));
    }
    let binding = vm.status.as_ref().and_then(|status| status.binding.as_ref());
    let binding = binding.with_context(|| format!("VM {name} has no host yet, which it could leave"))?;
    if options.to.as_ref() == Some(&binding.host) {
        bail!("VM {name} is on host {} already", binding.host);
    }
    let requested = RequestedMove { epoch: binding.epoch, host: options.to.clone(), live: options.live };
    let mut change = json!({"metadata": {"annotations": {MOVE_ANNOTATION: requested.to_text()}}});
    if options.restart {
        if vm.spec.power != Power::Running {
            bail!("VM {name} is not declared Running: leave out --restart");
        }
        change["spec"] = power::another_token(vm);
    }
    Ok((Some(binding.clone()), change))
}

async fn wait(
    vms: &TypedApi<VM>,
    name: &str,
    left: &Binding,
    restarts: bool,
    end: Instant,
) -> anyhow::Result<()> {
    let outage = Outage::default();
    loop {
        // A condition of an earlier request is replaced meanwhile.
        tokio::time::sleep(LOOK_EVERY).await;
        let read = vms.get_opt(name).await.with_context(|| format!("reading VM {name}"));
        if let Some(found) = outage.answer(read)? {
            let Some(vm) = found else { bail!("VM {name} was deleted") };
            match progress(&vm, left, restarts) {
                Progress::Waits => {}
                Progress::Later => {
                    notice!("VM {name} moves at its next stop: stop it, or restart it");
                    return Ok(());
                }
                Progress::Done(host) => {
                    notice!("VM {name} is on host {host}");
                    return Ok(());
                }
                Progress::Refused(why) => bail!("VM {name} does not move: {why}"),
            }
        }
        if Instant::now() >= end {
            bail!("VM {name} has not moved in time: `berth why vm/{name}` says what it waits for");
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Waits,
    /// It moves when it is stopped.
    Later,
    /// On this host.
    Done(String),
    Refused(String),
}

/// Returns how far the move is. `restarts`: whether the VM is restarted for it.
fn progress(vm: &VM, left: &Binding, restarts: bool) -> Progress {
    let Some(status) = &vm.status else { return Progress::Waits };
    let is_true = |kind: ConditionType| condition::is_true(&status.conditions, kind);
    match status.binding.as_ref().filter(|binding| binding.epoch > left.epoch) {
        Some(binding) if binding.host == left.host => {
            return Progress::Refused(format!("it is on host {} again", binding.host));
        }
        Some(binding) if is_true(ConditionType::Ready) => return Progress::Done(binding.host.clone()),
        Some(_) => return Progress::Waits,
        None => {}
    }
    let movable = condition::find(&status.conditions, ConditionType::Movable.as_str());
    match movable {
        Some(movable) if movable.status == "False" => Progress::Refused(movable.message.clone()),
        Some(_) if status.live_move().is_some() => Progress::Waits,
        Some(_) if (runs(status) || power::has_ended(vm)) && !restarts => Progress::Later,
        _ => Progress::Waits,
    }
}

fn runs(status: &VMStatus) -> bool {
    status.process.is_some()
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
    async fn no_vm_moves_if_one_of_them_cannot() {
        let web = r#"{"apiVersion": "berth.dev/v1alpha1", "kind": "VM",
            "metadata": {"name": "web", "uid": "u", "resourceVersion": "7"},
            "spec": {"power": "Running", "disks": [{"name": "root", "boot": true}]},
            "status": {"binding": {"host": "a", "epoch": 3}}}"#;
        let unbound = r#"{"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": "new"},
            "spec": {"power": "Running", "disks": [{"name": "root", "boot": true}]}}"#;
        let (client, changes) = control_plane(vec![("web", web), ("new", unbound)]);
        let restart = async |names: &[&str]| {
            let words = ["berth", "move", "--restart", "--no-wait"].iter().chain(names);
            let Command::Move(options) = Cli::try_parse_from(words).expect("it parses").command else {
                panic!("it is move")
            };
            Box::pin(act(client.clone(), &options)).await
        };
        for wrong in ["typo", "new"] {
            assert!(restart(&["web", wrong]).await.is_err(), "{wrong}");
            assert_eq!(changes.all(), [""; 0], "{wrong}");
        }
        restart(&["web"]).await.expect("it is requested");
        assert_eq!(changes.all().len(), 1);
    }

    fn vm(status: Value) -> VM {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "VM",
            "metadata": {"name": "web", "uid": "u", "resourceVersion": "7"},
            "spec": {"power": "Running", "disks": [{"name": "root", "boot": true}]}, "status": status,
        }))
        .expect("a VM")
    }

    fn condition(kind: &str, status: &str) -> Value {
        json!([{"type": kind, "status": status, "reason": "Moving", "message": "why", "lastTransitionTime": "2026-01-01T00:00:00Z"}])
    }

    #[test]
    fn a_running_vm_moves_later_and_one_with_another_binding_is_there() {
        let process = json!({"pid": 1, "startedAt": "2026-01-01T00:00:00Z"});
        let bound = |epoch: i64, conditions: Value, process: &Value| {
            vm(
                json!({"binding": {"host": "b", "epoch": epoch}, "conditions": conditions, "process": process}),
            )
        };
        let left = Binding { host: "a".to_owned(), epoch: 3 };
        let movable = bound(3, condition("Movable", "True"), &process);
        assert_eq!(progress(&movable, &left, false), Progress::Later);
        assert_eq!(progress(&movable, &left, true), Progress::Waits);
        let mut live = movable.clone();
        if let Some(status) = &mut live.status {
            let migration = json!({"id": "m-1", "to": "b", "epoch": 3, "phase": "Requested"});
            status.migration = serde_json::from_value(migration).expect("a migration");
        }
        assert_eq!(progress(&live, &left, false), Progress::Waits, "its guest is being sent");
        let refused = bound(3, condition("Movable", "False"), &process);
        assert_eq!(progress(&refused, &left, true), Progress::Refused("why".to_owned()));
        assert_eq!(
            progress(&bound(3, json!([]), &process), &left, false),
            Progress::Waits,
            "not decided yet"
        );
        assert_eq!(
            progress(&bound(4, json!([]), &json!(null)), &left, false),
            Progress::Waits,
            "its disks are taken"
        );
        let there = bound(4, condition("Ready", "True"), &json!(null));
        assert_eq!(progress(&there, &left, false), Progress::Done("b".to_owned()));
        let back = Binding { host: "b".to_owned(), epoch: 3 };
        assert_eq!(progress(&there, &back, false), Progress::Refused("it is on host b again".to_owned()));
    }
}
