//! Data sources: the values of one object and of many, their selection, and the errors of a read.

use std::sync::{Arc, atomic::Ordering};

use kube::api::PostParams;
use serde_json::{Value as Json, json};
use terraform_provider_berth::{BerthProvider, fact::snake};
use tfplugin6::{
    Attribute, CancellationToken, DataSource, Diagnostic, Provider, Value,
    data_source::{ReadDataRequest, ReadDataResponse},
    provider::ClientCapabilities,
    resource::ValidateRequest,
    schema::AttributeKind,
};

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of, value},
};

fn source(provider: &BerthProvider, type_name: &str) -> Arc<dyn DataSource> {
    let found = provider.data_sources().into_iter().find(|source| source.type_name() == type_name);
    found.unwrap_or_else(|| panic!("no data source {type_name}"))
}

async fn validate(provider: &BerthProvider, type_name: &str, config: &Json) -> Vec<Diagnostic> {
    let (client, cancel) = (ClientCapabilities::default(), CancellationToken::new());
    source(provider, type_name).validate(ValidateRequest { config: value(config), client, cancel }).await
}

async fn answer(provider: &BerthProvider, type_name: &str, config: &Json) -> ReadDataResponse {
    let request = ReadDataRequest {
        config: value(config),
        provider_meta: Value::Null,
        client: ClientCapabilities::default(),
        cancel: CancellationToken::new(),
    };
    source(provider, type_name).read(request).await
}

/// The state of a read, which must be as its schema and its configuration require.
pub(crate) async fn read(provider: &BerthProvider, type_name: &str, config: &Json) -> Value {
    let answer = answer(provider, type_name, config).await;
    assert!(answer.diagnostics.is_empty(), "{type_name}: {}", text_of(&answer.diagnostics));
    let state = answer.state.expect("a read without errors has a state");
    let schema = source(provider, type_name).schema();
    for name in state.as_map().expect("an object").keys() {
        assert!(
            schema.block.attributes.iter().any(|attribute| attribute.name == *name),
            "{type_name}.{name}"
        );
    }
    for (name, configured) in config.as_object().expect("an object") {
        assert_eq!(state.get(name), &value(configured), "{type_name}.{name} is configured");
    }
    state
}

async fn failure(provider: &BerthProvider, type_name: &str, config: &Json) -> String {
    let answer = answer(provider, type_name, config).await;
    assert!(answer.state.is_none(), "{type_name}");
    text_of(&answer.diagnostics)
}

fn names(list: &Value) -> Vec<&str> {
    list.elements().iter().filter_map(|object| object.get("name").as_str()).collect()
}

async fn create(plane: &ControlPlane, kind: &str, metadata: Json, spec: Json) {
    let object =
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
    let object = serde_json::from_value(object).expect("an object");
    plane.objects(kind).create(&PostParams::default(), &object).await.expect("it is valid");
}

fn vm(name: &str) -> Json {
    json!({"name": name, "class": "small", "disks": [{"name": "root", "boot": true}], "placement": {"group": "web"},
        "wait_for": "guest", "timeouts": {"create": "20s"}})
}

/// Possible secrets, and their checksum.
const WITHHELD: [&str; 8] = [
    "bootstrap.user_data",
    "bootstrap.checksum",
    "disks.template.access",
    "disks.template.deletion_protection",
    "disks.template.imported_from",
    "disks.template.placement",
    "disks.template.restore",
    "disks.template.shared_with",
];

/// The properties of a schema that a list of attributes lacks.
fn find_missing(schema: &Json, attributes: &[Attribute], at: &str, missing: &mut Vec<String>) {
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        let name = snake(key);
        let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        let Some(attribute) = attributes.iter().find(|attribute| attribute.name == name) else {
            missing.push(path);
            continue;
        };
        assert!(attribute.computed && !attribute.description.is_empty(), "{path}");
        if let AttributeKind::Nested(nested) = &attribute.kind {
            let inner = if property["items"].is_object() { &property["items"] } else { property };
            find_missing(inner, &nested.attributes, &path, missing);
        }
    }
}

