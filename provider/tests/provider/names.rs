//! Generated names.

use std::fs;

use kube::api::ListParams;
use serde_json::{Value as Json, json};
use tfplugin6::diagnostic;

use crate::{
    control_plane::{ControlPlane, Interruption},
    lifecycle::{stories, with},
    stage::{Stage, provider, text_of},
    terraform::Terraform,
};

/// A configuration with a prefix in place of its name.
fn prefixed(mut config: Json) -> Json {
    config.as_object_mut().expect("an object").remove("name");
    with(config, json!({"name_prefix": "gen-"}))
}

#[tokio::test]
async fn every_kind_that_is_created_takes_a_prefix_and_gets_a_unique_name() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    for (type_name, kind, config, changed) in stories() {
        let (config, changed) = (prefixed(config), prefixed(changed));
        let mut stages = [Stage::new(&provider, type_name), Stage::new(&provider, type_name)];
        let mut names = Vec::new();
        for stage in &mut stages {
            assert_eq!(text_of(&stage.validate(&config).await), "", "{type_name}");
            let plan = stage.plan(&config).await;
            assert!(
                plan.planned.get("name").is_unknown() && plan.planned.get("id").is_unknown(),
                "{type_name}"
            );
            let made = stage.apply(&config).await;
            assert!(!diagnostic::has_errors(&made.diagnostics), "{type_name}: {}", made.text());
            let name = stage.state.get("name").as_str().expect("it has a name").to_owned();
            assert!(name.starts_with("gen-") && name.len() == 14, "{type_name}: {name}");
            names.push(name);
        }
        assert_ne!(names[0], names[1], "{type_name}");
        assert_eq!(plane.count(kind).await, 2, "{type_name}");
        let [mut stage, mut other] = stages;
        stage.read().await;
        assert!(stage.plan_is_empty(&config).await, "{type_name}: plan after create");
        let updated = stage.apply(&changed).await;
        assert!(!diagnostic::has_errors(&updated.diagnostics), "{type_name}: {}", updated.text());
        assert_eq!(
            stage.state.get("name").as_str(),
            Some(names[0].as_str()),
            "{type_name}: updated in place"
        );

        // An import finds the prefix, and the name may be written down instead.
        let mut imported = Stage::new(&provider, type_name);
        assert_eq!(text_of(&imported.import(&names[0]).await), "", "{type_name}");
        assert!(imported.plan_is_empty(&changed).await, "{type_name}: plan after import");
        let mut named = with(changed.clone(), json!({"name": names[0]}));
        named.as_object_mut().expect("an object").remove("name_prefix");
        assert!(imported.plan_is_empty(&named).await, "{type_name}: plan with the name");
        let replaced = stage.plan(&with(changed, json!({"name_prefix": "other-"}))).await;
        let paths: Vec<String> = replaced.requires_replace.iter().map(ToString::to_string).collect();
        assert_eq!(paths, ["name_prefix"], "{type_name}");
        assert!(replaced.planned.get("name").is_unknown(), "{type_name}");
        assert!(stage.destroy().await.is_clean() && other.destroy().await.is_clean(), "{type_name}");
        assert_eq!(plane.count(kind).await, 0, "{type_name}");
    }
    plane.close().await;
}

#[tokio::test]
async fn an_attachment_of_another_disk_is_planned_under_its_new_name_and_is_the_only_user_of_the_disk() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut attachment = Stage::new(&provider, "berth_hotswap_disk_attachment");
    let config = |disk: &str| json!({"vm": "web", "disk": disk, "wait_for": "none"});
    let made = attachment.apply(&config("a")).await;
    assert!(!diagnostic::has_errors(&made.diagnostics), "{}", made.text());
    assert_eq!(attachment.state.get("name").as_str(), Some("web-a"));
    // Terraform plans a replacement twice.
    for prior in [attachment.state.clone(), tfplugin6::Value::Null] {
        let plan = attachment.plan_from(prior, &config("b")).await;
        assert_eq!(plan.planned.get("name").as_str(), Some("web-b"));
        let text = text_of(&plan.diagnostics);
        assert!(!text.contains("Two users"), "{text}");
    }
    plane.close().await;
}

