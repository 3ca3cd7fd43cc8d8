//! Placement constraints: read when a VM is placed. A VM that is placed moves only where it declares that, at its next power cycle.

use berth_api::{Power, placement_group::HOSTNAME_LABEL};
use serde_json::Value as Json;
use tfplugin6::{AttributePath, CancellationToken, Diagnostic, Value};

use crate::{
    api::{Address, Api, RetryLimit},
    change::PlannedChange,
    field::{Effect, Field, Shape, declared_power},
    form::Form,
};

use super::restart;

/// The time limit for reading a host's labels, in seconds.
const READ_SECONDS: u64 = 2;

/// The rules about the hosts of other VMs.
pub(super) fn affinity() -> Field {
    let fields = vec![
        Field::spec("name", Shape::Text(Form::Name)).required(),
        Field::spec("vm_selector", Shape::TextMap).required(),
        Field::spec("strategy", Shape::Text(Form::Any)).default("spread"),
        Field::spec("enforcement", Shape::Text(Form::Any)).default("required"),
        Field::spec("topology_key", Shape::Text(Form::LabelKey)).default(HOSTNAME_LABEL),
    ];
    Field::spec("affinity", Shape::Keyed(fields))
}

/// Refuses a rule that selects VMs by no label.
pub(super) fn check(config: &Value) -> Vec<Diagnostic> {
    let rules = config.get("placement").get("affinity").elements().iter().enumerate();
    let empty =
        rules.filter(|(_, rule)| rule.get("vm_selector").as_map().is_some_and(|labels| labels.is_empty()));
    let refuse = |(number, _)| {
        let path = AttributePath::root("placement").attribute("affinity").index(number);
        let path = path.attribute("vm_selector");
        let detail = format!("{path}: name one label at least, which the other VMs have.");
        Diagnostic::error("Invalid selector", detail).at(path)
    };
    empty.map(refuse).collect()
}

/// Applies the rules that do not need the control plane: a change that the VM's host satisfies is live; another host is refused, unless the
/// VM moves when it is stopped.
pub(super) fn refine(change: &mut PlannedChange<'_>) {
    if change.is_create() || !change.replace.is_empty() {
        return;
    }
    let bound = bound_host(change.prior);
    let (was, is) = (change.prior.get("placement"), change.planned.get("placement"));
    let wanted = is.get("host").clone();
    let only_less = is_subset(is.get("host_selector"), was.get("host_selector"));
    let policy = is.get("move_policy").as_str();
    let (moves, moves_live) = (policy == Some("WhenStopped"), policy == Some("Live"));
    let mut refused = None;
    for change in change.changes.iter_mut().filter(|change| change.effect == Effect::Placement) {
        let fits = match leaf(&change.path) {
            _ if bound.is_none() => true,
            Some("host") => wanted.is_null() || wanted.as_str() == bound.as_deref(),
            _ => only_less,
        };
        // One that cannot move while it runs stays until its next stop: nothing stops it for that.
        if fits || moves_live {
            change.effect = Effect::Live;
        } else if moves {
            // Whether it has to move for other labels is not known here; a power cycle that was not needed leaves it where it is.
            change.effect = Effect::PowerCycle;
        } else if leaf(&change.path) == Some("host") && wanted.as_str().is_some() {
            refused = Some(change.path.clone());
        }
    }
    if let (Some(path), Some(bound)) = (refused, bound) {
        let detail = format!(
            "A VM stays on the host where it was placed, also when it is stopped and started: this one is on {bound}. Declare \
             that host or none, placement.move_policy = \"WhenStopped\" to have it moved at its next power cycle, or make another \
             VM: terraform apply -replace=ADDRESS."
        );
        change.refuse("A placed VM does not move to another host", detail, path);
    }
    let pending = change.prior.get("pending_power_cycle").elements();
    let is_to_move = pending.iter().any(|name| name.as_str() == Some("placement"));
    if change.is_update() && (moves || moves_live || is_to_move) {
        // The update may stop or restart it, or it moves while it runs.
        change.planned.set("host", Value::UNKNOWN);
    }
}

