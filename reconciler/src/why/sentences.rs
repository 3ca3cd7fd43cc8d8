//! The sentences about an object and about what it depends on.

use std::fmt::Write as _;

use berth_api::{Reason, VMState};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::references::{items, text};
use super::{Found, Node};

/// Conditions that are written only while something is wrong, with the status `True`.
pub(super) const ABNORMAL_WHILE_TRUE: [&str; 4] =
    ["Orphans", "HostAddresses", "AddressConflict", "GuestFrozen"];
/// Conditions with the reason and message of `Ready`.
const SAME_AS_READY: [&str; 3] = ["Ready", "Reconciling", "Stalled"];
/// The maximum number of events that are shown, the latest ones.
const EVENTS: usize = 5;

/// Returns what the object waits for, as text of several lines.
pub(crate) fn explain(node: &Node, events: &[Value], now: Timestamp) -> String {
    let Found::Object(object) = &node.found else {
        return format!("{} {}.\n", node.name, absence(&node.found));
    };
    let mut out = headline(&node.name, object, now);
    let own = problems(object, now);
    for problem in &own {
        // Writing into a String cannot fail.
        let _ = writeln!(out, "- {problem}");
    }
    let mut below = Vec::new();
    dependencies(node, 0, now, &mut below);
    for line in &below {
        let _ = writeln!(out, "{line}");
    }
    if own.is_empty() && below.is_empty() {
        out.push_str(&all_is_well(node));
    }
    for line in advice(node) {
        let _ = writeln!(out, "What to do: {line}");
    }
    out.push_str(&events_of(events, now));
    out
}

fn headline(name: &str, object: &Value, now: Timestamp) -> String {
    let state = text(object, "/status/state");
    let known: Option<VMState> = serde_json::from_value(object["status"]["state"].clone()).ok();
    let meaning = known.filter(|_| name.starts_with("vm/")).map(VMState::meaning);
    let state = match (state.as_str(), meaning) {
        ("", _) => String::new(),
        (state, Some(meaning)) => format!(", {state}: {}", uncapitalized(meaning)),
        (state, None) => format!(", {state}"),
    };
    let readiness = match condition(object, "Ready") {
        None if object.pointer("/status/conditions").is_none() && object.get("status").is_none() => {
            "has not been looked at yet: do the controllers run?".to_owned()
        }
        None => "has no condition Ready".to_owned(),
        Some(ready) => {
            let word = match ready["status"].as_str() {
                Some("True") => "is ready",
                Some("False") => "is not ready",
                _ => "is in an unknown state",
            };
            format!("{word}{}", since(ready, now))
        }
    };
    format!("{name} {readiness}{state}{}\n", if state.ends_with('.') { "" } else { "." })
}

/// Returns what is wrong with an object, a sentence each, the most important first.
fn problems(object: &Value, now: Timestamp) -> Vec<String> {
    let mut found = Vec::new();
    let deleted: Option<Timestamp> = text(object, "/metadata/deletionTimestamp").parse().ok();
    if let Some(deleted) = deleted {
        let finalizers: Vec<&str> = items(object, "/metadata/finalizers").filter_map(Value::as_str).collect();
        found.push(format!(
            "It is being deleted since {}; {} has to remove what it made first.",
            age(deleted, now),
            finalizers.join(" and ")
        ));
    }
    let ready = condition(object, "Ready").filter(|ready| ready["status"] != "True");
    found.extend(ready.map(|ready| sentence("It is not ready", ready, now)));
    let seen = object.pointer("/status/observedGeneration").and_then(Value::as_i64);
    if let (Some(seen), Some(now)) = (seen, object.pointer("/metadata/generation").and_then(Value::as_i64))
        && seen < now
        && seen >= 0
    {
        found.push("Its last change has not been taken up yet.".to_owned());
    }
    for other in items(object, "/status/conditions") {
        let kind = other["type"].as_str().unwrap_or_default();
        let bad = if ABNORMAL_WHILE_TRUE.contains(&kind) { "True" } else { "False" };
        let is_repeated = ready
            .is_some_and(|ready| ready["reason"] == other["reason"] && ready["message"] == other["message"]);
        // A guest that does not run cannot be up, and one that is declared stopped does not run.
        let is_implied = kind == "GuestReady" && !is_running(object)
            || kind == "Running" && ready.is_none() && text(object, "/spec/power") != "Running";
        if other["status"] == bad && !SAME_AS_READY.contains(&kind) && !is_repeated && !is_implied {
            found.push(sentence(&format!("Its condition {kind} is {bad}"), other, now));
        }
    }
    if is_emulated(object) {
        found.push(
            "Its host emulates its processors, which is many times slower: the host has no KVM that can be used (`berth doctor` there \
             names the cause), or another architecture."
                .to_owned(),
        );
    }
    found.extend(last_end(object, now));
    found
}

fn last_end(object: &Value, now: Timestamp) -> Option<String> {
    let end = object.pointer("/status/lastEnd")?;
    let time: Timestamp = end["time"].as_str()?.parse().ok()?;
    let restarts = object.pointer("/status/restarts").and_then(Value::as_i64).unwrap_or_default();
    let again = match restarts {
        0 => String::new(),
        1 => "; it was started again once".to_owned(),
        times => format!("; it was started again {times} times in all"),
    };
    let cause = end["message"].as_str().unwrap_or_default();
    Some(format!("Its guest last ended by itself {} ago: {cause}{again}.", age(time, now)))
}

/// Whether QEMU emulates the processors of this VM.
pub(crate) fn is_emulated(object: &Value) -> bool {
    text(object, "/status/hardware/accelerator") == "tcg"
}

