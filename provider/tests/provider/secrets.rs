//! A canary in every sensitive attribute, and a search for it wherever Terraform, the provider and the control plane write.
//!
//! | | plan file | state file | Secret of the VM | anything else |
//! |---|---|---|---|---|
//! | `user_data`, sensitive | yes, by Terraform's design | yes, by Terraform's design | yes | no |
//! | `password_hash`, `sysprep_unattend`, sensitive | yes | yes | yes | no |
//! | `password` of `berth_remote_images`, sensitive | yes | yes | no | no |
//! | `user_data_wo`, write-only | no | no | yes | no |
//! | `password_wo`, write-only | no | no | its hash only | no |
//! | tokens of `berth_token`, `berth_console` and `berth_host_token`, ephemeral | no | no | where it is passed on to | no |
//! | token of the provider block | no | no | no | no |

use std::{fs, io::Read as _, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::{
    Api,
    api::{DynamicObject, ListParams, PostParams},
    discovery::{Discovery, verbs},
};
use serde_json::json;
use terraform_provider_berth::BerthProvider;
use tfplugin6::{Attribute, Provider as _, schema::AttributeKind};

use crate::{
    control_plane::ControlPlane,
    terraform::{Terraform, text},
};

const CONFIGURATION: &str = r#"
terraform {
  required_providers {
    berth = { source = "berth-vms/berth" }
  }
}
variable "user_data" { sensitive = true }
variable "write_only" { ephemeral = true }
variable "password" { ephemeral = true }
variable "password_hash" { sensitive = true }
variable "unattend" { sensitive = true }
variable "host" {}
variable "token" { ephemeral = true }
variable "ca_certificate" {}
provider "berth" {
  host           = var.host
  token          = var.token
  ca_certificate = var.ca_certificate
}
ephemeral "berth_token" "deploy" {
  service_account = "deploy"
}
ephemeral "berth_console" "other" {
  vm = "other"
}
variable "images" {}
variable "images_password" { sensitive = true }
data "berth_remote_images" "server" {
  url      = var.images
  username = "me"
  password = var.images_password
}
ephemeral "berth_host_token" "kvm" {
  host   = "kvm-9"
  server = "https://berth.example:7443"
}
resource "berth_vm_class" "small" {
  name   = "small"
  cpus   = 1
  memory = "512Mi"
}
resource "berth_disk" "root" {
  for_each = toset(["plain", "hidden"])
  name     = each.key
  size     = "1Gi"
}
resource "berth_vm" "plain" {
  name      = "plain"
  class     = berth_vm_class.small.name
  disks     = [{ name = berth_disk.root["plain"].name, boot = true }]
  bootstrap = {
    user_data        = var.user_data
    password_hash    = var.password_hash
    sysprep_unattend = var.unattend
  }
}
resource "berth_vm" "hidden" {
  name  = "hidden"
  class = berth_vm_class.small.name
  disks = [{ name = berth_disk.root["hidden"].name, boot = true }]
  bootstrap = {
    user_data_wo         = "${var.write_only} token=${ephemeral.berth_token.deploy.token} ticket=${ephemeral.berth_console.other.token} join=${ephemeral.berth_host_token.kvm.join}"
    user_data_wo_version = 1
    password_wo          = var.password
    password_wo_version  = 1
  }
}
output "host" {
  value = berth_vm.plain.host
}
"#;

const USER_DATA: &str = "canary-of-user-data-5b1f0c";
const IMAGES_PASSWORD: &str = "canary-of-images-password-77e1";
const WRITE_ONLY: &str = "canary-of-write-only-93c2d7";
const PASSWORD: &str = "canary-of-password-1d77f2";
const PASSWORD_HASH: &str = "canaryOfPasswordHash4e0a";
const UNATTEND: &str = "canary-of-unattend-a90b31";

/// Whether bytes contain a text, as it is or in base64 at any offset.
fn has(bytes: &[u8], canary: &str) -> bool {
    let contains = |form: &[u8]| bytes.windows(form.len()).any(|window| window == form);
    let encoded = (0..3).map(|offset| {
        let text = STANDARD.encode(format!("{}{canary}", "x".repeat(offset)));
        // Without the characters that also depend on the bytes before and after it.
        text[4..text.len() - 4].to_owned()
    });
    contains(canary.as_bytes()) || encoded.into_iter().any(|form| contains(form.as_bytes()))
}

/// The contents of the files in a zip archive, one after the other.
fn unzipped(archive: &[u8]) -> Vec<u8> {
    let number = |at: usize, length: usize| {
        archive[at..at + length].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
    };
    let end = archive.windows(4).rposition(|window| window == b"PK\x05\x06").expect("an archive");
    let (count, mut entry) = (number(end + 10, 2), number(end + 16, 4));
    let mut contents = Vec::new();
    for _ in 0..count {
        let (size, header) = (number(entry + 20, 4), number(entry + 42, 4));
        let begin = header + 30 + number(header + 26, 2) + number(header + 28, 2);
        let packed = &archive[begin..begin + size];
        match number(entry + 10, 2) {
            0 => contents.extend(packed),
            _ => drop(
                flate2::read::DeflateDecoder::new(packed).read_to_end(&mut contents).expect("its content"),
            ),
        }
        entry += 46 + number(entry + 28, 2) + number(entry + 30, 2) + number(entry + 32, 2);
    }
    contents
}

fn find_sensitive(attributes: &[Attribute], at: &str, found: &mut Vec<String>) {
    for attribute in attributes {
        let name = format!("{at}.{}", attribute.name);
        if attribute.sensitive || attribute.write_only {
            found.push(name.clone());
        }
        if let AttributeKind::Nested(nested) = &attribute.kind {
            find_sensitive(&nested.attributes, &name, found);
        }
    }
}

#[test]
fn each_sensitive_attribute_has_its_canary() {
    let provider = BerthProvider::default();
    let mut found = Vec::new();
    find_sensitive(&provider.schema().block.attributes, "provider", &mut found);
    for resource in provider.resources() {
        find_sensitive(&resource.schema().block.attributes, resource.type_name(), &mut found);
    }
    for source in provider.data_sources() {
        find_sensitive(&source.schema().block.attributes, source.type_name(), &mut found);
    }
    for ephemeral in provider.ephemeral_resources() {
        find_sensitive(&ephemeral.schema().block.attributes, ephemeral.type_name(), &mut found);
    }
    let planted = [
        "provider.token",
        "berth_vm.bootstrap.password_wo",
        "berth_vm.bootstrap.password_hash",
        "berth_vm.bootstrap.sysprep_unattend",
        "berth_vm.bootstrap.user_data",
        "berth_vm.bootstrap.user_data_wo",
        "berth_remote_images.password",
        "berth_console.token",
        "berth_host_token.join",
        "berth_token.token",
    ];
    assert_eq!(found, planted, "plant a canary in the configuration of this file");
}

#[tokio::test]
async fn no_secret_is_written_where_it_does_not_belong() {
    let directory = tempfile::tempdir().expect("a new directory");
    let work = directory.path().join("work");
    fs::create_dir(&work).expect("a new directory");
    let kubeconfig = directory.path().join("kubeconfig");
    let Some(terraform) = Terraform::new(&work, &kubeconfig) else { return };
    if !terraform.is_at_least(1, 11).await {
        eprintln!("skipped: this Terraform has no write-only attributes");
        return;
    }
    fs::write(work.join("main.tf"), CONFIGURATION).expect("a file of ours");
    let state_directory = directory.path().join("state");
    let plane = ControlPlane::listening(&state_directory, &kubeconfig).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(plane.client.clone(), "default");
    for name in ["deploy", "berth-console"] {
        let account = serde_json::from_value(json!({"metadata": {"name": name}})).expect("an account");
        accounts.create(&PostParams::default(), &account).await.expect("it is valid");
    }
    let other = json!({"cpus": 1, "disks": [{"name": "other", "boot": true}]});
    plane.declare_as("others", "VM", "other", other).await;
    while plane.object("VM", "other").await.pointer("/status/console").is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let server = fs::read_to_string(&kubeconfig).expect("it was written");
    let server = server.split("server:").nth(1).and_then(|rest| rest.split_whitespace().next());
    let (token, certificate) = plane.credentials();

    let images = crate::remote_images::checksums().await;
    let mut output = String::new();
    for arguments in [
        &["plan", "-out=plan.bin"][..],
        &["apply", "-auto-approve", "plan.bin"],
        &["plan", "-detailed-exitcode"],
        &["plan", "-destroy"],
    ] {
        let mut command = terraform.command(arguments);
        command
            .env_remove("BERTH_KUBECONFIG")
            .env("TF_VAR_user_data", format!("#cloud-config\nfinal_message: {USER_DATA}\n"))
            .env("TF_VAR_write_only", format!("#cloud-config\nfinal_message: {WRITE_ONLY}\n#"))
            .env("TF_VAR_password", PASSWORD)
            .env("TF_VAR_images", &images)
            .env("TF_VAR_images_password", IMAGES_PASSWORD)
            .env("TF_VAR_password_hash", format!("$6$salt${PASSWORD_HASH}"))
            .env(
                "TF_VAR_unattend",
                format!(
                    "<unattend xmlns=\"urn:schemas-microsoft-com:unattend\"><!-- {UNATTEND} --></unattend>"
                ),
            )
            .env("TF_VAR_host", server.expect("it has a server").trim_matches('"'))
            .env("TF_VAR_token", &token)
            .env("TF_VAR_ca_certificate", &certificate)
            .env("TF_LOG", "TRACE")
            .env("TF_LOG_PATH", work.join("trace.log"));
        let done = command.output().await.expect("terraform runs");
        assert!(done.status.success(), "{arguments:?}: {}", text(&done));
        output.push_str(&text(&done));
    }

    let secrets: Api<Secret> = Api::namespaced(plane.client.clone(), "default");
    let in_secret = async |vm: &str, key: &str| {
        let secret = secrets.get(&format!("{vm}-bootstrap")).await.expect("it was written");
        String::from_utf8(secret.data.expect("it has data")[key].0.clone()).expect("text")
    };
    assert!(in_secret("plain", "userData").await.contains(USER_DATA));
    assert!(in_secret("plain", "password").await.contains(PASSWORD_HASH));
    assert!(in_secret("plain", "unattend.xml").await.contains(UNATTEND));
    assert!(in_secret("hidden", "password").await.starts_with("$6$rounds="), "its hash");
    let hidden = in_secret("hidden", "userData").await;
    assert!(hidden.contains(WRITE_ONLY));
    let passed_on = |name: &str| {
        let value = hidden.split(name).nth(1).and_then(|rest| rest.split_whitespace().next());
        value.filter(|value| value.len() > 100).expect("it was passed on").to_owned()
    };
    let (issued, ticket, join) = (passed_on("token="), passed_on("ticket="), passed_on("join="));
    assert!(token.len() > 20, "{} characters", token.len());

    let mut objects = Vec::new();
    let discovery = Discovery::new(plane.client.clone()).run().await.expect("it answers");
    for group in discovery.groups() {
        for (kind, capabilities) in group.recommended_resources() {
            if kind.kind == "Secret" || !capabilities.supports_operation(verbs::LIST) {
                continue;
            }
            let api: Api<DynamicObject> = Api::all_with(plane.client.clone(), &kind);
            let list = api.list(&ListParams::default()).await;
            objects.extend(list.unwrap_or_else(|error| panic!("{}: {error}", kind.kind)).items);
        }
    }
    let objects = serde_json::to_vec(&objects).expect("plain data");
    assert!(has(&objects, "plain-bootstrap"), "the VMs are among them");
    let mut stored = Vec::new();
    read_all(&state_directory, &mut stored);
    let file = |name: &str| fs::read(work.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let plan = unzipped(&file("plan.bin"));
    assert!(has(&plan, "user_data_wo_version"), "the plan is readable");
    let logs =
        [file("trace.log"), fs::read(kubeconfig.with_file_name("audit.log")).expect("an audit log")].concat();
    assert!(has(&logs, "terraform-provider-berth") && has(&logs, "/vms/hidden"), "both logs are there");

    let everywhere = [
        USER_DATA,
        PASSWORD_HASH,
        UNATTEND,
        IMAGES_PASSWORD,
        WRITE_ONLY,
        PASSWORD,
        &issued,
        &ticket,
        &join,
        &token,
    ];
    let places: [(&str, &[u8], &[&str]); 6] = [
        ("the plan file", &plan, &everywhere[4..]),
        ("the state file", &file("terraform.tfstate"), &everywhere[4..]),
        ("the logs", &logs, &everywhere),
        ("Terraform's output", output.as_bytes(), &everywhere),
        ("objects other than Secrets", &objects, &everywhere),
        // Secrets are sealed there; the administrator's token is in its kubeconfig.
        ("the control plane's files", &stored, &everywhere[..9]),
    ];
    for (place, bytes, canaries) in places {
        let leaked: Vec<&&str> = canaries.iter().filter(|canary| has(bytes, canary)).collect();
        assert!(leaked.is_empty(), "{place}: {leaked:?}");
    }
    assert!(
        has(&plan, USER_DATA) && has(&file("terraform.tfstate"), USER_DATA),
        "the search finds what is there"
    );
    plane.close().await;
}

fn read_all(directory: &Path, contents: &mut Vec<u8>) {
    for entry in fs::read_dir(directory).expect("it is ours") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            read_all(&path, contents);
        } else {
            contents.extend(fs::read(&path).expect("it is ours"));
        }
    }
}
