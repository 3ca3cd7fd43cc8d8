//! `examples/vault-keys` with the small guest and an OpenBao server.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::guests::GuestImage;
use crate::image_server::Content;
use crate::platform::{NEIGHBOUR, Platform};
use crate::report::Report;
use crate::terraform::Project;
use crate::vault::Vault;
use crate::workspace;

const LIMIT: Duration = Duration::from_secs(120);

pub fn example(report: &mut Report, platform: &mut Platform, guest: &GuestImage, openbao: &Path) {
    report.case(
        "examples/vault-keys: a Vault protects the key of a disk, a Secret and the Vault again while the guest runs, and none is started without",
        || {
            let vault = Vault::start(openbao, platform.neighbour(), NEIGHBOUR, &platform.folder().join("vault"))?;
            let project = platform.project()?;
            project.copy_from(&workspace::root().join("examples/vault-keys"))?;
            for (name, entry) in [
                ("vault-keys-login", format!("secretID={}", vault.secret_id)),
                ("vault-keys-ca", format!("ca.crt={}", vault.authority())),
                ("vault-keys-secret", format!("key={}A=", "C".repeat(42))),
            ] {
                let entry = format!("--from-literal={entry}");
                platform.kubectl().ok(&["create", "secret", "generic", name, &entry])?;
            }
            let url = platform.images().put("vault-keys.qcow2", Content::File(guest.path.clone()));
            let variables = json!({"image_url": url, "image_sha256": guest.sha256, "vault_address": vault.url(), "vault_role_id": vault.role_id});
            project.write("terraform.tfvars.json", &variables.to_string())?;
            project.init()?;
            project.apply()?;
            let held = protected(platform, &project, &vault, &variables);
            vault.refuse(false)?;
            project.destroy()?;
            held
        },
    );
}

fn protected(platform: &mut Platform, project: &Project, vault: &Vault, variables: &Value) -> Result<()> {
    project.plan_is_empty()?;
    let kubectl = platform.kubectl().clone();
    let pid =
        || -> Result<Value> { Ok(kubectl.object("vm", "vault-keys")?["status"]["process"]["pid"].clone()) };
    let first = by(platform, "vault-keys", "Vault", 1)?;
    let process = pid()?;
    ensure!(process.is_number(), "it has a process: {process}");
    for (class, provider, generation) in [("vault-keys-secret", "Secret", 2), ("vault-keys", "Vault", 3)] {
        let mut changed = variables.clone();
        changed["key_class"] = class.into();
        project.write("terraform.tfvars.json", &changed.to_string())?;
        project.apply()?;
        let now = by(platform, class, provider, generation)?;
        ensure!(now["diskKeyID"] == first["diskKeyID"], "the key of the disk is the same: {now}");
    }
    ensure!(pid()? == process, "it is the same QEMU");
    ensure!(vault.decrypted()? > 0, "the key was decrypted there");
    let objects = kubectl.ok(&["get", "disks,keyclasses,vms", "-o", "json"])?;
    ensure!(!objects.contains(&vault.secret_id) && !objects.contains("vault:v1:"), "{objects}");
    refused(platform, vault)
}

/// Waits until a class of this kind protects the key of the disk. Returns the encryption.
fn by(platform: &Platform, class: &str, provider: &str, generation: u64) -> Result<Value> {
    let class = format!("default/{class}");
    let disk = platform.kubectl().until("disk/vault-keys", "to have another class", LIMIT, |disk| {
        let found = &disk["status"]["encryption"];
        found["keyClass"] == class.as_str()
            && found["providerID"] == provider
            && found["generation"] == generation
    })?;
    Ok(disk["status"]["encryption"].clone())
}

/// A guest runs on while the Vault refuses, one that is stopped waits, and is started once the Vault decrypts again.
fn refused(platform: &mut Platform, vault: &Vault) -> Result<()> {
    let kubectl = platform.kubectl().clone();
    vault.refuse(true)?;
    let pid = |vm: &Value| vm["status"]["process"]["pid"].clone();
    let before = pid(&kubectl.object("vm", "vault-keys")?);
    // A host asks the Vault for a key once a minute, and when its agent starts: that has keys in memory only.
    platform.stop()?;
    platform.start()?;
    let denied = Some("VaultAccessDenied");
    let disk = kubectl.condition("disk/vault-keys", "EncryptionSynced=False", denied, LIMIT)?;
    ensure!(!disk["status"].to_string().contains(&vault.secret_id), "{:#}", disk["status"]);
    let vm = kubectl.object("vm", "vault-keys")?;
    ensure!(vm["status"]["state"] == "Running" && pid(&vm) == before, "{:#}", vm["status"]);
    let power = |power: &str| {
        let patch = json!({"spec": {"power": power, "stop": {"mode": "Hard"}}}).to_string();
        kubectl.ok(&["patch", "vm", "vault-keys", "--type=merge", "-p", &patch])
    };
    power("Stopped")?;
    kubectl.until("vm/vault-keys", "to be stopped", LIMIT, |vm| vm["status"]["state"] == "Stopped")?;
    power("Running")?;
    kubectl.condition("vm/vault-keys", "Ready=False", Some("WaitingForDisk"), LIMIT)?;
    vault.refuse(false)?;
    kubectl.until("vm/vault-keys", "to run again", LIMIT, |vm| vm["status"]["state"] == "Running").map(drop)
}
