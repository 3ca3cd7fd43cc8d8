//! Names of other objects, and room for VMs, as a plan sees them.

use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use terraform_provider_berth::BerthProvider;

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of},
};

fn vm(name: &str) -> Json {
    json!({"name": name, "class": "small", "disks": [{"name": format!("{name}-root"), "boot": true}]})
}

async fn plan(provider: &BerthProvider, type_name: &str, config: &Json) -> String {
    text_of(&Stage::new(provider, type_name).plan(config).await.diagnostics)
}

#[tokio::test]
async fn a_name_that_nothing_makes_is_a_warning_of_the_plan() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let config = json!({"name": "web", "class": "no-class", "disks": [{"name": "no-disk", "boot": true}],
        "network_interfaces": [{"name": "nic0", "network": "no-network", "public_ip": "no-ip"}],
        "placement": {"group": "no-group", "host": "no-host"}, "bootstrap": {"secret_name": "no-secret"}});
    let named = [
        ("class", "VMClass \"no-class\" in namespace default or berth-shared", "berth_vm_classes"),
        ("disks[0].name", "Disk \"no-disk\" in namespace default", "berth_disks"),
        (
            "network_interfaces[0].network",
            "Network \"no-network\" in namespace default or berth-shared",
            "berth_networks",
        ),
        ("network_interfaces[0].public_ip", "PublicIP \"no-ip\" in namespace default", "berth_public_ips"),
        ("placement.group", "PlacementGroup \"no-group\" in namespace default", "berth_placement_groups"),
        ("placement.host", "Host \"no-host\" on this control plane", "berth_hosts"),
        ("bootstrap.secret_name", "Secret \"no-secret\" in namespace default", ""),
    ];
    let machine = Stage::new(&provider, "berth_vm");
    let planned = machine.plan(&config).await;
    assert!(!planned.diagnostics.iter().any(tfplugin6::Diagnostic::is_error));
    let text = text_of(&planned.diagnostics);
    for (path, words, list) in named {
        assert!(
            text.contains(&format!("{path}: there is no {words}")) && text.contains(list),
            "{path}: {text}"
        );
        assert!(text.contains(&format!("[{path}]")), "{text}");
    }
    for (type_name, config, words) in [
        ("berth_disk", json!({"name": "d", "image": "no-image"}), "image: there is no Image"),
        ("berth_hotswap_disk_attachment", json!({"vm": "no-vm", "disk": "no-disk"}), "vm: there is no VM"),
        ("berth_public_ip", json!({"name": "p", "pool": "no-pool"}), "pool: there is no IPPool"),
        (
            "berth_disk",
            json!({"name": "d", "size": "1Gi", "namespace": "nowhere"}),
            "Namespace nowhere does not exist",
        ),
    ] {
        let text = plan(&provider, type_name, &config).await;
        assert!(text.starts_with("Warning") && text.contains(words), "{text}");
    }
    // A pool that is still missing fails the apply in seconds.
    let config = json!({"name": "d", "size": "1Gi", "pool": "no-pool"});
    let mut disk = Stage::new(&provider, "berth_disk");
    let planned = disk.plan(&config).await;
    let began = Instant::now();
    let applied = disk.apply_plan(planned, &config).await;
    assert!(applied.text().contains("pool: there is no StoragePool"), "{}", applied.text());
    assert!(disk.state.is_null() && began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    plane.close().await;
}

#[tokio::test]
async fn an_object_in_another_namespace_is_pointed_out() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.namespace("other").await;
    let disk = json!({"name": "web-root", "size": "1Gi", "namespace": "other"});
    let made = Stage::new(&provider, "berth_disk").apply(&disk).await;
    assert!(made.is_clean(), "{}", made.text());
    let text = plan(&provider, "berth_vm", &vm("web")).await;
    let words = "Namespace other has one, but a VM names objects of its own namespace";
    assert!(text.contains("disks[0].name: there is no Disk \"web-root\"") && text.contains(words), "{text}");
    plane.close().await;
}

