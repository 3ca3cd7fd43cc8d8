//! Changes that restart a VM, and changes that wait for its power cycle.

use serde_json::{Value as Json, json};
use tfplugin6::{Diagnostic, Value};

use super::{no_errors, vm, with};
use crate::{
    control_plane::ControlPlane,
    stage::{Stage, provider, text_of},
};

async fn token(plane: &ControlPlane, name: &str) -> Option<String> {
    let object = plane.object("VM", name).await;
    object.pointer("/spec/restartToken").and_then(Json::as_str).map(str::to_owned)
}

#[tokio::test]
async fn a_restart_token_of_the_users_goes_together_with_what_else_restarts() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut machine = Stage::new(&provider, "berth_vm");
    let config =
        |changes: Json| with(with(vm("web"), json!({"restart_token": "1+a", "allow_reboot": true})), changes);
    machine.apply(&config(json!({}))).await;
    assert_eq!(token(&plane, "web").await.as_deref(), Some("1+a"));
    let larger = config(json!({"class": "large"}));
    let applied = machine.apply(&larger).await;
    assert!(applied.text().contains("will be restarted"), "{}", applied.text());
    let first = token(&plane, "web").await.expect("there is one");
    assert!(first.starts_with("1+a+terraform-"), "{first}");
    machine.read().await;
    assert_eq!(machine.state.get("restart_token").as_str(), Some("1+a"));
    assert!(machine.plan_is_empty(&larger).await);
    // Another restart, by the policy for bootstrap data.
    let data =
        json!({"class": "large", "bootstrap": {"user_data": "#!/bin/sh\n", "user_data_policy": "reboot"}});
    machine.apply(&config(data.clone())).await;
    let second = token(&plane, "web").await.expect("there is one");
    assert!(second.starts_with("1+a+terraform-") && second != first, "{first} {second}");
    // And one by the user alone, which keeps the provider's part.
    let mut third = config(data);
    third["restart_token"] = "2".into();
    machine.apply(&third).await;
    assert_eq!(token(&plane, "web").await, Some(second.replace("1+a+", "2+")));
    machine.read().await;
    assert!(machine.plan_is_empty(&third).await);
    plane.close().await;
}

#[tokio::test]
async fn another_size_restarts_a_vm_that_may_be_restarted_also_beside_bootstrap_data_that_is_ignored() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut machine = Stage::new(&provider, "berth_vm");
    let config = |cpus: i64, hostname: &str| {
        let bootstrap = json!({"hostname": hostname, "user_data_policy": "ignore"});
        with(vm("web"), json!({"class": null, "cpus": cpus, "allow_reboot": true, "bootstrap": bootstrap}))
    };
    let made = machine.apply(&config(1, "a")).await;
    assert!(no_errors(&made.diagnostics), "{}", made.text());
    let plan = machine.plan(&config(2, "b")).await;
    let text = text_of(&plan.diagnostics);
    assert!(text.contains("The VM will be restarted: cpus: "), "{text}");
    assert_eq!(plan.planned.get("bootstrap").get("hostname").as_str(), Some("a"));
    plane.close().await;
}

#[tokio::test]
async fn a_restart_token_is_refused_in_the_plan_and_by_the_control_plane_unless_the_vm_is_to_run() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut machine = Stage::new(&provider, "berth_vm");
    for power in ["Stopped", "Paused", "Suspended"] {
        let config = with(vm("web"), json!({"power": power}));
        let applied = machine.apply(&config).await;
        assert!(applied.is_clean(), "{}", applied.text());
        let with_token = with(config.clone(), json!({"restart_token": power}));
        let why = format!("while power is {power}: ");
        let plan = machine.plan(&with_token).await;
        let text = text_of(&plan.diagnostics);
        assert!(text.contains(&why) && text.contains("restart_token cannot change"), "{text}");
        assert!(!plan.diagnostics.iter().any(Diagnostic::is_error), "{text}");
        let applied = machine.apply(&with_token).await;
        assert!(applied.text().contains(&why), "{}", applied.text());
        let refused = plane.edit_refused("VM", "web", json!({"spec": {"restartToken": power}})).await;
        assert!(refused.contains(&why) && refused.contains("spec.restartToken"), "{refused}");
        assert!(plane.object("VM", "web").await["spec"].get("restartToken").is_none());
    }
    // With the power that starts it, a token is taken up by the start.
    let applied = machine.apply(&with(vm("web"), json!({"restart_token": "1"}))).await;
    assert!(applied.is_clean(), "{}", applied.text());
    // Its removal requests nothing, so it is allowed; also beside a token of the provider's own.
    let resized = with(vm("web"), json!({"restart_token": "1", "allow_reboot": true, "class": "large"}));
    machine.apply(&resized).await;
    assert!(
        plane.object("VM", "web").await["spec"]["restartToken"].as_str().is_some_and(|t| t.contains('+'))
    );
    let stopped = with(resized, json!({"power": "Stopped"}));
    machine.apply(&stopped).await;
    let applied = machine.apply(&with(stopped, json!({"restart_token": null}))).await;
    assert!(applied.is_clean(), "{}", applied.text());
    assert!(plane.object("VM", "web").await["spec"].get("restartToken").is_none());
    plane.close().await;
}

