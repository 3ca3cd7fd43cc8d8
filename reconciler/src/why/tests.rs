use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-01-02T12:00:00Z";

fn now() -> k8s_openapi::jiff::Timestamp {
    NOW.parse().expect("a time")
}

fn condition(kind: &str, status: &str, reason: &str, message: &str, at: &str) -> Value {
    let at = format!("2026-01-02T{at}Z");
    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at})
}

fn not_ready(reason: &str, message: &str, at: &str) -> Value {
    let reconciling = condition("Reconciling", "True", reason, message, at);
    json!([condition("Ready", "False", reason, message, at), reconciling])
}

fn ready() -> Value {
    json!([condition("Ready", "True", "Available", "", "11:00:00")])
}

fn object(name: &str, status: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "generation": 2}, "status": status})
}

fn node(role: &'static str, name: &str, found: Found, dependencies: Vec<Node>) -> Node {
    Node { role, name: name.into(), found, dependencies }
}

/// Runs on host h1 with one disk.
fn running(conditions: Value, extra: Value) -> Node {
    let mut vm =
        object("web", json!({"state": "Running", "conditions": conditions, "observedGeneration": 2}));
    vm["spec"] = json!({"power": "Running"});
    for (name, value) in extra.as_object().expect("fields") {
        vm["status"][name] = value.clone();
    }
    let disk = Found::Object(object("root", json!({"state": "Available", "conditions": ready()})));
    node("", "vm/web", Found::Object(vm), vec![node("boot disk", "disk/root", disk, Vec::new())])
}

#[test]
fn the_cause_is_followed_down_to_the_object_that_a_person_must_change() {
    let image = object(
        "debian",
        json!({"conditions": [
            condition("Ready", "False", "ChecksumMismatch", "the image has another checksum", "11:55:00"),
            condition("Stalled", "True", "ChecksumMismatch", "the image has another checksum", "11:55:00"),
        ]}),
    );
    let image = node("image", "image/debian", Found::Object(image), Vec::new());
    let waits = not_ready("WaitingForImage", "image debian is not verified yet", "11:50:00");
    let disk = Found::Object(object("root", json!({"conditions": waits})));
    let disk = node("boot disk", "disk/root", disk, vec![image]);
    let waits = not_ready("WaitingForDisk", "disk root has no file yet", "11:50:00");
    let vm = object("web", json!({"state": "Creating", "conditions": waits, "observedGeneration": 2}));
    let vm = node("", "vm/web", Found::Object(vm), vec![disk]);
    assert_eq!(
        explain(&vm, &[], now()),
        "\
vm/web is not ready for 10m, Creating: its host makes what it needs: image, disks, network.
- It is not ready for 10m (WaitingForDisk): disk root has no file yet.
- Its boot disk, disk/root, is not ready for 10m (WaitingForImage): image debian is not verified yet.
  - Its image, image/debian, is not ready for 5m (ChecksumMismatch): the image has another checksum.
What to do: image/debian: Correct the checksum of the Image, or find out why the source has other bytes.
"
    );
}

#[test]
fn a_missing_object_is_to_be_created() {
    let waits = not_ready("WaitingForClass", "VMClass small does not exist", "11:59:00");
    let vm = object("web", json!({"state": "Pending", "conditions": waits}));
    let class = node("class", "vmclass/small", Found::Missing, Vec::new());
    let text = explain(&node("", "vm/web", Found::Object(vm), vec![class]), &[], now());
    assert!(text.contains("- Its class, vmclass/small, does not exist.\n"), "{text}");
    assert!(text.ends_with("What to do: create vmclass/small.\n"), "{text}");
}

#[test]
fn what_cannot_be_read_is_said_only_where_it_may_be_the_cause() {
    let host = || node("host", "host/h1", Found::Forbidden, Vec::new());
    let mut fine = running(ready(), json!({}));
    fine.dependencies.push(host());
    assert!(!explain(&fine, &[], now()).contains("no right"), "{}", explain(&fine, &[], now()));
    let silent = json!([condition("Ready", "Unknown", "HostSilent", "host h1 does not report", "11:58:00")]);
    let mut unknown = running(silent, json!({}));
    unknown.dependencies.push(host());
    let text = explain(&unknown, &[], now());
    assert!(text.starts_with("vm/web is in an unknown state for 2m"), "{text}");
    assert!(text.contains("host/h1, cannot be read: you have no right to"), "{text}");
    assert!(text.contains("What to do: vm/web: See whether the host is up"), "{text}");
}