#[test]
fn every_field_of_every_kind_is_in_its_data_sources() {
    let provider = BerthProvider::default();
    let definitions = berth_api::manifests::crds();
    assert_eq!(provider.objects().len(), definitions.len());
    assert_eq!(provider.lists().len(), definitions.len());
    for (one, many) in provider.objects().iter().zip(provider.lists()) {
        let kind = one.resource().info().kind;
        let is_definition = |of: &&Json| of["spec"]["names"]["kind"] == kind;
        let definition = definitions.iter().find(is_definition).expect("its definition");
        let properties = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        let attributes = one.schema().block.attributes;
        let mut missing = Vec::new();
        find_missing(&properties["spec"], &attributes, "", &mut missing);
        missing.retain(|path| !WITHHELD.contains(&path.as_str()));
        assert!(missing.is_empty(), "{kind}: spec {missing:?}");
        let status = attributes.iter().find(|attribute| attribute.name == "status").expect("it has a status");
        let AttributeKind::Nested(status) = &status.kind else { panic!("{kind}: status is an object") };
        find_missing(&properties["status"], &status.attributes, "", &mut missing);
        assert!(missing.is_empty(), "{kind}: status {missing:?}");

        // Terraform refuses a schema in which a name occurs twice.
        let mut unique: Vec<&str> = attributes.iter().map(|attribute| attribute.name.as_str()).collect();
        unique.sort_unstable();
        let count = unique.len();
        unique.dedup();
        assert_eq!(unique.len(), count, "{kind}");
        assert!(attributes.iter().all(|attribute| !attribute.sensitive), "{kind}");

        let list = many.schema().block.attributes;
        let objects = list.iter().find(|attribute| attribute.name == many.objects()).expect("it has objects");
        let AttributeKind::Nested(objects) = &objects.kind else { panic!("{kind}: a list of objects") };
        let of = |attributes: &[Attribute]| -> Vec<String> {
            attributes.iter().map(|attribute| attribute.name.clone()).collect()
        };
        let mut one = of(&attributes);
        let choosing = ["label_selector", "field_selector", "most_recent", "latest_version"];
        one.retain(|name| !choosing.contains(&name.as_str()));
        assert_eq!(of(&objects.attributes), one, "{kind}");
    }
}

#[test]
fn the_example_of_each_page_shows_an_attribute_there_is() {
    for one in BerthProvider::default().objects() {
        let mut attributes = one.schema().block.attributes;
        for name in one.resource().info().shown.split('.') {
            let found = attributes.iter().find(|attribute| attribute.name == name);
            let found = found.unwrap_or_else(|| panic!("{}: no {name}", one.type_name())).clone();
            attributes = match found.kind {
                AttributeKind::Nested(nested) => nested.attributes,
                AttributeKind::Type(_) => Vec::new(),
            };
        }
    }
}

