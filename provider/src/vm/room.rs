//! Whether a VM can ever be placed: computed in the plan from the Hosts, its size and the group, by the rules of the scheduler
//! for hosts that are up and empty. The scheduler decides; here is only what no waiting would change.

use berth_api::{HostStatus, Quantity, placement_group::HOSTNAME_LABEL};
use serde_json::Value as Json;
use tfplugin6::{AttributePath, CancellationToken, Diagnostic, Value};

use super::size;
use crate::{
    api::{Address, Api, RetryLimit},
    change::PlannedChange,
    references::{CLASS, GROUP, Reference},
};

/// The time limit for reading an object, in seconds.
const READ_SECONDS: u64 = 2;

/// A host as far as placement depends on it.
struct Candidate<'a> {
    name: &'a str,
    labels: &'a Json,
    /// CPUs and bytes of guest memory for one VM; none before the host's first report.
    offers: Option<(i64, u64)>,
}

/// Warns of a VM that no host can ever take.
pub(super) async fn look(api: &Api, change: &mut PlannedChange<'_>) {
    let is_placed_anew = change.is_create() || !change.replace.is_empty();
    if change.is_applied || !is_placed_anew {
        return;
    }
    let run = change.run.clone();
    let Some(hosts) = run.hosts(api).await else { return };
    let hosts: Vec<Candidate<'_>> = hosts.iter().map(candidate).collect();
    if hosts.is_empty() {
        return;
    }
    let placement = change.planned.get("placement").clone();
    if !placement.is_wholly_known() {
        return;
    }
    let group = find(api, change, GROUP, placement.get("group")).await;
    let of_group = group.as_ref().map_or(&Json::Null, selector_of);
    let eligible = eligible(&hosts, &placement, of_group);
    if eligible.is_empty() {
        change.diagnostics.extend(no_such_host(hosts.len(), &placement, of_group));
        return;
    }
    let class = find(api, change, CLASS, change.planned.get("class")).await;
    let class = class.and_then(|class| serde_json::from_value(class["spec"].clone()).ok());
    let warning =
        size::of(&change.planned, class.as_ref()).and_then(|size| too_large(change, size, &eligible));
    change.diagnostics.extend(warning);
    let warning = group.and_then(|group| too_many(change, &group, &eligible));
    change.diagnostics.extend(warning);
}

fn candidate(host: &Json) -> Candidate<'_> {
    let status = host.get("status").cloned().unwrap_or_default();
    let status: HostStatus = serde_json::from_value(status).unwrap_or_default();
    Candidate {
        name: host.pointer("/metadata/name").and_then(Json::as_str).unwrap_or_default(),
        labels: host.pointer("/metadata/labels").unwrap_or(&Json::Null),
        offers: status.offered_to_one_vm(),
    }
}

/// The labels that a group asks of the hosts of its members.
fn selector_of(group: &Json) -> &Json {
    group.pointer("/spec/hostSelector").unwrap_or(&Json::Null)
}

fn eligible<'h, 'a>(
    hosts: &'h [Candidate<'a>],
    placement: &Value,
    of_group: &Json,
) -> Vec<&'h Candidate<'a>> {
    let has = |host: &Candidate<'_>, key: &String, value: &Value| {
        host.labels.get(key).and_then(Json::as_str) == value.as_str()
    };
    let selector = || placement.get("host_selector").as_map().into_iter().flatten();
    let suits_group = |host: &Candidate<'_>| {
        of_group.as_object().into_iter().flatten().all(|(key, value)| host.labels.get(key) == Some(value))
    };
    let fits = |host: &&Candidate<'_>| {
        placement.get("host").as_str().is_none_or(|name| name == host.name)
            && selector().all(|(key, value)| has(host, key, value))
            && suits_group(host)
    };
    hosts.iter().filter(fits).collect()
}

/// A host that is named and missing is a reference, which is checked elsewhere.
fn no_such_host(hosts: usize, placement: &Value, of_group: &Json) -> Option<Diagnostic> {
    let own = placement.get("host_selector").as_map().into_iter().flatten();
    let own: Vec<String> =
        own.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    let of_group = of_group.as_object().into_iter().flatten();
    let of_group = of_group
        .map(|(key, value)| format!("{key}={} of its placement group", value.as_str().unwrap_or_default()));
    let declared_in = if own.is_empty() { "group" } else { "host_selector" };
    let labels: Vec<String> = own.into_iter().chain(of_group).collect();
    if labels.is_empty() {
        return None;
    }
    let path = AttributePath::root("placement").attribute(declared_in);
    let host = placement.get("host").as_str().map(|host| format!(" and the name {host}")).unwrap_or_default();
    let detail = format!(
        "{path}: none of {hosts} hosts has the labels {}{host}. The VM waits until one has.",
        labels.join(", ")
    );
    Some(Diagnostic::warning("No host has these labels", detail).at(path))
}

