//! Names of other objects, and room for VMs, as a plan sees them.

use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use terraform_provider_berth::BerthProvider;

use crate::{
    control_plane::ControlPlane,
    lifecycle::with,
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
        (
            "berth_disk",
            json!({"name": "d", "source": {"snapshot": "no-snapshot"}}),
            "source.snapshot: there is no DiskSnapshot",
        ),
        ("berth_disk", json!({"name": "d", "source": {"disk": "no-disk"}}), "source.disk: there is no Disk"),
        (
            "berth_disk",
            json!({"name": "d", "size": "1Gi", "restore": {"snapshot": "no-snapshot"}}),
            "restore.snapshot: there is no DiskSnapshot",
        ),
        ("berth_disk", json!({"name": "d", "source": {"backup": "no"}}), "source.backup: there is no Backup"),
        (
            "berth_image",
            json!({"name": "i", "source": {"image": "no"}}),
            "source.image: there is no Image \"no\" in namespace default",
        ),
        (
            "berth_disk",
            json!({"name": "d", "size": "1Gi", "encryption": {"key_class": "no"}}),
            "encryption.key_class: there is no KeyClass",
        ),
        (
            "berth_key_class",
            json!({"name": "k", "secret": {"name": "no-secret"}}),
            "secret.name: there is no Secret",
        ),
        (
            "berth_key_class",
            json!({"name": "k", "vault": {"address": "https://a", "key": "k", "token_secret": {"name": "no-token"}}}),
            "vault.token_secret.name: there is no Secret",
        ),
        ("berth_disk_snapshot", json!({"name": "s", "disk": "no-disk"}), "disk: there is no Disk"),
        (
            "berth_backup",
            json!({"name": "b", "repository": "no", "existing": "v-1/b-1"}),
            "repository: there is no BackupRepository",
        ),
        (
            "berth_backup_repository",
            json!({"name": "r", "folder": "nas", "password_secret_name": "no-password"}),
            "password_secret_name: there is no Secret",
        ),
        ("berth_vm_snapshot", json!({"name": "s", "vm": "no-vm"}), "vm: there is no VM"),
        (
            "berth_snapshot_schedule",
            json!({"name": "s", "schedule": "@daily", "vms": ["web"], "keep": {"last": 1},
                "backup": {"repository": "no", "keep": {"last": 1}}}),
            "backup.repository: there is no BackupRepository",
        ),
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
    let foreign = json!({"name": "i", "source": {"image": "no", "image_namespace": "golden"}});
    let text = plan(&provider, "berth_image", &foreign).await;
    assert!(!text.contains("there is no Image"), "one of another namespace need not be readable: {text}");
    let foreign = json!({"name": "d", "source": {"disk": "no", "disk_namespace": "golden"}});
    let text = plan(&provider, "berth_disk", &foreign).await;
    assert!(!text.contains("there is no Disk"), "one of another namespace need not be readable: {text}");
    plane.close().await;
}

/// Plans first, and returns the error of the apply alone.
async fn apply(provider: &BerthProvider, type_name: &str, config: &Json) -> String {
    let mut stage = Stage::new(provider, type_name);
    let planned = stage.plan(config).await;
    let applied = stage.apply_plan(planned, config).await;
    let failed = tfplugin6::diagnostic::has_errors(&applied.diagnostics);
    assert_eq!(failed, stage.state.is_null(), "{}", applied.text());
    applied.text()
}

