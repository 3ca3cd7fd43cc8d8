//! `ports` of `berth_public_ip`, and the ports that are given out.

use berth_api::public_ip::{parse_duration, parse_port_range};
use serde_json::{Map, Value as Json, json};
use tfplugin6::{AttributePath, Diagnostic, Value};

use crate::{
    change::PlannedChange,
    field::{Field, Presence, Shape},
    form::Form,
    mapping::find_named,
};

/// The computed attribute with the port of each entry.
const ASSIGNED: &str = "assigned_ports";

/// The field with the port of each entry, by its name.
pub(super) fn assigned_field() -> Field {
    let text = "The port of the address that each entry of `ports` has, by its name: the declared one, or the one that was given out: \
                `berth_public_ip.web.assigned_ports[\"ssh\"]`. Plans show a port as known after apply only for entries that are new.";
    Field { shape: Shape::TextMap, ..Field::observed(ASSIGNED, "/status/assignedPorts", text) }
}

/// Adds the ports of the entries to the view of a PublicIP.
pub(super) fn view(object: &Json, view: &mut Json) {
    let list = |pointer| object.pointer(pointer).and_then(Json::as_array).into_iter().flatten();
    let port = |entry: &Json| {
        let is_its = |given: &&Json| given["name"] == entry["name"];
        let declared = entry["port"].as_i64();
        let number = declared.or_else(|| list("/status/ports").find(is_its)?["port"].as_i64())?;
        Some((entry["name"].as_str()?.to_owned(), Json::from(number.to_string())))
    };
    let assigned: Map<String, Json> = list("/spec/ports").filter_map(port).collect();
    let Some(view) = view.as_object_mut() else { return };
    if let Some(status) = view.entry("status").or_insert_with(|| json!({})).as_object_mut() {
        status.insert("assignedPorts".into(), assigned.into());
    }
}

/// Plans the port of each entry: the declared one, the one that an entry of that name and protocol has, or an unknown one.
pub(super) fn refine(change: &mut PlannedChange<'_>) {
    if !change.is_create() && change.changes.is_empty() {
        return;
    }
    let ports = change.planned.get("ports").clone();
    let is_named = |entry: &Value| !entry.is_unknown() && entry.get("name").as_str().is_some();
    if ports.is_unknown() || !ports.elements().iter().all(is_named) {
        change.planned.set(ASSIGNED, Value::UNKNOWN);
        return;
    }
    // A replacement is another object.
    let is_kept = !change.is_create() && change.replace.is_empty();
    let before = if is_kept { change.prior.clone() } else { Value::Null };
    let planned = |entry: &Value| {
        let name = entry.get("name").as_str().unwrap_or_default().to_owned();
        let port = match (entry.get("port"), kept(&before, entry)) {
            (declared, _) if declared.is_unknown() => Value::UNKNOWN,
            (declared, kept) => match (declared.as_i64(), kept) {
                (Some(declared), _) => Value::from(declared.to_string()),
                (None, Some(kept)) => Value::from(kept.to_owned()),
                (None, None) => Value::UNKNOWN,
            },
        };
        (name, port)
    };
    let assigned = Value::object(ports.elements().iter().map(planned));
    change.planned.set(ASSIGNED, assigned);
    for (path, detail) in taken(&before, &ports) {
        change.refuse("The port is allocated to another entry", format!("{path}: {detail}"), path);
    }
}

/// The port that an entry of this name and protocol has in the state.
fn kept<'a>(before: &'a Value, entry: &Value) -> Option<&'a str> {
    let was = find_named(before.get("ports").elements(), entry)?;
    let is_same = was.get("protocol") == entry.get("protocol");
    before.get(ASSIGNED).get(entry.get("name").as_str()?).as_str().filter(|_| is_same)
}

/// The declared ports that are given out to other entries, which keep them.
fn taken(before: &Value, ports: &Value) -> Vec<(AttributePath, String)> {
    let mut found = Vec::new();
    for (i, entry) in ports.elements().iter().enumerate() {
        let Some(declared) = entry.get("port").as_i64() else { continue };
        let has_it = |other: &&Value| {
            other.get("port").is_null()
                && other.get("protocol") == entry.get("protocol")
                && kept(before, other) == Some(declared.to_string().as_str())
        };
        if let Some(other) = ports.elements().iter().find(has_it) {
            let detail = format!(
                "port {declared} is allocated to the entry {:?}, which keeps it: declare another port.",
                other.get("name").as_str().unwrap_or_default()
            );
            found.push((AttributePath::root("ports").index(i).attribute("port"), detail));
        }
    }
    found
}

