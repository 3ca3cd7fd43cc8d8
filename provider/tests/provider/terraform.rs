//! Real Terraform drives the real provider binary over TLS, resources and data sources, on the embedded control plane.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use serde_json::{Value as Json, json};

use crate::control_plane::ControlPlane;

const CONFIGURATION: &str = include_str!("terraform/main.tf");

/// Every resource of the configuration, and its import ID.
const RESOURCES: [(&str, &str, &str); 8] = [
    ("berth_vm_class.small", "VMClass", "default/small"),
    ("berth_image.debian", "Image", "default/debian-12"),
    ("berth_disk.root", "Disk", "default/web-root"),
    ("berth_disk.data", "Disk", "web-data"),
    ("berth_placement_group.web", "PlacementGroup", "default/web"),
    ("berth_public_ip.web", "PublicIP", "default/web"),
    ("berth_vm.web", "VM", "default/web"),
    ("berth_hotswap_disk_attachment.data", "HotswapDiskAttachment", "default/web-web-data"),
];

pub(crate) struct Terraform {
    directory: PathBuf,
    kubeconfig: PathBuf,
}

impl Terraform {
    /// A directory of its own; none if Terraform is not installed.
    pub(crate) fn new(directory: &Path, kubeconfig: &Path) -> Option<Self> {
        let found = std::process::Command::new("terraform").arg("version").output();
        if found.is_err() {
            eprintln!("skipped: no terraform in PATH");
            return None;
        }
        let plugins = directory.join("plugins");
        fs::create_dir(&plugins).expect("a new directory");
        let binary = env!("CARGO_BIN_EXE_terraform-provider-berth");
        std::os::unix::fs::symlink(binary, plugins.join("terraform-provider-berth")).expect("a new link");
        let cli = format!(
            "provider_installation {{\n  dev_overrides {{\n    \"berth-vms/berth\" = {plugins:?}\n  }}\n  direct {{}}\n}}\n"
        );
        fs::write(directory.join("cli.tfrc"), cli).expect("a new file");
        fs::write(directory.join("main.tf"), CONFIGURATION).expect("a new file");
        fs::write(directory.join("id.pub"), "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE me@example\n")
            .expect("a new file");
        fs::write(directory.join("cloud-init.yaml"), "#cloud-config\npassword: canary-secret\n")
            .expect("a new file");
        Some(Self { directory: directory.into(), kubeconfig: kubeconfig.into() })
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().await.expect("terraform runs")
    }

    /// Whether it is Terraform 1.11, for example, or newer.
    pub(crate) async fn is_at_least(&self, major: u32, minor: u32) -> bool {
        let output = self.command(&["version", "-json"]).output().await.expect("terraform runs");
        let version: Json = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let mut numbers = version["terraform_version"].as_str().unwrap_or_default().split('.');
        let mut next = || numbers.next().and_then(|number| number.parse().ok()).unwrap_or(0);
        (next(), next()) >= (major, minor)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> tokio::process::Command {
        let (command, rest) = arguments.split_first().expect("a command");
        let mut all = vec![*command];
        // Commands that never prompt do not accept this flag.
        if !matches!(*command, "state" | "show" | "get" | "validate" | "fmt" | "version") {
            all.push("-input=false");
        }
        all.extend(rest);
        if !matches!(*command, "state" | "version") {
            all.push("-no-color");
        }
        let mut terraform = tokio::process::Command::new("terraform");
        terraform
            .args(&all)
            .current_dir(&self.directory)
            .env("TF_CLI_CONFIG_FILE", self.directory.join("cli.tfrc"))
            .env("BERTH_KUBECONFIG", &self.kubeconfig)
            .env("CHECKPOINT_DISABLE", "1")
            .env_remove("BERTH_HOST")
            .kill_on_drop(true);
        terraform
    }

    pub(crate) async fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        let text = text(&output);
        assert!(output.status.success(), "terraform {arguments:?}: {text}");
        text
    }

    /// Exit code 0: no changes. 2: changes.
    pub(crate) async fn plan(&self, variables: &[&str]) -> (Option<i32>, String) {
        let mut arguments = vec!["plan", "-detailed-exitcode"];
        arguments.extend(variables);
        let output = self.run(&arguments).await;
        (output.status.code(), text(&output))
    }

    pub(crate) async fn assert_nothing_to_do(&self, variables: &[&str], when: &str) {
        let (code, text) = self.plan(variables).await;
        assert_eq!(code, Some(0), "plan {when}: {text}");
    }