#[tokio::test]
async fn a_prefix_is_validated_and_admission_decides_on_the_plan() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let stage = Stage::new(&provider, "berth_disk");
    let long = "a".repeat(54);
    for (names, words) in [
        (json!({}), "Missing name: Set name, or set name_prefix"),
        (json!({"name": "a", "name_prefix": "b"}), "Both name and name_prefix"),
        (json!({"name_prefix": ""}), "cannot begin a name"),
        (json!({"name_prefix": "Web-"}), "\"Web-\" cannot begin a name"),
        (json!({"name_prefix": long}), "1 to 53 characters, to which 10 are added"),
    ] {
        let text = text_of(&stage.validate(&with(json!({"size": "1Gi"}), names)).await);
        assert!(text.starts_with("Error") && text.contains(words), "{text}");
    }
    let attachment = Stage::new(&provider, "berth_hotswap_disk_attachment");
    assert_eq!(text_of(&attachment.validate(&json!({"vm": "a", "disk": "b"})).await), "");
    let host = Stage::new(&provider, "berth_host");
    assert!(text_of(&host.validate(&json!({"name": "h"})).await).is_empty());
    // A pool outside of what admission allows.
    let pool = Stage::new(&provider, "berth_ip_pool");
    let plan = pool
        .plan(&json!({"name_prefix": "p-", "cidrs": ["192.0.2.0/24", "192.0.2.0/24"], "mode": "x"}))
        .await;
    let text = text_of(&plan.diagnostics);
    assert!(text.contains("was refused") && text.contains("mode"), "{text}");
    assert_eq!(plane.count("IPPool").await, 0);

    // An object that has the prefix and no generated name is kept; one without it is replaced.
    let mut disk = Stage::new(&provider, "berth_disk");
    disk.apply(&json!({"name": "web-root", "size": "1Gi"})).await;
    let uid = disk.state.get("uid").clone();
    let config = json!({"name_prefix": "web-", "size": "1Gi"});
    assert!(disk.plan(&config).await.requires_replace.is_empty());
    disk.apply(&config).await;
    assert_eq!((disk.state.get("uid"), disk.state.get("name").as_str()), (&uid, Some("web-root")));
    assert!(disk.plan_is_empty(&config).await);
    let other = disk.plan(&json!({"name_prefix": "db-", "size": "1Gi"})).await;
    assert!(!other.requires_replace.is_empty());
    // Also one whose kind plans values anew.
    let source = json!({"url": "https://a.example/x", "sha256": "0".repeat(64)});
    let mut image = Stage::new(&provider, "berth_image");
    image.apply(&json!({"name": "debian-12", "source": source})).await;
    let config = json!({"name_prefix": "debian-", "source": source});
    assert!(image.plan(&config).await.requires_replace.is_empty());
    // A name that is not known yet may be another one.
    let unknown = disk.plan(&json!({"name": "<unknown>", "size": "1Gi"})).await;
    assert!(!unknown.requires_replace.is_empty());
    plane.close().await;
}

/// Plays one create that is interrupted at one request, and the apply after it. False: the create makes fewer requests.
async fn course(plane: &ControlPlane, story: &Story, by: Interruption, at: usize) -> bool {
    let (type_name, kind, config) = story;
    let prefix = format!("{}-{at}-", format!("{by:?}").to_lowercase());
    let config = with(config.clone(), json!({"name_prefix": prefix}));
    let count = async || {
        let list = plane.objects(kind).list(&ListParams::default()).await.expect("a list").items;
        list.iter()
            .filter(|object| object.metadata.name.as_ref().is_some_and(|n| n.starts_with(&prefix)))
            .count()
    };
    let (client, line) = plane.interrupted(at, by);
    let mut stage = Stage::new(&provider(&client, "default"), type_name);
    let seconds = json!({"create": "1s", "update": "20s", "delete": "20s", "read": "20s"});
    let created = stage.apply(&with(config.clone(), json!({"timeouts": seconds}))).await;
    let mut after = Stage::new(&provider(&plane.client, "default"), type_name);
    (after.state, after.private) = (stage.state, stage.private);
    let course = format!("{kind}, {by:?} request {at}: {}", created.text());
    if !after.state.is_null() {
        assert_eq!(text_of(&after.read().await), "", "{course}");
    }
    // As Terraform does with the state of a create that has failed.
    if created.tainted && !after.state.is_null() {
        assert!(after.destroy().await.is_clean(), "{course}");
    }
    let completed = after.apply(&config).await;
    assert!(
        !diagnostic::has_errors(&completed.diagnostics),
        "{course}
{}",
        completed.text()
    );
    assert_eq!(count().await, 1, "{course}");
    assert!(after.plan_is_empty(&config).await, "{course}");
    assert!(after.destroy().await.is_clean(), "{course}");
    assert_eq!(count().await, 0, "{course}");
    line.is_reached()
}

