//! A real Terraform drives the example provider: every rule that its core enforces is enforced here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../toy/binary.rs"]
mod binary;
mod workspace;

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use workspace::Workspace;

#[test]
fn what_is_applied_plans_empty_and_is_destroyed() {
    let Some(workspace) = Workspace::new() else { return };
    workspace.write(EVERYTHING);
    workspace.succeeds(&["apply", "-auto-approve"]);
    assert!(workspace.plan_is_empty(), "the second plan is not empty");
    let state = workspace.state();
    let thing = &state["values"]["root_module"]["resources"][0]["values"];
    assert_eq!(thing["id"], "thing-web");
    assert_eq!(thing["size"], 1, "the default");
    assert_eq!(thing["disks"][1]["gib"], 10, "the default of a nested attribute");
    assert_eq!(thing["disks"][0]["serial"], "web/root/1");
    assert_eq!(thing["nics"]["eth0"]["serial"], "web/eth0/1");
    assert_eq!(thing["password_length"], 6, "the write-only value reached apply");
    assert_eq!(thing["password"], serde_json::Value::Null);
    assert!(!workspace.raw_state().contains("secret"), "a write-only value is in the state");
    assert!(workspace.raw_state().contains("123456789012345678901234567890.5"), "a big number lost digits");
    workspace.succeeds(&["destroy", "-auto-approve"]);
    assert!(workspace.state()["values"].is_null());
}

const EVERYTHING: &str = r#"
resource "toy_thing" "web" {
  name     = "web"
  labels   = { tier = "front", big = "x" }
  tags     = ["b", "a"]
  anything = { n = 123456789012345678901234567890.5, list = [1, "two"] }
  password = "secret"
  disks    = [{ name = "root", gib = 20 }, { name = "data" }]
  rules    = [{ port = 80 }, { port = 443 }]
  nics     = { eth0 = { name = "x" } }
  timeouts { create = "5m" }
}
"#;