    async fn state(&self) -> Json {
        let output = self.run(&["show", "-json"]).await;
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }
}

pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn terraform_makes_changes_imports_and_destroys_the_resources_of_a_project() {
    let directory = tempfile::tempdir().expect("a new directory");
    let work = directory.path().join("work");
    fs::create_dir(&work).expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let Some(terraform) = Terraform::new(&work, &kubeconfig) else { return };

    // Before any control plane exists, a plan of creates works.
    let (code, text) = terraform.plan(&[]).await;
    assert_eq!(code, Some(2), "offline plan: {text}");

    let plane = ControlPlane::listening(&directory.path().join("state"), &kubeconfig).await;
    made(&terraform).await;
    changed(&terraform, &plane).await;
    put_right(&terraform, &plane).await;
    restarted(&terraform, &plane).await;
    replaced(&terraform, &plane).await;
    imported(&terraform).await;

    // The configuration would shrink a disk, which must not block a destroy.
    let text = terraform.ok(&["destroy", "-auto-approve", "-refresh=false"]).await;
    assert!(text.contains("8 destroyed"), "{text}");
    for (_, kind, _) in RESOURCES {
        assert_eq!(plane.count(kind).await, 0, "{kind}");
    }
    plane.close().await;
}

async fn made(terraform: &Terraform) {
    let text = terraform.ok(&["apply", "-auto-approve"]).await;
    assert!(text.contains("8 added") && !text.contains("canary"), "{text}");
    assert!(
        text.contains("public_address = \"198.18.100.3\"")
            && text.contains("private_address = \"10.77.0.10\"")
            && text.contains("addresses = \"10.77.0.10 198.18.100.3\""),
        "{text}"
    );
    terraform.assert_nothing_to_do(&[], "after apply").await;
}

async fn changed(terraform: &Terraform, plane: &ControlPlane) {
    let before = plane.object("VM", "web").await;
    let variables = ["-var=power=Stopped", "-var=data_size=2Gi", "-var=memory=1Gi"];
    let text = terraform.ok(&[&["apply", "-auto-approve"], &variables[..]].concat()).await;
    assert!(text.contains("3 changed") && text.contains("0 destroyed"), "{text}");
    terraform.assert_nothing_to_do(&variables, "after update").await;
    let after = plane.object("VM", "web").await;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["spec"]["power"], "Stopped");
    let (code, text) = terraform.plan(&["-var=data_size=1Gi"]).await;
    assert!(code == Some(2) && text.contains("can only grow"), "{text}");
    let output =
        terraform.run(&[&["apply", "-auto-approve", "-var=data_size=1Gi"], &variables[2..]].concat()).await;
    let text = crate::terraform::text(&output);
    assert!(!output.status.success() && text.contains("can only grow"), "{text}");
    assert_eq!(plane.object("Disk", "web-data").await["spec"]["size"], "2Gi");
    terraform.ok(&["apply", "-auto-approve", "-var=data_size=2Gi"]).await;
}

async fn put_right(terraform: &Terraform, plane: &ControlPlane) {
    plane.edit("VM", "web", json!({"spec": {"power": "Stopped", "restartPolicy": "Never"}})).await;
    let (code, text) = terraform.plan(&["-var=data_size=2Gi"]).await;
    assert!(code == Some(2) && text.contains("\"Stopped\" -> \"Running\""), "{text}");
    terraform.ok(&["apply", "-auto-approve", "-var=data_size=2Gi"]).await;
    assert_eq!(plane.object("VM", "web").await["spec"]["power"], "Running");
    terraform.assert_nothing_to_do(&["-var=data_size=2Gi"], "after drift").await;
}

async fn restarted(terraform: &Terraform, plane: &ControlPlane) {
    let larger = ["-var=data_size=2Gi", "-var=memory=1Gi"];
    terraform.ok(&[&["apply", "-auto-approve"], &larger[..]].concat()).await;
    while plane.object("VM", "web").await.pointer("/status/pendingPowerCycle") != Some(&json!(["memory"])) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let (code, text) = terraform.plan(&larger).await;
    assert!(code == Some(0) && text.contains("Changes wait for the next power cycle"), "{text}");
    let allowed = [&larger[..], &["-var=allow_reboot=true"]].concat();
    let text = terraform.ok(&[&["apply", "-auto-approve"], &allowed[..]].concat()).await;
    assert!(text.contains("The VM will be restarted") && text.contains("0 added, 1 changed"), "{text}");
    assert_eq!(plane.object("VM", "web").await["status"]["hardware"]["memory"], "1Gi");
    terraform.assert_nothing_to_do(&allowed, "after the restart").await;
    terraform.ok(&["apply", "-auto-approve", "-var=data_size=2Gi", "-var=allow_reboot=true"]).await;
}