#[tokio::test]
async fn a_name_that_nothing_makes_fails_the_apply_in_seconds_and_leaves_nothing() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.stock(&["web-root"]).await;
    let mut machine = Stage::new(&provider, "berth_vm");
    let made = machine.apply(&vm("web")).await;
    assert!(made.is_clean(), "{}", made.text());
    let with = |key: &str, value: Json| {
        let mut config = vm("other");
        config["disks"][0]["name"] = "web-root".into();
        config[key] = value;
        config
    };
    let interface = |key: &str| json!([{"name": "nic0", key: "no"}]);
    let cases = [
        ("berth_vm", with("class", json!("no")), "class: there is no VMClass"),
        ("berth_vm", with("disks", json!([{"name": "no", "boot": true}])), "disks[0].name: there is no Disk"),
        ("berth_vm", with("network_interfaces", interface("network")), "there is no Network"),
        ("berth_vm", with("network_interfaces", interface("public_ip")), "there is no PublicIP"),
        (
            "berth_vm",
            with("placement", json!({"group": "no"})),
            "placement.group: there is no PlacementGroup",
        ),
        ("berth_vm", with("vm_group", json!("no")), "vm_group: there is no VMGroup"),
        ("berth_vm", with("placement", json!({"host": "no"})), "placement.host: there is no Host"),
        ("berth_vm", with("bootstrap", json!({"secret_name": "no"})), "there is no Secret"),
        ("berth_disk", json!({"name": "d", "image": "no"}), "image: there is no Image"),
        ("berth_disk", json!({"name": "d", "size": "1Gi", "pool": "no"}), "pool: there is no StoragePool"),
        ("berth_public_ip", json!({"name": "p", "pool": "no"}), "pool: there is no IPPool"),
        ("berth_hotswap_disk_attachment", json!({"vm": "web", "disk": "no"}), "disk: there is no Disk"),
        ("berth_hotswap_disk_attachment", json!({"vm": "no", "disk": "web-root"}), "vm: there is no VM"),
    ];
    let began = Instant::now();
    let applies = cases.iter().map(|(type_name, config, _)| apply(&provider, type_name, config));
    for (text, (type_name, _, words)) in futures::future::join_all(applies).await.into_iter().zip(&cases) {
        assert!(text.starts_with("Error") && text.contains(words), "{type_name}: {text}");
        assert!(text.contains("Nothing in this run creates it"), "{type_name}: {text}");
    }
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    for (kind, count) in [("VM", 1), ("Disk", 1), ("PublicIP", 0), ("HotswapDiskAttachment", 0)] {
        assert_eq!(plane.count(kind).await, count, "{kind}");
    }
    // An update names it, too.
    let mut larger = vm("web");
    larger["class"] = "no".into();
    let planned = machine.plan(&larger).await;
    let applied = machine.apply_plan(planned, &larger).await;
    assert!(applied.text().starts_with("Error: VMClass no does not exist"), "{}", applied.text());
    assert_eq!(plane.object("VM", "web").await["spec"]["class"], "small");
    plane.close().await;
}

#[tokio::test]
async fn what_another_apply_of_the_run_may_still_make_is_waited_for() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.stock(&["web-root"]).await;
    let mut machine = vm("web");
    machine["class"] = "later".into();
    // A slow apply, after which the class follows, as an apply that depends on it.
    let others = async {
        let slow = json!({"name": "slow", "source": {"url": "https://a.example/x", "sha256": "0".repeat(64)},
            "timeouts": {"create": "7s", "update": null, "delete": null, "read": null}});
        let text = apply(&provider, "berth_image", &slow).await;
        assert!(text.starts_with("Warning") && text.contains("not ready yet"), "{text}");
        let class = json!({"name": "later", "cpus": 1, "memory": "256Mi"});
        assert_eq!(apply(&provider, "berth_vm_class", &class).await, "");
    };
    let (text, ()) = tokio::join!(apply(&provider, "berth_vm", &machine), others);
    assert_eq!(text, "");

    // A create that has failed makes nothing.
    let mut refused = Stage::new(&provider, "berth_disk");
    let config = json!({"name": "contested", "size": "1Gi"});
    let planned = refused.plan(&config).await;
    plane.declare_as("flux", "Disk", "contested", json!({"size": "2Gi"})).await;
    assert!(refused.apply_plan(planned, &config).await.text().contains("exists already"));
    plane
        .objects("Disk")
        .delete("contested", &kube::api::DeleteParams::default())
        .await
        .expect("it is there");
    let mut machine = vm("another");
    machine["disks"][0]["name"] = "contested".into();
    let text = apply(&provider, "berth_vm", &machine).await;
    assert!(text.starts_with("Error: Disk contested does not exist"), "{text}");
    plane.close().await;
}

