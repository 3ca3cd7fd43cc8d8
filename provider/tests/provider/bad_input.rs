//! Bad input of every kind: refused before anything is planned, with the path of the attribute and the remedy; and by the
//! control plane too, for clients other than Terraform, where a schema can say it.

mod backups;
mod disks;
mod networks;
mod others;
mod vms;

use std::collections::BTreeSet;

use kube::api::PostParams;
use serde_json::{Value as Json, json};
use tfplugin6::{Diagnostic, Resource as _};

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of},
};

/// One bad input.
struct Bad {
    /// A valid configuration with one change.
    config: Json,
    /// The path of the attribute.
    path: &'static str,
    /// A part of the message.
    words: &'static str,
    /// Whether the control plane refuses it too.
    everywhere: bool,
}

/// Refused by the provider and by the control plane.
fn everywhere(config: Json, path: &'static str, words: &'static str) -> Bad {
    Bad { config, path, words, everywhere: true }
}

/// Refused by the provider only: the control plane does not see it, or cannot say it in a schema.
fn here(config: Json, path: &'static str, words: &'static str) -> Bad {
    Bad { config, path, words, everywhere: false }
}

fn with(mut config: Json, pointer: &str, value: Json) -> Json {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    config.pointer_mut(parent).expect("it is there")[key] = value;
    config
}