/// A type, its kind, and a configuration.
type Story = (&'static str, &'static str, Json);

/// More requests than any create makes.
const MOST_REQUESTS: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_loses_its_connection_leaves_no_object_behind() {
    let plane = ControlPlane::in_memory().await;
    plane.stock(&["web-root"]).await;
    let stories: [Story; 2] = [
        ("berth_public_ip", "PublicIP", json!({})),
        (
            "berth_vm",
            "VM",
            json!({"class": "small", "disks": [{"name": "web-root", "boot": true}], "bootstrap": {"user_data": "#!/bin/sh
"}}),
        ),
    ];
    for story in &stories {
        for by in [Interruption::CutBefore, Interruption::CutAfter] {
            let courses = (1..=MOST_REQUESTS).map(|at| course(&plane, story, by, at));
            let reached = futures::future::join_all(courses).await;
            assert_eq!((reached.first(), reached.last()), (Some(&true), Some(&false)), "{by:?}");
        }
    }
    plane.close().await;
}

const CREATE_BEFORE_DESTROY: &str = include_str!("terraform/names.tf");

#[tokio::test]
async fn with_create_before_destroy_a_vm_and_its_disk_are_replaced_by_others_that_exist_first() {
    let directory = tempfile::tempdir().expect("a new directory");
    let work = directory.path().join("work");
    fs::create_dir(&work).expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let Some(terraform) = Terraform::new(&work, &kubeconfig) else { return };
    fs::write(work.join("main.tf"), CREATE_BEFORE_DESTROY).expect("a new file");
    let plane = ControlPlane::listening(&directory.path().join("state"), &kubeconfig).await;
    terraform.ok(&["apply", "-auto-approve"]).await;
    terraform.assert_nothing_to_do(&[], "after apply").await;
    let only = async |kind: &str| {
        let list = plane.objects(kind).list(&ListParams::default()).await.expect("a list").items;
        let names: Vec<String> = list.into_iter().filter_map(|object| object.metadata.name).collect();
        assert_eq!(names.len(), 1, "{names:?}");
        names.into_iter().next().expect("one")
    };
    let (vm, disk) = (only("VM").await, only("Disk").await);
    assert!(vm.starts_with("web-") && disk.starts_with("web-root-"), "{vm} {disk}");
    let again = ["-var=turn=2"];
    let text = terraform.ok(&[&["apply", "-auto-approve"], &again[..]].concat()).await;
    assert!(text.contains("2 added, 1 changed, 2 destroyed"), "{text}");
    let position = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}: {text}"));
    assert!(position("berth_vm.web: Creation complete") < position("berth_vm.web (deposed object"), "{text}");
    let (other_vm, other_disk) = (only("VM").await, only("Disk").await);
    assert!(other_vm != vm && other_disk != disk, "{other_vm} {other_disk}");
    assert!(text.contains(&format!("vm = \"{other_vm}\"")), "{text}");
    assert_eq!(plane.object("VM", &other_vm).await["spec"]["disks"][0]["name"], other_disk.as_str());
    terraform.assert_nothing_to_do(&again, "after the replacement").await;

    for address in ["berth_vm.web", "berth_disk.root"] {
        terraform.ok(&["state", "rm", address]).await;
    }
    terraform.ok(&["import", again[0], "berth_disk.root", &other_disk]).await;
    terraform.ok(&["import", again[0], "berth_vm.web", &other_vm]).await;
    terraform.assert_nothing_to_do(&again, "after import").await;
    let text = terraform.ok(&["destroy", "-auto-approve"]).await;
    assert!(text.contains("4 destroyed"), "{text}");
    plane.close().await;
}