#[tokio::test]
async fn one_object_has_the_facts_of_its_spec_and_status() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.host("h1", json!({"disk": "ssd"})).await;
    let resources = [
        ("berth_ip_pool", json!({"name": "segment", "cidrs": ["192.0.2.64/27"], "mode": "l2"})),
        ("berth_network", json!({"name": "backend", "cidr": "10.80.0.0/24"})),
        ("berth_public_ip", json!({"name": "web", "pool": "segment"})),
        ("berth_disk", json!({"name": "root", "size": "1Gi"})),
        ("berth_disk", json!({"name": "data", "size": "1Gi"})),
        ("berth_vm_class", json!({"name": "small", "cpus": 1, "memory": "512Mi"})),
        ("berth_placement_group", json!({"name": "web"})),
    ];
    for (type_name, config) in resources {
        let made = Stage::new(&provider, type_name).apply(&config).await;
        assert!(made.is_clean(), "{type_name}: {}", made.text());
    }
    let mut config = vm("web");
    config["network_interfaces"] = json!([{"name": "lan", "network": "backend", "public_ip": "web"}]);
    let made = Stage::new(&provider, "berth_vm").apply(&config).await;
    assert!(made.is_clean(), "{}", made.text());
    let attachment = json!({"vm": "web", "disk": "data"});
    let made = Stage::new(&provider, "berth_hotswap_disk_attachment").apply(&attachment).await;
    assert!(made.is_clean(), "{}", made.text());

    let web = read(&provider, "berth_vm", &json!({"name": "web"})).await;
    assert_eq!(web.get("id").as_str(), Some("default/web"));
    assert_eq!(web.get("ready").as_bool(), Some(true));
    assert_eq!(web.get("network_interfaces").index(0).get("public_ip").as_str(), Some("web"));
    assert_eq!(web.get("host").as_str(), Some("host-a"));
    assert_eq!(web.get("public_address").as_str(), Some("198.18.100.3"));
    let status = web.get("status");
    assert_eq!(status.get("interfaces").get("lan").get("address").as_str(), Some("10.77.0.10"));
    assert_eq!(status.get("disks").get("root").get("attached").as_bool(), Some(true));
    assert_eq!(status.get("disks").get("root").get("device").as_str(), Some("/dev/disk/by-id/virtio-root"));
    assert_eq!(status.get("guest").get("addresses").index(1).as_str(), Some("fd00::10"));
    assert_eq!(status.get("hardware").get("machine_type").as_str(), Some("pc-q35-7.2"));
    assert_eq!(status.get("facts").get("qemuVersion").as_str(), Some("7.2.22"));
    assert!(status.get("last_reconfigured").as_str().is_some_and(|time| time.ends_with('Z')));
    assert_eq!(status.get("operation"), &Value::Null, "there is none");
    assert_eq!(status.get("conditions").get("GuestReady").get("status").as_str(), Some("True"));

    let data = read(&provider, "berth_disk", &json!({"name": "data", "namespace": "default"})).await;
    let user = data.get("status").get("used_by").index(0).clone();
    assert_eq!(user.get("attachment").as_str(), Some("web-data"));
    assert_eq!(user.get("use").as_str(), Some("Hotswap"));
    let attachment = read(&provider, "berth_hotswap_disk_attachment", &json!({"name": "web-data"})).await;
    assert_eq!(attachment.get("device").as_str(), Some("/dev/sdb"));
    let group = read(&provider, "berth_placement_group", &json!({"name": "web"})).await;
    assert_eq!(group.get("status").get("members").index(0).get("vm").as_str(), Some("web"));
    let network = read(&provider, "berth_network", &json!({"name": "backend"})).await;
    assert_eq!(network.get("status").get("mtu").as_i64(), Some(1450));
    assert_eq!(network.get("status").get("used_by").index(0).get("name").as_str(), Some("web"));
    let pool = read(&provider, "berth_ip_pool", &json!({"name": "segment"})).await;
    assert_eq!(pool.get("status").get("free").as_i64(), Some(30));
    assert_eq!(pool.get("id").as_str(), Some("segment"));

    let host = read(&provider, "berth_host", &json!({"name": "h1"})).await;
    assert_eq!(host.get("labels").get("disk").as_str(), Some("ssd"));
    assert_eq!(host.get("fenced").as_bool(), Some(false));
    assert_eq!(host.get("released_orphans"), &Value::List(Vec::new()));
    assert_eq!(host.get("status").get("capacity").get("memory").as_str(), Some("16Gi"));
    let mips = host.get("status").get("kvm").get("mips").as_number().map(ToString::to_string);
    assert_eq!(mips.as_deref(), Some("1234.25"));
    plane.close().await;
}