#[test]
fn a_vm_that_runs_as_declared_waits_for_nothing() {
    assert_eq!(
        explain(&running(ready(), json!({})), &[], now()),
        "vm/web is ready for 60m, Running: the guest runs.\nIt waits for nothing: disk/root are as they should be.\n"
    );
}

#[test]
fn a_ready_vm_still_tells_what_is_not_as_declared() {
    let conditions = json!([
        condition("Ready", "True", "Running", "", "11:00:00"),
        condition("Running", "True", "Running", "", "11:00:00"),
        condition("GuestReady", "False", "GuestNotSeen", "no guest agent answers", "11:00:00"),
        condition("ClassSynced", "False", "PowerCycleNeeded", "stop and start it", "11:30:00"),
    ]);
    let end =
        json!({"time": "2026-01-02T10:00:00Z", "orderly": false, "message": "the guest's kernel panicked"});
    let text = explain(&running(conditions, json!({"lastEnd": end, "restarts": 2})), &[], now());
    assert!(
        text.contains(
            "- Its condition GuestReady is False for 60m (GuestNotSeen): no guest agent answers.\n"
        )
    );
    assert!(
        text.contains(
            "- Its condition ClassSynced is False for 30m (PowerCycleNeeded): stop and start it.\n"
        )
    );
    assert!(text.contains(
        "- Its guest last ended by itself 2h ago: the guest's kernel panicked; it was started again 2 times in all.\n"
    ));
    assert!(text.contains("What to do: vm/web: Stop and start the VM when it suits.\n"), "{text}");
}

#[test]
fn a_guest_that_stays_frozen_is_said_to_be_so_with_the_remedy() {
    let conditions = json!([
        condition("Ready", "True", "Running", "", "11:00:00"),
        condition("GuestFrozen", "True", "GuestFrozen", "they could not be thawed", "11:30:00"),
    ]);
    let text = explain(&running(conditions, json!({})), &[], now());
    assert!(
        text.contains(
            "- Its condition GuestFrozen is True for 30m (GuestFrozen): they could not be thawed.\n"
        ),
        "{text}"
    );
    assert!(text.contains("What to do: vm/web: The host asks the agent again"), "{text}");
    assert!(!text.contains("waits for nothing"), "{text}");
}

#[test]
fn all_conditions_that_are_present_only_while_true_are_known() {
    let page = include_str!("../../../docs/states.md");
    let rows = page.lines().filter(|line| line.contains("| Present only while `True`:"));
    let mut documented: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    let mut known = sentences::ABNORMAL_WHILE_TRUE.to_vec();
    documented.sort_unstable();
    known.sort_unstable();
    assert_eq!(known, documented);
}

#[test]
fn an_emulated_vm_is_said_to_be_slow() {
    let of = |accelerator: &str| {
        explain(&running(ready(), json!({"hardware": {"accelerator": accelerator}})), &[], now())
    };
    assert!(of("tcg").contains("- Its host emulates its processors, which is many times slower"));
    assert!(!of("kvm").contains("emulates"));
}

#[test]
fn a_vm_that_is_declared_stopped_is_not_blamed_for_not_running() {
    let conditions = json!([
        condition("Ready", "True", "Stopped", "", "11:00:00"),
        condition("Running", "False", "Stopped", "", "11:00:00"),
        condition("GuestReady", "False", "GuestNotSeen", "the VM does not run", "11:00:00"),
    ]);
    let mut vm = object("web", json!({"state": "Stopped", "conditions": conditions}));
    vm["spec"] = json!({"power": "Stopped"});
    let text = explain(&node("", "vm/web", Found::Object(vm), Vec::new()), &[], now());
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn the_last_events_are_shown_newest_first_with_their_number() {
    let event = |minute: u32, reason: &str| json!({"eventTime": format!("2026-01-02T11:{minute:02}:00.000000Z"), "reason": reason, "note": "it ended"});
    let mut events: Vec<Value> = (10..20).map(|minute| event(minute, "Retrying")).collect();
    let mut counted = event(1, "CrashLoop");
    counted["series"] = json!({"count": 7, "lastObservedTime": "2026-01-02T11:58:00.000000Z"});
    events.push(counted);
    let text = explain(&running(ready(), json!({})), &events, now());
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("Event")).collect();
    assert_eq!(lines.len(), 5);
    assert_eq!(lines[0], "Event 2m ago, 7 times: CrashLoop: it ended");
    assert_eq!(lines[1], "Event 41m ago: Retrying: it ended");
}