#[test]
fn an_update_plans_only_the_changes() {
    let Some(workspace) = Workspace::new() else { return };
    let with = |size: &str, disks: &str| {
        workspace.write(&format!(
            r#"resource "toy_thing" "web" {{
                 name = "web"
                 size = {size}
                 disks = [{disks}]
               }}"#
        ));
    };
    with("1", r#"{ name = "root" }, { name = "data" }"#);
    workspace.succeeds(&["apply", "-auto-approve"]);

    with("2", r#"{ name = "new" }, { name = "root" }, { name = "data" }"#);
    let plan = workspace.succeeds(&["plan", "-no-color"]);
    assert!(plan.contains("0 to add, 1 to change, 0 to destroy"), "{plan}");
    workspace.succeeds(&["apply", "-auto-approve"]);
    let thing = &workspace.state()["values"]["root_module"]["resources"][0]["values"];
    assert_eq!(thing["revision"], 2);
    assert_eq!(thing["id"], "thing-web");
    assert_eq!(thing["disks"][0]["serial"], "web/new/2");
    assert_eq!(thing["disks"][1]["serial"], "web/root/1", "a serial follows its disk to another place");
    assert!(workspace.plan_is_empty());
}

#[test]
fn a_changed_name_replaces() {
    let Some(workspace) = Workspace::new() else { return };
    workspace.write(r#"resource "toy_thing" "web" { name = "web" }"#);
    workspace.succeeds(&["apply", "-auto-approve"]);
    workspace.write(r#"resource "toy_thing" "web" { name = "www" }"#);
    let plan = workspace.succeeds(&["plan", "-no-color"]);
    assert!(plan.contains("must be replaced") && plan.contains("forces replacement"), "{plan}");
}

#[test]
fn two_unknown_elements_of_a_set_stay_two() {
    let Some(workspace) = Workspace::new() else { return };
    workspace.write(
        r#"
        resource "toy_thing" "a" { name = "a" }
        resource "toy_thing" "b" { name = "b" }
        resource "toy_thing" "both" {
          name  = "both"
          tags  = [toy_thing.a.id, toy_thing.b.id]
          rules = [{ port = toy_thing.a.revision }, { port = toy_thing.b.revision + 1 }]
        }
        "#,
    );
    workspace.succeeds(&["apply", "-auto-approve"]);
    assert!(workspace.plan_is_empty());
    assert!(workspace.raw_state().contains("both/2/1"));
}

#[test]
fn a_failed_create_leaves_a_tainted_partial_state() {
    let Some(workspace) = Workspace::new() else { return };
    workspace.write(
        r#"resource "toy_thing" "web" { 
      name = "web"
      fault = "create"
    }"#,
    );
    let output = workspace.fails(&["apply", "-auto-approve", "-no-color"]);
    assert!(output.contains("Failed on request") && output.contains("fault = \"create\""), "{output}");
    let resource = &workspace.state()["values"]["root_module"]["resources"][0];
    assert_eq!(resource["tainted"], true);
    assert_eq!(resource["values"]["id"], "thing-web");
    workspace.succeeds(&["destroy", "-auto-approve"]);
}

#[test]
fn a_panic_in_a_resource_is_an_error_of_that_resource() {
    let Some(workspace) = Workspace::new() else { return };
    workspace.write(
        r#"
        resource "toy_thing" "good" { name = "good" }
        resource "toy_thing" "bad" {
          name  = "bad"
          fault = "panic"
        }
        "#,
    );
    let output = workspace.fails(&["plan", "-no-color"]);
    assert!(output.contains("panicked in plan") && output.contains("requested"), "{output}");
    assert!(output.contains("toy_thing.good will be created"), "{output}");
}

#[test]
fn an_interrupt_cancels_a_create() {
    let Some(workspace) = Workspace::new() else { return };
    workspace.write(
        r#"resource "toy_thing" "slow" { 
      name = "slow"
      delay_ms = 60000
    }"#,
    );
    let apply = workspace.start(&["apply", "-auto-approve", "-no-color"]);
    apply.wait_for("Still creating...", "toy_thing.slow: Creating...");
    apply.interrupt();
    let output = apply.output();
    // Only a create that is cancelled before its delay is over reports this.
    assert!(output.contains("half made"), "{output}");
    assert_eq!(workspace.state()["values"]["root_module"]["resources"][0]["tainted"], true);
}

#[test]
fn functions_data_sources_ephemeral_resources_and_imports_work() {
    let Some(workspace) = Workspace::new() else { return };
    workspace.write(
        r#"
        ephemeral "toy_token" "t" { length = 7 }
        data "toy_echo" "e" { text = provider::toy::join("-", "a", "b") }
        resource "toy_thing" "web" {
          name     = "web"
          password = ephemeral.toy_token.t.token
        }
        import {
          to = toy_thing.old
          id = "old"
        }
        resource "toy_thing" "old" { name = "old" }
        output "heard" { value = data.toy_echo.e.heard }
        output "length" { value = toy_thing.web.password_length }
        "#,
    );
    let output = workspace.succeeds(&["apply", "-auto-approve", "-no-color"]);
    assert!(output.contains("1 imported, 1 added, 0 changed"), "{output}");
    assert!(output.contains("heard = \"a-b\"") && output.contains("length = 7"), "{output}");
    assert!(workspace.plan_is_empty());
}

#[test]
fn an_older_state_is_upgraded() {
    let Some(workspace) = Workspace::new() else { return };
    workspace.write(r#"resource "toy_thing" "web" { name = "web" }"#);
    workspace.succeeds(&["apply", "-auto-approve"]);
    let state = workspace.raw_state();
    let older = state
        .replace("\"schema_version\": 1", "\"schema_version\": 0")
        .replace("\"name\": \"web\",\n            \"nics\"", "\"title\": \"web\",\n            \"nics\"");
    assert_ne!(
        state,
        older.replace("\"schema_version\": 0", "\"schema_version\": 1"),
        "the state looks different"
    );
    workspace.write_raw_state(&older);
    assert!(workspace.plan_is_empty());
}

#[test]
fn attributes_a_newer_schema_no_longer_has_are_dropped() {
    let Some(workspace) = Workspace::new() else { return };
    workspace.write(r#"resource "toy_thing" "web" { name = "web" }"#);
    workspace.succeeds(&["apply", "-auto-approve"]);
    let state = workspace.raw_state();
    let more =
        state.replace("\"name\": \"web\",", "\"name\": \"web\",\n            \"removed_attribute\": [1],");
    assert_ne!(state, more);
    workspace.write_raw_state(&more);
    assert!(workspace.plan_is_empty());
}

#[test]
fn the_log_reaches_terraform_line_by_line() {
    let Some(workspace) = Workspace::new() else { return };
    workspace.write(
        "provider \"toy\" { greeting = \"hello\" }\nresource \"toy_thing\" \"web\" { name = \"web\" }",
    );
    let log = workspace.log_of(&["plan"]);
    let line = log.lines().find(|line| line.contains("configured")).expect("the provider logs this at info");
    assert!(line.contains("[INFO]") && line.contains("provider.terraform-provider-toy"), "{line}");
    assert!(line.contains("greeting=hello") && line.contains("tf_rpc=configure"), "{line}");
}

#[test]
fn a_provider_in_a_debugger_serves_one_terraform_after_another() {
    let Some(workspace) = Workspace::new() else { return };
    workspace.write(r#"resource "toy_thing" "web" { name = "web" }"#);
    let mut provider = Command::new(binary::toy()).arg("--debug").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(provider.stdout.take().unwrap()).lines().map(Result::unwrap);
    let providers =
        lines.find_map(|line| line.trim().strip_prefix("TF_REATTACH_PROVIDERS=").map(str::to_owned));
    let providers = providers.expect("the variable is printed").trim_matches('\'').to_owned();

    for arguments in
        [&["apply", "-auto-approve"][..], &["plan", "-detailed-exitcode"], &["destroy", "-auto-approve"]]
    {
        let output = workspace.run_reattached(&providers, arguments);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert!(provider.try_wait().unwrap().is_none(), "it is still there");
    let interrupted = Command::new("kill").args(["-INT", &provider.id().to_string()]).status();
    assert!(interrupted.unwrap().success());
    assert!(provider.wait().unwrap().success(), "Ctrl-C ends it");
}
