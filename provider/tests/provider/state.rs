//! States over time: what an earlier version of the provider wrote is read, and plans nothing; and what a state need not have.

use std::fs;

use serde_json::{Value as Json, json};

use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of},
    terraform::Terraform,
};

/// The attributes of `berth_vm` that came after the first version of its state, and those of its interfaces.
const LATER: [&str; 13] = [
    "addresses",
    "cpu_topology",
    "cpus",
    "firmware",
    "graphics",
    "max_cpus",
    "max_memory",
    "memory",
    "memory_reservation",
    "name_prefix",
    "pending_power_cycle",
    "restart_mode",
    "uuid",
];

/// The state of a VM as the first version wrote it.
fn as_first_written(instance: &mut Json, uid: &str) {
    let attributes = instance["attributes"].as_object_mut().expect("an object");
    for name in LATER {
        assert!(attributes.remove(name).is_some(), "{name} is an attribute");
    }
    attributes["network_interfaces"][0].as_object_mut().expect("an object").remove("model");
    attributes["stop"] = json!({"mode": "Graceful", "grace_period_seconds": 60});
    let private = json!({"uid": uid, "held": []}).to_string();
    instance["private"] = {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(private).into()
    };
    instance.as_object_mut().expect("an object").remove("identity");
}

#[tokio::test]
async fn a_state_of_the_first_version_is_read_and_plans_nothing() {
    let directory = tempfile::tempdir().expect("a new directory");
    let work = directory.path().join("work");
    fs::create_dir(&work).expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let Some(terraform) = Terraform::new(&work, &kubeconfig) else { return };
    let text = "terraform {\n  required_providers {\n    berth = { source = \"berth-vms/berth\" }\n  }\n}\n\nresource \"berth_vm\" \
                \"web\" {\n  name  = \"web\"\n  class = \"small\"\n  disks = [{ name = \"web-root\", boot = true }]\n}\n";
    fs::write(work.join("main.tf"), text).expect("the file is replaced");
    let plane = ControlPlane::listening(&directory.path().join("state"), &kubeconfig).await;
    plane.stock(&["web-root"]).await;
    terraform.ok(&["apply", "-auto-approve"]).await;
    let uid = plane.object("VM", "web").await["metadata"]["uid"].as_str().expect("a text").to_owned();

    let file = work.join("terraform.tfstate");
    let mut state: Json = serde_json::from_slice(&fs::read(&file).expect("a state")).expect("JSON");
    let instance = &mut state["resources"][0]["instances"][0];
    assert!(instance.get("private").is_none(), "nothing is stored twice: {instance}");
    assert_eq!(instance["attributes"]["stop"], Json::Null);
    as_first_written(instance, &uid);
    fs::write(&file, state.to_string()).expect("the file is replaced");
    terraform.assert_nothing_to_do(&[], "after the upgrade").await;

    // The next write has the attributes of today.
    let resized = text.replace("boot = true }]", "boot = true }]\n  power = \"Stopped\"");
    fs::write(work.join("main.tf"), resized).expect("the file is replaced");
    let text = terraform.ok(&["apply", "-auto-approve"]).await;
    assert!(text.contains("0 added, 1 changed, 0 destroyed"), "{text}");
    terraform.assert_nothing_to_do(&[], "after a change").await;
    plane.close().await;
}

#[tokio::test]
async fn an_object_of_defaults_is_not_in_the_state_and_still_declared() {
    let plane = ControlPlane::in_memory().await;
    plane.stock(&["root"]).await;
    let provider = provider(&plane.client, "default");
    let config = json!({"name": "web", "class": "small", "disks": [{"name": "root", "boot": true}]});
    let mut stage = Stage::new(&provider, "berth_vm");
    let made = stage.apply(&config).await;
    assert!(made.is_clean(), "{}", made.text());
    assert!(stage.state.get("stop").is_null());
    assert!(stage.plan_is_empty(&config).await);

    // Another client changes it: the plan shows that and the apply puts it right.
    plane.edit("VM", "web", json!({"spec": {"stop": {"mode": "Hard"}}})).await;
    assert!(stage.read().await.is_empty());
    assert_eq!(stage.state.get("stop").get("mode").as_str(), Some("Hard"));
    assert!(!stage.plan_is_empty(&config).await);
    let righted = stage.apply(&config).await;
    assert!(righted.is_clean(), "{}", righted.text());
    let stop = json!({"mode": "Graceful", "gracePeriodSeconds": 60});
    assert_eq!(plane.object("VM", "web").await["spec"]["stop"], stop);
    assert!(stage.plan_is_empty(&config).await);

    // Configured, it is in the state; the same words as the default change nothing of the object.
    let before = plane.object("VM", "web").await["metadata"]["generation"].clone();
    for (stop, mode) in
        [(json!({"mode": "Graceful"}), "Graceful"), (json!({"grace_period_seconds": 60}), "Graceful")]
    {
        let mut configured = config.clone();
        configured["stop"] = stop;
        let applied = stage.apply(&configured).await;
        assert!(applied.is_clean(), "{}", applied.text());
        assert_eq!(stage.state.get("stop").get("mode").as_str(), Some(mode));
        assert!(stage.plan_is_empty(&configured).await);
    }
    assert!(stage.plan_is_empty(&config).await, "left out again it means the same");
    assert_eq!(plane.object("VM", "web").await["metadata"]["generation"], before);

    // An import has nothing of it either.
    let mut imported = Stage::new(&provider, "berth_vm");
    let found = imported.import("default/web").await;
    assert!(found.is_empty(), "{}", text_of(&found));
    assert!(imported.state.get("stop").is_null());
    assert!(imported.plan_is_empty(&config).await);
    plane.close().await;
}
