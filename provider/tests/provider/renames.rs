//! A resource that is renamed without a `moved` block: one run destroys and creates the same object.

use std::fs;

use serde_json::{Value as Json, json};
use terraform_provider_berth::BerthProvider;
use tfplugin6::diagnostic;

use crate::{
    control_plane::ControlPlane,
    lifecycle::{stories, with},
    stage::{Stage, provider, text_of},
    terraform::Terraform,
};

/// A kind, its configuration, and an object with that configuration at one address.
async fn existing(plane: &ControlPlane, kind: &str) -> (&'static str, Json, Stage) {
    let story = stories().into_iter().find(|(_, story, ..)| *story == kind);
    let (type_name, _, config, _) = story.expect("every kind but Host has a story");
    let mut old = Stage::new(&provider(&plane.client, "default"), type_name);
    let made = old.apply(&config).await;
    assert!(made.is_clean(), "{}", made.text());
    (type_name, config, old)
}

#[tokio::test]
async fn an_object_that_a_plan_destroys_and_creates_stays_in_whichever_order_it_is_applied() {
    let plane = ControlPlane::in_memory().await;
    for kind in ["VMClass", "Disk", "VM", "HotswapDiskAttachment"] {
        for destroys_first in [true, false] {
            let (type_name, config, mut old) = existing(&plane, kind).await;
            if kind == "VM" {
                // A restart leaves a token that only the private data of the old address has.
                let restarted =
                    old.apply(&with(config.clone(), json!({"class": "large", "allow_reboot": true}))).await;
                assert!(restarted.text().contains("will be restarted"), "{}", restarted.text());
            }
            let config = if kind == "VM" { with(config, json!({"class": "large"})) } else { config };
            let before = plane.object(kind, old.state.get("name").as_str().expect("a name")).await;

            let plans = provider(&plane.client, "default");
            let created = Stage::new(&plans, type_name).plan(&config).await;
            assert!(!diagnostic::has_errors(&created.diagnostics), "{}", text_of(&created.diagnostics));
            let planned = Stage::new(&plans, type_name).with_state_of(&old).plan_destroy().await;
            let text = text_of(&planned.diagnostics);
            assert!(
                text.starts_with("Warning") && text.contains("stays") && text.contains("moved {"),
                "{text}"
            );

            // Terraform applies with other processes than it plans with.
            let applies = provider(&plane.client, "default");
            let mut old = Stage::new(&applies, type_name).with_state_of(&old);
            old.private = planned.private.expect("what the destroy remembers");
            let mut new = Stage::new(&applies, type_name);
            new.announce_named(&created.planned);
            let left = if destroys_first {
                let left = old.destroy().await;
                assert!(!diagnostic::has_errors(&new.apply_plan(created, &config).await.diagnostics));
                left
            } else {
                assert!(!diagnostic::has_errors(&new.apply_plan(created, &config).await.diagnostics));
                old.destroy().await
            };
            assert!(old.state.is_null() && left.text().contains("stays"), "{kind}: {}", left.text());
            let after = plane.object(kind, new.state.get("name").as_str().expect("a name")).await;
            assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"], "{kind}");
            assert_eq!(after["metadata"]["generation"], before["metadata"]["generation"], "{kind}");
            assert!(after["metadata"].get("deletionTimestamp").is_none(), "{kind}");
            assert!(new.plan_is_empty(&config).await, "{kind}");
            let mut new = Stage::new(&provider(&plane.client, "default"), type_name).with_state_of(&new);
            let destroyed = new.destroy().await;
            assert!(destroyed.is_clean() && plane.count(kind).await == 0, "{kind}: {}", destroyed.text());
        }
    }
    plane.close().await;
}

#[tokio::test]
async fn a_later_destroy_deletes_an_object_that_a_failed_apply_was_to_leave() {
    let plane = ControlPlane::in_memory().await;
    let (type_name, config, old) = existing(&plane, "VMClass").await;
    let plans = provider(&plane.client, "default");
    let _ = Stage::new(&plans, type_name).plan(&config).await;
    let planned = Stage::new(&plans, type_name).with_state_of(&old).plan_destroy().await;
    let mut kept = Stage::new(&provider(&plane.client, "default"), type_name).with_state_of(&old);
    kept.private = planned.private.expect("what the destroy remembers");
    // The other address is gone from the configuration.
    let planned = kept.plan_destroy().await;
    assert_eq!(text_of(&planned.diagnostics), "");
    kept.private = planned.private.expect("the destroy is planned anew");
    let destroyed = kept.destroy().await;
    assert!(destroyed.is_clean() && plane.count("VMClass").await == 0, "{}", destroyed.text());
    plane.close().await;
}