async fn replaced(terraform: &Terraform, plane: &ControlPlane) {
    let before = plane.object("VM", "web").await;
    let arguments = ["apply", "-auto-approve", "-var=data_size=2Gi", "-replace=berth_vm.web"];
    let text = terraform.ok(&arguments).await;
    assert!(text.contains("1 added, 0 changed, 1 destroyed"), "{text}");
    assert_ne!(plane.object("VM", "web").await["metadata"]["uid"], before["metadata"]["uid"]);
    terraform.assert_nothing_to_do(&["-var=data_size=2Gi"], "after replace").await;
}

async fn imported(terraform: &Terraform) {
    for (address, _, _) in RESOURCES {
        terraform.ok(&["state", "rm", address]).await;
    }
    for (address, _, id) in RESOURCES {
        terraform.ok(&["import", "-var=data_size=2Gi", address, id]).await;
    }
    terraform.assert_nothing_to_do(&["-var=data_size=2Gi"], "after import").await;
    let state = terraform.state().await;
    let resources = state.pointer("/values/root_module/resources").and_then(Json::as_array).map(Vec::len);
    assert_eq!(resources, Some(RESOURCES.len()));
    let missing = terraform.run(&["import", "-var=data_size=2Gi", "berth_vm.web", "default/missing"]).await;
    assert!(!missing.status.success());
}

#[tokio::test]
async fn no_rule_about_changes_blocks_a_destroy() {
    let directory = tempfile::tempdir().expect("a new directory");
    let work = directory.path().join("work");
    fs::create_dir_all(work.join("machine")).expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let Some(terraform) = Terraform::new(&work, &kubeconfig) else { return };
    fs::write(work.join("main.tf"), include_str!("terraform/rules.tf")).expect("a new file");
    fs::write(work.join("machine/main.tf"), include_str!("terraform/machine.tf")).expect("a new file");
    let plane = ControlPlane::listening(&directory.path().join("state"), &kubeconfig).await;
    terraform.ok(&["get"]).await;
    terraform.ok(&["validate"]).await;
    terraform.ok(&["apply", "-auto-approve"]).await;
    terraform.assert_nothing_to_do(&[], "after apply").await;
    let before = plane.object("VM", "machine").await;

    // User data that becomes unknown, and then has the VM's current value.
    let (code, text) = terraform.plan(&["-var=turn=2"]).await;
    assert!(code == Some(2) && !text.contains("user_data_policy"), "{text}");
    terraform.ok(&["apply", "-auto-approve", "-var=turn=2"]).await;
    let after = plane.object("VM", "machine").await;
    assert_eq!(after["metadata"]["generation"], before["metadata"]["generation"]);

    // A disk that would shrink, another program's field, and user data that differs: the apply refuses each of them.
    plane.declare_as("flux", "VMClass", "small", json!({"cpus": 4, "memory": "512Mi"})).await;
    let changed = ["-var=turn=3", "-var=size=1Gi", "-var=script=#!/bin/bash"];
    let (code, text) = terraform.plan(&changed).await;
    assert!(code == Some(2) && text.contains("Warning: A disk cannot shrink"), "{text}");
    let output = terraform.run(&[&["apply", "-auto-approve"], &changed[..]].concat()).await;
    let text = crate::terraform::text(&output);
    assert!(!output.status.success(), "{text}");
    for refusal in ["Error: A disk cannot shrink", "also declared by another field manager"] {
        assert!(text.contains(refusal), "{refusal}: {text}");
    }
    // Their dependents are not attempted: alone, they are refused too.
    terraform.ok(&["apply", "-auto-approve", "-var=turn=3", "-target=terraform_data.upstream"]).await;
    plane.declare_as("flux", "VMClass", "small", json!({"cpus": 1, "memory": "512Mi"})).await;
    let script = ["-var=turn=4", "-var=script=#!/bin/bash"];
    let output = terraform.run(&[&["apply", "-auto-approve"], &script[..]].concat()).await;
    let text = crate::terraform::text(&output);
    assert!(!output.status.success() && text.contains("refused by user_data_policy"), "{text}");
    plane.declare_as("flux", "VMClass", "small", json!({"cpus": 4, "memory": "512Mi"})).await;

    // None of that blocks a destroy, which plans the same changes first.
    let text = terraform.ok(&[&["destroy", "-auto-approve"], &changed[..]].concat()).await;
    assert!(text.contains("6 destroyed"), "{text}");
    assert_eq!(plane.count("VM").await + plane.count("Disk").await, 0);
    plane.close().await;
}