#[test]
fn a_deletion_names_what_holds_it() {
    let mut vm =
        object("web", json!({"state": "Terminating", "conditions": not_ready("Deleting", "", "11:59:00")}));
    vm["metadata"]["deletionTimestamp"] = json!("2026-01-02T11:59:00Z");
    vm["metadata"]["finalizers"] = json!(["berth.dev/host"]);
    let text = explain(&node("", "vm/web", Found::Object(vm), Vec::new()), &[], now());
    assert!(
        text.contains("- It is being deleted since 60s; berth.dev/host has to remove what it made first.\n"),
        "{text}"
    );
    assert!(
        text.contains("(Deleting): being deleted.\n"),
        "without a message, the meaning of the reason: {text}"
    );
}

#[test]
fn the_references_of_a_vm_are_all_that_it_names() {
    let vm = json!({"metadata": {"namespace": "shop"}, "spec": {
        "class": "small", "placement": {"group": "spread"},
        "disks": [{"name": "root", "boot": true}, {"name": "data"}],
        "networkInterfaces": [{"name": "nic0", "network": "lan", "publicIP": "web"}, {"name": "nic1", "network": "lan"}],
    }, "status": {"binding": {"host": "h1"}}});
    let found = references("vm", &vm);
    let names: Vec<String> = found.iter().map(|one| format!("{}/{}", one.kind, one.name)).collect();
    assert_eq!(
        names,
        [
            "host/h1",
            "vmclass/small",
            "placementgroup/spread",
            "disk/root",
            "disk/data",
            "network/lan",
            "publicip/web"
        ]
    );
    assert_eq!(found[0].namespaces, [None]);
    assert_eq!(found[1].namespaces, [Some("shop".to_owned()), Some("berth-shared".to_owned())]);
    let source = json!({"image": "debian", "imageNamespace": "library"});
    let copy = json!({"metadata": {"namespace": "shop"}, "spec": {"source": source}});
    assert_eq!(references("image", &copy)[0].namespaces, [Some("library".to_owned())]);
    assert!(references("vm", &json!({})).is_empty(), "whatever an object looks like");
    let class = json!({"metadata": {"namespace": "shop"}, "spec": {"secret": {"name": "disk-key"}}});
    let found = references("keyclass", &class);
    assert_eq!((found[0].kind, found[0].name.as_str(), found.len()), ("secret", "disk-key", 1));
    let role = json!({"roleID": "r", "secret": {"name": "login"}});
    let vault = json!({"address": "https://a", "key": "k", "appRole": role, "caSecret": {"name": "ca"}});
    let class = json!({"metadata": {"namespace": "shop"}, "spec": {"vault": vault}});
    let named: Vec<String> = references("keyclass", &class).into_iter().map(|found| found.name).collect();
    assert_eq!(named, ["login", "ca"]);
    let member = |name: &str, power: &str, synced: bool| json!({"kind": "VM", "name": name, "power": power, "synced": synced});
    let members = [
        member("ready", "Running", true),
        member("starts", "Running", false),
        member("later", "Waiting", false),
    ];
    let group = json!({"metadata": {"namespace": "shop"}, "spec": {"parent": "site"}, "status": {"power": "Running", "members": members}});
    let named: Vec<String> = references("vmgroup", &group).into_iter().map(|found| found.name).collect();
    assert_eq!(named, ["site", "starts"], "those that wait are not the cause");
}

#[test]
fn a_pool_and_a_network_that_are_there_by_default_need_no_object() {
    let missed = |kind: &str, object: Value| -> Vec<&'static str> {
        let found = references(kind, &object).into_iter().filter(|one| !one.may_be_missing());
        found.map(|one| one.kind).collect()
    };
    let disk = |pool: &str| json!({"spec": {"image": "default", "pool": pool}});
    assert_eq!(missed("disk", disk("default")), ["image"]);
    assert_eq!(missed("disk", disk("fast")), ["image", "storagepool"]);
    let vm =
        json!({"spec": {"class": "default", "networkInterfaces": [{"name": "nic0", "network": "default"}]}});
    assert_eq!(missed("vm", vm), ["vmclass"]);
}