#[tokio::test]
async fn a_list_is_sorted_and_holds_what_its_selectors_and_readiness_select() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    for (name, tier) in [("web-2", "web"), ("slow", "web"), ("db", "db"), ("web-1", "web")] {
        let metadata = json!({"name": name, "namespace": "default", "labels": {"tier": tier}});
        create(&plane, "Disk", metadata, json!({"size": "1Gi"})).await;
    }
    let list = async |config: Json| {
        let state = read(&provider, "berth_disks", &config).await;
        names(state.get("disks")).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(list(json!({})).await, ["db", "slow", "web-1", "web-2"]);
    assert_eq!(
        list(json!({"label_selector": "tier in (web, x),tier!=db"})).await,
        ["slow", "web-1", "web-2"]
    );
    assert_eq!(list(json!({"field_selector": "metadata.name=db"})).await, ["db"]);
    assert_eq!(list(json!({"namespace": "berth-shared"})).await, [""; 0]);
    assert_eq!(list(json!({"all_namespaces": true, "label_selector": "tier=db"})).await, ["db"]);
    // The status follows a moment after the creation.
    let ready = json!({"ready": true, "label_selector": "tier=web"});
    while list(ready.clone()).await.len() < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(list(ready).await, ["web-1", "web-2"]);
    assert_eq!(list(json!({"ready": false})).await, ["slow"]);
    // More than one page.
    for n in 0..510 {
        let metadata = json!({"name": format!("page-{n:03}"), "namespace": "berth-shared"});
        let object = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "PlacementGroup", "metadata": metadata, "spec": {}});
        let groups = kube::Api::<kube::api::DynamicObject>::namespaced_with(
            plane.client.clone(),
            "berth-shared",
            &crate::control_plane::resource("PlacementGroup"),
        );
        let object = serde_json::from_value(object).expect("an object");
        groups.create(&PostParams::default(), &object).await.expect("it is valid");
    }
    let groups = read(&provider, "berth_placement_groups", &json!({"namespace": "berth-shared"})).await;
    let groups = names(groups.get("placement_groups"));
    assert_eq!((groups.len(), groups[0], groups[509]), (510, "page-000", "page-509"));
    plane.close().await;
}

#[tokio::test]
async fn one_object_is_chosen_by_its_labels() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    for (name, version) in [("web-1", "1"), ("web-2", "2"), ("web-3", "3")] {
        let labels = json!({"family": "web", "version": version});
        let metadata = json!({"name": name, "namespace": "default", "labels": labels});
        create(&plane, "Disk", metadata, json!({"size": "1Gi"})).await;
    }
    let state = read(&provider, "berth_disk", &json!({"label_selector": "family=web,version=2"})).await;
    assert_eq!(state.get("name").as_str(), Some("web-2"));
    let text = failure(&provider, "berth_disk", &json!({"label_selector": "family=web"})).await;
    assert!(text.contains("3 objects have them, among them web-1, web-2, web-3"), "{text}");
    let text = failure(&provider, "berth_disk", &json!({"label_selector": "family=db"})).await;
    assert!(text.contains("No object has them"), "{text}");
    let newest = json!({"label_selector": "family=web", "most_recent": true, "namespace": "default"});
    // The status follows a moment after the creation.
    while answer(&provider, "berth_disk", &newest).await.state.is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let state = read(&provider, "berth_disk", &newest).await;
    assert!(state.get("ready").as_bool() == Some(true), "{state:?}");
    plane.close().await;
}