fn too_large(
    change: &PlannedChange<'_>,
    (cpus, memory): (i64, u64),
    hosts: &[&Candidate<'_>],
) -> Option<Diagnostic> {
    // A host that has not reported may be of any size.
    let offers: Vec<(&str, (i64, u64))> =
        hosts.iter().map(|host| Some((host.name, host.offers?))).collect::<Option<_>>()?;
    if offers.iter().any(|(_, (offered, bytes))| cpus <= *offered && memory <= *bytes) {
        return None;
    }
    let (name, (offered, bytes)) =
        offers.into_iter().max_by_key(|(name, (cpus, memory))| (*memory, *cpus, *name))?;
    let is_own = |name: &&str| !change.planned.get(name).is_null();
    let own = ["memory", "cpus", "cpu_topology"].into_iter().find(is_own);
    let (path, smaller) = match own {
        Some(own) => (AttributePath::root(own), "its size"),
        None => (AttributePath::root("class"), "the class"),
    };
    let detail = format!(
        "{path}: the VM needs {cpus} CPUs and {} of memory, and no host that it may run on is that large: the largest, {name}, \
         offers {offered} CPUs and {} to one VM. It stays stopped until a larger host joins or {smaller} is smaller.",
        Quantity::from_bytes(memory),
        Quantity::from_bytes(bytes >> 20 << 20),
    );
    Some(Diagnostic::warning("No host is large enough", detail).at(path))
}

/// Warns of a required spread group that has more members than there are places.
fn too_many(change: &PlannedChange<'_>, group: &Json, hosts: &[&Candidate<'_>]) -> Option<Diagnostic> {
    let text = |pointer| group.pointer(pointer).and_then(Json::as_str).unwrap_or_default();
    if text("/spec/strategy") != "spread" || text("/spec/enforcement") != "required" {
        return None;
    }
    let key = text("/spec/topologyKey");
    let mut values = std::collections::BTreeSet::new();
    for host in hosts {
        // Every host has this label, with its own name, once its agent has reported.
        let own = (key == HOSTNAME_LABEL).then_some(host.name);
        values.extend(own.or_else(|| host.labels.get(key).and_then(Json::as_str)));
    }
    let namespace = change.planned.get("namespace").as_str()?;
    let name = change.planned.get("placement").get("group").as_str()?;
    // A VM that is replaced is a member already.
    let there = group.pointer("/status/total").and_then(Json::as_u64).unwrap_or_default();
    let place = GROUP.places(namespace, name).into_iter().next()?;
    let added = if change.is_create() && change.private.replaces.is_none() {
        change.run.add_user(&place, change.planned.get("name").as_str()?)
    } else {
        0
    };
    let members = there + added as u64;
    if members <= values.len() as u64 {
        return None;
    }
    let path = AttributePath::root("placement").attribute("group");
    let detail = format!(
        "{path}: placement group {name} keeps its members apart by {key}, of which the hosts have {} different values, and this is \
         member {members}. Members without a place stay stopped until a host is added, another member is removed, or the \
         group's enforcement is \"preferred\".",
        values.len()
    );
    Some(Diagnostic::warning("The placement group is too large", detail).at(path))
}

/// The object of this name, as it is or as the run creates it.
async fn find(api: &Api, change: &PlannedChange<'_>, reference: Reference, name: &Value) -> Option<Json> {
    let namespace = change.planned.get("namespace").as_str()?;
    for at in reference.places(namespace, name.as_str()?) {
        if let Some(planned) = change.run.created(&at) {
            return Some(as_object(&planned));
        }
        if let Some(found) = read(api, &at).await {
            return Some(found);
        }
    }
    None
}

async fn read(api: &Api, at: &Address) -> Option<Json> {
    let retry_limit = RetryLimit::seconds(READ_SECONDS, &CancellationToken::new());
    api.get(at, &retry_limit).await.ok()?
}

/// The planned values that placement depends on, of a class or a group.
fn as_object(planned: &Value) -> Json {
    let selector = planned.get("host_selector").as_map().into_iter().flatten();
    let selector: serde_json::Map<String, Json> =
        selector.filter_map(|(label, value)| Some((label.clone(), Json::from(value.as_str()?)))).collect();
    let text = |name: &str| planned.get(name).as_str();
    serde_json::json!({"spec": {
        "cpus": planned.get("cpus").as_i64(), "memory": text("memory"), "hugePages": text("huge_pages"),
        "dedicatedCpuPlacement": planned.get("dedicated_cpu_placement").as_bool().unwrap_or_default(), "strategy": text("strategy"),
        "enforcement": text("enforcement"), "topologyKey": text("topology_key"), "hostSelector": selector,
    }})
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::private::Private;

    #[test]
    fn a_vm_that_is_replaced_is_a_member_of_its_group_already() {
        let (labels, nothing) = (json!({}), Value::Null);
        let all = ["h1", "h2"].map(|name| Candidate { name, labels: &labels, offers: None });
        let hosts: Vec<&Candidate<'_>> = all.iter().collect();
        let spec = json!({"strategy": "spread", "enforcement": "required", "topologyKey": HOSTNAME_LABEL});
        let group = json!({"spec": spec, "status": {"total": 2}});
        let placement = Value::object([("group", Value::from("g"))]);
        let vm = Value::object([
            ("name", Value::from("a")),
            ("namespace", Value::from("n")),
            ("placement", placement),
        ]);
        let is_warned = |replaces: Option<&str>| {
            let private = Private { replaces: replaces.map(str::to_owned), ..Private::default() };
            let change = PlannedChange::new(&[], &nothing, &vm, vm.clone(), private);
            too_many(&change, &group, &hosts).is_some()
        };
        assert!(is_warned(None), "there is no place for a third member");
        assert!(!is_warned(Some("u1")));
    }
}