/// Applies the rules that need the hosts, and the labels of the VM's host.
pub(super) async fn look(api: &Api, change: &mut PlannedChange<'_>) {
    look_for_live_moves(api, change).await;
    let waits = |path: &AttributePath| leaf(path) == Some("host_selector");
    let path = change.with_effect(Effect::Placement).find(|change| waits(&change.path));
    let (Some(path), Some(bound)) = (path.map(|change| change.path.clone()), bound_host(change.prior)) else {
        return;
    };
    let selector = change.planned.get("placement").get("host_selector").clone();
    if change.is_create() || !change.replace.is_empty() || !selector.is_wholly_known() {
        return;
    }
    let retry_limit = RetryLimit::seconds(READ_SECONDS, &CancellationToken::new());
    let Ok(Some(host)) = api.get(&Address::cluster("hosts", &bound), &retry_limit).await else { return };
    let labels = host.pointer("/metadata/labels");
    let has = |name: &str, value: &Value| {
        labels.and_then(|labels| labels.get(name)).and_then(Json::as_str) == value.as_str()
    };
    let lacks = selector.as_map().into_iter().flatten().find(|(name, value)| !has(name, value));
    let Some((name, value)) = lacks else {
        let changes = change.changes.iter_mut().filter(|change| waits(&change.path));
        changes.for_each(|change| change.effect = Effect::Live);
        return;
    };
    let detail = format!(
        "A VM stays on the host where it was placed, also when it is stopped and started: this one is on {bound}, which does \
         not have the label {name} = {:?}. Declare a selector that this host fits, placement.move_policy = \"WhenStopped\" to \
         have it moved at its next power cycle, or make another VM: terraform apply -replace=ADDRESS.",
        value.as_str().unwrap_or_default()
    );
    change.refuse("A placed VM does not move to another host", detail, path);
}

/// With `move_policy` `Live`, a VM moves while it runs only between hosts that both offer that, and else at its next stop.
async fn look_for_live_moves(api: &Api, change: &mut PlannedChange<'_>) {
    let placement = change.planned.get("placement").clone();
    let is_of_host = |path: &AttributePath| {
        ["placement.host", "placement.host_selector"].contains(&path.to_string().as_str())
    };
    let is_changed = change.changes.iter().any(|change| is_of_host(&change.path));
    let is_live = placement.get("move_policy").as_str() == Some("Live") && placement.is_wholly_known();
    let Some(bound) = bound_host(change.prior).filter(|_| is_changed && is_live) else { return };
    // A VM that is off moves at once.
    let is_off = declared_power(change.prior) == Power::Stopped;
    if change.is_applied || is_off || !change.is_update() || !change.replace.is_empty() {
        return;
    }
    let run = change.run.clone();
    let Some(hosts) = run.hosts(api).await else { return };
    let name = |host: &Json| host.pointer("/metadata/name").and_then(Json::as_str).map(str::to_owned);
    let wanted = placement.get("host").as_str();
    let suits = |host: &Json| {
        let is_named = wanted.is_none() || name(host).as_deref() == wanted;
        is_named && has_labels(host, placement.get("host_selector"))
    };
    let offers = |host: &Json| host.pointer("/status/liveMigration").and_then(Json::as_bool) == Some(true);
    let is_here = |host: &&Json| name(host).as_deref() == Some(bound.as_str());
    let here = hosts.iter().find(is_here);
    let moves_live = here.is_some_and(offers)
        && hosts.iter().filter(|host| !is_here(host)).any(|host| suits(host) && offers(host));
    if moves_live || here.is_some_and(suits) {
        return;
    }
    let is_restarted = change.diagnostics.iter().any(|warning| warning.summary == restart::RESTART);
    let effect = if is_restarted { Effect::Reboot } else { Effect::PowerCycle };
    for change in change.changes.iter_mut().filter(|change| is_of_host(&change.path)) {
        change.effect = effect;
    }
    let path = AttributePath::root("placement").attribute("move_policy");
    let detail = format!(
        "{path} is \"Live\", and the VM does not move while it runs: its host {bound} and the other one do not both offer live migration \
         (status.liveMigration of the Hosts). It moves when it is next stopped."
    );
    change.diagnostics.push(Diagnostic::warning("The hosts do not offer live migration", detail).at(path));
    restart::restart_for_waiting(change);
}

fn has_labels(host: &Json, selector: &Value) -> bool {
    let labels = host.pointer("/metadata/labels");
    let label = |name: &str| labels.and_then(|labels| labels.get(name)).and_then(Json::as_str);
    selector.as_map().into_iter().flatten().all(|(name, value)| label(name) == value.as_str())
}

fn bound_host(prior: &Value) -> Option<String> {
    prior.get("host").as_str().filter(|host| !host.is_empty()).map(str::to_owned)
}

fn is_subset(less: &Value, more: &Value) -> bool {
    !less.is_unknown() && less.as_map().into_iter().flatten().all(|(name, value)| more.get(name) == value)
}

fn leaf(path: &AttributePath) -> Option<&str> {
    match path.steps().last() {
        Some(tfplugin6::Step::Attribute(name)) => Some(name),
        _ => None,
    }
}