#[tokio::test]
async fn an_image_is_chosen_by_its_system_and_its_version() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    for (name, distribution, version) in
        [("a", "debian", "13.9"), ("b", "debian", "13.10"), ("c", "fedora", "44"), ("d", "debian", "13.2")]
    {
        let metadata = json!({"name": name, "namespace": "default"});
        let source = json!({"url": "https://a.example/x", "sha256": "0".repeat(64)});
        let variant = if name == "d" { "nocloud" } else { "genericcloud" };
        let os = json!({"family": "Linux", "distribution": distribution, "variant": variant, "architecture": "x86_64"});
        create(&plane, "Image", metadata, json!({"source": source, "os": os, "version": version})).await;
    }
    let one = json!({"field_selector": "spec.os.distribution=fedora,spec.format!=iso"});
    let state = read(&provider, "berth_image", &one).await;
    assert_eq!(state.get("name").as_str(), Some("c"));
    assert_eq!(state.get("os").get("distribution").as_str(), Some("fedora"));
    let one = json!({"field_selector": "spec.os.distribution=debian,spec.os.variant=nocloud,spec.os.architecture=x86_64"});
    assert_eq!(read(&provider, "berth_image", &one).await.get("name").as_str(), Some("d"));
    let none = json!({"field_selector": "spec.os.architecture=aarch64"});
    assert!(failure(&provider, "berth_image", &none).await.contains("No object has them"));
    let none = json!({"field_selector": "spec.os.family=Windows"});
    assert!(failure(&provider, "berth_image", &none).await.contains("No object has them"));
    let several = json!({"field_selector": "spec.os.distribution=debian"});
    let text = failure(&provider, "berth_image", &several).await;
    assert!(text.contains("3 objects have them, among them a, b, d"), "{text}");
    let latest = json!({"field_selector": "spec.os.distribution=debian", "latest_version": true});
    // The status follows a moment after the creation.
    while answer(&provider, "berth_image", &latest)
        .await
        .state
        .is_none_or(|s| s.get("name").as_str() != Some("b"))
    {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    plane.close().await;
}

#[tokio::test]
async fn a_selector_with_a_mistake_is_refused_before_anything_is_read() {
    let provider = BerthProvider::default();
    let cases = [
        ("berth_vms", json!({"label_selector": "tier of web"}), "label_selector"),
        ("berth_vms", json!({"field_selector": "spec.power=Running"}), "field_selector"),
        ("berth_vms", json!({"namespace": "Default"}), "namespace"),
        ("berth_vms", json!({"namespace": "a", "all_namespaces": true}), "all_namespaces"),
        ("berth_vm", json!({"name": "Web"}), "name"),
        ("berth_vm", json!({"name": "a.b"}), "name"),
        ("berth_host", json!({"name": "h 1"}), "name"),
        ("berth_image", json!({}), "name"),
        ("berth_image", json!({"name": "a", "label_selector": "a=b"}), "label_selector"),
        ("berth_image", json!({"label_selector": "family of debian"}), "label_selector"),
        ("berth_image", json!({"name": "a", "most_recent": true}), "most_recent"),
        ("berth_image", json!({"name": "a", "latest_version": true}), "latest_version"),
        ("berth_image", json!({"name": "a", "field_selector": "spec.format=iso"}), "field_selector"),
        ("berth_image", json!({"field_selector": "spec.compression=xz"}), "field_selector"),
        (
            "berth_image",
            json!({"label_selector": "a=b", "most_recent": true, "latest_version": true}),
            "latest_version",
        ),
    ];
    for (type_name, config, at) in cases {
        let found = validate(&provider, type_name, &config).await;
        let paths: Vec<String> =
            found.iter().filter_map(|d| d.attribute.as_ref()).map(ToString::to_string).collect();
        assert_eq!(paths, [at], "{type_name} {config}: {}", text_of(&found));
    }
    let good = [
        ("berth_vms", json!({"field_selector": "spec.class=small", "label_selector": "!legacy"})),
        (
            "berth_vms",
            json!({"field_selector": "<unknown>", "label_selector": "<unknown>", "namespace": "<unknown>"}),
        ),
        ("berth_host", json!({"name": "h1.example.org"})),
        ("berth_image", json!({"label_selector": "family=debian", "most_recent": true})),
        (
            "berth_image",
            json!({"field_selector": "spec.os.distribution=debian,spec.format!=iso", "latest_version": true}),
        ),
        ("berth_image", json!({"name": "<unknown>"})),
    ];
    for (type_name, config) in good {
        assert_eq!(text_of(&validate(&provider, type_name, &config).await), "", "{type_name} {config}");
    }
}