#[tokio::test]
async fn a_create_whose_object_the_plan_already_destroys_is_refused_and_another_object_is_not() {
    let plane = ControlPlane::in_memory().await;
    let (type_name, config, old) = existing(&plane, "VMClass").await;
    let plans = provider(&plane.client, "default");
    let destroyed = Stage::new(&plans, type_name).with_state_of(&old).plan_destroy().await;
    assert_eq!(text_of(&destroyed.diagnostics), "");
    let refused = text_of(&Stage::new(&plans, type_name).plan(&config).await.diagnostics);
    assert!(
        refused.starts_with("Error") && refused.contains("moved { from = berth_vm_class.OLD"),
        "{refused}"
    );
    for other in [json!({"cpus": 7}), json!({"name": "other"})] {
        let plan = Stage::new(&plans, type_name).plan(&with(config.clone(), other)).await;
        assert!(!diagnostic::has_errors(&plan.diagnostics), "{}", text_of(&plan.diagnostics));
    }
    plane.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_planned_destroy_waits_a_moment_for_the_create_where_a_configuration_is_planned() {
    let (plans, type_name) = (BerthProvider::default(), "berth_vm_class");
    let config = json!({"name": "small", "namespace": "default", "cpus": 1, "memory": "512Mi"});
    let mut old = Stage::new(&plans, type_name);
    old.state =
        Stage::new(&BerthProvider::default(), type_name).plan(&config).await.planned.unknown_as_null();
    let new = Stage::new(&plans, type_name);
    new.validate(&config).await;
    let later = async {
        tokio::time::sleep(std::time::Duration::from_millis(400)).await;
        new.plan(&config).await
    };
    let (destroyed, created) = tokio::join!(old.plan_destroy(), later);
    assert_eq!(text_of(&created.diagnostics), "");
    assert!(text_of(&destroyed.diagnostics).contains("stays"), "{}", text_of(&destroyed.diagnostics));
}

/// A name that the plan does not know, so that only the apply finds out.
#[tokio::test]
async fn without_a_plan_that_knows_both_the_object_is_adopted_or_created_again_and_never_lost() {
    let plane = ControlPlane::in_memory().await;
    for round in 0..20 {
        let (type_name, config, old) = existing(&plane, "VMClass").await;
        let applies = provider(&plane.client, "default");
        let mut new = Stage::new(&applies, type_name);
        let mut plan = new.plan(&with(config.clone(), json!({"name": "<unknown>"}))).await;
        plan.planned.set("name", config["name"].as_str());
        let mut old = Stage::new(&applies, type_name).with_state_of(&old);
        let (destroyed, created) = tokio::join!(old.destroy(), async {
            tokio::time::sleep(std::time::Duration::from_micros(200 * round)).await;
            new.apply_plan(plan, &config).await
        });
        assert!(!diagnostic::has_errors(&created.diagnostics), "{}", created.text());
        let uid = plane.object("VMClass", "small").await["metadata"]["uid"].clone();
        assert_eq!(new.state.get("uid").as_str(), uid.as_str(), "round {round}: {}", destroyed.text());
        let mut new = Stage::new(&provider(&plane.client, "default"), type_name).with_state_of(&new);
        assert!(new.destroy().await.is_clean());
    }
    plane.close().await;
}

#[tokio::test]
async fn a_host_keeps_what_its_new_address_declares() {
    let plane = ControlPlane::in_memory().await;
    plane.host("h1", json!({})).await;
    let config = json!({"name": "h1", "labels": {"disk": "ssd"}, "cordoned": true});
    let both = provider(&plane.client, "default");
    let mut old = Stage::new(&both, "berth_host");
    old.apply(&config).await;
    let mut new = Stage::new(&both, "berth_host");
    new.apply(&config).await;
    let left = old.destroy().await;
    assert!(left.text().contains("Host h1 stays"), "{}", left.text());
    let host = plane.object("Host", "h1").await;
    assert_eq!(
        (&host["spec"]["cordoned"], &host["metadata"]["labels"]["disk"]),
        (&json!(true), &json!("ssd"))
    );
    plane.close().await;
}

const CONFIGURATION: &str = r##"
terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}
resource "berth_vm_class" "LABEL" {
  name   = "small"
  cpus   = 1
  memory = "512Mi"
}
resource "berth_disk" "LABEL" {
  name                = "root"
  size                = "1Gi"
  deletion_protection = true
}
resource "berth_vm" "LABEL" {
  name      = "web"
  class     = berth_vm_class.LABEL.name
  disks     = [{ name = berth_disk.LABEL.name, boot = true }]
  bootstrap = { user_data = "#cloud-config\n" }
}
"##;

#[tokio::test]
async fn terraform_renames_resources_without_touching_their_objects() {
    let directory = tempfile::tempdir().expect("a new directory");
    let work = directory.path().join("work");
    fs::create_dir(&work).expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let Some(terraform) = Terraform::new(&work, &kubeconfig) else { return };
    let named = |label: &str| {
        fs::write(work.join("main.tf"), CONFIGURATION.replace("LABEL", label)).expect("a file of ours");
    };
    let plane = ControlPlane::listening(&directory.path().join("state"), &kubeconfig).await;
    named("old");
    terraform.ok(&["apply", "-auto-approve"]).await;
    let objects = async || {
        let mut found = Vec::new();
        for (kind, name) in [("VMClass", "small"), ("Disk", "root"), ("VM", "web")] {
            let metadata = plane.object(kind, name).await["metadata"].clone();
            assert!(metadata.get("deletionTimestamp").is_none(), "{kind}");
            found.push((metadata["uid"].clone(), metadata["generation"].clone()));
        }
        found
    };
    let before = objects().await;
    named("new");
    let mut refused = 0;
    loop {
        let output = terraform.run(&["apply", "-auto-approve"]).await;
        let text = crate::terraform::text(&output);
        assert_eq!(objects().await, before, "{text}");
        if output.status.success() {
            assert!(text.contains("VM default/web stays") && text.contains("moved {"), "{text}");
            break;
        }
        // The destroy was planned more than half a second before the create.
        assert!(text.contains("would be destroyed and created"), "{text}");
        refused += 1;
        assert!(refused < 10, "{text}");
    }
    terraform.assert_nothing_to_do(&[], "after the rename").await;
    let listed = terraform.ok(&["state", "list"]).await;
    assert_eq!(listed.lines().collect::<Vec<_>>(), ["berth_disk.new", "berth_vm.new", "berth_vm_class.new"]);
    plane.close().await;
}