#[tokio::test]
async fn data_sources_are_read_when_their_arguments_are_known() {
    let directory = tempfile::tempdir().expect("a new directory");
    let work = directory.path().join("work");
    fs::create_dir(&work).expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let Some(terraform) = Terraform::new(&work, &kubeconfig) else { return };
    fs::write(work.join("main.tf"), include_str!("terraform/sources.tf")).expect("a new file");
    let plane = ControlPlane::listening(&directory.path().join("state"), &kubeconfig).await;
    plane.host("h1", json!({"disk": "ssd"})).await;
    // Its status follows a moment after the creation.
    while plane.object("Host", "h1").await.pointer("/status/capacity").is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    terraform.ok(&["validate"]).await;
    let (code, text) = terraform.plan(&[]).await;
    assert!(
        code == Some(2) && text.contains("data.berth_vm_class.small will be read during apply"),
        "{text}"
    );
    assert!(text.contains("host_memory = \"16Gi\""), "a data source is read in the plan: {text}");
    let text = terraform.ok(&["apply", "-auto-approve"]).await;
    for output in [
        "class_cpus = 2",
        "host_memory = \"16Gi\"",
        "\naddress = \"10.77.0.10\"",
        "first = \"10.77.0.10\"",
        "\"small\",",
    ] {
        assert!(text.contains(output), "{output}: {text}");
    }
    assert_eq!(plane.object("VM", "web").await["spec"]["networkInterfaces"][0]["network"], "backend");
    assert_eq!(plane.object("Host", "h1").await["metadata"]["labels"], json!({"disk": "ssd", "rack": "7"}));
    terraform.assert_nothing_to_do(&[], "after apply").await;
    let (code, text) = terraform.plan(&["-var=selector=tier of web"]).await;
    assert!(code == Some(1) && text.contains("Invalid label_selector"), "{text}");
    let (code, text) = terraform.plan(&["-var=host=h9"]).await;
    assert!(
        code == Some(1) && text.contains("Host h9 does not exist") && text.contains("has Host h1"),
        "{text}"
    );
    let text = terraform.ok(&["destroy", "-auto-approve"]).await;
    assert!(text.contains("7 destroyed"), "{text}");
    assert_eq!(plane.object("Host", "h1").await["metadata"]["labels"], json!({"disk": "ssd"}));
    plane.close().await;
}

#[tokio::test]
async fn an_interrupt_ends_an_apply_and_loses_nothing() {
    let directory = tempfile::tempdir().expect("a new directory");
    let work = directory.path().join("work");
    fs::create_dir(&work).expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let Some(terraform) = Terraform::new(&work, &kubeconfig) else { return };
    let text = "terraform {\n  required_providers {\n    berth = { source = \"berth-vms/berth\" }\n  }\n}\n\nresource \"berth_image\" \
                \"slow\" {\n  name   = \"slow\"\n  source = { url = \"https://a.example/x\", sha256 = sha256(\"x\") }\n}\n";
    fs::write(work.join("main.tf"), text).expect("a new file");
    let plane = ControlPlane::listening(&directory.path().join("state"), &kubeconfig).await;
    let mut apply = terraform.command(&["apply", "-auto-approve"]);
    let apply = apply.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn();
    let apply = apply.expect("terraform runs");
    while plane.count("Image").await == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let pid = apply.id().expect("it runs").to_string();
    let interrupted =
        tokio::process::Command::new("kill").args(["-INT", &pid]).status().await.expect("kill runs");
    assert!(interrupted.success());
    // The timeout of the create is 30 minutes: an apply that ends within the limit was ended by the interrupt.
    let limit = std::time::Duration::from_secs(60);
    let output =
        tokio::time::timeout(limit, apply.wait_with_output()).await.expect("the interrupt ends the apply");
    let text = crate::terraform::text(&output.expect("terraform ends"));
    assert!(text.contains("Stopped waiting"), "{text}");
    let state = terraform.state().await;
    let image = state.pointer("/values/root_module/resources/0").expect("it is in the state");
    assert!(image["values"]["uid"].is_string(), "{state}");
    assert!(image.get("tainted").is_none(), "{state}");
    plane.close().await;
}