#[tokio::test]
async fn what_the_same_run_makes_is_not_missed_in_whatever_order_it_is_planned() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let class = json!({"name": "fresh", "cpus": 1, "memory": "256Mi"});
    let disk = json!({"name": "web-root", "size": "1Gi", "pool": "fresh"});
    let mut machine = vm("web");
    machine["class"] = "fresh".into();
    let later = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        [
            plan(&provider, "berth_vm_class", &class).await,
            plan(&provider, "berth_storage_pool", &json!({"name": "fresh"})).await,
        ]
        .concat()
    };
    let (of_vm, of_disk, rest) =
        tokio::join!(plan(&provider, "berth_vm", &machine), plan(&provider, "berth_disk", &disk), later);
    assert_eq!([of_vm, of_disk, rest].concat(), "");
    // In an apply, too: the VM is declared before its class and its disk.
    let mut stage = Stage::new(&provider, "berth_vm");
    let planned = stage.plan(&machine).await;
    let applied = stage.apply_plan(planned, &machine).await;
    assert!(applied.is_clean(), "{}", applied.text());
    plane.close().await;
}

#[tokio::test]
async fn one_disk_or_address_for_two_running_vms_of_a_configuration_is_pointed_out() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.stock(&["shared"]).await;
    let with = |name: &str, power: &str| json!({"name": name, "class": "small", "power": power, "disks": [{"name": "shared", "boot": true}]});
    assert_eq!(plan(&provider, "berth_vm", &with("a", "Running")).await, "");
    assert_eq!(plan(&provider, "berth_vm", &with("a", "Running")).await, "", "it is planned again");
    assert_eq!(plan(&provider, "berth_vm", &with("b", "Stopped")).await, "");
    let text = plan(&provider, "berth_vm", &with("c", "Running")).await;
    let words = "disks[0].name: VM default/a of this configuration names Disk shared too";
    assert!(text.starts_with("Warning: Two users of Disk shared") && text.contains(words), "{text}");
    let attachment = json!({"vm": "a", "disk": "shared"});
    let text = plan(&provider, "berth_hotswap_disk_attachment", &attachment).await;
    assert!(text.contains("Two users of Disk shared"), "{text}");
    plane.close().await;
}

#[tokio::test]
async fn a_vm_that_no_host_can_ever_take_is_pointed_out_in_the_plan() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let labels = |name: &str| json!({"kubernetes.io/hostname": name, "zone": "a"});
    for host in ["h1", "h2"] {
        plane.host(host, labels(host)).await;
    }
    for host in ["h1", "h2"] {
        while plane.object("Host", host).await.pointer("/status/allocatable").is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let of_class = |name: &str, class: &str| json!({"name": name, "class": class, "power": "Stopped", "disks": [{"name": "root", "boot": true}]});
    plane.stock(&["root"]).await;
    assert_eq!(plan(&provider, "berth_vm", &of_class("a", "small")).await, "");
    let vast = json!({"name": "vast", "cpus": 4, "memory": "4000Gi"});
    assert_eq!(plan(&provider, "berth_vm_class", &vast).await, "");
    let text = plan(&provider, "berth_vm", &of_class("b", "vast")).await;
    for words in
        ["No host is large enough", "class: the VM needs 4 CPUs and 4000Gi", "h2, offers 8 CPUs and 15Gi"]
    {
        assert!(text.contains(words), "{text}");
    }
    let mut selects = of_class("c", "small");
    selects["placement"] = json!({"host_selector": {"zone": "b"}});
    let text = plan(&provider, "berth_vm", &selects).await;
    assert!(text.contains("placement.host_selector: none of 2 hosts has the labels zone=b"), "{text}");

    let group = json!({"name": "apart", "strategy": "spread", "enforcement": "required"});
    assert_eq!(plan(&provider, "berth_placement_group", &group).await, "");
    let member = |i: usize| {
        let mut member = of_class(&format!("m{i}"), "small");
        member["placement"] = json!({"group": "apart"});
        member
    };
    for i in [1, 2, 2] {
        assert_eq!(plan(&provider, "berth_vm", &member(i)).await, "", "{i}");
    }
    let text = plan(&provider, "berth_vm", &member(3)).await;
    assert!(text.contains("2 different values") && text.contains("this is member 3"), "{text}");

    plane.pool("tiny", "192.0.2.8/31").await;
    let ip = |name: &str| json!({"name": name, "pool": "tiny"});
    assert_eq!(plan(&provider, "berth_public_ip", &ip("one")).await, "");
    let text = plan(&provider, "berth_public_ip", &ip("two")).await;
    assert!(text.contains("pool: IPPool tiny has 1 free addresses"), "{text}");
    plane.close().await;
}
