//! The parts of the provider beside resources and data sources: functions and an ephemeral token in every program, queries and
//! actions in Terraform 1.14 and later.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::kubectl::contains_all;
use super::lifecycle;
use crate::guests::GuestImage;
use crate::http::{self, field};
use crate::platform::Platform;
use crate::report::{Report, note};
use crate::terraform::{Project, unwrapped};

const ANSWER: Duration = Duration::from_secs(120);

const FUNCTIONS: &str = r##"
output "results" {
  value = jsonencode({
    bytes    = provider::berth::quantity_bytes("4Gi")
    quantity = provider::berth::bytes_quantity(1536 * 1024 * 1024)
    address  = provider::berth::address_parse("10.0.0.5/24")
    merged = provider::berth::cloud_config_merge([
      provider::berth::cloud_config({ packages = ["nginx"], runcmd = [["touch", "/yes"]] }),
      "#cloud-config\nssh_pwauth: no\npackages: [curl]\n",
    ])
  })
}
"##;

const TOKEN: &str = r#"
ephemeral "berth_token" "deploy" {
  service_account    = "verbs"
  expiration_seconds = 600
}

provider "berth" {
  alias          = "deploy"
  host           = ephemeral.berth_token.deploy.host
  token          = ephemeral.berth_token.deploy.token
  ca_certificate = ephemeral.berth_token.deploy.ca_certificate
}

resource "berth_placement_group" "verbs" {
  provider = berth.deploy
  name     = "verbs"
}
"#;

const JOIN: &str = r#"
ephemeral "berth_host_token" "kvm_9" {
  host   = "kvm-9"
  server = "https://192.0.2.10:7443"
}

resource "terraform_data" "machine" {
  provisioner "local-exec" {
    command     = "printf %s \"$JOIN\" > join"
    environment = { JOIN = ephemeral.berth_host_token.kvm_9.join }
  }
}
"#;

const QUERY: &str = r#"
list "berth_vm" "found" {
  provider = berth
  config {
    label_selector = "query=yes"
  }
}

list "berth_disk" "found" {
  provider = berth
  config {
    label_selector = "query=yes"
  }
}

list "berth_network" "found" {
  provider = berth
  config {
    label_selector = "query=yes"
  }
}
"#;

const ACTIONS: &str = r#"
action "berth_vm_restart" "web" {
  config {
    name     = berth_vm.web.name
    wait_for = "guest"
  }
}

action "berth_vm_power" "off" {
  config {
    name            = berth_vm.web.name
    power           = "Stopped"
    force_conflicts = false
  }
}

action "berth_vm_power" "on" {
  config {
    name            = berth_vm.web.name
    power           = "Running"
    force_conflicts = true
    wait_for        = "guest"
  }
}

resource "terraform_data" "settings" {
  input = "first"

  lifecycle {
    action_trigger {
      events  = [after_update]
      actions = [action.berth_vm_restart.web]
    }
  }
}
"#;

const IGNORED: &str = r#"
resource "berth_vm" "web" {
  lifecycle {
    ignore_changes = [power]
  }
}
"#;

fn project(platform: &Platform, configuration: &str) -> Result<Project> {
    let project = platform.project_of(configuration)?;
    project.init()?;
    Ok(project)
}

/// Functions and a token: Terraform 1.11, OpenTofu 1.11 and later.
pub fn run(report: &mut Report, platform: &Platform) {
    let failed = report.count().failed;
    functions(report, platform);
    token(report, platform);
    join(report, platform);
    if report.count().failed > failed {
        note(&platform.keep_evidence());
    }
}

fn functions(report: &mut Report, platform: &Platform) {
    report.case("functions convert quantities and addresses and merge cloud-configs, without a control plane", || {
        let project = project(platform, FUNCTIONS)?.with_kubeconfig("/nonexistent".as_ref());
        let plan = project.plan()?;
        let results = plan.json["planned_values"]["outputs"]["results"]["value"].as_str().unwrap_or_default();
        let results: Value = serde_json::from_str(results)?;
        let merged = "#cloud-config\npackages:\n  - nginx\n  - curl\nruncmd:\n  - - touch\n    - /yes\nssh_pwauth: no\n";
        let address =
            json!({"address": "10.0.0.5", "prefix_length": 24, "network": "10.0.0.0/24", "family": "IPv4"});
        let expected =
            json!({"bytes": 4_294_967_296_i64, "quantity": "1536Mi", "address": address, "merged": merged});
        ensure!(results == expected, "{results:#}");
        project.edit("main.tf", "\"4Gi\"", "\"4GB\"")?;
        contains_all(&project.plan_refused()?, &["\"4GB\" is not a quantity"])
    });
}