/// The provider's process, which ends when its Terraform is gone, is in the middle of a create.
#[tokio::test]
async fn terraform_that_is_killed_in_the_middle_of_a_create_adopts_the_object_in_the_next_apply() {
    let directory = tempfile::tempdir().expect("a new directory");
    let work = directory.path().join("work");
    fs::create_dir(&work).expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let Some(terraform) = Terraform::new(&work, &kubeconfig) else { return };
    let text = "terraform {\n  required_providers {\n    berth = { source = \"berth-vms/berth\" }\n  }\n}\n\nresource \"berth_vm\" \
                \"late\" {\n  name               = \"late\"\n  class              = \"small\"\n  disks              = [{ name = \"web-root\", \
                boot = true }]\n  network_interfaces = []\n  bootstrap          = { user_data = \"#!/bin/sh\\n\" }\n}\n";
    fs::write(work.join("main.tf"), text).expect("a new file");
    let plane = ControlPlane::listening(&directory.path().join("state"), &kubeconfig).await;
    plane.stock(&["web-root"]).await;
    let mut apply = terraform.command(&["apply", "-auto-approve"]);
    let mut apply = apply.stdout(std::process::Stdio::null()).spawn().expect("terraform runs");
    while plane.count("VM").await == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    // The VM is ready two seconds after its creation: the create waits for that.
    apply.kill().await.expect("it runs");
    let uid = plane.object("VM", "late").await["metadata"]["uid"].clone();
    let state = terraform.state().await;
    assert_eq!(state.pointer("/values/root_module/resources/0/values/uid"), None, "{state}");
    // The killed Terraform has left the lock of the state, which the operating system releases.
    let text = terraform.ok(&["apply", "-auto-approve"]).await;
    assert!(text.contains("1 added, 0 changed, 0 destroyed"), "{text}");
    assert_eq!(plane.object("VM", "late").await["metadata"]["uid"], uid);
    assert_eq!(plane.count("VM").await, 1);
    terraform.assert_nothing_to_do(&[], "after the second apply").await;
    plane.close().await;
}

/// The expressions of the examples of functions and their values, which the examples have as comments.
#[tokio::test]
async fn the_examples_of_the_functions_have_the_results_that_they_say() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/functions");
    for (function, outputs) in [
        ("address_parse", json!({"address": "10.0.0.5", "network": "10.0.0.0/24", "prefix_length": 24})),
        ("bytes_quantity", json!({"quantity": "3Gi"})),
        (
            "cloud_config",
            json!({"user_data": "#cloud-config\npackages:\n  - nginx\nwrite_files:\n  - content: |\n      Managed by \
                   Terraform.\n    path: /etc/motd\n    permissions: \"0644\"\n"}),
        ),
        (
            "cloud_config_merge",
            json!({"user_data": "#cloud-config\npackages:\n  - qemu-guest-agent\n  - nginx\nssh_pwauth: no\n"}),
        ),
        (
            "guest_customization",
            json!({"settings": ["hostname=web-1", "timezone=Europe/Vienna", "mac=52:54:00:12:34:56",
                "addresses4=192.0.2.10/24", "gateway4=192.0.2.1", "nameservers4=192.0.2.53", "apply"]}),
        ),
        ("quantity_bytes", json!({"bytes": 21_474_836_480_i64, "half": "10Gi"})),
    ] {
        let directory = tempfile::tempdir().expect("a new directory");
        let Some(terraform) = Terraform::new(directory.path(), &directory.path().join("kubeconfig")) else {
            return;
        };
        let example = fs::read_to_string(examples.join(function).join("function.tf")).expect("the example");
        let provider =
            "terraform {\n  required_providers {\n    berth = { source = \"berth-vms/berth\" }\n  }\n}\n";
        fs::write(directory.path().join("main.tf"), format!("{provider}{example}"))
            .expect("the configuration");
        terraform.ok(&["apply", "-auto-approve"]).await;
        let state = terraform.state().await;
        for (name, value) in outputs.as_object().expect("an object") {
            assert_eq!(state["values"]["outputs"][name]["value"], *value, "{function}: {name}");
        }
        let wrong = example.replace("\"20Gi\"", "\"20GB\"");
        if wrong != example {
            fs::write(directory.path().join("main.tf"), format!("{provider}{wrong}"))
                .expect("the configuration");
            let text = text(&terraform.run(&["plan"]).await);
            assert!(text.contains("\"20GB\" is not a quantity"), "{text}");
        }
    }
}