fn is_running(object: &Value) -> bool {
    condition(object, "Running").is_some_and(|running| running["status"] == "True")
}

/// Writes a condition as a sentence.
fn sentence(start: &str, condition: &Value, now: Timestamp) -> String {
    let reason = condition["reason"].as_str().unwrap_or_default();
    let message = condition["message"].as_str().unwrap_or_default();
    let known = Reason::ALL.iter().find(|known| known.as_str() == reason);
    let text = match (message, known) {
        ("", Some(known)) => uncapitalized(known.meaning()),
        ("", None) => String::new(),
        (message, _) => message.to_owned(),
    };
    let text = text.trim_end_matches('.');
    format!("{start}{} ({reason}): {text}.", since(condition, now))
}

/// Adds a line for each dependency that is missing or not ready, and for what these depend on in turn.
fn dependencies(node: &Node, depth: usize, now: Timestamp, lines: &mut Vec<String>) {
    let indent = "  ".repeat(depth);
    for dependency in &node.dependencies {
        let named = format!("{indent}- Its {}, {},", dependency.role, dependency.name);
        match &dependency.found {
            Found::Missing => lines.push(format!("{named} {}.", absence(&dependency.found))),
            // An object that cannot be read is worth a line only if it may be the cause.
            Found::Forbidden if is_ready(node) => {}
            Found::Forbidden => lines.push(format!("{named} {}.", absence(&dependency.found))),
            Found::Object(object) => {
                let bad = problems(object, now);
                let ready = condition(object, "Ready").filter(|ready| ready["status"] != "True");
                match (ready, bad.first()) {
                    (Some(ready), _) => lines.push(sentence(&format!("{named} is not ready"), ready, now)),
                    (None, Some(_)) if !is_ready(node) && dependency.role != "VM" => {
                        lines.extend(bad.iter().map(|bad| format!("{named} is ready. {bad}")));
                    }
                    _ => {}
                }
            }
        }
        dependencies(dependency, depth + 1, now, lines);
    }
}

fn absence(found: &Found) -> &'static str {
    match found {
        Found::Forbidden => "cannot be read: you have no right to",
        _ => "does not exist",
    }
}

fn is_ready(node: &Node) -> bool {
    let Found::Object(object) = &node.found else { return false };
    condition(object, "Ready").is_some_and(|ready| ready["status"] == "True")
}

/// Returns what a person can do: about the causes below the object first, and about the object itself if there are none.
fn advice(node: &Node) -> Vec<String> {
    let mut found = Vec::new();
    causes(node, &mut found);
    found.dedup();
    found
}

fn causes(node: &Node, found: &mut Vec<String>) {
    let before = found.len();
    for dependency in &node.dependencies {
        match &dependency.found {
            Found::Missing => found.push(format!("create {}.", dependency.name)),
            Found::Object(_) if !is_ready(dependency) => causes(dependency, found),
            _ => {}
        }
    }
    let Found::Object(object) = &node.found else { return };
    if found.len() > before {
        return;
    }
    let conditions = items(object, "/status/conditions").filter(|one| match one["type"].as_str() {
        Some("Ready") => one["status"] != "True",
        Some("GuestReady") => one["status"] == "False" && is_running(object),
        Some(kind) if ABNORMAL_WHILE_TRUE.contains(&kind) => one["status"] == "True",
        Some("Reconciling" | "Stalled" | "Running") | None => false,
        Some(_) => one["status"] == "False",
    });
    for bad in conditions {
        let known = Reason::ALL.iter().find(|known| bad["reason"] == known.as_str());
        let advice = known.map(|known| known.advice()).filter(|advice| !advice.is_empty());
        let line = advice.map(|advice| format!("{}: {advice}", node.name));
        found.extend(line.filter(|line| !found.contains(line)));
    }
}

fn all_is_well(node: &Node) -> String {
    let names: Vec<&str> = node.dependencies.iter().map(|dependency| dependency.name.as_str()).collect();
    match names.as_slice() {
        [] => String::new(),
        names => format!("It waits for nothing: {} are as they should be.\n", names.join(", ")),
    }
}

fn events_of(events: &[Value], now: Timestamp) -> String {
    let time = |event: &Value| -> Option<Timestamp> {
        let series = event.pointer("/series/lastObservedTime").and_then(Value::as_str);
        series.or_else(|| event["eventTime"].as_str())?.parse().ok()
    };
    let mut dated: Vec<(Timestamp, &Value)> =
        events.iter().filter_map(|event| Some((time(event)?, event))).collect();
    dated.sort_by_key(|(time, _)| *time);
    let mut out = String::new();
    for (time, event) in dated.iter().rev().take(EVENTS) {
        let times = event.pointer("/series/count").and_then(Value::as_i64).filter(|count| *count > 1);
        let times = times.map(|count| format!(", {count} times")).unwrap_or_default();
        let (reason, note) = (text(event, "/reason"), text(event, "/note"));
        let _ = writeln!(out, "Event {} ago{times}: {reason}: {note}", age(*time, now));
    }
    out
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    items(object, "/status/conditions").find(|condition| condition["type"] == kind)
}

fn since(condition: &Value, now: Timestamp) -> String {
    let time: Option<Timestamp> = condition["lastTransitionTime"].as_str().and_then(|text| text.parse().ok());
    time.map(|time| format!(" for {}", age(time, now))).unwrap_or_default()
}

/// Formats the time since then, in one or two units.
fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn uncapitalized(text: &str) -> String {
    let is_word = text.chars().nth(1).is_some_and(char::is_lowercase);
    match text.chars().next() {
        Some(first) if is_word => first.to_lowercase().collect::<String>() + &text[first.len_utf8()..],
        _ => text.to_owned(),
    }
}