fn token(report: &mut Report, platform: &Platform) {
    let kubectl = platform.kubectl();
    report.case("an ephemeral token is that of its ServiceAccount, and in no state, plan or log", || {
        let project = project(platform, TOKEN)?;
        contains_all(&project.plan_refused()?, &["no ServiceAccount default/verbs"])?;
        kubectl.ok(&["create", "serviceaccount", "verbs"])?;
        let refused = unwrapped(&project.apply_refused()?);
        contains_all(&refused, &["system:serviceaccount:default:verbs"])?;
        kubectl.ok(&[
            "create",
            "rolebinding",
            "verbs",
            "--clusterrole=berth-editor",
            "--serviceaccount=default:verbs",
        ])?;
        let log = project.folder().join("trace");
        let mut apply = project.command(&["apply", "-auto-approve", "-input=false", "-no-color"]);
        apply.env("TF_LOG", "TRACE").env("TF_LOG_PATH", &log);
        let printed = crate::process::run(&mut apply, Duration::from_secs(300))?.success()?;
        kubectl.object("placementgroup", "verbs")?;
        project.plan_is_empty()?;
        // All tokens of a control plane begin with the same header.
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let path = "/api/v1/namespaces/default/serviceaccounts/verbs/token";
        let issued =
            kubectl.with_input(&["create", "--raw", path, "-f", "-"], &request.to_string())?.success()?;
        let issued: Value = serde_json::from_str(&issued)?;
        let header = issued["status"]["token"].as_str().and_then(|token| token.split('.').next());
        let header = header.filter(|header| header.len() > 10).context("no token in the response")?;
        project.plan()?;
        let planned = project.run(&["show", "-json", "plan"])?.success()?;
        let (log, state) = (std::fs::read_to_string(&log)?, project.read("terraform.tfstate")?);
        ensure!(log.contains("OpenEphemeralResource"), "the log has nothing of the ephemeral resource");
        for (place, text) in
            [("the state", &state), ("the plan", &planned), ("the log", &log), ("the output", &printed)]
        {
            ensure!(!text.contains(header), "a token is in {place}");
        }
        project.destroy()?;
        kubectl.delete("rolebinding/verbs")?;
        kubectl.delete("serviceaccount/verbs")
    });
}

fn join(report: &mut Report, platform: &Platform) {
    let kubectl = platform.kubectl();
    report.case("the join string of a host goes to its machine, and into no state", || {
        let project = project(platform, JOIN)?;
        let printed = project.apply()?;
        let join = project.read("join")?;
        ensure!(join.starts_with("berth1."), "{} characters", join.len());
        for (place, text) in [("the state", project.read("terraform.tfstate")?), ("the output", printed)] {
            ensure!(!text.contains("berth1."), "the join string is in {place}");
        }
        kubectl.ok(&["get", "serviceaccount", "host-kvm-9", "--namespace=berth-system"])?;
        kubectl.ok(&["get", "clusterrolebinding", "berth-host-kvm-9"])?;
        project.destroy()?;
        for object in ["serviceaccount/host-kvm-9", "role/berth-host-kvm-9", "rolebinding/berth-host-kvm-9"] {
            kubectl.ok(&["delete", object, "--namespace=berth-system"])?;
        }
        kubectl.delete("clusterrolebinding/berth-host-kvm-9")
    });
}

/// Queries and actions: Terraform 1.14 and later.
pub fn run_newest(report: &mut Report, platform: &Platform, guest: &GuestImage) {
    let failed = report.count().failed;
    query(report, platform);
    // A failed step has been counted, and the steps after it cannot run.
    let _ = actions(report, platform, guest);
    if report.count().failed > failed {
        note(&platform.keep_evidence());
    }
}