#[tokio::test]
async fn the_error_of_a_read_says_what_to_do() {
    let plane = ControlPlane::in_memory().await;
    let ours = provider(&plane.client, "default");
    for n in 0..12 {
        let metadata = json!({"name": format!("disk-{n:02}"), "namespace": "default"});
        create(&plane, "Disk", metadata, json!({"size": "1Gi"})).await;
    }
    let text = failure(&ours, "berth_disk", &json!({"name": "missing"})).await;
    for part in [
        "Disk default/missing does not exist",
        "disk-00, disk-01",
        "disk-09 and 2 more",
        "depends_on",
        "[name]",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = failure(&ours, "berth_host", &json!({"name": "h9"})).await;
    assert!(text.contains("Host h9 does not exist") && text.contains("has no Host"), "{text}");
    let mut class = json!({"name": "small", "cpus": 1, "memory": "1Gi", "namespace": "berth-shared"});
    Stage::new(&ours, "berth_vm_class").apply(&class).await;
    class = json!({"name": "small"});
    let text = failure(&ours, "berth_vm_class", &class).await;
    assert!(text.contains("set namespace = \"berth-shared\""), "{text}");

    let forbidden = provider(&plane.without_roles(), "default");
    for (type_name, config) in [("berth_disk", json!({"name": "disk-00"})), ("berth_disks", json!({}))] {
        let text = failure(&forbidden, type_name, &config).await;
        assert!(text.contains("not allowed") && text.contains("berth-viewer in namespace default"), "{text}");
    }
    let text = failure(&forbidden, "berth_hosts", &json!({})).await;
    assert!(text.contains("not allowed") && text.contains("for all namespaces"), "{text}");

    let (client, line) = plane.line();
    line.cut.store(true, Ordering::SeqCst);
    let cut = provider(&client, "default");
    for (type_name, config) in [("berth_disk", json!({"name": "disk-00"})), ("berth_disks", json!({}))] {
        let text = failure(&cut, type_name, &config).await;
        assert!(text.contains("does not respond"), "{text}");
    }
    let session = terraform_provider_berth::session::Session::default();
    let unconfigured = BerthProvider::new(Arc::new(session));
    assert!(failure(&unconfigured, "berth_vms", &json!({})).await.contains("No control plane"));
    plane.close().await;
}

#[tokio::test]
async fn possible_secrets_are_in_no_data_source() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut config = vm("web");
    config["bootstrap"] = json!({"user_data": "#!/bin/sh\n# canary", "hostname": "www"});
    let made = Stage::new(&provider, "berth_vm").apply(&config).await;
    assert!(made.is_clean(), "{}", made.text());
    let spec = json!({"class": "small", "disks": [{"name": "root", "boot": true}], "bootstrap": {"userData": "#!/bin/sh\n# canary"}});
    create(&plane, "VM", json!({"name": "plain", "namespace": "default"}), spec).await;
    let url = "https://me:canary@a.example/x.qcow2?sig=canary";
    let source = json!({"url": url, "checksumUrl": "https://a.example/SHA256SUMS?sig=canary"});
    create(&plane, "Image", json!({"name": "signed", "namespace": "default"}), json!({"source": source}))
        .await;

    for (type_name, name) in [("berth_vm", "web"), ("berth_vm", "plain"), ("berth_image", "signed")] {
        let state = read(&provider, type_name, &json!({ "name": name })).await;
        assert!(!format!("{state:?}").contains("canary"), "{type_name} {name}: {state:?}");
    }
    for type_name in ["berth_vms", "berth_images"] {
        let state = read(&provider, type_name, &json!({})).await;
        assert!(!format!("{state:?}").contains("canary"), "{type_name}: {state:?}");
    }
    let web = read(&provider, "berth_vm", &json!({"name": "web"})).await;
    assert_eq!(web.get("bootstrap").get("hostname").as_str(), Some("www"));
    let image = read(&provider, "berth_image", &json!({"name": "signed"})).await;
    assert_eq!(image.get("source").get("url").as_str(), Some("https://a.example/x.qcow2?…"));
    plane.close().await;
}