#[tokio::test]
async fn another_boot_disk_restarts_the_vm_where_that_is_allowed() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    let mut machine = Stage::new(&provider, "berth_vm");
    machine.apply(&vm("web")).await;
    let other = with(vm("web"), json!({"disks": [{"name": "new-root", "boot": true}]}));
    let plan = machine.plan(&other).await;
    assert!(text_of(&plan.diagnostics).contains("next power cycle"), "{}", text_of(&plan.diagnostics));
    let allowed = with(other, json!({"allow_reboot": true}));
    let applied = machine.apply(&allowed).await;
    assert!(applied.text().contains("will be restarted"), "{}", applied.text());
    assert!(token(&plane, "web").await.is_some_and(|token| token.starts_with("terraform-")));
    machine.read().await;
    assert!(machine.plan_is_empty(&allowed).await);
    plane.close().await;
}

#[tokio::test]
async fn what_waits_for_a_power_cycle_is_listed_and_a_later_allow_reboot_restarts_the_vm() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.stock(&["root"]).await;
    let mut machine = Stage::new(&provider, "berth_vm");
    let made = machine.apply(&vm("web")).await;
    assert!(made.is_clean(), "{}", made.text());
    let pending = |machine: &Stage| {
        let names = machine.state.get("pending_power_cycle").elements().to_vec();
        names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(machine.state.get("pending_power_cycle"), &Value::List(Vec::new()));
    let synced = json!(null);
    let waits = |plane: &ControlPlane, expected: Json| {
        let api = plane.objects("VM");
        async move {
            loop {
                let vm =
                    serde_json::to_value(api.get("web").await.expect("it is there")).expect("plain data");
                if *vm.pointer("/status/pendingPowerCycle").unwrap_or(&Json::Null) == expected {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
    };

    // Another client edits the class; the configuration stays as it is.
    plane.declare_as("others", "VMClass", "small", json!({"cpus": 4, "memory": "1Gi"})).await;
    waits(&plane, json!(["cpus", "memory"])).await;
    assert_eq!(text_of(&machine.read().await), "");
    assert_eq!(pending(&machine), ["cpus", "memory"]);
    let plan = machine.plan(&vm("web")).await;
    let text = text_of(&plan.diagnostics);
    assert!(plan.planned == machine.state && no_errors(&plan.diagnostics), "{text}");
    let words = "Warning: Changes wait for the next power cycle: pending_power_cycle: These changes take effect when the VM is next \
                 started: cpus, memory.";
    assert!(text.starts_with(words) && text.contains("allow_reboot = true"), "{text}");
    // Neither another change nor an apply without permission restarts it.
    let later = with(vm("web"), json!({"restart_policy": "Always"}));
    let applied = machine.apply(&later).await;
    assert!(
        applied.text().contains("cpus, memory") && !applied.text().contains("restarted"),
        "{}",
        applied.text()
    );
    assert_eq!(token(&plane, "web").await, None);
    assert_eq!(pending(&machine), ["cpus", "memory"]);
    // A VM that is stopped waits for nothing.
    let stops = machine.plan(&with(later.clone(), json!({"power": "Stopped"}))).await;
    assert!(!text_of(&stops.diagnostics).contains("power cycle"), "{}", text_of(&stops.diagnostics));

    let allowed = with(later, json!({"allow_reboot": true}));
    // While it is not known whether it is allowed, both may follow.
    let unknown = machine.plan(&with(allowed.clone(), json!({"allow_reboot": "<unknown>"}))).await;
    assert!(unknown.planned.get("pending_power_cycle").is_unknown() && unknown.diagnostics.is_empty());
    let plan = machine.plan(&allowed).await;
    let text = text_of(&plan.diagnostics);
    let words = "allow_reboot is true, and these changes wait for the next power cycle: cpus, memory.";
    assert!(text.starts_with("Warning: The VM will be restarted") && text.contains(words), "{text}");
    assert_eq!(plan.diagnostics.len(), 1, "{text}");
    let uid = machine.state.get("uid").clone();
    let applied = machine.apply_plan(plan, &allowed).await;
    assert!(applied.is_clean(), "{}", applied.text());
    let first = token(&plane, "web").await.expect("a restart was requested");
    waits(&plane, synced.clone()).await;
    assert_eq!(plane.object("VM", "web").await["status"]["hardware"]["cpus"], 4);
    assert_eq!((pending(&machine).len(), machine.state.get("uid")), (0, &uid));
    assert_eq!(machine.state.get("allow_reboot").as_bool(), Some(true));
    machine.read().await;
    assert!(machine.plan_is_empty(&allowed).await);

    // With the permission there already, the next apply restarts it again, once.
    plane.declare_as("others", "VMClass", "small", json!({"cpus": 2, "memory": "1Gi"})).await;
    waits(&plane, json!(["cpus"])).await;
    machine.read().await;
    let applied = machine.apply(&allowed).await;
    assert!(
        applied.text().contains("The VM will be restarted") && no_errors(&applied.diagnostics),
        "{}",
        applied.text()
    );
    assert_ne!(token(&plane, "web").await, Some(first));
    waits(&plane, synced).await;
    machine.read().await;
    assert!(machine.plan_is_empty(&allowed).await);
    plane.close().await;
}

#[tokio::test]
async fn a_vm_that_moves_live_waits_for_its_next_stop_unless_both_hosts_offer_live_migration() {
    let plane = ControlPlane::in_memory().await;
    plane.stock(&["root"]).await;
    for host in ["host-a", "host-b", "host-c"] {
        plane.host(host, json!({})).await;
    }
    let placed = |host: &str, more: Json| {
        let on = json!({"placement": {"host": host, "move_policy": "Live"}});
        with(with(vm("web"), on), more)
    };
    // Each run of Terraform reads the hosts once.
    let none_offers = provider(&plane.client, "default");
    let mut machine = Stage::new(&none_offers, "berth_vm");
    let made = machine.apply(&placed("host-a", json!({}))).await;
    assert!(made.is_clean(), "{}", made.text());
    let text = text_of(&machine.plan(&placed("host-b", json!({}))).await.diagnostics);
    assert!(text.contains("next power cycle") && text.contains("do not offer live migration"), "{text}");
    let allowed = placed("host-b", json!({"allow_reboot": true}));
    let applied = machine.apply(&allowed).await;
    assert!(applied.text().contains("will be restarted"), "{}", applied.text());
    assert!(token(&plane, "web").await.is_some_and(|token| token.starts_with("terraform-")));
    machine.read().await;
    assert!(machine.plan_is_empty(&allowed).await);

    let offers = async |host: &str| {
        plane.edit("Host", host, json!({"metadata": {"labels": {"live": "true"}}})).await;
        while plane.object("Host", host).await["status"]["liveMigration"] != true {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    for (host, is_live) in [("host-a", false), ("host-c", true)] {
        offers(host).await;
        let run = provider(&plane.client, "default");
        let machine = Stage::new(&run, "berth_vm").with_state_of(&machine);
        for more in [json!({}), json!({"allow_reboot": true})] {
            let text = text_of(&machine.plan(&placed("host-c", more.clone())).await.diagnostics);
            assert_eq!(!text.contains("do not offer live migration"), is_live, "{more}: {text}");
            let is_restarted = !is_live && more.get("allow_reboot").is_some();
            assert_eq!(text.contains("will be restarted"), is_restarted, "{more}: {text}");
            let waits = !is_live && !is_restarted;
            assert_eq!(text.contains("at the next power cycle"), waits, "{more}: {text}");
        }
    }
    plane.close().await;
}

#[tokio::test]
async fn an_apply_warns_of_a_guest_that_does_not_take_the_memory_it_was_to_get_at_once() {
    let plane = ControlPlane::in_memory().await;
    let provider = provider(&plane.client, "default");
    plane.stock(&["root"]).await;
    let mut machine = Stage::new(&provider, "berth_vm");
    let sized = |memory: &str| with(vm("web"), json!({"memory": memory, "max_memory": "2Gi"}));
    let made = machine.apply(&sized("512Mi")).await;
    assert!(made.is_clean(), "{}", made.text());
    // The guests of this control plane plug nothing in.
    let plan = machine.plan(&sized("1Gi")).await;
    assert!(!text_of(&plan.diagnostics).contains("power cycle"), "{}", text_of(&plan.diagnostics));
    let applied = machine.apply_plan(plan, &sized("1Gi")).await;
    assert!(applied.text().starts_with("Warning: The guest has not taken the memory"), "{}", applied.text());
    assert_eq!(applied.diagnostics.len(), 1, "{}", applied.text());
    // From then on the plan warns.
    let plan = machine.plan(&sized("1Gi")).await;
    assert!(text_of(&plan.diagnostics).contains("next power cycle"), "{}", text_of(&plan.diagnostics));
    let applied = machine.apply_plan(plan, &sized("1Gi")).await;
    assert!(!applied.text().contains("has not taken"), "{}", applied.text());
    plane.close().await;
}