fn query(report: &mut Report, platform: &Platform) {
    let kubectl = platform.kubectl();
    report.case("a query finds objects, and the configuration that it generates adopts them with an empty plan", || {
        let manifest = |kind: &str, name: &str, spec: Value| {
            json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "spec": spec,
                "metadata": {"name": name, "labels": {"query": "yes"}}})
        };
        let disks = json!([{"name": "query-root", "boot": true}, {"name": "query-data"}]);
        let interfaces = json!([{"name": "lan", "network": "query"}]);
        let vm = json!({"class": "query", "disks": disks, "networkInterfaces": interfaces, "power": "Stopped",
            "bootstrap": {"sshAuthorizedKeys": ["ssh-ed25519 AAAA me"]}});
        for object in [
            manifest("VMClass", "query", json!({"cpus": 1, "memory": "64Mi"})),
            manifest("Network", "query", json!({"cidr": "10.94.0.0/24"})),
            manifest("Disk", "query-root", json!({"size": "1Mi"})),
            manifest("Disk", "query-data", json!({"size": "2Mi"})),
            manifest("VM", "query", vm),
        ] {
            kubectl.apply(&object.to_string())?;
        }
        kubectl.condition("vm/query", "Ready=True", None, Duration::from_secs(60))?;
        let project = project(platform, "")?;
        project.write("found.tfquery.hcl", QUERY)?;
        let found = project.run(&["query", "-no-color"])?.success()?;
        contains_all(&found, &["default/query-data", "default/query-root", "default/query"])?;
        project.write("found.tfquery.hcl", &QUERY.replace("provider = berth", "provider = berth\n  limit = 1"))?;
        let found = project.run(&["query", "-no-color"])?.success()?;
        ensure!(found.contains("default/query-data") && !found.contains("default/query-root"), "{found}");
        project.write("found.tfquery.hcl", &QUERY.replace("query=yes", "query yes"))?;
        let refused = unwrapped(&project.run(&["query", "-no-color"])?.failure()?);
        contains_all(&refused, &["Invalid label_selector"])?;

        project.write("found.tfquery.hcl", QUERY)?;
        project.run(&["query", "-no-color", "-generate-config-out=found.tf"])?.success()?;
        let plan = project.plan()?;
        ensure!(plan.text.contains("4 to import, 0 to add, 0 to change, 0 to destroy"), "{}", plan.text);
        project.apply()?;
        project.plan_is_empty()?;
        let generated = project.read("found.tf")?;
        ensure!(!generated.contains(" mac_address"), "what the control plane chose is declared:\n{generated}");
        project.destroy()?;
        kubectl.delete("vmclass/query")
    });
}

fn boot(platform: &Platform, address: &str) -> Result<String> {
    let text = http::get_within(platform.neighbour(), address, "/cgi-bin/uptime", ANSWER)?;
    Ok(field(&text, "boot_id")?.to_owned())
}

fn invoke(project: &Project, action: &str) -> Result<crate::process::Finished> {
    project.apply_with(&[&format!("-invoke=action.{action}")])
}

fn actions(report: &mut Report, platform: &Platform, guest: &GuestImage) -> Result<()> {
    let kubectl = platform.kubectl();
    let (project, address) = report.step("a guest runs, and its configuration has actions", || {
        let project = lifecycle::quickstart(platform, guest, "")?;
        project.write("actions.tf", ACTIONS)?;
        project.init()?;
        project.apply()?;
        project.plan_is_empty()?;
        let address = project.output("public_address")?;
        Ok((project, address))
    })?;
    report.case(
        "an invoked restart restarts the guest, shows its progress and leaves the plan empty",
        || {
            let before = boot(platform, &address)?;
            let shown = invoke(&project, "berth_vm_restart.web")?.success()?;
            contains_all(&shown, &["VM default/web: restart requested", "VM default/web: Running"])?;
            ensure!(boot(platform, &address)? != before, "the same boot");
            project.plan_is_empty()
        },
    );
    report.case("a restart that a change triggers restarts the guest once and leaves the plan empty", || {
        let before = boot(platform, &address)?;
        project.edit("actions.tf", "\"first\"", "\"second\"")?;
        project.apply()?;
        let after = boot(platform, &address)?;
        ensure!(after != before, "the same boot");
        project.plan_is_empty()?;
        project.apply()?;
        ensure!(boot(platform, &address)? == after, "restarted again");
        Ok(())
    });
    report.case(
        "the power that the resource declares is refused, and changed where the resource ignores it",
        || {
            let refused = unwrapped(&invoke(&project, "berth_vm_power.off")?.failure()?);
            contains_all(&refused, &["\"terraform:default\" declares it", "ignore_changes = [power]"])?;
            project.write("web_override.tf", IGNORED)?;
            project.edit("actions.tf", "force_conflicts = false", "force_conflicts = true")?;
            invoke(&project, "berth_vm_power.off")?.success()?;
            let state = kubectl.object("vm", "web")?["status"]["state"].clone();
            ensure!(state == "Stopped", "{state}");
            project.plan_is_empty()?;
            let refused = unwrapped(&invoke(&project, "berth_vm_restart.web")?.failure()?);
            contains_all(&refused, &["while power is Stopped"])?;
            invoke(&project, "berth_vm_power.on")?.success()?;
            boot(platform, &address)?;
            project.plan_is_empty()
        },
    );
    report.case("destroy leaves nothing of the guest", || project.destroy().map(drop));
    Ok(())
}