/// The fields of an entry of `ports`.
pub(super) fn fields() -> Vec<Field> {
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
            .text("Name of the port within its list. Default `port0`, `port1`, … by position. An entry without `port` needs one: the port that is given out stays with the name, wherever the entry is in the list."),
        Field::spec("port", Shape::Integer),
        Field::spec("target_port", Shape::Integer),
        Field::spec("protocol", Shape::Text(Form::Any)).default("tcp"),
        Field::spec("targets", Shape::TextList(Form::Name)).required(),
        Field::spec("session_affinity", Shape::Text(Form::Any)).default("None"),
        Field::spec("health_check", Shape::Object(health_check)),
    ]
}

/// Refuses entries that the control plane would refuse.
pub(super) fn check(ports: &Value) -> Vec<Diagnostic> {
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
                "{path}: {protocol} {number} is declared in ports[{before}] too: each port of a protocol can be declared once. Remove or change one of them."
            );
            found.push(Diagnostic::error("Duplicate port", detail).at(path));
        }
        let targets = port.get("targets").elements();
        let twice = targets
            .iter()
            .enumerate()
            .find(|(n, target)| target.as_str().is_some() && targets[..*n].contains(target));
        if let Some((n, target)) = twice {
            let path = at.clone().attribute("targets").index(n);
            let detail = format!(
                "{path}: {:?} is named twice: remove one of them.",
                target.as_str().unwrap_or_default()
            );
            found.push(Diagnostic::error("Duplicate target", detail).at(path));
        }
        found.extend(check_without_port(&at, port));
        found.extend(check_health(&at, port));
    }
    found
}

/// Refuses an entry whose port is to be given out and that lacks what else identifies it, or its destination.
fn check_without_port(at: &AttributePath, entry: &Value) -> Vec<Diagnostic> {
    if entry.is_unknown() || !entry.get("port").is_null() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut refuse = |attribute: &str, detail: &str| {
        let path = at.clone().attribute(attribute);
        found.push(Diagnostic::error("An entry without a port", format!("{path}: {detail}")).at(path));
    };
    if entry.get("name").is_null() {
        refuse("name", "an entry without `port` needs a name, under which it keeps its allocated port.");
    }
    if entry.get("target_port").is_null() {
        refuse("target_port", "an entry without `port` needs `target_port`, the port of the VMs.");
    }
    found
}

/// Refuses a range that is none, or that has fewer ports than entries need.
pub(super) fn check_range(config: &Value) -> Option<Diagnostic> {
    let path = AttributePath::root("port_range");
    // The default has more ports than there can be entries.
    let text = config.get("port_range").as_str()?;
    let Some(range) = parse_port_range(text) else {
        let detail =
            format!("{path}: {text:?} is not a range of ports from 1 to 65535, such as \"30000-32767\".");
        return Some(Diagnostic::error("Invalid port_range", detail).at(path));
    };
    let size = range.end() - range.start() + 1;
    let needs = |protocol: &str| {
        let entries = config.get("ports").elements().iter();
        // An entry of which something is not known yet may be of either protocol, or have a port.
        let needs_one = |entry: &&Value| {
            let (port, of) = (entry.get("port"), entry.get("protocol"));
            port.is_null() && !of.is_unknown() && of.as_str().unwrap_or("tcp") == protocol
        };
        entries.filter(needs_one).count()
    };
    let most = needs("tcp").max(needs("udp"));
    if i64::try_from(most).is_ok_and(|most| most <= size) {
        return None;
    }
    let detail = format!(
        "{path}: the range has {size} ports, and {most} entries of one protocol need one of them. Widen the range, or declare `port` of some entries."
    );
    Some(Diagnostic::error("Too few ports", detail).at(path))
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
        let detail = format!(
            "{path}: a health check of a udp port needs a port, because it connects by TCP: set the TCP port of the targets."
        );
        found.push(Diagnostic::error("A health check without a port", detail).at(path));
    }
    if check.get("type").as_str() == Some("tcp") && check.get("path").as_str().is_some() {
        let path = at("path");
        let detail = format!(
            "{path}: it is for the type \"http\", and the type is \"tcp\": change the type, or leave the path out."
        );
        found.push(Diagnostic::error("path without type \"http\"", detail).at(path));
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
            found.push(Diagnostic::error("Invalid duration", detail).at(path));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_of_the_entries_are_read_by_name() {
        let object = json!({
            "spec": {"ports": [{"name": "ssh", "targetPort": 22}, {"name": "web", "port": 80}, {"name": "new", "targetPort": 1}]},
            "status": {"ports": [{"name": "ssh", "port": 30_017}, {"name": "new"}, {"name": "gone", "port": 30_018}]},
        });
        let mut seen = object.clone();
        view(&object, &mut seen);
        assert_eq!(seen.pointer("/status/assignedPorts"), Some(&json!({"ssh": "30017", "web": "80"})));
    }

    #[test]
    fn without_ports_the_map_is_empty() {
        let mut seen = json!({"spec": {}});
        view(&json!({"spec": {}}), &mut seen);
        assert_eq!(seen.pointer("/status/assignedPorts"), Some(&json!({})));
    }
}
