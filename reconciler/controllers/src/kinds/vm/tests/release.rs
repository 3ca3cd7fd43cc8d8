//! Interfaces that a VM without a host has no more.

use super::*;

#[test]
fn a_vm_releases_the_addresses_of_undeclared_interfaces_before_it_takes_a_host() {
    let given = |name: &str, last: u8| {
        json!({"name": name, "network": "berth-shared/default",
        "macAddress": format!("52:54:00:00:00:0{last}"), "address": format!("10.0.0.{last}")})
    };
    let left = vm(json!({"instanceID": "i-1", "interfaces": [given("nic9", 6), given("nic0", 2)]}));
    let seen = observed(Some(disk(ready_disk())));
    let first = plan(&left, &seen, &capacity());
    assert!(first.steps.is_empty(), "a write never both takes and releases: {:?}", first.steps);
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    let mut released = left.clone();
    released.status = Some(status(&left, &first.decision, now));
    let status_now = released.status.as_ref().expect("just set");
    let names: Vec<&str> = status_now.interfaces.iter().map(|i| i.name.as_str()).collect();
    assert_eq!((names, status_now.binding.is_none()), (vec!["nic0"], true));
    let bound = status(&released, &plan(&released, &seen, &capacity()).decision, now);
    assert_eq!(bound.binding.map(|binding| binding.host).as_deref(), Some("h1"));
    assert_eq!(bound.interfaces[0].address, "10.0.0.2");
}