#[tokio::test]
async fn an_interrupt_ends_the_wait_for_an_object() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let slow = provider_run(&provider);
    let _busy = slow.begin_apply();
    let mut machine = Stage::new(&provider, "berth_vm");
    let planned = machine.plan(&vm("web")).await;
    let cancel = machine.cancel.clone();
    let interrupt = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cancel.cancel();
    };
    let config = vm("web");
    let began = Instant::now();
    let (applied, ()) = tokio::join!(machine.apply_plan(planned, &config), interrupt);
    assert!(applied.text().contains("Stopped before VM default/web was changed"), "{}", applied.text());
    assert!(machine.state.is_null() && began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    plane.close().await;
}

fn provider_run(provider: &BerthProvider) -> std::sync::Arc<terraform_provider_berth::run::Run> {
    provider.kinds().first().expect("a kind").session().settings().run
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

    let source = json!({"source": {"url": "https://images.example.org/a", "sha256": "a".repeat(64)}});
    plane.declare_as("gitops", "Image", "debian", source).await;
    let copy = json!({"name": "copy", "namespace": "other", "source": {"image": "debian"}});
    let text = plan(&provider, "berth_image", &copy).await;
    let words = "Namespace default has one: to copy an image of another namespace";
    assert!(text.contains(words) && text.contains("set image_namespace"), "{text}");
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
    for (size, words) in [
        (json!({"class": "small", "cpus": 16}), "cpus: the VM needs 16 CPUs and"),
        (json!({"class": "vast", "memory": "5000Gi"}), "memory: the VM needs 4 CPUs and 5000Gi"),
        (json!({"class": null, "cpus": 12}), "cpus: the VM needs 12 CPUs and 24Gi"),
        (
            json!({"class": null, "cpu_topology": {"sockets": 3, "cores": 3}}),
            "cpu_topology: the VM needs 9 CPUs and 18Gi",
        ),
    ] {
        let text = plan(&provider, "berth_vm", &with(of_class("s", "small"), size)).await;
        assert!(text.contains(words) && text.contains("or its size is smaller"), "{text}");
    }
    let fits = with(of_class("s", "vast"), json!({"memory": "1Gi"}));
    assert_eq!(plan(&provider, "berth_vm", &fits).await, "");
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

    let zoned = json!({"name": "zoned", "host_selector": {"zone": "c"}});
    let text = plan(&provider, "berth_placement_group", &zoned).await;
    assert!(text.contains("host_selector: none of 2 hosts has the labels zone=c. Members"), "{text}");
    let mut of_zoned = of_class("z", "small");
    of_zoned["placement"] = json!({"group": "zoned"});
    let text = plan(&provider, "berth_vm", &of_zoned).await;
    let words = "placement.group: none of 2 hosts has the labels zone=c of its placement group";
    assert!(text.contains(words), "{text}");
    let disk = json!({"name": "zoned", "size": "1Gi", "placement": {"host_selector": {"zone": "c"}}});
    let text = plan(&provider, "berth_disk", &disk).await;
    assert!(text.contains("placement.host_selector: none of 2 hosts has the labels zone=c. A VM"), "{text}");

    plane.pool("tiny", "192.0.2.8/31").await;
    let ip = |name: &str| json!({"name": name, "pool": "tiny"});
    assert_eq!(plan(&provider, "berth_public_ip", &ip("one")).await, "");
    let text = plan(&provider, "berth_public_ip", &ip("two")).await;
    assert!(text.contains("pool: IPPool tiny has 1 free addresses"), "{text}");
    let with_prefix = json!({"name": "p", "pool": "tiny", "prefix_length": 80});
    let text = plan(&provider, "berth_public_ip", &with_prefix).await;
    assert!(text.contains("prefix_length: IPPool tiny has IPv4 addresses"), "{text}");
    plane.close().await;
}
