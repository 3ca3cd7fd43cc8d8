//! Hosts that are reserved for namespaces.

use super::*;

/// Reserves a host, and waits until its agent has seen that.
async fn reserve(fleet: &Fleet, host: &str, namespaces: Value) {
    fleet.declare_host(host, json!({"namespaces": namespaces})).await;
    let hosts: Api<Host> = Api::all(fleet.admin.clone());
    fleet
        .until("the agent has seen it", async || {
            let host = hosts.get(host).await.expect("it is there");
            host.status.map(|status| status.observed_generation) == host.metadata.generation
        })
        .await;
}

async fn declare(fleet: &Fleet, name: &str) {
    fleet.apply("Disk", name, json!({"image": "debian", "size": "2Gi"})).await;
    let spec = json!({"class": "small", "disks": [{"name": name, "boot": true}], "networkInterfaces": []});
    fleet.apply("VM", name, spec).await;
}

#[tokio::test(start_paused = true)]
async fn a_reserved_host_takes_no_vms_of_other_namespaces_and_keeps_those_it_has() {
    let (fleet, _systems, _agents, [first, second]) = two().await;
    reserve(&fleet, "h1", json!(["team-a"])).await;
    declare(&fleet, "three").await;
    assert_eq!(host_of(&fleet.until_vm("three", "runs", runs).await), "h2");
    reserve(&fleet, "h2", json!(["team-a"])).await;
    declare(&fleet, "four").await;
    fleet.until_vm("four", "waits", |vm| ready_reason(vm) == "Unschedulable").await;
    for name in [&first, &second] {
        assert!(runs(&fleet.vm(name).await.expect("it is there")), "{name} keeps its host");
    }
    reserve(&fleet, "h1", json!(["team-a", "default"])).await;
    assert_eq!(host_of(&fleet.until_vm("four", "runs", runs).await), "h1");
}