fn all() -> Vec<(&'static str, Bad)> {
    let of = |type_name: &'static str, bad: Vec<Bad>| bad.into_iter().map(move |bad| (type_name, bad));
    let mut all: Vec<(&'static str, Bad)> = of("berth_vm", vms::vms()).collect();
    all.extend(of("berth_vm_class", others::classes()));
    all.extend(of("berth_image", disks::images()));
    all.extend(of("berth_disk", disks::disks()));
    all.extend(of("berth_network", networks::networks()));
    all.extend(of("berth_backup", backups::backups()));
    all.extend(of("berth_backup_repository", backups::repositories()));
    all.extend(of("berth_snapshot_schedule", backups::schedules()));
    all.extend(of("berth_quota", others::quotas()));
    all.extend(of("berth_key_class", disks::key_classes()));
    all.extend(networks::pools());
    all.extend(others::others());
    all.extend(networks::ports());
    all.extend(networks::prefixes());
    all
}

/// Whether the control plane's refusal has this path in HCL, also of a nested value, and names it.
fn has_path(refused: &[Diagnostic], path: &str) -> bool {
    let mut at = refused.iter().filter_map(|found| found.attribute.as_ref()).map(ToString::to_string);
    // A rule about a list as a whole points at the list.
    let fitting = at.find(|at| path.starts_with(at.as_str()) || at.starts_with(path));
    let text = text_of(refused);
    fitting.is_some_and(|at| at == "name" || text.contains(&format!("{at}: ")))
}

#[tokio::test]
async fn bad_input_is_refused_with_its_path_and_a_remedy() {
    // Nothing is created: there is no status to write.
    let plane = ControlPlane::without_controllers().await;
    let provider = provider(&plane.client, "default");
    let all = all();
    let mut wrong = Vec::new();
    for (type_name, bad) in &all {
        let stage = Stage::new(&provider, type_name);
        let found = stage.validate(&bad.config).await;
        let is_said = found.iter().any(|found| {
            let text = format!("{}: {}", found.summary, found.detail);
            found.is_error()
                && found.attribute.as_ref().is_some_and(|path| path.to_string() == bad.path)
                && text.contains(bad.path)
                && text.contains(bad.words)
        });
        if !is_said {
            wrong.push(format!("{type_name} {} {:?}: {}", bad.path, bad.words, text_of(&found)));
        }
        // A plan without the validation before it: the control plane's words.
        let refused = stage.plan(&bad.config).await.diagnostics;
        let plan = text_of(&refused);
        let is_at_its_path = !bad.everywhere || *type_name != "berth_vm" || has_path(&refused, bad.path);
        if plan.contains("was refused") != bad.everywhere || !is_at_its_path {
            wrong.push(format!("{type_name} {} on the control plane: {plan}\n{}", bad.path, bad.config));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let kinds: BTreeSet<&str> = all.iter().map(|(type_name, _)| *type_name).collect();
    assert_eq!(kinds.len(), provider.kinds().len(), "each kind has bad input: {kinds:?}");
    assert!(provider.kinds().iter().all(|kind| kinds.contains(kind.type_name())));
    plane.close().await;
}

#[tokio::test]
async fn ten_interfaces_are_accepted() {
    let plane = ControlPlane::without_controllers().await;
    let provider = provider(&plane.client, "default");
    let (stage, ten) = (Stage::new(&provider, "berth_vm"), vms::interfaces::numbered(10));
    for found in [stage.validate(&ten).await, stage.plan(&ten).await.diagnostics] {
        assert!(!found.iter().any(Diagnostic::is_error), "{}", text_of(&found));
    }
    plane.close().await;
}

#[tokio::test]
async fn values_that_are_not_known_yet_are_not_judged() {
    let plane = ControlPlane::without_controllers().await;
    let provider = provider(&plane.client, "default");
    let unknown = json!({"name": "<unknown>", "class": "<unknown>", "disks": "<unknown>", "network_interfaces": "<unknown>"});
    assert_eq!(text_of(&Stage::new(&provider, "berth_vm").validate(&unknown).await), "");
    let nics = json!([{"mac_address": "<unknown>", "address": "10.0.0.1", "network": "<unknown>"},
        {"mac_address": "<unknown>", "address": "10.0.0.1", "network": "<unknown>"}]);
    let unknown = json!({"name": "web", "class": "a", "disks": [{"name": "a", "boot": true}], "network_interfaces": nics,
        "labels": {"a": "<unknown>"}, "bootstrap": {"user_data_wo": "<unknown>", "user_data_wo_version": 1}});
    assert_eq!(text_of(&Stage::new(&provider, "berth_vm").validate(&unknown).await), "");
    let unknown = json!({"name": "large", "cpus": 4, "memory": "4Gi", "max_cpus": "<unknown>", "max_memory": "<unknown>",
        "numa_nodes": 2, "huge_pages": "2Mi", "dedicated_cpu_placement": true});
    assert_eq!(text_of(&Stage::new(&provider, "berth_vm_class").validate(&unknown).await), "");
    let unknown =
        json!({"name": "large", "cpus": 4, "memory": "4Gi", "max_cpus": 8, "cpu_topology": "<unknown>"});
    assert_eq!(text_of(&Stage::new(&provider, "berth_vm_class").validate(&unknown).await), "");
    let unknown = json!({"name": "i", "source": {"url": "http://x", "sha256": "<unknown>", "checksum_url": "http://y"}});
    assert_eq!(text_of(&Stage::new(&provider, "berth_image").validate(&unknown).await), "");
    let unknown =
        json!({"name": "b", "repository": "<unknown>", "snapshot": "<unknown>", "existing": "<unknown>"});
    assert_eq!(text_of(&Stage::new(&provider, "berth_backup").validate(&unknown).await), "");
    let unknown = json!({"name": "r", "s3": "<unknown>", "folder": "<unknown>", "credentials_secret_name": "<unknown>",
        "password_secret_name": "<unknown>"});
    assert_eq!(text_of(&Stage::new(&provider, "berth_backup_repository").validate(&unknown).await), "");
    for unknown in [
        json!({"name": "k", "secret": "<unknown>", "vault": "<unknown>"}),
        json!({"name": "k", "vault": {"address": "<unknown>", "key": "<unknown>", "token_secret": "<unknown>", "app_role": "<unknown>"}}),
    ] {
        assert_eq!(text_of(&Stage::new(&provider, "berth_key_class").validate(&unknown).await), "");
    }
    plane.close().await;
}

/// A module passes on its variables, of which some are null. During `terraform validate` none of them is known.
#[tokio::test]
async fn variables_that_may_be_null_are_not_judged_as_set() {
    let plane = ControlPlane::without_controllers().await;
    let provider = provider(&plane.client, "default");
    let unknown = "<unknown>";
    let disk = |changes: Json| {
        let mut disk = json!({"name": "d", "size": "1Gi"});
        disk.as_object_mut().expect("an object").extend(changes.as_object().expect("an object").clone());
        ("berth_disk", disk)
    };
    let bridge = |changes: Json| {
        let mut network =
            json!({"name": "n", "type": "Bridge", "bridge": {"name": "vmbr0"}, "cidr": "10.9.0.0/24"});
        network.as_object_mut().expect("an object").extend(changes.as_object().expect("an object").clone());
        ("berth_network", network)
    };
    let nic =
        json!({"limits": {"ingress_bandwidth": null, "ingress_burst": unknown, "egress_packets": 1000}});
    let sums = json!({"sha256": unknown, "secret_name": unknown, "trust_on_first_use": unknown});
    let image = |mut source: Json, changes: Json| {
        source.as_object_mut().expect("an object").extend(sums.as_object().expect("an object").clone());
        let mut image = json!({"name": "i", "source": source});
        image.as_object_mut().expect("an object").extend(changes.as_object().expect("an object").clone());
        ("berth_image", image)
    };
    let cases = [
        disk(
            json!({"limits": {"iops": unknown, "read_iops": unknown, "write_iops": 100, "burst_seconds": unknown}}),
        ),
        disk(json!({"limits": {"iops": null, "burst_iops": unknown, "bandwidth": "1Mi"}})),
        disk(json!({"pool": "fast", "pools": unknown, "pool_selector": unknown})),
        disk(
            json!({"size": null, "image": "debian", "access": "ReadOnlyMany", "encryption": unknown, "restore": unknown}),
        ),
        disk(json!({"source": {"snapshot": "s", "disk_namespace": unknown, "format": unknown}})),
        bridge(json!({"egress": unknown, "dhcp4": unknown, "dhcp6": unknown, "dns_domain": unknown})),
        bridge(
            json!({"ipv4": {"name_server": unknown, "allocation": "External"}, "cidr": null, "dns": unknown,
            "search_domains": unknown, "ipv6": null}),
        ),
        ("berth_network", json!({"name": "n", "ipv6_cidr": "fd00:60::/64", "egress": unknown})),
        (
            "berth_network",
            json!({"name": "n", "ipv6_cidr": "fd00:60::/64", "ipv6_autoconfiguration": true, "dhcp6": unknown}),
        ),
        image(json!({"disk": "root"}), json!({"compression": unknown, "ova_disk": unknown})),
        image(json!({"file": "/root.qcow2", "sha512": unknown, "token": unknown}), json!({})),
        image(json!({"url": "file:///root.iso", "token": unknown}), json!({"format": "iso"})),
        (
            "berth_vm",
            json!({"name": "v", "cpus": 1, "disks": [{"name": "a", "boot": true}], "network_interfaces": [nic]}),
        ),
    ];
    for (type_name, config) in cases {
        let found = Stage::new(&provider, type_name).validate(&config).await;
        assert_eq!(text_of(&found), "", "{type_name} {config}");
    }
    plane.close().await;
}

/// The provider writes user data into a Secret; other clients declare it in the VM, where the schema judges its beginning.
#[tokio::test]
async fn user_data_that_no_guest_reads_is_refused_to_kubectl_too() {
    let plane = ControlPlane::without_controllers().await;
    let vm = |name: &str, user_data: &str| {
        let spec = json!({"cpus": 1, "disks": [{"name": "root", "boot": true}], "bootstrap": {"userData": user_data}});
        let vm = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "VM", "metadata": {"name": name}, "spec": spec});
        serde_json::from_value(vm).expect("a VM")
    };
    let vms = plane.objects("VM");
    for (text, is_read) in [
        ("#cloud-config\npackages: [a]\n", true),
        ("\n #!/bin/sh\n", true),
        ("Content-Type: multipart/mixed; boundary=x\n", true),
        ("<PowerShell>\n", true),
        ("{\"ignition\": {\"version\": \"3.4.0\"}}", true),
        ("version: v1alpha1\nmachine:\n  type: worker\n", true),
        ("", true),
        ("hello", false),
        ("# cloud-config\n", false),
        ("packages: [a]\n", false),
        ("I2Nsb3VkLWNvbmZpZwphOiAxCg==\n", true),
        ("I2Nsb3VkLWNvbmZpZw", false),
    ] {
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let created = vms.create(&dry, &vm("v", text)).await;
        let refusal = created.err().map(|error| error.to_string()).unwrap_or_default();
        let expected =
            refusal.contains("spec.bootstrap.userData") && refusal.contains("begin it with '#cloud-config'");
        assert!(if is_read { refusal.is_empty() } else { expected }, "{text:?}: {refusal}");
        // What the provider takes, the schema takes.
        let taken = berth_api::user_data::check_declared(text).is_ok();
        assert!(!taken || is_read, "{text:?}");
    }
    plane.close().await;
}
